"""Modules of torch.ao: quantized ones, and prepared ones with observers or fake quantization."""

from __future__ import annotations

import copy
import functools
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

_QUANTIZED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized")
_FUNCTIONAL = "FloatFunctional"
"""torch.ao's module of float functions; its package is that of the quantized modules."""
_OBSERVERS, _FAKES = frozenset({"ObserverBase"}), frozenset({"FakeQuantizeBase"})
_WEIGHTED = frozenset(
    ("Linear", *(f"Conv{kind}{n}d" for kind in ("", "Transpose") for n in (1, 2, 3)))
)
"""Layers of torch.nn whose weights `convert` quantizes by their QConfig."""
_QUANTIZING_FUNCTIONS = (
    "quantize_per_tensor",
    "quantize_per_channel",
    "quantize_per_tensor_dynamic",
)


def is_quantized(module: nn.Module) -> bool:
    """Returns whether a module uses quantized tensors, as one does after `convert`."""
    for part in module.modules():
        # A float model may contain FloatFunctional, though it is defined in torch.ao.nn.quantized.
        if type(part).__name__ == _FUNCTIONAL:
            continue
        if any(kind.__module__.startswith(_QUANTIZED) for kind in type(part).__mro__):
            return True
        # `convert_fx` leaves functional quantized calls in the graph, without a quantized
        # submodule.
        if isinstance(part, torch.fx.GraphModule) and any(
            map(_is_quantized_call, part.graph.nodes)
        ):
            return True
    return False


def makes_quantized_tensor(node: torch.fx.Node) -> bool:
    """Returns whether a node of an exported program creates a quantized tensor."""
    return str(node.target).startswith(tuple(f"aten.{call}." for call in _QUANTIZING_FUNCTIONS))


def uses_quantized_tensors(module: torch.jit.ScriptModule) -> bool:
    """Returns whether a traced module uses quantized tensors."""
    graph: Any = module.inlined_graph
    kinds = {str(node.kind()) for node in graph.nodes()}
    return any(kind.startswith(("quantized::", "aten::quantize_per")) for kind in kinds)


