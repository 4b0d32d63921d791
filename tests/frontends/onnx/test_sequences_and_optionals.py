"""Sequences, optional values and maps: read, printed, run and given back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import qir
from qir.errors import GraphError, ParseError, QirError
from qir.inspect.compare import values_agree
from qir.ir.dtype import box_object, dtype, join_dtypes, opaque
from qir.ir.text import parse, parse_type, print_graph
from qir.ir.types import Array, TensorType
from tests.cli import command

FLOAT = TensorProto.FLOAT
KIND = 'opaque<"seq(map(int64, float[]))">'
FEED: dict[str, Any] = {
    "s": [np.ones((4, 3), np.float32)],
    "x": -np.arange(6, dtype=np.float32).reshape(2, 3),
    "i": np.array(-1),
    "o": None,
}


def _lists(path: Path) -> Path:
    """Tensors put into a sequence and taken out of it, and a question to an optional value."""
    nodes = [
        helper.make_node("SequenceInsert", ["s", "x"], ["t"]),
        helper.make_node("SequenceAt", ["t", "i"], ["a"]),
        helper.make_node("Relu", ["a"], ["y"]),
        helper.make_node("OptionalHasElement", ["o"], ["has"]),
        helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0, keepdims=1),
        helper.make_node("ConcatFromSequence", ["parts"], ["z"], axis=0),
    ]
    maybe = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    inputs = [
        helper.make_tensor_sequence_value_info("s", FLOAT, ["N", 3]),
        helper.make_tensor_value_info("x", FLOAT, [2, 3]),
        helper.make_tensor_value_info("i", TensorProto.INT64, []),
        helper.make_value_info("o", maybe),
    ]
    outputs = [
        helper.make_tensor_value_info("y", FLOAT, ["A", "B"]),
        helper.make_tensor_sequence_value_info("t", FLOAT, None),
        helper.make_tensor_value_info("has", TensorProto.BOOL, []),
        helper.make_tensor_value_info("z", FLOAT, ["C", "D"]),
    ]
    return _saved(path, nodes, inputs, outputs)


def _maps(path: Path) -> Path:
    """Probabilities by class, as classifiers give them."""
    node = helper.make_node(
        "ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 4, 5]
    )
    kind = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(FLOAT, []))
    inputs = [helper.make_tensor_value_info("x", FLOAT, ["N", 3])]
    outputs = [helper.make_value_info("y", helper.make_sequence_type_proto(kind))]
    return _saved(path, [node], inputs, outputs)


def _saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
) -> Path:
    sets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)
    return path


def _by_onnxruntime(path: Path, feed: Mapping[str, Any]) -> dict[str, object]:
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feed), strict=True))


def _plain(found: Mapping[str, NDArray[Any]]) -> dict[str, object]:
    return {n: a.item() if a.dtype == object else a for n, a in found.items()}


@pytest.mark.parametrize("form", ["onnx", "qir"])
def test_sequences_run_and_come_back_as_onnxruntime_has_them(tmp_path: Path, form: str) -> None:
    path = _lists(tmp_path / "a.onnx")
    wanted = _by_onnxruntime(path, FEED)
    graph = qir.load(path)
    if form == "qir":
        qir.save(graph, tmp_path / "a.qir")
        graph = qir.load(tmp_path / "a.qir")
    assert values_agree(_plain(qir.run(graph, FEED)), wanted)
    back = tmp_path / "back.onnx"
    qir.save(graph, back)
    assert values_agree(_by_onnxruntime(back, FEED), wanted)
    given, read = (onnx.load(p).graph.input for p in (path, back))
    assert [i.type for i in read] == [i.type for i in given]


def test_maps_run_and_come_back(tmp_path: Path) -> None:
    path = _maps(tmp_path / "a.onnx")
    feed = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    wanted = _by_onnxruntime(path, feed)
    graph = qir.load(path)
    assert values_agree(_plain(qir.run(graph, feed)), wanted)
    qir.save(parse(print_graph(graph)), tmp_path / "back.onnx")
    assert values_agree(_by_onnxruntime(tmp_path / "back.onnx", feed), wanted)


def test_a_target_takes_and_gives_lists(tmp_path: Path) -> None:
    graph = qir.load(_lists(tmp_path / "a.onnx"))
    made: Any = qir.compile(graph, target="onnxruntime")
    assert values_agree(made(**FEED)["t"], [*FEED["s"], FEED["x"]])


def test_an_optional_value_that_is_absent_has_no_element(tmp_path: Path) -> None:
    maybe = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    path = _saved(
        tmp_path / "a.onnx",
        [helper.make_node("OptionalGetElement", ["o"], ["y"])],
        [helper.make_value_info("o", maybe)],
        [helper.make_tensor_value_info("y", FLOAT, [2])],
    )
    graph = qir.load(path)
    x = np.ones(2, np.float32)
    assert values_agree(qir.run(graph, {"o": x})["y"], x)
    with pytest.raises(QirError, match="there is no element to get"):
        qir.run(graph, {"o": box_object(None)})


def test_opaque_types_print_and_read_back() -> None:
    for text in ('opaque<"seq(float[N,2])">', 'opaque<"map(int64, seq(float[...]))">'):
        kind = parse_type(text)
        assert str(kind) == text
        assert kind is not None
        assert kind.dtype.is_opaque


@pytest.mark.parametrize(
    "text",
    [
        '2xopaque<"seq(float[])">',
        "opaque",
        'opaque<"">',
        'opaque<"\\u00e9">',
        'opaque<"a',
        "opaque<a>",
    ],
)
def test_what_is_no_opaque_type_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse_type(text)


def test_no_constant_is_opaque() -> None:
    with pytest.raises(GraphError, match="no constant"):
        Array(box_object([]), TensorType((), opaque("seq(float[])")))


def test_opaque_types_meet_without_their_sizes() -> None:
    a, b = opaque("seq(float[2,3])"), opaque("seq(float[N])")
    assert join_dtypes(a, b) == opaque("seq(float[...])")
    assert join_dtypes(a, a) is a
    assert join_dtypes(a, opaque("seq(double[2,3])")) is None
    assert join_dtypes(a, dtype("f32")) is None


def test_verbs_say_what_files_of_data_do_not_hold(tmp_path: Path) -> None:
    path, data = _lists(tmp_path / "a.onnx"), tmp_path / "x.npz"
    np.savez(data, s=FEED["x"], x=FEED["x"])
    said = command.qir("run", path, "--data", data)
    assert said.status == 2
    assert "which files of data do not hold" in said.err
    maps = _maps(tmp_path / "m.onnx")
    np.savez(data, x=FEED["x"])
    for more in ([], ["--compare", "reference,onnxruntime"], ["--json"]):
        assert command.qir("run", maps, "--data", data, *more).status == 0
    said = command.qir("run", maps, "--data", data)
    assert [w for w in said.out.split() if w.startswith("opaque")] == ['opaque<"seq(map(int64,']
    assert json.loads(command.qir("run", maps, "--data", data, "--json").out)["outputs"] == [
        {"name": "y", "shape": [1], "dtype": KIND, "low": None, "high": None, "inf": 0, "nan": 0}
    ]
    said = command.qir("run", maps, "--data", data, "-o", tmp_path / "y.npz")
    command.assert_one_line(said, 1, 2)
    assert f"y is {KIND}, which no .npz holds" in said.err
    assert not (tmp_path / "y.npz").exists()
    for verb in ("show", "verify", "plan"):
        assert command.qir(verb, path).status == 0
