"""Which fields of a rule say nothing together: such a profile is refused when it is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qir.errors import ProfileError
from qir.ir.ops import spec
from qir.numerics.fields import Rule
from qir.numerics.rounding import SECOND_ROUNDINGS
from qir.numerics.stages import ReluStage, SumStage, stage_function
from qir.records import record


@record
class Clash:
    """Fields that do not go together, and why."""

    fields: tuple[str, ...]
    """As `block.field`, the one to change first."""
    why: str

    def message(self, rule: Rule) -> str:
        """Returns the clash as an error says it."""
        values = [f"{name} = {_value(rule, name)!r}" for name in self.fields]
        return f"{' with '.join(values)}: {self.why}"


def clashes(rule: Rule) -> Iterator[Clash]:
    """Yields what does not go together in a rule."""
    yield from _quantize(rule)
    yield from _acc(rule)
    yield from _multiplier(rule)
    yield from _stages(rule)


def check(rule: Rule) -> None:
    """Raises ProfileError for a rule that was not read from a file and says what cannot be
    meant."""
    clash = next(clashes(rule), None)
    if clash is not None:
        raise ProfileError(f"profile {rule.profile or '(unnamed)'}: {clash.message(rule)}")


def _value(rule: Rule, name: str) -> object:
    block, _, field = name.partition(".")
    return getattr(getattr(rule, block), field)


ONE_BY_ONE = ("x*w*(1/y)", "x*w/y")
"""The values of `requant.order` by which sums are multiplied by one scale after the other."""
WRAPS = ("wrap_32", "clip_32")
"""The values of `quantize.far` by which the sum with a zero point wraps in 32 bits."""


def _quantize(rule: Rule) -> Iterator[Clash]:
    q = rule.quantize
    # Each of these fields is sound by itself. What is refused here are combinations for which the
    # definition would have to ignore one, so that a profile would claim what has no effect.
    if q.by == "low_end" and q.zero not in ("after", "before"):
        why = "steps are counted to the zero point; zero = 'after' or 'before'"
        yield Clash(("quantize.by", "quantize.zero"), why)
    if q.compute == "f64_reciprocal" and q.by in ("divide", "low_end"):
        why = "a division has no reciprocal; by = 'reciprocal', or compute = 'f64'"
        yield Clash(("quantize.compute", "quantize.by"), why)
    if q.zero == "pair_once" and q.by == "divide":
        why = "the low end is multiplied as float values are; by = 'span' or 'gain'"
        yield Clash(("quantize.zero", "quantize.by"), why)
    if q.sum == "real" and q.zero != "after":
        why = "it is added after rounding; zero = 'after'"
        yield Clash(("quantize.sum", "quantize.zero"), why)
    if q.far in WRAPS and (q.sum == "real" or q.zero in ("before", "fused")):
        why = "a zero point is added to whole numbers there; sum = 'whole', zero = 'after'"
        yield Clash(("quantize.far", "quantize.sum", "quantize.zero"), why)
    if q.nan == "far" and q.far not in WRAPS:
        why = "a NaN wraps as they do; far = 'wrap_32' or 'clip_32'"
        yield Clash(("quantize.nan", "quantize.far"), why)
    if rule.dequantize.codes == "real" and rule.dequantize.by in ("q*s-z*s", "q*s+plus"):
        why = "it has no effect on dequantize there; by = '(q-z)*s'"
        yield Clash(("dequantize.codes", "dequantize.by"), why)
    if q.zero == "fused" and (q.by in ("divide", "span") or q.compute in ("f64", "f16")):
        why = "it is a multiply-add of float32; by = 'reciprocal' or 'gain', compute = 'f32'"
        yield Clash(("quantize.zero", "quantize.by"), why)


def _acc(rule: Rule) -> Iterator[Clash]:
    a = rule.acc
    # Products of quantized values are far below the largest float32.
    if a.type == "f32" and a.overflow == "saturate":
        yield Clash(("acc.overflow", "acc.type"), "a float32 sum does not reach its ends")
    if a.type == "f32" and a.pairs != "exact":
        yield Clash(("acc.pairs", "acc.type"), "pairs of 16 bits are added to integers")
    if rule.bias.plus == "ends" and rule.bias.domain != "real_after":
        why = "an offset adds floats; domain = 'real_after'"
        yield Clash(("bias.plus", "bias.domain"), why)
    if rule.bias.overflow == "shrink_weights" and rule.bias.domain == "real_after":
        why = "a float bias does not overflow; domain = 'rounded_acc'"
        yield Clash(("bias.overflow", "bias.domain"), why)


_INTEGER_MULTIPLIERS = ("q31", "q15", "exact")
"""Multipliers that take whole sums."""


def _multiplier(rule: Rule) -> Iterator[Clash]:
    r = rule.requant
    name = "requant.multiplier"
    if r.plus == "ends" and r.multiplier != "divide":
        why = "floats are quantized; multiplier = 'divide'"
        yield Clash(("requant.plus", name), why)
    if r.round in SECOND_ROUNDINGS and r.multiplier != "q31":
        yield Clash(("requant.round", name), "only a 31-bit multiplier rounds twice; 'half_up'")
    if r.round in SECOND_ROUNDINGS and r.zero == "before":
        why = "what is rounded twice gets its zero point after; zero = 'after'"
        yield Clash(("requant.zero", "requant.round"), why)
    if r.clip == "codes_32" and (
        r.multiplier != "q31" or r.round in SECOND_ROUNDINGS or r.zero != "after"
    ):
        why = "steps of a 31-bit multiplier, rounded once, get it then; 'q31', 'half_up', 'after'"
        yield Clash(("requant.clip", name, "requant.round", "requant.zero"), why)
    # These stay in integers from the sum to the result: nothing that works on floats may come
    # between.
    if r.multiplier in _INTEGER_MULTIPLIERS:
        if rule.acc.type == "f32":
            yield Clash((name, "acc.type"), "it multiplies whole sums; acc.type = 'i32' or 'i64'")
        if rule.bias.domain == "real_after":
            why = "it multiplies sums that have their bias; bias.domain = 'given_acc'"
            yield Clash((name, "bias.domain"), why)
        if r.input == "acc_then_bias":
            why = "it multiplies whole sums; requant.input = 'acc_plus_bias'"
            yield Clash((name, "requant.input"), why)
    # 64 bits of sum and 31 of multiplier: no runtime has such a product.
    if r.multiplier == "q31" and rule.acc.type == "i64":
        yield Clash((name, "acc.type"), "a product of 95 bits; multiplier = 'q15', or acc 'i32'")
    if r.multiplier == "exact" and r.order == "gy/gx/gw":
        yield Clash((name, "requant.order"), "gains are rounded; order = '(x*w)/y'")
    if r.order in (*ONE_BY_ONE, "(x*w)*gy") and r.multiplier != "divide":
        why = "sums become floats on their way; multiplier = 'divide'"
        yield Clash(("requant.order", name), why)
    if r.multiplier == "divide" and r.order == "x*(w/y)":
        why = "sums become floats first, by x*w; order = '(x*w)/y' or '(x*w)*(1/y)'"
        yield Clash(("requant.order", name), why)

    if rule.bias.by == "fma" and r.compute == "f64":
        yield Clash(("bias.by", "requant.compute"), "fma is that of float32; compute = 'f32'")


def _stages(rule: Rule) -> Iterator[Clash]:
    # Every conversion asks this: functions are looked up for few multipliers only.
    is_whole = rule.requant.multiplier in _INTEGER_MULTIPLIERS
    if is_whole and stage_function(ReluStage, rule.stage.relu).apart is not None:
        why = "sums become floats where an activation follows; multiplier = 'f32' or 'f64'"
        yield Clash(("stage.relu", "requant.multiplier"), why)
    # Neither has a factor in float by which a summand could be brought to units of the result.
    is_step = is_whole or rule.requant.multiplier == "divide"
    if is_step and stage_function(SumStage, rule.stage.sum).in_result_units:
        why = "a summand is added in units of the result; multiplier = 'f32' or 'f64'"
        yield Clash(("stage.sum", "requant.multiplier"), why)


# -- names ----------------------------------------------------------------------------------------


def repeated(items: Sequence[str]) -> str:
    """Returns the first of some names that is named twice; nothing where each is named once."""
    return next((item for i, item in enumerate(items) if item in items[:i]), "")


def requantize_after_method(op: str) -> bool:
    """Returns whether an op may be after another in one kernel: what takes one tensor, or adds
    two."""
    return op == "add" or [slot.name for slot in spec(op).operands] == ["x"]


def propagates_fault(said: object, chain: Sequence[str]) -> str:
    """Returns why a group's `propagates` makes no sense; empty where it does. Pairs change places
    with one op that moves elements of one tensor, so that their quantized values are the same on
    either side."""
    if not isinstance(said, bool):
        return "propagates is true or false"
    moves = len(chain) == 1 and spec(chain[0]).traits.same_params == ("x",)
    return "" if moves or not said else f"{' > '.join(chain)} does more than move elements"
