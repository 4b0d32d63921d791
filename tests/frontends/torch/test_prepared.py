"""Modules that torch.ao has prepared and not converted: observers, and training aware of int8."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, ao, nn
from torch.ao.nn.quantized import FloatFunctional
from torch.ao.quantization import QuantStub
from torch.ao.quantization.quantize_fx import (
    convert_fx,
    convert_to_reference_fx,
    prepare_fx,
    prepare_qat_fx,
)

import qir
from qir.backends.torch.session import engine
from qir.errors import Refused
from qir.frontends.torch.observers import calibrated
from tests.frontends.comparison import difference
from tests.processors import has

from .comparison import run_graph, run_module

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
AO: Any = ao.quantization
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
NEAR = 1e-5


class Net(nn.Module):
    """A convolution with batch norm and relu, a sum, a pool, a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(6)
        self.quant = QuantStub()
        self.conv, self.norm, self.relu = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()
        self.linear, self.sum = nn.Linear(8, 4), FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.norm(self.conv(self.quant(x))))
        y = self.sum.add(y, y)
        made: Tensor = self.linear(nn.functional.adaptive_avg_pool2d(y, 1).flatten(1))
        return made


def observed_by_fx(chosen: str = "x86") -> nn.Module:
    made = prepare_fx(Net().eval(), AO.get_default_qconfig_mapping(chosen), (X,))
    made(X)
    return made


def observed_eagerly() -> nn.Module:
    module = Net().eval()
    module.qconfig = AO.get_default_qconfig("x86")
    made: nn.Module = AO.prepare(module)
    made(X)
    return made


def trained_by_fx() -> nn.Module:
    made = prepare_qat_fx(Net().train(), AO.get_default_qat_qconfig_mapping("x86"), (X,))
    made(X)
    return made.eval()


def trained_eagerly() -> nn.Module:
    module = AO.fuse_modules_qat(Net().train(), [["conv", "norm", "relu"]])
    module.qconfig = AO.get_default_qat_qconfig("x86")
    made: nn.Module = AO.prepare_qat(module)
    made(X)
    return made.eval()


@pytest.mark.parametrize("make", [observed_by_fx, observed_eagerly])
def test_an_observed_module_is_read_as_the_float_one(make: Any) -> None:
    module = make()
    before = copy.deepcopy(module.state_dict())
    ledger = qir.Ledger()
    graph = qir.load(module, inputs=(X,), ledger=ledger)
    assert [e.reason for e in ledger if "observers are left out; calibrate" in e.reason]
    assert not [v for v in graph.values.values() if v.type.quant]
    after = module.state_dict()
    assert all(torch.equal(held, after[name]) for name, held in before.items())
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(Net(), [X])
    assert difference(ours, theirs, NEAR) == ""


