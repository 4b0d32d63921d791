"""Decomposes choose_qparams (scale and zero point from data) into ONNX's primitive operators."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qir.ir.dtype import F32, F64, DType
from qir.ir.node import Node
from qir.numerics import NAMED_RULES, Choose
from qir.numerics.fields import level_of
from qir.numerics.ranges import symmetric_zero
from qir.profiles import choose_query, profile

from .elements import NUMBERS
from .writer import OnnxWriter, Wire

_AXES_ARE_INPUTS = 18
"""The first operator set whose ReduceMin and ReduceMax take axes as an operand."""

BY_OPERATORS = frozenset({"onnx.dynamic", "torchao.per_token"})
"""Range rules of the language that are written as operators one by one."""


@dataclass(frozen=True, slots=True)
class _Steps:
    """Writes one operator after the other, all float values of one type."""

    writer: OnnxWriter
    node: Node
    kind: DType = F32

    def do(self, op: str, *inputs: str, **attrs: Wire) -> str:
        """Returns one operator; gives its result's name."""
        out = self.writer.fresh(f"{self.node.name}_{op}")
        self.writer.emit(op, inputs, [out], attrs)
        return out

    def held(self, value: float) -> str:
        """Returns a constant of the type that is computed in."""
        return self.writer.parameter(np.array(value, self.kind.carrier), "number", None)

    def cast(self, source: str, kind: DType) -> str:
        return self.do("Cast", source, to=NUMBERS[kind.name])


def write(writer: OnnxWriter, node: Node) -> None:
    """Writes the parameters that a range rule chooses; Refused where ONNX cannot."""
    attrs = node.attrs
    rule = str(attrs["rule"])
    if rule not in BY_OPERATORS:
        _by_fields(writer, node, _fields(writer, node, rule))
        return
    steps = _Steps(writer, node)
    low, high = _extremes(steps)
    first, last = _bounds(node)
    if rule == "torchao.per_token" and attrs["symmetric"]:
        reach = steps.do("Max", steps.do("Abs", low), steps.do("Abs", high))
        scale = steps.do("Div", steps.do("Max", reach, steps.held(1e-5)), steps.held(last))
        _give(steps, scale, steps.do("Mul", scale, steps.held(0)))
        return
    if attrs["symmetric"]:
        raise writer.refuse(node, f"{rule} chooses an affine map, not a symmetric one")
    none = steps.held(0)
    least, most = steps.do("Min", low, none), steps.do("Max", high, none)
    span = steps.do("Div", steps.do("Sub", most, least), steps.held(last - first))
    if rule == "onnx.dynamic":
        flat = steps.do("Equal", most, least)
        scale = steps.do("Where", flat, steps.held(1), span)
        zero = steps.do("Sub", steps.held(first), steps.do("Div", least, scale))
        no_number = steps.do("IsNaN", zero)
        zero = steps.do("Where", no_number, steps.held(last), _clipped(steps, zero, first, last))
        _give(steps, scale, steps.do("Round", zero))
        return
    scale = steps.do("Max", span, steps.held(float(np.finfo(np.float32).eps)))
    below, above = steps.do("Div", least, scale), steps.do("Div", most, scale)
    ends = [steps.do("Add", steps.held(e), b) for e, b in ((first, below), (last, above))]
    nearer = steps.do("Greater", steps.do("Add", *ends), none)
    starts = [steps.do("Sub", steps.held(e), b) for e, b in ((first, below), (last, above))]
    zero = steps.do("Where", nearer, *starts)
    _give(steps, scale, steps.do("Round", _clipped(steps, zero, first, last)))


def _bounds(node: Node) -> tuple[int, int]:
    storage, bounds = node.attrs["storage"], node.attrs["bounds"]
    assert isinstance(storage, DType)
    assert isinstance(bounds, tuple)
    low, high = bounds or storage.bounds
    assert isinstance(low, int)
    assert isinstance(high, int)
    return low, high


def _extremes(steps: _Steps) -> tuple[str, str]:
    """Writes the least and greatest element of all, or of each index of the kept axes."""
    writer, node = steps.writer, steps.node
    keep, blocks = node.attrs["keep"], node.attrs["blocks"]
    assert isinstance(keep, tuple)
    assert isinstance(blocks, tuple)
    x = node.operands["x"]
    if any(b != 1 for b in blocks):
        raise writer.refuse(node, "ONNX reduces whole axes; numbers of blocks have no form here")
    if x.type.quant is not None:
        source = writer.real(x, node)
    else:
        source = writer.name(x)
    if x.type.express != F32:
        source = steps.cast(source, F32)
    axes = tuple(i for i in range(x.type.rank) if i not in keep)
    if not axes:
        return source, source
    wide: Wire = int(bool(keep))
    if writer.opset < _AXES_ARE_INPUTS:
        low, high = (
            steps.do(f"Reduce{end}", source, axes=axes, keepdims=wide) for end in ("Min", "Max")
        )
        return low, high
    listed = writer.parameter(np.array(axes, np.int64), "axes", None)
    low, high = (steps.do(f"Reduce{end}", source, listed, keepdims=wide) for end in ("Min", "Max"))
    return low, high


