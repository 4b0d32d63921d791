"""Results that are texts, lists or may be left out are compared; open sizes keep nobody."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qir.calibration import Statistics
from tests.cli.command import assert_one_line, qir

FLOAT, STRING = TensorProto.FLOAT, TensorProto.STRING


def written(
    folder: Path, nodes: list[onnx.NodeProto], outs: list[onnx.ValueInfoProto], name: str = "m"
) -> Path:
    x = helper.make_tensor_value_info("x", FLOAT, ["N", 2])
    graph = helper.make_graph(nodes, "g", [x], outs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "x.npy"
    np.save(path, np.array([[1, -2], [0, 3]], np.float32))
    return path


def texts(folder: Path, op: str, name: str) -> Path:
    """Texts of x or of what an op makes of it, a list of its columns, and a number."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node(op, ["x"], ["z"]),
        helper.make_node("Cast", ["z"], ["t"], to=STRING),
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=1),
        helper.make_node("Neg", ["x"], ["y"]),
    ]
    outs = [
        info("t", STRING, ["N", 2]),
        info("y", FLOAT, ["N", 2]),
        helper.make_tensor_sequence_value_info("s", FLOAT, None),
    ]
    return written(folder, nodes, outs, name)


def test_what_is_no_number_is_compared_beside_what_is(tmp_path: Path, data: Path) -> None:
    a, b = texts(tmp_path, "Identity", "a"), texts(tmp_path, "Abs", "b")
    for other, count in ((a, 0), (b, 1)):
        told = json.loads(qir("diff", a, other, "--data", data, "--json").out)
        found = {row["name"]: (row["metrics"], row["differ"]) for row in told["outputs"]}
        assert found == {"t": ({}, count), "y": ({"sqnr": "inf"}, None), "s": ({}, 0)}
        said = qir("diff", a, other, "--data", data)
        assert said.status == (count > 0)
        assert not said.err
        assert f"t is no numbers: {'1 of 4 differ' if count else 'the same in both'}" in said.out
        assert "s is no numbers: the same in both" in said.out
    words = ("run", a, "--data", data, "--compare", "reference,onnxruntime", "--metric", "cosine")
    told = json.loads(qir(*words, "--json").out)
    assert {row["name"]: list(row["metrics"]) for row in told["outputs"]} == {
        "t": [],
        "y": ["cosine"],
        "s": [],
    }


def test_what_may_be_left_out_is_the_same_thing_to_all_engines(tmp_path: Path, data: Path) -> None:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, ["N", 2]))
    node = helper.make_node("Optional", ["x"], ["y"])
    path = written(tmp_path, [node], [helper.make_value_info("y", kind)])
    said = qir("run", path, "--data", data, "--compare", "reference,onnxruntime")
    assert not said.status, said
    for engine in ("reference", "onnxruntime"):
        told = json.loads(qir("run", path, "--data", data, "--with", engine, "--json").out)
        (row,) = told["outputs"]
        assert (row["shape"], row["dtype"]) == ([1], 'opaque<"optional(float[N,2])">')


def test_an_engine_that_does_not_take_a_model_is_left_out(tmp_path: Path, data: Path) -> None:
    """The cpu engine takes no sizes that depend on data; onnxruntime does."""
    node = helper.make_node("NonZero", ["x"], ["y"])
    outs = [helper.make_tensor_value_info("y", TensorProto.INT64, [2, None])]
    path = written(tmp_path, [node], outs)
    for given in (("--data", data), ()):
        told = json.loads(qir("bench", path, *given, "--runs", "2", "--json").out)
        assert [each["name"] for each in told["engines"]] == ["onnxruntime"]
        (left,) = told["left_out"]
        assert left == {"engine": "cpu", "reason": "%y: its shape 2x? depends on data"}
        said = qir("bench", path, *given, "--runs", "2", "--with", "cpu")
        assert_one_line(said, 3)
        assert f"{path}: %y" in said.err


def test_texts_are_calibrated_beside_and_drawn(tmp_path: Path) -> None:
    """Data of texts have a digest of their own; a bench without data draws texts."""
    info = helper.make_tensor_value_info
    nodes = [
        helper.make_node("Cast", ["t"], ["x"], to=FLOAT),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    graph = helper.make_graph(nodes, "g", [info("t", STRING, ["N"])], [info("y", FLOAT, ["N"])])
    sets = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    made = []
    for i, texts in enumerate((["1", "-2"], ["12", "0"], [b"1", b"-2"])):
        data, stats = tmp_path / f"{i}.npy", tmp_path / f"{i}.stats"
        np.save(data, np.array(texts))
        said = qir("calibrate", path, "--data", data, "-o", stats)
        assert not said.status, said
        made.append(Statistics.load(stats))
    marks = [statistics.batches[0].data for statistics in made]
    assert marks[0] == marks[2] != marks[1], "bytes are the texts that they say"
    assert [max(s.high for s in statistics.values()) for statistics in made] == [1, 12, 1]
    for engine in ("reference", "onnxruntime"):
        said = qir("bench", path, "--with", engine, "--runs", "2")
        assert not said.status, said


def test_run_says_how_many_elements_are_no_finite_number(tmp_path: Path) -> None:
    x = tmp_path / "x.npy"
    np.save(x, np.array([[1, 0], [0, -1], [4, 0]], np.float32))
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Reciprocal", ["x"], ["r"]), helper.make_node("Sqrt", ["x"], ["s"])]
    path = written(tmp_path, nodes, [info("r", FLOAT, ["N", 2]), info("s", FLOAT, ["N", 2])])
    told = qir("run", path, "--data", x).out
    assert "r: 3 inf, 0 NaN of 6 elements; least and greatest are of the others." in told
    assert "s: 0 inf, 1 NaN of 6 elements; least and greatest are of the others." in told
    (s,) = json.loads(qir("run", path, "--data", x, "--values", "s", "--json").out)["outputs"]
    assert (s["low"], s["high"], s["inf"], s["nan"]) == (0, 2, 0, 1)
    np.save(x, np.ones((2, 2), np.float32))
    assert "inf" not in qir("run", path, "--data", x).out
