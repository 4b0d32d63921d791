"""`qir bench` and `qir run` on the engine: what no kernel takes, and the time of each step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from qir.cli.bench import _indistinguishable
from qir.inspect.timing import Timing
from tests.cli.command import assert_one_line, qir


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model of which one op has no kernel."""
    nodes = [
        helper.make_node("Mod", ["x", "x"], ["r"], "rest", fmod=1),
        helper.make_node("Neg", ["r"], ["y"], "neg"),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph(nodes, "net", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    path = tmp_path / "mod.onnx"
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    np.save(tmp_path / "x.npy", np.ones((2, 3), np.float32))
    return path


def test_an_op_without_a_kernel_runs_and_is_named(model: Path) -> None:
    data = model.parent / "x.npy"
    said = qir("run", model, "--data", data, "--with", "cpu")
    assert said.status == 0
    assert said.out.count("1 node run by the reference: r") == 1
    said = qir("bench", model, "--with", "cpu", "--runs", "1")
    assert said.status == 0
    assert said.out.count("1 node run by the reference: r") == 1


def test_a_program_file_is_measured_on_its_kernels_alone(tmp_path: Path) -> None:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy")
    graph = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "net", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "neg.onnx")
    program = tmp_path / "neg.qirp"
    assert qir("compile", tmp_path / "neg.onnx", "-o", program).status == 0
    for given in ((), ("--with", "cpu")):
        assert qir("bench", program, "--runs", "1", *given).status == 0
    said = qir("bench", program, "--runs", "1", "--with", "onnxruntime")
    assert_one_line(said, 2)
    assert "a program file runs on cpu alone; measure its model" in said.err


@pytest.mark.parametrize("verb", ["run", "bench"])
def test_strict_ends_with_status_3_where_an_op_has_no_kernel(model: Path, verb: str) -> None:
    words = ("--data", model.parent / "x.npy") if verb == "run" else ("--runs", "1")
    said = qir(verb, model, *words, "--with", "cpu", "--strict")
    assert said.status == 3
    assert_one_line(said, 3)
    assert "r (mod) runs by the reference, as it has no kernel" in said.err


def test_strict_takes_a_model_of_kernels_alone(made: Path) -> None:
    words = ("--with", "cpu", "--runs", "1", "--strict")
    assert qir("bench", made / "quantized.onnx", *words).status == 0


def test_a_profile_has_the_rates_of_each_step_and_a_trace(made: Path, tmp_path: Path) -> None:
    trace = tmp_path / "steps.json"
    words = ("--with", "cpu", "--runs", "5", "--profile", "--trace", trace)
    steps = json.loads(qir("bench", made / "quantized.onnx", *words, "--json").out)["steps"]
    assert steps
    for step in steps:
        assert step["bytes_per_second"] == pytest.approx(step["bytes"] / step["seconds"])
        rate = step["multiply_adds"] / step["seconds"] or None
        assert step["multiply_adds_per_second"] == (rate and pytest.approx(rate))
        assert (step["share_of_peak"] is None) is (rate is None)
    work = sum(step["multiply_adds"] for step in steps)
    events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    assert sorted(e["name"] for e in events) == sorted(step["step"] for step in steps)
    assert sum(e["args"]["multiply_adds"] for e in events) == work > 0
    ends = [e["ts"] + e["dur"] for e in events]
    assert [e["ts"] for e in events] == pytest.approx([0.0, *ends[:-1]])
    said = qir("bench", made / "quantized.onnx", *words)
    assert_one_line(said, 2)  # the trace is there
    said = qir("bench", made / "quantized.onnx", *words, "--force")
    for column in ("GMAC/s", "of peak", "GB/s", "spread"):
        assert column in said.out


def test_times_that_differ_by_less_than_their_spread_are_named() -> None:
    still = Timing("cpu", (1.0,) * 8, 1.0)
    assert _indistinguishable([still, Timing("far", (2.0,) * 8, 2.0)]) == []
    wide = Timing("near", (0.8, 1.0, 1.2, 1.4) * 2, 1.1)
    assert _indistinguishable([still, wide]) == ["near"]