def _clipped(steps: _Steps, source: str, low: float, high: float) -> str:
    return steps.do("Clip", source, steps.held(low), steps.held(high))


def _give(steps: _Steps, scale: str, zero: str) -> None:
    """Casts the results to the types of the node."""
    for source, value in zip((scale, zero), steps.node.results, strict=True):
        kind = NUMBERS[value.type.dtype.name]
        steps.writer.emit("Cast", [source], [steps.writer.name(value)], {"to": kind})


# -- rules made of fields -------------------------------------------------------------------------


def _fields(writer: OnnxWriter, node: Node, rule: str) -> Choose:
    """Returns the fields of a rule by its name; Refused for one that the operators do not
    compute."""
    storage = str(node.attrs["storage"])
    if rule == "profile":
        name = node.profile or writer.graph.profile
        grain = "channel" if node.attrs["keep"] else "tensor"
        found = profile(name).resolve(choose_query(storage, grain)).choose
    elif rule in NAMED_RULES:
        found = NAMED_RULES[rule]
    else:
        raise writer.refuse(node, f"the range rule {rule!r} has no form in ONNX; onnx.dynamic has")
    plain = (
        found.zero_round == "even"
        and found.zero_clamp
        and found.store in ("f32", "f64")
        and (found.keep, found.nudge, found.reduce, found.decimals)
        == ("scale", "none", "none", "exact")
        and found.small.partition(":")[0] in ("none", "floor", "replace_below")
        and found.zero in ("qmin-round(min/s)", "round(qmin-min/s)")
        and found.reach in ("absmax", "max", "sides")
    )
    if not plain:
        raise writer.refuse(node, f"the range rule {rule!r} has no form in ONNX; onnx.dynamic has")
    return found


def _by_fields(writer: OnnxWriter, node: Node, rule: Choose) -> None:
    first, last = _bounds(node)
    kind = F64 if rule.compute == "f64" else F32
    low, high = _extremes(_Steps(writer, node))
    steps = _Steps(writer, node, kind)
    if kind != F32:
        low, high = steps.cast(low, kind), steps.cast(high, kind)
    none = steps.held(0)
    if rule.range == "widen_to_zero":
        low, high = steps.do("Min", low, none), steps.do("Max", high, none)
    if node.attrs["symmetric"] is True:
        scale = _floored(steps, _reach(steps, low, high, rule), rule)
        storage = node.attrs["storage"]
        assert isinstance(storage, DType)
        custom = (first, last) != storage.bounds
        middle = symmetric_zero((first, last), storage, rule, custom=custom)
        zero = steps.do("Add", steps.do("Mul", scale, none), steps.held(middle))
    else:
        span = steps.do("Div", steps.do("Sub", high, low), steps.held(last - first))
        scale = _floored(steps, span, rule)
        zero = _zero(steps, low, scale, rule)
    _replaced(steps, scale, zero, rule)


def _reach(steps: _Steps, low: str, high: str, rule: Choose) -> str:
    node = steps.node
    first, last = _bounds(node)
    grain = "channel" if node.attrs["keep"] else "tensor"
    storage = node.attrs["storage"]
    assert isinstance(storage, DType)
    named = level_of(rule.levels, rule.zero, storage, (first, last), grain)
    level = named or (last - first) / 2
    if rule.reach == "max":
        return steps.do("Div", steps.do("Max", low, high), steps.held(level))
    if rule.reach == "sides":
        below = steps.do("Div", steps.do("Neg", low), steps.held(max(-first, 1)))
        return steps.do("Max", below, steps.do("Div", high, steps.held(last)))
    ends = steps.do("Max", steps.do("Abs", low), steps.do("Abs", high))
    return steps.do("Div", ends, steps.held(level))


def _floored(steps: _Steps, scale: str, rule: Choose) -> str:
    word, _, least = rule.small.partition(":")
    return steps.do("Max", scale, steps.held(float(least))) if word == "floor" else scale


def _zero(steps: _Steps, low: str, scale: str, rule: Choose) -> str:
    first, last = _bounds(steps.node)
    some = steps.do("Greater", scale, steps.held(0))
    count = steps.do("Where", some, steps.do("Div", low, scale), steps.held(0))
    if rule.zero == "round(qmin-min/s)":
        zero = steps.do("Round", steps.do("Sub", steps.held(first), count))
    else:
        zero = steps.do("Sub", steps.held(first), steps.do("Round", count))
    return _clipped(steps, zero, first, last)


def _replaced(steps: _Steps, scale: str, zero: str, rule: Choose) -> None:
    """Replaces a scale too small to be stored by another, and the zero point by 0."""
    word, _, rest = rule.small.partition(":")
    if word == "replace_below":
        limit, _, value = rest.partition(":")
        store = np.float64 if rule.store == "f64" else np.float32
        least = float(np.finfo(store).tiny) if limit == "tiny" else float(limit)
        tiny = steps.do("Less", scale, steps.held(least))
        scale = steps.do("Where", tiny, steps.held(float(value)), scale)
        zero = steps.do("Where", tiny, steps.held(0), zero)
    if rule.store == "f32" and steps.kind != F32:
        scale = steps.cast(scale, F32)
    _give(steps, scale, zero)
