"""The stranger's distribution, installed for the tests of a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qir import registry
from qir.profiles.library import _READ_PROFILES
from tests.plugin.installing import install_acme


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that acme is installed in, on the path."""
    place = install_acme(tmp_path_factory.mktemp("acme"))
    sys.path.insert(0, str(place))
    registry.forget()
    _READ_PROFILES.clear()
    yield place
    sys.path.remove(str(place))
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_qir"]:
        del sys.modules[name]
    registry.forget()
    _READ_PROFILES.clear()
