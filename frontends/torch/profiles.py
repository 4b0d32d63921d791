"""Which numerics profile speaks of a program that PyTorch runs in integers."""

from __future__ import annotations

import torch

from qir.errors import InputError
from qir.inspect.versions import profile_of
from qir.profiles import profile, profile_names

EXPORTED = "pt2e"
"""The flow of exported programs, beside the quantized engines."""


def profile_name(engine: str) -> str:
    """Returns the profile of an engine that covers the installed PyTorch, else the newest.

    Raises InputError for an engine that no installed profile speaks of.
    """
    stated = {
        name: profile(name).head.versions
        for name in sorted(profile_names(), key=_release, reverse=True)
        if name.startswith("torch-") and name.endswith(f".{engine}")
    }
    if not stated:
        raise InputError(f"no profile speaks of PyTorch's engine {engine}")
    return profile_of(stated, torch.__version__)


def running_engine() -> str:
    """Returns the quantized engine that is chosen in this process."""
    return str(torch.backends.quantized.engine)


def _release(name: str) -> tuple[int, ...]:
    version = name.removeprefix("torch-").rpartition(".")[0]
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
