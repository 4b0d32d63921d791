"""Format eager: the user's module with quantized submodules, beside torch.ao's own conversion."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization
from torch.ao.nn.quantized import FloatFunctional

import qir
from qir.errors import Refused, UsageError
from qir.ir.graph import Graph
from tests.frontends.torch.test_torchscript import engine as running

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
AO: Any = quantization


class Block(nn.Module):
    """A residual block as torchvision's quantizable networks have it."""

    def __init__(self, wide: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide)
        self.relu = nn.ReLU()
        self.conv2, self.bn2 = nn.Conv2d(wide, wide, 3, padding=1), nn.BatchNorm2d(wide)
        self.sum = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        made: Tensor = self.sum.add_relu(self.bn2(self.conv2(y)), x)
        return made


class Net(nn.Module):
    """Convolutions, sums, products, concatenations and activations, between stubs."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = AO.QuantStub(), AO.DeQuantStub()
        self.stem, self.bn = nn.Conv2d(3, 8, 3, 2, bias=False), nn.BatchNorm2d(8)
        self.block = Block(8)
        self.swish, self.gate, self.mul = nn.Hardswish(), nn.Hardsigmoid(), FloatFunctional()
        self.join, self.pool = FloatFunctional(), nn.AdaptiveAvgPool2d(1)
        self.drop, self.head = nn.Dropout(0.3), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.swish(self.bn(self.stem(self.quant(x))))
        x = self.block(x)
        x = self.join.cat([x, self.mul.mul(x, self.gate(x))], 1)
        x = self.head(self.drop(torch.flatten(self.pool(x), 1)))
        made: Tensor = self.dequant(x)
        return made


FUSED = [["stem", "bn"], ["block.conv1", "block.bn1", "block.relu"], ["block.conv2", "block.bn2"]]


def net() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(4)
    made = Net().eval()
    for part in made.modules():
        if isinstance(part, nn.BatchNorm2d):
            held: Any = part
            nn.init.uniform_(held.running_var, 0.5, 2)
            nn.init.uniform_(held.running_mean, -0.2, 0.2)
    return made, torch.randn(4, 3, 17, 17)


def quantized(module: nn.Module, x: Tensor, name: str = "x86") -> Graph:
    graph = qir.load(module, inputs=(x,))
    data = {graph.inputs[0].name: x.numpy()}
    return qir.quantize(graph, qir.calibrate(graph, data), target=f"pytorch-{name}")


def by_torch(module: nn.Module, x: Tensor, rows: list[list[str]]) -> nn.Module:
    whole = copy.deepcopy(module)
    whole = AO.fuse_modules(whole, rows) if rows else whole
    stubs = any(isinstance(part, AO.QuantStub) for part in whole.modules())
    whole = whole if stubs else AO.QuantWrapper(whole)
    whole.qconfig = AO.get_default_qconfig("x86")
    prepared = AO.prepare(whole)
    prepared(x)
    made: nn.Module = AO.convert(prepared)
    return made


@pytest.mark.parametrize("name", ["x86", "fbgemm", "onednn", "qnnpack"])
def test_a_module_has_torch_aos_keys_and_the_bytes_of_the_graph(name: str) -> None:
    module, x = net()
    graph = quantized(module, x, name)
    made: Any = qir.build(graph, target=f"pytorch-{name}", format="eager", module=module)
    wanted = by_torch(module, x, FUSED)
    assert list(made.state_dict()) == list(wanted.state_dict())
    kinds = [(path, type(part)) for path, part in made.named_modules()]
    assert kinds == [(path, type(part)) for path, part in wanted.named_modules()]
    with running(name):
        theirs = made(x).numpy()
    grouped = qir.target.target(f"pytorch-{name}").computed(graph, qir.Ledger())
    assert grouped is not None
    (ours,) = qir.run(grouped, {graph.inputs[0].name: x.numpy()}).values()
    assert np.array_equal(ours, theirs)
    assert float(np.abs(theirs - module(x).detach().numpy()).max()) < 0.2


def test_a_module_without_stubs_is_wrapped_and_keeps_its_own() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3), nn.Tanh()).eval()
    before, x = copy.deepcopy(module.state_dict()), torch.randn(16, 6)
    graph = quantized(module, x)
    made: Any = qir.build(graph, target="pytorch-x86", format="eager", module=module)
    assert list(made.state_dict()) == list(by_torch(module, x, [["0", "1"]]).state_dict())
    after = module.state_dict()
    assert all(torch.equal(held, after[key]) for key, held in before.items())
    assert not hasattr(module, "qconfig")


class Reused(nn.Module):
    """Calls one relu after two layers and after a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.relu = nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU()
        self.sum = FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.a(x))
        made: Tensor = self.relu(self.sum.add(self.relu(self.b(y)), y))
        return made


def test_a_relu_that_is_called_often_is_not_fused_and_gives_the_same_bytes() -> None:
    torch.manual_seed(2)
    module, x = Reused().eval(), torch.randn(16, 6)
    graph = quantized(module, x)
    made: Any = qir.build(graph, target="pytorch-x86", format="eager", module=module)
    wanted = by_torch(module, x, [])
    assert list(made.state_dict()) == list(wanted.state_dict())
    grouped = qir.target.target("pytorch-x86").computed(graph, qir.Ledger())
    assert grouped is not None
    (ours,) = qir.run(grouped, {graph.inputs[0].name: x.numpy()}).values()
    with running("x86"):
        assert np.array_equal(ours, made(x).numpy())


def test_a_function_that_is_never_called_needs_no_scale() -> None:
    """torchvision's quantizable MobileNetV2 has such sums where a block skips nothing."""

    class Idle(Reused):
        def __init__(self) -> None:
            super().__init__()
            self.skip_add = FloatFunctional()

    torch.manual_seed(2)
    module, x = Idle().eval(), torch.randn(16, 6)
    made: Any = qir.build(quantized(module, x), target="pytorch-x86", format="eager", module=module)
    assert list(made.state_dict()) == list(by_torch(module, x, []).state_dict())


class Sum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) + self.b(x)  # type: ignore[no-any-return]


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(self.a(x))  # type: ignore[no-any-return]


class Called(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4, 6))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.w)


REFUSED = {
    "a functional sum": (
        Sum,
        r"Sum: add \(add\) has a scale of its own, and in eager mode it is no module of its own: "
        r"call it by torch\.ao\.nn\.quantized\.FloatFunctional",
    ),
    "a module that is called twice": (Twice, "module a is called twice with scales of its own"),
    "a functional layer": (Called, r"linear \(linear\) is called in forward and is no module"),
    "a module that stays float": (
        lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)),
        "module module.1 is float in the graph, and eager mode would quantize it",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_mode_cannot_compute_is_refused(name: str) -> None:
    torch.manual_seed(1)
    kind, said = REFUSED[name]
    module, x = kind().eval(), torch.randn(16, 6)
    graph = quantized(module, x)
    with pytest.raises(Refused, match=said):
        qir.build(graph, target="pytorch-x86", format="eager", module=module)


def test_the_module_and_the_format_belong_together() -> None:
    module, x = nn.Linear(6, 6).eval(), torch.randn(16, 6)
    graph = quantized(module, x)
    for format, given in (("eager", None), ("fx", module)):
        with pytest.raises(UsageError, match="format eager, and it alone, converts the module"):
            qir.build(graph, target="pytorch-x86", format=format, module=given)
    with pytest.raises(UsageError, match="target onnx builds no objects"):
        qir.build(graph, target="onnx", module=module)
