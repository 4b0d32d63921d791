"""`run --compare` with a runtime: the others compute what its optimizer makes of the model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command import qir
from tests.installed import OPTIMIZED

EXAMPLE = Path(__file__).parents[2] / "examples" / "separable" / "model.py"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The network quantized, in each form that it is written in."""
    folder = tmp_path_factory.mktemp("separable")
    given = (folder / "float.onnx", "--data", folder / "x.npy")
    subprocess.run([sys.executable, EXAMPLE, given[0], given[2]], check=True)
    for name, more in (
        ("qdq.onnx", ("--format", "qdq")),
        ("qoperator.onnx", ("--format", "qoperator")),
        ("made.qir", ()),
        ("plain.onnx", ("--format", "qdq", "--corrections", "none")),
    ):
        made = qir("quantize", *given, "-o", folder / name, *more)
        assert made.status == 0, made
    return folder


@pytest.mark.parametrize("engines", ["reference,onnxruntime", "cpu,onnxruntime", "reference,cpu"])
@pytest.mark.parametrize("file", ["qdq.onnx", "qoperator.onnx", "made.qir"])
def test_engines_agree_on_every_byte_of_depthwise_networks(
    written: Path, file: str, engines: str
) -> None:
    words = ("--data", written / "x.npy", "--compare", engines)
    outcome = qir("run", written / file, *words)
    assert outcome.status == 0, outcome.out
    assert "all equal" in outcome.out
    assert f"grouped as {OPTIMIZED}" in outcome.out or file == "qoperator.onnx"


def test_without_its_optimizer_a_runtime_is_compared_as_the_model_stands(written: Path) -> None:
    words = ("--data", written / "x.npy", "--compare", "reference,onnxruntime:plain", "--json")
    outcome = qir("run", written / "plain.onnx", *words)
    (output,) = json.loads(outcome.out)["outputs"]
    assert output["differ"] > 0  # float sums, in each engine's own order
    assert output["tolerance"] is None  # its values are those of integers
    assert output["codes"] < 2
    assert outcome.status == 1


def test_results_of_integers_are_compared_byte_by_byte(written: Path) -> None:
    words = ("--data", written / "x.npy", "--compare", "reference,onnxruntime", "--json")
    (output,) = json.loads(qir("run", written / "qdq.onnx", *words).out)["outputs"]
    assert (output["equal"], output["tolerance"]) == (True, None)
