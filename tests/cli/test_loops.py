"""`qir plan` and `qir quantize` say that loops that hold much of the work can be unrolled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.command import qir

HINT = "Loops and recurrent layers keep"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An LSTM over five steps of one sample, and a layer after it."""
    random = np.random.default_rng(4)
    weights = [
        numpy_helper.from_array(random.normal(size=shape).astype(np.float32), name)
        for name, shape in {"w": (1, 32, 6), "r": (1, 32, 8), "c": (8, 3)}.items()
    ]
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r"], ["", "h"], hidden_size=8),
        helper.make_node("MatMul", ["h", "c"], ["y"]),
    ]
    given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [5, 1, 6])
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 3])
    graph = helper.make_graph(nodes, "recurrent", [given], [result], weights)
    path = tmp_path / "model.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, str(path))
    np.savez(tmp_path / "x.npz", x=random.normal(size=(5, 1, 6)).astype(np.float32))
    return path


def test_a_plan_of_a_recurrent_network_points_at_unroll(model: Path) -> None:
    said = " ".join(qir("plan", str(model)).out.split())
    assert f"{HINT} 99" in said or f"{HINT} 98" in said
    assert "unroll; fold-constants; prune" in said


def test_the_summary_of_a_quantized_recurrent_network_points_at_unroll(model: Path) -> None:
    data, out = str(model.with_name("x.npz")), str(model.with_name("q.onnx"))
    said = qir("quantize", str(model), "--data", data, "--feeds", "-o", out).out
    assert HINT in " ".join(said.split())


def test_what_the_hint_says_makes_the_steps_integer_and_ends_the_hint(model: Path) -> None:
    rounds = model.with_name("rounds.qir")
    passes = "unroll; fold-constants; prune"
    assert qir("opt", str(model), "-p", passes, "-o", str(rounds)).status == 0
    assert HINT not in " ".join(qir("plan", str(rounds)).out.split())
