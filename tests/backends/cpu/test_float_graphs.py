"""Float networks on the kernels: near onnxruntime, the same bytes for any threads and batch split,
and every value shown to who calibrates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.backends.cpu.compiled import Compiled
from qir.calibration.runner import GraphProgram
from qir.ir.graph import Graph
from qir.target import target

Floats = NDArray[np.float32]
CPU = target("cpu")


class Net:
    """Nodes of an ONNX model, one after the other, with random weights."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def weight(self, *shape: int) -> str:
        fan = max(1, int(np.prod(shape[1:])))
        data = self.rng.normal(size=shape) / np.sqrt(fan)
        return self.constant(data.astype(np.float32))

    def constant(self, data: NDArray[np.generic]) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(data, name))
        return name

    def node(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"{op}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], name, **attrs))
        return name

    def save(self, path: Path, shape: Sequence[str | int | None], y: str, rank: int) -> Path:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
        out = helper.make_tensor_value_info(y, TensorProto.FLOAT, ["N", *"abcdef"[: rank - 1]])
        graph = helper.make_graph(self.nodes, "net", [x], [out], self.weights)
        opset = [helper.make_opsetid("", 17)]
        onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
        return path


def cnn(path: Path) -> Path:
    """Dense, strided, depthwise and grouped convolutions, pools, gates and a sum."""
    b = Net(71)
    x = b.node("Conv", "x", b.weight(16, 3, 3, 3), b.weight(16), pads=[1] * 4, strides=[2, 2])
    x = b.node("Relu", x)
    y = b.node("Conv", x, b.weight(16, 1, 3, 3), b.weight(16), pads=[1] * 4, group=16)
    y = b.node("HardSwish", y)
    y = b.node("Conv", y, b.weight(16, 4, 3, 3), b.weight(16), pads=[1] * 4, group=4)
    gate = b.node("Conv", b.node("GlobalAveragePool", y), b.weight(16, 16, 1, 1), b.weight(16))
    x = b.node("Add", x, b.node("Mul", y, b.node("Sigmoid", gate)))
    x = b.node("Clip", x, *map(b.constant, (np.array(0, np.float32), np.array(6, np.float32))))
    x = b.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = b.node("Conv", x, b.weight(300, 16, 1, 1), b.weight(300))
    x = b.node("ReduceMean", x, axes=[2, 3], keepdims=0)
    return b.save(path, ["N", 3, 33, 41], b.node("Gemm", x, b.weight(300, 10), b.weight(10)), 2)


def transformer(path: Path) -> Path:
    """Attention with a transpose on either side, layer norm, GELU by erf."""
    b, heads, each, tokens = Net(72), 3, 8, 19
    width = heads * each

    def split(x: str, perm: list[int]) -> str:
        apart = b.node("Reshape", x, b.constant(np.array([0, tokens, heads, each])))
        return b.node("Transpose", apart, perm=perm)

    q, k, v = (
        b.node("Add", b.node("MatMul", "x", b.weight(width, width)), b.weight(width))
        for _ in range(3)
    )
    scores = b.node("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
    mixed = b.node("MatMul", b.node("Softmax", scores, axis=-1), split(v, [0, 2, 1, 3]))
    mixed = b.node("Transpose", mixed, perm=[0, 2, 1, 3])
    x = b.node("Add", "x", b.node("Reshape", mixed, b.constant(np.array([0, tokens, width]))))
    x = b.node("LayerNormalization", x, b.weight(width), b.weight(width), axis=-1)
    error = b.node("Erf", b.node("Div", x, b.constant(np.array([2**0.5], np.float32))))
    x = b.node("Mul", x, b.node("Add", error, b.constant(np.ones(1, np.float32))))
    y = b.node("Tanh", b.node("MatMul", x, b.weight(width, 7)))
    return b.save(path, ["N", tokens, width], y, 3)


NETS = {"cnn": (cnn, (3, 33, 41)), "transformer": (transformer, (19, 24))}


@pytest.fixture(params=NETS)
def net(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Floats]:
    make, shape = NETS[request.param]
    data = np.random.default_rng(73).normal(size=(5, *shape)).astype(np.float32)
    return make(tmp_path / "net.onnx"), data


def test_float_networks_run_on_kernels_alone(net: tuple[Path, Floats]) -> None:
    path, data = net
    graph = qir.load(path)
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    (wanted,) = session.run(None, {"x": data})
    found = set()
    for threads in (1, 2):
        own = qir.compile(graph, threads=threads)
        (made,) = own(x=data).values()
        assert isinstance(own, Compiled)
        assert not own.fallbacks
        assert np.max(np.abs(made - wanted)) <= 2e-5 * np.max(np.abs(wanted))
        found.add(np.asarray(made).tobytes())
        split = [own(x=data[part]) for part in (slice(0, 2), slice(2, 5))]
        joined = np.concatenate([next(iter(part.values())) for part in split])
        found.add(joined.tobytes())
    assert len(found) == 1


def shown(graph: Graph, data: Floats, *, kernels: bool) -> dict[str, Floats]:
    """What calibration sees of each value."""
    seen: dict[str, Floats] = {}

    def see(name: str, array: NDArray[np.generic]) -> None:
        assert name not in seen
        seen[name] = np.array(array, np.float32)

    GraphProgram(graph, CPU.observed if kernels else None).run({"x": data}, see)
    return seen


def test_calibration_sees_every_value_of_a_program(net: tuple[Path, Floats]) -> None:
    path, data = net
    graph = qir.load(path)
    seen, exact = shown(graph, data, kernels=True), shown(graph, data, kernels=False)
    assert list(seen) == list(exact)
    for name, array in exact.items():
        assert seen[name].shape == array.shape
        room = 1e-5 * np.max(np.abs(array))
        assert np.max(np.abs(seen[name] - array)) <= room, name


def test_statistics_are_the_same_for_any_threads_and_batches(
    net: tuple[Path, Floats], tmp_path: Path
) -> None:
    path, data = net
    graph, files = qir.load(path), []
    for threads in (1, 3):
        statistics = qir.calibrate(graph, data, batch=2, threads=threads)
        files.append(tmp_path / f"{threads}.stats")
        statistics.save(files[-1])
    assert files[0].read_bytes() == files[1].read_bytes()
