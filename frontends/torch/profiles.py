"""Chooses the numerics profile of a program by PyTorch's quantized engine and version."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from qir.errors import InputError
from qir.profiles import profile, profile_names
from qir.profiles.versions import profile_of

PT2E = "pt2e"
"""The name that profiles of exported (PT2E) programs have in place of an engine."""


def profile_name(engine: str) -> str:
    """Returns the profile of an engine that covers the installed PyTorch, else the newest.

    Raises InputError for an engine without a profile.
    """
    stated = {
        name: profile(name).head.versions
        # The newest release first, which `profile_of` falls back to.
        for name in sorted(profile_names(), key=_release, reverse=True)
        if name.startswith("torch-") and name.endswith(f".{engine}")
    }
    if not stated:
        raise InputError(f"no profile speaks of PyTorch's engine {engine}")
    return profile_of(stated, torch.__version__)


def running_engine() -> str:
    """Returns the current quantized engine of this process."""
    return str(torch.backends.quantized.engine)


@contextmanager
def engine_chosen(name: str) -> Iterator[None]:
    """Sets the quantized engine inside a `with` block; an empty name keeps the current one.

    Raises InputError for an engine that this PyTorch lacks.
    """
    backend: Any = torch.backends.quantized
    before = backend.engine
    if name and name not in backend.supported_engines:
        supported = ", ".join(backend.supported_engines)
        raise InputError(f"computes by engine {name}; this PyTorch has {supported}")
    backend.engine = name or before
    try:
        yield
    finally:
        backend.engine = before


def _release(name: str) -> tuple[int, ...]:
    version = name.removeprefix("torch-").rpartition(".")[0]
    return tuple(int(part) if part.isdigit() else 0 for part in version.split("."))
