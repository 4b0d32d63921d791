"""Moves that move nothing go, and what is left computes the same bits."""

from __future__ import annotations

import random

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, F32, I8, I32, U8, DType, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import TensorType, uniform
from qir.ledger import Ledger
from qir.passes.cleanup.clean_moves import CleanMoves, represents_every
from qir.rewrite import run_passes
from tests.passes.keeping import keep, keeps

KINDS = "f32 f64 f16 bf16 f8e4m3fn f8e5m2 f4e2m1fn i4 i8 u8 i16 u16 i32 u32 bool".split()


def cleaned(graph: Graph) -> Graph:
    return run_passes(graph, [CleanMoves()], Ledger())


def ops(graph: Graph) -> list[str]:
    return [node.op for node in graph if node.op not in ("input", "output", "constant")]


class Moves:
    """A random chain of moves on one input, some of whose steps have readers of their own."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.graph = Graph()
        kind = F32 if seed % 2 else uniform(U8, np.float32(0.5), 3)
        x = self.graph.add("input", types=[TensorType((2, 3, 4), kind)], name="x").result
        outputs = {}
        for i in range(8):
            x = self.step(x)
            if self.rng.random() < 0.15:
                outputs[f"y{i}"] = x
        self.graph.add("output", {**outputs, "y": x})

    def sizes(self, value: Value) -> list[int]:
        return [d for d in value.type.shape if isinstance(d, int)]

    def row(self, sizes: list[int]) -> Value:
        return self.graph.constant(np.array(sizes, np.int64), name="s")

    def step(self, x: Value) -> Value:
        rng, shape, rank = self.rng, self.sizes(x), x.type.rank
        attrs: dict[str, Attr] = {}
        operands = {"x": x}
        op = rng.choice("transpose transpose reshape flatten squeeze unsqueeze pad slice".split())
        op = rng.choice([op, op, op, op, "cut", "identity", "dropout", "expand", "tile"])
        if op == "transpose":
            attrs = {"perm": tuple(rng.sample(range(rank), rank))}
        elif op == "reshape":
            kept = rng.randrange(rank) if rank else 0
            rest = int(np.prod(shape[:kept])), int(np.prod(shape[kept:]))
            operands["shape"] = self.row(list(rest if rng.random() < 0.5 else [-1, *shape[kept:]]))
        elif op == "flatten":
            attrs = {"axis": rng.randrange(rank + 1)}
        elif op == "squeeze":
            ones = tuple(i for i, d in enumerate(shape) if d == 1)
            attrs = {"axes": ones[: rng.randrange(len(ones) + 1)] if ones else ()}
        elif op == "unsqueeze":
            attrs = {"axes": (rng.randrange(rank + 1),)}
        elif op == "pad":
            attrs = {"pads": tuple(rng.choice([0, 0, 1]) for _ in range(2 * rank))}
        elif op == "slice":
            axis = rng.randrange(rank) if rank else 0
            start, step = rng.choice([0, 0, 1]), rng.choice([1, 1, 2])
            end = rng.choice([2**31 - 1, shape[axis] if rank else 1, max(1, start + 1)])
            if not rank or start >= min(end, shape[axis]):
                return x
            attrs = {"starts": (start,), "ends": (end,), "axes": (axis,), "steps": (step,)}
        elif op == "cut":
            return self.cut(x)
        elif op == "expand":
            operands["shape"] = self.row(rng.choice([shape, [1], [2, *shape]]))
        elif op == "tile":
            attrs = {"repeats": tuple(rng.choice([1, 1, 1, 2]) for _ in shape)}
        return self.graph.add(op, operands, attrs).result if sum(shape) < 40 else x

    def cut(self, x: Value) -> Value:
        """Two slices and their join, in their order or turned round."""
        if not x.type.rank:
            return x
        axis = self.rng.randrange(x.type.rank)
        at, size = self.sizes(x)[axis] // 2, self.sizes(x)[axis]
        parts = []
        for start, end in ((0, at), (at, size)):
            attrs = {"starts": (start,), "ends": (end,), "axes": (axis,), "steps": (1,)}
            parts.append(self.graph.add("slice", {"x": x}, attrs).result)
        if self.rng.random() < 0.3:
            parts.reverse()
        operands = {f"xs.{i}": part for i, part in enumerate(parts)}
        return self.graph.add("concat", operands, {"axis": axis}).result


def test_generated_graphs_keep_every_bit() -> None:
    keeps(CleanMoves())


@pytest.mark.parametrize("part", range(4))
def test_chains_of_moves_keep_every_bit_and_most_get_shorter(part: int) -> None:
    changed = 0
    for seed in range(part * 25, part * 25 + 25):
        graph = Moves(seed).graph
        changed += keep(CleanMoves(), graph, seed) > 0
        assert len(ops(cleaned(graph))) <= len(ops(graph)), f"seed {seed}"
    assert changed > 15


def text(*lines: str, kind: str = "2x3x4xf32", out: str = "y") -> Graph:
    inner = "\n".join(f"  {line}" for line in lines)
    return parse(f"graph main {{\n  %x = input() : {kind}\n{inner}\n  output(y=%{out})\n}}")


def test_a_batch_of_any_size_stays_of_any_size() -> None:
    graph = text(
        "%s = constant([0, 49, 8]) : 3xi64",
        "%a = reshape(%x, %s) : (N)x49x8xf32",
        "%y = flatten(%a) : (N)x392xf32",
        kind="(N)x7x7x8xf32",
    )
    after = cleaned(graph)
    assert ops(after) == ["reshape"]
    shape = after["y"].node.operands["shape"].constant
    assert shape is not None
    assert shape.data.tolist() == [-1, 392]
    keep(CleanMoves(), graph, 0)


@pytest.mark.parametrize(
    "lines",
    [
        ("%a = transpose(%x) {perm = (1, 0, 2)} : 3x2x4xf32", "%y = relu(%a) : 3x2x4xf32"),
        (
            "%a = pad(%x) {pads = (0, 0, 0, 0, 0, 1), value = 0.0} : 2x3x5xf32",
            "%y = pad(%a) {pads = (0, 0, 0, 0, 0, 1), value = -0.0} : 2x3x6xf32",
        ),
        (
            "%a = pad(%x) {pads = (0, 0, 0, 0, 0, -1)} : 2x3x3xf32",
            "%y = pad(%a) {pads = (0, 0, 0, 0, 0, 1)} : 2x3x4xf32",
        ),
        (
            "%a = slice(%x) {starts = (2,), ends = (4,), axes = (2,), steps = (1,)} : 2x3x2xf32",
            "%b = slice(%x) {starts = (0,), ends = (2,), axes = (2,), steps = (1,)} : 2x3x2xf32",
            "%y = concat(xs.0=%a, xs.1=%b) {axis = 2} : 2x3x4xf32",
        ),
        ("%a = cast(%x) {to = f16} : 2x3x4xf16", "%y = cast(%a) {to = f32} : 2x3x4xf32"),
        ("%a = cast(%x) {to = i32} : 2x3x4xi32", "%y = cast(%a) {to = f32} : 2x3x4xf32"),
    ],
)
def test_what_moves_or_loses_something_stays(lines: tuple[str, ...]) -> None:
    assert CleanMoves().run(text(*lines), Ledger()) == 0


def every(kind: DType) -> NDArray[np.generic]:
    """Every number of a small type, the ends and some of a wide one."""
    if kind == BOOL:
        return np.array([False, True])
    if kind.is_integer:
        low, high = kind.bounds
        found = range(low, high + 1) if kind.bits <= 8 else {low, low + 1, -7, 0, 9, high - 1, high}
        return np.array([v for v in sorted(found) if low <= v <= high], kind.carrier)
    if kind.bits == 4:
        return np.arange(16, dtype=np.uint8).view(np.uint8).astype(kind.carrier)
    if kind.bits <= 16:
        bits = np.arange(1 << kind.bits, dtype=f"u{kind.bits // 8}").view(kind.carrier)
        with np.errstate(invalid="ignore"):
            return bits[np.isfinite(bits.astype(np.float64))]
    tiny = np.finfo(np.float32 if kind == F32 else np.float64)
    return np.array([0.1, -0.0, tiny.tiny, tiny.max, -1 / 3, np.inf], kind.carrier)


@pytest.mark.parametrize("narrow", KINDS)
def test_a_type_holds_another_where_numpy_loses_nothing(narrow: str) -> None:
    assert ml_dtypes  # the carriers of the small floats
    for wide in KINDS:
        kinds = dtype(wide), dtype(narrow)
        if not represents_every(*kinds) or kinds[0] == kinds[1]:
            continue
        data = every(kinds[1])
        there = data.astype(kinds[0].carrier)
        assert np.array_equal(there.astype(np.float64), data.astype(np.float64)), wide
    assert not represents_every(dtype("f32"), I32)
    assert not represents_every(I8, U8)
    assert not represents_every(dtype("bf16"), dtype("f16"))


@pytest.mark.parametrize("first", KINDS)
def test_casts_give_the_same_bytes_as_one(first: str) -> None:
    count = 0
    for second in KINDS:
        for third in ("f64", "f16", "bf16", "i8", "u16", "i32", first):
            graph = Graph()
            kind = dtype(first)
            if kind.bits < 8 and kind != BOOL and not kind.is_integer:
                continue
            data = every(kind)
            x = graph.constant(data, name="x") if kind.bits > 7 or kind == BOOL else None
            if x is None:
                continue
            a = graph.add("cast", {"x": x}, {"to": dtype(second)}).result
            graph.add("output", {"y": graph.add("cast", {"x": a}, {"to": dtype(third)}).result})
            count += keep(CleanMoves(), graph, 0) > 0
    assert count or dtype(first).bits < 8
