"""Networks written as TorchScript that calls PyTorch's kernels on quantized tensors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qir
from qir import pipeline
from qir.ledger import Ledger
from qir.target import target

from .networks import differing, export, make, quantized, save_exported, watched

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")
NETWORKS = ("resnet", "mobile", "encoder", "plain", "steps")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_quantized_tensor_is_pytorchs(name: str, engine: str) -> None:
    graph, data = quantized(name, f"pytorch-{engine}")
    inputs = {graph.inputs[0].name: data[:3]}
    wrong, total = differing(target(f"pytorch-{engine}"), watched(graph), inputs)
    assert total > 5_000
    assert wrong == 0, f"{wrong} of {total} integers differ"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_float_network_is_written_as_pytorch_computes_it(name: str) -> None:
    net, data = make(name)
    program, _ = export(name)
    graph = qir.load(program)
    made = target("pytorch-x86").compile(graph)(**{graph.inputs[0].name: data.numpy()})
    (found,) = (np.asarray(array) for array in made.values())
    wanted = net(data).detach().numpy()
    assert float(np.abs(found - wanted).max()) <= 1e-4 * float(np.abs(wanted).max())


def test_a_written_network_keeps_its_layout_since_pytorch_puts_channels_last_itself() -> None:
    graph, _ = quantized("resnet", "pytorch-fbgemm")
    assert "transpose" not in {node.op for node in graph}
    program = target("pytorch-fbgemm").build(graph, Ledger(), format="torchscript")
    assert isinstance(program, torch.jit.ScriptModule)
    code = str(program.graph)
    assert "quantized::conv2d" in code
    assert "permute" not in code
    assert "transpose" not in code


@pytest.mark.parametrize("name", ["resnet", "mobile"])
def test_nearly_all_multiply_adds_are_on_integers(name: str) -> None:
    graph, _ = export(name)
    plan = pipeline.plan(qir.load(graph), target="pytorch-x86")
    assert plan.integer_macs >= 0.95


@pytest.mark.slow
def test_the_command_line_writes_a_file_that_pytorch_alone_loads(tmp_path: Path) -> None:
    save_exported("resnet", tmp_path)
    line = "quantize model.pt2 --data x.npy --target pytorch-x86 --format torchscript -o int8.pt"
    command = [sys.executable, "-m", "qir", *line.split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    script = "import numpy, sys, torch; torch.set_num_threads(1); m = torch.jit.load('int8.pt'); "
    script += "y = m(torch.from_numpy(numpy.load('x.npy'))); numpy.save('y.npy', y.numpy()); "
    script += "assert not [n for n in sys.modules if n.startswith('qir')]"
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    graph, data = quantized("resnet", "pytorch-x86")
    (wanted,) = target("pytorch-x86").compile(graph)(**{graph.inputs[0].name: data}).values()
    assert np.array_equal(np.load(tmp_path / "y.npy"), np.asarray(wanted))


opened: Any = torch.jit.load


class ChannelsLast(torch.nn.Module):
    """A network whose first layers do not tell the shape of its input."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        padded = torch.nn.functional.pad(x.permute(0, 3, 1, 2), (0, 1, 0, 1))
        return torch.relu(self.conv(padded)).reshape(-1, 128)


def test_a_written_file_states_shapes_that_its_layers_do_not(tmp_path: Path) -> None:
    torch.manual_seed(3)
    batch = torch.export.Dim("batch", min=1, max=64)
    given = torch.randn(6, 8, 8, 3)
    program = torch.export.export(ChannelsLast().eval(), (given,), dynamic_shapes=({0: batch},))
    graph, data = qir.load(program), given.numpy()
    made = qir.quantize(graph, qir.calibrate(graph, data), target="pytorch-x86")
    qir.save(made, tmp_path / "int8.pt", target="pytorch-x86")
    again = qir.load(tmp_path / "int8.pt")
    first, *rest = again.inputs[0].type.shape
    assert not isinstance(first, int)
    assert rest == [8, 8, 3]
    (found,) = qir.run(again, {again.inputs[0].name: data[:5]}).values()
    module: torch.nn.Module = opened(tmp_path / "int8.pt")
    wanted = module(given[:5]).numpy()
    assert np.array_equal(found, wanted)


class Clipped(torch.nn.Module):
    """A relu6 between two convolutions, whose result has other scales than what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = torch.nn.Conv2d(3, 6, 3), torch.nn.Conv2d(6, 4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.two(torch.nn.functional.relu6(9 * self.one(x)))
        return made


@pytest.mark.parametrize("engine", ENGINES)
def test_a_clip_in_float_is_read_and_run_as_pytorch_computes_it(
    engine: str, tmp_path: Path
) -> None:
    torch.manual_seed(20)
    x = torch.randn(8, 3, 9, 9)
    graph = qir.load(torch.export.export(Clipped().eval(), (x,)))
    name, data = graph.inputs[0].name, x.numpy()
    made = qir.quantize(graph, qir.calibrate(graph, data), target=f"pytorch-{engine}")
    qir.save(made, tmp_path / "int8.pt", target=f"pytorch-{engine}")
    before = torch.backends.quantized.engine
    try:
        torch.backends.quantized.engine = engine
        wanted = opened(tmp_path / "int8.pt")(x).numpy()
    finally:
        torch.backends.quantized.engine = before
    for held in (made, qir.load(tmp_path / "int8.pt")):
        for by in ("cpu", f"pytorch-{engine}"):
            (found,) = qir.compile(held, target=by)(**{name: data}).values()
            assert np.array_equal(np.asarray(found), wanted), by


class Stacked(torch.nn.Module):
    """Products with a constant matrix, and with one for each head, as DeBERTa has them."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.nn.Parameter(torch.randn(16, 16))
        self.each = torch.nn.Parameter(torch.randn(1, 4, 16, 32))
        self.last = torch.nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last((x @ self.one) @ self.each)  # type: ignore[no-any-return]


@pytest.mark.parametrize("engine", ENGINES)
def test_products_with_stacked_constants_stay_float(engine: str) -> None:
    torch.manual_seed(1)
    data = torch.randn(2, 4, 20, 16)
    graph = qir.load(Stacked().eval(), inputs=(data,))
    feeds = {graph.inputs[0].name: data.numpy()}
    name = f"pytorch-{engine}"
    floats = [d for d in pipeline.plan(graph, target=name).decisions if d.becomes == "float"]
    assert [(d.op, d.reason) for d in floats] == [("matmul", f"its b has 4 axes, {name} takes 2")]
    statistics = pipeline.calibrate(graph, [feeds], feeds=True)
    made = watched(pipeline.quantize(graph, statistics, target=name))
    wrong, total = differing(target(name), made, feeds)
    assert total > 5_000
    assert wrong == 0
