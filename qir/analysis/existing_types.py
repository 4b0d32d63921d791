"""Quantized types that a model has before it is planned, and how new ops use them."""

from __future__ import annotations

from collections.abc import Container, Sequence, Set
from dataclasses import replace

import numpy as np

from qir.analysis.quantized_regions import (
    about_codes,
    behind_sums,
    coded,
    decoded,
    gives_numbers,
    source,
    suits,
)
from qir.ir.dtype import I8, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.scheme import Scheme
from qir.ir.types import QuantType

_WHOLE = frozenset(
    {"reshape", "flatten", "transpose", "squeeze", "unsqueeze", "depth_to_space", "expand", "tile"}
)
"""Ops that move elements and leave none out."""
_HALF = 128
"""How far unsigned integers of eight bits are above signed ones."""


def settled(node: Node, on_codes: bool) -> bool:
    """Returns whether an op is no more to plan: it works on quantized values, or makes or applies
    their numbers.

    A product whose weights are quantized is left as it is, whatever its data are.
    """
    if on_codes or about_codes(node) or behind_sums(node) or gives_numbers(node):
        return True
    traits = spec(node.op).traits
    weight, data = node.operands.get(traits.weight or ""), node.operands.get(traits.data)
    if weight is None or not decoded(weight):
        return False
    return weight.node.operands["x"].constant is not None or (data is not None and decoded(data))


def before_codes(graph: Graph, moves: Container[str]) -> set[Value]:
    """Returns the values that are quantized as they are, or once their elements are moved."""
    out: set[Value] = set()
    for node in reversed(graph):
        out.update(v for v in node.results if coded(v))
        if node.op in moves and not out.isdisjoint(node.results):
            out.add(node.operands[spec(node.op).traits.data])
    return out


def leaves_out(node: Node, before: Set[Value]) -> bool:
    """Returns whether others read elements that an op does not move to the quantized values after
    it: they may be beyond the quantized type of these."""
    if node.op in _WHOLE or before.isdisjoint(node.results):
        return False
    return len(node.results) > 1 or node.operands[spec(node.op).traits.data].only_use is None


def held_map(value: Value) -> QuantType | None:
    """Returns the quantized type that a value is read from or stored as, if it has any.

    Types whose parameters are computed at run time are left to the readers.
    """
    maps = source(value) or [m for m in coded(value) if not m.dynamic]
    return next((m for m in maps if _plain(m)), maps[0] if maps else None)


def takes(allowed: Sequence[Scheme], quant: QuantType) -> bool:
    """Returns whether a slot takes integers that are there, or those of the other sign that mean
    the same."""
    maps = [quant, _turned(quant)] if _plain(quant) else []
    return any(m is not None and suits(m, a) for m in maps for a in allowed)


def kept(allowed: Sequence[Scheme], quant: QuantType, *, first: bool) -> Scheme:
    """Returns the scheme whose quantized values are those that are there, as a slot takes them: as
    they are, or of the other sign. `first` asks for the storage that the slot likes best."""
    likes = [a for a in allowed if not first or a.storage == allowed[0].storage]
    fits = any(suits(quant, a) for a in likes)
    found = quant if fits else _turned(quant) or quant
    scale, zero = float(np.float32(found.scales())), int(np.asarray(found.zeros()))
    even = found.storage == I8 and zero == 0
    return Scheme(found.storage, even, bounds=found.bounds, scale=scale, zero=zero)


def _plain(quant: QuantType) -> bool:
    uniform = quant.kind == "uniform" and quant.granularity is None and not quant.dynamic
    return uniform and quant.storage in (I8, U8) and not quant.has_float_zero and quant.plus is None


def _turned(quant: QuantType) -> QuantType | None:
    """Returns the same float values by quantized values of the other sign."""
    if not _plain(quant):
        return None
    step = _HALF if quant.storage == I8 else -_HALF
    bounds = (quant.low + step, quant.high + step) if quant.bounds else None
    zero = (int(np.asarray(quant.zeros())) + step,)
    return replace(quant, storage=U8 if step > 0 else I8, zero=zero, bounds=bounds)
