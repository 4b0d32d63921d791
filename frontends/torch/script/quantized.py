"""PyTorch's quantized kernels: each as float operators between dequantize and quantize.

Which of them one kernel computes at once, and how it rounds, is what the profiles of PyTorch's
engines say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.ao.quantization.fx._decomposed
from torch import fx

from ..profiles import running_engine
from .builder import IN_PYTHON, ArchiveTensor, ScriptBuilder, is_tensor

ATEN = torch.ops.aten
_DECOMPOSED = torch.ops.quantized_decomposed
_STORAGE = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}


@dataclass(eq=False)
class QuantizedTensor:
    """A quantized tensor with one scale; an op in place gives it another node."""

    node: fx.Node
    scale: float
    zero: int
    kind: torch.dtype

    def with_node(self, node: fx.Node) -> QuantizedTensor:
        """Returns other integers of the same meaning."""
        return QuantizedTensor(node, self.scale, self.zero, self.kind)


@dataclass(frozen=True, eq=False)
class Channels:
    """A tensor that is quantized with a scale for each index of an axis."""

    node: fx.Node
    scales: Any
    zeros: Any
    axis: int
    kind: torch.dtype


@dataclass(frozen=True, eq=False)
class Packed:
    """An object of the archive that holds weights in the form of an engine."""

    name: str
    object: Any


def _range(kind: torch.dtype) -> tuple[int, int, torch.dtype]:
    storage = _STORAGE[kind]
    info = torch.iinfo(storage)
    return info.min, info.max, storage


def quantize(
    builder: ScriptBuilder, x: Any, scale: float, zero: int, kind: torch.dtype, label: str = ""
) -> QuantizedTensor:
    """Quantizes a float tensor; the result is named after the kernel that makes it."""
    if kind not in _STORAGE:
        raise builder.fail(f"quantizes to {str(kind).removeprefix('torch.')}, which is not read")
    call = _DECOMPOSED.quantize_per_tensor.default
    builder.label = label.partition("::")[2]
    node = builder.call(call, x, float(scale), int(zero), *_range(kind))
    builder.label = ""
    return QuantizedTensor(node, float(scale), int(zero), kind)


def quantize_channels(
    builder: ScriptBuilder, x: Any, scales: Any, zeros: Any, axis: int, kind: torch.dtype
) -> Channels:
    """Quantizes a float tensor, with a scale for each index of an axis."""
    scales, zeros = builder.node(scales), builder.node(zeros)
    call = _DECOMPOSED.quantize_per_channel.default
    node = builder.call(call, x, scales, zeros, axis, *_range(kind))
    return Channels(node, scales, zeros, axis, kind)


def dequantize(builder: ScriptBuilder, held: Any) -> Any:
    """Dequantizes a quantized tensor; others stay as they are."""
    if isinstance(held, Channels):
        numbers = held.node, held.scales, held.zeros, held.axis, *_range(held.kind)
        return builder.call(_DECOMPOSED.dequantize_per_channel.default, *numbers)
    if not isinstance(held, QuantizedTensor):
        return held
    call = _DECOMPOSED.dequantize_per_tensor.default
    return builder.call(call, held.node, held.scale, held.zero, *_range(held.kind))


def stored(builder: ScriptBuilder, name: str, data: torch.Tensor) -> Any:
    """Returns a tensor of the archive: with one scale, dequantized for each channel, or plain."""
    if not data.is_quantized:
        return ArchiveTensor(name, data)
    if data.qscheme() == torch.per_tensor_affine:
        node = builder.constant(name, data.int_repr())
        return QuantizedTensor(node, data.q_scale(), data.q_zero_point(), data.dtype)
    return weights(builder, name, data)


def weights(builder: ScriptBuilder, name: str, data: torch.Tensor) -> fx.Node:
    """Returns the floats that quantized weights mean."""
    if data.dtype not in _STORAGE:
        raise builder.fail(f"{name} holds {str(data.dtype).removeprefix('torch.')}")
    if data.qscheme() == torch.per_tensor_affine:
        held: fx.Node = dequantize(builder, stored(builder, name, data))
        return held
    if data.qscheme() != torch.per_channel_affine:
        raise builder.fail(f"{name} has zero points that are no integers")
    node = builder.constant(name, data.int_repr())
    scales = builder.constant(f"{name}.scale", data.q_per_channel_scales())
    zeros = builder.constant(f"{name}.zero_point", data.q_per_channel_zero_points())
    channels = Channels(node, scales, zeros, data.q_per_channel_axis(), data.dtype)
    made: fx.Node = dequantize(builder, channels)
    return made


class QuantizedCall:
    """A call of a quantized kernel, its arguments by the names of its schema."""

    def __init__(self, builder: ScriptBuilder, name: str, given: dict[str, Any]) -> None:
        self.builder = builder
        self.name = name
        self.given = given

    def __getitem__(self, name: str) -> Any:
        """Returns an argument."""
        return self.given[name]

    def call(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Adds a call of a float operator."""
        return self.builder.call(target, *args, **kwargs)

    def quantized(self, name: str) -> QuantizedTensor:
        """Returns a quantized argument; raises InputError for one that is not quantized."""
        found = self.given[name]
        if not isinstance(found, QuantizedTensor):
            raise self.builder.fail(f"{self.name} is given a tensor that is not quantized")
        return found

    def real(self, name: str) -> fx.Node:
        """Returns a quantized argument, dequantized."""
        made: fx.Node = dequantize(self.builder, self.quantized(name))
        return made

    def result(self, made: fx.Node, like: str) -> QuantizedTensor:
        """Quantizes a result by the numbers that the call states."""
        short = "zero_point" in self.given
        scale = self.given["scale" if short else "output_scale"]
        zero = self.given["zero_point" if short else "output_zero_point"]
        held = self.given[like]
        first = held[0] if isinstance(held, list) else held
        scale = first.scale if scale is None else scale
        zero = first.zero if zero is None else zero
        return quantize(self.builder, made, scale, zero, first.kind, self.name)

    def kept(self, made: fx.Node, like: str) -> QuantizedTensor:
        """Quantizes a result by the scale and zero point of an argument."""
        x = self.quantized(like)
        return quantize(self.builder, made, x.scale, x.zero, x.kind, self.name)


