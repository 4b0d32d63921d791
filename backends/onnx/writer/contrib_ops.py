"""Writes groups that are operators of onnxruntime's domain, with their original operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto

from qir.ir.attrs import Attr
from qir.ir.dtype import DType, dtype, dtype_of
from qir.ir.lazy_arrays import ArrayData, LazyArray
from qir.ir.node import Node, Value
from qir.ir.types import Array, QuantType, TensorType
from qir.profiles import lazy_pack

from . import foreign
from .writer import OnnxWriter

Tensor = NDArray[np.generic]
_KERNEL = "onnx:"
_Place = tuple[int, str]
_Pack = Callable[[OnnxWriter, Node, Value, dict[str, str]], dict[int, str]]

_TYPED_OPERANDS: Mapping[str, tuple[tuple[int, _Place, _Place], ...]] = {
    "MatMulIntegerToFloat": (
        (0, (2, "a_scale"), (4, "a_zero_point")),
        (1, (3, "b_scale"), (5, "b_zero_point")),
    ),
    "DynamicQuantizeMatMul": ((1, (2, "b_scale"), (3, "b_zero_point")),),
    "QAttention": (
        (0, (3, "input_scale"), (6, "input_zero_point")),
        (1, (4, "weight_scale"), (7, "weight_zero_point")),
    ),
    "QEmbedLayerNormalization": tuple(
        (2 + i, (8 + i, f"{stem}_scale"), (13 + i, f"{stem}_zero_point"))
        for i, stem in enumerate(
            ("word_embedding", "position_embedding", "segment_embedding", "gamma", "beta")
        )
    ),
}
"""The position of each quantized operand, with those of the parameters that QIR has in its type."""
_OPTIONAL_ZERO_POINTS = frozenset({"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QAttention"})
"""Operators whose zero points may be absent."""


def is_contrib_op(node: Node) -> bool:
    """Returns whether a group is an operator of an ONNX domain."""
    return bool(node.bodies) and str(node.attrs["kernel"]).startswith(_KERNEL)


def write(writer: OnnxWriter, node: Node) -> None:
    """Writes the operator that a group stands for."""
    domain, _, op = str(node.attrs["kernel"]).removeprefix(_KERNEL).rpartition(".")
    ins, outs = _slot_positions(node)
    origin = next((o for o in node.origins if o.framework == "onnx"), None)
    proto = NodeProto(op_type=op, domain=domain)
    proto.name = origin.name if origin else f"{node.name}_{op}"
    names: dict[int, str] = {}
    # Names that the source had for parameters which QIR keeps in types.
    source_names = dict(origin.operands) if origin else {}
    for position, value in zip(ins, node.operands.values(), strict=True):
        pack = _PACKERS.get((op, position))
        if pack is not None and value.type.quant is not None:
            names |= pack(writer, node, value, source_names)
        else:
            names[position] = writer.name(value)
    for position, scale, zero in _TYPED_OPERANDS.get(op, ()):
        index = ins.index(position) if position in ins else None
        if index is not None:
            names |= _type_parameters(
                writer, node, list(node.operands.values())[index], scale, zero, source_names
            )
    ordered = sorted(names)
    proto.input.extend(foreign.at_positions(ordered, [names[i] for i in ordered]))
    proto.output.extend(foreign.at_positions(outs, [writer.name(v) for v in node.results]))
    for name, attr in foreign.attributes_by_name(node.attrs["attrs"]).items():
        proto.attribute.append(foreign.attribute(proto, 1, name, attr))
    writer.check_domain(op, domain, node.name)
    # `slots` are the positions of operands, those of results, and the version of the domain, if
    # any.
    slots = node.attrs["slots"]
    version = slots[2] if isinstance(slots, tuple) and len(slots) > 2 else 1
    assert isinstance(version, int)
    writer.domains[domain] = max(version, writer.domains.get(domain, 1))
    writer.nodes.append(proto)


def _slot_positions(node: Node) -> tuple[list[int], list[int]]:
    """Returns the positions of operands and results in the operator's lists."""
    # A group made by a plugin has no positions: operands are then in order.
    slots = node.attrs["slots"]
    positions: list[Attr] = list(slots) if isinstance(slots, tuple) else []
    if len(positions) < 2:
        return list(range(len(node.operands))), list(range(len(node.results)))
    return foreign.int_list(positions[0]), foreign.int_list(positions[1])


