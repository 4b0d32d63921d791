"""Writes quantized types that ONNX lacks as functions of primitive operators.

The function's metadata have the type, and a hash of its operators. A reader that finds the hash
unchanged restores the type; otherwise the operators are what counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from qir.errors import Refused
from qir.ir.dims import Shape
from qir.ir.types import Array, Granularity, QuantType, TensorType
from qir.numerics.definition import table_midpoints
from qir.numerics.fields import Rule
from qir.profiles import NamedProfile, quantize_query

from .elements import ELEMENT_TYPES, QUANTIZABLE, element_type

DOMAIN = "qir"
TYPE, ARRAYS, HASH, ROUND = "qir.type", "qir.arrays", "qir.hash", "qir.round"
"""Keys of a function's metadata: its quantized type, element types of arrays, hash, rounding."""
PROFILE = "qir.rules"
"""The profile whose arithmetic it is, where a reader's own profile would treat NaN differently."""
_MAX_BITS, _MAX_BITS_WITHOUT_ZERO = 16, 24
"""Quantized values of so many bits are whole in float32, and sums of them; and with no
zero point."""
_ZERO_ORDERS = ("after", "before")
_FLOAT_STORAGES = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")
"""Quantized values that Cast makes of floats, and float values of them."""
_EXPRESS_TYPES = ("f32", "f16", "bf16", "f64")


def needs_function(quant: QuantType, shape: Shape, *, constant: bool) -> bool:
    """Returns whether QuantizeLinear and DequantizeLinear lack a type with constant parameters."""
    if quant.dynamic:
        return False
    has_many_axes = (
        # Per channel and blocks along one axis are what `axis` and `block_size` express.
        quant.granularity is not None
        and quant.axis is None
        and block_axis_and_size(quant.granularity, shape) is None
    )
    # Constants may have narrower bounds: nothing is clamped again when they are dequantized.
    is_narrow = bool(quant.bounds) and not constant
    is_nonuniform = quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    is_supported = quant.storage.name in QUANTIZABLE and quant.express.name in ("f32", "f16")
    return is_nonuniform or has_many_axes or is_narrow or not is_supported


def adds_zero_before_rounding(quant: QuantType, rules: NamedProfile) -> bool:
    """Returns whether a profile adds the zero point before rounding, which QuantizeLinear does
    not."""
    rule = rules.resolve(quantize_query(quant))
    return rule.quantize.zero == "before" and bool(np.asarray(quant.zeros()).any())


def multiplies_by_gain(quant: QuantType, rules: NamedProfile) -> bool:
    """Returns whether a profile multiplies by a gain computed from the range.

    A gain is 1 / scale except for the last bit.
    """
    rule = rules.resolve(quantize_query(quant)).quantize
    return rule.by == "gain" and rule.zero == "none" and quant.kind == "uniform"


def block_axis_and_size(granularity: Granularity, shape: Shape) -> tuple[int, int] | None:
    """Returns the axis and size of blocks along one axis; None for other blocks, or listed ones."""
    block_sizes = dict(granularity.blocks)
    blocked = [(axis, size) for axis, size in block_sizes.items() if size > 1]
    unlisted = [axis for axis in range(len(shape)) if axis not in block_sizes]
    # All blocks are of size 1 and cover every axis: blocks of one element along the last axis.
    if not blocked and not unlisted and shape:
        blocked = [(len(shape) - 1, 1)]
    if not blocked and len(unlisted) == 1 and isinstance(size := shape[unlisted[0]], int):
        blocked, unlisted = (
            [(unlisted[0], size)],
            [],
        )  # one scale for the whole of an axis is one block
    return blocked[0] if len(blocked) == 1 and not unlisted and granularity.by is None else None


