"""`run --compare` tells a fault in a float op from sums that were added in another order."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir.reference.product import product
from tests.cli.command import qir
from tests.reference.oracles import Array

WORDS = ("--compare", "reference,onnxruntime")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A convolution `c`, its mean `g`, a product `y`: all are float sums."""
    rng = np.random.default_rng(3)
    w = rng.standard_normal((8, 5, 3, 3)).astype(np.float32)
    m = rng.standard_normal((8, 30)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "m"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5, 12, 12])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 30])],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(m, "m")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    onnx.save(made, path)
    np.save(tmp_path / "x.npy", rng.standard_normal((6, 5, 12, 12)).astype(np.float32))
    return path


def _faulty(a: Array, b: Array) -> Array:
    """Returns a product with its last term added twice."""
    return np.asarray(product(a, b) + np.multiply(a[..., -1:], b[..., -1:, :]))


def test_sums_in_another_order_are_no_fault(model: Path) -> None:
    data = ("--data", model.with_name("x.npy"))
    told = qir("run", model, *data, *WORDS)
    assert told.status == 0
    assert "each engine adds sums up in an order of its own" in told.out
    assert "fault:" not in told.out
    assert json.loads(qir("run", model, *data, *WORDS, "--json").out)["fault"] is None


def test_results_of_float_sums_are_compared_within_a_tolerance(model: Path) -> None:
    data = ("--data", model.with_name("x.npy"))
    (output,) = json.loads(qir("run", model, *data, *WORDS, "--json").out)["outputs"]
    assert output["tolerance"] == 1e-4
    assert not output["equal"]
    assert output["agree"]
    assert output["relative"] < 1e-5
    told = qir("run", model, *data, *WORDS)
    assert f"all equal within {output['relative']:.2g} of the largest value" in told.out
    exact = qir("run", model, *data, *WORDS, "--tolerance", "0")
    assert exact.status == 1
    assert "0 of 1 equal" in exact.out
    wide = qir("run", model, *data, *WORDS, "--tolerance", output["relative"])
    assert wide.status == 0


def test_a_result_further_apart_than_the_tolerance_differs(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scaled(a: Array, b: Array) -> Array:
        return np.asarray(np.multiply(product(a, b), np.float32(1.001)))

    monkeypatch.setattr("qir.reference.matmul.product", scaled)
    told = qir("run", model, "--data", model.with_name("x.npy"), *WORDS)
    assert told.status == 1
    assert "0 of 1 equal" in told.out


def test_only_the_tolerance_of_two_runs_is_taken(model: Path) -> None:
    words = ("--data", model.with_name("x.npy"), "--tolerance", "0.1")
    told = qir("run", model, *words)
    assert told.status == 2
    assert "--tolerance is for two runs" in told.err


def test_the_first_tensor_outside_its_bound_is_named(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = ("--data", model.with_name("x.npy"))
    monkeypatch.setattr("qir.reference.matmul.product", _faulty)
    told = qir("run", model, *data, *WORDS)
    assert told.status == 1
    assert "fault: y (matmul): reference and onnxruntime differ by " in told.out
    assert "in an order of its own" not in told.out
    monkeypatch.setattr("qir.reference.conv.product", _faulty)
    told = qir("run", model, *data, *WORDS)
    assert told.status == 1
    assert "fault: c (conv2d): reference and onnxruntime differ by " in told.out
    fault = json.loads(qir("run", model, *data, *WORDS, "--json").out)["fault"]
    assert (fault["tensor"], fault["op"]) == ("c", "conv2d")
    assert fault["largest"] > 100 * fault["bound"] > 0


def test_a_fault_that_both_engines_share_is_none(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qir.reference.conv.product", _faulty)
    # Without kernels for floats cpu computes them by the reference.
    monkeypatch.setattr("qir.backends.cpu.floats.has_float_kernel", lambda builder, job: False)
    monkeypatch.setattr("qir.backends.cpu.lower.SLOWER_LOWERINGS", {})
    told = qir("run", model, "--data", model.with_name("x.npy"), "--compare", "reference,cpu")
    assert told.status == 0
