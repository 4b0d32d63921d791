"""Exported programs with quantize and dequantize in them: types, and every integer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed
from torch import Tensor, nn

import qir
from qir.errors import InputError
from qir.ir.dtype import dtype
from tests.frontends.comparison import difference

from .comparison import export, run_graph, run_module
from .test_sources import Calls

Q = torch.ops.quantized_decomposed
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(5))
SCALE = 0.021


class Quantized(nn.Module):
    """A convolution and a linear layer between quantize and dequantize, as PT2E leaves them."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        weights = torch.randint(-127, 128, (8, 3, 3, 3), dtype=torch.int8)
        self.register_buffer("weight", weights)
        self.register_buffer("scales", torch.rand(8) * 0.02 + 0.01)
        self.register_buffer("zeros", torch.zeros(8, dtype=torch.int64))
        self.register_buffer("last", torch.randint(-127, 128, (5, 512), dtype=torch.int8))
        self.bias = nn.Parameter(torch.randn(8))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        q = Q.quantize_per_tensor(x, SCALE, 121, 0, 255, torch.uint8)
        d = Q.dequantize_per_tensor(q, SCALE, 121, 0, 255, torch.uint8)
        w = Q.dequantize_per_channel(self.weight, self.scales, self.zeros, 0, -127, 127, torch.int8)
        y = torch.relu(torch.conv2d(d, w, self.bias, padding=1))
        q = Q.quantize_per_tensor(y, 0.25, 0, 0, 255, torch.uint8).flatten(1)
        d = Q.dequantize_per_tensor(q, 0.25, 0, 0, 255, torch.uint8)
        w = Q.dequantize_per_tensor(self.last, 0.01, 0, -127, 127, torch.int8)
        y = torch.nn.functional.linear(d, w)
        return q, Q.quantize_per_tensor(y, 1.5, 128, 0, 255, torch.uint8)


def test_a_quantized_program_has_quantized_types_and_pytorchs_integers(tmp_path: Path) -> None:
    module = Quantized()
    program = export(module, (X,))
    path = tmp_path / "int8.pt2"
    torch.export.save(program, path)
    for source in (program, path):
        graph = qir.load(source)
        assert graph.profile.endswith(".pt2e")
        assert not [n for n in graph if n.op == "foreign"]
        kind = graph["weight"].type.quant
        assert kind is not None
        assert (kind.storage, kind.bounds, kind.axis) == (dtype("i8"), (-127, 127), 0)
        assert np.array_equal(kind.scales(), module.get_buffer("scales").numpy())
        first = next(n for n in graph if n.op == "quantize").result.type.quant
        assert first is not None
        assert first.scales() == SCALE
        assert first.zeros() == 121
        flat = next(n for n in graph if n.op == "flatten")
        assert flat.result.type.quant is not None, "moved integers keep their type"
        for ours, theirs in zip(run_graph(graph, [X]), run_module(module, [X]), strict=True):
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs)


def test_a_quantized_program_becomes_onnx(tmp_path: Path) -> None:
    graph = qir.load(export(Quantized(), (X,)))
    qir.save(graph, tmp_path / "qdq.onnx", lossy=True)
    again = qir.load(tmp_path / "qdq.onnx")
    kinds = [v.type.quant for v in again.values.values() if v.type.quant is not None]
    assert {str(k.storage) for k in kinds} >= {"u8", "i8"}


@pytest.mark.parametrize("kind", [torch.uint8, torch.int8, torch.int16, torch.int32])
@pytest.mark.parametrize("channels", [False, True])
def test_every_storage_type_is_read(kind: torch.dtype, channels: bool) -> None:
    low, high = torch.iinfo(kind).min, torch.iinfo(kind).max

    def there_and_back(x: Tensor) -> tuple[Tensor, Tensor]:
        if channels:
            scales, zeros = torch.tensor([0.02, 0.5, 3e-3]), torch.tensor([0, 3, 7])
            q = Q.quantize_per_channel(x, scales, zeros, 1, low, high, kind)
            return q, Q.dequantize_per_channel(q, scales, zeros, 1, low, high, kind)
        q = Q.quantize_per_tensor(x, SCALE, 3, low, high, kind)
        return q, Q.dequantize_per_tensor(q, SCALE, 3, low, high, kind)

    module = Calls(there_and_back)
    graph = qir.load(export(module, (X,)))
    for ours, theirs in zip(run_graph(graph, [X]), run_module(module, [X]), strict=True):
        assert np.array_equal(ours, theirs)


