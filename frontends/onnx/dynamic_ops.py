"""Ops that quantize while a model runs: computed scales and zero points, and raw integers."""

from __future__ import annotations

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, U8, DType
from qir.ir.node import Value
from qir.ir.types import Granularity, QuantType, TensorType

from .elements import element
from .float_ops import conv_attrs
from .op import KeepOperator, OnnxOp
from .reader import CODES, OnnxReader


def computed(reader: OnnxReader, op: OnnxOp, *places: int) -> bool:
    """Returns whether some of the operands at those places are no constants."""
    return any(op.input(i) and not reader.is_constant(op.input(i)) for i in places)


def choose(reader: OnnxReader, op: OnnxOp) -> None:
    """DynamicQuantizeLinear: its numbers, integers of them, and the integers read raw, each by
    itself."""
    op.only()
    x = reader.value(op, op.input(0))
    if x.type.element != F32:
        raise op.fail(f"its operand is {x.type.element}, it takes f32")
    given = [*op.proto.output, "", "", ""][:3]
    stem = next(n for n in given if n)
    codes, scale, zero = (
        n or reader.spare(f"{stem}_{s}") for n, s in zip(given, ("q", "scale", "zero"), strict=True)
    )
    graph, origins = reader.graph, [op.origin()]
    attrs: dict[str, Attr] = {"rule": "onnx.dynamic", "storage": U8}
    numbers = graph.add("choose_qparams", {"x": x}, attrs, name=[scale, zero], origins=origins)
    for name, value in zip(given[1:], numbers.results, strict=True):
        if name:
            reader.bind(name, value)
    if not given[0]:
        return
    kind = x.type.with_element(QuantType(U8, F32, None, None))
    operands = {"x": x, "scale": numbers.results[0], "zero": numbers.results[1]}
    name = reader.spare(f"{codes}_codes")
    held = graph.add("quantize", operands, types=[kind], name=name, origins=origins)
    raw = x.type.with_element(U8)
    made = graph.add("recode", {"x": held.result}, types=[raw], name=codes, origins=origins)
    reader.bind(codes, made.result)
    reader.raw.append(made)


def unread(reader: OnnxReader) -> None:
    """Takes out integers read raw that nobody reads so; the integers have their name then."""
    for node in reader.raw:
        if node in reader.graph and not node.used:
            held, name = node.operands["x"], node.result.name
            reader.graph.remove(node)
            reader.graph.rename(held, name)


def quantize(reader: OnnxReader, op: OnnxOp) -> None:
    """QuantizeLinear whose scale or zero point is computed."""
    x = reader.value(op, op.input(0))
    wanted = op.integer("output_dtype", 0)
    storage = element(wanted) if wanted else U8
    if op.input(2):
        storage = reader.type_of(op, op.input(2)).dtype
    kind, numbers = _open(reader, op, x.type, storage)
    if x.type.element != kind.express:
        raise KeepOperator
    reader.add(op, "quantize", {"x": x, **numbers}, types=[x.type.with_element(kind)])


def dequantize(reader: OnnxReader, op: OnnxOp) -> None:
    """DequantizeLinear whose scale or zero point is computed."""
    name = op.input(0)
    raw = reader.type_of(op, name)
    kind, numbers = _open(reader, op, raw, raw.dtype)
    wanted = op.integer("output_dtype", 0)
    if wanted and element(wanted) != kind.express:
        raise KeepOperator
    x = reader.value(op, name, kind) if reader.is_constant(name) else meant(reader, op, name, kind)
    reader.add(op, "dequantize", {"x": x, **{f"x.{n}": v for n, v in numbers.items()}})


