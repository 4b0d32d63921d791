"""PyTorch's `quantized::` kernels, each as float operators between dequantize and quantize.

The pass `group` later finds the kernels again by the profile of the engine, which also says how
each of them rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ..profiles import running_engine
from .builder import PYTHON_SHAPE_RULES, ArchiveTensor, ScriptBuilder
from .quantized_tensors import (
    PackedWeights,
    QuantizedCall,
    QuantizedTensor,
    dequantize,
    dequantized_weights,
    integer_range,
    quantize,
    stored_tensor,
)
from .scalar_sums import rescaled_sum

ATEN = torch.ops.aten


def _with_activation(kernel: QuantizedCall, result: fx.Node) -> fx.Node:
    """Adds a relu if the kernel's name ends in one."""
    if "_relu" in kernel.name:
        result = kernel.add_call(ATEN.relu.default, result)
    return result


# -- convolutions and linear layers ---------------------------------------------------------------


@dataclass(frozen=True)
class _UnpackedConvolution:
    """Weights and attributes of a packed convolution."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int


def _unpack_convolution(kernel: QuantizedCall, packed_weights: Any) -> _UnpackedConvolution:
    """Unpacks a convolution; PyTorch packs 1-D ones as 2-D with a height of 1."""
    # The unpacking op has the name of the kernel without its epilogue.
    stem = kernel.name.removeprefix("quantized::").removesuffix("_dynamic")
    stem = stem.removesuffix("_relu").removesuffix("_add")
    axes, ops = int(stem[-2]), torch.ops.quantized
    packed = packed_weights.object
    try:
        weight, bias = getattr(ops, f"{stem}_unpack")(packed)
    except RuntimeError as error:  # qnnpack packs conv3d and does not unpack it
        text = " ".join(str(error).split())
        remedy = "convert the float module again under engine x86 or fbgemm"
        owner = _owner_path(packed_weights)
        message = f"{owner}: PyTorch does not unpack its weights: {text[:200]}; {remedy}"
        raise kernel.builder.error(message) from error
    name_in_2d = stem.replace("1d", "2d")

    def sides(name: str) -> list[int]:
        # 1-D convolutions have the attributes of 2-D ones, with the width last.
        values = [int(v) for v in getattr(ops, f"{name_in_2d}_{name}")(packed)]
        return values[-axes:]

    outer = sides("output_padding") if "transpose" in stem else [0] * axes
    groups = int(getattr(ops, f"{name_in_2d}_groups")(packed))
    return _UnpackedConvolution(
        weight, bias, sides("stride"), sides("padding"), sides("dilation"), outer, groups
    )


def _owner_path(packed: PackedWeights) -> str:
    """Returns the path of the module that owns packed weights."""
    path = packed.name
    while path.rpartition(".")[2].startswith("_packed"):
        path = path.rpartition(".")[0]
    return path


def _part_name(packed: PackedWeights, part: str) -> str:
    """Returns the name of unpacked weights or bias; recurrent cells have two, _ih and _hh."""
    last = packed.name.rpartition(".")[2]
    suffix = last[-3:] if last.endswith(("_ih", "_hh")) else ""
    return f"{_owner_path(packed)}.{part}{suffix}".removeprefix(".")


def _bias(kernel: QuantizedCall, packed: PackedWeights, bias: torch.Tensor | None) -> Any:
    return None if bias is None else ArchiveTensor(_part_name(packed, "bias"), bias.detach())


def _convolution(kernel: QuantizedCall) -> QuantizedTensor:
    name = "packed_weight" if "packed_weight" in kernel.arguments else "weight"
    packed = kernel[name]
    layer = _unpack_convolution(kernel, packed)
    weights = dequantized_weights(kernel.builder, _part_name(packed, "weight"), layer.weight)
    transposed = "transpose" in kernel.name
    result = kernel.add_call(
        ATEN.convolution.default,
        kernel.dequantized("qx"),
        weights,
        _bias(kernel, packed, layer.bias),
        layer.stride,
        layer.padding,
        layer.dilation,
        transposed,
        layer.output_padding,
        layer.groups,
    )
    # `conv_add` of oneDNN adds a second quantized tensor before it requantizes.
    if "qaccum" in kernel.arguments:
        result = kernel.add_call(ATEN.add.Tensor, result, kernel.dequantized("qaccum"))
    return kernel.result(_with_activation(kernel, result), "qx")


def _linear(kernel: QuantizedCall) -> QuantizedTensor:
    packed = kernel["W_prepack"]
    weight, bias = torch.ops.quantized.linear_unpack(packed.object)
    weights = dequantized_weights(kernel.builder, _part_name(packed, "weight"), weight)
    x = next(name for name in ("X", "qx") if name in kernel.arguments)
    result = kernel.add_call(
        ATEN.linear.default, kernel.dequantized(x), weights, _bias(kernel, packed, bias)
    )
    if kernel.name.endswith("linear_leaky_relu"):
        result = kernel.add_call(ATEN.leaky_relu.default, result, kernel["negative_slope"])
    elif kernel.name.endswith("linear_tanh"):
        result = kernel.add_call(ATEN.tanh.default, result)
    else:
        result = _with_activation(kernel, result)
    # `linear` and `linear_relu` name the scale and zero point of the result otherwise.
    kernel.arguments.setdefault("output_scale", kernel.arguments.get("Y_scale_i"))
    kernel.arguments.setdefault("output_zero_point", kernel.arguments.get("Y_zero_point_i"))
    return kernel.result(result, x)


def _dynamic_linear(kernel: QuantizedCall) -> fx.Node:
    """Adds linear_dynamic, which quantizes its data at run time, and a relu if named."""
    # The ReLU of `linear_relu_dynamic` is applied to the float result.
    result = packed_linear(
        kernel, kernel["W_prepack"], kernel["X"], reduce_range=kernel["reduce_range"]
    )
    return _with_activation(kernel, result)


def packed_linear(
    kernel: QuantizedCall, packed: PackedWeights, x: Any, *, reduce_range: bool
) -> fx.Node:
    """Adds a dynamic linear layer; `torch.dynamic` reads it as choose_qparams and linear."""
    weight, bias = torch.ops.quantized.linear_unpack(packed.object)
    if weight.dtype != torch.qint8:
        raise kernel.builder.error(f"{kernel.name} of weights in half precision is not read")
    weights, bias_tensor = (
        dequantized_weights(kernel.builder, _part_name(packed, "weight"), weight),
        _bias(kernel, packed, bias),
    )
    node, bias_tensor = kernel.builder.as_node(x), kernel.builder.as_node(bias_tensor)
    # The kernel itself cannot run on fake weights, so the result's type is that of a float linear.
    with kernel.builder.mode:
        result_type = ATEN.linear.default(node.meta["val"], weights.meta["val"])
    target = torch.ops.quantized.linear_dynamic.default
    reduced = _uses_seven_bits(reduce_range)
    linear: fx.Node = kernel.builder.add_call_of_type(
        target, (node, (weights, bias_tensor), reduced), {}, result_type
    )
    return linear


def _uses_seven_bits(requested: object) -> bool:
    """Returns whether data are quantized to 7 bits; QNNPACK ignores `reduce_range`."""
    return bool(requested) and running_engine() != "qnnpack"


def recurrent(
    builder: ScriptBuilder, layer: str, x: Any, states: Any, cells: Any, rest: Sequence[Any]
) -> Any:
    """Adds a dynamic LSTM or GRU call.

    The parameters of each cell are (w_ih, w_hh, b_ih, b_hh, seven bits).
    """
    params: list[Any] = []
    all_params: list[Any] = []
    for cell in cells:
        # The state of a cell is (kind, biases, doubles, integers, packed weights).
        kind, biases, _, numbers, packed = cell.object.__getstate__()[0]
        if kind != "quantized_dynamic":
            raise builder.error(f"holds a recurrent layer of kind {kind}, which is not read")
        owner = cell.name.removesuffix(".param")
        cell_params: list[Any] = []
        for part, packed_weight in zip(("ih", "hh"), packed, strict=True):
            weight = torch.ops.quantized.linear_unpack(packed_weight)[0]
            cell_params.append(dequantized_weights(builder, f"{owner}.weight_{part}", weight))
        cell_params += [
            builder.as_node(ArchiveTensor(f"{owner}.bias_{i}", bias.detach()))
            for i, bias in zip("ih", biases, strict=True)
        ]
        params.append((*cell_params, _uses_seven_bits(numbers[0])))
        all_params += cell_params
    arguments = [builder.as_node(cell_params) for cell_params in (x, states, all_params)]
    with builder.mode:
        infer = PYTHON_SHAPE_RULES[f"aten.{layer}.input"]
        result_types = infer(*fx.map_arg(arguments, lambda n: n.meta["val"]), *rest)
    target = getattr(ATEN, f"quantized_{layer}").input
    return builder.add_call_of_type(target, (*arguments[:2], params, *rest), {}, list(result_types))


# -- elementwise kernels --------------------------------------------------------------------------


def _binary(target: Callable[..., Any]) -> Callable[[QuantizedCall], QuantizedTensor]:
    def read(kernel: QuantizedCall) -> QuantizedTensor:
        result = kernel.add_call(target, kernel.dequantized("qa"), kernel.dequantized("qb"))
        return kernel.result(_with_activation(kernel, result), "qa")

    return read


def _scalar_argument(kernel: QuantizedCall) -> float:
    number = kernel["b"]
    if isinstance(number, ArchiveTensor):
        number = number.data.item()
    if isinstance(number, fx.Node):
        raise kernel.builder.error(f"{kernel.name} is given a number that is computed")
    return float(number)


def _mul_scalar(kernel: QuantizedCall) -> QuantizedTensor:
    """Multiplies the scale; the integers stay, or are mirrored for a negative factor."""
    x, factor = kernel.quantized("qa"), _scalar_argument(kernel)
    # ATen's qmul with a scalar changes no integer for a positive factor: only the scale.
    if factor > 0:
        return _with_relu(kernel, QuantizedTensor(x.node, x.scale * factor, x.zero, x.kind))
    low, high, _ = integer_range(x.kind)
    # A negative factor mirrors the zero point in the range of the integers.
    qparams = (x.scale * -factor, low + high - x.zero) if factor else (1.0, 0)
    product = kernel.add_call(ATEN.mul.Tensor, kernel.dequantized("qa"), factor)
    return quantize(
        kernel.builder, _with_activation(kernel, product), *qparams, x.kind, kernel.name
    )


def _add_scalar(kernel: QuantizedCall) -> QuantizedTensor:
    """Shifts the zero point, as PyTorch's add_scalar kernel does if it stays in range."""
    x, addend = kernel.quantized("qa"), _scalar_argument(kernel)
    low, high, _ = integer_range(x.kind)
    zero = x.zero - round(addend / x.scale)
    if not low <= zero <= high:
        return rescaled_sum(kernel, x, addend)
    return _with_relu(kernel, QuantizedTensor(x.node, x.scale, zero, x.kind))


