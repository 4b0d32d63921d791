"""The ledger tells what was lost, and refuses what nobody agreed to lose."""

from __future__ import annotations

import json
import math

import pytest

from qir.errors import Refused
from qir.ledger import Change, Entry, Ledger

LOSSES = {Change.APPROXIMATED, Change.REFUSED}


def ledger(*rows: tuple[Change, float]) -> Ledger:
    out = Ledger()
    for i, (change, quantized) in enumerate(rows):
        out.add(change, "emit", f"tensor{i}", "a reason", codes=quantized)
    return out


@pytest.mark.parametrize("change", Change)
def test_each_change_has_a_meaning_and_is_a_loss_or_none(change: Change) -> None:
    assert change.meaning
    told = ledger((change, 0))
    assert (len(told.losses()) == 1) == (change in LOSSES)
    if change in LOSSES:
        with pytest.raises(Refused, match="emit: tensor0: a reason"):
            told.check()
    else:
        told.check()


@pytest.mark.parametrize(("codes", "lost"), [(0.5, 0), (1, 0), (1.001, 1), (9, 1), (math.nan, 1)])
def test_a_nudge_of_more_than_one_code_is_a_loss(codes: float, lost: int) -> None:
    assert len(ledger((Change.NUDGED, codes)).losses()) == lost


def test_what_is_lost_may_be_allowed_and_what_is_refused_may_not() -> None:
    lossy = ledger((Change.EXACT, 0), (Change.APPROXIMATED, 0), (Change.NUDGED, 3))
    with pytest.raises(Refused) as caught:
        lossy.check()
    assert str(caught.value) == "emit: tensor1: a reason (and 1 more); `lossy=True` allows it"
    assert caught.value.status == 3
    lossy.check(lossy=True)
    lossy.add(Change.REFUSED, "emit", "op", "no such kernel")
    for allowed in (True, False):
        with pytest.raises(Refused, match="emit: op: no such kernel") as caught:
            lossy.check(lossy=allowed)
        assert "lossy=True" not in str(caught.value)  # which would not help


def test_entries_are_counted_mildest_first_and_kept_in_order() -> None:
    told = ledger((Change.REFUSED, 0), (Change.EXACT, 0), (Change.NUDGED, 1), (Change.EXACT, 0))
    assert list(told.counts().items()) == [
        (Change.EXACT, 2),
        (Change.NUDGED, 1),
        (Change.REFUSED, 1),
    ]
    more = Ledger(told)
    more.extend(told)
    assert len(more) == 8
    assert [e.subject for e in more][:4] == ["tensor0", "tensor1", "tensor2", "tensor3"]
    assert len(told) == 4


def test_a_ledger_reads_back_from_json() -> None:
    told = ledger(*((change, i / 3) for i, change in enumerate(Change)))
    told.add(Change.EXACT, "é", 'a "b"\n', "\u2028", basis="test")
    back = Ledger.from_json(told.to_json())
    assert list(back) == list(told)
    strict = json.loads(told.to_json(), parse_constant=lambda name: pytest.fail(name))
    assert strict["version"] == 1


@pytest.mark.parametrize("codes", [math.nan, math.inf])
def test_a_number_that_json_has_not_stays_a_loss(codes: float) -> None:
    text = ledger((Change.NUDGED, codes)).to_json()
    assert json.loads(text, parse_constant=lambda name: pytest.fail(name))
    assert len(Ledger.from_json(text).losses()) == 1


ROW = {"change": "exact", "step": "s", "subject": "t", "reason": "r", "codes": 0, "basis": "test"}


@pytest.mark.parametrize(
    "data",
    [
        [],
        {},
        {"version": 1},
        {"version": 1, "entries": {}},
        {"version": 2, "entries": []},
        {"entries": []},
        {"version": 1, "entries": [3]},
        {"version": 1, "entries": [{}]},
        {"version": 1, "entries": [{**ROW, "more": 1}]},
        {"version": 1, "entries": [{**ROW, "change": "lost"}]},
        {"version": 1, "entries": [{**ROW, "codes": "many"}]},
        {"version": 1, "entries": [{**ROW, "reason": None}]},
    ],
)
def test_json_that_is_no_ledger_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Ledger.from_json(json.dumps(data))


def test_an_entry_says_what_it_rests_on() -> None:
    assert Entry(Change.EXACT, "s", "t", "r").basis == "construction"
    assert list(Ledger.from_json(json.dumps({"version": 1, "entries": [ROW]}))) == [
        Entry(Change.EXACT, "s", "t", "r", 0.0, "test")
    ]
