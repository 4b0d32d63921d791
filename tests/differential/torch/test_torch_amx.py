"""Linear layers where oneDNN has AMX: which kernel it takes, and every byte of each."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import product
from multiprocessing import get_context

import numpy as np
import pytest

from qir import pipeline
from qir.ir.dims import symbol
from qir.ir.graph import Graph
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType
from qir.profiles import Query, profile
from qir.profiles.kernel_forms import forms_of
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    Array,
    Held,
    Product,
    Tally,
    element,
    kind_of,
    processor,
    product_of,
    random_integers,
)
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile
from tests.processors import LACKS, has

from . import draws_of_torch as draws
from .test_torch_products import exact_floats, made_by
from .test_torch_products import pytestmark as here

pytestmark = [here, pytest.mark.skipif(not has("amx"), reason=f"{LACKS}AMX")]
ENGINES = ("onednn", "pt2e")
EDGES = [
    *product((1, 2, 8, 9), (8, 16, 17, 24), (16, 32, 70)),
    *product((16, 31, 32, 33), (15, 16, 17, 70), (7, 8, 9)),
    *((1, terms, count) for terms in (255, 256, 257) for count in (256, 257, 300)),
]
"""Rows, terms and results of a row about where another kernel is taken."""


@pytest.fixture(scope="module")
def amx() -> Iterator[ProcessPoolExecutor]:
    """A process whose oneDNN knows AMX, and nothing later."""
    with processor("AVX512_CORE_AMX") as pool:
        yield pool


def sized(seed: int, rows: int, terms: int, count: int) -> Product:
    """A linear layer of that size, with a scale for each row of weights."""
    rng = np.random.default_rng([seed, rows, terms, count])
    held, step = draws.weights(rng, terms, count, terms)
    x, w = draws.maps(rng, count, many=True)
    data = Held(random_integers(rng, "u8", rows, terms), x)
    case = Product("linear", data, Held(held, w), None, x, relu=bool(seed & 1))
    return draws.fitted(rng, case, step)


def small(case: Product) -> bool:
    """Whether a layer is left to kernels for VNNI."""
    return "small_product" in forms_of("linear", {"x": kind_of(case.x), "w": kind_of(case.w)}, {})


def claim(name: str, *forms: str) -> str:
    """What a profile says of linear layers of such a form where there is AMX."""
    query = Query("linear", {"x": "u8", "w": "i8", "result": "u8"}, "channel", forms=forms)
    return profile(name).on("amx").resolve(query).claim


@pytest.mark.parametrize("engine", ENGINES)
def test_linear_layers_of_every_size_are_onednns(engine: str, amx: ProcessPoolExecutor) -> None:
    name = named(engine)
    cases = [sized(seed, *sizes) for sizes in EDGES for seed in range(2)]
    tallies = {True: Tally(), False: Tally()}
    with override_profile(profile(name).on("amx")):
        for case, wanted in zip(cases, made_by(amx, engine, cases), strict=True):
            tally = tallies[small(case)]
            tally.see(exact_floats(case), case.out)
            where = f"{case.x.data.shape} by {case.w.data.shape}"
            tally.add(product_of(case, name), wanted, where)
    for few, tally in tallies.items():
        tally.rich()
        tally.within(claim(name, "known_rows", *(("small_product",) if few else ())))
    assert claim(name, "known_rows") == "exact"


def open_rows(case: Product, name: str) -> Array:
    """What QIR computes for a layer whose rows are not known before it runs."""
    graph, n = Graph(profile=name), symbol("N")
    held = {"x": case.x, "w": case.w} | ({} if case.bias is None else {"bias": Held(case.bias)})
    kinds = {slot: kind_of(one) for slot, one in held.items()}
    kinds["x"] = replace(kinds["x"], shape=(n, case.x.data.shape[1]))
    slots = {s: graph.add("input", types=[k], name=s).result for s, k in kinds.items()}
    made = TensorType((n, len(case.w.data)), element(case.out))
    graph.add("output", {"y": graph.add("linear", slots, types=[made]).result})
    return run(graph, {slot: one.data for slot, one in held.items()})["y"]


@pytest.mark.parametrize("engine", ENGINES)
def test_rows_that_are_not_known_leave_a_claim_of_codes_one_off(
    engine: str, amx: ProcessPoolExecutor
) -> None:
    name, tally = named(engine), Tally()
    cases = [replace(sized(seed, 2 + seed, 60, 20), relu=False) for seed in range(40)]
    with override_profile(profile(name).on("amx")):
        for case, wanted in zip(cases, made_by(amx, engine, cases), strict=True):
            tally.add(open_rows(case, name), wanted, f"{case.x.data.shape}")
    tally.within(claim(name))
    assert claim(name).startswith("within:1:")


def test_a_run_without_a_word_of_processors_is_by_the_rules_of_this_one() -> None:
    name, tally, apart = named("onednn"), Tally(), 0
    cases = [replace(sized(seed, 33, 200, 40), relu=False) for seed in range(12)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        made = made_by(pool, "onednn", cases)
    for case, wanted in zip(cases, made, strict=True):
        graph = Graph(profile=name)
        x = graph.add("input", types=[kind_of(case.x)], name="x").result
        slots = {"x": x, "w": graph.constant(Stored(case.w.data, kind_of(case.w), "w"))}
        if case.bias is not None:
            slots["bias"] = graph.constant(Stored.of(case.bias, "bias"))
        kind = TensorType((33, 40), element(case.out))
        graph.add("output", {"y": graph.add("linear", slots, types=[kind]).result})
        tally.add(pipeline.run(graph, {"x": case.x.data})["y"], wanted, "this processor")
        other = pipeline.run(graph, {"x": case.x.data}, isa="vnni")["y"]
        apart += int(np.count_nonzero(other != wanted))
    tally.exact()
    assert apart, "kernels for VNNI give the same bytes"
