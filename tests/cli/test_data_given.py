"""What data hold besides a model's inputs is refused or told, and a model without inputs runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from .command import qir

X = np.arange(12, dtype=np.float32).reshape(4, 3)
D = np.array([1, -2, 3], np.float32)


def made(folder: Path, inputs: str) -> Path:
    """y = x + d: d a default, both inputs, or none."""
    sizes: dict[str, list[str | int]] = {"x": ["N", 3], "d": [3]}
    ins = [helper.make_tensor_value_info(n, TensorProto.FLOAT, sizes[n]) for n in inputs]
    held = [numpy_helper.from_array(D, "d")]
    if "x" not in inputs:
        held.append(numpy_helper.from_array(X, "x"))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("Add", ["x", "d"], ["y"], "it")
    graph = helper.make_graph([node], "g", ins, [y], held)
    path = folder / f"{inputs or 'none'}.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


VERBS: dict[str, Callable[[Path, Path, Path], tuple[str | Path, ...]]] = {
    "diff": lambda m, d, out: ("diff", m, m, "--data", d),
    "bench": lambda m, d, out: ("bench", m, "--data", d, "--with", "reference", "--runs", "2"),
    "opt": lambda m, d, out: ("opt", m, "-p", "prune", "--validate", "--data", d, "-o", out),
}


@pytest.mark.parametrize("verb", VERBS)
def test_arrays_that_are_no_inputs_are_refused(tmp_path: Path, verb: str) -> None:
    data, out = tmp_path / "data.npz", tmp_path / "out.qir"
    np.savez(data, x=X, labels=X)
    told = qir(*VERBS[verb](made(tmp_path, "x"), data, out))
    assert told.status == 2
    assert told.err == f"qir: {data}: labels is no input; the model takes x\n"
    np.savez(data, x=X, d=D, labels=X)
    told = qir(*VERBS[verb](made(tmp_path, "xd"), data, out))
    assert told.err.endswith("labels is no input; the model takes x, d (d by default)\n")
    told = qir(*VERBS[verb](made(tmp_path, ""), data, out))
    assert told.err.endswith("x, d, labels are no inputs; the model has no inputs\n")
    np.savez(data, images=X)  # one array is the one input's, whatever its name
    assert qir(*VERBS[verb](made(tmp_path, "x"), data, out)).status == 0


def test_what_becomes_of_a_default_is_told(tmp_path: Path) -> None:
    data, out, model = tmp_path / "data.npz", tmp_path / "out.qir", made(tmp_path, "xd")
    np.savez(data, x=X, d=D)
    for verb in ("diff", "bench"):
        told = qir(*VERBS[verb](model, data, out))
        assert told.status == 0
        assert "d: has a default and is given by the data" in told.out
    told = qir(*VERBS["opt"](model, data, out))
    assert "d: has a default and is constant here, whatever the data say" in told.out
    np.savez(data, x=X)
    for verb in ("diff", "bench"):
        assert "d: has a default and is not given" in qir(*VERBS[verb](model, data, out)).out
    told = qir("run", model, "--data", data, "--compare", "reference,onnxruntime")
    assert "d: has a default and is not given" in told.out


def test_a_default_that_one_model_alone_has_is_not_given(tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    np.savez(data, x=X, d=D)
    told = qir("diff", made(tmp_path, "xd"), made(tmp_path, "x"), "--data", data)
    assert told.err == "qir: --data: d: a default of one of the models alone; leave it out\n"


def test_a_given_default_reaches_both_models(tmp_path: Path) -> None:
    model, data = made(tmp_path, "xd"), tmp_path / "data.npz"
    np.savez(data, x=X, d=np.full(3, np.inf, np.float32))
    told = qir("diff", model, model, "--data", data, "--metric", "mean-error", "--json")
    assert json.loads(told.out)["outputs"][0]["metrics"]["mean-error"] != 0  # inf - inf: not 0


def test_a_model_without_inputs_runs_without_data(tmp_path: Path) -> None:
    model, out, data = made(tmp_path, ""), tmp_path / "y.npz", tmp_path / "data.npz"
    told = qir("run", model, "-o", out)
    assert told.status == 0
    assert "1 sample" in told.out
    assert np.array_equal(np.load(out)["y"], X + D)
    told = qir("run", model, "--compare", "reference,onnxruntime")
    assert told.status == 0
    told = qir("diff", model, model, "--metric", "mean-error")
    assert told.status == 0
    assert "mean-error" in told.out
    told = qir("bench", model, "--with", "reference", "--runs", "2")
    assert "without inputs" in told.out
    np.savez(data, x=X)
    told = qir("run", model, "--data", data)
    assert told.err == f"qir: {data}: the model has no inputs: leave --data out\n"
    told = qir("calibrate", model, "--data", data, "-o", tmp_path / "s")
    assert told.err == f"qir: {data}: the model has no inputs that take samples\n"


def test_a_model_with_inputs_asks_for_data(tmp_path: Path) -> None:
    told = qir("run", made(tmp_path, "xd"))
    assert told.status == 2
    assert told.err == "qir: --data is missing: the model takes x (N)x3xf32\n"


def test_inputs_with_defaults_are_shown(tmp_path: Path) -> None:
    found = json.loads(qir("show", made(tmp_path, "xd"), "--json").out)
    assert [t["name"] for t in found["inputs"]] == ["x"]
    assert found["defaults"] == [{"name": "d", "shape": [3], "dtype": "f32", "codes": None}]
    rows = qir("show", made(tmp_path, "xd")).out.splitlines()
    at = rows.index("inputs with a default")
    assert rows[at + 2].split() == ["d", "3", "f32"]
    assert "inputs with a default" not in qir("show", made(tmp_path, "x")).out
