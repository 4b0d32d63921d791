"""Resolves companions: operands that give a type the parameters it leaves open (`?`).

`a.scale` and `a.zero` are those of operand a, bare `scale` and `zero` the result's; a range,
`a.min` and `a.max`, stands for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import dtype_of
from qir.ir.node import Value
from qir.ir.ops import COMPANIONS, spec
from qir.ir.types import (
    Array,
    DeclaredBounds,
    Granularity,
    Param,
    QuantType,
    TensorType,
    make_param,
)
from qir.numerics import Rule, choose, dequantize, map_of
from qir.profiles import RuleSource, choose_query
from qir.records import record
from qir.reference.table import Operands


@record
class Resolved:
    """The types, arrays and result types of an op with the companions' parameters filled in."""

    types: Mapping[str, TensorType]
    arrays: Operands
    results: tuple[TensorType, ...]


def resolve_companions(
    op: str,
    operands: Mapping[str, Value],
    arrays: Operands,
    results: tuple[TensorType, ...],
    rules: RuleSource,
) -> Resolved:
    """Returns the op's own operands, every type with its numbers where companions give them.

    A type stays open where an op that only moves quantized values is given none. Raises OpError for
    companions that no type asks for, or numbers that do not fit.
    """
    companion_names = companion_slots(op, arrays)
    own_arrays = {s: a for s, a in arrays.items() if s not in companion_names}
    types = {s: operands[s].type for s in own_arrays}
    companion_arrays = {
        s: _companion_values(operands[s].type, a) for s, a in arrays.items() if s not in own_arrays
    }
    if not companion_arrays:
        return Resolved(types, own_arrays, results)
    resolved_types = {
        s: _with_companions(kind, s, companion_arrays, rules) for s, kind in types.items()
    }
    resolved_results = tuple(
        _with_companions(kind, "", companion_arrays, rules) for kind in results
    )
    if unread := _unused_companion(types, results, companion_arrays):
        raise OpError(f"{op}: {unread} is given, and no type asks for it")
    return Resolved(resolved_types, own_arrays, resolved_results)


def companion_slots(op: str, slots: Iterable[str]) -> list[str]:
    """Those of some slots that are companions and no operands of the op's own."""
    # An op's own operand of such a name is no companion.
    candidates = [s for s in slots if s.rpartition(".")[2] in COMPANIONS]
    return [s for s in candidates if spec(op).slot(s) is None and spec(op).is_companion(s)]


