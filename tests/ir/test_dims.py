"""Dimension arithmetic against plain evaluation of the same expression."""

from __future__ import annotations

import random

import pytest

from qir.errors import ParseError
from qir.ir import dims
from qir.ir.dims import Dim

NAMES = ("N", "M", "seq_len")
SIZES = ({"N": 1, "M": 2, "seq_len": 3}, {"N": 7, "M": 4, "seq_len": 128}, {n: 12 for n in NAMES})


def expression(rng: random.Random, depth: int) -> str:
    """An expression in Python's own grammar, which evaluates it without QIR."""
    if depth == 0 or rng.random() < 0.2:
        return rng.choice([*NAMES, str(rng.randrange(1, 20))])
    left, right = expression(rng, depth - 1), expression(rng, depth - 1)
    operator = rng.choice(["+", "-", "*", "//", "+", "*"])
    if operator == "//":
        right = rng.choice([str(rng.randrange(1, 9)), rng.choice(NAMES), f"({right})"])
    return f"({left}) {operator} {right}" if rng.random() < 0.7 else f"({left}{operator}({right}))"


def test_an_expression_has_the_value_that_python_gives_it() -> None:
    seed = 4
    rng = random.Random(seed)
    tried = 0
    for case in range(1500):
        text = expression(rng, rng.randrange(1, 5))
        try:
            dim = dims.parse(text)
        except ParseError:
            # Too long to keep, or an exact 0 below a bar.
            if len(text) < 60:
                with pytest.raises(ZeroDivisionError):
                    [eval(text, {}, dict(size)) for size in SIZES]
            continue
        for size in SIZES:
            try:
                wanted = eval(text, {}, dict(size))
            except ZeroDivisionError:
                continue
            assert dims.bind(dim, size) == wanted, f"seed {seed}, case {case}: {text} {size}"
            tried += 1
    assert tried > 3000


def test_the_printed_form_reads_back_to_the_same_dimension() -> None:
    seed = 5
    rng = random.Random(seed)
    for case in range(1500):
        text = expression(rng, rng.randrange(1, 5))
        try:
            dim = dims.parse(text)
        except ParseError:
            continue
        assert dims.parse(str(dim)) == dim, f"seed {seed}, case {case}: {text} as {dim}"


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ("N*2 + N", "3*N"),
        ("(N+1)*(N-1)", "N*N - 1"),
        ("N*49//49", "N"),
        ("N*M//M", "N"),
        ("(4*N + 6)//2", "2*N + 3"),
        ("M + N", "N + M"),
        ("(N+1)//2 + M", "M + (1+N)//2"),
        ("N - N", "0"),
        ("0 * N // M", "0"),
        ("--N", "N"),
    ],
)
def test_two_ways_to_write_a_dimension_are_one_dimension(a: str, b: str) -> None:
    assert dims.parse(a) == dims.parse(b)


@pytest.mark.parametrize("text", ["N//2*2", "(N+1)//2", "N//M", "(N+1)//(M+1)"])
def test_a_division_that_may_have_a_rest_is_kept(text: str) -> None:
    dim = dims.parse(text)
    assert dim != dims.parse("N")
    assert dims.bind(dim, {"N": 7, "M": 2}) == eval(text, {}, {"N": 7, "M": 2})


def test_what_nobody_knows_stays_unknown_but_nothing_times_it_is_nothing() -> None:
    n = dims.symbol("N")
    assert dims.add(None, 1) is None
    assert dims.multiply(None, n) is None
    assert dims.multiply(0, None) == 0
    assert dims.divide(n, 0) is None
    assert dims.divide(None, 3) is None
    assert dims.product((2, None, 0)) == 0
    assert dims.product((2, n, 3)) == dims.parse("6*N")


def test_a_part_of_the_names_may_be_bound() -> None:
    assert dims.bind(dims.parse("N*M + M//2"), {"N": 3}) == dims.parse("3*M + M//2")
    assert dims.names((dims.parse("N*M"), 3, None, dims.parse("(K+1)//2"))) == {"N", "M", "K"}
    assert dims.known_shape((1, 2)) == (1, 2)
    assert dims.known_shape((1, dims.symbol("N"))) is None


def test_only_two_different_numbers_cannot_be_one_size() -> None:
    n: Dim = dims.symbol("N")
    assert not dims.may_be_equal(3, 4)
    assert all(dims.may_be_equal(a, b) for a, b in [(3, 3), (3, n), (n, None), (None, 4)])


@pytest.mark.parametrize("text", ["", "N N", "N+", "(N", "N)", "N/2", "2N", "N**2", "*", "3 4"])
def test_text_that_is_no_dimension_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as caught:
        dims.parse(text)
    assert "\n" not in str(caught.value)


def test_what_grows_too_large_is_unknown_and_not_slow() -> None:
    value: Dim = 1
    for i in range(60):
        value = dims.multiply(value, dims.add(dims.symbol(f"a{i}"), dims.symbol(f"b{i}")))
    assert value is None
    value = dims.symbol("N")
    for _ in range(100):
        value = dims.divide(dims.add(dims.multiply(value, dims.symbol("K")), value), 7)
    assert value is None


def test_a_name_that_the_text_could_not_hold_is_refused() -> None:
    for name in ("", "1N", "a b", "a+b", "a.b"):
        with pytest.raises(ParseError):
            dims.symbol(name)
