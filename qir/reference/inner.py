"""Ops that round values within themselves, to what their inner slots say.

Operands that are codes become reals first, results that are to be codes are quantized last, both
as a profile has it: what the op's float form computes between dequantize and quantize.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.dtype import DType
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import Element, QuantType
from qir.numerics import (
    Map,
    Profile,
    Query,
    Rule,
    dequantize,
    map_of,
    numbers_for,
    profile,
    quantize,
)
from qir.reference.operands import narrow, wide
from qir.reference.table import FUNCTIONS, Operands

Tensor = NDArray[np.generic]
Wide = NDArray[np.float64]
WITHIN = frozenset({"rnn", "lstm", "gru", "attention"})
"""Ops whose functions take what rounds at each place."""


def run(node: Node, operands: Operands, profile_name: str) -> tuple[Tensor, ...]:
    """One such op on reals and codes; OpError for numbers of a map that nothing gives."""
    row, manner = spec(node.op), profile(profile_name)
    beside = {slot: data for slot, data in operands.items() if row.slot(slot) is None}
    given: dict[str, Tensor] = {}
    for slot, data in operands.items():
        if slot not in beside:
            quant = node.operands[slot].type.quant
            real = None if quant is None else _Place(manner, quant, slot, beside)
            given[slot] = data if real is None else real.reals(data)
    inner: dict[str, Callable[[Wide], Wide]] = {
        name: _rounding(manner, element, name, beside) for name, element in node.inner.items()
    }
    made = FUNCTIONS[node.op](**given, **node.attrs, inner=inner)
    results = made if isinstance(made, tuple) else (made,)
    out: list[Tensor] = []
    for i, (value, data) in enumerate(zip(node.results, results, strict=True)):
        quant = value.type.quant
        name = "" if i == 0 else f"result {i}"
        out.append(data if quant is None else _Place(manner, quant, name, beside).codes(data))
    return tuple(out)


def _rounding(
    manner: Profile, element: Element, name: str, beside: Operands
) -> Callable[[Wide], Wide]:
    if isinstance(element, DType):
        kind = element.carrier
        return lambda x: wide(narrow(x, kind)).astype(np.float64, copy=False)
    place = _Place(manner, element, name, beside)
    return place.rounded


@dataclass(frozen=True, slots=True)
class _Place:
    """A map under a profile, where it stands, and the numbers that come beside it."""

    manner: Profile
    quant: QuantType
    name: str
    beside: Mapping[str, Tensor]

    def _rule(self, op: str) -> Rule:
        storage = str(self.quant.storage)
        grain = "channel" if self.quant.grain else "tensor"
        query = Query(op, {"x": storage, "result": storage}, grain)
        return self.manner.resolve(query)

    def _map(self, x: Tensor | None = None) -> Map:
        """The map; one that is computed has its numbers beside it, or from x."""
        if not self.quant.dynamic:
            return map_of(self.quant)
        found = [self.beside.get(f"{self.name}.{n}" if self.name else n) for n in ("scale", "zero")]
        if found[0] is None and x is not None:
            return self._chosen(x)
        if found[0] is None:
            raise OpError(f"{self.name or 'the result'} is {self.quant}, and nothing gives a scale")
        return map_of(self.quant, scale=found[0], zero=found[1])

    def _chosen(self, x: Tensor) -> Map:
        """The map for the range that x has, as the profile chooses it."""
        quant = self.quant
        if quant.grain is not None or not x.size:
            raise OpError(f"{self.name} is {quant}: only one scale of some elements is computed")
        scheme = Scheme(quant.storage, quant.zero is not None, "tensor", quant.bounds)
        numbers = numbers_for(self.manner, x.min(), x.max(), scheme)
        scale = numbers[0] if quant.scale is None else None
        return map_of(quant, scale=scale, zero=numbers[1] if quant.zero is None else None)

    def reals(self, codes: Tensor) -> Tensor:
        """What codes mean."""
        return dequantize(codes, self._map(), self._rule("dequantize"))

    def codes(self, x: Tensor) -> Tensor:
        """The codes of reals."""
        return quantize(x, self._map(), self._rule("quantize"))

    def rounded(self, x: Wide) -> Wide:
        """The reals that codes of x mean, x itself first in the type the map expresses."""
        real = narrow(x, self.quant.express.carrier)
        of = self._map(real)
        back = dequantize(quantize(real, of, self._rule("quantize")), of, self._rule("dequantize"))
        return wide(back).astype(np.float64, copy=False)
