"""Operands that state a shape: constants where all sizes are known, else computed at run time."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from qir.ir.node import Value

from .reader import ProgramReader
from .sizes import Size, int64_array


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
    parts = {f"xs.{i}": reader.size_value(size) for i, size in enumerate(sizes)}
    return reader.add(node, "concat", parts, {"axis": 0}).result
