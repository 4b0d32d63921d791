"""Epilogues: what kernels of other runtimes do to int32 sums, as steps of float32.

The reference adds a bias and a summand to sums, and brings them to the result's scale, in the order
that a rule of a profile says (`qir.numerics.sums`). Here the same numbers are put in the places of
the epilogue of `qir/_kernels/epilogue`, which has a place for each step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dtype import F32
from qir.ir.node import Stage, Value
from qir.ir.types import TensorType
from qir.numerics import Affine, Rule, affine_of, multiplier
from qir.numerics.consistency import ONE_BY_ONE, clashes
from qir.numerics.definition import fixed_point_multiplier, gains, result_factor
from qir.numerics.quantize import kernel_scales
from qir.numerics.stages import ReluStage, SumBufferStage, stage_function
from qir.numerics.sums import Sum, accumulator_unit
from qir.profiles import quantize_query
from qir.profiles.profile import query_for_op
from qir.records import record
from qir.reference.products import ProductKernel, is_integer_product, sum_of_bias
from qir.reference.quantized import activation_bounds

from .builder import CannotLower
from .kernel_types import Job, byte_parameters

Numbers = NDArray[np.float32]
_ONE = np.float32(1)


@record
class AddedOperand:
    """A quantized value that is added to the sums, and how."""

    value: Value
    parameters: Mapping[str, object]


@record
class Epilogue:
    """What becomes of the sums of a product: parameters of the plan's methods."""

    bias: NDArray[np.int32] | None
    parameters: Mapping[str, object]
    y_zero: int
    low: int | None
    high: int | None
    pairs: bool = False
    summand: AddedOperand | None = None

    @property
    def multiplier(self) -> Numbers | None:
        """One float a channel where sums are multiplied by it and rounded, and nothing else is
        done: so the kernels of products requantize them themselves."""
        alone = self.parameters.keys() == {"factor"} and self.summand is None and not self.pairs
        factor = self.parameters["factor"]
        return factor if alone and isinstance(factor, np.ndarray) else None


def epilogue_of(job: Job, weights: NDArray[np.int8], bias: Value | None) -> Epilogue:
    """Returns the epilogue by which a job's rule computes it; raises CannotLower where there is
    none."""
    rule = job.rule
    assert rule is not None
    # Some runtimes compute an activation on floats: the sum then stays float until the last stage.
    apart = stage_function(ReluStage, rule.stage.relu).apart
    by_stages = job.summand is not None or (job.epilogue and apart is not None)
    real = job.result.type.element == F32
    if by_stages and apart is not None:
        rule = apart(rule)
    sums = _float_rule(job, rule) if by_stages and not real else rule
    _require_rounding(rule)
    pairs = _require_sums(job, sums, weights)
    found = _sum(job, sums, bias, len(weights), real=real or bool(by_stages))
    if real or by_stages:
        parameters = _dequantized(found)
    else:
        parameters = _requantized(found, affine_of(byte_parameters(job.result).quant))
    if rule.requant.multiplier == "q31":
        _require_exact_sums(job, found.acc, "w" if "w" in job.operands else "b")
    # A sum of no products is the bias in accumulator units: the kernels start from it.
    whole = found.acc.astype(np.int32).reshape(-1)
    out = _finish(job, rule, parameters, real=real, by_stages=bool(by_stages))
    return replace(out, bias=whole if whole.any() else None, pairs=pairs)


def _require_rounding(rule: Rule) -> None:
    """Raises CannotLower for a rule that rounds otherwise than the epilogue does."""
    requant = rule.requant
    if requant.multiplier == "q31":
        if requant.round not in FIXED_ROUNDINGS or requant.zero != "after":
            raise CannotLower(f"no kernel rounds steps by requant.round = {requant.round}")
        if requant.clip == "codes_32" or next(clashes(rule), None):
            raise CannotLower(f"no kernel saturates by requant.clip = {requant.clip}")
        return
    if requant.multiplier not in ("f32", "divide") or requant.compute != "f32":
        raise CannotLower(f"no kernel multiplies by requant.multiplier = {requant.multiplier}")
    if requant.round != "even" or requant.clip == "codes_32" or next(clashes(rule), None):
        raise CannotLower(f"no kernel rounds by requant.round = {requant.round}")


