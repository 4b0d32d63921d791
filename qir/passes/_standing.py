"""How ops stand before anything is planned: on codes, beside them, or on reals and why."""

from __future__ import annotations

from typing import Literal, TypeAlias

from qir.ir.coded import BRIDGES, whole
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.passes._coded import behind_sums, coded, decoded

Becomes: TypeAlias = Literal["integer", "already", "weights", "float", "as it is"]
"""Integer now, or since the file was made; weights of few bits with real data; real; neither."""

_NUMBERS = BRIDGES | {"recode", "choose_qparams", "qparams"}


def beside(node: Node) -> str:
    """What an op does that computes neither with codes nor with reals; empty for others."""
    if node.op in _NUMBERS:
        return "between reals and codes"
    return "no reals: sizes and other whole things" if whole(node) else ""


def why_real(node: Node) -> str:
    """Why an op that has codes beside it computes with reals."""
    if behind_sums(node):
        return "behind sums of codes, in reals"
    row = spec(node.op)
    weight = node.operands.get(row.traits.weight or "")
    if weight is not None and (decoded(weight) or weight.type.quant):
        return "its weights are codes, its data real"
    if any(decoded(v) or v.type.quant for v in node.operands.values()):
        return "real between codes" if any(map(coded, node.results)) else "it makes reals of codes"
    if any(coded(v) or v.type.quant for v in node.results):
        return "it computes with reals, which are quantized behind it"
    return "it works out the scales and zero points of codes"