def _is_quantized_call(node: torch.fx.Node) -> bool:
    if node.op != "call_function":
        return False
    target: Any = node.target
    if isinstance(target, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return str(target).startswith("quantized.")
    return getattr(target, "__name__", "") in _QUANTIZING_FUNCTIONS


def without_observers(module: nn.Module) -> tuple[nn.Module, int]:
    """Returns a copy of a module without observers, and how many there were.

    Fake quantization stays, with its current scale and zero point. A module without either is
    returned itself.
    """
    if not any(_is_instance_by_name(part, _OBSERVERS | _FAKES) for part in module.modules()):
        return module, 0
    module, count = copy.deepcopy(module), 0
    # FX shares one observer among several places, which are all to be replaced.
    for path, part in list(module.named_modules(remove_duplicate=False)):
        if path and _is_instance_by_name(part, _OBSERVERS | _FAKES):
            owner, _, name = path.rpartition(".")
            is_fake_quantize = _is_instance_by_name(part, _FAKES)
            setattr(
                module.get_submodule(owner),
                name,
                _FixedFakeQuantize.of_trained(part) if is_fake_quantize else nn.Identity(),
            )
            count += not is_fake_quantize
    return module, count


def with_found_ranges(module: nn.Module) -> tuple[nn.Module, int]:
    """Returns a copy of a module that quantizes as its observers have found, and their count.

    Each observer that has seen data becomes fake quantization by its scale and zero point, as do
    the weights of layers, by the observer of weights in their QConfig. `convert` of torch.ao does
    the same. Observers without data are not counted.
    """
    module, count = copy.deepcopy(module), 0
    for path, part in list(module.named_modules(remove_duplicate=False)):
        if path and _is_instance_by_name(part, _OBSERVERS) and _has_seen_data(part):
            owner_path, _, name = path.rpartition(".")
            owner = module.get_submodule(owner_path)
            if not _is_instance_by_name(owner, _FAKES):
                setattr(owner, name, _FixedFakeQuantize.of_observer(part))
                count += 1
    for part in list(module.modules()):
        make = getattr(getattr(part, "qconfig", None), "weight", None)
        # Norms stay float; modules for training quantize their weight themselves.
        if not count or make is None or type(part).__name__ not in _WEIGHTED:
            continue
        observer: Any = make()
        observer(part.weight)
        if _has_seen_data(observer):
            quantizer = _FixedFakeQuantize.of_observer(observer)
            parametrize.register_parametrization(part, "weight", quantizer)
    return module, count


def _has_seen_data(observer: Any) -> bool:
    """Returns whether an observer knows a scale, as those of dynamic layers do not."""
    if not hasattr(observer, "calculate_qparams") or getattr(observer, "is_dynamic", False):
        return False
    if not hasattr(observer, "quant_min"):
        return False
    low = getattr(observer, "min_val", None)  # those of fixed scales have no ranges
    return low is None or (low.numel() > 0 and bool(torch.isfinite(low).all()))


def _is_instance_by_name(part: nn.Module, names: frozenset[str]) -> bool:
    """Returns whether a module is of such a class of torch.ao or torchao.

    By name, since each of the two packages has its own classes and torchao may be missing.
    """
    return any(
        kind.__name__ in names and kind.__module__.startswith(("torch.ao.", "torchao."))
        for kind in type(part).__mro__
    )


def with_functional_as_modules(module: nn.Module) -> nn.Module:
    """Returns a copy whose FloatFunctional parts are called as modules, so that traces record them.

    A module without any is returned itself.
    """
    paths = [p for p, part in module.named_modules() if type(part).__name__ == _FUNCTIONAL]
    if not paths:
        return module
    module = copy.deepcopy(module)
    # The empty path is the module itself, which has no owner to replace it in.
    for path in filter(None, paths):
        owner, _, name = path.rpartition(".")
        setattr(module.get_submodule(owner), name, _CallableFunctional(module.get_submodule(path)))
    return module


class _CallableFunctional(nn.Module):
    """A FloatFunctional whose functions are calls of the module itself."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.activation_post_process = part.activation_post_process

    def forward(self, function: str, *args: Any) -> torch.Tensor:
        from torch.ao.nn.quantized import FloatFunctional

        functional: Any = FloatFunctional()
        functional.activation_post_process = self.activation_post_process
        result: torch.Tensor = getattr(functional, function)(*args)
        return result

    def __getattr__(self, name: str) -> Any:
        if name in _FLOAT_FUNCTIONS:
            return functools.partial(self.__call__, name)
        return super().__getattr__(name)


_FLOAT_FUNCTIONS = frozenset("add add_scalar mul mul_scalar cat add_relu matmul".split())


class _FixedFakeQuantize(nn.Module):
    """Fake quantization with fixed scale and zero point, those found by training or calibration."""

    scale: torch.Tensor
    zero_point: torch.Tensor

    def __init__(
        self,
        scale: torch.Tensor,
        zero_point: torch.Tensor,
        observer: Any,
        axis: int | None,
        *,
        enabled: bool = True,
    ) -> None:
        super().__init__()
        self.enabled = enabled
        self.register_buffer("scale", scale.detach().float())
        zeros = zero_point.detach()
        self.register_buffer("zero_point", zeros if zeros.is_floating_point() else zeros.int())
        self.low, self.high = int(observer.quant_min), int(observer.quant_max)
        self.axis = axis

    @classmethod
    def of_trained(cls, fake_quantize: Any) -> _FixedFakeQuantize:
        """Returns what a fake quantization module does in inference."""
        axis = int(fake_quantize.ch_axis) if fake_quantize.is_per_channel else None
        return cls(
            fake_quantize.scale,
            fake_quantize.zero_point,
            fake_quantize.activation_post_process,
            axis,
            enabled=bool(fake_quantize.fake_quant_enabled[0]),
        )

    @classmethod
    def of_observer(cls, observer: Any) -> _FixedFakeQuantize:
        """Returns fake quantization by the scale and zero point that an observer has found."""
        scale, zero_point = observer.calculate_qparams()
        if (axis := getattr(observer, "ch_axis", None)) is None:
            scale, zero_point = scale.reshape(()), zero_point.reshape(())
        return cls(scale, zero_point, observer, axis)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.enabled:
            return x
        if self.axis is None:
            return torch.fake_quantize_per_tensor_affine(
                x, self.scale, self.zero_point, self.low, self.high
            )
        # Quantized types of a graph have integer zero points: float ones are plain arithmetic.
        if self.zero_point.is_floating_point():
            return self._by_real_zeros(x)
        return torch.fake_quantize_per_channel_affine(
            x, self.scale, self.zero_point, self.axis, self.low, self.high
        )

    def _by_real_zeros(self, x: torch.Tensor) -> torch.Tensor:
        """Computes as PyTorch does for float zero points, which embedding tables have."""
        shape = [-1 if axis == self.axis else 1 for axis in range(x.dim())]
        scale, zero = self.scale.reshape(shape), self.zero_point.reshape(shape)
        quantized = torch.round(x * (1 / scale) + zero).clamp(self.low, self.high)
        return (quantized - zero) * scale
