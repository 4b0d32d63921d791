"""Bad input gets one clear line, the right status, and leaves nothing behind."""

import io
import os
import pickle
import random
import resource
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qir.calibration import Statistics
from tests.cli import models
from tests.cli.command import Outcome, assert_one_line, process, qir

VERBS: dict[str, tuple[str, ...]] = {
    "show": (),
    "verify": ("--target", "onnxruntime"),
    "plan": (),
    "calibrate": ("--data", "samples.npy", "-o", "new.stats"),
    "quantize": ("--data", "samples.npy", "-o", "new.onnx"),
    "convert": ("-o", "new.qir"),
    "run": ("--data", "samples.npy", "-o", "new.npz"),
    "bench": ("--runs", "1"),
    "diff": ("model.qir",),
    "query": ("uses > 1",),
    "why-not": ("relu1", "relu(%x)"),
    "export": ("--to", "json", "-o", "new.json"),
}


def listing(folder: Path) -> dict[str, bytes]:
    """Every file with its bytes."""
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir()) if p.is_file()}


def call(folder: Path, *words: str) -> Outcome:
    """Runs a command line in a folder."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        return qir(*words)
    finally:
        os.chdir(before)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


FAULTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "one byte": lambda path: path.write_bytes(b"\x08"),
    "a folder": become_folder,
    "text": lambda path: path.write_text("graph main {\n" * 40),
    "a picture": lambda path: path.write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4),
    "zeros": lambda path: path.write_bytes(bytes(4096)),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "all but a byte": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a huge length": lambda path: path.write_bytes(b"\xff" * 7 + b"\x7f" + path.read_bytes()[8:]),
}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["model.onnx", "quantized.qir"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_file_that_is_no_model_gets_one_line(
    folder: Path, verb: str, name: str, fault: str
) -> None:
    FAULTS[fault](folder / name)
    before = listing(folder)
    outcome = call(folder, verb, name, *VERBS[verb])
    assert_one_line(outcome, 2)
    assert name in outcome.err, outcome
    assert listing(folder) == before


@pytest.mark.parametrize("name", ["model.onnx", "quantized.onnx", "quantized.qir", "model.qir"])
def test_flipped_bits_give_a_model_or_one_line(folder: Path, name: str) -> None:
    seed = 5
    content = (folder / name).read_bytes()
    chance = random.Random(seed)
    refused = 0
    for turn in range(40):
        damaged = bytearray(content)
        for _ in range(chance.choice((1, 1, 3))):
            damaged[chance.randrange(len(damaged))] ^= 1 << chance.randrange(8)
        (folder / name).write_bytes(damaged)
        verb = chance.choice(list(VERBS))
        before = listing(folder)
        outcome = call(folder, verb, name, *VERBS[verb])
        if outcome.status in (2, 3):
            refused += 1
            assert_one_line(outcome, 2, 3)
            assert listing(folder) == before, f"seed {seed}, turn {turn}: {outcome}"
        else:
            assert outcome.status in (0, 1), f"seed {seed}, turn {turn}: {outcome}"
            assert not outcome.err, f"seed {seed}, turn {turn}: {outcome}"
            assert name.endswith(".onnx"), f"damage unnoticed: seed {seed}, turn {turn}: {outcome}"
        for new in ("new.stats", "new.onnx", "new.qir", "new.npz", "new.json"):
            (folder / new).unlink(missing_ok=True)
    assert refused, f"seed {seed}"


def nan(path: Path) -> None:
    data = models.images()
    data[0, 1, 2, 3] = np.nan
    np.save(path, data)


def objects(path: Path) -> None:
    path.write_bytes(
        b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False, 'shape': (1,)}"
    )
    with path.open("ab") as file:
        file.write(b" " * 52 + b"\n" + pickle.dumps([os.getcwd]))


def saved(data: object) -> Callable[[Path], None]:
    return lambda path: np.save(path, np.asarray(data))


DATA_FAULTS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: path.unlink(),
    "empty": lambda path: path.write_bytes(b""),
    "half of it": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_text("1 2 3"),
    "an empty folder": become_folder,
    "NaN": nan,
    "objects": objects,
    "other sizes": saved(np.zeros((4, 3, 9, 8), np.float32)),
    "too many axes": saved(np.zeros((4, 1, 3, 8, 8), np.float32)),
    "a number": saved(np.float32(1)),
    "complex numbers": saved(np.zeros((4, 3, 8, 8), np.complex64)),
    "no samples": saved(np.zeros((0, 3, 8, 8), np.float32)),
}


@pytest.mark.parametrize("verb", ["calibrate", "quantize", "run", "bench"])
@pytest.mark.parametrize("fault", DATA_FAULTS)
def test_data_that_do_not_fit_get_one_line(folder: Path, verb: str, fault: str) -> None:
    DATA_FAULTS[fault](folder / "samples.npy")
    before = listing(folder)
    words = VERBS[verb] if verb != "bench" else ("--runs", "1", "--data", "samples.npy")
    outcome = call(folder, verb, "model.onnx", *words)
    assert_one_line(outcome, 2)
    assert "samples.npy" in outcome.err, outcome
    assert listing(folder) == before


def other_statistics(path: Path) -> None:
    statistics = Statistics("another model")
    with statistics.batch("data", 0) as batch:
        batch.update("images", np.ones(4, np.float32))
    statistics.save(path)


STATISTICS_FAULTS: dict[str, Callable[[Path], object]] = {
    **{k: v for k, v in FAULTS.items() if k != "a huge length"},
    "of another model": other_statistics,
    "with a flipped bit": lambda path: path.write_bytes(
        path.read_bytes()[:-9] + bytes([path.read_bytes()[-9] ^ 4]) + path.read_bytes()[-8:]
    ),
}


@pytest.mark.parametrize("fault", STATISTICS_FAULTS)
def test_statistics_that_do_not_fit_get_one_line(folder: Path, fault: str) -> None:
    STATISTICS_FAULTS[fault](folder / "model.stats")
    before = listing(folder)
    quantize = ("quantize", "model.onnx", "--stats", "model.stats", "-o", "new.onnx")
    assert_one_line(call(folder, *quantize), 2)
    resume = ("calibrate", "model.onnx", "--data", "samples.npy", "-o", "model.stats", "--resume")
    if fault != "missing":
        assert_one_line(call(folder, *resume), 2)
    assert listing(folder) == before


WRITING: dict[str, tuple[str, ...]] = {
    "calibrate": ("--data", "samples.npy"),
    "quantize": ("--data", "samples.npy"),
    "convert": (),
    "run": ("--data", "samples.npy"),
}
SUFFIX = {"calibrate": ".stats", "quantize": ".onnx", "convert": ".qir", "run": ".npz"}


@pytest.mark.parametrize("verb", WRITING)
def test_an_existing_file_is_kept_and_the_work_not_begun(folder: Path, verb: str) -> None:
    out = f"old{SUFFIX[verb]}"
    (folder / out).write_text("kept")
    (folder / "model.onnx").write_text("no model: nobody shall look")
    outcome = call(folder, verb, "model.onnx", *WRITING[verb], "-o", out)
    assert_one_line(outcome, 2)
    assert "--force" in outcome.err
    assert (folder / out).read_text() == "kept"


@pytest.mark.parametrize("verb", WRITING)
def test_force_overwrites_an_existing_file(folder: Path, verb: str) -> None:
    out = f"old{SUFFIX[verb]}"
    (folder / out).write_text("gone")
    outcome = call(folder, verb, "model.onnx", *WRITING[verb], "-o", out, "--force")
    assert outcome.status == 0, outcome
    assert (folder / out).read_bytes() != b"gone"


@pytest.mark.parametrize("verb", WRITING)
@pytest.mark.parametrize("out", ["sub", "none/new", "samples.npy/new"])
def test_a_place_that_cannot_be_written_gets_one_line(folder: Path, verb: str, out: str) -> None:
    (folder / f"sub{SUFFIX[verb]}").mkdir()
    before = listing(folder)
    words = (*WRITING[verb], "-o", f"{out}{SUFFIX[verb]}", "--force")
    assert_one_line(call(folder, verb, "model.onnx", *words), 2)
    assert listing(folder) == before


@pytest.mark.parametrize("verb", WRITING)
def test_a_full_disk_gets_one_line_and_leaves_nothing(folder: Path, verb: str) -> None:
    before = listing(folder)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))

    words = (verb, "model.onnx", *WRITING[verb], "-o", f"new{SUFFIX[verb]}")
    outcome = process(*words, cwd=folder, limit=small, PYTHONDONTWRITEBYTECODE="1")
    assert_one_line(outcome, 2)
    assert f"new{SUFFIX[verb]}" in outcome.err, outcome
    assert listing(folder) == before


@pytest.mark.parametrize("verb", WRITING)
def test_a_failing_rename_gets_one_line_and_leaves_nothing(
    folder: Path, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = listing(folder)

    def refuse(*paths: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", refuse)
    words = (*WRITING[verb], "-o", f"new{SUFFIX[verb]}")
    outcome = call(folder, verb, "model.onnx", *words)
    monkeypatch.undo()
    assert_one_line(outcome, 2)
    assert "No space left" in outcome.err
    assert listing(folder) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_gets_one_line(folder: Path) -> None:
    folder.chmod(0o500)
    try:
        outcome = call(folder, "convert", "model.onnx", "-o", "new.qir")
    finally:
        folder.chmod(0o700)
    assert_one_line(outcome, 2)


def test_a_full_standard_output_gets_one_line(folder: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "qir", "show", "model.onnx"],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert_one_line(Outcome("show > /dev/full", done.returncode, "", done.stderr), 2)


def test_a_model_that_onnx_does_not_know_is_refused_with_its_place(folder: Path) -> None:
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.node[2].input[0] = "nobody makes this"
    onnx.save(model, str(folder / "model.onnx"))
    outcome = call(folder, "show", "model.onnx")
    assert_one_line(outcome, 2)
    assert "nobody makes this" in outcome.err


def test_names_that_would_move_the_cursor_are_spelled_out(folder: Path) -> None:
    model = onnx.load(str(folder / "model.onnx"))
    model.graph.node[0].output[0] = "\x1b[31mred\n"
    model.graph.node[1].input[0] = "\x1b[31mred\n"
    onnx.save(model, str(folder / "model.onnx"))
    outcome = call(folder, "show", "model.onnx")
    assert outcome.status == 0, outcome
    assert "\x1b" not in outcome.out
    assert r"\x1b[31mred\n" in outcome.out


USAGE = {
    "an unknown verb": "quantise model.onnx",
    "no model": "show",
    "an unknown option": "show model.onnx --jsn",
    "two models": "show model.onnx model.onnx",
    "an unknown target": "plan model.onnx --target onnxruntim",
    "an unknown form": "convert model.onnx -o new.onnx --format qdp",
    "a form of a .qir file": "convert model.onnx -o new.qir --format qdq",
    "an unknown range": "quantize model.onnx --stats model.stats -o new.onnx --range maximum",
    "a rule that is none": "plan model.onnx --rule 'conv: float please'",
    "no data": "quantize model.onnx -o new.onnx",
    "data and statistics": "quantize model.onnx -o new.onnx --data samples.npy --stats model.stats",
    "a limit of statistics": "quantize model.onnx -o new.onnx --limit 3 --stats model.stats",
    "a wrong suffix": "quantize model.onnx --data samples.npy -o new.txt",
    "a target that writes none": "convert model.onnx -o new.onnx --target cpu",
    "a number that is none": "calibrate model.onnx --data samples.npy -o n.stats --limit many",
    "no samples": "run model.onnx --data samples.npy --limit 0",
    "a huge number": "run model.onnx --data samples.npy --batch 99999999999999999999",
    "a negative number": "run model.onnx --data samples.npy --batch -1",
    "a huge size": "bench model.onnx --size N=99999999999999999999",
    "no threads": "bench model.onnx --threads 0",
    "a node that is not there": "show model.onnx --node /conv1/Con",
    "text and JSON": "show model.onnx --text --json",
    "an engine that is none": "run model.onnx --data samples.npy --with gpu",
    "a way that is none": "run model.onnx --data samples.npy --with cpu:plain",
    "a value that is not there": "run model.onnx --data samples.npy --values x",
    "values of an engine": "run model.onnx --data samples.npy --with cpu --values relu1",
    "results as text": "run model.onnx --data samples.npy -o new.txt",
    "a size that is none": "bench model.onnx --size N",
    "no engine": "bench model.onnx --with ,",
    "steps of another engine": "bench model.onnx --with onnxruntime --profile --runs 1",
    "a quantized model": "quantize quantized.onnx --data samples.npy -o new.onnx",
}


@pytest.mark.parametrize("case", USAGE)
def test_wrong_use_gets_one_line(folder: Path, case: str) -> None:
    before = listing(folder)
    outcome = call(folder, *shlex.split(USAGE[case]))
    assert_one_line(outcome, 2)
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("case", "meant"),
    [
        ("an unknown verb", "quantize"),
        ("an unknown option", "--json"),
        ("an unknown target", "onnxruntime"),
        ("a node that is not there", "/conv1/Conv"),
    ],
)
def test_what_was_meant_is_guessed(folder: Path, case: str, meant: str) -> None:
    outcome = call(folder, *shlex.split(USAGE[case]))
    assert f"did you mean {meant}" in outcome.err.lower().replace("'", "").replace(
        meant.lower(), meant
    ), outcome


def test_a_traceback_is_shown_when_asked_for(tmp_path: Path) -> None:
    outcome = process("show", "none.onnx", "--debug", cwd=tmp_path)
    assert outcome.status == 2
    assert "Traceback" in outcome.err
    assert outcome.err.splitlines()[-1] == "qir: none.onnx: there is no such file"


def test_very_long_names_still_fit_the_line(tmp_path: Path) -> None:
    name = "a" * 200 + "/" + "b" * 200 + "/missing.onnx"
    outcome = process("show", name, cwd=tmp_path)
    assert_one_line(outcome, 2)
    assert outcome.err.endswith("missing.onnx: there is no such file\n")


def test_a_closed_pipe_is_quiet(folder: Path) -> None:
    command = f"{sys.executable} -m qir show model.onnx --text | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""


def test_lines_end_where_they_are_read(folder: Path) -> None:
    outcome = call(folder, "show", "model.onnx")
    text = io.StringIO(outcome.out)
    assert all(line.rstrip() + "\n" == line for line in text), "blanks at the end of a line"


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (KeyboardInterrupt(), 130, "qir: interrupted\n"),
        (MemoryError("12 GB"), 2, "qir: out of memory\n"),
        (PermissionError(13, "Permission denied", "m.onnx"), 2, "qir: m.onnx: Permission denied\n"),
        (
            ValueError("two\nlines"),
            2,
            "qir: a fault in QIR: ValueError: two lines; --debug shows where\n",
        ),
    ],
)
def test_what_nobody_foresaw_gets_one_line_too(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    failure: BaseException,
    status: int,
    said: str,
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise failure

    monkeypatch.setattr("qir.loading.load", fail)
    outcome = call(folder, "show", "model.onnx")
    assert (outcome.status, outcome.out, outcome.err) == (status, "", said)


@pytest.mark.parametrize("words", ["show model.onnx", "doctor", "--help", "convert -q model.onnx"])
@pytest.mark.parametrize("closed", [">&-", ">&- 2>&-"])
def test_closed_output_is_told_in_a_line_before_any_work(
    folder: Path, words: str, closed: str
) -> None:
    before = listing(folder)
    command = f"exec {shlex.quote(sys.executable)} -m qir {words} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == ("" if "2>" in closed else "qir: standard output: closed\n")
    assert listing(folder) == before
