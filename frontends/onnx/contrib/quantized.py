"""Operators of onnxruntime's own domain on integers: products that quantize, weights in blocks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import F32, I32, U8, dtype
from qir.ir.lazy_arrays import ArrayData, LazyArray, crop, reshape
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType

from .. import dynamic_ops
from ..op import MICROSOFT, KeepOperator, OnnxOp
from ..reader import OnnxReader
from .body import BodyBuilder, given, group
from .names import OPERANDS
from .packing import TABLES, BlockPacking, codes_in, unpacked

Tensor = NDArray[np.generic]


def codes(reader: OnnxReader, op: OnnxOp, at: tuple[int, int, int]) -> dict[str, Value]:
    """Returns a tensor of quantized values by its operator's name, with its numbers where these are
    computed.

    More than one scale are along the last axis.
    """
    formal = OPERANDS[op.type].split()
    data, scale, zero = (op.input(i) for i in at)
    kind = reader.type_of(op, data)
    if kind.dtype.name not in ("u8", "i8"):
        raise op.fail(f"its operand {data!r} is {kind.dtype}, it takes u8 and i8")
    if not dynamic_ops.computed(reader, op, at[1], at[2]):
        if reader.numbers(scale).size == 1:
            quant = reader.quant(scale, zero, kind.dtype)
        else:
            quant = reader.quant(scale, zero, kind.dtype, kind.shape, kind.rank - 1)
        return {formal[at[0]]: _meant(reader, op, data, quant)}
    numbers = {formal[at[1]]: reader.value(op, scale)}
    if zero:
        numbers[formal[at[2]]] = reader.value(op, zero)
    along = numbers[formal[at[1]]].type
    many = along.rank == 1 and along.shape[0] != 1
    grain = Granularity(((kind.rank - 1, 1),)) if many else None
    quant = QuantType(kind.dtype, F32, None, None if zero else (), grain)
    return {formal[at[0]]: _meant(reader, op, data, quant), **numbers}


def _meant(reader: OnnxReader, op: OnnxOp, name: str, quant: QuantType) -> Value:
    if reader.is_constant(name):
        return reader.value(op, name, quant)
    return dynamic_ops.meant(reader, op, name, quant)


# -- products -------------------------------------------------------------------------------------


def _to_float(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulIntegerToFloat: integer sums times both scales, and a bias of floats."""
    op.only()
    operands = {**codes(reader, op, (0, 2, 4)), **codes(reader, op, (1, 3, 5))}
    operands |= _bias(reader, op, 6)

    def build(body: BodyBuilder) -> list[Value]:
        slots = {"a": "A", "b": "B", "bias": "bias"}
        slots |= {f"{s}.{n}": f"{s}_{w}" for s in "ab" for n, w in _WORDS}
        return [body.many("matmul", {s: body[g] for s, g in slots.items() if g in body})[0]]

    group(reader, op, operands, build)


_WORDS = (("scale", "scale"), ("zero", "zero_point"))


def _bias(reader: OnnxReader, op: OnnxOp, place: int) -> dict[str, Value]:
    name = op.input(place)
    return {"bias": reader.value(op, name)} if name else {}


def _dynamic(reader: OnnxReader, op: OnnxOp) -> None:
    """DynamicQuantizeMatMul: the left side is quantized as a whole, by its own range."""
    op.only()
    operands = {"A": reader.value(op, op.input(0)), **codes(reader, op, (1, 2, 3))}
    operands |= _bias(reader, op, 4)

    def build(body: BodyBuilder) -> list[Value]:
        a, scale, zero = ranged(body, body["A"])
        slots = {"b": "B", "b.scale": "b_scale", "b.zero": "b_zero_point", "bias": "bias"}
        given = {s: body[g] for s, g in slots.items() if g in body}
        return [body.many("matmul", {"a": a, "a.scale": scale, "a.zero": zero, **given})[0]]

    group(reader, op, operands, build)


