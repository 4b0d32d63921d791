"""Which numerics profile speaks of the onnxruntime that is installed."""

from __future__ import annotations

import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

from qir.inspect.versions import covers

DISTRIBUTIONS = ("onnxruntime", "onnxruntime-gpu")
"""The packages that bring onnxruntime, any of them."""
FOLDER = Path(__file__).with_name("profiles")
"""Where the numerics profiles of onnxruntime lie."""


def profile_name() -> str:
    """Returns the profile of the installed onnxruntime, all graph optimizations on.

    The newest profile stands for versions that none covers, and where none is installed.
    """
    return profile_of(_installed())


@cache
def profile_of(version: str | None) -> str:
    """Returns the profile that covers a version of onnxruntime, else the newest."""
    known = profiles()
    if version is not None:
        for name, versions in known.items():
            if covers(versions, version):
                return name
    return next(iter(known))


@cache
def profiles() -> dict[str, str]:
    """Returns the versions that each profile covers, newest first, all graph optimizations on."""
    paths = [p for p in FOLDER.glob("ort-*.toml") if not p.stem.endswith(".noopt")]
    paths.sort(key=lambda p: [int(n) for n in p.stem.removeprefix("ort-").split(".")], reverse=True)
    return {p.stem: _versions(p) for p in paths}


def _versions(path: Path) -> str:
    """Returns the versions that a profile states, else those of the profile that it extends."""
    head = tomllib.loads(path.read_text(encoding="utf-8"))
    if "versions" in head or "extends" not in head:
        return str(head.get("versions", ""))
    return _versions(path.with_name(f"{head['extends']}.toml"))


def _installed() -> str | None:
    for name in DISTRIBUTIONS:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None