def unsupported_reason(quant: QuantType, shape: Shape) -> str:
    """Returns why primitive operators cannot express a type; empty where they can."""
    if quant.dynamic:
        return "its quantization parameters are computed at run time"
    widest = _MAX_BITS if np.asarray(quant.zeros()).any() else _MAX_BITS_WITHOUT_ZERO
    # 8-bit floats are cast and have no zero point to add.
    is_float_storage = quant.storage.name in _FLOAT_STORAGES and not np.asarray(quant.zeros()).any()
    if not (quant.storage.is_integer or is_float_storage) or quant.storage.bits > widest:
        return f"quantized values of {quant.storage} are not made of primitive operators"
    if quant.express.name not in _EXPRESS_TYPES:
        return f"{quant.express} is no float type that ONNX computes in"
    if any(a.type.quant is not None for a in quant.arrays()):
        return "its scales are quantized themselves"
    sizes = [shape[axis] for axis, _ in (quant.granularity.blocks if quant.granularity else ())]
    if (
        quant.granularity is not None
        and quant.axis is None
        and not all(isinstance(s, int) for s in sizes)
    ):
        return "its blocks are along an axis of unknown size"
    return ""


@dataclass
class _CustomSteps:
    """The operators of a function, one after the other."""

    nodes: list[NodeProto] = field(default_factory=list)
    count: int = 0

    def do(
        self,
        op: str,
        *inputs: str,
        out: str | None = None,
        **attrs: int | onnx.TensorProto,
    ) -> str:
        self.count += 1
        name = out or f"t{self.count}"
        self.nodes.append(_node(op, inputs, name, attrs))
        return name

    def constant(self, data: NDArray[np.generic]) -> str:
        """Returns a constant, which is in the function."""
        return self.do("Constant", value=numpy_helper.from_array(np.asarray(data)))

    def float_constant(self, value: float) -> str:
        return self.constant(np.asarray(value, np.float32))

    def cast(self, x: str, to: int, out: str | None = None) -> str:
        return self.do("Cast", x, out=out, to=to)


def _node(op: str, inputs: Iterable[str], out: str, attrs: Mapping[str, object]) -> NodeProto:
    proto = NodeProto(op_type=op, input=list(inputs), output=[out])
    proto.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
    return proto


