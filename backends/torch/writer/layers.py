"""Writes convolutions, matrix products, pools, norms and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from qir.ir.attrs import Attr
from qir.ir.node import Node
from qir.rewrite.window_shares import whole_windows

from ..uneven_padding import UNEVEN, is_uneven_average
from .program import FxProgram, Handler

_INFINITE = float("-inf")
_DEQUANTIZE = "quantized_decomposed.dequantize_per_tensor"


def int_list(value: Attr | None) -> list[int]:
    """Returns an attribute of integers as a list."""
    assert isinstance(value, tuple)
    return [integer(item) for item in value]


def integer(value: Attr | None) -> int:
    """Returns an attribute that is an integer."""
    assert isinstance(value, int)
    return int(value)


def split_pads(pads: Sequence[int]) -> tuple[list[int], list[int]]:
    """Returns the padding before and after each axis."""
    half = len(pads) // 2
    return list(pads[:half]), list(pads[half:])


def constant_pad_list(pads: Sequence[int]) -> list[int]:
    """Returns padding as `constant_pad_nd` takes it: from the last axis on, (before, after)
    pairs."""
    before, after = split_pads(pads)
    return [n for pair in reversed(list(zip(before, after, strict=True))) for n in pair]


def split_padding(program: FxProgram, x: fx.Node, pads: Sequence[int], value: float) -> Any:
    """Returns x and the padding that the kernel applies; uneven padding becomes a pad before it."""
    before, after = split_pads(pads)
    if before == after:
        return x, before
    return _pad_input(program, x, constant_pad_list(pads), value), [0] * len(before)


def _pad_input(program: FxProgram, x: fx.Node, pads: list[int], value: float) -> fx.Node:
    """Pads before a kernel; of dequantized data the integers, so that the kernel reads these."""
    # The zero point is what pads the integers, so the pad moves before the dequantize.
    if str(x.target) == _DEQUANTIZE and value == 0.0 and isinstance(x.args[2], int):
        stored, scale, zero, *type_arguments = x.args
        padded = program.call("aten.constant_pad_nd", stored, pads, zero)
        return program.call(_DEQUANTIZE, padded, scale, zero, *type_arguments)
    return program.call("aten.constant_pad_nd", x, pads, value)


def _to_nchw(program: FxProgram, node: Node, x: fx.Node) -> fx.Node:
    """Permutes an NHWC image to NCHW."""
    is_nhwc = node.attrs.get("layout") == "NHWC"
    rank = next(iter(node.operands.values())).type.rank
    perm = [0, rank - 1, *range(1, rank - 1)]
    return program.call("aten.permute", x, perm) if is_nhwc else x


def _from_nchw(program: FxProgram, node: Node, result: fx.Node) -> fx.Node:
    """Permutes an NCHW result back, if the graph has it in NHWC."""
    is_nhwc = node.attrs.get("layout") == "NHWC"
    rank = node.result.type.rank
    return program.call("aten.permute", result, [0, *range(2, rank), 1]) if is_nhwc else result


def _convolution(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        data, attrs = _to_nchw(program, node, program.operand(node, "x")), node.attrs
        x, pad = split_padding(program, data, int_list(attrs["pad"]), 0.0)
        w, bias = program.operand(node, "w"), program.optional(node, "bias")
        stride, dilation = int_list(attrs["stride"]), int_list(attrs["dilation"])
        name = f"aten.conv{axes}d"
        result = program.call(name, x, w, bias, stride, pad, dilation, attrs["groups"])
        return _from_nchw(program, node, result)

    return write


_TO_THE_END = 2**63 - 1


def _conv_transpose(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        attrs = node.attrs
        front, back = split_pads(int_list(attrs["pad"]))
        common = [min(pair) for pair in zip(front, back, strict=True)]
        x, w, bias = (program.optional(node, slot) for slot in ("x", "w", "bias"))
        stride, dilation = int_list(attrs["stride"]), int_list(attrs["dilation"])
        options = (stride, common, int_list(attrs["output_pad"]), attrs["groups"], dilation)
        result = program.call(f"aten.conv_transpose{axes}d", x, w, bias, *options)
        # Padding cuts the result: the part that one side has more is a slice.
        for axis, (before, after, both) in enumerate(zip(front, back, common, strict=True), 2):
            if before != after:
                end = both - after if after > both else _TO_THE_END
                result = program.call("aten.slice", result, axis, before - both, end)
        return result

    return write


def _linear(program: FxProgram, node: Node) -> fx.Node:
    x, w, bias = (program.optional(node, slot) for slot in ("x", "w", "bias"))
    return program.call("aten.linear", x, w, bias)


def _matrix_operand(program: FxProgram, node: Node, slot: str) -> fx.Node:
    matrix = program.operand(node, slot)
    is_transposed = node.attrs[f"trans_{slot}"]
    return program.call("aten.transpose", matrix, -2, -1) if is_transposed else matrix


def _matmul(program: FxProgram, node: Node) -> fx.Node:
    product = program.call(
        "aten.matmul", _matrix_operand(program, node, "a"), _matrix_operand(program, node, "b")
    )
    bias = program.optional(node, "bias")
    return product if bias is None else program.call("aten.add", product, bias)


def _gemm(program: FxProgram, node: Node) -> fx.Node:
    a, b = _matrix_operand(program, node, "a"), _matrix_operand(program, node, "b")
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])  # type: ignore[arg-type]
    c = program.optional(node, "c")
    if c is not None:
        return program.call("aten.addmm", c, a, b, beta=beta, alpha=alpha)
    product = program.call("aten.mm", a, b)
    return product if alpha == 1.0 else program.call("aten.mul", product, alpha)


def _einsum(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.einsum", node.attrs["equation"], program.variadic_nodes(node))


def _attention(program: FxProgram, node: Node) -> fx.Node:
    attrs, slots = node.attrs, set(node.operands)
    is_plain = slots <= {"q", "k", "v", "mask"} and node.operands["q"].type.rank == 4
    is_plain = is_plain and not attrs.get("softcap") and attrs.get("left", -1) == -1
    if not is_plain or attrs.get("right", -1) != -1 or len(node.results) > 1:
        raise program.refuse(node, "scaled_dot_product_attention is of 4 axes, without a past")
    q, k, v, mask = (program.optional(node, slot) for slot in ("q", "k", "v", "mask"))
    return program.call(
        "aten.scaled_dot_product_attention",
        *(q, k, v, mask, 0.0, bool(attrs.get("causal"))),
        scale=attrs.get("scale"),
        # Fewer key heads than query heads: grouped-query attention.
        enable_gqa=node.operands["q"].type.shape[1] != node.operands["k"].type.shape[1],
    )


# -- pools --------------------------------------------------------------------------------------


def _max_pool(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        data, attrs = _to_nchw(program, node, program.operand(node, "x")), node.attrs
        kernel = int_list(attrs["kernel"])
        x, pad = split_padding(program, data, int_list(attrs["pad"]), _INFINITE)
        stride, dilation = int_list(attrs["stride"]), int_list(attrs["dilation"])
        arguments = (kernel, stride, pad, dilation, attrs["ceil"])
        return _from_nchw(program, node, program.call(f"aten.max_pool{axes}d", x, *arguments))

    return write


def _avg_pool(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        data, attrs = _to_nchw(program, node, program.operand(node, "x")), node.attrs
        pads = int_list(attrs["pad"])
        # Uneven padding would have to be a pad before the pool, which then counts it.
        if is_uneven_average(node):
            if node.result.type.quant is not None:
                raise program.refuse(node, f"{UNEVEN}; quantize the float model for this target")
            return _from_nchw(program, node, _by_whole_windows(program, node, data, axes))
        x, pad = split_padding(program, data, pads, 0.0)
        arguments = (int_list(attrs["kernel"]), int_list(attrs["stride"]), pad, attrs["ceil"])
        count_pad = bool(attrs["count_pad"])
        return _from_nchw(
            program, node, program.call(f"aten.avg_pool{axes}d", x, *arguments, count_pad)
        )

    return write


def _by_whole_windows(program: FxProgram, node: Node, data: fx.Node, axes: int) -> fx.Node:
    """Writes an average pool whose uneven padding does not count: as a padded mean times gains."""
    windows = whole_windows(node)
    if windows is None:
        reason = "its padding differs before and after and is not counted: state the image's size"
        raise program.refuse(node, reason)
    x, _ = split_padding(program, data, (*windows.before, *windows.after), 0.0)
    window = int_list(node.attrs["kernel"]), int_list(node.attrs["stride"])
    means = program.call(f"aten.avg_pool{axes}d", x, *window)
    gains = program.add_attribute(torch.from_numpy(windows.gains), f"{node.name}.gains")
    return program.call("aten.mul", means, gains)


def _global_avg_pool(program: FxProgram, node: Node) -> fx.Node:
    x = _to_nchw(program, node, program.operand(node, "x"))
    axes = node.result.type.rank - 2
    if not 1 <= axes <= 3:
        raise program.refuse(node, f"it pools {axes} axes")
    pooled = program.call(f"aten.adaptive_avg_pool{axes}d", x, [1] * axes)
    return _from_nchw(program, node, pooled)


def _global_max_pool(program: FxProgram, node: Node) -> fx.Node:
    x = _to_nchw(program, node, program.operand(node, "x"))
    pooled = program.call("aten.amax", x, list(range(2, node.result.type.rank)), True)
    return _from_nchw(program, node, pooled)


def adaptive_sizes(program: FxProgram, node: Node) -> list[Any]:
    """Returns the result sizes of an adaptive pool."""
    sizes = int_list(node.attrs["size"])
    shape = node.operands["x"].type.shape[-len(sizes) :]
    return [program.size(shape[i], node) if n < 0 else n for i, n in enumerate(sizes)]


def _adaptive_avg_pool(program: FxProgram, node: Node) -> fx.Node:
    sizes = adaptive_sizes(program, node)
    name = f"aten.adaptive_avg_pool{len(sizes)}d"
    return program.call(name, program.operand(node, "x"), sizes)


def _adaptive_max_pool(program: FxProgram, node: Node) -> fx.Node:
    sizes = adaptive_sizes(program, node)
    name = f"aten.adaptive_max_pool{len(sizes)}d"
    return program.item(program.call(name, program.operand(node, "x"), sizes), 0)


# -- norms --------------------------------------------------------------------------------------


def _batch_norm(program: FxProgram, node: Node) -> fx.Node:
    x, axis = program.operand(node, "x"), integer(node.attrs["axis"])
    parameters = [program.operand(node, slot) for slot in ("gamma", "beta", "mean", "var")]
    # train=False, momentum, eps, cudnn_enabled
    options = (False, 0.0, node.attrs["eps"], False)
    if axis in (1, 1 - node.result.type.rank):
        return program.call("aten.batch_norm", x, *parameters, *options)
    # batch_norm has the channels at axis 1.
    channels_second = program.call("aten.transpose", x, 1, axis)
    normalized = program.call("aten.batch_norm", channels_second, *parameters, *options)
    return program.call("aten.transpose", normalized, 1, axis)


def _softmax(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        return program.call(f"aten.{name}", program.operand(node, "x"), node.attrs["axis"])

    return write


def _layer_norm(program: FxProgram, node: Node) -> fx.Node:
    x = node.operands["x"]
    sizes = [
        program.size(dim, node) for dim in x.type.shape[_first_normalized_axis(node, x.type.rank) :]
    ]
    gamma, beta = (program.optional(node, slot) for slot in ("gamma", "beta"))
    if node.operands["gamma"].type.rank != len(sizes):
        raise program.refuse(node, "its gamma has not the axes that are normalized")
    return program.call(
        "aten.layer_norm", program.node_of(x), sizes, gamma, beta, node.attrs["eps"]
    )


def _first_normalized_axis(node: Node, rank: int) -> int:
    axis = integer(node.attrs["axis"])
    return axis + rank if axis < 0 else axis


def _rms_norm(program: FxProgram, node: Node) -> fx.Node:
    x = node.operands["x"]
    # x * rsqrt(mean(x^2) + eps) * gamma
    axes = list(range(_first_normalized_axis(node, x.type.rank), x.type.rank))
    mean = program.call("aten.mean", program.call("aten.square", program.node_of(x)), axes, True)
    gain = program.call("aten.rsqrt", program.call("aten.add", mean, node.attrs["eps"]))
    normalized = program.call("aten.mul", program.node_of(x), gain)
    return program.call("aten.mul", normalized, program.operand(node, "gamma"))


def _instance_norm(program: FxProgram, node: Node) -> fx.Node:
    x, gamma, beta = (program.operand(node, slot) for slot in ("x", "gamma", "beta"))
    options = (None, None, True, 0.0, node.attrs["eps"], False)
    return program.call("aten.instance_norm", x, gamma, beta, *options)


def _group_norm(program: FxProgram, node: Node) -> fx.Node:
    x, gamma, beta = (program.operand(node, slot) for slot in ("x", "gamma", "beta"))
    groups, eps = node.attrs["groups"], node.attrs["eps"]
    return program.call("aten.group_norm", x, groups, gamma, beta, eps, False)


# -- reductions ---------------------------------------------------------------------------------


def _axes(node: Node) -> list[int]:
    return int_list(node.attrs["axes"]) or list(range(node.operands["x"].type.rank))


def _reduced(name: str, before: str = "", after: str = "") -> Handler:
    """Returns a reduction, of what an operator makes of x, and what another makes of it."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        value = program.operand(node, "x")
        value = program.call(f"aten.{before}", value) if before else value
        value = program.call(f"aten.{name}", value, _axes(node), bool(node.attrs["keep"]))
        return program.call(f"aten.{after}", value) if after else value

    return write


