"""The fields of a numerics rule and the values each may have: one typed table.

A field's values are those of its `Literal`, or texts that fit its `Shape`. What is meant by each
is said where it is executed; `docs/reference/profiles.md` lists them for people.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, fields
from functools import cache
from typing import Annotated, Literal, TypeAlias, get_args, get_origin, get_type_hints

from qir import registry
from qir.ir.dtype import DType
from qir.records import KeptHash, record


@record
class StageWords:
    """The words of a field of `stage`, each the name of a function: entry points of `qir.stages`
    have them as `FIELD.WORD`."""

    field: str

    def words(self) -> tuple[str, ...]:
        """Returns all that a profile may say."""
        prefix = f"{self.field}."
        rows = registry.entries("qir.stages", object)
        names = [
            name for name, row in rows.items() if getattr(row, "stage_field", "") == self.field
        ]
        return tuple(name.removeprefix(prefix) for name in names if name.startswith(prefix))

    def fits(self, text: str) -> bool:
        """Returns whether a profile may say that."""
        row = registry.entry("qir.stages", object, f"{self.field}.{text}")
        return getattr(row, "stage_field", "") == self.field


@record
class ScaleRuleName:
    """The name of a scale rule, found by the entry points of `qir.ranges`, or `fields`."""

    description: str = "fields, or the name of a scale rule"

    def fits(self, text: str) -> bool:
        """Returns whether there is such a rule."""
        row = registry.entry("qir.ranges", object, text)
        return text == "fields" or hasattr(row, "choose")  # a ScaleRule


@record
class Shape:
    """Texts that a field may hold next to plain words: a pattern, and how to say it."""

    pattern: str
    description: str

    def fits(self, text: str) -> bool:
        """Returns whether a text is one of them."""
        return re.fullmatch(self.pattern, text) is not None


_REAL = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"

_SIZE = r"(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_RATE = r"0?\.\d+|0(?:\.\d*)?|1(?:\.0*)?|\d(?:\.\d*)?[eE]-\d+"
_NONZERO = r"(?=[\d.]*[1-9])"
"""What is before a number that is not zero."""

Levels: TypeAlias = tuple[tuple[str, float], ...]
"""Real numbers by storage type, or by `storage/grain`, which is more exact; `*` is any."""

Zero = Annotated[
    str,
    Shape(
        rf"none|fixed:{_REAL}|qmin-round\(min/s\)|round\(qmin-min/s\)|best_end|real",
        "none, fixed:N, qmin-round(min/s), round(qmin-min/s), best_end, real",
    ),
]
Small = Annotated[
    str,
    Shape(
        rf"none|floor:{_SIZE}|replace_below:(?:tiny|{_SIZE}):{_SIZE}"
        rf"|widen_abs:{_SIZE}|widen_rel:{_SIZE}|min_of_max:{_SIZE}"
        rf"|open_below:{_SIZE}:{_SIZE}|amplify_below:{_SIZE}:{_SIZE}",
        "none, floor:E, replace_below:T:V, widen_abs:R, widen_rel:R, min_of_max:R, "
        "open_below:T:R, amplify_below:T:V",
    ),
]
Decimals = Annotated[str, Shape(r"exact|\d+", "exact, or a number of digits")]
Overflow = Annotated[
    str,
    Shape(r"wrap|clip:(?:[2-9]|[1-5]\d|6[0-4])|shrink_weights", "wrap, clip:BITS, shrink_weights"),
]
Tolerance = Annotated[
    str, Shape(rf"exact|ulp:\d+|relative:{_REAL}|unknown", "exact, ulp:N, relative:R, unknown")
]
Claim = Annotated[
    str,
    Shape(
        rf"exact|within:[1-9]\d*:{_NONZERO}(?:{_RATE})|close:{_NONZERO}{_SIZE}|unknown",
        "exact, within:N:RATE, close:R, unknown, of numbers above zero",
    ),
]


@record
class Choose:
    """How a range becomes a scale and a zero point."""

    range: Literal["widen_to_zero", "as_is"] = "widen_to_zero"
    """Whether a range that leaves zero out is stretched to it."""
    reach: Literal["absmax", "max", "span", "sides"] = "absmax"
    """For symmetric schemes; an affine one reaches from low to high. `sides`: each end over its
    own end of the quantized values, the wider one counts."""
    levels: Levels = ()
    """For symmetric schemes; none named: half the quantized values' span. An affine one has all of
    it. Bounds of their own that are not -N..N of all N have another: see `level_of`."""
    keep: Literal["scale", "gain"] = "scale"
    """`gain`: integers a float unit are computed and stored, and the scale is 1 over them."""
    compute: Literal["f32", "f64", "f32_f64"] = "f32"
    """What ranges, scales and zero points are computed in, before they are stored; `f32_f64`: the
    scale in the first; the zero point from it in the second, and made the first to be rounded."""
    width: Literal["computed", "f32"] = "computed"
    """The type in which the ends of an affine range are subtracted: float32, or as all else."""
    store: Literal["f32", "f64", "f16", "bf16", "e8m0_floor", "e8m0_up", "pow2"] = "f32"
    """What the scale is rounded to once the zero point is known; of powers of two (`e8m0` the one
    below or above, 2^-127 at least; `pow2` the nearer one by its exponent) it is before."""
    zero: Zero = "qmin-round(min/s)"
    """`best_end`: from the end of the range whose quantized value and steps are the smaller;
    `real`: qmin - min/s as it is; `none`: 0."""
    zero_round: Literal["even", "away"] = "even"
    """Of two quantized values as near, the even one or the one away from zero."""
    zero_clamp: bool = True
    """Whether a zero point beyond the quantized values becomes the nearest one."""
    small: Small = "none"
    """Scales of at least E; of V where they are below T; ranges of at least R, or R * max(1, |min|,
    |max|); scales of at least R times the largest of the others; both ends of a range below T moved
    out by R, where one about zero becomes T wide; a range whose scale is below T amplified to it,
    and V where 1 / scale overflows."""
    nudge: Literal["none", "range_to_grid"] = "none"
    """`range_to_grid`: one end of an affine range moves out until zero is a quantized value."""
    reduce: Literal["none", "activations7", "weights7"] = "none"
    """Bytes of so many bits: 0..127, -64..63, and for weights -64..64; levels are half the span.
    Fewer quantized values stay; other bounds of activations are halved, rounded down; of weights,
    cut."""
    decimals: Decimals = "exact"
    """How many digits after the point a range is written with before it is used."""
    by: Annotated[str, ScaleRuleName()] = "fields"
    """`fields`: as the other fields say. The name of a scale rule that is made of fields stands for
    these, and fields next to it change them; one that is a function computes scale and zero point
    alone, and `store` rounds the scale."""


@record
class Quantize:
    """How float values are quantized."""

    by: Literal["divide", "reciprocal", "gain", "span", "low_end"] = "divide"
    """x / s; x * (1 / s); x * (level / R), R what the declared range reaches as `choose.reach`
    says, else 1 / s; (x - min) * (level / (max - min)), counted from the lowest quantized value;
    (x - low) / s, low what the lowest quantized value means, less the steps from there to the zero
    point."""
    compute: Literal["f32", "f64_reciprocal", "f64", "f16"] = "f32"
    """What each step rounds to; `f64_reciprocal`: the factor is made in f64, then all is f32."""
    levels: Levels = ()
    """Of gains and spans, where it is not that of readers, which the type or `choose` has."""
    zero: Literal["after", "before", "fused", "none", "pair", "pair_once"] = "after"
    """When the zero point (of a span the lowest quantized value) is added; `fused`: before, by a
    multiply-add; `pair`: quantized values are the lowest one and round(x * g) - round(min * g);
    `pair_once`: the lowest one and round(x * g - min * g)."""
    round: Literal[
        "even",
        "away",
        "half_up",
        "half_added",
        "half_down",
        "up",
        "down",
        "zero",
        "floor",
        "ceil",
    ] = "even"
    """To nearest with ties even, away from zero, up or down (`half_added`: down, after a half was
    added and that sum rounded); or away from zero, towards it (`down` and `zero`), down or up."""
    clip: Literal["codes", "reals_first", "range_first"] = "codes"
    """Quantized values last; what is rounded; or x to the range: the declared one, else what the
    ends of the quantized values mean, and by a gain always these."""
    bounds: Literal["type", "storage"] = "type"
    """Where quantized values end: at the bounds the type names, or at those of its storage."""
    sum: Literal["whole", "real"] = "whole"
    """What a zero point is added to after rounding: whole numbers; or float values of the type that
    is computed in, which round again."""
    far: Literal["end", "low_32", "low_64", "wrap_32", "clip_32"] = "end"
    """What float values above all quantized values become: the highest; or, of what 32 or 64 bits
    do not hold, the lowest, as processors convert it; or, on both sides, the lowest of 32 bits and
    the zero point, a sum that wraps. `clip_32`: the nearest float32 that 32 bits hold, and the zero
    point, a sum that wraps."""
    nan: Literal["zero", "zero_code", "low", "high", "far", "unspecified"] = "unspecified"
    """What a NaN becomes: the zero point, quantized value 0, an end of the quantized values, what
    float values become that 32 bits do not hold (where sums wrap; of `clip_32` those above), or
    nothing: it is refused."""


@record
class Dequantize:
    """How quantized values are dequantized."""

    by: Literal["(q-z)*s", "q*s-z*s", "q*s+plus", "q/gain"] = "(q-z)*s"
    """Each step rounds; plus is one number, with -z*s in it; the gain is that of readers."""
    codes: Literal["whole", "real"] = "whole"
    """Whether the difference q - z is rounded (`whole`), or q is rounded first (`real`), which
    differs for wide integers."""
    compute: Literal["f32", "f64"] = "f32"
    """What each step rounds to; the result is rounded once to what the type expresses."""


@record
class Acc:
    """How products are summed."""

    type: Literal["i32", "i64", "f32"] = "i32"
    """What holds a sum; `f32` is the exact sum rounded once."""
    overflow: Literal["wrap", "saturate"] = "wrap"
    """What becomes of a sum that 32 bits do not hold: of the whole sum, and again with a bias."""
    pairs: Literal["exact", "saturate_i16", "halve_signed", "saturate_rows", "saturate_taps"] = (
        "exact"
    )
    """`saturate_i16`: 8-bit data, i8 moved up by 128, times i8 weights: terms 2i and 2i + 1, of
    the channels of one tap, are added in 16 bits that saturate; zero points are taken off after.
    `halve_signed`: so too, but a convolution of i8 data halves its weights, to even, so that no
    pair saturates. `saturate_rows`: terms 2i and 2i + 1 of a window, which has the channels of one
    tap after those of another. `saturate_taps`: terms 2i and 2i + 1 of a row of weights, channel
    after channel and tap after tap; so too the quantized values of a window, times a zero point of
    the weights."""
    pad: Literal["zero_point", "zero_code", "left_out"] = "zero_point"
    """What padding counts as: the zero point, or quantized value 0. `left_out`: the zero point, but
    where pairs of terms saturate it is no part of them, for its taps are not summed."""


@record
class Bias:
    """Where a bias comes in, and as what."""

    domain: Literal["real_after", "given_acc", "rounded_acc", "rescaled_acc"] = "given_acc"
    """`real_after`: a float one, or what quantized values with a scale mean, is added to floats.
    Else one is added to the sums in their unit: `given_acc` as it is given, `rounded_acc` rounded
    to it from a float one, `rescaled_acc` from quantized values that have a scale of their own.
    Whole numbers without a scale are in that unit."""
    by: Literal["add", "fma"] = "add"
    """`fma`: sum * unit + bias is rounded once, where a float bias meets float values; where it
    meets a float sum in its unit and is not divided by it, bias * (1 / unit) + sum is."""
    unit: Literal["divide", "reciprocal"] = "divide"
    """How a float bias comes in the unit of the sums: over x*w, or times 1 / (x*w)."""
    round: Literal["even", "away"] = "even"
    """How a float bias, or one that is rescaled, becomes whole."""
    compute: Literal["f32", "f64"] = "f64"
    """What it is divided or multiplied in; x*w is a float32 product."""
    plus: Literal["reals", "ends"] = "reals"
    """What the offset of a type of data becomes: `reals` are multiplied; or sums of weights times
    it, made of the ends of the declared range, are added to the bias: `ends`."""
    overflow: Overflow = "wrap"
    """What 32 bits do not hold wraps; or ends at so many bits; or weights get a smaller gain, by
    which a bias takes at most half of 32 bits."""


@record
class WeightField:
    """What a kernel is given for weights: integers, or float values that it quantizes itself."""

    given: Literal["codes", "float"] = "codes"
    """`float`: float values become i8 values by the rule's own `choose` and `quantize`; about zero
    where `choose` has no zero point or a fixed one."""
    grain: Literal["tensor", "channel"] = "tensor"
    """Whether these have one scale, or one an output channel."""


@record
class Params:
    """What packing does to scales."""

    round: Literal["none", "f16"] = "none"
    """`f16`: scales and offsets are rounded to half precision before they are used."""


@record
class Requant:
    """How a sum becomes a quantized value of the result."""

    multiplier: Literal["f32", "f64", "q31", "q15", "exact", "divide"] = "f32"
    """What sums are multiplied with: one float; `q31`, `q15` so many bits and a shift, for whole
    sums; `exact` the quotient of the scales without rounding; `divide` sums are dequantized first
    (x*w), which are then brought to the result's scale as the order says."""
    order: Literal[
        "(x*w)/y", "x*(w/y)", "(x*w)*(1/y)", "x*w*(1/y)", "x*w/y", "(x*w)*gy", "gy/gx/gw"
    ] = "(x*w)/y"
    """How scales, or gains (quantized values a float unit), are multiplied, each step rounded;
    `x*w*(1/y)`: the sum times one after the other; `x*w/y`: the sum times the first two, divided by
    the third; `(x*w)*gy`: float values times the result's gain."""
    scales: Literal["given", "x_inverted", "inverted"] = "given"
    """`x_inverted`: the scale of the data is kept as 1/s, and inverted again, and so is that of a
    summand; `inverted`: those of the weights too, and of a result that `x*w/y` divides by."""
    compute: Literal["f32", "f64"] = "f32"
    """What the multiplier is made in, and float values where there are any."""
    unit: Literal["plain", "f32"] = "plain"
    """`f32`: the product of the scales of data and weights is a float32, whatever comes after."""
    input: Literal["acc_plus_bias", "acc_then_bias"] = "acc_plus_bias"
    """`acc_then_bias`: the sum becomes a float, then the bias is added in its unit: bias / (x*w)
    where it is float, else its whole number."""
    round: Literal["even", "away", "half_up", "double", "double_up"] = "even"
    """Ties; `double`: gemmlowp's high half of a product, then a shift, halves away; `double_up`:
    halves up, as in vectors."""
    zero: Literal["after", "before", "none"] = "after"
    """When the result's zero point is added, of which rounding depends at ties."""
    clip: Literal["codes", "reals", "codes_32"] = "codes"
    """What is cut at the ends of the quantized values: these, or float values before they are
    rounded; `codes_32`: steps first at 32 bits, in which the sum with the zero point wraps."""
    plus: Literal["quantize", "ends"] = "quantize"
    """How float values are quantized of a type with an offset: as `quantize` says; or `ends`: times
    the gain of the declared range, less its low end in steps, in one rounding."""
    wide: Literal["plain", "rescaled"] = "plain"
    """`rescaled`: integers of 32 bits from weights of many scales are sum * (w / the largest w)."""