def _ended(kernel: QuantizedCall, made: fx.Node) -> fx.Node:
    """Adds the activation that the kernel's name ends in."""
    if "_relu" in kernel.name:
        made = kernel.call(ATEN.relu.default, made)
    return made


# -- convolutions and linear layers ---------------------------------------------------------------


@dataclass(frozen=True)
class _Layer:
    """What a packed convolution holds."""

    weight: torch.Tensor
    bias: torch.Tensor | None
    stride: list[int]
    padding: list[int]
    dilation: list[int]
    output_padding: list[int]
    groups: int


def _unpacked(kernel: QuantizedCall, held: Any) -> _Layer:
    """Returns what a packed convolution holds; lines are packed as images of one row."""
    stem = kernel.name.removeprefix("quantized::").removesuffix("_dynamic")
    stem = stem.removesuffix("_relu").removesuffix("_add")
    axes, ops = int(stem[-2]), torch.ops.quantized
    packed = held.object
    weight, bias = getattr(ops, f"{stem}_unpack")(packed)
    seen = stem.replace("1d", "2d")

    def sides(name: str) -> list[int]:
        found = [int(v) for v in getattr(ops, f"{seen}_{name}")(packed)]
        return found[-axes:]

    outer = sides("output_padding") if "transpose" in stem else [0] * axes
    groups = int(getattr(ops, f"{seen}_groups")(packed))
    return _Layer(weight, bias, sides("stride"), sides("padding"), sides("dilation"), outer, groups)


def _owner(held: Packed) -> str:
    """Returns the path of the module whose weights are packed."""
    path = held.name
    while path.rpartition(".")[2].startswith("_packed"):
        path = path.rpartition(".")[0]
    return path


