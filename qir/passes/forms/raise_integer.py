"""Rewrites sums of integers that are scaled once as float products of dequantized values.

    graph main as native {
      %x = input() : 2x4x!quant.uniform<u8:f32, 0.5:3>
      %x.raw = recode(%x) : 2x4xu8
      %w_1 = constant(@w_1) : 4x3xi8
      %x.zero = constant(3) : u8
      %y.sum = matmul_integer(%x.raw, %w_1, a.zero=%x.zero) : 2x3xi32
      %y.real = cast(%y.sum) {to = f32} : 2x3xf32
      %y.scale = constant(0.5) : f32
      %y.scale_1 = constant(0.25) : f32
      %y.scales = mul(%y.scale, %y.scale_1) : f32
      %y = mul(%y.real, %y.scales) : 2x3xf32
      output(y=%y)
    }

By `raise-integer` it becomes:

    graph main as native {
      %x = input() : 2x4x!quant.uniform<u8:f32, 0.5:3>
      %dequantize = dequantize(%x) : 2x4xf32
      %w_1.codes = constant(@w_1.codes) : 4x3x!quant.uniform<i8:f32, 0.25>
      %dequantize_1 = dequantize(%w_1.codes) : 4x3xf32
      %y = matmul(%dequantize, %dequantize_1) : 2x3xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.analysis.int32_overflow import overflow_text
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change, Ledger
from qir.rewrite import REGROUPED, Pass
from qir.rewrite.runner.filter import may

_SLOTS = {"matmul_integer": ("a", "b"), "conv_integer": ("x", "w")}
_Numbers = NDArray[np.generic]


@dataclass(frozen=True, slots=True)
class _Chain:
    """A sum of raw integers, and what dequantizes it."""

    sum: Node
    made: Value
    """The float values, without a bias."""
    factors: tuple[_Numbers, ...]
    """What the sum is multiplied by: the scales in any order, or their product."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a product: raw integers, and the integers of which they are, where any
    are known."""

    raw: Value
    codes: Value | None
    zeros: _Numbers | None
    perm: tuple[int, ...] = ()
    """How the quantized values are turned before they are summed."""

    @property
    def quant(self) -> QuantType | None:
        return None if self.codes is None else self.codes.type.quant


@dataclass(frozen=True)
class RaiseInteger(Pass):
    """Rewrites `matmul_integer` and `conv_integer` with constant scales as float products.

    What `lower-integer` makes, and any sum of 8-bit integers that is cast to f32 and multiplied by
    constants alone, becomes dequantize, dequantize and the product, with the bias that follows a
    convolution, or one in accumulator units that follows a matrix product. The same float values,
    rounded in other places. The scales stand apart, or those of the data are known from their
    quantized values; zero points are constants, and those of the data are their quantized values';
    sum, cast and products have no other use. A sum that some input takes beyond 32 bits stays as it
    is: it wraps, float values continue.
    """

    name = "raise-integer"
    tolerance = REGROUPED

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op not in _SLOTS or (chain := _chain(node)) is None:
                continue
            sides = [_side(node, slot) for slot in _SLOTS[node.op]]
            known = [s for s in sides if s is not None]
            if len(known) < len(sides) or (quants := _quants(chain, *known)) is None:
                continue
            if said := overflow_text(graph, node):
                ledger.add(Change.EXACT, self.name, node.name, f"stays a sum of integers: {said}")
                continue
            if not may(self.name, f"raise {node.op}", node):
                continue
            name = _raise(graph, chain, list(zip(known, quants, strict=True)))
            reason = "a sum of integers scaled once is a product of dequantized values"
            ledger.add(Change.REGROUPED, self.name, name, reason)
            count += 1
        return count + (graph.prune() if count else 0)

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of raw integers whose scales are constants."""
        text = (
            "graph main as native {\n  %x = input() : (B)x3xf32\n"
            "  %w = constant([1, -2, 3, 4, 5, 6]) : 3x2xi8\n  %z = constant(128) : u8\n"
            "  %q = quantize(%x) : (B)x3x!quant.uniform<u8:f32, 0.125:128>\n"
            "  %r = recode(%q) : (B)x3xu8\n  %p = matmul_integer(%r, %w, a.zero=%z) : (B)x2xi32\n"
            "  %f = cast(%p) {to = f32} : (B)x2xf32\n"
            "  %s = constant([0.0625, 0.03125]) : 2xf32\n"
            "  %y = mul(%f, %s) : (B)x2xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)


# -- what is found --------------------------------------------------------------------------------


def _next(value: Value, op: str) -> Node | None:
    """Returns the only use of a value, where it is such an op."""
    nodes = [use.node for use in value.uses]
    return nodes[0] if len(nodes) == 1 and nodes[0].op == op else None


def _chain(node: Node) -> _Chain | None:
    cast = _next(node.result, "cast")
    if cast is None or cast.attrs["to"] != F32:
        return None
    made, factors = cast.result, list[_Numbers]()
    while (times := _next(made, "mul")) is not None and len(factors) < 2:
        found = _factors(_other(times, made))
        if not found:
            break
        made, factors = times.result, [*factors, *found]
    return _Chain(node, made, tuple(factors)) if factors else None


def _other(node: Node, value: Value) -> Value:
    a, b = node.operands["a"], node.operands["b"]
    return b if a is value else a


def _factors(value: Value) -> list[_Numbers]:
    """Returns the constants of which a value is the product; none where it is no such product."""
    if value.node.op != "mul":
        array = value.constant
        return [array.data] if array is not None and array.type.element == F32 else []
    parts = [_factors(each) for each in value.node.operands.values()]
    return [data for part in parts for data in part] if all(parts) else []


def _side(node: Node, slot: str) -> _Side | None:
    """Raw integers of 8 bits, and their constant zero points."""
    given, raw = node.operands.get(f"{slot}.zero"), node.operands[slot]
    zeros = None if given is None else given.constant
    if given is not None and (zeros is None or zeros.type.quant is not None):
        return None
    held = None if zeros is None else zeros.data
    source, perm = raw.node, tuple[int, ...]()
    if source.op == "transpose" and (turned := source.attrs["perm"]):
        assert isinstance(turned, tuple)
        source = source.operands["x"].node
        perm = tuple(axis for axis in turned if isinstance(axis, int))
    if source.op != "recode" or source.result.type.element != raw.type.element:
        return _Side(raw, None, held)
    codes = source.operands["x"]
    quant = codes.type.quant
    if quant is None:
        return _Side(raw, None, held)
    odd = quant.kind != "uniform" or quant.plus is not None or quant.has_float_zero
    if quant.dynamic or odd or quant.express != F32 or quant.storage != raw.type.element:
        return None
    return _Side(raw, codes, held, perm)


# -- the maps that the numbers say ----------------------------------------------------------------


def _quants(chain: _Chain, x: _Side, w: _Side) -> tuple[QuantType, QuantType] | None:
    """Returns the maps of both sides, where there are two whose scales multiply to what is
    there."""
    data, left = _known(x, None), list(chain.factors)
    if x.codes is None and len(left) > 1:
        # Of two scales the first is the data's, as runtimes write them; float values are the same.
        one = next((f for f in left if f.size == 1), None)
        data = None if one is None else _map(x, one.reshape(()), None, None)
    rest = None if data is None else _rest(np.float32(data.scales()), left)
    if data is None or rest is None:
        return None
    along = _along(chain.sum)
    scales = _row(rest, chain.sum, _spread(chain.sum))
    if scales is None:
        return None
    if w.codes is None:
        weights = _map(w, scales, along, chain.sum)
    else:
        weights = _known(w, along)
        if weights is not None and not _equal(np.asarray(weights.scales()), scales):
            weights = None
    return None if weights is None else (data, weights)


def _known(side: _Side, along: int | None) -> QuantType | None:
    """Returns the quantized type of integers, where the sum takes off its zero points and its
    scales are as they may."""
    quant = side.quant
    if quant is None or (quant.granularity is not None and along is None):
        return None
    axis = quant.axis
    if axis is not None and side.perm:
        axis = side.perm.index(axis)
    if quant.granularity is not None and axis != along:
        return None
    zeros = np.zeros((), np.int64) if side.zeros is None else side.zeros.astype(np.int64)
    return quant if _equal(np.asarray(quant.zeros(), np.int64), zeros) else None


def _equal(one: _Numbers, other: _Numbers) -> bool:
    """Returns whether numbers are the same, one for all being so many."""
    if one.size != other.size and 1 not in (one.size, other.size):
        return False
    return bool((one.reshape(-1) == other.reshape(-1)).all())


def _rest(scale: np.float32, factors: list[_Numbers]) -> _Numbers | None:
    """Returns what else the sum is multiplied by."""
    at = next((i for i, f in enumerate(factors) if f.size == 1 and f.reshape(()) == scale), None)
    left = [f for i, f in enumerate(factors) if i != at]
    if not left:
        return None
    product = left[0]
    for each in left[1:]:
        product = np.multiply(product, each, dtype=np.float32)
    return _quotient(product, scale) if at is None else product


def _quotient(product: _Numbers, scale: np.float32) -> _Numbers | None:
    """Numbers whose products with a scale are those in float32; None where there are none."""
    with np.errstate(all="ignore"):
        near = np.asarray(product.astype(np.float64) / np.float64(scale)).astype(np.float32)
        tried = (near, np.nextafter(near, np.float32(0)), np.nextafter(near, np.float32(np.inf)))
        out = near
        for each in reversed(tried):
            out = np.where(each * scale == product, each, out)
        right = bool((out * scale == product).all() and np.isfinite(out).all())
    return np.asarray(out, np.float32) if right else None


def _along(node: Node) -> int:
    rank = node.operands[_SLOTS[node.op][1]].type.rank
    return rank - 1 if node.op == "matmul_integer" else 0


def _spread(node: Node) -> int:
    """Returns how many axes are after that of the channels."""
    return node.result.type.rank - 2 if node.op == "conv_integer" else 0


def _row(held: _Numbers, node: Node, behind: int) -> _Numbers | None:
    """Returns one number, or one an output channel; None for others."""
    if held.size == 1:
        return held.reshape(())
    count = node.operands[_SLOTS[node.op][1]].type.shape[_along(node)]
    wanted = (count, *(1,) * behind)
    lined = held.size == count and held.shape[-len(wanted) :] == wanted
    return held.reshape(-1) if lined else None


def _map(side: _Side, scales: _Numbers, along: int | None, node: Node | None) -> QuantType | None:
    """Returns the quantized type of raw integers by the numbers next to them."""
    zeros = np.zeros((), np.int64) if side.zeros is None else side.zeros.astype(np.int64)
    row: _Numbers | None = zeros.reshape(()) if zeros.size == 1 else None
    if row is None and node is not None and node.op == "matmul_integer":
        row = _row(zeros, node, 0)
    if row is None or not (np.greater(scales, 0) & np.isfinite(scales)).all():
        return None
    several = scales.ndim or row.ndim
    if several:
        scales, row = np.broadcast_arrays(scales, row)
    storage = side.raw.type.dtype
    axis = along if several else None
    return uniform(
        storage, np.asarray(scales, np.float32), row.astype(np.int64), axis=axis, name=side.raw.name
    )


# -- what stands instead --------------------------------------------------------------------------


def _raise(graph: Graph, chain: _Chain, sides: list[tuple[_Side, QuantType]]) -> str:
    """Puts float values between integers in a chain's place; gives the name of what they make."""
    node = chain.sum
    reals = [_real(graph, node, side, quant) for side, quant in sides]
    operands = dict(zip(_SLOTS[node.op], reals, strict=True))
    last, bias = _bias(graph, chain, [q for _, q in sides])
    old = chain.made if last is None else last.result
    if node.op == "conv_integer":
        axes = node.result.type.rank - 2
        op, attrs = f"conv{axes}d", _conv_attrs(node, axes)
        operands |= {} if bias is None else {"bias": bias}
    else:
        op, attrs = "matmul" if bias is None else "gemm", dict[str, Attr]()
        operands |= {} if bias is None else {"c": bias}
    place = old.node
    made = graph.add(
        op, operands, attrs, before=place, origins=node.origins, profile=place.profile
    ).result
    graph.substitute(place, made)
    return made.name


def _conv_attrs(node: Node, axes: int) -> dict[str, Attr]:
    usual = {"stride": (1,) * axes, "pad": (0,) * (2 * axes), "dilation": (1,) * axes}
    given: dict[str, Attr] = {name: node.attrs[name] or value for name, value in usual.items()}
    return {**given, "groups": node.attrs["groups"]}


def _real(graph: Graph, node: Node, side: _Side, quant: QuantType) -> Value:
    """Returns the float values of one side, turned as the raw integers were."""
    codes = side.codes or _coded(graph, node, side.raw, quant)
    known = (u for u in codes.users if u.op == "dequantize" and u.precedes(node))
    old = next(known, None)
    real = old.result if old else graph.add("dequantize", {"x": codes}, before=node).result
    if not side.perm:
        return real
    return graph.add("transpose", {"x": real}, {"perm": side.perm}, before=node).result


def _coded(graph: Graph, node: Node, raw: Value, quant: QuantType) -> Value:
    """Raw integers as quantized values."""
    kind = raw.type.with_element(quant)
    if (array := raw.constant) is None:
        name = graph.fresh(f"{raw.name}.codes")
        return graph.add("recode", {"x": raw}, types=[kind], name=name, before=node).result
    held = Array(array.contents, kind, array.name)
    made = graph.constant(held, name=graph.fresh(f"{raw.name}.codes"), before=node)
    graph.set_origins(made.node, raw.node.origins)
    graph.set_lineage(made, raw.lineage)
    return made


def _bias(graph: Graph, chain: _Chain, quants: list[QuantType]) -> tuple[Node | None, Value | None]:
    """Returns the sum with a bias that belongs to the product, and the bias with one axis."""
    node, added = chain.sum, _next(chain.made, "add")
    if added is None or added.result.type != chain.made.type:
        return None, None
    value = _other(added, chain.made)
    if value is chain.made:
        return None, None
    count = node.operands[_SLOTS[node.op][1]].type.shape[_along(node)]
    if node.op == "matmul_integer":
        whole = chain.made.type.rank == 2 and value.type.shape == (count,)
        return (added, value) if whole and _counted(value, quants) else (None, None)
    wanted = (count, *(1,) * _spread(node))
    if value.type.element != F32 or value.type.shape[-len(wanted) :] != wanted:
        return None, None
    if any(d != 1 for d in value.type.shape[: -len(wanted)]):
        return None, None
    source = value.node.operands["x"] if value.node.op == "reshape" else None
    if source is not None and source.type.shape == (count,):
        return added, source
    if (array := value.constant) is None:
        return None, None
    name = graph.fresh(f"{value.name}.row")
    made = graph.constant(Array.of(array.data.reshape(-1), name), name=name, before=node)
    graph.set_origins(made.node, value.node.origins)
    graph.set_lineage(made, value.lineage)
    return added, made


def _counted(value: Value, quants: list[QuantType]) -> bool:
    """Returns whether floats are 32-bit integers in the unit of an accumulator, as a product adds
    them."""
    codes = value.node.operands["x"] if value.node.op == "dequantize" else None
    quant = None if codes is None else codes.type.quant
    if quant is None or quant.dynamic or quant.storage != I32 or quant.zeros().any():
        return False
    one, other = (np.asarray(q.scales(), np.float32) for q in quants)
    return _equal(np.asarray(quant.scales(), np.float32), one * other)
