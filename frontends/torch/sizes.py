"""Sizes that are computed at run time: integers in PyTorch, i64 tensors in the language."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from torch import fx

from qir.ir.node import Value

from .call import KeepCall, Size, int64_array

if TYPE_CHECKING:
    from .reader import ProgramReader

_ARITHMETIC: dict[Callable[..., object], str] = {
    operator.add: "add",
    operator.sub: "sub",
    operator.mul: "mul",
    operator.floordiv: "floor_div",
    operator.mod: "mod",
    torch.sym_max: "max",
    torch.sym_min: "min",
}


def is_size(node: fx.Node) -> bool:
    """Returns whether a node is a number and not a tensor."""
    return isinstance(node.meta.get("val"), (int, torch.SymInt, torch.SymBool, torch.SymFloat))


def size_value(reader: ProgramReader, held: Size) -> Value:
    """Returns a size as an i64 tensor of one element; one node serves all uses."""
    if isinstance(held, int):
        return reader.graph.constant(int64_array([held]))
    if held.name not in reader.size_values:
        reader.size_values[held.name] = _compute_size(reader, held)
    return reader.size_values[held.name]


def _compute_size(reader: ProgramReader, node: fx.Node) -> Value:
    target = node.target
    if str(target) in ("aten.sym_size.int", "aten.size.int"):
        x, axis = reader.tensor(node.args[0]), node.args[1]  # type: ignore[arg-type]
        if not isinstance(axis, int):
            raise KeepCall
        axis += x.type.rank if axis < 0 else 0
        attrs = {"start": axis, "end": axis + 1}
        return reader.add(node, "shape", {"x": x}, attrs).result
    if str(target) in ("aten.sym_numel.default", "aten.numel.default"):
        sizes = reader.add(node, "shape", {"x": reader.tensor(node.args[0])}, {})  # type: ignore[arg-type]
        return reader.add(node, "reduce_prod", {"x": sizes.result}, {}).result
    if target not in _ARITHMETIC:
        raise reader.error(node, f"{target} computes a size, which is not read")
    op = _ARITHMETIC[target]
    a, b = (size_value(reader, held) for held in node.args)  # type: ignore[arg-type]
    slots = ("xs.0", "xs.1") if op in ("max", "min") else ("a", "b")
    return reader.add(node, op, dict(zip(slots, (a, b), strict=True)), {}).result


def shape_operand(reader: ProgramReader, node: fx.Node, wanted: Sequence[Size]) -> Value:
    """Returns the shape operand of a reshape.

    A single symbolic size is written -1, so that the shape is a constant.
    """
    open_ones = [i for i, size in enumerate(wanted) if not isinstance(size, int)]
    known = [size for size in wanted if isinstance(size, int)]
    if not open_ones or (len(open_ones) == 1 and not {-1, 0} & set(known)):
        numbers = [size if isinstance(size, int) else -1 for size in wanted]
        return reader.graph.constant(int64_array(numbers), name=reader.names(node, "shape"))
    return exact_shape_operand(reader, node, wanted)


def exact_shape_operand(reader: ProgramReader, node: fx.Node, wanted: Sequence[Size]) -> Value:
    """Returns a shape operand without -1; symbolic sizes are computed."""
    if all(isinstance(size, int) for size in wanted):
        numbers = [size for size in wanted if isinstance(size, int)]
        return reader.graph.constant(int64_array(numbers), name=reader.names(node, "shape"))
    parts = {f"xs.{i}": size_value(reader, size) for i, size in enumerate(wanted)}
    return reader.add(node, "concat", parts, {"axis": 0}).result
