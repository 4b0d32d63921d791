"""Which numerics profile speaks of the onnxruntime that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qir.inspect import versions

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
"""The packages that bring onnxruntime, any of them."""
FOLDER = Path(__file__).with_name("profiles")
"""Where the numerics profiles of onnxruntime are."""


def profile_name() -> str:
    """Returns the profile of the installed onnxruntime, all graph optimizations on.

    The newest profile stands for versions that none covers, and where none is installed.
    """
    return profile_of(versions.installed(DISTRIBUTIONS))


@cache
def profile_of(version: str | None) -> str:
    """Returns the profile that covers a version of onnxruntime, else the newest."""
    return versions.profile_of(profiles(), version)


@cache
def profiles() -> Mapping[str, str]:
    """Returns the versions that each profile covers, newest first, all graph optimizations on."""
    return versions.known(FOLDER, "ort-*")
