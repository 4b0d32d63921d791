"""Integers of any width stay within it, and casts to them, against Python's own integers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import TensorProto

from qir.errors import OpError
from qir.ir.dtype import dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.fold.fold_constants import FoldConstants
from qir.reference.interpreter import run
from qir.reference.table import cast
from tests.reference.oracles import onnxruntime_runs

Tensor = NDArray[Any]
SEED = 4
KINDS = ("i2", "i4", "u3", "i7", "u12", "i20", "u31", "i33", "u63")


def program(*lines: str) -> Graph:
    return parse("\n".join(["graph m as native {", *lines, "output(y=%y)", "}"]))


def held(value: int, kind: str) -> int:
    """The low bits of a number, as its type reads them."""
    bits = dtype(kind).bits
    low = value % (1 << bits)
    return low - (1 << bits) if kind[0] == "i" and low >> (bits - 1) else low


def drawn(rng: np.random.Generator, kind: str, count: int = 40) -> Tensor:
    low, high = dtype(kind).bounds
    some = rng.integers(low, high, count, endpoint=True)
    some[:2] = low, high
    return some.astype(dtype(kind).carrier)


def of_two(op: str, kind: str, a: Tensor, b: Tensor, attrs: str = "") -> Tensor:
    graph = program(
        f"%a = input() : {len(a)}x{kind}",
        f"%b = input() : {len(b)}x{kind}",
        f"%y = {op}(%a, %b){attrs} : {len(a)}x{kind}",
    )
    return run(graph, {"a": a, "b": b})["y"]


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "bit_xor": lambda a, b: a ^ b,
    "bit_or": lambda a, b: a | b,
}


@pytest.mark.parametrize("kind", KINDS)
def test_ops_of_two_keep_the_low_bits(kind: str) -> None:
    rng = np.random.default_rng(SEED)
    a, b = drawn(rng, kind), drawn(rng, kind)[::-1].copy()
    for op, function in BINARY.items():
        wanted = [held(function(int(x), int(y)), kind) for x, y in zip(a, b, strict=True)]
        assert of_two(op, kind, a, b).tolist() == wanted, op
    places = (np.arange(len(a)) % 5).astype(a.dtype) & dtype(kind).bounds[1]
    wanted = [held(int(x) << int(n), kind) for x, n in zip(a, places, strict=True)]
    assert of_two("bit_shift", kind, a, places, ' {direction = "left"}').tolist() == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_ops_of_one_and_sums_keep_the_low_bits(kind: str) -> None:
    a = drawn(np.random.default_rng(SEED), kind)
    lines = {
        "neg": ("neg(%a) : 40x", [held(-int(x), kind) for x in a]),
        "bit_not": ("bit_not(%a) : 40x", [held(~int(x), kind) for x in a]),
        "abs": ("abs(%a) : 40x", [held(abs(int(x)), kind) for x in a]),
        "reduce_sum": ("reduce_sum(%a) : 1x", [held(sum(map(int, a)), kind)]),
    }
    for op, (line, wanted) in lines.items():
        if op == "neg" and kind[0] == "u":
            continue
        graph = program(f"%a = input() : 40x{kind}", f"%y = {line}{kind}")
        assert run(graph, {"a": a})["y"].tolist() == wanted, op


def test_a_chain_keeps_the_low_bits_at_each_stage() -> None:
    graph = program("%a = input() : 4xi4", "%y = add(%a, %a) |> cast {to = f32} : 4xf32")
    got = run(graph, {"a": np.array([7, -8, 3, -1], np.int8)})["y"]
    assert got.tolist() == [-2.0, 0.0, 6.0, -2.0]


def test_constants_of_an_odd_width_fold() -> None:
    graph = program(
        "%w = constant([7, -8, 3, -1]) : 4xi4",
        "%s = add(%w, %w) : 4xi4",
        "%y = cast(%s) {to = f32} : 4xf32",
    )
    before = run(graph, {})["y"].tolist()
    assert FoldConstants().run(graph, Ledger())
    assert graph.outputs["y"].node.op == "constant"
    assert run(graph, {})["y"].tolist() == before == [-2.0, 0.0, 6.0, -2.0]


@pytest.mark.parametrize("to", [*KINDS, "i8", "u16", "i64", "u64"])
def test_casts_of_integers_keep_the_low_bits(to: str) -> None:
    rng = np.random.default_rng(SEED)
    for kind in ("i8", "u8", "i32", "i64", "u64"):
        low, high = dtype(kind).bounds
        x = rng.integers(low, high, 50, dtype(kind).carrier, endpoint=True)
        assert cast(x, dtype(to)).tolist() == [held(int(v), to) for v in x]


def test_casts_of_floats_that_fit_are_onnxruntimes() -> None:
    rng = np.random.default_rng(SEED)
    whole = np.concatenate([rng.normal(0, 10.0**e, 30) for e in range(10)])
    for name in ("i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"):
        kind = dtype(name)
        through = "i32" if kind.bits <= 16 or name == "i32" else "i64"
        least, most = dtype(through).bounds
        x = whole[(whole > least) & (whole < most)].astype(np.float64)
        number = {"i": "INT", "u": "UINT"}[name[0]] + name[1:]
        theirs = onnxruntime_runs("Cast", [x], to=TensorProto.DataType.Value(number))
        mine = cast(x, kind)
        assert mine.tolist() == [held(math.trunc(v), name) for v in x]
        if name != "u32":  # theirs hangs on where in the array a number stands
            assert mine.tolist() == theirs.tolist()


def test_casts_of_floats_that_do_not_fit_are_the_same_everywhere() -> None:
    far = np.array([np.nan, np.inf, -np.inf, 1e30, -1e30, 2.0**63], np.float32)
    for name, value in (("i8", 0), ("u3", 0), ("i32", -(2**31)), ("u32", 0), ("i64", -(2**63))):
        for count in (1, 7, 64):  # vectors and their rests alike
            assert set(cast(np.tile(far, count), dtype(name)).tolist()) == {value}
    assert cast(far, dtype("u64")).tolist() == [2**63] * 6
    assert cast(np.array([2.0**64 - 2.0**40]), dtype("u64")).tolist() == [2**64 - 2**40]


@pytest.mark.parametrize(
    ("text", "to"), [("x", "f32"), ("99999999999999999999", "i64"), ("8", "i4"), ("1.5", "u8")]
)
def test_a_text_that_is_no_number_is_refused(text: str, to: str) -> None:
    with pytest.raises(OpError, match=rf"cast: x at \[1\] is '{text}', no {to}"):
        cast(np.array(["1", text], object), dtype(to))
    assert cast(np.array(["-3"], object), dtype("f32")).tolist() == [-3.0]
    assert dtype_of(cast(np.array(["7"], object), dtype("i4"))) == dtype("i8")
