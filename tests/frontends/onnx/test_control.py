"""Models with If, Loop and Scan: read, run, written back, and run by onnxruntime."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx.backend.test.case.node import collect_testcases

import qir
from qir.backends.onnx.writer.graph import to_model
from qir.errors import InputError, Refused
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, print_graph
from qir.ir.verify import verify
from qir.ledger import Ledger
from qir.reference.interpreter import run

Arrays = dict[str, NDArray[Any]]

NAMES = frozenset(
    "test_if test_loop11 test_scan9_sum test_scan9_multi_state test_scan9_scalar "
    "test_range_float_type_positive_delta_expanded test_range_int32_type_negative_delta_expanded "
    "test_linear_attention_linear_expanded test_linear_attention_gated_delta_gqa_expanded "
    "test_linear_attention_prefill_with_past_expanded".split()
)


@pytest.fixture(scope="module")
def cases() -> dict[str, Any]:
    """The cases by name; made here, because making all that onnx has takes ten seconds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {case.name: case for case in collect_testcases(None) if case.name in NAMES}


def _runs(model: onnx.ModelProto, feeds: Arrays) -> list[Any]:
    for entry in model.opset_import:
        if not entry.domain:
            entry.version = min(entry.version, 26)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return list(session.run(None, feeds))


def _check(graph: Graph, feeds: Arrays, wanted: list[Any]) -> None:
    """The graph's own run and that of what is written from it give what is wanted."""
    assert [f for f in verify(graph) if f.severity == "error"] == []
    arrays = {name: a.data for name, a in array_table(graph).items()}
    assert parse(print_graph(graph), arrays) == graph
    made: Arrays = run(graph, feeds)
    model = to_model(graph, Ledger())
    onnx.checker.check_model(model, full_check=True)
    for mine, theirs, exact in zip(made.values(), _runs(model, feeds), wanted, strict=True):
        for found in (mine, theirs):
            assert found.shape == exact.shape
            assert found.dtype == exact.dtype
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", sorted(NAMES))
def test_onnxs_own_cases(cases: dict[str, Any], name: str, tmp_path: Path) -> None:
    case = cases[name]
    onnx.save(case.model, tmp_path / "m.onnx")
    graph = qir.load(tmp_path / "m.onnx")
    for given, wanted in case.data_sets:
        feeds = {
            info.name: np.asarray(x) for info, x in zip(case.model.graph.input, given, strict=True)
        }
        _check(graph, feeds, [np.asarray(x) for x in wanted])


def _model(text: str, **weights: NDArray[np.generic]) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 21]>\n{text}')
    for name, data in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(data, name))
    return model


LOOP = """g (float[2,3] x, int64 n, bool go) => (float[a,3] last, float[r,b,3] all) {
  double = Add(x, x)
  last, all = Loop(n, go, x) <body = one (int64 i, bool c, float[d,3] h)
      => (bool c2, float[e,3] g, float[f,3] p) {
    m = MatMul(h, w)
    even = If(c) <
      then_branch = yes () => (float[?,3] t) { t = Add(m, bias) },
      else_branch = no () => (float[?,3] t2) { t2 = Sub(m, double) }
    >
    g = Concat <axis = 0> (even, x)
    p = ReduceSum <keepdims = 1> (h, zero)
    limit = Cast <to = 7> (bound)
    c2 = Less(i, limit)
  }>
}"""


def test_captures_constants_and_growing_values(tmp_path: Path) -> None:
    seed = 7
    rng = np.random.default_rng(seed)
    weights: Arrays = {
        "w": rng.normal(size=(3, 3)).astype(np.float32),
        "bias": rng.normal(size=3).astype(np.float32),
        "bound": np.array(2, np.int32),
        "zero": np.array([0], np.int64),
    }
    model = _model(LOOP.replace("[?,3]", "[q,3]"), **weights)
    onnx.save(model, tmp_path / "m.onnx")
    graph = qir.load(tmp_path / "m.onnx")
    node = graph["last"].node
    assert str(graph["last"].type) == "(a)x3xf32"
    assert str(graph.body(node).inputs[2].type).endswith("3xf32")
    assert [v.name for v in node.variadic("xs")] == ["double", "x"]
    for count, go in ((0, True), (1, True), (1, False), (4, True)):
        feeds: Arrays = {
            "x": rng.normal(size=(2, 3)).astype(np.float32),
            "n": np.array(count),
            "go": np.array(go),
        }
        if count == 0 or not go:  # onnxruntime gives parts of no rounds another shape
            assert np.array_equal(run(graph, feeds)["last"], feeds["x"])
            continue
        _check(graph, feeds, _runs(model, feeds))


NESTED = """g (float[2] x, bool c) => (float[2] y) {
  y = If(c) <
    then_branch = yes () => (float[2] a) {
      a = If(c) <
        then_branch = yy () => (float[2] b) { b = Mul(x, k) },
        else_branch = yn () => (float[2] b2) { b2 = Identity(x) }
      >
    },
    else_branch = no () => (float[2] k) { }
  >
}"""


def test_a_branch_may_give_what_is_outside(tmp_path: Path) -> None:
    k = np.array([2, 3], np.float32)
    model = _model(NESTED, k=k)
    onnx.save(model, tmp_path / "m.onnx")
    graph = qir.load(tmp_path / "m.onnx")
    x = np.array([1, -1], np.float32)
    assert run(graph, {"x": x, "c": np.array(True)})["y"].tolist() == [2, -3]
    assert run(graph, {"x": x, "c": np.array(False)})["y"].tolist() == [2, 3]
    written = to_model(graph, Ledger())
    onnx.checker.check_model(written, full_check=True)
    assert _runs(written, {"x": x, "c": np.array(False)})[0].tolist() == [2, 3]
    assert [t.name for t in written.graph.initializer] == ["k"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "g (float[2] x, bool c) => (float[2] y) { y = If(c) < then_branch = a ()"
            " => (float[2] t) { t = Relu(x) }, else_branch = b ()"
            " => (float[3] u) { u = Relu(nothing) } > }",
            "reads 'nothing', which nothing makes",
        ),
        (
            "g (float[2] x, bool c) => (float[2] y) { y = If(c) < then_branch = a ()"
            " => (float[2] t) { t = Relu(x) }, else_branch = b ()"
            " => (int64[2] u) { u = Cast <to = 7> (x) } > }",
            "result 0 is 2xf32 here and 2xi64 there",
        ),
        (
            "g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x) <body = one"
            " (int64 i, bool c) => (bool d) { d = Identity(c) }> }",
            "carries 1 values, its body takes 2",
        ),
        (
            "g (float[2] x, int64 n) => (float[2] y) { y = Loop(n, , x) <body = one"
            " (int64 i, bool c, float[2] h) => (bool c, int64[2] d) {"
            " d = Cast <to = 7> (h) }> }",
            "a carried value is 2xf32 before a round and 2xi64 after it",
        ),
    ],
)
def test_what_cannot_be_meant_is_told(text: str, said: str, tmp_path: Path) -> None:
    onnx.save(_model(text, zero=np.array([0], np.int64)), tmp_path / "m.onnx")
    with pytest.raises((InputError, Refused), match=said) as caught:
        qir.load(tmp_path / "m.onnx")
    assert "\n" not in str(caught.value)
