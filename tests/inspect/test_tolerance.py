"""Two runs may differ in floats of sums, by a share of the largest value; never in integers."""

import math

import ml_dtypes
import numpy as np
import pytest

from qir.inspect import compare
from qir.inspect.compare import STEPS, TOLERANCE, Results
from tests.inspect.programs import FLOAT, INTEGER, QDQ, program

LARGEST = 8.0


def _pair(by: float, dtype: str = "float32") -> tuple[Results, Results]:
    """Returns two results whose last elements are `by` of the largest value apart."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    first = np.array([LARGEST, 0.5], np.float64)
    other = first + np.array([0, by * LARGEST])
    return {"z": first.astype(kind)}, {"z": other.astype(kind)}


def test_float_sums_may_differ_by_a_share_of_the_largest_value() -> None:
    graph = program(FLOAT)
    (near,) = compare(graph, *_pair(TOLERANCE / 2))
    assert (near.tolerance, near.agree, near.equal) == (TOLERANCE, True, False)
    assert near.relative == pytest.approx(TOLERANCE / 2, rel=1e-3)
    (far,) = compare(graph, *_pair(TOLERANCE * 2))
    assert not far.agree
    assert compare(graph, *_pair(TOLERANCE * 2), tolerance=1e-3)[0].agree
    assert not compare(graph, *_pair(TOLERANCE / 2), tolerance=0.0)[0].agree


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_floats_of_16_bits_may_differ_by_few_units_in_the_last_place(dtype: str) -> None:
    word = {"float16": "f16", "bfloat16": "bf16"}[dtype]
    cast = f"  %n = cast(%z) {{to = {word}}} : (N)x6x4x4x{word}\n  output(z=%n)"
    graph = program(FLOAT.replace("  output(z=%z)", cast))
    unit = float(ml_dtypes.finfo(dtype).eps)  # type: ignore[no-untyped-call]
    assert compare(graph, *_pair(unit, dtype))[0].agree
    assert not compare(graph, *_pair(2 * STEPS * unit, dtype))[0].agree


def test_what_comes_of_integers_is_compared_byte_by_byte() -> None:
    graph = program(QDQ.replace("output(s=%s)", "output(z=%pd)"))
    assert compare(graph, *_pair(1e-6))[0].tolerance is None
    assert not compare(graph, *_pair(1e-6))[0].agree
    graph = program(INTEGER.replace("output(f=%f, s=%s)", "output(z=%r)"))
    assert not compare(graph, *_pair(1e-6), tolerance=1.0)[0].agree


def test_a_float_function_of_integers_may_differ_as_its_sums_do() -> None:
    graph = program(INTEGER.replace("output(f=%f, s=%s)", "output(z=%f)"))
    assert compare(graph, *_pair(1e-6))[0].agree


def test_ops_that_round_once_have_one_right_result() -> None:
    graph = program(
        "graph one as native {\n  %x = input() : 2xf32\n  %y = add(%x, %x) : 2xf32\n"
        "  output(z=%y)\n}\n"
    )
    assert compare(graph, *_pair(1e-6))[0].tolerance is None


@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_what_is_not_finite_in_one_run_alone_differs(odd: float) -> None:
    a, _ = _pair(0.0)
    (found,) = compare(program(FLOAT), a, {"z": np.array([LARGEST, odd], np.float32)})
    assert not found.agree
    assert found.to_json()["relative"] is None
    both = np.array([odd, 0.5], np.float32)
    near = np.array([odd, np.nextafter(np.float32(0.5), np.float32(1))], np.float32)
    assert compare(program(FLOAT), {"z": both}, {"z": near})[0].agree
