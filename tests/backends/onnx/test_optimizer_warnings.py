"""What onnxruntime does beside what a model says is told in the ledger, and is what it does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir import pipeline
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from tests.frontends.onnx.models import model, save

F = np.float32
Reals = NDArray[np.float32]
HIDDEN = 8


def layer(seed: int) -> onnx.ModelProto:
    """One layer with integers of unsigned weights, as `quantize_dynamic` makes it."""
    rng = np.random.default_rng(seed)
    held: dict[str, Any] = {
        "w": rng.integers(30, 200, (1, 6, 4 * HIDDEN)).astype(np.uint8),
        "r": rng.integers(30, 200, (1, HIDDEN, 4 * HIDDEN)).astype(np.uint8),
        "s": np.array([0.004], F),
        "z": np.array([121], np.uint8),
    }
    inputs = ["x", "w", "r", "", "", "", "", "", "s", "z", "s", "z"]
    op = helper.make_node(
        "DynamicQuantizeLSTM", inputs, ["y"], "it", domain="com.microsoft", hidden_size=HIDDEN
    )
    return model(
        [op],
        {"x": (TensorProto.FLOAT, ["T", "N", 6])},
        {"y": (TensorProto.FLOAT, None)},
        held,
        domains=["com.microsoft"],
    )


def judged(path: Path, x: Reals, threads: int = 1, level: str = "", *, all_of_it: bool) -> Reals:
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    if not all_of_it:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if level:
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", level)
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: Reals = session.run(None, {"x": x})[0]
    return found


def lines(ledger: Ledger, part: str) -> list[Change]:
    return [e.change for e in ledger if part in e.reason]


def test_a_layer_computes_as_on_one_thread(tmp_path: Path) -> None:
    """onnxruntime's own operator gives other numbers on two threads; its parts do not."""
    graph = pipeline.load(save(layer(3), tmp_path))
    x = np.random.default_rng(4).normal(size=(9, 6, 6)).astype(F)
    one, two = (judged(tmp_path / "m.onnx", x, t, all_of_it=False) for t in (1, 2))
    mine = np.asarray(pipeline.run(graph, {"x": x})["y"], F)
    assert np.abs(mine - one).max() < 1e-6
    assert np.abs(mine - two).max() > 1e-4
    for form, target in (("qdq", "onnxruntime"), ("integer", "onnxruntime"), (None, "onnx")):
        ledger, made = Ledger(), tmp_path / "made.onnx"
        pipeline.save(graph, made, format=form, target=target, ledger=ledger, force=True)
        assert lines(ledger, "as DynamicQuantizeLSTM on one thread") == [Change.REGROUPED]
        for threads in (1, 2):
            assert np.abs(judged(made, x, threads, all_of_it=False) - one).max() < 1e-6
    ledger = Ledger()
    pipeline.save(graph, made, format="qoperator", ledger=ledger, force=True)
    assert not lines(ledger, "on one thread")


def blocks(folder: Path) -> Path:
    """A product with weights of four bits, as onnxruntime's operator."""
    rng = np.random.default_rng(5)
    held: dict[str, Any] = {
        "w": rng.integers(0, 256, (8, 2, 16)).astype(np.uint8),
        "s": np.full((8, 2), 0.02, F),
    }
    attrs: dict[str, Any] = {"K": 64, "N": 8, "bits": 4, "block_size": 32}
    op = helper.make_node(
        "MatMulNBits", ["x", "w", "s"], ["y"], "it", **attrs, domain="com.microsoft"
    )
    inputs: dict[str, Any] = {"x": (TensorProto.FLOAT, ["N", 64])}
    outputs: dict[str, Any] = {"y": (TensorProto.FLOAT, None)}
    return save(model([op], inputs, outputs, held, domains=["com.microsoft"]), folder)


FORMS = [("qdq", "onnxruntime"), ("qdq", "onnx"), ("nbits", "onnx"), ("integer", "onnxruntime")]


