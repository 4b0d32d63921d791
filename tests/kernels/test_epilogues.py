"""Epilogues of other runtimes, quantizers, tables with ends and means, against plain NumPy."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from . import formulas
from .one import BOUNDS, CODES, ISAS, one, random_integers

F32 = np.float32
Floats = NDArray[np.float32]


def epilogue(rng: np.random.Generator, columns: int) -> dict[str, Any]:
    """A random epilogue: each of its steps is there or not."""
    how: dict[str, Any] = {"factor": rng.uniform(1e-4, 3e-3, columns).astype(F32)}
    if rng.random() < 0.5:
        how["steps"] = rng.uniform(-900, 900, columns).astype(F32)
        if rng.random() < 0.5:
            how["share"] = rng.uniform(0.5, 2, columns).astype(F32)
    if rng.random() < 0.5:
        how["bias"] = rng.uniform(-9, 9, columns).astype(F32)
        how["bias_fused"] = bool(rng.random() < 0.5)
    if rng.random() < 0.5:
        how["unit"] = float(F32(rng.uniform(0.5, 2)))
    if rng.random() < 0.3:
        how["least"], how["most"] = sorted(float(F32(v)) for v in rng.uniform(-20, 20, 2))
    if rng.random() < 0.7:
        how["last"], how["divide"] = float(F32(rng.uniform(0.5, 2))), bool(rng.random() < 0.5)
    if rng.random() < 0.5:
        how["offset"] = float(rng.integers(1, 200))
    return how


def finished(
    acc: formulas.Ints, how: dict[str, Any], summand: NDArray[np.generic] | None
) -> Floats:
    """What an epilogue makes of sums, step by step."""
    v = formulas.wrapped(acc)
    with np.errstate(all="ignore"):
        if "share" in how:
            v = formulas.fma(np.broadcast_to(how["steps"], v.shape), how["share"], v)
        elif "steps" in how:
            v = v + how["steps"]
        v = v * F32(how.get("unit", 1))
        if how.get("bias_fused"):
            v = formulas.fma(v, how["factor"], how["bias"])
        else:
            v = v * how["factor"]
            v = v + how["bias"] if "bias" in how else v
        if summand is not None:
            most, zero = how["summand_most"], how["summand_zero"]
            steps = (np.minimum(summand.astype(np.int64), most) - zero).astype(F32)
            scale = F32(how["summand_scale"])
            v = formulas.fma(steps, float(scale), v) if how["summand_fused"] else v + steps * scale
        v = np.where(v < F32(how.get("least", -np.inf)), F32(how.get("least", 0)), v)
        v = np.where(v > F32(how.get("most", np.inf)), F32(how.get("most", 0)), v)
        last = F32(how.get("last", 1))
        v = v / last if how.get("divide") else v * last
        v = v + F32(how["offset"]) if "offset" in how else v
    return np.asarray(v, F32)


def saturated_pairs(
    x: NDArray[np.generic], weight: NDArray[np.int8], pad: tuple[int, ...], stride: tuple[int, ...],
    x_zero: int,
) -> formulas.Ints:  # fmt: skip
    """Sums of a depthwise convolution, two products at a time in 16 bits."""
    moved = 128 if x.dtype == np.int8 else 0
    c, _, kh, kw = weight.shape
    sides = ((0, 0), (pad[0], pad[2]), (pad[1], pad[3]), (0, 0))
    padded = np.pad(x.astype(np.int64), sides, constant_values=x_zero) + moved
    oh = (padded.shape[1] - kh) // stride[0] + 1
    ow = (padded.shape[2] - kw) // stride[1] + 1
    products = []
    for ky in range(kh):
        for kx in range(kw):
            rows = slice(ky, ky + (oh - 1) * stride[0] + 1, stride[0])
            columns = slice(kx, kx + (ow - 1) * stride[1] + 1, stride[1])
            products.append(padded[:, rows, columns] * weight[:, 0, ky, kx].astype(np.int64))
    total = np.zeros((x.shape[0], oh, ow, c), np.int64)
    for i in range(0, len(products), 2):
        pair = sum(products[i : i + 2])
        total += np.clip(pair, -32768, 32767) if i + 1 < len(products) else pair
    exact: formulas.Ints = total - (x_zero + moved) * weight.astype(np.int64).sum((1, 2, 3))
    return exact


def check_conv(
    rng: np.random.Generator, seed: object, *, taken: int | None = None, pairs: bool = False
) -> None:
    """Compares a random convolution with an epilogue on every instruction set.

    Each of its groups has `taken` input and output channels, if that is not None.
    """
    pick = rng.integers
    if taken is None:
        groups, taken = int(rng.choice([1, 1, 2])), int(pick(1, 70))
        out = groups * int(pick(1, 90))
    else:
        groups = int(pick(1, 3 + 140 // taken))
        out = groups * taken
    kernel = tuple(int(v) for v in pick(1, 5, 2)) if rng.random() < 0.6 else (3, 3)
    pad = tuple(int(v) for v in pick(0, 3, 4))
    stride = tuple(int(v) for v in pick(1, 3, 2))
    h, w = (k + int(pick(0, 15)) for k in kernel)
    kind, result = (str(rng.choice(["u8", "i8"])) for _ in range(2))
    result = "f32" if rng.random() < 0.2 else result
    x = random_integers(
        rng, kind, (int(pick(1, 3)), h, w, groups * taken), bool(rng.random() < 0.3)
    )
    weight = pick(-128, 128, (out, taken, *kernel)).astype(np.int8)
    x_zero, bias = int(random_integers(rng, kind, ())), pick(-9999, 9999, out).astype(np.int32)
    acc = (
        saturated_pairs(x, weight, pad, stride, x_zero)
        if pairs
        else formulas.accumulate(x, weight, stride, pad, (1, 1), groups, x_zero)
    ) + bias
    how = epilogue(rng, out)
    summand = None
    if rng.random() < 0.4:
        added = str(rng.choice(["u8", "i8"]))
        summand = random_integers(rng, added, acc.shape)
        how |= {
            "summand_type": added, "summand_zero": int(random_integers(rng, added, ())),
            "summand_most": BOUNDS["i8"][1] if rng.random() < 0.5 else BOUNDS[added][1],
            "summand_scale": float(F32(rng.uniform(0.01, 0.2))),
            "summand_fused": bool(rng.random() < 0.5),
        }  # fmt: skip
    floats = finished(acc, how, summand)
    expected: NDArray[np.generic] = floats
    options: dict[str, Any] = {"y_type": result}
    if result != "f32":
        zero = int(random_integers(rng, result, ()))
        low, high = sorted(int(v) for v in random_integers(rng, result, (2,)))
        options |= {"y_zero": zero, "low": low, "high": high}
        expected = formulas.rounded(floats, zero, low, high).astype(CODES[result])
    inputs = [x] if summand is None else [x, summand]
    given = tuple(how.items()) + ((("summand", 1),) if summand is not None else ())
    for isa in ISAS:
        for threads in (1, 2):
            got = conv_of(
                inputs, expected, weight, bias, isa, threads, shape=x.shape, stride=stride, pad=pad,
                groups=groups, x_type=kind, x_zero=x_zero, epilogue=given, pairs=pairs, **options,
            )  # fmt: skip
            wrong = int((got.view(np.uint8) != expected.view(np.uint8)).sum())
            assert wrong == 0, f"seed {seed}, {isa}, {threads} threads: {wrong} bytes differ"


def conv_of(
    inputs: Sequence[NDArray[np.generic]], expected: NDArray[np.generic], weight: NDArray[np.int8],
    bias: NDArray[np.int32], isa: str, threads: int, **options: object,
) -> NDArray[np.generic]:  # fmt: skip
    """The result of a convolution step whose second input, if any, is the summand."""
    from qir._kernels._cpu import EXTERNAL, Plan

    y = np.zeros(expected.shape, expected.dtype)
    y.reshape(-1).view(np.uint8)[...] = 0xA5
    arrays = [*inputs, y]
    plan = Plan(0, [(EXTERNAL, array.nbytes) for array in arrays], isa=isa)
    plan.conv2d("step", 0, len(inputs), weight, bias, np.ones(1, F32), **options)  # type: ignore[arg-type]
    plan.run(arrays, threads=threads)
    return y


@pytest.mark.parametrize("round_", range(12))
def test_epilogues_of_convolutions_are_exact(round_: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    check_conv(rng, seed)
    check_conv(rng, seed, taken=int(rng.choice([2, 4, 8, 12, 16, 24, 32])))
    check_conv(rng, seed, taken=1)
    check_conv(rng, seed, taken=1, pairs=True)


def test_pairs_saturate_where_products_are_largest() -> None:
    x, weight = np.full((1, 3, 3, 70), 255, np.uint8), np.full((70, 1, 3, 3), 127, np.int8)
    for isa in ISAS:
        got = one("conv2d", [x], (1, 1, 1, 70), np.float32, weight, None, np.ones(1, F32), isa=isa,
                  shape=x.shape, groups=70, y_type="f32", pairs=True,
                  epilogue=(("factor", np.ones(1, F32)),))  # fmt: skip
        assert np.array_equal(got, np.full_like(got, 4 * 32767 + 255 * 127)), isa


def test_pairs_are_those_of_one_channel() -> None:
    x = np.zeros((1, 3, 3, 2), np.uint8)
    with pytest.raises(ValueError, match="one channel a group"):
        one("conv2d", [x], (1, 1, 1, 2), np.uint8, np.zeros((2, 2, 3, 3), np.int8), None,
            np.ones(1, F32), shape=x.shape, pairs=True)  # fmt: skip


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((("factor", np.ones(3, F32)),), "3 numbers for 2 columns"),
        ((("last", 1.0),), "needs a factor"),
        ((("factor", np.ones(1, F32)), ("share", np.ones(2, F32))), "there are none"),
        ((("factors", 1),), "has no 'factors'"),
        (7, "not names and values"),
        ((("factor", np.ones(1, F32)), ("summand", 9)), "summand is buffer 9 of 2"),
    ],
)
def test_an_epilogue_that_is_none_is_refused(given: Any, said: str) -> None:
    x = np.zeros((1, 1, 1, 4), np.uint8)
    with pytest.raises(ValueError, match=said):
        one("conv2d", [x], (1, 1, 1, 2), np.uint8, np.zeros((2, 4, 1, 1), np.int8), None,
            np.ones(1, F32), shape=x.shape, epilogue=given)  # fmt: skip


# -- quantizers -----------------------------------------------------------------------------------


def some_floats(rng: np.random.Generator, size: int) -> Floats:
    """Floats with ties, ends, infinities and NaN among them."""
    x = (rng.integers(-600, 600, size) / 4).astype(F32)
    odd = np.array([0, -0.0, np.inf, -np.inf, np.nan, 3e38, -3e38, 2.0**31, -(2.0**31)], F32)
    places = rng.random(size) < 0.1
    x[places] = rng.choice(odd, int(places.sum()))
    return x


def quantized(x: Floats, how: dict[str, Any], low: int, high: int) -> formulas.Ints:
    """What a quantizer makes of floats, step by step."""
    with np.errstate(all="ignore"):
        v = np.clip(x, F32(how.get("least", -np.inf)), F32(how.get("most", np.inf)))
        factor = F32(how["factor"])
        if how.get("fused"):
            v = formulas.fma(v, float(factor), how["before"])
        else:
            v = v / factor if how.get("divide") else v * factor
            v = v + F32(how.get("before", 0)) if how.get("before") else v
        nan = np.isnan(v)
        whole = np.rint(v).astype(np.float64)
        if how.get("away"):
            whole = np.sign(v) * np.floor(np.abs(v).astype(np.float64) + 0.5)
        zero = how.get("zero", 0)
        if not how.get("wraps"):
            out = np.clip(np.where(nan, 0, whole) + zero, low, high).astype(np.int64)
        else:
            most = 2.0**31 - 128
            held = np.maximum(np.where(whole < most, whole, most), -(2.0**31)).astype(np.int64)
            out = (held + zero).astype(np.int32).astype(np.int64).clip(low, high)
    made: formulas.Ints = out if how["nan"] == "far" else np.where(nan, how["nan"], out)
    return made


@pytest.mark.parametrize("round_", range(20))
def test_quantizers_are_exact(round_: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    kind = str(rng.choice(["u8", "i8"]))
    low, high = sorted(int(v) for v in random_integers(rng, kind, (2,)))
    wraps = bool(rng.random() < 0.3)
    how: dict[str, Any] = {"factor": float(F32(rng.choice([0.25, 0.3, 1.0, 2.0]))), "wraps": wraps}
    how["nan"] = "far" if wraps else int(random_integers(rng, kind, ()))
    if rng.random() < 0.5:
        how["before"] = float(rng.integers(-100, 100))
        how["fused"] = bool(rng.random() < 0.5)
    else:
        how["divide"], how["zero"] = bool(rng.random() < 0.5), int(random_integers(rng, kind, ()))
    how["away"] = not wraps and bool(rng.random() < 0.3)
    if rng.random() < 0.4:
        how["least"], how["most"] = -31.25, 40.5
    x = some_floats(rng, int(rng.integers(1, 3000)))
    expected = quantized(x, how, low, high).astype(CODES[kind])
    for isa in ISAS:
        got = one("quantize_by", [x], x.shape, CODES[kind], isa=isa, threads=2, size=x.size,
                  y_type=kind, low=low, high=high, **how)  # fmt: skip
        assert np.array_equal(got, expected), f"seed {seed}, {isa}, {how}"


def test_a_nan_without_a_quantized_value_is_a_fault() -> None:
    from qir._kernels._cpu import DataFault

    x = np.array([1, np.nan], F32)
    with pytest.raises(DataFault, match="x holds NaN"):
        one("quantize_by", [x], x.shape, np.uint8, size=2, factor=1.0)


# -- tables with ends, and means ------------------------------------------------------------------


@pytest.mark.parametrize("round_", range(6))
def test_lookups_change_tables_at_the_ends_of_runs(round_: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    outer, rows, inner = (int(v) for v in rng.integers(1, 40, 3))
    size, run = outer * rows * inner, int(rng.integers(1, 200))
    body = int(rng.integers(0, run + 1))
    tables = rng.integers(0, 256, (2, 1 << 16)).astype(np.uint8)
    which = (np.arange(size) % run >= body).astype(np.int64).reshape(outer, rows, inner)
    x = random_integers(rng, "u8", (size,))
    for threads in (1, 2):
        got = one("lookup_runs", [x], x.shape, np.uint8, threads=threads, size=size, run=run,
                  body=body, table=tables[0, :256], tail=tables[1, :256])  # fmt: skip
        assert np.array_equal(got, tables[which.reshape(-1), x]), f"seed {seed}"
    for shared in (None, "a", "b"):
        a, b = (
            random_integers(rng, "u8", (outer, 1 if shared == s else rows, inner)) for s in "ab"
        )
        expected = tables[which, a.astype(np.int64) * 256 + b]
        got = one("lookup_pairs", [a, b], expected.shape, np.uint8, threads=2,
                  shape=(outer, rows, inner), broadcast=shared, run=run, body=body,
                  table=tables[0], tail=tables[1])  # fmt: skip
        assert np.array_equal(got, expected), f"seed {seed}, {shared}"


def test_a_long_row_of_pairs_is_cut_into_tasks() -> None:
    rng = np.random.default_rng(5)
    a, b = (random_integers(rng, "u8", (1 << 16,)) for _ in range(2))
    table = rng.integers(0, 256, 1 << 16).astype(np.uint8)
    for size in (1 << 16, 48_001):
        got = one("lookup_pairs", [a[:size], b[:size]], (size,), np.uint8, threads=2,
                  shape=(1, 1, size), run=size, body=size, table=table, tail=table)  # fmt: skip
        assert np.array_equal(got, table[a[:size].astype(np.int64) * 256 + b[:size]])


@pytest.mark.parametrize("round_", range(8))
def test_means_of_integers_are_exact(round_: int) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    rng = np.random.default_rng(seed)
    pick = rng.integers
    n, h, w, c = (int(v) for v in (pick(1, 3), pick(3, 9), pick(3, 9), pick(1, 50)))
    kernel, stride = tuple(int(v) for v in pick(1, 4, 2)), tuple(int(v) for v in pick(1, 3, 2))
    pad = tuple(int(v) for v in pick(0, 2, 2))
    out = tuple(
        (s + 2 * p - k) // t + 1 for s, p, k, t in zip((h, w), pad, kernel, stride, strict=True)
    )
    kind = str(rng.choice(["u8", "i8"]))
    x, zero = random_integers(rng, kind, (n, h, w, c)), int(random_integers(rng, kind, ()))
    factor = rng.uniform(0.05, 1, out).astype(F32)
    body = int(pick(0, c + 1))
    ends = ((float(pick(1, 99)), True, 0, False, 1.0), (0.0, False, zero, True, 3.0))
    total = np.zeros((n, *out, c), np.int64)
    for oy, ox, taps in formulas.windows((h, w), out, kernel, stride, pad):
        for iy, ix in taps:
            total[:, oy, ox] += x[:, iy, ix].astype(np.int64) - zero
    sums = total.astype(F32)
    low, high = BOUNDS[kind]
    parts = (
        formulas.fma(sums, factor[..., None], ends[0][0]),
        sums * factor[..., None] / F32(3),
    )
    made = [
        formulas.rounded(np.asarray(p, F32), z, low, high)
        for p, z in zip(parts, (0, zero), strict=True)
    ]
    expected = np.where(np.arange(c) < body, *made).astype(CODES[kind])
    for isa in ISAS:
        got = one("code_means", [x], expected.shape, CODES[kind], isa=isa, threads=2, shape=x.shape,
                  kernel=kernel, stride=stride, pad=pad, out=out, factor=factor, body=body,
                  ends=ends, x_zero=zero, x_type=kind, y_type=kind)  # fmt: skip
        assert np.array_equal(got, expected), f"seed {seed}, {isa}"
