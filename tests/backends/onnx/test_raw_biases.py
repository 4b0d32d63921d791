"""Biases of raw sums that no constant holds, in every form and for both targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import Refused
from qir.ir.text import parse
from qir.reference.interpreter import run as interpreted
from tests.differential.runtime import run

SEED = 20
Arrays: TypeAlias = dict[str, NDArray[np.generic]]
Model: TypeAlias = tuple[onnx.ModelProto, Arrays]


def numbers(many: bool, rng: np.random.Generator) -> Arrays:
    """Scales that are powers of two, so that every form computes without rounding on the way."""
    scale = np.float32(2.0) ** -rng.integers(3, 6, 6 if many else ())
    return {
        "x_scale": np.array(0.125, np.float32),
        "x_zero_point": np.array(3, np.uint8),
        "w_scale": np.asarray(scale, np.float32),
        "w_zero_point": np.zeros(scale.shape, np.int8),
        "y_scale": np.array(4.0, np.float32),
        "y_zero_point": np.array(100, np.uint8),
    }


def layer(op: str, many: bool, open_ones: set[str], bias: tuple[int, ...] = (6,)) -> Model:
    """A model of one layer whose bias, and what else is named, are its inputs; and these."""
    rng = np.random.default_rng(SEED)
    conv = op == "QLinearConv"
    arrays: Arrays = {
        "x": rng.integers(0, 256, (1, 4, 7, 7) if conv else (5, 8)).astype(np.uint8),
        "w": rng.integers(-128, 128, (6, 4, 3, 3) if conv else (8, 6)).astype(np.int8),
        "b": rng.integers(-9999, 9999, bias).astype(np.int32),
        **numbers(many, rng),
    }
    order = [f"{s}{end}" for s in "xw" for end in ("", "_scale", "_zero_point")]
    result = ["y_scale", "y_zero_point"]
    order += [*result, "b"] if conv else ["b", *result]
    given = {n: arrays[n] for n in order if n in {"x", "b", *open_ones}}
    domain = "" if conv else "com.microsoft"
    attrs: dict[str, Any] = {} if conv else {"alpha": 0.5}
    node = helper.make_node(op, order, ["y"], name="layer", domain=domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in given.items()
    ]
    out = helper.make_tensor_value_info("y", TensorProto.UINT8, None)
    held = [numpy_helper.from_array(arrays[n], n) for n in order if n not in given]
    graph = helper.make_graph([node], "g", inputs, [out], held)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), given


def rewritten(proto: onnx.ModelProto, folder: Path) -> Iterator[onnx.ModelProto]:
    path, made = folder / "raw.onnx", folder / "made.onnx"
    onnx.save(proto, path)
    for form in ("qdq", "integer", "qoperator", None):
        for target in ("onnxruntime", "onnx"):
            pipeline.save(pipeline.load(path), made, format=form, target=target, force=True)
            yield onnx.load(made)


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("more", ["", "x_scale", "w_scale", "y_scale y_zero_point"])
@pytest.mark.parametrize(
    ("op", "bias"),
    [("QLinearConv", (6,)), ("QGemm", (6,)), ("QGemm", (5, 1))],
)
def test_a_bias_that_is_given_while_the_model_runs_is_written_in_every_form(
    op: str, bias: tuple[int, ...], more: str, many: bool, tmp_path: Path
) -> None:
    proto, feeds = layer(op, many, set(more.split()), bias)
    wanted = run(proto, feeds, optimize=False)["y"]
    assert len(np.unique(wanted)) > 7
    for made in rewritten(proto, tmp_path):
        for optimize in (False, True):
            found = run(made, feeds, optimize=optimize)["y"]
            assert np.array_equal(found, wanted), [n.op_type for n in made.graph.node]


@pytest.mark.parametrize("many", [False, True])
def test_a_bias_that_is_computed_is_written_in_every_form(many: bool, tmp_path: Path) -> None:
    proto, feeds = layer("QLinearConv", many, set())
    wanted = run(proto, {**feeds, "b": feeds["b"] + 7}, optimize=False)["y"]
    node = proto.graph.node[0]
    node.input[-1] = "more"
    seven = numpy_helper.from_array(np.array(7, np.int32), "seven")
    proto.graph.initializer.append(seven)
    proto.graph.node.insert(0, helper.make_node("Add", ["b", "seven"], ["more"]))
    for made in rewritten(proto, tmp_path):
        assert np.array_equal(run(made, feeds, optimize=True)["y"], wanted)


@pytest.mark.parametrize("more", ["", "x_scale"])
def test_what_was_written_is_read_and_written_again(more: str, tmp_path: Path) -> None:
    proto, feeds = layer("QLinearConv", False, set(more.split()))
    wanted = run(proto, feeds, optimize=False)["y"]
    for made in rewritten(proto, tmp_path):
        assert np.array_equal(
            interpreted(pipeline.load(tmp_path / "made.onnx"), feeds)["y"], wanted
        )
        for form in ("qdq", "integer"):
            again = tmp_path / "again.onnx"
            onnx.save(made, tmp_path / "read.onnx")
            pipeline.save(pipeline.load(tmp_path / "read.onnx"), again, format=form, force=True)
            assert np.array_equal(run(onnx.load(again), feeds, optimize=True)["y"], wanted)


def test_a_bias_in_a_unit_that_nothing_says_is_refused_by_node_and_reason(tmp_path: Path) -> None:
    graph = parse("""graph main as ort-1.31 {
  %x = input() : 1x2x3x3x!quant.uniform<u8:f32, 0.5>
  %w = input() : 4x2x1x1xf32
  %b = input() : 4xi32
  %y = conv2d(%x, %w, bias=%b) : 1x4x3x3xf32
  output(y=%y)
}""")
    with pytest.raises(Refused, match=r"^y: .*conv2d.*f32, i32"):
        pipeline.save(graph, tmp_path / "made.onnx", format="qdq")
