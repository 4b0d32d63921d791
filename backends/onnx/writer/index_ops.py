"""Writes gather, scatter, resize, einsum and matrix ops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import DType

from .elements import element_type
from .operator_table import OperatorWriter, int64_operand, operator
from .shape_ops import int_list_operand, source_operand_names
from .writer import MICROSOFT, AttrValue, OnnxWriter, OpToWrite

_BEFORE_FIRST = -(2**63)


def _with_integer_operand(
    onnx_op: str, slot: str, *other_types: str, **names: str
) -> OperatorWriter:
    """Returns a writer of one operator with an integer operand; `names` are as for `operator`."""

    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        ins[slot] = int64_operand(writer, work, ins, slot, *other_types)
        attrs: dict[str, AttrValue] = {
            theirs: work.int_attr(ours) for theirs, ours in names.items()
        }
        writer.emit(onnx_op, ins.values(), [work.out], attrs, origins=work.origins)

    return write


def _scatter(onnx_op: str) -> OperatorWriter:
    def write(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
        attrs: dict[str, AttrValue] = {}
        # ScatterND accepts int64 indices alone, ScatterElements int32 too.
        other_types = () if onnx_op == "ScatterND" else ("i32",)
        ins["indices"] = int64_operand(writer, work, ins, "indices", *other_types)
        if work.attrs.get("axis"):
            attrs["axis"] = work.int_attr("axis")
        if work.attrs["reduction"] != "none":
            attrs["reduction"] = str(work.attrs["reduction"])
        writer.emit(onnx_op, ins.values(), [work.out], attrs, origins=work.origins)

    return write


_DEPTHS = {("i32", "f32"): np.int32, ("f32", "f32"): np.float32, ("i64", "i32"): np.float32}
"""Of indices and values, the type of depth that onnxruntime's kernel has, where not int64."""


