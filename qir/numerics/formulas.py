"""Range rules as formulas that are printed: how a range becomes a scale and a zero point."""

from __future__ import annotations

from qir.ir.scheme import Scheme
from qir.numerics.fields import Choose, level_of
from qir.numerics.ranges import seven_bit_range, symmetric_zero


def formula(rule: Choose, scheme: Scheme, *, weight: bool = False) -> str:
    """Returns what a rule computes for a scheme, in terms of rmin and rmax.

    What a rule does with ranges of zeros or nearly so (`small`) is left out.
    """
    codes = scheme.low, scheme.high
    has_custom_bounds = codes != scheme.storage.bounds
    seven_bit = seven_bit_range(rule, scheme.storage, codes, weight)
    codes = seven_bit or codes
    if scheme.symmetric:
        level = level_of(rule.levels, rule.zero, scheme.storage, codes, scheme.granularity)
        scale = _symmetric(rule, codes, None if seven_bit else level)
        zero = scheme.zero
        if zero is None:
            zero = symmetric_zero(codes, scheme.storage, rule, custom=has_custom_bounds)
        return f"scale = {scale}" + (f", zero_point = {zero}" if zero else "")
    return f"scale = (rmax-rmin)/{codes[1] - codes[0]}{_zero(rule, codes[0])}"


def _symmetric(rule: Choose, codes: tuple[int, int], named: float | None) -> str:
    span = codes[1] - codes[0]
    level = named or (span if rule.reach == "span" else span / 2)
    match rule.reach:
        case "max":
            return f"max(rmin,rmax)/{level:g}"
        case "span":
            return f"(rmax-rmin)/{level:g}"
        case "sides":
            below = f"-rmin/{-codes[0]}" if codes[0] < 0 else "0"
            return f"max({below},rmax/{codes[1]})"
    return f"max(|rmin|,|rmax|)/{level:g}"


def _zero(rule: Choose, lowest: int) -> str:
    match rule.zero:
        case "none":
            return ""
        case "qmin-round(min/s)":
            return f", zero_point = {lowest} - round(rmin/scale)"
        case "round(qmin-min/s)":
            return f", zero_point = round({lowest} - rmin/scale)"
        case "real":
            return f", zero_point = {lowest} - rmin/scale"
        case "best_end":
            return ", zero_point from the end with the smaller error"
    return f", zero_point = {rule.zero.removeprefix('fixed:')}"
