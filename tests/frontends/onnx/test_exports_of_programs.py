"""What torch's exporter makes of programs that it traced: read, run, and written back."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch

from .exports import Module, Net, nets
from .test_exports import check, foreign, made

pytest.importorskip("onnxscript")

NETS = nets()
FEW = ("bag of words", "pooled")
MARKED = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in NETS]
SEQUENCES = {
    "bag of words": {"Slice", "SequenceInsert", "SequenceEmpty", "ConcatFromSequence", "Cast"}
}
"""What is kept, since nothing says how many axes the parts of a sequence have."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporter prints and warns of itself; the fast path of attention has no form in ONNX."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.backends.mha.set_fastpath_enabled(fast)


def export(net: Net, path: Path, *, dynamic: bool, optimize: bool = True) -> bytes:
    """The model; its sizes are open where the exporter finds that they may be."""
    free = tuple({axis: torch.export.Dim.AUTO for axis in axes} or None for axes in net.open)
    shapes = (free,) if isinstance(net.module, Module) else free
    with quiet():
        torch.onnx.export(
            net.module.eval(),
            net.given,
            path,
            dynamo=True,
            optimize=optimize,
            verbose=False,
            external_data=False,
            input_names=[f"in{i}" for i in range(len(net.given))],
            dynamic_shapes=shapes if dynamic else None,
        )
    return path.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MARKED)
def test_an_export_gives_its_numbers_and_comes_back(
    name: str, dynamic: bool, tmp_path: Path
) -> None:
    net, feed = made(name)
    if dynamic and not any(net.open):
        pytest.skip("no size of it is open")
    model = export(net, tmp_path / "e.onnx", dynamic=dynamic)
    assert onnx.load_from_string(model).producer_name == "pytorch"
    assert set(foreign(check(model, feed, tmp_path))) == SEQUENCES.get(name, set())


class Quantized(torch.nn.Module):
    """A convolution between integers, as torch's quantizer of exported programs writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("w", torch.randint(-127, 128, (4, 3, 3, 3), dtype=torch.int8))
        self.register_buffer("scales", torch.rand(4) * 0.01 + 0.001)
        self.register_buffer("zeros", torch.zeros(4, dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        op = torch.ops.quantized_decomposed
        ends = (0, 255, torch.uint8)
        x = op.quantize_per_tensor(x, 0.02, 128, *ends)
        x = op.dequantize_per_tensor(x, 0.02, 128, *ends)
        numbers = (self.scales, self.zeros, 0, -128, 127, torch.int8)
        w = op.dequantize_per_channel(self.w, *numbers)
        y = torch.relu(torch.nn.functional.conv2d(x, w))
        y = op.quantize_per_tensor(y, 0.05, 0, *ends)
        made: torch.Tensor = op.dequantize_per_tensor(y, 0.05, 0, *ends)
        return made


def test_a_program_that_torch_quantized_arrives_on_codes(tmp_path: Path) -> None:
    from torch.ao.quantization.fx import _decomposed  # registers the operators

    assert _decomposed
    torch.manual_seed(3)
    net = Net(Quantized(), (torch.randn(1, 3, 8, 8),), ({},))
    model = export(net, tmp_path / "e.onnx", dynamic=False)
    graph = check(model, {"in0": net.given[0].numpy()}, tmp_path)
    ops = [n.op for n in graph if n.op not in ("input", "constant", "output")]
    assert (ops.count("quantize"), ops.count("dequantize"), ops.count("conv2d")) == (2, 3, 1)
    assert foreign(graph) == []


class Layers(torch.nn.Module):
    """Recurrent layers, whose weights the exporter cuts into gates by sizes that it asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = torch.nn.LSTM(8, 6, batch_first=True, bidirectional=True)
        self.gru = torch.nn.GRU(12, 5, batch_first=True)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        middle, _ = self.lstm(x)
        last, state = self.gru(middle)
        return last, state


@pytest.mark.slow
def test_layers_of_an_export_that_nobody_optimized_are_layers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    net = Net(Layers(), (torch.randn(2, 5, 8),), ({0: "B"},))
    model = export(net, tmp_path / "e.onnx", dynamic=True, optimize=False)
    graph = check(model, {"in0": net.given[0].numpy()}, tmp_path)
    assert foreign(graph) == []
    ops = [n.op for n in graph]
    assert (ops.count("lstm"), ops.count("gru")) == (1, 1)
