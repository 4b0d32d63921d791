"""Models of which onnxruntime's tool quantized some ops end alike when they are finished."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from qir import pipeline
from qir.passes.forms.group import Group
from tests.backends.onnx.test_verify_target import network
from tests.cli.command import qir
from tests.differential.onnxruntime.ort_tools import samples as ort_samples
from tests.frontends.onnx.models import model

SEED = 61
FLOAT = TensorProto.FLOAT
Feeds = dict[str, NDArray[Any]]
node = helper.make_node

NETWORKS = {
    "erf": [
        node("MatMul", ["x", "w1"], ["h"]),
        node("Erf", ["h"], ["s"]),
        node("MatMul", ["s", "w2"], ["t"]),
        node("Erf", ["t"], ["t2"]),
        node("Add", ["t2", "s"], ["u"]),
        node("Sigmoid", ["u"], ["v"]),
        node("Mul", ["v", "s"], ["y"]),
    ],
    "sigmoid": [
        node("Sigmoid", ["x"], ["s"]),
        node("MatMul", ["s", "w1"], ["h"]),
        node("Add", ["h", "s"], ["y"]),
    ],
    "norm": [
        node("MatMul", ["x", "w1"], ["h"]),
        node("Add", ["h", "x"], ["r"]),
        node("LayerNormalization", ["r", "one"], ["n"]),
        node("MatMul", ["n", "w2"], ["t"]),
        node("Add", ["t", "n"], ["y"]),
    ],
    "moves": [
        node("MatMul", ["x", "w1"], ["h"]),
        node("Reshape", ["h", "rows"], ["r"]),
        node("Sigmoid", ["r"], ["s"]),
        node("Reshape", ["s", "flat"], ["f"]),
        node("MatMul", ["f", "w2"], ["t"]),
        node("Slice", ["t", "from", "to", "last"], ["p"]),
        node("Concat", ["p", "f"], ["y"], axis=1),
    ],
}
"""Networks of which the tool is told to quantize the products alone."""
GETS = {
    "erf": {"u", "v", "y"},
    "sigmoid": {"s", "y"},
    "norm": {"r", "y"},
    "moves": {"r", "s", "f", "p", "y"},
}


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, feeds: list[Feeds]) -> None:
        self.left: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> Feeds | None:
        return next(self.left, None)


def samples() -> list[Feeds]:
    rng = np.random.default_rng(SEED)
    return [{"x": rng.normal(size=(4, 8)).astype(np.float32)} for _ in range(3)]


def real(name: str) -> onnx.ModelProto:
    rng = np.random.default_rng(SEED + 1)
    held: Feeds = {n: rng.normal(size=(8, 8)).astype(np.float32) for n in ("w1", "w2")}
    held |= {"one": np.ones(8, np.float32), "rows": np.array([-1, 2, 4])}
    held |= {"flat": np.array([-1, 8]), "from": np.array([0]), "to": np.array([4])}
    held |= {"last": np.array([1])}
    used = {operand for each in NETWORKS[name] for operand in each.input}
    held = {n: array for n, array in held.items() if n in used}
    ends = {"y": (FLOAT, ["N", 12 if name == "moves" else 8])}
    return model(NETWORKS[name], {"x": (FLOAT, ["N", 8])}, ends, held, 17)


def part(name: str, form: str, kind: str, folder: Path) -> Path:
    made = folder / "part.onnx"
    _tool(real(name), samples(), (form, kind, ["MatMul"]), made)
    return made


def _tool(
    proto: onnx.ModelProto, feeds: list[Feeds], told: tuple[str, str, list[str]], made: Path
) -> None:
    source = made.with_name("float.onnx")
    onnx.save(proto, source)
    form, kind, ops = told
    with contextlib.redirect_stdout(io.StringIO()):
        quantize_static(
            source,
            made,
            _Reader(feeds),
            quant_format=QuantFormat[form],
            activation_type=QuantType[kind],
            op_types_to_quantize=ops,
        )


def held(path: Path) -> dict[str, bytes]:
    found = onnx.load(path).graph.initializer
    return {t.name: numpy_helper.to_array(t).tobytes() for t in found}


@pytest.mark.parametrize("kind", ["QInt8", "QUInt8"])
@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
@pytest.mark.parametrize("name", NETWORKS)
def test_ops_beside_codes_get_codes_and_read_those_that_are(
    name: str, form: str, kind: str, tmp_path: Path
) -> None:
    source, out = part(name, form, kind, tmp_path), tmp_path / "out.onnx"
    graph = pipeline.load(source)
    plan = pipeline.plan(graph)
    assert {d.node for d in plan.decisions if d.new} == GETS[name]
    done = pipeline.quantize(graph, pipeline.calibrate(graph, samples()))
    pipeline.save(done, out)
    assert not pipeline.verify(done)
    assert qir("verify", out).status == 0
    taken = {v.node.removesuffix("_1"): v.taken == "integer" for v in pipeline.op_verdicts(done)}
    assert all(taken[made] for made in GETS[name])
    before, after = held(source), held(out)
    quantized = {n: a for n, a in before.items() if n.endswith(("_quantized", "_scale"))}
    assert set(quantized.values()) <= set(after.values())
    predicted = pipeline.optimize(pipeline.load(out), [Group("ort-1.31")])
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    plain = onnxruntime.InferenceSession(str(source), providers=["CPUExecutionProvider"])
    for feeds in samples():
        (found,), (wanted,) = session.run(None, feeds), plain.run(None, feeds)
        assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
        if name == "norm":
            assert np.allclose(pipeline.run(predicted, feeds)["y"], found, atol=0.05)
        else:
            assert np.array_equal(pipeline.run(predicted, feeds)["y"], found)


@pytest.mark.parametrize("seed", range(4))
def test_any_ops_quantized_before_give_the_predicted_bytes(seed: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(seed)
    ops = ["MatMul", "Add", "Mul", "Sigmoid", "MaxPool", "AveragePool", "Concat", "LeakyRelu"]
    some = [str(op) for op in rng.choice(ops, rng.integers(1, 5), replace=False)]
    told = (("QDQ", "QOperator")[seed % 2], ("QInt8", "QUInt8")[seed // 2], some)
    feeds, out = ort_samples(2, seed), tmp_path / "out.onnx"
    _tool(network(seed), feeds, told, tmp_path / "part.onnx")
    graph = pipeline.load(tmp_path / "part.onnx")
    plan = pipeline.plan(graph)
    done = pipeline.quantize(graph, pipeline.calibrate(graph, feeds))
    pipeline.save(done, out)
    read = pipeline.load(out)
    assert not [f for f in pipeline.verify(read) if f.severity != "note"], f"seed {seed}: {told}"
    taken = {v.node for v in pipeline.op_verdicts(done) if v.taken == "integer"}
    missing = {d.node for d in plan.decisions if d.integer} - taken
    assert all(f"{name}_1" in taken for name in missing), f"seed {seed}: {told}"
    predicted = pipeline.optimize(read, [Group("ort-1.31")])
    session = onnxruntime.InferenceSession(str(out), providers=["CPUExecutionProvider"])
    for each in feeds:
        wanted = session.run(None, each)[0]
        assert np.array_equal(pipeline.run(predicted, each)["y"], wanted), f"seed {seed}: {told}"


@pytest.mark.parametrize("form", ["QDQ", "QOperator"])
def test_plans_count_what_onnxruntime_takes(form: str, tmp_path: Path) -> None:
    """An erf between integers is no integer op, and products that it has in floats are none."""
    path = part("erf", form, "QInt8", tmp_path)
    taken = {v.node: v for v in pipeline.op_verdicts(pipeline.load(path))}
    found = pipeline.plan(pipeline.load(path)).decisions
    there = [d for d in found if d.becomes == "already"]
    assert {d.node for d in there} == {n for n, v in taken.items() if v.taken == "integer"}
    reasons = {d.node: d.reason for d in found if d.becomes == "float"}
    assert reasons["t2"] == "onnxruntime has no integer erf"
    if form == "QDQ":
        assert reasons["s"] == "quantized already, but onnxruntime has no integer erf"
    told = qir("plan", path).out
    assert f"{len(there)} of them already" in told
