"""Finds values that are never negative."""

from __future__ import annotations

from collections.abc import Iterable

from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.result_bounds import result_bounds
from qir.ir.scheme import Scheme

_MAX_STEPS = 64
"""Consecutive ops that are followed upwards."""


def never_negative(value: Value, steps: int = _MAX_STEPS) -> bool:
    """Reports whether no element of a value can be negative: a relu's result, also once moved."""
    node = value.node
    if value.constant is not None:
        return bool(value.constant.data.min(initial=0) >= 0)
    if result_bounds(node)[0] >= 0:
        return True
    if node.stages or not steps or not spec(node.op).traits.value_preserving:
        return False
    read = [v for v in node.operands.values() if v.type.express.is_float]
    return bool(read) and all(never_negative(v, steps - 1) for v in read)


def with_known_sign(scheme: Scheme, values: Iterable[Value]) -> Scheme:
    """Returns a scheme by sign with its unsigned storage decided, where the ops show it."""
    if scheme.negative is None or not all(map(never_negative, values)):
        return scheme
    return scheme.with_storage(scheme.storage)
