"""Weights that 8 bits do not hold: signed bytes, and an offset for each output channel."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels._cpu import EXTERNAL, Plan

from . import formulas
from .one import CODES, ISAS, random_integers
from .test_convolution import Case, picture, product

F32 = np.float32
KINDS = ("all", "ends", "one")


def offsets(rng: np.random.Generator, count: int, kind: str) -> NDArray[np.int32]:
    """Offsets of `count` channels; `ends` are the least and the greatest."""
    if kind == "one":
        return np.full(count, rng.integers(-128, 129), np.int32)
    if kind == "ends":
        return np.asarray(rng.choice([-128, 127, 128], count), np.int32)
    return rng.integers(-128, 129, count).astype(np.int32)


def with_offsets(rng: np.random.Generator, case: Case, kind: str) -> Case:
    """The case, its results in range still."""
    made = replace(case, offset=offsets(rng, len(case.weight), kind))
    return replace(made, multiplier=(case.multiplier * F32(0.5)).astype(F32))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["plain", "depthwise", "narrow"])
def test_random_convolutions_are_exact(shape: str, kind: str) -> None:
    for seed in range(8):
        rng = np.random.default_rng([81, seed, len(shape), len(kind)])
        case = picture(rng, depthwise=shape == "depthwise", narrow=shape == "narrow")
        with_offsets(rng, case, kind).check((seed, shape, kind), threads=(1, 2))


@pytest.mark.parametrize("kind", KINDS)
def test_every_size_of_a_product_is_exact(kind: str) -> None:
    rng = np.random.default_rng([82, len(kind)])
    for size in (*range(1, 20), 31, 32, 33, 64, 65, 130):
        m, n, k = (int(v) for v in rng.permutation([size, rng.integers(1, 80), 17]))
        case = with_offsets(rng, product(rng, m, n, k), kind)
        case.check((size, m, n, k))
        replace(case, y_type="f32", y_zero=0).check((size, m, n, k))


@pytest.mark.parametrize("isa", ISAS)
def test_an_epilogue_reads_the_sums_of_all_rows(isa: str) -> None:
    rng = np.random.default_rng(83)
    m, n, k = 200, 70, 36
    case = with_offsets(rng, product(rng, m, n, k), "all")
    y = np.zeros((m, n), F32)
    plan = Plan(0, [(EXTERNAL, case.x.nbytes), (EXTERNAL, y.nbytes)], isa=isa)
    plan.linear(
        "step", 0, 1, case.weight[:, :, 0, 0], case.bias, np.ones(1, F32), rows=m,
        x_type="u8" if case.x.dtype == np.uint8 else "i8", x_zero=case.x_zero, y_type="f32",
        epilogue=(("factor", case.multiplier),), offset=case.offset,
    )  # fmt: skip
    plan.run([case.x, y])
    assert np.array_equal(y, case.floats().reshape(m, n))


@pytest.mark.parametrize("kind", ["u8", "i8"])
@pytest.mark.parametrize("seed", range(10))
def test_convolutions_whose_numbers_a_run_finds_are_exact(seed: int, kind: str) -> None:
    rng = np.random.default_rng([84, seed])
    case = picture(rng, narrow=seed == 5, depthwise=seed > 5)
    x = random_integers(rng, kind, case.x.shape, ends=seed == 4)
    out = len(case.weight)
    offset = offsets(rng, out, KINDS[seed % 3]) if seed % 2 else None
    zero = random_integers(rng, kind, (1,))
    case = replace(case, x=x, x_zero=int(zero[0]), bias=None, offset=offset)
    scale = rng.uniform(1e-4, 1, out if seed % 3 else 1).astype(F32)
    bias = rng.normal(size=out).astype(F32)
    wanted = (formulas.wrapped(case.sums()) * scale).astype(F32)
    for given in (None, bias):
        full = wanted if given is None else wanted + given
        for isa in ISAS:
            for threads in (1, 2):
                y = np.zeros(wanted.shape, F32)
                arrays: list[NDArray[np.generic]] = [x, y, scale, zero.astype(CODES[kind])]
                plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
                options: dict[str, Any] = {
                    "shape": x.shape, "stride": case.stride, "pad": case.pad,
                    "dilation": case.dilation, "groups": case.groups, "offset": offset,
                }  # fmt: skip
                plan.dynamic_conv2d(
                    "step", 0, 1, case.weight, given, scale=2, scales=scale.size, x_type=kind,
                    zero=3, **options,
                )  # fmt: skip
                plan.run(arrays, threads=threads)
                assert y.tobytes() == full.tobytes(), (seed, isa, threads)


def test_other_offsets_are_refused() -> None:
    rng = np.random.default_rng(85)
    case = product(rng, 2, 4, 3)
    with pytest.raises(ValueError, match=r"offset is int64 \(4,\), not 4 int32"):
        replace(case, offset=np.zeros(4, np.int64)).run(ISAS[0])
    with pytest.raises(ValueError, match="offsets of weights are from -128 to 128"):
        replace(case, offset=np.full(4, 129, np.int32)).run(ISAS[0])
