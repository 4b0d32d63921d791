"""The fuzzer runs, and tells what fails so that it can be repeated."""

import random
from pathlib import Path

import pytest

from tests import fuzz


def test_a_short_run_of_every_kind_finds_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz.main(["--seconds", "3", "--seed", "7"]) == 0
    assert "; 0 failed" in capsys.readouterr().out


def test_a_failure_names_the_case_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails_now_and_then(rng: random.Random, folder: Path) -> None:
        if rng.random() < 0.2:
            raise RecursionError("too deep")

    monkeypatch.setitem(fuzz.CASES, "text", fails_now_and_then)
    assert fuzz.main(["--seconds", "0.1", "--seed", "7", "--kind", "text"]) == 1
    said = capsys.readouterr().out
    case = said.split("--case ")[1].split()[0]
    assert fuzz.main(["--seed", "7", "--case", case]) == 1
    assert "too deep" in capsys.readouterr().out
