"""Which numerics profile speaks of the torch that is installed."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from qir.profiles import versions

PROFILES = Path(__file__).with_name("profiles")
"""The folder of the numerics profiles of PyTorch."""
ENGINES = ("fbgemm", "x86", "onednn", "qnnpack", "pt2e")
"""What torch runs quantized ops by: its engines, and exported programs."""
DISTRIBUTIONS = ("torch",)
"""The package that brings it."""


def profile_name(engine: str) -> str:
    """Returns the profile of an engine of the installed torch.

    The newest profile stands for versions that none covers, and where none is installed.
    """
    return profile_of(engine, versions.installed(DISTRIBUTIONS))


@cache
def profile_of(engine: str, version: str | None) -> str:
    """Returns the profile of an engine that covers a version of torch, else the newest."""
    return versions.profile_of(profiles(engine), version)


@cache
def profiles(engine: str) -> Mapping[str, str]:
    """Returns the versions that each profile of an engine covers, newest first."""
    return versions.known(PROFILES, f"torch-*.{engine}")
