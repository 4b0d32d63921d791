"""What `qir verify` prints, and as JSON: findings, sums, and what a target takes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from qir import pipeline
from qir.ir.graph import Graph
from qir.ir.text import parse
from tests.cli.command import qir

U8 = "!quant.uniform<u8:f32, 0.5:3>"
TEXT = f"""graph main as native {{
  %x = input() : 1xDEPTHx{U8}
  %w = constant(@w) : 2xDEPTHx!quant.uniform<i8:f32, 0.25>
  %y = linear(%x, %w) : 1x2x{U8}
  output(y=%y)
}}
"""


def model(depth: int, weight: int) -> Graph:
    weights = np.full((2, depth), weight, np.int8)
    weights[0] = 1
    return parse(TEXT.replace("DEPTH", str(depth)), {"w": weights})


@pytest.fixture
def right(tmp_path: Path) -> Path:
    path = tmp_path / "right.qir"
    pipeline.save(model(8, 100), path)
    return path


@pytest.fixture
def wraps(tmp_path: Path) -> Path:
    path = tmp_path / "wraps.qir"
    pipeline.save(model(70000, 127), path)
    return path


def test_sums_are_shown_layer_by_layer_and_pairs_are_no_findings(right: Path) -> None:
    outcome = qir("verify", right, "--overflow")
    assert outcome.status == 0, outcome
    head, row = outcome.out.splitlines()[-2:]
    assert head.split()[:3] == ["layer", "op", "terms"]
    said = "y linear 8 201,600 1 19 13 can saturate: 255 x 100 + 255 x 100 = 51,000"
    assert row.split() == said.split()
    assert "sums" not in qir("verify", right).out


def test_what_nobody_uses_is_a_note_and_no_failure(tmp_path: Path) -> None:
    """As in exports whose shapes are computed: once they are known, a Cast is left over."""
    nodes = [
        helper.make_node("Cast", ["x"], ["c"], to=onnx.TensorProto.INT64),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Relu", ["x"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [2, 3]) for n in "xy"]
    path = tmp_path / "dead.onnx"
    sets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "main", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    outcome = qir("verify", path)
    assert outcome.status == 0, outcome
    assert "dead.onnx: 1 note" in outcome.out
    assert "it is not used" in outcome.out
    (found,) = json.loads(qir("verify", path, "--json").out)["findings"]
    assert (found["rule"], found["severity"], found["node"]) == ("unused", "note", "f")


def test_a_sum_that_can_wrap_is_a_finding_with_its_layer(wraps: Path) -> None:
    outcome = qir("verify", wraps, "--overflow")
    assert outcome.status == 1
    assert "wraps.qir: 1 warning" in outcome.out
    assert "sums come to -26670000..2240280000 in channel 1: 33 bits, and 32 wrap" in outcome.out
    assert "2,240,280,000" in outcome.out
    found = json.loads(qir("verify", wraps, "--overflow", "--json").out)
    (finding,) = found["findings"]
    place = [finding[key] for key in ("rule", "node", "slot", "value", "path")]
    assert place == ["overflow", "y", "w", "w", "main"]
    (sums,) = found["sums"]
    assert (sums["bits"], sums["headroom"], sums["wraps"]) == (33, -1, True)
    assert found["ops"] is None


def test_a_target_is_asked_op_by_op(right: Path, tmp_path: Path) -> None:
    outcome = qir("verify", right, "--target", "cpu")
    assert outcome.status == 0, outcome
    assert "cpu takes 1 of 1 op in integers" in outcome.out
    assert qir("verify", right, "--target", "onnxruntime").status == 0
    curve = f"graph main as native {{\n%x = input() : 2x{U8}\n%y = tanh(%x) : 2x{U8}\n"
    pipeline.save(parse(curve + "output(y=%y)\n}"), tmp_path / "curve.qir")
    refused = qir("verify", tmp_path / "curve.qir", "--target", "onnxruntime")
    assert refused.status == 1
    assert "tanh is not taken in integers: onnxruntime has no integer tanh" in refused.out
    found = json.loads(
        qir("verify", tmp_path / "curve.qir", "--target", "onnxruntime", "--json").out
    )
    assert [f["rule"] for f in found["findings"]] == ["target"]
    (op,) = found["ops"]
    assert op == {
        "node": "y",
        "op": "tanh",
        "taken": "refused",
        "reason": "onnxruntime has no integer tanh",
        "path": "main",
        "origin": "",
        "defect": False,
    }
    assert found["sums"] is None


def test_a_target_that_there_is_not_is_told_in_one_line(right: Path) -> None:
    outcome = qir("verify", right, "--target", "abacus")
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1


def test_a_model_without_products_says_so(tmp_path: Path) -> None:
    graph = parse("graph main as native {\n%x = input() : 2xf32\noutput(x=%x)\n}")
    pipeline.save(graph, tmp_path / "none.qir")
    outcome = qir("verify", tmp_path / "none.qir", "--overflow")
    assert "no op sums quantized products" in outcome.out
