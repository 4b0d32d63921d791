"""Float networks whose images are held channels last: what is one step, and its bytes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.backends.cpu.compiled import Compiled
from qir.backends.cpu.program import Program

from .test_float_graphs import Net

SHAPE = ("N", 6, 13, 14)


def convolved(b: Net, x: str, into: int, out: int, size: int = 3) -> str:
    return b.node("Conv", x, b.weight(out, into, size, size), b.weight(out), pads=[size // 2] * 4)


def residual(b: Net) -> str:
    x = b.node("Relu", convolved(b, "x", 6, 20))
    y = convolved(b, b.node("Relu", convolved(b, x, 20, 8, 1)), 8, 20)
    return b.node("Relu", b.node("Add", y, x))


def swish(b: Net) -> str:
    x = convolved(b, "x", 6, 20)
    x = b.node("Mul", x, b.node("Sigmoid", x))
    return b.node("HardSwish", convolved(b, x, 20, 9, 1))


def shared(b: Net) -> str:
    """A value with two users is made by itself."""
    x = convolved(b, "x", 6, 20)
    return b.node("Concat", b.node("Sigmoid", x), b.node("Relu", x), axis=1)


def doubled(b: Net) -> str:
    x = convolved(b, "x", 6, 20)
    return b.node("Relu", b.node("Add", x, x))


def pooled(b: Net) -> str:
    x = b.node("MaxPool", convolved(b, "x", 6, 20), kernel_shape=[2, 2], strides=[2, 2])
    x = b.node("AveragePool", x, kernel_shape=[3, 3], pads=[1] * 4)
    x = b.node("Mul", x, b.node("GlobalAveragePool", x))
    return b.node("Transpose", x, perm=[0, 2, 3, 1])


NETS: dict[str, tuple[Callable[[Net], str], list[str]]] = {
    "residual": (residual, ["float_conv2d"] * 3),
    "swish": (swish, ["float_conv2d"] * 2),
    "shared": (shared, ["float_conv2d", "float_sigmoid", "float_bound", "copy", "copy"]),
    "doubled": (doubled, ["float_conv2d", "pointwise"]),
    "pooled": (
        pooled,
        ["float_conv2d", "float_max_pool2d", "float_avg_pool2d", "float_mean", "real"],
    ),
}


@pytest.mark.parametrize("name", NETS)
def test_what_follows_a_convolution_is_part_of_its_step(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, kinds = NETS[name]
    b = Net(81)
    path = b.save(tmp_path / "net.onnx", SHAPE, make(b), 4)
    data = np.random.default_rng(82).normal(size=(3, *SHAPE[1:])).astype(np.float32)
    graph = qir.load(path)
    own = qir.compile(graph, threads=2)
    (made,) = own(x=data).values()
    assert isinstance(own, Compiled)
    moves = {"transpose", "strided"}
    assert [row.kind for row in own.describe() if row.kind not in moves] == kinds
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": data})
    assert np.max(np.abs(made - wanted)) <= 2e-5 * np.max(np.abs(wanted))
    monkeypatch.setattr("qir.backends.cpu.float_nhwc.can_convolve_nhwc", lambda *_: False)
    (first,) = qir.compile(graph, threads=1)(x=data).values()
    assert np.asarray(made).tobytes() == np.asarray(first).tobytes()


def inverted(b: Net) -> str:
    """An inverted residual block, then one whose widest value has two users."""
    x = convolved(b, "x", 6, 8)
    wide = b.node("Relu", convolved(b, x, 8, 24, 1))
    y = b.node("Conv", wide, b.weight(24, 1, 3, 3), b.weight(24), pads=[1] * 4, group=24)
    x = b.node("Add", convolved(b, b.node("HardSwish", y), 24, 8, 1), x)
    wide = b.node("Relu", convolved(b, x, 8, 24, 1))
    y = b.node("Conv", wide, b.weight(24, 1, 5, 5), b.weight(24), pads=[2] * 4, group=24)
    return convolved(b, b.node("Concat", y, wide, axis=1), 48, 4, 1)


@pytest.mark.parametrize(("large", "kinds"), [
    (0, ["float_conv2d", "float_chain", "float_conv2d", "float_depthwise"]),
    (1 << 20, ["float_conv2d"] * 2 + ["float_depthwise"] + ["float_conv2d"] * 2
     + ["float_depthwise"]),
])  # fmt: skip
def test_depthwise_convolutions_are_joined_with_their_neighbours(
    large: int, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = Net(85)
    path = b.save(tmp_path / "net.onnx", SHAPE, inverted(b), 4)
    data = np.random.default_rng(86).normal(size=(2, *SHAPE[1:])).astype(np.float32)
    graph = qir.load(path)
    monkeypatch.setattr("qir.backends.cpu.float_chains.LARGE", 1 << 40)
    (wanted,) = qir.compile(graph, threads=1)(x=data).values()
    monkeypatch.setattr("qir.backends.cpu.float_chains.LARGE", large)
    own = qir.compile(graph, threads=2)
    (made,) = own(x=data).values()
    assert isinstance(own, Compiled)
    found = [row.kind for row in own.describe() if row.kind.startswith("float_")]
    assert found == [*kinds, "float_conv2d"]
    assert np.asarray(made).tobytes() == np.asarray(wanted).tobytes()
    fixed = qir.compile(graph, threads=1)
    assert isinstance(fixed, Compiled)
    fixed.save(tmp_path / "net.qirp", {"N": 2})
    (read,) = qir.load_program(tmp_path / "net.qirp")(x=data).values()
    assert np.asarray(read).tobytes() == np.asarray(wanted).tobytes()


def test_values_that_are_watched_are_all_made(tmp_path: Path) -> None:
    b = Net(83)
    graph = qir.load(b.save(tmp_path / "net.onnx", SHAPE, residual(b), 4))
    data = np.random.default_rng(84).normal(size=(1, *SHAPE[1:])).astype(np.float32)
    names = [value.name for node in graph for value in node.results if node.op == "conv2d"]
    seen: dict[str, tuple[int, ...]] = {}
    from qir.backends.cpu.sizes import at_sizes

    program = Program(
        at_sizes(graph, {"x": data.shape}), None, names, lambda n, a: seen.update({n: a.shape})
    )
    program.run({"x": data}, 1)
    assert seen.keys() == set(names)


# -- dynamic quantization -------------------------------------------------------------------------


def dynamic(path: Path, kind: type[np.generic], per_column: bool) -> Path:
    """Products of integers as onnxruntime's dynamic quantization writes them."""
    rng, low = np.random.default_rng(85), -100 if kind is np.int8 else 20
    weights = {
        "w": rng.integers(low, low + 200, (24, 40)).astype(kind),
        "w_zero": np.array(low + 100 if kind is np.uint8 else 0, kind),
        "w_scale": rng.uniform(0.01, 0.02, 40 if per_column else 1).astype(np.float32),
        "bias": rng.normal(size=40).astype(np.float32),
    }
    if not per_column:
        weights["w_scale"] = weights["w_scale"].reshape(())
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "scale", "zero"]),
        helper.make_node("MatMulInteger", ["q", "w", "zero", "w_zero"], ["sums"]),
        helper.make_node("Mul", ["scale", "w_scale"], ["both"]),
        helper.make_node("Cast", ["sums"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["real", "both"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 5, 24])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5, 40])],
        [numpy_helper.from_array(data, name) for name, data in weights.items()],
    )  # fmt: skip
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("per_column", [False, True])
def test_dynamic_products_are_steps_of_the_int8_kernels(
    tmp_path: Path, kind: type[np.generic], per_column: bool
) -> None:
    path = dynamic(tmp_path / "net.onnx", kind, per_column)
    data = np.random.default_rng(86).normal(size=(3, 5, 24)).astype(np.float32)
    own = qir.compile(qir.load(path), threads=2)
    (made,) = own(x=data).values()
    assert isinstance(own, Compiled)
    kinds = [row.kind for row in own.describe()]
    assert "dynamic_linear" in kinds
    assert not {"wide_product", "decode", "cast"} & {*kinds}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": data})
    assert np.asarray(made).tobytes() == wanted.tobytes()