def _companion_values(kind: TensorType, data: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the numbers of a companion; those that are quantized themselves are read as what they
    mean."""
    return data if kind.quant is None else dequantize(data, map_of(kind.quant), Rule())


def _unused_companion(
    types: Mapping[str, TensorType], results: tuple[TensorType, ...], companions: Operands
) -> str:
    open_slots = {s for s, kind in types.items() if kind.quant is not None and kind.quant.dynamic}
    if any(kind.quant is not None and kind.quant.dynamic for kind in results):
        open_slots.add("")
    return next((s for s in companions if s.rpartition(".")[0] not in open_slots), "")


def _with_companions(
    kind: TensorType, slot: str, companions: Operands, rules: RuleSource
) -> TensorType:
    if kind.quant is None or not kind.quant.dynamic:
        return kind
    return kind.with_element(with_companion_parameters(kind.quant, slot, companions, rules))


def with_companion_parameters(
    quant: QuantType, slot: str, given: Operands, rules: RuleSource
) -> QuantType:
    """Returns the type with the numbers that companions of a slot give; itself where there are
    none.

    A range becomes scale and zero as the profile chooses them: about zero where the type has no
    zero point. Raises OpError for numbers that do not fit the type.
    """
    prefix = f"{slot}." if slot else ""
    parameters = {n: given[f"{prefix}{n}"] for n in COMPANIONS if prefix + n in given}
    if not quant.dynamic or not parameters:
        return quant
    if "min" in parameters and "max" in parameters:
        # A companion that states a scale or zero wins over the one computed from the range.
        parameters = (
            _parameters_of_range(quant, parameters["min"], parameters["max"], rules) | parameters
        )
    scale, zero = quant.scale, quant.zero
    if scale is None:
        if "scale" not in parameters:
            return quant
        # A type with a scale and no zero is valid on its own, so that the two can be filled in one
        # by one.
        quant = replace(quant, scale=(1.0,), zero=())
        quant = _with_scale(quant, parameters["scale"], f"{prefix}scale")
        scale = quant.scale
    if zero is None:
        if "zero" not in parameters:
            raise OpError(f"{prefix}zero is missing")
        zero = _zeros(quant, parameters["zero"], f"{prefix}zero")
    return replace(
        quant, zero=_repeat_zero(zero, scale), declared=_declared_range(quant, parameters, prefix)
    )


def _declared_range(
    quant: QuantType, parameters: Mapping[str, NDArray[np.generic]], prefix: str
) -> DeclaredBounds | None:
    """Returns the range that companions give, which profiles may compute with as it is."""
    if not ("min" in parameters and "max" in parameters):
        return quant.declared
    low, high = (_range_end(parameters[n], quant.granularity, prefix + n) for n in ("min", "max"))
    return DeclaredBounds(low, high)


def _range_end(
    values: NDArray[np.generic], granularity: Granularity | None, name: str
) -> tuple[float, ...] | Array:
    param = _param(values.astype(np.float32), granularity, name)
    return param if isinstance(param, Array) else tuple(float(v) for v in param or ())


def _with_scale(quant: QuantType, scale: NDArray[np.generic], name: str) -> QuantType:
    kind = dtype_of(scale)
    if not kind.is_float:
        raise OpError(f"{name} is {kind}; scales are floats")
    return replace(quant, scale=_param(scale, quant.granularity, name), scale_dtype=kind)


def _zeros(quant: QuantType, zero: NDArray[np.generic], name: str) -> Param:
    kind = dtype_of(zero)
    if not (kind.is_float or kind.is_integer):
        raise OpError(f"{name} is {kind}; zeros are numbers")
    return _param(zero, quant.granularity, name)


def _param(values: NDArray[np.generic], granularity: Granularity | None, name: str) -> Param:
    """Returns the numbers as a type holds them; a list with one of them may stand for a whole
    tensor."""
    if granularity is None:
        if values.size != 1:
            raise OpError(f"{name} has {values.size} numbers; the type has one for all")
        return make_param(values.reshape(()), None, name)
    return make_param(
        values.reshape(-1) if granularity.axis is not None else values, granularity, name
    )


def _repeat_zero(zero: Param, scale: Param) -> Param:
    """One zero next to many scales is the zero of each."""
    # Types hold as many zeros as scales; an empty tuple stands for zeros alone.
    count, size = _param_count(zero), _param_count(scale)
    if not count or count == size:
        return zero
    if count != 1:
        raise OpError(f"there are {size} scales but {count} zeros")
    if isinstance(zero, tuple) and isinstance(scale, tuple):
        return zero * size
    data = zero.data if isinstance(zero, Array) else np.array(zero)
    shape = scale.contents.shape if isinstance(scale, Array) else (size,)
    return Array.of(np.full(shape, data.reshape(())[()], data.dtype), "zero")


def _param_count(values: Param) -> int:
    if values is None:
        return 0
    return values.contents.size if isinstance(values, Array) else len(values)


def _parameters_of_range(
    quant: QuantType, low: NDArray[np.generic], high: NDArray[np.generic], rules: RuleSource
) -> dict[str, NDArray[np.generic]]:
    """Scale and zero of a range, as the profile chooses them."""
    storage = str(quant.storage)
    granularity = "channel" if quant.granularity else "tensor"
    rule = rules.resolve(choose_query(storage, granularity))
    scale, zero = choose(
        low.astype(np.float32),
        high.astype(np.float32),
        quant.storage,
        rule.choose,
        bounds=(quant.low, quant.high),
        symmetric=quant.zero is not None,
        grain=granularity,
        profile=rules.name,
    )
    return {"scale": np.asarray(scale), "zero": np.asarray(zero)}
