"""Layers written by their parts: nothing stands there that nobody reads."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qir import pipeline
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.ir.verify import errors
from qir.rewrite.scan_trimming import trim
from tests.differential.onnxruntime.contrib import one
from tests.differential.onnxruntime.test_contrib_recurrent import BOUND, HIDDEN, layer
from tests.differential.runtime import run

F = np.float32


def read(graph: onnx.GraphProto) -> set[str]:
    """All that nodes, graphs within and results read."""
    found = {o.name for o in graph.output}
    for node in graph.node:
        found |= set(node.input)
        for held in (g for a in node.attribute for g in (a.g, *a.graphs)):
            found |= read(held)
    return found


def dead(graph: onnx.GraphProto) -> Iterator[str]:
    """Nodes of which nothing is read, and parts of scans that nobody reads."""
    used = read(graph)
    for node in graph.node:
        if not used & set(node.output):
            yield node.name
        if node.op_type == "Scan":
            given = {a.name: a for a in node.attribute}
            carried = len(node.input) - given["num_scan_inputs"].i
            yield from (name for name in node.output[carried:] if name not in used)
            held = {i.name for i in given["body"].g.input} & read(given["body"].g)
            yield from (i.name for i in given["body"].g.input if i.name not in held)
            yield from dead(given["body"].g)


ASKED = (("y",), ("", "yh"), ("", "", "yc"), ("y", "yh", "yc"))


@pytest.mark.parametrize("form", ["qdq", "integer"])
@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_a_layer_holds_what_its_results_need(
    tmp_path: Path, asked: tuple[str, ...], form: str
) -> None:
    for more, ends, direction in product(("", "bhcp"), (False, True), ("forward", "bidirectional")):
        operands = layer(
            41, 1 + (direction != "forward"), np.int8, columns=False, more=more, zero=0
        )
        if ends:
            operands[4] = ("lengths", np.array([1, 4, 2], np.int32))
        results = {name: TensorProto.FLOAT for name in asked}
        attrs: dict[str, Any] = {"direction": direction, "hidden_size": HIDDEN}
        case = one("DynamicQuantizeLSTM", operands, ["x"], results, **attrs)
        onnx.save(case.proto, tmp_path / "m.onnx")
        graph = pipeline.load(tmp_path / "m.onnx")
        pipeline.save(graph, tmp_path / "w.onnx", format=form, force=True)
        made = onnx.load(tmp_path / "w.onnx")
        assert list(dead(made.graph)) == []
        found, wanted = run(made, case.feeds, optimize=True), case.judged()
        for name, data in wanted.items():
            assert np.abs(found[name] - data).max() <= BOUND * np.abs(data).max()


def scan() -> Graph:
    """Three carried values: a sum, one that it needs, and one that nobody does; three parts."""
    row, rows = TensorType((2,), F32), TensorType((4, 2), F32)
    body = Graph("body")
    s, t, u, a, b, k = (body.add("input", types=[row], name=n).result for n in "stuabk")
    ends = {
        "s2": body.add("add", {"a": s, "b": t}).result,
        "t2": body.add("mul", {"a": t, "b": k}).result,
        "u2": body.add("add", {"a": u, "b": b}).result,
        "p": body.add("neg", {"x": a}).result,
        "q": body.add("neg", {"x": u}).result,
        "r": body.add("mul", {"a": a, "b": a}).result,
    }
    body.add("output", ends)
    graph = Graph("g")
    ins = {n: graph.add("input", types=[row], name=n).result for n in ("s", "t", "u", "k")}
    ins |= {n: graph.add("input", types=[rows], name=n).result for n in "ab"}
    taken = {f"vs.{i}": ins[n] for i, n in enumerate("stu")}
    taken |= {"ss.0": ins["a"], "ss.1": ins["b"], "xs.0": ins["k"]}
    attrs = {"axes": (0, 0), "reverse": (0, 1), "out_axes": (0, 1, 0), "out_reverse": (0, 0, 1)}
    made = graph.add("scan", taken, attrs, bodies={"body": body}, name=list(ends))
    graph.add("output", {"s": made.results[0], "p": made.results[3], "r": made.results[5]})
    return graph


def test_a_scan_keeps_what_its_results_hang_on() -> None:
    whole, graph = scan(), scan()
    assert trim(graph, list(graph)) == 1
    (node,) = (n for n in graph if n.op == "scan")
    assert [v.name for v in node.results] == ["s2", "t2", "p", "r"]
    assert {s: v.name for s, v in node.operands.items()} == {
        "vs.0": "s",
        "vs.1": "t",
        "ss.0": "a",
        "xs.0": "k",
    }
    assert errors(graph) == []
    rng = np.random.default_rng(0)
    feeds = {n: rng.normal(size=2).astype(F) for n in "stuk"}
    feeds |= {n: rng.normal(size=(4, 2)).astype(F) for n in "ab"}
    wanted, found = pipeline.run(whole, feeds), pipeline.run(graph, feeds)
    assert {n: np.asarray(a).tobytes() for n, a in found.items()} == {
        n: np.asarray(a).tobytes() for n, a in wanted.items()
    }
    assert trim(graph, list(graph)) == 0
