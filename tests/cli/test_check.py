"""`qir quantize --check`: what it prints, and what it refuses."""

import json
from collections import Counter
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from qir.backends.cpu.compiled import Compiled
from qir.calibration.runner import GraphProgram
from tests.cli import models
from tests.cli.command import assert_one_line, qir


def words(folder: Path, *more: str) -> list[str]:
    model, data, output = (folder / name for name in ("model.onnx", "samples.npy", "new.qir"))
    return ["quantize", f"{model}", "--data", f"{data}", "-f", "-o", f"{output}", *more]


def test_a_check_ends_with_metrics_flips_and_worst_tensors(folder: Path) -> None:
    labels = str(folder / "labels.npy")
    outcome = qir(*words(folder, "--check", "--labels", labels, "--metric", "top1"))
    assert outcome.status == 0, outcome
    said = outcome.out.partition("\ncheck on 24 samples of samples.npy\n")[2]
    assert "classes  top1" in said, outcome
    assert "answers differ: " in said or "answer differs: " in said
    assert "right only in float" in said
    assert "worst tensors" in said or "no tensor loses more than half a decibel" in said
    data = json.loads(qir(*words(folder, "--check", "--labels", labels, "--json")).out)
    assert set(data["check"]["float"]) == {"classes"}
    plain = json.loads(qir(*words(folder, "--json")).out)
    assert plain["check"] is None
    assert plain["sqnr"] == data["sqnr"]


def test_a_check_adds_one_run_of_each_model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that pass through any engine, with and without --check."""
    passed: Counter[str] = Counter()

    def counted(where: type | ModuleType, name: str, at: int) -> None:
        plain = getattr(where, name)

        def call(*given: Any, **named: Any) -> object:
            inputs = given[at] if len(given) > at else named
            engine = f"{where.__name__}.{name}"
            passed[engine] += len(inputs["images"])
            return plain(*given, **named)

        monkeypatch.setattr(where, name, call)

    counted(GraphProgram, "run", 1)
    counted(Compiled, "__call__", 1)
    for module in ("quantization_check", "quantization_noise"):
        counted(import_module(f"qir.inspect.{module}"), "run", 1)
    assert qir(*words(folder)).status == 0
    before = passed.copy()
    passed.clear()
    labels = str(folder / "labels.npy")
    assert qir(*words(folder, "--check", "--labels", labels)).status == 0
    assert before["GraphProgram.run"] == models.SAMPLES
    added = passed - before
    assert added == {"qir.inspect.quantization_check.run": 2 * models.SAMPLES}


def test_statistics_and_other_samples_are_checked_too(folder: Path) -> None:
    np.save(folder / "more.npy", models.images(12)[:9])
    line = words(folder, "--check", "--check-data", str(folder / "more.npy"))
    place = line.index("--data")
    line[place : place + 2] = ["--stats", str(folder / "model.stats")]
    outcome = qir(*line)
    assert outcome.status == 0, outcome
    assert "check on 9 samples of more.npy" in outcome.out


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--labels", "x.npy"], "--labels needs --drop or --check"),
        (["--check-data", "x.npy"], "--check-data and --metric go with --check"),
        (["--check", "--metric", "top1"], "--metric measures by labels: give --labels"),
        (["--check", "--labels", "{few}"], "7 labels, the data have 24 samples"),
        (["--check", "--labels", "x.npy"], "x.npy: there is no such file of labels"),
        (["--check", "--labels", "{few}", "--metric", "top3"], "no metric 'top3'"),
        (["--check", "--feeds"], "leave --feeds out"),
    ],
)
def test_what_a_check_does_not_take_is_refused(folder: Path, more: list[str], said: str) -> None:
    np.save(folder / "few.npy", np.zeros(7, np.int64))
    outcome = qir(*words(folder, *(word.format(few=folder / "few.npy") for word in more)))
    assert_one_line(outcome, 2)
    assert said in outcome.err


def test_labels_that_do_not_fit_leave_no_model_behind(folder: Path) -> None:
    np.save(folder / "few.npy", np.zeros(7, np.int64))
    outcome = qir(*words(folder, "--check", "--labels", str(folder / "few.npy")))
    assert_one_line(outcome, 2)
    assert not (folder / "new.qir").exists()
