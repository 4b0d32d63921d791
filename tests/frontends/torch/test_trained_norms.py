"""Layers with a batch norm that were prepared for training: folded as torch.ao's convert does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, ao, nn
from torch.ao.quantization.quantize_fx import convert_fx, prepare_qat_fx

import qir
from qir.errors import Refused
from qir.ledger import Change
from qir.target import target
from tests.frontends.comparison import difference
from tests.zoo.compared import compare

from .comparison import run_graph, run_module

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
AO: Any = ao.quantization
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    torch.manual_seed(9)
    before, engine = torch.get_num_threads(), torch.backends.quantized.engine
    torch.set_num_threads(1)
    torch.backends.quantized.engine = "x86"
    yield
    torch.set_num_threads(before)
    torch.backends.quantized.engine = engine


class Block(nn.Module):
    """Two convolutions with norms and a summand, as in a residual network."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1, bias=bias), nn.BatchNorm2d(8)
        self.linear = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm(self.first(x)))
        y = F.relu(y + self.last(self.second(y)))
        made: Tensor = self.linear(F.adaptive_avg_pool2d(y, 1).flatten(1))
        return made


def settled(module: nn.Module) -> nn.Module:
    """Trains for three steps, and stops observing.

    Fused fake quantization computes its scales by another formula than the convert that follows,
    so all are set by the latter's.
    """
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.uniform_(part.bias, -0.3, 0.3)
    for _ in range(3):
        module(torch.randn(X.shape) * 2)
    module.eval().apply(AO.disable_observer)
    for part in module.modules():
        if isinstance(part, AO.FakeQuantize):
            scale, zero = part.calculate_qparams()
            part.scale.copy_(scale)
            part.zero_point.copy_(zero)
    return module


def by_fx(bias: bool) -> tuple[nn.Module, nn.Module]:
    mapping = AO.get_default_qat_qconfig_mapping("x86")
    trained = settled(prepare_qat_fx(Block(bias).train(), mapping, (X,)))
    return trained, convert_fx(copy.deepcopy(trained))  # type: ignore[arg-type]


def eagerly(bias: bool) -> tuple[nn.Module, nn.Module]:
    net = nn.Sequential(nn.Conv2d(3, 8, 3, bias=bias), nn.BatchNorm2d(8), nn.ReLU())
    module = AO.QuantWrapper(net).train()
    AO.fuse_modules_qat(module.module, [["0", "1", "2"]], inplace=True)
    module.qconfig = AO.get_default_qat_qconfig("x86")
    trained = settled(AO.prepare_qat(module))
    return trained, AO.convert(copy.deepcopy(trained))


