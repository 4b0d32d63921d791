"""Says which kernels on integers MXNet has, and why it has no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from qir.ir.dtype import I8, U8
from qir.ir.node import Node
from qir.ir.types import QuantType

from .kernel_stages import KernelStage, fused_stages, int_attr_tuple, pads, range_of
from .weights import RANGE_DIVISORS

DEFECT = "MXNet adds uint8 wrongly where no activation follows"
"""A defect of MXNet 1.9 that `unsupported_reason` reports."""


def on_integers(node: Node) -> bool:
    """Returns whether an op reads or makes quantized values."""
    return any(v.type.quant for v in (*node.operands.values(), *node.results))


def unsupported_reason(node: Node) -> str:
    """Returns why MXNet has no quantized operator for a kernel; empty where it has one."""
    if node.op in ("quantize", "dequantize"):
        types = [v.type.quant for v in (*node.operands.values(), *node.results) if v.type.quant]
        return next((why for kind in types if (why := _unsupported_type_reason(kind))), "")
    anchor, *epilogue = fused_stages(node)
    reason_for = _REASONS.get(anchor.op)
    if reason_for is None:
        return f"MXNet has no {anchor.op} on integers"
    # Weights and bias are written as floats, which MXNet quantizes when it loads them.
    data = [v.type.quant for s, v in anchor.operands.items() if s not in ("w", "bias")]
    for kind in [*data, *(v.type.quant for v in node.results)]:
        if kind is not None and (why := _unsupported_type_reason(kind)):
            return why
    return reason_for(node, anchor, epilogue)


def _unsupported_type_reason(kind: QuantType) -> str:
    """Returns why MXNet has no tensor of a type; empty where it has."""
    if (
        kind.kind != "uniform"
        or kind.dynamic
        or kind.plus is not None
        or kind.granularity is not None
    ):
        return "MXNet's tensors have one scale each"
    if kind.storage not in RANGE_DIVISORS:
        return f"MXNet's tensors are int8 or uint8, not {kind.storage}"
    if kind.has_float_zero or np.any(np.asarray(kind.zeros()) != 0):
        return "MXNet's tensors have no zero point"
    if kind.bounds:
        return f"MXNet's tensors have all values of {kind.storage}"
    return ""


def _layer_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    x, w, bias = (anchor.operands.get(s) for s in ("x", "w", "bias"))
    result = node.result.type.quant
    assert x is not None
    assert w is not None
    if x.type.quant is None:
        return "its data are float"
    if w.constant is None or (bias is not None and bias.constant is None):
        return "its weights are computed"
    if w.type.quant is not None:
        axis = w.type.quant.axis
        is_plain_int8 = w.type.quant.storage == I8 and not np.any(np.asarray(w.type.quant.zeros()))
        if not is_plain_int8 or (
            w.type.quant.granularity is not None and axis != int(anchor.transposed)
        ):
            return "its weights are not int8 without zero points, by channel or tensor"
    if bias is not None and bias.type.rank != 1:
        return "its bias has several axes"
    if anchor.op == "linear" and w.type.rank != 2:
        return "its weights are no matrix"
    # The operators of MKLDNN's subgraph property fuse these endings.
    ops = [stage.op for stage in epilogue]
    if anchor.op == "linear":
        if ops not in ([], ["relu"]):
            return f"MXNet's layer does not end in {' and '.join(ops)}"
    elif ops not in ([], ["relu"], ["clip"], ["add"], ["add", "relu"]) or result is None:
        return f"MXNet's convolution does not end in {' and '.join(ops) or 'float'}"
    if any(s.op == "clip" and s.attrs["min"] != 0 for s in epilogue):
        return "MXNet fuses clips that begin at 0"
    # An activation at the end gives uint8, everything else int8.
    expected = U8 if ops and ops[-1] != "add" else I8
    if result is not None and result.storage != expected:
        return f"MXNet's layer gives {expected} here, not {result.storage}"
    for stage in epilogue:
        for value in stage.operands.values():
            kind = value.type.quant
            if kind is None or (why := _unsupported_type_reason(kind)):
                return "what it adds is float" if kind is None else why
            if ops[-1] == "add" and kind.storage == U8:
                return DEFECT
    if anchor.op == "conv2d":
        before, after = pads(anchor)
        gaps = [b - a for a, b in zip(before, after, strict=True)]
        if any(gap % d for gap, d in zip(gaps, int_attr_tuple(anchor, "dilation"), strict=True)):
            return "it pads one side more than the other, by no multiple of its dilation"
    return ""


def _join_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    types = [v.type.quant for v in anchor.operands.values()]
    result = node.result.type.quant
    if epilogue or result is None or any(kind is None for kind in types):
        return "it reads or makes floats"
    expected = I8 if any(k and k.storage == I8 for k in types) else U8
    if result.storage != expected:
        return f"MXNet gives {expected} here, not {result.storage}"
    if anchor.op != "concat":
        shapes = {v.type.shape for v in anchor.operands.values()}
        return "" if len(shapes) == 1 else "its operands have different shapes"
    # MXNet's concat computes the union of the operands' ranges, in which 0 always is.
    ranges = [range_of(kind) for kind in types if kind is not None]
    union = min(0.0, *(low for low, _ in ranges)), max(0.0, *(high for _, high in ranges))
    low, high = range_of(result)
    if max(map(abs, union)) != max(abs(low), abs(high)):
        return "MXNet's concat has the range in which those of its operands are"
    return ""


def _same_type_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    x, result = anchor.operands["x"].type, node.result.type.quant
    if epilogue or x.quant is None or result is None or not x.quant.has_same_mapping(result):
        return "its result has another scale than its data"
    if anchor.op.endswith(("_pool", "_pool2d")) and x.rank != 4:
        return f"MXNet pools integers along two axes, its data have {x.rank} in all"
    if anchor.op.endswith("_pool2d"):
        before, after = pads(anchor)
        if before != after or any(d != 1 for d in int_attr_tuple(anchor, "dilation")):
            return "MXNet's pools pad both sides alike and have no dilation"
    if anchor.op == "flatten" and anchor.attrs["axis"] != 1:
        return "MXNet flattens from axis 1 on"
    return ""


def _batch_norm_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    constant = all(v.constant is not None for s, v in anchor.operands.items() if s != "x")
    x, result = anchor.operands["x"].type.quant, node.result.type.quant
    if epilogue or x is None or result is None or result.storage != I8 or not constant:
        return "MXNet's batch norm reads integers and gives int8"
    return "" if anchor.attrs["axis"] == 1 else "MXNet's batch norm is along axis 1"


def _product_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    types = [*(v.type.quant for v in anchor.operands.values()), node.result.type.quant]
    shapes = {v.type.shape for v in anchor.operands.values()}
    if epilogue or len(shapes) != 1 or any(k is None or k.storage != I8 for k in types[:2]):
        return "MXNet multiplies int8 tensors of one shape"
    return "" if types[2] is None or types[2].storage == I8 else "MXNet's product is int8"


def _embedding_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    w, result = anchor.operands["w"].type.quant, node.result.type.quant
    if (
        epilogue
        or w is None
        or result is None
        or not w.has_same_mapping(result)
        or w.granularity is not None
    ):
        return "its result has another scale than its table"
    return _unsupported_type_reason(w)


def _recode_reason(node: Node, anchor: KernelStage, epilogue: Sequence[KernelStage]) -> str:
    before, after = anchor.operands["x"].type.quant, node.result.type.quant
    if before is None or after is None or before.storage != after.storage:
        return "MXNet reads the bits of integers as no other type"
    return ""


_REASONS: Mapping[str, Callable[[Node, KernelStage, Sequence[KernelStage]], str]] = {
    "conv2d": _layer_reason,
    "linear": _layer_reason,
    "add": _join_reason,
    "concat": _join_reason,
    "max_pool2d": _same_type_reason,
    "avg_pool2d": _same_type_reason,
    "global_avg_pool": _same_type_reason,
    "flatten": _same_type_reason,
    "relu": _same_type_reason,
    "batch_norm": _batch_norm_reason,
    "mul": _product_reason,
    "embedding": _embedding_reason,
    "recode": _recode_reason,
}
