"""What every test shares: how hypothesis searches."""

from hypothesis import settings

# Shared machines are slow at odd moments: a deadline would fail tests that are right.
# The blob printed with a failure repeats it.
settings.register_profile("qir", deadline=None, print_blob=True, database=None)
settings.load_profile("qir")
