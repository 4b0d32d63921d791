"""Selects the numerics profile of the installed onnxruntime."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qir.profiles import versions

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
"""The packages that install onnxruntime."""
FOLDER = Path(__file__).with_name("profiles")
"""Where the numerics profiles of onnxruntime are."""


def profile_name() -> str:
    """Returns the profile of the installed onnxruntime, with all graph optimizations.

    The newest profile stands for versions that none covers, and for none installed.
    """
    return profile_of(versions.installed(DISTRIBUTIONS))


@cache
def profile_of(version: str | None) -> str:
    """Returns the profile that covers a version of onnxruntime, else the newest."""
    return versions.profile_of(profiles(), version)


@cache
def profiles() -> Mapping[str, str]:
    """Returns the versions that each profile covers, newest first, with all graph optimizations."""
    return versions.known(FOLDER, "ort-*")
