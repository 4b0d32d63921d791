"""What stays float computes in float16 on request, beside the same integer kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from qir import pipeline
from qir.calibration import Statistics
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.forms.narrow_reals import NarrowReals
from qir.rewrite import run_passes
from tests.cli.command import assert_one_line, qir
from tests.cli.models import images, network

FLOATS = ("name=/conv2/*: float", "op=softmax: float")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path = tmp_path_factory.mktemp("narrow") / "model.onnx"
    onnx.save(network(), path)
    return pipeline.load(path)


@pytest.fixture(scope="module")
def statistics(graph: Graph) -> Statistics:
    return pipeline.calibrate(graph, images())


def kernels(path: Path, kept: Path) -> tuple[Counter[str], NDArray[np.float32]]:
    """The kernels that onnxruntime runs, and the result on the samples."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(kept)
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"images": images()})[0]
    return Counter(node.op_type for node in onnx.load(kept).graph.node), found


def test_floats_become_halves_beside_the_same_integer_kernels(
    graph: Graph, statistics: Statistics, tmp_path: Path
) -> None:
    found, results = [], []
    for float16 in (False, True):
        made = pipeline.quantize(graph, statistics, rules=FLOATS, float16=float16)
        path = tmp_path / f"{float16}.onnx"
        pipeline.save(made, path)
        counts, result = kernels(path, tmp_path / "optimized.onnx")
        found.append({op: n for op, n in counts.items() if op.startswith("QLinear")})
        results.append(result)
    assert found[0] == found[1]
    assert found[0]["QLinearConv"] == 1
    # Probabilities, one rounding to 11 bits for each op, and at most a step of the logits' u8.
    assert np.abs(results[0] - results[1]).max() < 0.02
    model = onnx.load(tmp_path / "True.onnx")
    kinds = {t.name: t.data_type for t in model.graph.initializer}
    halves = {n.op_type for n in model.graph.node for i in n.input if kinds.get(i) == 10}
    assert halves == {"Conv"}
    scales = {
        kinds[node.input[1]] for node in model.graph.node if node.op_type.endswith("uantizeLinear")
    }
    assert scales == {TensorProto.FLOAT}
    ends = [*model.graph.input, *model.graph.output]
    assert {end.type.tensor_type.elem_type for end in ends} == {TensorProto.FLOAT}


def test_the_ledger_says_that_numbers_are_others_as_was_asked(
    graph: Graph, statistics: Statistics
) -> None:
    ledger = Ledger()
    pipeline.quantize(graph, statistics, rules=FLOATS, float16=True, ledger=ledger)
    said = [entry for entry in ledger if entry.step == "narrow-reals"]
    assert [entry.change for entry in said] == [Change.APPROXIMATED]
    ledger.check()  # without --lossy: it was asked for


def test_ops_beyond_float16_stay_float32() -> None:
    text = """graph main as native {
      %x = input() : 4xf32
      %a = mul(%x, %x) : 4xf32
      %y = tanh(%a) : 4xf32
      %z = relu(%x) : 4xf32
      output(y=%y, z=%z)
    }"""
    graph = parse(text)
    seen = pipeline.calibrate(graph, [{"x": np.array([1, 2, 3, 250], np.float32)}])
    ledger = Ledger()
    made = run_passes(graph, (NarrowReals(statistics=seen),), ledger)
    kinds = {
        node.op: str(node.result.type.dtype) for node in made if node.op in ("mul", "tanh", "relu")
    }
    assert kinds["mul"] == kinds["tanh"] == "f32"  # 62,500: less than twice the room of float16
    assert kinds["relu"] == "f16"
    kept = {e.subject for e in ledger if e.change is Change.EXACT and e.step == "narrow-reals"}
    assert kept == {"a", "y"}


def test_a_small_constant_that_float16_would_lose_keeps_its_op() -> None:
    text = """graph main as native {
      %x = input() : 4xf32
      %eps = constant(1e-12) : f32
      %a = add(%x, %eps) : 4xf32
      output(a=%a)
    }"""
    made = run_passes(parse(text), (NarrowReals(),), Ledger())
    assert not [node for node in made if node.op == "cast"]


def test_a_target_without_halves_refuses(graph: Graph, statistics: Statistics) -> None:
    with pytest.raises(UsageError, match="pytorch-x86 computes what stays float in float32"):
        pipeline.quantize(graph, statistics, target="pytorch-x86", float16=True)


def test_a_recipe_repeats_float16(tmp_path: Path) -> None:
    model, data = tmp_path / "model.onnx", tmp_path / "samples.npy"
    onnx.save(network(), model)
    np.save(data, images())
    words = ("quantize", model, "--data", data, "-q")
    out, again = tmp_path / "out.onnx", tmp_path / "again.onnx"
    assert qir(*words, "--float16", "--sqnr", "52", "-o", out).status == 0
    recipe = tmp_path / "out.recipe.toml"
    assert 'float = "f16"' in recipe.read_text()
    assert qir(*words, "--recipe", recipe, "-o", again).status == 0
    assert again.read_bytes() == out.read_bytes()
    casts = [node for node in onnx.load(out).graph.node if node.op_type == "Cast"]
    assert TensorProto.FLOAT16 in {node.attribute[0].i for node in casts}
    recipe.write_text('format = 1\nfloat = "f8"\n')
    assert_one_line(qir(*words, "--recipe", recipe, "-o", again, "-f"), 2)
    dynamic = qir("quantize", model, "--dynamic", "--float16", "-o", again, "-f")
    assert_one_line(dynamic, 2)
