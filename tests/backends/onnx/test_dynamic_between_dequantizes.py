"""Dynamic models between dequantizes compute in onnxruntime what they computed before."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from qir import pipeline
from qir.backends.onnx import OnnxRuntimeTarget
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from tests.cli.command import qir
from tests.frontends.onnx.models import model, save

SEED = 20261122
F = np.float32
FLOAT = TensorProto.FLOAT
ROUNDED = "rounds its data to 8 bits a block"
Reals = NDArray[np.float32]
node = helper.make_node


def added(*behind: NodeProto, turned: bool = False) -> list[NodeProto]:
    """A product and a row that is added, and what comes behind."""
    sides = ["b", "h"] if turned else ["h", "b"]
    return [
        node("MatMul", ["x", "w"], ["h"], "fc"),
        node("Add", sides, ["t" if behind else "y"], "bias"),
        *behind,
    ]


NETS: dict[str, tuple[list[Any], list[Any], list[NodeProto]]] = {
    "two axes": ([5, 64], [16], added()),
    "a matrix": ([5, 64], [5, 16], added()),
    "three axes": ([2, 5, 64], [16], added()),
    "the row first": ([2, 5, 64], [16], added(turned=True)),
    "a relu behind": ([2, 5, 64], [16], added(node("Relu", ["t"], ["y"]))),
    "four axes": ([1, 2, 5, 64], [16], added()),
    "open": (["N", 5, 64], [16], added()),
    "a matrix to three axes": ([2, 5, 64], [5, 16], added()),
    "nothing added": ([2, 5, 64], [16], [node("MatMul", ["x", "w"], ["y"], "fc")]),
    "shared": (
        [2, 5, 64],
        [16],
        added(
            node("MatMul", ["x", "v"], ["k"]),
            node("Add", ["k", "b"], ["s"]),
            node("Mul", ["s", "t"], ["y"]),
        ),
    ),
}


def network(name: str, folder: Path) -> tuple[Path, Reals]:
    """A float model, and data for it."""
    sizes, bias, nodes = NETS[name]
    rng = np.random.default_rng(SEED)
    shapes = {"w": (64, 16), "v": (64, 16), "b": tuple(bias)}
    read = {n for each in nodes for n in each.input}
    held = {k: (rng.normal(size=s) * 0.4).astype(F) for k, s in shapes.items() if k in read}
    proto = model(nodes, {"x": (FLOAT, sizes)}, {"y": (FLOAT, None)}, held)
    shape = [3 if isinstance(size, str) else size for size in sizes]
    return save(proto, folder, "float.onnx"), rng.normal(size=shape).astype(F)


def judged(path: Path, x: Reals, *, optimize: bool = True) -> tuple[Reals, Counter[str]]:
    """What onnxruntime gives, and the operators that its optimizer leaves."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if not optimize:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(path.with_suffix(".seen"))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: Reals = session.run(None, {session.get_inputs()[0].name: x})[0]
    seen = onnx.load(options.optimized_model_filepath)
    return found, Counter(n.op_type for n in seen.graph.node)


def close(found: Reals, wanted: Reals) -> None:
    """Products of the same integers, scaled and added in another order."""
    assert np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max(), f"seed {SEED}"


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("kind", [QuantType.QInt8, QuantType.QUInt8], ids=["i8", "u8"])
def test_what_a_tool_made_dynamic(name: str, form: str, kind: QuantType, tmp_path: Path) -> None:
    source, x = network(name, tmp_path)
    dynamic, made, back = (tmp_path / f"{n}.onnx" for n in ("dynamic", "made", "back"))
    quantize_dynamic(source, dynamic, weight_type=kind, per_channel=name == "three axes")
    wanted, before = judged(dynamic, x, optimize=False)
    pipeline.save(pipeline.load(dynamic), made, format=form)
    found, seen = judged(made, x)
    close(found, wanted)
    assert seen["DynamicQuantizeMatMul"] + seen["MatMulIntegerToFloat"] == before["MatMulInteger"]
    assert not seen["MatMulNBits"] + seen["Gemm"]
    pipeline.save(pipeline.load(made), back, format="integer")
    found, seen = judged(back, x, optimize=False)
    assert seen["MatMulInteger"] == before["MatMulInteger"]
    close(found, wanted)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("form", ["qdq", "qoperator"])
def test_what_is_quantized_here(name: str, form: str, tmp_path: Path) -> None:
    source, x = network(name, tmp_path)
    quantized = pipeline.quantize_dynamic(pipeline.load(source))
    sums, made = tmp_path / "sums.onnx", tmp_path / "made.onnx"
    pipeline.save(quantized, sums, format="integer")
    pipeline.save(quantized, made, format=form)
    wanted, before = judged(sums, x, optimize=False)
    found, seen = judged(made, x)
    close(found, wanted)
    assert seen["DynamicQuantizeMatMul"] + seen["MatMulIntegerToFloat"] == before["MatMulInteger"]


