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
    axis, how = node.attrs["axis"], str(node.attrs["reduction"])
    if how == "none":
        return program.call("aten.scatter", x, axis, indices, updates)
    if how == "add":
        return program.call("aten.scatter_add", x, axis, indices, updates)
    return program.call("aten.scatter_reduce", x, axis, indices, updates, _REDUCTIONS[how])


def _scatter_nd(program: FxProgram, node: Node) -> fx.Node:
    indices, how = node.operands["indices"], node.attrs["reduction"]
    count = indices.type.shape[-1]
    if how not in ("none", "add") or not isinstance(count, int):
        raise program.refuse(node, f"PyTorch puts or adds elements, and has no {how!r} of them")
    parts = [program.call("aten.select", program.node_of(indices), -1, i) for i in range(count)]
    x, updates = program.operand(node, "x"), program.operand(node, "updates")
    return program.call("aten.index_put", x, parts, updates, how == "add")


def _nonzero(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.t", program.call("aten.nonzero", program.operand(node, "x")))


_MODES = {"linear": 0, "nearest": 1, "cubic": 2}
_OUTSIDE = {"zeros": 0, "border": 1, "reflection": 2}


def _grid_sample(program: FxProgram, node: Node) -> fx.Node:
    attrs, rank = node.attrs, node.result.type.rank
    mode, outside = str(attrs["mode"]), _OUTSIDE[str(attrs["outside"])]
    if rank not in (4, 5) or (rank == 5 and mode == "cubic"):
        raise program.refuse(node, "PyTorch samples images and volumes, volumes not by cubes")
    given = program.operand(node, "x"), program.operand(node, "grid")
    return program.call("aten.grid_sampler", *given, _MODES[mode], outside, attrs["align_corners"])


def _columns(name: str) -> Handler:
    """Returns what writes unfold and fold; PyTorch has them of images, padded alike."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        parts = {k: int_list(node.attrs[k]) for k in ("kernel", "dilation", "pad", "stride")}
        front, back = parts["pad"][:2], parts["pad"][2:]
        if len(parts["kernel"]) != 2 or front != back:
            raise program.refuse(node, "PyTorch takes columns of images, padded alike on all sides")
        size = [int_list(node.attrs["size"])] if name == "col2im" else []
        rest = parts["kernel"], parts["dilation"], front, parts["stride"]
        return program.call(f"aten.{name}", program.operand(node, "x"), *size, *rest)

    return write


def _pool_places(program: FxProgram, node: Node) -> list[fx.Node]:
    parts = {k: int_list(node.attrs[k]) for k in ("kernel", "stride", "pad", "dilation")}
    n = len(parts["kernel"])
    front, back = parts["pad"][:n], parts["pad"][n:]
    if front != back or node.attrs["counted"] != "plane" or n > 3:
        raise program.refuse(node, "PyTorch counts places in the plane, padded alike on all sides")
    rest = parts["kernel"], parts["stride"], front, parts["dilation"], node.attrs["ceil"]
    name = f"aten.max_pool{n}d_with_indices"
    made = program.call(name, program.operand(node, "x"), *rest)
    return [program.item(made, 0), program.item(made, 1)]


def _unpool(program: FxProgram, node: Node) -> fx.Node:
    size = int_list(node.attrs["size"])
    if node.attrs["counted"] != "plane" or len(size) != 2:
        raise program.refuse(node, "PyTorch counts places in the plane")
    given = program.operand(node, "x"), program.operand(node, "places")
    return program.call("aten.max_unpool2d", *given, size)


def _matrices(name: str) -> Handler:
    return lambda program, node: program.call(name, program.operand(node, "x"))


_BAGS = ("sum", "mean", "max")


def _bags(program: FxProgram, node: Node) -> fx.Node:
    attrs, padding = node.attrs, node.attrs.get("padding")
    weights, offsets = program.optional(node, "weights"), program.optional(node, "offsets")
    if offsets is None:
        raise program.refuse(node, "its bags are rows; give offsets")
    mode, last = _BAGS.index(str(attrs["mode"])), attrs["last"]
    given = program.operand(node, "w"), program.operand(node, "indices"), offsets
    rest = False, mode, False, weights, last, padding
    return program.item(program.call("aten.embedding_bag", *given, *rest), 0)


OPS: dict[str, Handler] = {
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "nonzero": _nonzero,
    "grid_sample": _grid_sample,
    "unfold": _columns("im2col"),
    "fold": _columns("col2im"),
    "max_pool_places": _pool_places,
    "max_unpool": _unpool,
    "inverse": _matrices("aten.linalg_inv"),
    "det": _matrices("aten.linalg_det"),
    "embedding_bag": _bags,
}