def _one_hot(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    name = source_operand_names(work, "OneHot").get("depth")
    indices, values = (work.operands[slot].type.dtype.name for slot in ("indices", "values"))
    size = np.array(work.int_attr("depth"), _DEPTHS.get((indices, values), np.int64))
    depth = writer.parameter(size, f"{work.out}_depth", name)
    attrs: dict[str, AttrValue] = {"axis": work.int_attr("axis")}
    operands = [ins["indices"], depth, ins["values"]]
    writer.emit("OneHot", operands, [work.out], attrs, origins=work.origins)


def _unique(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    outs = [writer.name(v) if v.uses or i == 0 else "" for i, v in enumerate(work.node.results)]
    # Trailing unused results are left out; y is always written.
    while not outs[-1]:
        outs.pop()
    attrs: dict[str, AttrValue] = {"sorted": 1 if work.attrs["sorted"] else 0}
    if work.attrs["axis"] is not None:
        attrs["axis"] = work.int_attr("axis")
    writer.emit("Unique", [ins["x"]], outs, attrs, origins=work.origins)


def _trilu(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    operands, name = [ins["x"]], source_operand_names(work, "Trilu").get("k")
    if work.attrs["k"] or name:
        k = np.array(work.int_attr("k"), np.int64)
        operands.append(writer.parameter(k, f"{work.out}_k", name))
    attrs: dict[str, AttrValue] = {} if work.attrs["upper"] else {"upper": 0}
    writer.emit("Trilu", operands, [work.out], attrs, origins=work.origins)


def _eye(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"k": work.int_attr("k")} if work.attrs["k"] else {}
    if isinstance(kind := work.attrs["dtype"], DType):
        attrs["dtype"] = element_type(kind)
    writer.emit("EyeLike", [ins["x"]], [work.out], attrs, origins=work.origins)


def _flip(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    axes = work.int_tuple("axes")
    # A slice with step -1 from the last element to before the first: an end of -2^63 is clamped.
    per_axis = {"starts": -1, "ends": _BEFORE_FIRST, "axes": 0, "steps": -1}
    lists = {n: axes if n == "axes" else (v,) * len(axes) for n, v in per_axis.items()}
    operands = [
        writer.parameter(np.array(v, np.int64), f"{work.out}_{n}", None) for n, v in lists.items()
    ]
    writer.emit("Slice", [ins["x"], *operands], [work.out], origins=work.origins)


def _reverse(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    axes = {f"{n}_axis": work.int_attr(n) % work.kind.rank for n in ("batch", "time")}
    if sorted(axes.values()) != [0, 1]:
        raise writer.refuse(work.node, f"ONNX turns round along axes 0 and 1, not {axes}")
    operands, attrs = (
        [ins["x"], int64_operand(writer, work, ins, "lengths")],
        dict[str, AttrValue](axes),
    )
    writer.emit("ReverseSequence", operands, [work.out], attrs, origins=work.origins)


def _compress(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {}
    if work.attrs["axis"] is not None:
        attrs["axis"] = work.int_attr("axis")
    writer.emit("Compress", ins.values(), [work.out], attrs, origins=work.origins)


def _embedding(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    operands = [ins["w"], int64_operand(writer, work, ins, "indices", "i32")]
    # ONNX has no Embedding: rows of a table are a Gather along axis 0.
    writer.emit("Gather", operands, [work.out], origins=work.origins)


def _dropout(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    ratio = writer.constant(np.array(work.float_attr("ratio"), np.float32), f"{work.out}_ratio")
    writer.emit("Dropout", [ins["x"], ratio], [work.out], origins=work.origins)


# -- resize -------------------------------------------------------------------------------------


def _resize(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    operands = [
        ins["x"],
        _float_list_operand(writer, work, "roi"),
        _float_list_operand(writer, work, "scales"),
    ]
    if "sizes" in ins:
        operands.append(int64_operand(writer, work, ins, "sizes"))
    nearest = work.op == "resize_nearest"
    attrs: dict[str, AttrValue] = {"mode": "nearest" if nearest else str(work.attrs["mode"])}
    if work.attrs["coordinates"] != "half_pixel":
        attrs["coordinate_transformation_mode"] = str(work.attrs["coordinates"])
    if work.attrs["axes"]:
        attrs["axes"] = work.int_tuple("axes")
    if work.attrs["policy"] != "stretch":
        attrs["keep_aspect_ratio_policy"] = str(work.attrs["policy"])
    if work.attrs["coordinates"] == "tf_crop_and_resize":
        attrs["extrapolation_value"] = work.float_attr("extrapolation")
    if nearest and work.attrs["rounding"] != "round_prefer_floor":
        attrs["nearest_mode"] = str(work.attrs["rounding"])
    if not nearest:
        attrs |= {n: 1 for n in ("exclude_outside", "antialias") if work.attrs[n]}
        if work.attrs["cubic_a"] != -0.75:
            attrs["cubic_coeff_a"] = work.float_attr("cubic_a")
    writer.emit("Resize", operands, [work.out], attrs, origins=work.origins)


def _float_list_operand(writer: OnnxWriter, work: OpToWrite, name: str) -> str:
    """Returns an attribute of float values as an operand, absent where there are none."""
    value = work.attrs[name]
    assert isinstance(value, tuple)
    if not value:
        return ""
    data = np.array([v for v in value if isinstance(v, float)], np.float32)
    return writer.parameter(
        data, f"{work.out}_{name}", source_operand_names(work, "Resize").get(name)
    )


_OLD_MODES = {"linear": "bilinear", "cubic": "bicubic"}


def _grid_sample(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    mode = str(work.attrs["mode"])
    attrs: dict[str, AttrValue] = {
        "mode": mode if writer.opset >= 20 else _OLD_MODES.get(mode, mode),
        "padding_mode": str(work.attrs["outside"]),
    }
    if work.attrs["align_corners"]:
        attrs["align_corners"] = 1
    writer.emit("GridSample", ins.values(), [work.out], attrs, origins=work.origins)


def _affine_grid(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    attrs: dict[str, AttrValue] = {"align_corners": 1} if work.attrs["align_corners"] else {}
    operands = [ins["theta"], int64_operand(writer, work, ins, "size")]
    writer.emit("AffineGrid", operands, [work.out], attrs, origins=work.origins)


# -- columns ------------------------------------------------------------------------------------


def _unfold(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    """Writes a Gather for each spatial axis, then moves the kernel axes before the positions."""
    shape, kernel = work.operands["x"].type.shape, work.int_tuple("kernel")
    sizes, channels, n = dims.known_shape(shape[2:]), shape[1], len(kernel)
    if sizes is None or not isinstance(channels, int):
        text = ", ".join(map(str, shape))
        remedy = "give the model inputs of known height and width (--shape)"
        raise writer.refuse(work.node, f"unfold of [{text}]: ONNX needs its sizes known; {remedy}")
    pad, stride, dilation = (work.int_tuple(a) for a in ("pad", "stride", "dilation"))
    columns = ins["x"]
    if any(pad):
        amounts = np.array((0, 0, *pad[:n], 0, 0, *pad[n:]), np.int64)
        columns = _write_operator(
            writer, work, "Pad", [columns, writer.constant(amounts, f"{work.out}_pads")]
        )
    for i in reversed(range(n)):
        # Output length along an axis: (input + pads - dilation * (kernel - 1) - 1) // stride + 1.
        span = sizes[i] + pad[i] + pad[i + n] - dilation[i] * (kernel[i] - 1) - 1
        starts = np.arange(span // stride[i] + 1, dtype=np.int64) * stride[i]
        # [kernel, positions]: a Gather with it turns one axis into two.
        positions = np.arange(kernel[i], dtype=np.int64)[:, None] * dilation[i] + starts
        indices = writer.constant(positions, f"{work.out}_places")
        columns = _write_operator(writer, work, "Gather", [columns, indices], {"axis": 2 + i})
    # [N, C, k1, p1, k2, p2, ...] -> [N, C, k1, k2, ..., p1, p2, ...]
    order = (0, 1, *range(2, 2 + 2 * n, 2), *range(3, 3 + 2 * n, 2))
    columns = writer.transposed(columns, order)
    shape_values = np.array((0, channels * int(np.prod(kernel)), -1), np.int64)
    target = writer.constant(shape_values, f"{work.out}_shape")
    writer.emit("Reshape", [columns, target], [work.out], origins=work.origins)


def _write_operator(
    writer: OnnxWriter,
    work: OpToWrite,
    op: str,
    operands: list[str],
    attrs: dict[str, AttrValue] | None = None,
) -> str:
    out = writer.fresh(f"{work.out}_{op}")
    writer.emit(op, operands, [out], attrs)
    return out


def _fold(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    size = int_list_operand(writer, work, "size", "Col2Im", "image_shape")
    block = int_list_operand(writer, work, "kernel", "Col2Im", "block_shape")
    attrs: dict[str, AttrValue] = {
        "strides": work.int_tuple("stride"),
        "pads": work.int_tuple("pad"),
        "dilations": work.int_tuple("dilation"),
    }
    writer.emit("Col2Im", [ins["x"], size, block], [work.out], attrs, origins=work.origins)


def _inverse(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    writer.emit("Inverse", [ins["x"]], [work.out], domain=MICROSOFT, origins=work.origins)


def first_opset(op: str, attrs: Mapping[str, Attr]) -> int:
    """Returns the first operator set that has an op with these attributes, where it is a newer
    one."""
    first_sets = [FIRST_OPSETS.get(op, 0)]
    match op:
        case "resize" | "resize_nearest":
            first_sets.append(18 if attrs["axes"] or attrs.get("antialias") else 0)
            first_sets.append(18 if attrs["policy"] != "stretch" else 0)
            first_sets.append(19 if attrs["coordinates"] == "half_pixel_symmetric" else 0)
        case "scatter_elements" | "scatter_nd":
            by_reduction = {"add": 16, "mul": 16, "min": 18, "max": 18}
            first_sets.append(by_reduction.get(str(attrs["reduction"]), 0))
        case "pad":
            first_sets.append(19 if attrs["mode"] == "wrap" else 0)
        case "lp_pool1d" | "lp_pool2d" | "lp_pool3d":
            dilation = attrs["dilation"]
            assert isinstance(dilation, tuple)
            first_sets.append(18 if attrs["ceil"] or set(dilation) != {1} else 0)
    return max(first_sets)


FIRST_OPSETS = {
    "trilu": 14,
    "fold": 18,
    "grid_sample": 16,
    "affine_grid": 20,
    "cumprod": 26,
}

OPS: dict[str, OperatorWriter] = {
    "gather_elements": _with_integer_operand("GatherElements", "indices", "i32", axis="axis"),
    "gather_nd": _with_integer_operand("GatherND", "indices", batch_dims="batch"),
    "scatter_elements": _scatter("ScatterElements"),
    "scatter_nd": _scatter("ScatterND"),
    "one_hot": _one_hot,
    "nonzero": operator("NonZero"),
    "unique": _unique,
    "trilu": _trilu,
    "eye_like": _eye,
    "flip": _flip,
    "reverse_sequence": _reverse,
    "compress": _compress,
    "hardmax": operator("Hardmax", axis="axis"),
    "embedding": _embedding,
    "identity": operator("Identity"),
    "dropout": _dropout,
    "resize": _resize,
    "resize_nearest": _resize,
    "grid_sample": _grid_sample,
    "affine_grid": _affine_grid,
    "einsum": operator("Einsum", equation="equation"),
    "unfold": _unfold,
    "fold": _fold,
    "det": operator("Det"),
    "inverse": _inverse,
}
