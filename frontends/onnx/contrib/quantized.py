"""Quantized products of onnxruntime's domain: dynamic ones, and weights in blocks of few bits."""

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
from .group_bodies import BodyBuilder, add_group, named_operands
from .names import OPERANDS
from .packing import BNB4_TABLES, BlockPacking, unpack_integers, unpack_rows

Tensor = NDArray[np.generic]


def quantized_operand(
    reader: OnnxReader, op: OnnxOp, indices: tuple[int, int, int]
) -> dict[str, Value]:
    """Returns a (tensor, scale, zero point) operand by its formal names.

    Constant parameters are in its type, computed ones operands of their own. Several scales are
    along the last axis.
    """
    names = OPERANDS[op.type].split()
    data, scale, zero = (op.input(i) for i in indices)
    data_type = reader.type_of(op, data)
    if data_type.dtype.name not in ("u8", "i8"):
        raise op.error(f"its operand {data!r} is {data_type.dtype}, it takes u8 and i8")
    if not dynamic_ops.any_computed(reader, op, indices[1], indices[2]):
        if reader.constant_data(scale).size == 1:
            quant = reader.quant_type(scale, zero, data_type.dtype)
        else:
            quant = reader.quant_type(
                scale, zero, data_type.dtype, data_type.shape, data_type.rank - 1
            )
        return {names[indices[0]]: _as_quantized(reader, op, data, quant)}
    qparams = {names[indices[1]]: reader.value(op, scale)}
    if zero:
        qparams[names[indices[2]]] = reader.value(op, zero)
    scale_type = qparams[names[indices[1]]].type
    has_several = scale_type.rank == 1 and scale_type.shape[0] != 1
    granularity = Granularity(((data_type.rank - 1, 1),)) if has_several else None
    quant = QuantType(data_type.dtype, F32, None, None if zero else (), granularity)
    return {names[indices[0]]: _as_quantized(reader, op, data, quant), **qparams}


def _as_quantized(reader: OnnxReader, op: OnnxOp, name: str, quant: QuantType) -> Value:
    if reader.is_constant(name):
        return reader.value(op, name, quant)
    return dynamic_ops.as_quantized(reader, op, name, quant)


# -- products -------------------------------------------------------------------------------------


