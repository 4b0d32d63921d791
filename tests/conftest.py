"""What every test shares: how hypothesis searches, and what programs go through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.plugin.through import Through

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
    parser.addoption(
        "--through",
        metavar="TARGET",
        help="send what the reference is to run out by this target and back, such as loopback",
    )


_THROUGH: pytest.StashKey[Through] = pytest.StashKey()


def pytest_configure(config: pytest.Config) -> None:
    if name := config.getoption("--through"):
        from tests.plugin.through import begin  # before any test imports what it replaces

        config.stash[_THROUGH] = begin(name)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if made := config.stash.get(_THROUGH, None):
        if made.came_back:  # with several workers each has its own count
            terminalreporter.write_line(made.told())
