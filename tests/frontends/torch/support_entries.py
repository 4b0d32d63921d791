"""The entries of PyTorch's quantization-support page, each as something that can be read and run.

Sections and names are those of `docs/source/quantization-support.rst`, with what later pages added.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.ao.nn.intrinsic.quantized.dynamic
import torch.ao.nn.qat.dynamic
import torch.ao.nn.quantizable
import torch.ao.nn.quantized.dynamic
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao.quantization.quantize_fx import convert_fx, fuse_fx

from .quantized_cases import (
    FUNCTIONS,
    GAINS,
    IMAGE,
    LINE,
    ROWS,
    SLOPES,
    VOLUME,
    _inverted,
    _layer,
    _weights,
    quantize,
)
from .support_modules import (
    AO,
    DATA,
    Config,
    Entry,
    Net,
    Row,
    X,
    _cell,
    _combined,
    _dynamic,
    _fused,
    _Pair,
    _prepared,
    _prepared_fx,
    _quantized_attention,
    _Self,
    _settled,
    _table,
    _trained,
    _trained_fx,
    _wrapped,
    draw,
    layer,
    on,
    real,
    trained,
)

NN: Any = torch.ao.nn
"""PyTorch's modules of quantization, of which few have types."""
fused_float, fused_qat = NN.intrinsic, NN.intrinsic.qat
fused, fused_dynamic = NN.intrinsic.quantized, NN.intrinsic.quantized.dynamic
qat, qat_dynamic, quantizable = NN.qat, NN.qat.dynamic, NN.quantizable
quantized, dynamic, QF = NN.quantized, NN.quantized.dynamic, NN.quantized.functional

QConfigs = (
    "default_qconfig default_qat_qconfig default_dynamic_qconfig default_per_channel_qconfig"
    " per_channel_dynamic_qconfig default_weight_only_qconfig default_activation_only_qconfig"
    " default_qat_qconfig_v2 default_symmetric_qnnpack_qconfig"
    " default_per_channel_symmetric_qnnpack_qconfig default_symmetric_qnnpack_qat_qconfig"
    " default_per_channel_symmetric_qnnpack_qat_qconfig default_dynamic_qat_qconfig"
    " default_quint8_weight_qconfig float16_dynamic_qconfig float16_static_qconfig"
    " default_debug_qconfig float_qparams_weight_only_qconfig"
    " float_qparams_weight_only_qconfig_4bit default_reuse_input_qconfig"
    " default_embedding_qat_qconfig default_embedding_qat_qconfig_4bit"
).split()
OBSERVERS = (
    "default_observer default_weight_observer default_histogram_observer"
    " default_per_channel_weight_observer default_dynamic_quant_observer"
    " default_float_qparams_observer default_float_qparams_observer_4bit"
    " default_placeholder_observer default_debug_observer default_reuse_input_observer"
    " default_fixed_qparams_range_0to1_observer default_fixed_qparams_range_neg1to1_observer"
    " weight_observer_range_neg_127_to_127 per_channel_weight_observer_range_neg_127_to_127"
    " MinMaxObserver MovingAverageMinMaxObserver PerChannelMinMaxObserver"
    " MovingAveragePerChannelMinMaxObserver HistogramObserver RecordingObserver NoopObserver"
    " PlaceholderObserver FixedQParamsObserver ReuseInputObserver"
).split()
FAKES = (
    "FakeQuantize FixedQParamsFakeQuantize FusedMovingAvgObsFakeQuantize default_fake_quant"
    " default_weight_fake_quant default_per_channel_weight_fake_quant default_histogram_fake_quant"
    " default_fused_act_fake_quant default_fused_wt_fake_quant"
    " default_fused_per_channel_wt_fake_quant default_dynamic_fake_quant"
    " default_embedding_fake_quant default_embedding_fake_quant_4bit"
    " fused_wt_fake_quant_range_neg_127_to_127"
    " fused_per_channel_wt_fake_quant_range_neg_127_to_127"
    " default_fixed_qparams_range_0to1_fake_quant default_fixed_qparams_range_neg1to1_fake_quant"
).split()


def _compared(name: str) -> Callable[[Tensor], Tensor]:
    return lambda q: getattr(q, name)(_inverted(q))


