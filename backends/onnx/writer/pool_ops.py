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
    # NHWC -> NCHW, the only layout of ONNX's operators.
    operands[0] = writer.transposed(operands[0], (0, rank - 1, *range(1, rank - 1)))
    channels_first_result = writer.fresh(f"{work.out}_first")
    writer.emit(op, operands, [channels_first_result], attrs, origins=work.origins)
    writer.transposed(channels_first_result, (0, *range(2, rank), 1), work.out)


def pool_attrs(work: OpToWrite) -> dict[str, AttrValue]:
    """Returns the attributes of a pool; those that say nothing are left out."""
    out: dict[str, AttrValue] = {
        "kernel_shape": work.int_tuple("kernel"),
        "pads": work.int_tuple("pad"),
        "strides": work.int_tuple("stride"),
    }
    # Defaults are not written: older operator sets do not have these attributes.
    if work.attrs.get("ceil"):
        out["ceil_mode"] = 1
    if work.attrs.get("count_pad"):
        out["count_include_pad"] = 1
    if "dilation" in work.attrs and set(work.int_tuple("dilation")) != {1}:
        out["dilations"] = work.int_tuple("dilation")
    return out


def _pool(op: str) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs = pool_attrs(work)
        if "p" in work.attrs:
            attrs["p"] = work.int_attr("p")
        spatial(writer, work, ins, op, attrs)

    return write


def _global_pool(op: str) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs: dict[str, AttrValue] = {"p": work.int_attr("p")} if "p" in work.attrs else {}
        spatial(writer, work, ins, op, attrs)

    return write


def _max_pool_indices(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    _require_tensor_indices(writer, work)
    outs = [writer.name(value) for value in work.node.results]
    writer.emit("MaxPool", [ins["x"]], outs, pool_attrs(work), origins=work.origins)


def _unpool(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    """Writes MaxUnpool with windows that grow each axis to its size, or with the size as an
    operand."""
    _require_tensor_indices(writer, work)
    operands = [ins["x"], int64_operand(writer, work, ins, "places")]
    sizes, size = dims.known_shape(work.operands["x"].type.shape[2:]), work.int_tuple("size")
    # Without strides, MaxUnpool's output is input + kernel - 1 along each axis.
    if sizes is not None and all(s >= h for s, h in zip(size, sizes, strict=True)):
        kernel = tuple(s - h + 1 for s, h in zip(size, sizes, strict=True))
        attrs: dict[str, AttrValue] = {"kernel_shape": kernel}
        writer.emit("MaxUnpool", operands, [work.out], attrs, origins=work.origins)
        return
    shape = dims.known_shape(work.kind.shape)
    if shape is None:
        raise writer.refuse(work.node, "ONNX's MaxUnpool takes sizes as numbers, one is named")
    name = writer.constant(np.array(shape, np.int64), f"{work.out}_size")
    attrs = {"kernel_shape": (1,) * len(size)}
    writer.emit("MaxUnpool", [*operands, name], [work.out], attrs, origins=work.origins)


def _require_tensor_indices(writer: OnnxWriter, work: OpToWrite) -> None:
    if work.attrs["counted"] != "tensor":
        raise writer.refuse(work.node, "ONNX counts places in the whole tensor, not in its plane")


def _window_sizes(
    input_sizes: tuple[int, ...], output_sizes: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Returns the one length of all windows along each axis, where there is one."""
    pairs = list(zip(input_sizes, output_sizes, strict=True))
    # Only where sizes divide do adaptive windows all have one length and no overlap.
    return None if any(not m or h % m for h, m in pairs) else tuple(h // m for h, m in pairs)


def _adaptive(op: str, global_op: str) -> OperatorWriter:
    """Returns a writer of an adaptive pool as windows of one size; ONNX has no others."""

    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        input_sizes, output_sizes = work.operands["x"].type.shape[2:], work.kind.shape[2:]
        # A result of one element along all axes is the mean or maximum of the whole image.
        if all(m == 1 for m in output_sizes):
            writer.emit(global_op, ins.values(), [work.out], origins=work.origins)
            return
        known, size = dims.known_shape(input_sizes), dims.known_shape(output_sizes)
        step = _window_sizes(known, size) if known is not None and size is not None else None
        if step is None:
            shapes = (
                f"from {list(input_sizes)} to {list(output_sizes)} takes windows of several sizes"
            )
            raise writer.refuse(work.node, f"{work.op} {shapes}, which ONNX has not")
        attrs: dict[str, AttrValue] = {"kernel_shape": step, "strides": step}
        writer.emit(op, ins.values(), [work.out], attrs, origins=work.origins)

    return write


OPS: dict[str, OperatorWriter] = {
    **{f"max_pool{n}d": _pool("MaxPool") for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pool("AveragePool") for n in (1, 2, 3)},
    **{f"lp_pool{n}d": _pool("LpPool") for n in (1, 2, 3)},
    "global_avg_pool": _global_pool("GlobalAveragePool"),
    "global_max_pool": _global_pool("GlobalMaxPool"),
    "global_lp_pool": _global_pool("GlobalLpPool"),
    "max_pool_places": _max_pool_indices,
    "max_unpool": _unpool,
    "adaptive_avg_pool": _adaptive("AveragePool", "GlobalAveragePool"),
    "adaptive_max_pool": _adaptive("MaxPool", "GlobalMaxPool"),
}
