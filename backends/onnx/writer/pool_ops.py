"""Writes pools; channels_last data are transposed before and after."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir import dims

from .operator_table import OperatorWriter, int64_operand
from .writer import AttrValue, OnnxWriter, OpToWrite


def spatial(
    writer: OnnxWriter,
    work: OpToWrite,
    ins: dict[str, str],
    op: str,
    attrs: Mapping[str, AttrValue],
) -> None:
    """Writes an op on images; channels that are last are moved to the front and back."""
    operands = list(ins.values())
    if not work.is_nhwc:
        writer.emit(op, operands, [work.out], attrs, origins=work.origins)
        return
    rank = work.kind.rank
    operands[0] = writer.transposed(operands[0], (0, rank - 1, *range(1, rank - 1)))
    made = writer.fresh(f"{work.out}_first")
    writer.emit(op, operands, [made], attrs, origins=work.origins)
    writer.transposed(made, (0, *range(2, rank), 1), work.out)


def pool_attrs(work: OpToWrite) -> dict[str, AttrValue]:
    """Returns the attributes of a pool; those that say nothing are left out."""
    out: dict[str, AttrValue] = {
        "kernel_shape": work.int_tuple("kernel"),
        "pads": work.int_tuple("pad"),
        "strides": work.int_tuple("stride"),
    }
    if work.attrs.get("ceil"):
        out["ceil_mode"] = 1
    if work.attrs.get("count_pad"):
        out["count_include_pad"] = 1
    if "dilation" in work.attrs and set(work.int_tuple("dilation")) != {1}:
        out["dilations"] = work.int_tuple("dilation")
    return out


def _pool(op: str) -> OperatorWriter:
    def row(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs = pool_attrs(work)
        if "p" in work.attrs:
            attrs["p"] = work.int_attr("p")
        spatial(writer, work, ins, op, attrs)

    return row


def _whole(op: str) -> OperatorWriter:
    def row(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs: dict[str, AttrValue] = {"p": work.int_attr("p")} if "p" in work.attrs else {}
        spatial(writer, work, ins, op, attrs)

    return row


def _places(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    _counted(writer, work)
    outs = [writer.name(value) for value in work.node.results]
    writer.emit("MaxPool", [ins["x"]], outs, pool_attrs(work), origins=work.origins)


def _unpool(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    """Windows that grow each axis to its size, or the size itself where an axis is named."""
    _counted(writer, work)
    operands = [ins["x"], int64_operand(writer, work, ins, "places")]
    held, size = dims.known_shape(work.operands["x"].type.shape[2:]), work.int_tuple("size")
    if held is not None and all(s >= h for s, h in zip(size, held, strict=True)):
        kernel = tuple(s - h + 1 for s, h in zip(size, held, strict=True))
        attrs: dict[str, AttrValue] = {"kernel_shape": kernel}
        writer.emit("MaxUnpool", operands, [work.out], attrs, origins=work.origins)
        return
    shape = dims.known_shape(work.kind.shape)
    if shape is None:
        raise writer.refuse(work.node, "ONNX's MaxUnpool takes sizes as numbers, one is named")
    name = writer.constant(np.array(shape, np.int64), f"{work.out}_size")
    attrs = {"kernel_shape": (1,) * len(size)}
    writer.emit("MaxUnpool", [*operands, name], [work.out], attrs, origins=work.origins)


def _counted(writer: OnnxWriter, work: OpToWrite) -> None:
    if work.attrs["counted"] != "tensor":
        raise writer.refuse(work.node, "ONNX counts places in the whole tensor, not in its plane")


def _even(held: tuple[int, ...], made: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the one length of all windows along each axis, where there is one."""
    sides = list(zip(held, made, strict=True))
    return None if any(not m or h % m for h, m in sides) else tuple(h // m for h, m in sides)


def _adaptive(op: str, whole: str) -> OperatorWriter:
    """Windows of one size where all are; ONNX has no others."""

    def row(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        held, made = work.operands["x"].type.shape[2:], work.kind.shape[2:]
        if all(m == 1 for m in made):
            writer.emit(whole, ins.values(), [work.out], origins=work.origins)
            return
        known, size = dims.known_shape(held), dims.known_shape(made)
        step = _even(known, size) if known is not None and size is not None else None
        if step is None:
            what = f"from {list(held)} to {list(made)} takes windows of several sizes"
            raise writer.refuse(work.node, f"{work.op} {what}, which ONNX has not")
        attrs: dict[str, AttrValue] = {"kernel_shape": step, "strides": step}
        writer.emit(op, ins.values(), [work.out], attrs, origins=work.origins)

    return row


OPS: dict[str, OperatorWriter] = {
    **{f"max_pool{n}d": _pool("MaxPool") for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pool("AveragePool") for n in (1, 2, 3)},
    **{f"lp_pool{n}d": _pool("LpPool") for n in (1, 2, 3)},
    "global_avg_pool": _whole("GlobalAveragePool"),
    "global_max_pool": _whole("GlobalMaxPool"),
    "global_lp_pool": _whole("GlobalLpPool"),
    "max_pool_places": _places,
    "max_unpool": _unpool,
    "adaptive_avg_pool": _adaptive("AveragePool", "GlobalAveragePool"),
    "adaptive_max_pool": _adaptive("MaxPool", "GlobalMaxPool"),
}
