"""What the ops of a file become in the language."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.errors import InputError, Refused
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ir.text import array_table, parse, print_graph
from qir.ir.verify import verify
from qir.ledger import Change, Ledger

from .models import conv_net, model, quantized, save

FLOAT = TensorProto.FLOAT


def load(proto: onnx.ModelProto, folder: Path, ledger: Ledger | None = None) -> Graph:
    path = save(proto, folder)
    graph: Graph = OnnxFrontend().load(path, ledger if ledger is not None else Ledger())
    return graph


def one(
    folder: Path,
    node: onnx.NodeProto,
    shape: Sequence[int | str],
    opset: int = 17,
    **constants: NDArray[Any],
) -> Graph:
    """The graph of a model that is one node on one float input."""
    outputs = {n: (FLOAT, None) for n in node.output if n}
    return load(model([node], {"x": (FLOAT, shape)}, outputs, constants, opset), folder)


def test_tensor_names_and_order_are_the_files(tmp_path: Path) -> None:
    graph = load(conv_net(1), tmp_path)
    computed = [n.name for n in graph if n.op not in ("input", "constant", "output")]
    assert computed == ["c1", "r1", "c2", "c3", "a1", "r2", "p1", "p2", "k", "g", "f", "z", "y"]
    assert [str(v.type) for v in graph.inputs] == ["(N)x3x8x8xf32"]
    assert str(graph["y"].type) == "(N)x10xf32"
    order = [n.name for n in graph if n.op != "output"]
    assert order.index("w1") == order.index("c1") - 2


def test_every_node_says_where_it_came_from(tmp_path: Path) -> None:
    graph = load(conv_net(1), tmp_path)
    assert all(n.origins and n.origins[0].framework == "onnx" for n in graph)
    conv = graph["c1"].node.origins[0]
    assert (conv.op, conv.name) == ("Conv", "conv1")
    assert conv.operands == (("X", "x"), ("W", "w1"), ("B", "b1"))
    assert graph["c1"].lineage.tensor == "c1"


@pytest.mark.parametrize("qdq", [True, False])
def test_a_read_graph_prints_and_parses_to_an_equal_one(tmp_path: Path, qdq: bool) -> None:
    proto = quantized(conv_net(2), (2, 3, 8, 8), 2, qdq=qdq, per_channel=False)
    for found in (proto, conv_net(2)):
        graph = load(found, tmp_path)
        table = {name: array.data for name, array in array_table(graph).items()}
        assert parse(print_graph(graph), table) == graph


def test_clip_has_its_bounds_from_attributes_and_from_operands(tmp_path: Path) -> None:
    old = helper.make_node("Clip", ["x"], ["y"], min=-1.0, max=6.0)
    assert dict(one(tmp_path, old, [2, 3], 7)["y"].node.attrs) == {"min": -1.0, "max": 6.0}
    new = helper.make_node("Clip", ["x", "", "hi"], ["y"])
    found = one(tmp_path, new, [2, 3], 13, hi=np.array(6, np.float32))
    assert dict(found["y"].node.attrs) == {"min": None, "max": 6.0}


def test_reduce_mean_has_its_axes_from_attributes_and_from_operands(tmp_path: Path) -> None:
    old = helper.make_node("ReduceMean", ["x"], ["y"], axes=[2, 3], keepdims=0)
    new = helper.make_node("ReduceMean", ["x", "axes"], ["y"], keepdims=0)
    a = one(tmp_path, old, [2, 3, 4, 5], 13)
    b = one(tmp_path, new, [2, 3, 4, 5], 18, axes=np.array([2, 3]))
    for graph in (a, b):
        assert dict(graph["y"].node.attrs) == {"axes": (2, 3), "keep": False}
        assert graph["y"].type.shape == (2, 3)


def test_pad_has_its_amounts_from_attributes_operands_and_axes(tmp_path: Path) -> None:
    forms: list[tuple[onnx.NodeProto, int, dict[str, NDArray[Any]]]] = [
        (helper.make_node("Pad", ["x"], ["y"], pads=[0, 1, 0, 2], value=3.0), 10, {}),
        (
            helper.make_node("Pad", ["x", "p", "v"], ["y"]),
            13,
            {"p": np.array([0, 1, 0, 2]), "v": np.array(3, np.float32)},
        ),
        (
            helper.make_node("Pad", ["x", "p", "v", "a"], ["y"]),
            18,
            {"p": np.array([1, 2]), "v": np.array(3, np.float32), "a": np.array([-1])},
        ),
    ]
    for node, opset, constants in forms:
        graph = one(tmp_path, node, [2, 3], opset, **constants)
        assert graph["y"].type.shape == (2, 6)
        assert graph["y"].node.attrs["pads"] == (0, 1, 0, 2)
        assert graph["y"].node.attrs["value"] == 3.0


@pytest.mark.parametrize(
    ("mode", "size", "pads"),
    [("SAME_UPPER", 5, (0, 0, 1, 1)), ("SAME_LOWER", 5, (1, 1, 0, 0)), ("VALID", 5, (0, 0, 0, 0))],
)
def test_automatic_pads_are_resolved(
    tmp_path: Path, mode: str, size: int, pads: tuple[int, ...]
) -> None:
    """5 -> SAME with kernel 2, stride 1 keeps 5: one row is added, below or above."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], auto_pad=mode)
    graph = one(tmp_path, node, [1, 1, size, size], w=np.ones((1, 1, 2, 2), np.float32))
    assert graph["y"].node.attrs["pad"] == pads
    assert graph["y"].type.shape[2] == (4 if mode == "VALID" else 5)


