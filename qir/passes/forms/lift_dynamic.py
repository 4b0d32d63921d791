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
from qir.profiles import profile_in, query_for_op
from qir.rewrite import Pass
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.pattern import Either, Op, Ops, Pattern, Term, Var, pattern
from qir.rewrite.patterns.rewriting import PatternPass, Rewrite
from qir.rewrite.runner.tolerance import EXACT

_WEIGHTS = {"matmul_integer": "b", "conv_integer": "w"}
_DATA = {"matmul_integer": "a", "conv_integer": "x"}
_ORDERS = ("(x*w)/y", "x*(w/y)", "(x*w)*(1/y)")
"""Orders in which a float result is the sum times the product of both scales."""
_RESHAPING = ("reshape", "unsqueeze", "squeeze")
"""What may give the product of both scales other axes."""


def _scaled(op: Ops, total: Op) -> Either:
    """float(sum) * (scale of the data * scale of the weights), and a bias."""
    real = op.cast(total.named("sum")).named("real")
    scale = op.mul(Var("scale"), Var("weights")).named("scales")
    reshaped = op.any_of(*_RESHAPING)(scale, ...).named("laid")
    product = op.mul(real, scale | reshaped)
    return op.add(product, Var("bias").where("constant")) | product


@pattern
def integer_product(op: Ops) -> Term:
    """matmul_integer of raw integers and constant weights, made a float and scaled."""
    return _scaled(op, op.matmul_integer(Var("data"), Var("held").where("constant"), ...))


@pattern
def integer_conv(op: Ops) -> Term:
    """conv_integer of raw integers and constant weights, made a float and scaled."""
    return _scaled(op, op.conv_integer(Var("data"), Var("held").where("constant"), ...))


# -- the conditions, each by its name -------------------------------------------------------------


def _is_cast_to_f32(match: Match) -> bool:
    return match.node("real").attrs["to"] == F32


def _quantized_data(match: Match) -> Value | None:
    """Returns the quantized values of the data, of which the sum reads the raw numbers."""
    node = match["data"].node
    x = node.operands.get("x") if node.op == "recode" else None
    quant = None if x is None else x.type.quant
    if quant is None or x is None or quant.storage != match["data"].type.element:
        return None
    is_per_tensor = quant.kind == "uniform" and quant.granularity is None and quant.plus is None
    return x if is_per_tensor and quant.dynamic and quant.express == F32 else None


def _data_parameters(match: Match) -> dict[str, Value]:
    """Scale and zero by which the data were quantized."""
    quantized = _quantized_data(match)
    assert quantized is not None
    quantize_operands = quantized.node.operands
    return {
        name: quantize_operands[name] for name in ("scale", "zero") if name in quantize_operands
    }


def _has_computed_parameters(match: Match) -> bool:
    quantized = _quantized_data(match)
    return (
        quantized is not None
        and quantized.node.op == "quantize"
        and "scale" in quantized.node.operands
    )


def _uses_data_parameters(match: Match) -> bool:
    """Returns whether the sum takes off the zero, and the product has the scale, of this
    quantize."""
    node, parameters = match.node("sum"), _data_parameters(match)
    slot = f"{_DATA[node.op]}.zero"
    return (
        node.operands.get(slot) is parameters.get("zero") and match["scale"] is parameters["scale"]
    )


def _output_channels(match: Match) -> int:
    """Returns how many output channels the weights have; 0 where they are no matrix and no
    filter."""
    node, weights = match.node("sum"), match["held"].constant
    rank = match["data"].type.rank
    assert weights is not None
    if node.op == "matmul_integer":
        return int(weights.contents.shape[1]) if weights.contents.ndim == 2 and rank >= 2 else 0
    return int(weights.contents.shape[0]) if weights.contents.ndim == rank and 3 <= rank <= 5 else 0