_SMALL, _PLACES = GAINS / 50, torch.arange(6)
TENSORS: Mapping[str, Row] = {
    "torch.quantize_per_tensor": on(lambda q: q),
    "torch.quantize_per_channel": on(
        lambda q: torch.quantize_per_channel(q.dequantize(), _SMALL, _PLACES, 1, torch.quint8)
    ),
    "view": on(lambda q: q.view(2, -1)),
    "as_strided": on(lambda q: q.as_strided((2, 6), (378, 63))),
    "expand": on(lambda q: q[:, :1].expand(-1, 6, -1, -1)),
    "flatten": on(lambda q: q.flatten(1)),
    "select": on(lambda q: q.select(1, 2)),
    "indexing": on(lambda q: q[:, 1:3, ::2]),
    **{name: on(_compared(name)) for name in ("ne", "eq", "ge", "le", "gt", "lt")},
    "copy_": on(lambda q: _inverted(q).copy_(q)),
    "clone": on(lambda q: q.clone()),
    "dequantize": on(lambda q: q.dequantize()),
    "equal": "it returns a truth value of Python, no tensor",
    "int_repr": on(lambda q: q.int_repr()),
    "max": on(lambda q: q.max(1)[0]),
    "mean": on(lambda q: q.mean([2, 3])),
    "min": on(lambda q: q.min(1)[0]),
    **dict.fromkeys(
        "q_scale q_zero_point q_per_channel_scales q_per_channel_zero_points"
        " q_per_channel_axis".split(),
        "it returns a number of the type, which the graph's types hold",
    ),
    "resize_": "it gives a tensor another shape in place, which PyTorch does not trace",
    "sort": on(lambda q: q.sort(1)[0]),
    "topk": on(lambda q: q.topk(2, 1)[0]),
}
FUNCTIONAL: Mapping[str, Row] = {
    "relu": on(F.relu),
    "relu_": on(lambda q: F.relu_(q.clone())),
    "elu": "PyTorch has no kernel of F.elu on quantized tensors",
    "max_pool2d": on(FUNCTIONS["max_pool2d"]),
    "adaptive_avg_pool2d": on(FUNCTIONS["adaptive_avg_pool2d"]),
    "avg_pool2d": on(FUNCTIONS["avg_pool2d"]),
    "interpolate": on(FUNCTIONS["bilinear"]),
    "hardsigmoid": on(F.hardsigmoid),
    "hardswish": "PyTorch has no kernel of F.hardswish on quantized tensors",
    "hardtanh": on(FUNCTIONS["hardtanh"]),
    "upsample": on(lambda q: F.interpolate(q, scale_factor=2.0)),
    "upsample_bilinear": on(
        lambda q: F.interpolate(q, scale_factor=2.0, mode="bilinear", align_corners=True)
    ),
    "upsample_nearest": on(FUNCTIONS["nearest"]),
}


def _pair(first: Callable[[], nn.Module], *others: nn.Module) -> nn.Module:
    return nn.Sequential(first(), *others)


INTRINSIC: Mapping[str, Row] = {
    "ConvBn1d": real(lambda: fused_float.ConvBn1d(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8)), LINE),
    "ConvBn2d": real(lambda: fused_float.ConvBn2d(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8)), IMAGE),
    "ConvBn3d": real(lambda: fused_float.ConvBn3d(nn.Conv3d(6, 8, 3), nn.BatchNorm3d(8)), VOLUME),
    "ConvBnReLU1d": real(
        lambda: fused_float.ConvBnReLU1d(nn.Conv1d(6, 8, 3), nn.BatchNorm1d(8), nn.ReLU()), LINE
    ),
    "ConvBnReLU2d": real(
        lambda: fused_float.ConvBnReLU2d(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()), IMAGE
    ),
    "ConvBnReLU3d": real(
        lambda: fused_float.ConvBnReLU3d(nn.Conv3d(6, 8, 3), nn.BatchNorm3d(8), nn.ReLU()), VOLUME
    ),
    "ConvReLU1d": real(lambda: fused_float.ConvReLU1d(nn.Conv1d(6, 8, 3), nn.ReLU()), LINE),
    "ConvReLU2d": real(lambda: fused_float.ConvReLU2d(nn.Conv2d(6, 8, 3), nn.ReLU()), IMAGE),
    "ConvReLU3d": real(lambda: fused_float.ConvReLU3d(nn.Conv3d(6, 8, 3), nn.ReLU()), VOLUME),
    "LinearReLU": real(lambda: fused_float.LinearReLU(nn.Linear(6, 8), nn.ReLU()), ROWS),
    "BNReLU2d": real(lambda: fused_float.BNReLU2d(nn.BatchNorm2d(6), nn.ReLU()), IMAGE),
    "BNReLU3d": real(lambda: fused_float.BNReLU3d(nn.BatchNorm3d(6), nn.ReLU()), VOLUME),
    "LinearBn1d": real(lambda: fused_float.LinearBn1d(nn.Linear(6, 8), nn.BatchNorm1d(8)), ROWS),
    "LinearLeakyReLU": real(
        lambda: fused_float.LinearLeakyReLU(nn.Linear(6, 8), nn.LeakyReLU(0.1)), ROWS
    ),
    "LinearTanh": real(lambda: fused_float.LinearTanh(nn.Linear(6, 8), nn.Tanh()), ROWS),
    "ConvAdd2d": "it is a pair of modules without a forward of its own until it is converted",
    "ConvAddReLU2d": "three modules without a forward of their own until they are converted",
}


