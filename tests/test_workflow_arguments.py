"""Functions of `qir.workflows` take and refuse what the commands do that call them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qir
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.mixed_precision import Goal
from qir.recipe import Recipe
from qir.workflows import (
    SampleData,
    benchmark_model,
    calibrate_model,
    certify_model,
    compare_engines,
    group_model,
    optimize_model,
    quantize_model,
    run_model,
)
from tests.cli.command import qir as command
from tests.cli.models import images, network


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a float model, its quantized form, and samples."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(network(), folder / "model.onnx")
    np.save(folder / "data.npy", images())
    quantize_model(qir.load(folder / "model.onnx"), folder / "q.onnx", data=folder / "data.npy")
    return folder


@pytest.fixture
def model(folder: Path) -> Graph:
    return qir.load(folder / "model.onnx")


@pytest.fixture
def quantized(folder: Path) -> Graph:
    return qir.load(folder / "q.onnx")


def test_data_are_texts_paths_or_sample_data(folder: Path, model: Graph, tmp_path: Path) -> None:
    text = str(folder / "data.npy")
    assert SampleData(text, limit=8) == SampleData(Path(text), limit=8)
    assert run_model(model, SampleData(text, limit=8)).samples == 8
    calibrate_model(model, SampleData(text, limit=8), tmp_path / "model.stats")
    forms: tuple[str | Path | SampleData, ...] = (text, Path(text), SampleData(text))
    for number, data in enumerate(forms):
        made = quantize_model(model, tmp_path / f"{number}.onnx", data=data, check=data)
        assert made.check is not None
        expected = (folder / "q.onnx").read_bytes()
        assert (tmp_path / f"{number}.onnx").read_bytes() == expected


@pytest.mark.parametrize("name", ["limit", "batch"])
def test_sample_data_hold_at_least_one_sample(name: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} is 0: give a whole number from 1$"):
        SampleData("data.npy", **{name: 0})  # type: ignore[arg-type]


def test_feeds_have_no_batches() -> None:
    with pytest.raises(UsageError, match="each file as one run"):
        SampleData("data.npy", batch=2, feeds=True)


@pytest.mark.parametrize("name", ["runs", "threads", "batch", "sizes"])
def test_benchmarks_count_from_one(quantized: Graph, name: str) -> None:
    given: dict[str, Any] = {name: {"batch": 0} if name == "sizes" else 0}
    counted = "batch" if name == "sizes" else name
    with pytest.raises(UsageError, match=f"^{counted} is 0: give a whole number from 1$"):
        benchmark_model(quantized, engines=("cpu",), **given)


def test_no_function_runs_on_no_thread(model: Graph, folder: Path, tmp_path: Path) -> None:
    data, output = folder / "data.npy", tmp_path / "made"
    with pytest.raises(UsageError, match="threads is 0"):
        calibrate_model(model, data, output, threads=0)
    with pytest.raises(UsageError, match="threads is 0"):
        quantize_model(model, output, data=data, threads=0)
    with pytest.raises(UsageError, match="threads is 0"):
        run_model(model, data, threads=0)
    with pytest.raises(UsageError, match="threads is 0"):
        compare_engines(model, data, engines=("cpu",), threads=0)
    assert not list(tmp_path.iterdir())


def test_certificates_nudge_by_one_ulp_at_least(quantized: Graph) -> None:
    with pytest.raises(UsageError, match="most is 0"):
        certify_model(quantized, most=0)


def test_groups_are_written_to_files_that_keep_them(quantized: Graph, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="groups are kept in"):
        group_model(quantized, "ort-1.31", tmp_path / "grouped.onnx")
    assert not list(tmp_path.iterdir())


def test_files_have_the_journal_that_those_of_commands_have(folder: Path, tmp_path: Path) -> None:
    model, quantized, data = (folder / name for name in ("model.onnx", "q.onnx", "data.npy"))
    for words in (
        f"quantize {model} --data {data} -o {tmp_path}/quantize.qir",
        f"opt {model} -p fold-batch-norm -o {tmp_path}/opt.qir",
        f"group {quantized} --as ort-1.31 -o {tmp_path}/group.qir",
    ):
        assert (done := command(*words.split())).status == 0, done
    made, ledgers = {}, {name: Ledger() for name in ("quantize", "opt", "group")}
    for name, ledger in ledgers.items():
        graph = qir.load(quantized if name == "group" else model, ledger=ledger)
        made[name] = tmp_path / f"{name}_made.qir"
        if name == "quantize":
            quantize_model(graph, made[name], data=data, name=str(model), ledger=ledger)
        elif name == "opt":
            optimize_model(graph, "fold-batch-norm", made[name], ledger=ledger)
        else:
            group_model(graph, "ort-1.31", made[name], ledger=ledger)
        assert made[name].read_bytes() == (tmp_path / f"{name}.qir").read_bytes(), name


def test_profiles_are_one_text_or_several(quantized: Graph) -> None:
    named = certify_model(quantized, "ort-1.31, tflite-2.21.xnnpack")
    assert named.profiles == ("ort-1.31", "tflite-2.21.xnnpack")
    assert named == certify_model(quantized, named.profiles)
    with pytest.raises(UsageError, match="two profiles or more are compared"):
        certify_model(quantized, "ort-1.31")


@pytest.mark.parametrize("tolerance", [-1.0, float("nan")])
def test_tolerances_are_shares(model: Graph, folder: Path, tolerance: float) -> None:
    with pytest.raises(UsageError, match="give a share of the largest value"):
        compare_engines(model, folder / "data.npy", engines=("cpu",), tolerance=tolerance)
    words = "run", str(folder / "model.onnx"), "--data", str(folder / "data.npy")
    done = command(*words, "--compare", "cpu", "--tolerance", str(tolerance))
    assert done.status == 2
    assert "tolerance" in done.err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dynamic": True, "data": "data.npy"}, "need no samples"),
        ({"weights": "u4:32", "data": "data.npy"}, "need no samples"),
        ({"dynamic": True, "weights": "u4:32"}, "need no samples"),
        ({"data": "data.npy", "statistics": "model.stats"}, "give either"),
        ({"data": "data.npy", "metrics": ("top1",)}, "go with `check`"),
        ({"data": "data.npy", "check": "data.npy", "metrics": ("top1",)}, "measures by labels"),
        ({"dynamic": True, "check": "data.npy"}, "leave `dynamic` out"),
        ({"data": SampleData("data.npy", feeds=True), "check": "data.npy"}, "leave `feeds` out"),
        ({"dynamic": True, "goal": Goal(sqnr=20.0)}, "measured on samples"),
        ({"statistics": "model.stats", "goal": Goal(sqnr=20.0)}, "measured on samples"),
        ({"dynamic": True, "recipe": Recipe(profile="ort-1.31")}, "`profile` needs samples"),
        ({"data": "data.npy", "recipe": Recipe(profile="ort-1.31")}, "name a .qir file"),
    ],
)
def test_contradictions_are_refused_before_any_file_is_read(
    model: Graph, tmp_path: Path, given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        quantize_model(model, tmp_path / "made.onnx", **given)
    assert not list(tmp_path.iterdir())