def _is_one_or_per_channel(data: NDArray[np.generic], shape: Shape, wanted: Shape) -> bool:
    """Returns whether numbers that are laid in a shape are one, or one an output channel."""
    return data.size == 1 or (shape[-len(wanted) :] == wanted and data.size == wanted[0])


def _plain_constant(value: Value | None) -> NDArray[np.generic] | None:
    """Constant numbers that are not quantized."""
    constant = None if value is None else value.constant
    return None if constant is None or constant.type.quant else constant.data


def _channel_shape(match: Match) -> Shape:
    """Returns the axes that numbers of the channels have in the result."""
    conv = match.node("sum").op == "conv_integer"
    return (_output_channels(match), *(1,) * (match["data"].type.rank - 2 if conv else 0))


def _scalar_or_vector(data: NDArray[np.generic]) -> NDArray[np.generic]:
    return data.reshape(() if data.size == 1 else -1)


def _weight_zeros(match: Match) -> NDArray[np.generic] | None:
    """Returns the constant zero points of the weights: one, or one a channel; None for others."""
    node = match.node("sum")
    data = _plain_constant(node.operands.get(f"{_WEIGHTS[node.op]}.zero"))
    if data is None or not _is_one_or_per_channel(data, data.shape, (_output_channels(match),)):
        return None
    return _scalar_or_vector(data)


def _weight_scales(match: Match) -> NDArray[np.generic] | None:
    """Returns the constant scales of the weights, which are along the channels where they scale the
    sum."""
    data = _plain_constant(match["weights"])
    shape = (match.find("laid") or match.node("scales")).result.type.shape
    # Scales of more axes than the sum would give the result axes that it has not.
    if data is None or len(shape) > match.node("sum").result.type.rank:
        return None
    return (
        _scalar_or_vector(data)
        if _is_one_or_per_channel(data, shape, _channel_shape(match))
        else None
    )


def _has_constant_parameters(match: Match) -> bool:
    """Returns whether scales and zeros of the weights are constants that are along the channels."""
    node = match.node("sum")
    zeros_known = (
        f"{_WEIGHTS[node.op]}.zero" not in node.operands or _weight_zeros(match) is not None
    )
    return bool(_output_channels(match)) and zeros_known and _weight_scales(match) is not None


def _has_vector_bias(match: Match) -> bool:
    value = match.get("bias")
    data = _plain_constant(value)
    if value is None or data is None:
        return value is None
    fits = data.ndim <= match.node("sum").result.type.rank and data.size == _output_channels(match)
    is_aligned = _is_one_or_per_channel(data, data.shape, _channel_shape(match))
    return value.type.element == F32 and fits and is_aligned and data.ndim > 0


_CONDITIONS: tuple[tuple[str, Callable[[Match], bool]], ...] = (
    ("the sum is cast to f32", _is_cast_to_f32),
    (
        "the data are raw integers of a quantize whose parameters are computed, per tensor",
        _has_computed_parameters,
    ),
    ("zero and scale are those of that quantize", _uses_data_parameters),
    (
        "the weights' parameters are constants, per tensor or per output channel",
        _has_constant_parameters,
    ),
    ("the bias is one f32 an output channel", _has_vector_bias),
)


# -- what stands instead --------------------------------------------------------------------------


def _computes_same_bytes(rule: Rule, *, bias: bool) -> bool:
    """Returns whether a profile computes float(sum) * (scale * scale) + bias, each step rounded to
    f32."""
    requant, acc = rule.requant, rule.acc
    scales_alike = (
        requant.compute == "f32" and requant.scales == "given" and requant.order in _ORDERS
    )
    # The integer ops of ONNX wrap; kernels that saturate pairs give other sums.
    sums_exactly = acc.type == "i32" and acc.overflow == "wrap" and acc.pairs == "exact"
    is_plain_method = rule.method is None or rule.method.name == "as_conv2d"
    is_plain = is_plain_method and rule.weights.given == "codes" and rule.params.round == "none"
    return (
        scales_alike
        and sums_exactly
        and is_plain
        # ConvInteger pads with the zero point, which stands for 0.
        and acc.pad == "zero_point"
        and not (bias and _fuses_bias(rule))
    )


