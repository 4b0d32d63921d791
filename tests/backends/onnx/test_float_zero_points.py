"""Weights of few bits with real zero points, beside what onnxruntime's MatMulNBits runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.text import parse_type
from qir.ir.types import Array
from qir.ledger import Ledger
from tests.differential.runtime import run

DEPTH, COUNT = 32, 4
X = np.random.default_rng(3).normal(size=(2, DEPTH)).astype(np.float32)


def product(*kinds: str) -> tuple[Graph, NDArray[np.float64]]:
    """Products of one input with weights of those maps, and what they are in float64."""
    graph, rng = Graph("m"), np.random.default_rng(4)
    x = graph.add("input", types=[parse_type(f"?x{DEPTH}xf32")], name="x").result
    made, real = [], []
    for i, text in enumerate(kinds):
        kind = parse_type(f"{DEPTH}x{COUNT}x!quant.uniform<{text}>")
        quant = kind.quant
        assert quant is not None
        quantized = rng.integers(*quant.storage.bounds, (DEPTH, COUNT), np.int64, endpoint=True)
        array = Array(quantized.astype(quant.storage.carrier), kind, f"w{i}")
        weight = graph.add("dequantize", {"x": graph.constant(array)}).result
        made.append(graph.add("matmul", {"a": x, "b": weight}, name=f"y{i}").result)
        scale, zero = (
            np.asarray(n, np.float64).reshape(-1) for n in (quant.scales(), quant.zeros())
        )
        real.append(X.astype(np.float64) @ ((quantized - zero) * scale))
    graph.add("output", {f"y{i}": v for i, v in enumerate(made)})
    return graph, np.stack(real)


def judged(path: Path, *, optimize: bool) -> NDArray[np.float64]:
    return np.stack(list(run(onnx.load(path), {"x": X}, optimize=optimize).values())).astype(float)


def close(found: NDArray[np.float64], wanted: NDArray[np.float64]) -> bool:
    return bool(np.abs(found - wanted).max() <= 1e-6 * np.abs(wanted).max())


PER_CHANNEL = "u8:f32:1, {0.05, 0.1, 0.02, 0.01} : {100.25, 3.5, 17.0, 0.75}"
WHOLE = "u8:f32:1, {0.05, 0.1, 0.02, 0.01} : {100.0, 3.0, 17.0, 255.0}"


@pytest.mark.parametrize("kind", ["u8:f32, 0.05:100.25", PER_CHANNEL])
def test_eight_bits_with_a_real_zero_keep_their_form(tmp_path: Path, kind: str) -> None:
    graph, wanted = product(kind, "u4:f32, 0.05:7.5")
    made, ledger = tmp_path / "m.onnx", Ledger()
    pipeline.save(graph, made, format="nbits", ledger=ledger)
    ops = [n.op_type for n in onnx.load(made).graph.node]
    assert ops.count("MatMulNBits") == ops.count("MatMul") == 1
    said = [e for e in ledger if e.subject == "y0" and "fails in each run" in e.reason]
    assert len(said) == 1
    for optimize in (False, True):
        assert close(judged(made, optimize=optimize), wanted)
    again = pipeline.load(made)
    pipeline.save(again, tmp_path / "again.onnx", format="nbits")
    assert close(judged(tmp_path / "again.onnx", optimize=True), wanted)


@pytest.mark.parametrize("kind", ["u8:f32, 0.05:100.25", PER_CHANNEL])
def test_nothing_else_is_refused_with_its_reason(tmp_path: Path, kind: str) -> None:
    graph, wanted = product(kind)
    with pytest.raises(Refused, match=r"y0 stays as it is: .* fails in each run"):
        pipeline.save(graph, tmp_path / "m.onnx", format="nbits")
    pipeline.save(graph, tmp_path / "q.onnx", format="qdq")
    with pytest.raises(Refused, match="fails in each run"):
        pipeline.save(pipeline.load(tmp_path / "q.onnx"), tmp_path / "m.onnx", format="nbits")
    assert close(judged(tmp_path / "q.onnx", optimize=True), wanted)


def test_real_zeros_that_are_whole_are_codes(tmp_path: Path) -> None:
    graph, wanted = product(WHOLE)
    made = tmp_path / "m.onnx"
    pipeline.save(graph, made, format="nbits")
    held = {i.name: i.data_type for i in onnx.load(made).graph.initializer}
    (node,) = onnx.load(made).graph.node
    assert node.op_type == "MatMulNBits"
    assert held[node.input[3]] == TensorProto.UINT8
    for optimize in (False, True):
        assert close(judged(made, optimize=optimize), wanted)


@pytest.mark.parametrize("more", ["zeros", "g_idx"])
@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer", None])
def test_a_file_that_fails_there_is_written_by_its_parts(
    tmp_path: Path, more: str, form: str | None
) -> None:
    """onnxruntime fails in each run of such a file, or at load; what is written of it runs."""
    rng = np.random.default_rng(5)
    quantized = rng.integers(0, 256, (COUNT, 2, 16), np.uint8)
    scales = rng.random(COUNT * 2).astype(np.float32)
    held = {"w": quantized, "s": scales}
    ins, group = ["x", "w", "s"], np.repeat([0, 1], 16)
    zeros = np.full(COUNT * 2, 128.0, np.float32)
    if more == "zeros":
        held["z"] = zeros = (rng.random(COUNT * 2) * 255).astype(np.float32)
        ins.append("z")
    else:
        group = rng.permutation(group)
        held["g"] = group.astype(np.int32)
        ins += ["", "g"]
    node = helper.make_node(
        "MatMulNBits", ins, ["y"], "it", K=DEPTH, N=COUNT, bits=8, block_size=16,
        domain="com.microsoft",
    )  # fmt: skip
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", d])
        for n, d in (("x", DEPTH), ("y", COUNT))
    )
    stored = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph([node], "g", [x], [y], stored)
    of = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=10), source)
    with pytest.raises(
        Exception,
        match=r"unpacked compute|does not support 8-bit weights with floating-point zero points",
    ):
        judged(source, optimize=False)
    floats = quantized.reshape(COUNT, DEPTH) - zeros.reshape(COUNT, 2)[:, group].astype(np.float64)
    wanted = X.astype(np.float64) @ (floats * scales.reshape(COUNT, 2)[:, group]).T
    read, ledger = pipeline.load(source), Ledger()
    if form is None:  # written anew
        read.set_profile(read.outputs["y"].node, "native")
        read.rename(read.outputs["y"], "other")
    pipeline.save(read, made, format=form, ledger=ledger)
    assert sum("fails in each run" in e.reason for e in ledger) == 1
    for optimize in (False, True):
        assert close(judged(made, optimize=optimize)[0], wanted)
