"""Running a graph, by the reference or compiled: what `qir.run` and `qir.compile` need."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from qir.arguments import checked
from qir.errors import DataError, GraphError, QirError
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.profiles import library_of, read_profile_for
from qir.programs import KERNELS
from qir.reference.interpreter import find_value
from qir.reference.interpreter import run as run_reference
from qir.target import Executable
from qir.target import target as named_target


@checked
def run(
    graph: Graph,
    inputs: Mapping[str, NDArray[np.generic]],
    *,
    values: Iterable[str] | None = None,
    profile: str | None = None,
    isa: str | None = None,
) -> dict[str, NDArray[np.generic]]:
    """Runs a graph in the reference interpreter; returns outputs by name, or the named `values`.

    A value of a body is named by its path, `y/body/h`, and is that of the last iteration.
    `profile`, a name or the path of a `.toml` file, replaces every profile that the graph names.
    `isa` is the processor whose rules apply: `any`, `avx2`, `avx512`, `vnni` or `amx`. By default
    it is this one, for profiles with rules of their own for it.
    """
    library = library_of(graph)
    if profile:
        forced = read_profile_for(graph, profile)
        profile, library = forced.name, library.with_profile(forced)
    if values is not None:
        values = list(values)
        for name in values:
            try:
                find_value(graph, name)
            except GraphError:
                raise DataError(f"no value {name!r} in this model") from None
    try:
        return run_reference(
            graph, inputs, values=values, profile=profile, profiles=library.on_processor(isa)
        )
    except QirError:
        raise
    except Exception:  # an invalid graph is reported as such; anything else is a fault
        from qir.ir.verify import check

        check(graph)
        raise


@pause_garbage_collection()
@checked
def compile(graph: Graph, *, target: str = KERNELS, threads: int | None = None) -> Executable:
    """Compiles a graph for a target, by default for QIR's own kernels.

    A quantized graph is grouped first, as the target's runtime computes it, and results are those
    of the grouped graph; `run` computes a graph op by op, as it is.
    """
    return named_target(target).compile(graph, threads=threads)


__all__ = ["compile", "run"]
