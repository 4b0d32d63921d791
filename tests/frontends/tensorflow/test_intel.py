"""Kernels that Neural Compressor writes for Intel's TensorFlow are read as float ops.

No public build runs them. What is read is compared with TensorFlow's float ops on the same
integers; scales are powers of two, so that float sums are exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import qir
from qir.ledger import Change

from .comparison import save_graph_def
from .test_kernels import Builder

F = np.float32
U, S, W, R = tf.quint8, tf.qint8, tf.qint32, tf.float32
STEP = F(1 / 16)
"""Of data; of weights and results a quarter and four times as much."""


def fused(
    b: Builder, op: str, operands: Sequence[str], kinds: Sequence[tf.DType], stages: Sequence[str],
    made: tf.DType, **attrs: Any,
) -> None:  # fmt: skip
    results = [made] if made == R else [made, R, R]
    lists = {"Thost_inputs": list(kinds), "Thost_outputs": results}
    b.node(op, "y", list(operands), fused_ops=list(stages), **lists, **attrs)
    for name in ("alpha", "leakyrelu_alpha"):
        b.proto.node[-1].attr[name].f = 0.25


def quantized(b: Builder, name: str, shape: tuple[int, ...], kind: tf.DType) -> Any:
    """Adds data in steps of STEP; returns what they mean."""
    b.quantized(name, shape, kind, float(STEP) * (127 if kind == S else 255))
    b.proto.node[-1].attr["narrow_range"].b = kind == S
    b.states_shapes()
    return b.wanted(name)[0].astype(F) * STEP


def ranged(b: Builder, name: str, step: Any, levels: int) -> list[str]:
    ends = np.asarray(np.multiply(step, levels), F)
    return [b.constant(f"{name}.low", -ends), b.constant(f"{name}.high", ends)]


def rounded(y: Any, made: tf.DType) -> Any:
    """Returns results as integers in steps of 4 * STEP; floats as they are."""
    if made == R:
        return y
    low, high = (-128, 127) if made == S else (0, 255)
    return np.clip(np.rint(y / (4 * STEP)), low, high).astype(made.as_numpy_dtype[0])


def activated(y: Any, stage: str) -> Any:
    match stage:
        case "_FusedSwish":
            return tf.nn.silu(y)
        case "_FusedHardSwish":
            return y * tf.nn.relu6(y + 3) / 6
        case "_MklFusedMish":
            return y * tf.math.tanh(tf.math.softplus(y))
        case "LeakyRelu":
            return tf.nn.leaky_relu(y, 0.25)
        case "Elu":
            return tf.nn.elu(y)
    return tf.nn.relu(y) if stage == "Relu" else y


def held_to(b: Builder, wanted: Any, tmp_path: Path, *, exact: bool) -> qir.Graph:
    ledger = qir.Ledger()
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"), ledger=ledger)
    assert not any(n.op == "foreign" for n in graph)
    assert [e.change for e in ledger if e.subject == "y"] == [Change.UNVERIFIED]
    (found,) = qir.run(graph, b.feeds).values()
    assert found.dtype == wanted.dtype
    assert len(np.unique(wanted)) > 20
    if exact:
        assert np.array_equal(found, wanted)
    else:
        most = 1 if wanted.dtype != F else 1e-5 * np.abs(wanted).max()
        assert np.allclose(found.astype(F), wanted.astype(F), rtol=0, atol=most)
    return graph


STAGES = [
    (("BiasAdd", "Sum", "Requantize"), S),
    (("BiasAdd", "Sum", "LeakyRelu", "Requantize"), S),
    (("BiasAdd", "LeakyRelu", "Sum", "Requantize"), S),
    (("BiasAdd", "LeakyRelu", "Requantize"), S),
    (("BiasAdd", "Elu", "Dequantize"), R),
    (("BiasAdd", "_FusedSwish", "Requantize"), S),
    (("BiasAdd", "_FusedHardSwish", "Dequantize"), R),
    (("BiasAdd", "_MklFusedMish", "Dequantize"), R),
]


@pytest.mark.parametrize(("stages", "made"), STAGES, ids=lambda s: str(s))
def test_convolutions_of_images(stages: tuple[str, ...], made: tf.DType, tmp_path: Path) -> None:
    b = Builder()
    x = quantized(b, "x", (2, 6, 5, 8), U)
    w = b.random.integers(-127, 128, (3, 3, 8, 6)).astype(np.int8)
    steps = F(2.0) ** -b.random.integers(6, 9, 6).astype(F)
    bias = (b.random.integers(-60, 60, 6) * STEP).astype(F)
    inputs = ["x", b.constant("w", w, S), b.constant("bias", bias)]
    kinds, more = [U, S, R], []
    if "Sum" in stages:
        summand = quantized(b, "s", (2, 6, 5, 6), S)
        inputs.append("s")
        kinds.append(S)
        more = ["s:1", "s:2"]
    inputs += ["x:1", "x:2", *ranged(b, "w", steps, 127), *more]
    inputs += ranged(b, "out", 4 * STEP, 127) if made != R else []
    kinds += [R] * (len(inputs) - len(kinds))
    attrs = {"Tinput": U, "Tfilter": S, "Tbias": R, "out_type": made, "padding": "SAME",
             "strides": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "data_format": "NHWC"}  # fmt: skip
    fused(b, "_FusedQuantizedConv2D", inputs, kinds, stages, made, **attrs)
    y = tf.nn.conv2d(x, w.astype(F) * steps, 1, "SAME") + bias
    for stage in stages[1:]:
        y = y + summand if stage == "Sum" else activated(y, stage)
    exact = not {"Elu", "_FusedSwish", "_FusedHardSwish", "_MklFusedMish"} & set(stages)
    held_to(b, rounded(np.asarray(y), made), tmp_path, exact=exact)


def test_convolutions_of_volumes(tmp_path: Path) -> None:
    b = Builder()
    x = quantized(b, "x", (2, 5, 6, 4, 3), S)
    w = b.random.integers(-127, 128, (3, 2, 3, 3, 5)).astype(np.int8)
    steps = F(2.0) ** -b.random.integers(5, 8, 5).astype(F)
    bias = b.random.integers(-999, 999, 5).astype(np.int32)
    stages = ("BiasAdd", "Relu", "Requantize")
    inputs = ["x", b.constant("w", w, S), b.constant("bias", bias, W), "x:1", "x:2"]
    inputs += ranged(b, "w", steps, 127)
    inputs += [b.constant("low", 0.0), b.constant("high", 4 * STEP * F(255))]
    kinds = [S, S, W, *[R] * 6]
    attrs = {"Tinput": S, "Tfilter": S, "Tbias": W, "out_type": U, "padding": "SAME",
             "strides": [1, 1, 2, 1, 1], "dilations": [1] * 5, "data_format": "NDHWC"}  # fmt: skip
    fused(b, "_FusedQuantizedConv3D", inputs, kinds, stages, U, **attrs)
    y = tf.nn.conv3d(x, w.astype(F) * steps, (1, 1, 2, 1, 1), "SAME") + bias * (STEP * steps)
    held_to(b, rounded(np.asarray(tf.nn.relu(y)), U), tmp_path, exact=True)


def test_transposed_convolutions(tmp_path: Path) -> None:
    b = Builder()
    x = quantized(b, "x", (2, 6, 4, 3), S)
    w = b.random.integers(-127, 128, (3, 3, 2, 3)).astype(np.int8)
    steps = F(2.0) ** -b.random.integers(5, 8, 2).astype(F)
    bias, sizes = (b.random.integers(-60, 60, 2) * STEP).astype(F), [2, 13, 9, 2]
    node = b.proto.node.add(op="Const", name="sizes")
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(np.asarray(sizes, np.int32)))
    inputs = ["sizes", b.constant("w", w, S), "x", b.constant("bias", bias)]
    inputs += [*ranged(b, "w", steps, 127), "x:1", "x:2", *ranged(b, "out", 4 * STEP, 127)]
    attrs = {"Tinput": S, "Tfilter": S, "Tbias": R, "out_type": S, "padding": "VALID",
             "strides": [1, 2, 2, 1], "dilations": [1] * 4, "data_format": "NHWC"}  # fmt: skip
    kinds = [tf.int32, S, S, *[R] * 7]
    fused(b, "_FusedQuantizedDeconv2D", inputs, kinds, ("BiasAdd", "Requantize"), S, **attrs)
    y = tf.nn.conv2d_transpose(x, w.astype(F) * steps[:, None], sizes, 2, "VALID") + bias
    held_to(b, rounded(np.asarray(y), S), tmp_path, exact=True)


@pytest.mark.parametrize(
    ("stages", "made"),
    [(("Dequantize",), R), (("Mul", "Add", "Dequantize"), R), (("Mul", "Requantize"), S)],
    ids=lambda s: str(s),
)
@pytest.mark.parametrize("constant", [False, True])
def test_products_of_batches(
    constant: bool, stages: tuple[str, ...], made: tf.DType, tmp_path: Path
) -> None:
    b = Builder()
    x = quantized(b, "x", (2, 3, 9, 8), S)
    if constant:
        w = b.random.integers(-127, 128, (2, 3, 7, 8)).astype(np.int8)
        held, ends = b.constant("z", w, S), ranged(b, "z", STEP, 127)
        z = w.astype(F) * STEP
    else:
        held, ends = "z", ["z:1", "z:2"]
        z = quantized(b, "z", (2, 3, 7, 8), S)
    inputs, kinds = ["x", held], [S, S]
    y: Any = np.asarray(tf.matmul(x, z, transpose_b=True))
    for stage in stages[:-1]:
        number = F(0.125) if stage == "Mul" else b.random.normal(size=(2, 1, 9, 7)).astype(F)
        y = y * number if stage == "Mul" else y + number
        inputs.append(b.constant(stage, number))
        kinds.append(R)
    inputs += ["x:1", "x:2", *ends, *(ranged(b, "out", 4 * STEP, 127) if made != R else [])]
    kinds += [R] * (len(inputs) - len(kinds))
    attrs = {"T1": S, "T2": S, "U": R, "Tout": made, "adj_x": False, "adj_y": True}
    fused(b, "_QuantizedBatchMatMul", inputs, kinds, stages, made, **attrs)
    held_to(b, rounded(y, made), tmp_path, exact=True)


def test_a_network_of_such_kernels_is_quantized_in_onnx(tmp_path: Path) -> None:
    b = Builder()
    quantized(b, "x", (2, 6, 5, 8), U)
    w = b.random.integers(-127, 128, (3, 3, 8, 6)).astype(np.int8)
    inputs = ["x", b.constant("w", w, S), b.constant("bias", np.ones(6)), "x:1", "x:2"]
    inputs += [*ranged(b, "w", 2.0**-7, 127), *ranged(b, "out", 4 * STEP, 127)]
    attrs = {"Tinput": U, "Tfilter": S, "Tbias": R, "out_type": S, "padding": "SAME",
             "strides": [1, 1, 1, 1], "dilations": [1, 1, 1, 1], "data_format": "NHWC"}  # fmt: skip
    stages = ("BiasAdd", "LeakyRelu", "Requantize")
    fused(b, "_FusedQuantizedConv2D", inputs, [U, S, *[R] * 7], stages, S, **attrs)
    b.node("Dequantize", "end", ["y", "y:1", "y:2"], T=S, mode="SCALED")
    graph = qir.load(save_graph_def(b.proto, tmp_path / "g.pb"))
    qir.save(graph, tmp_path / "a.onnx", target="onnxruntime")
    again = qir.load(tmp_path / "a.onnx")
    ours, theirs = (next(iter(qir.run(g, b.feeds).values())) for g in (graph, again))
    assert np.allclose(ours, theirs, rtol=0, atol=4 * STEP)
