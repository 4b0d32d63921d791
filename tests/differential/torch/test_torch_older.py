"""Convolutions of fbgemm on processors before VNNI: pairs of products are added in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from qir.profiles import Query, profile
from tests.differential.torch.kernels import (
    Array,
    Asked,
    Held,
    Product,
    Tally,
    computed,
    in_steps,
    of,
    older,
    paired,
    processor,
    product_of,
    random_integers,
)
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile

from . import draws_of_torch as draws
from .test_torch_depthwise import depthwise
from .test_torch_layers import filled, torchs_many, transposed
from .test_torch_products import linear, made_by
from .test_torch_products import pytestmark as here

pytestmark = here

SHAPES = (
    *((1, 1, 4), (1, 2, 3), (1, 3, 8), (1, 5, 7), (1, 16, 5), (1, 33, 4), (2, 3, 5), (2, 4, 4)),
    *((3, 7, 2), (5, 1, 1), (8, 1, 3), (8, 2, 2), (16, 2, 2), (4, 4, 4), (2, 8, 8), (1, 16, 16)),
)
"""Groups, and channels in and out of each; the last five have kernels of their own."""


@pytest.fixture(scope="module", params=["avx2", "avx512"])
def before(request: pytest.FixtureRequest) -> Iterator[tuple[str, ProcessPoolExecutor]]:
    with older(request.param) as pool:
        yield request.param, pool


def layer(seed: int, rank: int, many: bool) -> Product:
    """Weights whose pairs 16 bits do not hold, the ends of integers, or pairs that they do hold."""
    rng = np.random.default_rng([seed, rank, many])
    groups, into, outof = SHAPES[seed % len(SHAPES)]
    own = seed % len(SHAPES) > 10 and rank > 1
    taps = int(rng.choice([1, 2, 3, 5] if rank < 3 else [1, 2, 3]))
    stride, pad, dilation = (int(v) for v in (rng.integers(1, 3), rng.integers(0, taps), 1))
    if own:
        taps, pad = 3, 1
    elif rng.random() < 0.3:
        dilation = 2
    sides = rng.integers(9, 12, rank) if rank < 3 else rng.integers(5, 7, rank)
    count, kind = groups * outof, seed // len(SHAPES) % 3
    data = random_integers(rng, "u8", 1, groups * into, *sides)
    shape, most = (count, into, *[taps] * rank), 63 if kind == 2 else 127
    weights, step = draws.weights(rng, into * taps**rank, *shape, limit=most)
    if kind == 1:
        data = rng.choice([0, 128, 250, 255], data.shape).astype(np.uint8)
        weights = rng.choice([-128, -127, 126, 127, 1], weights.shape).astype(np.int8)
    x, w = draws.maps(rng, count, many=many)
    if seed % 5 == 0:
        w = draws.moved(rng, w, step)
    held, sizes = (Held(data, x), Held(weights, w)), (stride, pad, dilation, groups)
    case = Product(f"conv{rank}d", *held, None, x, *sizes, relu=bool(seed & 8))
    return draws.fitted(rng, case, 1 if kind == 1 else step, draws.in_16_bits)


def compared(
    cases: list[Product], made: list[Array], name: str, isa: str, *, cut: float = 0.1
) -> Tally:
    tally, apart, sums = Tally(), 0, 0
    with override_profile(profile(name).on(isa)):
        for number, (case, wanted) in enumerate(zip(cases, made, strict=True)):
            tally.see(in_steps(case, paired(case)[0]), case.out)
            tally.add(product_of(case, name), wanted, f"case {number}")
            found, exact = paired(case)
            apart, sums = apart + int((found != exact).sum()), sums + exact.size
    assert apart > cut * sums, f"pairs saturate in {apart} of {sums} sums"
    return tally


@pytest.mark.sampled(4)
@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_convolutions_add_pairs_as_windows_lie_in_memory(
    engine: str, rank: int, many: bool, before: tuple[str, ProcessPoolExecutor]
) -> None:
    isa, pool = before
    name = named(engine)
    cases = [layer(seed, rank, many) for seed in range(len(SHAPES) * 3)]
    if engine == "x86":  # which asks fbgemm
        cases = cases[rank::3]
    tally = compared(cases, made_by(pool, engine, cases), name, isa)
    if engine == "fbgemm":
        tally.rich()
    tally.exact()
    claim = profile(name).resolve(Query(f"conv{rank}d", isa=isa)).claim
    assert claim == "exact"


def test_depthwise_layers_need_no_vnni(before: tuple[str, ProcessPoolExecutor]) -> None:
    isa, pool = before
    cases = [depthwise(seed, rank, bool(seed & 1)) for seed in range(8) for rank in (2, 3)]
    compared(cases, made_by(pool, "fbgemm", cases), named("fbgemm"), isa).exact()


@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_linear_layers_add_pairs_too(engine: str, before: tuple[str, ProcessPoolExecutor]) -> None:
    isa, pool = before
    tally, held = Tally(), profile(named(engine))
    cases = [draws.wider(linear(seed, many)) for seed in range(8) for many in (False, True)]
    with override_profile(held.on(isa)):
        for case, wanted in zip(cases, made_by(pool, engine, cases), strict=True):
            tally.add(product_of(case, held.name), wanted, f"{case.w.data.shape}")
    tally.exact()


PAIRS = {
    (0, 1): 16,
    (1, 2): 32,
    (2, 3): 16,
    (3, 4): 32,
    (2, 4): 32,
    (8, 9): 16,
    (9, 10): 32,
    (26,): 16,
    (24, 25, 26): 33,
}
"""Which of 27 terms weigh 127, channels of a tap after those of another, and the code of a sum of
them: data 255, a step of 2,000."""


def only(terms: tuple[int, ...], rank: int) -> Product:
    """Three channels in windows of nine taps, of which few weigh anything."""
    weights = np.zeros((1, 27), np.int8)
    weights[:, terms] = 127
    taps = (3, 3) if rank == 2 else (1, 3, 3) if rank == 3 else (9,)
    turned = np.moveaxis(weights.reshape(1, *taps, 3), -1, 1)
    x = Held(np.full((1, 3, *taps), 255, np.uint8), of("u8", 1.0, 0))
    held = Held(np.ascontiguousarray(turned), of("i8", 1.0))
    return Product(f"conv{rank}d", x, held, None, of("u8", 2000.0, 0))


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_terms_saturate_two_by_two(rank: int, before: tuple[str, ProcessPoolExecutor]) -> None:
    isa, pool = before
    cases, name = [only(terms, rank) for terms in PAIRS], named("fbgemm")
    with override_profile(profile(name).on(isa)):
        for case, made, code in zip(
            cases, made_by(pool, "fbgemm", cases), PAIRS.values(), strict=True
        ):
            assert made.item() == code
            assert product_of(case, name).item() == code


def test_groups_that_have_kernels_of_their_own_ask_the_processor_and_no_variable() -> None:
    cases = [layer(seed, 2, False) for seed in range(11, 16)]
    with processor("AVX2", "FBGEMM_ENABLE_INSTRUCTIONS") as pool:
        made = made_by(pool, "fbgemm", cases)
    tally = Tally()
    for case, wanted in zip(cases, made, strict=True):
        tally.add(product_of(case, named("fbgemm")), wanted, "a group")
    tally.exact()


def test_engine_x86_asks_fbgemm_for_what_onednn_would_read_too_far(
    before: tuple[str, ProcessPoolExecutor],
) -> None:
    isa, pool = before
    cases = [draws.refitted(replace(layer(seed, 2, False), pad=5)) for seed in range(3, 9)]
    compared(cases, made_by(pool, "x86", cases), named("x86"), isa, cut=0.05).exact()


def wide(seed: int, rank: int) -> tuple[Asked, list[list[int]]]:
    """A transposed convolution whose pairs 16 bits do not hold."""
    rng = np.random.default_rng([seed, rank])
    asked, sides = transposed(rng, rank, False, False)
    w = asked.operands["w"]
    assert w.map is not None
    terms = w.data[:, 0].size // int(str(asked.attrs["groups"]))
    weights, step = draws.weights(rng, terms, *w.data.shape, limit=127)
    if seed % 4 == 3:
        weights, step = rng.integers(-128, 128, w.data.shape).astype(np.int8), 1
    moved = draws.moved(rng, w.map, step) if seed % 5 == 0 else w.map
    held = {"x": asked.operands["x"], "w": Held(weights, moved)}
    return filled(rng, replace(asked, operands=held), sides, step), sides


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_transposed_convolutions_add_pairs_as_their_weights_lie(
    engine: str, rank: int, before: tuple[str, ProcessPoolExecutor]
) -> None:
    isa, pool = before
    held, tally, apart = profile(named(engine)), Tally(), 0
    cases = [wide(seed, rank) for seed in range((40, 24, 24)[rank - 1])]
    made = pool.submit(torchs_many, engine, cases).result()
    for number, ((asked, _), wanted) in enumerate(zip(cases, made, strict=True)):
        with override_profile(held.on(isa)):
            tally.add(computed(asked, held.name), wanted, f"case {number}")
        apart += int(np.count_nonzero(computed(asked, named("fbgemm")) != wanted))
    tally.exact()
    assert apart > 0.01 * tally.total, "pairs that are exact would do"


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_with_vnni_or_by_qnnpack_pairs_are_exact(name: str, rank: int) -> None:
    tally, where = Tally(), named(name)
    if (name, rank) == ("qnnpack", 3):
        return  # which gives other sums
    cases = [wide(seed, rank) for seed in range(8)]
    for (asked, _), wanted in zip(cases, torchs_many(name, cases), strict=True):
        tally.add(computed(asked, where), wanted, f"{asked.attrs}")
    tally.exact()