def _named(held: Packed, part: str) -> str:
    """Returns the name of packed weights or a bias: cells have two of each, _ih and _hh."""
    last = held.name.rpartition(".")[2]
    end = last[-3:] if last.endswith(("_ih", "_hh")) else ""
    return f"{_owner(held)}.{part}{end}".removeprefix(".")


def _bias(kernel: QuantizedCall, held: Packed, bias: torch.Tensor | None) -> Any:
    return None if bias is None else ArchiveTensor(_named(held, "bias"), bias.detach())


def _convolution(kernel: QuantizedCall) -> QuantizedTensor:
    name = "packed_weight" if "packed_weight" in kernel.given else "weight"
    held = kernel[name]
    layer = _unpacked(kernel, held)
    w = weights(kernel.builder, _named(held, "weight"), layer.weight)
    transposed = "transpose" in kernel.name
    made = kernel.call(
        ATEN.convolution.default,
        kernel.real("qx"),
        w,
        _bias(kernel, held, layer.bias),
        layer.stride,
        layer.padding,
        layer.dilation,
        transposed,
        layer.output_padding,
        layer.groups,
    )
    if "qaccum" in kernel.given:
        made = kernel.call(ATEN.add.Tensor, made, kernel.real("qaccum"))
    return kernel.result(_ended(kernel, made), "qx")


def _linear(kernel: QuantizedCall) -> QuantizedTensor:
    held = kernel["W_prepack"]
    weight, bias = torch.ops.quantized.linear_unpack(held.object)
    w = weights(kernel.builder, _named(held, "weight"), weight)
    x = next(name for name in ("X", "qx") if name in kernel.given)
    made = kernel.call(ATEN.linear.default, kernel.real(x), w, _bias(kernel, held, bias))
    if kernel.name.endswith("linear_leaky_relu"):
        made = kernel.call(ATEN.leaky_relu.default, made, kernel["negative_slope"])
    elif kernel.name.endswith("linear_tanh"):
        made = kernel.call(ATEN.tanh.default, made)
    else:
        made = _ended(kernel, made)
    kernel.given.setdefault("output_scale", kernel.given.get("Y_scale_i"))
    kernel.given.setdefault("output_zero_point", kernel.given.get("Y_zero_point_i"))
    return kernel.result(made, x)


def _dynamic_linear(kernel: QuantizedCall) -> fx.Node:
    """Keeps the call: the scale of its data is chosen while it runs."""
    made = packed_linear(
        kernel, kernel["W_prepack"], kernel["X"], reduce_range=kernel["reduce_range"]
    )
    return _ended(kernel, made)


def packed_linear(kernel: QuantizedCall, held: Packed, x: Any, *, reduce_range: bool) -> fx.Node:
    """Adds a linear layer with packed weights that quantizes its data by their range."""
    weight, bias = torch.ops.quantized.linear_unpack(held.object)
    if weight.dtype != torch.qint8:
        raise kernel.builder.fail(f"{kernel.name} of weights in half precision is not read")
    w, row = weights(kernel.builder, _named(held, "weight"), weight), _bias(kernel, held, bias)
    node, row = kernel.builder.node(x), kernel.builder.node(row)
    with kernel.builder.mode:
        made = ATEN.linear.default(node.meta["val"], w.meta["val"])
    target = torch.ops.quantized.linear_dynamic.default
    reduced = _reduces(reduce_range)
    linear: fx.Node = kernel.builder.emit(target, (node, (w, row), reduced), {}, made)
    return linear


def _reduces(asked: object) -> bool:
    """Returns whether data are quantized to seven bits: QNNPACK ignores that it is asked to."""
    return bool(asked) and running_engine() != "qnnpack"


