"""The numbers that come to a type as operands of their own: what its `?` stands for in one run.

`a.scale` and `a.zero` are those of operand a, bare `scale` and `zero` the result's; a range,
`a.min` and `a.max`, stands for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import dtype_of
from qir.ir.node import Value
from qir.ir.ops import COMPANIONS, spec
from qir.ir.types import Array, Declared, Grain, Param, QuantType, TensorType, param
from qir.numerics import Rule, choose, dequantize, map_of
from qir.profiles import choosing, profile
from qir.reference.table import Operands


@dataclass(frozen=True, slots=True)
class Resolved:
    """What an op is given and must give in one run: no type asks for a number any more."""

    types: Mapping[str, TensorType]
    arrays: Operands
    results: tuple[TensorType, ...]


def resolved(
    op: str,
    operands: Mapping[str, Value],
    arrays: Operands,
    results: tuple[TensorType, ...],
    profile_name: str,
) -> Resolved:
    """Returns the op's own operands, every type with its numbers where companions give them.

    A type stays open where an op that only moves quantized values is given none. Raises OpError for
    companions that no type asks for, or numbers that do not fit.
    """
    apart = beside(op, arrays)
    own = {s: a for s, a in arrays.items() if s not in apart}
    types = {s: operands[s].type for s in own}
    given = {s: _plain(operands[s].type, a) for s, a in arrays.items() if s not in own}
    if not given:
        return Resolved(types, own, results)
    done = {s: _typed(kind, s, given, profile_name) for s, kind in types.items()}
    made = tuple(_typed(kind, "", given, profile_name) for kind in results)
    if unread := _unread(types, results, given):
        raise OpError(f"{op}: {unread} is given, and no type asks for it")
    return Resolved(done, own, made)


def beside(op: str, slots: Iterable[str]) -> list[str]:
    """Those of some slots that are companions and no operands of the op's own."""
    found = [s for s in slots if s.rpartition(".")[2] in COMPANIONS]
    return [s for s in found if spec(op).slot(s) is None and spec(op).companion(s)]


def _plain(kind: TensorType, data: NDArray[np.generic]) -> NDArray[np.generic]:
    """Returns the numbers of a companion; those that are quantized themselves are read as what they
    mean."""
    return data if kind.quant is None else dequantize(data, map_of(kind.quant), Rule())


def _unread(
    types: Mapping[str, TensorType], results: tuple[TensorType, ...], given: Operands
) -> str:
    asking = {s for s, kind in types.items() if kind.quant is not None and kind.quant.dynamic}
    if any(kind.quant is not None and kind.quant.dynamic for kind in results):
        asking.add("")
    return next((s for s in given if s.rpartition(".")[0] not in asking), "")


def _typed(kind: TensorType, slot: str, given: Operands, profile_name: str) -> TensorType:
    if kind.quant is None or not kind.quant.dynamic:
        return kind
    return kind.with_element(concrete(kind.quant, slot, given, profile_name))


def concrete(quant: QuantType, slot: str, given: Operands, profile_name: str) -> QuantType:
    """Returns the type with the numbers that companions of a slot give; itself where there are
    none.

    A range becomes scale and zero as the profile chooses them: about zero where the type has no
    zero point. Raises OpError for numbers that do not fit the type.
    """
    dot = f"{slot}." if slot else ""
    found = {n: given[f"{dot}{n}"] for n in COMPANIONS if dot + n in given}
    if not quant.dynamic or not found:
        return quant
    if "min" in found and "max" in found:
        found = _of_range(quant, found["min"], found["max"], profile_name) | found
    scale, zero = quant.scale, quant.zero
    if scale is None:
        if "scale" not in found:
            return quant
        quant = replace(quant, scale=(1.0,), zero=())
        quant = _scaled(quant, found["scale"], f"{dot}scale")
        scale = quant.scale
    if zero is None:
        if "zero" not in found:
            raise OpError(f"{dot}zero is missing")
        zero = _zeros(quant, found["zero"], f"{dot}zero")
    return replace(quant, zero=_spread(zero, scale), declared=_declared(quant, found, dot))


def _declared(
    quant: QuantType, found: Mapping[str, NDArray[np.generic]], dot: str
) -> Declared | None:
    """Returns the range that companions give, which profiles may compute with as it is."""
    if not ("min" in found and "max" in found):
        return quant.declared
    low, high = (_ends(found[n], quant.grain, dot + n) for n in ("min", "max"))
    return Declared(low, high)


def _ends(values: NDArray[np.generic], grain: Grain | None, name: str) -> tuple[float, ...] | Array:
    held = _param(values.astype(np.float32), grain, name)
    return held if isinstance(held, Array) else tuple(float(v) for v in held or ())


def _scaled(quant: QuantType, scale: NDArray[np.generic], name: str) -> QuantType:
    kind = dtype_of(scale)
    if not kind.is_float:
        raise OpError(f"{name} is {kind}; scales are floats")
    return replace(quant, scale=_param(scale, quant.grain, name), scale_dtype=kind)


def _zeros(quant: QuantType, zero: NDArray[np.generic], name: str) -> Param:
    kind = dtype_of(zero)
    if not (kind.is_float or kind.is_integer):
        raise OpError(f"{name} is {kind}; zeros are numbers")
    return _param(zero, quant.grain, name)


def _param(values: NDArray[np.generic], grain: Grain | None, name: str) -> Param:
    """Returns the numbers as a type holds them; a list with one of them may stand for a whole
    tensor."""
    if grain is None:
        if values.size != 1:
            raise OpError(f"{name} has {values.size} numbers; the type has one for all")
        return param(values.reshape(()), None, name)
    return param(values.reshape(-1) if grain.axis is not None else values, grain, name)


def _spread(zero: Param, scale: Param) -> Param:
    """One zero next to many scales is the zero of each."""
    count, size = _size(zero), _size(scale)
    if not count or count == size:
        return zero
    if count != 1:
        raise OpError(f"there are {size} scales but {count} zeros")
    if isinstance(zero, tuple) and isinstance(scale, tuple):
        return zero * size
    data = zero.data if isinstance(zero, Array) else np.array(zero)
    shape = scale.held.shape if isinstance(scale, Array) else (size,)
    return Array.of(np.full(shape, data.reshape(())[()], data.dtype), "zero")


def _size(values: Param) -> int:
    if values is None:
        return 0
    return values.held.size if isinstance(values, Array) else len(values)


def _of_range(
    quant: QuantType, low: NDArray[np.generic], high: NDArray[np.generic], profile_name: str
) -> dict[str, NDArray[np.generic]]:
    """Scale and zero of a range, as the profile chooses them."""
    storage = str(quant.storage)
    grain = "channel" if quant.grain else "tensor"
    rules = profile(profile_name).resolve(choosing(storage, grain))
    scale, zero = choose(
        low.astype(np.float32),
        high.astype(np.float32),
        quant.storage,
        rules.choose,
        bounds=(quant.low, quant.high),
        symmetric=quant.zero is not None,
        grain=grain,
        profile=profile_name,
    )
    return {"scale": np.asarray(scale), "zero": np.asarray(zero)}
