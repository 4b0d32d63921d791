"""Writes quantized ops, each as one call of a kernel in `quantized::` or of an aten op."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import fx

from qir.ir.attrs import Attr
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import CONVOLUTIONS
from qir.ir.types import QuantType

from . import (
    dynamic,
    elementwise,
    foreign,
    indexing,
    layers,
    movement,
    packed_weights,
    recurrent,
    tables,
)
from .elements import STORED, channel_parameters, fits, parameters
from .layers import int_list, split_pads
from .program import FxProgram, Handler

_AXES = {f"conv{n}d": n for n in (1, 2, 3)} | {f"conv_transpose{n}d": n for n in (1, 2, 3)}


def handler(node: Node) -> Handler | None:
    """Returns the writer of a node: a quantized kernel where it computes on integers, else aten
    ops."""
    # First, since these take over the dequantize of their weights too.
    if packed_handler := packed_weights.handler(node):
        return packed_handler
    # A choose_qparams that only dynamic kernels read has no call: these compute ranges themselves.
    if node.op == "choose_qparams":
        return _write_nothing if all(map(_are_chosen_by_kernels, node.results[0].users)) else None
    if not any(v.type.quant for v in (*node.operands.values(), *node.results)):
        return dynamic.OPS.get(node.op) if node.inner else float_handler(node)
    # Parameters computed at run time exist in PyTorch only inside its dynamic kernels.
    if node.op in _CONVERSIONS and any(spec(node.op).is_companion(slot) for slot in node.operands):
        return _write_nothing if _are_chosen_by_kernels(node) else None
    return _KERNELS.get(fused_ops(node)[0])


def _are_chosen_by_kernels(node: Node) -> bool:
    """Returns whether only dynamic layers use some scale and zero point: their kernels choose
    these."""
    if node.op in _CONVERSIONS:
        return all(map(_are_chosen_by_kernels, node.result.users))
    return bool(node.inner) or (node.op == "linear" and "x.scale" in node.operands)


_CONVERSIONS = frozenset({"quantize", "dequantize"})
"""Ops between floats and quantized values."""


def _write_nothing(program: FxProgram, node: Node) -> Any:
    """Writes no call: the kernel that reads the value does it itself."""
    return None if len(node.results) == 1 else (None,) * len(node.results)


def float_handler(node: Node) -> Handler | None:
    """Returns the writer of a float node."""
    tables = (
        *(elementwise.OPS, layers.OPS, movement.OPS, recurrent.OPS),
        *(indexing.OPS, foreign.OPS),
    )
    handlers = (table.get(node.op) for table in tables)
    return next((found_handler for found_handler in handlers if found_handler is not None), None)


def fused_ops(node: Node) -> tuple[str, ...]:
    """Returns the ops that a node computes, in order."""
    return tuple(stage.op for stage in node.stages) or (node.op,)


def anchor_attrs(node: Node) -> Mapping[str, Attr]:
    """Returns the attributes of a node's first op."""
    return node.stages[0].attrs if node.stages else node.attrs


def anchor_operands(node: Node) -> Mapping[str, Value]:
    """Returns the operands of a node's first op, by its own slots."""
    return node.stage_operands(0) if node.stages else node.operands


def _result_type(program: FxProgram, node: Node) -> QuantType:
    """Returns the quantized type of a result; raises Refused for one that no tensor of PyTorch
    has."""
    quant = node.results[0].type.quant
    if quant is None:
        raise program.refuse(node, "a kernel on quantized tensors gives no floats")
    if not fits(quant) or quant.axis is not None:
        raise program.refuse(node, f"PyTorch's kernels give no {quant}")
    return quant


def _result_parameters(program: FxProgram, node: Node) -> tuple[float, int]:
    return parameters(_result_type(program, node))


def _kernel_name(program: FxProgram, node: Node, base: str, *supported: tuple[str, ...]) -> str:
    """Returns the name of a kernel with the ops fused to it: `quantized.conv2d_relu`."""
    fused = fused_ops(node)[1:]
    if fused not in ((), *supported):
        raise program.refuse(node, f"quantized::{base} computes nothing like it")
    return "_".join((f"quantized.{base}", *fused))


# -- quantize and dequantize --------------------------------------------------------------------


