"""Writes quantized ops, each as one call of PyTorch's quantized kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from qir.ir.attrs import Attr
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.types import QuantType

from . import (
    dynamic,
    elementwise,
    foreign,
    layers,
    movement,
    packed_weights,
    places,
    recurrent,
    tables,
)
from .elements import STORED, channel_parameters, fits, parameters
from .layers import sides, whole
from .program import FxProgram, Handler

_AXES = {f"conv{n}d": n for n in (1, 2, 3)} | {f"conv_transpose{n}d": n for n in (1, 2, 3)}


def handler(node: Node) -> Handler | None:
    """Returns what writes a node: a kernel where it works on quantized values, else operators of
    floats."""
    if found := packed_weights.handler(node):
        return found
    if node.op == "choose_qparams":
        return _left if all(map(_by_kernels, node.results[0].users)) else None
    if not any(v.type.quant for v in (*node.operands.values(), *node.results)):
        return dynamic.OPS.get(node.op) if node.inner else operators(node)
    if node.op in _MOVES and any(spec(node.op).is_companion(slot) for slot in node.operands):
        return _left if _by_kernels(node) else None
    return _KERNELS.get(ops_of(node)[0])


def _by_kernels(node: Node) -> bool:
    """Returns whether only layers that choose scale and zero point themselves ask for these."""
    if node.op in _MOVES:
        return all(map(_by_kernels, node.result.users))
    return bool(node.inner) or (node.op == "linear" and "x.scale" in node.operands)


_MOVES = frozenset({"quantize", "dequantize"})


def _left(program: FxProgram, node: Node) -> Any:
    """Writes nothing: the kernel that reads the value does it itself."""
    return None if len(node.results) == 1 else (None,) * len(node.results)


def operators(node: Node) -> Handler | None:
    """Returns what writes a node by operators of floats."""
    tables = (
        *(elementwise.OPS, layers.OPS, movement.OPS, recurrent.OPS),
        *(places.OPS, foreign.OPS),
    )
    found = (table.get(node.op) for table in tables)
    return next((each for each in found if each is not None), None)


def ops_of(node: Node) -> tuple[str, ...]:
    """Returns the ops that a node computes, in order."""
    return tuple(stage.op for stage in node.stages) or (node.op,)


def attrs_of(node: Node) -> Mapping[str, Attr]:
    """Returns the attributes of the first of them."""
    return node.stages[0].attrs if node.stages else node.attrs


def operands_of(node: Node) -> Mapping[str, Value]:
    """Returns its operands, by its own slots."""
    return node.stage_operands(0) if node.stages else node.operands


def _result(program: FxProgram, node: Node) -> QuantType:
    """Returns the quantized type of a result; Refused for one that no tensor of PyTorch has."""
    quant = node.results[0].type.quant
    if quant is None:
        raise program.refuse(node, "a kernel on quantized tensors gives no floats")
    if not fits(quant) or quant.axis is not None:
        raise program.refuse(node, f"PyTorch's kernels give no {quant}")
    return quant


def _at(program: FxProgram, node: Node) -> tuple[float, int]:
    return parameters(_result(program, node))


def _kernel(program: FxProgram, node: Node, base: str, *known: tuple[str, ...]) -> str:
    """Returns the name of a kernel with what it computes after its first op."""
    rest = ops_of(node)[1:]
    if rest not in ((), *known):
        raise program.refuse(node, f"quantized::{base} computes nothing like it")
    return "_".join((f"quantized.{base}", *rest))


# -- between floats and integers ----------------------------------------------------------------


def _quantized(program: FxProgram, node: Node, x: fx.Node) -> fx.Node:
    quant = node.result.type.quant
    if quant is None or not fits(quant):
        raise program.refuse(node, f"PyTorch has no quantized tensor of type {quant}")
    if quant.bounds and (quant.low, quant.high) != quant.storage.bounds:
        x = _clamped(program, node, x, quant)
    kind = STORED[str(quant.storage)]
    if quant.axis is None:
        return program.call("aten.quantize_per_tensor", x, *parameters(quant), kind)
    scales, zeros = channel_parameters(quant)
    held = program.hold(scales, f"{node.name}_scale"), program.hold(zeros, f"{node.name}_zero")
    return program.call("aten.quantize_per_channel", x, *held, quant.axis, kind)


def _clamped(program: FxProgram, node: Node, x: fx.Node, quant: QuantType) -> fx.Node:
    """Bounds floats by what narrower integers mean, since PyTorch saturates at the storage's ends.

    A bound becomes its own integer again: what float32 adds to it is far less than half a step.
    """
    zeros, scales = quant.zeros().astype(np.float64), quant.scales().astype(np.float64)
    ends = [((end - zeros) * scales).astype(np.float32) for end in (quant.low, quant.high)]
    if quant.axis is None:
        return program.call("aten.clamp", x, *(float(end) for end in ends))
    shape = [-1 if axis == quant.axis else 1 for axis in range(node.result.type.rank)]
    low, high = (torch.from_numpy(end.reshape(shape)) for end in ends)
    held = program.hold(low, f"{node.name}_low"), program.hold(high, f"{node.name}_high")
    return program.call("aten.clamp", x, *held)


def _quantize(program: FxProgram, node: Node) -> fx.Node:
    if node.attrs["round"] not in ("", "even") or not node.attrs["saturate"]:
        raise program.refuse(node, "PyTorch rounds to the nearest, ties to even, and saturates")
    return _quantized(program, node, program.operand(node, "x"))


def _dequantize(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.dequantize", program.operand(node, "x"))


def _requantize(program: FxProgram, node: Node) -> fx.Node:
    return _quantized(program, node, _dequantize(program, node))


# -- products -----------------------------------------------------------------------------------


def _weights(program: FxProgram, node: Node) -> list[torch.Tensor | None]:
    """Returns the quantized weights of a layer, and its bias."""
    held = operands_of(node)
    return [program.constant(held["w"]), bias_of(program, node)]


def bias_of(program: FxProgram, node: Node) -> torch.Tensor | None:
    """Returns a bias as floats; where the graph counts it in units of the sum, times the unit."""
    held = operands_of(node)
    bias = held.get("bias")
    if bias is None:
        return None
    made = program.constant(bias)
    if made.dtype != torch.int32:
        return made
    x, w = held["x"].type.quant, held["w"].type.quant
    if x is None or w is None:
        raise program.refuse(node, "its bias is in units of a sum that is none of integers")
    unit = np.asarray(x.scales(), np.float64) * np.asarray(w.scales(), np.float64)
    return (made.double() * torch.from_numpy(np.atleast_1d(unit))).float()


def _convolution(program: FxProgram, node: Node) -> fx.Node:
    op, attrs, held = ops_of(node)[0], attrs_of(node), operands_of(node)
    axes = _AXES[op]
    last = attrs.get("layout") == "NHWC"
    given = program.of(held["x"])
    given = program.call("aten.permute", given, [0, 3, 1, 2]) if last else given
    x, pad = layers.padded(program, given, whole(attrs["pad"]), 0.0)
    stride, dilation, groups = whole(attrs["stride"]), whole(attrs["dilation"]), attrs["groups"]
    pack = getattr(torch.ops.quantized, f"{op}_prepack")
    more: list[Any] = [dilation, groups]
    if op not in ("conv1d", "conv2d", "conv3d"):
        front, back = sides(whole(attrs["pad"]))
        if front != back:
            raise program.refuse(node, "its padding differs before and after")
        x, pad, more = given, front, [whole(attrs["output_pad"]), dilation, groups]
    packed = program.hold(pack(*_weights(program, node), stride, pad, *more), held["w"].name)
    at = _at(program, node)
    if ops_of(node)[1:2] == ("add",):
        made = _with_summand(program, node, x, packed, at, last=last)
    else:
        made = program.call(_kernel(program, node, op, ("relu",)), x, packed, *at)
    return program.call("aten.permute", made, [0, *range(2, axes + 2), 1]) if last else made


def _with_summand(
    program: FxProgram,
    node: Node,
    x: fx.Node,
    packed: fx.Node,
    at: tuple[float, int],
    *,
    last: bool,
) -> fx.Node:
    """Returns a convolution that adds a tensor, into whose memory it writes."""
    (summand,) = node.stage_operands(1).values()
    given = program.of(summand)
    if not _last_reader(node, summand):
        given = program.call("aten.clone", given)
    given = program.call("aten.permute", given, [0, 3, 1, 2]) if last else given
    name = _kernel(program, node, "conv2d", ("add",), ("add", "relu"))
    return program.call(name, x, given, packed, *at)


_OWN_MEMORY = frozenset(
    "quantize conv2d linear add mul concat max_pool2d avg_pool2d global_avg_pool".split()
)
"""Ops whose results share memory with nothing else."""


def _last_reader(node: Node, value: Value) -> bool:
    """Returns whether a kernel may write into what it reads: its result is not used afterwards."""
    if ops_of(value.node)[0] not in _OWN_MEMORY or any(
        v is value for v in operands_of(node).values()
    ):
        return False
    others = [use.node for use in value.uses if use.node is not node]
    return all(ops_of(user)[0] in _OWN_MEMORY and user < node for user in others)


def _linear(program: FxProgram, node: Node) -> fx.Node:
    held = operands_of(node)
    made = torch.ops.quantized.linear_prepack(*_weights(program, node))
    packed = program.hold(made, held["w"].name)
    data = held["x"].type.quant
    if data is not None and data.dynamic:
        x = held["x"].node.operands["x"]  # the kernel chooses scale and zero point itself
        reduced = node.operands["x.scale"].node.attrs.get("bounds") == (0, 127)
        return program.call("quantized.linear_dynamic", program.of(x), packed, reduced)
    name = _kernel(program, node, "linear", ("relu",), ("leaky_relu",), ("tanh",))
    more = [node.stages[1].attrs["alpha"]] if name.endswith("leaky_relu") else []
    return program.call(name, program.of(held["x"]), packed, *_at(program, node), *more)


def _matmul(program: FxProgram, node: Node) -> fx.Node:
    if attrs_of(node)["trans_a"] or attrs_of(node)["trans_b"] or "bias" in operands_of(node):
        raise program.refuse(node, "quantized::matmul takes matrices as they are")
    a, b = (program.of(operands_of(node)[slot]) for slot in "ab")
    return program.call(_kernel(program, node, "matmul"), a, b, *_at(program, node))


# -- element by element -------------------------------------------------------------------------


def _pair(op: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        a, b = (program.of(operands_of(node)[slot]) for slot in "ab")
        return program.call(_kernel(program, node, op, ("relu",)), a, b, *_at(program, node))

    return write


def _function(name: str, *attrs: str) -> Handler:
    """Returns a function with scale and zero point of its result, then numbers."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        x, numbers = program.of(operands_of(node)["x"]), [attrs_of(node)[attr] for attr in attrs]
        return program.call(_kernel(program, node, name), x, *_at(program, node), *numbers)

    return write