@record
class StageField:
    """What a kernel's later stages work on. A word is the name of a function (`qir.stages`), but of
    `other`, which says whose function computes an activation."""

    relu: Annotated[str, StageWords("relu")] = "real"
    """Of float values, or of quantized values at the zero point: the same, for rounding is
    monotone. `apart`: sums are dequantized first where an activation follows, which are brought to
    the result's scale after it."""
    sum: Annotated[str, StageWords("sum")] = "real"
    """`real`: what the summand's quantized values mean is added to floats, `fma` with one rounding;
    `ratio`: its quantized values times the ratio of its scale to the result's are added in units of
    the result, in one rounding where that is float32."""
    sum_reads: Annotated[str, StageWords("sum_reads")] = "as_is"
    """`i8_saturated`: of summand and result, where one is i8, the unsigned one ends at 127: both
    are in one i8 buffer. `summand_type`: the buffer is of the summand's type, u8 or i8: the sum is
    cut to its quantized values, and their bytes are the result's."""
    other: Literal["float", "table", "method"] = "float"
    """Other activations: in float; on quantized values, of which each has its entry; or as the op's
    own rule says."""
    ends: Annotated[str, StageWords("ends")] = "quantize"
    """How the bounds of a clamping activation are quantized. `quantize`: by the rule for floats.
    Otherwise they are divided by the scale in float32: `away` rounds half away from zero, then adds
    the zero point; `even` adds it first, then rounds to nearest even."""
    curves: Annotated[str, StageWords("curves")] = "rounded"
    """`steps`: silu and mish are computed as oneDNN's vectors do, in float32 step by step; else
    each is rounded once."""