def recurrent(
    builder: ScriptBuilder, layer: str, x: Any, states: Any, cells: Any, rest: Sequence[Any]
) -> Any:
    """Keeps the call of a dynamic LSTM or GRU: weights and biases of each cell, and whether the
    data and the state are quantized to seven bits."""
    params: list[Any] = []
    plain: list[Any] = []
    for cell in cells:
        kind, biases, _, numbers, packed = cell.object.__getstate__()[0]
        if kind != "quantized_dynamic":
            raise builder.fail(f"holds a recurrent layer of kind {kind}, which is not read")
        owner = cell.name.removesuffix(".param")
        held: list[Any] = []
        for part, one in zip(("ih", "hh"), packed, strict=True):
            weight = torch.ops.quantized.linear_unpack(one)[0]
            held.append(weights(builder, f"{owner}.weight_{part}", weight))
        held += [
            builder.node(ArchiveTensor(f"{owner}.bias_{i}", b.detach()))
            for i, b in zip("ih", biases, strict=True)
        ]
        params.append((*held, _reduces(numbers[0])))
        plain += held
    given = [builder.node(held) for held in (x, states, plain)]
    with builder.mode:
        infer = IN_PYTHON[f"aten.{layer}.input"]
        made = infer(*fx.map_arg(given, lambda n: n.meta["val"]), *rest)
    target = getattr(ATEN, f"quantized_{layer}").input
    return builder.emit(target, (*given[:2], params, *rest), {}, list(made))


# -- one element at a time ------------------------------------------------------------------------


def _pair(target: Callable[..., Any]) -> Callable[[QuantizedCall], QuantizedTensor]:
    def read(kernel: QuantizedCall) -> QuantizedTensor:
        made = kernel.call(target, kernel.real("qa"), kernel.real("qb"))
        return kernel.result(_ended(kernel, made), "qa")

    return read


def _number(kernel: QuantizedCall) -> float:
    held = kernel["b"]
    if isinstance(held, ArchiveTensor):
        held = held.data.item()
    if isinstance(held, fx.Node):
        raise kernel.builder.fail(f"{kernel.name} is given a number that is computed")
    return float(held)


def _times_number(kernel: QuantizedCall) -> QuantizedTensor:
    """Multiplies the scale: the integers stay, or are mirrored by a negative number."""
    x, factor = kernel.quantized("qa"), _number(kernel)
    if factor > 0:
        return _relabelled(kernel, QuantizedTensor(x.node, x.scale * factor, x.zero, x.kind))
    low, high, _ = _range(x.kind)
    numbers = (x.scale * -factor, low + high - x.zero) if factor else (1.0, 0)
    made = kernel.call(ATEN.mul.Tensor, kernel.real("qa"), factor)
    return quantize(kernel.builder, _ended(kernel, made), *numbers, x.kind, kernel.name)


def _plus_number(kernel: QuantizedCall) -> QuantizedTensor:
    """Moves the zero point, as QuantizedOpKernels' add_scalar does where it stays in range."""
    x, addend = kernel.quantized("qa"), _number(kernel)
    low, high, _ = _range(x.kind)
    moved = x.zero - round(addend / x.scale)
    if not low <= moved <= high:
        raise kernel.builder.fail(f"{kernel.name} of {addend:g} leaves the range of its integers")
    return _relabelled(kernel, QuantizedTensor(x.node, x.scale, moved, x.kind))


def _relabelled(kernel: QuantizedCall, made: QuantizedTensor) -> QuantizedTensor:
    """Returns the same integers by other numbers, after the activation of the kernel."""
    if "_relu" not in kernel.name:
        return made
    real = kernel.call(ATEN.relu.default, dequantize(kernel.builder, made))
    return quantize(kernel.builder, real, made.scale, made.zero, made.kind)


def _unary(
    target: Callable[..., Any], data: str, *more: str
) -> Callable[[QuantizedCall], QuantizedTensor]:
    """Returns the reader of a function whose result has a scale of its own."""

    def read(kernel: QuantizedCall) -> QuantizedTensor:
        made = kernel.call(target, kernel.real(data), *(kernel[name] for name in more))
        return kernel.result(made, data)

    return read


