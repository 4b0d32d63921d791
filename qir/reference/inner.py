"""Ops that round values within themselves, to what their inner slots say.

Operands that are quantized are dequantized first, results that are to be quantized are quantized
last, both as a profile has it: what the op's float form computes between dequantize and quantize.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.types import QuantType
from qir.numerics import Map, choose, dequantize, map_of, quantize
from qir.profiles import (
    Profile,
    choose_query,
    dequantize_query,
    profile,
    quantize_query,
    query_for_op,
)
from qir.profiles.methods import plugin_method
from qir.reference.companions import Resolved, resolve_companions, with_companion_parameters
from qir.reference.operands import round_to_dtype, to_float64
from qir.reference.products import ProductKernel
from qir.reference.table import FUNCTIONS, Operands

Tensor = NDArray[np.generic]
Float64Array = NDArray[np.float64]


def run(node: Node, operands: Operands, profile_name: str) -> tuple[Tensor, ...]:
    """Returns one such op in float and integers; raises OpError for numbers of a quantized type
    that nothing gives."""
    row, manner = spec(node.op), profile(profile_name)
    places = {s: a for s, a in operands.items() if s.rpartition(".")[0] in row.inner}
    outside = {s: a for s, a in operands.items() if s not in places}
    kinds = tuple(value.type for value in node.results)
    known = resolve_companions(node.op, node.operands, outside, kinds, profile_name)
    by_method = None if node.inner else _by_method(node, known, profile_name)
    if by_method is not None:
        return by_method
    given: dict[str, Tensor] = {}
    for slot, data in known.arrays.items():
        quant = known.types[slot].quant
        given[slot] = data if quant is None else _Place(manner, slot, quant).reals(data)
    inner: dict[str, Callable[[Float64Array], Float64Array]] = {}
    for name, element in node.inner.items():
        if isinstance(element, QuantType):
            numbered = with_companion_parameters(element, name, places, profile_name)
            inner[name] = _Place(manner, name, numbered).rounded
        else:
            inner[name] = _cast(element)
    made = FUNCTIONS[node.op](**given, **node.attrs, inner=inner)
    results = made if isinstance(made, tuple) else (made,)
    out: list[Tensor] = []
    for kind, data in zip(known.results, results, strict=True):
        quant = kind.quant
        out.append(data if quant is None else _Place(manner, "its result", quant).codes(data))
    return tuple(out)


def _by_method(node: Node, given: Resolved, profile_name: str) -> tuple[Tensor, ...] | None:
    """Returns all results by the method that a profile names for such integers; None where it names
    none."""
    asked = query_for_op(node.op, node.attrs, given.types, given.results[0])
    rule = profile(profile_name).resolve(asked)
    method = plugin_method(rule.method.name) if rule.method else None
    if method is None or method.every_result is None:
        return None
    kernel = ProductKernel(node.op, node.attrs, given.types, given.results[0], rule)
    return method.every_result(kernel, given.arrays, given.results)


def _cast(kind: DType) -> Callable[[Float64Array], Float64Array]:
    return lambda x: _wide(round_to_dtype(x, kind.carrier))


def _wide(x: Tensor) -> Float64Array:
    return to_float64(x).astype(np.float64, copy=False)


@dataclass(frozen=True, slots=True)
class _Place:
    """A quantized type under a profile, and where it is."""

    manner: Profile
    name: str
    quant: QuantType

    def _map(self) -> Map:
        if self.quant.dynamic:
            raise OpError(f"{self.name} is {self.quant}, and nothing gives its numbers")
        return map_of(self.quant)

    def _chosen(self, x: Tensor) -> Map:
        """Returns the quantized type for the range that x has, as the profile chooses it while a
        model runs."""
        quant = self.quant
        if quant.granularity is not None or quant.scale is not None or not x.size:
            raise OpError(f"{self.name} is {quant}: only one scale of some elements is computed")
        asked = choose_query(str(quant.storage), "tensor")
        rule = replace(self.manner.resolve(asked).choose, reduce="none")  # the type's bounds say it
        scale, zero = choose(
            np.asarray(x.min()),
            np.asarray(x.max()),
            quant.storage,
            rule,
            bounds=(quant.low, quant.high),
            symmetric=quant.zero is not None,
            profile=self.manner.name,
        )
        return map_of(quant, scale=scale, zero=zero)

    def reals(self, codes: Tensor) -> Tensor:
        """Returns what quantized values mean."""
        return dequantize(codes, self._map(), self.manner.resolve(dequantize_query(self.quant)))

    def codes(self, x: Tensor) -> Tensor:
        """Returns the quantized values of floats."""
        return quantize(x, self._map(), self.manner.resolve(quantize_query(self.quant)))

    def rounded(self, x: Float64Array) -> Float64Array:
        """Returns the floats that integers of x mean, x itself first in the type the quantized type
        expresses."""
        real = round_to_dtype(x, self.quant.express.carrier)
        of = self._chosen(real) if self.quant.dynamic else self._map()
        codes = quantize(real, of, self.manner.resolve(quantize_query(self.quant)))
        back = dequantize(codes, of, self.manner.resolve(dequantize_query(self.quant)))
        return _wide(back)
