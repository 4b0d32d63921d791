"""Rewrites sums of integers between a quantize and a scaling as products of quantized values.

    graph main as native {
      %x = input() : 2x4xf32
      %s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
      %q = quantize(%x, scale=%s, zero=%z) : 2x4x!quant.uniform<u8:f32, ?:?>
      %q.raw = recode(%q) : 2x4xu8
      %w_1 = constant(@w_1) : 4x3xi8
      %y.sum = matmul_integer(%q.raw, %w_1, a.zero=%z) : 2x3xi32
      %y.real = cast(%y.sum) {to = f32} : 2x3xf32
      %y.scale = constant(0.25) : f32
      %y.scales = mul(%s, %y.scale) : f32
      %y = mul(%y.real, %y.scales) : 2x3xf32
      output(y=%y)
    }

By `lift-dynamic` it becomes:

    graph main as native {
      %x = input() : 2x4xf32
      %s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
      %q = quantize(%x, scale=%s, zero=%z) : 2x4x!quant.uniform<u8:f32, ?:?>
      %w_1.codes = constant(@w_1.codes) : 4x3x!quant.uniform<i8:f32, 0.25>
      %y = matmul(%q, %w_1.codes, a.scale=%s, a.zero=%z) : 2x3xf32
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from qir.analysis.int32_overflow import profile_name_of
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, uniform
from qir.ledger import Change
from qir.numerics import Rule
from qir.profiles import profile, query_for_op
from qir.rewrite import Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Op, Ops, Pattern, Term, Var, pattern
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite
from qir.rewrite.runner.tolerance import EXACT

_WEIGHTS = {"matmul_integer": "b", "conv_integer": "w"}
_DATA = {"matmul_integer": "a", "conv_integer": "x"}
_ORDERS = ("(x*w)/y", "x*(w/y)", "(x*w)*(1/y)")
"""Orders in which a float result is the sum times the product of both scales."""
_LAID = ("reshape", "unsqueeze", "squeeze")
"""What may give the product of both scales other axes."""


def _scaled(op: Ops, total: Op) -> Either:
    """float(sum) * (scale of the data * scale of the weights), and a bias."""
    real = op.cast(total.named("sum")).named("real")
    scale = op.mul(Var("scale"), Var("weights")).named("scales")
    laid = op.any_of(*_LAID)(scale, ...).named("laid")
    made = op.mul(real, scale | laid)
    return op.add(made, Var("bias").where("constant")) | made


@pattern
def integer_product(op: Ops) -> Term:
    """matmul_integer of raw integers and constant weights, made a float and scaled."""
    return _scaled(op, op.matmul_integer(Var("data"), Var("held").where("constant"), ...))


@pattern
def integer_conv(op: Ops) -> Term:
    """conv_integer of raw integers and constant weights, made a float and scaled."""
    return _scaled(op, op.conv_integer(Var("data"), Var("held").where("constant"), ...))


# -- the conditions, each by its name -------------------------------------------------------------


def _to_f32(match: Match) -> bool:
    return match.node("real").attrs["to"] == F32


def _codes(match: Match) -> Value | None:
    """Returns the quantized values of the data, of which the sum reads the raw numbers."""
    node = match["data"].node
    x = node.operands.get("x") if node.op == "recode" else None
    quant = None if x is None else x.type.quant
    if quant is None or x is None or quant.storage != match["data"].type.element:
        return None
    whole = quant.kind == "uniform" and quant.granularity is None and quant.plus is None
    return x if whole and quant.dynamic and quant.express == F32 else None


def _numbers(match: Match) -> dict[str, Value]:
    """Scale and zero by which the data were quantized."""
    codes = _codes(match)
    assert codes is not None
    found = codes.node.operands
    return {name: found[name] for name in ("scale", "zero") if name in found}


def _raw(match: Match) -> bool:
    codes = _codes(match)
    return codes is not None and codes.node.op == "quantize" and "scale" in codes.node.operands


def _own_numbers(match: Match) -> bool:
    """Returns whether the sum takes off the zero, and the product has the scale, of this
    quantize."""
    node, own = match.node("sum"), _numbers(match)
    slot = f"{_DATA[node.op]}.zero"
    return node.operands.get(slot) is own.get("zero") and match["scale"] is own["scale"]


def _columns(match: Match) -> int:
    """Returns how many output channels the weights have; 0 where they are no matrix and no
    filter."""
    node, held = match.node("sum"), match["held"].constant
    rank = match["data"].type.rank
    assert held is not None
    if node.op == "matmul_integer":
        return int(held.contents.shape[1]) if held.contents.ndim == 2 and rank >= 2 else 0
    return int(held.contents.shape[0]) if held.contents.ndim == rank and 3 <= rank <= 5 else 0


def _one_or_row(data: NDArray[np.generic], shape: Shape, wanted: Shape) -> bool:
    """Returns whether numbers that are laid in a shape are one, or one an output channel."""
    return data.size == 1 or (shape[-len(wanted) :] == wanted and data.size == wanted[0])


def _held(value: Value | None) -> NDArray[np.generic] | None:
    """Constant numbers that are not quantized."""
    held = None if value is None else value.constant
    return None if held is None or held.type.quant else held.data


def _behind(match: Match) -> Shape:
    """Returns the axes that numbers of the channels have in the result."""
    conv = match.node("sum").op == "conv_integer"
    return (_columns(match), *(1,) * (match["data"].type.rank - 2 if conv else 0))


def _row(data: NDArray[np.generic]) -> NDArray[np.generic]:
    return data.reshape(() if data.size == 1 else -1)


def _zeros(match: Match) -> NDArray[np.generic] | None:
    """Returns the constant zero points of the weights: one, or one a channel; None for others."""
    node = match.node("sum")
    data = _held(node.operands.get(f"{_WEIGHTS[node.op]}.zero"))
    if data is None or not _one_or_row(data, data.shape, (_columns(match),)):
        return None
    return _row(data)


def _scales(match: Match) -> NDArray[np.generic] | None:
    """Returns the constant scales of the weights, which are along the channels where they scale the
    sum."""
    data = _held(match["weights"])
    laid = (match.find("laid") or match.node("scales")).result.type.shape
    if data is None or len(laid) > match.node("sum").result.type.rank:
        return None
    return _row(data) if _one_or_row(data, laid, _behind(match)) else None


def _weights(match: Match) -> bool:
    """Returns whether scales and zeros of the weights are constants that are along the channels."""
    node = match.node("sum")
    known = f"{_WEIGHTS[node.op]}.zero" not in node.operands or _zeros(match) is not None
    return bool(_columns(match)) and known and _scales(match) is not None


def _bias(match: Match) -> bool:
    value = match.get("bias")
    data = _held(value)
    if value is None or data is None:
        return value is None
    fits = data.ndim <= match.node("sum").result.type.rank and data.size == _columns(match)
    lined = _one_or_row(data, data.shape, _behind(match))
    return value.type.element == F32 and fits and lined and data.ndim > 0


_CONDITIONS: tuple[tuple[str, Callable[[Match], bool]], ...] = (
    ("the sum is cast to f32", _to_f32),
    ("the data are raw integers of a quantize whose parameters are computed, per tensor", _raw),
    ("zero and scale are those of that quantize", _own_numbers),
    ("the weights' parameters are constants, per tensor or per output channel", _weights),
    ("the bias is one f32 an output channel", _bias),
)


# -- what stands instead --------------------------------------------------------------------------


def _same_bytes(rule: Rule, *, bias: bool) -> bool:
    """Returns whether a profile computes float(sum) * (scale * scale) + bias, each step rounded to
    f32."""
    r, acc = rule.requant, rule.acc
    scale = r.compute == "f32" and r.scales == "given" and r.order in _ORDERS
    exact = acc.type == "i32" and acc.overflow == "wrap" and acc.pairs == "exact"
    image = rule.method is None or rule.method.name == "as_conv2d"
    plain = image and rule.weights.given == "codes" and rule.params.round == "none"
    return scale and exact and plain and acc.pad == "zero_point" and not (bias and _fused(rule))


def _fused(rule: Rule) -> bool:
    return rule.bias.by == "fma" or rule.requant.input == "acc_then_bias"


def _quantized(match: Match, node: Node) -> QuantType:
    """Returns the quantized type of the weights, from the numbers next to them."""
    held, axis = match["held"], 1 if node.op == "matmul_integer" else 0
    zero, scales = _zeros(match), _scales(match)
    zeros = np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
    assert scales is not None
    several = scales.ndim or zeros.ndim
    if several:
        scales, zeros = np.broadcast_arrays(scales, zeros)
    name = held.name
    steps = scales.astype(np.float32)
    return uniform(held.type.dtype, steps, zeros, axis=axis if several else None, name=name)


def _replace(graph: Graph, match: Match) -> Value | None:
    node, codes = match.node("sum"), _codes(match)
    assert codes is not None
    quant = _quantized(match, node)
    storage = {"matmul_integer": ("a", "b"), "conv_integer": ("x", "w")}[node.op]
    op = "matmul" if node.op == "matmul_integer" else f"conv{match['data'].type.rank - 2}d"
    attrs, weights_type = _attrs(node), match["held"].type.with_element(quant)
    kinds = dict(zip(storage, (codes.type, weights_type), strict=True))
    query = query_for_op(op, spec(op).complete_attrs(attrs), kinds, None)
    bias = match.get("bias")
    holder = profile_name_of(graph, node)
    if not holder or not _same_bytes(profile(holder).resolve(query), bias=bias is not None):
        return None
    held = match["held"]
    array = held.constant
    assert array is not None
    made = Array(array.contents, weights_type, held.name)
    weights = graph.constant(made, name=graph.fresh(f"{held.name}.codes"))
    graph.set_origins(weights.node, held.node.origins)
    graph.set_lineage(weights, held.lineage.then("coded"))
    data, weight = storage
    operands = {data: codes, weight: weights}
    operands |= {f"{data}.{name}": value for name, value in _numbers(match).items()}
    if bias is not None:
        operands["bias"] = _lined(graph, bias)
    return graph.add(op, operands, attrs).result


def _lined(graph: Graph, bias: Value) -> Value:
    """Returns a bias of one axis."""
    data = _held(bias)
    assert data is not None
    if bias.type.rank == 1:
        return bias
    return graph.constant(data.reshape(-1), name=graph.fresh(bias.name))


def _attrs(node: Node) -> dict[str, Attr]:
    if node.op == "matmul_integer":
        return {}
    axes = node.result.type.rank - 2
    usual = {"stride": (1,) * axes, "pad": (0,) * (2 * axes), "dilation": (1,) * axes}
    given = {name: node.attrs[name] or value for name, value in usual.items()}
    return {**given, "groups": node.attrs["groups"]}


def _rewrite(wanted: Pattern) -> Rewrite:
    for words, holds in _CONDITIONS:
        wanted = wanted.check(words, holds)
    return Rewrite(wanted, _replace, Change.EXACT, "{nodes} is a quantized product")


@dataclass(frozen=True)
class LiftDynamic(PatternPass):
    """Rewrites `matmul_integer` and `conv_integer` between quantize and scaling as quantized ops.

    `mul(cast(matmul_integer(recode(q), w, a.zero=z, b.zero=wz)), mul(s, ws)) + bias` becomes
    `matmul(q, codes, a.scale=s, a.zero=z, bias=bias)`, byte for byte, where

    - `q` is a quantize whose scale s and zero z are values, one each for the whole tensor;
    - the sum takes off that very z, and is multiplied by that very s, first with the scale of the
      weights and then with the sum: in another order other bits come out;
    - the weights, their scales and zeros are constants, one each or one an output channel; the
      bias is a constant of one f32 an output channel;
    - the product of the scales may have got axes of one element after that of the channels;
    - sum, cast, scales and product have no other use, and follow one profile;
    - the profile sums in 32 bits that wrap, scales in f32 in that order, and adds a bias after.
    """

    name = "lift-dynamic"
    tolerance = EXACT
    rewrites = (_rewrite(integer_product), _rewrite(integer_conv))

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of raw integers whose scale is computed."""
        text = (
            "graph main as native {\n  %a = input() : (B)x4xf32\n"
            "  %w = constant([1, -2, 3, 4]) : 4x1xi8\n  %ws = constant(0.0125) : f32\n"
            '  %s, %z = choose_qparams(%a) {rule = "onnx.dynamic", storage = u8} : f32, u8\n'
            "  %q = quantize(%a, scale=%s, zero=%z) : (B)x4x!quant.uniform<u8:f32, ?:?>\n"
            "  %i = recode(%q, x.scale=%s, x.zero=%z) : (B)x4xu8\n"
            "  %p = matmul_integer(%i, %w, a.zero=%z) : (B)x1xi32\n"
            "  %f = cast(%p) {to = f32} : (B)x1xf32\n  %m = mul(%s, %ws) : f32\n"
            "  %y = mul(%f, %m) : (B)x1xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)