def _with_relu(kernel: QuantizedCall, tensor: QuantizedTensor) -> QuantizedTensor:
    """Returns integers that only changed scale or zero point, after the kernel's relu."""
    if "_relu" not in kernel.name:
        return tensor
    activated = kernel.add_call(ATEN.relu.default, dequantize(kernel.builder, tensor))
    return quantize(kernel.builder, activated, tensor.scale, tensor.zero, tensor.kind)


def _unary_with_own_scale(
    target: Callable[..., Any], data: str, *more: str
) -> Callable[[QuantizedCall], QuantizedTensor]:
    """Returns the function for a unary kernel whose result has a scale of its own."""

    def read(kernel: QuantizedCall) -> QuantizedTensor:
        result = kernel.add_call(target, kernel.dequantized(data), *(kernel[name] for name in more))
        return kernel.result(result, data)

    return read


def _unary_with_same_scale(
    target: Callable[..., Any], data: str, *more: Any
) -> Callable[[QuantizedCall], QuantizedTensor]:
    """Returns the function for a kernel that keeps the scale; strings in `more` name arguments."""

    def read(kernel: QuantizedCall) -> QuantizedTensor:
        arguments = [kernel[m] if isinstance(m, str) else m for m in more]
        return kernel.result_with_scale_of(
            kernel.add_call(target, kernel.dequantized(data), *arguments), data
        )

    return read


