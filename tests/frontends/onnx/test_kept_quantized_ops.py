"""Ops about integers whose numbers make no sense are kept, and say why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import VerifyError
from qir.inspect.overflow import overflow
from qir.ir.text import parse
from qir.ledger import Ledger
from tests.cli.command import qir as command


def written(
    folder: Path, nodes: list[onnx.NodeProto], scales: dict[str, object], opset: int = 20
) -> Path:
    """A model from x to y, 2 x 3, with these numbers."""
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in scales.items()]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, (2, 3)) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    path, imports = folder / "m.onnx", [helper.make_opsetid("", opset)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    return path


def pair(read: str = "s") -> list[onnx.NodeProto]:
    """Quantizes with s and z, and reads with another scale and the same zero."""
    return [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", read, "z"], ["y"]),
    ]


@pytest.mark.parametrize("bad", [-0.5, 0.0, np.nan, np.inf])
def test_a_scale_that_is_no_scale_is_found(tmp_path: Path, bad: float) -> None:
    path, ledger = written(tmp_path, pair(), {"s": np.float32(bad), "z": np.uint8(3)}), Ledger()
    graph = pipeline.load(path, ledger=ledger)
    found = [(f.rule, f.severity, f.node, f.message) for f in pipeline.verify(graph)]
    said = f"its scale {bad} is not positive and finite"
    assert found == [
        ("kept", "warning", "q", f"kept as onnx QuantizeLinear: {said}"),
        ("kept", "warning", "y", f"kept as onnx DequantizeLinear: {said}"),
    ]
    notes = [(e.subject, e.reason) for e in ledger if "kept" in e.reason]
    assert notes == [(node, message) for _, _, node, message in found]
    pipeline.save(graph, tmp_path / "m.qir")
    assert pipeline.load(tmp_path / "m.qir") == graph
    again = tmp_path / "again.onnx"
    pipeline.save(graph, again)  # it is given back as it was
    assert [n.op_type for n in onnx.load(again).graph.node] == [
        "QuantizeLinear",
        "DequantizeLinear",
    ]


def test_codes_read_by_another_scale_than_made_them_are_found(tmp_path: Path) -> None:
    scales: dict[str, object] = {"s": np.float32(0.5), "t": np.float32(0.25), "z": np.uint8(3)}
    ledger = Ledger()
    (found,) = pipeline.verify(pipeline.load(written(tmp_path, pair("t"), scales), ledger=ledger))
    made, read = (f"!quant.uniform<u8:f32, {scale}:3>" for scale in (0.5, 0.25))
    (told,) = [str(entry) for entry in ledger if "reads it as" in entry.reason]
    assert "DequantizeLinear" in told
    assert f"holds {made}" in told
    assert f"reads it as {read}" in told
    assert (found.rule, found.severity, found.slot) == ("one-tensor", "warning", "x")
    assert found.message == f"it reads %q, quantized values of {made}, as {read}"


def test_an_op_that_is_not_known_is_no_finding(tmp_path: Path) -> None:
    nodes = [helper.make_node("MeanVarianceNormalization", ["x"], ["y"], axes=[0, 1])]
    assert pipeline.verify(pipeline.load(written(tmp_path, nodes, {}))) == []


def test_what_is_no_program_is_not_written_for_a_target(tmp_path: Path) -> None:
    text = (
        "graph main as native {\n%x = input() : 2xf32\n"
        "%q = quantize(%x) : 2x!quant.uniform<u8:f32, -0.5:3>\n%y = dequantize(%q) : 2xf32\n"
        "output(y=%y)\n}"
    )
    out = tmp_path / "out.onnx"
    with pytest.raises(VerifyError, match="a scale is not positive and finite"):
        pipeline.save(parse(text, {}), out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("op", "domain", "told"),
    [("QLinearMatMul", "com.example", True), ("QEmbedLookup", "com.microsoft", False)],
)
def test_a_kept_op_that_sums_codes_has_a_row_of_its_own(
    tmp_path: Path, op: str, domain: str, told: bool
) -> None:
    node = helper.make_node(op, ["q", "w", "s", "s", "z"], ["y"], domain=domain)
    first = helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])
    scales = {"s": np.float32(0.5), "z": np.uint8(3), "w": np.ones((3, 4), np.int8)}
    held = [numpy_helper.from_array(np.asarray(v), k) for k, v in scales.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 3))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (2, 4))
    graph = helper.make_graph([first, node], "g", [x], [y], held)
    imports = [helper.make_opsetid("", 20), helper.make_opsetid(domain, 1)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=9), path)
    found = [(s.node, s.op, s.wraps, s.why) for s in overflow(pipeline.load(path))]
    assert found == [("y", op, None, f"kept as onnx {op}")] * told


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2FNUZ"])
def test_float_codes_that_do_not_saturate_are_kept_and_given_back(
    tmp_path: Path, kind: str
) -> None:
    x = np.array([0, 1, -447, 449, 1e6, np.inf, -np.inf, np.nan], np.float32)
    zero = helper.make_tensor("z", getattr(TensorProto, kind), [], [0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], saturate=0),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
    ]
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8]) for n in "xy")
    one = numpy_helper.from_array(np.array(1, np.float32), "s")
    graph = helper.make_graph(nodes, "g", [given], [made], [one, zero])
    imports = [helper.make_opsetid("", 21)]
    path, back = tmp_path / "m.onnx", tmp_path / "back.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), path)
    read = pipeline.load(path)
    (finding,) = pipeline.verify(read)
    assert "float8 values that do not saturate differ between" in finding.message
    for form in ("qdq", "qoperator"):
        pipeline.save(pipeline.load(path), back, format=form, force=True)
        first = onnx.load(back).graph.node[0]
        assert [(a.name, a.i) for a in first.attribute if a.name == "saturate"] == [("saturate", 0)]
        found = [
            onnxruntime.InferenceSession(p, providers=["CPUExecutionProvider"]).run(None, {"x": x})
            for p in (path, back)
        ]
        assert found[0][0].tobytes() == found[1][0].tobytes()
    assert np.array_equal(pipeline.run(read, {"x": x})["y"], found[0][0], equal_nan=True)


def custom() -> onnx.ModelProto:
    """Two products with an op between them that nobody knows."""
    rng = np.random.default_rng(0)
    info, real = helper.make_tensor_value_info, TensorProto.FLOAT
    held = [helper.make_tensor(n, real, [8, 8], rng.normal(size=64)) for n in ("v", "w")]
    nodes = [
        helper.make_node("MatMul", ["x", "v"], ["a"]),
        helper.make_node("Mine", ["a"], ["b"], name="mine", domain="org.mine", alpha=2.0),
        helper.make_node("MatMul", ["b", "w"], ["y"]),
    ]
    ends = [[info(name, real, ["N", 8])] for name in "xyb"]
    graph = helper.make_graph(nodes, "m", ends[0], ends[1], held, value_info=ends[2])
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("org.mine", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def test_a_custom_op_is_told_with_what_helps(tmp_path: Path) -> None:
    path, data, out = tmp_path / "m.onnx", tmp_path / "x.npy", tmp_path / "q.onnx"
    path.write_bytes(custom().SerializeToString())
    np.save(data, np.ones((4, 8), np.float32))
    for words in (("run", path, "--data", data), ("quantize", path, "--data", data, "-o", out)):
        refused = command(*words)
        assert (refused.status != 0, out.exists()) == (True, False)
        assert "b (onnx Mine mine): onnx Mine: a custom op of domain org.mine" in refused.err
        assert "--dynamic or --weights needs no run" in refused.err
    for option in (("--dynamic",), ("--weights", "u4:32")):
        made = command("quantize", path, *option, "-o", out, "-f")
        assert made.status == 0, made.err
        assert "Mine" in {node.op_type for node in onnx.load(out).graph.node}
