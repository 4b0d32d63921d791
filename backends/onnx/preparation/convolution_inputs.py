"""Fuses ops next to convolutions into them, as onnxruntime does when it loads a model.

The upstream passes are ConvMulFusion, ConvAddFusion, ConvBNFusion and PadFusion.
"""

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

from .float_parameters import quantizes_float_constants

_FUSED_CONSUMERS: Mapping[str, tuple[str, ...]] = {
    "mul": ("b",),
    "add": ("b",),
    "batch_norm": ("gamma", "beta", "mean", "var"),
}
"""Ops that are fused into a convolution, and the slots of their constants."""
Floats = NDArray[np.float32]


def join_scales(graph: Graph, prepared: Preparation) -> int:
    """Fuses products, sums and batch norms by constants into the float weights of the convolution
    before.

    Each step is rounded to float32, as the runtime computes it. Returns how many ops were fused.
    """
    if not quantizes_float_constants(prepared.profile):
        return 0
    count = 0
    for node in [n for n in graph if n.op in CONVOLUTIONS | TRANSPOSED_CONVOLUTIONS]:
        while last := _fusible_consumer(node):
            _fuse(graph, node, last)
            said = f"its float weights absorb the {last.op} after it"
            prepared.ledger.add(Change.REGROUPED, prepared.name, node.name, said)
            count += 1
    return count


def join_pads(graph: Graph, prepared: Preparation) -> int:
    """Moves a pad of zeros into the pads of the convolution that alone reads it; returns how
    many."""
    if not quantizes_float_constants(prepared.profile):
        return 0
    count = 0
    for node in [n for n in graph if n.op in CONVOLUTIONS]:
        pad = node.operands["x"].node
        more = _spatial_pads(pad)
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


def _spatial_pads(pad: Node) -> tuple[int, ...] | None:
    """Returns the zeros before and after each spatial axis, if a pad can be fused."""
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


def _fusible_consumer(node: Node) -> Node | None:
    """Returns the op after a convolution that is fused into it."""
    use = node.result.only_use
    if use is None or use.node.op not in _FUSED_CONSUMERS or use.slot not in ("a", "x"):
        return None
    last = use.node
    plain = not any(n.stages or n.schemes for n in (node, last)) and last.profile == node.profile
    if not plain or last.result.type.shape != node.result.type.shape:
        return None
    w, bias = node.operands["w"], node.operands.get("bias")
    given = [last.operands[slot] for slot in _FUSED_CONSUMERS[last.op]]
    if not all(_is_float_constant(v) for v in (w, *given)) or not (
        bias is None or _is_float_constant(bias)
    ):
        return None
    if last.op == "batch_norm":
        return last
    fits = node.op in CONVOLUTIONS and _is_per_channel(w, given[0], one=last.op == "mul")
    return last if fits else None


def _is_float_constant(value: Value) -> bool:
    held = value.constant is not None and not value.node.attrs["default"]
    return held and value.type.element == F32


def _is_per_channel(w: Value, other: Value, *, one: bool) -> bool:
    """Returns whether a constant has one value per channel, or one for all if `one` allows it."""
    shape, many = other.type.shape, (w.type.shape[0], *(1,) * (w.type.rank - 2))
    return shape in (many, (1, *many)) or (one and not shape)


def _fuse(graph: Graph, node: Node, last: Node) -> None:
    w, b = node.operands["w"], node.operands.get("bias")
    given = [_float_data(last.operands[slot]) for slot in _FUSED_CONSUMERS[last.op]]
    weights, bias = _fused_parameters(
        last, _float_data(w), None if b is None else _float_data(b), given, node
    )
    graph.set_operand(node, "w", _new_constant(graph, weights, w, node))
    if bias is not None:
        graph.set_operand(node, "bias", _new_constant(graph, bias, b or w, node))
    graph.set_origins(node, [*node.origins, *last.origins])
    graph.substitute(last, node.result)


def _fused_parameters(
    last: Node, w: Floats, bias: Floats | None, given: list[Floats], node: Node
) -> tuple[Floats, Floats | None]:
    """Returns new weights and a new bias; every step is rounded to float32."""
    if last.op == "add":
        return w, given[0].reshape(-1) if bias is None else bias + given[0].reshape(-1)
    if last.op == "mul":
        gain = given[0].reshape(-1)
        return _scaled_weights(w, gain, node), None if bias is None else bias * gain
    gamma, beta, mean, var = given
    eps = last.attrs["eps"]
    assert isinstance(eps, float)
    gain = gamma / np.sqrt(var + np.float32(eps))
    moved = beta - mean * gain if bias is None else (bias - mean) * gain + beta
    return _scaled_weights(w, gain, node), moved


def _scaled_weights(w: Floats, gain: Floats, node: Node) -> Floats:
    """Returns weights times one number for each result channel, or one for all."""
    ones, groups = (1,) * (w.ndim - 2), node.attrs["groups"]
    if node.op not in TRANSPOSED_CONVOLUTIONS:
        return w * gain.reshape(-1, 1, *ones)
    assert isinstance(groups, int)
    each = (groups, w.shape[0] // groups, *w.shape[1:])
    parts = w.reshape(each) * gain.reshape(groups, 1, w.shape[1], *ones)
    return parts.reshape(w.shape)


def _float_data(value: Value) -> Floats:
    assert value.constant is not None
    return value.constant.data.astype(np.float32)


def _new_constant(graph: Graph, reals: Floats, of: Value, before: Node) -> Value:
    name = graph.fresh(of.name)
    made = Array(np.ascontiguousarray(reals, np.float32), TensorType(reals.shape, F32), name)
    value = graph.constant(made, name=name, before=before)
    graph.set_origins(value.node, of.node.origins)
    return value
