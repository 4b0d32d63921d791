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
    is_single_either = (
        all(s[1] == 1 or math.prod(s[2:]) == 1 for s in shapes) if rank == 4 else False
    )
    # Only then are the channels contiguous, which is what the vector kernel reads.
    if rank != 4 or not (axis == 3 or (axis == 1 and is_single_either)):
        floats = [dequantize(arrays[s], call.affine(s), call.rule) for s in slots]
        return quantize(np.concatenate(floats, axis), out, call.rule)
    parts: list[Integers] = []
    for slot in slots:
        integers, operand_type = arrays[slot], call.affine(slot)
        if operand_type.same_map(out):
            parts.append(integers)
            continue
        channels = integers.shape[axis]
        shape = [-1 if a == axis else 1 for a in range(rank)]
        # Channels that fill whole vectors; those left over are computed one by one.
        in_vector = (np.arange(channels) < channels // lanes * lanes).reshape(shape)
        vectors, tail = (
            quantize_in_kernel(
                dequantize_in_kernel(integers, operand_type, vectors=v), out, vectors=v, after=after
            )
            for v in (True, False)
        )
        parts.append(saturate(np.where(in_vector, vectors, tail), out))
    return np.concatenate(parts, axis)


# -- quantized products and sums ------------------------------------------------------------------


def multiply_integers(call: MethodCall, arrays: Arrays, *, lanes: int) -> Integers:
    """Computes a * b: rne((a - za) * (b - zb) * m) + zc in float32, m = (sa * sb) * (1 / sc).

    Times a scalar, integers stay as they are, or are negated about the zero point: the result's
    scale contains the scalar.
    """
    out = quantized_result(call)
    if (scalar := scalar_operand(call, arrays)) is not None:
        integers, operand_type, number = scalar
        with np.errstate(all="ignore"):
            # In double, since torch multiplies the scale by a Python float.
            floats = (
                (integers.astype(np.int64) - int(operand_type.zero))
                * float(operand_type.scale)
                * number
            )
            rounded = round_to_int32(np.asarray(floats / float(out.scale), float32))
        return saturate(rounded + int(out.zero), out)
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

    def compute(a: Integers, b: Integers, *, body: bool) -> NDArray[np.int64]:
        left, right = ((c.astype(np.int32) - int(m.zero)) for c, m in ((a, a_map), (b, b_map)))
        if call.op == "mul":
            factor = float32(float(a_map.scale) * float(b_map.scale) / float(out.scale))
            steps = (left * right).astype(float32) * factor
        else:
            second = right.astype(float32) * float32(b_map.scale)
            scaled_left, left_scale = left.astype(float32), float32(a_map.scale)
            total = (
                fma(scaled_left, left_scale, second) if body else scaled_left * left_scale + second
            )
            steps = np.asarray(total * (float32(1) / float32(out.scale)), float32)
        rounded = np.rint(steps) if body else ROUNDINGS["away"](steps)
        return rounded.astype(np.int64) + int(out.zero)

    a, b = (arrays[s] for s in ("a", "b"))
    if a.shape != b.shape:
        raise OpError(f"{call.op}: onednn's kernel takes two tensors of one shape")
    tail = compute(a, b, body=False)
    # Vectors sign-extend the bytes, so that 128 and more become negative.
    body = compute(a.astype(np.int8), b.astype(np.int8), body=True)
    in_vector = np.arange(tail.size) < tail.size // lanes * lanes
    return saturate(np.where(in_vector.reshape(tail.shape), body, tail), out)


def _as_channels(values: NDArray[np.generic], rank: int) -> NDArray[np.generic]:
    """Returns one value per channel, shaped to broadcast over an array whose channels are axis
    1."""
    return values.reshape(-1) if rank == 1 else values.reshape(-1, *(1,) * (rank - 2))


def prelu_integers(call: MethodCall, arrays: Arrays, *, lanes: int) -> Integers:
    """Computes q - z times 1 or the slope; 1 is the integer that the slope's type has for it."""
    x, slope, out = call.affine("x"), call.affine("slope"), quantized_result(call)
    require_per_tensor(call.op, x, slope, out)
    with np.errstate(all="ignore"):
        one = np.rint(float32(1) / float32(slope.scale) + float32(slope.zero))
        unit_slope = np.clip(one, slope.low, slope.high) - float(slope.zero)
        factor = (float32(x.scale) * float32(slope.scale)) * (float32(1) / float32(out.scale))
        steps = (arrays["x"].astype(np.int32) - int(x.zero)).astype(float32)
        slope_integers = arrays["slope"].astype(np.int32) - int(slope.zero)
        # The slope where q - z is negative; 1, as an integer of the slope's type, elsewhere.
        factors = np.where(steps > 0, float32(unit_slope), slope_integers.astype(float32))
        products = np.asarray((steps * factors) * factor, float32)

    def parts(*, body: bool) -> NDArray[np.int64]:
        return add_zero_point(products, out, vectors=body)

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
    norm_params = {s: arrays[s].astype(float32) for s in ("gamma", "beta", "mean", "var")}
    with np.errstate(all="ignore"):
        # The order in which torch folds the parameters decides the last bit.
        inverse = float32(1) / np.sqrt(norm_params["var"] + float32(eps))
        ratio = np.float64(x.scale) / np.float64(out.scale)
        factor = ((inverse * norm_params["gamma"]).astype(np.float64) * ratio).astype(float32)
        offset = norm_params["beta"] - norm_params["mean"] * inverse * norm_params["gamma"]
        steps = (arrays["x"].astype(np.int32) - int(x.zero)).astype(float32)
        parts = (
            _as_channels(v.astype(float32), steps.ndim)
            for v in (factor, offset / float32(out.scale))
        )
        total = fma(*np.broadcast_arrays(steps, *parts))
        # Vectors clamp to below 2^31 first, since the conversion to int32 would wrap to the least
        # one.
        clamped = np.where(total < MAX_F32_BELOW_2_31, total, MAX_F32_BELOW_2_31)
        body, tail = (
            add_zero_point(t, out, vectors=v) for t, v in ((clamped, True), (total, False))
        )
    channels = steps.shape[1]
    in_vector = _as_channels(np.arange(channels) < channels // lanes * lanes, steps.ndim)
    return saturate(np.where(in_vector, body, tail), out)


QNNPACK_BLOCK = 4096
"""Elements that QNNPACK adds at a time."""


def qnnpack_add(call: MethodCall, arrays: Arrays, *, lanes: int, after: bool = False) -> Integers:
    """Computes a + b as QNNPACK: integers times 22-bit multipliers, a shift, ties away from zero.

    Scalars and operands of two shapes are not QNNPACK's: `run_vectorized` computes those.
    """
    a, b = arrays["a"], arrays["b"]
    if a.shape != b.shape or None in (call.types[s].quant for s in "ab"):
        return run_vectorized(call, arrays, lanes=lanes, after=after)
    a_map, b_map, out = call.affine("a"), call.affine("b"), quantized_result(call)
    require_per_tensor("add", a_map, b_map, out)
    ratios = [float32(m.scale) / float32(out.scale) for m in (a_map, b_map)]
    if not all(2.0**-14 <= r < 2.0**8 for r in ratios):
        raise OpError("add: QNNPACK takes scales from 2^-14 to 2^8 of the result's")
    # The larger of the two multipliers has 22 bits.
    shift = 22 - math.frexp(float(max(ratios)))[1]
    left, right = (int(np.rint(np.float64(r) * 2.0**shift)) for r in ratios)
    total = a.astype(np.int64) * left + b.astype(np.int64) * right
    total = total - (int(a_map.zero) * left + int(b_map.zero) * right)
    mask = (1 << shift % 32) - 1  # shifts count modulo 32 in x86 instructions
    # The remainder of the shift decides a tie; negative totals are corrected by one (away from
    # zero).
    remainder = (total & mask) - (total < 0)
    shifts = np.full(total.size, shift, np.int64)
    if (
        total.size % QNNPACK_BLOCK < 8
    ):  # the last block fills no vector: scalar code shifts likewise
        shifts[total.size // QNNPACK_BLOCK * QNNPACK_BLOCK :] = shift % 32
    rounded = (total >> shifts.reshape(total.shape)) + (remainder > mask >> 1)
    return saturate(rounded + int(out.zero), out)


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
