"""The fuzzer runs, in bounds, and tells what fails so that it can be repeated."""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import islice

import numpy as np
import pytest

from qir.errors import OpError, ParseError, QirError
from qir.ir.text import parse
from qir.ir.verify import verify
from qir.pipeline import run
from tests import fuzz
from tests.fuzzing.judging import Broken, Try, clear


@pytest.mark.slow  # what it breaks takes 10 s to make
def test_a_thousand_cases_find_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    count = sum(kind.share for kind in fuzz.KINDS.values())
    assert fuzz.main(["--count", f"{count}", "--seed", "7"]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert said.startswith(f"seed 7, {count} cases of text, ")
    assert ", ".join(f"{kind.share} {name}" for name, kind in fuzz.KINDS.items()) in said
    assert "; 0 failed" in said


def test_a_run_may_have_a_time_instead(capsys: pytest.CaptureFixture[str]) -> None:
    start = time.monotonic()
    assert fuzz.main(["--seconds", "0.5", "--seed", "7", "--kind", "text", "-j", "2"]) == 0
    assert "; 0 failed" in capsys.readouterr().out
    assert time.monotonic() - start < 30


def test_a_count_that_the_time_does_not_allow_is_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    asked = ["--count", "1000000", "--seconds", "0.2", "--seed", "7", "--kind", "type"]
    assert fuzz.main(asked) == 0
    said = capsys.readouterr().out
    assert said.startswith("seed 7, 1000000 cases or 0.2 s of type\n")
    assert " cases of 1000000, the time was over in " in said


def test_cases_that_break_one_graph_go_to_one_process() -> None:
    parcels = list(fuzz.Run(list(fuzz.KINDS), 7, 2, 5000, None).parcels())
    assert sorted(case for parcel in parcels for case in parcel) == sorted(
        islice(fuzz.cases(list(fuzz.KINDS)), 5000)
    )
    for parcel in parcels:
        assert len({(kind, number // fuzz.SHARED) for kind, number in parcel}) == 1 or (
            fuzz.KINDS[parcel[0][0]].share < fuzz.SHARED
        )


def warns(given: Try) -> None:
    np.float32(1) / np.zeros(1, np.float32)


def fails_now_and_then(given: Try) -> None:
    if given.rng.random() < 0.2:
        raise RecursionError("too deep")


def dies(given: Try) -> None:
    if given.rng.random() < 0.1:
        os._exit(1)


def fills_the_memory(given: Try) -> None:
    np.zeros(4 << 30, np.uint8)


def takes_long(given: Try) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        pass


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "said"),
    [
        (fails_now_and_then, "RecursionError: too deep"),
        (warns, "RuntimeWarning: divide by zero"),
        (dies, "the process ended, or was silent"),
        (fills_the_memory, "MemoryError"),
        (takes_long, "it takes more than 1 s"),
    ],
)
def test_a_failure_names_the_case_that_repeats_it(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: fuzz.Case,
    said: str,
) -> None:
    monkeypatch.setitem(fuzz.KINDS, "text", fuzz.Kind(case, 300))
    monkeypatch.setattr(fuzz, "SLOW", 1)
    count = "2" if case is takes_long else "40"
    assert fuzz.main(["--count", count, "--seed", "7", "--kind", "text"]) == 1
    told = capsys.readouterr().out
    assert said in told
    assert (
        f"{count} text: {count} cases in " in told
    )  # the cases behind the one that failed were run, too
    if case is fails_now_and_then:
        number = told.split("--case ")[1].split()[0]
        assert fuzz.main(["--seed", "7", "--case", number]) == 1
        assert said in capsys.readouterr().out


def test_kinds_take_turns_by_their_shares() -> None:
    shares = {name: kind.share for name, kind in fuzz.KINDS.items()}
    first = list(islice(fuzz.cases(list(fuzz.KINDS)), sum(shares.values())))
    assert Counter(kind for kind, _ in first) == shares
    numbers = [n for kind, n in first if kind == "graph"]
    assert numbers == list(range(30))


@pytest.mark.parametrize(
    "said",
    [
        "two\nlines",
        "x" * 300,
        "'NoneType' object has no attribute x",
        "KeyError: 5",
        "unhashable type",
        "Expecting value: line 1 column 1 (char 0)",
    ],
)
def test_what_is_not_clear_is_found(said: str) -> None:
    class Raw(QirError):
        def __str__(self) -> str:
            return said

    with pytest.raises(Broken):
        clear(Raw(said))


def test_names_may_say_anything() -> None:
    clear(ParseError("%KeyError is used before it is made, and 'NoneType' is no name"))
    assert str(OpError("a\nb\u2028c")) == "a b c"


def test_absurd_sizes_take_no_memory() -> None:
    text = """graph main {
      %x = input() : 999999999x999999999xf32
      %y = relu(%x) : 999999999x999999999xf32
      %z = concat(xs.0=%y, xs.1=%y) {axis = 0} : 1999999998x999999999xf32
      output(z=%z)
    }"""
    assert verify(parse(text)) == []
    wide = """graph main {
      %s = constant([999999999, 999999, 9]) : 3xi64
      %x = input() : 1x1x1xf32
      %y = expand(%x, %s) : 999999999x999999x9xf32
      %z = add(%y, %y) : 999999999x999999x9xf32
      output(z=%z)
    }"""
    with pytest.raises(OpError, match="does not fit into the memory"):
        run(parse(wide), {"x": np.ones((1, 1, 1), np.float32)})
