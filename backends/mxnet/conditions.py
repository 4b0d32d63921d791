"""Conditions of MXNet's kernels on integers."""

from __future__ import annotations

from collections.abc import Mapping

from qir.ir.dtype import I8
from qir.profiles.conditions import GroupCondition
from qir.rewrite.fusing import ChainMatch


def _has_one_shape(match: ChainMatch) -> bool:
    return len({value.type.shape for value in match.operands.values()}) == 1


def _has_same_sign(match: ChainMatch) -> bool:
    # MXNet gives u8 only where no operand is signed.
    has_signed_operand = any(
        v.type.quant is not None and v.type.dtype == I8 for v in match.operands.values()
    )
    return match.result is not None and (match.result.storage == I8) == has_signed_operand


CONDITIONS: Mapping[str, GroupCondition] = {
    "one_shape": GroupCondition(
        "all operands have one shape; other shapes are broadcast as floats",
        _has_one_shape,
        of_types=False,
    ),
    "same_sign": GroupCondition(
        "the result is i8 where an operand is, else u8",
        _has_same_sign,
    ),
}
"""The conditions that profiles of MXNet name."""