def _prelu(kernel: QuantizedCall) -> QuantizedTensor:
    weight = kernel["weight"]
    if isinstance(weight, torch.Tensor):  # a constant of the traced code, not a parameter
        weight = stored_tensor(
            kernel.builder, f"{kernel.builder.path}.weight".removeprefix("."), weight
        )
    slope = dequantize(kernel.builder, weight)
    return kernel.result(kernel.add_call(ATEN.prelu.default, kernel.dequantized("qx"), slope), "qx")


def _concat(kernel: QuantizedCall) -> QuantizedTensor:
    parts = [dequantize(kernel.builder, part) for part in kernel["qx"]]
    joined = kernel.add_call(ATEN.cat.default, parts, kernel["dim"])
    return kernel.result(_with_activation(kernel, joined), "qx")


def _batch_norm(kernel: QuantizedCall) -> QuantizedTensor:
    result = kernel.add_call(
        ATEN.batch_norm.default,
        kernel.dequantized("qx"),
        kernel["weight"],
        kernel["bias"],
        kernel["mean"],
        kernel["var"],
        False,
        0.0,
        kernel["eps"],
        False,
    )
    return kernel.result(_with_activation(kernel, result), "qx")


def _norm(kernel: QuantizedCall) -> QuantizedTensor:
    """Reads layer_norm, group_norm and instance_norm."""
    x, scale, bias, eps = (
        kernel.dequantized("input"),
        kernel["weight"],
        kernel["bias"],
        kernel["eps"],
    )
    if "normalized_shape" in kernel.arguments:
        shape = kernel["normalized_shape"]
        result = kernel.add_call(ATEN.layer_norm.default, x, shape, scale, bias, eps, False)
    elif "num_groups" in kernel.arguments:
        groups = kernel["num_groups"]
        result = kernel.add_call(ATEN.group_norm.default, x, groups, scale, bias, eps, False)
    else:
        more_args = (None, None, True, 0.0, eps, False)
        result = kernel.add_call(ATEN.instance_norm.default, x, scale, bias, *more_args)
    return kernel.result(result, "input")


