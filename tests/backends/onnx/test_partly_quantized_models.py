"""A model that is quantized in part is finished: what is real gets integers, integers that exist
stay."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.backends.onnx.versions import profiles
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes
from tests.differential.runtime import run
from tests.frontends.onnx.models import model, save
from tests.installed import OPTIMIZED

SEED = 23
FLOAT = TensorProto.FLOAT
Plain = NDArray[np.float32]


def network() -> onnx.ModelProto:
    """Three products, a relu behind the first and a bias behind the second."""
    rng = np.random.default_rng(SEED)
    sizes = {"w1": (16, 24), "w2": (24, 24), "b2": (24,), "w3": (24, 8)}
    constants = {n: rng.normal(size=s).astype(np.float32) / 4 for n, s in sizes.items()}
    make = helper.make_node
    nodes = [
        make("MatMul", ["x", "w1"], ["a"], "fc1"),
        make("Relu", ["a"], ["r"], "relu"),
        make("MatMul", ["r", "w2"], ["b"], "fc2"),
        make("Add", ["b", "b2"], ["c"], "bias"),
        make("MatMul", ["c", "w3"], ["y"], "fc3"),
    ]
    return model(nodes, {"x": (FLOAT, ["N", 16])}, {"y": (FLOAT, ["N", 8])}, constants, 21)


def samples() -> Plain:
    return np.random.default_rng(SEED + 1).normal(size=(32, 16)).astype(np.float32)


def batches() -> list[dict[str, Plain]]:
    return [{"x": samples()}]


def part(folder: Path, *floats: str) -> Path:
    """The network, quantized with data but for some ops, as QDQ."""
    graph = pipeline.load(save(network(), folder, "float.onnx"))
    rules = [f"name={name}: float" for name in floats]
    made = pipeline.quantize(graph, pipeline.calibrate(graph, batches()), rules=rules)
    pipeline.save(made, folder / "part.onnx", format="qdq")
    return folder / "part.onnx"


def ways(graph: Graph, way: str) -> Graph:
    if way == "data":
        return pipeline.quantize(graph, pipeline.calibrate(graph, batches()))
    if way == "dynamic":
        return pipeline.quantize_dynamic(graph)
    return pipeline.quantize_weights(graph, "i8:8")


def arrays(proto: onnx.ModelProto) -> dict[str, bytes]:
    found = proto.graph.initializer
    return {t.name: numpy_helper.to_array(t).tobytes() for t in found}


@pytest.mark.parametrize("way", ["data", "dynamic", "weights"])
@pytest.mark.parametrize("floats", [("fc2",), ("relu", "fc2", "bias"), ("fc3",)])
def test_what_is_real_is_quantized_and_codes_stay(
    way: str, floats: tuple[str, ...], tmp_path: Path
) -> None:
    source, out = part(tmp_path, *floats), tmp_path / "out.onnx"
    graph = pipeline.load(source)
    asked = {"data": {}, "dynamic": {"dynamic": True}, "weights": {"weights": "i8:8"}}[way]
    plan = pipeline.plan(graph, **asked)  # type: ignore[arg-type]
    assert any(d.new and d.op in ("matmul", "gemm") for d in plan.decisions)
    made = ways(graph, way)
    pipeline.save(made, out, format="qdq")
    before, after = onnx.load(source), onnx.load(out)
    real = {f"w{name[-1]}" for name in floats if name.startswith("fc")}
    kept = {n: a for n, a in arrays(before).items() if n not in real | {"b2", "c.bias"}}
    assert kept.items() <= arrays(after).items()
    assert not real & set(arrays(after))
    feeds = {"x": samples()}
    wanted = run(after, feeds, optimize=False)["y"]
    assert np.allclose(pipeline.run(made, feeds)["y"], wanted, rtol=1e-5, atol=1e-5)
    exact = run(onnx.load(tmp_path / "float.onnx"), feeds, optimize=False)["y"]
    assert np.abs(np.subtract(wanted, exact, dtype=np.float32)).max() < 0.08 * np.abs(exact).max()


def test_nothing_is_coded_twice(tmp_path: Path) -> None:
    """Between integers that exist, finishing with data writes what quantizing at once writes."""
    source, out = part(tmp_path, "fc3"), tmp_path / "out.onnx"
    pipeline.save(ways(pipeline.load(source), "data"), out, format="qdq")
    whole = pipeline.load(tmp_path / "float.onnx")
    pipeline.save(ways(whole, "data"), tmp_path / "whole.onnx", format="qdq")
    counts = [
        Counter(n.op_type for n in onnx.load(tmp_path / name).graph.node)
        for name in ("out.onnx", "whole.onnx")
    ]
    assert counts[0] == counts[1]


@pytest.mark.parametrize("way", ["data", "dynamic", "weights"])
def test_where_nothing_is_left_plan_and_quantize_say_so(way: str, tmp_path: Path) -> None:
    graph = pipeline.load(part(tmp_path))
    asked = {"data": {}, "dynamic": {"dynamic": True}, "weights": {"weights": "i8:8"}}[way]
    plan = pipeline.plan(graph, **asked)  # type: ignore[arg-type]
    assert not any(d.new for d in plan.decisions)
    with pytest.raises(UsageError, match="quantized already"):
        ways(graph, way)


def test_codes_of_another_runtime_are_finished_there(tmp_path: Path) -> None:
    graph = pipeline.load(part(tmp_path, "fc2"))
    statistics = pipeline.calibrate(graph, batches())
    with pytest.raises(UsageError, match=f"quantize it with --as {OPTIMIZED}, to a .qir file"):
        pipeline.quantize(graph, statistics, target="cpu")


def test_codes_of_another_version_are_finished_by_its_profile(tmp_path: Path) -> None:
    graph = pipeline.load(part(tmp_path, "fc2"))
    other = next(name for name in profiles() if name != OPTIMIZED)
    graph = run_passes(graph, [Group(profile=other)], Ledger())
    statistics = pipeline.calibrate(graph, batches())
    with pytest.raises(UsageError, match=f"quantize it with --as {other}, to a .qir file"):
        pipeline.quantize(graph, statistics)
    made = pipeline.quantize(graph, statistics, profile=other)
    assert made.profile == other
    pipeline.save(made, tmp_path / "made.qir")
    pipeline.save(pipeline.load(tmp_path / "made.qir"), tmp_path / "made.onnx", format="qoperator")
    kinds = Counter(n.op_type for n in onnx.load(tmp_path / "made.onnx").graph.node)
    assert kinds["QLinearMatMul"] + kinds["QGemm"] == 3
    assert run(onnx.load(tmp_path / "made.onnx"), batches()[0], optimize=True)


def test_products_of_scales_are_no_data(tmp_path: Path) -> None:
    make = helper.make_node
    rng = np.random.default_rng(SEED)
    nodes = [
        make("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        make("MatMulInteger", ["q", "w", "z"], ["i"]),
        make("Cast", ["i"], ["f"], to=FLOAT),
        make("Mul", ["s", "t"], ["u"]),
        make("Mul", ["f", "u"], ["y"]),
    ]
    quantized = rng.integers(-127, 128, (16, 8)).astype(np.int8)
    constants: dict[str, NDArray[np.generic]] = {
        "w": quantized,
        "t": np.asarray(0.01, np.float32),
    }
    proto = model(nodes, {"x": (FLOAT, ["N", 16])}, {"y": (FLOAT, ["N", 8])}, constants)
    plan = pipeline.plan(pipeline.load(save(proto, tmp_path)))
    assert not any(d.new for d in plan.decisions)


def test_products_of_few_bits_count_their_work(tmp_path: Path) -> None:
    graph = pipeline.load(save(network(), tmp_path))
    made = pipeline.quantize_weights(graph, "u4:16", rules=["name=fc3: float"])
    pipeline.save(made, tmp_path / "bits.onnx", format="nbits")
    plan = pipeline.plan(pipeline.load(tmp_path / "bits.onnx"))
    assert sum(d.macs for d in plan.decisions) == 16 * 24 + 24 * 24 + 24 * 8
    assert plan.integer_macs == 24 * 8 / (16 * 24 + 24 * 24 + 24 * 8)


MOVES = {
    "straight": [],
    "reshape": [("Reshape", "shape")],
    "unsqueeze": [("Unsqueeze", "front"), ("Squeeze", "front")],
    "two": [("Unsqueeze", "front"), ("Transpose",), ("Reshape", "shape"), ("Identity",)],
}


@pytest.mark.parametrize("moves", MOVES.values(), ids=MOVES)
@pytest.mark.parametrize("turned", [False, True])
def test_what_scales_a_sum_gets_no_codes(
    moves: list[tuple[str, ...]], turned: bool, tmp_path: Path
) -> None:
    """Whatever moves stand between the product of scales, or the sum, and where they meet."""
    rng = np.random.default_rng(SEED)
    make = helper.make_node
    constants: dict[str, NDArray[np.generic]] = {
        "held": rng.integers(-100, 100, (16, 6)).astype(np.int8),
        "ws": np.logspace(-4, 0, 6).astype(np.float32),
        "last": rng.normal(size=(6, 5)).astype(np.float32),
        "most": np.array(127, np.float32),
        "z": np.array(0, np.int8),
        "shape": np.array([1, 6], np.int64),
        "whole": np.array([-1, 6], np.int64),
        "front": np.array([0], np.int64),
        "axes": np.array([0, 1], np.int64),
    }
    nodes = [
        make("Abs", ["x"], ["all"]),
        make("ReduceMax", ["all", "axes"], ["high"], keepdims=0),
        make("Div", ["high", "most"], ["s"]),
        make("QuantizeLinear", ["x", "s", "z"], ["q"]),
        make("MatMulInteger", ["q", "held"], ["i"]),
        make("Cast", ["i"], ["f0"], to=FLOAT),
        make("Reshape" if turned else "Identity", ["f0", "whole"][: 1 + turned], ["f"]),
        make("Mul", ["s", "ws"], ["s0"]),
    ]
    for at, (op, *more) in enumerate(moves):
        nodes.append(make(op, [f"s{at}", *more], [f"s{at + 1}"]))
    nodes += [make("Mul", ["f", f"s{len(moves)}"], ["h"]), make("MatMul", ["h", "last"], ["y"])]
    ends = {"y": (FLOAT, [32, 5]), "h": (FLOAT, [32, 6])}
    proto = model(nodes, {"x": (FLOAT, [32, 16])}, ends, constants, 21)
    source, out = save(proto, tmp_path, "part.onnx"), tmp_path / "out.onnx"
    graph = pipeline.load(source)
    plan = pipeline.plan(graph)
    assert [d.op for d in plan.decisions if d.new] == ["matmul"]
    pipeline.save(ways(graph, "data"), out, format="qdq")
    feeds = {"x": samples()}
    found, wanted = (run(m, feeds, optimize=False) for m in (onnx.load(out), proto))
    assert np.array_equal(found["h"], wanted["h"])
    assert (
        np.abs(np.subtract(found["y"], wanted["y"], dtype=np.float32)).max()
        < 0.02 * np.abs(wanted["y"]).max()
    )


def test_a_dynamic_convolution_is_finished_with_its_scales(tmp_path: Path) -> None:
    """Small channels keep their floats beside large ones when data finish a dynamic model."""
    rng = np.random.default_rng(SEED)
    spread = np.logspace(-4, 0, 6)[:, None, None, None]
    constants = {
        "w1": (rng.normal(size=(6, 3, 3, 3)) * spread).astype(np.float32),
        "w2": rng.normal(size=(6, 6, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1"], ["a"], "one"),
        helper.make_node("Conv", ["a", "w2"], ["y"], "two"),
    ]
    ends = {"y": (FLOAT, [4, 6, 6, 6]), "a": (FLOAT, [4, 6, 6, 6])}
    proto = model(nodes, {"x": (FLOAT, [4, 3, 8, 8])}, ends, constants, 21)
    source = pipeline.load(save(proto, tmp_path, "float.onnx"))
    path, out = tmp_path / "dynamic.onnx", tmp_path / "out.onnx"
    made = pipeline.quantize_dynamic(source, rules=["name=two: float"])
    pipeline.save(made, path, format="integer")
    feeds = {"x": rng.normal(size=(4, 3, 8, 8)).astype(np.float32)}
    read = pipeline.load(path)
    pipeline.save(pipeline.quantize(read, pipeline.calibrate(read, [feeds])), out)
    found, wanted = (run(m, feeds, optimize=False)["a"] for m in (onnx.load(out), onnx.load(path)))
    off, most = (
        np.abs(v).max((0, 2, 3)) for v in (np.subtract(found, wanted, dtype=np.float32), wanted)
    )
    assert (off <= 1e-5 * most).all()
