"""Writes float ops, most of them as one ONNX operator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.ops.layers import CONVOLUTIONS, TRANSPOSED_CONVOLUTIONS

from ..opset import decomposed
from ..optimizer import padded_pools
from . import (
    attention_ops,
    composed_ops,
    elementwise_ops,
    index_ops,
    pool_ops,
    recurrent_ops,
    reduce_ops,
    shape_ops,
)
from .elements import element_type
from .operator_table import OperatorWriter, operator
from .pool_ops import spatial
from .writer import AttrValue, OnnxWriter, OpToWrite


def write(writer: OnnxWriter, work: OpToWrite, ins: Mapping[str, str]) -> None:
    """Writes an op; `ins` has the tensor names of its operands: floats, or integers that it only
    moves."""
    try:
        write_op = _WRITERS[work.op]
    except KeyError:
        raise writer.refuse(work.node, f"{work.op} has no form in ONNX") from None
    write_op(writer, work, dict(ins))


def conv_attrs(work: OpToWrite) -> dict[str, AttrValue]:
    """Returns Conv's attributes."""
    kernel = work.operands["w"].type.shape[2:]
    sizes = tuple(k for k in kernel if isinstance(k, int))
    return {
        "dilations": work.int_tuple("dilation"),
        "group": work.int_attr("groups"),
        **({"kernel_shape": sizes} if len(sizes) == len(kernel) else {}),
        "pads": work.int_tuple("pad"),
        "strides": work.int_tuple("stride"),
    }


