"""The facts that a query can use, of nodes, values and origins.

The quantized type of a value is its own; in QDQ form it is the one of the quantized values that
`dequantize` reads it from, or that its one reader, a `quantize`, stores it as.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import DType
from qir.ir.node import Node, Value
from qir.ir.ops import OPS, OpSpec
from qir.ir.ops.plugin import gather
from qir.ir.origin import Origin
from qir.ir.types import Array, QuantType

Item: TypeAlias = "bool | int | float | str | tuple[Item, ...] | Value | Node | Origin | None"
"""What an expression comes to; None is what is not there."""


def value_quant_type(value: Value) -> QuantType | None:
    """Returns the quantized type that a value is stored with, in either form of a program."""
    if value.type.quant is not None:
        return value.type.quant
    if value.node.op == "dequantize":
        return value.node.operands["x"].type.quant
    use = value.only_use
    if use is None or use.node.op != "quantize" or value.node.op == "input":
        return None
    return use.node.result.type.quant


def byte_size(value: Value) -> int | None:
    """Returns the bytes of a value's elements, packed; None where a size is not known."""
    count = dims.product(value.type.shape)
    return -(-count * value.type.dtype.bits // 8) if isinstance(count, int) else None


def _size(dim: dims.Dim) -> int | str:
    return dim if isinstance(dim, int) else "?" if dim is None else str(dim)


def _numbers(values: NDArray[np.generic]) -> Item:
    """Returns one number, or all of them in a row."""
    numbers = values if values.dtype.kind in "iu" else values.astype(np.float64)
    return numbers.item() if numbers.size == 1 else tuple(numbers.reshape(-1).tolist())


def _of_map(ask: Callable[[QuantType], Item]) -> Callable[[Value], Item]:
    def answer(value: Value) -> Item:
        quant = value_quant_type(value)
        return None if quant is None else ask(quant)

    return answer


def _storage(value: Value) -> DType:
    quant = value_quant_type(value)
    return quant.storage if quant else value.type.dtype


def _scale(quant: QuantType) -> Item:
    return None if quant.scale is None else _numbers(np.asarray(quant.scales()))


def _zero(quant: QuantType) -> Item:
    if quant.scale is None:
        zeros = quant.zero.data if isinstance(quant.zero, Array) else quant.zero or 0
        return None if quant.zero is None else _numbers(np.asarray(zeros))
    return None if quant.zero is None else _numbers(np.asarray(quant.zeros()))


def _dequantized(quant: QuantType, value: int) -> NDArray[np.float64] | None:
    """Returns what a quantized value means under each scale."""
    if quant.dynamic or quant.kind != "uniform" or quant.plus is not None:
        return None
    if not quant.storage.is_integer:
        return None
    scales = np.asarray(quant.scales()).astype(np.float64)
    return (value - np.asarray(quant.zeros()).astype(np.float64)) * scales


def _least(quant: QuantType) -> Item:
    floats = _dequantized(quant, quant.low)
    return None if floats is None else float(floats.min())


def _greatest(quant: QuantType) -> Item:
    floats = _dequantized(quant, quant.high)
    return None if floats is None else float(floats.max())


def _elements(value: Value) -> Item:
    count = dims.product(value.type.shape)
    return count if isinstance(count, int) else None


VALUE: Mapping[str, Callable[[Value], Item]] = {
    "axis": _of_map(lambda quant: quant.axis),
    "bits": lambda value: _storage(value).bits,
    "bytes": byte_size,
    "constant": lambda value: value.constant is not None,
    "dtype": lambda value: value.type.dtype.name,
    "dynamic": _of_map(lambda quant: quant.dynamic),
    "express": lambda value: value.type.express.name,
    "high": _of_map(lambda quant: quant.high if quant.storage.is_integer else None),
    "low": _of_map(lambda quant: quant.low if quant.storage.is_integer else None),
    "max": _of_map(_greatest),
    "min": _of_map(_least),
    "name": lambda value: value.name,
    "node": lambda value: value.node,
    "quantized": lambda value: value_quant_type(value) is not None,
    "rank": lambda value: value.type.rank,
    "scale": _of_map(_scale),
    "shape": lambda value: tuple(map(_size, value.type.shape)),
    "size": _elements,
    "storage": lambda value: _storage(value).name,
    "tensor": lambda value: value.lineage.tensor,
    "type": lambda value: str(value.type),
    "users": lambda value: value.users,
    "uses": lambda value: len(value.uses),
    "zero": _of_map(_zero),
}

NODE: Mapping[str, Callable[[Node], Item]] = {
    "bodies": lambda node: tuple(node.bodies),
    "inner": lambda node: tuple(node.inner),
    "inputs": lambda node: tuple(node.operands.values()),
    "name": lambda node: node.name,
    "op": lambda node: node.op,
    "ops": lambda node: tuple(s.op for s in node.stages) or (node.op,),
    "origin": lambda node: node.origins[0] if node.origins else None,
    "origins": lambda node: node.origins,
    "planned": lambda node: tuple(node.schemes),
    "profile": lambda node: node.profile,
    "result": lambda node: node.results[0] if node.results else None,
    "results": lambda node: node.results,
    "slots": lambda node: tuple(node.operands),
    "stages": lambda node: tuple(s.op for s in node.stages),
    "users": lambda node: tuple(dict.fromkeys(u for v in node.results for u in v.users)),
    "uses": lambda node: sum(len(value.uses) for value in node.results),
}

ORIGIN: Mapping[str, Callable[[Origin], Item]] = {
    "call": lambda origin: origin.call,
    "framework": lambda origin: origin.framework,
    "name": lambda origin: origin.name,
    "op": lambda origin: origin.op,
    "operands": lambda origin: tuple(name for _, name in origin.operands),
    "path": lambda origin: origin.path,
}


def _names(row: OpSpec) -> list[str]:
    return [*(slot.name for slot in row.operands), *(attr.name for attr in row.attrs)]


_ROWS = OPS.values()
SLOTS = gather(_ROWS, lambda row: [slot.name for slot in row.operands])
VARIADIC = gather(_ROWS, lambda row: [slot.name for slot in row.operands if slot.variadic])
ATTRS = gather(_ROWS, lambda row: [attr.name for attr in row.attrs])
OF_NODES = gather(_ROWS, _names, NODE)
KNOWN = gather(_ROWS, _names, [*NODE, *VALUE, *ORIGIN])


def fact(item: Item, name: str) -> Item:
    """Returns a named fact of something; of a row, the fact of each; None where it has none."""
    match item:
        case Value():
            return VALUE[name](item) if name in VALUE else None
        case Node():
            return NODE[name](item) if name in NODE else _part(item, name)
        case Origin():
            return ORIGIN[name](item) if name in ORIGIN else None
        case tuple():
            return tuple(fact(each, name) for each in item)
    return None


def _part(node: Node, name: str) -> Item:
    """Returns the operands in a slot, else an attribute; `x`, `w` and `bias` by what they are
    for."""
    if name in VARIADIC and (variadic_operands := node.variadic(name)):
        return tuple(variadic_operands)
    if name in node.operands:
        return node.operands[name]
    role = _ROLES.get((node.stages[0].op if node.stages else node.op, name))
    return node.operands[role] if role and role in node.operands else attribute(node, name)


def _roles() -> dict[tuple[str, str], str]:
    """Returns the slots of data, weights and bias, where an op calls them otherwise."""
    out = {("matmul_integer", "x"): "a", ("matmul_integer", "w"): "b"}
    for op, op_spec in OPS.items():
        if op_spec.traits.weight is None:
            continue
        slot_by_role = {
            "x": op_spec.traits.data,
            "w": op_spec.traits.weight,
            "bias": op_spec.traits.bias,
        }
        out |= {
            (op, n): slot for n, slot in slot_by_role.items() if slot and op_spec.slot(n) is None
        }
    return out


_ROLES = _roles()


def attribute(item: Item, name: str) -> Item:
    """Returns an attribute of a node, or of the first stage that has it."""
    if not isinstance(item, Node):
        return None
    for attrs in (item.attrs, *(stage.attrs for stage in item.stages)):
        if name in attrs:
            return _plain(attrs[name])
    return None


def _plain(value: Attr) -> Item:
    match value:
        case tuple():
            return tuple(map(_plain, value))
        case DType():
            return value.name
        case bytes():
            return value.hex()
        case Array():
            return f"@{value.name}"
        case float() if math.isnan(value):
            return None
    return value


def truth(item: Item) -> bool:
    """Returns whether something counts as true: what is not there does not, nor what is empty or
    0."""
    return bool(item) if not isinstance(item, Value | Node | Origin) else True
