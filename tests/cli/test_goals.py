"""Goals of accuracy and recipes on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from qir import pipeline
from tests.cli.command import assert_one_line, qir


def test_a_goal_writes_a_recipe_that_gives_the_same_bytes(folder: Path) -> None:
    model, data = folder / "model.onnx", folder / "samples.npy"
    out = folder / "near.onnx"
    made = qir("quantize", model, "--data", data, "--sqnr", "52", "-o", out, "--json")
    assert made.status == 0, made
    goal = json.loads(made.out)["goal"]
    assert goal["reached"]
    assert goal["kept"]
    assert goal["value"] >= 52
    assert not (folder / "near.onnx.trials").exists()
    recipe, again = folder / "near.recipe.toml", folder / "again.onnx"
    made = qir("quantize", model, "--data", data, "--recipe", recipe, "-o", again)
    assert made.status == 0, made
    assert again.read_bytes() == out.read_bytes()


def test_a_drop_is_measured_with_labels_and_statistics_of_other_data(folder: Path) -> None:
    model, data = folder / "model.onnx", folder / "samples.npy"
    np.savetxt(folder / "labels.txt", np.arange(24) % 5, fmt="%d")
    stats = folder / "model.stats"
    words = ("quantize", model, "--stats", stats, "--data", data, "--drop", "100")
    made = qir(*words, "--labels", folder / "labels.txt", "-o", folder / "out.onnx")
    assert made.status == 0, made
    assert "top1" in made.out
    assert "0 ops of" in made.out
    (folder / "labels.txt").write_text("1\n2\n")
    made = qir(*words, "--labels", folder / "labels.txt", "-o", folder / "out.onnx", "--force")
    assert_one_line(made, 2)
    assert "2 labels, the data have 24 samples" in made.err


def test_labels_that_do_not_fit_are_found_before_calibration(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*given: object, **more: object) -> None:
        raise AssertionError("calibrated")

    monkeypatch.setattr(pipeline, "calibrate", never)
    (folder / "labels.txt").write_text("1\n2\n")
    words = ("quantize", folder / "model.onnx", "--data", folder / "samples.npy", "--drop", "1")
    made = qir(*words, "--labels", folder / "labels.txt", "-o", folder / "out.onnx")
    assert_one_line(made, 2)
    assert "2 labels, the data have 24 samples" in made.err


def test_a_goal_out_of_reach_keeps_the_best_and_exits_with_3(folder: Path) -> None:
    model, out = folder / "model.onnx", folder / "best.onnx"
    words = ("quantize", model, "--data", folder / "samples.npy", "--sqnr", "200", "-o", out, "-q")
    made = qir(*words)
    assert_one_line(made, 3)
    assert "sqnr 200.0 is out of reach" in made.err
    assert made.err.endswith("and a lower goal goes on from its trials\n")
    assert out.exists()
    assert (folder / "best.recipe.toml").exists()
    assert (folder / "best.onnx.trials").exists()  # an easier goal goes on from it


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--drop", "1"), "--drop needs --labels"),
        (("--labels", "x.npy"), "--labels needs --drop or --check"),
        (("--sqnr", "20", "--drop", "1"), "give one goal"),
        (("--sqnr", "nan"), "goal nan"),
        (("--sqnr", "20", "--feeds"), "measured on samples"),
        (("--recipe", "none.toml"), "none.toml"),
    ],
)
def test_a_goal_that_cannot_be_meant_is_one_line(
    folder: Path, words: tuple[str, ...], said: str
) -> None:
    data = ("--data", folder / "samples.npy")
    made = qir("quantize", folder / "model.onnx", *data, *words, "-o", folder / "out.onnx")
    assert_one_line(made, 2)
    assert said in made.err


def test_an_option_that_a_recipe_says_is_refused(folder: Path) -> None:
    recipe = folder / "recipe.toml"
    recipe.write_text('format = 1\ngranularity = "tensor"\n')
    words = ("quantize", folder / "model.onnx", "--data", folder / "samples.npy")
    made = qir(*words, "--recipe", recipe, "--granularity", "channel", "-o", folder / "out.onnx")
    assert_one_line(made, 2)
    assert "--granularity" in made.err


def test_weights_are_rounded_on_samples_beside_statistics(folder: Path) -> None:
    model, stats = folder / "model.onnx", folder / "model.stats"
    words = ("quantize", model, "--stats", stats, "--corrections", "round-weights,correct-bias")
    made = qir(*words, "-o", folder / "out.onnx")
    assert_one_line(made, 2)
    assert "needs samples besides --stats" in made.err
    data = ("--data", folder / "samples.npy", "--ledger", folder / "ledger.json")
    made = qir(*words, *data, "-o", folder / "out.onnx")
    assert made.status == 0, made
    assert "round-weights" in (folder / "ledger.json").read_text()


def test_reasons_that_name_another_value_alone_are_shown_once(folder: Path) -> None:
    model, out = folder / "model.onnx", folder / "kept.onnx"
    words = ("quantize", model, "--data", folder / "samples.npy", "--rule", "op=conv2d: float")
    made = qir(*words, "-o", out, "--force")
    (line,) = (line for line in made.out.splitlines() if line.split()[:1] == ["relu"])
    assert line.count("which stays float") == 1
    assert line.endswith(" such)")
