"""What runs a model: the reference, or a target, by name."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from qir import execution
from qir.analysis.kernel_groups import is_float
from qir.errors import Refused, UsageError
from qir.ir.dtype import box_object
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from qir.target import Executable
from qir.target import target as named

Tensor: TypeAlias = "NDArray[np.generic]"
Tensors: TypeAlias = "Mapping[str, Tensor]"

REFERENCE = "reference"
PLAIN = "plain"


def is_reference(name: str) -> bool:
    """Returns whether an engine is the reference, which alone keeps values in between."""
    return name == REFERENCE


@runtime_checkable
class FileEngine(Protocol):
    """A target that runs files as they are, with its optimizer or without."""

    def session(
        self, model: Graph | Path, *, threads: int | None = None, optimize: bool = True
    ) -> Executable:
        """Makes a graph or a file ready to run."""
        ...


@runtime_checkable
class Grouping(Protocol):
    """An executable that groups what it is given, and shows the result."""

    graph: Graph
    ledger: Ledger


@dataclass(frozen=True)
class Engine:
    """Something that runs one model."""

    name: str
    run: Callable[[Tensors], dict[str, Tensor]]
    executable: Executable | None
    """What a target made; None for the reference."""


def engine(
    name: str,
    graph: Graph,
    path: Path,
    threads: int | None = None,
    *,
    values: Collection[str] = (),
    isa: str | None = None,
) -> Engine:
    """Returns the engine of that name for a model, which was read from that file.

    `reference`, or the name of a target; `:plain` after it leaves its graph optimizer out. A target
    runs a file of its own kind as it is. Values to give instead of the outputs, and the processor
    whose rules count, are for the reference. Raises UsageError for a name that is none, Refused and
    InputError for a model that it does not take, which is named.
    """
    if name == REFERENCE:
        wanted = tuple(dict.fromkeys(values)) or None
        return Engine(
            name, lambda inputs: execution.run(graph, inputs, values=wanted, isa=isa), None
        )
    base, colon, variant = name.partition(":")
    backend = named(base)
    if colon and (variant != PLAIN or not isinstance(backend, FileEngine)):
        raise UsageError(f"engine {name!r}: only {base} itself, or onnxruntime:{PLAIN}")
    if isinstance(backend, FileEngine):
        made = backend.session(
            path if backend.owns(path) else graph, threads=threads, optimize=not colon
        )
    elif backend.owns(path):
        # The graph names inputs and results, which files of some kinds do not.
        made = backend.compile_read(path, graph, threads=threads)
    else:
        try:
            made = backend.compile(graph, threads=threads)
        except Refused as error:
            raise Refused(f"{path}: {error}") from error
    kinds = {name: value.type.dtype for name, value in graph.outputs.items()}
    # A tensor of unknown rank is an array as any other; lists, maps and optionals are not.
    lists = {name for name, kind in kinds.items() if kind.is_opaque and not kind.is_loose}
    return Engine(name, lambda inputs: _run_and_box(made, inputs, lists), made)


def compared(
    names: Sequence[str],
    graph: Graph,
    path: Path,
    threads: int | None = None,
    *,
    isa: str | None = None,
) -> tuple[list[Engine], Graph]:
    """Returns the engines to compare, and the graph as the runtime among them computes it.

    A runtime rounds where its optimizer groups. It is given the model as it is, and its profile
    groups the graph for the others: for QIR's kernels first, then for the reference.
    """
    engines: dict[str, Engine] = {}
    computed = graph
    # The runtime first: its profile groups the graph that the others compute.
    for name in sorted(names, key=_creation_order):
        is_runtime = _creation_order(name) == _RUNTIME
        engines[name] = engine(name, graph if is_runtime else computed, path, threads, isa=isa)
        computed = _as_computed(engines[name], computed)
    return [engines[name] for name in names], computed


_RUNTIME, _KERNELS, _DEFINITION = range(3)


def _creation_order(name: str) -> int:
    """When an engine is made: each after those that decide how the graph is grouped."""
    if name == REFERENCE:
        return _DEFINITION
    return _RUNTIME if isinstance(named(name.partition(":")[0]), FileEngine) else _KERNELS


def grouped(made: Engine) -> Graph | None:
    """Returns the graph as an engine of QIR's own grouped it; None where it runs as it is."""
    executable = made.executable
    # An empty ledger says that nothing was grouped: the graph is the one that was given.
    if isinstance(executable, Grouping) and len(executable.ledger):
        return executable.graph
    return None


def _as_computed(made: Engine, graph: Graph) -> Graph:
    """Returns the graph as an engine computes it: as it grouped it itself, else by its target's
    profile.

    The same graph where nothing is grouped, as in a float one.
    """
    from qir.ledger import Ledger

    base, colon, _ = made.name.partition(":")
    if isinstance(made.executable, Grouping):
        return grouped(made) or graph
    # The reference groups nothing itself, nor does a runtime without its optimizer.
    if made.executable is None or colon or is_float(graph):
        return graph
    backend = named(base)
    # This ledger and the next are thrown away: grouping is for this comparison alone.
    own = backend.computed(graph, Ledger())
    return own or run_passes(graph, [Group(backend.profile)], Ledger())


def _run_and_box(
    executable: Executable, inputs: Tensors, lists: Collection[str]
) -> dict[str, Tensor]:
    """Runs an executable, and puts lists, maps and optionals into object arrays of no axes.

    `lists` names the outputs whose type is one of these, whatever a run gives.
    """
    # NumPy would make a list of equal tensors into one tensor with an axis more.
    arrays = np.ndarray, np.generic
    return {
        name: np.asarray(result)
        if isinstance(result, arrays) and name not in lists
        else box_object(result)
        for name, result in executable(**inputs).items()
    }


def fallbacks(engines: Sequence[Engine]) -> list[dict[str, str]]:
    """Returns the nodes that the reference computes inside of compiled programs, and why, as last
    run."""
    return [
        {"node": found.node, "op": found.op, "reason": found.reason}
        for each in engines
        for found in getattr(each.executable, "fallbacks", ())
    ]


def require_kernels(path: Path, found: Sequence[Mapping[str, str]]) -> None:
    """Raises Refused where there are nodes that the reference computes; names the first."""
    if found:
        first = found[0]
        others = f", and {len(found) - 1} more" if len(found) > 1 else ""
        message = f"{first['node']} ({first['op']}) runs by the reference, as {first['reason']}"
        raise Refused(f"{path}: {message}{others}; leave `strict` out to run it so")
