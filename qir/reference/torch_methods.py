"""How torch's quantized kernels compute what is not "accumulate and round once".

Vectors of codes go one way, what is left over at the end of a run another: vectors dequantize by a
fused multiply-add and add the zero point after rounding, single elements take the zero point off
first and add it before rounding. Where it is said float32, every step rounds to float32. Elements
lie in memory as they do in the array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.types import TensorType
from qir.numerics.affine import Affine
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.rounding import ROUNDINGS, fma
from qir.reference.method import (
    Call,
    Codes,
    F,
    Method,
    Real32,
    coded,
    integers,
    one_scale,
    stored,
    to_whole,
    variadic,
)
from qir.reference.products import Kernel, product
from qir.reference.torch_functions import float_table, made

Arrays = Mapping[str, Codes]

_MOST = F(2.0**31 - 128)
"""The greatest float32 below 2^31, at which vectors clip before they round."""
_FAR = F(2.0**62)
"""Steps that lie beyond every code, and that 64 bits hold."""


# -- vectors and single elements ------------------------------------------------------------------


def _reals(codes: Codes, of: Affine, *, vectors: bool) -> Real32:
    """What codes mean, as vectors or as single elements dequantize."""
    if vectors:
        return fma(F(of.scale), codes.astype(F), F(of.scale) * -F(of.zero))
    return np.asarray((codes.astype(np.int32) - int(of.zero)).astype(F) * F(of.scale), F)


def _codes(reals: Real32, out: Affine, *, vectors: bool, after: bool = False) -> NDArray[np.int64]:
    """Codes that are not yet cut to their bounds, as vectors or as single elements quantize.

    `after`: single elements add the zero point after rounding, to numbers of 64 bits.
    """
    with np.errstate(all="ignore"):
        steps = reals * (F(1) / F(out.scale))
        if not vectors and after:
            whole = np.rint(np.clip(steps, -_FAR, _FAR)).astype(np.int64)
            return np.asarray(whole + int(out.zero), np.int64)
        if not vectors:
            return to_whole(np.minimum(steps + F(out.zero), _MOST))
        whole = to_whole(np.where(steps < _MOST, steps, _MOST)) + int(out.zero)
    return whole.astype(np.int32).astype(np.int64)


def runs(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """The length of the innermost run: axes over which every operand moves, or stays, alike."""
    rank, length, moving = len(result), 1, None
    full = [(1,) * (rank - len(s)) + s for s in shapes]
    for axis in range(rank - 1, -1, -1):
        if result[axis] == 1:
            continue
        now = tuple(s[axis] > 1 for s in full)
        if moving is not None and now != moving:
            break
        moving, length = now, length * result[axis]
    return length


def vectors(call: Call, arrays: Arrays, *, lanes: int, after: bool = False) -> Codes:
    """An op on each element by itself, between dequantize and quantize, in runs of vectors.

    `lanes` codes make a vector; 0: there are none. `after`: single elements too add the zero point
    after rounding.
    """
    out = coded(call)
    if call.op == "add" and (found := _beside_a_number(call, arrays)) is not None:
        codes = moved_by(*found, out)
        return np.maximum(codes, codes.dtype.type(out.zero)) if call.tails else codes
    quant = {s: call.affine(s) for s in arrays if call.types[s].quant is not None}
    one_scale(call.op, *quant.values(), out)

    def parts(*, body: bool) -> NDArray[np.int64]:
        fused = body and call.op != "sigmoid"  # whose vectors take the zero point off first too
        reals = {
            s: _reals(a, quant[s], vectors=fused) if s in quant else a for s, a in arrays.items()
        }
        found = made(call.op, reals, call.attrs, vectors=body)
        if call.tails:  # a relu, before codes turn round
            found = np.where(found < 0, F(0), found)
        return _codes(found, out, vectors=body, after=after)

    return in_runs([a.shape for a in arrays.values()], lanes, parts, out)


def in_runs(
    shapes: Sequence[tuple[int, ...]],
    lanes: int,
    parts: Callable[..., NDArray[np.int64]],
    out: Affine,
) -> Codes:
    """Codes made by vectors as far as runs have room for them, and by single elements beyond."""
    tail = parts(body=False)
    length = runs(shapes, tail.shape)
    if not lanes or length < lanes:
        return stored(tail, out)
    places = np.arange(tail.size) % length < length // lanes * lanes
    return stored(np.where(places.reshape(tail.shape), parts(body=True), tail), out)


def channel_vectors(call: Call, arrays: Arrays, *, lanes: int, after: bool = False) -> Codes:
    """Concat: of channels of images that lie channels-last, by vectors of each operand's channels,
    where equal maps are copied; of all else through reals.

    `after`: single elements too add the zero point after rounding. Images lie so if channels are
    their last axis, and if they have one channel or one element each.
    """
    out, slots = coded(call), variadic(arrays)
    one_scale(call.op, *(call.affine(s) for s in slots), out)
    axis, shapes = call.attrs["axis"], [arrays[s].shape for s in slots]
    assert isinstance(axis, int)
    rank = len(shapes[0])
    axis %= rank
    both = all(s[1] == 1 or math.prod(s[2:]) == 1 for s in shapes) if rank == 4 else False
    if rank != 4 or not (axis == 3 or (axis == 1 and both)):
        reals = [dequantize(arrays[s], call.affine(s), call.rule) for s in slots]
        return quantize(np.concatenate(reals, axis), out, call.rule)
    parts: list[Codes] = []
    for slot in slots:
        codes, of = arrays[slot], call.affine(slot)
        if of.same_map(out):
            parts.append(codes)
            continue
        channels = codes.shape[axis]
        shape = [-1 if a == axis else 1 for a in range(rank)]
        places = (np.arange(channels) < channels // lanes * lanes).reshape(shape)
        body, tail = (
            _codes(_reals(codes, of, vectors=v), out, vectors=v, after=after) for v in (True, False)
        )
        parts.append(stored(np.where(places, body, tail), out))
    return np.concatenate(parts, axis)


# -- products and sums of codes -------------------------------------------------------------------


def _beside_a_number(call: Call, arrays: Arrays) -> tuple[Codes, Affine, float] | None:
    """Codes, their map and the real number beside them; None where both operands are codes.

    OpError for reals that are more than one number, for which torch has no kernel.
    """
    real = [s for s in ("a", "b") if call.types[s].quant is None]
    if not real:
        return None
    coded = "b" if real == ["a"] else "a"
    if len(real) > 1 or arrays[real[0]].ndim:
        raise OpError(f"{call.op}: {real[0]} is real; beside codes torch takes a single number")
    of = call.affine(coded)
    one_scale(call.op, of)
    return arrays[coded], of, float(arrays[real[0]])


def moved_by(codes: Codes, of: Affine, number: float, out: Affine) -> Codes:
    """add_scalar: the number in whole steps is added, and the sum brought to the result's scale."""
    with np.errstate(all="ignore"):
        steps = codes.astype(np.int64) - int(of.zero) + int(np.rint(number / float(of.scale)))
        factor = F(of.scale) * (F(1) / F(out.scale))
        return stored(to_whole(steps.astype(F) * factor) + int(out.zero), out)


