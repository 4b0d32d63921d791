"""Operators that pick elements by indices."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from qir.ir.node import Value

from .call import KeepCall, OverloadCall


def _embedding(call: OverloadCall) -> Value:
    operands = {"w": call.value("weight"), "indices": call.value("indices")}
    padding = call.whole("padding_idx")
    return call.add("embedding", operands, {"padding": padding} if padding >= 0 else {})


def _index_select(call: OverloadCall) -> Value:
    x, indices = call.value("self"), call.value("index")
    if indices.type.rank != 1:
        raise KeepCall
    return call.add("gather", {"x": x, "indices": indices}, {"axis": call.axis("dim", x.type.rank)})


def _gather(call: OverloadCall) -> Value:
    x, indices = call.value("self"), call.value("index")
    axis = call.axis("dim", x.type.rank)
    return call.add("gather_elements", {"x": x, "indices": indices}, {"axis": axis})


def _index(call: OverloadCall) -> Value:
    """Reads `x[:, i]` and `x[i, j]`: one tensor of indices, or several for the first axes."""
    x, held = call.value("self"), call["indices"]
    named = [(i, node) for i, node in enumerate(held) if node is not None]
    if not all(isinstance(n, fx.Node) and not _is_mask(n) for _, n in named):
        raise KeepCall
    if len(named) == 1:
        axis, node = named[0]
        operands = {"x": x, "indices": call.reader.tensor(node)}
        return call.add("gather", operands, {"axis": axis})
    if [i for i, _ in named] != list(range(len(named))):
        raise KeepCall
    parts = _broadcast(call, [call.reader.tensor(node) for _, node in named])
    rank = parts[0].type.rank
    rows = [call.add("unsqueeze", {"x": part}, {"axes": (rank,)}) for part in parts]
    indices = call.add("concat", {f"xs.{i}": r for i, r in enumerate(rows)}, {"axis": rank})
    return call.add("gather_nd", {"x": x, "indices": indices})


def _broadcast(call: OverloadCall, parts: list[Value]) -> list[Value]:
    """Returns tensors of indices expanded to one shape."""
    whole = parts[0]
    for part in parts[1:]:
        if part.type.shape != whole.type.shape:
            shape = call.add("shape", {"x": part})
            whole = call.add("expand", {"x": whole, "shape": shape})
    shape = call.add("shape", {"x": whole})
    return [
        part
        if part.type.shape == whole.type.shape
        else call.add("expand", {"x": part, "shape": shape})
        for part in parts
    ]


def _is_mask(node: fx.Node) -> bool:
    return str(node.meta["val"].dtype) in ("torch.bool", "torch.uint8")


def _slice_scatter(call: OverloadCall) -> Value:
    """Reads `x[:, i:j] = y`, which functionalization turns into a call that gives a tensor."""
    x, axis = call.value("self"), call.axis("dim", call.rank("self"))
    count = x.type.shape[axis]
    bounds = call["start"], call["end"]
    if call.whole("step") != 1 or not isinstance(count, int):
        raise KeepCall("it writes parts that are not next to each other, or of an unknown size")
    if not all(bound is None or isinstance(bound, int) for bound in bounds):
        raise KeepCall("it writes to a place that is computed")
    start, end, _ = slice(*bounds).indices(count)
    return _replaced(call, x, call.value("src"), axis, (start, end, count))


def _select_scatter(call: OverloadCall) -> Value:
    """Reads `x[:, i] = y` likewise."""
    x, axis = call.value("self"), call.axis("dim", call.rank("self"))
    count, index = x.type.shape[axis], call.whole("index")
    if not isinstance(count, int):
        raise KeepCall("it writes to an axis of an unknown size")
    start = index + count if index < 0 else index
    part = call.add("unsqueeze", {"x": call.value("src")}, {"axes": (axis,)})
    return _replaced(call, x, part, axis, (start, start + 1, count))


def _replaced(
    call: OverloadCall, x: Value, part: Value, axis: int, bounds: tuple[int, int, int]
) -> Value:
    """Returns a tensor whose elements from start to end of an axis are those of another."""
    start, end, count = bounds

    def kept(first: int, last: int) -> list[Value]:
        attrs = {"starts": (first,), "ends": (last,), "axes": (axis,), "steps": (1,)}
        return [call.add("slice", {"x": x}, attrs)] if first < last else []

    if start >= end:
        return x
    parts = [*kept(0, start), part, *kept(end, count)]
    if len(parts) == 1:
        return part
    return call.add("concat", {f"xs.{i}": p for i, p in enumerate(parts)}, {"axis": axis})


def _copy(call: OverloadCall) -> Value:
    """Reads `x[...] = y`: another tensor in the shape and element type of this one."""
    made = call.cast_to(call["src"], call.result.dtype)
    if tuple(call.fake("src").shape) == tuple(call.result.shape):
        return made
    shape = call.add("shape", {"x": call.value("self")})
    return call.add("expand", {"x": made, "shape": shape})


def _triangle(upper: bool) -> Callable[[OverloadCall], Value]:
    def read(call: OverloadCall) -> Value:
        attrs = {"k": call.whole("diagonal"), "upper": upper}
        return call.add("trilu", {"x": call.value("self")}, attrs)

    return read


OPS = {
    "embedding.default": _embedding,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "index.Tensor": _index,
    "slice_scatter.default": _slice_scatter,
    "select_scatter.default": _select_scatter,
    "copy.default": _copy,
    "tril.default": _triangle(upper=False),
    "triu.default": _triangle(upper=True),
}
