"""Quantized elementwise kernels of torch that do not compute a sum and round once.

A kernel computes vectors of integers, and the elements left over at the end of a run, in two ways.
Vectors dequantize by a fused multiply-add, and add the zero point after rounding. Single elements
subtract the zero point first, and add it before rounding. Where a docstring says float32, every
step rounds to float32. An array's strides are those in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.quantize import dequantize, quantize
from qir.numerics.rounding import ROUNDINGS, fma
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.method import (
    Codes,
    F,
    MethodCall,
    coded,
    one_scale,
    stored,
    to_whole,
    variadic,
)
from qir.reference.vectors import (
    MOST,
    beside_a_number,
    codes_of_reals,
    in_runs,
    placed_steps,
    reals_of_codes,
    vectors,
)

Arrays = Mapping[str, Codes]


# -- vectors and single elements ------------------------------------------------------------------


def concat_channels(call: MethodCall, arrays: Arrays, *, lanes: int, after: bool = False) -> Codes:
    """Joins channels of channels_last images: vectors of each operand's channels.

    Operands of the result's type are copied; all else is dequantized and quantized. `after`: single
    elements add the zero point after rounding, too. Images are channels_last if channels are their
    last axis, or if they have one channel or one pixel each.
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
            codes_of_reals(reals_of_codes(codes, of, vectors=v), out, vectors=v, after=after)
            for v in (True, False)
        )
        parts.append(stored(np.where(places, body, tail), out))
    return np.concatenate(parts, axis)


# -- quantized products and sums ------------------------------------------------------------------


def multiply_integers(call: MethodCall, arrays: Arrays, *, lanes: int) -> Codes:
    """Computes a * b: rne((a - za) * (b - zb) * m) + zc in float32, m = (sa * sb) * (1 / sc).

    Times a scalar, integers stay as they are, or are negated about the zero point: the result's
    scale contains the scalar.
    """
    out = coded(call)
    if (found := beside_a_number(call, arrays)) is not None:
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
        return placed_steps(steps, out, vectors=body)

    return in_runs([a.shape, b.shape], lanes, parts, out)


def onednn_binary(call: MethodCall, arrays: Arrays, *, lanes: int) -> Codes:
    """Computes onednn::qadd and qmul of u8.

    Vectors take integers of 128 and more as negative, which is a defect, and round ties to even.
    Single elements are correct, and round ties away from zero.
    """
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


def _per_channel(values: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
    """Returns one value per channel, shaped to broadcast over an array whose channels are axis
    1."""
    return values.reshape(-1) if rank == 1 else values.reshape(-1, *(1,) * (rank - 2))


def prelu_integers(call: MethodCall, arrays: Arrays, *, lanes: int) -> Codes:
    """Computes q - z times 1 or the slope; 1 is the integer that the slope's type has for it."""
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
        return placed_steps(made_of, out, vectors=body)

    return in_runs([a.shape for a in (arrays["x"], arrays["slope"])], lanes, parts, out)


def batch_norm_steps(call: MethodCall, arrays: Arrays, *, lanes: int) -> Codes:
    """Computes a batch norm: one multiply-add of q - z with numbers that were folded in float32.

    The ratio of the scales is a double. `lanes` channels make a vector.
    """
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
        parts = (_per_channel(v.astype(F), steps.ndim) for v in (factor, moved / F(out.scale)))
        total = fma(*np.broadcast_arrays(steps, *parts))
        most = np.where(total < MOST, total, MOST)
        body, tail = (placed_steps(t, out, vectors=v) for t, v in ((most, True), (total, False)))
    channels = steps.shape[1]
    places = _per_channel(np.arange(channels) < channels // lanes * lanes, steps.ndim)
    return stored(np.where(places, body, tail), out)


QNNPACK_BLOCK = 4096
"""Elements that QNNPACK adds at a time."""


def qnnpack_add(call: MethodCall, arrays: Arrays, *, lanes: int, after: bool = False) -> Codes:
    """Computes a + b as QNNPACK: integers times 22-bit multipliers, a shift, ties away from zero.

    Scalars and operands of two shapes are not QNNPACK's: `vectors` computes those.
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
    mask = (1 << shift % 32) - 1  # shifts count modulo 32 in x86 instructions
    rest = (total & mask) - (total < 0)
    over = np.full(total.size, shift, np.int64)
    if (
        total.size % QNNPACK_BLOCK < 8
    ):  # the last block fills no vector: scalar code shifts likewise
        over[total.size // QNNPACK_BLOCK * QNNPACK_BLOCK :] = shift % 32
    whole = (total >> over.reshape(total.shape)) + (rest > mask >> 1)
    return stored(whole + int(out.zero), out)


METHODS: Mapping[str, PluginMethod] = {
    "channel_vectors": PluginMethod(
        concat_channels,
        ("concat",),
        reads=("dequantize", "quantize"),
        params={"lanes": Param(needed=True, least=1), "after": FLAG},
    ),
    "product_of_codes": PluginMethod(
        multiply_integers, ("mul",), params={"lanes": Param(needed=True)}
    ),
    "signed_vectors": PluginMethod(
        onednn_binary, ("add", "mul"), params={"lanes": Param(needed=True, least=1)}
    ),
    "prelu_of_codes": PluginMethod(
        prelu_integers, ("prelu",), params={"lanes": Param(needed=True)}
    ),
    "scaled_steps": PluginMethod(
        batch_norm_steps, ("batch_norm",), params={"lanes": Param(needed=True)}
    ),
    "shifted_sum": PluginMethod(
        qnnpack_add, ("add",), params={"lanes": Param(needed=True), "after": FLAG}
    ),
}
"""The methods of this module, by the name that profiles use."""
