"""Rules on what must agree: maps of what moves integers, tensors read twice, units of biases."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from qir.ir.node import Node, Value
from qir.ir.ops import COMPANIONS
from qir.ir.types import QuantType
from qir.ir.verify.rule import Fault, NodeContext
from qir.ir.verify.step import OpUse


def same_map(context: NodeContext) -> Iterator[Fault]:
    """Ops that only move quantized values keep the quantized type.

    Operands and results of such an op have one quantized type, its axes moved as the elements are.
    A concat may convert, but never mixes quantized and float values.
    """
    if context.node.stages or not context.node.results:
        return
    result_types = list(dict.fromkeys(value.type.quant for value in context.node.results))
    for step in context.steps:
        for slot in step.spec.traits.same_params:
            for name, value in _operands_in_slot(step, slot):
                for result in result_types:
                    yield from _mapping_faults(step, name, value, result)


def _operands_in_slot(step: OpUse, slot: str) -> list[tuple[str, Value]]:
    """The operands in a slot, variadic or not."""
    of_the_op = ((s, v) for s, v in step.operands.items() if step.spec.slot(s) is not None)
    return [(s, v) for s, v in of_the_op if s == slot or s.startswith(f"{slot}.")]


def _mapping_faults(
    step: OpUse, slot: str, value: Value, result: QuantType | None
) -> Iterator[Fault]:
    quant = value.type.quant
    message = ""
    if (quant is None) != (result is None):
        message = f"%{value.name} is {'codes' if quant else 'reals'}, the result is not"
    elif quant and result and step.spec.name != "concat" and not step.rejection:
        moved = step.spec.move(step.call, quant) if step.spec.move else quant
        if moved is None or not moved.has_same_mapping(result):
            message = (
                f"%{value.name} and the result have different quantization parameters: "
                f"{quant}, {result}"
            )
    if message:
        yield Fault(message, step.prefix + slot, value.name)


def one_tensor(context: NodeContext) -> Iterator[Fault]:
    """One tensor has one float value, however often it is read.

    Quantized values of one array have one quantized type everywhere, computed quantized values are
    not read by another type, and a float tensor is stored with one quantized type, though perhaps
    in storage types that differ by an offset. Where two are meant, copy the tensor. A `recode` op
    that is the only reader defines the type from there on.
    """
    node = context.node
    value = node.results[0] if node.results else None
    quant = value.type.quant if value is not None else None
    if value is None or quant is None or quant.dynamic:
        return
    if node.op == "recode":
        yield from _reread_faults(node, value, quant)
        return
    key = _tensor_identity(node)
    if key is None:
        return
    first_type, name = context.look.maps.setdefault(key, (quant, value.name))
    if first_type is not quant and not _have_same_floats(first_type, quant, node.op == "quantize"):
        message = f"it reads a tensor as {quant} that %{name} reads as {first_type}"
        yield Fault(message, value=value.name)


def _reread_faults(node: Node, value: Value, quant: QuantType) -> Iterator[Fault]:
    source = node._operands.get("x")
    source_type = source.type.quant if source is not None else None
    if (
        source is None
        or source_type is None
        or source_type.dynamic
        or source_type.has_same_mapping(quant)
    ):
        return
    if source.only_use is not None and not _part_of_reading(node, value):
        return
    yield Fault(
        f"it reads %{source.name}, quantized values of {source_type}, as {quant}", "x", value.name
    )


def _part_of_reading(node: Node, value: Value) -> bool:
    """Whether a recode only serves an op of the source that reads quantized values as others."""
    own = set(node.origins)
    return any(not own.isdisjoint(user.origins) for user in value.users)


def one_number(context: NodeContext) -> Iterator[Fault]:
    """The producer and the readers of an open type (`?`) use the same parameters.

    Parameters are the same if they are one value, or constants with equal elements.
    """
    node = context.node
    if not context.has_open_parameters:
        return
    results = [("", v) for v in node.results[:1]]
    operands = [
        (f"{slot}.", v)
        for slot, v in context.operands.items()
        if context.spec.slot(slot) is not None
    ]
    for prefix, value in (*operands, *results):
        if value.type.quant is None or not value.type.quant.dynamic:
            continue
        parameters = tuple(
            _parameter_identity(context.operands.get(f"{prefix}{name}")) for name in COMPANIONS
        )
        if not any(parameters):
            continue
        first_parameters, name = context.look.numbers.setdefault(value, (parameters, node.name))
        if first_parameters != parameters:
            message = f"%{value.name} has other numbers here than at {name}"
            yield Fault(message, prefix.rstrip("."), value.name)


def _parameter_identity(value: Value | None) -> object:
    """Identifies a parameter: by the elements of a constant, else by the value itself."""
    if value is None:
        return None
    array = value.constant
    return value if array is None else array.digest


def _tensor_identity(node: Node) -> object:
    """Identifies a tensor: by the value that is stored, or by the address of its elements."""
    if node.op == "quantize":
        return node._operands.get("x")
    array = node.results[0].constant
    data = array.data if array is not None else None
    if not isinstance(data, np.ndarray) or not data.size:  # one number may be a NumPy scalar
        return None
    # Two arrays over the same memory are one tensor, whatever their names.
    return (data.__array_interface__["data"][0], data.shape, data.strides, data.dtype)


def _have_same_floats(a: QuantType, b: QuantType, stored: bool) -> bool:
    """Whether two quantized types have the same floats; of what is stored, the integers themselves
    may differ."""
    if a.has_same_mapping(b):
        return True
    if (
        not stored
        or a.granularity != b.granularity
        or not (a.storage.is_integer and b.storage.is_integer)
    ):
        return False
    if (
        a.has_float_zero
        or b.has_float_zero
        or (a.kind, a.plus, a.express) != (b.kind, b.plus, b.express)
    ):
        return False
    # u8 with zero 128 and i8 with zero 0 hold the same floats: scale and distance from the low end
    # agree.
    scales = np.array_equal(np.asarray(a.scales()), np.asarray(b.scales()))
    lowest = np.array_equal(a.low - np.asarray(a.zeros()), b.low - np.asarray(b.zeros()))
    return scales and lowest and a.high - a.low == b.high - b.low


@np.errstate(over="ignore")
def _is_float32_product(
    products: NDArray[np.generic], a: NDArray[np.generic], b: NDArray[np.generic]
) -> bool:
    """Whether numbers are the float32 products of others."""
    # ONNX and oneDNN kernels multiply the scales in float32: the bias must have that very product.
    return bool(np.all(a.astype(np.float32) * b.astype(np.float32) == products))


def bias_scale(context: NodeContext) -> Iterator[Fault]:
    """A quantized bias has the scale input scale x weight scale, bit for bit.

    Its scale is fl32(input scale x weight scale), and its zero point 0: kernels add its integers to
    the accumulator unchanged. A bias of plain integers is in that unit by definition.
    """
    for step in context.steps:
        traits = step.spec.traits
        if traits.bias is not None and traits.bias in step.operands and traits.weight is not None:
            yield from _bias_faults(context, step, traits.bias)


def _bias_faults(context: NodeContext, step: OpUse, slot: str) -> Iterator[Fault]:
    value = step.operands[slot]
    bias = context.look.quant_type(value)
    x, w = (
        read_map(context, step, s) for s in (step.spec.traits.data, step.spec.traits.weight or "")
    )
    if any(q is None or q.scale is None for q in (x, w, bias)) or not (x and w and bias):
        return
    slot = step.prefix + slot
    xs, ws, bs = (np.asarray(q.scales()).reshape(-1) for q in (x, w, bias))
    if len({xs.size, ws.size, bs.size} - {1}) > 1:
        message = f"{bs.size} bias scales for {xs.size} input and {ws.size} weight scales"
        yield Fault(message, slot, value.name)
    elif not _is_float32_product(bs, xs, ws):
        message = "the bias scale is not fl32(input scale x weight scale)"
        yield Fault(message, slot, value.name)
    if bias.zero and np.asarray(bias.zeros()).any():
        yield Fault("the bias has a zero point, which kernels do not subtract", slot)


def read_map(context: NodeContext, step: OpUse, slot: str) -> QuantType | None:
    """The quantized type of the integers in a slot: an operand's, seen through dequantize, or the
    flow's."""
    value = step.operands.get(slot)
    if value is not None:
        return context.look.quant_type(value)
    kind = step.call.types.get(slot)
    return kind.quant if kind is not None else None