def _placed_steps(steps: Real32, out: Affine, *, vectors: bool) -> NDArray[np.int64]:
    """Whole steps and the zero point, in 32 bits as vectors add them, in 64 as single elements do:
    what does not fit is the least of them, and turns round with a zero point below 0."""
    if vectors:
        return (to_whole(steps) + int(out.zero)).astype(np.int32).astype(np.int64)
    fits = np.abs(steps) < F(2.0**63)
    whole = np.rint(np.where(fits, steps, 0)).astype(np.int64)
    return np.where(fits, whole, np.iinfo(np.int64).min) + np.int64(out.zero)


def product_of_codes(call: Call, arrays: Arrays, *, lanes: int) -> Codes:
    """a * b: rne((a - za) * (b - zb) * m) + zc in float32, m = (sa * sb) * (1 / sc).

    Times a number codes stay what they are, or are turned about zero: its scale is in the result's.
    """
    out = coded(call)
    if (found := _beside_a_number(call, arrays)) is not None:
        codes, of, number = found
        with np.errstate(all="ignore"):
            real = (codes.astype(np.int64) - int(of.zero)) * float(of.scale) * number
            turned = to_whole(np.asarray(real / float(out.scale), F))
        return stored(turned + int(out.zero), out)
    a, b, a_map, b_map = arrays["a"], arrays["b"], call.affine("a"), call.affine("b")
    one_scale("mul", a_map, b_map, out)
    with np.errstate(all="ignore"):
        factor = (F(a_map.scale) * F(b_map.scale)) * (F(1) / F(out.scale))
        left, right = (c.astype(np.int32) - int(m.zero) for c, m in ((a, a_map), (b, b_map)))
        steps = np.asarray((left * right).astype(F) * factor, F)

    def parts(*, body: bool) -> NDArray[np.int64]:
        return _placed_steps(steps, out, vectors=body)

    return in_runs([a.shape, b.shape], lanes, parts, out)


