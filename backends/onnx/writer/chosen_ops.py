"""Decomposes choose_qparams (scale and zero point from data) into ONNX's primitive operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qir.ir.dtype import F32, F64, DType
from qir.ir.node import Node
from qir.numerics import Choose
from qir.numerics.fields import level_of
from qir.numerics.ranges import symmetric_zero
from qir.numerics.scale_rules import choose_fields
from qir.profiles import choose_query, profile_in

from .elements import ELEMENT_TYPES
from .writer import AttrValue, OnnxWriter

FIRST_AXES_OPERAND = 18
"""The first operator set whose ReduceMin and ReduceMax take axes as an operand."""

RULES_BY_OPERATORS = frozenset({"onnx.dynamic", "torchao.per_token"})
"""Scale rules that are not made of a profile's fields, and have operators of their own here."""


@dataclass(frozen=True, slots=True)
class _OperatorBuilder:
    """Writes operators one after the other, with floats of one type."""

    writer: OnnxWriter
    node: Node
    kind: DType = F32

    def do(self, op: str, *inputs: str, **attrs: AttrValue) -> str:
        """Writes an operator and returns its result's name."""
        out = self.writer.fresh(f"{self.node.name}_{op}")
        self.writer.emit(op, inputs, [out], attrs)
        return out

    def constant(self, value: float) -> str:
        """Returns a constant of the type that is computed in."""
        return self.writer.parameter(np.array(value, self.kind.carrier), "number", None)

    def cast(self, source: str, kind: DType) -> str:
        return self.do("Cast", source, to=ELEMENT_TYPES[kind.name])


def write(writer: OnnxWriter, node: Node) -> None:
    """Writes the parameters that a scale rule chooses; raises Refused where ONNX cannot express
    it."""
    attrs = node.attrs
    # These rules are made of fields of a profile, which operators follow field by field.
    rule = str(attrs["rule"])
    if rule not in RULES_BY_OPERATORS:
        _write_rule(writer, node, _rule_fields(writer, node, rule))
        return
    steps = _OperatorBuilder(writer, node)
    low, high = _extremes(steps)
    first, last = _bounds(node)
    if rule == "torchao.per_token" and attrs["symmetric"]:
        # torchao: scale = max(|low|, |high|, 1e-5) / qmax, zero point 0.
        magnitude = steps.do("Max", steps.do("Abs", low), steps.do("Abs", high))
        scale = steps.do(
            "Div", steps.do("Max", magnitude, steps.constant(1e-5)), steps.constant(last)
        )
        _write_results(steps, scale, steps.do("Mul", scale, steps.constant(0)))
        return
    if attrs["symmetric"]:
        raise writer.refuse(node, f"{rule} chooses an affine map, not a symmetric one")
    # Affine rules: widen [low, high] to contain 0, then scale = (high - low) / (last - first).
    zero_constant = steps.constant(0)
    lowest, highest = steps.do("Min", low, zero_constant), steps.do("Max", high, zero_constant)
    span = steps.do("Div", steps.do("Sub", highest, lowest), steps.constant(last - first))
    if rule == "onnx.dynamic":
        # As DynamicQuantizeLinear: a scale of 1 where all elements are 0.
        is_constant = steps.do("Equal", highest, lowest)
        scale = steps.do("Where", is_constant, steps.constant(1), span)
        zero = steps.do("Sub", steps.constant(first), steps.do("Div", lowest, scale))
        # 0 / 0 cannot be: the scale is 1 there. NaN data make a NaN, which the kernel saturates
        # upwards.
        is_nan = steps.do("IsNaN", zero)
        zero = steps.do("Where", is_nan, steps.constant(last), _clip(steps, zero, first, last))
        _write_results(steps, scale, steps.do("Round", zero))
        return
    # As torchao's choose_qparams: eps is the least scale, and the zero point is taken from the
    # end with the smaller error.
    scale = steps.do("Max", span, steps.constant(float(np.finfo(np.float32).eps)))
    below, above = steps.do("Div", lowest, scale), steps.do("Div", highest, scale)
    ends = [steps.do("Add", steps.constant(e), b) for e, b in ((first, below), (last, above))]
    nearer = steps.do("Greater", steps.do("Add", *ends), zero_constant)
    starts = [steps.do("Sub", steps.constant(e), b) for e, b in ((first, below), (last, above))]
    zero = steps.do("Where", nearer, *starts)
    _write_results(steps, scale, steps.do("Round", _clip(steps, zero, first, last)))


