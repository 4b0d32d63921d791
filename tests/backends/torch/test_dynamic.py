"""Layers whose data are quantized while the model runs: linear_dynamic, quantized_lstm and _gru."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.ao import quantization

import qir
from qir import pipeline
from qir.errors import PluginError, Refused
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.target import target
from tests.frontends.torch.test_torchscript import engine as running

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)
AO: Any = quantization
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
    assert decision.reason == "without data pytorch-x86 quantizes linear, lstm, gru alone"


def test_layers_quantized_for_an_engine_are_no_exported_program(tmp_path: Path) -> None:
    """Engines choose by another scale rule than exported programs have."""
    graph, _ = dynamic("pytorch-x86")
    with pytest.raises(Refused, match=r"no scale rule torch\.dynamic .*; quantize for pt2e, or"):
        pipeline.save(graph, tmp_path / "a.pt2", target="pytorch-x86")


def test_a_linear_layer_chooses_its_numbers_in_an_exported_program(tmp_path: Path) -> None:
    graph, data = dynamic("pt2e")
    path = tmp_path / "dynamic.pt2"
    pipeline.save(graph, path, target="pt2e")
    program = torch.export.load(str(path))
    called = [str(n.target) for n in program.graph.nodes if n.op == "call_function"]
    assert called.count("quantized_decomposed.choose_qparams.tensor") == 2
    assert called.count("quantized_decomposed.quantize_per_tensor.tensor") == 2
    assert not [name for name in called if name.startswith("aten.reshape")]
    wanted = program.module()(data).detach().numpy()
    for made in (graph, qir.load(path)):
        (ours,) = qir.run(made, {made.inputs[0].name: data.numpy()}).values()
        assert np.abs(ours - wanted).max() <= 1e-6 * np.abs(wanted).max()
    (theirs,) = target("pt2e").compile(graph)(**{graph.inputs[0].name: data.numpy()}).values()
    assert np.array_equal(np.asarray(theirs), wanted)


@pytest.mark.parametrize("bits", [8, 7])
def test_what_an_exported_program_chooses_is_what_the_reference_chooses(bits: int) -> None:
    text = """graph main as torch-2.13.pt2e {{
      %x = input() : 400xf32
      %s, %z = choose_qparams(%x) {{rule = "torch.observer", storage = u8{}, scale_type = f64,
        zero_type = i64}} : f64, i64
      %q = quantize(%x, scale=%s, zero=%z) : 400x!quant.uniform<u8{}:f32, ?:?, scale f64>
      output(q=%q)
    }}
    """
    given = (", bounds = (0, 127)", "<0:127>") if bits == 7 else ("", "")
    graph = parse(text.format(*given), {})
    made: Any = qir.build(graph, target="pt2e", format="fx")
    random = np.random.default_rng(3)
    for width in (1e-9, 1e-3, 0.3, 40.0):
        x = (random.normal(0.2, 1, 400) * width).astype(np.float32)
        (ours,) = qir.run(graph, {"x": x}).values()
        assert np.array_equal(ours, made(torch.from_numpy(x)).numpy())


def test_a_chosen_scale_that_something_else_reads_is_refused() -> None:
    text = """graph main as torch-2.13.pt2e {
      %x = input() : 4xf32
      %s, %z = choose_qparams(%x) {rule = "torch.observer", storage = u8, scale_type = f64,
        zero_type = i64} : f64, i64
      output(s=%s)
    }
    """
    with pytest.raises(Refused, match=r"choose_qparams cannot .* is read by output too"):
        qir.build(parse(text, {}), target="pt2e")


def test_a_target_file_says_how_data_are_quantized_while_the_model_runs(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('extends = "onnxruntime"\ndynamic = { ops = ["gemm"] }')
    assert target(str(path)).capability().dynamic.ops == ("gemm",)
    assert target(str(path)).capability().dynamic.rule == "onnx.dynamic"
    path.write_text('extends = "onnxruntime"\ndynamic = { op = ["gemm"] }')
    with pytest.raises(PluginError, match=r"mine\.toml, line 2: no key of dynamic 'op'"):
        target(str(path))


class Recurrent(nn.Module):
    """An LSTM of two layers and two directions, a GRU, and a linear layer."""

    def __init__(self, *, bias: bool = True) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 16, 2, bidirectional=True, batch_first=True, bias=bias)
        self.gru, self.linear = nn.GRU(32, 8, bias=bias), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, (h, c) = self.lstm(x)
        y, g = self.gru(y)
        return self.linear(y), h, c, g


def recurrent(*, bias: bool = True) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    net = Recurrent(bias=bias).eval()
    torch.manual_seed(0)  # a state beside a tie, which a gate's last bit decides, is in other data
    return net, torch.randn(6, 3, 8)


def predicted(graph: Graph, x: torch.Tensor, name: str = "") -> list[np.ndarray[Any, Any]]:
    inputs = {graph.inputs[0].name: x.numpy()}
    return [np.asarray(y) for y in qir.run(graph, inputs, profile=name or None).values()]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("per", ["tensor", "channel"])
def test_dynamic_recurrent_layers_are_read_and_written_back(
    engine: str, per: str, tmp_path: Path
) -> None:
    """Beside torch.ao's own module: its bytes from the file, floats of gates near from QIR."""
    net, x = recurrent()
    kinds = (nn.LSTM, nn.GRU, nn.Linear)
    config = AO.default_dynamic_qconfig if per == "tensor" else AO.per_channel_dynamic_qconfig
    with running(engine):
        made = AO.quantize_dynamic(net, dict.fromkeys(kinds, config))
        wanted = made(x)
        graph = qir.load(made, inputs=(x,))
        pipeline.save(graph, tmp_path / "back.pt", target=f"pytorch-{engine}")
        back = torch.jit.load(str(tmp_path / "back.pt"))(x)  # type: ignore[no-untyped-call]
    assert all(torch.equal(a, b) for a, b in zip(back, wanted, strict=True))
    for ours, theirs in zip(predicted(graph, x), wanted, strict=True):
        assert float(np.abs(ours - theirs.detach().numpy()).max()) < 1e-6


