"""Depthwise layers of fbgemm, which add pairs of products in 16 bits: every byte."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from qir.profiles import parse, profile
from tests.differential.torch.kernels import (
    F,
    Held,
    Product,
    Tally,
    in_steps,
    of,
    paired,
    product_of,
    random_integers,
    run_product,
)
from tests.differential.torch.profile_in_use import named
from tests.overriding import override_profile

from . import draws_of_torch as draws
from .test_torch_products import claim, conv, linear
from .test_torch_products import pytestmark as here

pytestmark = here
FBGEMM, X86 = named("fbgemm"), named("x86")


def depthwise(seed: int, rank: int, many: bool, *, least: int = 8) -> Product:
    """A layer that has a kernel of its own: any integers and weights, or few, whose sums are
    ties."""
    rng = np.random.default_rng([seed, rank, many])
    channels = least * int(rng.choice([1, 2, 3, 5]))
    times, taps = int(rng.choice([1, 1, 2])), int(rng.choice([3, 3, 5, 7] if rank == 2 else [3]))
    sides = [int(v) for v in rng.integers(3 if rank == 3 else 1, 7, rank)]
    count, terms, shape = channels * times, taps**rank, [taps] * rank
    wide = seed % 2 == 0
    weights, step = draws.weights(rng, terms, count, 1, *shape, limit=127 if wide else 63)
    if seed % 4 == 0:
        weights, step = rng.choice([-128, -127, 126, 127, 1], weights.shape).astype(np.int8), 1
    x, w = draws.maps(rng, count, many=many)
    if seed % 3 == 0:
        w = draws.moved(rng, w, step)
    data = random_integers(rng, "u8", 2, channels, *sides)
    case = Product(
        f"conv{rank}d",
        Held(data, x),
        Held(weights, w),
        None,
        x,
        stride=int(rng.integers(1, 3)),
        pad=taps // 2,
        groups=channels,
        relu=bool(seed & 8),
    )
    return draws.fitted(rng, case, step, draws.in_16_bits)


@pytest.mark.parametrize("many", [False, True], ids=["tensor", "channel"])
@pytest.mark.parametrize("rank", [2, 3])
def test_depthwise_layers_are_fbgemms(rank: int, many: bool) -> None:
    tally, cut, sums = Tally(), 0, 0
    for seed in range(48 if rank == 2 else 24):
        case = depthwise(seed, rank, many)
        tally.see(in_steps(case, paired(case)[0]), case.out)
        tally.add(product_of(case, FBGEMM), run_product("fbgemm", case), f"seed {seed}")
        found, exact = paired(case)
        cut, sums = cut + int((found != exact).sum()), sums + exact.size
    tally.rich()
    assert cut > 0.1 * sums, f"pairs saturate in {cut} of {sums} sums"
    tally.exact()


def large(seed: int) -> Product:
    """A depthwise conv3d of more than 128 taps whose weights have zero points: high integers in its
    windows leave 16 bits as they are added."""
    rng = np.random.default_rng(seed)
    taps, many = int(rng.choice([7, 7, 5])), bool(seed & 1)
    channels = 8 * (int(rng.integers(1, 3)) if seed % 5 else 13)
    data = rng.integers(rng.choice([0, 120, 200]), 256, (1, channels, *[taps + 1] * 3))
    few = int(rng.choice([2, 9, 128]))
    weights = rng.integers(-few, few, (channels, 1, *[taps] * 3)).astype(np.int8)
    zero = rng.integers(-30, 31, channels if many else ())
    scale = F(0.01) * rng.choice([1, 2], zero.shape).astype(F)
    x, w = of("u8", 0.05, int(rng.integers(0, 256))), of("i8", scale, zero, 0 if many else None)
    out = of("u8", F(0.05 * 0.01 * rng.choice([64, 512, 2048])), 121)
    held = Held(data.astype(np.uint8), x), Held(weights, w)
    stride = int(rng.integers(1, 3))
    return Product("conv3d", *held, None, out, stride, pad=taps // 2, groups=channels)


def test_codes_of_large_windows_saturate_beside_zero_points_of_weights() -> None:
    tally, cut = Tally(), 0
    for seed in range(20):
        case = large(seed)
        for name in ("fbgemm", "x86") if case.groups > 100 else ("fbgemm",):
            made = product_of(case, named(name))
            tally.add(made, run_product(name, case), f"seed {seed}, {name}")
        cut += int((made != product_of(case, named("onednn"))).sum())
    tally.exact()
    assert cut > 0.1 * tally.total, f"{cut} of {tally.total} have other codes of exact sums"


@pytest.mark.parametrize(("code", "off"), [(222, 0), (223, 14), (255, 255)])
def test_the_integers_of_a_window_end_at_32767(code: int, off: int) -> None:
    data = np.full((1, 8, 7, 9, 9), code, np.uint8)
    held = Held(data, of("u8", 1.0, 0)), Held(np.ones((8, 1, 7, 7, 7), np.int8), of("i8", 1.0, 1))
    held[0].data[:, :, :2] = held[0].data[:, :, 5:] = 0
    case = Product("conv3d", *held, None, of("u8", 1.0, 0), pad=3, groups=8)
    assert run_product("fbgemm", case)[0, 0, 3, 4, 4] == off
    assert product_of(case, FBGEMM)[0, 0, 3, 4, 4] == off


@pytest.mark.parametrize("rank", [2, 3])
def test_depthwise_layers_of_engine_x86_are_fbgemms_above_a_hundred_groups(rank: int) -> None:
    tally = Tally()
    for seed in range(8):
        case = depthwise(seed, rank, bool(seed & 1), least=104)
        tally.add(product_of(case, X86), run_product("x86", case), f"seed {seed}")
    tally.exact()


@pytest.mark.parametrize("rank", [2, 3])
def test_engine_onednn_sums_them_exactly(rank: int) -> None:
    tally = Tally()
    for seed in range(8):
        case = depthwise(seed, rank, bool(seed & 1), least=104)
        assert case.w.map is not None
        plain = replace(case.w.map, zero=np.zeros_like(case.w.map.zero))
        case = replace(case, w=Held(case.w.data, plain))
        found = product_of(case, named("onednn"))
        tally.add(found, run_product("onednn", case), f"seed {seed}")
    tally.within("within:1:0.001")


TAPS = {(0, 1): 16, (1, 2): 32, (2, 3): 16, (0, 4): 32, (8,): 16, tuple(range(9)): 82}
"""Which of nine taps weigh 127, and the code of a sum of them: data 255, a step of 2,000."""


@pytest.mark.parametrize("taps", TAPS, ids=str)
def test_taps_saturate_two_by_two(taps: tuple[int, ...]) -> None:
    weights = np.zeros((8, 1, 9), np.int8)
    weights[:, :, taps] = 127
    held = Held(weights.reshape(8, 1, 3, 3), of("i8", 1.0))
    x = Held(np.full((1, 8, 5, 5), 255, np.uint8), of("u8", 1.0, 0))
    case = Product("conv2d", x, held, None, of("u8", 2000.0, 0), pad=1, groups=8)
    for made in (run_product("fbgemm", case), product_of(case, FBGEMM)):
        assert made[0, 0, 2, 2] == TAPS[taps]


SHAPES = [(4, 1, 1), (12, 1, 1), (8, 1, 3), (8, 2, 2), (8, 1, 1), (8, 3, 3)]
"""Groups, and the channels and results of each."""
WINDOWS = [(3, 1, 1, 1), (3, 0, 1, 1), (3, 1, 3, 1), (3, 1, 1, 2), (2, 1, 1, 1), (5, 1, 2, 1)]
"""Taps, pad, stride and dilation; the first is that of a kernel of its own."""


def beside(seed: int) -> Product:
    """A grouped layer that is all but one that has a kernel of its own."""
    rng = np.random.default_rng(seed)
    many = bool(seed & 1)
    groups, into, outof = SHAPES[seed % len(SHAPES)]
    own = (groups, into, outof) == (8, 1, 1)
    taps, pad, stride, dilation = WINDOWS[int(rng.integers(own, len(WINDOWS)))]
    shape = groups * outof, into, taps, taps
    weights, step = draws.weights(rng, into * taps**2, *shape, limit=127)
    x, w = draws.maps(rng, len(weights), many=many)
    data = random_integers(rng, "u8", 2, groups * into, 7, 8)
    sides = (stride, pad, dilation, groups)
    case = Product("conv2d", Held(data, x), Held(weights, w), None, x, *sides)
    return draws.fitted(rng, case, step)


def test_layers_beside_them_are_summed_exactly() -> None:
    tally = Tally()
    for seed in range(36):
        case = beside(seed)
        tally.add(product_of(case, FBGEMM), run_product("fbgemm", case), f"seed {seed}")
    tally.exact()


def volume(seed: int) -> Product:
    """A depthwise conv3d whose scales are powers of two and small multiples of them."""
    rng = np.random.default_rng(seed)
    channels, many = int(rng.choice([2, 3, 7, 8, 9, 16, 17])), bool(seed & 1)
    x = of("u8", 0.125, int(rng.integers(0, 256)))
    data = random_integers(rng, "u8", 1, channels, *rng.integers(5, 8, 3))
    scale = 2.0 ** rng.integers(-3, 2, channels if many else ())
    w = of("i8", scale, 0, 0 if many else None)
    weights, step = draws.weights(rng, 27, channels, 1, 3, 3, 3, limit=127)
    sides = int(rng.integers(1, 3)), int(rng.integers(0, 3)), int(rng.integers(1, 3)), channels
    case = Product("conv3d", Held(data, x), Held(weights, w), None, x, *sides)
    return draws.fitted(rng, case, step)


def test_volumes_of_qnnpack_are_rounded_once() -> None:
    tally, name = Tally(), named("qnnpack")
    parsed = parse(FIRST, "first.toml", profile)
    twice = 0
    for seed in range(120):
        case = volume(seed)
        made = product_of(case, name)
        tally.add(made, run_product("qnnpack", case), f"seed {seed}")
        with override_profile(parsed):
            twice += int((product_of(case, parsed.name) != made).sum())
    tally.exact()
    assert twice > 20, "a sum that is rounded to float32 first gives the same"


FIRST = f"""name = "first"
extends = "{named("qnnpack")}"