def _bn(kind: type[Any], *shape: int) -> Entry:
    return trained(lambda config: kind(6, 8, 3, qconfig=config), *shape)


INTRINSIC_QAT: Mapping[str, Row] = {
    "ConvBn1d": _bn(fused_qat.ConvBn1d, *LINE),
    "ConvBn2d": _bn(fused_qat.ConvBn2d, *IMAGE),
    "ConvBn3d": _bn(fused_qat.ConvBn3d, *VOLUME),
    "ConvBnReLU1d": _bn(fused_qat.ConvBnReLU1d, *LINE),
    "ConvBnReLU2d": _bn(fused_qat.ConvBnReLU2d, *IMAGE),
    "ConvBnReLU3d": _bn(fused_qat.ConvBnReLU3d, *VOLUME),
    "ConvReLU1d": _bn(fused_qat.ConvReLU1d, *LINE),
    "ConvReLU2d": _bn(fused_qat.ConvReLU2d, *IMAGE),
    "ConvReLU3d": _bn(fused_qat.ConvReLU3d, *VOLUME),
    "LinearReLU": trained(lambda config: fused_qat.LinearReLU(6, 8, qconfig=config), *ROWS),
    "LinearBn1d": trained(lambda config: fused_qat.LinearBn1d(6, 8, qconfig=config), *ROWS),
    "update_bn_stats, freeze_bn_stats": "they set a flag of training, and compute nothing",
}
INTRINSIC_QUANTIZED: Mapping[str, Row] = {
    "LinearReLU": layer(lambda: _layer(fused.LinearReLU, 8, 6), ROWS),
    "ConvReLU1d": layer(lambda: _layer(fused.ConvReLU1d, 8, 6, 3), LINE),
    "ConvReLU2d": layer(lambda: _layer(fused.ConvReLU2d, 8, 6, 3, 3)),
    "ConvReLU3d": layer(lambda: _layer(fused.ConvReLU3d, 8, 6, 3, 3, 3), VOLUME),
    "BNReLU2d": layer(lambda: _settled(lambda: fused.BNReLU2d(6))),
    "BNReLU3d": layer(lambda: _settled(lambda: fused.BNReLU3d(6)), VOLUME),
    "LinearLeakyReLU": layer(
        lambda: _extra(fused.LinearLeakyReLU(6, 8, 0.1), 8, 6), ROWS, engine="onednn"
    ),
    "LinearTanh": layer(lambda: _extra(fused.LinearTanh(6, 8), 8, 6), ROWS, engine="onednn"),
    "ConvAdd2d": layer(
        lambda: _Pair(_extra(fused.ConvAdd2d(6, 6, 1), 6, 6, 1, 1)), engine="onednn"
    ),
    "ConvAddReLU2d": layer(
        lambda: _Pair(_extra(fused.ConvAddReLU2d(6, 6, 1), 6, 6, 1, 1)), engine="onednn"
    ),
    "dynamic.LinearReLU": Entry(
        lambda: _extra(fused_dynamic.LinearReLU(6, 8), 8, 6), (draw(*ROWS),)
    ),
}


def _extra(layer_made: Any, *shape: int) -> nn.Module:
    torch.manual_seed(sum(shape))
    layer_made.set_weight_bias(_weights(*shape, channels=False), torch.randn(shape[0]))
    if hasattr(layer_made, "scale"):
        layer_made.scale, layer_made.zero_point = 0.08, 77
    return layer_made  # type: ignore[no-any-return]


