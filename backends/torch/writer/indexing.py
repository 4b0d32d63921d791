"""Ops that find, read and write elements by places, as operators of PyTorch."""

from __future__ import annotations

from torch import fx

from qir.ir.node import Node

from .layers import int_list
from .program import FxProgram, Handler

_REDUCTIONS = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}


def _scatter_elements(program: FxProgram, node: Node) -> fx.Node:
    names = ("x", "indices", "updates")
    x, indices, updates = (program.operand(node, name) for name in names)
    axis, reduction = node.attrs["axis"], str(node.attrs["reduction"])
    if reduction == "none":
        return program.call("aten.scatter", x, axis, indices, updates)
    if reduction == "add":
        return program.call("aten.scatter_add", x, axis, indices, updates)
    return program.call("aten.scatter_reduce", x, axis, indices, updates, _REDUCTIONS[reduction])


def _scatter_nd(program: FxProgram, node: Node) -> fx.Node:
    indices, reduction = node.operands["indices"], node.attrs["reduction"]
    count = indices.type.shape[-1]
    if reduction not in ("none", "add") or not isinstance(count, int):
        raise program.refuse(
            node, f"PyTorch puts or adds elements, and has no {reduction!r} of them"
        )
    # index_put takes one index tensor per axis: the last axis of the indices, taken apart.
    axis_indices = [
        program.call("aten.select", program.node_of(indices), -1, i) for i in range(count)
    ]
    x, updates = program.operand(node, "x"), program.operand(node, "updates")
    return program.call("aten.index_put", x, axis_indices, updates, reduction == "add")


def _nonzero(program: FxProgram, node: Node) -> fx.Node:
    # PyTorch has a row for each element, ONNX and the language a column.
    return program.call("aten.t", program.call("aten.nonzero", program.operand(node, "x")))


_MODES = {"linear": 0, "nearest": 1, "cubic": 2}
_OUTSIDE = {"zeros": 0, "border": 1, "reflection": 2}


def _grid_sample(program: FxProgram, node: Node) -> fx.Node:
    attrs, rank = node.attrs, node.result.type.rank
    mode, outside = str(attrs["mode"]), _OUTSIDE[str(attrs["outside"])]
    if rank not in (4, 5) or (rank == 5 and mode == "cubic"):
        raise program.refuse(node, "PyTorch samples images and volumes, volumes not by cubes")
    operands = program.operand(node, "x"), program.operand(node, "grid")
    return program.call(
        "aten.grid_sampler", *operands, _MODES[mode], outside, attrs["align_corners"]
    )


def _columns(name: str) -> Handler:
    """Returns what writes unfold and fold; PyTorch has them of images, padded alike."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        lists = {k: int_list(node.attrs[k]) for k in ("kernel", "dilation", "pad", "stride")}
        pad_before, pad_after = lists["pad"][:2], lists["pad"][2:]
        if len(lists["kernel"]) != 2 or pad_before != pad_after:
            raise program.refuse(node, "PyTorch takes columns of images, padded alike on all sides")
        size = [int_list(node.attrs["size"])] if name == "col2im" else []
        window = lists["kernel"], lists["dilation"], pad_before, lists["stride"]
        return program.call(f"aten.{name}", program.operand(node, "x"), *size, *window)

    return write


def _max_pool_with_indices(program: FxProgram, node: Node) -> list[fx.Node]:
    lists = {k: int_list(node.attrs[k]) for k in ("kernel", "stride", "pad", "dilation")}
    n = len(lists["kernel"])
    pad_before, pad_after = lists["pad"][:n], lists["pad"][n:]
    if pad_before != pad_after or node.attrs["counted"] != "plane" or n > 3:
        raise program.refuse(node, "PyTorch counts places in the plane, padded alike on all sides")
    window = lists["kernel"], lists["stride"], pad_before, lists["dilation"], node.attrs["ceil"]
    name = f"aten.max_pool{n}d_with_indices"
    pooled = program.call(name, program.operand(node, "x"), *window)
    return [program.item(pooled, 0), program.item(pooled, 1)]


def _unpool(program: FxProgram, node: Node) -> fx.Node:
    size = int_list(node.attrs["size"])
    if node.attrs["counted"] != "plane" or len(size) != 2:
        raise program.refuse(node, "PyTorch counts places in the plane")
    operands = program.operand(node, "x"), program.operand(node, "places")
    return program.call("aten.max_unpool2d", *operands, size)


def _matrices(name: str) -> Handler:
    return lambda program, node: program.call(name, program.operand(node, "x"))


_BAGS = ("sum", "mean", "max")


def _bags(program: FxProgram, node: Node) -> fx.Node:
    attrs, padding = node.attrs, node.attrs.get("padding")
    weights, offsets = program.optional(node, "weights"), program.optional(node, "offsets")
    if offsets is None:
        raise program.refuse(node, "its bags are rows; give offsets")
    mode, last = _BAGS.index(str(attrs["mode"])), attrs["last"]
    operands = program.operand(node, "w"), program.operand(node, "indices"), offsets
    options = False, mode, False, weights, last, padding
    # embedding_bag returns four tensors; the first has the bags.
    return program.item(program.call("aten.embedding_bag", *operands, *options), 0)


OPS: dict[str, Handler] = {
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "nonzero": _nonzero,
    "grid_sample": _grid_sample,
    "unfold": _columns("im2col"),
    "fold": _columns("col2im"),
    "max_pool_places": _max_pool_with_indices,
    "max_unpool": _unpool,
    "inverse": _matrices("aten.linalg_inv"),
    "det": _matrices("aten.linalg_det"),
    "embedding_bag": _bags,
}