def signed_vectors(call: Call, arrays: Arrays, *, lanes: int) -> Codes:
    """onednn::qadd and qmul of u8: vectors take codes of 128 and more for negative ones, which is
    a mistake, and round halves to even; single elements are what they are, halves go away."""
    a_map, b_map, out = call.affine("a"), call.affine("b"), coded(call)
    one_scale(call.op, a_map, b_map, out)

    def made(a: Codes, b: Codes, *, body: bool) -> NDArray[np.int64]:
        left, right = ((c.astype(np.int32) - int(m.zero)) for c, m in ((a, a_map), (b, b_map)))
        if call.op == "mul":
            factor = F(float(a_map.scale) * float(b_map.scale) / float(out.scale))
            steps = (left * right).astype(F) * factor
        else:
            other = right.astype(F) * F(b_map.scale)
            first, by = left.astype(F), F(a_map.scale)
            total = fma(first, by, other) if body else first * by + other
            steps = np.asarray(total * (F(1) / F(out.scale)), F)
        whole = np.rint(steps) if body else ROUNDINGS["away"](steps)
        return whole.astype(np.int64) + int(out.zero)

    a, b = (arrays[s] for s in ("a", "b"))
    if a.shape != b.shape:
        raise OpError(f"{call.op}: onednn's kernel takes two tensors of one shape")
    tail = made(a, b, body=False)
    body = made(a.astype(np.int8), b.astype(np.int8), body=True)
    places = np.arange(tail.size) < tail.size // lanes * lanes
    return stored(np.where(places.reshape(tail.shape), body, tail), out)