QAT: Mapping[str, Row] = {
    "Linear": trained(lambda config: qat.Linear(6, 8, qconfig=config), *ROWS),
    "Conv1d": _bn(qat.Conv1d, *LINE),
    "Conv2d": _bn(qat.Conv2d, *IMAGE),
    "Conv3d": _bn(qat.Conv3d, *VOLUME),
    "Embedding": trained(lambda config: qat.Embedding(20, 8, qconfig=config), ids=True),
    "EmbeddingBag": trained(lambda config: qat.EmbeddingBag(20, 8, qconfig=config), ids=True),
    "dynamic.Linear": trained(
        lambda config: qat_dynamic.Linear(6, 8, qconfig=AO.default_dynamic_qat_qconfig), *ROWS
    ),
}
EAGER: Mapping[str, Row] = {
    "add_observer_": "private since PyTorch 1.13; modules with observers are read",
    "add_quant_dequant": Entry(_wrapped, (draw(*ROWS),)),
    "prepare": Entry(_prepared, (X,), DATA),
    "convert": Entry(lambda: AO.convert(_prepared()), (X,)),
    "get_observer_dict": "private since PyTorch 1.13; it lists modules",
    "prepare_qat": Entry(_trained, (X,), DATA),
    "propagate_qconfig_": "it marks modules, and computes nothing",
    "quantize": Entry(lambda: AO.convert(_prepared()), (X,)),
    "quantize_dynamic": Entry(_dynamic(lambda: nn.Linear(6, 8), nn.Linear), (draw(*ROWS),)),
    "quantize_qat": Entry(lambda: AO.convert(_trained()), (X,)),
    "swap_module": Entry(lambda: AO.convert(_prepared()), (X,)),
    "default_eval_fn": "it runs a module over data, and makes none",
    "fuse_modules": Entry(_fused, (X,), DATA),
}
FX: Mapping[str, Row] = {
    "prepare_fx": Entry(_prepared_fx, (X,), DATA),
    "prepare_qat_fx": Entry(_trained_fx, (X,), DATA),
    "convert_fx": Entry(lambda: convert_fx(_prepared_fx()), (X,)),  # type: ignore[arg-type]
    "fuse_fx": Entry(lambda: fuse_fx(Net().eval()), (X,), DATA),
}


def _transposed(axes: int) -> Callable[[], nn.Module]:
    kind = getattr(quantized, f"ConvTranspose{axes}d")
    return lambda: _layer(kind, 6, 6, *(3,) * axes, channels=False)


def _weight(data: Tensor) -> nn.Parameter:
    return nn.Parameter(data, requires_grad=False)


QUANTIZED: Mapping[str, Row] = {
    "Quantize": Entry(lambda: quantized.Quantize(0.03, 3, torch.quint8), (X,)),
    "DeQuantize": layer(quantized.DeQuantize),
    "FloatFunctional": real(lambda: _Floats(quantized.FloatFunctional()), IMAGE),
    "QFunctional": layer(lambda: _Floats(_numbered())),
    "FXFloatFunctional": real(lambda: _Floats(quantized.FXFloatFunctional()), IMAGE),
    "Conv1d": layer(lambda: _layer(quantized.Conv1d, 8, 6, 3, padding=1), LINE),
    "Conv2d": layer(lambda: _layer(quantized.Conv2d, 8, 6, 3, 3, padding=1)),
    "Conv3d": layer(lambda: _layer(quantized.Conv3d, 8, 6, 3, 3, 3), VOLUME),
    "Linear": layer(lambda: _layer(quantized.Linear, 8, 6), ROWS),
    "nn.MaxPool2d": layer(lambda: nn.MaxPool2d(2)),
    "ReLU6": layer(quantized.ReLU6),
    "ELU": layer(lambda: quantized.ELU(0.02, 60)),
    "Hardswish": layer(lambda: quantized.Hardswish(0.02, 20)),
    "BatchNorm2d": layer(lambda: _settled(lambda: quantized.BatchNorm2d(6))),
    "BatchNorm3d": layer(lambda: _settled(lambda: quantized.BatchNorm3d(6)), VOLUME),
    "LayerNorm": layer(
        lambda: quantized.LayerNorm(
            (9, 7), _weight(torch.ones(9, 7)), _weight(torch.zeros(9, 7)), 0.03, 90
        )
    ),
    "GroupNorm": layer(
        lambda: quantized.GroupNorm(3, 6, _weight(GAINS), _weight(SLOPES), 0.03, 90)
    ),
    "InstanceNorm1d": layer(
        lambda: quantized.InstanceNorm1d(6, _weight(GAINS), _weight(SLOPES), 0.03, 90), LINE
    ),
    "InstanceNorm2d": layer(
        lambda: quantized.InstanceNorm2d(6, _weight(GAINS), _weight(SLOPES), 0.03, 90)
    ),
    "InstanceNorm3d": layer(
        lambda: quantized.InstanceNorm3d(6, _weight(GAINS), _weight(SLOPES), 0.03, 90), VOLUME
    ),
    "LeakyReLU": layer(lambda: quantized.LeakyReLU(0.02, 20, 0.1)),
    "Sigmoid": layer(lambda: quantized.Sigmoid(1 / 256, 0)),
    "Softmax": layer(lambda: quantized.Softmax(1, 1 / 256, 0)),
    "Dropout": layer(quantized.Dropout),
    "PReLU": layer(lambda: _slopes(quantized.PReLU(0.02, 60, 6))),
    "Embedding": _table(bags=False),
    "EmbeddingBag": _table(bags=True),
    "MultiheadAttention": Entry(_quantized_attention, (draw(2, 5, 8),)),
    **{
        f"ConvTranspose{n}d": layer(_transposed(n), shape)
        for n, shape in ((1, LINE), (2, IMAGE), (3, VOLUME))
    },
    "quantizable.LSTM": real(lambda: quantizable.LSTM(6, 8), (4, 3, 6)),
    "quantizable.MultiheadAttention": real(
        lambda: _Self(quantizable.MultiheadAttention(8, 2, batch_first=True)), (2, 5, 8)
    ),
}