[[rule]]
op = "conv3d"
requant = {{multiplier = "f32"}}
"""


def beyond(seed: int, rank: int, *, shifted: bool = True) -> Product:
    """A layer of more than 100 groups, or of weights with zero points, its sums rich in ties."""
    rng = np.random.default_rng([seed, rank])
    many, apart = bool(seed & 1), shifted and seed % 3 == 0
    groups, into = 1, int(rng.integers(1, 9))
    if not apart:
        groups, into = int(rng.integers(101, 110)), int(rng.integers(1, 3))
    outof, taps = (1 if groups > 1 else 4), int(rng.choice([1, 2, 4]))
    data = random_integers(rng, "u8", 1, groups * into, *rng.integers(5, 8, rank))
    shape, most = (groups * outof, into, *[taps] * rank), 127 if seed % 4 == 3 else 63
    weights, step = draws.weights(rng, into * taps**rank, *shape, limit=most)
    x, w = draws.maps(rng, len(weights), many=many)
    if apart:
        w = draws.moved(rng, w, step)
    sides = int(rng.integers(1, 3)), 0, 1, groups
    held = Held(data, x), Held(weights, w)
    case = Product(f"conv{rank}d", *held, None, x, *sides, relu=bool(seed & 2))
    return draws.fitted(rng, case, step)


def full(seed: int, rank: int) -> Product:
    """A layer of several channels a group, any integers and weights: pairs leave 16 bits."""
    rng = np.random.default_rng([seed, rank])
    groups, into, outof = int(rng.integers(1, 3)), int(rng.integers(2, 9)), int(rng.integers(2, 6))
    data = random_integers(rng, "u8", 2, groups * into, *rng.integers(4, 7, rank))
    shape = groups * outof, into, *[3] * rank
    weights, step = draws.weights(rng, into * 3**rank, *shape, limit=127)
    x, w = draws.maps(rng, len(weights), many=True)
    case = Product(f"conv{rank}d", Held(data, x), Held(weights, w), None, x, groups=groups)
    return draws.fitted(rng, case, step)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_what_x86_does_not_ask_onednn_is_fbgemms(rank: int) -> None:
    tally = Tally()
    for seed in range(24):
        case = beyond(seed, rank)
        tally.add(product_of(case, X86), run_product("x86", case), f"seed {seed}")
    tally.exact()


@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_layers_of_several_channels_are_summed_exactly(name: str) -> None:
    tally = Tally()
    for seed, rank in ((seed, rank) for seed in range(6) for rank in (1, 2, 3)):
        case = full(seed, rank)
        tally.add(product_of(case, named(name)), run_product(name, case), f"seed {seed}")
    tally.exact()


# -- biases of qnnpack ----------------------------------------------------------------------------


def between(op: str, seed: int) -> list[Product]:
    """Layers whose biases lie half way between two sums, volumes of channels apart among them."""
    found = []
    for many in (False, True):
        found.append(linear(seed, many) if op == "linear" else conv(seed, many, int(op[4])))
        found += [depthwise(seed, 3, many)] if op == "conv3d" else []
    return [draws.between(case) for case in found]


def far(op: str, seed: int) -> list[Product]:
    """Layers whose biases do not fit 32 bits in the unit of their sums, as where all data are zero:
    each ends there, and sums turn round."""
    rng, found = np.random.default_rng(seed), []
    for many in (False, True):
        case = linear(seed, many) if op == "linear" else conv(seed, many, int(op[4]))
        assert case.x.map is not None
        assert case.w.map is not None
        x = replace(case.x.map, scale=np.asarray(F(2.0**-23)))
        unit = np.asarray(x.scale * case.w.map.scale, np.float64)
        ends = np.array([-4.0, -1.5, 1.5, 4.0])
        if op == "conv3d" or case.w.data[0].size > case.w.data.shape[1]:
            ends = ends[:2]  # there a sum of nothing turns round at the upper end
        real = rng.choice(ends, len(case.w.data)) * 2.0**31 * unit
        out = of("u8", F(unit.max() * 2.0**24), 121)
        held = Held(case.x.data, x)
        found.append(replace(case, x=held, bias=real.astype(F), out=out, summand=None))
    return found


@pytest.mark.parametrize("op", ["linear", "conv1d", "conv2d", "conv3d"])
def test_a_bias_beyond_32_bits_ends_there_by_qnnpack(op: str) -> None:
    tally = Tally()
    for case in [one for seed in range(8) for one in far(op, seed)]:
        tally.add(product_of(case, named("qnnpack")), run_product("qnnpack", case), op)
    tally.within(claim("qnnpack", op, False))


@pytest.mark.parametrize("op", ["linear", "conv1d", "conv2d", "conv3d"])
def test_a_bias_half_way_between_two_sums_becomes_that_of_qnnpack(op: str) -> None:
    tally, apart = Tally(), 0
    for case in [one for seed in range(8) for one in between(op, seed)]:
        wanted = run_product("qnnpack", case)
        tally.add(product_of(case, named("qnnpack")), wanted, op)
        apart += int(np.count_nonzero(product_of(case, FBGEMM) != wanted))
    tally.within(claim("qnnpack", op, False))
    assert apart > 0.01 * tally.total, "biases as they are would have done"
