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


def dequantize_in_kernel(quantized: Integers, mapping: Affine, *, vectors: bool) -> Float32Array:
    """Dequantizes as the vector loop or the scalar loop does."""
    if vectors:
        return fma(
            float32(mapping.scale),
            quantized.astype(float32),
            float32(mapping.scale) * -float32(mapping.zero),
        )
    return np.asarray(
        (quantized.astype(np.int32) - int(mapping.zero)).astype(float32) * float32(mapping.scale),
        float32,
    )


def quantize_in_kernel(
    floats: Float32Array, out: Affine, *, vectors: bool, after: bool = False
) -> NDArray[np.int64]:
    """Quantizes as the vector loop or the scalar loop does, before the result is saturated.

    `after`: the scalar loop adds the zero point after rounding, in 64 bits.
    """
    with np.errstate(all="ignore"):
        steps = floats * (float32(1) / float32(out.scale))
        # Clipping to 2^62 first keeps the conversion to 64 bits defined.
        if not vectors and after:
            rounded = np.rint(np.clip(steps, -_BEYOND_ALL_STEPS, _BEYOND_ALL_STEPS)).astype(
                np.int64
            )
            return np.asarray(rounded + int(out.zero), np.int64)
        if not vectors:
            return round_to_int32(np.minimum(steps + float32(out.zero), MAX_F32_BELOW_2_31))
        rounded = round_to_int32(
            np.where(steps < MAX_F32_BELOW_2_31, steps, MAX_F32_BELOW_2_31)
        ) + int(out.zero)
    return rounded.astype(np.int32).astype(np.int64)


def innermost_run_length(shapes: Sequence[tuple[int, ...]], result: tuple[int, ...]) -> int:
    """Returns the length of the innermost loop: axes along which the operands broadcast alike."""
    rank, length, moves = len(result), 1, None
    full_shapes = [(1,) * (rank - len(s)) + s for s in shapes]
    for axis in range(rank - 1, -1, -1):
        if result[axis] == 1:
            continue
        # TensorIterator joins axes along which every operand either moves or stands still.
        moves_here = tuple(s[axis] > 1 for s in full_shapes)
        if moves is not None and moves_here != moves:
            break
        moves, length = moves_here, length * result[axis]
    return length


def run_vectorized(
    call: MethodCall, arrays: OperandArrays, *, lanes: int, after: bool = False
) -> Integers:
    """Runs an elementwise op between dequantize and quantize, in vectors and a scalar tail.

    `lanes` is the vector length; 0: scalar only. `after`: the scalar loop too adds the zero point
    after rounding.
    """
    out = quantized_result(call)
    if call.op == "add" and (scalar_case := scalar_operand(call, arrays)) is not None:
        quantized = add_scalar(*scalar_case, out)
        return np.maximum(quantized, quantized.dtype.type(out.zero)) if call.tails else quantized
    quant = {s: call.affine(s) for s in arrays if call.types[s].quant is not None}
    require_per_tensor(call.op, *quant.values(), out)

    def parts(*, body: bool) -> NDArray[np.int64]:
        is_fused = body and call.op != "sigmoid"  # whose vectors take the zero point off first too
        floats = {
            s: dequantize_in_kernel(a, quant[s], vectors=is_fused) if s in quant else a
            for s, a in arrays.items()
        }
        result = evaluate(call.op, floats, call.attrs, vectors=body)
        if call.tails:  # a relu, before quantized values turn round
            result = np.where(result < 0, float32(0), result)
        return quantize_in_kernel(result, out, vectors=body, after=after)

    return merge_vector_and_tail([a.shape for a in arrays.values()], lanes, parts, out)


def merge_vector_and_tail(
    shapes: Sequence[tuple[int, ...]],
    lanes: int,
    parts: Callable[..., NDArray[np.int64]],
    out: Affine,
) -> Integers:
    """Takes the vector result for complete vectors of each run, the scalar one for the rest."""
    # The vector loop handles complete vectors of each innermost run; the scalar loop handles what
    # is left over.
    scalar_result = parts(body=False)
    length = innermost_run_length(shapes, scalar_result.shape)
    if not lanes or length < lanes:
        return saturate(scalar_result, out)
    is_in_vector = np.arange(scalar_result.size) % length < length // lanes * lanes
    return saturate(
        np.where(is_in_vector.reshape(scalar_result.shape), parts(body=True), scalar_result), out
    )


def scalar_operand(
    call: MethodCall, arrays: OperandArrays
) -> tuple[Integers, Affine, float] | None:
    """Returns the quantized operand, its type and the scalar one; None if both are quantized.

    Raises OpError for a float tensor, for which torch has no kernel.
    """
    float_slots = [s for s in ("a", "b") if call.types[s].quant is None]
    if not float_slots:
        return None
    quantized_slot = "b" if float_slots == ["a"] else "a"
    if len(float_slots) > 1 or arrays[float_slots[0]].ndim:
        raise OpError(
            f"{call.op}: {float_slots[0]} is a float tensor; next to a quantized one its kernel "
            "takes a single number"
        )
    mapping = call.affine(quantized_slot)
    require_per_tensor(call.op, mapping)
    return arrays[quantized_slot], mapping, float(arrays[float_slots[0]])


def add_scalar(quantized: Integers, mapping: Affine, number: float, out: Affine) -> Integers:
    """Predicts torch's add_scalar: adds the number rounded to steps, then requantizes."""
    with np.errstate(all="ignore"):
        steps = (
            quantized.astype(np.int64)
            - int(mapping.zero)
            + int(np.rint(number / float(mapping.scale)))
        )
        factor = float32(mapping.scale) * (float32(1) / float32(out.scale))
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