@record
class MethodField:
    """The name of a function of the reference, and its parameters."""

    name: str
    params: Mapping[str, str | int | float | bool] = field(default_factory=dict)

    def __hash__(self) -> int:
        return hash((self.name, tuple(sorted(self.params.items()))))

    def __str__(self) -> str:
        inside = ", ".join(f"{k}={v!r}" for k, v in self.params.items())
        return f"{self.name}({inside})" if inside else self.name


@record
class Rule(KeptHash):
    """Everything that decides the numbers of one op, under one profile."""

    profile: str = ""
    choose: Choose = Choose()
    quantize: Quantize = Quantize()
    dequantize: Dequantize = Dequantize()
    acc: Acc = Acc()
    bias: Bias = Bias()
    weights: WeightField = WeightField()
    params: Params = Params()
    requant: Requant = Requant()
    stage: StageField = StageField()
    float: Tolerance = "unknown"
    method: MethodField | None = None
    """None: accumulate, and round once."""
    claim: Claim = "unknown"
    evidence: str = ""


def _blocks() -> Mapping[str, type]:
    hints = get_type_hints(Rule)
    hints_by_name = {f.name: hints[f.name] for f in fields(Rule)}
    return {
        name: kind for name, kind in hints_by_name.items() if hasattr(kind, "__dataclass_fields__")
    }


