"""Texts that a model holds reach its operators as texts."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import qir
from qir.backends.onnx import OnnxRuntimeTarget
from tests.cli import command

STRING, INT, FLOAT, BOOL = (
    TensorProto.STRING,
    TensorProto.INT64,
    TensorProto.FLOAT,
    TensorProto.BOOL,
)
HELD = ["b,c", "é", "日本", "", "b,c"]
X = np.array(["a", "zz", "", "é", "日本"], object)


def labels(given: str) -> onnx.NodeProto:
    keys, values = ["b,c", "é"], [5, 6]
    return helper.make_node(
        "LabelEncoder", [given], ["y"], domain="ai.onnx.ml", keys_strings=keys, values_int64s=values
    )


NODES = {
    "joined": ([helper.make_node("StringConcat", ["x", "c"], ["y"])], STRING),
    "joined to itself": ([helper.make_node("StringConcat", ["c", "c"], ["y"])], STRING),
    "split": ([helper.make_node("StringSplit", ["c"], ["y", "n"], delimiter=",")], STRING),
    "matched": ([helper.make_node("RegexFullMatch", ["c"], ["y"], pattern="b.*")], BOOL),
    "compared": ([helper.make_node("Equal", ["x", "c"], ["y"])], BOOL),
    "unique": ([helper.make_node("Unique", ["c"], ["y"])], STRING),
    "named": ([labels("c")], INT),
    "rows and names": (
        [
            helper.make_node("Gather", ["c", "i"], ["g"]),
            labels("g"),
        ],
        INT,
    ),
    "rows": ([helper.make_node("Gather", ["c", "i"], ["y"])], STRING),
    "chosen": ([helper.make_node("Where", ["b", "c", "x"], ["y"])], STRING),
    "counted": (
        [
            helper.make_node(
                "TfIdfVectorizer",
                ["c"],
                ["y"],
                max_gram_length=1,
                min_gram_length=1,
                max_skip_count=0,
                mode="TF",
                ngram_counts=[0],
                ngram_indexes=[0, 1],
                pool_strings=["b,c", "é"],
            )
        ],
        FLOAT,
    ),
}
FEEDS = {
    "x": X,
    "i": np.array([1, 0, 4, 2]),
    "b": np.array([True, False, True, False, True]),
}
KINDS = {"x": STRING, "i": INT, "b": BOOL}


GIVEN = {
    "list": helper.make_node("Constant", [], ["k"], value_strings=["b,c", "é", "", "日本", "q"]),
    "one": helper.make_node("Constant", [], ["k"], value_string="é"),
    "tensor": helper.make_node(
        "Constant",
        [],
        ["k"],
        value=onnx.TensorProto(data_type=STRING, dims=[1], string_data=["é".encode()]),
    ),
}


def written(path: Path, nodes: list[onnx.NodeProto], kind: int, held: list[bytes]) -> Path:
    """A model with one constant of texts, `c`."""
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "texts",
        [helper.make_tensor_value_info(n, k, [None]) for n, k in KINDS.items() if n in used],
        [helper.make_tensor_value_info("y", kind, None)],
        [onnx.TensorProto(name="c", data_type=STRING, dims=[len(held)], string_data=held)],
    )
    sets = [helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 2)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=9), path)
    return path


def ran(path: Path) -> np.ndarray:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feeds = {i.name: FEEDS[i.name] for i in session.get_inputs()}
    found: np.ndarray = session.run(["y"], feeds)[0]
    return found


@pytest.mark.parametrize("name", NODES)
def test_constant_texts_give_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    nodes, kind = NODES[name]
    path = written(tmp_path / "m.onnx", nodes, kind, [text.encode() for text in HELD])
    wanted = ran(path)
    graph = qir.load(path)
    found = qir.run(graph, {v.name: FEEDS[v.name] for v in graph.inputs})["y"]
    assert np.asarray(found).tolist() == wanted.tolist()
    qir.save(graph, tmp_path / "n.onnx", format="qdq")
    assert ran(tmp_path / "n.onnx").tolist() == wanted.tolist()
    qir.save(graph, tmp_path / "m.qir")
    again = qir.load(tmp_path / "m.qir")
    found = qir.run(again, {v.name: FEEDS[v.name] for v in again.inputs})["y"]
    assert np.asarray(found).tolist() == wanted.tolist()


@pytest.mark.parametrize("how", GIVEN)
def test_texts_of_a_constant_node_are_texts(how: str, tmp_path: Path) -> None:
    for end, kind in (
        (helper.make_node("StringConcat", ["x", "k"], ["y"]), STRING),
        (labels("k"), INT),
    ):
        path = written(tmp_path / "m.onnx", [GIVEN[how], end], kind, [b"c"])
        graph = qir.load(path)
        found = qir.run(graph, {v.name: FEEDS[v.name] for v in graph.inputs})["y"]
        assert np.asarray(found).tolist() == ran(path).tolist()


def test_bytes_that_are_no_text_come_back_as_they_were(tmp_path: Path) -> None:
    held = [b"a\xff", b"b", b"\xc3\xa9"]
    nodes = [helper.make_node("Identity", ["c"], ["y"])]
    graph = qir.load(written(tmp_path / "m.onnx", nodes, STRING, held))
    qir.save(graph, tmp_path / "n.onnx", format="qdq")
    (tensor,) = onnx.load(tmp_path / "n.onnx").graph.initializer
    assert list(tensor.string_data) == held


def test_bytes_reach_onnxruntime_whole(tmp_path: Path) -> None:
    nodes = [helper.make_node("StringConcat", ["x", "x"], ["y"])]
    path = written(tmp_path / "m.onnx", nodes, STRING, [b"c"])
    run = OnnxRuntimeTarget().session(path)
    found = run(x=np.array([b"ab", "é", b""], object))["y"]
    assert np.asarray(found).tolist() == ["abab", "éé", ""]


def test_texts_are_written_as_arrays_that_are_read(tmp_path: Path) -> None:
    """What a run gives is read by NumPy without pickles, and by another run."""
    join = helper.make_node("StringConcat", ["x", "x"], ["y"])
    x, y = (helper.make_tensor_value_info(n, STRING, ["n"]) for n in ("x", "y"))
    graph, model = helper.make_graph([join], "g", [x], [y]), tmp_path / "m.onnx"
    of = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=of, ir_version=9), model)
    given, made, again = (tmp_path / f"{n}.npz" for n in "abc")
    np.savez(given, x=X.astype(str))
    session = onnxruntime.InferenceSession(model)
    (wanted,) = session.run(None, {"x": X})
    for engine in ("reference", "onnxruntime"):
        said = command.qir("run", model, "--data", given, "-o", made, "--force", "--with", engine)
        assert not said.status, said
        with np.load(made, allow_pickle=False) as held:
            assert held["y"].tolist() == wanted.tolist()
            np.savez(given, x=held["y"])
        assert not command.qir("run", model, "--data", given, "-o", again, "--force").status
        (wanted,) = session.run(None, {"x": wanted})
        with np.load(again, allow_pickle=False) as held:
            assert held["y"].tolist() == wanted.tolist()
    np.savez(given, x=X)
    said = command.qir("run", model, "--data", given)
    command.assert_one_line(said, 2)
    assert "array.astype(str)" in said.err


def test_empty_texts_are_split_as_onnxruntime_splits_them(tmp_path: Path) -> None:
    """Into no parts, where ONNX's evaluator makes one; results of open rank are texts too."""
    for delimiter in (
        {"delimiter": " "},
        {"delimiter": ","},
        {},
        {"delimiter": " ", "maxsplit": 1},
    ):
        split = helper.make_node("StringSplit", ["x"], ["y", "n"], **delimiter)
        model = written(tmp_path / "m.onnx", [split], STRING, [b"c"])
        proto = onnx.load(model)
        proto.graph.output.append(helper.make_tensor_value_info("n", INT, None))
        onnx.save(proto, model)
        x = np.array(["x y", "", "a,,b", " z "])
        wanted = onnxruntime.InferenceSession(model).run(None, {"x": x.astype(object)})
        found = qir.run(qir.load(model), {"x": x})
        assert [np.asarray(found[name]).tolist() for name in "yn"] == [w.tolist() for w in wanted]
        assert all(type(item) is str for item in np.asarray(found["y"]).flat)
        np.savez(tmp_path / "x.npz", x=x)
        words = ("run", model, "--data", tmp_path / "x.npz")
        said = command.qir(*words)
        assert not said.status, said
        assert not command.qir(*words, "--compare", "reference,onnxruntime").status


