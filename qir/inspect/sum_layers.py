"""A layer whose sums decide its quantized values, as the kernel of each profile has it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.inspect.pairs import saturates_in_16_bits
from qir.inspect.reachable_sums import sum_reach
from qir.inspect.rows import SAME_SUMS, SUMMING, channel_axis, has_misread_groups, weight_rows
from qir.ir.dtype import F32, dtype
from qir.ir.node import Node
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import Array, Element, QuantType, TensorType, uniform
from qir.ir.verify.step import SLOTS, Product
from qir.numerics import Rule, affine_of
from qir.numerics.rounding import SECOND_ROUNDINGS
from qir.profiles import Profile, quantize_query, query_for_node
from qir.reference.products import ProductKernel, integer_product
from qir.reference.quantized import activation_bounds

_BOUNDING_OPS = frozenset({"relu", "clip"})
_WIDE = dtype("i16")
_DIGIT, _DIGITS = 1 << 14, 5  # a sum of 64 bits in digits that i16 holds
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class SumKernel:
    """A profile's kernel of a layer."""

    rule: Rule
    x: QuantType
    result: QuantType
    bias: Array | None
    ends: tuple[int, int]
    """The quantized values that activations leave."""

    @property
    def zero(self) -> int:
        """The zero point of its results."""
        return int(np.asarray(self.result.zeros()).reshape(-1)[0])


@dataclass(frozen=True, slots=True, eq=False)
class SumLayer:
    """A product whose sums decide its quantized values, each channel for itself."""

    own: tuple[SumKernel, ...]
    scales: NDArray[np.float32]
    """Of the weights; one, or one a channel."""
    gain: float
    rows: Integers
    """The weights of each channel, less their zero points; of transposed convolutions, of each kind
    of place one after the other."""
    reals: tuple[int, int]
    """The least and the greatest number that meets a weight."""

    @property
    def channels(self) -> int:
        """How many rows there are; that of a scale is what is left of a row's number by scales."""
        return len(self.rows)

    def scale(self, channel: int) -> np.float32:
        """Returns the scale of a channel's weights."""
        return np.float32(self.scales[channel % self.scales.size])


def layer_of_profile(source: Profile, node: Node, product: Product) -> SumLayer | str:
    """Returns the layer as one profile has it, or why its sums decide nothing."""
    result, weights = node.result.type.quant, product.weights
    why = _why_not_certified(node, product)
    if why or result is None or weights is None:
        return why
    bias = _bias(node, product)
    if isinstance(bias, str):
        return bias
    rule = source.resolve(query_for_node(node))
    if why := _why_profile_silent(rule, source.name, product, weights, result):
        return why
    rule = replace(rule, method=None, acc=replace(rule.acc, pairs="exact"))
    kernel = SumKernel(rule, product.x, result, bias, _activation_ends(node, result, source))
    scales = np.asarray(product.w.scales(), np.float32).reshape(-1)
    rows, reals = weight_rows(product, weights), _centered_bounds(product.x)
    return SumLayer((kernel,), scales, _op_gain(node), rows, reals)


def layers_agree(one: SumLayer, other: SumLayer) -> bool:
    """Returns whether two layers sum the same numbers, and step alike but for their zero points."""
    a, b = one.own[0], other.own[0]
    is_same = np.array_equal(one.rows, other.rows) and np.array_equal(one.scales, other.scales)
    is_same = is_same and one.gain == other.gain and one.reals == other.reals
    type_pairs = ((a.x, b.x), (a.result, b.result))
    return is_same and all(np.array_equal(p.scales(), q.scales()) for p, q in type_pairs)


def _why_not_certified(node: Node, product: Product) -> str:
    """Returns why the quantized values of a product are no function of its sums and their
    channel."""
    step, result = product.step, node.result.type.quant
    if step.spec.name not in SUMMING or product.swapped:
        return f"{step.spec.name} is not laid out as one row of weights a channel"
    if product.weights is None:
        return "its weights are computed"
    if step.prefix or any(s.op not in _BOUNDING_OPS or s.type for s in node.stages[1:]):
        return "its kernel adds more than a bias to its sums"
    if result is None or (node.stages and node.stages[0].type):
        return "its result is not quantized"
    if product.x.dynamic or product.w.dynamic or result.dynamic:
        return "its scales are computed"
    if (
        product.x.granularity
        or result.granularity
        or (product.w.granularity and product.w.axis != channel_axis(product))
    ):
        return "its scales are not one a tensor, or one a channel of the weights"
    if any(q.scale_dtype not in (None, F32) for q in (product.x, product.w, result)):
        return "its scales are no float32"
    if not all(np.all(np.asarray(q.scales()) > 0) for q in (product.x, product.w, result)):
        return "its scales are not above zero"
    if _op_gain(node) <= 0:
        return "its sums are multiplied with no number above zero"
    return ""


def _why_profile_silent(
    rule: Rule, name: str, product: Product, weights: Array, result: QuantType
) -> str:
    """Returns why a profile's quantized values are not to be had from sums alone."""
    method, op = rule.method, product.step.spec.name
    if method is None and op not in INTEGER_SUM_LAYERS:
        return f"{name} has no quantized kernel for {op}"
    if method is not None and method.name not in SAME_SUMS:
        return f"{name} computes {op} by method {method}"
    if method is not None and method.params.get("misread") and has_misread_groups(product, weights):
        return f"{name} multiplies other weights than those of the graph"
    if rule.acc.pairs == "halve_signed" and product.x.storage.kind == "int":
        return f"weights of signed data are halved under {name}"
    if saturates_in_16_bits(rule.acc.pairs, product):
        return f"pairs of products can saturate in 16 bits under {name}"
    declared = any(q.declared is not None for q in (product.x, product.w, result))
    if rule.requant.order == "gy/gx/gw" and declared:
        return f"{name} takes gains from the ranges that are declared, not from scales"
    return ""


