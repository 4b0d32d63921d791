"""Calibrations that are interrupted or killed in processes of their own, and gone on with."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from qir.calibration import Statistics
from qir.calibration.runner import GraphProgram
from qir.trial_cache import TrialCache
from tests.cli import models
from tests.cli.command import assert_one_line, qir

SEED = random.SystemRandom().randrange(2**32)
WORDS = ("calibrate", "model.onnx", "--data", "samples.npy", "--batch", "1", "-o", "new.stats")
SLOWLY = r"""
import importlib, os, signal, sys, time
from qir.calibration import Statistics
from qir.calibration.runner import GraphProgram
from qir.cli.app import main
importlib.import_module("qir.calibration.collect").SECONDS = float(sys.argv.pop(1))
wait, run, save = float(sys.argv.pop(1)), GraphProgram.run, Statistics.save
def slowly(self, *given):
    time.sleep(wait)
    run(self, *given)
    os.write(2, b"batch\n")  # as a whole, from whatever thread
def aloud(self, path, **given):
    save(self, path, **given)
    os.write(2, b"saved\n")
GraphProgram.run, Statistics.save = slowly, aloud
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
main()
"""


def start(
    folder: Path,
    *more: str,
    words: Sequence[str] = WORDS,
    every: float = 0,
    wait: float = 0.03,
) -> subprocess.Popen[str]:
    """A real run that saves so often, and takes so long for a batch."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOWLY, str(every), str(wait), *words, *more],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def after(running: subprocess.Popen[str], what: str, count: int) -> None:
    """Returns when so many batches have ended, or were saved."""
    assert running.stderr is not None
    while count:
        line = running.stderr.readline()
        assert line in ("batch\n", "saved\n")
        count -= line == f"{what}\n"


def whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.chdir(folder)
    outcome = qir(*WORDS[:-1], "whole.stats")
    assert outcome.status == 0, outcome
    return Path("whole.stats").read_bytes()


@pytest.mark.parametrize(
    ("threads", "number", "status", "why"),
    [
        ("3", signal.SIGINT, 130, "interrupted"),
        ("1", signal.SIGTERM, 143, "stopped by the system"),
    ],
)
def test_a_run_that_is_interrupted_is_saved_and_gone_on_with(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    threads: str,
    number: signal.Signals,
    status: int,
    why: str,
) -> None:
    wanted = whole(folder, monkeypatch)
    # It saves only when interrupted, and takes long enough that the signal arrives before its end.
    running = start(folder, "--threads", threads, every=3600, wait=0.2)
    after(running, "batch", 7)
    running.send_signal(number)
    out, said = running.communicate(timeout=60)
    assert (running.returncode, out) == (status, ""), said
    assert said.splitlines()[-1] == f"qir: {why}; --resume continues from new.stats.part"
    done = len(Statistics.load("new.stats.part").batches)
    assert 5 <= done < models.SAMPLES
    outcome = qir(*WORDS, "--resume")
    assert outcome.status == 0, outcome
    assert outcome.out.startswith(f"resuming from new.stats.part: {done} batches done before\n")
    assert Path("new.stats").read_bytes() == wanted
    assert not [path for path in folder.iterdir() if path.suffix in (".part", ".draft")]


QUANTIZE = ("quantize", "model.onnx", "--data", "samples.npy", "--batch", "1", "-q")


@pytest.mark.slow
def test_quantizing_goes_on_where_its_calibration_was_interrupted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert qir(*QUANTIZE, "-o", "whole.onnx").status == 0
    words = (*QUANTIZE, "-o", "new.onnx")
    running = start(folder, words=words, every=3600, wait=0.2)
    after(running, "batch", 7)
    running.send_signal(signal.SIGINT)
    out, said = running.communicate(timeout=60)
    assert (running.returncode, out) == (130, ""), said
    part = "new.onnx.stats.part"
    assert said.splitlines()[-1] == f"qir: interrupted; the same command continues from {part}"
    assert not Path("new.onnx").exists()
    done = len(Statistics.load(part).batches)
    assert 5 <= done < models.SAMPLES
    running = start(folder, words=words, wait=0)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 0, said
    assert said.splitlines().count("batch") == models.SAMPLES - done
    assert Path("new.onnx").read_bytes() == Path("whole.onnx").read_bytes()
    assert not [path for path in folder.iterdir() if path.suffix in (".part", ".draft")]


