"""Converts observers, fake quantization and QConfigs of torch.ao to schemes and range rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.ao.quantization import FakeQuantizeBase, QConfig
from torch.ao.quantization import observer as ao

from qir.errors import Refused
from qir.ir.dtype import DType, dtype
from qir.ir.scheme import Scheme

from .quantization import RULE_BY_LEAST_SCALE
from .quantized_modules import with_found_ranges

_STORAGE = {
    torch.quint8: "u8",
    torch.uint8: "u8",
    torch.qint8: "i8",
    torch.int8: "i8",
    torch.qint32: "i32",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.uint16: "u16",
    torch.quint4x2: "u4",
}
_SYMMETRIC = (torch.per_tensor_symmetric, torch.per_channel_symmetric)


@dataclass(frozen=True)
class ObserverRecord:
    """The scheme and range rule of an observer."""

    scheme: Scheme
    """Storage, bounds, symmetry, granularity and range rule."""
    scales: str
    """The rule that turns a range into scale and zero point, as in `qir quantize --scales`."""


def observed(observer: object) -> ObserverRecord:
    """Returns the scheme of an observer, a fake quantization module, or a factory of one.

    An observer whose search QIR lacks, such as HistogramObserver, gives the scale and zero point
    that
    it has found. Raises Refused for one that finds none.
    """
    observer_module: Any = observer if isinstance(observer, nn.Module) else _instantiate(observer)
    # Fake quantization modules hold their observer; those with learned scales may hold none.
    if isinstance(observer_module, FakeQuantizeBase):
        observer_module = getattr(observer_module, "activation_post_process", observer_module)
    name = type(observer_module).__name__
    kinds = (ao.UniformQuantizationObserverBase, ao.FixedQParamsObserver, ao.PlaceholderObserver)
    if not isinstance(observer_module, kinds):
        raise Refused(f"{name} finds no scale and zero point; name another observer")
    storage = _storage(observer_module, name)
    if observer_module.qscheme == torch.per_channel_affine_float_qparams:
        raise Refused(
            f"{name}: a scheme has no real zero points; quantize in PyTorch and read that"
        )
    # A placeholder states the type only: ranges are found at run time (dynamic quantization).
    if isinstance(observer_module, ao.PlaceholderObserver):
        return ObserverRecord(Scheme(storage), "torch.observer")
    bounds = (int(observer_module.quant_min), int(observer_module.quant_max))
    scales = RULE_BY_LEAST_SCALE.get(float(getattr(observer_module, "eps", 0.0)), "torch.observer")
    if isinstance(observer_module, (ao.FixedQParamsObserver, ao.HistogramObserver)):
        return ObserverRecord(_scheme_of_fixed_qparams(observer_module, storage, bounds), scales)
    # torch.ao has no common base class of observers per channel.
    is_per_channel = hasattr(observer_module, "ch_axis")
    scheme = Scheme(
        storage,
        symmetric=observer_module.qscheme in _SYMMETRIC,
        granularity="channel" if is_per_channel else "tensor",
        bounds=bounds,
        range="minmax" if is_per_channel else _range_rule(observer_module),
    )
    return ObserverRecord(scheme, scales)


def calibrated(module: nn.Module) -> nn.Module:
    """Returns a copy of a prepared module that quantizes by the ranges that its observers found.

    `qir.load` reads it with the scales and zero points that torch.ao's `convert` would give it.
    Raises Refused where no observer has seen data.
    """
    result, count = with_found_ranges(module)
    if not count:
        raise Refused(
            f"{type(module).__name__}: no observer has seen data; prepare the module, and run data"
            " through it first"
        )
    return result


def observed_by(config: QConfig) -> dict[str, ObserverRecord | None]:
    """Returns the schemes of a QConfig's activations and weights; None for those left float.

    Raises Refused as `observed` does.
    """
    return {
        role: None
        if _is_float(observer := _instantiate(getattr(config, role)))
        else observed(observer)
        for role in ("activation", "weight")
    }


def _instantiate(factory: object) -> Any:
    if not callable(factory):
        raise Refused(f"{factory!r:.60} is no observer of torch.ao")
    make: Callable[[], Any] = factory
    return make()


def _is_float(observer: object) -> bool:
    is_identity = isinstance(observer, (nn.Identity, ao.NoopObserver))
    is_placeholder = isinstance(observer, ao.PlaceholderObserver)
    return is_identity or (is_placeholder and getattr(observer, "dtype", None) == torch.float32)


def _storage(observer: Any, name: str) -> DType:
    if observer.dtype not in _STORAGE:
        raise Refused(f"{name} of {observer.dtype} finds no integers; name one of quint8 or qint8")
    return dtype(_STORAGE[observer.dtype])


def _range_rule(observer: Any) -> str:
    """Returns the range rule; a moving average has its averaging constant."""
    if isinstance(observer, ao.MovingAverageMinMaxObserver):
        return f"average:{observer.averaging_constant:g}"
    return "minmax"


def _scheme_of_fixed_qparams(observer: Any, storage: DType, bounds: tuple[int, int]) -> Scheme:
    """Returns the scheme with the scale and zero point of an observer."""
    if isinstance(observer, ao.HistogramObserver) and bool(torch.isinf(observer.min_val).any()):
        raise Refused(
            "HistogramObserver has seen no data, and QIR has no rule of its numbers: run data "
            "through it first, or take range rule mse"
        )
    scale, zero = observer.calculate_qparams()
    return Scheme(
        storage,
        symmetric=observer.qscheme in _SYMMETRIC,
        bounds=bounds,
        scale=float(scale),
        zero=int(zero),
    )


__all__ = ["ObserverRecord", "calibrated", "observed", "observed_by"]
