"""Ranges to scales and zero points: the `choose` block executed."""

from __future__ import annotations

from typing import cast

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import ProfileError
from qir.ir.dtype import DType
from qir.numerics.fields import Choose, level_of
from qir.numerics.rounding import ROUNDINGS, round_to_float_type
from qir.numerics.scale_rules import ScaleRequest, computed_scales, scale_rule

Floats = NDArray[np.floating]
Numbers = tuple[NDArray[np.floating], NDArray[np.int64]]
"""Scales and zero points; a rule that asks for float ones gives floats for these."""

_FLOAT_DTYPES: dict[str, np.dtype[np.floating]] = {
    "f64": np.dtype(np.float64),
    "f32_f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
}
_F32: np.dtype[np.floating] = np.dtype(np.float32)
_F64: np.dtype[np.floating] = np.dtype(np.float64)
_POWER_OF_TWO_STORES = ("e8m0_floor", "e8m0_up", "pow2")
_SEVEN_BIT_RANGES = {
    ("activations7", True): (-64, 63),
    ("weights7", True): (-64, 64),
    ("activations7", False): (0, 127),
    ("weights7", False): (0, 127),
}
"""The quantized values of signed and unsigned bytes that are held to seven bits.

Without VNNI two products of seven-bit data fit the 16 bits in which kernels add them.
"""


def choose(
    low: Floats | float,
    high: Floats | float,
    storage: DType,
    rule: Choose,
    *,
    bounds: tuple[int, int] | None = None,
    symmetric: bool = False,
    grain: str = "tensor",
    weight: bool = False,
    profile: str = "",
) -> Numbers:
    """Scale and zero point for a range, or one each for arrays of ranges.

    The zero point of a symmetric scheme is its middle quantized value, unless it is fixed or there
    is none; a float one comes as floats. Raises ProfileError for a range that is not finite or
    upside down, for a fixed zero point that is no quantized value, and where only the greatest
    counts, for signed integers and for ranges with nothing above zero. Zero alone has scale 0,
    unless `small` says otherwise.
    """
    kind = _FLOAT_DTYPES.get(rule.compute, _F32)
    least, greatest = np.asarray(low), np.asarray(high)
    if not np.all(is_valid := np.isfinite(least) & np.isfinite(greatest) & (least <= greatest)):
        ends = f"{_first_wrong(least, ~is_valid)}..{_first_wrong(greatest, ~is_valid)}"
        raise ProfileError(f"a range {ends} has no scale")
    integer_bounds = bounds or storage.bounds
    if symmetric and rule.reach == "max" and integer_bounds[0] < 0:
        raise ProfileError(
            f"choose.reach = 'max' counts from zero up; {storage} has values below it: use u8"
        )
    counts_up = rule.reach == "max" or (rule.reach == "sides" and integer_bounds[0] >= 0)
    if symmetric and counts_up and np.any(is_empty := (greatest <= 0) & (least < 0)):
        ends = f"{_first_wrong(least, is_empty)}..{_first_wrong(greatest, is_empty)}"
        raise ProfileError(
            f"a range {ends} holds nothing above zero, and choose.reach = {rule.reach!r} "
            "gives it no scale"
        )
    # A scale rule that is a function replaces all that follows: only `store` still applies to its
    # scale.
    if rule.by != "fields" and scale_rule(rule.by).function is not None:
        request = ScaleRequest(storage, integer_bounds, symmetric)
        scales, zeros = computed_scales(rule.by, least, greatest, request)
        return _round_to_store_type(scales, rule), zeros
    has_custom_bounds = integer_bounds != storage.bounds
    seven_bit = seven_bit_range(rule, storage, integer_bounds, weight)
    integer_bounds = seven_bit or integer_bounds
    fixed = _fixed_zero(rule, storage, integer_bounds, profile)
    least, greatest = _stored_range(least, greatest, rule, kind, symmetric=symmetric, weight=weight)
    # Rounding the zero point would shift the whole range: here an end of the range moves instead.
    if rule.nudge == "range_to_grid" and not symmetric:
        least, greatest = _align_zero_to_grid(least, greatest, integer_bounds)
    # TensorFlow Lite computes the scale in float32, but the zero point from the float64 range.
    low_end, high_end = least, greatest
    if rule.compute == "f32_f64":
        low_end, high_end = least.astype(_F32), greatest.astype(_F32)
    if symmetric:
        level = (
            None if seven_bit else level_of(rule.levels, rule.zero, storage, integer_bounds, grain)
        )
        scale = _scale_before_zero(
            _symmetric_scale(low_end, high_end, integer_bounds, level, rule), rule
        )
        middle = (
            symmetric_zero(integer_bounds, storage, rule, custom=has_custom_bounds)
            if fixed is None
            else fixed
        )
        zero: NDArray[np.generic] = np.broadcast_to(np.int64(middle), scale.shape)
    else:
        width = high_end - low_end
        # The quantization tool of onnxruntime 1.30 subtracts the ends in float32, whatever it
        # divides in.
        if rule.width == "f32":
            width = (high_end.astype(_F32) - low_end.astype(_F32)).astype(width.dtype)
        scale = _scale_before_zero(
            width / low_end.dtype.type(integer_bounds[1] - integer_bounds[0]), rule
        )
        # FBGEMM raises small scales to 6.1e-5 and widens the range with them, before the zero
        # point.
        if rule.small.startswith("amplify_below"):
            least, greatest, scale = _amplify_small_ranges(
                least, greatest, scale, integer_bounds, rule
            )
        zero = np.full(scale.shape, fixed) if fixed is not None else np.zeros(0)
        if fixed is None:
            zero = _affine_zero(least, greatest, scale.astype(least.dtype), integer_bounds, rule)
    return _replace_small_scales(scale, zero, rule)


