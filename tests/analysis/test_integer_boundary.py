"""Which inputs and outputs can be integers, and why others stay float."""

from __future__ import annotations

import pytest

import qir
from qir.analysis.integer_boundary import BoundaryTypes, boundary_values
from qir.errors import UsageError
from qir.ledger import Ledger
from qir.passes.forms.integer_io import IntegerIo
from qir.rewrite import run_passes
from tests.golden.reading import Golden
from tests.golden.test_golden import HERE

BOTH = BoundaryTypes("integer", "integer")


def reasons(name: str, asked: BoundaryTypes = BOTH) -> dict[str, str]:
    graph = Golden.read(HERE / "integer-io" / f"{name}.qir").graph()
    return {value.name: value.reason for value in boundary_values(graph, asked) if value.reason}


def test_what_stays_float_has_a_reason_that_names_the_reader() -> None:
    assert reasons("stay") == {
        "a": "ar (relu) reads floats",
        "b": "bq and bs quantize it to two types",
        "c": "its scale is chosen while the model runs",
        "ar": "ar (relu) gives floats",
        "p": "p (softmax) gives floats",
        "same": "it is input a",
    }
    asked = BoundaryTypes("u8", "float")
    assert reasons("unsigned", asked) == {"w": "its integers are u16, which u8 does not hold"}


def test_the_ledger_says_what_integers_mean_and_what_stays_float() -> None:
    graph = Golden.read(HERE / "integer-io" / "stay.qir").graph()
    ledger = Ledger()
    run_passes(graph, [IntegerIo()], ledger)
    said = {entry.subject: entry.reason for entry in ledger}
    assert said["d"] == "holds u8 0.5:3 now"
    assert said["p"] == "stays float: p (softmax) gives floats"


def test_the_ledger_says_why_integers_stay_as_they_are() -> None:
    graph = Golden.read(HERE / "integer-io" / "stored.qir").graph()
    ledger = Ledger()
    run_passes(graph, [IntegerIo(inputs="u8", outputs="float")], ledger)
    said = [(entry.subject, entry.reason) for entry in ledger]
    assert ("a", "holds u8 0.5:131 now") in said
    assert ("y", "holds floats now") in said
    assert ("w", "stays i16: its integers are i16, which u8 does not hold") in said


def test_a_pass_that_changes_nothing_says_what_inputs_and_outputs_hold() -> None:
    text = """graph main as native {
      %x = input() : 2x!quant.uniform<i8:f32, 0.5:3>
      %w = input() : 2x!quant.uniform<i16:f32, 0.001>
      output(x=%x, w=%w)
    }"""
    ledger = Ledger()
    run_passes(qir.parse(text), [IntegerIo(inputs="i8", outputs="integer")], ledger)
    assert [(entry.subject, entry.reason) for entry in ledger] == [
        ("x", "holds i8 0.5:3 already"),
        ("x", "holds i8 0.5:3 already"),
        ("w", "holds i16 0.001 already"),
        ("w", "stays i16: its integers are i16, which i8 does not hold"),
    ]


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("integer", BoundaryTypes("integer", "integer")),
        ("u8:float", BoundaryTypes("u8", "float")),
        ("float", BoundaryTypes()),
    ],
)
def test_one_text_asks_for_both_ends_or_for_each(text: str, asked: BoundaryTypes) -> None:
    assert BoundaryTypes.parse(text) == asked


@pytest.mark.parametrize("text", ["", "int8", "u8:", ":u8", "u8:i8:u8"])
def test_another_text_is_refused_with_those_there_are(text: str) -> None:
    with pytest.raises(UsageError, match="float, integer, i8, u8"):
        BoundaryTypes.parse(text)