def _channelled(values: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
    """One value a channel, shaped to go with an array whose channels are axis 1."""
    return values.reshape(-1) if rank == 1 else values.reshape(-1, *(1,) * (rank - 2))


def prelu_of_codes(call: Call, arrays: Arrays, *, lanes: int) -> Codes:
    """x times 1 or the slope, in steps: a slope of 1 is what the slope's own map makes of it."""
    x, slope, out = call.affine("x"), call.affine("slope"), coded(call)
    one_scale(call.op, x, slope, out)
    with np.errstate(all="ignore"):
        one = np.rint(F(1) / F(slope.scale) + F(slope.zero))
        straight = np.clip(one, slope.low, slope.high) - float(slope.zero)
        factor = (F(x.scale) * F(slope.scale)) * (F(1) / F(out.scale))
        steps = (arrays["x"].astype(np.int32) - int(x.zero)).astype(F)
        bent = arrays["slope"].astype(np.int32) - int(slope.zero)
        by = np.where(steps > 0, F(straight), bent.astype(F))
        made_of = np.asarray((steps * by) * factor, F)

    def parts(*, body: bool) -> NDArray[np.int64]:
        return _placed_steps(made_of, out, vectors=body)

    return in_runs([a.shape for a in (arrays["x"], arrays["slope"])], lanes, parts, out)


def scaled_steps(call: Call, arrays: Arrays, *, lanes: int) -> Codes:
    """Batch norm: one multiply-add of q - z by numbers that were folded in float32, but for the
    ratio of the scales, which is a double. `lanes` channels make a vector."""
    x, out = call.affine("x"), coded(call)
    one_scale(call.op, x, out)
    eps = call.attrs["eps"]
    assert isinstance(eps, float)
    numbers = {s: arrays[s].astype(F) for s in ("gamma", "beta", "mean", "var")}
    with np.errstate(all="ignore"):
        inverse = F(1) / np.sqrt(numbers["var"] + F(eps))
        ratio = np.float64(x.scale) / np.float64(out.scale)
        factor = ((inverse * numbers["gamma"]).astype(np.float64) * ratio).astype(F)
        moved = numbers["beta"] - numbers["mean"] * inverse * numbers["gamma"]
        steps = (arrays["x"].astype(np.int32) - int(x.zero)).astype(F)
        parts = (_channelled(v.astype(F), steps.ndim) for v in (factor, moved / F(out.scale)))
        total = fma(*np.broadcast_arrays(steps, *parts))
        most = np.where(total < _MOST, total, _MOST)
        body, tail = (_placed_steps(t, out, vectors=v) for t, v in ((most, True), (total, False)))
    channels = steps.shape[1]
    places = _channelled(np.arange(channels) < channels // lanes * lanes, steps.ndim)
    return stored(np.where(places, body, tail), out)


_PIECE = 4096
"""How many elements QNNPACK adds at a time."""


def shifted_sum(call: Call, arrays: Arrays, *, lanes: int, after: bool = False) -> Codes:
    """a + b as QNNPACK does: codes times 22-bit multipliers, a shift, halves away from zero.

    What it does not take goes the way of `vectors`: a number, and operands of two shapes.
    """
    a, b = arrays["a"], arrays["b"]
    if a.shape != b.shape or None in (call.types[s].quant for s in "ab"):
        return vectors(call, arrays, lanes=lanes, after=after)
    a_map, b_map, out = call.affine("a"), call.affine("b"), coded(call)
    one_scale("add", a_map, b_map, out)
    ratios = [F(m.scale) / F(out.scale) for m in (a_map, b_map)]
    if not all(2.0**-14 <= r < 2.0**8 for r in ratios):
        raise OpError("add: QNNPACK takes scales from 2^-14 to 2^8 of the result's")
    shift = 22 - math.frexp(float(max(ratios)))[1]
    left, right = (int(np.rint(np.float64(r) * 2.0**shift)) for r in ratios)
    total = a.astype(np.int64) * left + b.astype(np.int64) * right
    total = total - (int(a_map.zero) * left + int(b_map.zero) * right)
    mask = (1 << shift % 32) - 1  # the processor takes shifts of 32 bits and more for what is over
    rest = (total & mask) - (total < 0)
    over = np.full(total.size, shift, np.int64)
    if total.size % _PIECE < 8:  # the last piece has no vector: single elements are shifted so too
        over[total.size // _PIECE * _PIECE :] = shift % 32
    whole = (total >> over.reshape(total.shape)) + (rest > mask >> 1)
    return stored(whole + int(out.zero), out)


# -- convolutions of other ranks ------------------------------------------------------------------


def as_conv2d(call: Call, arrays: Arrays) -> Codes:
    """conv1d and conv3d as the convolution of images that they are: one sum, rounded once."""
    x, w = arrays["x"], arrays["w"]
    stride, pad, dilation = (integers(call.attrs, name) for name in ("stride", "pad", "dilation"))
    depth: tuple[int, ...] | None = None
    if call.op == "conv1d":
        x, w = x[:, :, None], w[:, :, None]
        stride, dilation, pad = [1, *stride], [1, *dilation], [0, pad[0], 0, pad[1]]
    elif call.rule.acc.pairs == "saturate_rows" and w.shape[1] % 2:  # pairs of two slices
        x, w, depth = _windows(x, w, call, stride, pad, dilation)
        stride, dilation, pad = [1, 1], [1, 1], [0] * 4
    else:
        x, w, depth = _slices(x, w, call, stride[0], (pad[0], pad[3]), dilation[0])
        stride, dilation, pad = stride[1:], dilation[1:], [*pad[1:3], *pad[4:]]
    attrs = {
        "stride": tuple(stride),
        "pad": tuple(pad),
        "dilation": tuple(dilation),
        "groups": call.attrs["groups"],
        "layout": "NCHW",
    }
    types = dict(call.types)
    types["x"], types["w"] = (
        TensorType(a.shape, call.types[s].element) for s, a in (("x", x), ("w", w))
    )
    result = TensorType((1,) * 4, call.result.element)
    image = Kernel("conv2d", attrs, types, result, replace(call.rule, method=None))
    made = product(image, {**arrays, "x": x, "w": w})
    if depth is None:
        return made[:, :, 0]
    batch, sides = len(arrays["x"]), depth[1:] or made.shape[2:]
    split = made.reshape(batch, depth[0], made.shape[1], *sides)
    return np.ascontiguousarray(np.moveaxis(split, 1, 2))


def _slices(
    x: Codes, w: Codes, call: Call, stride: int, pad: tuple[int, int], dilation: int
) -> tuple[Codes, Codes, tuple[int]]:
    """Each place along the depth as an image whose channels are those of the slices it sees, of
    each group those of one slice after those of another."""
    (channels, taps), zero = w.shape[1:3], call.affine("x").zero
    held = np.pad(x, ((0, 0), (0, 0), pad, (0, 0), (0, 0)), constant_values=int(zero))
    count = _places(held.shape[2], taps, stride, dilation)
    places = np.arange(count)[:, None] * stride + np.arange(taps) * dilation
    seen = np.moveaxis(held[:, :, places], 2, 1)
    groups = x.shape[1] // channels
    split = seen.reshape(*seen.shape[:2], groups, channels, *seen.shape[3:]).swapaxes(3, 4)
    flat = split.reshape(x.shape[0] * count, x.shape[1] * taps, *x.shape[3:])
    turned = w.swapaxes(1, 2)
    return flat, turned.reshape(w.shape[0], taps * channels, *w.shape[3:]), (count,)


def _windows(
    x: Codes, w: Codes, call: Call, stride: list[int], pad: list[int], dilation: list[int]
) -> tuple[Codes, Codes, tuple[int, ...]]:
    """Each place as one element whose channels are what its window sees, of each group the
    channels of one tap after those of another."""
    sides = [(0, 0), (0, 0), *zip(pad[:3], pad[3:], strict=True)]
    held = np.pad(x, sides, constant_values=int(call.affine("x").zero))
    steps = list(zip(held.shape[2:], w.shape[2:], stride, dilation, strict=True))
    counts = tuple(_places(*step) for step in steps)
    groups, channels = x.shape[1] // w.shape[1], w.shape[1]
    taps = math.prod(w.shape[2:])
    made = np.empty((len(x), groups, taps, channels, *counts), x.dtype)
    for number, at in enumerate(np.ndindex(*w.shape[2:])):
        depth, rows, columns = (
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(at, dilation, counts, stride, strict=True)
        )
        seen = held[:, :, depth, rows, columns]
        made[:, :, number] = seen.reshape(len(x), groups, channels, *counts)
    wide = taps * channels
    flat = np.moveaxis(made.reshape(len(x), groups * wide, *counts), 2, 1)
    image = flat.reshape(len(x) * counts[0], groups * wide, counts[1] * counts[2], 1)
    turned = np.moveaxis(w, 1, -1).reshape(len(w), wide, 1, 1)
    return image, turned, counts


def _places(size: int, taps: int, stride: int, dilation: int) -> int:
    """How many windows there are along a padded axis; OpError for none."""
    count = (size - (taps - 1) * dilation - 1) // stride + 1
    if count < 1:
        raise OpError(f"a kernel of {taps} does not fit a padded side of {size}")
    return count


METHODS: Mapping[str, Method] = {
    "vectors": Method(vectors, params=("lanes", "after"), whole=True, tails=True),
    "channel_vectors": Method(channel_vectors, params=("lanes", "after"), whole=True),
    "product_of_codes": Method(product_of_codes, params=("lanes",), whole=True),
    "signed_vectors": Method(signed_vectors, params=("lanes",), whole=True),
    "prelu_of_codes": Method(prelu_of_codes, params=("lanes",), whole=True),
    "scaled_steps": Method(scaled_steps, params=("lanes",), whole=True),
    "shifted_sum": Method(shifted_sum, params=("lanes", "after"), whole=True),
    "float_table": Method(float_table, whole=True),
    "as_conv2d": Method(as_conv2d, whole=True, reals=True),
}
"""The methods of torch's profiles."""