def test_integers_that_are_computed_with_are_plain() -> None:
    def raw(x: Tensor) -> Tensor:
        q = Q.quantize_per_tensor(x, SCALE, 3, 0, 255, torch.uint8)
        made: Tensor = q.to(torch.int32) * 2 + q.transpose(0, 1).reshape(q.shape)
        return made

    graph = qir.load(export(Calls(raw), (X,)))
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(Calls(raw), [X])
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize("channels", [False, True])
def test_fake_quantization_is_quantize_and_dequantize(channels: bool) -> None:
    def fake(x: Tensor) -> Tensor:
        if channels:
            scales, zeros = (
                torch.tensor([0.02, 0.5, 3e-3]),
                torch.tensor([0, 0, 0], dtype=torch.int32),
            )
            return torch.fake_quantize_per_channel_affine(x, scales, zeros, 1, -128, 127)
        return torch.fake_quantize_per_tensor_affine(x, 0.02, 3, 0, 127)

    module = Calls(fake)
    graph = qir.load(export(module, (X,)))
    kind = next(n for n in graph if n.op == "quantize").result.type.quant
    assert kind is not None
    assert kind.bounds == (None if channels else (0, 127))
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(module, [X])
    assert np.array_equal(ours, theirs)


def test_quantized_results_of_another_type_are_refused_with_a_reason() -> None:
    def half(x: Tensor) -> Tensor:
        q = Q.quantize_per_tensor(x, SCALE, 3, 0, 255, torch.uint8)
        made: Tensor = Q.dequantize_per_tensor(
            q, SCALE, 3, 0, 255, torch.uint8, out_dtype=torch.float16
        )
        return made

    program = export(Calls(half), (X,))
    with pytest.raises(InputError, match="its result is not float32"):
        qir.load(program)


class Chosen(nn.Module):
    """A linear layer whose data are quantized by the range that they have."""

    def __init__(self, low: int, high: int, kind: torch.dtype, least: float) -> None:
        super().__init__()
        self.bounds, self.kind, self.least = (low, high), kind, least
        self.linear = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale, zero = Q.choose_qparams(x, *self.bounds, self.least, self.kind)
        q = Q.quantize_per_tensor(x, scale, zero, *self.bounds, self.kind)
        d = Q.dequantize_per_tensor(q, scale, zero, *self.bounds, self.kind)
        return q, self.linear(d)


@pytest.mark.parametrize("least", [2.0**-23, 2.0**-12])  # of torch.ao and of torchao
@pytest.mark.parametrize(
    ("low", "high", "kind"),
    [(0, 255, torch.uint8), (-128, 127, torch.int8), (-127, 127, torch.int8)],
)
def test_ranges_that_are_chosen_while_a_program_runs(
    low: int, high: int, kind: torch.dtype, least: float
) -> None:
    module = Chosen(low, high, kind, least)
    graph = qir.load(export(module, (torch.ones(3, 6),)))
    rng = np.random.default_rng(11)
    print("seed 11")
    for size in (1e-9, 1e-3, 1.0, 1e4):
        x = torch.from_numpy(rng.normal(rng.normal(), 1, (3, 6)).astype(np.float32) * size)
        (ours, real), (theirs, wanted_real) = run_graph(graph, [x]), run_module(module, [x])
        assert np.array_equal(ours, theirs)
        assert difference(real, wanted_real, 1e-5) == ""


def test_another_least_scale_is_refused() -> None:
    program = export(Chosen(0, 255, torch.uint8, 1e-3), (torch.ones(3, 6),))
    with pytest.raises(InputError, match=r"least scale 0\.001 is neither"):
        qir.load(program)