@pytest.mark.parametrize("fault", ["of another model", "damaged"])
def test_statistics_on_the_way_that_do_not_fit_are_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.chdir(folder)
    assert qir(*QUANTIZE, "-o", "whole.onnx").status == 0
    part = Path("new.onnx.stats.part")
    Statistics("another").save(part)
    if fault == "damaged":
        part.write_bytes(part.read_bytes()[:-1])
    made = qir(*QUANTIZE, "-o", "new.onnx")
    assert made.status == 0, made
    assert Path("new.onnx").read_bytes() == Path("whole.onnx").read_bytes()


SEARCH = ("--sqnr", "52")


def test_a_search_that_is_interrupted_goes_on_from_its_trials(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    assert qir(*QUANTIZE, *SEARCH, "-o", "whole.onnx").status == 0
    measured: list[str] = []
    measure = TrialCache.get

    def some(cache: TrialCache, name: str, run: Callable[[], float]) -> float:
        if len(measured) == 3:
            raise KeyboardInterrupt
        if name not in cache.numbers:
            measured.append(name)
        return measure(cache, name, run)

    with monkeypatch.context() as patched:
        patched.setattr(TrialCache, "get", some)
        stopped = qir(*QUANTIZE, *SEARCH, "-o", "new.onnx")
    assert_one_line(stopped, 130)
    assert "interrupted; the same command continues from new.onnx.trials" in stopped.err
    assert not Path("new.onnx").exists()
    assert not Path("new.recipe.toml").exists()
    assert list(json.loads(Path("new.onnx.trials").read_text())["numbers"]) == measured
    made = qir(*QUANTIZE, *SEARCH, "-o", "new.onnx")
    assert made.status == 0, made
    assert Path("new.onnx").read_bytes() == Path("whole.onnx").read_bytes()
    assert not list(folder.glob("new.onnx.*"))


def test_a_full_disk_at_the_end_keeps_what_was_computed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    words = (*QUANTIZE, *SEARCH, "-o", "new.onnx")
    replace = os.replace

    def full(source: str, target: Path) -> None:
        if target.name == "new.onnx":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "replace", full)
        stopped = qir(*words)
    assert_one_line(stopped, 2)
    assert "cannot write new.onnx: No space left on device; free some" in stopped.err
    kept = {path.name for path in folder.glob("new.*")}
    assert kept == {"new.onnx.stats.part", "new.onnx.trials"}
    assert qir(*words).status == 0


@pytest.mark.slow
def test_runs_that_are_killed_again_and_again_come_to_the_same_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    print(f"seed {SEED}")
    rng = random.Random(SEED)
    wanted = whole(folder, monkeypatch)
    for _ in range(3):
        running = start(folder, "--resume", "--threads", "2", wait=0.01)
        after(running, "saved", 2)
        time.sleep(rng.random() * 0.02)
        running.kill()
        running.communicate()
        drafts = [path for path in folder.iterdir() if path.suffix == ".draft"]
        assert len(drafts) <= 1, "each run clears what the one before it left"
    outcome = qir(*WORDS, "--resume", "--json")
    assert outcome.status == 0, outcome
    assert 3 <= json.loads(outcome.out)["resumed"] <= models.SAMPLES
    assert Path("new.stats").read_bytes() == wanted
    assert not [path for path in folder.iterdir() if path.suffix in (".part", ".draft")]


def test_a_run_that_is_forced_gives_up_what_another_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    part = Path("new.stats.part")
    part.write_bytes(b"somebody's notes")

    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(GraphProgram, "run", interrupted)
    assert_one_line(qir(*WORDS), 2)
    assert part.read_bytes() == b"somebody's notes"
    outcome = qir(*WORDS, "--force")
    assert_one_line(outcome, 130)
    assert "--resume" not in outcome.err, "no batch was done"
    assert not part.exists()


def test_resuming_says_what_was_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    outcome = qir(*WORDS, "--resume")
    assert outcome.status == 0, outcome
    nothing = "nothing to resume: no new.stats.part and no new.stats; starting anew\n"
    assert outcome.out.startswith(nothing)
    outcome = qir(*WORDS, "--resume")
    said = f"resuming from new.stats: {models.SAMPLES} batches done before\n"
    assert outcome.out.startswith(said), outcome
    assert json.loads(qir(*WORDS, "--resume", "--json").out)["resumed"] == models.SAMPLES
    assert json.loads(qir(*WORDS, "--force", "--json").out)["resumed"] == 0
    assert qir(*WORDS, "--resume", "--quiet").out == ""
    Path("new.stats.part").write_bytes(b"somebody's notes")
    outcome = qir(*WORDS, "--resume")
    assert_one_line(outcome, 2)
    assert "new.stats.part: not a file of statistics" in outcome.err
    assert "--force without --resume starts anew" in outcome.err
