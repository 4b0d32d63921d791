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
    Integers,
    MethodCall,
    float32,
    quantized_result,
    require_per_tensor,
    round_to_int32,
    saturate,
    variadic_slots,
)
from qir.reference.vectors import (
    MAX_F32_BELOW_2_31,
    add_zero_point,
    dequantize_in_kernel,
    merge_vector_and_tail,
    quantize_in_kernel,
    run_vectorized,
    scalar_operand,
)

Arrays = Mapping[str, Integers]


# -- vectors and single elements ------------------------------------------------------------------


def concat_channels(
    call: MethodCall, arrays: Arrays, *, lanes: int, after: bool = False
) -> Integers:
    """Joins channels of channels_last images: vectors of each operand's channels.

    Operands of the result's type are copied; all else is dequantized and quantized. `after`: single
    elements add the zero point after rounding, too. Images are channels_last if channels are their
    last axis, or if they have one channel or one pixel each.
    """
    out, slots = quantized_result(call), variadic_slots(arrays)
    require_per_tensor(call.op, *(call.affine(s) for s in slots), out)
    axis, shapes = call.attrs["axis"], [arrays[s].shape for s in slots]
    assert isinstance(axis, int)
    rank = len(shapes[0])
    axis %= rank
    both = all(s[1] == 1 or math.prod(s[2:]) == 1 for s in shapes) if rank == 4 else False
    if rank != 4 or not (axis == 3 or (axis == 1 and both)):
        reals = [dequantize(arrays[s], call.affine(s), call.rule) for s in slots]
        return quantize(np.concatenate(reals, axis), out, call.rule)
    parts: list[Integers] = []
    for slot in slots:
        codes, of = arrays[slot], call.affine(slot)
        if of.same_map(out):
            parts.append(codes)
            continue
        channels = codes.shape[axis]
        shape = [-1 if a == axis else 1 for a in range(rank)]
        places = (np.arange(channels) < channels // lanes * lanes).reshape(shape)
        body, tail = (
            quantize_in_kernel(
                dequantize_in_kernel(codes, of, vectors=v), out, vectors=v, after=after
            )
            for v in (True, False)
        )
        parts.append(saturate(np.where(places, body, tail), out))
    return np.concatenate(parts, axis)


# -- quantized products and sums ------------------------------------------------------------------


def multiply_integers(call: MethodCall, arrays: Arrays, *, lanes: int) -> Integers:
    """Computes a * b: rne((a - za) * (b - zb) * m) + zc in float32, m = (sa * sb) * (1 / sc).

    Times a scalar, integers stay as they are, or are negated about the zero point: the result's
    scale contains the scalar.
    """
    out = quantized_result(call)
    if (found := scalar_operand(call, arrays)) is not None:
        codes, of, number = found
        with np.errstate(all="ignore"):
            real = (codes.astype(np.int64) - int(of.zero)) * float(of.scale) * number
            turned = round_to_int32(np.asarray(real / float(out.scale), float32))
        return saturate(turned + int(out.zero), out)
    a, b, a_map, b_map = arrays["a"], arrays["b"], call.affine("a"), call.affine("b")
    require_per_tensor("mul", a_map, b_map, out)
    with np.errstate(all="ignore"):
        factor = (float32(a_map.scale) * float32(b_map.scale)) * (float32(1) / float32(out.scale))
        left, right = (c.astype(np.int32) - int(m.zero) for c, m in ((a, a_map), (b, b_map)))
        steps = np.asarray((left * right).astype(float32) * factor, float32)

    def parts(*, body: bool) -> NDArray[np.int64]:
        return add_zero_point(steps, out, vectors=body)

    return merge_vector_and_tail([a.shape, b.shape], lanes, parts, out)


def onednn_binary(call: MethodCall, arrays: Arrays, *, lanes: int) -> Integers:
    """Computes onednn::qadd and qmul of u8.

    Vectors take integers of 128 and more as negative, which is a defect, and round ties to even.
    Single elements are correct, and round ties away from zero.
    """
    a_map, b_map, out = call.affine("a"), call.affine("b"), quantized_result(call)
    require_per_tensor(call.op, a_map, b_map, out)

    def made(a: Integers, b: Integers, *, body: bool) -> NDArray[np.int64]:
        left, right = ((c.astype(np.int32) - int(m.zero)) for c, m in ((a, a_map), (b, b_map)))
        if call.op == "mul":
            factor = float32(float(a_map.scale) * float(b_map.scale) / float(out.scale))
            steps = (left * right).astype(float32) * factor
        else:
            other = right.astype(float32) * float32(b_map.scale)
            first, by = left.astype(float32), float32(a_map.scale)
            total = fma(first, by, other) if body else first * by + other
            steps = np.asarray(total * (float32(1) / float32(out.scale)), float32)
        whole = np.rint(steps) if body else ROUNDINGS["away"](steps)
        return whole.astype(np.int64) + int(out.zero)

    a, b = (arrays[s] for s in ("a", "b"))
    if a.shape != b.shape:
        raise OpError(f"{call.op}: onednn's kernel takes two tensors of one shape")
    tail = made(a, b, body=False)
    body = made(a.astype(np.int8), b.astype(np.int8), body=True)
    places = np.arange(tail.size) < tail.size // lanes * lanes
    return saturate(np.where(places.reshape(tail.shape), body, tail), out)


def _per_channel(values: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
    """Returns one value per channel, shaped to broadcast over an array whose channels are axis
    1."""
    return values.reshape(-1) if rank == 1 else values.reshape(-1, *(1,) * (rank - 2))


def prelu_integers(call: MethodCall, arrays: Arrays, *, lanes: int) -> Integers:
    """Computes q - z times 1 or the slope; 1 is the integer that the slope's type has for it."""
    x, slope, out = call.affine("x"), call.affine("slope"), quantized_result(call)
    require_per_tensor(call.op, x, slope, out)
    with np.errstate(all="ignore"):
        one = np.rint(float32(1) / float32(slope.scale) + float32(slope.zero))
        straight = np.clip(one, slope.low, slope.high) - float(slope.zero)
        factor = (float32(x.scale) * float32(slope.scale)) * (float32(1) / float32(out.scale))
        steps = (arrays["x"].astype(np.int32) - int(x.zero)).astype(float32)
        bent = arrays["slope"].astype(np.int32) - int(slope.zero)
        by = np.where(steps > 0, float32(straight), bent.astype(float32))
        made_of = np.asarray((steps * by) * factor, float32)

    def parts(*, body: bool) -> NDArray[np.int64]:
        return add_zero_point(made_of, out, vectors=body)

    return merge_vector_and_tail(
        [a.shape for a in (arrays["x"], arrays["slope"])], lanes, parts, out
    )


def batch_norm_steps(call: MethodCall, arrays: Arrays, *, lanes: int) -> Integers:
    """Computes a batch norm: one multiply-add of q - z with numbers that were folded in float32.

    The ratio of the scales is a double. `lanes` channels make a vector.
    """
    x, out = call.affine("x"), quantized_result(call)
    require_per_tensor(call.op, x, out)
    eps = call.attrs["eps"]
    assert isinstance(eps, float)
    numbers = {s: arrays[s].astype(float32) for s in ("gamma", "beta", "mean", "var")}
    with np.errstate(all="ignore"):
        inverse = float32(1) / np.sqrt(numbers["var"] + float32(eps))
        ratio = np.float64(x.scale) / np.float64(out.scale)
        factor = ((inverse * numbers["gamma"]).astype(np.float64) * ratio).astype(float32)
        moved = numbers["beta"] - numbers["mean"] * inverse * numbers["gamma"]
        steps = (arrays["x"].astype(np.int32) - int(x.zero)).astype(float32)
        parts = (
            _per_channel(v.astype(float32), steps.ndim)
            for v in (factor, moved / float32(out.scale))
        )
        total = fma(*np.broadcast_arrays(steps, *parts))
        most = np.where(total < MAX_F32_BELOW_2_31, total, MAX_F32_BELOW_2_31)
        body, tail = (add_zero_point(t, out, vectors=v) for t, v in ((most, True), (total, False)))
    channels = steps.shape[1]
    places = _per_channel(np.arange(channels) < channels // lanes * lanes, steps.ndim)
    return saturate(np.where(places, body, tail), out)


QNNPACK_BLOCK = 4096
"""Elements that QNNPACK adds at a time."""


def qnnpack_add(call: MethodCall, arrays: Arrays, *, lanes: int, after: bool = False) -> Integers:
    """Computes a + b as QNNPACK: integers times 22-bit multipliers, a shift, ties away from zero.

    Scalars and operands of two shapes are not QNNPACK's: `vectors` computes those.
    """
    a, b = arrays["a"], arrays["b"]
    if a.shape != b.shape or None in (call.types[s].quant for s in "ab"):
        return run_vectorized(call, arrays, lanes=lanes, after=after)
    a_map, b_map, out = call.affine("a"), call.affine("b"), quantized_result(call)
    require_per_tensor("add", a_map, b_map, out)
    ratios = [float32(m.scale) / float32(out.scale) for m in (a_map, b_map)]
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
    return saturate(whole + int(out.zero), out)


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