def _type_parameters(
    writer: OnnxWriter,
    node: Node,
    value: Value,
    scale: _Place,
    zero: _Place,
    source_names: dict[str, str],
) -> dict[int, str]:
    """Returns a type's constant scale and zero point by position; empty where operands carry
    them."""
    quant = value.type.quant
    if quant is None or quant.dynamic:
        return {}
    writer.check(node, quant, constant=value.constant is not None)
    scale_name, zero_name = writer.parameters_of(
        value, node, (source_names.get(scale[1]), source_names.get(zero[1]))
    )
    op = str(node.attrs["kernel"]).rpartition(".")[2]
    # The kernel's default is a zero point of 0, so a source without the operand gets none again.
    absent = op in _OPTIONAL_ZERO_POINTS and zero[1] not in source_names and not quant.zeros().any()
    return {scale[0]: scale_name} if absent else {scale[0]: scale_name, zero[0]: zero_name}


# -- packed weights -------------------------------------------------------------------------------


def _int_attribute(node: Node, name: str, default: int) -> int:
    value = foreign.attributes_by_name(node.attrs["attrs"]).get(name, default)
    return value if isinstance(value, int) else default


def packed_integers(integers: Tensor, bits: int) -> NDArray[np.uint8]:
    """Packs rows of integers into bytes, low bits first; the last byte is padded with zeros."""
    unpacked = integers.astype(np.uint8)
    if bits == 8:
        return unpacked
    per_byte = 8 // bits
    padding = -unpacked.shape[-1] % per_byte
    unpacked = np.pad(unpacked, [(0, 0)] * (unpacked.ndim - 1) + [(0, padding)])
    groups = unpacked.reshape(*unpacked.shape[:-1], -1, per_byte)
    # Element i of a byte is shifted by i * bits; the shifted parts do not overlap.
    shifts = np.arange(per_byte, dtype=np.uint8) * np.uint8(bits)
    return np.asarray(np.bitwise_or.reduce(groups << shifts, axis=-1), np.uint8)