def _require_sums(job: Job, rule: Rule, weights: NDArray[np.int8]) -> bool:
    """Raises CannotLower for sums that the kernels do not compute; returns whether pairs of taps
    saturate."""
    acc = rule.acc
    if acc.type != "i32" or acc.overflow != "wrap":
        raise CannotLower(f"no kernel holds sums as acc.type = {acc.type}, {acc.overflow}")
    if acc.pad != "zero_point" and any(job.int_tuple("pad") if "pad" in job.attrs else ()):
        raise CannotLower(f"no kernel pads with acc.pad = {acc.pad}")
    if acc.pairs == "exact":
        return False
    (slot,) = (s for s in ("x", "a") if s in job.operands)
    x = byte_parameters(job.operands[slot], slot)
    single = job.op == "conv2d" and weights.shape[1] == 1
    if acc.pairs != "saturate_taps" or not single or len(weights) != job.int_attr("groups"):
        raise CannotLower(f"no kernel adds pairs of products by acc.pairs = {acc.pairs}")
    if job.operands["w"].type.quant is not None and job.operands["w"].type.quant.zeros().any():
        raise CannotLower("no kernel takes zero points of weights whose products saturate")
    taps = np.abs(weights.reshape(len(weights), -1).astype(np.int32))
    # vpmaddubsw adds two neighbouring products in 16 bits; an odd tap is paired with 0.
    taps = np.pad(taps, ((0, 0), (0, taps.shape[1] % 2))).reshape(len(taps), -1, 2)
    # The instruction takes unsigned data, so i8 is moved by 128 before it.
    highest = x.high + (128 if x.kind == "i8" else 0)
    # Where no pair can saturate, the exact kernels give the same sums and are faster.
    return bool(taps.sum(-1).max(initial=0) * highest > np.iinfo(np.int16).max)


def _sum(job: Job, rule: Rule, bias: Value | None, channels: int, *, real: bool) -> Sum:
    """Returns a row of sums of no products, with the bias as the rule takes it."""
    if bias is not None and bias.constant is None:
        raise CannotLower("the bias is no constant")
    types = {slot: value.type for slot, value in job.operands.items()}
    result = job.result.type
    if real:
        result = TensorType(result.shape, F32)
    kernel = ProductKernel(job.op, job.attrs, types, result, rule)
    if rule.weights.given != "codes" or rule.requant.wide != "plain":
        raise CannotLower(f"no kernel takes weights.given = {rule.weights.given}")
    try:
        if not is_integer_product(kernel):
            raise CannotLower("its scales do not factor out of the sums")
        data = None if bias is None or bias.constant is None else bias.constant.data
        if data is not None and data.size == 1:
            data = np.broadcast_to(data.reshape(-1), channels)
        if data is not None and data.size != channels:
            raise CannotLower("the bias has another value for each row")
        return sum_of_bias(kernel, data if data is None else data.reshape(-1), channels)
    except QirError as error:
        raise CannotLower(str(error)) from None


def _float_rule(job: Job, rule: Rule) -> Rule:
    """Returns the rule of a product whose result stays float until a later stage is computed."""
    types = {slot: value.type for slot, value in job.operands.items()}
    result = TensorType(job.result.type.shape, F32)
    found = job.rules.resolve(query_for_op(job.op, job.attrs, types, result))
    # The method is that of the integer result; up to the float sum the fields of the rule hold.
    return replace(found, method=None) if found.method == rule.method else found


def _steps(of: Sum) -> dict[str, object]:
    """Returns the parameters of a bias in units of the sums."""
    if of.steps is None:
        return {}
    found: dict[str, object] = {"steps": _row(of, of.steps)}
    if of.share is not None:
        found["share"] = _row(of, of.share)
    return found


def _row(of: Sum, values: NDArray[np.generic]) -> Numbers:
    """Returns one number a channel."""
    wide = np.broadcast_to(values.astype(np.float32), of.acc.shape)
    return np.ascontiguousarray(wide).reshape(-1)


