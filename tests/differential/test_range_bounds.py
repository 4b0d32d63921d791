"""Scale rules with bounds of all kinds, against onnxruntime's and torch's own functions."""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnxruntime.quantization.quant_utils import compute_scale_zp
from torch.ao.quantization.observer import HistogramObserver, PerChannelMinMaxObserver

from qir.ir.dtype import dtype
from qir.numerics import SCALE_FORMULAS, choose
from qir.numerics.fields import Choose
from qir.profiles import Query, profile

from .torch.profile_in_use import named

F = np.float32
SEED = 47
SIGNED = [(-64, 63), (-64, 64), (-127, 127), (-128, 126), (-100, 50), (-3, 3), (-1, 0), (0, 127)]
UNSIGNED = [(0, 127), (0, 200), (0, 254), (0, 63), (0, 15), (0, 1)]
EIGHT = [
    *(("i8", bounds) for bounds in SIGNED),
    *(("u8", bounds) for bounds in UNSIGNED),
]
WIDE = [("i16", (-16384, 16384)), ("i16", (-16384, 16383)), ("i16", (-9, 30)), ("u16", (0, 999))]
FOUR = [("i4", (-3, 3)), ("u4", (0, 14))]

Case = tuple[str, tuple[int, int]]


def drawn(seed: int, count: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Ranges of every size; zero alone, one number, and ends at zero among them."""
    rng = np.random.default_rng(seed)
    size = np.exp2(rng.uniform(-140, 120, count))
    ends = np.sort(rng.normal(size=(2, count)) * size, axis=0)
    ends[:, 0], ends[0, 1:60], ends[1, 60:120] = 0, 0, 0
    ends[0, 120:160] = ends[1, 120:160]
    low, high = np.sort(ends, axis=0).astype(F)
    return low, high


def rule_of(name: str, storage: str) -> Choose:
    if name in SCALE_FORMULAS:
        return SCALE_FORMULAS[name]
    return profile(name).resolve(Query("quantize", {"result": storage})).choose


def held(
    name: str, case: Case, wanted: Sequence[NDArray[np.generic]], *, symmetric: bool, weight: bool
) -> None:
    """The rule gives these scales and zero points, every bit."""
    storage, bounds = case
    low, high = drawn(SEED, len(wanted[0]))
    with np.errstate(all="ignore"):
        scale, zero = choose(
            low,
            high,
            dtype(storage),
            rule_of(name, storage),
            bounds=bounds,
            symmetric=symmetric,
            weight=weight,
        )
    told = f"seed {SEED}, {name}, {storage} {bounds}"
    assert np.array_equal(np.asarray(scale, F), wanted[0].astype(F)), told
    assert np.array_equal(zero, wanted[1]), told


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("case", [*EIGHT, *WIDE, *FOUR], ids=str)
def test_onnxruntimes_tool(case: Case, symmetric: bool) -> None:
    storage, bounds = case
    kind = np.dtype({"i4": "int8", "u4": "uint8"}.get(storage) or dtype(storage).carrier)
    first, last = (np.array(code, kind) for code in bounds)
    low, high = drawn(SEED, 1500)
    with np.errstate(all="ignore"):
        made = [
            compute_scale_zp(a, b, first, last, symmetric) for a, b in zip(low, high, strict=True)
        ]
    zero, scale = (np.array([np.asarray(pair[i]) for pair in made]) for i in (0, 1))
    for name in ("native", "ort-1.31", "onnxruntime.tool"):
        held(name, case, (scale, zero), symmetric=symmetric, weight=False)


def observed(
    case: Case, *, symmetric: bool, short: bool = False, eps: float = 2.0**-23
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What torch's observer makes of ranges whose integers have these bounds."""
    storage, bounds = case
    kinds = {"u8": torch.quint8, "i8": torch.qint8, "i16": torch.int16, "u16": torch.uint16}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watcher = PerChannelMinMaxObserver(
            dtype=kinds[storage],
            qscheme=torch.per_channel_symmetric if symmetric else torch.per_channel_affine,
            quant_min=bounds[0],
            quant_max=bounds[1],
            reduce_range=short,
            eps=eps,
        )
        low, high = drawn(SEED, 4000)
        watcher.min_val, watcher.max_val = torch.from_numpy(low), torch.from_numpy(high)
        scale, zero = watcher.calculate_qparams()
    return scale.numpy(), zero.numpy()


def histogram(
    case: tuple[str, tuple[int, int] | None],
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """What torch's HistogramObserver, the one that reduces symmetric unsigned integers, makes."""
    low, high = drawn(SEED, 4000)
    ends = case[1] or (None, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        watcher = HistogramObserver(
            dtype=torch.quint8,
            qscheme=torch.per_tensor_symmetric,
            quant_min=ends[0],
            quant_max=ends[1],
            reduce_range=True,
            eps=2.0**-23,
        )
        scale, zero = watcher._calculate_qparams(torch.from_numpy(low), torch.from_numpy(high))
    return scale.numpy(), zero.numpy()


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("case", [*EIGHT, *WIDE[:3]], ids=str)
def test_torchs_observers(case: Case, symmetric: bool) -> None:
    """Of weights too, which no engine has of seven bits; qnnpack's symmetric rule by its eps."""
    wanted = observed(case, symmetric=symmetric)
    for name in ("onednn", "qnnpack", "pt2e"):
        held(named(name), case, wanted, symmetric=symmetric, weight=False)
    for name in ("torch.observer", "ipex-2.8", named("fbgemm"), named("x86")):
        held(name, case, wanted, symmetric=symmetric, weight=True)
    wanted = observed(case, symmetric=symmetric, eps=2.0**-12)
    held("torch.qnnpack.symmetric", case, wanted, symmetric=symmetric, weight=True)


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("case", EIGHT, ids=str)
def test_activations_of_seven_bits(case: Case, symmetric: bool) -> None:
    """Bounds within seven bits need no halving; others torch halves."""
    storage, (first, last) = case
    seven = (-64, 63) if storage == "i8" else (0, 127)
    short = first < seven[0] or last > seven[1]
    alone = short and symmetric and storage == "u8"
    wanted = histogram(case) if alone else observed(case, symmetric=symmetric, short=short)
    for name in (named("fbgemm"), named("x86")):
        held(name, case, wanted, symmetric=symmetric, weight=False)


def test_symmetric_unsigned_integers_of_seven_bits_that_are_not_torchs() -> None:
    """Of all integers the one observer that has them puts zero beyond 0..127, and other rules halve
    bounds within seven bits again."""
    low, high = drawn(SEED, 4000)
    rule = rule_of(named("fbgemm"), "u8")
    for bounds, ours, theirs in ((None, 64, 128), ((0, 255), 64, 63)):
        made, middle = histogram(("u8", bounds))
        scale, zero = choose(low, high, dtype("u8"), rule, bounds=bounds, symmetric=True)
        assert np.array_equal(scale, made), SEED
        assert set(zero.tolist()) == {ours}
        assert set(middle.tolist()) == {theirs}
    made, middle = histogram(("u8", (0, 127)))
    scale, zero = choose(low, high, dtype("u8"), rule, bounds=(0, 127), symmetric=True)
    whole = observed(("u8", (0, 127)), symmetric=True)
    assert np.array_equal(scale, whole[0])
    assert np.mean(made != scale) > 0.5
    assert (set(zero.tolist()), set(middle.tolist())) == ({63}, {31})


@pytest.mark.parametrize("case", EIGHT, ids=str)
def test_the_formula_of_fbgemm_with_other_bounds_is_torchs(case: Case) -> None:
    """Of integers as many on each side of zero it stays as it is printed: 127.5."""
    low, high = drawn(SEED, 4000)
    reach = np.maximum(abs(low), abs(high))
    made, zero = observed(case, symmetric=True, eps=1e-45)
    found = reach / F(127.5) if case[1] == (-127, 127) else made
    scale = np.where(reach == 0, 0, found)
    there = (scale == 0) | (scale > 1e-44)
    assert there.mean() > 0.95
    mine, zeros = choose(
        low,
        high,
        dtype(case[0]),
        SCALE_FORMULAS["fbgemm.symmetric"],
        bounds=case[1],
        symmetric=True,
    )
    assert np.array_equal(mine[there], scale[there].astype(F)), SEED
    assert np.array_equal(zeros, zero)


@pytest.mark.parametrize("name", ["onednn.i8", "onnxruntime.i8", "fbgemm.symmetric", "mxnet-1.9"])
def test_bounds_that_are_all_integers_have_the_printed_level(name: str) -> None:
    level = F(127.5) if name in ("fbgemm.symmetric", "mxnet-1.9") else F(127)
    for bounds in (None, (-128, 127), (-127, 127)):
        rule = rule_of(name, "i8")
        scale, zero = choose(-3.0, 2.0, dtype("i8"), rule, bounds=bounds, symmetric=True)
        assert (float(scale), int(zero)) == (float(F(3) / level), 0)


TOPS = [
    ("onednn.i8", "i8", (-64, 64), 64.0),
    ("onednn.i8", "i8", (-64, 63), 63.0),
    ("onednn.u8", "u8", (0, 127), 127.0),
    ("onnxruntime.i8", "i8", (-64, 64), 64.0),
    ("onnxruntime.i8", "i8", (-64, 63), 63.5),
    ("tf-2.21.onednn", "i8", (-64, 64), 64.0),
    ("tf-2.21.onednn", "u8", (0, 127), 127.0),
    ("tf-2.21.core", "i8", (-64, 64), 64.0),
    ("mxnet-1.9", "i8", (-64, 64), 64.0),
    ("mxnet-1.9", "u8", (0, 127), 127.5),
    ("tflite-2.21.ref", "i8", (-64, 64), 64.0),
]
"""What the greatest number is divided by: these frameworks know no other bounds, so that the level
is their formula's, of as many integers."""


@pytest.mark.parametrize(("name", "storage", "bounds", "level"), TOPS)
def test_levels_of_fewer_integers(
    name: str, storage: str, bounds: tuple[int, int], level: float
) -> None:
    rule = rule_of(name, storage)
    scale, zero = choose(0.0, 3.0, dtype(storage), rule, bounds=bounds, symmetric=True)
    assert (float(scale), int(zero)) == (float(F(3) / F(level)), 0)
