"""What QIR finds on this machine: frameworks, plugins, profiles and the processor."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

from qir import registry
from qir.errors import PluginError, UsageError
from qir.inspect.runtimes import probes
from qir.profiles.processor import processor_features

LIBRARIES = ("numpy", "networkx", "ml_dtypes", "safetensors")


@dataclass(frozen=True, slots=True)
class LoadedPlugin:
    """One entry point, loaded to see whether it works."""

    kind: str
    name: str
    distribution: str
    place: str
    """The module it is in, or the folder of its files."""
    fault: str
    """Why it cannot be used; empty where it can."""
    missing: bool = False
    """Whether all that it lacks is a framework that is not installed."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The report of `qir doctor`.

    `to_json` has the keys qir, python, platform, libraries, frameworks (version, or null where it
    is not installed), plugins, features, isa, threads, kernels.
    """

    qir: str
    python: str
    platform: str
    libraries: Mapping[str, str | None]
    frameworks: Mapping[str, str | None]
    plugins: tuple[LoadedPlugin, ...]
    features: tuple[str, ...]
    """What this processor can do, of what kernels could use, as the system names it."""
    isa: tuple[str, ...]
    """The kernels in use, best first."""
    threads: int
    fault: str
    """Why the compiled kernels cannot be used; empty where they can."""

    @property
    def kernels(self) -> str:
        """Which compiled kernels run, or why none can."""
        return self.fault or f"best first: {', '.join(self.isa)}"

    @property
    def faults(self) -> int:
        """How many plugins are broken, and whether the kernels are."""
        return sum(bool(p.fault) and not p.missing for p in self.plugins) + bool(self.fault)

    def to_json(self) -> dict[str, object]:
        """Returns all of it as JSON takes it."""
        fields = asdict(self)
        del fields["fault"]
        return {**fields, "kernels": self.kernels}


def environment(version: str) -> Environment:
    """Looks around; no framework is imported but by the plugins that need one.

    Raises UsageError where QIR_ISA or QIR_NUM_THREADS says what cannot be.
    """
    features, isa, threads, fault = _processor()
    return Environment(
        version,
        platform.python_version(),
        f"{platform.system()} {platform.machine()}, {sys.implementation.name}",
        {name: _version(name) for name in LIBRARIES},
        _frameworks(),
        tuple(_plugins()),
        features,
        isa,
        threads,
        fault,
    )


def _frameworks() -> dict[str, str | None]:
    """Returns the version of each framework in this Python, as its probe names the packages of
    it."""
    versions = {"onnx": _version("onnx")}
    for probe in probes():
        versions[probe.backend] = versions.get(probe.backend) or _first(probe.distributions)
    return versions


def _first(distributions: tuple[str, ...]) -> str | None:
    return next((v for d in distributions if (v := _version(d)) is not None), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _plugins() -> list[LoadedPlugin]:
    out = []
    for kind in registry.KINDS:
        for name in registry.names(kind):
            fault = place = ""
            missing = False
            try:
                entry = registry.find(kind, name)
                place = str(entry) if isinstance(entry, Path) else getattr(entry, "__module__", "")
            except PluginError as error:
                fault = " ".join(str(error).split())
                missing = _lacks_framework(error)
            owner = registry.owner(kind, name)
            out.append(LoadedPlugin(kind.removeprefix("qir."), name, owner, place, fault, missing))
    return out


def _lacks_framework(error: PluginError) -> bool:
    cause = error.__cause__
    missing_module = (
        (cause.name or "").partition(".")[0] if isinstance(cause, ModuleNotFoundError) else ""
    )
    return missing_module not in ("", "qir")


def _processor() -> tuple[tuple[str, ...], tuple[str, ...], int, str]:
    try:
        from qir._kernels import _cpu
    except ImportError as error:
        threads = len(os.sched_getaffinity(0))
        return processor_features(()), (), threads, " ".join(str(error).split())
    try:
        features = processor_features(tuple(_cpu.cpu_features()))
        return features, tuple(_cpu.isa()), _cpu.default_threads(), ""
    except _cpu.SettingError as error:
        raise UsageError(str(error)) from None
