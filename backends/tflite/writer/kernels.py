"""What TensorFlow Lite's kernels on integers ask of an op, and which profile computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from qir.errors import Refused
from qir.ir.dtype import I16
from qir.ir.node import Node
from qir.ir.quantized_ops import CONVERSION_OPS, STRUCTURAL_OPS
from qir.ir.types import QuantType

from .images import blocks_problem, is_uneven, resize_problem, same_padding
from .network import ACTIVATIONS, Network, OpCall, clip_bounds, fused_activation

VALID_PROFILE = "tflite-2.21.xnnpack.valid"
"""Convolutions whose stride leaves data unread, padded VALID."""
OPEN_PROFILE = "tflite-2.21.xnnpack.open"
"""Transposed convolutions whose sizes are computed, which XNNPACK leaves to another kernel."""
_WIDE = (1 / 32768, 0)
FIXED_RESULTS: Mapping[str, Mapping[str, tuple[float, int]]] = {
    "softmax": {"i8": (1 / 256, -128), "u8": (1 / 256, 0), "i16": _WIDE},
    "log_softmax": {"i8": (16 / 256, 127), "u8": (16 / 256, 255)},
    "sigmoid": {"i8": (1 / 256, -128), "u8": (1 / 256, 0), "i16": _WIDE},
    "tanh": {"i8": (1 / 128, 0), "u8": (1 / 128, 128), "i16": _WIDE},
    "lp_normalize": {"i8": (1 / 128, 0), "u8": (1 / 128, 128)},
}
"""The scale and zero point that kernels want of their results."""
KEEPING = frozenset(
    "avg_pool2d max_pool2d pad resize resize_nearest concat reshape flatten squeeze unsqueeze "
    "transpose slice split gather gather_nd expand tile flip depth_to_space space_to_depth max min "
    "reduce_max reduce_min where".split()
)
"""Ops whose kernels want one scale and zero point for data and result."""
_COMPUTING = frozenset(
    "conv2d linear matmul add sub mul reduce_mean reduce_sum hard_swish leaky_relu prelu relu elu "
    "gelu abs exp log sqrt rsqrt squared_difference conv_transpose2d div reduce_prod".split()
)
"""Ops whose kernels give a result with a scale and zero point of its own."""
_NARROW = frozenset(
    "prelu elu hard_swish gelu log_softmax lp_normalize squared_difference tile".split()
)
ON_16_BITS = (KEEPING | _COMPUTING | frozenset(FIXED_RESULTS)) - _NARROW
"""Ops that have kernels on 16-bit data, with zero point 0."""
DYNAMIC = frozenset({"conv2d", "linear", "matmul"})
"""Layers that have operators of float data by integer weights."""
_TO_OTHERS = frozenset(
    "equal not_equal greater greater_equal less less_equal arg_max arg_min".split()
)


def on_integers(node: Node) -> bool:
    """Returns whether an op reads or makes quantized values."""
    return any(value.type.quant is not None for value in (*node.operands.values(), *node.results))


def has_integer_kernel(node: Node) -> bool:
    """Returns whether an operator computes an op on integers, or quantizes float data itself."""
    if node.op in CONVERSION_OPS | STRUCTURAL_OPS or not on_integers(node):
        return False
    return not integer_problem(node, own=True)


def integer_problem(node: Node, *, own: bool) -> str:
    """Returns why no operator computes an op on these quantized values; empty where one does.

    `own`: the graph has TensorFlow Lite's bytes already, defects included.
    """
    if not on_integers(node) or node.bodies or node.op == "foreign":
        return ""
    call = OpCall(Network(), node)
    if fused_activation(node) is None:
        return "no operator ends in that activation"
    if call.op in _TO_OTHERS:
        return ""
    result = node.results[0].type.quant
    if result is None and call.op not in DYNAMIC:
        return "its result is no integer"
    if not own and (why := _four_bit_problem(call, dynamic=result is None)):
        return why
    if result is None:
        return ""
    try:
        return _problem(call, result, own=own)
    except Refused as error:
        return str(error)


def _problem(c: OpCall, result: QuantType, *, own: bool) -> str:
    if not own and (why := _wide_problem(c, result)):
        return why
    if c.op in FIXED_RESULTS:
        scale, zero = FIXED_RESULTS[c.op].get(str(result.storage), (0.0, 0))
        if not _is(result, scale, zero):
            return f"its kernel wants a result of scale {scale:g} and zero point {zero}"
    elif c.op in KEEPING:
        kinds = [
            value.type.quant
            for slot, value in c.operands.items()
            if slot.split(".")[0] != "indices"
        ]
        if any(kind is not None and not kind.has_same_mapping(result) for kind in kinds):
            return "its kernel wants one scale and zero point for data and result"
    elif c.op not in _COMPUTING:
        return "TensorFlow Lite has no kernel of it on integers"
    if not own and (why := _scale_problem(c, result)):
        return why
    if c.op == "matmul":
        return _matmul_problem(c, own=own)
    check = _CHECKS.get(c.op)
    return check(c, result) if check else ""


def _wide_problem(c: OpCall, result: QuantType) -> str:
    """Returns why kernels do not take 16-bit data so; empty where there are none, or they do."""
    kinds = [result, *(v.type.quant for v in c.operands.values() if v.type.quant is not None)]
    wide = [kind for kind in kinds if kind.storage == I16]
    if not wide:
        return ""
    if c.op not in ON_16_BITS:
        return "TensorFlow Lite has no kernel of it on 16 bits"
    if any(np.any(np.asarray(kind.zeros())) for kind in wide):
        return "kernels on 16 bits want a zero point of 0"
    return ""


def _four_bit_problem(c: OpCall, *, dynamic: bool) -> str:
    """Returns why kernels do not take 4-bit weights so; empty where there are none, or they do."""
    wide = (v.type for v in c.operands.values() if v.type.quant is not None)
    weights = next((kind for kind in wide if kind.quant and str(kind.quant.storage) == "i4"), None)
    if weights is None:
        return ""
    if c.op != "linear" or weights.quant is None or weights.quant.axis != 0:
        return "weights of 4 bits are those of linear layers, with a scale a row"
    rows, length = weights.shape
    if rows == 1:
        return "XNNPACK of TensorFlow 2.21 refuses models with 4-bit weights of one row"
    odd = dynamic and isinstance(length, int) and length % 2 == 1
    return "rows of 4-bit weights have an odd length" if odd else ""


def _is(quant: QuantType, scale: float, zero: int) -> bool:
    if quant.granularity is not None or quant.dynamic:
        return False
    held = np.float32(quant.scales().reshape(-1)[0]), int(np.asarray(quant.zeros()).reshape(-1)[0])
    return held == (np.float32(scale), zero)


_MAX_RATIO = 256.0
"""XNNPACK's kernels take factors below this one; some refuse the whole model for a larger one."""
_MIN_RATIO = 2.0**-10
"""Sums of an operand whose scale is a smaller part of the result's are left to another kernel."""
_MAX_WIDE_RATIO = 2.0**14
"""Kernels of sums on 16 bits shift the wrong way for a larger one."""
_MIN_FACTOR = 2.0**-32
"""Kernels on 16 bits take smaller factors as 0."""


