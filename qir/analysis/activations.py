"""Fused activations: which ones a profile's kernels have, and whether they clamp anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType, uniform
from qir.numerics import affine_of
from qir.profiles import Profile, profile, query_for_node
from qir.profiles.conditions import conditions
from qir.reference.quantized import activation_bounds

_SHARE = 0.99
"""Of its scale, what a quantized type has at least whose scale is made less for the ends of a
clip."""
_ULPS = 8


def tails_of(found: Profile) -> frozenset[str]:
    """Returns the activations that kernels of a profile end in."""
    behind = {op for group in found.groups for op in group.chain[1:]}
    return frozenset(op for op in behind if [s.name for s in spec(op).operands] == ["x"])


def drops_tails(found: Profile) -> bool:
    """Returns whether a profile's runtime drops activations that cut no quantized value."""
    return any(drops_activations(group.needs) for group in found.groups)


def drops_activations(needs: Sequence[str]) -> bool:
    """Returns whether one of a group's conditions says so."""
    return any(conditions()[need].drops_activations for need in needs)


def cuts_nothing(node: Node, quant: QuantType) -> bool:
    """Returns whether an activation leaves every quantized value of a type as it is."""
    rule = profile("native").resolve(query_for_node(node))
    return activation_bounds(node.op, node.attrs, affine_of(quant), rule) == (quant.low, quant.high)


def why_cut(node: Node, scheme: Scheme) -> str:
    """Returns why an activation cuts integers of a scheme, as far as that shows without data; or
    nothing."""
    ends = node.attrs.get("min"), node.attrs.get("max")
    low, high = (0.0, None) if node.op == "relu" else ends if node.op == "clip" else (None, None)
    above = isinstance(low, float) and low > 0
    if above or (isinstance(high, float) and high < 0):
        return "its range leaves out 0, which the quantized type can hold"
    if scheme.scale is not None:
        scale = np.asarray(scheme.scale, np.float32)
        kind = uniform(scheme.storage, scale, scheme.zero or 0, bounds=scheme.bounds)
        cut = not cuts_nothing(node, kind)
    else:
        far = [abs(end) for end in (low, high) if isinstance(end, float)]
        even = scheme.symmetric and scheme.zero != scheme.low
        cut = even and bool(far) and (len(far) < 2 or far[0] != far[1])
    return f"it clamps quantized values that are {scheme}" if cut else ""


def uncut(kind: QuantType, clips: Sequence[Node]) -> QuantType:
    """Returns a quantized type by which clips cut no quantized value, its scale a little less; the
    same where that is none.

    The ends of a clip from -1 to 1 are half a step from the extreme quantized values, on either
    side of which the rounding of the scale leaves them.
    """
    if kind.dynamic or kind.granularity is not None or all(cuts_nothing(c, kind) for c in clips):
        return kind
    first = np.float32(kind.scales())
    zero, least = int(np.asarray(kind.zeros())), first
    for clip in clips:
        for name, code in (("min", kind.low), ("max", kind.high)):
            end, steps = clip.attrs[name], abs(code - zero) - 0.5
            if isinstance(end, float) and (code - zero) * end > 0 and steps > 0:
                least = min(least, np.float32(abs(end) / steps))
    if least < first * _SHARE:
        return kind
    for _ in range(_ULPS):
        found = replace(kind, scale=(float(least),))
        if all(cuts_nothing(c, found) for c in clips):
            return found
        least = np.nextafter(least, np.float32(0))
    return kind
