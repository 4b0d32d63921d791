"""The target `cpu`, which compiles models and loads programs that were compiled before."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from qir._kernels import _cpu
from qir.errors import UsageError
from qir.target import Observe, Target

from .loaded_program import Loaded
from .program_file import SUFFIX

if TYPE_CHECKING:  # program files load without the compiler
    from qir.capability import Capability
    from qir.ir.graph import Graph

    from .compiled import Compiled


class CpuTarget(Target):
    """QIR's own kernels, which compute as onnxruntime does."""

    name = "cpu"
    profile = "native"

    def capability(self) -> Capability:
        """Returns what the kernels compute in integers."""
        from qir.capability import load

        return load(Path(__file__).with_name("capability.toml"))

    def compile(
        self, graph: Graph, *, threads: int | None = None, isa: str | None = None
    ) -> Compiled:
        """Makes a graph of any form ready to run; `isa` caps the instruction sets.

        A graph in QDQ form is grouped first, and the ledger of the result lists what that changed;
        one with ops on quantized values runs as it is.

        Raises UsageError for a number of threads below 1, an isa this machine does not run, or
        such a value of QIR_NUM_THREADS or QIR_ISA.
        """
        from qir.ledger import Ledger

        from .compiled import Compiled
        from .grouping import group, unwrap

        threads = _checked_threads(threads, isa)
        grouped, ledger = graph.copy(), Ledger()
        group(grouped, ledger)
        unwrap(grouped)
        return Compiled(grouped, threads, isa, ledger)

    def owns(self, path: Path) -> bool:
        """Reports whether a file is a program file."""
        return path.suffix.lower() == SUFFIX

    def compile_file(
        self, path: Path, *, threads: int | None = None, isa: str | None = None
    ) -> Loaded:
        """Reads a program file that `Compiled.save` wrote; raises InputError for any other file."""
        return Loaded(path, _checked_threads(threads, isa), isa)

    def observed(self, graph: Graph, names: Collection[str]) -> Observe:
        """Returns a runner of the graph that shows each named value as a step computes it."""
        from .observed import ObservedPrograms

        return ObservedPrograms(graph, names)


def _checked_threads(threads: int | None, isa: str | None) -> int:
    """Returns the number of threads; raises UsageError for settings that this machine has not."""
    if threads is not None and threads < 1:
        raise UsageError(f"{threads} threads; it takes 1 or more")
    try:
        known, threads = _cpu.caps(), threads or _cpu.default_threads()
    except _cpu.SettingError as error:
        raise UsageError(str(error)) from None
    if isa is not None and isa not in known:
        raise UsageError(f"no instruction set {isa!r} here; there are {', '.join(known)}")
    return threads
