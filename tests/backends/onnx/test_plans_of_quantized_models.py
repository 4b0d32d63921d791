"""What a plan says of models that hold integers is what these are shown to be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qir import pipeline
from qir.analysis.decisions import ALREADY_QUANTIZED, Decision
from qir.capability import verdicts
from qir.inspect import summarize
from qir.ir.text import parse
from qir.target import target
from tests.backends.onnx.kinds import KINDS
from tests.backends.onnx.test_partly_quantized_models import batches, network
from tests.cli.command import qir
from tests.differential.onnxruntime.ort_tools import quantized
from tests.frontends.onnx.models import save
from tests.installed import OPTIMIZED

WAYS: dict[str, dict[str, Any]] = {
    "data": {},
    "dynamic": {"dynamic": True},
    "weights": {"weights": "u4:16"},
}


LONE_RELU = (
    f"{ALREADY_QUANTIZED}, but {OPTIMIZED} has it in float32: no group of {OPTIMIZED} takes it but "
)
LONE_RELU += "after another op, as conv2d |> relu"


def planned(path: Path, way: str = "data") -> tuple[Decision, ...]:
    return pipeline.plan(pipeline.load(path), **WAYS[way]).decisions


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_work_and_what_is_on_codes_are_counted_as_they_are_shown(
    kind: str, way: str, tmp_path: Path
) -> None:
    onnx.save(KINDS[kind]()[0], tmp_path / "m.onnx")
    shown = summarize(pipeline.fold(pipeline.load(tmp_path / "m.onnx")))
    found = planned(tmp_path / "m.onnx", way)
    assert sum(d.macs for d in found) == shown.macs
    real = [d for d in found if d.becomes == "float" and d.reason.startswith(ALREADY_QUANTIZED)]
    new = sum(d.macs_on_codes for d in found if d.becomes == "integer")
    done = sum(d.macs_on_codes for d in found) + sum(d.macs for d in real)
    assert done - new == shown.integer_macs
    quantized_kernels = {
        layer.name for layer in shown.layers if layer.in_codes and "/" not in layer.name
    }
    assert quantized_kernels <= {d.node for d in found if d.becomes == "already" or d in real}
    assert all(d.reason == ALREADY_QUANTIZED for d in found if d.becomes == "already")
    assert all(d.reason != ALREADY_QUANTIZED for d in found if d.becomes != "already")
    taken = {v.node: v for v in pipeline.op_verdicts(pipeline.load(tmp_path / "m.onnx"))}
    assert all(
        taken[d.node].taken == "integer"
        for d in found
        if d.becomes == "already" and d.node in taken
    )
    assert all(d.reason == f"{ALREADY_QUANTIZED}, but {taken[d.node].reason}" for d in real)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_a_written_model_is_planned_as_integer_already(form: str, tmp_path: Path) -> None:
    graph = pipeline.load(save(network(), tmp_path))
    made = pipeline.quantize(graph, pipeline.calibrate(graph, batches()))
    pipeline.save(made, tmp_path / "made.onnx", format=form)
    plan = pipeline.plan(pipeline.load(tmp_path / "made.onnx"))
    assert plan.integer_macs == 1
    assert not any(d.new for d in plan.decisions)
    products = [d for d in plan.decisions if d.macs]
    assert {d.becomes for d in products} == {"already"}
    said = {d.reason for d in plan.decisions if d.becomes == "float"}
    assert said <= {LONE_RELU} or form != "qdq"
    assert not any("stays float" in reason for reason in said) or form == "integer"
    told = qir("plan", tmp_path / "made.onnx").out
    assert "100 % of" in told
    assert "of them already" in told


def test_sums_that_choose_their_numbers_count_and_the_rest_is_real(tmp_path: Path) -> None:
    onnx.save(quantized("dynamic-QInt8"), tmp_path / "m.onnx")
    found = planned(tmp_path / "m.onnx")
    sums = [d for d in found if d.op in ("conv_integer", "matmul_integer")]
    assert sums
    assert {(d.becomes, d.reason) for d in sums} == {("already", ALREADY_QUANTIZED)}
    rest = [d for d in found if d.becomes == "float"]
    assert rest
    assert all(d.reason and d.reason != ALREADY_QUANTIZED for d in rest)


def test_few_bit_weights_are_no_integers(tmp_path: Path) -> None:
    path = save(network(), tmp_path)
    found = planned(path, "weights")
    assert [d.op for d in found if d.becomes == "weights"] == ["matmul"] * 3
    assert not any(d.integer for d in found)
    told = qir("plan", path, "--weights", "u4:16").out
    assert "few-bit weights  3 of 5 ops, 100 % of" in told
    assert "activations stay float" in told
    assert "integer" not in told
    done = qir("quantize", path, "--weights", "u4:16", "-o", tmp_path / "w.onnx").out
    assert "few-bit weights" in done
    assert "integer" not in done.partition("ledger")[0]


SIZES = """graph main as ort-1.31 {
  %x = input() : (N)x4xf32
  %q = input() : 4x4xf32
  %s = shape(%x) : 2xi64
  %a = constant([0]) : 1xi64
  %d = gather(%s, %a) {axis = 0} : 1xi64
  %z = cast(%d) {to = f32} : 1xf32
  %m = matmul(%x, %q) : (N)x4xf32
  %g = gather(%m, %a) {axis = 1} : (N)x1xf32
  output(y=%g, z=%z)
}
"""


def test_reasons_are_true_of_sizes_moves_and_computed_operands() -> None:
    graph = parse(SIZES, {})
    found = {d.node: d for d in pipeline.plan(graph).decisions}
    assert [found[n].becomes for n in ("s", "d")] == ["as it is"] * 2
    assert found["z"].reason == "it converts integers to floats"
    assert found["m"].becomes == found["g"].becomes == "integer"
    turned = pipeline.plan(graph, target="cpu")
    reasons = {d.node: d.reason for d in turned.decisions}
    assert reasons["m"] == "b is computed; the table of cpu has a constant there"
    assert reasons["g"] == "it moves elements alone; the table of cpu plans no integers for gather"
    assert {v.node for v in verdicts(target("onnxruntime").capability(), graph)} == {"z", "m", "g"}
    without = {d.node: d.reason for d in pipeline.plan(graph, weights="u4:16").decisions}
    assert without["z"] == "it converts integers to floats"
    assert without["g"] == "only matrix products have their weights alone stored in few bits"
    assert np.isclose(pipeline.plan(graph).integer_macs, 1)