def _scale_problem(c: OpCall, result: QuantType) -> str:
    """Returns why kernels do not take these scales together, by the notes of the profile."""
    slots = ("a", "b") if c.op in ("add", "sub", "mul", "matmul") else ("x", "w")
    if c.op not in ("add", "sub", "mul", "matmul", "conv2d", "linear", "conv_transpose2d"):
        return ""
    kinds = [c.kind(slot) for slot in slots]
    scales = [
        np.asarray(kind.quant.scales(), np.float64).reshape(-1) if kind.quant else np.ones(1)
        for kind in kinds
    ]
    made = float(result.scales().reshape(-1)[0])
    if c.op not in ("add", "sub"):
        factors = scales[0] * scales[1] / made
        if factors.min() < _MIN_FACTOR and result.storage == I16:
            return f"its scales give a factor of {factors.min():.1e}"
        most = float(factors.max())
        return f"its scales give a factor of {most:.0f}" if most >= _MAX_RATIO else ""
    ratios = [float(scale[0]) / made for scale in scales]
    if result.storage == I16:  # XNNPACK leaves these to other kernels
        far = max(ratios) >= _MAX_WIDE_RATIO
        return f"an operand's scale is {max(ratios):.0f} times the result's" if far else ""
    if max(ratios) >= _MAX_RATIO:
        return f"an operand's scale is {max(ratios):.0f} times the result's"
    if min(ratios) < _MIN_RATIO and (c.op == "sub" or kinds[0].shape != kinds[1].shape):
        return "an operand's scale is below 1/1024 of the result's"
    return ""


def _pool_problem(c: OpCall, result: QuantType) -> str:
    if any(step != 1 for step in c.attrs.get("dilation", ())):  # type: ignore[union-attr]
        return "TensorFlow Lite's pools have no dilation"
    return "its average leaves out padding that its operator counts" if is_uneven(c) else ""


def _resize(c: OpCall, result: QuantType) -> str:
    return resize_problem(c)


def _blocks(c: OpCall, result: QuantType) -> str:
    return blocks_problem(c)


def _matmul_problem(c: OpCall, *, own: bool) -> str:
    b = c.kind("b").quant
    if "bias" in c.operands:
        return "a product of two tensors has no bias"
    # XNNPACK reads the zero point of the second tensor as 0.
    if not own and b is not None and np.any(np.asarray(b.zeros())):
        return "XNNPACK of TensorFlow 2.21 ignores the zero point of its second operand"
    return ""


def _layer(c: OpCall, result: QuantType) -> str:
    data, weights = c.kind("x").quant, c.kind("w").quant
    if data is None or weights is None:
        return "its data or its weights are floats"
    if str(weights.storage) not in ("i8", "i4") and weights.storage != data.storage:
        return f"its weights are stored as {weights.storage}, its data as {data.storage}"
    if str(weights.storage) in ("i8", "i4") and np.any(np.asarray(weights.zeros())):
        return f"weights of {weights.storage} have no zero point"
    return ""


_CHECKS: Mapping[str, Callable[[OpCall, QuantType], str]] = {
    "avg_pool2d": _pool_problem,
    "conv2d": _layer,
    "conv_transpose2d": _layer,
    "depth_to_space": _blocks,
    "linear": _layer,
    "max_pool2d": _pool_problem,
    "resize": _resize,
    "resize_nearest": _resize,
    "space_to_depth": _blocks,
}


def is_fused_clip(node: Node) -> bool:
    """Returns whether kernels end in a clip to these bounds."""
    return clip_bounds(node.attrs) in ACTIVATIONS


def written_profile(node: Node) -> str:
    """Returns the profile of a layer whose bytes depend on what the file says of it.

    Empty where they do not, or where the node names its own profile.
    """
    call = OpCall(Network(), node)
    if node.profile or not on_integers(node):
        return ""
    if call.op == "conv_transpose2d" and not isinstance(call.result.shape[0], int):
        return OPEN_PROFILE
    if call.op != "conv2d" or all(size == 1 for size in call.kind("w").shape[2:]):
        return ""
    return "" if same_padding(call) or max(call.integers("stride")) == 1 else VALID_PROFILE