def _same_scale(
    target: Callable[..., Any], data: str, *more: Any
) -> Callable[[QuantizedCall], QuantizedTensor]:
    """Returns the reader of a function that keeps the scale; texts name arguments."""

    def read(kernel: QuantizedCall) -> QuantizedTensor:
        rest = [kernel[m] if isinstance(m, str) else m for m in more]
        return kernel.kept(kernel.call(target, kernel.real(data), *rest), data)

    return read


def _prelu(kernel: QuantizedCall) -> QuantizedTensor:
    held = kernel["weight"]
    if isinstance(held, torch.Tensor):  # an attribute of a module, which is no parameter
        held = stored(kernel.builder, f"{kernel.builder.path}.weight".removeprefix("."), held)
    slope = dequantize(kernel.builder, held)
    return kernel.result(kernel.call(ATEN.prelu.default, kernel.real("qx"), slope), "qx")


def _concat(kernel: QuantizedCall) -> QuantizedTensor:
    parts = [dequantize(kernel.builder, part) for part in kernel["qx"]]
    made = kernel.call(ATEN.cat.default, parts, kernel["dim"])
    return kernel.result(_ended(kernel, made), "qx")


def _batch_norm(kernel: QuantizedCall) -> QuantizedTensor:
    made = kernel.call(
        ATEN.batch_norm.default,
        kernel.real("qx"),
        kernel["weight"],
        kernel["bias"],
        kernel["mean"],
        kernel["var"],
        False,
        0.0,
        kernel["eps"],
        False,
    )
    return kernel.result(_ended(kernel, made), "qx")


def _norm(kernel: QuantizedCall) -> QuantizedTensor:
    """Reads layer_norm, group_norm and instance_norm."""
    x, scale, bias, eps = kernel.real("input"), kernel["weight"], kernel["bias"], kernel["eps"]
    if "normalized_shape" in kernel.given:
        shape = kernel["normalized_shape"]
        made = kernel.call(ATEN.layer_norm.default, x, shape, scale, bias, eps, False)
    elif "num_groups" in kernel.given:
        groups = kernel["num_groups"]
        made = kernel.call(ATEN.group_norm.default, x, groups, scale, bias, eps, False)
    else:
        rest = (None, None, True, 0.0, eps, False)
        made = kernel.call(ATEN.instance_norm.default, x, scale, bias, *rest)
    return kernel.result(made, "input")


def _embedding(kernel: QuantizedCall) -> fx.Node:
    """Keeps a look-up in a table whose rows have scales, and zero points that are floats."""
    builder, held = kernel.builder, kernel["weight"]
    data = torch.ops.quantized.embedding_bag_unpack(held.object)
    name, codes = _named(held, "weight"), data.int_repr()
    four_bits = data.dtype == torch.quint4x2
    if four_bits != kernel.name.endswith("4bit"):  # torch.ao calls it for Embedding of 4 bits too
        said = "4-bit rows" if four_bits else "8-bit rows"
        raise builder.fail(f"{kernel.name} reads {said} as if they had another width")
    if four_bits:
        codes = torch.stack((codes & 15, codes >> 4), -1).reshape(data.shape)
    numbers = (data.q_per_channel_scales(), data.q_per_channel_zero_points())
    table = (
        builder.constant(name, codes),
        *(
            builder.constant(f"{name}.{n}", t)
            for n, t in zip(("scale", "zero"), numbers, strict=True)
        ),
    )
    target = getattr(torch.ops.quantized, kernel.name.partition("::")[2]).default
    formals = target._schema.arguments[1:]
    given = [builder.node(kernel.given[formal.name]) for formal in formals]
    fakes = fx.map_arg(given, lambda node: node.meta["val"])
    with builder.mode:
        rows = builder.mode.from_tensor(torch.empty(data.shape), static_shapes=True)
        if "bag" in kernel.name:
            last = bool(kernel["include_last_offset"])
            if fakes[1] is None:  # each row of indices is a bag
                made = rows.new_empty((fakes[0].shape[0], rows.shape[1]))
            else:
                made = ATEN.embedding_bag(rows, *fakes[:2], include_last_offset=last)[0]
        else:
            made = ATEN.embedding(rows, fakes[0])
    node: fx.Node = builder.emit(target, (table, *given), {}, made)
    return node