def _op_gain(node: Node) -> float:
    """Returns what a product is multiplied with by its own op."""
    attrs = node.stages[0].attrs if node.stages else node.attrs
    gain = attrs.get("alpha", 1.0)
    return gain if isinstance(gain, float) else 1.0


def _bias(node: Node, product: Product) -> Array | str | None:
    """Returns the bias, whatever it counts in; or why it is not known."""
    step = product.step
    value = step.operands.get(SLOTS[step.spec.name][2])
    if value is None:
        return None
    if step.call.attrs.get("beta", 1.0) != 1.0:
        return "it multiplies its bias"
    array = value.constant
    if array is None or array.data.ndim != 1:
        return "its bias is computed" if array is None else "its bias is not one a channel"
    return array


def _activation_ends(node: Node, result: QuantType, source: Profile) -> tuple[int, int]:
    """Returns the quantized values that activations leave, under a profile."""
    low, high = result.low, result.high
    rule = source.resolve(quantize_query(result))
    mode = source.resolve(query_for_node(node)).stage.ends
    for stage in node.stages[1:]:
        least, greatest = activation_bounds(stage.op, stage.attrs, affine_of(result), rule, mode)
        low, high = max(low, least), min(high, greatest)
    return low, high


def _centered_bounds(x: QuantType) -> tuple[int, int]:
    """Returns the least and the greatest integer less the zero point; beyond an edge there are
    zeros."""
    zero = int(np.asarray(x.zeros()).reshape(-1)[0])
    return min(x.low - zero, 0), max(x.high - zero, 0)


def quantized_results(
    layer: SumLayer, kernel: SumKernel, sums: Integers, channel: int, scales: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Returns the reference's quantized values of some sums of one channel, for each of some scales
    of its weights; counted from the zero point of the first profile's."""
    high, low = np.divmod(sums, _DIGIT)
    digits = []
    for _ in range(_DIGITS):
        digits.append(np.clip(high, -(1 << 15), (1 << 15) - 1))
        high = high - digits[-1]
    # The reference's own product makes the sums: x holds digits of the sum in base 2^14, w the
    # base, so that rounding, bias and saturation are those of the product.
    x = np.stack([*digits, low], 1).astype(np.int16)
    row = np.array([_DIGIT] * _DIGITS + [1], np.int16)
    w = np.tile(row, (scales.size, 1))
    arrays: dict[str, NDArray[np.generic]] = {"x": x, "w": w}
    x_scale = np.asarray(kernel.x.scales(), np.float32).reshape(())
    types = {
        "x": TensorType(x.shape, uniform(_WIDE, x_scale)),
        "w": TensorType(w.shape, uniform(_WIDE, scales, axis=0, name="w")),
    }
    if kernel.bias is not None:
        bias_value = kernel.bias.data[channel % kernel.bias.data.size]
        arrays["bias"] = np.repeat(bias_value, scales.size)
        types["bias"] = TensorType((scales.size,), bias_element(kernel.bias, channel))
    kind = TensorType((sums.size, scales.size), kernel.result)
    product = ProductKernel("linear", {"alpha": layer.gain}, types, kind, kernel.rule)
    quantized = np.clip(integer_product(product, arrays).astype(np.int64), *kernel.ends)
    return quantized - kernel.zero + layer.own[0].zero


def bias_element(bias: Array, channel: int) -> Element:
    quant = bias.type.quant
    if quant is None:
        return bias.type.element
    scales = np.asarray(quant.scales(), np.float32).reshape(-1)
    zeros = np.asarray(quant.zeros()).reshape(-1)
    scale, zero = scales[channel % scales.size], zeros[channel % zeros.size]
    return uniform(quant.storage, np.asarray(scale), zero)


def sum_worth(layer: SumLayer, channel: int) -> tuple[float, float]:
    """About how many quantized values a sum is worth, and the bias in sums."""
    kernel = layer.own[0]
    x, y = (float(np.asarray(q.scales()).reshape(-1)[0]) for q in (kernel.x, kernel.result))
    unit = layer.gain * x * float(layer.scale(channel))
    if kernel.bias is None:
        return unit / y, 0.0
    bias = float(kernel.bias.data[channel % kernel.bias.data.size])
    quant = kernel.bias.type.quant
    if quant is None:
        return unit / y, bias if kernel.bias.type.dtype.is_integer else bias / unit
    return unit / y, bias  # in units of the sums, or nearly


def overflows_when_shifted(layer: SumLayer, rule: Rule) -> bool:
    """Returns whether some sum leaves 32 bits where a rule shifts it before it is scaled."""
    if rule.requant.round not in SECOND_ROUNDINGS:
        return False
    for channel, row in enumerate(layer.rows):
        worth, bias = sum_worth(layer, channel)
        _, shift = np.frexp(worth * (1 + 2.0**-20))
        reached = sum_reach(row, *layer.reals)
        furthest = max(abs(reached.least + bias), abs(reached.greatest + bias)) + 1
        if shift > 0 and furthest * 2.0**shift >= 2.0**31:
            return True
    return False
