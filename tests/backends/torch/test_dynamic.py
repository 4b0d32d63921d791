"""Linear layers whose data are quantized while the model runs: quantized::linear_dynamic."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import qir
from qir import pipeline
from qir.errors import PluginError, Refused
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import target

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
ENGINES = ("x86", "fbgemm", "onednn", "qnnpack")


def layers() -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 9, bias=False), nn.Tanh())
    return net.eval(), torch.randn(4, 7, 24)


def dynamic(name: str) -> tuple[Graph, torch.Tensor]:
    net, data = layers()
    return pipeline.quantize_dynamic(qir.load(net, inputs=(data,)), target=name), data


@pytest.mark.parametrize("engine", ENGINES)
def test_dynamic_layers_are_pytorchs(engine: str) -> None:
    name = f"pytorch-{engine}"
    graph, data = dynamic(name)
    inputs = {graph.inputs[0].name: data.numpy()}
    backend = target(name)
    grouped = backend.computed(graph, Ledger())
    assert grouped is not None
    last = next(node for node in reversed(list(grouped)) if node.op == "linear").result.name
    found = backend.compile(graph)(**inputs)
    (made,) = (np.asarray(array) for array in found.values())
    (wanted,) = qir.run(grouped, inputs, profile=backend.profile).values()
    sums = qir.run(grouped, inputs, values=[last], profile=backend.profile)[last]
    assert np.array_equal(made, torch.tanh(torch.from_numpy(np.array(sums))).numpy())
    assert float(np.abs(made - np.asarray(wanted)).max()) < 1e-6
    net, _ = layers()
    assert float(np.abs(made - net(data).detach().numpy()).max()) < 0.05


def test_the_file_calls_the_dynamic_kernel_and_nothing_chooses_numbers(tmp_path: Path) -> None:
    graph, _ = dynamic("pytorch-x86")
    pipeline.save(graph, tmp_path / "a.pt", target="pytorch-x86")
    code = str(torch.jit.load(str(tmp_path / "a.pt")).code)  # type: ignore[no-untyped-call]
    assert code.count("ops.quantized.linear_dynamic") == 2
    assert "choose_qparams" not in code
    assert "quantize_per_tensor" not in code


def test_convolutions_stay_float_without_data_and_the_plan_says_why() -> None:
    net = nn.Conv2d(3, 4, 3)
    graph = qir.load(net, inputs=(torch.randn(1, 3, 8, 8),))
    (decision,) = pipeline.plan(graph, target="pytorch-x86", dynamic=True).decisions
    assert decision.reason == "without data pytorch-x86 quantizes linear alone"


def test_exported_programs_with_dynamic_layers_are_refused(tmp_path: Path) -> None:
    graph, _ = dynamic("pytorch-x86")
    with pytest.raises(Refused, match="choose_qparams cannot be written for PyTorch"):
        pipeline.save(graph, tmp_path / "a.pt2", target="pytorch-x86")


def test_a_target_file_says_how_data_are_quantized_while_the_model_runs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "onnxruntime"\ndynamic = { ops = ["gemm"] }')
    assert target(str(path)).capability().dynamic.ops == ("gemm",)
    assert target(str(path)).capability().dynamic.rule == "onnx.dynamic"
    path.write_text('extends = "onnxruntime"\ndynamic = { op = ["gemm"] }')
    with pytest.raises(PluginError, match=r"mine\.toml, line 2: no key of dynamic 'op'"):
        target(str(path))
