"""Predicts torch's quantized kernels, whose SIMD loop and scalar tail loop round differently.

The vector loop dequantizes by a fused multiply-add and adds the zero point after rounding. The
scalar loop subtracts the zero point first and adds it before rounding. Every step rounds to
float32. The elements are expected in the array's own order in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.numerics.affine import Affine
from qir.numerics.rounding import fma
from qir.profiles.methods import FLAG, Param, PluginMethod
from qir.reference.method import (
    Float32Array,
    Integers,
    MethodCall,
    float32,
    quantized_result,
    require_per_tensor,
    round_to_int32,
    saturate,
)
from qir.reference.vector_functions import evaluate

OperandArrays = Mapping[str, Integers]


MAX_F32_BELOW_2_31 = float32(2.0**31 - 128)
"""The greatest float32 below 2^31, at which vectors clip before they round."""


_BEYOND_ALL_STEPS = float32(2.0**62)
"""Steps are clipped here: beyond every quantized value, and still within 64 bits."""


def dequantize_in_kernel(codes: Integers, of: Affine, *, vectors: bool) -> Float32Array:
    """Dequantizes as the vector loop or the scalar loop does."""
    if vectors:
        return fma(float32(of.scale), codes.astype(float32), float32(of.scale) * -float32(of.zero))
    return np.asarray(
        (codes.astype(np.int32) - int(of.zero)).astype(float32) * float32(of.scale), float32
    )


def quantize_in_kernel(
    reals: Float32Array, out: Affine, *, vectors: bool, after: bool = False
) -> NDArray[np.int64]:
    """Quantizes as the vector loop or the scalar loop does, before the result is saturated.

    `after`: the scalar loop adds the zero point after rounding, in 64 bits.
    """
    with np.errstate(all="ignore"):
        steps = reals * (float32(1) / float32(out.scale))
        if not vectors and after:
            whole = np.rint(np.clip(steps, -_BEYOND_ALL_STEPS, _BEYOND_ALL_STEPS)).astype(np.int64)
            return np.asarray(whole + int(out.zero), np.int64)
        if not vectors:
            return round_to_int32(np.minimum(steps + float32(out.zero), MAX_F32_BELOW_2_31))
        whole = round_to_int32(
            np.where(steps < MAX_F32_BELOW_2_31, steps, MAX_F32_BELOW_2_31)
        ) + int(out.zero)
    return whole.astype(np.int32).astype(np.int64)


def innermost_run_length(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """Returns the length of the innermost loop: axes along which the operands broadcast alike."""
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


def run_vectorized(
    call: MethodCall, arrays: OperandArrays, *, lanes: int, after: bool = False
) -> Integers:
    """Runs an elementwise op between dequantize and quantize, in vectors and a scalar tail.

    `lanes` is the vector length; 0: scalar only. `after`: the scalar loop too adds the zero point
    after rounding.
    """
    out = quantized_result(call)
    if call.op == "add" and (found := scalar_operand(call, arrays)) is not None:
        codes = add_scalar(*found, out)
        return np.maximum(codes, codes.dtype.type(out.zero)) if call.tails else codes
    quant = {s: call.affine(s) for s in arrays if call.types[s].quant is not None}
    require_per_tensor(call.op, *quant.values(), out)

    def parts(*, body: bool) -> NDArray[np.int64]:
        fused = body and call.op != "sigmoid"  # whose vectors take the zero point off first too
        reals = {
            s: dequantize_in_kernel(a, quant[s], vectors=fused) if s in quant else a
            for s, a in arrays.items()
        }
        found = evaluate(call.op, reals, call.attrs, vectors=body)
        if call.tails:  # a relu, before quantized values turn round
            found = np.where(found < 0, float32(0), found)
        return quantize_in_kernel(found, out, vectors=body, after=after)

    return merge_vector_and_tail([a.shape for a in arrays.values()], lanes, parts, out)


def merge_vector_and_tail(
    shapes: Sequence[tuple[int, ...]],
    lanes: int,
    parts: Callable[..., NDArray[np.int64]],
    out: Affine,
) -> Integers:
    """Takes the vector result for complete vectors of each run, the scalar one for the rest."""
    tail = parts(body=False)
    length = innermost_run_length(shapes, tail.shape)
    if not lanes or length < lanes:
        return saturate(tail, out)
    places = np.arange(tail.size) % length < length // lanes * lanes
    return saturate(np.where(places.reshape(tail.shape), parts(body=True), tail), out)


def scalar_operand(
    call: MethodCall, arrays: OperandArrays
) -> tuple[Integers, Affine, float] | None:
    """Returns the quantized operand, its type and the scalar one; None if both are quantized.

    Raises OpError for a float tensor, for which torch has no kernel.
    """
    real = [s for s in ("a", "b") if call.types[s].quant is None]
    if not real:
        return None
    coded = "b" if real == ["a"] else "a"
    if len(real) > 1 or arrays[real[0]].ndim:
        raise OpError(
            f"{call.op}: {real[0]} is a float tensor; next to a quantized one its kernel "
            "takes a single number"
        )
    of = call.affine(coded)
    require_per_tensor(call.op, of)
    return arrays[coded], of, float(arrays[real[0]])


def add_scalar(codes: Integers, of: Affine, number: float, out: Affine) -> Integers:
    """Predicts torch's add_scalar: adds the number rounded to steps, then requantizes."""
    with np.errstate(all="ignore"):
        steps = codes.astype(np.int64) - int(of.zero) + int(np.rint(number / float(of.scale)))
        factor = float32(of.scale) * (float32(1) / float32(out.scale))
        return saturate(round_to_int32(steps.astype(float32) * factor) + int(out.zero), out)


def add_zero_point(steps: Float32Array, out: Affine, *, vectors: bool) -> NDArray[np.int64]:
    """Whole steps and the zero point, in 32 bits as vectors add them, in 64 as single elements do:
    what does not fit is the least of them, and turns round with a zero point below 0."""
    if vectors:
        return (round_to_int32(steps) + int(out.zero)).astype(np.int32).astype(np.int64)
    fits = np.abs(steps) < float32(2.0**63)
    whole = np.rint(np.where(fits, steps, 0)).astype(np.int64)
    return np.where(fits, whole, np.iinfo(np.int64).min) + np.int64(out.zero)


METHODS: Mapping[str, PluginMethod] = {
    "vectors": PluginMethod(
        run_vectorized, (), params={"lanes": Param(needed=True), "after": FLAG}, tails=True
    ),
}
"""The methods of this module, by the name that profiles use."""