def _dequantized(of: Sum) -> dict[str, object]:
    """Returns the parameters of `qir.numerics.sums.dequantize_sum`."""
    found = _steps(of)
    fused = of.bias is not None and of.rule.bias.by == "fma"
    with np.errstate(all="ignore"):
        if of.rule.requant.order in ONE_BY_ONE and not fused:
            # Two multiplications, each rounded: the product of both scales would round once.
            x, w = (kernel_scales(m, of.rule, s) for m, s in ((of.x, "x"), (of.w, "w")))
            found["unit"] = float(np.float32(of.gain) * np.float32(x))
            found["factor"] = _row(of, np.asarray(w).reshape(-1))
        else:
            found["factor"] = _row(of, accumulator_unit(of))
    if of.bias is not None:
        found |= {"bias": _row(of, of.bias), "bias_fused": fused}
    return found


def _requantized(of: Sum, y: Affine) -> dict[str, object]:
    """Returns the parameters of `qir.numerics.sums.quantize_sum` without a summand."""
    if of.rule.requant.multiplier == "q31":
        return _fixed_point(of, y)
    if of.rule.requant.multiplier == "divide":
        return _dequantized(of)
    found = _steps(of)
    found["factor"] = _row(of, np.asarray(multiplier(of.x, of.w, y, of.rule, gain=of.gain)))
    if of.bias is not None:
        by, divides = _result_factor(y, of.rule)
        with np.errstate(all="ignore"):
            bias = of.bias.astype(np.float32)
            found["bias"] = _row(of, bias / by if divides else bias * by)
    return found


FIXED_ROUNDINGS = ("double", "double_up", "half_up")
"""How the epilogue rounds what multipliers of 31 bits give."""
_MOST_SHIFT = 30


def _fixed_point(of: Sum, y: Affine) -> dict[str, object]:
    """Returns multipliers of 31 bits with a power of two, and how what they give is rounded."""
    if of.steps is not None or of.bias is not None:
        raise CannotLower("a bias is added to whole sums as a float")
    factor = np.asarray(multiplier(of.x, of.w, y, of.rule, gain=of.gain))
    q, shift = fixed_point_multiplier(np.broadcast_to(factor, of.acc.shape).reshape(-1))
    if not np.isfinite(factor).all() or np.abs(shift).max(initial=0) > _MOST_SHIFT:
        raise CannotLower("a scale is too far from the result's")
    away = of.rule.requant.round == "double"
    return {
        "factor": np.ones(1, np.float32),
        "fixed": q.astype(np.int32),
        "shift": shift.astype(np.int32),
        "away": np.full(1, away, np.int32),
        "once": of.rule.requant.round == "half_up",
    }


def _require_exact_sums(job: Job, bias: NDArray[np.generic], slot: str) -> None:
    """Raises CannotLower for sums that float32, in which epilogues are given them, may round."""
    weight, x = job.operands[slot], byte_parameters(job.operands["x" if slot == "w" else "a"])
    assert weight.constant is not None
    assert weight.type.quant is not None
    axis = weight.type.quant.axis or 0
    zeros = np.asarray(weight.type.quant.zeros(), np.int64).reshape(-1)
    shape = [1] * weight.constant.data.ndim
    shape[axis] = -1
    centered = np.abs(weight.constant.data.astype(np.int64) - zeros.reshape(shape))
    others = tuple(a for a in range(centered.ndim) if a != axis)
    widest = max(x.zero - x.low, x.high - x.zero)
    most = centered.sum(others).max(initial=0) * widest + np.abs(bias.astype(np.int64)).max()
    if most > _EXACT:
        raise CannotLower("its sums may exceed 2^24, which kernels of 31-bit multipliers take")


_EXACT = 1 << 24


def _result_factor(y: Affine, rule: Rule) -> tuple[np.float32, bool]:
    kind: np.dtype[np.floating] = np.dtype(np.float32)
    by, divides = result_factor(np.asarray(y.scale), gains(y, rule, kind), rule, kind)
    return np.float32(by), divides