def packed_rows(integers: ArrayData, bits: int) -> ArrayData:
    """Packs rows of integers into bytes as `packed_integers` does, lazily."""
    width = -(-integers.shape[-1] * bits // 8)
    return lazy_pack(integers, dtype(f"u{bits}"), (*integers.shape[:-1], width))


def _add_parameter(writer: OnnxWriter, data: ArrayData, name: str, source_name: str | None) -> str:
    contiguous = data if isinstance(data, LazyArray) else np.ascontiguousarray(data)
    return writer.parameter(contiguous, name, source_name)


def _scale_array(quant: QuantType) -> ArrayData:
    """Returns the scales without loading them."""
    return quant.scale.contents if isinstance(quant.scale, Array) else np.asarray(quant.scales())


def _add_packed(
    writer: OnnxWriter, packed: ArrayData, value: Value, kind: DType | None = None
) -> str:
    """Adds packed elements as an initializer, under the source's name if it is free."""
    name = value.lineage.tensor
    # The value's own name is free unless an output has it; another name must be claimed first.
    has_own_name = name == value.name and name not in writer.graph.outputs
    if (
        writer.outer is not None
        or name in writer.initializers
        or not (has_own_name or writer.claim(name))
    ):
        return writer.parameter(packed, name, name, kind)
    packed_type = TensorType(packed.shape, kind or dtype_of(np.empty(0, packed.dtype)))
    writer.add_initializer(name, Array(packed, packed_type))
    return name


def _constant_integers(writer: OnnxWriter, node: Node, value: Value) -> tuple[ArrayData, QuantType]:
    array, quant = value.constant, value.type.quant
    if array is None or quant is None:
        raise writer.refuse(
            node, "its weights are not quantized constants, so they cannot be packed"
        )
    return array.contents, quant


def _pack_matmul_nbits(
    writer: OnnxWriter, node: Node, value: Value, source_names: dict[str, str]
) -> dict[int, str]:
    """Packs weights of MatMulNBits: each block of a row in whole bytes."""
    data, quant = _constant_integers(writer, node, value)
    bits, size = _int_attribute(node, "bits", 4), _int_attribute(node, "block_size", 0)
    rows, depth = data.shape
    count = -(-depth // size)
    packed = lazy_pack(data, dtype(f"u{bits}"), (rows, count, size * bits // 8))
    name = value.name
    out = {
        1: _add_packed(writer, packed, value),
        2: _add_parameter(
            writer, _scale_array(quant), f"{name}_scales", source_names.get("scales")
        ),
    }
    zeros = np.asarray(quant.zeros())
    # Without the operand, the kernel's zero point is the middle of the range.
    is_default_zero = not quant.has_float_zero and bool((zeros == 1 << (bits - 1)).all())
    if "zero_points" in source_names or not is_default_zero:
        if not quant.has_float_zero:
            zeros = packed_integers(zeros.reshape(rows, count), bits)
        out[3] = _add_parameter(
            writer, zeros, f"{name}_zero_points", source_names.get("zero_points")
        )
    if quant.granularity is not None and quant.granularity.by is not None:
        out[4] = _add_parameter(
            writer, quant.granularity.by.data, f"{name}_g_idx", source_names.get("g_idx")
        )
    return out


def _pack_matmul_bnb4(
    writer: OnnxWriter, node: Node, value: Value, source_names: dict[str, str]
) -> dict[int, str]:
    """Packs weights of MatMulBnb4: consecutive, the first of each byte in its high bits."""
    data, quant = _constant_integers(writer, node, value)
    packed = lazy_pack(data, dtype("u4"), (-(-data.size // 2),), "high")
    name = value.name
    return {
        1: _add_packed(writer, packed, value),
        2: _add_parameter(
            writer, _scale_array(quant), f"{name}_absmax", source_names.get("absmax")
        ),
    }


def _pack_gather_block_quantized(
    writer: OnnxWriter, node: Node, value: Value, source_names: dict[str, str]
) -> dict[int, str]:
    """Packs data of GatherBlockQuantized: bytes along the last axis, or an element type of few
    bits."""
    data, quant = _constant_integers(writer, node, value)
    # Types of 2 and 8 bits have no element type in the kernel: those weights are in bytes.
    in_bytes = "bits" in foreign.attributes_by_name(node.attrs["attrs"]) or quant.storage.name in (
        "u2",
        "u8",
    )
    bits, name = quant.storage.bits, value.name
    zeros = np.asarray(quant.zeros())
    if in_bytes:
        out = {0: _add_packed(writer, packed_rows(data, bits), value)}
    else:
        out = {0: _add_packed(writer, data, value, quant.storage)}
    out[2] = _add_parameter(
        writer, _scale_array(quant), f"{name}_scales", source_names.get("scales")
    )
    # The kernel's default zero point: the middle of the range for bytes, 0 for int4 and uint4.
    is_default_zero = bool((np.asarray(zeros) == (1 << (bits - 1) if in_bytes else 0)).all())
    if "zero_points" in source_names or not is_default_zero:
        zero_array = packed_integers(np.asarray(zeros), bits) if in_bytes else np.asarray(zeros)
        kind = dtype_of(zero_array) if in_bytes else quant.storage
        out[3] = writer.parameter(
            zero_array.astype(kind.carrier),
            f"{name}_zero_points",
            source_names.get("zero_points"),
            kind,
        )
    return out


def _pack_moe(weight_position: int, scale_position: int, zero_position: int, stem: str) -> _Pack:
    """Returns a packer for the weights of QMoE's first or second product."""

    def pack(
        writer: OnnxWriter, node: Node, value: Value, source_names: dict[str, str]
    ) -> dict[int, str]:
        data, quant = _constant_integers(writer, node, value)
        bits, name = quant.storage.bits, value.name
        # QMoE without block_size has one scale per row, in a matrix without the axis of blocks.
        blocks = _int_attribute(node, "block_size", 0) > 0
        shape = quant.scales().shape if blocks else quant.scales().shape[:2]
        scales, zeros = (np.asarray(n).reshape(shape) for n in (quant.scales(), quant.zeros()))
        out = {
            weight_position: _add_packed(writer, packed_rows(data, bits), value),
            scale_position: _add_parameter(
                writer, scales, f"{name}_scales", source_names.get(f"{stem}_scales")
            ),
        }
        if f"{stem}_zero_points" in source_names or (zeros != 1 << (bits - 1)).any():
            packed_zeros = packed_integers(zeros, bits)
            out[zero_position] = _add_parameter(
                writer, packed_zeros, f"{name}_zeros", source_names.get(f"{stem}_zero_points")
            )
        return out

    return pack


_PACKERS: Mapping[tuple[str, int], _Pack] = {
    ("MatMulNBits", 1): _pack_matmul_nbits,
    ("MatMulBnb4", 1): _pack_matmul_bnb4,
    ("GatherBlockQuantized", 0): _pack_gather_block_quantized,
    ("QMoE", 2): _pack_moe(2, 3, 11, "fc1"),
    ("QMoE", 5): _pack_moe(5, 6, 12, "fc2"),
}
"""Packers by operator and position of the operand."""
