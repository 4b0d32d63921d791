"""`qir query`: what it finds in a file, and how it fails."""

import json
from pathlib import Path

import pytest

from tests.cli.command import assert_one_line, qir


def names(folder: Path, file: str, expression: str, *more: str) -> list[str]:
    outcome = qir("query", folder / file, expression, "--json", *more)
    assert outcome.status == 0, outcome
    told = json.loads(outcome.out)
    assert told["expression"] == expression
    return [row["name"] for row in told.get("nodes", told.get("values"))]


def test_nodes_are_found_in_a_float_and_in_a_quantized_file(folder: Path) -> None:
    assert names(folder, "model.onnx", 'op == "conv2d" and has(bias)') == ["conv1"]
    assert names(folder, "model.onnx", 'op == "conv2d" and w.bits == 8') == []
    assert names(folder, "quantized.qir", 'op == "conv2d" and w.bits == 8') == ["conv1", "norm2"]
    assert names(folder, "model.onnx", 'matches(origin.name, "/pool/*")') == ["mean", "flat"]
    assert names(folder, "model.onnx", "pad == (1, 1, 1, 1)") == ["conv1"]


def test_values_are_found(folder: Path) -> None:
    found = names(
        folder, "quantized.onnx", 'constant and storage == "i8" and axis == 0', "--values"
    )
    assert len(found) == 3
    assert names(folder, "model.onnx", "shape == (5,)", "--values") == ["b3"]


def test_the_table_counts_and_shows_what_was_found(folder: Path) -> None:
    lines = qir("query", folder / "model.onnx", 'op == "relu"').out.splitlines()
    assert lines[0] == "2 nodes"
    assert lines[1].split() == ["name", "op", "result", "holds", "from"]
    assert lines[2].split()[:4] == ["relu1", "relu", "Nx6x8x8", "f32"]
    assert qir("query", folder / "model.onnx", "false").out == "0 nodes\n"
    assert qir("query", folder / "model.onnx", "false", "--values").out == "0 values\n"


@pytest.mark.parametrize(
    "expression", ["w.bitz == 8", "op = 3", "", "(" * 300, "x" * 20_000, "\x1b[31m", "\n\n", "a 'b"]
)
def test_what_is_no_expression_is_one_line(folder: Path, expression: str) -> None:
    outcome = qir("query", folder / "model.onnx", expression)
    assert_one_line(outcome, 2)
    assert "column" in outcome.err or "letters" in outcome.err
