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
from qir.profiles import profile, quantize_query

from .elements import ELEMENT_TYPES, QUANTIZABLE, element_type

DOMAIN = "qir"
TYPE, ARRAYS, HASH, ROUND = "qir.type", "qir.arrays", "qir.hash", "qir.round"
"""Keys of a function's metadata: what it stands for, its arrays' types, what it is made of."""
PROFILE = "qir.rules"
"""The profile whose arithmetic it is, where a reader's own profile would treat NaN differently."""
_WIDEST, _ALONE = 16, 24
"""Quantized values of so many bits are whole in float32, and sums of them; and with no
zero point."""
_ZEROS = ("after", "before")
_FLOATS = ("f8e4m3fn", "f8e4m3fnuz", "f8e5m2", "f8e5m2fnuz")
"""Quantized values that Cast makes of floats, and float values of them."""
_REALS = ("f32", "f16", "bf16", "f64")


def needs_function(quant: QuantType, shape: Shape, *, constant: bool) -> bool:
    """Returns whether QuantizeLinear and DequantizeLinear lack a type with constant parameters."""
    if quant.dynamic:
        return False
    several = (
        quant.granularity is not None
        and quant.axis is None
        and block_axis_and_size(quant.granularity, shape) is None
    )
    narrow = bool(quant.bounds) and not constant
    unlike = quant.kind != "uniform" or quant.has_float_zero or quant.plus is not None
    stored = quant.storage.name in QUANTIZABLE and quant.express.name in ("f32", "f16")
    return unlike or several or narrow or not stored


def adds_zero_before_rounding(quant: QuantType, name: str | None) -> bool:
    """Returns whether a profile adds the zero point before rounding, which QuantizeLinear does
    not."""
    rule = profile(name or "native").resolve(quantize_query(quant))
    return rule.quantize.zero == "before" and bool(np.asarray(quant.zeros()).any())


def multiplies_by_gain(quant: QuantType, name: str) -> bool:
    """Returns whether a profile multiplies by a gain from the range: 1 / scale except for the
    last bit."""
    rule = profile(name).resolve(quantize_query(quant)).quantize
    return rule.by == "gain" and rule.zero == "none" and quant.kind == "uniform"


def block_axis_and_size(grain: Granularity, shape: Shape) -> tuple[int, int] | None:
    """Returns the axis and size of blocks along one axis; None for other blocks, or listed ones."""
    named = dict(grain.blocks)
    wide = [(axis, size) for axis, size in named.items() if size > 1]
    left = [axis for axis in range(len(shape)) if axis not in named]
    if not wide and not left and shape:
        wide = [(len(shape) - 1, 1)]
    if not wide and len(left) == 1 and isinstance(size := shape[left[0]], int):
        wide, left = [(left[0], size)], []  # one scale for the whole of an axis is one block
    return wide[0] if len(wide) == 1 and not left and grain.by is None else None


def unsupported_reason(quant: QuantType, shape: Shape) -> str:
    """Returns why primitive operators cannot express a type; empty where they can."""
    if quant.dynamic:
        return "its quantization parameters are computed at run time"
    most = _WIDEST if np.asarray(quant.zeros()).any() else _ALONE
    plain = quant.storage.name in _FLOATS and not np.asarray(quant.zeros()).any()
    if not (quant.storage.is_integer or plain) or quant.storage.bits > most:
        return f"quantized values of {quant.storage} are not made of primitive operators"
    if quant.express.name not in _REALS:
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
class _Steps:
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

    def held(self, data: NDArray[np.generic]) -> str:
        """Returns a constant, which is in the function."""
        return self.do("Constant", value=numpy_helper.from_array(np.asarray(data)))

    def real(self, value: float) -> str:
        return self.held(np.asarray(value, np.float32))

    def cast(self, x: str, to: int, out: str | None = None) -> str:
        return self.do("Cast", x, out=out, to=to)