def weights_of(module: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """Returns the integer weights and the biases of all layers, in order."""
    found = []
    for name, held in [*module.named_modules(), *vars(module).items()]:
        if isinstance(held, torch.ScriptObject):  # what QIR writes
            w, bias = held.unpack()  # type: ignore[attr-defined]
        elif callable(getattr(held, "weight", None)):
            w, bias = held.weight(), held.bias()
        else:
            continue
        assert bias is not None, name
        found.append((w.int_repr(), bias.detach()))
    return found


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("make", [by_fx, eagerly])
def test_a_trained_module_becomes_the_integers_that_convert_gives(make: Any, bias: bool) -> None:
    trained, converted = make(bias)
    ledger = qir.Ledger()
    graph = qir.load(trained, inputs=(X,), ledger=ledger)
    norms = sum(isinstance(part, nn.BatchNorm2d) for part in trained.modules())
    folded = [e for e in ledger if "as torch.ao's convert does" in e.reason]
    assert [e.change for e in folded] == [Change.REGROUPED] * norms
    assert not [n for n in graph if n.op in ("batch_norm", "div", "sqrt")]
    made: Any = qir.build(graph, target="pytorch-x86", format="fx", lossy=True)
    ours, theirs = weights_of(made), weights_of(converted)
    assert len(ours) == len(theirs) == norms + (make is by_fx)
    for (w, b), (v, c) in zip(ours, theirs, strict=True):
        assert torch.equal(w, v)
        assert torch.equal(b, c)
    data = torch.randn(4, 3, 8, 8) * 3  # beyond what training has seen, so beyond 127
    assert torch.equal(made(data), converted(data))


def test_data_bounded_to_seven_bits_are_refused_without_lossy() -> None:
    graph = qir.load(by_fx(bias=False)[0], inputs=(X,))
    with pytest.raises(Refused, match=r"beyond 0\.\.127 are not clamped: PyTorch's kernels"):
        qir.build(graph, target="pytorch-x86")


def test_engines_and_the_reference_agree_on_data_bounded_to_seven_bits() -> None:
    graph = qir.load(by_fx(bias=False)[0], inputs=(X,))
    data = (torch.randn(2, 3, 8, 8) * 4).numpy()
    for name in ("pytorch-x86", "pytorch-fbgemm"):
        found = compare(target(name), graph, {graph.inputs[0].name: data})
        assert found.total > 1000
        assert not found.wrong, name


def test_bounds_stay_where_floats_alone_are_quantized() -> None:
    class Only(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fake_quantize_per_tensor_affine(x, 0.05, 64, 0, 127)

    graph = qir.load(Only(), inputs=(X,))
    made: Any = qir.build(graph, target="pytorch-x86", format="fx")
    assert torch.equal(made(9 * X), Only()(9 * X))


def test_a_trained_module_runs_by_integer_kernels_of_onnxruntime(tmp_path: Path) -> None:
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    trained, _ = by_fx(bias=True)
    graph = qir.load(trained, inputs=(X,))
    path, seen = tmp_path / "q.onnx", tmp_path / "seen.onnx"
    qir.save(graph, path, lossy=True)
    options = runtime.SessionOptions()
    options.optimized_model_filepath = str(seen)
    runtime.InferenceSession(str(path), options)
    kinds = [node.op_type for node in onnx.load(seen).graph.node]
    assert kinds.count("QLinearConv") == 2
    assert not {"Conv", "Div", "BatchNormalization"} & set(kinds)
    again = qir.load(path)
    found = compare(target("onnxruntime"), again, {again.inputs[0].name: X.numpy()})
    assert found.total > 500
    assert not found.wrong


class Trained(nn.Module):
    """What PT2E makes of a layer with a batch norm, which it spells in functions."""

    def __init__(self, layer: nn.Module, norm: nn.Module, turned: bool = False) -> None:
        super().__init__()
        self.layer, self.norm, self.axis = layer, norm, int(turned)
        w: Any = layer.weight
        shape = [-1 if axis == self.axis else 1 for axis in range(w.dim())]
        self.shape, self.along = shape, [1, -1, *[1] * (w.dim() - 2)]
        self.turned = turned
        self.register_buffer("scale", torch.full((w.shape[self.axis],), 0.011))
        self.register_buffer("zeros", torch.zeros(w.shape[self.axis], dtype=torch.int32))
        nn.init.uniform_(norm.running_mean, -0.5, 0.5)  # type: ignore[arg-type]
        nn.init.uniform_(norm.running_var, 0.5, 1.5)  # type: ignore[arg-type]
        nn.init.uniform_(norm.weight, 0.5, 1.5)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        layer, norm, scale, zeros = map(self._any, ("layer", "norm", "scale", "zeros"))
        factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
        w = layer.weight * factor.reshape(self.shape)
        w = torch.fake_quantize_per_channel_affine(w, scale, zeros, self.axis, -128, 127)
        y = self._layer(torch.fake_quantize_per_tensor_affine(x, 0.03, 120, 0, 255), w)
        y = y / factor.reshape(self.along) + layer.bias.reshape(self.along)
        made: Tensor = norm(y)
        return made

    def _any(self, name: str) -> Any:
        return getattr(self, name)

    def _layer(self, x: Tensor, w: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Linear):
            return F.linear(x, w)
        call: Any = getattr(F, f"conv{'_transpose' * self.turned}{w.dim() - 2}d")
        made: Tensor = call(x, w, None)
        return made


LAYERS: dict[str, Callable[[], tuple[Trained, Tensor]]] = {
    "conv1d": lambda: (Trained(nn.Conv1d(3, 6, 3), nn.BatchNorm1d(6)), torch.randn(2, 3, 9)),
    "conv2d": lambda: (Trained(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)), X),
    "conv3d": lambda: (Trained(nn.Conv3d(3, 6, 2), nn.BatchNorm3d(6)), X.reshape(2, 3, 4, 4, 4)),
    "linear": lambda: (Trained(nn.Linear(8, 6), nn.BatchNorm1d(6)), torch.randn(4, 8)),
    "conv_transpose2d": lambda: (
        Trained(nn.ConvTranspose2d(3, 6, 2), nn.BatchNorm2d(6), turned=True),
        X,
    ),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_each_kind_of_layer_takes_its_norm_in(kind: str) -> None:
    net, x = LAYERS[kind]()
    graph = qir.load(net.eval(), inputs=(x,))
    assert not [n for n in graph if n.op in ("batch_norm", "div")]
    (ours,), (theirs,) = run_graph(graph, [x]), run_module(net, [x])
    assert difference(ours, theirs, 1e-4) == ""


def test_a_layer_whose_result_is_scaled_otherwise_keeps_its_norm() -> None:
    net, x = LAYERS["conv2d"]()
    graph = qir.load(_with_factor(net, 1.5).eval(), inputs=(x,))
    assert [n.op for n in graph].count("batch_norm") == 1
    (ours,), (theirs,) = run_graph(graph, [x]), run_module(_with_factor(net, 1.5), [x])
    assert difference(ours, theirs, 1e-4) == ""


def _with_factor(net: Trained, factor: float) -> nn.Module:
    class Other(Trained):
        def _layer(self, x: Tensor, w: Tensor) -> Tensor:
            return super()._layer(x, w) * factor

    made = copy.deepcopy(net)
    made.__class__ = Other
    return made
