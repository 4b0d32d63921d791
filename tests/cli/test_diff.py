"""`qir diff`: what it tells of two files, and its status."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

from qir import parse, save
from tests.cli.command import assert_one_line, qir
from tests.cli.test_schemas import SCHEMAS
from tests.query.test_query import LOOP


def test_a_model_and_its_qir_file_are_equal(folder: Path) -> None:
    outcome = qir("diff", folder / "model.onnx", folder / "model.qir")
    assert outcome.status == 0, outcome
    assert outcome.out.startswith("model.onnx and model.qir: no difference in ")
    told = json.loads(qir("diff", folder / "model.onnx", folder / "model.qir", "--json").out)
    assert told["equal"] is True
    assert told["changed"] == told["only_a"] == told["only_b"] == []


def test_a_planted_change_of_one_weight_is_told_with_its_place_and_size(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    (tensor,) = (t for t in model.graph.initializer if t.name == "w2")
    data = numpy_helper.to_array(tensor).copy()
    data[1, 2, 0, 1] += np.float32(0.5)
    tensor.CopyFrom(numpy_helper.from_array(data, "w2"))
    onnx.save(model, folder / "other.onnx")
    words = ("diff", folder / "model.onnx", folder / "other.onnx")
    outcome = qir(*words)
    assert outcome.status == 1, outcome
    row = next(line for line in outcome.out.splitlines() if "elements" in line)
    assert row.split()[:2] == ["w2", "constant"]
    assert f"1 of {data.size}, by up to 0.5" in row
    (changed,) = json.loads(qir(*words, "--json").out)["changed"]
    assert (changed["a"], changed["b"]) == ("w2", "w2")
    (change,) = changed["changes"]
    assert (change["what"], change["measure"]["differ"]) == ("elements", 1)
    assert abs(change["measure"]["largest"] - 0.5) < 1e-6


def test_a_renamed_tensor_is_no_difference_and_a_renamed_output_is(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    for node in model.graph.node:
        node.input[:] = ["other" if name == "conv1" else name for name in node.input]
        node.output[:] = ["other" if name == "conv1" else name for name in node.output]
    onnx.save(model, folder / "inner.onnx")
    assert qir("diff", folder / "model.onnx", folder / "inner.onnx").status == 0
    model.graph.node[-1].output[0] = model.graph.output[0].name = "scores"
    onnx.save(model, folder / "outer.onnx")
    outcome = qir("diff", folder / "model.onnx", folder / "outer.onnx")
    assert outcome.status == 1, outcome
    assert "scores" in outcome.out


def test_quantized_weights_lie_within_half_a_step_of_the_float_ones(folder: Path) -> None:
    model, plain = folder / "model.onnx", folder / "uncorrected.onnx"
    data = ("--data", folder / "samples.npy", "--corrections", "none", "--force")
    assert qir("quantize", model, *data, "-o", plain).status == 0
    outcome = qir("diff", model, plain, "--json")
    assert outcome.status == 1, outcome
    told = json.loads(outcome.out)
    steps = {
        row["a"]: change["measure"]["steps"]
        for row in told["changed"]
        for change in row["changes"]
        if change["what"] == "elements" and change["measure"]
    }
    assert steps.pop("w2") > 1, "the batch norm after it is folded into it"
    assert steps.keys() == {"w1", "b1", "w3", "b3"}
    assert max(steps.values()) < 0.501
    quiet = qir("diff", folder / "model.onnx", folder / "quantized.onnx", "--quiet")
    assert (quiet.status, quiet.out) == (1, "")


def test_what_cannot_be_read_is_told_in_a_line(folder: Path) -> None:
    assert_one_line(qir("diff", folder / "model.onnx", folder / "nobody.onnx"), 2)
    assert_one_line(qir("diff", folder / "samples.npy", folder / "model.onnx"), 2)
    assert_one_line(qir("diff", folder / "model.onnx"), 2)


def test_nodes_of_bodies_are_counted_alike_by_every_verb(tmp_path: Path) -> None:
    save(parse(LOOP), tmp_path / "loop.qir")
    assert "graph        main, 10 nodes" in qir("show", tmp_path / "loop.qir").out
    assert "no findings in 10 nodes" in qir("verify", tmp_path / "loop.qir").out
    both = qir("diff", tmp_path / "loop.qir", tmp_path / "loop.qir").out
    assert "no difference in 10 nodes" in both


def test_results_are_measured_beside_what_differs(folder: Path) -> None:
    words = ("diff", folder / "model.onnx", folder / "quantized.onnx")
    asked = ("--data", folder / "samples.npy", "--limit", "8")
    both = ("--metric", "sqnr", "--metric", "top1")
    outcome = qir(*words, *asked, *both, "--json")
    assert outcome.status == 1, outcome
    told = json.loads(outcome.out)
    jsonschema.validate(told, SCHEMAS["diff"])
    (row,) = told["outputs"]
    inputs = {"images": np.load(folder / "samples.npy")[:8]}
    a, b = (
        onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)[0]
        for path in (folder / "model.onnx", folder / "quantized.onnx")
    )
    noise = 10 * np.log10(np.sum(a.astype(float) ** 2) / np.sum((a.astype(float) - b) ** 2))
    assert told["samples"] == 8
    assert abs(row["metrics"]["sqnr"] - noise) < 1.0
    assert set(row["metrics"]) == {"sqnr", "top1"}
    text = qir(*words, *asked)
    assert text.out.splitlines()[-2].split() == ["output", "sqnr", "dB"]
    same = qir("diff", words[1], words[1], *asked[:2])
    assert same.status == 0, same
    assert same.out.splitlines()[-1].split()[-1] == "inf"


def test_what_cannot_be_measured_is_told_in_a_line(folder: Path, tmp_path: Path) -> None:
    save(parse("graph main as native {%x = input() : 2xf32 output(z=%x)}"), tmp_path / "z.qir")
    save(parse("graph main as native {%x = input() : 2xf32 output(y=%x)}"), tmp_path / "y.qir")
    np.save(tmp_path / "x.npy", np.zeros(2, np.float32))
    model, data = folder / "model.onnx", ("--data", folder / "samples.npy")
    for words, said in (
        ((model, model, "--metric", "sqnr"), "give samples to run on"),
        ((model, model, *data, "--metric", "none"), "no metric 'none'"),
        ((model, tmp_path / "z.qir", *data), "the models take other inputs"),
        ((tmp_path / "y.qir", tmp_path / "z.qir", "--data", tmp_path / "x.npy"), "of one name"),
    ):
        outcome = qir("diff", *words)
        assert_one_line(outcome, 2)
        assert said in outcome.err