def _bounds(node: Node) -> tuple[int, int]:
    storage, bounds = node.attrs["storage"], node.attrs["bounds"]
    assert isinstance(storage, DType)
    assert isinstance(bounds, tuple)
    low, high = bounds or storage.bounds
    assert isinstance(low, int)
    assert isinstance(high, int)
    return low, high


def _extremes(steps: _OperatorBuilder) -> tuple[str, str]:
    """Writes the minimum and maximum of all elements, or per index of the kept axes."""
    writer, node = steps.writer, steps.node
    keep, blocks = node.attrs["keep"], node.attrs["blocks"]
    assert isinstance(keep, tuple)
    assert isinstance(blocks, tuple)
    x = node.operands["x"]
    if any(b != 1 for b in blocks):
        raise writer.refuse(node, "ONNX reduces whole axes; numbers of blocks have no form here")
    if x.type.quant is not None:
        source = writer.float_tensor(x, node)
    else:
        source = writer.name(x)
    if x.type.express != F32:
        source = steps.cast(source, F32)
    axes = tuple(i for i in range(x.type.rank) if i not in keep)
    if not axes:
        # Every axis is kept: each element is its own minimum and maximum.
        return source, source
    keepdims: AttrValue = int(bool(keep))
    if writer.opset < FIRST_AXES_OPERAND:
        low, high = (
            steps.do(f"Reduce{end}", source, axes=axes, keepdims=keepdims) for end in ("Min", "Max")
        )
        return low, high
    axes_operand = writer.parameter(np.array(axes, np.int64), "axes", None)
    low, high = (
        steps.do(f"Reduce{end}", source, axes_operand, keepdims=keepdims) for end in ("Min", "Max")
    )
    return low, high


def _clip(steps: _OperatorBuilder, source: str, low: float, high: float) -> str:
    return steps.do("Clip", source, steps.constant(low), steps.constant(high))


def _write_results(steps: _OperatorBuilder, scale: str, zero: str) -> None:
    """Casts the results to the types of the node."""
    for source, value in zip((scale, zero), steps.node.results, strict=True):
        kind = ELEMENT_TYPES[value.type.dtype.name]
        steps.writer.emit("Cast", [source], [steps.writer.name(value)], {"to": kind})


# -- rules made of fields -------------------------------------------------------------------------


def _rule_fields(writer: OnnxWriter, node: Node, rule: str) -> Choose:
    """Returns a rule's fields; raises Refused for fields that no operators here compute."""
    storage = str(node.attrs["storage"])
    if rule == "profile":
        name = node.profile or writer.graph.profile
        granularity = "channel" if node.attrs["keep"] else "tensor"
        fields = profile_in(writer.graph, name).resolve(choose_query(storage, granularity)).choose
    else:
        fields = choose_fields(rule)
    expressible = (
        fields.by == "fields"
        and fields.zero_round == "even"
        and fields.zero_clamp
        and fields.store in ("f32", "f64")
        and (fields.keep, fields.nudge, fields.reduce, fields.decimals)
        == ("scale", "none", "none", "exact")
        and fields.small.partition(":")[0] in ("none", "floor", "replace_below")
        and fields.zero in ("qmin-round(min/s)", "round(qmin-min/s)")
        and fields.reach in ("absmax", "max", "sides")
    )
    if not expressible:
        raise writer.refuse(node, f"the scale rule {rule!r} has no form in ONNX; onnx.dynamic has")
    return fields


