"""Comparisons, logic, bits and ops about sizes, against onnxruntime and NumPy's plain loops."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.types import Array as Stored
from qir.reference.table import compute
from tests.reference.oracles import Array, onnxruntime_runs
from tests.reference.rules import assert_rule_agrees

COMPARED: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "equal": ("Equal", operator.eq),
    "less": ("Less", operator.lt),
    "less_equal": ("LessOrEqual", operator.le),
    "greater": ("Greater", operator.gt),
    "greater_equal": ("GreaterOrEqual", operator.ge),
}
COMBINED = {
    "logical_and": ("And", operator.and_),
    "logical_or": ("Or", operator.or_),
    "logical_xor": ("Xor", operator.xor),
    "bit_and": ("BitwiseAnd", operator.and_),
    "bit_or": ("BitwiseOr", operator.or_),
    "bit_xor": ("BitwiseXor", operator.xor),
}
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 2.5], np.float32)


@pytest.mark.parametrize("op", COMPARED)
def test_comparisons_are_those_of_the_numbers(op: str) -> None:
    name, plain = COMPARED[op]
    for a in (SPECIAL, np.arange(-3, 4, dtype=np.int64)):
        pair = {"a": a[:, None], "b": a[None, :]}
        (got,) = assert_rule_agrees(op, pair)
        assert got.dtype == np.bool_
        assert got.tolist() == [[plain(x, y) for y in a.tolist()] for x in a.tolist()]
        assert np.array_equal(got, onnxruntime_runs(name, list(pair.values())))
    with pytest.raises(OpError, match="do not broadcast"):
        compute(op, {"a": np.ones(2), "b": np.ones(3)}, {})


def test_truths_can_be_compared_too() -> None:
    a = np.array([True, False])
    (got,) = assert_rule_agrees("equal", {"a": a[:, None], "b": a})
    assert got.tolist() == [[True, False], [False, True]]


@pytest.mark.parametrize("op", COMBINED)
def test_logic_and_bits_are_those_of_the_numbers(op: str) -> None:
    name, plain = COMBINED[op]
    a: Array = np.array([True, False])
    if op.startswith("bit"):
        a = np.array([-128, -1, 0, 5, 127], np.int8)
    (got,) = assert_rule_agrees(op, {"a": a[:, None], "b": a})
    assert got.dtype == a.dtype
    assert got.tolist() == [[plain(x, y) for y in a.tolist()] for x in a.tolist()]
    assert np.array_equal(got, onnxruntime_runs(name, [a[:, None], a]))
    with pytest.raises(OpError, match="it takes"):
        compute(op, {"a": a.astype(np.float32), "b": a.astype(np.float32)}, {})


def test_turning_over_and_shifting_equal_onnxruntimes() -> None:
    flags, bits = np.array([True, False]), np.array([0, 1, 200, 255], np.uint8)
    assert assert_rule_agrees("logical_not", {"x": flags})[0].tolist() == [False, True]
    assert assert_rule_agrees("bit_not", {"x": bits})[0].tolist() == [255, 254, 55, 0]
    places = np.array([0, 1, 3, 7], np.uint8)
    for direction in ("left", "right"):
        attrs: dict[str, Attr] = {"direction": direction}
        (got,) = assert_rule_agrees("bit_shift", {"a": bits[:, None], "b": places}, attrs)
        theirs = onnxruntime_runs("BitShift", [bits[:, None], places], direction=direction.upper())
        assert np.array_equal(got, theirs)


def test_what_is_no_number_or_infinite_is_found() -> None:
    (got,) = assert_rule_agrees("is_nan", {"x": SPECIAL})
    assert np.array_equal(got, onnxruntime_runs("IsNaN", [SPECIAL]))
    for negative in (False, True):
        for positive in (False, True):
            (got,) = assert_rule_agrees(
                "is_inf", {"x": SPECIAL}, {"negative": negative, "positive": positive}
            )
            sides = {"detect_negative": int(negative), "detect_positive": int(positive)}
            assert np.array_equal(got, onnxruntime_runs("IsInf", [SPECIAL], **sides))


@pytest.mark.parametrize("kind", [np.float32, np.int64, np.uint8, np.bool_])
def test_where_chooses_element_by_element(kind: type[np.generic]) -> None:
    rng = np.random.default_rng(0)
    condition = rng.random((3, 1, 4)) < 0.5
    a, b = rng.integers(0, 2, (2, 4)).astype(kind), rng.integers(0, 2, (3, 2, 1)).astype(kind)
    (got,) = assert_rule_agrees("where", {"condition": condition, "a": a, "b": b})
    assert got.dtype == kind
    for at in np.ndindex(got.shape):
        wanted = a[at[1], at[2]] if condition[at[0], 0, at[2]] else b[at[0], at[1], 0]
        assert got[at] == wanted
    with pytest.raises(OpError, match="it takes bool and one type"):
        compute("where", {"condition": a.astype(np.int8), "a": a, "b": b}, {})


def test_sizes_are_those_of_the_tensor() -> None:
    x = np.zeros((2, 3, 0, 5), np.float32)
    for start in (0, 1, -2, -9, 9):
        for end in (None, 0, 2, -1, 9, -9):
            (got,) = assert_rule_agrees("shape", {"x": x}, {"start": start, "end": end})
            given = {"start": start} | ({} if end is None else {"end": end})
            theirs = onnxruntime_runs("Shape", [x], **given)
            assert got.dtype == np.int64
            assert got.tolist() == theirs.tolist(), f"{start}:{end}"
    (count,) = assert_rule_agrees("size", {"x": np.zeros((2, 3))})
    assert (count.dtype, count.shape, int(count)) == (np.dtype(np.int64), (), 6)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.float32])
@pytest.mark.parametrize("bounds", [(0, 5, 1), (2, -9, -3), (5, 5, 1), (5, 0, 2)])
def test_ranges_equal_onnxruntimes(kind: type[np.generic], bounds: tuple[int, int, int]) -> None:
    numbers = [np.array(b, kind) for b in bounds]
    operands = dict(zip(("start", "limit", "step"), numbers, strict=True))
    theirs = onnxruntime_runs("Range", numbers)
    for constant in ((), tuple(operands)):
        (got,) = assert_rule_agrees("range", operands, constant=constant, unknown=True)
        assert got.dtype == theirs.dtype
        assert np.array_equal(got, theirs)
    with pytest.raises(OpError, match="range"):
        compute("range", {**operands, "step": np.array(0, kind)}, {})


def test_tensors_of_a_shape_hold_the_value_everywhere() -> None:
    for value in (np.array([1.5], np.float32), np.array([7], np.int64), np.array([True])):
        attrs: dict[str, Attr] = {"value": Stored.of(value)}
        for constant in ((), ("shape",)):
            shape = np.array([2, 0, 3][: 1 + len(constant)], np.int64)
            (got,) = assert_rule_agrees(
                "constant_of_shape", {"shape": shape}, attrs, constant=constant, unknown=True
            )
            assert got.dtype == value.dtype
            assert np.array_equal(got, np.full(shape.tolist(), value[0]))
