"""Ranges to scales and zero points: the `choose` block executed, and the rules known by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import ProfileError
from qir.ir.dtype import DType
from qir.numerics.fields import Choose, levels_of
from qir.numerics.rounding import ROUNDINGS

Reals = NDArray[np.floating]
Numbers = tuple[NDArray[np.floating], NDArray[np.int64]]

ONEDNN = Choose(levels=(("i8", 127.0),))
"""TensorFlow, IPEX and MXNet, int8: 2 * max(|min|, |max|) / (127 + 128 - 1)."""

NAMED: Mapping[str, Choose] = {
    "onednn.i8": ONEDNN,
    "onednn.u8": Choose(reach="max", levels=(("u8", 255.0),)),
    "fbgemm.symmetric": Choose(levels=(("*", 127.5),)),
    "fbgemm.affine": Choose(zero="qmin-round(min/s)"),
    "onnxruntime.i8": ONEDNN,
    "onnxruntime.u8": Choose(zero="qmin-round(min/s)"),
    "onnxruntime.tool": Choose(
        levels=(("i8", 127.0), ("i16", 32767.0)),
        compute="f64",
        zero="round(qmin-min/s)",
        small="replace_below:tiny:1",
    ),
    "torch.observer": Choose(
        levels=(("*", 127.5),), zero="qmin-round(min/s)", small=f"floor:{2.0**-23!r}"
    ),
}
"""Range rules by name: the formulas of the support matrix, and what today's tools do."""

_REALS: dict[str, np.dtype[np.floating]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
}


def choose(
    low: Reals | float,
    high: Reals | float,
    storage: DType,
    rule: Choose,
    *,
    bounds: tuple[int, int] | None = None,
    symmetric: bool = False,
    grain: str = "tensor",
    profile: str = "",
) -> Numbers:
    """Scale and zero point for a range, or one each for arrays of ranges.

    Raises ProfileError for a range that is not finite or upside down, for a field that cannot be
    executed yet, and for a fixed zero point that is no code.
    """
    _check(rule, profile, symmetric)
    kind = _REALS[rule.compute]
    least, most = np.asarray(low), np.asarray(high)
    if not (np.isfinite(least).all() and np.isfinite(most).all() and np.all(least <= most)):
        raise ProfileError(f"a range {least.min()}..{most.max()} has no scale")
    if rule.range == "widen_to_zero":
        least, most = np.minimum(least, 0), np.maximum(most, 0)
    least, most = least.astype(kind), most.astype(kind)
    if rule.small.startswith("widen_abs:"):
        most = np.maximum(most, least + kind.type(rule.small[10:]))
    codes = bounds or storage.bounds
    fixed = _fixed(rule, storage, codes, profile)
    if symmetric:
        level = levels_of(rule.levels, str(storage), grain) or (codes[1] - codes[0]) / 2
        scale = _floored(_reach(least, most, codes, level, rule), rule)
        middle = _middle(codes, rule) if fixed is None else fixed
        zero = np.broadcast_to(np.int64(middle), scale.shape)
    else:
        scale = _floored((most - least) / kind.type(codes[1] - codes[0]), rule)
        zero = _zero(least, scale, codes, rule) if fixed is None else np.full(scale.shape, fixed)
    return _replaced(scale, zero, rule)


def _check(rule: Choose, profile: str, symmetric: bool) -> None:
    """ProfileError for what is lawful but not executed yet."""
    can: dict[str, tuple[str, ...]] = {
        "keep": ("scale",),
        "store": tuple(_REALS),
        "nudge": ("none",),
        "reduce": ("none",),
        "decimals": ("exact",),
        # The zero point of a symmetric scheme is its middle code, unless it is fixed.
        "zero": ("qmin-round(min/s)", "round(qmin-min/s)"),
    }
    if symmetric:
        can["reach"] = ("absmax", "max", "sides")
    if rule.small.startswith(("widen_rel", "min_of_max")):
        can["small"] = ()
    for field, values in can.items():
        value = getattr(rule, field)
        if value not in values and not (field == "zero" and value.startswith("fixed:")):
            name = profile or "(unnamed)"
            raise ProfileError(f"profile {name}: choose.{field} = {value!r} cannot be executed yet")


def _fixed(rule: Choose, storage: DType, codes: tuple[int, int], profile: str) -> int | None:
    """The zero point that a rule fixes, if it does."""
    if not rule.zero.startswith("fixed:"):
        return None
    zero = float(rule.zero[6:])
    if not (zero.is_integer() and codes[0] <= zero <= codes[1]):
        raise ProfileError(
            f"profile {profile or '(unnamed)'}: choose.zero = {rule.zero!r} is no code of "
            f"{storage}, which are whole numbers {codes[0]}..{codes[1]}"
        )
    return int(zero)


def _reach(least: Reals, most: Reals, codes: tuple[int, int], level: float, rule: Choose) -> Reals:
    kind = least.dtype.type
    match rule.reach:
        case "max":
            return np.asarray(np.maximum(least, most) / kind(level))
        case "sides":
            below = -least / kind(max(-codes[0], 1))
            return np.asarray(np.maximum(below, most / kind(codes[1])))
        case _:
            return np.asarray(np.maximum(np.abs(least), np.abs(most)) / kind(level))


def _middle(codes: tuple[int, int], rule: Choose) -> int:
    """The code of zero in a symmetric scheme: the middle code, or the lowest where all are used."""
    return codes[0] if rule.reach == "max" else round((codes[0] + codes[1]) / 2)


def _zero(least: Reals, scale: Reals, codes: tuple[int, int], rule: Choose) -> NDArray[np.int64]:
    rounding = ROUNDINGS[rule.zero_round]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        steps = np.where(scale > 0, least / scale, 0).astype(scale.dtype)
    if rule.zero == "round(qmin-min/s)":
        zero = rounding(codes[0] - steps)
    else:
        zero = codes[0] - rounding(steps)
    return (np.clip(zero, *codes) if rule.zero_clamp else zero).astype(np.int64)


def _floored(scale: Reals, rule: Choose) -> Reals:
    """A scale that is not below the least one; the zero point is computed from it."""
    word, _, least = rule.small.partition(":")
    return np.asarray(np.maximum(scale, scale.dtype.type(least)) if word == "floor" else scale)


def _replaced(scale: Reals, zero: NDArray[np.int64], rule: Choose) -> Numbers:
    """A scale too small to be stored gives way to another, and the zero point to 0."""
    word, _, rest = rule.small.partition(":")
    store = _REALS[rule.store]
    if word == "replace_below":
        limit, _, value = rest.partition(":")
        least = float(np.finfo(store).tiny) if limit == "tiny" else float(limit)
        tiny = scale < least
        scale = np.where(tiny, float(value), scale)
        zero = np.where(tiny, 0, zero)
    return scale.astype(store), np.array(zero, np.int64)