def test_data_of_bytes_are_texts(tmp_path: Path) -> None:
    """Those that are none pass through, are written as bytes, and reach no evaluator."""
    of = [helper.make_opsetid("", 20)]
    a, b, y = (helper.make_tensor_value_info(n, STRING, ["n"]) for n in "aby")
    join, pass_on = tmp_path / "join.onnx", tmp_path / "pass.onnx"
    for path, node, ins in (
        (join, helper.make_node("StringConcat", ["a", "b"], ["y"]), [a, b]),
        (pass_on, helper.make_node("Identity", ["a"], ["y"]), [a]),
    ):
        graph = helper.make_graph([node], "g", ins, [y])
        onnx.save(helper.make_model(graph, opset_imports=of, ir_version=9), path)
    texts, bad = np.array(["é".encode(), b"", b"b"]), np.array([b"x\xff", b"", b"b"])
    given, made = tmp_path / "given.npz", tmp_path / "made.npz"
    np.savez(given, a=texts, b=texts)
    words = ("--data", given, "-o", made, "--force")
    assert not command.qir("run", join, *words).status
    with np.load(made) as held:
        assert held["y"].tolist() == ["éé", "", "bb"]
    assert not command.qir(
        "run", join, "--data", given, "--compare", "reference,onnxruntime"
    ).status

    np.savez(given, a=bad, b=texts)
    assert not command.qir("run", pass_on, *words).status
    with np.load(made) as held:
        assert held["y"].tolist() == bad.tolist()
    said = command.qir("run", join, *words)
    command.assert_one_line(said, 1, 2)
    assert "no UTF-8 text" in said.err
