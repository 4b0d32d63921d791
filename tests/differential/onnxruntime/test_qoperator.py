"""QOperator models, onnxruntime's graph optimizations off: every tensor is equal to the byte."""

from __future__ import annotations

from functools import cache

import pytest

from tests.differential.comparison import kernel_differences, read, reference_differences
from tests.differential.models import Feeds, Model, Style, Taste, make
from tests.differential.population import Population, census
from tests.differential.runtime import run
from tests.installed import UNOPTIMIZED

CHUNK = 50
CHUNKS = 10
PROFILE = UNOPTIMIZED


def taste(seed: int) -> Taste:
    """Three networks in four have dyadic scales, one in five signed activations."""
    styles: tuple[Style, ...] = ("dyadic", "dyadic", "dyadic", "order" if seed % 3 else "free")
    return Taste(kind="u8" if seed % 5 else "i8", style=styles[seed % 4], layers=5 + seed % 4)


@cache
def judged(chunk: int) -> tuple[tuple[Model, Feeds], ...]:
    """The networks of a chunk with every tensor as onnxruntime gives it."""
    found = []
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        model = make(seed, taste(seed), exposed=True)
        found.append((model, run(model.proto, model.feeds, optimize=False)))
    return tuple(found)


def reference_agrees(chunk: int) -> None:
    for model, judge in judged(chunk):
        where = f"seed {model.seed}"
        found = reference_differences(where, read(model.proto), model.feeds, judge, PROFILE)
        assert not found, "\n".join(map(str, found))


def kernels_agree(chunk: int, threads: int) -> None:
    for model, judge in judged(chunk):
        where = f"seed {model.seed}, {threads} threads"
        graph = read(model.proto)
        found = kernel_differences(where, graph, model.feeds, judge, threads=threads)
        assert not found, "\n".join(map(str, found))


def test_inputs_tie_and_saturate_often() -> None:
    population = Population()
    for chunk in range(CHUNKS):
        for model, judge in judged(chunk):
            population.merge(census(model.proto, {**model.feeds, **judge}))
    population.check()
    assert {"QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "QLinearMul"} <= set(
        population.by_op
    )


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_reference_gives_every_tensor_as_onnxruntime_does(chunk: int) -> None:
    reference_agrees(chunk)


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_the_kernels_give_every_tensor_as_onnxruntime_does(chunk: int) -> None:
    kernels_agree(chunk, threads=1 + chunk % 2)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(100, 140))
def test_two_thousand_more_networks_agree(chunk: int) -> None:
    reference_agrees(chunk)
    kernels_agree(chunk, threads=2)
    judged.cache_clear()
