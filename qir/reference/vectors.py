"""Ops on quantized values, computed as SIMD vectors and as the single elements that are left over.

Vectors dequantize by a fused multiply-add and add the zero point after rounding; single elements
take the zero point off first and add it before rounding. Every step rounds to float32. Elements are
in memory as they do in the array.
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
    Codes,
    F,
    MethodCall,
    Real32,
    coded,
    one_scale,
    stored,
    to_whole,
)
from qir.reference.vector_functions import made

Arrays = Mapping[str, Codes]


MOST = F(2.0**31 - 128)
"""The greatest float32 below 2^31, at which vectors clip before they round."""


_FAR = F(2.0**62)
"""Steps that are beyond every quantized value, and that 64 bits hold."""


def reals_of_codes(codes: Codes, of: Affine, *, vectors: bool) -> Real32:
    """Returns what quantized values mean, as vectors or as single elements dequantize."""
    if vectors:
        return fma(F(of.scale), codes.astype(F), F(of.scale) * -F(of.zero))
    return np.asarray((codes.astype(np.int32) - int(of.zero)).astype(F) * F(of.scale), F)


def codes_of_reals(
    reals: Real32, out: Affine, *, vectors: bool, after: bool = False
) -> NDArray[np.int64]:
    """Quantized values that are not yet cut to their bounds, as vectors or as single elements
    quantize.

    `after`: single elements add the zero point after rounding, to numbers of 64 bits.
    """
    with np.errstate(all="ignore"):
        steps = reals * (F(1) / F(out.scale))
        if not vectors and after:
            whole = np.rint(np.clip(steps, -_FAR, _FAR)).astype(np.int64)
            return np.asarray(whole + int(out.zero), np.int64)
        if not vectors:
            return to_whole(np.minimum(steps + F(out.zero), MOST))
        whole = to_whole(np.where(steps < MOST, steps, MOST)) + int(out.zero)
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


def vectors(call: MethodCall, arrays: Arrays, *, lanes: int, after: bool = False) -> Codes:
    """Returns an op on each element by itself, between dequantize and quantize, in runs of vectors.

    `lanes` quantized values make a vector; 0: there are none. `after`: single elements too add the
    zero point after rounding.
    """
    out = coded(call)
    if call.op == "add" and (found := beside_a_number(call, arrays)) is not None:
        codes = moved_by(*found, out)
        return np.maximum(codes, codes.dtype.type(out.zero)) if call.tails else codes
    quant = {s: call.affine(s) for s in arrays if call.types[s].quant is not None}
    one_scale(call.op, *quant.values(), out)

    def parts(*, body: bool) -> NDArray[np.int64]:
        fused = body and call.op != "sigmoid"  # whose vectors take the zero point off first too
        reals = {
            s: reals_of_codes(a, quant[s], vectors=fused) if s in quant else a
            for s, a in arrays.items()
        }
        found = made(call.op, reals, call.attrs, vectors=body)
        if call.tails:  # a relu, before quantized values turn round
            found = np.where(found < 0, F(0), found)
        return codes_of_reals(found, out, vectors=body, after=after)

    return in_runs([a.shape for a in arrays.values()], lanes, parts, out)


def in_runs(
    shapes: Sequence[tuple[int, ...]],
    lanes: int,
    parts: Callable[..., NDArray[np.int64]],
    out: Affine,
) -> Codes:
    """Quantized values made by vectors as far as runs have room for them, and by single elements
    beyond."""
    tail = parts(body=False)
    length = runs(shapes, tail.shape)
    if not lanes or length < lanes:
        return stored(tail, out)
    places = np.arange(tail.size) % length < length // lanes * lanes
    return stored(np.where(places.reshape(tail.shape), parts(body=True), tail), out)


def beside_a_number(call: MethodCall, arrays: Arrays) -> tuple[Codes, Affine, float] | None:
    """Quantized values, their map and the float value next to them; None where both operands are
    quantized.

    OpError for floats that are more than one number, for which torch has no kernel.
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
    one_scale(call.op, of)
    return arrays[coded], of, float(arrays[real[0]])


def moved_by(codes: Codes, of: Affine, number: float, out: Affine) -> Codes:
    """add_scalar: the number in whole steps is added, and the sum brought to the result's scale."""
    with np.errstate(all="ignore"):
        steps = codes.astype(np.int64) - int(of.zero) + int(np.rint(number / float(of.scale)))
        factor = F(of.scale) * (F(1) / F(out.scale))
        return stored(to_whole(steps.astype(F) * factor) + int(out.zero), out)


def placed_steps(steps: Real32, out: Affine, *, vectors: bool) -> NDArray[np.int64]:
    """Whole steps and the zero point, in 32 bits as vectors add them, in 64 as single elements do:
    what does not fit is the least of them, and turns round with a zero point below 0."""
    if vectors:
        return (to_whole(steps) + int(out.zero)).astype(np.int32).astype(np.int64)
    fits = np.abs(steps) < F(2.0**63)
    whole = np.rint(np.where(fits, steps, 0)).astype(np.int64)
    return np.where(fits, whole, np.iinfo(np.int64).min) + np.int64(out.zero)


METHODS: Mapping[str, PluginMethod] = {
    "vectors": PluginMethod(
        vectors, (), params={"lanes": Param(needed=True), "after": FLAG}, tails=True
    ),
}
"""The methods of this module, by the name that profiles use."""