def _conv(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    spatial(writer, work, ins, "Conv", conv_attrs(work))


def _conv_transpose(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs = conv_attrs(work)
    if any(work.int_tuple("output_pad")):
        attrs["output_padding"] = work.int_tuple("output_pad")
    writer.emit("ConvTranspose", ins.values(), [work.out], attrs, origins=work.origins)


def _matmul(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    for slot in ("a", "b"):
        rank = work.operands[slot].type.rank
        # ONNX's MatMul has no transpose attributes; a vector has nothing to transpose.
        if work.attrs[f"trans_{slot}"] and rank > 1:
            perm = (*range(rank - 2), rank - 1, rank - 2)
            ins[slot] = writer.transposed(ins[slot], perm)
    _product(writer, work, ins["a"], ins["b"], ins.get("bias"))


def _linear(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    # Gemm requires rank 2; other ranks are MatMul with a transposed weight.
    if work.operands["x"].type.rank == 2:
        writer.emit("Gemm", ins.values(), [work.out], {"transB": 1}, origins=work.origins)
        return
    _product(writer, work, ins["x"], writer.transposed(ins["w"], (1, 0)), ins.get("bias"))


def _product(writer: OnnxWriter, work: OpToWrite, a: str, b: str, bias: str | None) -> None:
    product = work.out if bias is None else writer.fresh(f"{work.out}_product")
    writer.emit("MatMul", [a, b], [product], origins=work.origins)
    if bias is not None:
        writer.emit("Add", [product, bias], [work.out])


def _gemm(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {
        "alpha": work.float_attr("alpha"),
        "beta": work.float_attr("beta"),
    }
    attrs = {k: v for k, v in attrs.items() if v != 1.0}
    for ours, theirs in (("trans_a", "transA"), ("trans_b", "transB")):
        if work.attrs[ours]:
            attrs[theirs] = 1
    writer.emit("Gemm", ins.values(), [work.out], attrs, origins=work.origins)


def _clip(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    operands = [ins["x"]]
    source_names = {s: n for o in work.origins for s, n in o.operands if o.op == "Clip"}
    for bound in ("max", "min"):
        value = work.attrs[bound]
        if isinstance(value, float):
            data = np.array(value, work.kind.express.carrier)
            name = writer.parameter(data, f"{work.out}_{bound}", source_names.get(bound))
            operands.insert(1, name)
        elif len(operands) > 1:
            # min comes before max: a missing min is an empty name, a missing max is left out.
            operands.insert(1, "")
    writer.emit("Clip", operands, [work.out], origins=work.origins)


def _batch_norm(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    rank, operands = work.kind.rank, list(ins.values())
    axis = work.int_attr("axis") % rank
    attrs: dict[str, AttrValue] = {"epsilon": work.float_attr("eps")}
    if axis == 1:
        writer.emit("BatchNormalization", operands, [work.out], attrs, origins=work.origins)
        return
    if rank < 2:
        raise writer.refuse(work.node, "BatchNormalization takes 2 axes or more")
    # BatchNormalization has the channels at axis 1: transpose them there and back.
    rest = [i for i in range(rank) if i != axis]
    order = (rest[0], axis, *rest[1:])
    inverse = tuple(order.index(i) for i in range(rank))
    operands[0] = writer.transposed(operands[0], order)
    normalized = writer.fresh(f"{work.out}_first")
    writer.emit("BatchNormalization", operands, [normalized], attrs, origins=work.origins)
    writer.transposed(normalized, inverse, work.out)


def _reshape(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"allowzero": 1} if work.attrs["allow_zero"] else {}
    writer.emit("Reshape", [ins["x"], ins["shape"]], [work.out], attrs, origins=work.origins)


def _pad(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    source_names = {s: n for o in work.origins for s, n in o.operands if o.op == "Pad"}
    pads = np.array(work.int_tuple("pads"), np.int64)
    # QIR's pads cover every axis, so the source's initializer has other numbers.
    if "axes" in source_names:
        source_names = {}
    operands = [ins["x"], writer.parameter(pads, f"{work.out}_pads", source_names.get("pads"))]
    mode = str(work.attrs["mode"])
    _check_pad(writer, work, mode, pads)
    if mode == "constant":
        data = _pad_value(work)
        if pads.any() and not any(data.tobytes()) and padded_pools.must_stay(writer, work.node):
            operands.append("")
        elif data or "constant_value" in source_names:
            name = source_names.get("constant_value")
            operands.append(writer.parameter(data, f"{work.out}_value", name))
    attrs: dict[str, AttrValue] = {} if mode == "constant" else {"mode": mode}
    writer.emit("Pad", operands, [work.out], attrs, origins=work.origins)


def _check_pad(writer: OnnxWriter, work: OpToWrite, mode: str, pads: NDArray[np.int64]) -> None:
    if mode == "symmetric":
        raise writer.refuse(work.node, "ONNX's Pad has no mode symmetric")
    shape = work.operands["x"].type.shape
    axes = zip(shape, pads[: len(shape)], pads[len(shape) :], strict=True)
    for axis, (dim, *sides) in enumerate(axes):
        # reflect and wrap copy from the input, so that sides cannot be longer than what they copy.
        if not isinstance(dim, int) or mode not in ("reflect", "wrap"):
            continue
        remaining = dim + sum(int(min(side, 0)) for side in sides)
        if max(*sides, 0) > remaining - (mode == "reflect"):
            reason = f"axis {axis} of {remaining} is too short for {mode} pads"
            raise writer.refuse(work.node, f"{reason} in ONNX: {int(max(sides))}")


def _pad_value(work: OpToWrite) -> np.ndarray:
    """Returns the value to pad with: a float, or the integer that means it."""
    value, quant = work.float_attr("value"), work.kind.quant
    if quant is None:
        return np.array(value, work.kind.dtype.carrier)
    # zero point + value / scale, clamped: the integer that dequantizes to the value.
    integer = np.rint(value / float(quant.scales())) + float(quant.zeros())
    return np.array(np.clip(integer, quant.low, quant.high)).astype(quant.storage.carrier)


def _cast(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"to": element_type(work.kind.dtype)}
    writer.emit("Cast", [ins["x"]], [work.out], attrs, origins=work.origins)


def first_opset(op: str, attrs: Mapping[str, Attr]) -> int:
    """Returns the first operator set that has an op; 0 if it is no newer than the oldest written
    one."""
    return max(elementwise_ops.FIRST_OPSETS.get(op, 0), index_ops.first_opset(op, attrs))


_WRITERS: dict[str, OperatorWriter] = {
    **elementwise_ops.OPS,
    **shape_ops.OPS,
    **reduce_ops.OPS,
    **recurrent_ops.OPS,
    **attention_ops.OPS,
    **pool_ops.OPS,
    **index_ops.OPS,
    **composed_ops.OPS,
    "add": operator("Add"),
    "sub": operator("Sub"),
    "mul": operator("Mul"),
    "div": operator("Div"),
    "relu": operator("Relu"),
    "sigmoid": operator("Sigmoid"),
    "clip": _clip,
    **dict.fromkeys(CONVOLUTIONS, _conv),
    **dict.fromkeys(TRANSPOSED_CONVOLUTIONS, _conv_transpose),
    "matmul": _matmul,
    "gemm": _gemm,
    "linear": _linear,
    "batch_norm": _batch_norm,
    "softmax": operator("Softmax", axis="axis"),
    "log_softmax": operator("LogSoftmax", axis="axis"),
    "reshape": _reshape,
    "flatten": operator("Flatten", axis="axis"),
    "transpose": operator("Transpose", perm="perm"),
    "concat": operator("Concat", axis="axis"),
    "pad": _pad,
    "cast": _cast,
}
_WRITERS |= {
    op: decomposed.from_opset(first, _WRITERS[op], say)
    for op, (first, say) in decomposed.DECOMPOSITIONS.items()
}