def _embedding(kernel: QuantizedCall) -> fx.Node:
    """Adds a lookup in a table whose rows have scales and float zero points."""
    builder, packed = kernel.builder, kernel["weight"]
    data = torch.ops.quantized.embedding_bag_unpack(packed.object)
    name, integers = _part_name(packed, "weight"), data.int_repr()
    four_bits = data.dtype == torch.quint4x2
    if four_bits != kernel.name.endswith("4bit"):  # torch.ao calls it for Embedding of 4 bits too
        message = "4-bit rows" if four_bits else "8-bit rows"
        raise builder.error(f"{kernel.name} reads {message} as if they had another width")
    if four_bits:
        # A byte has two integers, the first one in the low four bits.
        integers = torch.stack((integers & 15, integers >> 4), -1).reshape(data.shape)
    qparams = (data.q_per_channel_scales(), data.q_per_channel_zero_points())
    table = (
        builder.constant(name, integers),
        *(
            builder.constant(f"{name}.{n}", t)
            for n, t in zip(("scale", "zero"), qparams, strict=True)
        ),
    )
    target = getattr(torch.ops.quantized, kernel.name.partition("::")[2]).default
    parameters = target._schema.arguments[1:]
    arguments = [builder.as_node(kernel.arguments[parameter.name]) for parameter in parameters]
    fake_arguments = fx.map_arg(arguments, lambda node: node.meta["val"])
    with builder.mode:
        rows = builder.mode.from_tensor(torch.empty(data.shape), static_shapes=True)
        if "bag" in kernel.name:
            includes_last = bool(kernel["include_last_offset"])
            if fake_arguments[1] is None:  # without offsets, each row of indices is a bag
                result_type = rows.new_empty((fake_arguments[0].shape[0], rows.shape[1]))
            else:
                result_type = ATEN.embedding_bag(
                    rows, *fake_arguments[:2], include_last_offset=includes_last
                )[0]
        else:
            result_type = ATEN.embedding(rows, fake_arguments[0])
    node: fx.Node = builder.add_call_of_type(target, (table, *arguments), {}, result_type)
    return node