BLOCKS: Mapping[str, type] = _blocks()
"""The blocks of a rule: `choose`, `quantize` ... and the record each is."""

TEXTS: Mapping[str, object] = {
    name: get_type_hints(Rule, include_extras=True)[name] for name in ("float", "claim")
}
"""The fields of a rule that stand outside a block and are not free text."""


@cache  # asked for each rule of a file, and hints are evaluated from text
def field_types(block: str) -> Mapping[str, object]:
    """The fields of a block and the type each has in this table."""
    return get_type_hints(BLOCKS[block], include_extras=True)


def words(kind: object) -> tuple[str, ...]:
    """Returns the words that a field may be, where they can be listed; else nothing."""
    if get_origin(kind) is Literal:
        return get_args(kind)
    return next((e.words() for e in _extras(kind) if isinstance(e, StageWords)), ())


def _extras(kind: object) -> tuple[object, ...]:
    """Returns what a type in the table is annotated with."""
    return getattr(kind, "__metadata__", ())


def allowed_text(kind: object) -> str:
    """Returns the values of a field, as an error says them."""
    if known := words(kind):
        return ", ".join(known)
    for extra in _extras(kind):
        if isinstance(extra, Shape | ScaleRuleName):
            return extra.description
    return "true, false" if kind is bool else "a number, or a table of numbers by storage type"


