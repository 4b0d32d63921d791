"""Files that the verbs work on."""

import shutil
from pathlib import Path

import pytest

from tests.cli import models
from tests.cli.command import qir


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and data, and what the verbs make of them."""
    folder = tmp_path_factory.mktemp("made")
    models.write(folder)
    model, samples = folder / "model.onnx", folder / "samples.npy"
    for words in (
        ("calibrate", model, "--data", samples, "-o", folder / "model.stats"),
        ("quantize", model, "--data", samples, "-o", folder / "quantized.onnx"),
        ("quantize", model, "--data", samples, "-o", folder / "quantized.qir"),
        ("convert", model, "-o", folder / "model.qir"),
    ):
        outcome = qir(*words)
        assert outcome.status == 0, outcome
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy of these files to do harm to."""
    copy = tmp_path / "files"
    shutil.copytree(made, copy)
    return copy
