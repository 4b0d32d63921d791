"""Floats of 16 bits become float32, and such models are quantized as others are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.verify import verify
from qir.ledger import Change, Ledger

node = helper.make_node
HALF, FLOAT = TensorProto.FLOAT16, TensorProto.FLOAT


def network(*, ends: bool) -> onnx.ModelProto:
    """A small residual network in float16; `ends`: float32 outside, with casts."""
    rng = np.random.default_rng(0)
    sizes = {"w0": (8, 3, 3, 3), "b0": (8,), "w1": (8, 8, 3, 3), "b1": (8,)}
    held = {n: rng.normal(0, 0.2, s) for n, s in (sizes | {"w2": (128, 10), "b2": (10,)}).items()}
    x, y = ("xh", "yh") if ends else ("x", "y")
    nodes = [node("Cast", ["x"], ["xh"], to=HALF)] if ends else []
    nodes += [
        node("Conv", [x, "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Add", ["c1", "r0"], ["s"]),
        node("MaxPool", ["s"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w2", "b2"], ["g"]),
        node("Softmax", ["g"], [y]),
    ]
    nodes += [node("Cast", ["yh"], ["y"], to=FLOAT)] if ends else []
    info, kind = helper.make_tensor_value_info, FLOAT if ends else HALF
    tensors = [numpy_helper.from_array(a.astype(np.float16), n) for n, a in held.items()]
    sides = [info("x", kind, [2, 3, 8, 8])], [info("y", kind, [2, 10])]
    graph = helper.make_graph(nodes, "net", *sides, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def ran(path: Path, x: NDArray[Any]) -> NDArray[Any]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    found: NDArray[Any] = session.run(None, {"x": x})[0]
    return found


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer", "nbits"])
@pytest.mark.parametrize("ends", [False, True])
def test_a_model_of_halves_is_quantized_and_runs(form: str, ends: bool, tmp_path: Path) -> None:
    source, out, ledger = tmp_path / "half.onnx", tmp_path / "q.onnx", Ledger()
    onnx.save(network(ends=ends), source)
    graph = pipeline.load(source)
    x = np.random.default_rng(1).normal(size=(2, 3, 8, 8))
    given = x.astype(np.float32 if ends else np.float16)
    if form == "nbits":
        made = pipeline.quantize_weights(graph, "u4:32", ledger=ledger)
    elif form == "integer":
        made = pipeline.quantize_dynamic(graph, ledger=ledger)
    else:
        made = pipeline.quantize(graph, pipeline.calibrate(graph, [{"x": given}]), ledger=ledger)
        planned = pipeline.plan(graph)
        assert planned.integer_macs == 1
        casts = {(d.becomes, d.reason) for d in planned.decisions if d.op == "cast"}
        said = {("as it is", "between floats of 16 bits and others")}
        assert casts == (set() if ends else said)
        assert {d.becomes for d in planned.decisions if d.op != "cast"} == {"integer"}
        assert {v.taken for v in pipeline.op_verdicts(made)} == {"integer"}, (
            "casts count as nothing"
        )
    widened = [e for e in ledger if e.step == "widen-reals"]
    assert [(e.change, e.reason[:29]) for e in widened] == [
        (Change.REGROUPED, "16-bit floats are float32: " + str(9 if ends else 8) + " ")
    ]
    written = Ledger()
    pipeline.save(made, out, format=form, ledger=written)
    assert not any("Cast" in e.reason for e in written), (
        "what the pass put there is no op that stays"
    )
    found, real = ran(out, given), ran(source, given)
    assert found.dtype == real.dtype == given.dtype
    bound = 0.15 if form == "nbits" else 0.03
    assert np.abs(found.astype(np.float64) - real).max() < bound
    quantized = {t.data_type for t in onnx.load(out).graph.initializer}
    assert HALF not in quantized


MIXED = """graph main as native {
  %x = input() : 2x4xHALF
  %n = input() : 2x4xi64
  %c = input() : bool
  %k = constant([0.1, 0.2, 0.3, 0.4]) : 4xHALF
  %a = mul(%x, %k) : 2x4xHALF
  %i = cast(%n) {to = HALF} : 2x4xHALF
  %b = add(%a, %i) : 2x4xHALF
  %w = cast(%b) {to = f32} : 2x4xf32
  %v = sigmoid(%w) : 2x4xf32
  %h = cast(%v) {to = HALF} : 2x4xHALF
  %e = if(%c, xs.0=%h) : 2x4xHALF with then {
    %p = input() : 2x4xHALF
    %q = exp(%p) : 2x4xHALF
    output(q=%q)
  } with else {
    %p = input() : 2x4xHALF
    output(q=%p)
  }
  %o = foreign(xs.0=%e) {framework = "onnx", op = "Softplus", version = 21} : 2x4xHALF
  %q = quantize(%o) : 2x4x!quant.uniform<u8:HALF, 0.0625>
  %d = dequantize(%q) : 2x4xHALF
  %y = sub(%d, %a) : 2x4xHALF
  output(y=%y, a=%a, v=%v, d=%d, x=%x)
}
"""


def mixed(kind: str) -> Graph:
    return parse(MIXED.replace("HALF", kind), {})


@pytest.mark.parametrize(("kind", "bits"), [("f16", 11), ("bf16", 8)])
def test_what_is_no_plain_op_of_reals_keeps_its_types(kind: str, bits: int) -> None:
    graph = mixed(kind)
    made = pipeline.optimize(graph, "widen-reals")
    assert [f for f in verify(made) if f.severity == "error"] == []
    types = {
        name: [v.type for v in (*g.inputs, *g.outputs.values())]
        for g in (graph, made)
        for name in ["before" if g is graph else "after"]
    }
    assert types["before"] == types["after"]
    real = {n.op for n in made if any(v.type.dtype.bits == 16 for v in n.results)}
    assert real == {"input", "cast", "if", "foreign", "dequantize"}
    assert {made[n].type.dtype.name for n in ("a", "b", "v")} == {"f32"}
    assert "w" not in made.values, "a cast to what it is already is none"
    carrier = np.float16 if kind == "f16" else ml_dtypes.bfloat16
    rng = np.random.default_rng(2)
    feeds = {
        "x": rng.uniform(-2, 2, (2, 4)).astype(carrier),
        "n": rng.integers(-1, 2, (2, 4)),
        "c": np.array(True),
    }
    wanted, found = (pipeline.run(g, feeds) for g in (graph, made))
    for name in "avx":
        a, b = (np.asarray(each[name], np.float64) for each in (wanted, found))
        assert np.abs(a - b).max() <= 2.0 ** (3 - bits), name
    assert pipeline.optimize(made, "widen-reals") == made


def test_what_holds_no_such_reals_stays_as_it_is() -> None:
    graph = parse("graph main { %x = input() : 2xf64 %y = relu(%x) : 2xf64 output(y=%y) }", {})
    assert pipeline.optimize(graph, "widen-reals") == graph
    assert pipeline.fold(graph) == graph


def test_codes_beside_halves_stay_what_they_are(tmp_path: Path) -> None:
    """An optimizer makes nothing integer of these, and neither does quantizing them again."""
    graph = mixed("f16")
    assert pipeline.fold(graph).outputs["y"].node.operands["a"].type.dtype.name == "f16"
    with pytest.raises(UsageError, match="the model is quantized already"):
        pipeline.quantize_dynamic(graph)


def held_in(op: str, kind: int) -> onnx.ModelProto:
    """A product, then a branch, a loop or a scan whose body holds another."""
    rng, info = np.random.default_rng(3), helper.make_tensor_value_info
    carrier = np.float16 if kind == HALF else np.float32
    w = numpy_helper.from_array(rng.normal(0, 0.3, (8, 8)).astype(carrier), "w")
    far = numpy_helper.from_array(np.array(-1000, carrier), "far")
    k = numpy_helper.from_array(rng.normal(0, 0.3, (8, 8)).astype(carrier), "k")
    side, end = [info("h", kind, [4, 8])], [info("t", kind, [4, 8])]
    inner = [node("MatMul", ["h", "k"], ["m"]), node("Tanh", ["m"], ["t"])]
    sums = [node("ReduceSum", ["h"], ["s"], keepdims=0), node("Greater", ["s", "far"], ["c"])]
    first, tensors = node("MatMul", ["x", "w"], ["h"]), [w]
    if op == "If":
        then = helper.make_graph(inner, "then", [], end, [k])
        other = helper.make_graph([node("Neg", ["h"], ["t"])], "else", [], end)
        nodes = [*sums, node("If", ["c"], ["y"], then_branch=then, else_branch=other)]
        tensors = [w, far]
    elif op == "Loop":
        flags = info("i", TensorProto.INT64, []), info("c", TensorProto.BOOL, [])
        on = info("d", TensorProto.BOOL, [])
        keep = node("Identity", ["c"], ["d"])
        body = helper.make_graph([keep, *inner], "body", [*flags, *side], [on, *end], [k])
        nodes = [node("Loop", ["n", "", "h"], ["y"], body=body)]
        tensors = [w, numpy_helper.from_array(np.array(3, np.int64), "n")]
    else:
        row = [info("h", kind, [8])], [info("t", kind, [8])]
        nodes = [
            node(
                "Scan",
                ["h"],
                ["y"],
                num_scan_inputs=1,
                body=helper.make_graph(inner, "body", *row, [k]),
            )
        ]
    ends = [info("x", kind, [4, 8])], [info("y", kind, [4, 8])]
    graph = helper.make_graph([first, *nodes], "net", *ends, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def everywhere(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph and of what its branches and loops hold."""
    inner = [a.g for n in graph.node for a in n.attribute if a.type == onnx.AttributeProto.GRAPH]
    return [*graph.node, *(n for held in inner for n in everywhere(held))]


