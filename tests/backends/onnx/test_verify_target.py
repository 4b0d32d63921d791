"""What `qir verify --target onnxruntime` says of each op is what onnxruntime makes of the model."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.passes.forms.group import Group
from tests.cli.command import qir
from tests.differential.onnxruntime.ort_tools import STATIC, made_of, quantized, samples

F32, BOOL = TensorProto.FLOAT, TensorProto.BOOL
NAMES = {
    **{"Conv": "conv2d", "Gemm": "gemm", "MatMul": "matmul", "Add": "add", "Mul": "mul"},
    **{"Sigmoid": "sigmoid", "LeakyRelu": "leaky_relu", "Softmax": "softmax", "Where": "where"},
    **{"AveragePool": "avg_pool2d", "MaxPool": "max_pool2d", "Concat": "concat", "Pad": "pad"},
    **{"GlobalAveragePool": "global_avg_pool", "Flatten": "flatten"},
    **{"Reshape": "reshape", "Transpose": "transpose", "Split": "split", "Gather": "gather"},
    **{
        "Relu": "relu",
        "Resize": "resize_nearest",
        "Greater": "greater",
        "ReduceMean": "reduce_mean",
        "MatMulNBits": "matmul",
    },
}


def network(seed: int = 5) -> onnx.ModelProto:
    """Convolutions, parts of images joined again, an attention, and rows that are taken of it."""
    rng, node = np.random.default_rng(seed), helper.make_node
    held: dict[str, Any] = {
        "w0": rng.normal(0, 0.3, (8, 3, 3, 3)),
        "b0": rng.normal(0, 0.3, 8),
        "w1": rng.normal(0, 0.3, (8, 1, 3, 3)),
        "wq": rng.normal(0, 0.3, (8, 24)),
        "wo": rng.normal(0, 0.3, (8, 8)),
        "half": np.array(0.3),
        "least": np.array(0.1),
    }
    whole = {
        "parts": [3, 5],
        "thirds": [8, 8, 8],
        "ends": [0, 0, 1, 1, 0, 0, 1, 1],
        "flat": [0, 8, -1],
        "first": [9, 20],
    }
    nodes = [
        node("Conv", ["x", "w0", "b0"], ["c0"], pads=[1, 1, 1, 1]),
        node("Relu", ["c0"], ["r0"]),
        node("Conv", ["r0", "w1"], ["c1"], pads=[1, 1, 1, 1], group=8),
        node("Sigmoid", ["c1"], ["g0"]),
        node("Add", ["r0", "g0"], ["s0"]),
        node("MaxPool", ["s0"], ["p0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Split", ["p0", "parts"], ["one", "two"], axis=1),
        node("Concat", ["two", "one"], ["k0"], axis=1),
        node("Resize", ["k0", "", "scales"], ["z0"], mode="nearest"),
        node("AveragePool", ["z0"], ["a0"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Pad", ["a0", "ends"], ["e0"]),
        node("LeakyRelu", ["e0"], ["l0"], alpha=0.1),
        node("Reshape", ["l0", "flat"], ["f0"]),
        node("Transpose", ["f0"], ["t0"], perm=[0, 2, 1]),
        node("MatMul", ["t0", "wq"], ["qkv"]),
        node("Split", ["qkv", "thirds"], ["q", "k", "v"], axis=2),
        node("Transpose", ["k"], ["kt"], perm=[0, 2, 1]),
        node("MatMul", ["q", "kt"], ["m0"]),
        node("Mul", ["m0", "half"], ["m1"]),
        node("Softmax", ["m1"], ["p"], axis=-1),
        node("Greater", ["p", "least"], ["some"]),
        node("Mul", ["p", "half"], ["less"]),
        node("Where", ["some", "p", "less"], ["h"]),
        node("MatMul", ["h", "v"], ["m2"]),
        node("MatMul", ["m2", "wo"], ["o"]),
        node("Add", ["o", "t0"], ["s1"]),
        node("Gather", ["s1", "first"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", F32, [2, 3, 8, 8])],
        [helper.make_tensor_value_info("y", F32, None)],
        [
            *(numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in held.items()),
            *(numpy_helper.from_array(np.array(a, np.int64), n) for n, a in whole.items()),
            numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),
        ],
    )
    opset = helper.make_opsetid("", 17)
    found = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    return onnx.shape_inference.infer_shapes(found)


MOVES = frozenset("Reshape Transpose Split Gather MaxPool NhwcMaxPool Flatten Resize".split())


@cache
def made(name: str) -> bytes:
    return made_of(name, network(), samples()).SerializeToString()  # type: ignore[no-any-return]


def in_float(path: Path, folder: Path) -> Counter[str]:
    """The ops that onnxruntime computes on floats, by what QIR calls them."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    graph = onnx.load(folder / "optimized.onnx").graph
    integers = {t.name for t in graph.initializer if t.data_type not in (F32, TensorProto.INT64)}
    found: Counter[str] = Counter()
    for node in graph.node:
        kernel = node.op_type.startswith("Q") or node.op_type == "DequantizeLinear"
        if node.op_type in MOVES and node.input[0] in integers:
            kernel = True
        if kernel and node.op_type != "DequantizeLinear":
            integers.update(node.output)
        if not kernel:
            found[NAMES[node.op_type.removeprefix("Fused")]] += 1
    return found