def _write_rule(writer: OnnxWriter, node: Node, rule: Choose) -> None:
    """Writes the parameters by the fields of a rule."""
    first, last = _bounds(node)
    kind = F64 if rule.compute == "f64" else F32
    low, high = _extremes(_OperatorBuilder(writer, node))
    steps = _OperatorBuilder(writer, node, kind)
    if kind != F32:
        low, high = steps.cast(low, kind), steps.cast(high, kind)
    zero_constant = steps.constant(0)
    if rule.range == "widen_to_zero":
        low, high = steps.do("Min", low, zero_constant), steps.do("Max", high, zero_constant)
    if node.attrs["symmetric"] is True:
        scale = _with_floor(steps, _symmetric_scale(steps, low, high, rule), rule)
        storage = node.attrs["storage"]
        assert isinstance(storage, DType)
        has_custom_bounds = (first, last) != storage.bounds
        zero_value = symmetric_zero((first, last), storage, rule, custom=has_custom_bounds)
        zero = steps.do("Add", steps.do("Mul", scale, zero_constant), steps.constant(zero_value))
    else:
        span = steps.do("Div", steps.do("Sub", high, low), steps.constant(last - first))
        scale = _with_floor(steps, span, rule)
        zero = _zero_point(steps, low, scale, rule)
    _write_replaced(steps, scale, zero, rule)


def _symmetric_scale(steps: _OperatorBuilder, low: str, high: str, rule: Choose) -> str:
    """Writes the scale of a symmetric type."""
    node = steps.node
    first, last = _bounds(node)
    granularity = "channel" if node.attrs["keep"] else "tensor"
    storage = node.attrs["storage"]
    assert isinstance(storage, DType)
    named_level = level_of(rule.levels, rule.zero, storage, (first, last), granularity)
    level = named_level or (last - first) / 2
    if rule.reach == "max":
        return steps.do("Div", steps.do("Max", low, high), steps.constant(level))
    if rule.reach == "sides":
        below = steps.do("Div", steps.do("Neg", low), steps.constant(max(-first, 1)))
        return steps.do("Max", below, steps.do("Div", high, steps.constant(last)))
    magnitude = steps.do("Max", steps.do("Abs", low), steps.do("Abs", high))
    return steps.do("Div", magnitude, steps.constant(level))


def _with_floor(steps: _OperatorBuilder, scale: str, rule: Choose) -> str:
    """Writes the rule's least scale."""
    word, _, least = rule.small.partition(":")
    return steps.do("Max", scale, steps.constant(float(least))) if word == "floor" else scale


def _zero_point(steps: _OperatorBuilder, low: str, scale: str, rule: Choose) -> str:
    """Writes the zero point, rounded in the rule's order."""
    first, last = _bounds(steps.node)
    is_positive = steps.do("Greater", scale, steps.constant(0))
    count = steps.do("Where", is_positive, steps.do("Div", low, scale), steps.constant(0))
    if rule.zero == "round(qmin-min/s)":
        zero = steps.do("Round", steps.do("Sub", steps.constant(first), count))
    else:
        zero = steps.do("Sub", steps.constant(first), steps.do("Round", count))
    return _clip(steps, zero, first, last)


def _write_replaced(steps: _OperatorBuilder, scale: str, zero: str, rule: Choose) -> None:
    """Writes the results; a scale too small to be stored is replaced, and its zero point is 0."""
    word, _, rest = rule.small.partition(":")
    if word == "replace_below":
        limit, _, value = rest.partition(":")
        stored_type = np.float64 if rule.store == "f64" else np.float32
        least = float(np.finfo(stored_type).tiny) if limit == "tiny" else float(limit)
        is_tiny = steps.do("Less", scale, steps.constant(least))
        scale = steps.do("Where", is_tiny, steps.constant(float(value)), scale)
        zero = steps.do("Where", is_tiny, steps.constant(0), zero)
    if rule.store == "f32" and steps.kind != F32:
        scale = steps.cast(scale, F32)
    _write_results(steps, scale, zero)