def _finish(
    job: Job, rule: Rule, parameters: dict[str, object], *, real: bool, by_stages: bool
) -> Epilogue:
    """Returns the epilogue with its summand, activations and the scale of the result."""
    summand = None if job.summand is None else _summand(job, job.summand, rule)
    if real or by_stages:
        parameters |= _float_bounds(job)
    if real:
        if summand is not None:
            raise CannotLower("no kernel adds a summand to a float result")
        return Epilogue(None, parameters, 0, None, None)
    y = byte_parameters(job.result, "the result")
    out = affine_of(y.quant)
    if by_stages and rule.requant.multiplier != "divide":
        raise CannotLower("no kernel quantizes a sum by a rule of its own")
    if rule.requant.multiplier == "divide":
        by, divides = _result_factor(out, rule)
        parameters |= {"last": float(by), "divide": divides}
    if rule.requant.zero == "before":
        parameters["offset"] = float(y.zero)
    low, high = (y.low, y.high) if by_stages else bounds_after(job, job.epilogue, y.low, y.high)
    if job.summand is not None and (limit := _sum_limits(job, job.summand, rule)[1]) is not None:
        high = min(high, limit)
    zero = y.zero if rule.requant.zero == "after" else 0
    return Epilogue(None, parameters, zero, low, high, summand=summand)


def bounds_after(job: Job, stages: tuple[Stage, ...], low: int, high: int) -> tuple[int, int]:
    """Returns the least and greatest integer after activations, by the profile of a job."""
    assert job.rule is not None
    quant = job.result.type.quant
    assert quant is not None
    quantizes = job.rules.resolve(quantize_query(quant))
    for stage in stages:
        ends = job.rule.stage.ends
        least, most = activation_bounds(stage.op, stage.attrs, affine_of(quant), quantizes, ends)
        low, high = (min(max(v, least), most) for v in (low, high))
    return low, high


def _float_bounds(job: Job) -> dict[str, object]:
    """Returns the bounds of float activations; each next one clips what the one before left."""
    least, most = -np.inf, np.inf
    for stage in job.epilogue:
        low, high = (0.0, None) if stage.op == "relu" else (stage.attrs["min"], stage.attrs["max"])
        if isinstance(low, float):
            least, most = max(least, low), max(most, low)
        if isinstance(high, float):
            least, most = min(least, high), min(most, high)
    return {"least": float(least), "most": float(most)}


def _sum_limits(job: Job, summand: Value, rule: Rule) -> tuple[int | None, int | None]:
    """Returns the highest quantized values that are read of a summand, and written of the sum.

    Raises CannotLower for a sum that is written otherwise than the result is stored.
    """
    stage = stage_function(SumBufferStage, rule.stage.sum_reads)
    storages = tuple(byte_parameters(value).quant.storage for value in (summand, job.result))
    if stage.written_as(*storages) != storages[1]:
        raise CannotLower("the summand is stored otherwise than the result")
    return stage.read_limit(*storages), stage.write_limit(*storages)


def _summand(job: Job, value: Value, rule: Rule) -> AddedOperand:
    """Returns a summand in float units, as the reference adds it."""
    of = byte_parameters(value, "the summand")
    if value.type.shape != job.result.type.shape or value.constant is not None:
        raise CannotLower("the summand has another shape than the result")
    if rule.stage.sum not in ("real", "fma"):
        raise CannotLower(f"no kernel adds a summand by stage.sum = {rule.stage.sum}")
    limit, _ = _sum_limits(job, value, rule)
    unit, most = of.scale, of.high
    with np.errstate(all="ignore"):
        if rule.requant.scales != "given":
            # Such a kernel stores the reciprocal of a scale: what it divides by is no longer the
            # scale itself.
            unit = _ONE / (_ONE / unit)
    if limit is not None:
        most = min(most, limit)
    return AddedOperand(value, {
        "summand_type": of.kind, "summand_zero": of.zero, "summand_most": most,
        "summand_scale": float(unit), "summand_fused": rule.stage.sum == "fma",
    })  # fmt: skip
