"""Operators on codes stay so where they were read so and nobody asks for another form."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from qir.ir.node import Node
from qir.rewrite.watch import watching

_STANDARD = frozenset({"QLinearConv", "QLinearMatMul"})


@contextmanager
def kept(*, standard: bool) -> Iterator[None]:
    """Passes leave such operators; `standard` has none but ONNX's own."""
    outer = watching.get()

    def watch(step: str, rewrite: str, nodes: tuple[Node, ...]) -> bool:
        if any(stays(node, standard=standard) for node in nodes):
            return False
        return outer is None or outer(step, rewrite, nodes)

    token = watching.set(watch)
    try:
        yield
    finally:
        watching.reset(token)


def stays(node: Node, *, standard: bool) -> bool:
    """Whether a node is an operator on codes that a file had, and no rewrite made it another."""
    if len(node.origins) != 1 or node.stages or node.origins[0].framework != "onnx":
        return False
    if not any(value.type.quant for value in node.results):
        return False
    op = node.origins[0].op.rpartition(".")[2]
    return not standard or not op.startswith("Q") or op in _STANDARD
