"""What scale rules are held to."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dtype import I8, U8
from qir.numerics.ranges import choose
from qir.numerics.scale_rules import ScaleRequest, ScaleRule
from qir.testing.conformance.checklist import Check, Checklist, demand

_Scales = tuple[NDArray[np.float64], NDArray[np.float64]]
_LOW = np.array([-1.0, -0.3, 0.0, 0.0], np.float32)
_HIGH = np.array([1.0, 2.5, 6.0, 1e-3], np.float32)


def check_scale_rules(table: Mapping[str, ScaleRule]) -> tuple[Check, ...]:
    """Holds scale rules to what quantizing by them relies on."""
    checks = Checklist()

    def gives_numbers() -> str:
        for name, rule in table.items():
            for request, scale, zero in _chosen(name, rule):
                demand(bool((scale > 0).all() and np.isfinite(scale).all()), f"{name}: {scale}")
                low, high = request.bounds
                is_held = bool(((zero >= low) & (zero <= high)).all()) or request.symmetric
                demand(is_held and bool((zero == np.rint(zero)).all()), f"{name}: {zero}")
        return f"{len(table)} rules" if len(table) != 1 else "1 rule"

    def gives_them_again() -> None:
        for name, rule in table.items():
            first, again = (
                [n.tobytes() for _, *ns in _chosen(name, rule) for n in ns] for _ in "12"
            )
            demand(first == again, f"{name}: other numbers the second time")

    checks.check(
        "gives scales above zero, and zero points that are quantized values", gives_numbers
    )
    checks.check("same range, same numbers", gives_them_again)
    return checks.told()


def _chosen(name: str, rule: ScaleRule) -> list[tuple[ScaleRequest, *_Scales]]:
    """Returns the numbers that a rule gives for types that it takes, of which there is one."""
    found: list[tuple[ScaleRequest, *_Scales]] = []
    for storage in (U8, I8):
        for symmetric in (False, True):
            request = ScaleRequest(storage, storage.bounds, symmetric)
            if not rule.formula or rule.fits(str(storage), symmetric):
                found += _numbers(rule, request)
    demand(bool(found), f"{name}: no range of u8 or i8 has a scale")
    return found


def _numbers(rule: ScaleRule, request: ScaleRequest) -> list[tuple[ScaleRequest, *_Scales]]:
    low, high = _LOW.copy(), _HIGH.copy()
    try:
        if rule.function is not None:
            scale, zero = rule.function(low, high, request)
        else:
            assert rule.choose is not None
            low = np.maximum(low, 0) if rule.choose.reach == "max" else low
            scale, zero = choose(
                low, high, request.storage, rule.choose, symmetric=request.symmetric
            )
    except QirError:
        return []  # it says in a line what it has no scale for
    demand(bool((high == _HIGH).all()), "the ranges that it was given have changed")
    return [(request, np.asarray(scale, np.float64), np.asarray(zero, np.float64))]
