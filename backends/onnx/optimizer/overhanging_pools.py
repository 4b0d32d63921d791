"""Average pools whose last windows exceed the padded input (ceil mode).

QLinearAveragePool divides by the size of the whole window, AveragePool by what is inside the padded
input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger
from qir.reference.integer_means import AVERAGES
from qir.rewrite.runner.filter import asking, current_filter

from ..writer.writer import STEP


def pad_windows(graph: Graph, ledger: Ledger) -> None:
    """Replaces the overhang of quantized pools by padding, where sizes are known: floats then
    agree."""
    for node in list(graph):
        if node.op not in AVERAGES or node.results[0].type.quant is None:
            continue
        overhang = _overhang(node.attrs, node.operands.get("x"), node.results[0])
        if not overhang or not all(isinstance(o, int) for o in overhang):
            continue
        # The overhang becomes padding at the end, and ceil mode is off: the windows stay the same.
        pad, n = _int_tuple(node.attrs, "pad"), len(overhang)
        ends = [p + (o or 0) for p, o in zip(pad[n:], overhang, strict=True)]
        graph.set_attrs(node, pad=(*pad[:n], *ends), ceil=False)
        reason = "what its last windows count beyond the padding is written as padding"
        ledger.add(Change.EXACT, STEP, node.name, reason)


def keeping_pools(graph: Graph, ledger: Ledger) -> AbstractContextManager[None]:
    """Returns a context in which passes leave such pools of a graph quantized, as the ledger
    reports."""
    previous, reported = current_filter(graph), set[str]()

    def ask(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        pool = next((n for n in nodes if has_overhang(n)), None)
        if pool is None:
            return previous(step, rewrite, nodes)
        if pool.name not in reported:
            reported.add(pool.name)
            reason = (
                "stays as it is: quantized pools count all of a window that exceeds the padding"
            )
            ledger.add(Change.EXACT, STEP, pool.name, f"{reason}, float pools do not")
        return False

    return asking(graph, ask)


def has_overhang(node: Node) -> bool:
    """Returns whether a pool has windows that exceed the padded input, or may have."""
    if node.stages:
        anchor, value = node.stages[0], node.stage_operands(0).get("x")
        return anchor.op in AVERAGES and bool(_overhang(anchor.attrs, value, node.results[0]))
    return node.op in AVERAGES and bool(
        _overhang(node.attrs, node.operands.get("x"), node.results[0])
    )


def _overhang(attrs: Mapping[str, Attr], x: Value | None, y: Value) -> Sequence[int | None]:
    """Returns by how much windows exceed the padded input on each axis; None where sizes are
    unknown."""
    if x is None or attrs.get("ceil") is not True or attrs.get("count_pad") is not True:
        return ()
    kernel, stride, pad = (_int_tuple(attrs, name) for name in ("kernel", "stride", "pad"))
    n = len(kernel)
    axes = range(1, n + 1) if attrs.get("layout") == "NHWC" else range(2, n + 2)
    overhangs: list[int | None] = []
    for i, axis in enumerate(axes):
        size, count = x.type.shape[axis], y.type.shape[axis]
        if isinstance(size, int) and isinstance(count, int):
            # The last window ends at (count - 1) * stride + kernel, from the start of the first
            # padding.
            span = (count - 1) * stride[i] + kernel[i]
            overhangs.append(max(span - size - pad[i] - pad[i + n], 0))
        else:
            # With stride 1 there is no overhang, whatever the sizes.
            overhangs.append(0 if stride[i] == 1 else None)
    return overhangs if any(o is None or o for o in overhangs) else ()


def _int_tuple(attrs: Mapping[str, Attr], name: str) -> tuple[int, ...]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))
