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
    least, most = table.min(1, keepdims=True), table.max(1, keepdims=True)
    steps = float32((1 << bits) - 1)
    if bits == 8:
        scale, plus = (most - least) / steps, least
        by = steps / ((most - least) + float32(1e-8))
    else:
        plus = least.astype(np.float16).astype(float32)
        span = most - plus
        scale = np.where(span == 0, float32(1), span / steps).astype(np.float16).astype(float32)
        scale = np.where(scale == 0, float32(1), scale)
        by = float32(1) / scale
    codes = np.clip(np.rint((table - plus) * by), 0, steps).astype(np.uint8)
    return codes, scale.reshape(-1), plus.reshape(-1)


def unpack_rows(codes: Integers, scale: Float32Array, plus: Float32Array) -> Float32Array:
    """Returns the floats of packed rows: integers times scale plus offset, rounded once."""
    parts = np.broadcast_arrays(
        codes.astype(float32), scale.astype(float32)[:, None], plus.astype(float32)[:, None]
    )
    return fma(*parts)


def embed_packed_rows(call: MethodCall, arrays: Arrays) -> Integers:
    """Returns rows as floats, or their sums bag by bag.

    Each row adds its offset to the sum, then integers times scale with one rounding. A weight is
    multiplied into both parameters first.
    """
    if call.result.quant is not None:
        raise OpError(f"{call.op}: torch gives floats for rows of quantized tables")
    if call.attrs["padding"] is not None:
        raise OpError(f"{call.op}: torch's quantized tables have no padding")
    scale, plus = _row_parameters(call, arrays["w"].shape)
    rows = arrays["indices"].astype(np.int64)
    if rows.size and not 0 <= rows.min() <= rows.max() < len(arrays["w"]):
        raise OpError(f"{call.op}: a row is not there")
    if call.op == "embedding":
        starts = np.arange(rows.size + 1)
    else:
        if call.attrs["mode"] != "sum":
            mode = call.attrs["mode"]
            raise OpError(f"{call.op}: torch's bags of quantized rows are sums, not mode {mode!r}")
        starts = np.array(
            bag_starts(call.op, rows, arrays.get("offsets"), call.attrs["last"] is True)
        )
    made = _sum_bags(arrays["w"], rows.reshape(-1), starts, scale, plus, arrays.get("weights"))
    return made.reshape(*rows.shape, -1) if call.op == "embedding" else made


def _row_parameters(call: MethodCall, shape: tuple[int, ...]) -> tuple[Float32Array, Float32Array]:
    """Returns the scale and offset of each row, as packing stores them."""
    held = call.map("w").over(shape)
    kind = np.dtype(np.float16) if call.rule.params.round == "f16" else np.dtype(np.float32)
    scale, zero = held.scale.astype(float32), held.zero.astype(float32)
    # Packing stores an offset in the place of a zero point.
    plus = (zero * -scale) if held.plus is None else held.plus.astype(float32)
    if held.plus is not None and np.any(zero):
        raise OpError(f"{call.op}: a row has an offset or a zero point, not both")
    if any(a.ndim and a.shape[1:] != (1,) for a in (scale, plus)):
        raise OpError(f"{call.op}: the scales of w are not one a row")
    full = (
        np.broadcast_to(a.astype(kind).astype(float32).reshape(-1), shape[:1])
        for a in (scale, plus)
    )
    one, other = full
    return one, other