@pytest.mark.parametrize(("form", "target"), FORMS)
def test_parts_of_the_operator_keep_their_data_real(tmp_path: Path, form: str, target: str) -> None:
    """Its weights lie turned, which the optimizer does not take: nothing to tell."""
    source, made = blocks(tmp_path), tmp_path / "made.onnx"
    x = np.random.default_rng(6).normal(size=(5, 64)).astype(F)
    ledger = Ledger()
    pipeline.save(pipeline.load(source), made, format=form, target=target, ledger=ledger)
    assert not lines(ledger, "accuracy level 4")
    wanted = judged(source, x, all_of_it=True)
    assert np.abs(judged(made, x, all_of_it=True) - wanted).max() < 1e-5


@pytest.mark.parametrize(("form", "target"), FORMS)
def test_weights_of_few_bits_beside_real_data_say_at_which_level(
    tmp_path: Path, form: str, target: str
) -> None:
    """The optimizer rounds the data of what is written, and of nothing at level 0."""
    source, made = tmp_path / "float.onnx", tmp_path / "made.onnx"
    held = {"w": np.random.default_rng(7).normal(size=(64, 8)).astype(F)}
    inputs: dict[str, Any] = {"x": (TensorProto.FLOAT, ["N", 64])}
    outputs: dict[str, Any] = {"y": (TensorProto.FLOAT, ["N", 8])}
    product = helper.make_node("MatMul", ["x", "w"], ["y"])
    save(model([product], inputs, outputs, held), tmp_path, "float.onnx")
    graph = pipeline.quantize_weights(pipeline.load(source), "u4:32", target=target)
    x = np.random.default_rng(6).normal(size=(5, 64)).astype(F)
    ledger = Ledger()
    pipeline.save(graph, made, format=form, target=target, ledger=ledger)
    assert lines(ledger, "accuracy level 4") == [Change.EXACT]
    real = judged(made, x, level="0", all_of_it=True)
    assert np.abs(judged(made, x, all_of_it=False) - real).max() < 1e-5
    far = np.abs(judged(made, x, all_of_it=True) - real).max()
    assert 1e-4 < far / np.abs(real).max() < 0.02


def test_what_onnxruntimes_operator_computes_has_no_such_line(tmp_path: Path) -> None:
    ledger = Ledger()
    graph = pipeline.load(blocks(tmp_path))
    pipeline.save(graph, tmp_path / "m2.onnx", format="nbits", ledger=ledger)
    assert not lines(ledger, "accuracy level 4")


@pytest.mark.parametrize("form", [None, "qdq", "qoperator"])
@pytest.mark.parametrize("target", ["onnx", "onnxruntime"])
def test_a_declared_range_that_is_not_written_is_told(
    tmp_path: Path, form: str | None, target: str
) -> None:
    ranged = "!quant.uniform<i8:f32, 0.5, from -6.0..5.5 / 127>"
    text = f"""graph main as ort-1.31 {{
  %x = input() : 8xf32
  %q = quantize(%x) : 8x{ranged}
  %r = relu(%q) : 8x{ranged}
  %y = dequantize(%r) : 8xf32
  output(y=%y)
}}"""
    ledger, plain = Ledger(), Ledger()
    pipeline.save(parse(text), tmp_path / "m.onnx", format=form, target=target, ledger=ledger)
    said = [str(e.subject) for e in ledger if "the range its type declares" in e.reason]
    assert said == ["q"]
    assert lines(ledger, "and that of 1 more, is not written") == [Change.EXACT]
    x = np.linspace(-9, 9, 8, dtype=F)
    found = judged(tmp_path / "m.onnx", x, all_of_it=False)
    assert (found == pipeline.run(parse(text), {"x": x})["y"]).all()
    bare = parse(text.replace(", from -6.0..5.5 / 127", ""))
    pipeline.save(bare, tmp_path / "b.onnx", format=form, target=target, ledger=plain)
    assert not lines(plain, "declares")