class _Floats(nn.Module):
    """The methods of FloatFunctional and QFunctional."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner.add_relu(x, self.inner.add_scalar(x, 0.25))
        y = self.inner.mul(y, self.inner.mul_scalar(x, 0.5))
        return self.inner.cat([self.inner.add(x, y), y], 1)  # type: ignore[no-any-return]


def _numbered() -> nn.Module:
    functional = quantized.QFunctional()
    functional.scale, functional.zero_point = 0.07, 100
    return functional  # type: ignore[no-any-return]


def _slopes(activation: Any) -> nn.Module:
    activation.set_weight(quantize(SLOPES))
    return activation  # type: ignore[no-any-return]


def _dynamic_convolution(name: str, shape: tuple[int, ...]) -> Entry:
    count, turned = int(name[-2]), "Transpose" in name

    def build() -> nn.Module:
        torch.manual_seed(8)
        convolution: Any = getattr(dynamic, name)(6, 6, 3)
        weights = _weights(6, 6, *(3,) * count, channels=not turned)
        convolution.set_weight_bias(weights, torch.randn(6))
        return convolution  # type: ignore[no-any-return]

    return Entry(build, (draw(*shape),), DATA)


DYNAMIC: Mapping[str, Row] = {
    "Linear": Entry(_dynamic(lambda: nn.Linear(6, 8), nn.Linear), (draw(*ROWS),)),
    "LSTM": Entry(_dynamic(lambda: nn.LSTM(6, 8), nn.LSTM), (draw(4, 3, 6),), DATA),
    "LSTMCell": _cell(nn.LSTMCell),
    "GRUCell": _cell(nn.GRUCell),
    "RNNCell": _cell(nn.RNNCell),
    "GRU": Entry(_dynamic(lambda: nn.GRU(6, 8), nn.GRU), (draw(4, 3, 6),), DATA),
    **{
        f"Conv{kind}{n}d": _dynamic_convolution(f"Conv{kind}{n}d", shape)
        for kind in ("", "Transpose")
        for n, shape in ((1, LINE), (2, IMAGE), (3, VOLUME))
    },
}
QUANTIZED_FUNCTIONAL: Mapping[str, Row] = {
    "adaptive_avg_pool2d": on(lambda q: QF.adaptive_avg_pool2d(q, (3, 2))),
    "avg_pool2d": on(lambda q: QF.avg_pool2d(q, 2)),
    "avg_pool3d": on(lambda q: QF.avg_pool3d(q, 2), VOLUME),
    "conv1d": on(_combined("conv1d", (8, 6, 3)), LINE),
    "conv2d": on(_combined("conv2d", (8, 6, 3, 3))),
    "conv3d": on(_combined("conv3d", (8, 6, 3, 3, 3)), VOLUME),
    "interpolate": on(lambda q: QF.interpolate(q, scale_factor=2.0)),
    "linear": on(
        lambda q: QF.linear(q, _weights(8, 6, channels=False), SLOPES.repeat(2)[:8], 0.08, 77), ROWS
    ),
    "max_pool1d": on(lambda q: QF.max_pool1d(q, 2), LINE),
    "max_pool2d": on(lambda q: QF.max_pool2d(q, 2)),
    "elu": on(lambda q: QF.elu(q, 0.02, 60)),
    "hardsigmoid": on(QF.hardsigmoid),
    "hardswish": on(lambda q: QF.hardswish(q, 0.02, 20)),
    "hardtanh": on(lambda q: QF.hardtanh(q, -0.5, 0.7)),
    "upsample": on(lambda q: QF.interpolate(q, scale_factor=2.0)),
    "upsample_bilinear": on(
        lambda q: QF.interpolate(q, scale_factor=2.0, mode="bilinear", align_corners=True)
    ),
    "upsample_nearest": on(lambda q: QF.interpolate(q, scale_factor=2.0)),
    "adaptive_avg_pool3d": on(lambda q: QF.adaptive_avg_pool3d(q, 2), VOLUME),
    "celu": on(lambda q: QF.celu(q, 0.02, 60)),
    "leaky_relu": on(lambda q: QF.leaky_relu(q, 0.1, scale=0.02, zero_point=20)),
    "threshold": on(lambda q: QF.threshold(q, 0.4, 0.0)),
    "clamp": on(lambda q: QF.clamp(q, -0.5, 0.7)),
}


def _to(kind: torch.dtype, scale: float = 0.03, zero: int = 3) -> Entry:
    return Entry(lambda: _Typed(kind, scale, zero), (X,))


class _Typed(nn.Module):
    def __init__(self, kind: torch.dtype, scale: float, zero: int) -> None:
        super().__init__()
        self.kind, self.scale, self.zero = kind, scale, zero

    def forward(self, x: Tensor) -> Tensor:
        return torch.quantize_per_tensor(x, self.scale, self.zero, self.kind)


_CHANNELS = TENSORS["torch.quantize_per_channel"]
TYPES: Mapping[str, Row] = {
    "qscheme": "a class; its members follow",
    "per_tensor_affine": _to(torch.quint8),
    "per_channel_affine": _CHANNELS,
    "per_tensor_symmetric": Config("default_weight_observer"),
    "per_channel_symmetric": Config("default_per_channel_weight_observer"),
    "per_channel_affine_float_qparams": _table(bags=False),
    "quint8": _to(torch.quint8),
    "qint8": _to(torch.qint8),
    "qint32": _to(torch.qint32, 1e-6, 0),
    "quint4x2": _table(bags=True, bits=4),
    "quint2x4": "rows of 2 bits are read where embedding_bag_2bit does; no module makes them",
    "quantize_per_tensor to quint8": _to(torch.quint8, 0.02, 200),
    "quantize_per_tensor to qint8": _to(torch.qint8, 0.02, -20),
    "quantize_per_tensor to qint32": _to(torch.qint32, 1e-5, 7),
    "quint4x2 by channels with float zero points": _table(bags=True, bits=4),
}
SECTIONS: Mapping[str, Mapping[str, Row]] = {
    "Quantized torch.Tensor operations": TENSORS,
    "torch.nn.functional": FUNCTIONAL,
    "torch.nn.intrinsic": INTRINSIC,
    "torch.nn.intrinsic.qat": INTRINSIC_QAT,
    "torch.nn.intrinsic.quantized": INTRINSIC_QUANTIZED,
    "torch.nn.qat": QAT,
    "torch.quantization: eager mode": EAGER,
    "torch.quantization: FX": FX,
    "torch.quantization: QConfig": {
        "QConfig": "a pair of observers; the configurations follow",
        **{name: Config(name) for name in QConfigs},
        "QConfigDynamic": "a pair of observers, as QConfig is",
    },
    "torch.quantization: stubs": {
        "QuantStub": EAGER["convert"],
        "DeQuantStub": EAGER["convert"],
        "QuantWrapper": EAGER["add_quant_dequant"],
    },
    "torch.quantization: observers": {
        **{name: Config(name) for name in OBSERVERS},
        "ObserverBase": "abstract",
        "UniformQuantizationObserverBase": "abstract",
    },
    "torch.quantization: FakeQuantize": {
        **{name: Config(name) for name in FAKES},
        "enable_fake_quant, disable_fake_quant, enable_observer, disable_observer": EAGER[
            "prepare_qat"
        ],
    },
    "torch.nn.quantized": QUANTIZED,
    "torch.nn.quantized.dynamic": DYNAMIC,
    "torch.nn.quantized.functional": QUANTIZED_FUNCTIONAL,
    "dtypes and qschemes": TYPES,
}
