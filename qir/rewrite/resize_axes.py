"""The axes of a resize: those after channels by name, or all of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from qir.ir import dims
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops.resize import scaled
from qir.ir.types import Array, TensorType

RESIZES = frozenset({"resize", "resize_nearest"})


def name_axes(graph: Graph, node: Node) -> bool:
    """Names the axes after channels where none is named and the first two keep their sizes.

    Returns whether it did; scales and sizes of the first two are removed.
    """
    if node.op not in RESIZES or node.attrs["axes"] or node.attrs["roi"] or node.schemes:
        return False
    x, result_type = node.operands["x"].type, node.result.type
    if x.rank < 3 or x.shape[:2] != result_type.shape[:2]:
        return False
    # A kept proportion is that of all named axes: naming fewer would change the result.
    scales, sizes = node.attrs["scales"], node.operands.get("sizes")
    assert isinstance(scales, tuple)
    if sizes is not None and (sizes.constant is None or node.attrs["policy"] != "stretch"):
        return False
    # Two sizes that are unknown need not be the same size.
    if sizes is not None and None in x.shape[:2]:
        return False
    if sizes is None and scales[:2] != (1.0, 1.0):
        return False
    axes = tuple(range(2, x.rank))
    if sizes is not None and sizes.constant is not None:
        data = sizes.constant.data[2:]
        # A new constant, as other nodes may read the old one.
        array = Array(data, TensorType(data.shape, sizes.type.element), sizes.constant.name)
        constant = graph.constant(array, name=graph.fresh(sizes.name), before=node)
        graph.set_origins(constant.node, sizes.node.origins)
        graph.set_operand(node, "sizes", constant)
        if sizes.node.op == "constant" and not sizes.node.used:
            graph.remove(sizes.node)
    graph.set_attrs(node, axes=axes, scales=scales[2:])
    return True


def full_sizes_and_scales(node: Node) -> tuple[list[int], list[float]] | None:
    """Returns the sizes or the scales of all axes that say the same as those of the named ones.

    None for another op, where no axis is named, or where that cannot be: a region or a kept
    proportion is of the named axes, computed sizes are theirs alone.
    """
    if node.op not in RESIZES:
        return None
    shape, sizes = node.operands["x"].type.shape, node.operands.get("sizes")
    axes = [a % len(shape) for a in _numbers(node, "axes")]
    if not axes or node.attrs["roi"] or node.attrs["policy"] != "stretch" or node.schemes:
        return None
    scales = _numbers(node, "scales")
    if sizes is not None:
        if sizes.constant is None:
            return None
        wanted = [int(size) for size in sizes.constant.data]
        new = dict(zip(axes, wanted, strict=True))
        if dims.known_shape(shape) is not None:
            return [new.get(a, d) for a, d in enumerate(shape) if isinstance(d, int)], []
        # Sizes of the other axes are unknown, so the resize can only be said by scales.
        known_sizes = dims.known_shape(tuple(shape[a] for a in axes))
        if known_sizes is None or 0 in known_sizes:
            return None
        scales = [
            float(np.float32(w) / np.float32(h)) for w, h in zip(wanted, known_sizes, strict=True)
        ]
        # A scale is rounded to float32, after which it may give one element less than was asked
        # for.
        if [scaled(h, s) for h, s in zip(known_sizes, scales, strict=True)] != wanted:
            return None
    each = dict(zip(axes, scales, strict=True))
    return [], [each.get(a, 1.0) for a in range(len(shape))]


def name_all_axes(graph: Graph, node: Node) -> None:
    """Makes a resize of named axes one of all of them, where it can be said so."""
    if (full := full_sizes_and_scales(node)) is None:
        return
    full_sizes, scales = full
    sizes = node.operands.get("sizes")
    if sizes is not None:
        data = np.array(full_sizes, np.int64)
        array = Array(data, TensorType(data.shape, dtype("i64")), sizes.name)
        new = (
            graph.constant(array, name=graph.fresh(sizes.name), before=node) if full_sizes else None
        )
        graph.set_operand(node, "sizes", new)
        if sizes.node.op == "constant" and not sizes.node.used:
            graph.remove(sizes.node)
    graph.set_attrs(node, axes=(), scales=tuple(scales))


def _numbers(node: Node, name: str) -> list[Any]:
    value = node.attrs[name]
    assert isinstance(value, tuple)
    return list(value)