def _node(op: str, inputs: Iterable[str], out: str, attrs: Mapping[str, object]) -> NodeProto:
    made = NodeProto(op_type=op, input=list(inputs), output=[out])
    made.attribute.extend(helper.make_attribute(k, v) for k, v in attrs.items())
    return made


@dataclass
class _Numbers:
    """The arrays of a type, which are next to the function's operand."""

    arrays: dict[str, Array] = field(default_factory=dict)

    def name(self, array: Array) -> str:
        for known, other in self.arrays.items():
            if other is array or other == array:
                return f"@{known}"
        self.arrays[f"p{len(self.arrays)}"] = array
        return f"@p{len(self.arrays) - 1}"


class _Form:
    """One function: quantize or dequantize by a quantized type, for tensors of some shape."""

    def __init__(self, quant: QuantType, shape: Shape, rule: Rule) -> None:
        self.quant = replace(quant, declared=None)
        self.shape = shape
        self.rule = rule
        self.steps = _Steps()
        self.numbers = _Numbers()
        self.text = self.quant.text(self.numbers.name)
        self.memo: dict[str, str] = {}
        self.zeros = bool(np.asarray(quant.zeros()).any())

    def spread(self, held: object, data: NDArray[np.generic]) -> str:
        """Returns parameters as float32, shaped to broadcast with the tensor."""
        if isinstance(held, Array):
            name = self.numbers.name(held)[1:]
            steps, kind = self.steps, held.type.dtype
            source = name if kind.name == "f32" else steps.cast(name, TensorProto.FLOAT)
            size: tuple[int, ...] = held.data.shape
        else:
            single = np.asarray(data, np.float32)
            source, size = self.steps.held(single), single.shape
        return self._along(source, size)

    def _along(self, source: str, size: tuple[int, ...]) -> str:
        quant, steps = self.quant, self.steps
        if quant.granularity is None:
            return (
                source
                if not size
                else steps.do("Reshape", source, steps.held(np.zeros(0, np.int64)))
            )
        rank = len(self.shape)
        if quant.axis is not None:
            wide = [1] * rank
            wide[quant.axis] = -1
            return steps.do("Reshape", source, steps.held(np.asarray(wide, np.int64)))
        grid = quant.granularity.grid(self.shape)
        if size != grid:
            whole = np.asarray([d if isinstance(d, int) else 1 for d in grid], np.int64)
            source = steps.do("Reshape", source, steps.held(whole))
        for axis, block in quant.granularity.blocks:
            length = self.shape[axis]
            assert isinstance(length, int)
            if quant.granularity.by is not None and axis == quant.granularity.blocks[-1][0]:
                at = self.numbers.name(quant.granularity.by)[1:]
                source = steps.do("Gather", source, steps.cast(at, TensorProto.INT64), axis=axis)
            elif block > 1:
                index = np.arange(length, dtype=np.int64) // block
                source = steps.do("Gather", source, steps.held(index), axis=axis)
        return source

    def scale(self) -> str:
        return self.spread(self.quant.scale, np.asarray(self.quant.scales()))

    def zero(self) -> str | None:
        held = np.asarray(self.quant.zeros())
        return self.spread(self.quant.zero, held) if held.any() else None

    def plus(self) -> str | None:
        held = self.quant.plus
        if held is None:
            return None
        return self.spread(held, np.empty(0) if isinstance(held, Array) else _listed(self.quant))

    def table(self) -> tuple[str, NDArray[np.float32]]:
        """Returns the entries of a table, and the name that they have."""
        held = self.quant.codes
        if isinstance(held, Array):
            name = self.numbers.name(held)[1:]
            if held.type.dtype.name != "f32":
                name = self.steps.cast(name, TensorProto.FLOAT)
            return name, held.data.astype(np.float32)
        data = np.asarray(held, np.float32)
        return self.steps.held(data), data

    # -- dequantize ---------------------------------------------------------------------------

    def dequantize(self) -> None:
        """Writes (q - zero) * scale + plus, or an entry of the table times the scale."""
        steps, quant = self.steps, self.quant
        if quant.kind == "lut":
            table, _ = self.table()
            index = steps.cast("x", TensorProto.INT64)
            if quant.low:
                index = steps.do("Sub", index, steps.held(np.asarray(quant.low, np.int64)))
            real = steps.do("Gather", table, index, axis=0)
        else:
            real = steps.cast("x", TensorProto.FLOAT)
            if (zero := self.zero()) is not None:
                real = steps.do("Sub", real, zero)
        real = steps.do("Mul", real, self.scale())
        if (plus := self.plus()) is not None:
            real = steps.do("Add", real, plus)
        steps.cast(real, ELEMENT_TYPES[quant.express.name], out="y")

    # -- quantize -----------------------------------------------------------------------------

    def quantize(self, rounding: str) -> None:
        """Writes x over the scale, rounded and clamped, or the nearest entry of the table."""
        steps, quant, rule = self.steps, self.quant, self.rule.quantize
        x = steps.cast("x", TensorProto.FLOAT)
        if (plus := self.plus()) is not None:
            x = steps.do("Sub", x, plus)
        if rule.by == "reciprocal":
            x = steps.do("Mul", x, steps.do("Div", steps.real(1.0), self.scale()))
        else:
            x = steps.do("Div", x, self.scale())
        if quant.kind == "lut":
            self._nearest(x)
            return
        if quant.storage.is_float:
            steps.cast(x, _carrier(quant), out="y")
            return
        zero, nan = self.zero(), steps.do("IsNaN", x)
        before = quant.has_float_zero or rule.zero == "before"
        if zero is not None and before:
            x = steps.do("Add", x, zero)
        whole = self._rounded(x, rounding or rule.round)
        if zero is not None and not before:
            whole = steps.do("Add", whole, zero)
        low, high = quant.storage.bounds if rule.bounds == "storage" else (quant.low, quant.high)
        cut = steps.do("Clip", whole, steps.real(low), steps.real(high))
        met = {"low": steps.real(low), "high": steps.real(high)}.get(rule.nan)
        met = met or (steps.do("Round", zero) if zero is not None else steps.real(0.0))
        steps.cast(steps.do("Where", nan, met, cut), _carrier(quant), out="y")

    def _rounded(self, x: str, rounding: str) -> str:
        steps, half = self.steps, self.steps.real(0.5)
        if rounding in ("even", "floor", "ceil"):
            return steps.do({"even": "Round", "floor": "Floor", "ceil": "Ceil"}[rounding], x)
        # x - floor(x) is exact; floor(x + 0.5) would round the sum first, and 0.49999997 up.
        if rounding in ("half_up", "half_down"):
            near = steps.do("Floor" if rounding == "half_up" else "Ceil", x)
            ends = (x, near) if rounding == "half_up" else (near, x)
            more = steps.do("GreaterOrEqual", steps.do("Sub", *ends), half)
            step = steps.cast(more, TensorProto.FLOAT)
            return steps.do("Add" if rounding == "half_up" else "Sub", near, step)
        size = steps.do("Abs", x)
        if rounding == "away":
            near = steps.do("Floor", size)
            more = steps.do("GreaterOrEqual", steps.do("Sub", size, near), half)
            size = steps.do("Add", near, steps.cast(more, TensorProto.FLOAT))
        else:
            size = steps.do("Ceil" if rounding == "up" else "Floor", size)
        return steps.do("Mul", steps.do("Sign", x), size)

    def _nearest(self, x: str) -> None:
        """Counts the midpoints below each element; of two equally near entries the lower index
        wins.
        """
        steps, quant = self.steps, self.quant
        _, table = self.table()
        middles, first = table_midpoints(table)
        nan = steps.do("IsNaN", x)
        met = np.inf if self.rule.quantize.nan == "high" else 0.0
        x = steps.do("Where", nan, steps.real(met), x)
        wide = steps.cast(x, TensorProto.DOUBLE)
        last = steps.held(np.asarray([-1], np.int64))
        each, ends = steps.do("Unsqueeze", wide, last), steps.held(middles)
        order, sides = steps.held(first.astype(np.int64)), []
        for op in ("Greater", "GreaterOrEqual"):
            below = steps.cast(steps.do(op, each, ends), TensorProto.INT64)
            count = steps.do("ReduceSum", below, last, keepdims=0)
            sides.append(steps.do("Gather", order, count, axis=0))
        index = steps.do("Min", *sides)
        if (code := {"low": 0, "zero_code": -quant.low}.get(self.rule.quantize.nan)) is not None:
            place = np.asarray(min(max(code, 0), table.size - 1), np.int64)
            index = steps.do("Where", nan, steps.held(place), index)
        if quant.low:
            index = steps.do("Add", index, steps.held(np.asarray(quant.low, np.int64)))
        steps.cast(index, _carrier(quant), out="y")


