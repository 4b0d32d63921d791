"""Integers of every element type, operator sets newer than runtimes, sizes that are computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx import OnnxRuntimeTarget
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.reference.interpreter import run

from .models import model, save

FLOAT = TensorProto.FLOAT
KINDS = {
    "i4": (TensorProto.INT4, -8, 8, 21),
    "u4": (TensorProto.UINT4, 0, 16, 21),
    "i2": (TensorProto.INT2, -2, 2, 25),
    "u2": (TensorProto.UINT2, 0, 4, 25),
    "f8e4m3fn": (TensorProto.FLOAT8E4M3FN, -50, 50, 19),
    "f8e5m2": (TensorProto.FLOAT8E5M2, -50, 50, 19),
}
"""ONNX's number of an element type, the integers drawn, the first operator set that has them."""


def load(proto: onnx.ModelProto, folder: Path) -> Graph:
    graph: Graph = OnnxFrontend().load(save(proto, folder), Ledger())
    return graph


def written(graph: Graph, folder: Path) -> onnx.ModelProto:
    path = folder / "back.onnx"
    path.unlink(missing_ok=True)
    OnnxRuntimeTarget().emit(graph, path, Ledger())
    return onnx.load(path)


def in_runtime(path: Path, x: NDArray[np.float32]) -> NDArray[np.generic]:
    found = OnnxRuntimeTarget().session(path, threads=1, optimize=False)(x=x)["y"]
    return np.asarray(found)


@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize("zeroed", [True, False])
def test_weights_of_few_bits_are_read_computed_and_written_back(
    tmp_path: Path, name: str, zeroed: bool
) -> None:
    """y = (w - z) s, which has no rounding but the product's: the bytes are onnxruntime's."""
    number, low, high, opset = KINDS[name]
    rng = np.random.default_rng(KINDS[name][0])
    w = rng.integers(low, high, 32).astype(np.float32)
    zeros = rng.integers(low, high, 4) * (name[0] != "f")
    proto = model(
        [
            helper.make_node("DequantizeLinear", ["w", "s", "z"][: 2 + zeroed], ["d"], axis=1),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ],
        {"x": (FLOAT, [8, 4])},
        {"y": (FLOAT, [8, 4])},
        {"s": (rng.random(4) + 0.1).astype(np.float32)},
        opset,
    )
    proto.ir_version = 10
    proto.graph.initializer.append(helper.make_tensor("w", number, [8, 4], w))
    if zeroed:
        zero = helper.make_tensor("z", number, [4], zeros.astype(np.float32))
        proto.graph.initializer.append(zero)
    graph = load(proto, tmp_path)
    quant = graph["w"].type.quant
    assert quant is not None
    assert quant.storage.name == name
    assert not any(node.op == "foreign" for node in graph)
    x = rng.normal(size=(8, 4)).astype(np.float32)
    wanted = in_runtime(tmp_path / "m.onnx", x)
    assert np.array_equal(run(graph, {"x": x})["y"], wanted)
    back = written(graph, tmp_path)
    assert np.array_equal(in_runtime(tmp_path / "back.onnx", x), wanted)
    assert [n.op_type for n in back.graph.node] == ["DequantizeLinear", "Add"]
    held = {t.name: t for t in back.graph.initializer}
    assert held["w"].data_type == number
    assert np.array_equal(
        numpy_helper.to_array(held["w"]).astype(np.float32),
        numpy_helper.to_array(helper.make_tensor("w", number, [8, 4], w)).astype(np.float32),
    )


