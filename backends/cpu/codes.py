"""Properties of quantized types that kernels need: per-tensor parameters, weights, bounds,
tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qir.errors import Refused
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.types import QuantType, TensorType
from qir.reference.interpreter import run_node

from .builder import CannotLower

PROFILE = "native"
BOUNDING = frozenset({"relu", "clip"})
"""Ops that only bound their operand."""
Table = NDArray[np.uint8 | np.int8]


@dataclass(frozen=True, slots=True)
class ByteParameters:
    """The quantization parameters of a tensor of 8 bits with one scale."""

    quant: QuantType
    kind: Literal["u8", "i8"]
    scale: np.float32
    zero: int

    @property
    def low(self) -> int:
        return self.quant.low

    @property
    def high(self) -> int:
        return self.quant.high

    @property
    def full(self) -> bool:
        """Whether every integer of the storage is in use."""
        return self.quant.bounds is None

    def same(self, other: ByteParameters) -> bool:
        """Returns whether integers of the two mean the same, so that they may be copied as they
        are."""
        return self.quant.has_same_mapping(other.quant)


def codes(value: Value, slot: str = "") -> ByteParameters:
    """Returns the parameters of a value; CannotLower if the kernels do not take its type."""
    quant = value.type.quant
    what = slot or f"%{value.name}"
    if quant is None:
        raise CannotLower(f"{what} is {value.type.dtype}, not quantized")
    if quant.storage not in (U8, I8):
        raise CannotLower(f"{what} is stored as {quant.storage}")
    if quant.granularity is not None:
        raise CannotLower(f"{what} has more than one scale")
    _plain(quant, what)
    if quant.has_float_zero:
        raise CannotLower(f"{what} has a zero point that is no integer of its type")
    kind: Literal["u8", "i8"] = "u8" if quant.storage == U8 else "i8"
    return ByteParameters(quant, kind, np.float32(quant.scales()), int(quant.zeros()))


def _plain(quant: QuantType, what: str) -> None:
    if quant.kind != "uniform" or quant.plus is not None or quant.dynamic:
        raise CannotLower(f"{what} is no static uniform type")
    if quant.express != F32 or quant.scale_dtype is not None:
        raise CannotLower(f"{what} does not mean float32 by a float32 scale")


@dataclass(frozen=True, slots=True)
class Weight:
    """Weights for the kernels: integers less zero points; one scale, or one a channel."""

    data: NDArray[np.int8]
    scale: NDArray[np.float32]


def weight(value: Value, axis: int, slot: str) -> Weight:
    """Returns a constant's weights; `axis` is that of the output channels. CannotLower where it is
    none."""
    data, quant = value.constant, value.type.quant
    if data is None:
        raise CannotLower(f"{slot} is no constant")
    if quant is None or quant.storage not in (U8, I8):
        raise CannotLower(f"{slot} is stored as {value.type.dtype}")
    _plain(quant, slot)
    if quant.granularity is not None and quant.axis != axis:
        raise CannotLower(f"{slot} has scales along another axis than its output channels")
    if quant.has_float_zero:
        raise CannotLower(f"{slot} has a zero point that is no integer of its type")
    shape = [1] * value.type.rank
    shape[axis] = -1
    zeros = quant.zeros().reshape(shape if quant.granularity else [1] * value.type.rank)
    shifted = data.data.astype(np.int64) - zeros.astype(np.int64)
    if shifted.size and (shifted.min() < -128 or shifted.max() > 127):
        raise CannotLower(f"{slot} less its zero does not fit i8")
    scale = np.asarray(quant.scales(), np.float32).reshape(-1)
    return Weight(np.ascontiguousarray(shifted.astype(np.int8)), scale)


def bias(
    value: Value | None, channels: int, x: ByteParameters, scale: NDArray[np.float32], slot: str
) -> NDArray[np.int32] | None:
    """Returns a bias in accumulator units, one for each channel; CannotLower where it is none."""
    if value is None:
        return None
    if value.constant is None:
        raise CannotLower(f"{slot} is no constant")
    if value.type.dtype != I32:
        raise CannotLower(f"{slot} is {value.type.dtype}, not i32 in accumulator units")
    if (quant := value.type.quant) is not None:
        given = np.asarray(quant.scales(), np.float32).reshape(-1)
        if np.any(quant.zeros()) or not _equal(given, multiplier(x, scale, None)):
            raise CannotLower(f"{slot} has another scale than the product of x's and the weight's")
    data = np.asarray(value.constant.data, np.int32)
    if data.size not in (1, channels) or data.shape[-1:] not in ((), (1,), (channels,)):
        raise CannotLower(f"{slot} has another value for each row")
    return np.ascontiguousarray(np.broadcast_to(data.reshape(-1), channels))


def _equal(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    one, other = np.broadcast_arrays(a, b)
    return bool(np.array_equal(one, other))


def multiplier(
    x: ByteParameters, scale: NDArray[np.float32], y: ByteParameters | None
) -> NDArray[np.float32]:
    """Returns sx * sw / sy in float32, in this order; sx * sw where the result stays float."""
    with np.errstate(all="ignore"):  # what overflows is infinite, which the kernels take
        product = np.float32(x.scale) * scale
        out = product if y is None else product / np.float32(y.scale)
    return np.ascontiguousarray(out, np.float32)


def table(
    x: ByteParameters,
    y: ByteParameters,
    op: str,
    attrs: Mapping[str, Attr],
    stages: tuple[Stage, ...],
) -> Table:
    """Returns what the reference makes of each of the 256 integers."""
    graph = Graph("table", PROFILE)
    kinds = [TensorType((256,), m.quant) for m in (x, y)]
    source = graph.add("input", types=[kinds[0]], name="x").result
    if stages:
        shaped = [replace(s, type=s.type and s.type.with_shape((256,))) for s in stages]
        node = graph.add_chain(shaped, {"x": source}, kinds[1])
    else:
        node = graph.add(op, {"x": source}, attrs, types=[kinds[1]])
    (out,) = run_node(node, {"x": every(x)}, PROFILE)
    result: Table = np.ascontiguousarray(out)
    return result


def requantized(x: ByteParameters, y: ByteParameters) -> Table | None:
    """Returns the table from integers of one type to those of another; None where they mean the
    same."""
    return None if x.same(y) else table(x, y, "requantize", {}, ())


def every(x: ByteParameters) -> Table:
    """Returns the 256 integers in the order of their bytes."""
    return np.arange(256, dtype=np.uint8).view(np.uint8 if x.kind == "u8" else np.int8)


def coded(reals: list[float], y: ByteParameters) -> list[int]:
    """Returns the integers to which the profile quantizes these floats."""
    graph = Graph("bounds", PROFILE)
    shape = (len(reals),)
    source = graph.add("input", types=[TensorType(shape, F32)], name="x").result
    node = graph.add("quantize", {"x": source}, types=[TensorType(shape, y.quant)])
    (out,) = run_node(node, {"x": np.array(reals, np.float32)}, PROFILE)
    return [int(c) for c in out]


@dataclass(frozen=True, slots=True)
class Job:
    """One op to lower: a node, or a chain whose later stages only bound the result."""

    name: str
    op: str
    attrs: Mapping[str, Attr]
    operands: Mapping[str, Value]
    result: Value
    tail: tuple[Stage, ...] = ()
    params: Mapping[str, object] = field(default_factory=dict)
    """Parameters of the method that its profile names."""

    def bounds(self, y: ByteParameters) -> tuple[int, int]:
        """Returns the lowest and highest integer of the result, by its type and its fused
        activation.

        Rounding is monotone: clamping floats before it is clamping integers after it.
        """
        low, high = y.low, y.high
        for stage in self.tail:
            least, most = (
                (0.0, None) if stage.op == "relu" else (stage.attrs["min"], stage.attrs["max"])
            )
            reals = [v for v in (least, most) if isinstance(v, float)]
            ends = iter(coded(reals, y))
            floor = next(ends) if least is not None else y.low
            ceiling = next(ends) if most is not None else y.high
            low, high = (min(max(v, floor), ceiling) for v in (low, high))
        return low, high

    def full(self, y: ByteParameters) -> None:
        """Raises CannotLower unless the result has every integer: for kernels that do not clamp."""
        if self.bounds(y) != y.quant.storage.bounds:
            raise CannotLower(f"{self.op} does not clamp its results")

    def ints(self, name: str) -> tuple[int, ...]:
        """Returns an attribute that is a tuple of whole numbers; the op's spec has checked it."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def pair(self, name: str) -> tuple[int, int]:
        """Returns an attribute of two whole numbers."""
        first, second = self.ints(name)
        return first, second

    def pads(self) -> tuple[int, int, int, int]:
        """Returns top, left, bottom and right padding."""
        top, left, bottom, right = self.ints("pad")
        return top, left, bottom, right

    def number(self, name: str) -> int:
        """Returns an attribute that is a whole number."""
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    @property
    def nchw(self) -> bool:
        """Whether a spatial op is typed NCHW, so that the kernels hold it channels last."""
        return self.attrs["layout"] == "NCHW"


def job(node: Node) -> Job:
    """Returns what a node asks for; Refused for a chain that does more than bound."""
    if not node.stages:
        return Job(node.name, node.op, node.attrs, node.operands, node.result)
    head, *tail = node.stages
    rounded = any(stage.type is not None for stage in node.stages[:-1])
    if rounded or any(stage.op not in BOUNDING for stage in tail):
        chain = " |> ".join(s.op for s in node.stages)
        raise Refused(f"{node.name}: nothing computes {chain} as one; expand-qdq unwraps it")
    return Job(node.name, head.op, head.attrs, node.stage_operands(0), node.result, tuple(tail))