def _quantize_call(program: FxProgram, node: Node, x: fx.Node) -> fx.Node:
    quant = node.result.type.quant
    if quant is None or not fits(quant):
        raise program.refuse(node, f"PyTorch has no quantized tensor of type {quant}")
    if quant.bounds and (quant.low, quant.high) != quant.storage.bounds:
        x = _clamp_call(program, node, x, quant)
    kind = STORED[str(quant.storage)]
    if quant.axis is None:
        return program.call("aten.quantize_per_tensor", x, *parameters(quant), kind)
    scales, zeros = channel_parameters(quant)
    parameter_nodes = (
        program.add_attribute(scales, f"{node.name}_scale"),
        program.add_attribute(zeros, f"{node.name}_zero"),
    )
    return program.call("aten.quantize_per_channel", x, *parameter_nodes, quant.axis, kind)


def _clamp_call(program: FxProgram, node: Node, x: fx.Node, quant: QuantType) -> fx.Node:
    """Clamps floats to what narrower integers mean: PyTorch saturates at the ends of the storage.

    A clamped float quantizes to the bound itself: float32's error is far below half a step.
    """
    zeros, scales = quant.zeros().astype(np.float64), quant.scales().astype(np.float64)
    # Bounds as floats: (integer - zero) * scale, computed in double and rounded once.
    float_bounds = [((end - zeros) * scales).astype(np.float32) for end in (quant.low, quant.high)]
    if quant.axis is None:
        return program.call("aten.clamp", x, *(float(end) for end in float_bounds))
    shape = [-1 if axis == quant.axis else 1 for axis in range(node.result.type.rank)]
    low, high = (torch.from_numpy(end.reshape(shape)) for end in float_bounds)
    bound_nodes = (
        program.add_attribute(low, f"{node.name}_low"),
        program.add_attribute(high, f"{node.name}_high"),
    )
    return program.call("aten.clamp", x, *bound_nodes)


def _quantize(program: FxProgram, node: Node) -> fx.Node:
    if node.attrs["round"] not in ("", "even") or not node.attrs["saturate"]:
        raise program.refuse(node, "PyTorch rounds to the nearest, ties to even, and saturates")
    return _quantize_call(program, node, program.operand(node, "x"))


def _dequantize(program: FxProgram, node: Node) -> fx.Node:
    return program.call("aten.dequantize", program.operand(node, "x"))


def _requantize(program: FxProgram, node: Node) -> fx.Node:
    return _quantize_call(program, node, _dequantize(program, node))


# -- products -----------------------------------------------------------------------------------


def _weight_and_bias(program: FxProgram, node: Node) -> list[torch.Tensor | None]:
    """Returns the quantized weights of a layer, and its bias."""
    operands = anchor_operands(node)
    return [program.constant(operands["w"]), float_bias(program, node)]


def float_bias(program: FxProgram, node: Node) -> torch.Tensor | None:
    """Returns a bias as floats; one in units of the accumulator is multiplied by its unit."""
    operands = anchor_operands(node)
    bias = operands.get("bias")
    if bias is None:
        return None
    values = program.constant(bias)
    # A float bias is given to the kernel as it is: the kernel quantizes it itself.
    if values.dtype != torch.int32:
        return values
    x, w = operands["x"].type.quant, operands["w"].type.quant
    if x is None or w is None:
        raise program.refuse(node, "its bias is in units of a sum that is none of integers")
    # The unit of the accumulator: scale of the data times scale of the weights.
    unit = np.asarray(x.scales(), np.float64) * np.asarray(w.scales(), np.float64)
    # In double, so that the kernel, which divides by the same unit, finds the same integers.
    return (values.double() * torch.from_numpy(np.atleast_1d(unit))).float()


