"""What data hold besides a model's inputs is refused or told, and a model without inputs runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
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
    "opt": lambda m, d, out: ("opt", m, "-p", "prune", "--validate", "--data", d, "-o", out, "-f"),
    "run": lambda m, d, out: ("run", m, "--data", d),
    "calibrate": lambda m, d, out: ("calibrate", m, "--data", d, "-o", f"{out}.s", "-f"),
    "quantize": lambda m, d, out: ("quantize", m, "--data", d, "-o", out, "-f"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_arrays_that_are_no_inputs_are_told(tmp_path: Path, verb: str) -> None:
    data, out = tmp_path / "data.npz", tmp_path / "out.qir"

    def tells(inputs: str, **arrays: NDArray[np.float32]) -> tuple[int, str]:
        np.savez(data, **arrays)  # type: ignore[arg-type]
        told = qir(*VERBS[verb](made(tmp_path, inputs), data, out))
        return told.status, told.out + told.err

    for inputs, arrays in (("x", {"x": X}), ("xd", {"x": X, "d": D})):
        status, said = tells(inputs, **arrays, labels=X)
        assert status == 0
        assert "  labels: is no input and is not read\n" in said
        status, said = tells(inputs, **arrays)
        assert status == 0
        assert "no input" not in said
    status, said = tells("x", images=X)  # one array is the one input's, whatever its name
    assert status == 0
    assert "  images: is no input and is taken as x\n" in said
    refused = f"qir: {data}: no array for input 'x'; d has a default\n"
    assert tells("xd", d=X) == (2, refused)
    status, said = tells("", x=X)
    assert status == 2
    assert "the model has no inputs" in said or "it has no ops" in said


def test_arrays_are_told_file_by_file(tmp_path: Path) -> None:
    folder, model = tmp_path / "folder", made(tmp_path, "x")
    folder.mkdir()
    np.savez(folder / "1.npz", x=X, labels=X)
    np.savez(folder / "2.npz", images=X)
    for told in (
        qir("run", model, "--data", folder),
        qir("calibrate", model, "--data", folder, "-o", tmp_path / "s"),
    ):
        assert told.status == 0
        assert "  images: is no input and is taken as x\n" in told.out
        assert "  labels: is no input and is not read\n" in told.out


def test_an_engine_that_takes_no_default_is_left_out(tmp_path: Path) -> None:
    data, model = tmp_path / "data.npz", made(tmp_path, "xd")
    np.savez(data, x=X, d=D)
    told = qir("bench", model, "--data", data, "--with", "cpu,reference", "--runs", "2", "--json")
    found = json.loads(told.out)
    assert [e["name"] for e in found["engines"]] == ["reference"]
    (left,) = found["left_out"]
    assert left["engine"] == "cpu"
    assert "input 'd' has a default, which is compiled in" in left["reason"]
    told = qir("bench", model, "--data", data, "--with", "cpu", "--runs", "2")
    assert told.status == 2
    assert "which is compiled in" in told.err


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
    data, models = tmp_path / "data.npz", (made(tmp_path, "xd"), made(tmp_path, "x"))
    np.savez(data, x=X, d=D + 1, k=X)
    for a, b in (models, models[::-1]):
        told = qir("diff", a, b, "--data", data, "--metric", "mean-error", "--json")
        assert json.loads(told.out)["outputs"][0]["metrics"]["mean-error"] == 0
        told = qir("diff", a, b, "--data", data)
        assert "d: has a default and is left out: one model alone takes another\n" in told.out
        assert told.out.count("k: is no input and is not read\n") == 1


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


TURNED = {
    "nodes": [
        {"op": "null", "name": "data", "inputs": []},
        {
            "op": "transpose",
            "name": "turned",
            "attrs": {"axes": "(0, 2, 1)"},
            "inputs": [[0, 0, 0]],
        },
    ],
    "arg_nodes": [0],
    "node_row_ptr": [0, 1, 2],
    "heads": [[1, 0, 0]],
    "attrs": {"mxnet_version": ["int", 10901]},
}
"""A symbol of MXNet in which nothing tells the shape of the input."""


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
def test_data_give_the_shapes_that_a_file_does_not_state(suffix: str, tmp_path: Path) -> None:
    model = tmp_path / "turned-symbol.json"
    model.write_text(json.dumps(TURNED), encoding="utf-8")
    x = np.arange(30, dtype=np.float32).reshape(5, 3, 2)
    if suffix == ".npy":
        np.save(tmp_path / "x.npy", x)
    else:
        np.savez(tmp_path / "x.npz", data=x)
    out = tmp_path / "y.npz"
    done = qir("run", model, "--data", tmp_path / f"x{suffix}", "-o", out, "--batch", "2")
    assert done.status == 0, done
    (y,) = np.load(out).values()
    assert np.array_equal(y, x.transpose(0, 2, 1))
    refused = qir("show", model)
    assert refused.status == 2
    assert "has no shape in the file" in refused.err


@pytest.mark.parametrize("verb", ["run", "compare", "json", "eval", "diff", "calibrate"])
def test_samples_that_fill_no_batch_are_told(tmp_path: Path, verb: str) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 3]) for n in "xy"]
    graph = helper.make_graph([relu], "g", ends[:1], ends[1:])
    model, data, labels = (tmp_path / n for n in ("two.onnx", "five.npy", "labels.npy"))
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), model)
    np.save(data, np.ones((5, 3), np.float32))
    np.save(labels, np.zeros(5, np.int64))
    words: dict[str, tuple[str | Path, ...]] = {
        "run": ("run", model),
        "compare": ("run", model, "--compare", "reference,onnxruntime"),
        "json": ("run", model, "--json"),
        "eval": ("eval", model, "--labels", labels),
        "diff": ("diff", model, model),
        "calibrate": ("calibrate", model, "-o", tmp_path / "s.json", "-f"),
    }
    said = "1 of 5 samples left out: the model takes batches of 2\n"
    told = qir(*words[verb], "--data", data)
    assert (told.status, told.err) == (0, said)
    if verb == "json":
        assert json.loads(told.out)["samples"] == 4
    np.save(data, np.ones((4, 3), np.float32))
    np.save(labels, np.zeros(4, np.int64))
    assert not qir(*words[verb], "--data", data).err
