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


def same_map(seen: NodeContext) -> Iterator[Fault]:
    """Ops that only move quantized values keep the quantized type.

    Operands and results of such an op have one quantized type, its axes moved as the elements are.
    A concat may convert, but never mixes quantized and float values.
    """
    if seen.node.stages or not seen.node.results:
        return
    results = list(dict.fromkeys(value.type.quant for value in seen.node.results))
    for step in seen.steps:
        for slot in step.spec.traits.same_params:
            for name, value in _values(step, slot):
                for result in results:
                    yield from _one_map(step, name, value, result)


def _values(step: OpUse, slot: str) -> list[tuple[str, Value]]:
    """The operands in a slot, variadic or not."""
    own = ((s, v) for s, v in step.operands.items() if step.spec.slot(s) is not None)
    return [(s, v) for s, v in own if s == slot or s.startswith(f"{slot}.")]


def _one_map(step: OpUse, slot: str, value: Value, result: QuantType | None) -> Iterator[Fault]:
    quant = value.type.quant
    said = ""
    if (quant is None) != (result is None):
        said = f"%{value.name} is {'codes' if quant else 'reals'}, the result is not"
    elif quant and result and step.spec.name != "concat" and not step.rejection:
        moved = step.spec.move(step.call, quant) if step.spec.move else quant
        if moved is None or not moved.has_same_mapping(result):
            said = (
                f"%{value.name} and the result have different quantization parameters: "
                f"{quant}, {result}"
            )
    if said:
        yield Fault(said, step.prefix + slot, value.name)


def one_tensor(seen: NodeContext) -> Iterator[Fault]:
    """One tensor has one float value, however often it is read.

    Quantized values of one array have one quantized type everywhere, computed quantized values are
    not read by another type, and a float tensor is stored with one quantized type, though perhaps
    in storage types that differ by an offset. Where two are meant, copy the tensor. A `recode` op
    that is the only reader defines the type from there on.
    """
    node = seen.node
    value = node.results[0] if node.results else None
    quant = value.type.quant if value is not None else None
    if value is None or quant is None or quant.dynamic:
        return
    if node.op == "recode":
        yield from _read_anew(node, value, quant)
        return
    key = _tensor(node)
    if key is None:
        return
    first, name = seen.look.maps.setdefault(key, (quant, value.name))
    if first is not quant and not _same_reals(first, quant, node.op == "quantize"):
        said = f"it reads a tensor as {quant} that %{name} reads as {first}"
        yield Fault(said, value=value.name)


def _read_anew(node: Node, value: Value, quant: QuantType) -> Iterator[Fault]:
    source = node._operands.get("x")
    held = source.type.quant if source is not None else None
    if source is None or held is None or held.dynamic or held.has_same_mapping(quant):
        return
    if source.only_use is not None and not _part_of_reading(node, value):
        return
    yield Fault(f"it reads %{source.name}, quantized values of {held}, as {quant}", "x", value.name)


def _part_of_reading(node: Node, value: Value) -> bool:
    """Whether a recode only serves an op of the source that reads quantized values as others."""
    own = set(node.origins)
    return any(not own.isdisjoint(user.origins) for user in value.users)


def one_number(seen: NodeContext) -> Iterator[Fault]:
    """The producer and the readers of an open type (`?`) use the same parameters.

    Parameters are the same if they are one value, or constants with equal elements.
    """
    node = seen.node
    if not seen.has_open_parameters:
        return
    made = [("", v) for v in node.results[:1]]
    read = [
        (f"{slot}.", v) for slot, v in seen.operands.items() if seen.spec.slot(slot) is not None
    ]
    for prefix, value in (*read, *made):
        if value.type.quant is None or not value.type.quant.dynamic:
            continue
        found = tuple(_number(seen.operands.get(f"{prefix}{name}")) for name in COMPANIONS)
        if not any(found):
            continue
        first, name = seen.look.numbers.setdefault(value, (found, node.name))
        if first != found:
            said = f"%{value.name} has other numbers here than at {name}"
            yield Fault(said, prefix.rstrip("."), value.name)


def _number(value: Value | None) -> object:
    """Identifies a parameter: by the elements of a constant, else by the value itself."""
    if value is None:
        return None
    array = value.constant
    return value if array is None else array.digest


def _tensor(node: Node) -> object:
    """Identifies a tensor: by the value that is stored, or by the address of its elements."""
    if node.op == "quantize":
        return node._operands.get("x")
    array = node.results[0].constant
    data = array.data if array is not None else None
    if not isinstance(data, np.ndarray) or not data.size:  # one number may be a NumPy scalar
        return None
    return (data.__array_interface__["data"][0], data.shape, data.strides, data.dtype)


def _same_reals(a: QuantType, b: QuantType, stored: bool) -> bool:
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
    scales = np.array_equal(np.asarray(a.scales()), np.asarray(b.scales()))
    lowest = np.array_equal(a.low - np.asarray(a.zeros()), b.low - np.asarray(b.zeros()))
    return scales and lowest and a.high - a.low == b.high - b.low


@np.errstate(over="ignore")
def _product_of(made: NDArray[np.generic], a: NDArray[np.generic], b: NDArray[np.generic]) -> bool:
    """Whether numbers are the float32 products of others."""
    return bool(np.all(a.astype(np.float32) * b.astype(np.float32) == made))


def bias_scale(seen: NodeContext) -> Iterator[Fault]:
    """A quantized bias has the scale input scale x weight scale, bit for bit.

    Its scale is fl32(input scale x weight scale), and its zero point 0: kernels add its integers to
    the accumulator unchanged. A bias of plain integers is in that unit by definition.
    """
    for step in seen.steps:
        traits = step.spec.traits
        if traits.bias is not None and traits.bias in step.operands and traits.weight is not None:
            yield from _unit(seen, step, traits.bias)


def _unit(seen: NodeContext, step: OpUse, slot: str) -> Iterator[Fault]:
    value = step.operands[slot]
    bias = seen.look.quant_type(value)
    x, w = (read_map(seen, step, s) for s in (step.spec.traits.data, step.spec.traits.weight or ""))
    if any(q is None or q.scale is None for q in (x, w, bias)) or not (x and w and bias):
        return
    slot = step.prefix + slot
    xs, ws, bs = (np.asarray(q.scales()).reshape(-1) for q in (x, w, bias))
    if len({xs.size, ws.size, bs.size} - {1}) > 1:
        said = f"{bs.size} bias scales for {xs.size} input and {ws.size} weight scales"
        yield Fault(said, slot, value.name)
    elif not _product_of(bs, xs, ws):
        said = "the bias scale is not fl32(input scale x weight scale)"
        yield Fault(said, slot, value.name)
    if bias.zero and np.asarray(bias.zeros()).any():
        yield Fault("the bias has a zero point, which kernels do not subtract", slot)


def read_map(seen: NodeContext, step: OpUse, slot: str) -> QuantType | None:
    """The quantized type of the integers in a slot: an operand's, seen through dequantize, or the
    flow's."""
    value = step.operands.get(slot)
    if value is not None:
        return seen.look.quant_type(value)
    kind = step.call.types.get(slot)
    return kind.quant if kind is not None else None
