"""Operators that pick elements by indices."""

from __future__ import annotations

from collections.abc import Callable

from torch import fx

from qir.ir.node import Value

from .call import Call, Keep


def _embedding(call: Call) -> Value:
    operands = {"w": call.value("weight"), "indices": call.value("indices")}
    padding = call.whole("padding_idx")
    return call.add("embedding", operands, {"padding": padding} if padding >= 0 else {})


def _index_select(call: Call) -> Value:
    x, indices = call.value("self"), call.value("index")
    if indices.type.rank != 1:
        raise Keep
    return call.add("gather", {"x": x, "indices": indices}, {"axis": call.axis("dim", x.type.rank)})


def _gather(call: Call) -> Value:
    x, indices = call.value("self"), call.value("index")
    axis = call.axis("dim", x.type.rank)
    return call.add("gather_elements", {"x": x, "indices": indices}, {"axis": axis})


def _index(call: Call) -> Value:
    """Reads `x[:, i]` and `x[i, j]`: one tensor of indices, or several for the first axes."""
    x, held = call.value("self"), call["indices"]
    named = [(i, node) for i, node in enumerate(held) if node is not None]
    if not all(isinstance(n, fx.Node) and not _is_mask(n) for _, n in named):
        raise Keep
    if len(named) == 1:
        axis, node = named[0]
        operands = {"x": x, "indices": call.reader.tensor(node)}
        return call.add("gather", operands, {"axis": axis})
    if [i for i, _ in named] != list(range(len(named))):
        raise Keep
    parts = _broadcast(call, [call.reader.tensor(node) for _, node in named])
    rank = parts[0].type.rank
    rows = [call.add("unsqueeze", {"x": part}, {"axes": (rank,)}) for part in parts]
    indices = call.add("concat", {f"xs.{i}": r for i, r in enumerate(rows)}, {"axis": rank})
    return call.add("gather_nd", {"x": x, "indices": indices})


def _broadcast(call: Call, parts: list[Value]) -> list[Value]:
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


def _triangle(upper: bool) -> Callable[[Call], Value]:
    def read(call: Call) -> Value:
        attrs = {"k": call.whole("diagonal"), "upper": upper}
        return call.add("trilu", {"x": call.value("self")}, attrs)

    return read


OPS = {
    "embedding.default": _embedding,
    "index_select.default": _index_select,
    "gather.default": _gather,
    "index.Tensor": _index,
    "tril.default": _triangle(upper=False),
    "triu.default": _triangle(upper=True),
}
