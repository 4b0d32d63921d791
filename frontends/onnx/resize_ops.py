"""Resize, Upsample, GridSample and AffineGrid."""

from __future__ import annotations

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.node import Value

from .elementwise_ops import keep_unless_floats
from .moving_ops import add_moving_op
from .op import KeepOperator, OnnxOp
from .reader import OnnxReader


def _resize(reader: OnnxReader, op: OnnxOp) -> None:
    """Resize; raises NotConstant for computed scales or regions, computed sizes are an operand."""
    if op.opset < 11:
        _upsample(reader, op)
        return
    coordinates = op.text("coordinate_transformation_mode", "half_pixel")
    attrs: dict[str, Attr] = {"coordinates": coordinates}
    if op.input(1):
        roi = reader.constant_data(op.input(1)).astype(np.float64).reshape(-1)
        if coordinates == "tf_crop_and_resize":
            attrs["roi"] = tuple(roi.tolist())
    if axes := op.integers("axes", ()):
        attrs["axes"] = axes
    if coordinates == "tf_crop_and_resize":
        attrs["extrapolation"] = op.floating("extrapolation_value", 0.0)
    operands = {"x": reader.value_to_move(op, op.input(0))}
    scales = reader.constant_data(op.input(2)).astype(np.float64) if op.input(2) else np.zeros(0)
    # Scales and sizes exclude each other; an empty list counts as absent.
    if scales.size:
        attrs["scales"] = tuple(scales.reshape(-1).tolist())
    else:
        operands["sizes"] = reader.value(op, op.input(3))
        attrs["policy"] = op.text("keep_aspect_ratio_policy", "stretch")
    if op.text("mode", "nearest") == "nearest":
        attrs["rounding"] = op.text("nearest_mode", "round_prefer_floor")
    _add_resize(reader, op, operands, attrs)


def _upsample(reader: OnnxReader, op: OnnxOp) -> None:
    """Upsample, and Resize of opset 10, which computes like it."""
    attribute = op.attribute("scales")
    if not attribute and (rank := reader.type_of(op, op.input(1)).rank) != 1:
        raise op.error(f"its scales have {rank} axes")
    scales = (
        list(attribute.floats)
        if attribute
        else reader.constant_data(op.input(1)).reshape(-1).tolist()
    )
    # frexp returns a mantissa of exactly 0.5 for powers of two.
    are_exact = all(s >= 1 or np.frexp(s)[0] == 0.5 for s in scales)
    if op.text("mode", "nearest") == "nearest" and not are_exact:
        # For scales that are no power of two and below 1, onnxruntime picks the next element, the
        # standard the one before.
        raise KeepOperator
    attrs: dict[str, Attr] = {"coordinates": "asymmetric", "scales": tuple(map(float, scales))}
    if op.text("mode", "nearest") == "nearest":
        attrs["rounding"] = "floor"
    _add_resize(reader, op, {"x": reader.value_to_move(op, op.input(0))}, attrs)


def _add_resize(
    reader: OnnxReader, op: OnnxOp, operands: dict[str, Value], attrs: dict[str, Attr]
) -> None:
    mode = op.text("mode", "nearest")
    if mode == "nearest":
        add_moving_op(reader, op, "resize_nearest", operands, attrs)
        return
    if not reader.type_of(op, op.input(0)).dtype.is_float:
        raise KeepOperator
    attrs |= {
        "mode": mode,
        "cubic_a": op.floating("cubic_coeff_a", -0.75),
        "exclude_outside": op.integer("exclude_outside", 0) != 0,
        "antialias": op.integer("antialias", 0) != 0,
    }
    reader.add(op, "resize", operands, attrs)


_GRID_SAMPLE_MODES = {"bilinear": "linear", "bicubic": "cubic"}


def _grid_sample(reader: OnnxReader, op: OnnxOp) -> None:
    keep_unless_floats(reader, op)
    mode = op.text("mode", "linear")
    attrs: dict[str, Attr] = {
        "mode": _GRID_SAMPLE_MODES.get(mode, mode),
        "outside": op.text("padding_mode", "zeros"),
        "align_corners": op.integer("align_corners", 0) != 0,
    }
    x, grid = (reader.value(op, n) for n in op.inputs)
    if x.type.express != grid.type.express:
        raise KeepOperator
    reader.add(op, "grid_sample", {"x": x, "grid": grid}, attrs)


def _affine_grid(reader: OnnxReader, op: OnnxOp) -> None:
    floats_of_theta = reader.type_of(op, op.input(0)).dtype.is_float
    theta, size = (reader.value(op, n) for n in op.inputs)
    if not floats_of_theta or (size.constant is None and not isinstance(size.type.shape[0], int)):
        raise KeepOperator
    attrs: dict[str, Attr] = {"align_corners": op.integer("align_corners", 0) != 0}
    reader.add(op, "affine_grid", {"theta": theta, "size": size}, attrs)


OPS = {
    "Resize": _resize,
    "Upsample": _upsample,
    "GridSample": _grid_sample,
    "AffineGrid": _affine_grid,
}