def ranged(body: BodyBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Quantized values of a whole tensor by its own range, and their scale and zero point."""
    if x.type.element != F32:
        raise KeepOperator(f"{x.type.element} is not quantized as it runs")
    scale, zero = body.many("choose_qparams", {"x": x}, {"rule": "onnx.dynamic", "storage": U8})
    kind = x.type.with_element(QuantType(U8, F32, None, None))
    made = body.many("quantize", {"x": x, "scale": scale, "zero": zero}, types=[kind])
    return made[0], scale, zero


def _integer16(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulInteger16: sums of products of 16-bit numbers, in 32 bits that wrap."""
    op.only()
    operands = given(reader, op)

    def build(body: BodyBuilder) -> list[Value]:
        return [body.op("matmul", *(body.cast(body[s], I32) for s in "AB"))]

    group(reader, op, operands, build)


# -- weights in blocks ----------------------------------------------------------------------------


def _nbits(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulNBits: weights of a few bits, a scale a block of each row."""
    op.only("K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked")
    if op.integer("weight_prepacked", 0):
        raise KeepOperator("its weights are laid out for one kernel")
    blocks = BlockPacking(
        op.integer("bits", 4), op.integer("block_size", 0), (op.integer("N", 0), op.integer("K", 0))
    )
    blocks.check(op)
    operands = given(reader, op, "B", "scales", "zero_points", "g_idx")
    places = [op.input(i) for i in range(1, 5)]
    if op.input(3) and op.input(4):
        raise KeepOperator("onnxruntime leaves out zero points where g_idx names groups")
    if any(name and not reader.is_constant(name) for name in places):
        operands = given(reader, op)
    else:
        operands["B"] = _blocked(reader, op, blocks)
    if operands["A"].type.quant or not operands["A"].type.dtype.is_float:
        raise KeepOperator

    def build(body: BodyBuilder) -> list[Value]:
        w = body.real("B") if "scales" not in body else _computed(body, blocks)
        a = body["A"]
        if op.integer("accuracy_level", 0) == 4 and a.type.element == F32 and _rounds(body, blocks):
            a = rounded(body, a, blocks)
        added = [body["bias"]] if "bias" in body else []
        w = body.cast(w, a.type.dtype)
        return [body.op("matmul", a, w, *added, trans_b=True)]

    order = [s for s in OPERANDS[op.type].split() if s in operands]
    group(reader, op, {s: operands[s] for s in order}, build)


def _rounds(body: BodyBuilder, blocks: BlockPacking) -> bool:
    """Returns whether a kernel for eight bits next to few takes these weights, which nobody
    computes."""
    quant = body["B"].type.quant
    if (
        quant is None
        or quant.has_float_zero
        or (quant.granularity is not None and quant.granularity.by is not None)
    ):
        return False
    return blocks.bits != 2 or blocks.size >= _LEAST_OF_TWO


_LEAST_OF_TWO = 32
"""Quantized values of two bits in blocks that the kernel for eight bits next to them takes, at
least."""


def _blocked(reader: OnnxReader, op: OnnxOp, blocks: BlockPacking) -> Value:
    """Returns the weights as quantized values of [N, K] with their scales and zero points."""
    rows, depth = blocks.shape
    held, scales = reader.held(op.input(1)), reader.held(op.input(2))
    if held.size != rows * blocks.count * blocks.bytes or scales.size != rows * blocks.count:
        raise op.fail(f"has {held.size} bytes of weights and {scales.size} scales for {rows} rows")
    data = codes_in(held, blocks.bits, (rows, blocks.count * blocks.size))
    grid = (rows, blocks.count)
    zero: Array | None = None
    if op.input(3):
        zeros = reader.numbers(op.input(3))
        zero = Array.of(blocks.zeros(op, zeros), op.input(3))
    else:
        zero = Array.of(np.full(grid, 1 << (blocks.bits - 1), np.uint8), "zero")
    by = None
    if op.input(4):
        index = reader.numbers(op.input(4)).reshape(-1).astype(np.int64)
        if index.size != depth:
            raise op.fail(f"g_idx names {index.size} columns of {depth}")
        by = Array.of(index.astype(np.int32), op.input(4))
    grain = Granularity(((0, 1), (1, blocks.size)), by)
    storage = dtype(f"u{blocks.bits}")
    kind = reader.kind_of(op.input(2))
    held_scales = Array(reshape(scales, grid), TensorType(grid, kind), op.input(2))
    quant = QuantType(storage, kind, held_scales, zero, grain)
    return weight(reader, op.input(1), crop(data, (rows, depth)), quant)


def weight(reader: OnnxReader, name: str, data: ArrayData, quant: QuantType) -> Value:
    """Returns a constant of the file, unpacked."""
    if not isinstance(data, LazyArray):
        data = np.asarray(data, order="C")
    array = Array(data, TensorType(data.shape, quant), name)
    return reader.hold(reader.resolve(name), array, quant)


def _computed(body: BodyBuilder, blocks: BlockPacking) -> Value:
    """Weights whose numbers, or which themselves, come while the model runs: [N, K] of floats."""
    rows, depth = blocks.shape
    scales = body.reshaped(body["scales"], rows, blocks.count, 1)
    kind = scales.type.dtype
    w = spread(body, body.reshaped(body["B"], rows, -1), blocks.bits)
    w = body.cast(body.reshaped(w, rows, blocks.count, blocks.size), kind)
    if "g_idx" in body:
        raise KeepOperator("an order of groups with computed parameters")
    if "zero_points" not in body:
        zero = body.like(scales, float(1 << (blocks.bits - 1)))
    elif body["zero_points"].type.dtype == U8:
        flat = spread(body, body.reshaped(body["zero_points"], rows, -1), blocks.bits)
        cut = {"starts": (0,), "ends": (blocks.count,), "axes": (1,), "steps": (1,)}
        zero = body.cast(body.op("slice", flat, **cut), kind)
        zero = body.reshaped(zero, rows, blocks.count, 1)
    else:
        zero = body.reshaped(body["zero_points"], rows, blocks.count, 1)
    w = body.op("mul", body.op("sub", w, zero), scales)
    flat = body.reshaped(w, rows, blocks.count * blocks.size)
    cut = {"starts": (0,), "ends": (depth,), "axes": (1,), "steps": (1,)}
    return body.op("slice", flat, **cut)


def spread(body: BodyBuilder, x: Value, bits: int) -> Value:
    """Returns the numbers that bytes of [rows, n] hold, low bits first."""
    if bits == 8:
        return x
    each = 8 // bits
    places = body.constant((np.arange(each) * bits).astype(np.uint8))
    rows = x.type.shape[0]
    assert isinstance(rows, int)
    moved = body.op("bit_shift", body.reshaped(x, rows, -1, 1), places, direction="right")
    low = body.op("bit_and", moved, body.constant(np.array((1 << bits) - 1, np.uint8)))
    return body.reshaped(low, rows, -1)


def rounded(body: BodyBuilder, a: Value, blocks: BlockPacking) -> Value:
    """Returns the left side as eight bits a block hold it: the greatest of each is 127."""
    depth, wide = blocks.shape[1], blocks.count * blocks.size
    rank = a.type.rank
    if wide > depth:
        sides = (0,) * (2 * rank - 1) + (wide - depth,)
        a = body.op("pad", a, pads=sides)
    lead = [0] * (rank - 1)
    parts = body.reshaped(a, *lead, blocks.count, blocks.size)
    most = body.op("reduce_max", body.op("abs", parts), axes=(rank,), keep=True)
    none = body.op("equal", most, body.constant(0.0))
    gain = body.op("div", body.constant(127.0), most)
    gain = body.op("where", none, body.constant(0.0), gain)
    q = body.op("round", body.op("mul", parts, gain))
    scale = body.op("mul", most, body.constant(np.asarray(np.float32(1) / np.float32(127))))
    back = body.reshaped(body.op("mul", q, scale), *lead, wide)
    if wide == depth:
        return back
    cut = {"starts": (0,), "ends": (depth,), "axes": (rank - 1,), "steps": (1,)}
    return body.op("slice", back, **cut)


def _bnb4(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulBnb4: weights by a table of 16 floats, a scale a block of all of them in a row."""
    op.only("K", "N", "block_size", "quant_type", "training_mode", "transB")
    rows, depth = op.integer("N", 0), op.integer("K", 0)
    size, name = op.integer("block_size", 0), op.integer("quant_type", 0)
    if not op.integer("transB", 1) or name not in (0, 1) or size < 16 or size & (size - 1):
        raise KeepOperator(f"blocks of {size} by table {name}")
    if min(rows, depth) < 1:
        raise op.fail(f"has weights of {rows} x {depth}")
    table = Array.of(TABLES[name], ("fp4", "nf4")[name])
    count = rows * depth
    operands = {"A": reader.value(op, op.input(0))}
    if reader.is_constant(op.input(1)) and reader.is_constant(op.input(2)):
        held = reader.held(op.input(1))
        scales = reader.numbers(op.input(2)).reshape(-1)
        if held.size < (count + 1) // 2 or scales.size != -(-count // size):
            raise op.fail(f"has {held.size} bytes and {scales.size} scales for {count} weights")
        held = crop(reshape(held, (held.size,)), ((count + 1) // 2,))
        scale = Array.of(scales, op.input(2))
        quant = QuantType(
            dtype("u4"), F32, scale, (), Granularity(((0, size),)), kind="lut", codes=table
        )
        operands["B"] = weight(reader, op.input(1), codes_in(held, 4, (count,), "high"), quant)
    else:
        operands |= given(reader, op, "A")

    def build(body: BodyBuilder) -> list[Value]:
        if "absmax" in body:
            w = _looked_up(body, table, size, count)
        else:
            w = body.real("B")
        w = body.reshaped(w, rows, depth)
        return [body.op("matmul", body["A"], w, trans_b=True)]

    group(reader, op, operands, build)


def _looked_up(body: BodyBuilder, table: Array, size: int, count: int) -> Value:
    held = body.reshaped(body["B"], -1, 1)
    high = body.op("bit_shift", held, body.constant(np.array(4, np.uint8)), direction="right")
    low = body.op("bit_and", held, body.constant(np.array(15, np.uint8)))
    both = body.cast(body.reshaped(body.op("concat", high, low, axis=1), -1), I32)
    w = body.op("gather", body.constant(table.data), both, axis=0)
    spare = -count % size
    cut = {"starts": (0,), "ends": (count,), "axes": (0,), "steps": (1,)}
    w = body.op("slice", w, **cut)
    if spare:
        w = body.op("pad", w, pads=(0, spare))
    w = body.op("mul", body.reshaped(w, -1, size), body.reshaped(body["absmax"], -1, 1))
    return body.op("slice", body.reshaped(w, -1), **cut)


def _gather(reader: OnnxReader, op: OnnxOp) -> None:
    """GatherBlockQuantized: the entries of an axis that indices name, as floats."""
    op.only("bits", "block_size", "gather_axis", "quantize_axis")
    kind = reader.type_of(op, op.input(0))
    packed = kind.dtype == U8
    bits = op.integer("bits", 4) if packed else kind.dtype.bits
    size = op.integer("block_size", 128)
    if not kind.rank or (packed and bits not in (2, 4, 8)):
        raise KeepOperator(f"its data are {kind}")
    axis = op.integer("quantize_axis", 1) % kind.rank
    along = op.integer("gather_axis", 0) % kind.rank
    if any(op.input(i) and not reader.is_constant(op.input(i)) for i in (0, 2, 3)):
        raise KeepOperator("its data or their numbers are computed")
    data, scales = reader.held(op.input(0)), reader.numbers(op.input(2))
    if packed:
        data = codes_in(data, bits, (*data.shape[:-1], data.shape[-1] * 8 // bits))
    storage = dtype(f"u{bits}") if packed else kind.dtype
    grain = Granularity(tuple((i, size if i == axis else 1) for i in range(kind.rank)))
    if grain.grid(data.shape) != scales.shape:
        raise op.fail(f"has scales of {scales.shape} for data of {data.shape}")
    held = Array.of(scales, op.input(2))
    quant = QuantType(
        storage,
        reader.kind_of(op.input(2)),
        held,
        _zero_of(reader, op, scales, bits, packed),
        grain,
    )
    operands = {"data": weight(reader, op.input(0), data, quant)}
    operands["indices"] = reader.value(op, op.input(1))

    def build(body: BodyBuilder) -> list[Value]:
        return [body.op("gather", body.real("data"), body["indices"], axis=along)]

    group(reader, op, operands, build)


def _zero_of(
    reader: OnnxReader, op: OnnxOp, scales: Tensor, bits: int, packed: bool
) -> Array | tuple[int, ...]:
    if not op.input(3):
        if not packed:
            return ()
        return Array.of(np.full(scales.shape, 1 << (bits - 1), np.uint8), "zero")
    zeros = reader.array(op.input(3))
    assert zeros is not None
    if not packed:
        return Array(zeros.data, zeros.type, op.input(3))
    wide = zeros.data.reshape(-1, zeros.data.shape[-1])
    flat = unpacked(wide, bits)[:, : scales.shape[-1]]
    if flat.size != scales.size:
        raise op.fail(f"has {flat.size} zero points for {scales.size} scales")
    return Array.of(np.ascontiguousarray(flat.reshape(scales.shape)), op.input(3))


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "MatMulIntegerToFloat"): _to_float,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic,
    (MICROSOFT, "MatMulInteger16"): _integer16,
    (MICROSOFT, "MatMulNBits"): _nbits,
    (MICROSOFT, "MatMulBnb4"): _bnb4,
    (MICROSOFT, "GatherBlockQuantized"): _gather,
}