def _matmul_integer_to_float(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulIntegerToFloat: integer sums times both scales, plus a float bias."""
    op.allow_only()
    operands = {
        **quantized_operand(reader, op, (0, 2, 4)),
        **quantized_operand(reader, op, (1, 3, 5)),
    }
    operands |= _bias(reader, op, 6)

    def build(body: BodyBuilder) -> list[Value]:
        slots = {"a": "A", "b": "B", "bias": "bias"}
        slots |= {f"{s}.{n}": f"{s}_{w}" for s in "ab" for n, w in _PARAMETER_NAMES}
        return [body.add("matmul", {s: body[g] for s, g in slots.items() if g in body})[0]]

    add_group(reader, op, operands, build)


_PARAMETER_NAMES = (("scale", "scale"), ("zero", "zero_point"))


def _bias(reader: OnnxReader, op: OnnxOp, place: int) -> dict[str, Value]:
    name = op.input(place)
    return {"bias": reader.value(op, name)} if name else {}


def _dynamic_quantize_matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """DynamicQuantizeMatMul: A is quantized per tensor at run time, by its own range."""
    op.allow_only()
    operands = {"A": reader.value(op, op.input(0)), **quantized_operand(reader, op, (1, 2, 3))}
    operands |= _bias(reader, op, 4)

    def build(body: BodyBuilder) -> list[Value]:
        a, scale, zero = quantize_by_own_range(body, body["A"])
        slots = {"b": "B", "b.scale": "b_scale", "b.zero": "b_zero_point", "bias": "bias"}
        # Only parameters that are computed are operands of the group.
        parameters = {s: body[g] for s, g in slots.items() if g in body}
        return [body.add("matmul", {"a": a, "a.scale": scale, "a.zero": zero, **parameters})[0]]

    add_group(reader, op, operands, build)


def quantize_by_own_range(body: BodyBuilder, x: Value) -> tuple[Value, Value, Value]:
    """Quantizes a tensor at run time by its own range; returns it with scale and zero point."""
    if x.type.element != F32:
        raise KeepOperator(f"{x.type.element} is not quantized as it runs")
    scale, zero = body.add("choose_qparams", {"x": x}, {"rule": "onnx.dynamic", "storage": U8})
    quantized_type = x.type.with_element(QuantType(U8, F32, None, None))
    quantized = body.add("quantize", {"x": x, "scale": scale, "zero": zero}, types=[quantized_type])
    return quantized[0], scale, zero


def _matmul_integer16(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulInteger16: products of 16-bit integers, summed in 32 bits that wrap."""
    op.allow_only()
    operands = named_operands(reader, op)

    def build(body: BodyBuilder) -> list[Value]:
        return [body.op("matmul", *(body.cast(body[s], I32) for s in "AB"))]

    add_group(reader, op, operands, build)


# -- weights in blocks ----------------------------------------------------------------------------


def _matmul_nbits(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulNBits: weights of 2, 4 or 8 bits with a scale for each block of a row."""
    op.allow_only("K", "N", "bits", "block_size", "accuracy_level", "weight_prepacked")
    if op.integer("weight_prepacked", 0):
        # Prepacked weights have the layout of one kernel of one processor.
        raise KeepOperator("its weights are laid out for one kernel")
    blocks = BlockPacking(
        op.integer("bits", 4), op.integer("block_size", 0), (op.integer("N", 0), op.integer("K", 0))
    )
    blocks.check(op)
    operands = named_operands(reader, op, "B", "scales", "zero_points", "g_idx")
    names = [op.input(i) for i in range(1, 5)]
    if op.input(3) and op.input(4):
        raise KeepOperator("onnxruntime leaves out zero points where g_idx names groups")
    # Computed weights stay packed: the body unpacks them at run time.
    if any(name and not reader.is_constant(name) for name in names):
        operands = named_operands(reader, op)
    else:
        operands["B"] = _block_quantized_weight(reader, op, blocks)
    if operands["A"].type.quant or not operands["A"].type.dtype.is_float:
        raise KeepOperator

    def build(body: BodyBuilder) -> list[Value]:
        w = (
            body.dequantized("B")
            if "scales" not in body
            else _dequantized_at_run_time(body, blocks)
        )
        a = body["A"]
        # At accuracy level 4, onnxruntime rounds A to int8 by block and multiplies integers.
        if (
            op.integer("accuracy_level", 0) == 4
            and a.type.element == F32
            and _has_int8_kernel(body, blocks)
        ):
            a = round_to_int8_blocks(body, a, blocks)
        bias = [body["bias"]] if "bias" in body else []
        w = body.cast(w, a.type.dtype)
        return [body.op("matmul", a, w, *bias, trans_b=True)]

    order = [s for s in OPERANDS[op.type].split() if s in operands]
    add_group(reader, op, {s: operands[s] for s in order}, build)


def _has_int8_kernel(body: BodyBuilder, blocks: BlockPacking) -> bool:
    """Returns whether onnxruntime's int8 kernel of accuracy level 4 supports these weights."""
    quant = body["B"].type.quant
    if (
        quant is None
        or quant.has_float_zero
        or (quant.granularity is not None and quant.granularity.by is not None)
    ):
        return False
    return blocks.bits != 2 or blocks.block_size >= _MIN_BLOCK_OF_2_BITS


_MIN_BLOCK_OF_2_BITS = 32
"""The smallest block of 2-bit weights that the int8 kernel supports."""


def _block_quantized_weight(reader: OnnxReader, op: OnnxOp, blocks: BlockPacking) -> Value:
    """Returns the constant weights [N, K] of a quantized type with block scales."""
    rows, depth = blocks.shape
    packed, scales = reader.lazy_data(op.input(1)), reader.lazy_data(op.input(2))
    if (
        packed.size != rows * blocks.blocks_per_row * blocks.block_bytes
        or scales.size != rows * blocks.blocks_per_row
    ):
        raise op.error(
            f"has {packed.size} bytes of weights and {scales.size} scales for {rows} rows"
        )
    data = unpack_integers(packed, blocks.bits, (rows, blocks.blocks_per_row * blocks.block_size))
    grid = (rows, blocks.blocks_per_row)
    zero: Array | None = None
    if op.input(3):
        zeros = reader.constant_data(op.input(3))
        zero = Array.of(blocks.zero_points(op, zeros), op.input(3))
    else:
        zero = Array.of(np.full(grid, 1 << (blocks.bits - 1), np.uint8), "zero")
    group_index = None
    if op.input(4):
        index = reader.constant_data(op.input(4)).reshape(-1).astype(np.int64)
        if index.size != depth:
            raise op.error(f"g_idx names {index.size} columns of {depth}")
        group_index = Array.of(index.astype(np.int32), op.input(4))
    granularity = Granularity(((0, 1), (1, blocks.block_size)), group_index)
    storage = dtype(f"u{blocks.bits}")
    scale_type = reader.constant_dtype(op.input(2))
    scale_array = Array(reshape(scales, grid), TensorType(grid, scale_type), op.input(2))
    quant = QuantType(storage, scale_type, scale_array, zero, granularity)
    return quantized_constant(reader, op.input(1), crop(data, (rows, depth)), quant)


def quantized_constant(reader: OnnxReader, name: str, data: ArrayData, quant: QuantType) -> Value:
    """Returns a constant of the file as unpacked quantized values."""
    if not isinstance(data, LazyArray):
        data = np.asarray(data, order="C")
    array = Array(data, TensorType(data.shape, quant), name)
    return reader.add_constant(reader.resolve(name), array, quant)


def _dequantized_at_run_time(body: BodyBuilder, blocks: BlockPacking) -> Value:
    """Returns weights [N, K] as floats, in ops: weights or parameters are computed."""
    rows, depth = blocks.shape
    scales = body.reshape(body["scales"], rows, blocks.blocks_per_row, 1)
    scale_type = scales.type.dtype
    weights = unpack_at_run_time(body, body.reshape(body["B"], rows, -1), blocks.bits)
    weights = body.cast(
        body.reshape(weights, rows, blocks.blocks_per_row, blocks.block_size), scale_type
    )
    if "g_idx" in body:
        raise KeepOperator("an order of groups with computed parameters")
    if "zero_points" not in body:
        zero = body.scalar_like(scales, float(1 << (blocks.bits - 1)))
    elif body["zero_points"].type.dtype == U8:
        unpacked = unpack_at_run_time(
            body, body.reshape(body["zero_points"], rows, -1), blocks.bits
        )
        slice_attrs = {
            "starts": (0,),
            "ends": (blocks.blocks_per_row,),
            "axes": (1,),
            "steps": (1,),
        }
        zero = body.cast(body.op("slice", unpacked, **slice_attrs), scale_type)
        zero = body.reshape(zero, rows, blocks.blocks_per_row, 1)
    else:
        zero = body.reshape(body["zero_points"], rows, blocks.blocks_per_row, 1)
    weights = body.op("mul", body.op("sub", weights, zero), scales)
    unpacked = body.reshape(weights, rows, blocks.blocks_per_row * blocks.block_size)
    slice_attrs = {"starts": (0,), "ends": (depth,), "axes": (1,), "steps": (1,)}
    return body.op("slice", unpacked, **slice_attrs)


def unpack_at_run_time(body: BodyBuilder, x: Value, bits: int) -> Value:
    """Returns the integers packed in bytes [rows, n], low bits first, in ops."""
    if bits == 8:
        return x
    per_byte = 8 // bits
    shifts = body.constant((np.arange(per_byte) * bits).astype(np.uint8))
    rows = x.type.shape[0]
    assert isinstance(rows, int)
    shifted = body.op("bit_shift", body.reshape(x, rows, -1, 1), shifts, direction="right")
    values = body.op("bit_and", shifted, body.constant(np.array((1 << bits) - 1, np.uint8)))
    return body.reshape(values, rows, -1)


def round_to_int8_blocks(body: BodyBuilder, a: Value, blocks: BlockPacking) -> Value:
    """Returns A rounded to int8 blocks and back: the largest magnitude of a block becomes 127."""
    depth, padded_depth = blocks.shape[1], blocks.blocks_per_row * blocks.block_size
    rank = a.type.rank
    if padded_depth > depth:
        pads = (0,) * (2 * rank - 1) + (padded_depth - depth,)
        a = body.op("pad", a, pads=pads)
    # In a reshape, 0 copies the size of the axis.
    leading_axes = [0] * (rank - 1)
    parts = body.reshape(a, *leading_axes, blocks.blocks_per_row, blocks.block_size)
    largest = body.op("reduce_max", body.op("abs", parts), axes=(rank,), keep=True)
    # A block of zeros would divide by 0.
    is_zero = body.op("equal", largest, body.constant(0.0))
    inverse = body.op("div", body.constant(127.0), largest)
    inverse = body.op("where", is_zero, body.constant(0.0), inverse)
    integers = body.op("round", body.op("mul", parts, inverse))
    scale = body.op("mul", largest, body.constant(np.asarray(np.float32(1) / np.float32(127))))
    dequantized = body.reshape(body.op("mul", integers, scale), *leading_axes, padded_depth)
    if padded_depth == depth:
        return dequantized
    slice_attrs = {"starts": (0,), "ends": (depth,), "axes": (rank - 1,), "steps": (1,)}
    return body.op("slice", dequantized, **slice_attrs)


def _matmul_bnb4(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulBnb4: weights by a table of 16 floats, a scale for each block of the flat weights."""
    op.allow_only("K", "N", "block_size", "quant_type", "training_mode", "transB")
    rows, depth = op.integer("N", 0), op.integer("K", 0)
    size, table_index = op.integer("block_size", 0), op.integer("quant_type", 0)
    if not op.integer("transB", 1) or table_index not in (0, 1) or size < 16 or size & (size - 1):
        raise KeepOperator(f"blocks of {size} by table {table_index}")
    if min(rows, depth) < 1:
        raise op.error(f"has weights of {rows} x {depth}")
    table = Array.of(BNB4_TABLES[table_index], ("fp4", "nf4")[table_index])
    count = rows * depth
    operands = {"A": reader.value(op, op.input(0))}
    if reader.is_constant(op.input(1)) and reader.is_constant(op.input(2)):
        packed = reader.lazy_data(op.input(1))
        scales = reader.constant_data(op.input(2)).reshape(-1)
        if packed.size < (count + 1) // 2 or scales.size != -(-count // size):
            raise op.error(f"has {packed.size} bytes and {scales.size} scales for {count} weights")
        packed = crop(reshape(packed, (packed.size,)), ((count + 1) // 2,))
        scale = Array.of(scales, op.input(2))
        # Blocks go over the flat weights, across rows: they are a vector until they are
        # dequantized.
        quant = QuantType(
            dtype("u4"), F32, scale, (), Granularity(((0, size),)), kind="lut", codes=table
        )
        operands["B"] = quantized_constant(
            reader, op.input(1), unpack_integers(packed, 4, (count,), "high"), quant
        )
    else:
        operands |= named_operands(reader, op, "A")

    def build(body: BodyBuilder) -> list[Value]:
        if "absmax" in body:
            w = _table_lookup(body, table, size, count)
        else:
            w = body.dequantized("B")
        w = body.reshape(w, rows, depth)
        return [body.op("matmul", body["A"], w, trans_b=True)]

    add_group(reader, op, operands, build)


def _table_lookup(body: BodyBuilder, table: Array, size: int, count: int) -> Value:
    packed = body.reshape(body["B"], -1, 1)
    high = body.op("bit_shift", packed, body.constant(np.array(4, np.uint8)), direction="right")
    low = body.op("bit_and", packed, body.constant(np.array(15, np.uint8)))
    # The high half of a byte comes first.
    indices = body.cast(body.reshape(body.op("concat", high, low, axis=1), -1), I32)
    weights = body.op("gather", body.constant(table.data), indices, axis=0)
    missing = -count % size
    slice_attrs = {"starts": (0,), "ends": (count,), "axes": (0,), "steps": (1,)}
    weights = body.op("slice", weights, **slice_attrs)
    if missing:
        weights = body.op("pad", weights, pads=(0, missing))
    weights = body.op("mul", body.reshape(weights, -1, size), body.reshape(body["absmax"], -1, 1))
    return body.op("slice", body.reshape(weights, -1), **slice_attrs)


def _gather_block_quantized(reader: OnnxReader, op: OnnxOp) -> None:
    """GatherBlockQuantized: gathers along an axis, then dequantizes."""
    op.allow_only("bits", "block_size", "gather_axis", "quantize_axis")
    data_type = reader.type_of(op, op.input(0))
    is_packed = data_type.dtype == U8
    bits = op.integer("bits", 4) if is_packed else data_type.dtype.bits
    size = op.integer("block_size", 128)
    if not data_type.rank or (is_packed and bits not in (2, 4, 8)):
        raise KeepOperator(f"its data are {data_type}")
    axis = op.integer("quantize_axis", 1) % data_type.rank
    gather_axis = op.integer("gather_axis", 0) % data_type.rank
    if any(op.input(i) and not reader.is_constant(op.input(i)) for i in (0, 2, 3)):
        raise KeepOperator("its data or their numbers are computed")
    data, scales = reader.lazy_data(op.input(0)), reader.constant_data(op.input(2))
    # u8 data hold several integers in each byte, along the last axis.
    if is_packed:
        data = unpack_integers(data, bits, (*data.shape[:-1], data.shape[-1] * 8 // bits))
    storage = dtype(f"u{bits}") if is_packed else data_type.dtype
    granularity = Granularity(tuple((i, size if i == axis else 1) for i in range(data_type.rank)))
    if granularity.grid(data.shape) != scales.shape:
        raise op.error(f"has scales of {scales.shape} for data of {data.shape}")
    scale_array = Array.of(scales, op.input(2))
    quant = QuantType(
        storage,
        reader.constant_dtype(op.input(2)),
        scale_array,
        _gather_zero_points(reader, op, scales, bits, is_packed),
        granularity,
    )
    operands = {"data": quantized_constant(reader, op.input(0), data, quant)}
    operands["indices"] = reader.value(op, op.input(1))

    def build(body: BodyBuilder) -> list[Value]:
        return [body.op("gather", body.dequantized("data"), body["indices"], axis=gather_axis)]

    add_group(reader, op, operands, build)


def _gather_zero_points(
    reader: OnnxReader, op: OnnxOp, scales: Tensor, bits: int, is_packed: bool
) -> Array | tuple[int, ...]:
    if not op.input(3):
        if not is_packed:
            return ()
        # Packed integers are unsigned: without zero points, the middle of their range is 0.
        return Array.of(np.full(scales.shape, 1 << (bits - 1), np.uint8), "zero")
    zeros = reader.array(op.input(3))
    assert zeros is not None
    if not is_packed:
        return Array(zeros.data, zeros.type, op.input(3))
    rows = zeros.data.reshape(-1, zeros.data.shape[-1])
    unpacked = unpack_rows(rows, bits)[:, : scales.shape[-1]]
    if unpacked.size != scales.size:
        raise op.error(f"has {unpacked.size} zero points for {scales.size} scales")
    return Array.of(np.ascontiguousarray(unpacked.reshape(scales.shape)), op.input(3))


OPS: dict[tuple[str, str], Callable[[OnnxReader, OnnxOp], None]] = {
    (MICROSOFT, "MatMulIntegerToFloat"): _matmul_integer_to_float,
    (MICROSOFT, "DynamicQuantizeMatMul"): _dynamic_quantize_matmul,
    (MICROSOFT, "MatMulInteger16"): _matmul_integer16,
    (MICROSOFT, "MatMulNBits"): _matmul_nbits,
    (MICROSOFT, "MatMulBnb4"): _matmul_bnb4,
    (MICROSOFT, "GatherBlockQuantized"): _gather_block_quantized,
}
