"""Runtimes that can be asked for bytes: what a probe is, and which of them are installed where."""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import metadata
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.errors import PluginError, UsageError
from qir.inspect.probe_cases import Forms
from qir.ir.graph import Graph

Tensor = NDArray[np.generic]


class Probe(ABC):
    """One runtime in one setting, to be asked for bytes.

    A plugin names a tuple of them as an entry point of the group `qir.probes`.
    """

    name: ClassVar[str]
    backend: ClassVar[str]
    """As in the head of the profiles that speak of it."""
    settings: ClassVar[Mapping[str, str]] = {}
    distributions: ClassVar[tuple[str, ...]] = ()
    """The packages that bring it, any of them."""
    elsewhere: ClassVar[str] = ""
    """The variable of the environment that names a Python which has it, where QIR's need not."""
    forms: ClassVar[Forms]
    grouped: ClassVar[bool] = False
    """Whether programs come in QDQ form and the runtime makes kernels of them itself."""

    def begin(self) -> None:
        """Starts what takes long to start, such as a process of its own, and does not wait."""
        return

    @abstractmethod
    def run(self, graph: Graph, feeds: Mapping[str, Tensor]) -> Tensor:
        """Returns what the runtime gives for the one output; raises QirError for what it has no
        kernel for."""

    @property
    def version(self) -> str | None:
        """The version that is installed; None where none is. Nothing is imported."""
        # Another Python has packages of its own, which this one's metadata know nothing of.
        if self.python != sys.executable:
            return _version_at(self.python, self.distributions)
        for name in self.distributions:
            try:
                return metadata.version(name)
            except metadata.PackageNotFoundError:
                continue
        return None

    @property
    def python(self) -> str:
        """The Python in which it runs."""
        return (self.elsewhere and os.environ.get(self.elsewhere)) or sys.executable


_VERSION_SCRIPT = """
import sys
from importlib import metadata
for name in sys.argv[1:]:
    try:
        print(metadata.version(name))
        break
    except metadata.PackageNotFoundError:
        pass
"""


@cache
def _version_at(python: str, distributions: tuple[str, ...]) -> str | None:
    """Returns the version of a package in another Python; None where it, or that Python, is not
    there."""
    try:
        completed = subprocess.run(
            [python, "-c", _VERSION_SCRIPT, *distributions],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return completed.stdout.strip() or None


_WORD, _ROOM = 40, 120  # letters of a name that is wrong, and of those that there are


def _known_names(known: Sequence[Probe], word: str) -> str:
    """Returns what may be named, each name whole: the settings of a backend that the word begins
    with."""
    backend, _, setting = word.partition(".")
    names = sorted({p.name for p in known if backend in (p.backend, p.name.partition(".")[0])})
    if setting and names:
        known_backends = {p.backend for p in known}
        return _fitting_names(sorted({backend, *names} if backend in known_backends else names))
    hint = "; qir doctor --all lists the settings of each" if known else ""
    return (_fitting_names(sorted({p.backend for p in known})) or "none") + hint


def _fitting_names(names: Sequence[str]) -> str:
    """As many names as there is room for, and how many more there are."""
    fitting = sum(len(", ".join(names[: n + 1])) <= _ROOM for n in range(len(names)))
    more = f" and {len(names) - fitting} more" if fitting < len(names) else ""
    return ", ".join(names[:fitting]) + more


def probes() -> tuple[Probe, ...]:
    """Returns the probes of all plugins, by name; a plugin that does not load brings none."""
    loaded: list[Probe] = []
    for name in registry.names("qir.probes"):
        try:
            listed = registry.find("qir.probes", name)
        except PluginError:
            continue
        if isinstance(listed, tuple):
            loaded += [probe for probe in listed if isinstance(probe, Probe)]
    return tuple(sorted(loaded, key=lambda p: p.name))


def place(words: Sequence[str], python: str) -> None:
    """Lets the runtimes that are named run in another Python. UsageError where they cannot."""
    matching = [p for p in probes() if {p.name, p.backend} & set(words)]
    if not words or not matching or not all(p.elsewhere for p in matching):
        names = ", ".join(p.name for p in probes() if p.elsewhere)
        raise UsageError(f"--python is for a runtime that can be elsewhere: {names}")
    if not os.access(python, os.X_OK):
        raise UsageError(f"{python} is no Python that can be run")
    for probe in matching:
        # By the environment, which is where a probe looks for its Python.
        os.environ[probe.elsewhere] = python


def chosen(words: Sequence[str]) -> tuple[Probe, ...]:
    """Returns the probes of runtimes that are named, whole or by backend; of all installed for no
    name.

    Raises UsageError for a name that nothing has, or a runtime that is not installed.
    """
    known = probes()
    if not words:
        return tuple(p for p in known if p.version)
    selected: list[Probe] = []
    for word in words:
        matching = [p for p in known if word in (p.name, p.backend)]
        if not matching:
            raise UsageError(f"no probe {word[:_WORD]!r}; known: {_known_names(known, word)}")
        if not any(p.version for p in matching):
            packages = " or ".join(matching[0].distributions)
            variable = matching[0].elsewhere
            place = (
                f", which --python or {variable} may name in a Python of its own"
                if variable
                else ""
            )
            raise UsageError(f"{word} is not installed: {packages}{place}")
        # Names and backends may overlap; each probe is asked once.
        selected += [p for p in matching if p.version and p not in selected]
    return tuple(selected)
