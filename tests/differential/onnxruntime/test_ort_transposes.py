"""Transposes with pairs of other maps between them, which onnxruntime makes one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from tests.installed import OPTIMIZED


def _model(seed: int) -> onnx.ModelProto:
    """Two to four transposes, each between integers of another map."""
    rng = np.random.default_rng(seed)
    shape = [int(n) for n in rng.integers(1, 6, 4)]
    nodes, name = [], "x"
    held: list[TensorProto] = []
    count = 2 + seed % 3

    def constant(array: np.ndarray) -> str:
        held.append(numpy_helper.from_array(array, f"c{len(held)}"))
        return held[-1].name

    for number in range(count + 1):
        scale = constant(np.asarray(2.0 ** rng.integers(-2, 2) * rng.choice([1, 0.75]), np.float32))
        zero = constant(np.asarray(rng.choice([0, 100, 129, 255]), np.uint8))
        nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [f"q{number}"]))
        if number < count:
            nodes.append(
                helper.make_node("DequantizeLinear", [f"q{number}", scale, zero], [f"d{number}"])
            )
            perm = [int(axis) for axis in rng.permutation(4)]
            nodes.append(helper.make_node("Transpose", [f"d{number}"], [f"t{number}"], perm=perm))
            name = f"t{number}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info(f"q{count}", TensorProto.UINT8, None)
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("seed", range(60))
def test_pairs_between_transposes_are_those_that_onnxruntime_leaves(
    seed: int, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    model = _model(seed)
    onnx.save(model, path)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    x = (np.random.default_rng(seed).integers(-600, 600, shape) / 4).astype(np.float32)
    (wanted,) = ort.InferenceSession(path).run(None, {"x": x})
    grouped = run_passes(qir.load(path), [Group(OPTIMIZED)], qir.Ledger())
    (made,) = qir.run(grouped, {"x": x}).values()
    assert np.array_equal(made, wanted), seed
