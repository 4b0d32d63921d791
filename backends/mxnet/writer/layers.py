"""Convolutions, matrix products and normalization."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.node import Node, Value

from .symbol import Entry
from .writer import OpWriter, SymbolWriter, float_attr, int_attr, int_tuple


def int_list_attr(node: Node, name: str) -> tuple[int, ...]:
    """Returns an attribute that is a list of integers."""
    return int_tuple(node.attrs, name)


def paddings(node: Node) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the padding before and after the data, axis by axis."""
    pad = int_list_attr(node, "pad")
    return pad[: len(pad) // 2], pad[len(pad) // 2 :]


def padded(
    writer: SymbolWriter,
    node: Node,
    x: Entry,
    pads: tuple[Sequence[int], Sequence[int]],
    value: float,
) -> Entry:
    """Returns the data of windows, padded on both sides along the axes after the channels."""
    axes = len(pads[0])
    if axes not in (2, 3):
        raise writer.refuse(node, "it pads one side more than the other along one axis")
    # Pad's widths: (before, after) of every axis, batch and channels included.
    width = (0, 0, 0, 0, *(side for pair in zip(*pads, strict=True) for side in pair))
    attrs = {"mode": "constant", "pad_width": width, "constant_value": value}
    return writer.add_intermediate(node, "Pad", [x], attrs)


def _attributes(node: Node, filters: int, kernel: Sequence[int]) -> dict[str, object]:
    """Returns the attributes of a convolution, its padding aside."""
    return {
        "kernel": tuple(kernel),
        "num_filter": filters,
        "stride": int_list_attr(node, "stride"),
        "dilate": int_list_attr(node, "dilation"),
        "num_group": int_attr(node.attrs, "groups"),
        "no_bias": "bias" not in node.operands,
    }


def _convolution(writer: SymbolWriter, node: Node) -> Entry:
    w = node.operands["w"].type.shape
    filters, *filter_sizes = writer.sizes(node, node.operands["w"])
    attrs = _attributes(node, filters, filter_sizes[1:])
    before, after = paddings(node)
    x = writer.operand(node)
    if before != after:
        x, before = padded(writer, node, x, (before, after), 0.0), (0,) * (len(w) - 2)
    slots = [s for s in ("w", "bias") if s in node.operands]
    operands = [x, *(writer.operand(node, s) for s in slots)]
    return writer.add_result(node, "Convolution", operands, {**attrs, "pad": before})


def _transposed_convolution(writer: SymbolWriter, node: Node) -> Entry:
    _, channels_per_group, *kernel = writer.sizes(node, node.operands["w"])
    groups = int_attr(node.attrs, "groups")
    attrs = _attributes(node, channels_per_group * groups, kernel)
    before, after = paddings(node)
    extra = int_list_attr(node, "output_pad")
    if before != after:  # less is cut off at the end, as if more were added there
        # Deconvolution crops by `pad` on both sides; `adj` adds at the end, which undoes the
        # excess.
        extra = tuple(e + b - a for e, a, b in zip(extra, after, before, strict=True))
        if any(not 0 <= e < s for e, s in zip(extra, int_list_attr(node, "stride"), strict=True)):
            raise writer.refuse(node, "it pads one side more than the other")
    slots = [s for s in ("x", "w", "bias") if s in node.operands]
    return writer.add_result(
        node,
        "Deconvolution",
        [writer.operand(node, s) for s in slots],
        {**attrs, "pad": before, "adj": extra},
    )


def _linear(writer: SymbolWriter, node: Node) -> Entry:
    slots = [s for s in ("x", "w", "bias") if s in node.operands]
    attrs = {
        "num_hidden": writer.size(node, node.operands["w"], 0),
        "no_bias": "bias" not in node.operands,
        "flatten": False,
    }
    return writer.add_result(
        node, "FullyConnected", [writer.operand(node, s) for s in slots], attrs
    )


def _transpose_attrs(node: Node) -> dict[str, object]:
    return {f"transpose_{s}": node.attrs[f"trans_{s}"] for s in "ab"}


def _matmul(writer: SymbolWriter, node: Node) -> Entry:
    a, b = node.operands["a"], node.operands["b"]
    bias = node.operands.get("bias")
    has_constant_matrix = b.constant is not None and b.type.rank == 2 and not node.attrs["trans_a"]
    if has_constant_matrix and a.type.rank >= 2:
        return _as_fully_connected(writer, node, a, b, bias)
    emit = writer.add_result if bias is None else writer.add_intermediate
    operands = [writer.entry(a), writer.entry(b)]
    if a.type.rank == b.type.rank == 1 or (
        b.type.rank == 2 and (a.type.rank == 2 or not node.attrs["trans_a"])
    ):
        product = emit(node, "dot", operands, _transpose_attrs(node))
    elif a.type.rank == b.type.rank and a.type.shape[:-2] == b.type.shape[:-2]:
        product = emit(node, "_linalg_gemm2", operands, _transpose_attrs(node))
    else:
        raise writer.refuse(node, "its operands have other batches; expand one of them before")
    return (
        product
        if bias is None
        else writer.add_result(node, "broadcast_add", [product, writer.entry(bias)])
    )


def _as_fully_connected(
    writer: SymbolWriter, node: Node, a: Value, b: Value, bias: Value | None
) -> Entry:
    """Writes a product with constant weights as a fully connected layer."""
    data = writer.constant_operand(node, "b")
    columns = data if node.attrs["trans_b"] else np.ascontiguousarray(data.T)
    w = writer.constant(f"{b.name}_weight", columns, node)
    fuses_bias = bias is not None and bias.type.rank == 1 and bias.type.shape[0] == len(columns)
    attrs = {"num_hidden": len(columns), "flatten": False, "no_bias": not fuses_bias}
    if bias is None or fuses_bias:
        bias_operands = [writer.entry(bias)] if bias is not None else []
        return writer.add_result(
            node, "FullyConnected", [writer.entry(a), w, *bias_operands], attrs
        )
    product = writer.add_intermediate(node, "FullyConnected", [writer.entry(a), w], attrs)
    return writer.add_result(node, "broadcast_add", [product, writer.entry(bias)])


def _gemm(writer: SymbolWriter, node: Node) -> Entry:
    alpha, beta = (float_attr(node.attrs, n) for n in ("alpha", "beta"))
    c = node.operands.get("c")
    b = node.operands["b"]
    if alpha == 1 and (c is None or beta == 1) and b.constant and not node.attrs["trans_a"]:
        return _as_fully_connected(writer, node, node.operands["a"], b, c)
    emit = writer.add_result if c is None and alpha == 1 else writer.add_intermediate
    product = emit(node, "dot", [writer.operand(node, s) for s in "ab"], _transpose_attrs(node))
    if alpha != 1:
        emit = writer.add_result if c is None else writer.add_intermediate
        product = emit(node, "_mul_scalar", [product], {"scalar": alpha})
    if c is None:
        return product
    addend = writer.entry(c)
    if beta != 1:
        addend = writer.add_intermediate(node, "_mul_scalar", [addend], {"scalar": beta})
    return writer.add_result(node, "broadcast_add", [product, addend])


def _batch_norm(writer: SymbolWriter, node: Node) -> Entry:
    attrs = {
        "eps": node.attrs["eps"],
        "axis": node.attrs["axis"],
        "fix_gamma": False,
        "use_global_stats": True,
    }
    for slot in ("mean", "var"):
        writer.constant_operand(node, slot)
    operands = [writer.operand(node, s) for s in ("x", "gamma", "beta")]
    operands += [writer.state(node.operands[s]) for s in ("mean", "var")]
    return writer.add_result(node, "BatchNorm", operands, attrs, results=3)


def _require_last_axis(writer: SymbolWriter, node: Node) -> None:
    if node.attrs["axis"] not in (-1, node.operands["x"].type.rank - 1):
        raise writer.refuse(node, "it normalizes over several axes; reshape them to one")


def _layer_norm(writer: SymbolWriter, node: Node) -> Entry:
    _require_last_axis(writer, node)
    operands = [writer.operand(node, s) for s in ("x", "gamma")]
    if "beta" in node.operands:
        operands.append(writer.operand(node, "beta"))
    else:
        size = writer.sizes(node, node.operands["gamma"])
        operands.append(writer.constant("beta", np.zeros(size, np.float32), node))
    attrs = {"axis": -1, "eps": node.attrs["eps"]}
    return writer.add_result(node, "LayerNorm", operands, attrs, results=3)


def _rms_norm(writer: SymbolWriter, node: Node) -> Entry:
    _require_last_axis(writer, node)
    x = writer.operand(node)
    squares = writer.add_intermediate(node, "square", [x])
    mean = writer.add_intermediate(node, "mean", [squares], {"axis": -1, "keepdims": True})
    plus_eps = writer.add_intermediate(node, "_plus_scalar", [mean], {"scalar": node.attrs["eps"]})
    inverse_norm = writer.add_intermediate(node, "rsqrt", [plus_eps])
    normalized = writer.add_intermediate(node, "broadcast_mul", [x, inverse_norm])
    return writer.add_result(node, "broadcast_mul", [normalized, writer.operand(node, "gamma")])


def _instance_norm(writer: SymbolWriter, node: Node) -> Entry:
    operands = [writer.operand(node, s) for s in ("x", "gamma", "beta")]
    return writer.add_result(node, "InstanceNorm", operands, {"eps": node.attrs["eps"]})


def _group_norm(writer: SymbolWriter, node: Node) -> Entry:
    """Writes a group norm with factors of 1, and those of the channels after it."""
    x, groups = node.operands["x"], int_attr(node.attrs, "groups")
    ones = writer.constant("gamma", np.ones(groups, np.float32), node)
    zeros = writer.constant("beta", np.zeros(groups, np.float32), node)
    # GroupNorm's gamma and beta are per group in MXNet 1.9, per channel here.
    attrs = {"num_groups": groups, "eps": node.attrs["eps"]}
    normalized = writer.add_intermediate(
        node, "GroupNorm", [writer.operand(node), ones, zeros], attrs, results=3
    )
    shape = (1, -1, *(1,) * (x.type.rank - 2))
    channel_params = [
        writer.add_intermediate(node, "Reshape", [writer.operand(node, s)], {"shape": shape})
        for s in ("gamma", "beta")
    ]
    normalized = writer.add_intermediate(node, "broadcast_mul", [normalized, channel_params[0]])
    return writer.add_result(node, "broadcast_add", [normalized, channel_params[1]])


def _lrn(writer: SymbolWriter, node: Node) -> Entry:
    names: Mapping[str, str] = {"nsize": "size", "alpha": "alpha", "beta": "beta", "knorm": "bias"}
    lrn_attrs: dict[str, Attr] = {theirs: node.attrs[ours] for theirs, ours in names.items()}
    return writer.add_result(node, "LRN", [writer.operand(node)], lrn_attrs, results=2)


def _lp_normalize(writer: SymbolWriter, node: Node) -> Entry:
    axis = {"axis": node.attrs["axis"], "keepdims": True}
    x = writer.operand(node)
    if node.attrs["p"] == 1:
        norm = writer.add_intermediate(
            node, "sum", [writer.add_intermediate(node, "abs", [x])], axis
        )
    else:
        total = writer.add_intermediate(
            node, "sum", [writer.add_intermediate(node, "square", [x])], axis
        )
        norm = writer.add_intermediate(node, "sqrt", [total])
    return writer.add_result(node, "broadcast_div", [x, norm])


def _softmax(op: str) -> OpWriter:
    def write(writer: SymbolWriter, node: Node) -> Entry:
        return writer.add_result(node, op, [writer.operand(node)], {"axis": node.attrs["axis"]})

    return write


OPS: dict[str, OpWriter] = {
    **{f"conv{axes}d": _convolution for axes in (1, 2, 3)},
    **{f"conv_transpose{axes}d": _transposed_convolution for axes in (1, 2, 3)},
    "linear": _linear,
    "matmul": _matmul,
    "gemm": _gemm,
    "batch_norm": _batch_norm,
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "lrn": _lrn,
    "lp_normalize": _lp_normalize,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
}