def _leaky_relu(program: FxProgram, node: Node) -> fx.Node:
    x, at = program.of(operands_of(node)["x"]), _at(program, node)
    name = _kernel(program, node, "leaky_relu")
    return program.call(name, x, attrs_of(node)["alpha"], False, *at)


def _softmax(program: FxProgram, node: Node) -> fx.Node:
    x, at = program.of(operands_of(node)["x"]), _at(program, node)
    return program.call(_kernel(program, node, "softmax"), x, attrs_of(node)["axis"], *at)


def _fixed(name: str, scale: float, zero: int) -> Handler:
    """Returns a function whose result has one scale and zero point, whatever it reads."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        if _at(program, node) != (scale, zero) or str(_result(program, node).storage) != "u8":
            raise program.refuse(node, f"aten::{name} gives u8 of scale {scale:g}, {zero} alone")
        return program.call(f"aten.{name}", program.of(operands_of(node)["x"]))

    return write


def _concat(program: FxProgram, node: Node) -> fx.Node:
    parts = [program.of(v) for slot, v in operands_of(node).items() if slot.startswith("xs.")]
    name = _kernel(program, node, "cat", ("relu",))
    return program.call(name, parts, attrs_of(node)["axis"], *_at(program, node))


def _batch_norm(program: FxProgram, node: Node) -> fx.Node:
    held, attrs = operands_of(node), attrs_of(node)
    axes = held["x"].type.rank - 2
    if attrs["axis"] != 1 or not 0 <= axes <= 3:
        raise program.refuse(node, "quantized::batch_norm takes channels second")
    name = _kernel(program, node, f"batch_norm{axes}d" if axes > 1 else "batch_norm1d", ("relu",))
    numbers = [program.of(held[slot]) for slot in ("gamma", "beta", "mean", "var")]
    return program.call(name, program.of(held["x"]), *numbers, attrs["eps"], *_at(program, node))


def _kept(write: Handler) -> Handler:
    """Returns an operator of floats that takes quantized tensors too, and keeps scale and zero
    point."""

    def kept(program: FxProgram, node: Node) -> Any:
        if node.stages:
            raise program.refuse(node, "PyTorch has no such kernel")
        quant, x = node.results[0].type.quant, next(iter(node.operands.values())).type.quant
        if quant is None or x is None or not quant.has_same_mapping(x):
            raise program.refuse(node, "its kernel keeps the scale and zero point of the data")
        return write(program, node)

    return kept


_KEPT = {
    **{op: elementwise.OPS[op] for op in ("relu", "clip", "thresholded_relu")},
    **{
        op: layers.OPS[op]
        for op in (
            "max_pool1d max_pool2d max_pool3d avg_pool1d avg_pool2d avg_pool3d global_avg_pool "
            "adaptive_avg_pool reduce_mean"
        ).split()
    },
    **{
        op: movement.OPS[op]
        for op in (
            "reshape flatten transpose squeeze unsqueeze slice split resize_nearest resize"
        ).split()
    },
}


def _recode(program: FxProgram, node: Node) -> fx.Node:
    """Writes integers that are read plain, and plain integers that are read as quantized."""
    x, quant = program.of(node.operands["x"]), node.result.type.quant
    if node.operands["x"].type.quant is not None:
        x = program.call("aten.int_repr", x)
    if quant is None:
        return x
    if quant.axis is not None or not fits(quant):
        raise program.refuse(node, f"PyTorch has no quantized tensor of type {quant}")
    return program.call("aten._make_per_tensor_quantized_tensor", x, *parameters(quant))


_KERNELS: dict[str, Handler] = {
    **tables.OPS,
    "recode": _recode,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "requantize": _requantize,
    **dict.fromkeys(_AXES, _convolution),
    "linear": _linear,
    "matmul": _matmul,
    "add": _pair("add"),
    "mul": _pair("mul"),
    "concat": _concat,
    "sigmoid": _function("sigmoid"),
    "hard_swish": _function("hardswish"),
    "elu": _function("elu", "alpha"),
    "celu": _function("celu", "alpha"),
    "leaky_relu": _leaky_relu,
    "softmax": _softmax,
    "tanh": _fixed("tanh", 2 / 256, 128),
    "hard_sigmoid": _fixed("hardsigmoid", 1 / 256, 0),
    "batch_norm": _batch_norm,
    **{op: _kept(write) for op, write in _KEPT.items()},
}