def _fixed(
    target: Callable[..., Any], scale: float, zero: int
) -> Callable[[ScriptBuilder, QuantizedTensor], QuantizedTensor]:
    """Returns the reader of a function whose result always has the same scale."""

    def read(builder: ScriptBuilder, x: QuantizedTensor, *rest: Any) -> QuantizedTensor:
        name = str(target).replace(".", "::", 1).partition(".")[0]
        signed = x.kind == torch.qint8
        at = zero - 128 if signed else zero
        made = builder.call(target, dequantize(builder, x), *rest)
        return quantize(builder, made, scale, at, x.kind, name)

    return read


FIXED: dict[str, Callable[..., QuantizedTensor]] = {
    "aten::sigmoid": _fixed(ATEN.sigmoid.default, 1 / 256, 0),
    "aten::hardsigmoid": _fixed(ATEN.hardsigmoid.default, 1 / 256, 0),
    "aten::tanh": _fixed(ATEN.tanh.default, 2 / 256, 128),
}
"""Functions of PyTorch's own namespace whose quantized results have a scale that is theirs."""
KEPT = frozenset(
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
"""Operators whose quantized results have the scale and zero point of their first operand."""
MOVED = frozenset(
    f"aten::{name}"
    for name in (
        "view reshape flatten unflatten transpose permute t squeeze unsqueeze slice select narrow"
        " chunk split split_with_sizes tensor_split unbind expand expand_as repeat contiguous clone"
        " detach alias flip roll dropout feature_dropout alpha_dropout pixel_shuffle to"
        " view_as reshape_as index_select"
    ).split()
)
"""Operators that move integers and compute none."""

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
        f"quantized::{op}{end}": _pair(target)
        for end in ("", "_relu")
        for op, target in (("add", ATEN.add.Tensor), ("mul", ATEN.mul.Tensor))
    },
    "quantized::matmul": _pair(ATEN.matmul.default),
    **{
        f"quantized::{name}": read
        for op, read in (("add", _plus_number), ("mul", _times_number))
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
    "quantized::hardswish": _unary(ATEN.hardswish.default, "input"),
    "quantized::sigmoid": _unary(ATEN.sigmoid.default, "qx"),
    "quantized::leaky_relu": _unary(ATEN.leaky_relu.default, "qx", "negative_slope"),
    "quantized::elu": _unary(ATEN.elu.default, "self", "alpha", "scale", "input_scale"),
    "quantized::celu": _unary(ATEN.celu.default, "self", "alpha"),
    "quantized::softmax": _unary(ATEN.softmax.int, "qx", "dim"),
    "quantized::prelu": _prelu,
    "quantized::relu6": _same_scale(ATEN.hardtanh.default, "qx", 0.0, 6.0),
    "quantized::clamp": _same_scale(ATEN.clamp.default, "qx", "min", "max"),
    "quantized::threshold": _same_scale(ATEN.threshold.default, "qx", "threshold", "value"),
    "quantized::max_pool1d": _same_scale(
        ATEN.max_pool1d.default, "qx", "kernel_size", "stride", "padding", "dilation", "ceil_mode"
    ),
    "quantized::max_pool2d": _same_scale(
        ATEN.max_pool2d.default, "qx", "kernel_size", "stride", "padding", "dilation", "ceil_mode"
    ),
    "quantized::dropout": lambda kernel: kernel.quantized("self"),
    **{
        f"quantized::embedding_{bag}{kind}": _embedding
        for bag in ("", "bag_")
        for kind in ("byte", "4bit")
    },
}

__all__ = [
    "FIXED",
    "KEPT",
    "KERNELS",
    "MOVED",
    "Packed",
    "QuantizedCall",
    "QuantizedTensor",
    "dequantize",
    "is_tensor",
    "quantize",
    "stored",
]
