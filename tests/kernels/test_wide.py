"""Products whose sums are float64: exact ones against NumPy, on every instruction set."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels._cpu import EXTERNAL, Plan

from .one import ISAS, one

Floats = NDArray[np.float32]


def few_bits(rng: np.random.Generator, *shape: int) -> Floats:
    """Numbers whose products add without rounding in float64."""
    return (rng.integers(-4096, 4097, shape) / 1024).astype(np.float32)


def product(a: Floats, b: Floats, bias: Floats | None, **options: Any) -> NDArray[np.generic]:
    """The step on whole arrays, b as it lies."""
    (t, m, k), n = a.shape, b.shape[-1]
    starts: dict[str, Any] = {"a_at": np.arange(t, dtype=np.uint64) * np.uint64(m * k),
              "b_at": np.arange(t, dtype=np.uint64) * np.uint64(k * n),
              "y_at": np.arange(t, dtype=np.uint64) * np.uint64(m * n)}  # fmt: skip
    dtype = np.int32 if options.get("to_whole") else np.float32
    return one("wide_product", [a, b], (t, m, n), dtype, bias, sizes=(m, k, n), a_row=k,
               b_steps=(n, 1), y_row=n, **starts, **options)  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(
    "sizes",
    [
        (1, 1, 1, 1),
        (2, 5, 33, 70),
        (1, 4, 300, 32),
        (3, 7, 2, 31),
        (1, 5, 256, 256),
        (2, 1, 700, 161),
    ],
)
def test_products_are_rounded_once(isa: str, sizes: tuple[int, int, int, int]) -> None:
    t, m, k, n = sizes
    rng = np.random.default_rng(11)
    a, b, bias = few_bits(rng, t, m, k), few_bits(rng, t, k, n), few_bits(rng, n)
    wanted = (a.astype(np.float64) @ b.astype(np.float64) + bias).astype(np.float32)
    for threads in (1, 2):
        assert np.array_equal(product(a, b, bias, isa=isa, threads=threads), wanted)


def test_any_numbers_give_the_same_bytes_on_every_instruction_set() -> None:
    rng = np.random.default_rng(12)
    a, b = rng.normal(size=(1, 9, 257)), rng.normal(size=(1, 257, 45))
    found = {product(a.astype(np.float32), b.astype(np.float32), None, isa=isa).tobytes()
             for isa in ISAS}  # fmt: skip
    assert len(found) == 1


def test_whole_sums_are_exact() -> None:
    rng = np.random.default_rng(13)
    a, b = (rng.integers(-255, 256, s).astype(np.float32) for s in ((1, 3, 2000), (1, 2000, 5)))
    got = product(a, b, None, to_whole=True)
    assert np.array_equal(got, a.astype(np.int64) @ b.astype(np.int64))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("bits", "k", "block"), [(4, 64, 32), (4, 37, 16), (8, 40, 64)])
def test_blocks_of_integers_are_dequantized_as_they_are_packed(
    isa: str, bits: int, k: int, block: int
) -> None:
    rng, n, m = np.random.default_rng(14), 35, 6
    quantized = rng.integers(0, 1 << bits, (n, k)).astype(np.uint8)
    count = -(-k // block)
    scale = (2.0 ** rng.integers(-6, 1, (n, count))).astype(np.float32)
    zero = rng.integers(0, 1 << bits, (n, count)).astype(np.int32)
    wide = [np.repeat(x, block, 1)[:, :k] for x in (scale, zero)]
    b = (quantized.astype(np.float64) - wide[1]) * wide[0]
    a = few_bits(rng, m, k)
    packed: NDArray[np.generic] = quantized
    if bits == 4:
        even = np.pad(quantized, ((0, 0), (0, k % 2)))
        packed = even[:, ::2] | even[:, 1::2] << 4
    y = np.zeros((m, n), np.float32)
    plan = Plan(0, [(EXTERNAL, a.nbytes), (EXTERNAL, y.nbytes)], isa=isa)
    none = np.zeros(1, np.uint64)
    plan.wide_product("p", 0, 0, 1, None, sizes=(m, k, n), a_at=none, b_at=none, y_at=none,
                      a_row=k, b_steps=(0, 0), y_row=n, codes=packed, scale=scale, zero=zero,
                      bits=bits, block=block)  # fmt: skip
    plan.run([a, y])
    assert np.array_equal(y, (a.astype(np.float64) @ b.T).astype(np.float32))


def convolved(
    x: Floats, w: Floats, stride: tuple[int, ...], pad: tuple[int, ...], dilation: tuple[int, ...],
    groups: int, out: tuple[int, ...],
) -> NDArray[np.float64]:  # fmt: skip
    """A convolution, one output after the other."""
    n, oc, deep = len(x), len(w), w.shape[1]
    back = [o * s + k * d for o, s, k, d in zip(out, stride, w.shape[2:], dilation, strict=True)]
    sides = [(0, 0), (0, 0), *zip(pad, back, strict=True)]
    ground = np.pad(x.astype(np.float64), sides)
    y = np.zeros((n, oc, *out))
    for o in range(oc):
        first = o // (oc // groups) * deep
        for at in np.ndindex(*out):
            window = tuple(
                slice(a * s, a * s + (k - 1) * d + 1, d)
                for a, s, k, d in zip(at, stride, w.shape[2:], dilation, strict=True)
            )
            seen = ground[(slice(None), slice(first, first + deep), *window)]
            y[(slice(None), o, *at)] = (seen * w[o].astype(np.float64)).sum((1, 2, 3, 4))
    return y


CASES = [
    ((3, 2, 3), (1, 1, 1), (0, 1, 1), (1, 1, 1), 1),
    ((1, 3, 3), (1, 2, 2), (0, 1, 1), (1, 1, 2), 2),
    ((1, 1, 5), (1, 1, 3), (0, 0, 4), (1, 1, 1), 6),
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("kernel", "stride", "pad", "dilation", "groups"), CASES)
def test_convolutions_of_three_axes(
    isa: str, kernel: tuple[int, ...], stride: tuple[int, ...], pad: tuple[int, ...],
    dilation: tuple[int, ...], groups: int,
) -> None:  # fmt: skip
    rng, inside = np.random.default_rng(15), (4, 6, 9)
    x, w = few_bits(rng, 2, 6, *inside), few_bits(rng, 6, 6 // groups, *kernel)
    bias = few_bits(rng, 6)
    out = tuple(
        (i + 2 * p - (k - 1) * d - 1) // s + 1
        for i, p, k, d, s in zip(inside, pad, kernel, dilation, stride, strict=True)
    )
    wanted = convolved(x, w, stride, pad, dilation, groups, out) + bias[:, None, None, None]
    for threads in (1, 2):
        got = one("wide_conv", [x, w], (2, 6, *out), np.float32, bias, shape=(2, 6, *inside),
                  kernel=(6, *kernel), out=out, stride=stride, pad=pad, dilation=dilation,
                  groups=groups, isa=isa, threads=threads)  # fmt: skip
        assert np.array_equal(got, wanted.astype(np.float32))


IMAGES = [
    # height, width, kernel, stride, padding, dilation
    ((6, 9), (3, 3), (1, 1), (1, 1), (1, 1)),
    ((40, 37), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((13, 50), (5, 4), (1, 3), (2, 0), (2, 1)),
    ((3, 3), (5, 5), (2, 1), (3, 4), (1, 1)),
    ((1, 70), (1, 5), (1, 2), (0, 3), (1, 3)),
    ((20, 21), (9, 8), (1, 1), (4, 4), (1, 1)),  # more taps than planes are made for
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("inside", "kernel", "stride", "pad", "dilation"), IMAGES)
def test_depthwise_convolutions_of_images(
    isa: str, inside: tuple[int, ...], kernel: tuple[int, ...], stride: tuple[int, ...],
    pad: tuple[int, ...], dilation: tuple[int, ...],
) -> None:  # fmt: skip
    rng = np.random.default_rng([18, *inside])
    x, w, bias = few_bits(rng, 2, 5, 1, *inside), few_bits(rng, 5, 1, 1, *kernel), few_bits(rng, 5)
    x[0, 1, 0, 0, 0], w[3, 0, 0, 0, 0] = np.nan, np.inf
    out = tuple(
        (i + 2 * p - (k - 1) * d - 1) // s + 1
        for i, p, k, d, s in zip(inside, pad, kernel, dilation, stride, strict=True)
    )
    wide = [(1, *stride), (0, *pad), (1, *dilation)]
    with np.errstate(invalid="ignore"):
        wanted = convolved(x, w, wide[0], wide[1], wide[2], 5, (1, *out))
    wanted += bias[:, None, None, None]
    for threads in (1, 2):
        got = one("wide_conv", [x, w], (2, 5, 1, *out), np.float32, bias, shape=(2, 5, 1, *inside),
                  kernel=(5, 1, *kernel), out=(1, *out), stride=wide[0], pad=wide[1],
                  dilation=wide[2], groups=5, isa=isa, threads=threads)  # fmt: skip
        assert np.array_equal(got, wanted.astype(np.float32), equal_nan=True)


@pytest.mark.parametrize("groups", [1, 2])
def test_a_transposed_convolution_adds_each_input_where_its_window_is(groups: int) -> None:
    rng, stride, pad, dilation = np.random.default_rng(16), (2, 1, 3), (1, 0, 2), (1, 2, 1)
    inside, kernel, deep = (3, 4, 5), (2, 3, 4), 4 // groups
    x, w = few_bits(rng, 2, 6, *inside), few_bits(rng, 6, deep, *kernel)
    full = [(i - 1) * s + (k - 1) * d + 1
            for i, s, k, d in zip(inside, stride, kernel, dilation, strict=True)]  # fmt: skip
    wanted = np.zeros((2, 4, *full))
    for c, at, tap in ((c, at, tap) for c in range(6) for at in np.ndindex(*inside)
                       for tap in np.ndindex(*kernel)):  # fmt: skip
        place = tuple(a * s + k * d for a, s, k, d in zip(at, stride, tap, dilation, strict=True))
        first = c // (6 // groups) * deep
        for o in range(deep):
            wanted[(slice(None), first + o, *place)] += (
                x[(slice(None), c, *at)].astype(np.float64) * w[(c, o, *tap)]
            )
    out = tuple(f - 2 * p for f, p in zip(full, pad, strict=True))
    kept = (slice(p, p + o) for p, o in zip(pad, out, strict=True))
    wanted = wanted[(slice(None), slice(None), *kept)]
    got = one("wide_conv", [x, w], (2, 4, *out), np.float32, None, shape=(2, 6, *inside),
              kernel=(4, *kernel), out=out, stride=stride, pad=pad, dilation=dilation,
              groups=groups, transposed=True)  # fmt: skip
    assert np.array_equal(got, wanted.astype(np.float32))


def test_padding_takes_part_in_products_with_infinite_weights() -> None:
    x, w = np.ones((1, 1, 1, 1, 3), np.float32), np.full((1, 1, 1, 1, 2), np.inf, np.float32)
    got = one("wide_conv", [x, w], (1, 1, 1, 1, 4), np.float32, None, shape=x.shape,
              kernel=(1, 1, 1, 2), out=(1, 1, 4), stride=(1, 1, 1), pad=(0, 0, 1),
              dilation=(1, 1, 1))  # fmt: skip
    assert np.array_equal(got.reshape(-1), [np.nan, np.inf, np.inf, np.nan], equal_nan=True)


def test_a_buffer_that_is_none_is_refused() -> None:
    plan = Plan(0, [(EXTERNAL, 4)] * 3)
    none = np.zeros(1, np.uint64)
    with pytest.raises(ValueError, match="b is buffer -1 of 3"):
        plan.wide_product("p", 0, -1, 2, None, sizes=(1, 1, 1), a_at=none, b_at=none, y_at=none,
                          a_row=1, b_steps=(1, 1), y_row=1)  # fmt: skip
