"""Convolutions of fbgemm on processors before VNNI: pairs of products are added in 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.numerics import Query, profile
from qir.numerics.library import replaced

from .kernels_of_torch import (
    Array,
    Asked,
    F,
    Held,
    Product,
    Tally,
    computed,
    of,
    older,
    processor,
    product_of,
)
from .test_torch_depthwise import depthwise
from .test_torch_layers import torchs_many, transposed
from .test_torch_processors import wide as any_weights
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
    """Any codes and weights, or the ends of both, or multiples of 16, whose sums are often ties."""
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
    data = rng.integers(0, 256, (1, groups * into, *sides))
    weights = rng.integers(-128, 128, (count, into, *[taps] * rank))
    zero, wide = int(rng.choice([0, 255, int(rng.integers(0, 256))])), kind != 2
    if kind == 1:
        data = rng.choice([0, 128, 250, 255], data.shape)
        weights = rng.choice([-128, -127, 126, 127, 1], weights.shape)
    if not wide:
        data, weights, zero = data // 16 * 16, weights // 16 * 16, zero // 16 * 16
    x, base = of("u8", F(rng.uniform(0.01, 0.1)), zero), F(rng.uniform(0.001, 0.05))
    scale = np.nextafter(base, rng.choice([0, 1, 10], count).astype(F)) if many else base
    shift = rng.integers(-9, 10, scale.shape if many else ()) if seed % 5 == 0 and wide else 0
    ratio = 2.0 ** (rng.integers(6, 10) if wide else rng.integers(9, 11))
    out = of("u8", F(x.scale * base * ratio), int(rng.integers(60, 200)) | 1)
    bias = None
    if rng.random() < 0.6:
        bias = np.asarray(rng.integers(-80, 80, count) * 256 * (x.scale * scale), F)
    held = Held(data.astype(np.uint8), x), Held(weights.astype(np.int8), of("i8", scale, shift, 0))
    if not many:
        held = held[0], Held(held[1].data, of("i8", scale, shift))
    sizes = (stride, pad, dilation, groups)
    return Product(f"conv{rank}d", *held, bias, out, *sizes, relu=bool(seed & 8))


def paired(case: Product) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Sums of pairs that end at 16 bits, and exact ones, by a formula of its own: windows as torch
    unfolds them, the channels of a group last."""
    assert case.x.map is not None
    assert case.w.map is not None
    x, taps = torch.from_numpy(case.x.data.astype(np.int64)), case.w.data.shape[2:]
    n, zero = len(taps), int(case.x.map.zero)
    x = torch.nn.functional.pad(x, [case.pad] * 2 * n, value=zero)
    for axis, size in enumerate(taps):
        x = x.unfold(2 + axis, (size - 1) * case.dilation + 1, case.stride)[..., :: case.dilation]
    split = x.reshape(len(x), case.groups, -1, *x.shape[2:])
    windows = split.permute(0, 1, *range(3, 3 + 2 * n), 2).flatten(2 + n).numpy()
    windows = np.repeat(windows, len(case.w.data) // case.groups, axis=1)
    row = np.moveaxis(case.w.data.astype(np.int64), 1, -1).reshape(1, len(case.w.data), 1, -1)
    products = windows.reshape(*windows.shape[:2], -1, windows.shape[-1]) * row
    odd = np.zeros((*products.shape[:-1], products.shape[-1] % 2), np.int64)
    pairs = np.concatenate([products, odd], -1)
    pairs = pairs.reshape(*pairs.shape[:-1], -1, 2).sum(-1)
    shift = np.broadcast_to(case.w.map.zero, row.shape[1]).reshape(-1, 1)
    seen = windows.reshape(*products.shape).sum(-1) * shift
    moved = seen + zero * (row.sum(-1) - shift * row.shape[-1])
    shape = (*windows.shape[:2], *windows.shape[2:-1])
    lost = (np.clip(pairs, -32768, 32767) - pairs).sum(-1)
    exact = pairs.sum(-1) - moved
    return (exact + lost).reshape(shape), exact.reshape(shape)


def reals(case: Product) -> NDArray[np.float64]:
    """The result in units of its code."""
    assert case.x.map is not None
    assert case.w.map is not None
    shape = (1, -1, *[1] * (case.x.data.ndim - 2))
    step = case.x.map.scale.astype(np.float64) * case.w.map.scale.astype(np.float64)
    real = paired(case)[0] * (step.reshape(shape) if step.ndim else step)
    if case.bias is not None:
        real = real + case.bias.astype(np.float64).reshape(shape)
    return np.asarray(real / float(case.out.scale))


def compared(
    cases: list[Product], made: list[Array], name: str, isa: str, *, cut: float = 0.1
) -> Tally:
    tally, apart, sums = Tally(), 0, 0
    with replaced(profile(name).on(isa)):
        for number, (case, wanted) in enumerate(zip(cases, made, strict=True)):
            tally.see(reals(case), case.out)
            tally.add(product_of(case, name), wanted, f"case {number}")
            found, exact = paired(case)
            apart, sums = apart + int((found != exact).sum()), sums + exact.size
    assert apart > cut * sums, f"pairs saturate in {apart} of {sums} sums"
    return tally


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_convolutions_add_pairs_as_windows_lie_in_memory(
    engine: str, rank: int, many: bool, before: tuple[str, ProcessPoolExecutor]
) -> None:
    isa, pool = before
    name = f"torch-2.13.{engine}"
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
    compared(cases, made_by(pool, "fbgemm", cases), "torch-2.13.fbgemm", isa).exact()


@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_linear_layers_add_pairs_too(engine: str, before: tuple[str, ProcessPoolExecutor]) -> None:
    isa, pool = before
    tally, held = Tally(), profile(f"torch-2.13.{engine}")
    cases = [any_weights(linear(seed, many)) for seed in range(8) for many in (False, True)]
    with replaced(held.on(isa)):
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
    cases, name = [only(terms, rank) for terms in PAIRS], "torch-2.13.fbgemm"
    with replaced(profile(name).on(isa)):
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
        tally.add(product_of(case, "torch-2.13.fbgemm"), wanted, "a group")
    tally.exact()


def test_engine_x86_asks_fbgemm_for_what_onednn_would_read_too_far(
    before: tuple[str, ProcessPoolExecutor],
) -> None:
    isa, pool = before
    cases = [replace(layer(seed, 2, False), pad=5) for seed in range(3, 9)]
    compared(cases, made_by(pool, "x86", cases), "torch-2.13.x86", isa, cut=0.05).exact()


def wide(seed: int, rank: int) -> tuple[Asked, list[list[int]]]:
    """A transposed convolution whose pairs 16 bits do not hold."""
    rng = np.random.default_rng([seed, rank])
    asked, sides = transposed(rng, rank, False, False)
    w, out = asked.operands["w"], asked.out
    assert w.map is not None
    assert out is not None
    weights = rng.integers(-128, 128, w.data.shape).astype(np.int8)
    shift = int(rng.integers(1, 9)) if seed % 5 == 0 else 0
    held = Held(weights, of("i8", w.map.scale, shift))
    larger = of("u8", F(out.scale * 64), int(out.zero))
    return replace(asked, operands={**asked.operands, "w": held}, out=larger), sides


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("engine", ["fbgemm", "x86"])
def test_transposed_convolutions_add_pairs_as_their_weights_lie(
    engine: str, rank: int, before: tuple[str, ProcessPoolExecutor]
) -> None:
    isa, pool = before
    held, tally, apart = profile(f"torch-2.13.{engine}"), Tally(), 0
    cases = [wide(seed, rank) for seed in range((40, 24, 12)[rank - 1])]
    made = pool.submit(torchs_many, engine, cases).result()
    for number, ((asked, _), wanted) in enumerate(zip(cases, made, strict=True)):
        with replaced(held.on(isa)):
            tally.add(computed(asked, held.name), wanted, f"case {number}")
        apart += int(np.count_nonzero(computed(asked, "torch-2.13.fbgemm") != wanted))
    tally.exact()
    assert apart > 0.01 * tally.total, "pairs that are exact would do"


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_with_vnni_or_by_qnnpack_pairs_are_exact(name: str, rank: int) -> None:
    tally, where = Tally(), f"torch-2.13.{name}"
    if (name, rank) == ("qnnpack", 3):
        return  # which gives other sums
    cases = [wide(seed, rank) for seed in range(8)]
    for (asked, _), wanted in zip(cases, torchs_many(name, cases), strict=True):
        tally.add(computed(asked, where), wanted, f"{asked.attrs}")
    tally.exact()
