"""Ops that round values within themselves, to what their inner slots say.

Operands that are quantized are dequantized first, results that are to be quantized are quantized
last, both as a profile has it: what the op's float form computes between dequantize and quantize.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.types import QuantType
from qir.numerics import Map, choose, dequantize, map_of, quantize
from qir.profiles import (
    RuleSource,
    choose_query,
    dequantize_query,
    quantize_query,
    query_for_op,
)
from qir.profiles.methods import plugin_method
from qir.records import record
from qir.reference.companions import Resolved, resolve_companions, with_companion_parameters
from qir.reference.operands import round_to_dtype, to_float64
from qir.reference.products import ProductKernel
from qir.reference.table import FUNCTIONS, Operands

Tensor = NDArray[np.generic]
Float64Array = NDArray[np.float64]


def run(node: Node, operands: Operands, rules: RuleSource) -> tuple[Tensor, ...]:
    """Returns one such op in float and integers; raises OpError for numbers of a quantized type
    that nothing gives."""
    op_spec = spec(node.op)
    inner_companions = {s: a for s, a in operands.items() if s.rpartition(".")[0] in op_spec.inner}
    op_operands = {s: a for s, a in operands.items() if s not in inner_companions}
    result_types = tuple(value.type for value in node.results)
    resolved = resolve_companions(node.op, node.operands, op_operands, result_types, rules)
    # A method predicts a whole kernel, which has no place to round at an inner slot.
    by_method = None if node.inner else _by_method(node, resolved, rules)
    if by_method is not None:
        return by_method
    floats: dict[str, Tensor] = {}
    for slot, data in resolved.arrays.items():
        quant = resolved.types[slot].quant
        floats[slot] = data if quant is None else _InnerPlace(rules, slot, quant).dequantized(data)
    # What rounds a value at each inner slot: through the integers of a type and back, or by a cast.
    inner: dict[str, Callable[[Float64Array], Float64Array]] = {}
    for name, element in node.inner.items():
        if isinstance(element, QuantType):
            complete_type = with_companion_parameters(element, name, inner_companions, rules)
            inner[name] = _InnerPlace(rules, name, complete_type).rounded
        else:
            inner[name] = _cast(element)
    computed = FUNCTIONS[node.op](**floats, **node.attrs, inner=inner)
    results = computed if isinstance(computed, tuple) else (computed,)
    out: list[Tensor] = []
    for kind, data in zip(resolved.results, results, strict=True):
        quant = kind.quant
        out.append(
            data if quant is None else _InnerPlace(rules, "its result", quant).quantized(data)
        )
    return tuple(out)


def _by_method(node: Node, resolved: Resolved, rules: RuleSource) -> tuple[Tensor, ...] | None:
    """Returns all results by the method that a profile names for such integers; None where it names
    none."""
    query = query_for_op(node.op, node.attrs, resolved.types, resolved.results[0])
    rule = rules.resolve(query)
    method = plugin_method(rule.method.name) if rule.method else None
    if method is None or method.every_result is None:
        return None
    kernel = ProductKernel(node.op, node.attrs, resolved.types, resolved.results[0], rule)
    return method.every_result(kernel, resolved.arrays, resolved.results)


def _cast(kind: DType) -> Callable[[Float64Array], Float64Array]:
    return lambda x: _wide(round_to_dtype(x, kind.carrier))


def _wide(x: Tensor) -> Float64Array:
    return to_float64(x).astype(np.float64, copy=False)


@record
class _InnerPlace:
    """A quantized type under a profile, and where it is."""

    manner: RuleSource
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
        query = choose_query(str(quant.storage), "tensor")
        rule = replace(self.manner.resolve(query).choose, reduce="none")  # the type's bounds say it
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

    def dequantized(self, integers: Tensor) -> Tensor:
        """Returns what quantized values mean."""
        return dequantize(integers, self._map(), self.manner.resolve(dequantize_query(self.quant)))

    def quantized(self, x: Tensor) -> Tensor:
        """Returns the quantized values of floats."""
        return quantize(x, self._map(), self.manner.resolve(quantize_query(self.quant)))

    def rounded(self, x: Float64Array) -> Float64Array:
        """Returns the floats that integers of x mean, x itself first in the type the quantized type
        expresses."""
        expressed = round_to_dtype(x, self.quant.express.carrier)
        mapping = self._chosen(expressed) if self.quant.dynamic else self._map()
        quantized = quantize(expressed, mapping, self.manner.resolve(quantize_query(self.quant)))
        back = dequantize(quantized, mapping, self.manner.resolve(dequantize_query(self.quant)))
        return _wide(back)
