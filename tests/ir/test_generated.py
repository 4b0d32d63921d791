"""What holds for every graph that the language can say: text, files, copies, rules, and running."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.dtype import F32, I64
from qir.ir.file import Bundle, read, write
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import OPS
from qir.ir.text import array_table, parse, print_graph
from qir.ir.types import QuantType, TensorType
from qir.ir.verify import verify
from qir.reference.interpreter import run
from qir.testing import EVERY, Form, random_graph, sample_inputs
from qir.testing.op_samples import APART, feed
from qir.testing.quantized_constants import MAKERS
from tests.ir.alike import difference

NEVER: set[str] = set()
"""Ops that no guess of `feed` has ever fitted. A new op that lands here wants a hint there."""


def arrays(graph: Graph) -> dict[str, NDArray[np.generic]]:
    return {name: array.data for name, array in array_table(graph).items()}


@pytest.mark.parametrize("decorated", [False, True], ids=["plain", "decorated"])
@pytest.mark.parametrize("start", range(0, 80, 10))
def test_text_copy_and_file_are_the_graph(tmp_path: Path, start: int, decorated: bool) -> None:
    for seed in range(start, start + 10):
        graph = random_graph(seed, "whole", decorated=decorated)
        where = f"seed {seed}"
        text = print_graph(graph, origins=True)
        back = parse(text, arrays(graph))
        assert difference(graph, back, history=True) == "", where
        assert back == graph, where
        assert print_graph(back, origins=True) == text, where
        twin = graph.copy()
        assert difference(graph, twin, history=True) == "", where
        assert twin == graph, where
        write(tmp_path / "g.qir", Bundle(graph))
        assert difference(graph, read(tmp_path / "g.qir").graph, history=True) == "", where


@pytest.mark.parametrize("form", EVERY)
def test_generated_graphs_have_no_errors(form: Form) -> None:
    for seed in range(60):
        found = [f for f in verify(random_graph(seed, form)) if f.severity == "error"]
        assert not found, f"seed {seed}: {found[0]}"


def test_running_twice_gives_the_same_bytes() -> None:
    ran = 0
    for seed in range(150):
        graph = random_graph(seed, "whole")
        inputs = sample_inputs(graph, seed)
        try:
            with np.errstate(all="ignore"):
                first = run(graph, inputs)
        except QirError:  # a foreign node, an index outside, integers without arithmetic
            continue
        again = run(graph.copy(), dict(reversed(inputs.items())))
        assert list(first) == list(again)
        for name, data in first.items():
            assert data.dtype == again[name].dtype, f"seed {seed}: {name}"
            assert data.tobytes() == again[name].tobytes(), f"seed {seed}: {name}"
        ran += 1
    assert ran > 40


def fed(op: str, seed: int) -> Node | None:
    """One op on values of several kinds."""
    kinds = (
        "2x3xf32",
        "(N)x4xf32",
        "1x2x4x4xf32",
        "3x2x4xf32",
        "2xi64",
        "2x3x!quant.uniform<u8:f32, 0.5:3>",
    )
    texts = "".join(f"%x{i} = input() : {kind}\n" for i, kind in enumerate(kinds))
    graph = parse(f"graph main {{ {texts} }}")
    node = feed(random.Random(seed).randrange, graph, op, list(graph.inputs))
    assert node is None or node in graph
    return node


def test_every_op_of_the_table_is_made() -> None:
    tried = set(OPS) - APART
    never = {op for op in tried if all(fed(op, seed) is None for seed in range(40))}
    assert never == NEVER


def test_an_op_that_does_not_fit_leaves_nothing_behind() -> None:
    graph = Graph()
    x = graph.add("input", types=[TensorType((2,), I64)], name="x").result
    for seed in range(30):
        count = len(graph)
        if (node := feed(random.Random(seed).randrange, graph, "range", [x])) is None:
            assert len(graph) == count
        else:
            assert node.op == "range"


def test_what_the_language_has_is_made() -> None:
    """Every kind of node, body and type, in some of the first hundred graphs."""
    seen: Counter[str] = Counter()
    deepest = 0
    for seed in range(100):
        for path, graph in random_graph(seed, "whole").walk():
            deepest = max(deepest, path.count("/") // 2)
            for node in graph:
                seen[node.op] += 1
                seen["chain"] += bool(node.stages)
                seen["group with a body"] += node.op == "fused" and bool(node.bodies)
                seen["foreign with a body"] += node.op == "foreign" and bool(node.bodies)
                seen["inner slots"] += bool(node.inner)
                seen["companions"] += "x.scale" in node.operands
                seen["another profile"] += bool(graph.profile == "ort-1.31")
                for value in node.results:
                    quant = value.type.quant
                    seen["symbolic"] += any(not isinstance(d, int) for d in value.type.shape)
                    seen["dynamic"] += quant is not None and quant.dynamic
                    for kind, held in KINDS.items():
                        seen[kind] += quant is not None and held(quant)
    missing = [kind for kind in (*APART, *KINDS) if not seen[kind]]
    assert not missing
    for part in ("chain", "group with a body", "foreign with a body", "inner slots", "companions"):
        assert seen[part], part
    for part in ("symbolic", "dynamic", "another profile"):
        assert seen[part], part
    assert deepest == 2


KINDS: dict[str, Callable[[QuantType], bool]] = {
    "blocks": lambda q: q.granularity is not None and q.axis is None,
    "groups of indices": lambda q: q.granularity is not None and q.granularity.by is not None,
    "a table": lambda q: q.kind == "lut",
    "eight-bit floats": lambda q: q.storage.name == "f8e4m3fn",
    "four-bit floats": lambda q: q.storage.name == "f4e2m1fn",
    "quantized scales": lambda q: any(a.type.quant for a in q.arrays()),
    "a real zero": lambda q: q.zero is not None and q.has_float_zero,
    "an offset": lambda q: q.plus is not None,
    "a declared range": lambda q: q.declared is not None,
}


def test_every_kind_of_map_is_well_formed_and_makes_reals() -> None:
    for name in MAKERS:
        for seed in range(10):
            pick = random.Random(f"{name}/{seed}").randrange
            shape, quant = MAKERS[name](pick)
            assert isinstance(quant, QuantType)
            graph = Graph()
            x = graph.add("input", types=[TensorType(shape, quant)], name="x").result
            graph.add("output", {"y": graph.add("dequantize", {"x": x}).result})
            assert verify(graph) == [], f"{name}, seed {seed}"
            made = run(graph, {"x": np.ones(shape, quant.storage.carrier)})["y"]
            assert made.shape == shape, f"{name}, seed {seed}"
            assert made.dtype == quant.express.carrier or quant.express is F32