def _channel_shuffle(
    builder: ScriptBuilder, x: QuantizedTensor, groups: int
) -> QuantizedTensor | None:
    """Shuffles the last axis of an NHWC view of channels_last images: the result keeps strides."""
    if not _is_channels_last(x):
        return None
    batch, channels, *sides = x.node.meta["val"].shape
    moved = builder.add_call(ATEN.permute.default, x.node, [0, 2, 3, 1])
    split = builder.add_call(ATEN.unflatten.int, moved, 3, [groups, channels // groups])
    shuffled = builder.add_call(ATEN.transpose.int, split, 3, 4)
    joined = builder.add_call(ATEN.reshape.default, shuffled, [batch, *sides, channels])
    return x.with_node(builder.add_call(ATEN.permute.default, joined, [0, 3, 1, 2]))


def _contiguous(
    builder: ScriptBuilder, x: QuantizedTensor, memory_format: Any = None
) -> QuantizedTensor | None:
    """Copies channels_last images to contiguous ones by a reshape to one axis, and back.

    `clone` of a quantized tensor does so too. Average pools have a kernel for each layout.
    """
    wants_channels_last = memory_format in (torch.channels_last, torch.channels_last_3d)
    if wants_channels_last or not _is_channels_last(x):
        return None
    flat = builder.add_call(ATEN.reshape.default, x.node, [-1])
    return x.with_node(builder.add_call(ATEN.reshape.default, flat, [*x.node.meta["val"].shape]))


def _is_channels_last(x: QuantizedTensor) -> bool:
    """Returns whether a tensor is an image that follows a convolution, so is channels_last.

    Views and reshapes between give other strides, which is not followed.
    """
    node: Any = x.node
    while node.meta["val"].ndim == 4 and node.target is not ATEN.convolution.default:
        operands = [n for n in node.all_input_nodes if n.op == "call_function"]
        if not operands:
            return False
        node = operands[0]
    return bool(node.meta["val"].ndim == 4)


def _unary_with_fixed_scale(
    target: Callable[..., Any], scale: float, zero: int
) -> Callable[[ScriptBuilder, QuantizedTensor], QuantizedTensor]:
    """Returns the function for an operator whose quantized result has a fixed scale."""

    def read(builder: ScriptBuilder, x: QuantizedTensor, *arguments: Any) -> QuantizedTensor:
        name = str(target).replace(".", "::", 1).partition(".")[0]
        # `zero` is that of quint8.
        # For qint8 the same floats are integers that are 128 less.
        signed = x.kind == torch.qint8
        zero_point = zero - 128 if signed else zero
        result = builder.add_call(target, dequantize(builder, x), *arguments)
        return quantize(builder, result, scale, zero_point, x.kind, name)

    return read


FIXED_SCALE: dict[str, Callable[..., QuantizedTensor]] = {
    "aten::sigmoid": _unary_with_fixed_scale(ATEN.sigmoid.default, 1 / 256, 0),
    "aten::hardsigmoid": _unary_with_fixed_scale(ATEN.hardsigmoid.default, 1 / 256, 0),
    "aten::tanh": _unary_with_fixed_scale(ATEN.tanh.default, 2 / 256, 128),
}
"""aten operators whose quantized results have a fixed scale and zero point."""
SAME_SCALE = frozenset(
    f"aten::{name}"
    for name in (
        "relu clamp hardtanh leaky_relu gelu avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d"
        " adaptive_avg_pool2d adaptive_avg_pool3d max_pool1d max_pool2d max_pool3d mean"
        " upsample_nearest1d upsample_nearest2d upsample_nearest3d upsample_bilinear2d cat"
        " pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d"
        " replication_pad2d elu celu masked_fill relu6 clamp_min clamp_max stack"
        " grid_sampler grid_sampler_2d"
    ).split()
)
"""aten operators whose quantized results have the scale and zero point of their operand."""
MOVES_INTEGERS = frozenset(
    f"aten::{name}"
    for name in (
        "view reshape flatten unflatten transpose permute t squeeze unsqueeze slice select narrow"
        " chunk split split_with_sizes tensor_split unbind expand expand_as repeat detach"
        " contiguous clone alias flip roll dropout feature_dropout alpha_dropout pixel_shuffle to"
        " view_as reshape_as index_select pixel_unshuffle channel_shuffle movedim tile"
        " broadcast_to repeat_interleave"
    ).split()
)
"""aten operators that only move integers."""
RESTRIDES: dict[str, Callable[..., QuantizedTensor | None]] = {
    "aten::channel_shuffle": _channel_shuffle,
    "aten::clone": _contiguous,
    "aten::contiguous": _contiguous,
}
"""aten operators that move integers, and give channels_last images strides of their own."""

KERNELS: dict[str, Callable[[QuantizedCall], Any]] = {
    **{
        f"quantized::conv{axes}d{end}": _convolution
        for axes in (1, 2, 3)
        for end in ("", "_relu", "_add", "_add_relu")
    },
    **{f"quantized::conv_transpose{axes}d": _convolution for axes in (1, 2, 3)},
    **{f"quantized::linear{end}": _linear for end in ("", "_relu", "_leaky_relu", "_tanh")},
    "quantized::linear_dynamic": _dynamic_linear,
    "quantized::linear_relu_dynamic": _dynamic_linear,
    **{
        f"quantized::{op}{end}": _binary(target)
        for end in ("", "_relu")
        for op, target in (("add", ATEN.add.Tensor), ("mul", ATEN.mul.Tensor))
    },
    "quantized::matmul": _binary(ATEN.matmul.default),
    **{
        f"quantized::{name}": read
        for op, read in (("add", _add_scalar), ("mul", _mul_scalar))
        for end in ("", "_relu")
        for name in (f"{op}_scalar{end}", f"{op}{end}.Scalar", f"{op}{end}.Scalar2")
    },
    "quantized::cat": _concat,
    "quantized::cat_relu": _concat,
    **{
        f"quantized::batch_norm{axes}{end}": _batch_norm
        for axes in ("", "1d", "2d", "3d")
        for end in ("", "_relu")
    },
    "quantized::layer_norm": _norm,
    "quantized::group_norm": _norm,
    "quantized::instance_norm": _norm,
    "quantized::hardswish": _unary_with_own_scale(ATEN.hardswish.default, "input"),
    "quantized::sigmoid": _unary_with_own_scale(ATEN.sigmoid.default, "qx"),
    "quantized::leaky_relu": _unary_with_own_scale(ATEN.leaky_relu.default, "qx", "negative_slope"),
    "quantized::elu": _unary_with_own_scale(
        ATEN.elu.default, "self", "alpha", "scale", "input_scale"
    ),
    "quantized::celu": _unary_with_own_scale(ATEN.celu.default, "self", "alpha"),
    "quantized::softmax": _unary_with_own_scale(ATEN.softmax.int, "qx", "dim"),
    "quantized::prelu": _prelu,
    "quantized::relu6": _unary_with_same_scale(ATEN.hardtanh.default, "qx", 0.0, 6.0),
    "quantized::clamp": _unary_with_same_scale(ATEN.clamp.default, "qx", "min", "max"),
    "quantized::threshold": _unary_with_same_scale(
        ATEN.threshold.default, "qx", "threshold", "value"
    ),
    "quantized::max_pool1d": _unary_with_same_scale(
        ATEN.max_pool1d.default, "qx", "kernel_size", "stride", "padding", "dilation", "ceil_mode"
    ),
    "quantized::max_pool2d": _unary_with_same_scale(
        ATEN.max_pool2d.default, "qx", "kernel_size", "stride", "padding", "dilation", "ceil_mode"
    ),
    "quantized::dropout": lambda kernel: kernel.quantized("self"),
    **{
        f"quantized::embedding_{bag}{kind}": _embedding
        for bag in ("", "bag_")
        for kind in ("byte", "4bit")
    },
}