def declared_ends(
    low: Floats | float,
    high: Floats | float,
    storage: DType,
    rule: Choose,
    *,
    weight: bool = False,
) -> tuple[Floats, Floats]:
    """Returns the range of a symmetric scheme as runtimes that carry ranges declare it, in float32.

    It reaches as far to either side as the data do, widened as `choose` widens them; unsigned
    values begin at 0.
    """
    kind = _FLOAT_DTYPES.get(rule.compute, _F32)
    ends = np.asarray(low), np.asarray(high)
    least, greatest = _stored_range(*ends, rule, kind, symmetric=True, weight=weight)
    reach = np.maximum(np.abs(least), np.abs(greatest)).astype(_F32)
    return (np.zeros_like(reach) if storage.bounds[0] >= 0 else -reach), reach


def seven_bit_range(
    rule: Choose, storage: DType, integer_bounds: tuple[int, int], weight: bool
) -> tuple[int, int] | None:
    """Returns the quantized values of a tensor that is held to seven bits, which fewer are already;
    None for others.

    Activations have half of each end, rounded down, as torch halves them; weights are cut.
    """
    if storage.bits != 8 or storage.is_float or (rule.reduce == "weights7") != weight:
        return None
    seven_bit = _SEVEN_BIT_RANGES.get((rule.reduce, storage.bounds[0] < 0))
    if seven_bit is None:
        return None
    clipped = max(seven_bit[0], integer_bounds[0]), min(seven_bit[1], integer_bounds[1])
    return (
        clipped
        if weight or clipped == integer_bounds
        else (integer_bounds[0] // 2, integer_bounds[1] // 2)
    )


def _stored_range(
    least: Floats,
    greatest: Floats,
    rule: Choose,
    kind: np.dtype[np.floating],
    *,
    symmetric: bool,
    weight: bool = False,
) -> tuple[Floats, Floats]:
    """Returns the range that is stored: written with few digits, with zero in it, not too narrow.

    Kernels that quantize data widen narrow ranges; weights are quantized before, and only a range
    of zeros alone is widened.
    """
    if rule.decimals != "exact":
        least, greatest = (_after_text_format(end, int(rule.decimals)) for end in (least, greatest))
    if rule.range == "widen_to_zero":
        least, greatest = np.minimum(least, 0), np.maximum(greatest, 0)
    least, greatest = least.astype(kind), greatest.astype(kind)
    # `small` is a word and its numbers, such as `widen_abs:1e-6`.
    word, _, share = rule.small.partition(":")
    is_narrow = (least == greatest) | (not weight)
    if word == "widen_abs":
        greatest = np.where(is_narrow, np.maximum(greatest, least + kind.type(share)), greatest)
    if word == "widen_rel":
        size = np.maximum(np.maximum(np.abs(least), np.abs(greatest)), kind.type(1))
        greatest = np.where(
            is_narrow, np.maximum(greatest, least + kind.type(share) * size), greatest
        )
    # TensorFlow Lite's quantizer moves both ends outward, so that a constant gets a scale too.
    if word == "open_below":
        limit, _, step = share.partition(":")
        if symmetric:
            half = kind.type(limit) / kind.type(2)
            return np.minimum(least, -half), np.maximum(greatest, half)
        is_narrow, step_out = greatest - least < kind.type(limit), kind.type(step)
        least, greatest = (
            np.where(is_narrow, least - step_out, least),
            np.where(is_narrow, greatest + step_out, greatest),
        )
    return np.asarray(least), np.asarray(greatest)


def _amplify_small_ranges(
    least: Floats, greatest: Floats, scale: Floats, integer_bounds: tuple[int, int], rule: Choose
) -> tuple[Floats, Floats, Floats]:
    """Ranges whose scale is too small, stretched until it is not; ends are float32."""
    limit, _, replacement = rule.small.partition(":")[2].partition(":")
    bound, span = _F32.type(limit), _F32.type(integer_bounds[1] - integer_bounds[0])
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        # A scale whose reciprocal is infinite is replaced, not amplified: kernels multiply by the
        # reciprocal.
        is_lost = np.isinf(_F32.type(1) / scale.astype(_F32))
        is_small = ~is_lost & (scale < bound)
        factor = bound / scale.astype(_F32)
        low, high = least.astype(_F32) * factor, greatest.astype(_F32) * factor
    low, high = (
        np.where(greatest == 0, -bound * span, low),
        np.where(least == 0, bound * span, high),
    )
    low, high = np.where(least == 0, 0, low), np.where(greatest == 0, 0, high)
    least = np.where(is_small, low, least).astype(least.dtype)
    greatest = np.where(is_small, high, greatest).astype(greatest.dtype)
    scale = np.where(is_lost, float(replacement), np.where(is_small, bound, scale)).astype(
        scale.dtype
    )
    return least, greatest, scale


def _after_text_format(end: Floats, digits: int) -> Floats:
    """Returns a number as it is read back after `%.nf`."""
    return np.char.mod(f"%.{digits}f", end.astype(np.float64)).astype(np.float64)


def _align_zero_to_grid(
    least: Floats, greatest: Floats, integer_bounds: tuple[int, int]
) -> tuple[Floats, Floats]:
    """The range with one end moved out so that zero is an integer: the wider one of the two."""
    kind = least.dtype.type
    steps = kind(integer_bounds[1] - integer_bounds[0])
    with np.errstate(divide="ignore", invalid="ignore"):
        zero = np.rint(-least * steps / (greatest - least))
        # Moving one end so that zero falls on the grid: the end that moves less wins.
        lower = np.where(zero < steps, zero / (zero - steps) * greatest, least)
        upper = np.where(zero > 0, (zero - steps) / zero * least, greatest)
    moves_low = (greatest - lower) > (upper - least)
    is_point = greatest == least
    low = np.where(moves_low & ~is_point, lower, least).astype(least.dtype)
    return low, np.where(moves_low | is_point, greatest, upper).astype(least.dtype)


def _fixed_zero(
    rule: Choose, storage: DType, integer_bounds: tuple[int, int], profile: str
) -> int | None:
    """Returns the zero point that a rule fixes, if it does."""
    if not rule.zero.startswith("fixed:"):
        return None
    zero = float(rule.zero[6:])
    if not (zero.is_integer() and integer_bounds[0] <= zero <= integer_bounds[1]):
        raise ProfileError(
            f"profile {profile or '(unnamed)'}: choose.zero = {rule.zero!r} is not a value of "
            f"{storage}, whose values are integers {integer_bounds[0]}..{integer_bounds[1]}"
        )
    return int(zero)


def _first_wrong(ends: NDArray[np.generic], is_wrong: NDArray[np.bool_]) -> np.generic:
    """The end of the first range that is at fault."""
    end: np.generic = np.broadcast_to(ends, is_wrong.shape)[is_wrong][0]
    return end


def _symmetric_scale(
    least: Floats,
    greatest: Floats,
    integer_bounds: tuple[int, int],
    named: float | None,
    rule: Choose,
) -> Floats:
    """Returns the scale of a symmetric scheme."""
    kind = least.dtype.type
    span = integer_bounds[1] - integer_bounds[0]
    level = kind(named or (span if rule.reach == "span" else span / 2))
    match rule.reach:
        case "max":
            reach = np.maximum(least, greatest)
        case "span":
            reach = greatest - least
        case "sides":
            below = -least / kind(-integer_bounds[0]) if integer_bounds[0] < 0 else kind(0)
            return np.asarray(np.maximum(below, greatest / kind(integer_bounds[1])))
        case _:
            reach = np.maximum(np.abs(least), np.abs(greatest))
    return np.asarray(reach / level)


def _scale_before_zero(scale: Floats, rule: Choose) -> Floats:
    """Returns the scale from which the zero point is computed."""
    word, _, least = rule.small.partition(":")
    if word == "floor":
        scale = np.asarray(np.maximum(scale, scale.dtype.type(least)))
    if word == "min_of_max" and scale.size:
        scale = np.asarray(np.maximum(scale, scale.max() * scale.dtype.type(least)))
    if rule.keep == "gain":
        with np.errstate(divide="ignore"):
            # Kernels that carry ranges store the gain; readers see one over the stored number.
            gain = _round_to_store_type(np.asarray(scale.dtype.type(1) / scale), rule)
            scale = np.asarray(scale.dtype.type(1) / gain.astype(scale.dtype))
    if rule.store in _POWER_OF_TWO_STORES:
        return _power_of_two(scale, rule.store)
    return scale


def _power_of_two(scale: Floats, store: str) -> Floats:
    """Returns a power of two instead of a scale."""
    part, exponent = np.frexp(scale.astype(np.float64))
    # The significand, 0.5 up to 1, from which the next power is taken: always, never, or at
    # sqrt(1/2).
    half = {"e8m0_floor": 2.0, "e8m0_up": np.nextafter(0.5, 1)}.get(store, np.sqrt(0.5))
    power = exponent - (part < half)
    if store == "pow2":
        # `pow2` keeps 0 for a range of zeros; e8m0 has no zero, and stores its least power instead.
        return np.where(scale > 0, np.ldexp(1.0, power), 0.0).astype(scale.dtype)
    clamped = np.clip(np.where(scale > 0, power, -127), -127, 127)
    return np.asarray(np.ldexp(1.0, clamped), scale.dtype)


def _round_to_store_type(scale: Floats, rule: Choose) -> Floats:
    """A number in the type it is stored in; bf16 and powers of two are held by float32."""
    with np.errstate(over="ignore", under="ignore"):
        if rule.store == "bf16":
            return np.asarray(
                round_to_float_type(scale, np.dtype(ml_dtypes.bfloat16)).astype(np.float32)
            )
        return scale.astype(_FLOAT_DTYPES.get(rule.store, _F32))


def symmetric_zero(
    integer_bounds: tuple[int, int], storage: DType, rule: Choose, *, custom: bool
) -> int:
    """Returns the quantized value of zero in a symmetric scheme: the lowest where all count from
    it, else the middle.

    Of quantized values with bounds of their own (`custom`) a rule that rounds before it subtracts,
    which are torch's, has 0 of signed ones and the lower of two middle ones of others.
    """
    if rule.zero == "none":
        return 0
    if rule.reach == "max":
        return integer_bounds[0]
    if custom and rule.zero == "qmin-round(min/s)":
        if storage.bounds[0] >= 0:
            return (integer_bounds[0] + integer_bounds[1]) // 2
        if integer_bounds[0] <= 0 <= integer_bounds[1]:
            return 0
    return round((integer_bounds[0] + integer_bounds[1]) / 2)


def _affine_zero(
    least: Floats, greatest: Floats, scale: Floats, integer_bounds: tuple[int, int], rule: Choose
) -> NDArray[np.generic]:
    if rule.zero == "none":
        return np.zeros(scale.shape, np.int64)
    kind = _F32 if rule.compute == "f32_f64" else scale.dtype

    def rounding(exact: Floats) -> Floats:
        return ROUNDINGS[rule.zero_round](exact.astype(kind))

    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # A scale of 0 stands for zeros alone, whose zero point needs no division.
        steps = np.where(scale > 0, least / scale, 0).astype(scale.dtype)
        above = np.where(scale > 0, greatest / scale, 0).astype(scale.dtype)
    match rule.zero:
        case "real":
            zero = integer_bounds[0] - steps
            return np.asarray(np.clip(zero, *integer_bounds) if rule.zero_clamp else zero)
        case "round(qmin-min/s)":
            zero = rounding(integer_bounds[0] - steps)
        case "best_end":
            # FBGEMM's ChooseQuantizationParams: the end whose quantized value and steps are smaller
            # loses less.
            is_low_end = abs(integer_bounds[0]) + np.abs(steps) < abs(integer_bounds[1]) + np.abs(
                above
            )
            exact = np.where(is_low_end, integer_bounds[0] - steps, integer_bounds[1] - above)
            zero = rounding(exact)
        case _:
            zero = integer_bounds[0] - rounding(steps)
    return (np.clip(zero, *integer_bounds) if rule.zero_clamp else zero).astype(np.int64)


def _replace_small_scales(scale: Floats, zero: NDArray[np.generic], rule: Choose) -> Numbers:
    """A scale too small to be stored gives way to another, and the zero point to 0."""
    # This is the last step, for the limit may be that of the type in which the scale is stored.
    word, _, arguments = rule.small.partition(":")
    if word == "replace_below":
        limit, _, value = arguments.partition(":")
        store = np.finfo(_FLOAT_DTYPES.get(rule.store, _F32))
        least = float(store.tiny) if limit == "tiny" else float(limit)
        is_tiny = scale < least
        scale = np.where(is_tiny, float(value), scale)
        zero = np.where(is_tiny, 0, zero)
    if zero.dtype.kind == "f":
        return _round_to_store_type(scale, rule), cast(
            "NDArray[np.int64]", _round_to_store_type(zero.astype(_F64), rule)
        )
    return _round_to_store_type(scale, rule), np.array(zero, np.int64)
