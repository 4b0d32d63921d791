"""The rules of torch's profiles for sums of products against torch's engines: every byte."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch

from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.ops import spec
from qir.ir.types import TensorType
from qir.profiles import Query, profile
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    F,
    Held,
    Product,
    Tally,
    element,
    exact,
    in_steps,
    kind_of,
    of,
    product_of,
    random_integers,
)
from tests.differential.torch.kernels import run_products as run_in
from tests.differential.torch.profile_in_use import named

from . import draws_of_torch as draws

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)

ENGINES = ("fbgemm", "x86", "onednn", "qnnpack")


def linear(seed: int, many: bool) -> Product:
    rng = np.random.default_rng(seed)
    rows, terms, count = (int(v) for v in rng.integers(1, 71, 3))
    held, step = draws.weights(rng, terms, count, terms)
    x, w = draws.maps(rng, count, many=many)
    data = Held(random_integers(rng, "u8", rows, terms), x)
    case = Product("linear", data, Held(held, w), None, x, relu=bool(seed & 1))
    return draws.fitted(rng, case, step)


def conv(seed: int, many: bool, rank: int) -> Product:
    rng = np.random.default_rng(seed)
    groups, into, outof = (
        int(rng.choice(v)) for v in ([1, 1, 2, 4], [1, 2, 3, 5, 16], [1, 2, 4, 7])
    )
    kernel = int(rng.integers(1, 4))
    sizes = [int(v) for v in rng.integers(6, 9, rank)]
    if rank == 3:
        sizes[0] = 5
    count, taps = groups * outof, [kernel] * rank
    held, step = draws.weights(rng, into * kernel**rank, count, into, *taps)
    x, w = draws.maps(rng, count, many=many)
    case = Product(
        f"conv{rank}d",
        Held(random_integers(rng, "u8", 2, groups * into, *sizes), x),
        Held(held, w),
        None,
        x,
        stride=int(rng.integers(1, 3)),
        pad=int(rng.integers(0, kernel)),
        dilation=int(rng.integers(1, 3)),
        groups=groups,
        relu=bool(seed & 1),
    )
    return draws.fitted(rng, case, step)


def exact_floats(case: Product) -> np.ndarray:
    """The result in units of its code, in float64."""
    return in_steps(case, exact(case))


def compared(cases: list[Product], made: list[np.ndarray], name: str) -> Tally:
    tally = Tally()
    for number, (case, wanted) in enumerate(zip(cases, made, strict=True)):
        tally.see(exact_floats(case), case.out)
        tally.add(product_of(case, name), wanted, f"case {number}")
    tally.rich()
    return tally


def claim(engine: str, op: str, many: bool) -> str:
    query = Query(op, {"x": "u8", "w": "i8", "result": "u8"}, "channel" if many else "tensor")
    return profile(named(engine)).resolve(query).claim


def made_by(pool: ProcessPoolExecutor, engine: str, cases: list[Product]) -> list[np.ndarray]:
    return list(pool.submit(run_in, engine, cases).result())


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("engine", ENGINES)
def test_linear_is_the_engines(engine: str, many: bool, vnni: ProcessPoolExecutor) -> None:
    cases = [linear(seed, many) for seed in range(40)]
    tally = compared(cases, made_by(vnni, engine, cases), named(engine))
    tally.within(claim(engine, "linear", many))


@pytest.mark.parametrize("op", ["linear", "conv2d"])
def test_kernels_that_inductor_calls_are_onednns(op: str, vnni: ProcessPoolExecutor) -> None:
    cases = [linear(seed, True) if op == "linear" else conv(seed, True, 2) for seed in range(24)]
    tally = compared(cases, made_by(vnni, "pt2e", cases), named("pt2e"))
    tally.within(claim("pt2e", op, True))


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("engine", ENGINES)
def test_convolutions_are_the_engines(
    engine: str, rank: int, many: bool, vnni: ProcessPoolExecutor
) -> None:
    # The convolutions of engine onednn are those of x86.
    few = (12, 10, 12) if engine == "onednn" else (40, 30, 16)
    cases = [conv(seed, many, rank) for seed in range(few[rank - 1])]
    tally = compared(cases, made_by(vnni, engine, cases), named(engine))
    tally.within(claim(engine, f"conv{rank}d", many))


# -- sums in a convolution ------------------------------------------------------------------------


def summed(seed: int) -> Product:
    """A convolution and a summand."""
    return added_to(conv(seed, bool(seed & 2), 2), seed)


def added_to(case: Product, seed: int) -> Product:
    """A convolution with a summand, whose shape torch tells."""
    rng = np.random.default_rng(seed)
    shape = exact_floats(case).shape
    scale = F(case.out.scale * F(rng.choice([0.5, 1, 1.5])))
    held = Held(random_integers(rng, "u8", *shape), of("u8", scale, int(rng.integers(0, 255)) | 1))
    return replace(case, summand=held)


def chained(case: Product, name: str) -> np.ndarray:
    """What QIR computes for a convolution with a summand."""
    assert case.summand is not None
    graph = Graph(profile=name)
    held = {"x": case.x, "w": case.w, "1.b": case.summand}
    if case.bias is not None:
        held["bias"] = Held(case.bias)
    operands = {
        slot: graph.add("input", types=[kind_of(h)], name=slot.replace("1.", "")).result
        for slot, h in held.items()
    }
    stages = [
        Stage(
            "conv2d",
            spec("conv2d").complete_attrs(case.attrs),
            tuple(s for s in held if s != "1.b"),
        ),
        Stage("add", {}, ("b",), "a"),
    ]
    if case.relu:
        stages.append(Stage("relu", {}, (), "x"))
    kind = TensorType(case.summand.data.shape, element(case.out))
    graph.add("output", {"y": graph.add_chain(stages, operands, kind).result})
    return run(graph, {slot.replace("1.", ""): h.data for slot, h in held.items()})["y"]


def test_sums_in_a_convolution_are_as_near_to_the_engines_as_is_claimed(
    vnni: ProcessPoolExecutor,
) -> None:
    cases = [summed(seed) for seed in range(24)]
    tally, name = Tally(), named("onednn")
    for case, wanted in zip(cases, made_by(vnni, "onednn", cases), strict=True):
        tally.add(chained(case, name), wanted, "a sum")
    found = profile(name).group(("conv2d", "add"), Query("conv2d", {"x": "u8", "result": "u8"}))
    assert found is not None
    tally.within(found.claim)