def _prod(program: FxProgram, node: Node) -> fx.Node:
    product = program.operand(node, "x")
    # aten.prod reduces one axis: from the last one on, so that axes keep their numbers.
    for axis in sorted(_axes(node), reverse=True):
        product = program.call("aten.prod", product, axis, bool(node.attrs["keep"]))
    return product


def _arg_extreme(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        if node.attrs["last"]:
            raise program.refuse(node, "PyTorch gives the first place of several alike")
        axis, keep = node.attrs["axis"], bool(node.attrs["keep"])
        return program.call(f"aten.{name}", program.operand(node, "x"), axis, keep)

    return write


def _cumulative(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        axis, x = node.attrs["axis"], program.operand(node, "x")
        if node.attrs["exclusive"]:
            raise program.refuse(node, "PyTorch's sums so far hold the element itself")
        reverse = bool(node.attrs["reverse"])
        # Sums from the end are sums of the flipped tensor, flipped back.
        x = program.call("aten.flip", x, [axis]) if reverse else x
        sums = program.call(f"aten.{name}", x, axis)
        return program.call("aten.flip", sums, [axis]) if reverse else sums

    return write


def _top_k(program: FxProgram, node: Node) -> list[fx.Node]:
    attrs = node.attrs
    arguments = (attrs["k"], attrs["axis"], attrs["largest"], attrs["sorted"])
    pair = program.call("aten.topk", program.operand(node, "x"), *arguments)
    return [program.item(pair, 0), program.item(pair, 1)]


OPS: dict[str, Handler] = {
    **{f"conv{n}d": _convolution(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _conv_transpose(n) for n in (1, 2, 3)},
    **{f"max_pool{n}d": _max_pool(n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _avg_pool(n) for n in (1, 2, 3)},
    "linear": _linear,
    "matmul": _matmul,
    "gemm": _gemm,
    "einsum": _einsum,
    "attention": _attention,
    "global_avg_pool": _global_avg_pool,
    "global_max_pool": _global_max_pool,
    "adaptive_avg_pool": _adaptive_avg_pool,
    "adaptive_max_pool": _adaptive_max_pool,
    "batch_norm": _batch_norm,
    "softmax": _softmax("softmax"),
    "log_softmax": _softmax("log_softmax"),
    "layer_norm": _layer_norm,
    "rms_norm": _rms_norm,
    "instance_norm": _instance_norm,
    "group_norm": _group_norm,
    "reduce_mean": _reduced("mean"),
    "reduce_sum": _reduced("sum"),
    "reduce_max": _reduced("amax"),
    "reduce_min": _reduced("amin"),
    "reduce_l1": _reduced("sum", before="abs"),
    "reduce_l2": _reduced("sum", before="square", after="sqrt"),
    "reduce_sum_square": _reduced("sum", before="square"),
    "reduce_log_sum": _reduced("sum", after="log"),
    "reduce_log_sum_exp": _reduced("logsumexp"),
    "reduce_prod": _prod,
    "arg_max": _arg_extreme("argmax"),
    "arg_min": _arg_extreme("argmin"),
    "cumsum": _cumulative("cumsum"),
    "cumprod": _cumulative("cumprod"),
    "top_k": _top_k,
}
