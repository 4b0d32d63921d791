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


def on(function: Callable[[Tensor], Any], shape: tuple[int, ...] = IMAGE, **more: Any) -> Entry:
    """A function or module of a quantized tensor."""
    return Entry(lambda: Quantizing(function), (draw(*shape),), **more)


def layer(make: Callable[[], nn.Module], shape: tuple[int, ...] = IMAGE, **more: Any) -> Entry:
    """A module of a quantized tensor, made when it is needed."""
    return Entry(lambda: Quantizing(make()), (draw(*shape),), **more)


def real(make: Callable[[], nn.Module], *shapes: tuple[int, ...], near: float = DATA) -> Entry:
    """A module of floats, with weights and statistics of a seed."""
    return Entry(lambda: _settled(make), tuple(draw(*shape) for shape in shapes), near)


def _settled(make: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(3)
    made = make()
    for part in made.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm):
            nn.init.uniform_(part.running_mean, -0.3, 0.3)  # type: ignore[arg-type]
            nn.init.uniform_(part.running_var, 0.5, 1.5)  # type: ignore[arg-type]
    return made.eval()


def trained(make: Callable[[Any], nn.Module], *shape: int, ids: bool = False) -> Entry:
    """A module of quantization-aware training that has seen data."""
    given = torch.arange(12).reshape(3, 4) if ids else draw(*shape)
    config = AO.default_embedding_qat_qconfig if ids else AO.get_default_qat_qconfig("fbgemm")

    def build() -> nn.Module:
        torch.manual_seed(3)
        made = make(config).train()
        for name, data in made.named_parameters():
            if name.endswith("bias"):  # LinearBn1d leaves its own as memory has it
                nn.init.uniform_(data, -0.3, 0.3)
        made(given)
        return made.eval().apply(AO.disable_observer)

    return Entry(build, (given,), DATA)


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
    made: nn.Module = AO.fuse_modules(Net().eval(), [["conv", "norm", "relu"]])
    return made


def _prepared() -> nn.Module:
    module = _fused()
    module.qconfig = AO.get_default_qconfig("fbgemm")
    made: nn.Module = AO.prepare(module)
    made(X)
    return made


def _trained() -> nn.Module:
    module = AO.fuse_modules_qat(Net().train(), [["conv", "norm", "relu"]])
    module.qconfig = AO.get_default_qat_qconfig("fbgemm")
    made: nn.Module = AO.prepare_qat(module)
    made(X)
    return made.eval().apply(AO.disable_observer)


def _prepared_fx() -> nn.Module:
    made = prepare_fx(Net().eval(), AO.get_default_qconfig_mapping("fbgemm"), (X,))
    made(X)
    return made


def _trained_fx() -> nn.Module:
    made = prepare_qat_fx(Net().train(), AO.get_default_qat_qconfig_mapping("fbgemm"), (X,))
    made(X)
    return made.eval().apply(AO.disable_observer)


def _wrapped() -> nn.Module:
    module = AO.QuantWrapper(nn.Linear(6, 4)).eval()
    module.qconfig = AO.get_default_qconfig("fbgemm")
    made = AO.prepare(module)
    made(draw(*ROWS))
    converted: nn.Module = AO.convert(made)
    return converted


def _quantized_attention() -> nn.Module:
    torch.manual_seed(2)
    module = nn.Sequential(AO.QuantStub(), _Self(nn.MultiheadAttention(8, 2, batch_first=True)))
    module.append(AO.DeQuantStub())
    module.eval().qconfig = AO.get_default_qconfig("fbgemm")
    custom = {
        "float_to_observed_custom_module_class": {
            nn.MultiheadAttention: quantizable.MultiheadAttention
        }
    }
    made = AO.prepare(module, prepare_custom_config_dict=custom)
    made(draw(2, 5, 8))
    back = {
        "observed_to_quantized_custom_module_class": {
            quantizable.MultiheadAttention: quantized.MultiheadAttention
        }
    }
    converted: nn.Module = AO.convert(made, convert_custom_config_dict=back)
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
        made: nn.Module = AO.quantize_dynamic(nn.Sequential(module()).eval(), {kind})
        return made

    return build


class _Cell(nn.Module):
    """A cell of a recurrent layer, at its first step."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


def _cell(kind: type[nn.Module]) -> Entry:
    made: Any = kind
    return Entry(_dynamic(lambda: _Cell(made(6, 8)), kind), (draw(*ROWS),), 1e-3)


def _table(bags: bool, bits: int = 8) -> Entry:
    kind: Any = nn.EmbeddingBag if bags else nn.Embedding
    more = {"mode": "sum", "include_last_offset": True} if bags else {}
    ids = torch.arange(12) % 7
    given = (ids, torch.tensor([0, 5, 5, 12])) if bags else (ids.reshape(3, 4),)

    def build() -> nn.Module:
        torch.manual_seed(5)
        module = nn.Sequential(kind(20, 8, **more)).eval()
        end = "" if bits == 8 else "_4bit"
        module.qconfig = getattr(AO, f"float_qparams_weight_only_qconfig{end}")
        made: nn.Module = AO.convert(AO.prepare(module))[0]
        return made

    return Entry(build, given)


def _combined(name: str, first: tuple[int, ...], bias: bool = True) -> Callable[[Tensor], Tensor]:
    """A convolution or linear layer of quantized.functional, its operands made in the call."""

    def call(q: Tensor) -> Tensor:
        torch.manual_seed(1)
        w, b = _weights(*first), torch.randn(first[0])
        made: Tensor = getattr(QF, name)(q, w, b, scale=0.08, zero_point=77)
        return made

    return call