def _fuses_bias(rule: Rule) -> bool:
    # The nodes round the product before the bias is added; these rules round once.
    return rule.bias.by == "fma" or rule.requant.input == "acc_then_bias"


def _weight_type(match: Match, node: Node) -> QuantType:
    """Returns the quantized type of the weights, from the numbers next to them."""
    weights, axis = match["held"], 1 if node.op == "matmul_integer" else 0
    zero, scales = _weight_zeros(match), _weight_scales(match)
    zeros = np.zeros((), np.int64) if zero is None else zero.astype(np.int64)
    assert scales is not None
    per_channel = scales.ndim or zeros.ndim
    if per_channel:
        # A type has as many scales as zero points, so a single one is repeated.
        scales, zeros = np.broadcast_arrays(scales, zeros)
    name = weights.name
    scales32 = scales.astype(np.float32)
    return uniform(
        weights.type.dtype, scales32, zeros, axis=axis if per_channel else None, name=name
    )


def _replace(graph: Graph, match: Match) -> Value | None:
    node, quantized = match.node("sum"), _quantized_data(match)
    assert quantized is not None
    quant = _weight_type(match, node)
    slots = {"matmul_integer": ("a", "b"), "conv_integer": ("x", "w")}[node.op]
    op = "matmul" if node.op == "matmul_integer" else f"conv{match['data'].type.rank - 2}d"
    attrs, weights_type = _conv_attrs(node), match["held"].type.with_element(quant)
    types = dict(zip(slots, (quantized.type, weights_type), strict=True))
    query = query_for_op(op, spec(op).complete_attrs(attrs), types, None)
    bias = match.get("bias")
    profile_name = profile_name_of(graph, node)
    # The pass is exact, so it needs a profile that computes the product in this very order.
    if not profile_name or not _computes_same_bytes(
        profile_in(graph, profile_name).resolve(query), bias=bias is not None
    ):
        return None
    weight_value = match["held"]
    array = weight_value.constant
    assert array is not None
    typed_array = Array(array.contents, weights_type, weight_value.name)
    weights = graph.constant(typed_array, name=graph.fresh(f"{weight_value.name}.codes"))
    graph.set_origins(weights.node, weight_value.node.origins)
    graph.set_lineage(weights, weight_value.lineage.then("coded"))
    data, weight = slots
    operands = {data: quantized, weight: weights}
    # The parameters stay operands: they are computed while the model runs.
    operands |= {f"{data}.{name}": value for name, value in _data_parameters(match).items()}
    if bias is not None:
        operands["bias"] = _as_vector(graph, bias)
    return graph.add(op, operands, attrs).result


def _as_vector(graph: Graph, bias: Value) -> Value:
    """Returns a bias of one axis."""
    data = _plain_constant(bias)
    assert data is not None
    if bias.type.rank == 1:
        return bias
    return graph.constant(data.reshape(-1), name=graph.fresh(bias.name))


def _conv_attrs(node: Node) -> dict[str, Attr]:
    if node.op == "matmul_integer":
        return {}
    axes = node.result.type.rank - 2
    defaults = {"stride": (1,) * axes, "pad": (0,) * (2 * axes), "dilation": (1,) * axes}
    # An empty list stands for the default along every axis.
    attrs = {name: node.attrs[name] or value for name, value in defaults.items()}
    return {**attrs, "groups": node.attrs["groups"]}


def _with_conditions(product: Pattern) -> Rewrite:
    for description, condition in _CONDITIONS:
        product = product.check(description, condition)
    return Rewrite(product, _replace, Change.EXACT, "{nodes} is a quantized product")


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
    rewrites = (_with_conditions(integer_product), _with_conditions(integer_conv))

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
