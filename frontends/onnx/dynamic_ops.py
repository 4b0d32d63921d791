"""Dynamic quantization: computed scales and zero points, and operators on plain integers.

A quantized type whose scale is None is one whose scale is an operand. Plain integers and
quantized values of the same bits are converted by `recode`, which changes the type only.
"""

from __future__ import annotations

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, U8, DType
from qir.ir.node import Value
from qir.ir.types import Granularity, QuantType, TensorType

from .elements import dtype_of_number
from .float_ops import conv_attrs
from .op import KeepOperator, OnnxOp
from .reader import QUANTIZED_DTYPES, OnnxReader


def any_computed(reader: OnnxReader, op: OnnxOp, *indices: int) -> bool:
    """Returns whether some of the operands at those indices are not constant."""
    return any(op.input(i) and not reader.is_constant(op.input(i)) for i in indices)


def dynamic_quantize_linear(reader: OnnxReader, op: OnnxOp) -> None:
    """DynamicQuantizeLinear as choose_qparams, quantize and a recode to plain u8.

    Consumers such as MatMulInteger take plain integers, and DequantizeLinear quantized ones. What
    is not used in the end is removed by `remove_unused_raw_views`.
    """
    op.allow_only()
    x = reader.value(op, op.input(0))
    if x.type.element != F32:
        raise op.error(f"its operand is {x.type.element}, it takes f32")
    # Scale and zero point may be left out of the file: the node makes both.
    outputs = [*op.proto.output, "", "", ""][:3]
    stem = next(n for n in outputs if n)
    quantized, scale, zero = (
        n or reader.unused_name(f"{stem}_{s}")
        for n, s in zip(outputs, ("q", "scale", "zero"), strict=True)
    )
    graph, origins = reader.graph, [op.origin()]
    attrs: dict[str, Attr] = {"rule": "onnx.dynamic", "storage": U8}
    qparams = graph.add("choose_qparams", {"x": x}, attrs, name=[scale, zero], origins=origins)
    for name, value in zip(outputs[1:], qparams.results, strict=True):
        if name:
            reader.bind(name, value)
    if not outputs[0]:
        return
    # A type with scale and zero point None: they are operands.
    quantized_type = x.type.with_element(QuantType(U8, F32, None, None))
    operands = {"x": x, "scale": qparams.results[0], "zero": qparams.results[1]}
    name = reader.unused_name(f"{quantized}_codes")
    quantize_node = graph.add(
        "quantize", operands, types=[quantized_type], name=name, origins=origins
    )
    raw_type = x.type.with_element(U8)
    raw_view = graph.add(
        "recode", {"x": quantize_node.result}, types=[raw_type], name=quantized, origins=origins
    )
    reader.bind(quantized, raw_view.result)
    reader.raw_views.append(raw_view)


def remove_unused_raw_views(reader: OnnxReader) -> None:
    """Removes recodes to plain integers without uses; the quantized values take their name."""
    for node in reader.raw_views:
        if node in reader.graph and not node.used:
            quantized, name = node.operands["x"], node.result.name
            # The quantized values take the file's name, which the raw view had.
            reader.graph.remove(node)
            reader.graph.rename(quantized, name)


def quantize(reader: OnnxReader, op: OnnxOp) -> None:
    """QuantizeLinear whose scale or zero point is computed."""
    x = reader.value(op, op.input(0))
    output_number = op.integer("output_dtype", 0)
    storage = dtype_of_number(output_number) if output_number else U8
    # The zero point's type wins over output_dtype, as in QuantizeLinear with constants.
    if op.input(2):
        storage = reader.type_of(op, op.input(2)).dtype
    quant, qparams = _runtime_quant_type(reader, op, x.type, storage)
    if x.type.element != quant.express:
        raise KeepOperator
    reader.add(op, "quantize", {"x": x, **qparams}, types=[x.type.with_element(quant)])


def dequantize(reader: OnnxReader, op: OnnxOp) -> None:
    """DequantizeLinear whose scale or zero point is computed."""
    name = op.input(0)
    raw_type = reader.type_of(op, name)
    quant, qparams = _runtime_quant_type(reader, op, raw_type, raw_type.dtype)
    output_number = op.integer("output_dtype", 0)
    if output_number and dtype_of_number(output_number) != quant.express:
        raise KeepOperator
    x = (
        reader.value(op, name, quant)
        if reader.is_constant(name)
        else as_quantized(reader, op, name, quant)
    )
    reader.add(op, "dequantize", {"x": x, **{f"x.{n}": v for n, v in qparams.items()}})