def _convolution(program: FxProgram, node: Node) -> fx.Node:
    op, attrs, operands = fused_ops(node)[0], anchor_attrs(node), anchor_operands(node)
    axes = _AXES[op]
    is_nhwc = attrs.get("layout") == "NHWC"
    data = program.node_of(operands["x"])
    # QIR's NHWC is a layout of the type; PyTorch's operators take NCHW and look at strides.
    data = program.call("aten.permute", data, [0, 3, 1, 2]) if is_nhwc else data
    x, pad = layers.split_padding(program, data, int_list(attrs["pad"]), 0.0)
    stride, dilation, groups = (
        int_list(attrs["stride"]),
        int_list(attrs["dilation"]),
        attrs["groups"],
    )
    # Weights are packed now: the file then holds them as the engine wants them.
    pack = getattr(torch.ops.quantized, f"{op}_prepack")
    pack_arguments: list[Any] = [dilation, groups]
    if op not in CONVOLUTIONS:
        pad_before, pad_after = split_pads(int_list(attrs["pad"]))
        if pad_before != pad_after:
            raise program.refuse(node, "its padding differs before and after")
        x, pad, pack_arguments = data, pad_before, [int_list(attrs["output_pad"]), dilation, groups]
    packed = program.add_attribute(
        pack(*_weight_and_bias(program, node), stride, pad, *pack_arguments), operands["w"].name
    )
    result_parameters = _result_parameters(program, node)
    if fused_ops(node)[1:2] == ("add",):
        result = _with_summand(program, node, x, packed, result_parameters, is_nhwc=is_nhwc)
    else:
        result = program.call(
            _kernel_name(program, node, op, ("relu",)), x, packed, *result_parameters
        )
    return program.call("aten.permute", result, [0, *range(2, axes + 2), 1]) if is_nhwc else result


def _with_summand(
    program: FxProgram,
    node: Node,
    x: fx.Node,
    packed: fx.Node,
    result_parameters: tuple[float, int],
    *,
    is_nhwc: bool,
) -> fx.Node:
    """Returns a convolution that adds a tensor: the kernel writes its result into that tensor."""
    (summand,) = node.stage_operands(1).values()
    summand_node = program.node_of(summand)
    # quantized::conv2d_add writes its result into the summand.
    if not _may_overwrite(node, summand):
        summand_node = program.call("aten.clone", summand_node)
    summand_node = (
        program.call("aten.permute", summand_node, [0, 3, 1, 2]) if is_nhwc else summand_node
    )
    name = _kernel_name(program, node, "conv2d", ("add",), ("add", "relu"))
    return program.call(name, x, summand_node, packed, *result_parameters)


_ALLOCATING_OPS = frozenset(
    "quantize conv2d linear add mul concat max_pool2d avg_pool2d global_avg_pool".split()
)
"""Ops whose results share memory with nothing else."""


def _may_overwrite(node: Node, value: Value) -> bool:
    """Returns whether a kernel may write into an operand: nothing reads that afterwards."""
    if fused_ops(value.node)[0] not in _ALLOCATING_OPS or any(
        v is value for v in anchor_operands(node).values()
    ):
        return False
    other_users = [use.node for use in value.uses if use.node is not node]
    return all(fused_ops(user)[0] in _ALLOCATING_OPS and user < node for user in other_users)


def _linear(program: FxProgram, node: Node) -> fx.Node:
    operands = anchor_operands(node)
    prepacked = torch.ops.quantized.linear_prepack(*_weight_and_bias(program, node))
    packed = program.add_attribute(prepacked, operands["w"].name)
    data = operands["x"].type.quant
    if data is not None and data.dynamic:
        x = operands["x"].node.operands["x"]  # the kernel chooses scale and zero point itself
        reduce_range = node.operands["x.scale"].node.attrs.get("bounds") == (0, 127)
        return program.call("quantized.linear_dynamic", program.node_of(x), packed, reduce_range)
    name = _kernel_name(program, node, "linear", ("relu",), ("leaky_relu",), ("tanh",))
    alpha = [node.stages[1].attrs["alpha"]] if name.endswith("leaky_relu") else []
    return program.call(
        name, program.node_of(operands["x"]), packed, *_result_parameters(program, node), *alpha
    )


def _matmul(program: FxProgram, node: Node) -> fx.Node:
    if (
        anchor_attrs(node)["trans_a"]
        or anchor_attrs(node)["trans_b"]
        or "bias" in anchor_operands(node)
    ):
        raise program.refuse(node, "quantized::matmul takes matrices as they are")
    a, b = (program.node_of(anchor_operands(node)[slot]) for slot in "ab")
    return program.call(
        _kernel_name(program, node, "matmul"), a, b, *_result_parameters(program, node)
    )


# -- element by element -------------------------------------------------------------------------


def _binary(op: str) -> Handler:
    def write(program: FxProgram, node: Node) -> fx.Node:
        a, b = (program.node_of(anchor_operands(node)[slot]) for slot in "ab")
        return program.call(
            _kernel_name(program, node, op, ("relu",)), a, b, *_result_parameters(program, node)
        )

    return write