@pytest.mark.parametrize("name", ["i4", "u4", "f8e4m3fn", "f8e5m2"])
def test_a_quantizer_to_few_bits_gives_onnxruntimes_codes(tmp_path: Path, name: str) -> None:
    number, low, high, _ = KINDS[name]
    zero = helper.make_tensor("z", number, [], [0 if name[0] == "f" else (low + high) // 2 + 1])
    proto = model(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        {"x": (FLOAT, [64])},
        {"y": (FLOAT, [64])},
        {"s": np.array(0.37, np.float32)},
        21,
    )
    proto.ir_version = 10
    proto.graph.initializer.append(zero)
    graph = load(proto, tmp_path)
    assert not any(node.op == "foreign" for node in graph)
    x = (np.random.default_rng(3).normal(size=64) * 3).astype(np.float32)
    wanted = in_runtime(tmp_path / "m.onnx", x)
    assert np.array_equal(run(graph, {"x": x})["y"], wanted)
    written(graph, tmp_path)
    assert np.array_equal(in_runtime(tmp_path / "back.onnx", x), wanted)


@pytest.mark.parametrize("source", [26, 27, 28])
def test_an_operator_set_newer_than_onnxruntimes_is_written_as_26(
    tmp_path: Path, source: int
) -> None:
    """Celu is kept, and its form of opset 28 differs from the older by types alone."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Celu", ["r"], ["c"], alpha=2.0),
        helper.make_node("Einsum", ["c", "c"], ["y"], equation="ij,ij->i"),
    ]
    proto = model(nodes, {"x": (FLOAT, [2, 3])}, {"y": (FLOAT, [2])}, opset=source)
    back = written(load(proto, tmp_path), tmp_path)
    assert [o.version for o in back.opset_import] == [26]
    x = np.random.default_rng(5).normal(size=(2, 3)).astype(np.float32)
    kept = np.maximum(x, 0).astype(np.float64)
    assert np.allclose(in_runtime(tmp_path / "back.onnx", x), (kept * kept).sum(1), rtol=1e-5)


def test_what_only_the_newest_operator_set_has_keeps_it(tmp_path: Path) -> None:
    node = helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=2, mode="CRD")
    proto = model([node], {"x": (FLOAT, [1, 1, 4, 4])}, {"y": (FLOAT, [1, 4, 2, 2])}, opset=28)
    graph = load(proto, tmp_path)
    assert [o.version for o in written(graph, tmp_path).opset_import] == [28]
    x = np.arange(16, dtype=np.float32).reshape(1, 1, 4, 4)
    found = run(graph, {"x": x})["y"]
    assert np.array_equal(
        found, x.reshape(1, 1, 2, 2, 2, 2).transpose(0, 1, 3, 5, 2, 4).reshape(1, 4, 2, 2)
    )


def test_axes_that_hang_on_sizes_alone_are_computed_while_reading(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["sizes"]),
        helper.make_node("Size", ["sizes"], ["rank"]),
        helper.make_node("Range", ["one", "rank", "one"], ["axes"]),
        helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1),
        helper.make_node("Sub", ["x", "m"], ["y"]),
    ]
    one = np.array(1, np.int64)
    proto = model(nodes, {"x": (FLOAT, ["N", 4, 5])}, {"y": (FLOAT, ["N", 4, 5])}, {"one": one}, 18)
    graph = load(proto, tmp_path)
    if graph["m"].node.op == "foreign":
        assert graph["m"].type.rank == 3
    x = np.random.default_rng(6).normal(size=(2, 4, 5)).astype(np.float32)
    wanted = x - x.astype(np.float64).mean((1, 2), keepdims=True)
    assert np.allclose(run(graph, {"x": x})["y"], wanted, atol=1e-6)
    written(graph, tmp_path)
    assert np.allclose(in_runtime(tmp_path / "back.onnx", x), wanted, atol=1e-6)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_reduction_along_axes_given_while_running_has_a_rank(tmp_path: Path, keep: int) -> None:
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["s"], keepdims=keep)]
    nodes.append(helper.make_node("Neg", ["s"], ["y"]))
    inputs: dict[str, tuple[int, list[int | str | None]]] = {
        "x": (FLOAT, [3, 4, 5]),
        "axes": (TensorProto.INT64, [2]),
    }
    graph = load(model(nodes, inputs, {"y": (FLOAT, None)}, opset=18), tmp_path)
    assert graph["y"].type.rank == (3 if keep else 1)
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    found = run(graph, {"x": x, "axes": np.array([0, 2])})["y"]
    assert np.array_equal(found, -x.sum((0, 2), keepdims=bool(keep)))


def test_an_op_of_onnxruntimes_own_runs_where_that_is_installed(tmp_path: Path) -> None:
    """ONNX's evaluator does not know it."""
    node = helper.make_node(
        "CDist", ["x", "x"], ["y"], domain="com.microsoft", metric="sqeuclidean"
    )
    proto = model([node], {"x": (FLOAT, [3, 4])}, {"y": (FLOAT, [3, 3])}, domains=["com.microsoft"])
    graph = load(proto, tmp_path)
    assert [n.op for n in graph if n.op == "foreign"]
    x = np.random.default_rng(8).normal(size=(3, 4)).astype(np.float32)
    assert np.array_equal(run(graph, {"x": x})["y"], in_runtime(tmp_path / "m.onnx", x))


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_whole_numbers_are_divided_toward_zero(tmp_path: Path, kind: int) -> None:
    node = helper.make_node("Div", ["a", "b"], ["y"])
    proto = model([node], {"a": (kind, [200]), "b": (kind, [200])}, {"y": (kind, [200])})
    graph = load(proto, tmp_path)
    assert graph["y"].node.op == "div"
    rng = np.random.default_rng(kind)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    a = rng.integers(-100, 100, 200).astype(dtype)
    b = (rng.integers(1, 9, 200) * rng.choice([-1, 1], 200)).astype(dtype)
    session = OnnxRuntimeTarget().session(tmp_path / "m.onnx", threads=1, optimize=False)
    assert np.array_equal(run(graph, {"a": a, "b": b})["y"], np.asarray(session(a=a, b=b)["y"]))
