"""Folds ops next to convolutions into these, as a runtime does when it loads a model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS
from qir.ir.types import Array, TensorType
from qir.ledger import Change
from qir.rewrite.preparation import Preparation

from .float_parameters import takes_float

_BEHIND: Mapping[str, tuple[str, ...]] = {
    "mul": ("b",),
    "add": ("b",),
    "batch_norm": ("gamma", "beta", "mean", "var"),
}
"""What is taken in, and the slots of its constants."""
Reals = NDArray[np.float32]


def join_scales(graph: Graph, prepared: Preparation) -> int:
    """Takes a product, a sum or a normalization by constants into the float weights and bias of the
    convolution that it alone reads, in float32 step by step as a runtime does; says how many."""
    if not takes_float(prepared.profile):
        return 0
    count = 0
    for node in [n for n in graph if n.op in CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS]:
        while last := _taken(node):
            _join(graph, node, last)
            said = f"its float weights absorb the {last.op} after it"
            prepared.ledger.add(Change.REGROUPED, prepared.name, node.name, said)
            count += 1
    return count


def join_pads(graph: Graph, prepared: Preparation) -> int:
    """Takes zeros that are put around images into the pads of the convolution that alone reads
    them; says how many."""
    if not takes_float(prepared.profile):
        return 0
    count = 0
    for node in [n for n in graph if n.op in CONVOLUTIONS]:
        pad = node.operands["x"].node
        more = _pads(pad)
        if more is None or node.stages or node.schemes or node.profile != pad.profile:
            continue
        held = node.attrs["pad"]
        assert isinstance(held, tuple)
        both = zip(held, more, strict=True)
        graph.set_attrs(node, pad=tuple(int(a) + b for a, b in both if isinstance(a, int)))
        graph.set_operand(node, "x", pad.operands["x"])
        graph.set_origins(node, [*pad.origins, *node.origins])
        graph.remove(pad)
        said = "zeros around its data are its own pads, if the file says neither axes nor auto_pad"
        prepared.ledger.add(Change.UNVERIFIED, prepared.name, node.name, said)
        count += 1
    return count


def _pads(pad: Node) -> tuple[int, ...] | None:
    """Returns the zeros before and after each axis of images, of an op that alone puts them
    there."""
    if pad.op != "pad" or pad.result.only_use is None or pad.stages or pad.schemes:
        return None
    pads, value = pad.attrs["pads"], pad.attrs["value"]
    if pad.result.type.element != F32 or pad.attrs["mode"] != "constant":
        return None
    if len(pad.operands) > 1 or not isinstance(value, float) or not isinstance(pads, tuple):
        return None
    wholes = [p for p in pads if isinstance(p, int)]
    half = len(wholes) // 2
    around = (*wholes[2:half], *wholes[half + 2 :])
    others = (*wholes[:2], *wholes[half : half + 2])
    zeros = value == 0 and not np.signbit(value)
    return around if zeros and min(wholes) >= 0 and not any(others) else None


def _taken(node: Node) -> Node | None:
    """Returns the op after a convolution that is taken in."""
    use = node.result.only_use
    if use is None or use.node.op not in _BEHIND or use.slot not in ("a", "x"):
        return None
    last = use.node
    plain = not any(n.stages or n.schemes for n in (node, last)) and last.profile == node.profile
    if not plain or last.result.type.shape != node.result.type.shape:
        return None
    w, bias = node.operands["w"], node.operands.get("bias")
    given = [last.operands[slot] for slot in _BEHIND[last.op]]
    if not all(_constant(v) for v in (w, *given)) or not (bias is None or _constant(bias)):
        return None
    if last.op == "batch_norm":
        return last
    fits = node.op in CONVOLUTIONS and _each(w, given[0], one=last.op == "mul")
    return last if fits else None


def _constant(value: Value) -> bool:
    held = value.constant is not None and not value.node.attrs["default"]
    return held and value.type.element == F32


def _each(w: Value, other: Value, *, one: bool) -> bool:
    """Returns whether there is a number for each channel, or one for all where there may be one."""
    shape, many = other.type.shape, (w.type.shape[0], *(1,) * (w.type.rank - 2))
    return shape in (many, (1, *many)) or (one and not shape)


def _join(graph: Graph, node: Node, last: Node) -> None:
    w, b = node.operands["w"], node.operands.get("bias")
    given = [_reals(last.operands[slot]) for slot in _BEHIND[last.op]]
    weights, bias = _computed(last, _reals(w), None if b is None else _reals(b), given, node)
    graph.set_operand(node, "w", _held(graph, weights, w, node))
    if bias is not None:
        graph.set_operand(node, "bias", _held(graph, bias, b or w, node))
    graph.set_origins(node, [*node.origins, *last.origins])
    graph.substitute(last, node.result)


def _computed(
    last: Node, w: Reals, bias: Reals | None, given: list[Reals], node: Node
) -> tuple[Reals, Reals | None]:
    """New weights and a new bias; every step is rounded to float32."""
    if last.op == "add":
        return w, given[0].reshape(-1) if bias is None else bias + given[0].reshape(-1)
    if last.op == "mul":
        gain = given[0].reshape(-1)
        return _scaled(w, gain, node), None if bias is None else bias * gain
    gamma, beta, mean, var = given
    eps = last.attrs["eps"]
    assert isinstance(eps, float)
    gain = gamma / np.sqrt(var + np.float32(eps))
    moved = beta - mean * gain if bias is None else (bias - mean) * gain + beta
    return _scaled(w, gain, node), moved


def _scaled(w: Reals, gain: Reals, node: Node) -> Reals:
    """Weights times a number for each channel of the result, or one for all."""
    ones, groups = (1,) * (w.ndim - 2), node.attrs["groups"]
    if node.op not in TRANSPOSED_CONVOLUTIONS:
        return w * gain.reshape(-1, 1, *ones)
    assert isinstance(groups, int)
    each = (groups, w.shape[0] // groups, *w.shape[1:])
    parts = w.reshape(each) * gain.reshape(groups, 1, w.shape[1], *ones)
    return parts.reshape(w.shape)


def _reals(value: Value) -> Reals:
    assert value.constant is not None
    return value.constant.data.astype(np.float32)


def _held(graph: Graph, reals: Reals, of: Value, before: Node) -> Value:
    name = graph.fresh(of.name)
    made = Array(np.ascontiguousarray(reals, np.float32), TensorType(reals.shape, F32), name)
    value = graph.constant(made, name=name, before=before)
    graph.set_origins(value.node, of.node.origins)
    return value