def _runtime_quant_type(
    reader: OnnxReader, op: OnnxOp, data_type: TensorType, storage: DType
) -> tuple[QuantType, dict[str, Value]]:
    """Returns the type of integers with computed parameters, and these.

    Raises KeepOperator for element types that the language does not combine.
    """
    scale = reader.value(op, op.input(1))
    if (
        storage.name not in QUANTIZED_DTYPES
        or scale.type.element not in _SCALE_DTYPES
        or scale.type.quant
    ):
        raise KeepOperator
    qparams = {"scale": scale}
    if op.input(2):
        qparams["zero"] = reader.value(op, op.input(2))
        if qparams["zero"].type.element != storage:
            raise KeepOperator
    granularity = _granularity(op, data_type, scale.type)
    zero = None if "zero" in qparams else ()
    return QuantType(storage, scale.type.dtype, None, zero, granularity), qparams


_SCALE_DTYPES = frozenset({F32, dtype_of_number(10)})


def _granularity(op: OnnxOp, data_type: TensorType, scale: TensorType) -> Granularity | None:
    """Returns which elements share a scale; raises KeepOperator if the count of scales is open."""
    size, rank = dims.product(scale.shape), data_type.rank
    axis, block = op.integer("axis", 1), op.integer("block_size", 0)
    if rank and not -rank <= axis < rank and scale.rank:
        raise op.error(f"axis {axis}, but its operand has {rank} axes")
    # One scale for each block along the axis, and for each element along the other axes.
    if block:
        if scale.rank != rank:
            raise op.error(f"blocks of {rank} axes have scales of as many, not {scale.rank}")
        return Granularity(tuple((i, block if i == axis % rank else 1) for i in range(rank)))
    # A list of one scale applies to the whole tensor.
    if not scale.rank or (size == 1 and scale.rank == 1):
        return None
    if scale.rank != 1 or not rank:
        raise KeepOperator
    # Rank 1 has one axis, whatever the attribute says.
    axis = axis % rank if rank != 1 else 0
    # The count of scales must be known, or be the same symbol as the size of the axis.
    if not isinstance(scale.shape[0], int) and scale.shape[0] != data_type.shape[axis]:
        raise KeepOperator
    return Granularity(((axis, 1),))


def as_quantized(reader: OnnxReader, op: OnnxOp, name: str, quant: QuantType) -> Value:
    """Returns a tensor as that quantized type.

    Plain integers that were recoded from it give back their source, which makes the recode unused.
    """
    value = reader.value(op, name)
    if value.type.element == quant:
        return value
    # x -> quantize -> recode (raw) -> MatMulInteger and DequantizeLinear: skip the recode.
    source = value.node.operands.get("x") if value.node.op == "recode" else None
    if source is not None and source.type.element == quant:
        return source
    return recode_once(reader, op, value, value.type.with_element(quant), "meant")


def recode_once(
    reader: OnnxReader, op: OnnxOp, value: Value, type_: TensorType, suffix: str
) -> Value:
    """Returns a value reinterpreted as another type; one recode serves all consumers."""
    for node in value.users:
        if node.op == "recode" and node.result.type == type_:
            return node.result
    name = reader.unused_name(f"{value.name}_{suffix}")
    recode = reader.graph.add(
        "recode", {"x": value}, types=[type_], name=name, origins=[op.origin()]
    )
    return recode.result


# -- raw integers ---------------------------------------------------------------------------------


def _raw_operand(reader: OnnxReader, op: OnnxOp, name: str) -> Value:
    """Returns an operand as plain integers, whatever its quantized type."""
    value = reader.value(op, name, reader.annotated_quant_type(name))
    if value.type.quant is None:
        return value
    return recode_once(reader, op, value, value.type.with_element(value.type.dtype), "raw")


def _integer_operands(reader: OnnxReader, op: OnnxOp, slots: tuple[str, str]) -> dict[str, Value]:
    # MatMulInteger and ConvInteger have their zero points after both data operands.
    names = (*slots, *(f"{s}.zero" for s in slots))
    return {s: _raw_operand(reader, op, op.input(i)) for i, s in enumerate(names) if op.input(i)}


def matmul_integer(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulInteger."""
    op.allow_only()
    reader.add(op, "matmul_integer", _integer_operands(reader, op, ("a", "b")))


def conv_integer(reader: OnnxReader, op: OnnxOp) -> None:
    """ConvInteger along any number of axes."""
    op.allow_only("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    operands = _integer_operands(reader, op, ("x", "w"))
    x, w = operands["x"].type.shape, operands["w"].type.shape
    if len(x) != len(w) or len(x) < 3:
        raise op.error(f"its operands have {len(x)} and {len(w)} axes")
    reader.add(op, "conv_integer", operands, conv_attrs(op, x[2:], w))


OPS = {
    ("", "DynamicQuantizeLinear"): dynamic_quantize_linear,
    ("", "MatMulInteger"): matmul_integer,
    ("", "ConvInteger"): conv_integer,
}