def _sum_bags(
    w: Integers,
    rows: NDArray[np.int64],
    starts: Integers,
    scale: Float32Array,
    plus: Float32Array,
    share: Integers | None,
) -> Float32Array:
    """Returns the sums of all bags, computed for one row of each bag at a time."""
    lengths = np.diff(starts)
    total = np.zeros((len(lengths), w.shape[1]), float32)
    with np.errstate(all="ignore"):
        for place in range(int(lengths.max(initial=0))):
            bags = np.flatnonzero(lengths > place)
            at = starts[bags] + place
            row = rows[at]
            by, more = scale[row], plus[row]
            if share is not None:
                own = share.reshape(-1)[at].astype(float32)
                by, more = by * own, more * own
            codes = w[row].astype(float32)
            start = total[bags] + more[:, None]
            total[bags] = fma(codes, np.broadcast_to(by[:, None], codes.shape), start)
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
    over, made = resized(arrays["x"], arrays.get("sizes"), scales, axes)
    _require_bilinear(call, over)
    codes = arrays["x"]
    if lanes and codes.ndim - 1 in over:
        raise OpError(
            f"{call.op}: method bilinear with lanes is that of channels last, and the last axis "
            f"is resized; without lanes it is that of others"
        )
    held = [codes.shape[a] for a in over]
    if not lanes and made == held:
        return codes.copy()  # as that kernel does, whatever the scales
    given = {a % codes.ndim: s for a, s in zip(axes or range(codes.ndim), scales, strict=False)}
    steps = [
        _source_step(call, n, to, given.get(a)) for a, n, to in zip(over, held, made, strict=True)
    ]
    corners = call.attrs["coordinates"] == "align_corners"
    height, width = (
        _interpolation_positions(*along, corners, fused=lanes > 0)
        for along in zip(held, made, steps, strict=True)
    )

    def take(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32Array:
        return codes.take(rows, over[0]).take(columns, over[1]).astype(float32)

    four = [take(r, c) for r in (height.low, height.high) for c in (width.low, width.high)]
    down = [_along_axis(v, over[0], codes.ndim) for v in (height.near, height.far)]
    right = [_along_axis(v, over[1], codes.ndim) for v in (width.near, width.far)]
    if not lanes:
        return _quantized_result(_interpolate(four, down, right), out, after=after)
    channels = codes.shape[-1]
    body = np.arange(channels) < channels // lanes * lanes
    vectors = _interpolate_fused(four[::-1], down[::-1], right[::-1])
    rest = _interpolate_fused(four, down, right)
    return _quantized_result(np.where(body, vectors, rest), out, after=after)


def _require_bilinear(call: MethodCall, over: Sequence[int]) -> None:
    attrs = call.attrs
    known = attrs["mode"] == "linear" and attrs["antialias"] is False
    if not known or attrs["policy"] != "stretch" or len(over) != 2:
        raise OpError(f"{call.op}: torch's quantized kernel is bilinear, along two axes")
    if attrs["coordinates"] not in ("half_pixel", "align_corners"):
        raise OpError(f"{call.op}: torch knows no coordinates {attrs['coordinates']!r}")


def _source_step(call: MethodCall, size: int, to: int, scale: float | None) -> np.float32:
    """Returns ATen's area_pixel_compute_scale: by the scale where one is given, else by sizes."""
    if call.attrs["coordinates"] == "align_corners":
        return float32(size - 1) / float32(to - 1) if to > 1 else float32(0)
    return float32(size) / float32(to) if scale is None else float32(1 / scale)


def _interpolation_positions(
    size: int, to: int, step: np.float32, corners: bool, *, fused: bool
) -> _AxisPositions:
    """Returns positions in float32; half-pixel ones by one fused multiply-add if `fused`."""
    number = np.arange(to).astype(float32)
    if corners:
        place = number * step
    else:
        half = float32(0.5)
        moved = number + half
        place = fma(moved, step, -half) if fused else moved * step - half
        place = np.maximum(place, float32(0))
    low = np.minimum(place.astype(np.int64), size - 1)
    far = np.asarray(place - low.astype(float32), float32)
    return _AxisPositions(low, np.minimum(low + 1, size - 1), float32(1) - far, far)


def _interpolate(
    corners: Sequence[Float32Array], down: Sequence[Float32Array], right: Sequence[Float32Array]
) -> Float32Array:
    a, b, c, d = corners
    upper, lower = right[0] * a + right[1] * b, right[0] * c + right[1] * d
    return np.asarray(down[0] * upper + down[1] * lower, float32)


def _interpolate_fused(
    corners: Sequence[Float32Array], down: Sequence[Float32Array], right: Sequence[Float32Array]
) -> Float32Array:
    """Interpolates where the first product of each sum is not rounded."""
    a, b, c, d = corners
    upper = _multiply_add(right[0], a, right[1] * b)
    lower = _multiply_add(right[0], c, right[1] * d)
    return _multiply_add(down[0], upper, down[1] * lower)


def _multiply_add(a: Float32Array, b: Float32Array, c: Float32Array) -> Float32Array:
    return fma(*np.broadcast_arrays(a, b, c))


def _quantized_result(reals: Float32Array, out: Affine, *, after: bool) -> Integers:
    zero = float32(out.zero)
    if after:
        return saturate(round_to_int32(reals - zero) + int(out.zero), out)
    return saturate(round_to_int32((reals - zero) + zero), out)


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
