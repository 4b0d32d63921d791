"""Every op that computes floats against onnxruntime, at random sizes around each threshold.

The cases change each day; SEED=n repeats those of another day, and is printed where one fails.
"""

from __future__ import annotations

import datetime
import inspect
import os
import re
import sys

import pytest

from qir.ir.ops import OPS
from qir.reference import product
from qir.reference.table import FUNCTIONS
from tests.fuzzing import float_ops, float_products, float_uses
from tests.fuzzing.judging import Broken

SEED = os.environ.get("SEED") or datetime.datetime.now(datetime.UTC).date().isoformat()
SIZED = {**float_products.PRODUCTS, **float_uses.WINDOWS}
"""Ops with thresholds; eight cases in a row reach each of them."""
NOT_SIZES = {"control._MOST_ROUNDS"}
"""Large constants of the modules of float ops that switch no algorithm."""


def _check(op: str, number: int) -> None:
    try:
        float_ops.check(op, SEED, number)
    except Exception as error:
        error.add_note(f"SEED={SEED}, number {number}")
        raise


def test_every_op_is_compared_or_listed() -> None:
    assert not float_ops.missing(), "draw it in tests/fuzzing/float_uses.py, or say why not"
    assert not set(float_ops.UNCOMPARED) - set(OPS)
    assert not set(float_ops.UNCOMPARED) & set(float_ops.DRAWS)


def test_an_op_that_is_new_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float_ops, "OPS", [*OPS, "an_op_that_is_new"])
    assert float_ops.missing() == ["an_op_that_is_new"]


def test_sizes_are_drawn_from_every_threshold_of_the_reference() -> None:
    drawn = "".join(map(inspect.getsource, (float_products, float_uses)))
    modules = {f.__module__ for f in FUNCTIONS.values()} | {product.__name__}
    found = {
        f"{module.rpartition('.')[2]}.{name}"
        for module in modules
        for name, value in vars(sys.modules[module]).items()
        if re.fullmatch("_?[A-Z][A-Z_]+", name) and type(value) is int and value >= 64
    }
    assert {"product._TILE_DEPTH", "conv._COLUMNS", "pool._MAX_BLOCK_ELEMENTS"} <= found
    assert {name for name in found - NOT_SIZES if name not in drawn} == set()


@pytest.mark.parametrize("op", sorted(float_ops.DRAWS))
def test_a_float_op_computes_what_onnxruntime_does(op: str) -> None:
    for number in range(8 if op in SIZED else 2):
        _check(op, number)


@pytest.mark.long
@pytest.mark.parametrize("op", sorted(float_ops.DRAWN))
def test_a_float_op_computes_what_onnxruntime_does_at_many_sizes(op: str) -> None:
    for number in range(8, 200):
        _check(op, number)


@pytest.mark.parametrize("op", ["gemm", "conv2d", "lstm", "attention"])
def test_a_product_that_adds_a_term_twice_is_found(
    op: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overlapping(size: int, step: int) -> list[slice]:
        return [
            slice(i - (i > 0 and size != step), min(i + step, size)) for i in range(0, size, step)
        ]

    monkeypatch.setattr(product, "_tile_slices", overlapping)
    with pytest.raises(Broken, match=rf"^{op}\("):
        _check(op, 0)  # of a depth just beyond a tile
