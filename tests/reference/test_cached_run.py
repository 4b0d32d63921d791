"""Variants of a graph that are run from the first change on, against whole runs."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.errors import DataError
from qir.ir.text import parse
from qir.reference.cached_run import CachedRun
from qir.reference.interpreter import run

SEED = random.SystemRandom().randrange(2**32)
TEXT = """graph main {{
  %x = input() : 4x3xf32
  %w = constant(@w) : 3x3xf32
  %v = constant(@v) : 3x3xf32
  %a = gemm(%x, %w) : 4x3xf32
  %b = {one}(%a) : 4x3xf32
  %c = {two}(%b) : 4x3xf32
  %d = gemm(%c, %v) : 4x3xf32
  %e = add(%d, %a) : 4x3xf32
  output(y=%e)
}}"""


def test_a_variant_runs_only_what_lies_downstream_of_its_change() -> None:
    rng = np.random.default_rng(SEED)
    arrays = {name: rng.standard_normal((3, 3)).astype(np.float32) for name in "wv"}
    x = {"x": rng.standard_normal((4, 3)).astype(np.float32)}
    cached = CachedRun(x)
    base = parse(TEXT.format(one="relu", two="tanh"), arrays)
    np.testing.assert_array_equal(cached.keep(base)["y"], run(base, x)["y"])
    assert cached.computed == 5
    for change, nodes in (
        ({"one": "relu", "two": "tanh"}, 0),
        ({"one": "relu", "two": "sigmoid"}, 3),
        ({"one": "sigmoid", "two": "tanh"}, 4),
    ):
        before = cached.computed
        variant = parse(TEXT.format(**change), arrays)
        np.testing.assert_array_equal(
            cached.run(variant)["y"], run(variant, x)["y"], err_msg=f"seed {SEED}"
        )
        assert cached.computed - before == nodes
    before = cached.computed
    other = parse(TEXT.format(one="relu", two="tanh"), arrays | {"v": arrays["v"] * 2})
    np.testing.assert_array_equal(cached.run(other)["y"], run(other, x)["y"])
    assert cached.computed - before == 2


def test_kept_values_are_counted_and_inputs_checked() -> None:
    arrays = {name: np.eye(3, dtype=np.float32) for name in "wv"}
    graph = parse(TEXT.format(one="relu", two="tanh"), arrays)
    cached = CachedRun({"x": np.ones((4, 3), np.float32)})
    cached.keep(graph)
    assert cached.kept_bytes == 6 * 12 * 4 + 9 * 4  # w and v are equal, and kept once
    with pytest.raises(DataError, match="the model takes 4x3"):
        CachedRun({"x": np.ones((5, 3), np.float32)}).run(graph)
