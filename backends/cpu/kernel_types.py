"""The quantized types, weights and jobs that kernels accept, and lookup tables between two
types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from qir._kernels import _cpu
from qir.analysis.activations import bounds_by_native_rule
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.types import QuantType, TensorType
from qir.numerics import Rule, affine_of, quantize
from qir.profiles import NamedProfile, quantize_query
from qir.records import record
from qir.reference.interpreter import run_node
from qir.rewrite.fusing import ACTIVATIONS

from .builder import CannotLower

_Number = TypeVar("_Number", np.int32, np.float32)
_Element = TypeVar("_Element", bound=np.generic)
KERNEL_PROFILE = "native"
"""The numerics profile that the int8 kernels implement."""
KERNEL_RULES = NamedProfile(KERNEL_PROFILE)
Table = NDArray[np.uint8 | np.int8]
"""256 integers, indexed by the bits of an 8-bit operand."""


@record
class ByteParameters:
    """The quantization parameters of an 8-bit tensor with one scale."""

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
    def require_no_clamp(self) -> bool:
        """Whether every integer of the storage is in use."""
        return self.quant.bounds is None

    def same(self, other: ByteParameters) -> bool:
        """Returns whether equal integers of both types mean equal floats, so that bytes may be
        copied."""
        return self.quant.has_same_mapping(other.quant)


def byte_parameters(value: Value, slot: str = "") -> ByteParameters:
    """Returns the parameters of an 8-bit per-tensor value; raises CannotLower for any other
    type."""
    quant = value.type.quant
    name = slot or f"%{value.name}"
    if quant is None:
        raise CannotLower(f"{name} is {value.type.dtype}, not quantized")
    if quant.storage not in (U8, I8):
        raise CannotLower(f"{name} is stored as {quant.storage}")
    if quant.granularity is not None:
        raise CannotLower(f"{name} has more than one scale")
    _require_static_uniform(quant, name)
    if quant.has_float_zero:
        raise CannotLower(f"{name} has a zero point that is no integer of its type")
    kind: Literal["u8", "i8"] = "u8" if quant.storage == U8 else "i8"
    return ByteParameters(quant, kind, np.float32(quant.scales()), int(quant.zeros()))


def _require_static_uniform(quant: QuantType, name: str) -> None:
    if quant.kind != "uniform" or quant.plus is not None or quant.dynamic:
        raise CannotLower(f"{name} is no static uniform type")
    if quant.express != F32 or quant.scale_dtype is not None:
        raise CannotLower(f"{name} does not mean float32 by a float32 scale")


@record
class CenteredWeights:
    """Constant integers minus zero points, as the kernels take them: 8 bits, and one offset for
    each output channel where these do not hold them."""

    data: NDArray[np.int8]
    offset: NDArray[np.int32] | None = None


@record
class Weight:
    """Such weights with one scale or one per output channel."""

    data: NDArray[np.int8]
    scale: NDArray[np.float32]
    offset: NDArray[np.int32] | None = None


def centered_weights(
    data: NDArray[np.generic], zeros: NDArray[np.generic], axis: int
) -> CenteredWeights:
    """Returns 8-bit integers less zero points, one for all or one for each channel of an axis."""
    shape = [1] * data.ndim
    if zeros.size != 1:
        shape[axis] = -1
    each = zeros.astype(np.int16).reshape(shape)
    shifted = data.astype(np.int16) - each
    if not shifted.size or (shifted.min() >= -128 and shifted.max() <= 127):
        return CenteredWeights(np.ascontiguousarray(shifted.astype(np.int8)))
    # w - z = (w - 128) + (128 - z) for u8: signed bytes, and an offset that each channel's sum
    # takes times the sum of its window.
    middle = 128 if data.dtype == np.uint8 else 0
    offset = np.broadcast_to((middle - each).reshape(-1), data.shape[axis]).astype(np.int32)
    signed = (data.astype(np.int16) - middle).astype(np.int8)
    return CenteredWeights(np.ascontiguousarray(signed), np.ascontiguousarray(offset))


def constant_weight(value: Value, axis: int, slot: str) -> Weight:
    """Returns a constant's weights; `axis` is that of the output channels. Raises CannotLower
    for types that no kernel reads."""
    data, quant = value.constant, value.type.quant
    if data is None:
        raise CannotLower(f"{slot} is no constant")
    if quant is None or quant.storage not in (U8, I8):
        raise CannotLower(f"{slot} is stored as {value.type.dtype}")
    _require_static_uniform(quant, slot)
    if quant.granularity is not None and quant.axis != axis:
        raise CannotLower(f"{slot} has scales along another axis than its output channels")
    if quant.has_float_zero:
        raise CannotLower(f"{slot} has a zero point that is no integer of its type")
    scale = np.asarray(quant.scales(), np.float32).reshape(-1)
    zeros = quant.zeros()
    # The common case, symmetric i8 weights: the constant's own elements are used.
    if quant.storage == I8 and not zeros.any():
        return Weight(np.ascontiguousarray(data.data), scale)
    centered = centered_weights(data.data, zeros, axis)
    return Weight(centered.data, scale, centered.offset)


def accumulator_bias(
    value: Value | None, channels: int, x: ByteParameters, scale: NDArray[np.float32], slot: str
) -> NDArray[np.int32] | None:
    """Returns an int32 bias, one value per channel, in units of the accumulator. Raises
    CannotLower for any other bias."""
    if value is None:
        return None
    if value.constant is None:
        raise CannotLower(f"{slot} is no constant")
    if value.type.dtype != I32:
        raise CannotLower(f"{slot} is {value.type.dtype}, not i32 in accumulator units")
    if (quant := value.type.quant) is not None:
        scales = np.asarray(quant.scales(), np.float32).reshape(-1)
        # A bias with a scale of its own would need a requantize before it is added.
        if np.any(quant.zeros()) or not _equal(scales, requantize_multiplier(x, scale, None)):
            raise CannotLower(f"{slot} has another scale than the product of x's and the weight's")
    return per_column(np.asarray(value.constant.data, np.int32), channels, slot)


def per_column(data: NDArray[_Number], count: int, slot: str) -> NDArray[_Number]:
    """Returns one value for each column, of an array that has as many, or one for all."""
    if data.size not in (1, count) or data.shape[-1:] not in ((), (1,), (count,)):
        raise CannotLower(f"{slot} has another value for each row")
    return np.ascontiguousarray(np.broadcast_to(data.reshape(-1), count))


_CACHE_LINE = 64


def transposed_copy(matrix: NDArray[_Element]) -> NDArray[_Element]:
    """Returns the contiguous transpose of a matrix, two to six times as fast as NumPy alone.

    As many rows are transposed at once as fill a line of the cache with each column.
    """
    if matrix.itemsize == 1:
        rows = np.ascontiguousarray(matrix).view(np.uint8)
        return _cpu.transposed(rows).view(matrix.dtype)
    out = np.empty(matrix.shape[::-1], matrix.dtype)
    step = _CACHE_LINE // matrix.itemsize
    for start in range(0, len(matrix), step):
        out[:, start : start + step] = matrix[start : start + step].T
    return out


def gemm_addend(job: Job) -> Value | None:
    """Returns what a Gemm with alpha = beta = 1 adds; raises CannotLower for another Gemm."""
    addend = job.operands.get("c")
    # beta scales the addend only: without one it may be anything.
    if job.attrs["alpha"] != 1.0 or (addend is not None and job.attrs["beta"] != 1.0):
        raise CannotLower("alpha or beta is not 1")
    return addend


def _equal(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    first, other = np.broadcast_arrays(a, b)
    return bool(np.array_equal(first, other))


def requantize_multiplier(
    x: ByteParameters, scale: NDArray[np.float32], y: ByteParameters | None
) -> NDArray[np.float32]:
    """Returns sx * sw / sy in float32; sx * sw where the result stays float."""
    # onnxruntime's QLinearConv computes the product first, then the quotient: float32 rounds
    # each.
    with np.errstate(all="ignore"):  # what overflows is infinite, which the kernels take
        product = np.float32(x.scale) * scale
        out = product if y is None else product / np.float32(y.scale)
    return np.ascontiguousarray(out, np.float32)


def lookup_table(
    x: ByteParameters,
    y: ByteParameters,
    op: str,
    attrs: Mapping[str, Attr],
    stages: tuple[Stage, ...],
) -> Table:
    """Returns the integers that the reference computes for each of the 256 operand bytes."""
    graph = Graph("table", KERNEL_PROFILE)
    types = [TensorType((256,), m.quant) for m in (x, y)]
    source = graph.add("input", types=[types[0]], name="x").result
    if stages:
        resized_stages = [replace(s, type=s.type and s.type.with_shape((256,))) for s in stages]
        node = graph.add_chain(resized_stages, {"x": source}, types[1])
    else:
        node = graph.add(op, {"x": source}, attrs, types=[types[1]])
    (out,) = run_node(node, {"x": all_bytes(x)}, KERNEL_RULES)
    result: Table = np.ascontiguousarray(out)
    return result


def requantize_table(x: ByteParameters, y: ByteParameters) -> Table | None:
    """Returns the table that requantizes one type to another; None where both mean the same
    floats."""
    return None if x.same(y) else lookup_table(x, y, "requantize", {}, ())


def all_bytes(x: ByteParameters) -> Table:
    """Returns the 256 integers of a storage, in the order of their bit patterns."""
    return np.arange(256, dtype=np.uint8).view(np.uint8 if x.kind == "u8" else np.int8)


def quantized_floats(floats: list[float], y: ByteParameters) -> list[int]:
    """Returns the integers to which the kernel profile quantizes some floats."""
    rule = KERNEL_RULES.resolve(quantize_query(y.quant))
    return [int(c) for c in quantize(np.array(floats, np.float32), affine_of(y.quant), rule)]


@record
class Job:
    """An op to lower: a node, or a chain of one op with the activations fused to it."""

    name: str
    op: str
    attrs: Mapping[str, Attr]
    operands: Mapping[str, Value]
    result: Value
    epilogue: tuple[Stage, ...] = ()
    """The fused activations: relu or clip."""
    params: Mapping[str, object] = field(default_factory=dict)
    """Parameters of the method that the node's profile names."""
    summand: Value | None = None
    """A value that the second op of the chain adds."""
    rules: NamedProfile = KERNEL_RULES
    """The profile that says how the op is computed, as it is on this processor."""
    rule: Rule | None = None
    """Its rule for the op, where that is another than the kernels' own."""

    def clamp_bounds(self, y: ByteParameters) -> tuple[int, int]:
        """Returns the lowest and highest integer of the result, by its type and fused activations.

        Rounding is monotone, so clamping the integers equals clamping the floats before rounding.
        """
        low, high = y.low, y.high
        for stage in self.epilogue:
            floor, ceiling = bounds_by_native_rule(stage.op, stage.attrs, y.quant)
            low, high = (min(max(v, floor), ceiling) for v in (low, high))
        return low, high

    def require_no_clamp(self, y: ByteParameters) -> None:
        """Raises CannotLower unless every integer may result: for kernels that do not clamp."""
        if self.clamp_bounds(y) != y.quant.storage.bounds:
            raise CannotLower(f"{self.op} does not clamp its results")

    def int_tuple(self, name: str) -> tuple[int, ...]:
        """Returns an attribute of integers; the op's spec has checked it."""
        value = self.attrs[name]
        assert isinstance(value, tuple)
        return tuple(v for v in value if isinstance(v, int))

    def int_pair(self, name: str) -> tuple[int, int]:
        """Returns an attribute of two integers."""
        first, second = self.int_tuple(name)
        return first, second

    def pads(self) -> tuple[int, int, int, int]:
        """Returns top, left, bottom and right padding."""
        top, left, bottom, right = self.int_tuple("pad")
        return top, left, bottom, right

    def int_attr(self, name: str) -> int:
        """Returns an integer attribute."""
        value = self.attrs[name]
        assert isinstance(value, int)
        return value

    @property
    def nchw(self) -> bool:
        """Whether the op's type is NCHW; the int8 kernels then hold it in NHWC."""
        return self.attrs["layout"] == "NCHW"


def job_of(node: Node) -> Job:
    """Returns a node as a job; raises CannotLower for a chain with more than clamps after its first
    op."""
    if not node.stages:
        return Job(node.name, node.op, node.attrs, node.operands, node.result)
    anchor, *clamps = node.stages
    summand = None
    if clamps and clamps[0].op == "add" and len(node.stage_operands(1)) == 1:
        (summand,) = node.stage_operands(1).values()
        del clamps[0]
    rounded = any(stage.type is not None for stage in node.stages[:-1])
    if rounded or any(stage.op not in ACTIVATIONS for stage in clamps):
        chain = " |> ".join(s.op for s in node.stages)
        raise CannotLower(f"no kernel computes {chain} as one")
    return Job(
        node.name, anchor.op, anchor.attrs, node.stage_operands(0), node.result, tuple(clamps),
        summand=summand,
    )  # fmt: skip