WAYS = [name for name in STATIC if name.startswith("qdq")]
WAYS += [f"qdq-{way}" for way in ("symmetric", "some-ops", "removable", "own-pairs", "contrib")]


@pytest.mark.parametrize("name", WAYS)
def test_each_op_is_taken_where_onnxruntime_takes_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(made(name))
    found = pipeline.op_verdicts(pipeline.load(path))
    real = Counter(v.op for v in found if v.taken != "integer" and v.op != "relu")
    wanted = in_float(path, tmp_path)
    del wanted["relu"]  # one that cuts nothing is no op of the optimized model
    assert real == wanted
    refused = {v.op for v in found if v.taken == "refused"}
    told = qir("verify", path, "--target", "onnxruntime")
    assert told.status == bool(refused)
    assert refused <= {"conv2d", "gemm", "matmul"}


OPERATORS = [name for name in STATIC if name.startswith("qoperator")] + ["qoperator-some-ops"]


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_on_codes_are_taken_as_they_are(name: str, tmp_path: Path) -> None:
    """Signed data too, which the tool asks for unless it is told otherwise."""
    path = tmp_path / "m.onnx"
    onnx.save(quantized(name), path)
    found = pipeline.op_verdicts(pipeline.load(path))
    wanted = in_float(path, tmp_path)
    del wanted["transpose"], wanted["relu"]  # about channels that lie last; what cuts nothing
    assert Counter(v.op for v in found if v.taken != "integer" and v.op != "relu") == wanted
    assert not any(v.taken == "refused" for v in found)
    told = qir("verify", path, "--target", "onnxruntime")
    assert told.status == 0
    assert "not taken in integers" not in told.out


@pytest.mark.parametrize("seed", range(3))
def test_what_a_plan_asks_now_gives_the_predicted_bytes(seed: int, tmp_path: Path) -> None:
    onnx.save(network(seed), tmp_path / "float.onnx")
    graph = pipeline.load(tmp_path / "float.onnx")
    done = pipeline.quantize(graph, pipeline.calibrate(graph, samples(seed=seed + 10)))
    planned = {d.node for d in pipeline.plan(graph).decisions if d.integer}
    assert planned == {v.node for v in pipeline.op_verdicts(done) if v.taken == "integer"}
    assert {"one", "q", "m0", "h", "m2", "y", "z0"} <= planned
    path = tmp_path / "q.onnx"
    pipeline.save(done, path)
    predicted = pipeline.optimize(pipeline.load(path), [Group("ort-1.31")])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for feed in samples(2, seed + 10):
        (wanted,) = session.run(None, feed)
        assert np.array_equal(pipeline.run(predicted, feed)["y"], wanted), f"seed {seed}"
        (real,) = onnxruntime.InferenceSession(
            str(tmp_path / "float.onnx"), providers=["CPUExecutionProvider"]
        ).run(None, feed)
        assert np.abs(wanted - real).max() < 0.05 * np.abs(real).max()


@pytest.mark.parametrize("name", ["qdq-QUInt8-QInt8-channel", "qdq-own-pairs"])
def test_models_of_its_own_tool_give_the_predicted_bytes(name: str, tmp_path: Path) -> None:
    """Several quantizes of one value, as many as it has readers, are one there."""
    path = tmp_path / "m.onnx"
    path.write_bytes(made(name))
    predicted = pipeline.optimize(pipeline.load(path), [Group("ort-1.31")])
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for feed in samples(2, 9):
        assert np.array_equal(pipeline.run(predicted, feed)["y"], session.run(None, feed)[0])