@pytest.mark.parametrize("op", ["If", "Loop", "Scan"])
def test_what_branches_and_loops_compute_on_halves_is_quantized_as_their_twins(
    op: str, tmp_path: Path
) -> None:
    x = np.random.default_rng(4).normal(size=(4, 8))
    ends = {}
    for kind, carrier in ((HALF, np.float16), (FLOAT, np.float32)):
        source, out = tmp_path / f"{kind}.onnx", tmp_path / f"{kind}.q.onnx"
        onnx.save(held_in(op, kind), source)
        ledger = Ledger()
        made = pipeline.quantize_dynamic(pipeline.load(source), ledger=ledger)
        pipeline.save(made, out, format="integer", ledger=Ledger())
        products = sorted(
            n.op_type for n in everywhere(onnx.load(out).graph) if "MatMul" in n.op_type
        )
        assert products == ["MatMulInteger"] * 2, "one outside, one within"
        given = x.astype(carrier)
        real, ends[kind] = ran(source, given), ran(out, given)
        assert ends[kind].dtype == real.dtype == carrier
        assert np.abs(ends[kind].astype(np.float64) - real).max() < 0.05
        assert any(e.step == "widen-reals" for e in ledger) == (kind == HALF)
    assert np.abs(ends[HALF] - ends[FLOAT]).max() < 0.02
