"""Fused activations: which ones a profile's kernels have, and whether they clamp anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType, uniform
from qir.numerics import Rule, affine_of
from qir.profiles import Profile, profile, quantize_query
from qir.profiles.conditions import conditions
from qir.reference.quantized import activation_bounds

_LEAST_SCALE_RATIO = 0.99
"""A scale is lowered to this share of itself at most: more would cost precision."""
_MOST_ULPS = 8
"""Float32 steps down that are tried, since the division by the bound may round up."""


def fused_activations(found: Profile) -> frozenset[str]:
    """Returns the activations that a profile's kernels fuse after another op."""
    later_ops = {op for group in found.groups for op in group.chain[1:]}
    return frozenset(op for op in later_ops if [s.name for s in spec(op).operands] == ["x"])


def drops_unclamping_activations(kernels: Profile) -> bool:
    """Returns whether a profile's runtime drops activations that clamp no quantized value."""
    return any(drops_activations(group.needs) for group in kernels.groups)


def drops_activations(needs: Sequence[str]) -> bool:
    """Returns whether one of a group's conditions is that such an activation is dropped."""
    return any(conditions()[need].drops_activations for need in needs)


def clamps_nothing(node: Node, quant: QuantType) -> bool:
    """Returns whether an activation clamps no quantized value of a type, and so has no effect."""
    return bounds_by_native_rule(node.op, node.attrs, quant) == (quant.low, quant.high)


def bounds_by_native_rule(op: str, attrs: Mapping[str, Attr], quant: QuantType) -> tuple[int, int]:
    """Returns the least and greatest quantized value of a type after an activation.

    Floats are quantized as the profile `native` does.
    """
    limits = () if op == "relu" else (("min", attrs.get("min")), ("max", attrs.get("max")))
    return _bounds(op, limits, quant, profile("native").resolve(quantize_query(quant)))


@lru_cache(4096)  # a layer is asked when it is grouped, and when it is lowered
def _bounds(
    op: str, limits: tuple[tuple[str, Attr], ...], quant: QuantType, rule: Rule
) -> tuple[int, int]:
    return activation_bounds(op, dict(limits), affine_of(quant), rule)


def clamping_reason(node: Node, scheme: Scheme) -> str:
    """Returns why an activation clamps quantized values of a scheme, as far as shown without data.

    Empty where it clamps none, or where only the scale from data would tell.
    """
    clip_bounds = node.attrs.get("min"), node.attrs.get("max")
    low, high = (
        (0.0, None) if node.op == "relu" else clip_bounds if node.op == "clip" else (None, None)
    )
    excludes_zero = isinstance(low, float) and low > 0
    if excludes_zero or (isinstance(high, float) and high < 0):
        return "its range leaves out 0, which the quantized type can hold"
    if scheme.scale is not None:
        scale = np.asarray(scheme.scale, np.float32)
        quant = uniform(scheme.storage, scale, scheme.zero or 0, bounds=scheme.bounds)
        clamps = not clamps_nothing(node, quant)
    else:
        limits = [abs(end) for end in (low, high) if isinstance(end, float)]
        is_symmetric = scheme.symmetric and scheme.zero != scheme.low
        clamps = is_symmetric and bool(limits) and (len(limits) < 2 or limits[0] != limits[1])
    return f"it clamps quantized values that are {scheme}" if clamps else ""


def with_unclamped_scale(quant: QuantType, clips: Sequence[Node]) -> QuantType:
    """Returns a type with a slightly lower scale, by which clips clamp no quantized value.

    Returns the same type where there is none. A clip's bound may be half a step from the extreme
    quantized value, such as -1..1 in symmetric int8; the scale's rounding then decides.
    """
    if (
        quant.dynamic
        or quant.granularity is not None
        or all(clamps_nothing(c, quant) for c in clips)
    ):
        return quant
    original = np.float32(quant.scales())
    zero, scale = int(np.asarray(quant.zeros())), original
    for clip in clips:
        for name, extreme in (("min", quant.low), ("max", quant.high)):
            bound, steps = clip.attrs[name], abs(extreme - zero) - 0.5
            if isinstance(bound, float) and (extreme - zero) * bound > 0 and steps > 0:
                scale = min(scale, np.float32(abs(bound) / steps))
    if scale < original * _LEAST_SCALE_RATIO:
        return quant
    for _ in range(_MOST_ULPS):
        candidate = replace(quant, scale=(float(scale),))
        if all(clamps_nothing(c, candidate) for c in clips):
            return candidate
        scale = np.nextafter(scale, np.float32(0))
    return quant
