"""Modules that stand for entries of PyTorch's quantization-support page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
import torch.ao.nn.quantizable as quantizable
import torch.ao.nn.quantized as quantized
import torch.ao.nn.quantized.functional as QF
import torch.nn.functional as F
from torch import Tensor, ao, nn
from torch.ao.quantization.quantize_fx import prepare_fx, prepare_qat_fx

from .quantized_cases import (
    IMAGE,
    ROWS,
    Quantizing,
    _inverted,
    _weights,
)

AO: Any = ao.quantization
DATA = 1e-5
"""How far float results may be off."""


@dataclass(frozen=True)
class Entry:
    """A module, what it is given, and how near its results must be."""

    make: Callable[[], nn.Module]
    inputs: tuple[Tensor, ...]
    near: float | None = None
    """How far results may be off; None: every integer is equal."""
    engine: str = "fbgemm"


@dataclass(frozen=True)
class Config:
    """An observer or a QConfig by its name in torch.ao.quantization."""

    name: str


Row: TypeAlias = Entry | Config | str
"""What is tried of an entry; a text says why there is nothing to try."""


def draw(*shape: int) -> Tensor:
    """Returns data of a seed that follows from the shape."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def on(function: Callable[[Tensor], Any], shape: tuple[int, ...] = IMAGE, **options: Any) -> Entry:
    """Returns the entry of a function or module of a quantized tensor."""
    return Entry(lambda: Quantizing(function), (draw(*shape),), **options)


def layer(make: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE, **options: Any) -> Entry:
    """Returns the entry of a module of a quantized tensor, which is made when it is needed."""
    return Entry(lambda: Quantizing(make()), (draw(*shape),), **options)


def real(make: Callable[[], nn.Module], *shapes: tuple[int, ...], near: float = DATA) -> Entry:
    """Returns the entry of a module of floats, with weights and statistics of a seed."""
    return Entry(lambda: _settled(make), tuple(draw(*shape) for shape in shapes), near)


def _settled(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    module = make()
    for part in module.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(part.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return module.eval()


def trained(make: Callable[[Any], nn.Module], *shape: int, ids: bool = False) -> Entry:
    """Returns the entry of a module of quantization-aware training that has seen data."""
    inputs = torch.arange(12).reshape(3, 4) if ids else draw(*shape)
    config = AO.default_embedding_qat_qconfig if ids else AO.get_default_qat_qconfig("fbgemm")

    def build() -> nn.Module:
        torch.manual_seed(3)
        module = make(config).train()
        for name, data in module.named_parameters():
            if name.endswith("bias"):  # LinearBn1d leaves its own as memory has it
                nn.init.uniform_(data, -0.3, 0.3)
        module(inputs)
        return module.eval().apply(AO.disable_observer)

    return Entry(build, (inputs,), DATA)


class Net(nn.Module):
    """A network for the functions that prepare and convert."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.quant, self.dequant = AO.QuantStub(), AO.DeQuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(self.quant(x))))
        y = self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return self.dequant(y)  # type: ignore[no-any-return]


X = draw(*IMAGE)


def _fused() -> nn.Module:
    module: nn.Module = AO.fuse_modules(Net().eval(), [["conv", "norm", "relu"]])
    return module


def _prepared() -> nn.Module:
    module = _fused()
    module.qconfig = AO.get_default_qconfig("fbgemm")
    prepared: nn.Module = AO.prepare(module)
    # The observers see one batch.
    prepared(X)
    return prepared


def _trained() -> nn.Module:
    module = AO.fuse_modules_qat(Net().train(), [["conv", "norm", "relu"]])
    module.qconfig = AO.get_default_qat_qconfig("fbgemm")
    prepared: nn.Module = AO.prepare_qat(module)
    prepared(X)
    return prepared.eval().apply(AO.disable_observer)


def _prepared_fx() -> nn.Module:
    prepared = prepare_fx(Net().eval(), AO.get_default_qconfig_mapping("fbgemm"), (X,))
    prepared(X)
    return prepared


def _trained_fx() -> nn.Module:
    prepared = prepare_qat_fx(Net().train(), AO.get_default_qat_qconfig_mapping("fbgemm"), (X,))
    prepared(X)
    return prepared.eval().apply(AO.disable_observer)


def _wrapped() -> nn.Module:
    module = AO.QuantWrapper(nn.Linear(6, 4)).eval()
    module.qconfig = AO.get_default_qconfig("fbgemm")
    prepared = AO.prepare(module)
    prepared(draw(*ROWS))
    converted: nn.Module = AO.convert(prepared)
    return converted


def _quantized_attention() -> nn.Module:
    torch.manual_seed(2)
    module = nn.Sequential(AO.QuantStub(), _Self(nn.MultiheadAttention(8, 2, batch_first=True)))
    module.append(AO.DeQuantStub())
    module.eval().qconfig = AO.get_default_qconfig("fbgemm")
    preparation = {
        "float_to_observed_custom_module_class": {
            nn.MultiheadAttention: quantizable.MultiheadAttention
        }
    }
    prepared = AO.prepare(module, prepare_custom_config_dict=preparation)
    prepared(draw(2, 5, 8))
    conversion = {
        "observed_to_quantized_custom_module_class": {
            quantizable.MultiheadAttention: quantized.MultiheadAttention
        }
    }
    converted: nn.Module = AO.convert(prepared, convert_custom_config_dict=conversion)
    return converted


class _Self(nn.Module):
    """Attention of a sequence to itself."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x)[0]  # type: ignore[no-any-return]


class _Pair(nn.Module):
    """A module of two operands that are both made of one."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, q: Tensor) -> Tensor:
        return self.inner(q, _inverted(q))  # type: ignore[no-any-return]


def _dynamic(module: Callable[[], nn.Module], kind: type[nn.Module]) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        torch.manual_seed(4)
        module_made: nn.Module = AO.quantize_dynamic(nn.Sequential(module()).eval(), {kind})
        return module_made

    return build


class _Cell(nn.Module):
    """A cell of a recurrent layer, at its first step."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def _cell(kind: type[nn.Module]) -> Entry:
    constructor: Any = kind
    return Entry(_dynamic(lambda: _Cell(constructor(6, 8)), kind), (draw(*ROWS),), 1e-3)


def _table(bags: bool, bits: int = 8) -> Entry:
    kind: Any = nn.EmbeddingBag if bags else nn.Embedding
    options = {"mode": "sum", "include_last_offset": True} if bags else {}
    ids = torch.arange(12) % 7
    inputs = (ids, torch.tensor([0, 5, 5, 12])) if bags else (ids.reshape(3, 4),)

    def build() -> nn.Module:
        torch.manual_seed(5)
        module = nn.Sequential(kind(20, 8, **options)).eval()
        end = "" if bits == 8 else "_4bit"
        module.qconfig = getattr(AO, f"float_qparams_weight_only_qconfig{end}")
        table: nn.Module = AO.convert(AO.prepare(module))[0]
        return table

    return Entry(build, inputs)


def _combined(name: str, first: tuple[int, ...], bias: bool = True) -> Callable[[Tensor], Tensor]:
    """A convolution or linear layer of quantized.functional, its operands made in the call."""

    def call(q: Tensor) -> Tensor:
        torch.manual_seed(1)
        w, b = _weights(*first), torch.randn(first[0])
        result: Tensor = getattr(QF, name)(q, w, b, scale=0.08, zero_point=77)
        return result

    return call
