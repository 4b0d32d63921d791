"""What every test shares: how hypothesis searches."""

import pytest
from hypothesis import settings

# Shared machines are slow at odd moments: a deadline would fail tests that are right.
# The blob printed with a failure repeats it.
settings.register_profile("qir", deadline=None, print_blob=True, database=None)
settings.load_profile("qir")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write what passes make of the graphs in tests/golden into their files",
    )
