"""Integers that come back to themselves are taken as they are, and only those."""

from __future__ import annotations

import random

import numpy as np
import pytest

from qir.ir.dims import symbol
from qir.ir.dtype import BF16, F16, F32, I8, I16, U8, dtype
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Ledger
from qir.passes.cleanup.clean_pairs import CleanPairs
from qir.profiles import profile_names
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.passes.keeping import keep, keeps


def pair(first: QuantType, *others: QuantType, profile: str = "native") -> Graph:
    """Integers, dequantized and quantized as others, and as themselves again."""
    graph = Graph(profile=profile)
    shape = (symbol("N"), 5)
    x = graph.add("input", types=[TensorType(shape, first)], name="x").result
    for kind in (*others, first):
        real = graph.add("dequantize", {"x": x}).result
        x = graph.add("quantize", {"x": real}, types=[TensorType(shape, kind)]).result
    graph.add("output", {"y": x})
    return graph


def test_generated_graphs_keep_every_bit() -> None:
    keeps(CleanPairs())


def test_random_pairs_go_where_every_code_comes_back() -> None:
    gone = 0
    for seed in range(60):
        rng = random.Random(seed)
        express = rng.choice([F32, F32, F16, BF16])
        storage = rng.choice([U8, I8, I16, dtype("u4")])
        scale = np.array(rng.uniform(0.001, 3) * 10.0 ** rng.randint(-6, 3), np.float32)
        kind = uniform(storage, scale, rng.randint(0, 7), express=express)
        graph = pair(kind)
        changed = keep(CleanPairs(), graph, seed)
        gone += changed
        low, high = kind.low, kind.high
        quantized = np.arange(low, high + 1).astype(storage.carrier)
        quantized = np.resize(quantized, (-(-quantized.size // 5), 5))
        same = np.array_equal(run(graph, {"x": quantized})["y"], quantized)
        assert same == (changed > 0), f"seed {seed}: {kind}"
    assert 20 < gone < 60


@pytest.mark.parametrize("profile", profile_names())
def test_a_profile_decides_whether_codes_come_back(profile: str) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        scales = rng.uniform(0.001, 2, 5).astype(np.float32)
        kind = uniform(I8, scales, axis=1, bounds=(-127, 127))
        changed = keep(CleanPairs(), pair(kind, profile=profile), seed)
        assert changed or not profile.startswith(("native", "ort"))


def test_a_longer_way_round_counts_too() -> None:
    one = uniform(U8, np.float32(0.5), 128)
    fine = uniform(I16, np.float32(0.25))
    coarse = uniform(U8, np.float32(0.75), 128)
    assert keep(CleanPairs(), pair(one, fine), 0) == 1
    assert keep(CleanPairs(), pair(one, coarse), 0) == 0


def test_two_entries_of_a_table_that_are_one_number_stay() -> None:
    table = QuantType(dtype("u2"), F32, (1.0,), kind="lut", codes=(0.0, 0.5, 0.5, 1.0))
    apart = QuantType(dtype("u2"), F32, (1.0,), kind="lut", codes=(0.0, 0.25, 0.5, 1.0))
    assert keep(CleanPairs(), pair(table), 0) == 0
    assert keep(CleanPairs(), pair(apart), 0) == 1


def test_floats_of_eight_bits_come_back_if_all_do() -> None:
    for name in ("f8e4m3fn", "f8e5m2"):
        keep(CleanPairs(), pair(QuantType(dtype(name), F32, (0.5,))), 0)


def test_numbers_that_are_computed_stay() -> None:
    graph = Graph()
    kind = TensorType((2,), QuantType(U8, F32, None, None))
    x = graph.add("input", types=[kind], name="x").result
    scale = graph.add("input", types=[TensorType((), F32)], name="s").result
    zero = graph.add("input", types=[TensorType((), U8)], name="z").result
    beside = {"x.scale": scale, "x.zero": zero}
    real = graph.add("dequantize", {"x": x, **beside}).result
    operands = {"x": real, "scale": scale, "zero": zero}
    graph.add("output", {"y": graph.add("quantize", operands, types=[kind]).result})
    assert CleanPairs().run(graph, Ledger()) == 0


def test_bits_that_are_read_as_they_were_stay_where_they_are() -> None:
    graph = Graph()
    kind = TensorType((2,), uniform(U8, np.float32(0.5), 3))
    x = graph.constant(Array(np.array([1, 255], np.uint8), kind), name="x")
    raw = graph.add("recode", {"x": x}, types=[TensorType((2,), I8)]).result
    back = graph.add("recode", {"x": raw}, types=[kind]).result
    graph.add("output", {"y": back, "raw": raw})
    assert keep(CleanPairs(), graph, 0) == 1


@pytest.mark.parametrize("profile", ["native", "ort-1.31"])
def test_codes_are_moved_instead_of_their_numbers(profile: str) -> None:
    text = """graph main as PROFILE {
      %x = input() : 2x3x4x!quant.uniform<u8:f32, 0.3:128>
      %d = dequantize(%x) : 2x3x4xf32
      %t = transpose(%d) {perm = (2, 0, 1)} : 4x2x3xf32
      %s = slice(%t) {starts = (1,), ends = (3,), axes = (0,), steps = (1,)} : 2x2x3xf32
      %q = quantize(%s) : 2x2x3x!quant.uniform<u8:f32, SCALE:128>
      %e = dequantize(%q) : 2x2x3xf32
      output(q=%q, e=%e)
    }""".replace("PROFILE", profile)
    graph = parse(text.replace("SCALE", "0.3"))
    assert keep(CleanPairs(), graph, 1) == 1
    after = run_passes(graph, [CleanPairs()], Ledger())
    assert [n.op for n in after][1:-1] == ["transpose", "slice", "dequantize"]
    quantized = np.random.default_rng(3).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    assert np.array_equal(run(after, {"x": quantized})["q"], quantized.transpose(2, 0, 1)[1:3])
    assert keep(CleanPairs(), parse(text.replace("SCALE", "0.31")), 1) == 0
