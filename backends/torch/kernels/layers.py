"""Quantized kernels of torch that do not accumulate integers and round once.

They are embeddings of packed rows, their bags, and bilinear resizing. Every step rounds to float32.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.numerics.affine import Affine
from qir.numerics.rounding import fma
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.embedding import bag_starts
from qir.reference.means import run_in_operand_type
from qir.reference.method import (
    Float32Array,
    Integers,
    MethodCall,
    float32,
    int_list,
    quantized_result,
    require_per_tensor,
    round_to_int32,
    saturate,
)
from qir.reference.resize import resized

Arrays = Mapping[str, Integers]

# -- embeddings -----------------------------------------------------------------------------------


def pack_rows(table: Float32Array, bits: int) -> tuple[Integers, Float32Array, Float32Array]:
    """Returns integers, scales and offsets of rows of floats, as torch's prepack ops compute them.

    Rows have 8 bits, or 4 or 2 with scales and offsets in half precision.
    """
    lowest, highest = table.min(1, keepdims=True), table.max(1, keepdims=True)
    steps = float32((1 << bits) - 1)
    # The 8-bit kernel adds 1e-8, so that a constant row divides by no zero.
    if bits == 8:
        scale, offset = (highest - lowest) / steps, lowest
        inverse = steps / ((highest - lowest) + float32(1e-8))
    else:
        # Scale and offset are stored in half precision, so the integers follow from the rounded
        # ones.
        offset = lowest.astype(np.float16).astype(float32)
        span = highest - offset
        scale = np.where(span == 0, float32(1), span / steps).astype(np.float16).astype(float32)
        scale = np.where(scale == 0, float32(1), scale)
        inverse = float32(1) / scale
    quantized = np.clip(np.rint((table - offset) * inverse), 0, steps).astype(np.uint8)
    return quantized, scale.reshape(-1), offset.reshape(-1)


def unpack_rows(quantized: Integers, scale: Float32Array, offset: Float32Array) -> Float32Array:
    """Returns the floats of packed rows: integers times scale plus offset, rounded once."""
    operands = np.broadcast_arrays(
        quantized.astype(float32), scale.astype(float32)[:, None], offset.astype(float32)[:, None]
    )
    return fma(*operands)


def embed_packed_rows(call: MethodCall, arrays: Arrays) -> Integers:
    """Returns rows as floats, or their sums bag by bag.

    Each row adds its offset to the sum, then integers times scale with one rounding. A weight is
    multiplied into both parameters first.
    """
    if call.result.quant is not None:
        raise OpError(f"{call.op}: torch gives floats for rows of quantized tables")
    if call.attrs["padding"] is not None:
        raise OpError(f"{call.op}: torch's quantized tables have no padding")
    scale, offset = _row_parameters(call, arrays["w"].shape)
    rows = arrays["indices"].astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < len(arrays["w"]):
        raise OpError(f"{call.op}: a row is not there")
    # An embedding is a bag of one row for each index.
    if call.op == "embedding":
        starts = np.arange(rows.size + 1)
    else:
        if call.attrs["mode"] != "sum":
            mode = call.attrs["mode"]
            raise OpError(f"{call.op}: torch's bags of quantized rows are sums, not mode {mode!r}")
        starts = np.array(
            bag_starts(call.op, rows, arrays.get("offsets"), call.attrs["last"] is True)
        )
    sums = _sum_bags(arrays["w"], rows.reshape(-1), starts, scale, offset, arrays.get("weights"))
    return sums.reshape(*rows.shape, -1) if call.op == "embedding" else sums


def _row_parameters(call: MethodCall, shape: tuple[int, ...]) -> tuple[Float32Array, Float32Array]:
    """Returns the scale and offset of each row, as packing stores them."""
    row_map = call.map("w").over(shape)
    kind = np.dtype(np.float16) if call.rule.params.round == "f16" else np.dtype(np.float32)
    scale, zero = row_map.scale.astype(float32), row_map.zero.astype(float32)
    # Packing stores an offset in the place of a zero point.
    offset = (zero * -scale) if row_map.plus is None else row_map.plus.astype(float32)
    if row_map.plus is not None and np.any(zero):
        raise OpError(f"{call.op}: a row has an offset or a zero point, not both")
    if any(a.ndim and a.shape[1:] != (1,) for a in (scale, offset)):
        raise OpError(f"{call.op}: the scales of w are not one a row")
    per_row = (
        np.broadcast_to(a.astype(kind).astype(float32).reshape(-1), shape[:1])
        for a in (scale, offset)
    )
    scales, offsets = per_row
    return scales, offsets


def _sum_bags(
    w: Integers,
    rows: NDArray[np.int64],
    starts: Integers,
    scale: Float32Array,
    offset: Float32Array,
    weights: Integers | None,
) -> Float32Array:
    """Returns the sums of all bags, computed for one row of each bag at a time."""
    lengths = np.diff(starts)
    total = np.zeros((len(lengths), w.shape[1]), float32)
    with np.errstate(all="ignore"):
        # Row by row of all bags at once: a bag's rows are added in order, as the kernel does.
        for place in range(int(lengths.max(initial=0))):
            bags = np.flatnonzero(lengths > place)
            indices = starts[bags] + place
            row = rows[indices]
            factor, addend = scale[row], offset[row]
            if weights is not None:
                weight = weights.reshape(-1)[indices].astype(float32)
                factor, addend = factor * weight, addend * weight
            integers = w[row].astype(float32)
            partial_sum = total[bags] + addend[:, None]
            total[bags] = fma(
                integers, np.broadcast_to(factor[:, None], integers.shape), partial_sum
            )
    return total


# -- resizing -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _AxisPositions:
    """The two neighbours of each result position along an axis, and their weights."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    near: Float32Array
    far: Float32Array


