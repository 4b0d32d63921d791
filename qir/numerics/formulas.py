"""Formulas that are printed: how a range becomes a scale and a zero point, and floats integers."""

from __future__ import annotations

from qir.ir.scheme import Scheme
from qir.ir.types import QuantType
from qir.numerics.fields import Choose, level_of
from qir.numerics.ranges import seven_bit_range, symmetric_zero


def formula(rule: Choose, scheme: Scheme, *, weight: bool = False) -> str:
    """Returns what a rule computes for a scheme, in terms of rmin and rmax.

    What a rule does with ranges of zeros or nearly so (`small`) is left out.
    """
    integer_bounds = scheme.low, scheme.high
    has_custom_bounds = integer_bounds != scheme.storage.bounds
    seven_bit = seven_bit_range(rule, scheme.storage, integer_bounds, weight)
    integer_bounds = seven_bit or integer_bounds
    if scheme.symmetric:
        level = level_of(rule.levels, rule.zero, scheme.storage, integer_bounds, scheme.granularity)
        scale = _symmetric(rule, integer_bounds, None if seven_bit else level)
        zero = scheme.zero
        if zero is None:
            zero = symmetric_zero(integer_bounds, scheme.storage, rule, custom=has_custom_bounds)
        return f"scale = {scale}" + (f", zero_point = {zero}" if zero else "")
    lowest, highest = integer_bounds
    return f"scale = (rmax-rmin)/{highest - lowest}{_zero(rule, lowest)}"


def quantize_formula(quant: QuantType) -> str:
    """Returns how floats x become integers of a type, `round(x / 0.05) - 3`; empty where no one
    scale does."""
    if quant.dynamic or quant.granularity is not None or quant.kind != "uniform":
        return ""
    if quant.has_float_zero or quant.plus is not None:
        return ""
    zero = int(quant.zeros())
    end = f" {'+' if zero > 0 else '-'} {abs(zero)}" if zero else ""
    return f"round(x / {float(quant.scales()):.8g}){end}"


def _symmetric(rule: Choose, integer_bounds: tuple[int, int], named: float | None) -> str:
    span = integer_bounds[1] - integer_bounds[0]
    level = named or (span if rule.reach == "span" else span / 2)
    match rule.reach:
        case "max":
            return f"max(rmin,rmax)/{level:g}"
        case "span":
            return f"(rmax-rmin)/{level:g}"
        case "sides":
            below = f"-rmin/{-integer_bounds[0]}" if integer_bounds[0] < 0 else "0"
            return f"max({below},rmax/{integer_bounds[1]})"
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