def fixed_zero_fault(zero: str) -> str:
    """Returns why no storage can hold the zero point that `choose.zero` fixes; nothing where one
    can."""
    if not zero.startswith("fixed:"):
        return ""
    zero_point = float(zero[6:])
    if not zero_point.is_integer():
        return "it is not an integer"
    least, greatest = -(2**15), 2**16 - 1
    return "" if least <= zero_point <= greatest else f"chosen values are in {least}..{greatest}"


def fits(kind: object, value: object) -> bool:
    """Returns whether a value is one that a field of that type may have (levels: see the
    reader)."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if kind is bool:
        return isinstance(value, bool)
    extras = (e for e in _extras(kind) if isinstance(e, Shape | StageWords | ScaleRuleName))
    extra = next(extras, None)
    return extra is not None and isinstance(value, str) and extra.fits(value)


def levels_of(levels: Levels, storage: str, grain: str = "tensor") -> float | None:
    """Returns the level for a storage type and granularity; None where none is named."""
    table = dict(levels)
    # The most specific entry wins.
    for key in (f"{storage}/{grain}", storage, f"*/{grain}", "*"):
        if key in table:
            return table[key]
    return None


def level_of(
    levels: Levels,
    zero: str,
    storage: DType,
    integer_bounds: tuple[int, int],
    grain: str = "tensor",
) -> float | None:
    """Returns the level of quantized values with bounds; None, where none is named, for half of
    their span.

    One that is named holds for all quantized values, and for as many on each side of zero. Of fewer
    quantized values half the span stays half the span, as the tool of onnxruntime
    (`round(qmin-min/s)`) has it of every level; another is less by what the quantized values end
    lower.
    """
    named_level = levels_of(levels, str(storage), grain)
    qmin, qmax = storage.bounds
    # Full range, or -N..N of it: the level was named for these.
    if named_level is None or integer_bounds in ((qmin, qmax), (-qmax, qmax)):
        return named_level
    if zero == "round(qmin-min/s)" or named_level == (qmax - qmin) / 2:
        return None
    largest = (
        integer_bounds[1] - max(integer_bounds[0], 0)
        if qmin >= 0
        else min(-integer_bounds[0], integer_bounds[1])
    )
    return named_level - qmax + largest
