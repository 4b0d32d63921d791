"""Average pools whose last windows exceed the padding, which integer and float kernels count
differently.

QLinearAveragePool divides by the whole window, AveragePool by what is in the padded input.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager

from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger
from qir.rewrite.runner.filter import asked, asking

from ..writer.writer import STEP

_POOLS = frozenset({"avg_pool1d", "avg_pool2d", "avg_pool3d"})


def padded(graph: Graph, ledger: Ledger) -> None:
    """Writes out the padding under the last quantized windows, where sizes are known."""
    for node in list(graph):
        if node.op not in _POOLS or node.results[0].type.quant is None:
            continue
        over = _over(node.attrs, node.operands.get("x"), node.results[0])
        if not over or not all(isinstance(o, int) for o in over):
            continue
        pad, n = _numbers(node.attrs, "pad"), len(over)
        ends = [p + (o or 0) for p, o in zip(pad[n:], over, strict=True)]
        graph.set_attrs(node, pad=(*pad[:n], *ends), ceil=False)
        said = "what its last windows count beyond the padding is written as padding"
        ledger.add(Change.EXACT, STEP, node.name, said)


def kept(ledger: Ledger) -> AbstractContextManager[None]:
    """Passes leave such pools in the form that they have, and the ledger says so."""
    outer, told = asked(), set[str]()

    def watch(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        pool = next((n for n in nodes if differs(n)), None)
        if pool is None:
            return outer(step, rewrite, nodes)
        if pool.name not in told:
            told.add(pool.name)
            said = "stays as it is: quantized pools count all of a window that exceeds the padding"
            ledger.add(Change.EXACT, STEP, pool.name, f"{said}, float pools do not")
        return False

    return asking(watch)


def differs(node: Node) -> bool:
    """Returns whether a pool has windows that hang over the padding, or may have."""
    if node.stages:
        head, value = node.stages[0], node.stage_operands(0).get("x")
        return head.op in _POOLS and bool(_over(head.attrs, value, node.results[0]))
    return node.op in _POOLS and bool(_over(node.attrs, node.operands.get("x"), node.results[0]))


def _over(attrs: Mapping[str, Attr], x: Value | None, y: Value) -> Sequence[int | None]:
    """Returns how far windows hang over the padding, axis by axis; None where nobody knows."""
    if x is None or attrs.get("ceil") is not True or attrs.get("count_pad") is not True:
        return ()
    kernel, stride, pad = (_numbers(attrs, name) for name in ("kernel", "stride", "pad"))
    n = len(kernel)
    axes = range(1, n + 1) if attrs.get("layout") == "NHWC" else range(2, n + 2)
    found: list[int | None] = []
    for i, axis in enumerate(axes):
        size, count = x.type.shape[axis], y.type.shape[axis]
        if isinstance(size, int) and isinstance(count, int):
            reach = (count - 1) * stride[i] + kernel[i]
            found.append(max(reach - size - pad[i] - pad[i + n], 0))
        else:
            found.append(0 if stride[i] == 1 else None)
    return found if any(o is None or o for o in found) else ()


def _numbers(attrs: Mapping[str, Attr], name: str) -> tuple[int, ...]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return tuple(v for v in value if isinstance(v, int))
