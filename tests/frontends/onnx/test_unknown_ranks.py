"""Tensors of which nothing says how many axes they have: read, printed, run and given back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

import qir
from qir.errors import DataError
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, print_graph
from tests.cli import command

FLOAT, U8, I64, BOOL = (getattr(TensorProto, n) for n in ("FLOAT", "UINT8", "INT64", "BOOL"))
RNG = np.random.default_rng(5)
X = RNG.standard_normal((2, 3)).astype(np.float32)
Arrays = Mapping[str, NDArray[Any]]
node = helper.make_node


def info(name: str, shape: Sequence[int | str] | None, kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


@dataclass(frozen=True)
class Case:
    """A model whose result is `y`, what goes in, and how many of its ops are read as ours."""

    nodes: list[onnx.NodeProto]
    inputs: list[onnx.ValueInfoProto]
    feed: Arrays | None
    own: int = 0
    held: Arrays = field(default_factory=dict)
    kind: int = FLOAT

    def save(self, path: Path) -> Path:
        names = {n.domain: 17 if not n.domain else 1 for n in self.nodes}
        sets = [helper.make_opsetid(d, v) for d, v in ({"": 17} | names).items()]
        held = [numpy_helper.from_array(a, n) for n, a in self.held.items()]
        output = info("y", None, self.kind)
        graph = helper.make_graph(self.nodes, "g", self.inputs, [output], held)
        onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
        return path


def body(*nodes: onnx.NodeProto, takes: Sequence[str] = (), gives: str = "o") -> onnx.GraphProto:
    kinds = {"i": info("i", [], I64), "c": info("c", [], BOOL), "v": info("v", None)}
    outputs = [info("d", [], BOOL)] if takes else []
    held = [numpy_helper.from_array(np.array([0]), "zero")]
    inputs = [kinds[t] for t in takes]
    return helper.make_graph(list(nodes), "b", inputs, [*outputs, info(gives, None)], held)


ROUND = body(
    node("Unsqueeze", ["v", "zero"], ["o"]), node("Identity", ["c"], ["d"]), takes=("i", "c", "v")
)
BRANCHES = {
    "then_branch": body(node("Neg", ["x"], ["o"])),
    "else_branch": body(node("ReduceSum", ["x"], ["o"], keepdims=0)),
}
NUMBERS: Arrays = {"s": np.array(0.1, np.float32), "z": np.array(3, np.uint8)}
CASES = {
    "elements of an input": Case(
        [node("Neg", ["x"], ["h"]), node("Add", ["h", "b"], ["y"])],
        [info("x", None)],
        {"x": X},
        held={"b": np.ones(3, np.float32)},
    ),
    "a shape that is an input": Case(
        [
            node("Reshape", ["x", "s"], ["h"]),
            node("Flatten", ["h"], ["f"]),
            node("MatMul", ["f", "m"], ["y"]),
        ],
        [info("x", [2, 3]), info("s", ["K"], I64)],
        {"x": X, "s": np.array([2, 1, 3])},
        own=1,
        held={"m": np.ones((3, 5), np.float32)},
    ),
    "axes of size one": Case(
        [node("Squeeze", ["x"], ["h"]), node("Relu", ["h"], ["y"])],
        [info("x", ["A", "B", "C"])],
        {"x": X[:, None]},
    ),
    "an operator of somebody's own": Case(
        [
            node("Relu", ["x"], ["h"]),
            node("Foo", ["h"], ["p", "q"], domain="some.own", k=3),
            node("Add", ["p", "q"], ["y"]),
        ],
        [info("x", [2, 3])],
        None,
        own=1,
    ),
    "branches of other ranks": Case(
        [node("If", ["c"], ["h"], **BRANCHES), node("Relu", ["h"], ["y"])],
        [info("x", [2, 3]), info("c", [], BOOL)],
        {"x": X, "c": np.array(True)},
    ),
    "a branch that takes it": Case(
        [node("If", ["c"], ["y"], **BRANCHES)],
        [info("x", None), info("c", [], BOOL)],
        {"x": X, "c": np.array(True)},
        own=1,
    ),
    "a rank that grows in rounds": Case(
        [node("Loop", ["n", "", "x"], ["h"], body=ROUND), node("Relu", ["h"], ["y"])],
        [info("x", [2, 3]), info("n", [], I64)],
        {"x": X, "n": np.array(2)},
    ),
    "codes": Case(
        [
            node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        ],
        [info("x", None)],
        {"x": X},
        held=NUMBERS,
    ),
    "numbers chosen of it": Case(
        [
            node("DynamicQuantizeLinear", ["x"], ["q", "t", "u"]),
            node("MatMulInteger", ["q", "w", "u"], ["i"]),
            node("Cast", ["i"], ["f"], to=FLOAT),
            node("Mul", ["f", "t"], ["y"]),
        ],
        [info("x", None)],
        {"x": X},
        held={"w": np.ones((3, 4), np.int8)},
    ),
    "onnxruntime's own": Case(
        [node("QLinearAdd", [*"qszqszsz"], ["y"], domain="com.microsoft")],
        [info("q", None, U8)],
        {"q": np.arange(6, dtype=np.uint8)},
        held=NUMBERS,
        kind=U8,
    ),
}


def in_runtime(path: Path, feed: Arrays) -> NDArray[Any]:
    found = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, feed)
    return np.asarray(found[0])


def own(graph: Graph) -> int:
    ends = ("foreign", "input", "output", "constant")
    return sum(n.op not in ends for n in graph)


@pytest.mark.parametrize("name", CASES)
def test_what_has_an_unknown_rank_loads_runs_and_comes_back(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    path, back, stored = (tmp_path / n for n in ("m.onnx", "back.onnx", "m.qir"))
    case.save(path)
    graph = qir.load(path)
    assert own(graph) == case.own
    text = print_graph(graph)
    assert print_graph(parse(text, {n: a.data for n, a in array_table(graph).items()})) == text
    qir.save(graph, stored)
    qir.save(graph.copy(), back, format="qdq")
    kept = [n.op_type for n in onnx.load(back).graph.node]
    assert kept == [n.op_type for n in case.nodes]
    for verb in ("show", "plan"):
        assert command.qir(verb, path).status == 0
    assert command.qir("verify", path).status in (0, 1)  # what is kept is a warning
    if case.feed is None:
        return
    wanted = in_runtime(path, case.feed)
    assert (in_runtime(back, case.feed) == wanted).all()
    made = qir.compile(graph, target="onnxruntime")(**case.feed)
    for found in (
        qir.run(graph, case.feed)["y"],
        qir.run(qir.load(stored), case.feed)["y"],
        np.asarray(made["y"]),
    ):
        assert found.shape == wanted.shape
        assert np.allclose(np.asarray(found, np.float64), wanted, 1e-6, 1e-6)


def test_verbs_say_that_the_rank_is_not_known(tmp_path: Path) -> None:
    path = CASES["codes"].save(tmp_path / "m.onnx")
    data = tmp_path / "x.npz"
    np.savez(data, x=X)
    said = command.qir("run", path, "--data", data)
    assert said.status == 2
    assert "give it a shape in the model, or run it from Python" in said.err
    assert "nothing says how many axes its operands have" in command.qir("plan", path).out
    with pytest.raises(DataError, match="is missing"):
        qir.run(qir.load(path), {})


@pytest.mark.parametrize(
    ("last", "weights", "rank"),
    [
        (node("Conv", ["h", "w"], ["y"]), (4, 3, 1), 3),
        (node("Conv", ["h", "w"], ["y"]), (4, 3, 1, 1), 4),
        (node("MaxPool", ["h"], ["y"], kernel_shape=[1, 1]), (), 4),
        (node("Gemm", ["h", "w"], ["y"]), (3, 4), 2),
    ],
)
def test_the_rank_of_an_input_follows_from_what_takes_it(
    tmp_path: Path, last: onnx.NodeProto, weights: tuple[int, ...], rank: int
) -> None:
    held: Arrays = {"w": RNG.standard_normal(weights).astype(np.float32)} if weights else {}
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("DequantizeLinear", ["q", "s", "z"], ["h"]),
        last,
    ]
    path = Case(nodes, [info("x", None)], {}, held={**NUMBERS, **held}).save(tmp_path / "m.onnx")
    graph = qir.load(path)
    assert graph.inputs[0].type.rank == rank
    assert not [n for n in graph if n.op == "foreign"]
    x = RNG.standard_normal((2, 3, 4, 4)[:rank]).astype(np.float32)
    found, wanted = qir.run(graph, {"x": x})["y"], in_runtime(path, {"x": x})
    assert np.allclose(np.asarray(found, np.float64), wanted, 1e-5, 1e-5)
