"""No verb writes over a file that it reads, nor one file over another."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

import qir as package
from qir.calibration import Statistics
from qir.errors import UsageError
from qir.recipe import Recipe
from qir.workflows import SampleData, quantize_model
from tests.cli.command import assert_one_line, qir
from tests.cli.models import network
from tests.cli.test_bad_input import listing

CALIBRATE = ("calibrate", "model.onnx", "--data", "samples.npy")
QUANTIZE = ("quantize", "model.onnx", "--stats", "model.stats")
CONVERT = ("convert", "quantized.onnx")
CLASHES = [
    (*QUANTIZE, "-o", "z.onnx", "--ledger", "z.onnx"),
    (*QUANTIZE, "-o", "z.onnx", "--ledger", "./z.onnx"),
    (*QUANTIZE, "-o", "z.onnx", "--ledger", "model.stats"),
    (*QUANTIZE, "-o", "model.onnx"),
    (*CONVERT, "-o", "y.onnx", "--ledger", "y.onnx"),
    (*CONVERT, "-o", "y.onnx", "--ledger", "quantized.onnx"),
    (*CONVERT, "-o", "y.onnx", "--ledger", "link.onnx"),
    (*CONVERT, "-o", "y.onnx", "--ledger", "second-name.onnx"),
    (*CONVERT, "-o", "quantized.onnx"),
    (*CALIBRATE, "-o", "samples.npy"),
    (*CALIBRATE, "-o", "model.onnx"),
    ("calibrate", "model.onnx", "--data", "data", "-o", "data/0.npy"),
    ("calibrate", "model.onnx", "--data", "x.part", "-o", "x"),
    ("run", "model.onnx", "--data", "samples.npz", "-o", "samples.npz"),
]


@pytest.mark.parametrize("words", CLASHES, ids=" ".join)
@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "forced"])
def test_files_of_one_command_are_kept_apart(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], force: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    Path("link.onnx").symlink_to("quantized.onnx")
    os.link("quantized.onnx", "second-name.onnx")
    content = Path("samples.npy").read_bytes()
    Path("data").mkdir()
    for copy in ("data/0.npy", "x.part", "samples.npz"):
        Path(copy).write_bytes(content)
    before = listing(folder), listing(folder / "data")
    outcome = qir(*words, *force)
    assert_one_line(outcome, 2)
    assert "name another file" in outcome.err, outcome
    assert (listing(folder), listing(folder / "data")) == before


def test_a_part_that_is_there_is_kept_unless_it_is_to_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    part = Path("new.stats.part")
    part.write_bytes(b"somebody's notes")
    outcome = qir(*CALIBRATE, "-o", "new.stats")
    assert_one_line(outcome, 2)
    assert "--resume continues it, --force starts anew" in outcome.err
    assert part.read_bytes() == b"somebody's notes"
    assert not Path("new.stats").exists()
    outcome = qir(*CALIBRATE, "-o", "new.stats", "--force")
    assert outcome.status == 0, outcome
    assert Path("new.stats").read_bytes() == Path("model.stats").read_bytes()
    assert not part.exists()


@pytest.mark.parametrize("verb", [(), ("convert",)])
def test_help_promises_the_kinds_of_files_that_are_read(verb: tuple[str, ...]) -> None:
    outcome = qir(*verb, "--help")
    assert outcome.status == 0
    said = outcome.out.partition("Options:")[0]
    assert all(kind in said for kind in ("ONNX", "PyTorch", "TensorFlow", "MXNet", ".qir"))


def test_unfinished_statistics_quantize_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    whole = Statistics.load("model.stats")
    assert not whole.unfinished
    whole.save("new.stats.part", unfinished=True)
    outcome = qir("quantize", "model.onnx", "--stats", "new.stats.part", "-o", "new.onnx")
    assert_one_line(outcome, 2)
    assert "new.stats.part is unfinished; `qir calibrate --resume`" in outcome.err
    assert not Path("new.onnx").exists()
    outcome = qir(*CALIBRATE, "-o", "new.stats", "--resume")
    assert outcome.status == 0, outcome
    assert Path("new.stats").read_bytes() == Path("model.stats").read_bytes()


def test_what_cannot_be_gone_on_with_is_told_with_the_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    np.save("other.npy", np.zeros((24, 3, 8, 8), np.float32))
    resume = ("-o", "model.stats", "--resume")
    for words in (
        (*CALIBRATE, "--batch", "3", *resume),
        (*CALIBRATE, "--limit", "3", *resume),
        ("calibrate", "model.onnx", "--data", "other.npy", *resume),
    ):
        outcome = qir(*words)
        assert_one_line(outcome, 2)
        assert "model.stats: the statistics include other data" in outcome.err
        assert "batch size or limit" in outcome.err
        assert "merge" not in outcome.err


def test_an_output_that_is_there_twice_is_named(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    model.graph.output.append(model.graph.output[0])
    onnx.save(model, folder / "twice.onnx")
    outcome = qir("show", folder / "twice.onnx")
    assert_one_line(outcome, 2)
    assert "'classes' is there twice" in outcome.err


def test_a_kernel_of_another_shape_is_told_in_plain_sizes(folder: Path) -> None:
    model = onnx.load(folder / "model.onnx")
    wrong = onnx.helper.make_attribute("kernel_shape", [2, 5])
    model.graph.node[0].attribute.append(wrong)
    onnx.save(model, folder / "wrong.onnx")
    outcome = qir("show", folder / "wrong.onnx")
    assert_one_line(outcome, 2)
    assert "kernel_shape is 2x5, but w 6x3x3x3" in outcome.err


@pytest.mark.parametrize("form", [(), ("--format", "float")])
def test_a_form_for_floats_is_refused_before_data_are_read(
    tmp_path: Path, form: tuple[str, ...]
) -> None:
    onnx.save(network(), tmp_path / "m.onnx")
    (tmp_path / "x.npy").write_text("no data")
    out = tmp_path / "o.pt2"
    words: list[str | Path] = ["quantize", tmp_path / "m.onnx", "--data", tmp_path / "x.npy", *form]
    done = qir(*words, *form, "--target", "pytorch-fbgemm", "-o", out)
    said = "target pytorch-fbgemm writes quantized models as .pt files (torchscript)"
    assert done.status == 2
    assert said in done.err
    with pytest.raises(UsageError, match="format float is for float models"):
        quantize_model(
            package.load(tmp_path / "m.onnx"),
            out,
            Recipe(target="pytorch-fbgemm"),
            data=SampleData(tmp_path / "x.npy"),
            format=form[1] if form else None,
        )
