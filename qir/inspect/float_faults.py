"""Finds float ops whose results in two engines no order of float32 sums explains.

Each op runs alone in both engines, on the operands that the reference computes. So an earlier
difference does not count again in later ops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.inspect.float_sums import error_bound, has_own_order
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import Array
from qir.profiles import library_of
from qir.reference.interpreter import run

Tensor: TypeAlias = NDArray[np.generic]
Run: TypeAlias = Callable[[Graph, Mapping[str, Tensor]], Mapping[str, Tensor]]
"""Runs a graph by an engine; raises QirError for a graph that the engine does not take."""
MAX_ELEMENTS = 1 << 26
"""Operands of more elements are not judged: their bound would take too much memory."""
MAX_ERROR = 2.0**100
"""Larger errors than this come from values near the end of float32, where results overflow."""


@dataclass(frozen=True, slots=True)
class FloatFault:
    """A tensor that two engines compute further apart than the error bound of its op allows."""

    tensor: str
    op: str
    largest: float | None
    """The largest difference; None where one of the two results is NaN or infinite."""
    bound: float
    """How far apart any two orders of the op's sums may be."""

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON values."""
        return asdict(self)

    def message(self, names: Sequence[str]) -> str:
        """Returns one line about the fault, for the engines of these names."""
        apart = "in NaN or infinity" if self.largest is None else f"by {self.largest:.3g}"
        return (
            f"fault: {self.tensor} ({self.op}): {' and '.join(names)} differ {apart} on the same"
            f" operands; the order of float32 sums explains {self.bound:.2g} at most"
        )


def first_fault(
    graph: Graph, inputs: Mapping[str, Tensor], engines: Sequence[Run]
) -> FloatFault | None:
    """Returns the first tensor, in the graph's order, that two engines compute too far apart.

    Ops of bodies, ops without a known bound and ops that an engine does not take are not judged.
    """
    judged = frozenset(node for node in graph if has_own_order(node))
    reads_left = Counter(value for node in judged for value in node.operands.values())
    computed: dict[Value, Tensor] = {}
    faults: list[FloatFault] = []

    def see(value: Value, data: Tensor) -> None:
        if value in reads_left:
            computed[value] = data
        if value.node not in judged or value is not value.node.results[0]:
            return
        operands = {slot: computed[operand] for slot, operand in value.node.operands.items()}
        fault = None if faults else _fault(value.node, operands, engines)
        if fault is not None:
            faults.append(fault)
        reads_left.subtract(value.node.operands.values())
        for operand in set(value.node.operands.values()):
            if not reads_left[operand]:
                del computed[operand]

    run(graph, inputs, profiles=library_of(graph).on_processor(), observe=see)
    return faults[0] if faults else None


def _fault(node: Node, operands: Mapping[str, Tensor], engines: Sequence[Run]) -> FloatFault | None:
    # All operands as constants for the bound; only the model's own constants for the run, as
    # engines fold or pack constants.
    with_constants = _alone(node, operands, operands)
    bound = error_bound(with_constants.output.operands["y"].node, MAX_ELEMENTS)
    if bound is None or not bound < MAX_ERROR:
        return None
    fixed = {s: x for s, x in operands.items() if node.operands[s].constant is not None}
    single_op = _alone(node, operands, fixed)
    feeds = {slot: data for slot, data in operands.items() if slot not in fixed}
    try:
        a, b = (np.asarray(engine(single_op, feeds)["y"], np.float64) for engine in engines)
    except QirError:
        return None
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    if (difference <= 2 * bound).all():
        return None
    largest = float(difference.max())
    finite = largest if np.isfinite(largest) else None
    return FloatFault(node.results[0].name, node.op, finite, 2 * bound)


def _alone(node: Node, operands: Mapping[str, Tensor], fixed: Mapping[str, Tensor]) -> Graph:
    """Returns a graph of one op; the operands in `fixed` are constants, the others inputs."""
    graph = Graph("one", "native")
    values: dict[str, Value] = {}
    for slot, data in operands.items():
        if slot in fixed:
            values[slot] = graph.constant(Array.of(data, slot))
        else:
            kind = node.operands[slot].type.with_shape(data.shape)
            values[slot] = graph.add("input", types=[kind], name=slot).result
    node_copy = graph.add(node.op, values, dict(node.attrs))
    graph.add("output", {"y": node_copy.results[0]})
    return graph
