"""A float model beside what onnxruntime quantizes it to: ops and weights are found again."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    quantize_dynamic,
    quantize_static,
)

import qir
from qir.query.diff import GraphDifference, diff

WEIGHTS = {"k1": (8, 3, 3, 3), "k2": (8, 8, 3, 3), "m": (8, 16), "g": (5, 16)}
PAD = [1, 1, 1, 1]
BIASES = {"k1.bias": (8,), "k2.bias": (8,), "g.bias": (5,)}
FORMS = {
    "qdq": {"quant_format": QuantFormat.QDQ, "per_channel": True},
    "qdq, one scale": {"quant_format": QuantFormat.QDQ, "per_channel": False},
    "qlinear": {"quant_format": QuantFormat.QOperator, "per_channel": True},
    "dynamic": {},
    "dynamic, channels": {"per_channel": True},
}


class Batches(CalibrationDataReader):  # type: ignore[misc]
    """Three random batches."""

    def __init__(self) -> None:
        random = np.random.default_rng(3)
        self.rows = iter([{"x": random.random((1, 3, 8, 8), np.float32)} for _ in range(3)])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self.rows, None)


def build(path: Path) -> dict[str, np.ndarray]:
    """Two convolutions with relus and a sum, a product and a layer whose weights lie turned."""
    random = np.random.default_rng(4)
    arrays = {n: random.normal(0, 0.3, s).astype("f4") for n, s in (WEIGHTS | BIASES).items()}
    nodes = [
        helper.make_node("Conv", ["x", "k1", "k1.bias"], ["/a/Conv_out"], "/a/Conv", pads=PAD),
        helper.make_node("Relu", ["/a/Conv_out"], ["/a/Relu_out"], "/a/Relu"),
        helper.make_node(
            "Conv", ["/a/Relu_out", "k2", "k2.bias"], ["/b/Conv_out"], "/b/Conv", pads=PAD
        ),
        helper.make_node("Add", ["/b/Conv_out", "/a/Relu_out"], ["/b/Add_out"], "/b/Add"),
        helper.make_node("Relu", ["/b/Add_out"], ["/b/Relu_out"], "/b/Relu"),
        helper.make_node("GlobalAveragePool", ["/b/Relu_out"], ["/p_out"], "/p"),
        helper.make_node("Flatten", ["/p_out"], ["/f_out"], "/f"),
        helper.make_node("MatMul", ["/f_out", "m"], ["/m_out"], "/m"),
        helper.make_node("Gemm", ["/m_out", "g", "g.bias"], ["y"], "/g", transB=1),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
        for n, s in (("x", (1, 3, 8, 8)), ("y", (1, 5)))
    ]
    held = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "small", ends[:1], ends[1:], held)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path
    )
    return arrays


def compared(found: GraphDifference) -> dict[str, float]:
    """The constants whose floats were compared, and how many steps they moved."""
    return {
        pair.a: change.measure.steps
        for pair in found.changed
        for change in pair.changes
        if change.what == "elements" and change.measure and change.measure.steps is not None
    }


@pytest.mark.parametrize("form", FORMS)
def test_every_weight_is_compared_with_its_codes(form: str, tmp_path: Path) -> None:
    arrays = build(tmp_path / "float.onnx")
    said = FORMS[form]
    if form.startswith("dynamic"):
        quantize_dynamic(
            tmp_path / "float.onnx",
            tmp_path / "quantized.onnx",
            op_types_to_quantize=["MatMul", "Gemm"] if said else ["Conv", "MatMul", "Gemm"],
            **said,
        )
    else:
        quantize_static(tmp_path / "float.onnx", tmp_path / "quantized.onnx", Batches(), **said)
    a, b = (qir.load(tmp_path / f"{name}.onnx") for name in ("float", "quantized"))
    found = diff(a, b)
    wanted = {"m", "g"} if said and form.startswith("dynamic") else set(WEIGHTS)
    if not form.startswith("dynamic"):
        wanted |= set(BIASES)
    steps = compared(found)
    assert set(steps) == wanted
    assert max(steps.values()) < 0.501
    wide = {pair.a: pair.b for pair in found.pairs}
    for op in ("conv2d", "matmul", "gemm"):
        for node in (node for node in a if node.op == op):
            other = next(n for n in b if n.name == wide[node.name])
            assert other.op in (op, "conv_integer", "matmul_integer"), (node, other)
    _beside_numpy(arrays, tmp_path / "quantized.onnx", steps)


def _beside_numpy(arrays: dict[str, np.ndarray], path: Path, steps: dict[str, float]) -> None:
    """The steps once more, by NumPy from the file's own tensors."""
    held = {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}
    for name in WEIGHTS.keys() & steps.keys():
        weights = arrays[name].astype(np.float64)
        turned = f"{name}_Transposed"  # since onnxruntime 1.32
        told = turned if f"{turned}_quantized" in held else name
        quantized, zero = held[f"{told}_quantized"], held[f"{told}_zero_point"]
        scale = held[f"{told}_scale"].astype(np.float64)
        if quantized.shape != weights.shape:
            weights = weights.T
        if scale.size > 1:
            along = [-1 if size == scale.size else 1 for size in quantized.shape]
            along = along if along.count(-1) == 1 else [-1] + [1] * (quantized.ndim - 1)
            scale, zero = scale.reshape(along), zero.reshape(along)
        gap = np.abs(weights - (quantized.astype(np.float64) - zero) * scale) / scale
        assert steps[name] == pytest.approx(gap.max(), rel=1e-6), name
