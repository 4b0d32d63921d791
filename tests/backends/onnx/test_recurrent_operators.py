"""RNN, LSTM and GRU in ONNX's forms since opset 7."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir import pipeline
from qir.backends.onnx.writer.graph import to_model
from qir.errors import Refused
from qir.frontends.onnx import OnnxFrontend
from qir.ir.dtype import F16
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.backends.onnx.operators import Case, Data, assert_comes_through, onnxruntime_runs
from tests.frontends.onnx.models import model, save
from tests.reference.oracles import assert_close

T, B, IN, H = 4, 3, 2, 5
RNG = np.random.default_rng(30)
LENGTHS = np.array([4, 2, 1], np.int32)
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
OTHERS = {
    "RNN": ["LeakyRelu"],
    "LSTM": ["HardSigmoid", "Tanh", "Softsign"],
    "GRU": ["Sigmoid", "Elu"],
}


def real(*shape: int) -> Data:
    return np.asarray(RNG.normal(size=shape) / 2, np.float32)


def operands(op: str, ways: int, lengths: Data | None = None) -> dict[str, Data | None]:
    rows = GATES[op] * H
    found: dict[str, Data | None] = {"x": real(T, B, IN), "c1": real(ways, rows, IN)}
    found |= {"c2": real(ways, rows, H), "c3": real(ways, 2 * rows), "shape": lengths}
    found["h"] = real(ways, B, H)
    if op == "LSTM":
        found |= {"k": real(ways, B, H), "c4": real(ways, 3 * H)}
    return found


def _cases() -> list[Case]:
    out = []
    for op in GATES:
        results = 3 if op == "LSTM" else 2
        for ways, direction in ((1, "forward"), (1, "reverse"), (2, "bidirectional")):
            base: dict[str, Any] = {"hidden_size": H, "direction": direction}
            out.append(Case(op, operands(op, ways, LENGTHS), base, (7, 14), results))
            other = {**base, "activations": OTHERS[op] * ways, "clip": 2.0}
            out.append(Case(op, operands(op, ways), other, (14,), results))
    more = {"activations": ["HardSigmoid", "ScaledTanh"], "activation_alpha": [0.3, 0.7]}
    more |= {"activation_beta": [0.4, 1.2], "linear_before_reset": 1, "hidden_size": H}
    out.append(Case("GRU", operands("GRU", 1), more, (14, 22), 2))
    coupled = {"hidden_size": H, "input_forget": 1}
    out.append(Case("LSTM", operands("LSTM", 1), coupled, (22,), 3))
    few = {"x": real(T, B, IN), "c1": real(1, 4 * H, IN), "c2": real(1, 4 * H, H)}
    out.append(Case("LSTM", few, {"hidden_size": H}, (14,), 1))
    return out


@pytest.mark.parametrize("case", _cases(), ids=lambda c: f"{c.op}-{len(c.attrs)}-{c.opsets[0]}")
def test_layers_are_read_written_and_computed(case: Case, tmp_path: Path) -> None:
    for opset in case.opsets:
        assert_comes_through(case, opset, tmp_path)


def _proto(op: str, outputs: list[str], ways: int = 1, **attrs: Any) -> onnx.ModelProto:
    given = {n: d for n, d in operands(op, ways).items() if n in ("x", "c1", "c2", "c3")}
    node = helper.make_node(op, list(given), outputs, "node", hidden_size=H, **attrs)
    constants = {n: d for n, d in given.items() if n != "x" and d is not None}
    shape = (B, T, IN) if attrs.get("layout") else (T, B, IN)
    named: dict[str, tuple[int, None]] = {n: (1, None) for n in outputs if n}
    proto = model([node], {"x": (TensorProto.FLOAT, shape)}, named, constants, 14)
    for info in proto.graph.output:
        info.ClearField("type")
    return proto


def _read(proto: onnx.ModelProto, folder: Path) -> Graph:
    graph: Graph = OnnxFrontend().load(save(proto, folder), Ledger())
    return graph


@pytest.mark.parametrize("outputs", [["", "", "c"], ["", "h"], ["y", "", "c"]])
def test_results_that_are_not_asked_for_are_not_written(outputs: list[str], tmp_path: Path) -> None:
    proto = _proto("LSTM", outputs)
    graph = _read(proto, tmp_path)
    written = to_model(graph, Ledger())
    assert list(written.graph.node[0].output) == outputs
    feeds = {"x": real(T, B, IN)}
    for one, ours in zip(onnxruntime_runs(written, feeds), run(graph, feeds).values(), strict=True):
        assert_close(ours, one, 1e-5)


@pytest.mark.parametrize("op", GATES)
@pytest.mark.parametrize("ways", [1, 2])
def test_batch_first_is_written_as_what_onnxruntime_runs(
    op: str, ways: int, tmp_path: Path
) -> None:
    names = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    direction = "bidirectional" if ways == 2 else "reverse"
    graph = _read(_proto(op, names, ways, layout=1, direction=direction), tmp_path)
    feeds = {"x": real(B, T, IN)}
    ours = run(graph, feeds)
    assert ours["y"].shape == (B, T, ways, H)
    assert ours["h"].shape == (B, ways, H)
    for name, theirs in zip(names, onnxruntime_runs(to_model(graph, Ledger()), feeds), strict=True):
        assert_close(ours[name], theirs, 1e-5, name)


def test_activations_whose_numbers_nobody_says_are_kept_as_they_are(tmp_path: Path) -> None:
    graph = _read(_proto("RNN", ["y", "h"], activations=["ScaledTanh"]), tmp_path)
    assert [n.op for n in graph if n.op in ("rnn", "foreign")] == ["foreign"]


LAYER = """graph main as native {{
  %x = input() : 4x3x2xf32
  %w = input() : 1x20x2xf32
  %r = input() : 1x20x{out}xf32
  %b = input() : 1x20xf32
  {more}
  %y, %h, %c = lstm(%x, %w, %r, bias=%b{proj}){inner} : 4x1x3x{out}xf32, 1x3x{out}xf32, 1x3x5xf32
  output(y=%y)
}}
"""


def test_a_short_bias_is_filled_up() -> None:
    graph = parse(LAYER.format(out=5, more="", proj="", inner=""))
    feeds = {"x": real(4, 3, 2), "w": real(1, 20, 2), "r": real(1, 20, 5), "b": real(1, 20)}
    theirs = onnxruntime_runs(to_model(graph, Ledger()), feeds)[0]
    assert_close(run(graph, feeds)["y"], theirs, 1e-5)


def test_lengths_are_written_as_onnx_wants_them() -> None:
    text = LAYER.format(out=5, more="%n = input() : 3xi64", proj=", lengths=%n", inner="")
    graph = parse(text)
    feeds = {"x": real(4, 3, 2), "w": real(1, 20, 2), "r": real(1, 20, 5), "b": real(1, 20)}
    feeds["n"] = np.array([4, 1, 2])
    theirs = onnxruntime_runs(to_model(graph, Ledger()), feeds)[0]
    assert_close(run(graph, feeds)["y"], theirs, 1e-5)


def test_what_onnx_cannot_say_is_refused_by_name() -> None:
    projected = LAYER.format(out=3, more="%p = input() : 1x3x5xf32", proj=", proj=%p", inner="")
    with pytest.raises(Refused, match="does not project"):
        to_model(parse(projected), Ledger())
    inner = " inner {h : !quant.uniform<u8:f32, 0.01:128>}"
    graph = parse(LAYER.format(out=5, more="", proj="", inner=inner))
    with pytest.raises(Refused, match="does not round h inside"):
        to_model(graph, Ledger())
    node = graph["y"].node
    graph.set_inner(node, "h", None)
    graph.set_inner(node, "c", F16)
    with pytest.raises(Refused, match="does not round c inside"):
        to_model(graph, Ledger())


@pytest.mark.parametrize("target", ["onnxruntime", "cpu"])
def test_a_layer_of_several_results_is_planned_as_float(target: str) -> None:
    graph = parse(LAYER.format(out=5, more="", proj="", inner=""))
    (found,) = pipeline.plan(graph, target=target).decisions
    assert (found.op, found.integer) == ("lstm", False)
    assert found.reason == f"{target} has no integer lstm"
    assert found.macs == 4 * 3 * 20 * (2 + 5)