class Plain(nn.Module):
    """Layers that eager mode quantizes without a float operator between them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.quant, self.dequant = QuantStub(), AO.DeQuantStub()
        self.conv, self.relu, self.linear = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Linear(72, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.max_pool2d(self.relu(self.conv(self.quant(x))), 2)
        made: Tensor = self.dequant(self.linear(y.flatten(1)))
        return made


def plain_observed_eagerly(chosen: str) -> nn.Module:
    module = AO.fuse_modules(Plain().eval(), [["conv", "relu"]])
    module.qconfig = AO.get_default_qconfig(chosen)
    made: nn.Module = AO.prepare(module)
    made(X)
    return made


@pytest.mark.skipif(not has("vnni"), reason="profiles of PyTorch speak of VNNI")
@pytest.mark.parametrize(
    ("make", "convert"),
    [(observed_by_fx, convert_fx), (plain_observed_eagerly, AO.convert)],
    ids=["fx", "eager"],
)
@pytest.mark.parametrize("chosen", ["x86", "qnnpack"])
def test_what_observers_found_gives_the_bytes_of_convert(
    make: Callable[[str], nn.Module], convert: Callable[..., nn.Module], chosen: str, tmp_path: Path
) -> None:
    with engine(chosen):
        module = make(chosen)
        before = copy.deepcopy(module.state_dict())
        graph = qir.load(calibrated(module), inputs=(X,))
        assert all(torch.equal(held, module.state_dict()[name]) for name, held in before.items())
        qir.save(graph, tmp_path / "int8.pt", target=f"pytorch-{chosen}", lossy=True)
        load: Any = torch.jit.load
        assert torch.equal(load(tmp_path / "int8.pt")(X), convert(module)(X))


def test_what_observers_of_exported_modules_found_becomes_types() -> None:
    module = observed_after_export()
    graph = qir.load(calibrated(module), inputs=(X,))
    scales = {
        float(part.calculate_qparams()[0])
        for part in module.modules()
        if isinstance(part, AO.HistogramObserver)
    }
    kinds = [n.result.type.quant for n in graph if n.op == "quantize"]
    assert {float(kind.scales()) for kind in kinds if kind is not None} == scales


@pytest.mark.parametrize(
    "make",
    [
        lambda: Net().eval(),
        lambda: prepare_fx(Net().eval(), AO.get_default_qconfig_mapping("x86"), (X,)),
    ],
    ids=["float", "without data"],
)
def test_a_module_whose_observers_saw_nothing_is_refused(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(Refused, match="no observer has seen data; prepare the module"):
        calibrated(make())


@pytest.mark.parametrize("make", [trained_by_fx, trained_eagerly])
def test_fake_quantization_becomes_types_with_its_scales(make: Any) -> None:
    module = make()
    module.apply(AO.disable_observer)
    graph = qir.load(module, inputs=(X,))
    fakes = [m for m in module.modules() if isinstance(m, AO.FakeQuantize)]
    kinds = [n.result.type.quant for n in graph if n.op == "quantize"]
    ours = {(np.asarray(k.scales()).tobytes(), k.bounds) for k in kinds if k is not None}
    for fake in fakes:
        low, high = fake.activation_post_process.quant_min, fake.activation_post_process.quant_max
        scale = fake.scale.numpy() if fake.is_per_channel else fake.scale.numpy().reshape(())
        full = (low, high) in ((0, 255), (-128, 127))
        assert (scale.tobytes(), None if full else (low, high)) in ours
    (made,), (theirs,) = run_graph(graph, [X]), run_module(module, [X])
    assert difference(made, theirs, NEAR) == ""


def test_fake_quantization_that_is_switched_off_leaves_floats() -> None:
    module = trained_by_fx().apply(AO.disable_fake_quant).apply(AO.disable_observer)
    graph = qir.load(module, inputs=(X,))
    assert not [v for v in graph.values.values() if v.type.quant]
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(module, [X])
    assert difference(ours, theirs, NEAR) == ""


def test_a_reference_module_computes_floats_between_quantized_values() -> None:
    module = convert_to_reference_fx(observed_by_fx())  # type: ignore[arg-type]
    graph = qir.load(module, inputs=(X,))
    assert not any(node.stages for node in graph), "nothing says that one kernel computes them"
    assert [n.op for n in graph].count("conv2d") == 1
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(module, [X])
    assert difference(ours, theirs, NEAR) == ""


def observed_after_export() -> nn.Module:
    """A module as `prepare_pt2e` gives it: exported, with an observer after each call."""
    made: Any = torch.export.export(Net().eval(), (X,)).module()
    for node in list(made.graph.nodes):
        if node.op == "call_function" and isinstance(node.meta.get("val"), Tensor):
            name = f"activation_post_process_{node.name}"
            setattr(made, name, AO.HistogramObserver())
            with made.graph.inserting_after(node):
                observer = made.graph.call_module(name, (node,))
            node.replace_all_uses_with(observer, lambda user, own=observer: user is not own)
    made.recompile()
    made(X)
    return made  # type: ignore[no-any-return]


def test_an_exported_module_with_observers_is_read_as_the_float_one() -> None:
    module, ledger = observed_after_export(), qir.Ledger()
    with pytest.raises(NotImplementedError):
        module.eval()
    graph = qir.load(module, inputs=(X,), ledger=ledger)
    assert [e.reason for e in ledger if "observers are left out; calibrate" in e.reason]
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(Net(), [X])
    assert difference(ours, theirs, NEAR) == ""


def test_observers_of_torchao_are_known_by_the_names_of_their_classes() -> None:
    from qir.frontends.torch.quantized_modules import without_observers

    base = type(
        "ObserverBase", (nn.Identity,), {"__module__": "torchao.quantization.pt2e.observer"}
    )
    other = type("ObserverBase", (nn.Identity,), {"__module__": "user.observers"})
    kept, count = without_observers(nn.Sequential(base(), other(), nn.ReLU()))
    assert count == 1
    assert [type(part).__name__ for part in kept] == ["Identity", "ObserverBase", "ReLU"]
