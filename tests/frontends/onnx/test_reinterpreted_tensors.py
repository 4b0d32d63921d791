"""One tensor of integers that is read with several maps: read, run and written as onnxruntime
does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir import pipeline
from qir.ledger import Ledger
from tests.differential.runtime import run
from tests.frontends.onnx.models import model, save

MICROSOFT = "com.microsoft"
Arrays = dict[str, NDArray[Any]]
HELD: Arrays = {
    "s": np.array(0.03, np.float32),
    "z": np.array(120, np.uint8),
    "s2": np.array(0.02, np.float32),
    "z2": np.array(128, np.uint8),
    "w": np.random.default_rng(3).integers(0, 256, (3, 2, 2, 2)).astype(np.uint8),
}
CODE = np.array(127, np.int8)
A, B = ["s", "z"], ["s2", "z2"]


def _node(op: str, inputs: Sequence[str], out: str = "y", domain: str = "", **attrs: Any) -> Any:
    return helper.make_node(op, list(inputs), [out], domain=domain, **attrs)


CASES: dict[str, tuple[list[onnx.NodeProto], dict[str, tuple[int, list[int]]], str]] = {
    "made by another": (
        [_node("QuantizeLinear", ["x", *A], "q"), _node("DequantizeLinear", ["q", *B])],
        {"x": (1, [3, 5])},
        "y",
    ),
    "dequantized twice": (
        [
            _node("DequantizeLinear", ["x", *A], "a"),
            _node("DequantizeLinear", ["x", *B], "b"),
            _node("Add", ["a", "b"]),
        ],
        {"x": (2, [3, 5])},
        "y",
    ),
    "product": ([_node("QLinearMatMul", ["x", *A, "x", *B, *A])], {"x": (2, [5, 5])}, "y"),
    "sum": ([_node("QLinearAdd", ["x", *A, "x", *B, *A], "y", MICROSOFT)], {"x": (2, [5])}, "y"),
    "convolutions": (
        [
            _node("QLinearConv", ["x", *A, "w", *B, *A], "y"),
            _node("QLinearConv", ["x", *B, "w", *A, *A], "v"),
        ],
        {"x": (2, [1, 2, 5, 5])},
        "yv",
    ),
    "sum of what was made": (
        [
            _node("QuantizeLinear", ["x", *A], "q"),
            _node("QLinearAdd", ["q", *B, "q", *A, *A], "y", MICROSOFT),
        ],
        {"x": (1, [5, 5])},
        "y",
    ),
    "joined": (
        [_node("QLinearConcat", [*A, "x", *A, "x", *B], "y", MICROSOFT, axis=0)],
        {"x": (2, [5, 5])},
        "y",
    ),
    "chosen": (
        [_node("QLinearWhere", ["c", "x", *A, "x", *B, *A], "y", MICROSOFT)],
        {"x": (2, [5, 5]), "c": (9, [5, 5])},
        "y",
    ),
}


def _written(folder: Path, name: str) -> tuple[Path, Arrays]:
    nodes, takes, gives = CASES[name]
    used = {n for node in nodes for n in node.input}
    kind = TensorProto.FLOAT if nodes[-1].op_type in ("Add", "DequantizeLinear") else 2
    held = {k: v for k, v in HELD.items() if k in used}
    made = model(nodes, takes, {n: (kind, None) for n in gives}, held, domains=[MICROSOFT])
    path, rng = save(made, folder), np.random.default_rng(len(name))
    kinds = {1: np.float32, 2: np.uint8, 9: np.bool_}
    drawn = {n: rng.normal(0, 4, shape) for n, (_, shape) in takes.items()}
    return path, {
        n: (np.abs(x) * 30 if takes[n][0] == 2 else x > 0 if takes[n][0] == 9 else x).astype(
            kinds[takes[n][0]]
        )
        for n, x in drawn.items()
    }


def _ran(path: Path, feeds: Arrays) -> list[bytes]:
    return [x.tobytes() for x in run(onnx.load(path), feeds, optimize=False).values()]


@pytest.mark.parametrize("name", CASES)
def test_codes_read_with_two_maps_are_as_onnxruntime_reads_them(name: str, tmp_path: Path) -> None:
    path, feeds = _written(tmp_path, name)
    wanted, ledger = _ran(path, feeds), Ledger()
    graph = pipeline.load(path, ledger=ledger)
    assert all(node.op != "foreign" for node in graph)
    assert [x.tobytes() for x in pipeline.run(graph, feeds).values()] == wanted
    assert "one-tensor" in [f.rule for f in pipeline.verify(graph)]
    assert any("reads it as" in entry.reason for entry in ledger)
    pipeline.save(graph, tmp_path / "m.qir")
    assert pipeline.load(tmp_path / "m.qir") == graph
    for form in ("qdq", "qoperator", "integer"):
        out = tmp_path / f"{form}.onnx"
        pipeline.save(graph, out, format=form, opset=21)
        assert _ran(out, feeds) == wanted, form
        again = tmp_path / f"{form}.again.onnx"
        pipeline.save(pipeline.load(out), again, format=form, opset=21)
        assert _ran(again, feeds) == wanted, form


def test_scalars_of_equal_codes_are_not_one_tensor(tmp_path: Path) -> None:
    nodes = [
        _node("DequantizeLinear", ["v", "s"], "a"),
        _node("DequantizeLinear", ["w", "t"], "b"),
        _node("Mul", ["x", "a"], "c"),
        _node("Mul", ["c", "b"]),
    ]
    held: Arrays = {
        "s": np.array(0.5, np.float32),
        "t": np.array(0.25, np.float32),
        "v": CODE,
        "w": CODE,
    }
    ends = {"x": (1, [3])}, {"y": (1, [3])}
    graph = pipeline.load(save(model(nodes, *ends, held), tmp_path))
    assert pipeline.verify(graph) == []
    pipeline.save(graph, tmp_path / "m.qir")
    assert pipeline.verify(pipeline.load(tmp_path / "m.qir")) == []
    nodes[1].input[0] = "v"
    del held["w"]
    graph = pipeline.load(save(model(nodes, *ends, held), tmp_path))
    assert [f.rule for f in pipeline.verify(graph)] == ["one-tensor"]
