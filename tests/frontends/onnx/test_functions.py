"""Functions of a model, written out with the attributes of each call, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from qir import pipeline
from qir.backends.onnx.writer.graph import to_model
from qir.errors import InputError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.reference.interpreter import run

from .models import model, save

node = helper.make_node
FLOAT, INT8 = TensorProto.FLOAT, TensorProto.INT8
X: NDArray[Any] = np.array([[-1, -2, 3], [4, -5, 6]], np.float32)


def refers(made: onnx.NodeProto, name: str, to: str, kind: int) -> onnx.NodeProto:
    """The node with an attribute that its function is given."""
    made.attribute.add(name=name, ref_attr_name=to, type=kind)
    return made


def function(
    name: str,
    body: Sequence[onnx.NodeProto],
    given: Sequence[str] = (),
    defaults: dict[str, Any] | None = None,
    opset: int = 17,
    inputs: str = "X",
) -> onnx.FunctionProto:
    found = [helper.make_attribute(n, v) for n, v in (defaults or {}).items()]
    imports = [helper.make_opsetid(d, v) for d, v in (("", opset), ("my", 1), ("com.microsoft", 1))]
    return helper.make_function("my", name, inputs.split(), ["o"], body, imports, given, found)


def net(
    calls: Sequence[onnx.NodeProto], functions: Sequence[onnx.FunctionProto], opset: int = 17
) -> onnx.ModelProto:
    made = [o for c in calls for o in c.output if o.startswith("y")]
    shapes = {name: (FLOAT, None) for name in made}
    proto = model(calls, {"x": (FLOAT, (2, 3))}, shapes, None, opset, ["my"])
    proto.functions.extend(functions)
    return proto


def call(name: str, into: str = "y", given: str = "x", **attributes: Any) -> onnx.NodeProto:
    return node(name, given.split(), [into], domain="my", **attributes)


def by_runtime(proto: onnx.ModelProto, x: NDArray[Any]) -> list[Any]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return list(session.run(None, {"x": x}))


def ran(graph: Graph, x: NDArray[Any]) -> list[Any]:
    return list(run(graph, {"x": x}).values())


def check(proto: onnx.ModelProto, folder: Path, x: NDArray[Any] = X) -> None:
    """The graph, and what is written of it, give what onnxruntime gives for the file."""
    graph = pipeline.load(save(proto, folder))
    wanted = by_runtime(proto, x)
    written = by_runtime(to_model(graph, Ledger()), x)
    for exact, mine, theirs in zip(wanted, ran(graph, x), written, strict=True):
        np.testing.assert_allclose(mine, exact, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(theirs, exact, rtol=1e-6, atol=1e-7)


def leaky(name: str = "L", **defaults: float) -> onnx.FunctionProto:
    given = () if defaults else ("al",)
    body = refers(node("LeakyRelu", ["X"], ["o"]), "alpha", "al", AttributeProto.FLOAT)
    return function(name, [body], given, defaults)


@pytest.mark.parametrize("turned", [False, True])
def test_a_call_takes_the_defaults_of_its_function(tmp_path: Path, turned: bool) -> None:
    calls = [call("L", "y1"), call("L", "y2", al=0.5)]
    check(net(calls[::-1] if turned else calls, [leaky(al=0.1)]), tmp_path)


def test_what_neither_gives_is_the_operators_own(tmp_path: Path) -> None:
    check(net([call("L", "y1"), call("L", "y2", al=0.5)], [leaky()]), tmp_path)


def test_functions_within_functions_take_their_own_defaults(tmp_path: Path) -> None:
    body = [call("L", "a", "X"), call("L", "b", "a", al=0.5)]
    body.append(refers(call("L", "o", "b"), "al", "outer", AttributeProto.FLOAT))
    made = function("G", body, ["outer"])
    calls = [call("G", "y1"), call("G", "y2", outer=0.25)]
    check(net(calls, [leaky(al=0.1), made]), tmp_path)


def test_defaults_reach_into_the_graphs_of_a_function(tmp_path: Path) -> None:
    then = refers(node("LeakyRelu", ["X"], ["t"]), "alpha", "al", AttributeProto.FLOAT)
    branches = {
        name: helper.make_graph([op], name, [], [helper.make_tensor_value_info(out, FLOAT, None)])
        for name, op, out in (
            ("then_branch", then, "t"),
            ("else_branch", call("L", "e", "X"), "e"),
        )
    }
    body = [
        node("ReduceSum", ["X"], ["s"], keepdims=0),
        node("Constant", [], ["zero"], value_float=0.0),
        node("Greater", ["s", "zero"], ["c"]),
        node("If", ["c"], ["o"], **branches),
    ]
    proto = net([call("P")], [leaky(al=0.3), function("P", body, (), {"al": 0.1})])
    check(proto, tmp_path)
    check(proto, tmp_path, -X)


def test_axes_modes_and_constants_are_given_by_default(tmp_path: Path) -> None:
    turned = refers(node("Transpose", ["X"], ["o"]), "perm", "p", AttributeProto.INTS)
    padded = refers(node("Pad", ["X", "n"], ["o"]), "mode", "m", AttributeProto.STRING)
    amounts = numpy_helper.from_array(np.array([0, 1, 0, 1]))
    number = refers(node("Constant", [], ["c"]), "value_float", "v", AttributeProto.FLOAT)
    tensor = refers(node("Constant", [], ["c"]), "value", "t", AttributeProto.TENSOR)
    held = numpy_helper.from_array(np.array([1, 2, 3], np.float32))
    add = node("Add", ["X", "c"], ["o"])
    functions = [
        function("T", [turned], (), {"p": [0, 1]}),
        function("P", [node("Constant", [], ["n"], value=amounts), padded], (), {"m": "reflect"}),
        function("N", [number, add], (), {"v": 2.5}),
        function("C", [tensor, add], (), {"t": held}),
    ]
    calls = [call(f.name, f"y{f.name}") for f in functions]
    calls += [call("T", "y1", p=[1, 0]), call("N", "y2", v=-1.0), call("P", "y3", m="edge")]
    check(net(calls, functions), tmp_path)


def test_the_axis_of_a_scale_is_given_by_default(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    quantized = rng.integers(-9, 9, (3, 3)).astype(np.int8)
    read = refers(node("DequantizeLinear", ["w", "s"], ["o"]), "axis", "a", AttributeProto.INT)
    made = function("D", [read], (), {"a": 0}, 21, "w s")
    proto = net([call("D", "f", "w s"), node("MatMul", ["x", "f"], ["y"])], [made], 21)
    scales = np.array([1, 2, 4], np.float32)
    held = [numpy_helper.from_array(a, n) for a, n in ((quantized, "w"), (scales, "s"))]
    proto.graph.initializer.extend(held)
    check(proto, tmp_path)


@pytest.mark.parametrize(
    ("opset", "op"), [(16, "Add"), (13, "Relu"), (18, "Mul"), (13, "Add"), (7, "Mul")]
)
def test_a_function_may_import_another_operator_set(tmp_path: Path, opset: int, op: str) -> None:
    body = node(op, ["X"] if op == "Relu" else ["X", "X"], ["o"])
    check(net([call("P")], [function("P", [body], opset=opset)]), tmp_path)


def test_a_function_may_import_a_domain_that_the_model_does_not(tmp_path: Path) -> None:
    body = node("Gelu", ["X"], ["o"], domain="com.microsoft")
    check(net([call("P")], [function("P", [body])]), tmp_path)


def test_an_operator_is_read_by_the_set_of_its_function(tmp_path: Path) -> None:
    """Here onnxruntime wants what ONNX does: one form in both; the oracle is its own opset."""
    body = node("ReduceSum", ["X"], ["o"], axes=[1], keepdims=0)
    graph = pipeline.load(save(net([call("P")], [function("P", [body], opset=11)]), tmp_path))
    alone = net([node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0)], [], 11)
    np.testing.assert_array_equal(run(graph, {"x": X})["y"], by_runtime(alone, X)[0])


@pytest.mark.parametrize(
    ("body", "opset", "said"),
    [
        (node("Softmax", ["X"], ["o"]), 11, "'P' has Softmax of opset 11, which means otherwise"),
        (node("Add", ["X", "X"], ["o"]), 1 << 40, "'P' imports version 1099511627776 of ''"),
        (node("Add", ["X", "X"], ["o"]), 6, "'P' has Add of opset 6; 7 to"),
    ],
)
def test_an_operator_that_means_two_things_is_told(
    tmp_path: Path, body: onnx.NodeProto, opset: int, said: str
) -> None:
    with pytest.raises(InputError) as caught:
        pipeline.load(save(net([call("P")], [function("P", [body], opset=opset)]), tmp_path))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def mapped(*body: onnx.NodeProto, opset: int) -> onnx.ModelProto:
    """A call in a graph of an operator that stays as the file has it."""
    ends = [helper.make_tensor_value_info(name, FLOAT, (2, 3)) for name in ("e", "p")]
    each = helper.make_graph([call("P", "p", "e")], "each", ends[:1], ends[1:])
    calls = [
        node("Constant", [], ["zero"], value_int=0),
        node("SequenceConstruct", ["x"], ["s"]),
        node("SequenceMap", ["s"], ["t"], body=each),
        node("SequenceAt", ["t", "zero"], ["y"]),
    ]
    return net(calls, [function("P", body, opset=opset)])


def test_a_graph_that_is_kept_has_operators_of_one_set(tmp_path: Path) -> None:
    check(mapped(node("Add", ["X", "X"], ["o"]), opset=13), tmp_path)
    body = node("ReduceSum", ["X"], ["o"], axes=[1])
    with pytest.raises(InputError, match="of opset 17, and holds ReduceSum of opset 11") as caught:
        pipeline.load(save(mapped(body, opset=11), tmp_path))
    assert "\n" not in str(caught.value)


def test_the_notes_of_nodes_say_nothing_of_operator_sets(tmp_path: Path) -> None:
    proto = net([node("Neg", ["x"], ["n"]), call("P", "y", "n")], [leaky("P", al=0.1)])
    proto.graph.node[0].metadata_props.add(key="qir.opset", value="no number")
    check(proto, tmp_path)
