"""`--feeds`: files that hold the complete inputs of one run each."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import qir as library
from qir.calibration import Statistics
from tests.cli import recurrent
from tests.cli.command import assert_one_line, qir

FEEDS = ("--data", "feeds", "--feeds")


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recurrent.write(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_statistics_of_feeds_are_those_of_python_and_are_resumed() -> None:
    outcome = qir("calibrate", "model.onnx", *FEEDS, "-o", "model.stats", "--json")
    assert outcome.status == 0, outcome
    assert json.loads(outcome.out)["batches"] == len(recurrent.LENGTHS)
    graph = library.load("model.onnx")
    assert Statistics.load("model.stats") == library.calibrate(graph, recurrent.feeds(), feeds=True)
    outcome = qir("calibrate", "model.onnx", *FEEDS, "-o", "model.stats", "--resume")
    assert outcome.out.startswith("resuming from model.stats: 5 batches done before"), outcome
    outcome = qir("calibrate", "model.onnx", *FEEDS, "--limit", "2", "-o", "few.stats", "--json")
    assert json.loads(outcome.out)["batches"] == 2


def test_a_model_is_quantized_with_feeds_and_runs_on_them() -> None:
    outcome = qir("quantize", "model.onnx", *FEEDS, "-o", "int8.onnx")
    assert outcome.status == 0, outcome
    outcome = qir("run", "int8.onnx", *FEEDS, "--with", "onnxruntime", "-o", "results.npz")
    assert outcome.status == 0, outcome
    assert "5 feeds" in outcome.out
    with np.load("results.npz") as results:
        assert sorted(results) == [f"{i}/{name}" for i in range(5) for name in ("hn", "logits")]
        for number, feed in enumerate(recurrent.feeds()):
            for name, wanted in recurrent.run(Path("int8.onnx"), feed).items():
                assert results[f"{number}/{name}"].dtype == wanted.dtype
                assert np.array_equal(results[f"{number}/{name}"], wanted), (number, name)


def test_runs_on_feeds_are_compared_and_described() -> None:
    compared = ("--compare", "onnxruntime,onnxruntime", "--metric", "sqnr", "--json")
    outcome = qir("run", "model.onnx", *FEEDS, *compared)
    assert outcome.status == 0, outcome
    told = json.loads(outcome.out)
    assert told["samples"] == 5
    sizes = {"logits": 3, "hn": recurrent.HIDDEN}
    feeds = recurrent.feeds()
    steps = {"logits": sum(f["x"][..., 0].size for f in feeds)}
    steps["hn"] = sum(f["h0"][..., 0].size for f in feeds)
    assert {o["name"]: o["elements"] for o in told["outputs"]} == {
        name: size * steps[name] for name, size in sizes.items()
    }


def test_one_file_is_one_feed() -> None:
    words = ("run", "model.onnx", "--data", "feeds/2.npz", "--feeds", "-o", "one.npz")
    outcome = qir(*words, "--with", "onnxruntime")
    assert outcome.status == 0, outcome
    assert "1 feed" in outcome.out
    wanted = recurrent.run(Path("model.onnx"), recurrent.feeds()[2])
    with np.load("one.npz") as results:
        assert {name: results[name].tobytes() for name in results} == {
            name: array.tobytes() for name, array in wanted.items()
        }


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "model.onnx", *FEEDS, "--batch", "2"), "leave --batch out"),
        (("calibrate", "model.onnx", *FEEDS, "--batch", "2", "-o", "s"), "leave --batch out"),
        (("quantize", "model.onnx", *FEEDS, "--batch", "2", "-o", "q.qir"), "leave --batch out"),
        (("quantize", "model.onnx", "--stats", "s", "--feeds", "-o", "q.qir"), "go with --data"),
        (
            ("run", "model.onnx", "--data", "feeds/0.npz"),
            "'h0' has 1; calibrate, quantize and run",
        ),
        (
            ("run", "model.onnx", "--data", "wrong", "--feeds"),
            "wrong/a.npz: input 'h0' takes 1x?x6",
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(words: tuple[str, ...], said: str) -> None:
    Path("wrong").mkdir()
    np.savez("wrong/a.npz", x=np.zeros((1, 1, 4), "f"), h0=np.zeros((2, 1, 6), "f"))
    outcome = qir(*words)
    assert_one_line(outcome, 2)
    assert said in outcome.err
    assert not Path("q.qir").exists()


def test_inputs_that_disagree_with_each_other_are_told() -> None:
    Path("wrong").mkdir()
    np.savez("wrong/a.npz", x=np.zeros((1, 3, 4), "f"), h0=np.zeros((1, 2, 6), "f"))
    for engine in ("reference", "onnxruntime"):
        outcome = qir("run", "model.onnx", "--data", "wrong", "--feeds", "--with", engine)
        assert_one_line(outcome, 2)
        assert "fault in QIR" not in outcome.err