def _listed(quant: QuantType) -> NDArray[np.float32]:
    data = np.asarray(quant.plus, np.float32)
    return data if quant.granularity is not None else data.reshape(())


def _carrier(quant: QuantType) -> int:
    return element_type(quant.storage)


# -- the function ----------------------------------------------------------------------------------


def made(
    op: str, kind: TensorType, name: str, opset: int, rounding: str = ""
) -> tuple[FunctionProto, Mapping[str, Array]]:
    """Returns the function that quantizes or dequantizes by a quantized type as a profile does, and
    its arrays.

    Raises Refused where primitive operators cannot say it.
    """
    quant = kind.quant
    assert quant is not None
    rule = profile(name).resolve(quantize_query(quant))
    said = unsupported_reason(quant, kind.shape) or beyond(rule)
    rounds = rounding or rule.quantize.round
    if op == "Quantize" and quant.storage.is_float and rounds != "even":
        said = said or f"Cast to {quant.storage} rounds to even, and not {rounds}"
    if said:
        raise Refused(f"ONNX has no form here for quantized values of {quant}: {said}")
    form = _Form(quant, kind.shape, rule)
    if op == "Quantize":
        form.quantize(rounding)
    else:
        form.dequantize()
    return _function(op, form, opset, rounding), form.numbers.arrays


