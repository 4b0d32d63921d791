"""Forms reach what branches and loops hold, and the bytes are onnxruntime's there too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.analysis.decisions import BODIES_STAY_FLOAT
from qir.errors import SchemeError, UsageError
from qir.ledger import Ledger
from tests.differential.runtime import run

node, info = helper.make_node, helper.make_tensor_value_info
FLOAT = TensorProto.FLOAT


def quantized_nodes(x: str) -> list[onnx.NodeProto]:
    maps = ["sx", "zx", "w", "sw", "zw", "sy", "zy"]
    return [
        node("QuantizeLinear", [x, "sx", "zx"], ["c"]),
        node("QLinearMatMul", ["c", *maps], ["p"]),
        node("DequantizeLinear", ["p", "sy", "zy"], ["on_codes"]),
    ]


def float_nodes(x: str) -> list[onnx.NodeProto]:
    return [
        node("QuantizeLinear", [x, "sx", "zx"], ["e"]),
        node("DequantizeLinear", ["e", "sx", "zx"], ["de"]),
        node("DequantizeLinear", ["w", "sw", "zw"], ["dw"]),
        node("MatMul", ["de", "dw"], ["m"]),
        node("QuantizeLinear", ["m", "sy", "zy"], ["q"]),
        node("DequantizeLinear", ["q", "sy", "zy"], ["on_reals"]),
    ]


def branches(seed: int) -> onnx.ModelProto:
    """A branch of each form, and within one of them a loop that has both."""
    out = info("on_reals", FLOAT, None)
    state, again = info("state", FLOAT, [4, 4]), info("again", TensorProto.BOOL, [])
    turn = info("turn", TensorProto.INT64, [])
    both = [
        *quantized_nodes("state"),
        *float_nodes("on_codes"),
        node("Identity", ["again"], ["on"]),
    ]
    body = helper.make_graph(both, "body", [turn, again, state], [info("on", 9, []), out])
    loop = [node("Loop", ["turns", "", "x"], ["ran"], body=body)]
    yes = helper.make_graph(loop, "yes", [], [info("ran", FLOAT, [4, 4])])
    no = helper.make_graph(quantized_nodes("x"), "no", [], [info("on_codes", FLOAT, [4, 4])])
    nodes = [node("If", ["which"], ["y"], then_branch=yes, else_branch=no)]
    rng = np.random.default_rng(seed)
    held = {
        "w": rng.integers(-128, 128, (4, 4)).astype(np.int8),
        "sx": np.float32(2**-5),
        "sw": np.float32(2**-7),
        "sy": np.float32(2**-4),
        "zx": np.uint8(121),
        "zw": np.int8(0),
        "zy": np.uint8(131),
        "turns": np.int64(3),
    }
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    ins = [info("x", FLOAT, [4, 4]), info("which", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", ins, [info("y", FLOAT, [4, 4])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def everywhere(graph: onnx.GraphProto) -> Iterator[str]:
    for each in graph.node:
        yield each.op_type
        for attribute in each.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from everywhere(attribute.g)


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_branches_and_loops_have_the_form_asked_for(form: str, tmp_path: Path) -> None:
    seed = 11
    path, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    model = branches(seed)
    onnx.save(model, path)
    ledger = Ledger()
    graph = pipeline.load(path)
    pipeline.save(graph, made, format=form, ledger=ledger)
    names = list(everywhere(onnx.load(made).graph))
    products = ("MatMul", "QLinearMatMul", "MatMulInteger")
    assert [names.count(p) for p in products] == {
        "qdq": [3, 0, 0],
        "qoperator": [0, 3, 0],
        "integer": [0, 0, 3],
    }[form]
    assert "no product" not in str(ledger.to_json())
    rng = np.random.default_rng(seed)
    for which in (True, False):
        feeds = {"x": rng.normal(size=(4, 4)).astype(np.float32) * 4, "which": np.array(which)}
        wanted = run(model, feeds, optimize=False)["y"]
        assert np.array_equal(pipeline.run(graph, feeds)["y"], wanted)
        assert np.array_equal(run(onnx.load(made), feeds, optimize=False)["y"], wanted)
        assert np.array_equal(pipeline.run(pipeline.load(made), feeds)["y"], wanted)


def test_an_operator_set_is_refused_that_onnxruntime_does_not_take(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(branches(0), path)
    graph = pipeline.load(path)
    with pytest.raises(UsageError, match="13 to 26 are written for onnxruntime"):
        pipeline.save(graph, tmp_path / "new.onnx", opset=27)
    pipeline.save(graph, tmp_path / "standard.onnx", opset=27, target="onnx")
    pipeline.save(graph, tmp_path / "same.onnx", opset=17)
    assert (tmp_path / "same.onnx").read_bytes() == path.read_bytes()


def real_branches(seed: int) -> onnx.ModelProto:
    """A product in one branch, and in the other a loop that has one, too."""
    ran, again = info("ran", FLOAT, None), info("again", TensorProto.BOOL, [])
    inner = [
        node("MatMul", ["state", "w1"], ["made"]),
        node("Relu", ["made"], ["next"]),
        node("Identity", ["again"], ["on"]),
    ]
    takes = [info("turn", TensorProto.INT64, []), again, info("state", FLOAT, [4, 32])]
    body = helper.make_graph(
        inner, "body", takes, [info("on", TensorProto.BOOL, []), info("next", FLOAT, None)]
    )
    loop = helper.make_graph(
        [node("Loop", ["turns", "", "x"], ["ran"], body=body)], "yes", [], [ran]
    )
    product = node("Gemm", ["x", "w2", "b"], ["added"], transB=1)
    other = helper.make_graph([product], "no", [], [info("added", FLOAT, None)])
    nodes = [node("If", ["which"], ["y"], then_branch=loop, else_branch=other)]
    rng = np.random.default_rng(seed)
    held = {
        "w1": rng.normal(size=(32, 32)).astype(np.float32),
        "w2": rng.normal(size=(32, 32)).astype(np.float32),
        "b": rng.normal(size=32).astype(np.float32),
        "turns": np.array(3),
    }
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    ins = [info("x", FLOAT, [4, 32]), info("which", TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", ins, [info("y", FLOAT, [4, 32])], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("way", ["dynamic", "weights"])
def test_products_within_branches_and_loops_are_quantized_without_data(
    way: str, tmp_path: Path
) -> None:
    seed = 13
    path, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    model = real_branches(seed)
    onnx.save(model, path)
    graph, rng = pipeline.load(path), np.random.default_rng(seed)
    if way == "dynamic":
        plan = pipeline.plan(graph, dynamic=True)
        pipeline.save(pipeline.quantize_dynamic(graph), made, format="integer")
    else:
        plan = pipeline.plan(graph, weights="u4:16")
        pipeline.save(pipeline.quantize_weights(graph, "u4:16"), made, format="nbits")
    assert sorted(d.op for d in plan.decisions if d.new) == ["gemm", "matmul"]
    names = list(everywhere(onnx.load(made).graph))
    assert names.count({"dynamic": "MatMulInteger", "weights": "MatMulNBits"}[way]) == 2
    for which in (True, False):
        feeds = {"x": rng.normal(size=(4, 32)).astype(np.float32), "which": np.array(which)}
        wanted = run(onnx.load(made), feeds, optimize=False)["y"]
        found = pipeline.run(pipeline.load(made), feeds)["y"]
        if way == "dynamic":
            assert np.array_equal(found, wanted)
        assert np.allclose(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_sums_of_raw_integers_within_branches_and_loops_are_raised(
    form: str, tmp_path: Path
) -> None:
    seed = 4
    path, made = tmp_path / "dynamic.onnx", tmp_path / "made.onnx"
    source = tmp_path / "m.onnx"
    onnx.save(real_branches(seed), source)
    pipeline.save(pipeline.quantize_dynamic(pipeline.load(source)), path, format="integer")
    assert list(everywhere(onnx.load(path).graph)).count("MatMulInteger") == 2
    ledger = Ledger()
    pipeline.save(pipeline.load(path), made, format=form, ledger=ledger)
    names = list(everywhere(onnx.load(made).graph))
    assert "MatMulInteger" not in names
    assert not [e for e in ledger if "stays a sum" in e.reason]
    rng = np.random.default_rng(seed)
    for which in (True, False):
        feeds = {"x": rng.normal(size=(4, 32)).astype(np.float32), "which": np.array(which)}
        wanted = run(onnx.load(path), feeds, optimize=False)["y"]
        for optimize in (False, True):
            got = run(onnx.load(made), feeds, optimize=optimize)["y"]
            near = 2e-6 * float(np.abs(wanted).max())
            assert np.allclose(got, wanted, rtol=0, atol=near), (seed, which)


def test_with_data_it_is_said_that_bodies_stay(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(real_branches(0), path)
    (only,) = pipeline.plan(pipeline.load(path)).decisions
    assert only.reason == BODIES_STAY_FLOAT
    with pytest.raises(SchemeError, match="hits no op"):
        pipeline.plan(pipeline.load(path), dynamic=True, rules=["name=nobody: float"])
    kept = pipeline.plan(pipeline.load(path), dynamic=True, rules=["op=gemm: float"])
    assert [d.op for d in kept.decisions if d.integer] == ["matmul"]