def test_softmax_before_opset_13_works_on_the_flattened_tensor(tmp_path: Path) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    graph = one(tmp_path, node, ["N", 3, 4], 11)
    ops = [n.op for n in graph if n.op not in ("input", "output", "constant")]
    assert ops == ["flatten", "softmax", "reshape"]
    assert str(graph["y"].type) == "(N)x3x4xf32"
    last = helper.make_node("Softmax", ["x"], ["y"], axis=2)
    assert one(tmp_path, last, ["N", 3, 4], 11)["y"].node.attrs["axis"] == 2


def test_identity_and_dropout_are_taken_out_and_told(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Dropout", ["x"], ["d", "mask"]),
        helper.make_node("Identity", ["d"], ["i"]),
        helper.make_node("Relu", ["i"], ["y"]),
    ]
    ledger = Ledger()
    graph = load(model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}), tmp_path, ledger)
    assert [n.op for n in graph] == ["input", "relu", "output"]
    assert [(e.change, e.subject) for e in ledger] == [(Change.DROPPED, "d"), (Change.EXACT, "i")]


def test_unused_constants_are_dropped_and_told(tmp_path: Path) -> None:
    ledger = Ledger()
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    dead = {"dead": np.ones(3, np.float32)}
    graph = load(model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, dead), tmp_path, ledger)
    assert not graph.has("dead")
    assert [(e.change, e.subject) for e in ledger] == [(Change.DROPPED, "dead")]


def test_names_of_dimensions_that_are_no_identifiers_get_one_each(tmp_path: Path) -> None:
    ledger = Ledger()
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    shape: list[int | str | None] = ["batch size", "batch-size", None, "1st"]
    graph = load(model(nodes, {"x": (FLOAT, shape)}, {"y": (FLOAT, None)}), tmp_path, ledger)
    assert str(graph["x"].type) == "(batch_size)x(batch_size_1)x?x(_1st)xf32"
    assert all(e.change is Change.DROPPED for e in ledger)


def test_nodes_out_of_order_are_put_in_order(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Sigmoid", ["x"], ["a"])]
    graph = load(model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}), tmp_path)
    assert [n.op for n in graph] == ["input", "sigmoid", "relu", "output"]


# -- integers --------------------------------------------------------------------------------------


def test_one_weight_read_by_two_maps_becomes_two_constants(tmp_path: Path) -> None:
    node = helper.make_node
    nodes = [
        node("DequantizeLinear", ["w", "s1"], ["a"]),
        node("DequantizeLinear", ["w", "s2"], ["b"]),
        node("Add", ["a", "b"], ["c"]),
        node("Add", ["c", "x"], ["y"]),
    ]
    constants: dict[str, NDArray[Any]] = {
        "w": np.array([1, 2], np.int8),
        "s1": np.array(0.5, np.float32),
        "s2": np.array(0.25, np.float32),
    }
    graph = load(model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, constants), tmp_path)
    first, second = (graph[n].node.operands["x"] for n in ("a", "b"))
    assert first.name == "w"
    assert second.name not in ("w", "a", "b", "c", "x", "y")
    assert (str(first.type), str(second.type)) == (
        "2x!quant.uniform<i8:f32, 0.5>",
        "2x!quant.uniform<i8:f32, 0.25>",
    )
    assert second.lineage.tensor == "w"


def qlinear_add(scale_b: float = 0.5) -> tuple[list[onnx.NodeProto], dict[str, NDArray[Any]]]:
    """x (u8) -> MaxPool -> QLinearAdd with itself, whose second reading has another scale."""
    nodes = [
        helper.make_node("MaxPool", ["x"], ["p"], kernel_shape=[2, 2]),
        helper.make_node(
            "QLinearAdd",
            ["p", "s", "z", "p", "t", "z", "s", "z"],
            ["y"],
            "sum",
            domain="com.microsoft",
        ),
    ]
    constants: dict[str, NDArray[Any]] = {
        "s": np.array(0.5, np.float32),
        "t": np.array(scale_b, np.float32),
        "z": np.array(3, np.uint8),
    }
    return nodes, constants