@dataclass
class _ArrayOperands:
    """The arrays of a type that are operands of the function, by name."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def name(self, array: Array) -> str:
        for known, other in self.arrays.items():
            if other is array or other == array:
                return f"@{known}"
        self.arrays[f"p{len(self.arrays)}"] = array
        return f"@p{len(self.arrays) - 1}"


class _CustomForm:
    """One function: quantize or dequantize by a quantized type, for tensors of some shape."""

    def __init__(self, quant: QuantType, shape: Shape, rule: Rule) -> None:
        # `declared` is a note of TensorFlow's and MXNet's ranges: it does not change the
        # arithmetic.
        self.quant = replace(quant, declared=None)
        self.shape = shape
        self.rule = rule
        self.steps = _CustomSteps()
        self.numbers = _ArrayOperands()
        self.text = self.quant.text(self.numbers.name)
        self.memo: dict[str, str] = {}
        self.zeros = bool(np.asarray(quant.zeros()).any())

    def spread(self, parameter: object, data: NDArray[np.generic]) -> str:
        """Returns parameters as float32, shaped to broadcast with the tensor."""
        if isinstance(parameter, Array):
            name = self.numbers.name(parameter)[1:]
            steps, kind = self.steps, parameter.type.dtype
            source = name if kind.name == "f32" else steps.cast(name, TensorProto.FLOAT)
            size: tuple[int, ...] = parameter.data.shape
        else:
            scalar = np.asarray(data, np.float32)
            source, size = self.steps.constant(scalar), scalar.shape
        return self._along(source, size)

    def _along(self, source: str, size: tuple[int, ...]) -> str:
        quant, steps = self.quant, self.steps
        # Per tensor: a parameter of shape [1] becomes a scalar, so that the rank stays.
        if quant.granularity is None:
            return (
                source
                if not size
                else steps.do("Reshape", source, steps.constant(np.zeros(0, np.int64)))
            )
        rank = len(self.shape)
        # Per channel: [-1] on the axis and 1 elsewhere broadcasts against the tensor.
        if quant.axis is not None:
            shape = [1] * rank
            shape[quant.axis] = -1
            return steps.do("Reshape", source, steps.constant(np.asarray(shape, np.int64)))
        # Blocks: reshape to the grid of blocks, then repeat entries with a Gather along each axis.
        grid = quant.granularity.grid(self.shape)
        if size != grid:
            grid_shape = np.asarray([d if isinstance(d, int) else 1 for d in grid], np.int64)
            source = steps.do("Reshape", source, steps.constant(grid_shape))
        for axis, block in quant.granularity.blocks:
            length = self.shape[axis]
            assert isinstance(length, int)
            if quant.granularity.by is not None and axis == quant.granularity.blocks[-1][0]:
                group_index = self.numbers.name(quant.granularity.by)[1:]
                source = steps.do(
                    "Gather", source, steps.cast(group_index, TensorProto.INT64), axis=axis
                )
            elif block > 1:
                index = np.arange(length, dtype=np.int64) // block
                source = steps.do("Gather", source, steps.constant(index), axis=axis)
        return source

    def scale(self) -> str:
        return self.spread(self.quant.scale, np.asarray(self.quant.scales()))

    def zero(self) -> str | None:
        zeros = np.asarray(self.quant.zeros())
        return self.spread(self.quant.zero, zeros) if zeros.any() else None

    def plus(self) -> str | None:
        plus = self.quant.plus
        if plus is None:
            return None
        return self.spread(
            plus, np.empty(0) if isinstance(plus, Array) else _plus_array(self.quant)
        )

    def table(self) -> tuple[str, NDArray[np.float32]]:
        """Returns the entries of a table, and the name that they have."""
        entries = self.quant.codes
        if isinstance(entries, Array):
            name = self.numbers.name(entries)[1:]
            if entries.type.dtype.name != "f32":
                name = self.steps.cast(name, TensorProto.FLOAT)
            return name, entries.data.astype(np.float32)
        data = np.asarray(entries, np.float32)
        return self.steps.constant(data), data

    # -- dequantize ---------------------------------------------------------------------------

    def dequantize(self) -> None:
        """Writes (q - zero) * scale + plus, or an entry of the table times the scale."""
        steps, quant = self.steps, self.quant
        if quant.kind == "lut":
            table, _ = self.table()
            # Indices of a table start at 0, and signed integers at a negative number.
            index = steps.cast("x", TensorProto.INT64)
            if quant.low:
                index = steps.do("Sub", index, steps.constant(np.asarray(quant.low, np.int64)))
            floats = steps.do("Gather", table, index, axis=0)
        else:
            floats = steps.cast("x", TensorProto.FLOAT)
            if (zero := self.zero()) is not None:
                floats = steps.do("Sub", floats, zero)
        floats = steps.do("Mul", floats, self.scale())
        if (plus := self.plus()) is not None:
            floats = steps.do("Add", floats, plus)
        steps.cast(floats, ELEMENT_TYPES[quant.express.name], out="y")

    # -- quantize -----------------------------------------------------------------------------

    def quantize(self, rounding: str) -> None:
        """Writes x over the scale, rounded and clamped, or the nearest entry of the table."""
        steps, quant, rule = self.steps, self.quant, self.rule.quantize
        x = steps.cast("x", TensorProto.FLOAT)
        if (plus := self.plus()) is not None:
            x = steps.do("Sub", x, plus)
        if rule.by == "reciprocal":
            x = steps.do("Mul", x, steps.do("Div", steps.float_constant(1.0), self.scale()))
        else:
            x = steps.do("Div", x, self.scale())
        if quant.kind == "lut":
            self._nearest(x)
            return
        if quant.storage.is_float:
            steps.cast(x, _carrier(quant), out="y")
            return
        # NaN cannot be cast to an integer; the profile says which integer it becomes.
        zero, nan = self.zero(), steps.do("IsNaN", x)
        adds_zero_before = quant.has_float_zero or rule.zero == "before"
        if zero is not None and adds_zero_before:
            x = steps.do("Add", x, zero)
        rounded = self._rounded(x, rounding or rule.round)
        if zero is not None and not adds_zero_before:
            rounded = steps.do("Add", rounded, zero)
        low, high = quant.storage.bounds if rule.bounds == "storage" else (quant.low, quant.high)
        clamped = steps.do("Clip", rounded, steps.float_constant(low), steps.float_constant(high))
        # `nan` of a rule: the lowest, the highest, or the integer that stands for 0.
        for_nan = {"low": steps.float_constant(low), "high": steps.float_constant(high)}.get(
            rule.nan
        )
        for_nan = for_nan or (
            steps.do("Round", zero) if zero is not None else steps.float_constant(0.0)
        )
        steps.cast(steps.do("Where", nan, for_nan, clamped), _carrier(quant), out="y")

    def _rounded(self, x: str, rounding: str) -> str:
        steps, half = self.steps, self.steps.float_constant(0.5)
        if rounding in ("even", "floor", "ceil"):
            return steps.do({"even": "Round", "floor": "Floor", "ceil": "Ceil"}[rounding], x)
        # x - floor(x) is exact; floor(x + 0.5) would round the sum first, and 0.49999997 up.
        if rounding in ("half_up", "half_down"):
            nearest = steps.do("Floor" if rounding == "half_up" else "Ceil", x)
            operands = (x, nearest) if rounding == "half_up" else (nearest, x)
            is_far = steps.do("GreaterOrEqual", steps.do("Sub", *operands), half)
            one = steps.cast(is_far, TensorProto.FLOAT)
            return steps.do("Add" if rounding == "half_up" else "Sub", nearest, one)
        # Symmetric roundings: round the magnitude, and multiply by the sign.
        magnitude = steps.do("Abs", x)
        if rounding == "away":
            nearest = steps.do("Floor", magnitude)
            is_far = steps.do("GreaterOrEqual", steps.do("Sub", magnitude, nearest), half)
            magnitude = steps.do("Add", nearest, steps.cast(is_far, TensorProto.FLOAT))
        else:
            magnitude = steps.do("Ceil" if rounding == "up" else "Floor", magnitude)
        return steps.do("Mul", steps.do("Sign", x), magnitude)

    def _nearest(self, x: str) -> None:
        """Counts the midpoints below each element; of two equally near entries the lower index
        wins.
        """
        steps, quant = self.steps, self.quant
        _, table = self.table()
        # Two ways to count: midpoints below x, and those at or below it; the lower index wins a
        # tie.
        middle_values, order_of_entries = table_midpoints(table)
        nan = steps.do("IsNaN", x)
        nan_value = np.inf if self.rule.quantize.nan == "high" else 0.0
        x = steps.do("Where", nan, steps.float_constant(nan_value), x)
        # float32 midpoints may round onto an entry, so elements are compared in float64.
        doubles = steps.cast(x, TensorProto.DOUBLE)
        last_axis = steps.constant(np.asarray([-1], np.int64))
        each, midpoints = steps.do("Unsqueeze", doubles, last_axis), steps.constant(middle_values)
        order, candidates = steps.constant(order_of_entries.astype(np.int64)), []
        for op in ("Greater", "GreaterOrEqual"):
            below = steps.cast(steps.do(op, each, midpoints), TensorProto.INT64)
            count = steps.do("ReduceSum", below, last_axis, keepdims=0)
            candidates.append(steps.do("Gather", order, count, axis=0))
        index = steps.do("Min", *candidates)
        if (
            nan_index := {"low": 0, "zero_code": -quant.low}.get(self.rule.quantize.nan)
        ) is not None:
            place = np.asarray(min(max(nan_index, 0), table.size - 1), np.int64)
            index = steps.do("Where", nan, steps.constant(place), index)
        if quant.low:
            index = steps.do("Add", index, steps.constant(np.asarray(quant.low, np.int64)))
        steps.cast(index, _carrier(quant), out="y")


def _plus_array(quant: QuantType) -> NDArray[np.float32]:
    data = np.asarray(quant.plus, np.float32)
    return data if quant.granularity is not None else data.reshape(())


def _carrier(quant: QuantType) -> int:
    return element_type(quant.storage)


# -- the function ----------------------------------------------------------------------------------


def type_function(
    op: str, kind: TensorType, rules: NamedProfile, opset: int, rounding: str = ""
) -> tuple[FunctionProto, Mapping[str, Array]]:
    """Returns the function that quantizes or dequantizes by a quantized type as a profile does, and
    its arrays.

    Raises Refused where primitive operators cannot say it.
    """
    quant = kind.quant
    assert quant is not None
    rule = rules.resolve(quantize_query(quant))
    reason = unsupported_reason(quant, kind.shape) or unsupported_rule_reason(rule)
    rounding_name = rounding or rule.quantize.round
    # ONNX's Cast from float to 8-bit floats always rounds to nearest even.
    if op == "Quantize" and quant.storage.is_float and rounding_name != "even":
        reason = reason or f"Cast to {quant.storage} rounds to even, and not {rounding_name}"
    if reason:
        raise Refused(f"ONNX has no form here for quantized values of {quant}: {reason}")
    form = _CustomForm(quant, kind.shape, rule)
    if op == "Quantize":
        form.quantize(rounding)
    else:
        form.dequantize()
    return _function(op, form, opset, rounding), form.numbers.arrays


def unsupported_rule_reason(rule: Rule) -> str:
    """Returns why primitive operators cannot quantize by a rule; empty where they can."""
    q, d = rule.quantize, rule.dequantize
    if q.by not in ("divide", "reciprocal") or q.compute != "f32" or q.zero not in _ZERO_ORDERS:
        return f"{rule.profile} quantizes by {q.by} in {q.compute}, zero {q.zero}"
    if q.clip == "range_first" or d.by != "(q-z)*s" or d.compute != "f32":
        return f"{rule.profile} cuts {q.clip} and dequantizes by {d.by} in {d.compute}"
    return ""


def _function(op: str, form: _CustomForm, opset: int, rounding: str) -> FunctionProto:
    arrays = form.numbers.arrays
    types = ",".join(f"{n}:{a.type.dtype}" for n, a in arrays.items())
    metadata = {TYPE: form.text, ARRAYS: types, ROUND: rounding}
    if op == "Quantize" and form.quant.kind == "lut" and form.rule.quantize.nan == "zero_code":
        metadata[PROFILE] = form.rule.profile
    # The digest is part of the name: functions of different types never collide in a model.
    digest = _digest(op, form.steps.nodes, list(arrays), metadata.values())
    function = helper.make_function(
        DOMAIN,
        f"{op}_{digest[:12]}",
        ["x", *arrays],
        ["y"],
        form.steps.nodes,
        [helper.make_opsetid("", opset)],
    )
    if form.rule.quantize.zero == "before" and form.zeros:
        return function  # a reader's own profile would round the type elsewhere: its operators tell
    for key, value in {**metadata, HASH: digest}.items():
        function.metadata_props.add(key=key, value=value)
    return function


def _digest(
    op: str, nodes: Iterable[onnx.NodeProto], arrays: list[str], stated: Iterable[str]
) -> str:
    """Returns a digest that identifies a function, and changes with any edit."""
    state = hashlib.sha256("\0".join([op, *arrays, *stated]).encode())
    for node in nodes:
        state.update(node.SerializeToString(deterministic=True))
    return state.hexdigest()
