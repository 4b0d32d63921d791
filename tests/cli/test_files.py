"""No verb writes over a file that it reads, nor one file over another."""

import os
from pathlib import Path

import pytest

from tests.cli.command import assert_one_line, qir
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
    assert "--resume goes on with it, --force starts anew" in outcome.err
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
    assert "framework" not in outcome.out.partition("Options:")[0]
    assert "ONNX" in outcome.out
    assert ".qir" in outcome.out