def bilinear(call: MethodCall, arrays: Arrays, *, lanes: int = 0, after: bool = False) -> Integers:
    """Interpolates integers in float32, along height and then width.

    The zero point is subtracted and added again; `after` adds it after rounding. `lanes` is the
    number of channels in a vector of the channels_last kernel: vectors and the channels left over
    each fuse multiply and add, in different orders.
    """
    x, out = call.affine("x"), quantized_result(call)
    require_per_tensor(call.op, x, out)
    if not x.same_map(out):
        return run_in_operand_type(partial(bilinear, lanes=lanes, after=after), call, arrays)
    scales, axes = _float_list(call.attrs, "scales"), int_list(call.attrs, "axes")
    resized_axes, output_sizes = resized(arrays["x"], arrays.get("sizes"), scales, axes)
    _require_bilinear(call, resized_axes)
    integers = arrays["x"]
    if lanes and integers.ndim - 1 in resized_axes:
        raise OpError(
            f"{call.op}: method bilinear with lanes is that of channels last, and the last axis "
            f"is resized; without lanes it is that of others"
        )
    input_sizes = [integers.shape[a] for a in resized_axes]
    if not lanes and output_sizes == input_sizes:
        return integers.copy()  # as that kernel does, whatever the scales
    scale_by_axis = {
        a % integers.ndim: s for a, s in zip(axes or range(integers.ndim), scales, strict=False)
    }
    steps = [
        _source_step(call, n, target_size, scale_by_axis.get(a))
        for a, n, target_size in zip(resized_axes, input_sizes, output_sizes, strict=True)
    ]
    corners = call.attrs["coordinates"] == "align_corners"
    height, width = (
        _interpolation_positions(*axis_args, corners, fused=lanes > 0)
        for axis_args in zip(input_sizes, output_sizes, steps, strict=True)
    )

    def take(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32Array:
        return integers.take(rows, resized_axes[0]).take(columns, resized_axes[1]).astype(float32)

    # The four neighbours: rows low and high, and of each the columns low and high.
    neighbours = [take(r, c) for r in (height.low, height.high) for c in (width.low, width.high)]
    row_weights = [
        _along_axis(v, resized_axes[0], integers.ndim) for v in (height.near, height.far)
    ]
    column_weights = [
        _along_axis(v, resized_axes[1], integers.ndim) for v in (width.near, width.far)
    ]
    if not lanes:
        return _quantized_result(
            _interpolate(neighbours, row_weights, column_weights), out, after=after
        )
    channels = integers.shape[-1]
    in_vector = np.arange(channels) < channels // lanes * lanes
    # Vectors start with the far neighbours, so that other products are fused.
    vectors = _interpolate_fused(neighbours[::-1], row_weights[::-1], column_weights[::-1])
    tail = _interpolate_fused(neighbours, row_weights, column_weights)
    return _quantized_result(np.where(in_vector, vectors, tail), out, after=after)


def _require_bilinear(call: MethodCall, resized_axes: Sequence[int]) -> None:
    attrs = call.attrs
    is_linear = attrs["mode"] == "linear" and attrs["antialias"] is False
    if not is_linear or attrs["policy"] != "stretch" or len(resized_axes) != 2:
        raise OpError(f"{call.op}: torch's quantized kernel is bilinear, along two axes")
    if attrs["coordinates"] not in ("half_pixel", "align_corners"):
        raise OpError(f"{call.op}: torch knows no coordinates {attrs['coordinates']!r}")


def _source_step(call: MethodCall, size: int, target_size: int, scale: float | None) -> np.float32:
    """Returns ATen's area_pixel_compute_scale: by the scale where one is given, else by sizes."""
    if call.attrs["coordinates"] == "align_corners":
        return float32(size - 1) / float32(target_size - 1) if target_size > 1 else float32(0)
    return float32(size) / float32(target_size) if scale is None else float32(1 / scale)


def _interpolation_positions(
    size: int, target_size: int, step: np.float32, corners: bool, *, fused: bool
) -> _AxisPositions:
    """Returns positions in float32; half-pixel ones by one fused multiply-add if `fused`."""
    indices = np.arange(target_size).astype(float32)
    if corners:
        positions = indices * step
    else:
        # Half-pixel: (i + 0.5) * step - 0.5, at least 0.
        half = float32(0.5)
        centers = indices + half
        positions = fma(centers, step, -half) if fused else centers * step - half
        positions = np.maximum(positions, float32(0))
    low = np.minimum(positions.astype(np.int64), size - 1)
    far = np.asarray(positions - low.astype(float32), float32)
    return _AxisPositions(low, np.minimum(low + 1, size - 1), float32(1) - far, far)


def _interpolate(
    corners: Sequence[Float32Array],
    row_weights: Sequence[Float32Array],
    column_weights: Sequence[Float32Array],
) -> Float32Array:
    a, b, c, d = corners
    upper, lower = (
        column_weights[0] * a + column_weights[1] * b,
        column_weights[0] * c + column_weights[1] * d,
    )
    return np.asarray(row_weights[0] * upper + row_weights[1] * lower, float32)


def _interpolate_fused(
    corners: Sequence[Float32Array],
    row_weights: Sequence[Float32Array],
    column_weights: Sequence[Float32Array],
) -> Float32Array:
    """Interpolates where the first product of each sum is not rounded."""
    a, b, c, d = corners
    upper = _multiply_add(column_weights[0], a, column_weights[1] * b)
    lower = _multiply_add(column_weights[0], c, column_weights[1] * d)
    return _multiply_add(row_weights[0], upper, row_weights[1] * lower)


def _multiply_add(a: Float32Array, b: Float32Array, c: Float32Array) -> Float32Array:
    return fma(*np.broadcast_arrays(a, b, c))


def _quantized_result(floats: Float32Array, out: Affine, *, after: bool) -> Integers:
    zero = float32(out.zero)
    if after:
        return saturate(round_to_int32(floats - zero) + int(out.zero), out)
    return saturate(round_to_int32((floats - zero) + zero), out)


def _along_axis(values: Float32Array, axis: int, rank: int) -> Float32Array:
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def _float_list(attrs: Mapping[str, Attr], name: str) -> list[float]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return [v for v in value if isinstance(v, int | float)]


METHODS: Mapping[str, PluginMethod] = {
    "rows_of_codes": PluginMethod(
        embed_packed_rows, ("embedding", "embedding_bag"), reads=("params",), any_map=True
    ),
    "bilinear": PluginMethod(bilinear, ("resize",), params={"lanes": Param(), "after": FLAG}),
}
"""The methods of this module, by the name that profiles use."""
