"""Convolutions and products of integers, against sums in 64 bits."""

from dataclasses import dataclass
from itertools import product as product_of

import numpy as np
import pytest
from numpy.typing import NDArray

from . import formulas
from .one import BOUNDS, CODES, ISAS, one, random_integers

F32 = np.float32


@dataclass(frozen=True)
class Case:
    """One convolution with all that decides its bytes."""

    x: NDArray[np.uint8 | np.int8]
    weight: NDArray[np.int8]
    bias: NDArray[np.int32] | None
    multiplier: NDArray[np.float32]
    stride: tuple[int, ...] = (1, 1)
    pad: tuple[int, ...] = (0, 0, 0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1
    x_zero: int = 0
    y_type: str = "u8"
    y_zero: int = 0
    low: int | None = None
    high: int | None = None
    offset: NDArray[np.int32] | None = None

    def sums(self) -> formulas.Ints:
        weight: NDArray[np.generic] = self.weight
        if self.offset is not None:
            weight = weight.astype(np.int64) + self.offset[:, None, None, None]
        acc = formulas.accumulate(
            self.x, weight, self.stride, self.pad, self.dilation, self.groups, self.x_zero
        )
        return acc if self.bias is None else acc + self.bias

    def floats(self) -> formulas.Floats:
        with np.errstate(all="ignore"):
            return (formulas.wrapped(self.sums()) * self.multiplier).astype(F32)

    def expected(self) -> NDArray[np.uint8 | np.int8 | np.float32]:
        if self.y_type == "f32":
            return self.floats()
        low, high = BOUNDS[self.y_type]
        low = low if self.low is None else self.low
        high = high if self.high is None else self.high
        return formulas.rounded(self.floats(), self.y_zero, low, high).astype(CODES[self.y_type])

    def run(self, isa: str, threads: int = 1) -> NDArray[np.generic]:
        expected = self.expected()
        bounds = {} if self.y_type == "f32" else {"low": self.low, "high": self.high}
        return one(
            "conv2d",
            [self.x],
            expected.shape,
            expected.dtype.type,
            self.weight,
            self.bias,
            self.multiplier,
            isa=isa,
            threads=threads,
            shape=self.x.shape,
            stride=self.stride,
            pad=self.pad,
            dilation=self.dilation,
            groups=self.groups,
            x_type="u8" if self.x.dtype == np.uint8 else "i8",
            x_zero=self.x_zero,
            y_type=self.y_type,
            y_zero=self.y_zero,
            offset=self.offset,
            **bounds,
        )

    def check(self, seed: object, isas: list[str] = ISAS, threads: tuple[int, ...] = (1,)) -> None:
        expected = self.expected()
        for isa in isas:
            for count in threads:
                got = self.run(isa, count)
                wrong = int((got.view(np.uint8) != expected.view(np.uint8)).sum())
                assert wrong == 0, f"seed {seed}, {isa}, {count} threads: {wrong} bytes differ"


def some_scale(rng: np.random.Generator, weight: NDArray[np.int8]) -> NDArray[np.float32]:
    """Multipliers that spread results over the integers and somewhat beyond."""
    reach = 90.0 * 75.0 * weight[0].size ** 0.5
    scale: NDArray[np.float64] = rng.uniform(30, 150, weight.shape[0]) / reach
    return scale.astype(F32)


def product(rng: np.random.Generator, m: int, n: int, k: int) -> Case:
    weight = rng.integers(-128, 128, (n, k, 1, 1)).astype(np.int8)
    kind, result = (str(rng.choice(["u8", "i8"])) for _ in range(2))
    return Case(
        random_integers(rng, kind, (m, 1, 1, k)),
        weight,
        rng.integers(-9999, 9999, n).astype(np.int32),
        some_scale(rng, weight),
        x_zero=int(random_integers(rng, kind, ())),
        y_type=result,
        y_zero=int(random_integers(rng, result, ())),
    )


def first_layer(rng: np.random.Generator) -> Case:
    """A convolution of 3 by 3 taps and three channels, of up to two panels and a tail."""
    pick = rng.integers
    out = int(pick(1, 100))
    kind, result = (str(rng.choice(["u8", "i8"])) for _ in range(2))
    weight = pick(-128, 128, (out, 3, 3, 3)).astype(np.int8)
    pad = tuple(int(v) for v in pick(0, 3, 4))
    low, high = sorted(int(v) for v in random_integers(rng, result, (2,)))
    clipped = rng.random() < 0.5
    return Case(
        random_integers(rng, kind, (int(pick(1, 3)), int(pick(3, 40)), int(pick(3, 80)), 3)),
        weight,
        pick(-9999, 9999, out).astype(np.int32) if rng.random() < 0.8 else None,
        some_scale(rng, weight)[: None if rng.random() < 0.7 else 1],
        tuple(int(v) for v in pick(1, 4, 2)),
        pad,
        x_zero=int(random_integers(rng, kind, ())),
        y_type=result,
        y_zero=int(random_integers(rng, result, ())),
        low=low if clipped else None,
        high=high if clipped else None,
    )


GROUP_WIDTHS = (1, 2, 3, 4, 8, 12, 16, 20, 24, 32, 40)


def picture(rng: np.random.Generator, depthwise: bool = False, narrow: bool = False) -> Case:
    """A random small convolution; `narrow` has as many output as input channels in each group."""
    pick = rng.integers
    if depthwise:
        groups = int(pick(1, 140))
        taken, out = 1, groups
    elif narrow:
        taken = int(rng.choice(GROUP_WIDTHS))
        groups = int(pick(2, 3 + 160 // taken))
        out = taken * groups
    else:
        groups = int(rng.choice([1, 1, 1, 2, 3]))
        taken, out = int(pick(1, 40)), groups * int(pick(1, 90))
    kernel = (3, 3) if rng.random() < 0.4 else tuple(int(v) for v in pick(1, 6, 2))
    dilation = tuple(int(v) for v in pick(1, 3, 2)) if rng.random() < 0.3 else (1, 1)
    pad = tuple(int(v) for v in pick(0, 4, 4))
    least = [
        max(1, d * (k - 1) + 1 - p - q)
        for k, d, p, q in zip(kernel, dilation, pad[:2], pad[2:], strict=True)
    ]
    h, w = (int(v) + int(pick(0, 12)) for v in least)
    kind, result = (str(rng.choice(["u8", "i8"])) for _ in range(2))
    weight = pick(-128, 128, (out, taken, *kernel)).astype(np.int8)
    low, high = sorted(int(v) for v in random_integers(rng, result, (2,)))
    clipped = rng.random() < 0.5
    return Case(
        random_integers(rng, kind, (int(pick(1, 3)), h, w, groups * taken)),
        weight,
        pick(-9999, 9999, out).astype(np.int32) if rng.random() < 0.8 else None,
        some_scale(rng, weight)[: None if rng.random() < 0.7 else 1],
        tuple(int(v) for v in pick(1, 4, 2)),
        pad,
        dilation,
        groups,
        int(random_integers(rng, kind, ())),
        result,
        int(random_integers(rng, result, ())),
        low if clipped else None,
        high if clipped else None,
    )


@pytest.mark.parametrize("isa", ISAS)
def test_every_size_up_to_seventy_is_exact(isa: str) -> None:
    rng = np.random.default_rng(70)
    for size in range(1, 71):
        for m, n, k in ((size, 67, 33), (29, size, 37), (13, 66, size), (size, size, size)):
            product(rng, m, n, k).check((70, m, n, k), [isa])


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions_are_exact(seed: int) -> None:
    picture(np.random.default_rng(seed)).check(seed, threads=(1, 2, 3))


@pytest.mark.parametrize("seed", range(60))
def test_random_first_layers_are_exact(seed: int) -> None:
    first_layer(np.random.default_rng(seed)).check(seed, threads=(1, 3))


@pytest.mark.parametrize("seed", range(60))
def test_random_depthwise_convolutions_are_exact(seed: int) -> None:
    picture(np.random.default_rng(seed), depthwise=True).check(seed, threads=(1, 2, 3))


@pytest.mark.parametrize("seed", range(60))
def test_random_convolutions_of_narrow_groups_are_exact(seed: int) -> None:
    picture(np.random.default_rng(seed), narrow=True).check(seed, threads=(1, 2, 3))


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_of_narrow_groups_is_exact(isa: str) -> None:
    rng = np.random.default_rng(72)
    for taken in GROUP_WIDTHS:
        for groups in range(2, 4 + 70 // taken):
            shape = (1, 5, int(rng.integers(1, 14)), groups * taken)
            weight = rng.integers(-128, 128, (shape[3], taken, 3, 3)).astype(np.int8)
            for result in ("i8", "f32"):
                Case(
                    random_integers(rng, "i8", shape),
                    weight,
                    None,
                    some_scale(rng, weight),
                    pad=(1, 1, 1, 1),
                    groups=groups,
                    x_zero=-9,
                    y_type=result,
                ).check((72, taken, groups, shape), [isa])


@pytest.mark.parametrize(
    ("shape", "kernel", "pad", "stride"),
    [
        ((1, 1, 1300, 16), (1, 3), (0, 1, 0, 1), (1, 1)),  # lines in parts
        ((1, 1, 1300, 16), (1, 5), (0, 600, 0, 9), (1, 2)),  # of which one is all padding
        ((1, 64, 48, 64), (3, 3), (1, 1, 1, 1), (1, 1)),  # several tasks of rows
        ((1, 9, 9, 352), (3, 3), (1, 1, 1, 1), (1, 1)),  # and of channels
        ((3, 2, 2, 32), (3, 3), (4, 4, 4, 4), (2, 2)),  # windows in the padding alone
    ],
)
def test_large_convolutions_of_narrow_groups_do_not_depend_on_threads(
    shape: tuple[int, ...],
    kernel: tuple[int, int],
    pad: tuple[int, ...],
    stride: tuple[int, int],
) -> None:
    rng = np.random.default_rng(73)
    for taken in (4, 16):
        weight = rng.integers(-128, 128, (shape[3], taken, *kernel)).astype(np.int8)
        Case(
            random_integers(rng, "u8", shape),
            weight,
            None,
            some_scale(rng, weight),
            stride,
            pad,
            groups=shape[3] // taken,
            x_zero=77,
            y_zero=128,
        ).check((73, taken), threads=(1, 2, 3, 7))


@pytest.mark.parametrize("isa", ISAS)
def test_every_number_of_channels_up_to_seventy_is_exact_in_depthwise(isa: str) -> None:
    rng = np.random.default_rng(71)
    for c in range(1, 71):
        for stride, kernel in (
            ((1, 1), (3, 3)),
            ((2, 2), (3, 3)),
            ((1, 2), (5, 2)),
            ((1, 1), (5, 5)),
        ):
            x = random_integers(rng, "u8", (1, 7, 9, c))
            weight = rng.integers(-128, 128, (c, 1, *kernel)).astype(np.int8)
            Case(
                x,
                weight,
                None,
                some_scale(rng, weight),
                stride,
                (1, 1, 1, 1),
                groups=c,
                x_zero=131,
                y_zero=7,
            ).check((71, c, stride), [isa])


@pytest.mark.parametrize("far", [30, 100, 300])
def test_narrow_groups_with_windows_of_any_reach_are_exact(far: int) -> None:
    rng = np.random.default_rng(75)
    weight = rng.integers(-128, 128, (8, 4, 2, 3)).astype(np.int8)
    Case(
        random_integers(rng, "u8", (1, 2, 3, 8)),
        weight,
        None,
        some_scale(rng, weight),
        (1, 2),
        (far, far, 0, far),
        (far, far),
        groups=2,
        x_zero=9,
        y_zero=128,
    ).check((75, far))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("size", [3, 5])
def test_depthwise_windows_may_lie_on_padding_beside_a_line(
    isa: str, stride: int, size: int
) -> None:
    rng = np.random.default_rng(74)
    for c in (24, 32, 100):
        weight = rng.integers(-128, 128, (c, 1, size, size)).astype(np.int8)
        for left, right in product_of(range(size // 2 + 2), repeat=2):
            kind = str(rng.choice(["u8", "i8"]))
            for w in {max(1, size - left - right), *rng.integers(size, 4 * size, 2).tolist()}:
                Case(
                    random_integers(rng, kind, (1, 4, w, c)),
                    weight,
                    None,
                    some_scale(rng, weight),
                    (1, stride),
                    (size // 2, left, size // 2, right),
                    groups=c,
                    x_zero=int(random_integers(rng, kind, ())),
                    y_type=str(rng.choice(["u8", "i8", "f32"])),
                    low=3 if rng.random() < 0.3 else None,
                ).check((74, c, left, right, w), [isa])


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("groups", [1, 9, 18, 36, 72])
def test_extreme_integers_and_weights_do_not_saturate_on_the_way(kind: str, groups: int) -> None:
    rng = np.random.default_rng(5)
    for x_ends, w_low, w_high in ((True, -128, 127), (True, -128, -128), (True, 127, 127)):
        x = random_integers(rng, kind, (1, 5, 5, 72), ends=x_ends)
        for full in (x, np.full_like(x, BOUNDS[kind][0]), np.full_like(x, BOUNDS[kind][1])):
            weight = rng.choice([w_low, w_high], (72, 72 // groups, 3, 3)).astype(np.int8)
            scale = np.asarray([100 / (255 * 128 * weight[0].size)], F32)
            for zero in BOUNDS[kind]:
                Case(
                    full,
                    weight,
                    None,
                    scale,
                    pad=(1, 1, 1, 1),
                    groups=groups,
                    x_zero=zero,
                    y_zero=128,
                ).check((5, zero))


@pytest.mark.parametrize("k", [66312, 80001])
def test_sums_wrap_modulo_two_to_the_32(k: int) -> None:
    x = np.full((3, 1, 1, k), 255, np.uint8)
    weight = np.full((18, k, 1, 1), 127, np.int8)
    case = Case(x, weight, None, np.asarray([2e-8], F32), y_zero=99)
    assert abs(case.sums()).max() > 2**31
    case.check(k)


def test_a_bias_at_the_end_of_its_range_wraps() -> None:
    rng = np.random.default_rng(8)
    bias = np.where(rng.random(24) < 0.5, 2**31 - 1, -(2**31)).astype(np.int32)
    for groups in (1, 6, 24):
        weight = rng.integers(-128, 128, (24, 24 // groups, 3, 3)).astype(np.int8)
        Case(
            random_integers(rng, "u8", (1, 6, 6, 24)),
            weight,
            bias,
            np.asarray([3e-8], F32),
            groups=groups,
            x_zero=3,
            y_zero=100,
        ).check(8)


@pytest.mark.parametrize("groups", [1, 20, 80])
@pytest.mark.parametrize("kind", ["u8", "i8"])
def test_halves_round_to_even_and_ends_saturate(kind: str, groups: int) -> None:
    rng = np.random.default_rng(2)
    x = random_integers(rng, "u8", (2, 9, 9, 80))
    weight = rng.integers(-7, 8, (80, 80 // groups, 2, 1)).astype(np.int8)
    weight[:, 2:] = 0  # sums of many would leave the range
    for zero in (BOUNDS[kind][0] + 7, BOUNDS[kind][1] - 20):
        case = Case(
            x,
            weight,
            None,
            np.asarray([0.5], F32),
            groups=groups,
            x_zero=127,
            y_type=kind,
            y_zero=zero,
        )
        expected = case.expected()
        inside = (expected > BOUNDS[kind][0]) & (expected < BOUNDS[kind][1])
        assert np.mean(inside & (case.floats() % 1 == 0.5)) > 0.05
        assert np.mean(expected == BOUNDS[kind][0]) > 0.05
        assert np.mean(expected == BOUNDS[kind][1]) > 0.05
        case.check(2)


@pytest.mark.parametrize("groups", [1, 17, 68])
@pytest.mark.parametrize(
    "value", [1e30, -1e30, 1e6, 3.4e38, np.inf, -np.inf, np.nan, 1e-40, 0.0, -0.0]
)
def test_multipliers_beyond_all_measure_give_the_end_integers(value: float, groups: int) -> None:
    rng = np.random.default_rng(3)
    for size in (1, 3, 5):
        weight = rng.integers(-2, 3, (68, 68 // groups, size, size)).astype(np.int8)
        for kind in ("u8", "i8"):
            for low, high in ((None, None), (-100, 100) if kind == "i8" else (9, 77)):
                Case(
                    random_integers(rng, "u8", (1, 6, 6, 68)),
                    weight,
                    None,
                    np.asarray([value], F32),
                    groups=groups,
                    x_zero=128,
                    y_type=kind,
                    y_zero=33,
                    low=low,
                    high=high,
                ).check(3)


@pytest.mark.parametrize("n", [1, 16, 40, 64, 100, 128])
def test_float_results_keep_all_their_bits(n: int) -> None:
    rng = np.random.default_rng(n)
    for k in (3, 64, 129):
        weight = rng.integers(-128, 128, (n, k, 1, 1)).astype(np.int8)
        bias = rng.integers(-(2**30), 2**30, n).astype(np.int32)
        Case(
            random_integers(rng, "i8", (31, 1, 1, k)),
            weight,
            bias,
            rng.normal(0, 1e-3, n).astype(F32),
            x_zero=-9,
            y_type="f32",
        ).check((n, k), threads=(1, 2))


@pytest.mark.parametrize("isa", ISAS)
def test_large_products_do_not_depend_on_threads(isa: str) -> None:
    rng = np.random.default_rng(11)
    for m, n, k in ((784, 130, 64), (49, 600, 96), (1, 1000, 128), (1100, 24, 16)):
        product(rng, m, n, k).check((11, m), [isa], threads=(1, 2, 3, 7))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("k", [8, 12, 16, 24, 32, 36])
def test_panels_of_few_weights_are_exact(isa: str, k: int) -> None:
    rng = np.random.default_rng(k)
    for n in (16, 17, 24, 32, 47, 48, 64, 80, 96, 112):
        for m in (1, 3, 4, 5, 13, 385):
            product(rng, m, n, k).check((k, n, m), [isa])


@pytest.mark.parametrize("isa", ISAS)
def test_first_layers_of_three_channels_are_exact(isa: str) -> None:
    rng = np.random.default_rng(3)
    for out in (8, 16, 32, 40, 64):
        for h, w, stride in ((9, 11, 2), (8, 7, 1), (23, 30, 2)):
            weight = rng.integers(-128, 128, (out, 3, 3, 3)).astype(np.int8)
            for kind in ("u8", "i8"):
                Case(
                    random_integers(rng, kind, (2, h, w, 3)),
                    weight,
                    rng.integers(-9999, 9999, out).astype(np.int32),
                    some_scale(rng, weight),
                    (stride, stride),
                    (1, 1, 1, 1),
                    x_zero=5,
                    y_type=kind,
                    y_zero=3,
                    low=-100 if kind == "i8" else 9,
                    high=77,
                ).check((out, h, w), [isa], threads=(1, 2))


@pytest.mark.parametrize("value", [np.nextafter(F32(1), F32(0)), F32(1), F32(1.5)])
@pytest.mark.parametrize("n", [16, 32, 48, 64, 100])
def test_multipliers_about_one_bound_the_widest_sums(value: np.float32, n: int) -> None:
    rng = np.random.default_rng(n)
    bias = rng.choice([2**31 - 1, -(2**31), 2**30, -70_000, 40_000, 90, -3], n).astype(np.int32)
    weight = rng.integers(-1, 2, (n, 16, 1, 1)).astype(np.int8)
    for sign in (1, -1):
        multiplier = np.full(n, F32(sign) * F32(0.25), F32)
        multiplier[n // 3 :] = F32(sign) * value
        for low, high in ((None, None), (-60, 77)):
            Case(
                random_integers(rng, "u8", (9, 1, 1, 16)),
                weight,
                bias,
                multiplier,
                y_type="i8",
                y_zero=-7,
                low=low,
                high=high,
            ).check((n, value, sign))


def test_linear_is_a_convolution_of_single_pixels() -> None:
    rng = np.random.default_rng(4)
    case = product(rng, 9, 50, 30)
    kind = "u8" if case.x.dtype == np.uint8 else "i8"
    for isa in ISAS:
        got = one(
            "linear",
            [case.x],
            (9, 50),
            CODES[case.y_type],
            case.weight.reshape(50, 30),
            case.bias,
            case.multiplier,
            isa=isa,
            rows=9,
            x_type=kind,
            x_zero=case.x_zero,
            y_type=case.y_type,
            y_zero=case.y_zero,
        )
        assert np.array_equal(got, case.expected().reshape(9, 50))


def test_an_empty_batch_is_no_work() -> None:
    weight = np.ones((4, 4, 1, 1), np.int8)
    Case(np.zeros((0, 3, 3, 4), np.uint8), weight, None, np.ones(1, F32)).check(0)
