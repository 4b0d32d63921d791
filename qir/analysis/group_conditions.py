"""Conditions of groups that several backends' profiles share, and those of every group."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np

from qir.ir.dtype import I32, DType
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.profiles import Profile, choose_query
from qir.profiles.conditions import GroupCondition
from qir.profiles.kernel_forms import has_declared_ranges
from qir.rewrite.fusing import (
    CONVOLUTIONS_1D_3D,
    ChainMatch,
    accumulator_scale,
    only_moves_quantized,
)


def has_zero_point(match: ChainMatch, rules: Profile) -> bool:
    """Returns whether quantized values have a zero point in a profile whose runtime has none."""
    rule = rules.resolve(choose_query("u8"))
    types = [v.type.quant for slot, v in match.operands.items() if v is not match.bias]
    known = [q for q in (*types, match.result) if q is not None and not q.dynamic]
    return rule.quantize.zero == "none" and any(np.any(q.zeros()) for q in known)


def is_bias_in_accumulator_unit(match: ChainMatch, storages: Collection[DType]) -> bool:
    """Returns whether the bias is float and constant, or has about the accumulator's scale."""
    if match.bias is None or match.bias.type.quant is None:
        return match.bias is None or match.bias.constant is not None
    wanted = accumulator_scale(match.anchor, match.operands)
    if match.bias.type.quant.storage not in storages or wanted is None:
        return False
    off = np.abs(match.bias.type.quant.scales().astype(np.float64) - wanted)
    return bool(np.all(off <= 1e-6 + 0.01 * np.abs(wanted.astype(np.float64))))


def _keeps_parameters(match: ChainMatch) -> bool:
    first = next(iter(match.operands.values())).type.quant
    return first is not None and match.result is not None and first.has_same_mapping(match.result)


def _has_ranges_of_operands(match: ChainMatch) -> bool:
    return has_declared_ranges(
        match.result, (value.type.quant for value in match.operands.values())
    )


def _same_storage(match: ChainMatch) -> bool:
    parameters = {spec(match.anchor.op).traits.bias}
    if match.anchor.op in INTEGER_SUM_LAYERS | CONVOLUTIONS_1D_3D:
        parameters.add(spec(match.anchor.op).traits.weight)
    kinds = {
        v.type.quant.storage
        for s, v in match.operands.items()
        if v.type.quant and s not in parameters
    }
    return len(kinds | ({match.result.storage} if match.result else set())) == 1


def _has_quantized_operands(match: ChainMatch) -> bool:
    return all(v.type.quant is not None for v in match.operands.values())


SHARED: Mapping[str, GroupCondition] = {
    "same_map": GroupCondition(
        "operand and result have one scale, zero point and storage",
        only_moves_quantized,
        keeps_map=True,
    ),
    "kept_map": GroupCondition(
        "the result has the first operand's scale, zero point and storage",
        _keeps_parameters,
        keeps_map=True,
    ),
    "held_ranges": GroupCondition(
        "the result's range reaches as far as that of each operand",
        _has_ranges_of_operands,
    ),
    "same_storage": GroupCondition(
        "the operands' and the result's storage types agree",
        _same_storage,
    ),
    "bias_unit": GroupCondition(
        "the bias is i32 with |scale - x*w| <= 1e-6 + 0.01*x*w, or a float constant",
        lambda match: is_bias_in_accumulator_unit(match, (I32,)),
    ),
    "coded_operands": GroupCondition(
        "every operand comes from quantized values, constants too",
        _has_quantized_operands,
    ),
}
"""Conditions that the profiles of several backends name."""