def test_codes_from_outside_mean_what_their_readers_say(tmp_path: Path) -> None:
    nodes, constants = qlinear_add()
    u8 = TensorProto.UINT8
    proto = model(
        nodes, {"x": (u8, [1, 1, 3, 3])}, {"y": (u8, None)}, constants, 17, ["com.microsoft"]
    )
    graph = load(proto, tmp_path)
    assert str(graph["x"].type) == "1x1x3x3x!quant.uniform<u8:f32, 0.5:3>"
    assert str(graph["p"].type) == "1x1x2x2x!quant.uniform<u8:f32, 0.5:3>"
    assert graph["y"].node.op == "add"


def test_codes_that_mean_two_things_are_read_anew_and_told_with_both(tmp_path: Path) -> None:
    nodes, constants = qlinear_add(0.25)
    u8 = TensorProto.UINT8
    proto = model(
        nodes, {"x": (u8, [1, 1, 3, 3])}, {"y": (u8, None)}, constants, 17, ["com.microsoft"]
    )
    ledger = Ledger()
    graph = load(proto, tmp_path, ledger)
    (told,) = [str(entry) for entry in ledger if "reads it as" in entry.reason]
    assert re.search(r"p.*0\.5:3.*node sum \(QLinearAdd\) reads it as .*0\.25:3", told), told
    assert [(f.rule, f.severity, f.slot) for f in verify(graph)] == [("one-tensor", "warning", "x")]
    a, b = graph["y"].node.operands.values()
    assert (str(a.type.quant), b.node.op) == ("!quant.uniform<u8:f32, 0.5:3>", "recode")
    assert str(b.type.quant) == "!quant.uniform<u8:f32, 0.25:3>"
    assert b.node.operands == {"x": a}


def test_arithmetic_on_codes_themselves_is_kept_foreign(tmp_path: Path) -> None:
    """Cast of integers gives the integers and not what they mean."""
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Cast", ["q"], ["y"], to=FLOAT),
    ]
    constants: dict[str, NDArray[Any]] = {
        "s": np.array(0.5, np.float32),
        "z": np.array(3, np.uint8),
    }
    graph = load(model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, constants), tmp_path)
    assert graph["y"].node.op == "foreign"
    assert graph["y"].node.attrs["op"] == "Cast"


def test_a_bias_of_qlinearconv_stays_plain_i32(tmp_path: Path) -> None:
    proto = quantized(conv_net(3), (2, 3, 8, 8), 3, qdq=False, per_channel=True)
    graph = load(proto, tmp_path)
    convs = [n for n in graph if n.op == "conv2d"]
    assert len(convs) == 3
    biased = [n for n in convs if "bias" in n.operands]
    assert biased
    assert all(str(n.operands["bias"].type) == "8xi32" for n in biased)
    assert all(n.operands["w"].type.quant and n.operands["w"].type.quant.axis == 0 for n in convs)
    assert not any(n.op == "foreign" for n in graph)


# -- what QIR does not know ---------------------------------------------------------------------


def test_unknown_ops_keep_absent_operands_attributes_and_types(tmp_path: Path) -> None:
    node = helper.make_node("DFT", ["x", "", "axis"], ["y"], "turn", onesided=0)
    graph = one(tmp_path, node, [1, 4, 1], 20, axis=np.array(1, np.int64))
    found = graph["y"].node
    assert found.op == "foreign"
    assert found.attrs["slots"] == ((0, 2), (0,))
    attrs = found.attrs["attrs"]
    assert isinstance(attrs, tuple)
    assert ("onesided", 0) in attrs
    assert str(graph["y"].type) == "1x4x2xf32"


def test_foreign_ops_run_by_the_evaluator_of_onnx(tmp_path: Path) -> None:
    node = helper.make_node("DFT", ["x"], ["y"], axis=1)
    graph = one(tmp_path, node, [1, 2, 1], 17)
    x = np.array([[[1], [2]]], np.float32)
    (found,) = OnnxFrontend().run_foreign(graph["y"].node, {"xs.0": x})
    np.testing.assert_array_equal(found, np.array([[[3, 0], [-1, 0]]], np.float32))
    assert found.dtype == np.float32


def test_an_op_whose_graph_maps_sequences_is_told_apart(tmp_path: Path) -> None:
    body = helper.make_graph([], "body", [], [helper.make_tensor_value_info("x", FLOAT, [2])])
    node = helper.make_node("SequenceMap", ["x"], ["y"], "each", body=body)
    proto = model([node], {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])})
    with pytest.raises(InputError, match=r"node each \(SequenceMap\): its results have no shape"):
        load(proto, tmp_path)


def test_batch_norm_in_training_mode_is_refused(tmp_path: Path) -> None:
    one_channel = np.ones(1, np.float32)
    node = helper.make_node(
        "BatchNormalization", ["x", "g", "b", "m", "v"], ["y", "m2", "v2"], training_mode=1
    )
    names = {n: one_channel for n in "gbmv"}
    proto = model([node], {"x": (FLOAT, [2, 1, 2, 2])}, {"y": (FLOAT, None)}, names)
    with pytest.raises(Refused, match="training mode"):
        load(proto, tmp_path)
