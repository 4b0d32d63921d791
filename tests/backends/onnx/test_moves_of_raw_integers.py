"""Integers that operators of ONNX move as raw integers: read as integers, and written so again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.ledger import Ledger
from tests.differential.runtime import run

FLOAT = TensorProto.FLOAT
RAW = {"u8": (np.uint8, 120), "i8": (np.int8, -7)}
MOVES: dict[str, tuple[tuple[Any, ...], dict[str, Any]]] = {
    "Gather": ((np.array([[0, 2], [-1, 1]]),), {"axis": 1}),
    "Expand": ((np.array([3, 2, 4, 6, 6]),), {}),
    "Tile": ((np.array([1, 2, 1, 1]),), {}),
    "DepthToSpace": ((), {"blocksize": 2, "mode": "CRD"}),
    "Resize": ((None, np.array([1, 1, 1.5, 2], np.float32)), {"nearest_mode": "floor"}),
}


def moved(op: str, kind: str, *, table: bool = False) -> onnx.ModelProto:
    """Quantize, the op on raw integers, dequantize; of constant integers where there is a table."""
    (code, zero), (others, attrs) = RAW[kind], MOVES[op]
    rng, node = np.random.default_rng(2), helper.make_node
    held: dict[str, NDArray[Any]] = {"s": np.array(0.06, np.float32), "z": np.array(zero, code)}
    held |= {f"o{i}": np.asarray(o) for i, o in enumerate(others) if o is not None}
    names = [f"o{i}" if o is not None else "" for i, o in enumerate(others)]
    first = [node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    if table:
        low, high = np.iinfo(code).min, np.iinfo(code).max
        held["q"] = rng.integers(low, high + 1, (2, 4, 6, 6)).astype(code)
        first = []
    last = [node("DequantizeLinear", ["h", "s", "z"], ["y"])]
    if table:
        last = [*last, node("Add", ["y", "x"], ["sum"])]
    x = helper.make_tensor_value_info("x", FLOAT, [1] if table else [2, 4, 6, 6])
    end = helper.make_tensor_value_info("sum" if table else "y", FLOAT, None)
    constants = [numpy_helper.from_array(a, n) for n, a in held.items()]
    nodes = [*first, node(op, ["q", *names], ["h"], **attrs), *last]
    graph = helper.make_graph(nodes, "g", [x], [end], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


@pytest.mark.parametrize("table", [False, True])
@pytest.mark.parametrize("kind", RAW)
@pytest.mark.parametrize("op", MOVES)
def test_moves_of_raw_codes_are_moves_of_codes(
    tmp_path: Path, op: str, kind: str, table: bool
) -> None:
    proto = moved(op, kind, table=table)
    path, out = tmp_path / "m.onnx", tmp_path / "out.onnx"
    onnx.save(proto, path)
    graph = pipeline.load(path)
    assert not [n for n in graph if n.op == "foreign"]
    (node,) = [n for n in graph if n.op.startswith(op[:4].lower()) or n.op == "depth_to_space"]
    assert all(v.type.quant for v in (node.operands["x"], *node.results))
    shape = (1,) if table else (2, 4, 6, 6)
    feeds = {"x": (np.random.default_rng(4).standard_normal(shape) * 9).astype(np.float32)}
    wanted = run(proto, feeds, optimize=False)
    found = pipeline.run(graph, feeds)
    assert all((found[name] == wanted[name]).all() for name in wanted)
    for form in ("qdq", "qoperator", "integer"):
        pipeline.save(pipeline.load(path), out, format=form, ledger=Ledger(), force=True)
        made = onnx.load(out)
        for optimize in (False, True):
            again = run(made, feeds, optimize=optimize)
            assert all((again[name] == wanted[name]).all() for name in wanted)
        if form == "qoperator":
            assert [n.op_type for n in made.graph.node] == [n.op_type for n in proto.graph.node]