def _open(
    reader: OnnxReader, op: OnnxOp, kind: TensorType, storage: DType
) -> tuple[QuantType, dict[str, Value]]:
    """Returns the quantized type that asks for its numbers, and the numbers; Keep for what has no
    such form."""
    scale = reader.value(op, op.input(1))
    if storage.name not in CODES or scale.type.element not in _REALS or scale.type.quant:
        raise KeepOperator
    numbers = {"scale": scale}
    if op.input(2):
        numbers["zero"] = reader.value(op, op.input(2))
        if numbers["zero"].type.element != storage:
            raise KeepOperator
    grain = _grain(op, kind, scale.type)
    zero = None if "zero" in numbers else ()
    return QuantType(storage, scale.type.dtype, None, zero, grain), numbers


_REALS = frozenset({F32, element(10)})


def _grain(op: OnnxOp, kind: TensorType, scale: TensorType) -> Granularity | None:
    """Returns which elements share a scale; Keep where nobody knows how many scales there are."""
    size, rank = dims.product(scale.shape), kind.rank
    axis, block = op.integer("axis", 1), op.integer("block_size", 0)
    if rank and not -rank <= axis < rank and scale.rank:
        raise op.fail(f"axis {axis}, but its operand has {rank} axes")
    if block:
        if scale.rank != rank:
            raise op.fail(f"blocks of {rank} axes have scales of as many, not {scale.rank}")
        return Granularity(tuple((i, block if i == axis % rank else 1) for i in range(rank)))
    if not scale.rank or (size == 1 and scale.rank == 1):
        return None
    if scale.rank != 1 or not rank:
        raise KeepOperator
    axis = axis % rank if rank != 1 else 0
    if not isinstance(scale.shape[0], int) and scale.shape[0] != kind.shape[axis]:
        raise KeepOperator
    return Granularity(((axis, 1),))


def meant(reader: OnnxReader, op: OnnxOp, name: str, kind: QuantType) -> Value:
    """Returns the integers of a tensor with that quantized type: as they were before they were read
    raw, or read anew."""
    value = reader.value(op, name)
    if value.type.element == kind:
        return value
    source = value.node.operands.get("x") if value.node.op == "recode" else None
    if source is not None and source.type.element == kind:
        return source
    return recoded(reader, op, value, value.type.with_element(kind), "meant")


def recoded(reader: OnnxReader, op: OnnxOp, value: Value, kind: TensorType, word: str) -> Value:
    """Returns the bits of a value as another type, once; `word` ends its name."""
    for node in value.users:
        if node.op == "recode" and node.result.type == kind:
            return node.result
    name = reader.spare(f"{value.name}_{word}")
    made = reader.graph.add("recode", {"x": value}, types=[kind], name=name, origins=[op.origin()])
    return made.result


# -- raw integers ---------------------------------------------------------------------------------


def _raw(reader: OnnxReader, op: OnnxOp, name: str) -> Value:
    """Returns an operand as plain numbers, whatever it means."""
    value = reader.value(op, name, reader.numbered(name))
    if value.type.quant is None:
        return value
    return recoded(reader, op, value, value.type.with_element(value.type.dtype), "raw")


def _operands(reader: OnnxReader, op: OnnxOp, slots: tuple[str, str]) -> dict[str, Value]:
    names = (*slots, *(f"{s}.zero" for s in slots))
    return {s: _raw(reader, op, op.input(i)) for i, s in enumerate(names) if op.input(i)}


def matmul(reader: OnnxReader, op: OnnxOp) -> None:
    """MatMulInteger."""
    op.only()
    reader.add(op, "matmul_integer", _operands(reader, op, ("a", "b")))


def conv(reader: OnnxReader, op: OnnxOp) -> None:
    """ConvInteger along any number of axes."""
    op.only("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides")
    operands = _operands(reader, op, ("x", "w"))
    x, w = operands["x"].type.shape, operands["w"].type.shape
    if len(x) != len(w) or len(x) < 3:
        raise op.fail(f"its operands have {len(x)} and {len(w)} axes")
    reader.add(op, "conv_integer", operands, conv_attrs(op, x[2:], w))


OPS = {
    ("", "DynamicQuantizeLinear"): choose,
    ("", "MatMulInteger"): matmul,
    ("", "ConvInteger"): conv,
}
