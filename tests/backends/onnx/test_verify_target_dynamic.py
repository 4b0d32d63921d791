"""Products that are quantized while a model runs: what onnxruntime makes of each form of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli.command import qir

F32 = TensorProto.FLOAT
FORMS = ("integer", "qdq", "qoperator")
KERNELS = frozenset(
    "DynamicQuantizeMatMul MatMulIntegerToFloat MatMulInteger ConvInteger QGemm "
    "QLinearMatMul QLinearConv".split()
)
"""Operators of an optimized model that sum products of integers."""
PRODUCTS = frozenset("matmul gemm linear conv2d matmul_integer conv_integer".split())


def _ops(graph: onnx.GraphProto) -> Iterator[str]:
    for node in graph.node:
        yield node.op_type
        for held in (a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH):
            yield from _ops(held)


def summed(path: Path, folder: Path) -> list[str]:
    """The kernels that sum integers in what onnxruntime makes of a model."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    return [op for op in _ops(onnx.load(folder / "optimized.onnx").graph) if op in KERNELS]


def verified(path: Path) -> list[str]:
    """The products that `qir verify` says are on integers."""
    told = json.loads(qir("verify", path, "--target", "onnxruntime", "--json").out)
    return [v["node"] for v in told["ops"] if v["taken"] == "integer" and v["op"] in PRODUCTS]


def agrees(model: onnx.ModelProto, folder: Path) -> dict[str, list[str]]:
    """Quantizes in each form, and in none: what quantize and verify count, onnxruntime has."""
    onnx.save(model, folder / "m.onnx")
    found = {}
    for form in FORMS:
        path = folder / f"{form}.onnx"
        made = qir("quantize", folder / "m.onnx", "--dynamic", "--format", form, "-o", path, "-f")
        assert made.status == 0, made.err
        found[form] = summed(path, folder)
        assert len(verified(path)) == len(found[form]), (form, found[form])
        assert f"integer  {len(found[form])} of " in made.out, (form, found[form], made.out)
    path, written = folder / "m.qir", folder / "written.onnx"
    asked = ("--dynamic", "-o", path, "-f", "--json")
    told = json.loads(qir("quantize", folder / "m.onnx", *asked).out)
    assert qir("convert", path, "-o", written, "-f").status == 0
    kernels = summed(written, folder)
    assert told["integer_ops"] == len(verified(path)) == len(verified(written)) == len(kernels)
    return found


def model(nodes: list[Any], shape: list[Any], held: dict[str, Any], more: int = 0) -> Any:
    graph = helper.make_graph(
        nodes,
        "net",
        [helper.make_tensor_value_info("x", F32, shape)],
        [helper.make_tensor_value_info(f"y{i or ''}", F32, None) for i in range(more + 1)],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.normal(0, 0.3, shape).astype(np.float32)


SHAPES: dict[str, list[Any]] = {
    "two axes, one open": ["N", 64],
    "two axes": [4, 64],
    "three axes, one open": ["N", 4, 64],
    "three axes": [2, 4, 64],
    "four axes": [2, 3, 4, 64],
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("axes", SHAPES)
def test_one_product(axes: str, bias: bool, tmp_path: Path) -> None:
    node, rng = helper.make_node, np.random.default_rng(2)
    nodes = [node("MatMul", ["x", "w"], ["h" if bias else "y"])]
    nodes += [node("Add", ["h", "b"], ["y"])] * bias
    held = {"w": normal(rng, 64, 16), "b": normal(rng, 16)}
    made = agrees(model(nodes, SHAPES[axes], held), tmp_path)
    assert made["integer"] == ["DynamicQuantizeMatMul"]


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
def test_a_gemm_and_a_convolution(bias: bool, tmp_path: Path) -> None:
    """A gemm that adds floats is float32 where QDQ form says it, and so is a convolution."""
    node, rng = helper.make_node, np.random.default_rng(3)
    added = ["b"] * bias
    nodes = [
        node("Conv", ["x", "k", *added], ["c"], pads=[1, 1, 1, 1]),
        node("Flatten", ["c"], ["f"]),
        node("Gemm", ["f", "w", *added], ["y"], transB=1),
    ]
    held = {"k": normal(rng, 8, 3, 3, 3), "w": normal(rng, 8, 128), "b": normal(rng, 8)}
    found = agrees(model(nodes, [1, 3, 4, 4], held), tmp_path)
    assert len(found["integer"]) == 2
    assert found["qdq"] == [] if bias else ["QGemm"]


CUTS = {"relu": ["Relu"], "clip": ["Clip", "low", "high"]}
BEHIND = {"read": False, "a result": True, "read, and a result": True, "added to": True}


@pytest.mark.parametrize("behind", BEHIND)
@pytest.mark.parametrize("cut", CUTS)
def test_a_product_that_a_relu_or_a_clip_cuts(cut: str, behind: str, tmp_path: Path) -> None:
    """In QDQ form it is float32 where the cut stands right behind it, and is no result itself."""
    node, rng, (op, *ends) = helper.make_node, np.random.default_rng(6), CUTS[cut]
    last, made = ("y", "h") if behind == "a result" else ("r", "h")
    nodes = [node("MatMul", ["x", "w"], [made])]
    if behind == "added to":
        nodes.append(node("Add", ["h", "b"], ["s"]))
        made = "s"
    nodes.append(node(op, [made, *ends], ["y1" if "and" in behind else last]))
    if behind != "a result":
        nodes.append(node("Tanh", [nodes[-1].output[0]], ["y"]))
    held = {"w": normal(rng, 8, 8), "b": normal(rng, 8), "low": np.float32(0)}
    held |= {"high": np.float32(6)}
    found = agrees(model(nodes, ["N", 8], held, "and" in behind), tmp_path)
    assert len(found["integer"]) == 1
    assert len(found["qdq"]) == BEHIND[behind]


BODIES = ("if", "loop", "scan")


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "none"])
@pytest.mark.parametrize("kind", BODIES)
def test_products_that_bodies_hold(kind: str, bias: bool, tmp_path: Path) -> None:
    """Also beside one outside of them that is called as theirs is."""
    found = agrees(held_in(kind, bias=bias), tmp_path)
    assert len(found["integer"]) == 3 - (kind != "if")