@pytest.mark.parametrize("engine", ENGINES)
def test_recurrent_layers_are_quantized_without_data(engine: str, tmp_path: Path) -> None:
    net, x = recurrent(bias=engine != "fbgemm")
    target_name = f"pytorch-{engine}"
    graph = pipeline.quantize_dynamic(qir.load(net, inputs=(x,)), target=target_name)
    pipeline.save(graph, tmp_path / "made.pt", target=target_name)
    with running(engine):
        file = torch.jit.load(str(tmp_path / "made.pt"))  # type: ignore[no-untyped-call]
        made = file(x)
    assert str(file.code).count("torch.quantized_lstm") == 2
    assert str(file.code).count("torch.quantized_gru") == 1
    ours = predicted(graph, x, target(target_name).profile)
    for mine, theirs, real in zip(ours, made, net(x), strict=True):
        assert float(np.abs(mine - theirs.numpy()).max()) < 1e-6
        assert float((theirs - real).detach().abs().max()) < 0.05


def test_dynamic_layers_count_as_integer_ops() -> None:
    net, x = recurrent()
    graph = pipeline.quantize_dynamic(qir.load(net, inputs=(x,)), target="pytorch-x86")
    taken = [(v.op, v.taken) for v in target("pytorch-x86").verdicts(graph)]
    layers = [each for each in taken if each[0] in ("lstm", "gru", "linear")]
    assert layers == [*[("lstm", "integer")] * 2, ("gru", "integer"), ("linear", "integer")]


def test_a_layer_beyond_the_kernel_stays_float_and_the_plan_says_why() -> None:
    rng = np.random.default_rng(0)
    graph = Graph("layer", "native")
    x = graph.add("input", types=[TensorType((3, 2, 8), F32)], name="x").result
    shapes = {"w": (1, 64, 8), "r": (1, 64, 16)}
    held = {s: graph.constant(rng.normal(size=n).astype(np.float32)) for s, n in shapes.items()}
    made = graph.add("lstm", {"x": x, **held}, {"clip": 3.0})
    graph.add("output", {"y": made.results[0]})
    (found,) = pipeline.plan(graph, target="pytorch-x86", dynamic=True).decisions
    assert found.reason == (
        "no kernel quantizes the state of a layer that bounds or couples its gates"
    )


def test_a_state_that_is_quantized_is_refused_where_no_kernel_does_it(tmp_path: Path) -> None:
    net = nn.LSTM(8, 16)
    made = AO.quantize_dynamic(nn.Sequential(net), {nn.LSTM})
    with running("x86"):
        graph = qir.load(made, inputs=(torch.randn(3, 2, 8),))
    with pytest.raises(Refused, match="choose_qparams cannot be written"):
        pipeline.save(graph, tmp_path / "a.pt2", target="pt2e")


def test_onnx_chooses_by_its_own_rule_and_keeps_states_float(tmp_path: Path) -> None:
    net, x = recurrent()
    with running("x86"):
        made = AO.quantize_dynamic(net, {nn.LSTM, nn.GRU, nn.Linear})
        wanted = made(x)
        graph = qir.load(made, inputs=(x,))
    ledger = Ledger()
    pipeline.save(graph, tmp_path / "a.onnx", lossy=True, ledger=ledger)
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx")
    for ours, theirs in zip(
        session.run(None, {graph.inputs[0].name: x.numpy()}), wanted, strict=True
    ):
        assert float(np.abs(ours - theirs.detach().numpy()).max()) < 0.02
    said = {e.reason for e in ledger if e.change is Change.APPROXIMATED}
    assert said == {
        "onnx.dynamic chooses scale and zero point in the place of torch.dynamic",
        "ONNX's LSTM does not quantize its state in each step: it stays float",
        "ONNX's GRU does not quantize its state in each step: it stays float",
    }


class Sequences(nn.Module):
    """An LSTM of two layers and directions, and a GRU on its results."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(8)
        self.lstm = nn.LSTM(6, 5, 2, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(10, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.gru(self.lstm(x)[0])[0]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("quantized", [False, True])
def test_recurrent_layers_of_open_batch_come_back(*, quantized: bool, tmp_path: Path) -> None:
    net, path = Sequences().eval(), tmp_path / "net.pt"
    graph = qir.load(net, inputs=[("n", 7, 6)])
    made = pipeline.quantize_dynamic(graph, target="pytorch-x86") if quantized else graph
    qir.save(made, path, target="pytorch-x86")
    back = qir.load(path)
    assert not [node for node in back if node.op == "foreign"]
    assert not isinstance(back.inputs[0].type.shape[0], int)
    load: Any = torch.jit.load
    for batch in (1, 3):
        x = torch.randn(batch, 7, 6)
        wanted = load(path)(x).detach().numpy()
        (found,) = qir.run(back, {back.inputs[0].name: x.numpy()}).values()
        assert float(np.abs(np.asarray(found) - wanted).max()) < 1e-5
