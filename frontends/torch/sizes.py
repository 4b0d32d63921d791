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


def size_value(reader: ProgramReader, size: Size) -> Value:
    """Returns a size as an i64 tensor of one element; one node serves all uses."""
    if isinstance(size, int):
        return reader.graph.constant(int64_array([size]))
    if size.name not in reader.size_values:
        reader.size_values[size.name] = _compute_size(reader, size)
    return reader.size_values[size.name]


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
    a, b = (size_value(reader, size) for size in node.args)  # type: ignore[arg-type]
    # `max` and `min` of the language take any number of operands.
    slots = ("xs.0", "xs.1") if op in ("max", "min") else ("a", "b")
    return reader.add(node, op, dict(zip(slots, (a, b), strict=True)), {}).result


def shape_operand(reader: ProgramReader, node: fx.Node, sizes: Sequence[Size]) -> Value:
    """Returns the shape operand of a reshape.

    A single symbolic size is written -1, so that the shape is a constant.
    """
    open_axes = [i for i, size in enumerate(sizes) if not isinstance(size, int)]
    known = [size for size in sizes if isinstance(size, int)]
    # In a reshape, 0 copies the size of the operand and -1 is inferred, so sizes 0 and -1 rule it
    # out.
    if not open_axes or (len(open_axes) == 1 and not {-1, 0} & set(known)):
        numbers = [size if isinstance(size, int) else -1 for size in sizes]
        return reader.graph.constant(int64_array(numbers), name=reader.names(node, "shape"))
    return exact_shape_operand(reader, node, sizes)


def exact_shape_operand(reader: ProgramReader, node: fx.Node, sizes: Sequence[Size]) -> Value:
    """Returns a shape operand without -1; symbolic sizes are computed."""
    if all(isinstance(size, int) for size in sizes):
        numbers = [size for size in sizes if isinstance(size, int)]
        return reader.graph.constant(int64_array(numbers), name=reader.names(node, "shape"))
    parts = {f"xs.{i}": size_value(reader, size) for i, size in enumerate(sizes)}
    return reader.add(node, "concat", parts, {"axis": 0}).result
