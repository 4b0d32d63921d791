"""Pads beyond their axis, powers and sums of integers, texts, and rows of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, ParseError
from qir.ir.attrs import Attr
from qir.ir.dtype import dtype
from qir.ir.text import parse
from qir.reference.table import compute
from tests.reference.oracles import onnxruntime_runs
from tests.reference.rules import assert_rule_agrees
from tests.reference.test_odd_widths import held

Tensor = NDArray[Any]


def place(index: int, size: int, mode: str) -> int:
    """Where the element stands that a pad puts at an index."""
    if mode == "edge":
        return min(max(index, 0), size - 1)
    if mode == "wrap":
        return index % size
    period = 2 * size - (2 if mode == "reflect" else 0)
    turned = index % period if period else 0
    return turned if turned < size else period - turned - (mode == "symmetric")


@pytest.mark.parametrize("mode", ["reflect", "symmetric", "wrap", "edge"])
@pytest.mark.parametrize("seed", range(12))
def test_pads_turn_and_go_round_as_often_as_they_must(mode: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(rng.integers(1, 5, 2)).astype(np.float32)
    pads = tuple(int(p) for p in rng.integers(0, 13, 4))
    attrs: dict[str, Attr] = {"pads": pads, "mode": mode}
    (got,) = assert_rule_agrees("pad", {"x": x}, attrs, unknown=True)
    rows, columns = (
        [place(i, size, mode) for i in range(-before, size + after)]
        for size, before, after in zip(x.shape, pads[:2], pads[2:], strict=True)
    )
    assert np.array_equal(got, x[np.ix_(rows, columns)]), f"seed {seed} {x.shape} {pads}"


def test_integers_to_integers_keep_the_low_bits() -> None:
    rng = np.random.default_rng(8)
    for a_kind in ("i8", "u8", "i16", "i32", "u32", "i64", "u64"):
        low, high = dtype(a_kind).bounds
        for b_kind in ("i8", "u8", "i64"):
            a = rng.integers(low, high, 60, dtype(a_kind).carrier, endpoint=True)
            a[::2] = rng.integers(0, 8, 30)
            b = rng.integers(0, 60, 60).astype(dtype(b_kind).carrier)
            (got,) = assert_rule_agrees("pow", {"a": a, "b": b})
            wanted = [held(int(x) ** int(y), a_kind) for x, y in zip(a, b, strict=True)]
            assert got.dtype == a.dtype
            assert got.tolist() == wanted


def test_powers_of_integers_are_onnxruntimes() -> None:
    a = np.array([2, 3, -3, 7, 0, 10, -1, -1, 1, -2], np.int32)
    for b in (np.array([10, 3, 3, 2, 0, 9, -1, -2, -5, -3]), np.arange(10, dtype=np.float32) / 4):
        for kind in (np.int32, np.int64):
            got = compute("pow", {"a": a.astype(kind), "b": b}, {})
            wanted = onnxruntime_runs("Pow", [a.astype(kind), b])
            with np.errstate(all="ignore"):
                fits = np.isfinite(np.power(a.astype(np.float64), b))
            assert got.dtype == kind
            assert got[fits].tolist() == wanted[fits].tolist()
    with pytest.raises(OpError, match="pow: 0 to a power below 0 has no value"):
        compute("pow", {"a": np.array([1, 0]), "b": np.array([-1, -1])}, {})


def test_sums_of_integers_wrap() -> None:
    rng = np.random.default_rng(9)
    for kind in ("i8", "u16", "i64"):
        low, high = dtype(kind).bounds
        parts = [rng.integers(low, high, 30, dtype(kind).carrier, endpoint=True) for _ in range(4)]
        (got,) = assert_rule_agrees("sum", {f"xs.{i}": p for i, p in enumerate(parts)})
        assert got.tolist() == [held(sum(map(int, row)), kind) for row in zip(*parts, strict=True)]
    with pytest.raises(OpError, match=r"mean: xs\.0 is i8, it takes floats"):
        compute("mean", {"xs.0": np.ones(2, np.int8)}, {})


def test_texts_are_equal_or_differ() -> None:
    a = np.array(["a", "b", "", "ü"], object)
    b = np.array([b"a", "c", "", "ü".encode()], object)
    for op, wanted in (
        ("equal", [True, False, True, True]),
        ("not_equal", [False, True] + 2 * [0]),
    ):
        (got,) = assert_rule_agrees(op, {"a": a, "b": b})
        assert got.dtype == np.bool_
        assert got.tolist() == wanted
    with pytest.raises(OpError, match="less: a is string, it takes floats or integers"):
        compute("less", {"a": a, "b": b}, {})


NUMBERS = [
    ((0.0, np.nan, 1.0), "from 0.0 to nan by 1.0 there is no finite count"),
    ((0.0, np.inf, 1.0), "from 0.0 to inf by 1.0 there is no finite count"),
    ((np.nan, 1.0, 1.0), "from nan to 1.0 by 1.0 there is no finite count"),
    ((-np.inf, 1.0, -1.0), "from -inf to 1.0 by -1.0 there is no finite count"),
    ((0.0, 1.0, np.nan), "from 0.0 to 1.0 by nan there is no finite count"),
    ((0.0, 9.0, 0.0), "step is 0, with which no limit is reached"),
]


@pytest.mark.parametrize(("given", "said"), NUMBERS)
def test_rows_of_numbers_without_an_end_are_refused(given: tuple[float, ...], said: str) -> None:
    slots = dict(zip(("start", "limit", "step"), map(np.asarray, given), strict=True))
    with pytest.raises(OpError, match=said):
        compute("range", slots, {})
    slots["limit"] = np.arange(2.0)
    with pytest.raises(OpError, match="range: limit has 2 elements, it takes one number"):
        compute("range", slots, {})


def test_how_an_array_is_written_is_said() -> None:
    text = "graph m as native {\n%s = input() : 2xi64\n%y = constant_of_shape(%s) {value = 0.0}"
    with pytest.raises(ParseError, match=r"value = 0.0 is not array; .*`array @v : f32`.* = @v"):
        parse(f"{text} : ?x?xf32\noutput(y=%y)\n}}")
