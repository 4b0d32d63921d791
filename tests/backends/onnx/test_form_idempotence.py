"""A form that is asked for again changes nothing more; one that nobody asks for stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from qir import pipeline
from tests.differential.onnxruntime.ort_tools import network, samples

FORMS = ("qdq", "qoperator", "integer")


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("forms") / "float.onnx"
    onnx.save(network(), path)
    graph = pipeline.load(path)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, samples(4, seed=1)))
    pipeline.save(made, path.with_name("m.onnx"))
    return path.with_name("m.onnx")


def parts(path: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Operators and how many inputs each has; names beside them may be others."""
    return list(_parts(onnx.load(path).graph))


def _parts(graph: onnx.GraphProto) -> Iterator[tuple[str, tuple[str, ...]]]:
    for node in graph.node:
        yield node.op_type, tuple(a.name for a in node.attribute)


@pytest.mark.parametrize("form", FORMS)
def test_a_form_is_the_same_the_second_time(form: str, quantized: Path, tmp_path: Path) -> None:
    once, twice = tmp_path / "once.onnx", tmp_path / "twice.onnx"
    pipeline.save(pipeline.load(quantized), once, format=form)
    pipeline.save(pipeline.load(once), twice, format=form)
    assert parts(twice) == parts(once)


@pytest.mark.parametrize("form", FORMS)
def test_another_operator_set_leaves_the_form(form: str, quantized: Path, tmp_path: Path) -> None:
    once, newer, through = (tmp_path / f"{name}.onnx" for name in ("once", "newer", "through"))
    pipeline.save(pipeline.load(quantized), once, format=form)
    pipeline.save(pipeline.load(once), newer, opset=21)
    assert parts(newer) == parts(once)
    pipeline.save(pipeline.load(once), tmp_path / "m.qir")
    pipeline.save(pipeline.load(tmp_path / "m.qir"), through)
    assert parts(through) == parts(once)


def test_integers_that_are_moved_to_a_sum_stay_integers(tmp_path: Path) -> None:
    """Left sides that a Gemm turns: integers before the sum, in the first form and the next."""
    path, once, twice = (tmp_path / f"{name}.onnx" for name in ("m", "once", "twice"))
    text = """<ir_version: 8, opset_import: ["": 17]>
    g (float[5,4] x) => (float[4,3] y)
    <float s = {0.5}, uint8 z = {120}, int8[5,3] w = {1,2,3,-4,5,6,7,-8,9,10,11,12,13,-14,15},
     float t = {0.25}, int8 n = {0}>
    {
      q = QuantizeLinear (x, s, z)
      d = DequantizeLinear (q, s, z)
      r = DequantizeLinear (w, t, n)
      y = Gemm <transA = 1> (d, r)
    }"""
    onnx.save(onnx.parser.parse_model(text), path)
    pipeline.save(pipeline.load(path), once, format="integer")
    pipeline.save(pipeline.load(once), twice, format="integer")
    names = [op for op, _ in parts(once)]
    assert "MatMulInteger" in names
    assert parts(twice) == parts(once)