def test_in_memory_it_runs_as_it_is_written(tmp_path: Path) -> None:
    source, x = network("three axes", tmp_path)
    quantized = pipeline.quantize_dynamic(pipeline.load(source))
    (wanted,) = pipeline.run(quantized, {"x": x}).values()
    found = dict(OnnxRuntimeTarget().session(quantized)(x=x))["y"]
    close(np.asarray(found), np.asarray(wanted))


def test_what_adds_apart_is_told(tmp_path: Path) -> None:
    source, _ = network("shared", tmp_path)
    ledger = Ledger()
    quantized = pipeline.quantize_dynamic(pipeline.load(source))
    pipeline.save(quantized, tmp_path / "made.onnx", format="qdq", ledger=ledger)
    said = [e.subject for e in ledger if "is added by Sum" in e.reason]
    assert said == ["t", "s"]


def between_dequantizes(folder: Path, name: str) -> tuple[Path, Reals]:
    """A file that has such a product between its own dequantizes."""
    source, x = network(name, folder)
    quantized, made = pipeline.quantize_dynamic(pipeline.load(source)), folder / "own.onnx"
    pipeline.save(quantized, made, format="qdq")
    proto = onnx.load(made)
    for each in proto.graph.node:
        each.op_type = {"Sum": "Add"}.get(each.op_type, each.op_type)
    del proto.metadata_props[:]
    onnx.save(proto, made)
    return made, x


@pytest.mark.parametrize("name", ["two axes", "three axes", "open", "a matrix to three axes"])
def test_a_product_between_the_sources_own_dequantizes_stays_and_is_named(
    name: str, tmp_path: Path
) -> None:
    source, x = between_dequantizes(tmp_path, name)
    made, ledger = tmp_path / "made.onnx", Ledger()
    pipeline.save(pipeline.load(source), made, format="qdq", ledger=ledger)
    wanted, seen = judged(source, x)
    found, again = judged(made, x)
    assert found.tobytes() == wanted.tobytes()
    assert seen == again
    named = [e.change for e in ledger if ROUNDED in e.reason]
    assert named == [Change.EXACT] * seen["MatMulNBits"]
    assert seen["MatMulNBits"] == (name == "three axes")


@pytest.mark.parametrize("name", ["three axes", "open"])
def test_a_comparison_rounds_the_data_that_onnxruntime_rounds(name: str, tmp_path: Path) -> None:
    source, x = between_dequantizes(tmp_path, name)
    np.save(tmp_path / "x.npy", x)
    data, both = tmp_path / "x.npy", "reference,onnxruntime"
    (found,) = json.loads(qir("run", source, "--data", data, "--compare", both, "--json").out)[
        "outputs"
    ]
    assert found["largest"] < 1e-5  # sums in another order
    made, ops = judged(source, x)
    plain = pipeline.run(pipeline.load(source), {"x": x})["y"]
    assert (np.abs(np.subtract(plain, made, dtype=np.float64)).max() > 1e-3) == (
        ops["MatMulNBits"] > 0
    )


ROWS = """graph g as ort-1.31 {{
  %x = input() : {size}x64xf32
  %s, %z = choose_qparams(%x) {{rule = "onnx.dynamic", storage = u8, keep = (0)}}
    : {one}xf32, {one}xu8
  %q = quantize(%x, scale=%s, zero=%z) : {size}x64x!quant.uniform<u8:f32:0, ?:?>
  %d = dequantize(%q, x.scale=%s, x.zero=%z) : {size}x64xf32
  %w = constant(@w) : 64x16x!quant.uniform<i8:f32, 0.01>
  %r = dequantize(%w) : 64x16xf32
  %b = constant(@b) : 16xf32
  %m = matmul(%d, %r{bias}) : {size}x16xf32
  {last}
}}"""


@pytest.mark.parametrize("form", ["qdq", "qoperator"])
@pytest.mark.parametrize("size", ["5", "2x5"])
@pytest.mark.parametrize("adds", ["", "bias", "add"])
def test_a_scale_for_each_row_stays_real_and_is_rounded_once(
    form: str, size: str, adds: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(SEED)
    one = "x".join([size.partition("x")[0], *["1"] * len(size.split("x"))])
    last = f"%y = add(%m, %b) : {size}x16xf32 output(y=%y)" if adds == "add" else "output(y=%m)"
    bias = ", bias=%b" if adds == "bias" else ""
    text = ROWS.format(size=size, one=one, bias=bias, last=last)
    weights = rng.integers(-99, 99, (64, 16)).astype(np.int8)
    graph = parse(text, {"w": weights, "b": rng.normal(size=16).astype(F)})
    x = rng.normal(size=(*map(int, size.split("x")), 64)).astype(F)
    made = tmp_path / "made.onnx"
    pipeline.save(graph, made, format=form)
    (wanted,) = pipeline.run(graph, {"x": x}).values()
    found, seen = judged(made, x)
    assert not seen["MatMulNBits"]
    close(found, np.asarray(wanted, F))