def _function(name: str, *attrs: str) -> Handler:
    """Returns the writer of a function, called with scale and zero point, then attributes."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        x, arguments = (
            program.node_of(anchor_operands(node)["x"]),
            [anchor_attrs(node)[attr] for attr in attrs],
        )
        return program.call(
            _kernel_name(program, node, name), x, *_result_parameters(program, node), *arguments
        )

    return write


def _leaky_relu(program: FxProgram, node: Node) -> fx.Node:
    x, result_parameters = (
        program.node_of(anchor_operands(node)["x"]),
        _result_parameters(program, node),
    )
    name = _kernel_name(program, node, "leaky_relu")
    return program.call(name, x, anchor_attrs(node)["alpha"], False, *result_parameters)


def _softmax(program: FxProgram, node: Node) -> fx.Node:
    x, result_parameters = (
        program.node_of(anchor_operands(node)["x"]),
        _result_parameters(program, node),
    )
    return program.call(
        _kernel_name(program, node, "softmax"), x, anchor_attrs(node)["axis"], *result_parameters
    )


def _fixed_scale(name: str, scale: float, zero: int) -> Handler:
    """Returns the writer of a function whose result has one scale and zero point, whatever it
    reads."""

    def write(program: FxProgram, node: Node) -> fx.Node:
        if (
            _result_parameters(program, node) != (scale, zero)
            or str(_result_type(program, node).storage) != "u8"
        ):
            raise program.refuse(node, f"aten::{name} gives u8 of scale {scale:g}, {zero} alone")
        return program.call(f"aten.{name}", program.node_of(anchor_operands(node)["x"]))

    return write


def _concat(program: FxProgram, node: Node) -> fx.Node:
    tensors = [
        program.node_of(v) for slot, v in anchor_operands(node).items() if slot.startswith("xs.")
    ]
    name = _kernel_name(program, node, "cat", ("relu",))
    return program.call(
        name, tensors, anchor_attrs(node)["axis"], *_result_parameters(program, node)
    )


def _batch_norm(program: FxProgram, node: Node) -> fx.Node:
    operands, attrs = anchor_operands(node), anchor_attrs(node)
    axes = operands["x"].type.rank - 2
    if attrs["axis"] != 1 or not 0 <= axes <= 3:
        raise program.refuse(node, "quantized::batch_norm takes channels second")
    name = _kernel_name(
        program, node, f"batch_norm{axes}d" if axes > 1 else "batch_norm1d", ("relu",)
    )
    norm_parameters = [program.node_of(operands[slot]) for slot in ("gamma", "beta", "mean", "var")]
    return program.call(
        name,
        program.node_of(operands["x"]),
        *norm_parameters,
        attrs["eps"],
        *_result_parameters(program, node),
    )


def _keeping_type(write: Handler) -> Handler:
    """Returns the writer of a float op that also accepts quantized tensors, and keeps their
    type."""

    def write_checked(program: FxProgram, node: Node) -> Any:
        if node.stages:
            raise program.refuse(node, "PyTorch has no such kernel")
        quant, x = node.results[0].type.quant, next(iter(node.operands.values())).type.quant
        if quant is None or x is None or not quant.has_same_mapping(x):
            raise program.refuse(node, "its kernel keeps the scale and zero point of the data")
        return write(program, node)

    return write_checked


_TYPE_KEEPING = {
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
            "reshape flatten transpose squeeze unsqueeze slice split flip resize_nearest resize"
        ).split()
    },
}
"""Ops whose aten operators accept quantized tensors."""


def _recode(program: FxProgram, node: Node) -> fx.Node:
    """Writes quantized values as their plain integers, or the reverse."""
    x, quant = program.node_of(node.operands["x"]), node.result.type.quant
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
    "add": _binary("add"),
    "mul": _binary("mul"),
    "concat": _concat,
    "sigmoid": _function("sigmoid"),
    "hard_swish": _function("hardswish"),
    "elu": _function("elu", "alpha"),
    "celu": _function("celu", "alpha"),
    "leaky_relu": _leaky_relu,
    "softmax": _softmax,
    "tanh": _fixed_scale("tanh", 2 / 256, 128),
    "hard_sigmoid": _fixed_scale("hardsigmoid", 1 / 256, 0),
    "batch_norm": _batch_norm,
    **{op: _keeping_type(write) for op, write in _TYPE_KEEPING.items()},
}
