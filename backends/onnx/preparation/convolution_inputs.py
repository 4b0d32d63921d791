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

FUSED_CONSUMERS: Mapping[str, tuple[str, ...]] = {
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
        # Several ops in a row are fused one after another, each rounded on its own.
        while last := _fusible_consumer(node):
            _fuse(graph, node, last)
            reason = f"its float weights absorb the {last.op} after it"
            prepared.ledger.add(Change.REGROUPED, prepared.name, node.name, reason)
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
        added_pads = _spatial_pads(pad)
        # Another profile on one of the two means another runtime's arithmetic: nothing is merged.
        if added_pads is None or node.stages or node.schemes or node.profile != pad.profile:
            continue
        own_pads = node.attrs["pad"]
        assert isinstance(own_pads, tuple)
        pairs = zip(own_pads, added_pads, strict=True)
        graph.set_attrs(node, pad=tuple(int(a) + b for a, b in pairs if isinstance(a, int)))
        graph.set_operand(node, "x", pad.operands["x"])
        graph.set_origins(node, [*pad.origins, *node.origins])
        graph.remove(pad)
        reason = (
            "zeros around its data are its own pads, if the file says neither axes nor auto_pad"
        )
        prepared.ledger.add(Change.UNVERIFIED, prepared.name, node.name, reason)
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
    # pads are [begin of each axis, end of each axis]; the first two axes are batch and channels.
    int_pads = [p for p in pads if isinstance(p, int)]
    half = len(int_pads) // 2
    spatial = (*int_pads[2:half], *int_pads[half + 2 :])
    non_spatial = (*int_pads[:2], *int_pads[half : half + 2])
    # -0.0 is no neutral element: x + -0.0 keeps the sign of a zero, which padding does not.
    is_positive_zero = value == 0 and not np.signbit(value)
    return spatial if is_positive_zero and min(int_pads) >= 0 and not any(non_spatial) else None


def _fusible_consumer(node: Node) -> Node | None:
    """Returns the op after a convolution that is fused into it."""
    use = node.result.only_use
    if use is None or use.node.op not in FUSED_CONSUMERS or use.slot not in ("a", "x"):
        return None
    last = use.node
    is_plain = not any(n.stages or n.schemes for n in (node, last)) and last.profile == node.profile
    if not is_plain or last.result.type.shape != node.result.type.shape:
        return None
    w, bias = node.operands["w"], node.operands.get("bias")
    constants = [last.operands[slot] for slot in FUSED_CONSUMERS[last.op]]
    if not all(_is_float_constant(v) for v in (w, *constants)) or not (
        bias is None or _is_float_constant(bias)
    ):
        return None
    if last.op == "batch_norm":
        return last
    # A batch norm is fused into transposed convolutions too, a product or sum is not.
    fits = node.op in CONVOLUTIONS and _is_per_channel(
        w, constants[0], allow_scalar=last.op == "mul"
    )
    return last if fits else None


def _is_float_constant(value: Value) -> bool:
    is_fixed = value.constant is not None and not value.node.attrs["default"]
    return is_fixed and value.type.element == F32


def _is_per_channel(w: Value, other: Value, *, allow_scalar: bool) -> bool:
    """Returns whether a constant has one value per channel, or one for all if `allow_scalar`."""
    shape, channel_shape = other.type.shape, (w.type.shape[0], *(1,) * (w.type.rank - 2))
    return shape in (channel_shape, (1, *channel_shape)) or (allow_scalar and not shape)


def _fuse(graph: Graph, node: Node, last: Node) -> None:
    w, b = node.operands["w"], node.operands.get("bias")
    constants = [_float_data(last.operands[slot]) for slot in FUSED_CONSUMERS[last.op]]
    weights, bias = _fused_parameters(
        last, _float_data(w), None if b is None else _float_data(b), constants, node
    )
    graph.set_operand(node, "w", _new_constant(graph, weights, w, node))
    if bias is not None:
        graph.set_operand(node, "bias", _new_constant(graph, bias, b or w, node))
    graph.set_origins(node, [*node.origins, *last.origins])
    graph.substitute(last, node.result)


def _fused_parameters(
    last: Node, w: Floats, bias: Floats | None, constants: list[Floats], node: Node
) -> tuple[Floats, Floats | None]:
    """Returns new weights and a new bias; every step is rounded to float32."""
    # conv(x) + c: only the bias changes. conv(x) * g: weights and bias are scaled.
    if last.op == "add":
        return w, constants[0].reshape(-1) if bias is None else bias + constants[0].reshape(-1)
    if last.op == "mul":
        gain = constants[0].reshape(-1)
        return _scaled_weights(w, gain, node), None if bias is None else bias * gain
    gamma, beta, mean, var = constants
    eps = last.attrs["eps"]
    assert isinstance(eps, float)
    # As onnxruntime's ConvBNFusion: gain = gamma / sqrt(var + eps), in float32 throughout.
    gain = gamma / np.sqrt(var + np.float32(eps))
    shifted = beta - mean * gain if bias is None else (bias - mean) * gain + beta
    return _scaled_weights(w, gain, node), shifted


def _scaled_weights(w: Floats, gain: Floats, node: Node) -> Floats:
    """Returns weights times one number for each result channel, or one for all."""
    spatial_ones, groups = (1,) * (w.ndim - 2), node.attrs["groups"]
    # Weights of a convolution are [out, in / groups, ...], transposed ones [in, out / groups, ...].
    if node.op not in TRANSPOSED_CONVOLUTIONS:
        return w * gain.reshape(-1, 1, *spatial_ones)
    assert isinstance(groups, int)
    grouped_shape = (groups, w.shape[0] // groups, *w.shape[1:])
    scaled = w.reshape(grouped_shape) * gain.reshape(groups, 1, w.shape[1], *spatial_ones)
    return scaled.reshape(w.shape)


def _float_data(value: Value) -> Floats:
    assert value.constant is not None
    return value.constant.data.astype(np.float32)


def _new_constant(graph: Graph, floats: Floats, source: Value, before: Node) -> Value:
    name = graph.fresh(source.name)
    array = Array(np.ascontiguousarray(floats, np.float32), TensorType(floats.shape, F32), name)
    value = graph.constant(array, name=name, before=before)
    graph.set_origins(value.node, source.node.origins)
    return value
