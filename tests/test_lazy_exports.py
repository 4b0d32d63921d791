"""What `import qir` alone lets a user write, though it imports no other module."""

from __future__ import annotations

import subprocess
import sys

ALONE = """
import qir
assert callable(qir.inspect.sensitive) and issubclass(qir.errors.QirError, Exception)
assert callable(qir.profiles.load) and qir.ir.graph.Graph is qir.Graph
for name in ("nothing", "_nothing", "__wrapped__"):
    assert not hasattr(qir, name), name
"""


def test_modules_are_found_by_their_names() -> None:
    subprocess.run([sys.executable, "-c", ALONE], check=True)