def held_in(kind: str, *, bias: bool) -> Any:
    node, rng = helper.make_node, np.random.default_rng(4)
    value = helper.make_tensor_value_info

    def layer(name: str, weights: str, last: str) -> list[Any]:
        nodes = [node("MatMul", [name, weights], [f"{last}m" if bias else last])]
        return nodes + [node("Add", [f"{last}m", "b"], [last])] * bias

    held: dict[str, Any] = {n: normal(rng, 8, 8) for n in ("w", "v", "u")}
    held |= {"b": normal(rng, 8), "none": np.float32(0), "n": np.array(3)}
    first, flag = layer("x", "u", "h"), value("go", TensorProto.BOOL, [])
    if kind == "if":
        first += [node("ReduceMax", ["x"], ["most"], keepdims=0)]
        first += [node("Greater", ["most", "none"], ["cond"])]
        then = [*layer("h", "w", "t"), node("Tanh", ["t"], ["one"])]
        other = layer("h", "v", "two")
        parts = {
            "then_branch": helper.make_graph(then, "then", [], [value("one", F32, None)]),
            "else_branch": helper.make_graph(other, "else", [], [value("two", F32, None)]),
        }
        return model([*first, node("If", ["cond"], ["y"], **parts)], [4, 8], held)
    inner = [*layer("s", "w", "r"), node("Tanh", ["r"], ["s2"])]
    state, made = value("s", F32, [4, 8]), value("s2", F32, [4, 8])
    if kind == "loop":
        inner.append(node("Identity", ["go"], ["on"]))
        takes = [value("i", TensorProto.INT64, []), flag, state]
        body = helper.make_graph(inner, "body", takes, [value("on", TensorProto.BOOL, []), made])
        return model([*first, node("Loop", ["n", "", "h"], ["y"], body=body)], [4, 8], held)
    inner += [node("Add", ["s2", "p"], ["s3"]), node("Identity", ["s3"], ["o"])]
    gives = [value("s3", F32, [4, 8]), value("o", F32, [4, 8])]
    body = helper.make_graph(inner, "body", [state, value("p", F32, [4, 8])], gives)
    held["parts"] = normal(rng, 3, 4, 8)
    scan = node("Scan", ["h", "parts"], ["y", "y1"], body=body, num_scan_inputs=1)
    return model([*first, scan], [4, 8], held, 1)


def test_branches_that_call_their_results_alike(tmp_path: Path) -> None:
    """One of a relu, one of a product."""
    node, rng, value = helper.make_node, np.random.default_rng(9), helper.make_tensor_value_info
    cut = [node("MatMul", ["x", "w"], ["u"]), node("Relu", ["u"], ["t"])]
    then, other = cut, [node("MatMul", ["x", "v"], ["t"])]
    parts = {
        f"{name}_branch": helper.make_graph(nodes, name, [], [value("t", F32, None)])
        for name, nodes in (("then", then), ("else", other))
    }
    first = [node("ReduceMax", ["x"], ["most"], keepdims=0)]
    first += [node("Greater", ["most", "none"], ["cond"]), node("If", ["cond"], ["y"], **parts)]
    held = {"w": normal(rng, 8, 8), "v": normal(rng, 8, 8), "none": np.float32(0)}
    assert all(len(made) == 2 for made in agrees(model(first, [4, 8], held), tmp_path).values())


@pytest.mark.parametrize("seed", [*range(5), 110, 159])
def test_random_networks(seed: int, tmp_path: Path) -> None:
    """Products of several kinds behind each other, with and without what is added and cut."""
    rng, node = np.random.default_rng(seed), helper.make_node
    two = bool(rng.integers(2))
    lead: list[Any] = [["N", "M"][i] if rng.integers(3) == 0 else 3 for i in range(1 + (not two))]
    nodes: list[Any] = []
    held: dict[str, Any] = {"low": np.float32(-1), "high": np.float32(1)}
    at = "x"
    for i in range(4):
        w, b, made = f"w{i}", f"b{i}", f"m{i}"
        held[w], held[b] = normal(rng, 16, 16), normal(rng, 16)
        added = rng.integers(4)
        if two and rng.integers(3) == 0:
            turned = int(rng.integers(2))
            nodes.append(node("Gemm", [at, w, *([b] if added else [])], [made], transB=turned))
        else:
            nodes.append(node("MatMul", [at, w], [made]))
            pair = [made, b] if added == 1 else [b, made]
            if added == 3:
                pair[pair.index(b)] = at
            if added:
                nodes.append(node("Add", pair, [f"a{i}"]))
                made = f"a{i}"
        curve = ["", "Relu", "Tanh", "Clip"][rng.integers(4)]
        if curve:
            ends = ["low", "high"] if curve == "Clip" else []
            nodes.append(node(curve, [made, *ends], [f"c{i}"]))
            made = f"c{i}"
        at = at if rng.integers(5) == 0 and i else made
    nodes.append(node("Identity", [at], ["y"]))
    assert agrees(model(nodes, [*lead, 16], held), tmp_path)["integer"], f"seed {seed}"
