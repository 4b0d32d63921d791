"""Writes convolutions, matrix products, pools, norms and reductions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from qir.ir.attrs import Attr
from qir.ir.node import Node
from qir.rewrite.window_shares import whole_windows

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
    front, back = split_pads(pads)
    return [n for pair in reversed(list(zip(front, back, strict=True))) for n in pair]


def split_padding(program: FxProgram, x: fx.Node, pads: Sequence[int], value: float) -> Any:
    """Returns x and the padding that the kernel applies; uneven padding becomes a pad before it."""
    front, back = split_pads(pads)
    if front == back:
        return x, front
    return _pad_input(program, x, constant_pad_list(pads), value), [0] * len(front)


def _pad_input(program: FxProgram, x: fx.Node, pads: list[int], value: float) -> fx.Node:
    """Pads before a kernel; of dequantized data the integers, so that the kernel reads these."""
    if str(x.target) == _DEQUANTIZE and value == 0.0 and isinstance(x.args[2], int):
        stored, scale, zero, *rest = x.args
        wider = program.call("aten.constant_pad_nd", stored, pads, zero)
        return program.call(_DEQUANTIZE, wider, scale, zero, *rest)
    return program.call("aten.constant_pad_nd", x, pads, value)


def _to_nchw(program: FxProgram, node: Node, x: fx.Node) -> fx.Node:
    """Permutes an NHWC image to NCHW."""
    last = node.attrs.get("layout") == "NHWC"
    rank = next(iter(node.operands.values())).type.rank
    order = [0, rank - 1, *range(1, rank - 1)]
    return program.call("aten.permute", x, order) if last else x


def _from_nchw(program: FxProgram, node: Node, made: fx.Node) -> fx.Node:
    """Permutes an NCHW result back, if the graph has it in NHWC."""
    last = node.attrs.get("layout") == "NHWC"
    rank = node.result.type.rank
    return program.call("aten.permute", made, [0, *range(2, rank), 1]) if last else made


def _convolution(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        given, attrs = _to_nchw(program, node, program.operand(node, "x")), node.attrs
        x, pad = split_padding(program, given, int_list(attrs["pad"]), 0.0)
        w, bias = program.operand(node, "w"), program.optional(node, "bias")
        stride, dilation = int_list(attrs["stride"]), int_list(attrs["dilation"])
        name = f"aten.conv{axes}d"
        made = program.call(name, x, w, bias, stride, pad, dilation, attrs["groups"])
        return _from_nchw(program, node, made)

    return write


_TO_THE_END = 2**63 - 1


def _conv_transpose(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        attrs = node.attrs
        front, back = split_pads(int_list(attrs["pad"]))
        both = [min(pair) for pair in zip(front, back, strict=True)]
        x, w, bias = (program.optional(node, slot) for slot in ("x", "w", "bias"))
        stride, dilation = int_list(attrs["stride"]), int_list(attrs["dilation"])
        more = (stride, both, int_list(attrs["output_pad"]), attrs["groups"], dilation)
        made = program.call(f"aten.conv_transpose{axes}d", x, w, bias, *more)
        # Padding cuts the result: the part that one side has more is a slice.
        for axis, (before, after, held) in enumerate(zip(front, back, both, strict=True), 2):
            if before != after:
                end = held - after if after > held else _TO_THE_END
                made = program.call("aten.slice", made, axis, before - held, end)
        return made

    return write


def _linear(program: FxProgram, node: Node) -> fx.Node:
    x, w, bias = (program.optional(node, slot) for slot in ("x", "w", "bias"))
    return program.call("aten.linear", x, w, bias)


def _matrix_operand(program: FxProgram, node: Node, slot: str) -> fx.Node:
    held = program.operand(node, slot)
    turned = node.attrs[f"trans_{slot}"]
    return program.call("aten.transpose", held, -2, -1) if turned else held


def _matmul(program: FxProgram, node: Node) -> fx.Node:
    made = program.call(
        "aten.matmul", _matrix_operand(program, node, "a"), _matrix_operand(program, node, "b")
    )
    bias = program.optional(node, "bias")
    return made if bias is None else program.call("aten.add", made, bias)


def _gemm(program: FxProgram, node: Node) -> fx.Node:
    a, b = _matrix_operand(program, node, "a"), _matrix_operand(program, node, "b")
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])  # type: ignore[arg-type]
    c = program.optional(node, "c")
    if c is not None:
        return program.call("aten.addmm", c, a, b, beta=beta, alpha=alpha)
    made = program.call("aten.mm", a, b)
    return made if alpha == 1.0 else program.call("aten.mul", made, alpha)


def _einsum(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.einsum", node.attrs["equation"], program.variadic_nodes(node))


def _attention(program: FxProgram, node: Node) -> fx.Node:
    attrs, slots = node.attrs, set(node.operands)
    plain = slots <= {"q", "k", "v", "mask"} and node.operands["q"].type.rank == 4
    plain = plain and not attrs.get("softcap") and attrs.get("left", -1) == -1
    if not plain or attrs.get("right", -1) != -1 or len(node.results) > 1:
        raise program.refuse(node, "scaled_dot_product_attention is of 4 axes, without a past")
    q, k, v, mask = (program.optional(node, slot) for slot in ("q", "k", "v", "mask"))
    return program.call(
        "aten.scaled_dot_product_attention",
        *(q, k, v, mask, 0.0, bool(attrs.get("causal"))),
        scale=attrs.get("scale"),
        enable_gqa=node.operands["q"].type.shape[1] != node.operands["k"].type.shape[1],
    )


# -- pools --------------------------------------------------------------------------------------


def _max_pool(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        given, attrs = _to_nchw(program, node, program.operand(node, "x")), node.attrs
        kernel = int_list(attrs["kernel"])
        x, pad = split_padding(program, given, int_list(attrs["pad"]), _INFINITE)
        stride, dilation = int_list(attrs["stride"]), int_list(attrs["dilation"])
        more = (kernel, stride, pad, dilation, attrs["ceil"])
        return _from_nchw(program, node, program.call(f"aten.max_pool{axes}d", x, *more))

    return write


def _avg_pool(axes: int) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        given, attrs = _to_nchw(program, node, program.operand(node, "x")), node.attrs
        pads = int_list(attrs["pad"])
        front, back = split_pads(pads)
        if front != back and not attrs["count_pad"]:
            return _from_nchw(program, node, _by_whole_windows(program, node, given, axes))
        x, pad = split_padding(program, given, pads, 0.0)
        more = (int_list(attrs["kernel"]), int_list(attrs["stride"]), pad, attrs["ceil"])
        counted = bool(attrs["count_pad"])
        return _from_nchw(program, node, program.call(f"aten.avg_pool{axes}d", x, *more, counted))

    return write


def _by_whole_windows(program: FxProgram, node: Node, given: fx.Node, axes: int) -> fx.Node:
    """Writes an average pool whose uneven padding does not count: as a padded mean times gains."""
    found = whole_windows(node)
    if found is None:
        said = "its padding differs before and after and is not counted: state the image's size"
        raise program.refuse(node, said)
    x, _ = split_padding(program, given, (*found.before, *found.after), 0.0)
    window = int_list(node.attrs["kernel"]), int_list(node.attrs["stride"])
    made = program.call(f"aten.avg_pool{axes}d", x, *window)
    gains = program.add_attribute(torch.from_numpy(found.gains), f"{node.name}.gains")
    return program.call("aten.mul", made, gains)


def _global_avg_pool(program: FxProgram, node: Node) -> fx.Node:
    x = _to_nchw(program, node, program.operand(node, "x"))
    axes = node.result.type.rank - 2
    if not 1 <= axes <= 3:
        raise program.refuse(node, f"it pools {axes} axes")
    made = program.call(f"aten.adaptive_avg_pool{axes}d", x, [1] * axes)
    return _from_nchw(program, node, made)


def _global_max_pool(program: FxProgram, node: Node) -> fx.Node:
    x = _to_nchw(program, node, program.operand(node, "x"))
    made = program.call("aten.amax", x, list(range(2, node.result.type.rank)), True)
    return _from_nchw(program, node, made)


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
    numbers = [program.operand(node, slot) for slot in ("gamma", "beta", "mean", "var")]
    end = (False, 0.0, node.attrs["eps"], False)
    if axis in (1, 1 - node.result.type.rank):
        return program.call("aten.batch_norm", x, *numbers, *end)
    turned = program.call("aten.transpose", x, 1, axis)
    made = program.call("aten.batch_norm", turned, *numbers, *end)
    return program.call("aten.transpose", made, 1, axis)


def _softmax(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        return program.call(f"aten.{name}", program.operand(node, "x"), node.attrs["axis"])

    return write


def _layer_norm(program: FxProgram, node: Node) -> fx.Node:
    x = node.operands["x"]
    sizes = [program.size(dim, node) for dim in x.type.shape[_front(node, x.type.rank) :]]
    gamma, beta = (program.optional(node, slot) for slot in ("gamma", "beta"))
    if node.operands["gamma"].type.rank != len(sizes):
        raise program.refuse(node, "its gamma has not the axes that are normalized")
    return program.call(
        "aten.layer_norm", program.node_of(x), sizes, gamma, beta, node.attrs["eps"]
    )


def _front(node: Node, rank: int) -> int:
    axis = integer(node.attrs["axis"])
    return axis + rank if axis < 0 else axis


def _rms_norm(program: FxProgram, node: Node) -> fx.Node:
    x = node.operands["x"]
    axes = list(range(_front(node, x.type.rank), x.type.rank))
    mean = program.call("aten.mean", program.call("aten.square", program.node_of(x)), axes, True)
    gain = program.call("aten.rsqrt", program.call("aten.add", mean, node.attrs["eps"]))
    made = program.call("aten.mul", program.node_of(x), gain)
    return program.call("aten.mul", made, program.operand(node, "gamma"))


def _instance_norm(program: FxProgram, node: Node) -> fx.Node:
    x, gamma, beta = (program.operand(node, slot) for slot in ("x", "gamma", "beta"))
    end = (None, None, True, 0.0, node.attrs["eps"], False)
    return program.call("aten.instance_norm", x, gamma, beta, *end)


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
        made = program.operand(node, "x")
        made = program.call(f"aten.{before}", made) if before else made
        made = program.call(f"aten.{name}", made, _axes(node), bool(node.attrs["keep"]))
        return program.call(f"aten.{after}", made) if after else made

    return write


def _prod(program: FxProgram, node: Node) -> fx.Node:
    made = program.operand(node, "x")
    for axis in sorted(_axes(node), reverse=True):
        made = program.call("aten.prod", made, axis, bool(node.attrs["keep"]))
    return made


def _greatest(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        if node.attrs["last"]:
            raise program.refuse(node, "PyTorch gives the first place of several alike")
        axis, keep = node.attrs["axis"], bool(node.attrs["keep"])
        return program.call(f"aten.{name}", program.operand(node, "x"), axis, keep)

    return write


def _running(name: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        axis, x = node.attrs["axis"], program.operand(node, "x")
        if node.attrs["exclusive"]:
            raise program.refuse(node, "PyTorch's sums so far hold the element itself")
        turned = bool(node.attrs["reverse"])
        x = program.call("aten.flip", x, [axis]) if turned else x
        made = program.call(f"aten.{name}", x, axis)
        return program.call("aten.flip", made, [axis]) if turned else made

    return write


def _top_k(program: FxProgram, node: Node) -> list[fx.Node]:
    attrs = node.attrs
    more = (attrs["k"], attrs["axis"], attrs["largest"], attrs["sorted"])
    made = program.call("aten.topk", program.operand(node, "x"), *more)
    return [program.item(made, 0), program.item(made, 1)]


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
    "arg_max": _greatest("argmax"),
    "arg_min": _greatest("argmin"),
    "cumsum": _running("cumsum"),
    "cumprod": _running("cumprod"),
    "top_k": _top_k,
}
