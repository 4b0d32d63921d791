"""Functions of `qir.workflows` take and refuse what the commands do that call them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import qir
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.workflows import SampleData, calibrate_model, quantize_model, run_model
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
    for number, data in enumerate((text, Path(text), SampleData(text))):
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
