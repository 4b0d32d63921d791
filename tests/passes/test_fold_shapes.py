"""Sizes that types know are constants, and every run gives the same bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.errors import QirError
from qir.ir.attrs import Attr
from qir.ir.dims import Dim, symbol
from qir.ir.dtype import BOOL, F32, I32, I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.ledger import Ledger
from qir.passes.fold.fold_shapes import FoldShapes
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.passes.keeping import keep, keeps


class Reckoning:
    """Random sums with the sizes of one tensor, some of which are symbolic or unknown."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.graph = Graph()
        sizes: list[Dim] = [symbol("N"), 3, 4, symbol("M"), 1]
        shape = tuple(self.rng.choice([*sizes, None]) for _ in range(4))
        self.x = self.graph.add("input", types=[TensorType(shape, F32)], name="x").result
        self.rows = [self.graph.add("shape", {"x": self.x}).result]
        for _ in range(8):
            self.step()
        ends = {f"y{i}": v for i, v in enumerate(self.rows) if not v.uses}
        self.graph.add("output", {**ends, **self.target()})

    def numbers(self, *found: int) -> Value:
        return self.graph.constant(np.array(found, np.int64), name="k")

    def step(self) -> None:
        rng, row = self.rng, self.rng.choice(self.rows)
        size = row.type.shape[0] if row.type.rank == 1 else None
        if row.type.dtype == BOOL or not isinstance(size, int) or not size:
            return
        names = "gather slice concat add sub mul div mod cast where prod split scalar"
        op = rng.choice(names.split())
        attrs: dict[str, Attr] = {}
        operands = {"x": row}
        if op == "gather":
            at = [rng.randrange(-size, size) for _ in range(rng.randint(1, 3))]
            operands["indices"] = self.numbers(*at)
        elif op == "slice":
            attrs = {
                "starts": (rng.randrange(size),),
                "ends": (2**40,),
                "axes": (0,),
                "steps": (1,),
            }
        elif op == "concat":
            other = rng.choice([r for r in self.rows if r.type.element == row.type.element])
            operands, attrs = {"xs.0": row, "xs.1": other}, {"axis": 0}
        elif op in ("add", "sub", "mul", "div", "mod"):
            kind = row.type.dtype.carrier
            number = self.graph.constant(np.array([rng.choice([1, 2, 3, -1])], kind), name="k")
            operands = {"a": row, "b": number}
            attrs = {"fmod": rng.random() < 0.5} if op == "mod" else {}
            op = "floor_div" if op == "div" else op
        elif op == "cast":
            attrs = {"to": rng.choice([I32, I64])}
        elif op == "where":
            minus = self.graph.constant(np.full(size, -1, row.type.dtype.carrier), name="m")
            cond = self.graph.add("equal", {"a": row, "b": minus}).result
            operands = {"condition": cond, "a": minus, "b": row}
        elif op == "prod":
            op, attrs = "reduce_prod", {"keep": True}
        elif op == "split":
            cut = rng.randrange(size + 1)
            self.rows += self.graph.add("split", operands, {"sizes": (cut, size - cut)}).results
            return
        else:
            one = self.graph.add("gather", {"x": row, "indices": self.graph.constant(np.int64(0))})
            op, operands, attrs = "unsqueeze", {"x": one.result}, {"axes": (0,)}
        self.rows.append(self.graph.add(op, operands, attrs).result)

    def target(self) -> dict[str, Value]:
        """A reshape and an expand to what exporters would give."""
        first = self.graph.add("shape", {"x": self.x}, {"end": 2}).result
        both = {"xs.0": first, "xs.1": self.numbers(-1)}
        flat = self.graph.add("concat", both, {"axis": 0}).result
        made = self.graph.add("reshape", {"x": self.x, "shape": flat}).result
        whole = self.graph.add("shape", {"x": made}).result
        back = self.graph.add("shape", {"x": self.x}).result
        again = self.graph.add("reshape", {"x": made, "shape": back}).result
        wide = self.graph.add("concat", {"xs.0": self.numbers(2), "xs.1": back}, {"axis": 0}).result
        return {
            "flat": self.graph.add("relu", {"x": made}).result,
            "whole": whole,
            "again": again,
            "wide": self.graph.add("expand", {"x": self.x, "shape": wide}).result,
        }


def computed(graph: Graph) -> int:
    return sum(node.op != "constant" for node in graph)


def test_generated_graphs_keep_every_bit() -> None:
    keeps(FoldShapes())


@pytest.mark.parametrize("part", range(3))
def test_sums_with_sizes_keep_every_bit(part: int) -> None:
    changed = 0
    for seed in range(part * 25, part * 25 + 25):
        graph = Reckoning(seed).graph
        changed += keep(FoldShapes(), graph, seed) > 0
        after = run_passes(graph, [FoldShapes()], Ledger())
        assert computed(after) <= computed(graph), f"seed {seed}"
        for size in (1, 5):  # symbolic sizes are not what the first run had
            shape = [d if isinstance(d, int) else size for d in graph["x"].type.shape]
            x = {"x": np.random.default_rng(seed).normal(size=shape).astype(np.float32)}
            try:
                wanted = run(graph, x)
            except QirError:
                continue
            made = run(after, x)
            assert all(np.array_equal(made[n], d) for n, d in wanted.items()), f"seed {seed}"
    assert changed > 20


def test_an_empty_batch_is_reshaped_as_before() -> None:
    graph = parse("""graph main {
      %x = input() : (N)x(M)x4xf32
      %s = shape(%x) : 3xi64
      %p = constant([0, 1, 2]) : 3xi64
      %t = gather(%s, %p) : 3xi64
      %a = reshape(%x, %t) {allow_zero = true} : ?x?x?xf32
      %k = constant([2]) : 1xi64
      %n = slice(%s) {starts = (0,), ends = (1,), axes = (0,), steps = (1,)} : 1xi64
      %m = slice(%s) {starts = (1,), ends = (2,), axes = (0,), steps = (1,)} : 1xi64
      %h = mul(%m, %k) : 1xi64
      %u = concat(xs.0=%n, xs.1=%h, xs.2=%k) {axis = 0} : 3xi64
      %b = reshape(%x, %u) {allow_zero = true} : ?x?x?xf32
      output(a=%a, b=%b)
    }""")
    after = run_passes(graph, [FoldShapes()], Ledger())
    for sizes in ((0, 3, 4), (2, 0, 4), (2, 3, 4)):
        x = {"x": np.ones(sizes, np.float32)}
        before, made = run(graph, x), run(after, x)
        assert all(np.array_equal(made[n], before[n]) for n in before), sizes


def test_sizes_of_an_unknown_batch_are_told_apart() -> None:
    graph = parse("""graph main {
      %x = input() : ?x?xf32
      %s = shape(%x) : 2xi64
      %turned = constant([1, 0]) : 2xi64
      %t = gather(%s, %turned) : 2xi64
      %y = reshape(%x, %t) : ?x?xf32
      output(y=%y)
    }""")
    assert keep(FoldShapes(), graph, 0) == 0


def test_more_than_the_limit_stays() -> None:
    graph = Graph()
    kind = TensorType((2,) * 12, F32)
    x = graph.add("input", types=[kind], name="x").result
    graph.add("output", {"y": graph.add("shape", {"x": x}).result})
    assert FoldShapes(limit=8).run(graph.copy(), Ledger()) == 0
    assert FoldShapes().run(graph, Ledger()) > 0
