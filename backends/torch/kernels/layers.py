"""Torch's quantized layers that are not sums rounded once: transposed convolutions, rows of a
table and bags of them, bilinear resizing. Every step rounds to float32."""

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
from qir.reference.embedding import starts_of
from qir.reference.means import handed_on
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

# -- transposed convolutions ----------------------------------------------------------------------


# -- rows of a table ------------------------------------------------------------------------------


def packed_rows(table: Float32Array, bits: int) -> tuple[Integers, Float32Array, Float32Array]:
    """Integers, scales and offsets that packing makes of rows of floats: 8 bits, or 4 or 2 whose
    scales and offsets are held in half precision."""
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


def unpacked_rows(codes: Integers, scale: Float32Array, plus: Float32Array) -> Float32Array:
    """Returns the floats of packed rows: integers times scale plus the offset, in one rounding."""
    parts = np.broadcast_arrays(
        codes.astype(float32), scale.astype(float32)[:, None], plus.astype(float32)[:, None]
    )
    return fma(*parts)


def rows_of_codes(call: MethodCall, arrays: Arrays) -> Integers:
    """Rows as floats, or their sums bag by bag: each adds its offset to the sum, then its
    integers times its scale, in one rounding. A weight is multiplied into both numbers first."""
    if call.result.quant is not None:
        raise OpError(f"{call.op}: torch gives floats for rows of quantized tables")
    if call.attrs["padding"] is not None:
        raise OpError(f"{call.op}: torch's quantized tables have no padding")
    scale, plus = _numbers(call, arrays["w"].shape)
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
            starts_of(call.op, rows, arrays.get("offsets"), call.attrs["last"] is True)
        )
    made = _summed(arrays["w"], rows.reshape(-1), starts, scale, plus, arrays.get("weights"))
    return made.reshape(*rows.shape, -1) if call.op == "embedding" else made


def _numbers(call: MethodCall, shape: tuple[int, ...]) -> tuple[Float32Array, Float32Array]:
    """Returns the scale and offset of each row, as packing leaves them."""
    held = call.map("w").over(shape)
    kind = np.dtype(np.float16) if call.rule.params.round == "f16" else np.dtype(np.float32)
    scale, zero = held.scale.astype(float32), held.zero.astype(float32)
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


def _summed(
    w: Integers,
    rows: NDArray[np.int64],
    starts: Integers,
    scale: Float32Array,
    plus: Float32Array,
    share: Integers | None,
) -> Float32Array:
    """Returns all bags at once, one of their rows after the other."""
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
class _Side:
    """Positions of results along an axis: between which elements, and how near to each."""

    low: NDArray[np.int64]
    high: NDArray[np.int64]
    near: Float32Array
    far: Float32Array


def bilinear(call: MethodCall, arrays: Arrays, *, lanes: int = 0, after: bool = False) -> Integers:
    """Codes interpolated in float32, along height and then width, the zero point off and on again;
    `after`: on again after rounding.

    `lanes` channels make a vector, where channels are last in memory: vectors and what is left
    over multiply and add in one rounding, each in turns of its own.
    """
    x, out = call.affine("x"), quantized_result(call)
    require_per_tensor(call.op, x, out)
    if not x.same_map(out):
        return handed_on(partial(bilinear, lanes=lanes, after=after), call, arrays)
    scales, axes = _reals(call.attrs, "scales"), int_list(call.attrs, "axes")
    over, made = resized(arrays["x"], arrays.get("sizes"), scales, axes)
    _check(call, over)
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
    steps = [_step(call, n, to, given.get(a)) for a, n, to in zip(over, held, made, strict=True)]
    corners = call.attrs["coordinates"] == "align_corners"
    height, width = (
        _side(*along, corners, fused=lanes > 0) for along in zip(held, made, steps, strict=True)
    )

    def take(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> Float32Array:
        return codes.take(rows, over[0]).take(columns, over[1]).astype(float32)

    four = [take(r, c) for r in (height.low, height.high) for c in (width.low, width.high)]
    down = [_along(v, over[0], codes.ndim) for v in (height.near, height.far)]
    right = [_along(v, over[1], codes.ndim) for v in (width.near, width.far)]
    if not lanes:
        return _finished(_plain(four, down, right), out, after=after)
    channels = codes.shape[-1]
    body = np.arange(channels) < channels // lanes * lanes
    vectors = _fused(four[::-1], down[::-1], right[::-1])
    rest = _fused(four, down, right)
    return _finished(np.where(body, vectors, rest), out, after=after)


def _check(call: MethodCall, over: Sequence[int]) -> None:
    attrs = call.attrs
    known = attrs["mode"] == "linear" and attrs["antialias"] is False
    if not known or attrs["policy"] != "stretch" or len(over) != 2:
        raise OpError(f"{call.op}: torch's quantized kernel is bilinear, along two axes")
    if attrs["coordinates"] not in ("half_pixel", "align_corners"):
        raise OpError(f"{call.op}: torch knows no coordinates {attrs['coordinates']!r}")


def _step(call: MethodCall, size: int, to: int, scale: float | None) -> np.float32:
    """Returns ATen's area_pixel_compute_scale: by the scale where one is given, else by sizes."""
    if call.attrs["coordinates"] == "align_corners":
        return float32(size - 1) / float32(to - 1) if to > 1 else float32(0)
    return float32(size) / float32(to) if scale is None else float32(1 / scale)


def _side(size: int, to: int, step: np.float32, corners: bool, *, fused: bool) -> _Side:
    """Places in float32, those of halves by one multiply-add where it is `fused`."""
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
    return _Side(low, np.minimum(low + 1, size - 1), float32(1) - far, far)


def _plain(
    corners: Sequence[Float32Array], down: Sequence[Float32Array], right: Sequence[Float32Array]
) -> Float32Array:
    a, b, c, d = corners
    upper, lower = right[0] * a + right[1] * b, right[0] * c + right[1] * d
    return np.asarray(down[0] * upper + down[1] * lower, float32)


def _fused(
    corners: Sequence[Float32Array], down: Sequence[Float32Array], right: Sequence[Float32Array]
) -> Float32Array:
    """Returns the same where the first product of each sum is not rounded."""
    a, b, c, d = corners
    upper = _multiply_add(right[0], a, right[1] * b)
    lower = _multiply_add(right[0], c, right[1] * d)
    return _multiply_add(down[0], upper, down[1] * lower)


def _multiply_add(a: Float32Array, b: Float32Array, c: Float32Array) -> Float32Array:
    return fma(*np.broadcast_arrays(a, b, c))


def _finished(reals: Float32Array, out: Affine, *, after: bool) -> Integers:
    zero = float32(out.zero)
    if after:
        return saturate(round_to_int32(reals - zero) + int(out.zero), out)
    return saturate(round_to_int32((reals - zero) + zero), out)


def _along(values: Float32Array, axis: int, rank: int) -> Float32Array:
    return values.reshape([-1 if a == axis else 1 for a in range(rank)])


def _reals(attrs: Mapping[str, Attr], name: str) -> list[float]:
    value = attrs[name]
    assert isinstance(value, tuple)
    return [v for v in value if isinstance(v, int | float)]


METHODS: Mapping[str, PluginMethod] = {
    "rows_of_codes": PluginMethod(
        rows_of_codes, ("embedding", "embedding_bag"), reads=("params",), any_map=True
    ),
    "bilinear": PluginMethod(bilinear, ("resize",), params={"lanes": Param(), "after": FLAG}),
}
"""The methods of this module, by the name that profiles use."""
