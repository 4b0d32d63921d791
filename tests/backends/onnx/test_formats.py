"""Forms of a model: what is quantized without data, operator sets, numbers that settle."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import diff, pipeline
from qir.errors import Refused, SchemeError, UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.target import target as named_target
from tests.differential.onnxruntime.ort_tools import network, samples
from tests.differential.runtime import run


def float_model(tmp_path: Path) -> Graph:
    path = tmp_path / "float.onnx"
    onnx.save(network(), path)
    return pipeline.load(path)


def written(graph: Graph, tmp_path: Path, **more: object) -> onnx.ModelProto:
    path = tmp_path / "made.onnx"
    pipeline.save(graph, path, force=True, **more)  # type: ignore[arg-type]
    return onnx.load(path)


def ops(proto: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in proto.graph.node]


def off(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> float:
    """The error beside the numbers, as a share."""
    error = np.square(np.subtract(found, wanted, dtype=np.float64)).mean()
    return float(np.sqrt(error / np.square(wanted.astype(np.float64)).mean()))


def near(found: NDArray[np.generic], wanted: NDArray[np.generic]) -> None:
    """Asserts that the numbers differ by the last bits of sums alone."""
    assert np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max() <= 1e-5


def test_a_model_quantized_while_it_runs_needs_no_data(tmp_path: Path) -> None:
    graph = float_model(tmp_path)
    feeds = samples(1, seed=3)[0]
    wanted = run(network(), feeds, optimize=False)["y"]
    made = pipeline.quantize_dynamic(graph)
    forms = [written(made, tmp_path, format=f) for f in ("integer", "qdq")]
    names = ops(forms[0])
    assert (names.count("ConvInteger"), names.count("MatMulInteger")) == (3, 2)
    assert names.count("DynamicQuantizeLinear") == 5
    for proto in forms:
        found = run(proto, feeds, optimize=False)["y"]
        assert off(found, wanted) < 0.05
        # Integers may move by one where a sum of floats before them differs in its last bit.
        assert off(pipeline.run(made, feeds)["y"], found) < 0.01


def test_a_plan_without_data_names_reasons_and_obeys_rules(tmp_path: Path) -> None:
    graph = float_model(tmp_path)
    plan = pipeline.plan(graph, dynamic=True, rules=["op=gemm: float", "name=m slot=w: u8 affine"])
    found = {d.node: d for d in plan.decisions}
    assert found["c0"].integer
    assert found["y"].reason == "a rule keeps it float"
    assert "without data" in found["g"].reason
    with pytest.raises(SchemeError, match="hits no op"):
        pipeline.plan(graph, dynamic=True, rules=["op=lstm: float"])


@pytest.mark.parametrize("weights", ["u4:16", "i4:32", "u8:16", "i8:64", "u2:16"])
@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
def test_weights_alone_are_stored_in_blocks(tmp_path: Path, weights: str, target: str) -> None:
    graph = float_model(tmp_path)
    made = pipeline.quantize_weights(graph, weights, target=target)
    proto = written(made, tmp_path, format="nbits", target=target)
    wanted = "MatMulNBits" if target == "onnxruntime" else "DequantizeLinear"
    assert ops(proto).count(wanted) == 2
    if weights == "u2:16":
        return  # onnxruntime has a kernel for two bits on some processors alone
    feeds = samples(1, seed=3)[0]
    found = run(proto, feeds, optimize=False)["y"]
    near(pipeline.run(made, feeds)["y"], found)
    float32 = run(network(), feeds, optimize=False)["y"]
    assert off(found, float32) < (0.2 if "4" in weights.partition(":")[0] else 0.02)
    back = pipeline.load(tmp_path / "made.onnx")
    near(pipeline.run(back, feeds)["y"], found)


@pytest.mark.parametrize("text", ["u4", "f8:16", "u4:0", "q4:16", "u3:16"])
def test_other_words_for_weights_are_told(tmp_path: Path, text: str) -> None:
    with pytest.raises(SchemeError, match="such as u4:32"):
        pipeline.quantize_weights(float_model(tmp_path), text)


def test_nothing_of_a_form_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="no product here has weights in blocks"):
        written(float_model(tmp_path), tmp_path, format="nbits")


def test_an_operator_set_is_asked_for_and_refused_where_codes_need_more(tmp_path: Path) -> None:
    graph = float_model(tmp_path)
    proto = written(graph, tmp_path, target="onnx", opset=17)
    assert [(o.domain, o.version) for o in proto.opset_import] == [("", 17)]
    blocks = pipeline.quantize_weights(graph, "u4:16")
    with pytest.raises(Refused, match="needs opset 21; 17 is asked for"):
        written(blocks, tmp_path, target="onnx", format="qdq", opset=17)
    with pytest.raises(UsageError, match="from 13 to"):
        written(graph, tmp_path, target="onnx", opset=99)
    with pytest.raises(UsageError, match="no operator sets"):
        named_target("cpu").at(21)


@pytest.mark.parametrize("weights", ["u4:32", "i4:32", "u8:32", "i8:64", "u2:32"])
def test_weights_in_bytes_need_no_newer_operator_set(tmp_path: Path, weights: str) -> None:
    drawn = np.random.default_rng(5).normal(size=(64, 32)).astype(np.float32)
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N", size])
        for n, size in (("x", 64), ("y", 32))
    )
    held = [numpy_helper.from_array(drawn, "w")]
    body = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y], held)
    source = helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(source, tmp_path / "source.onnx")
    made = pipeline.quantize_weights(pipeline.load(tmp_path / "source.onnx"), weights)
    ledger, protos = Ledger(), []
    for opset in (17, None, 21, 25):
        protos.append(written(made, tmp_path, format="nbits", opset=opset, ledger=ledger))
        assert ops(protos[-1]) == ["MatMulNBits"]
    versions = [next(o.version for o in p.opset_import if not o.domain) for p in protos]
    assert versions == [17, 17, 21, 25]
    assert {p.ir_version for p in protos} == {10}
    assert not [e for e in ledger if "needs it" in e.reason or "IR version" in e.reason]
    if weights != "u2:32":  # onnxruntime has a kernel for two bits on some processors alone
        feeds = {"x": np.random.default_rng(6).normal(size=(5, 64)).astype(np.float32)}
        found = [run(p, feeds, optimize=True)["y"].tobytes() for p in protos]
        assert len(set(found)) == 1


INVERSE = """graph main as native {
  %x = input() : 3x3xf32
  %y = inverse(%x) : 3x3xf32
  output(y=%y)
}"""


def test_an_operator_of_onnxruntimes_own_is_none_of_plain_onnx(tmp_path: Path) -> None:
    graph = parse(INVERSE)
    assert ops(written(graph, tmp_path)) == ["Inverse"]
    with pytest.raises(Refused, match="microsoft's and no operator of ONNX itself"):
        written(graph, tmp_path, target="onnx")


def test_numbers_that_turn_out_constant_are_folded_into_a_static_model(tmp_path: Path) -> None:
    """A scale that is a quotient of constants, integers that are summed in integers."""
    rng = np.random.default_rng(5)
    w = rng.integers(-127, 128, (6, 4)).astype(np.int8)
    held = {"top": np.float32(6), "steps": np.float32(255), "z": np.uint8(9), "w": w}
    held |= {"w_scale": np.float32(0.02)}
    node = helper.make_node
    nodes = [
        node("Div", ["top", "steps"], ["s"]),
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("MatMulInteger", ["q", "w", "z"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["s", "w_scale"], ["m"]),
        node("Mul", ["f", "m"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 6])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 4])
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    ledger = Ledger()
    made = written(pipeline.load(path), tmp_path, format="qdq", ledger=ledger)
    assert ops(made) == ["QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "MatMul"]
    assert Change.EXACT in ledger.counts()
    feeds = {"x": (rng.standard_normal((3, 6)) * 3).astype(np.float32)}
    one, other = (run(p, feeds, optimize=False)["y"] for p in (proto, made))
    near(other, one)
    back = pipeline.load(tmp_path / "made.onnx")
    assert not [v for v in back.values.values() if v.type.quant and v.type.quant.dynamic]


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer"])
def test_a_scale_that_a_constant_condition_chooses_is_folded(form: str, tmp_path: Path) -> None:
    """The other branch would take it of the data; a branch that chooses data stays."""
    node, info = helper.make_node, helper.make_tensor_value_info
    scalar = info("t", TensorProto.FLOAT, [])

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        return helper.make_graph(nodes, name, [], [scalar])

    scales = [
        branch("then", node("Mul", ["small", "half"], ["t"])),
        branch("else", node("ReduceMax", ["x"], ["t"], keepdims=0)),
    ]
    ends = [
        branch("same", node("Identity", ["t0"], ["t"])),
        branch("no", node("Neg", ["t0"], ["t"])),
    ]
    nodes = [
        node("Greater", ["half", "small"], ["more"]),
        node("If", ["more"], ["s"], then_branch=scales[0], else_branch=scales[1]),
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("MatMulInteger", ["q", "w", "z"], ["i"]),
        node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["s", "half"], ["m"]),
        node("Mul", ["f", "m"], ["y"]),
        node("ReduceMax", ["y"], ["t0"], keepdims=0),
        node("If", ["more"], ["t"], then_branch=ends[0], else_branch=ends[1]),
    ]
    rng = np.random.default_rng(11)
    held: dict[str, NDArray[np.generic] | np.generic] = {
        "small": np.float32(0.0625),
        "half": np.float32(0.5),
        "z": np.uint8(100),
    }
    held |= {"w": rng.integers(-127, 128, (6, 4)).astype(np.int8)}
    inputs = [info("x", TensorProto.FLOAT, [3, 6])]
    outputs = [info("y", TensorProto.FLOAT, [3, 4]), scalar]
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(proto, tmp_path / "m.onnx")
    ledger = Ledger()
    made = written(pipeline.load(tmp_path / "m.onnx"), tmp_path, format=form, ledger=ledger)
    assert ops(made).count("If") == 1
    assert [e.subject for e in ledger if e.step == "fold-control"] == ["s"]
    feeds = {"x": (rng.standard_normal((3, 6)) * 3).astype(np.float32)}
    one, other = (run(p, feeds, optimize=False) for p in (proto, made))
    assert all(np.array_equal(other[name], one[name]) for name in "yt")
    back = pipeline.load(tmp_path / "made.onnx")
    assert not [v for v in back.values.values() if v.type.quant and v.type.quant.dynamic]


def test_a_constant_beside_numbers_that_are_computed_stays_what_it_is(tmp_path: Path) -> None:
    """What a convolution of chosen integers adds: a bias that a Reshape spreads."""
    rng = np.random.default_rng(7)
    node = helper.make_node
    nodes = [
        node("Reshape", ["bias", "sizes"], ["spread"]),
        node("Add", ["x", "spread"], ["a"]),
        *(node("Relu", [f"a{i - 1}" if i else "a"], [f"a{i}"]) for i in range(1500)),
        node("DynamicQuantizeLinear", ["a1499"], ["q", "s", "z"]),
        node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    held = {"bias": rng.random(4).astype(np.float32), "sizes": np.array([1, 4, 1, 1])}
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [2, 4, 3, 3]) for n in "xy")
    tensors = [numpy_helper.from_array(a, n) for n, a in held.items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "g", [x], [y], tensors),
        opset_imports=[helper.make_opsetid("", 21)],
        ir_version=10,
    )
    onnx.save(proto, tmp_path / "m.onnx")
    graph = pipeline.load(tmp_path / "m.onnx")
    pipeline.save(graph, tmp_path / "m.qir")
    made = written(pipeline.load(tmp_path / "m.qir"), tmp_path)
    assert ops(made) == [n.op_type for n in nodes]
    assert [t.name for t in made.graph.initializer] == ["bias", "sizes"]
    assert diff(graph, pipeline.load(tmp_path / "made.onnx")).equal


def test_a_product_of_codes_that_ends_in_reals_is_told_where_its_parts_are_written(
    tmp_path: Path,
) -> None:
    rng = np.random.default_rng(6)
    w = rng.integers(-128, 128, (8, 5)).astype(np.int8)
    held: dict[str, object] = {
        "s": np.float32(0.5),
        "z": np.uint8(120),
        "t": np.float32(0.25),
        "u": np.int8(0),
    }
    held["w"] = w
    node = helper.make_node("QGemm", ["x", "s", "z", "w", "t", "u"], ["y"], domain="com.microsoft")
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [3, 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 5])
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(
        helper.make_graph([node], "g", [x], [y], tensors), opset_imports=imports, ir_version=9
    )
    onnx.save(proto, tmp_path / "m.onnx")
    graph, ledger = pipeline.load(tmp_path / "m.onnx"), Ledger()
    made = written(graph, tmp_path, format="qoperator", target="onnx", ledger=ledger)
    assert "QGemm" not in ops(made)
    assert [e.subject for e in ledger if e.change is Change.REGROUPED] == ["y"]
    feeds = {"x": rng.integers(0, 256, (3, 8)).astype(np.uint8)}
    near(run(made, feeds, optimize=False)["y"], run(proto, feeds, optimize=False)["y"])
