"""What bodies hold is written so that it runs: constants of theirs are the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from tests.differential.runtime import run

from .kinds import KINDS

F = np.float32
FLOAT, BOOL = TensorProto.FLOAT, TensorProto.BOOL


@pytest.mark.parametrize("form", ["qdq", "qoperator", "integer", "nbits"])
@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_products_in_bodies_are_written_in_every_form(
    tmp_path: Path, form: str, target: str
) -> None:
    proto, feeds = KINDS["bodies"]()
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(proto, source)
    pipeline.save(pipeline.load(source), made, format=form, target=target, force=True)
    written = onnx.load(made)
    onnx.checker.check_model(written)
    for cond in (True, False):
        fed = {**feeds, "cond": np.array(cond)}
        wanted = run(proto, fed, optimize=False)["out"]
        assert np.array_equal(run(written, fed, optimize=False)["out"], wanted)


def branches(nodes: list[onnx.NodeProto], held: dict[str, Any], opset: int) -> onnx.ModelProto:
    """A model whose first branch is these nodes, from x to y; the other one hands x on."""
    node, info = helper.make_node, helper.make_tensor_value_info
    then = helper.make_graph(nodes, "then", [], [info("y", FLOAT, [2, 4])])
    other = helper.make_graph([node("Relu", ["x"], ["e"])], "else", [], [info("e", FLOAT, [2, 4])])
    whole = [node("If", ["c"], ["z"], "if", then_branch=then, else_branch=other)]
    takes = [info("x", FLOAT, [2, 4]), info("c", BOOL, [])]
    constants = [numpy_helper.from_array(a, n) for n, a in held.items()]
    graph = helper.make_graph(whole, "g", takes, [info("z", FLOAT, [2, 4])], constants)
    sets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=sets, ir_version=8)


def test_codes_in_a_body_that_a_clip_narrows(tmp_path: Path) -> None:
    """QCDQ: the integers of a constant, a Clip of fewer bits, and their floats."""
    node = helper.make_node
    quantized = np.random.default_rng(1).integers(-8, 8, (4, 4)).astype(np.int8)
    held = {
        **{"w": quantized, "low": np.array(-8, np.int8), "high": np.array(7, np.int8)},
        **{"s": np.array(0.1, F), "n": np.array(0, np.int8)},
    }
    nodes = [
        node("Clip", ["w", "low", "high"], ["wc"], "clip"),
        node("DequantizeLinear", ["wc", "s", "n"], ["wd"], "dq"),
        node("MatMul", ["x", "wd"], ["y"], "mm"),
    ]
    same(branches(nodes, held, 17), tmp_path)


def test_an_op_in_a_body_that_a_newer_opset_writes_otherwise(tmp_path: Path) -> None:
    """An older form brings constants of its own when it is converted."""
    node = helper.make_node
    nodes = [
        node("Unsqueeze", ["x"], ["u"], "u", axes=[0]),
        node("Hardmax", ["u"], ["h"], "h", axis=1),
        node("Squeeze", ["h"], ["y"], "s", axes=[0]),
    ]
    same(branches(nodes, {}, 11), tmp_path, opset=17)


def same(proto: onnx.ModelProto, folder: Path, opset: int | None = None) -> None:
    """Written anew it is sound and gives the same."""
    onnx.checker.check_model(proto)
    source, made = folder / "m.onnx", folder / "made.onnx"
    onnx.save(proto, source)
    pipeline.save(pipeline.load(source), made, format="qdq", opset=opset)
    written = onnx.load(made)
    onnx.checker.check_model(written)
    x = np.random.default_rng(2).normal(size=(2, 4)).astype(F)
    for c in (True, False):
        fed = {"x": x, "c": np.array(c)}
        wanted = run(proto, fed, optimize=False)["z"]
        assert np.array_equal(run(written, fed, optimize=False)["z"], wanted)