def beyond(rule: Rule) -> str:
    """Returns why primitive operators cannot quantize by a rule; empty where they can."""
    q, d = rule.quantize, rule.dequantize
    if q.by not in ("divide", "reciprocal") or q.compute != "f32" or q.zero not in _ZEROS:
        return f"{rule.profile} quantizes by {q.by} in {q.compute}, zero {q.zero}"
    if q.clip == "range_first" or d.by != "(q-z)*s" or d.compute != "f32":
        return f"{rule.profile} cuts {q.clip} and dequantizes by {d.by} in {d.compute}"
    return ""


def _function(op: str, form: _Form, opset: int, rounding: str) -> FunctionProto:
    arrays = form.numbers.arrays
    types = ",".join(f"{n}:{a.type.dtype}" for n, a in arrays.items())
    stated = {TYPE: form.text, ARRAYS: types, ROUND: rounding}
    if op == "Quantize" and form.quant.kind == "lut" and form.rule.quantize.nan == "zero_code":
        stated[PROFILE] = form.rule.profile
    digest = _digest(op, form.steps.nodes, list(arrays), stated.values())
    out = helper.make_function(
        DOMAIN,
        f"{op}_{digest[:12]}",
        ["x", *arrays],
        ["y"],
        form.steps.nodes,
        [helper.make_opsetid("", opset)],
    )
    if form.rule.quantize.zero == "before" and form.zeros:
        return out  # a reader's own profile would round the type elsewhere: its operators tell
    for key, value in {**stated, HASH: digest}.items():
        out.metadata_props.add(key=key, value=value)
    return out


def _digest(
    op: str, nodes: Iterable[onnx.NodeProto], arrays: list[str], said: Iterable[str]
) -> str:
    """Returns a digest that identifies a function, and changes with any edit."""
    state = hashlib.sha256("\0".join([op, *arrays, *said]).encode())
    for node in nodes:
        state.update(node.SerializeToString(deterministic=True))
    return state.hexdigest()
