"""Ops that pick elements by indices, and reductions over axes."""

from __future__ import annotations

from collections.abc import Sequence

from qir.ir.node import Node

from .layers import int_list_attr
from .symbol import Entry
from .writer import TYPE_NAMES, OpWriter, SymbolWriter, int_attr


def _embedding(writer: SymbolWriter, node: Node) -> Entry:
    rows, width = writer.sizes(node, node.operands["w"])
    attrs = {"input_dim": rows, "output_dim": width}
    operands = [writer.operand(node, "indices"), writer.operand(node, "w")]
    return writer.add_result(node, "Embedding", operands, attrs)


def _gather(writer: SymbolWriter, node: Node) -> Entry:
    indices = node.operands["indices"]
    operands = [writer.operand(node), writer.entry(indices)]
    # Mode wrap takes negative indices from the end, as ONNX does.
    attrs = {"axis": node.attrs["axis"], "mode": "wrap"}
    if indices.type.rank:
        return writer.add_result(node, "take", operands, attrs)
    taken = writer.add_intermediate(
        node, "take", operands, attrs
    )  # an index alone is an array of one here
    axis = int_attr(node.attrs, "axis")
    axis = axis + node.operands["x"].type.rank if axis < 0 else axis
    if not node.result.type.shape:
        return writer.add_result(node, "_copy", [taken])
    return writer.add_result(node, "squeeze", [taken], {"axis": (axis,)})


def _gather_elements(writer: SymbolWriter, node: Node) -> Entry:
    """Writes an index a row as a pick, the only form of it that MXNet has."""
    axis = int_attr(node.attrs, "axis")
    x, indices = node.operands["x"].type, node.operands["indices"].type
    axis = axis + x.rank if axis < 0 else axis
    other_axes = [i for i in range(x.rank) if i != axis]
    if indices.shape[axis] != 1 or any(x.shape[i] != indices.shape[i] for i in other_axes):
        raise writer.refuse(node, "MXNet picks one element of each row")
    attrs = {"axis": axis, "keepdims": True, "mode": "wrap"}
    operands = [writer.operand(node), writer.operand(node, "indices")]
    return writer.add_result(node, "pick", operands, attrs)


def _gather_nd(writer: SymbolWriter, node: Node) -> Entry:
    if node.attrs["batch"]:
        raise writer.refuse(node, "MXNet's gather_nd has no batch axes")
    rank = node.operands["indices"].type.rank
    # MXNet's gather_nd has the axis of coordinates first.
    order = (rank - 1, *range(rank - 1))
    indices_first = writer.add_intermediate(
        node, "transpose", [writer.operand(node, "indices")], {"axes": order}
    )
    return writer.add_result(node, "gather_nd", [writer.operand(node), indices_first])


def _one_hot(writer: SymbolWriter, node: Node) -> Entry:
    off, on = writer.constant_operand(node, "values").reshape(-1).tolist()
    rank = node.result.type.rank
    if node.attrs["axis"] not in (-1, rank - 1):
        raise writer.refuse(node, "MXNet has the new axis last")
    attrs = {
        "depth": node.attrs["depth"],
        "off_value": float(off),
        "on_value": float(on),
        "dtype": TYPE_NAMES[str(node.result.type.dtype)],
    }
    return writer.add_result(node, "one_hot", [writer.operand(node, "indices")], attrs)


def _top_k(writer: SymbolWriter, node: Node) -> Sequence[Entry]:
    attrs = {
        "axis": node.attrs["axis"],
        "k": node.attrs["k"],
        "ret_typ": "both",
        "is_ascend": not node.attrs["largest"],
        "dtype": TYPE_NAMES[str(node.results[1].type.dtype)],
    }
    index, _ = writer.add_result(node, "topk", [writer.operand(node)], attrs, results=2)
    return [(index, 0), (index, 1)]


def _arg_extreme(op: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        if node.attrs["last"]:
            raise writer.refuse(node, "MXNet takes the first of equal elements")
        attrs = {"axis": node.attrs["axis"], "keepdims": node.attrs["keep"]}
        indices = writer.add_intermediate(node, op, [writer.operand(node)], attrs)
        kind = TYPE_NAMES[str(node.result.type.dtype)]
        return writer.add_result(node, "Cast", [indices], {"dtype": kind})

    return write


def _reduce(op: str, before: str = "", after: str = "") -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        x = writer.operand(node)
        if before:
            x = writer.add_intermediate(node, before, [x])
        axes = int_list_attr(node, "axes") or tuple(range(node.operands["x"].type.rank))
        attrs = {"axis": axes, "keepdims": node.attrs["keep"]}
        if not after:
            return writer.add_result(node, op, [x], attrs)
        return writer.add_result(node, after, [writer.add_intermediate(node, op, [x], attrs)])

    return write


OPS: dict[str, OpWriter] = {
    "embedding": _embedding,
    "gather": _gather,
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "one_hot": _one_hot,
    "top_k": _top_k,
    "arg_max": _arg_extreme("argmax"),
    "arg_min": _arg_extreme("argmin"),
    **{f"reduce_{op}": _reduce(op) for op in ("mean", "sum", "prod", "max", "min")},
    "reduce_l1": _reduce("sum", "abs"),
    "reduce_l2": _reduce("sum", "square", "sqrt"),
    "reduce_sum_square": _reduce("sum", "square"),
    "reduce_log_sum": _reduce("sum", "", "log"),
    "reduce_log_sum_exp": _reduce("sum", "exp", "log"),
}
