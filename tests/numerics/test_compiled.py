"""The compiled loops give the definition's bytes: random rules, types, shapes and grains."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar, get_args, get_type_hints

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, QirError
from qir.ir.dtype import F32, dtype
from qir.ir.types import Array, Granularity, QuantType
from qir.numerics import (
    AnyMap,
    Map,
    affine,
    compiled,
    convert,
    definition,
    dequantize,
    map_of,
    quantize,
    requantize,
)
from qir.numerics.fields import Dequantize, Quantize, Requant, Rule
from qir.numerics.rounding import SECOND_ROUNDINGS

F = np.float32
G = TypeVar("G", bound=np.generic)
STORAGES = ("u8", "i8", "u4", "i4", "u2", "i3", "u16", "i16", "i12", "i32", "u24", "i24", "u31")
SHAPES = ((4200,), (70, 61), (3, 5, 300), (5, 3, 7, 41), (2, 1, 2113), (4099, 1), (1400, 3))


@pytest.fixture(autouse=True)
def everything_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MIN_COMPILED_SIZE", 1)


def chosen(record: type, rng: np.random.Generator, **fixed: str) -> dict[str, str]:
    """A value for each field that has words."""
    found = {n: get_args(k) for n, k in get_type_hints(record).items() if n not in fixed}
    return {n: str(rng.choice(v)) for n, v in found.items() if v and n != "levels"} | fixed


def random_floats(
    rng: np.random.Generator, shape: tuple[int, ...], step: float
) -> NDArray[np.generic]:
    """Floats of many sizes, with ties, ends, denormals, infinities and both zeros among them."""
    x = rng.normal(size=shape) * step * 2.0 ** rng.integers(-3, 12)
    ties = (rng.integers(-300, 300, shape) + 0.5) * step
    x = np.where(rng.random(shape) < 0.3, ties, x)
    ends = np.array([0.0, -0.0, np.inf, -np.inf, 1e-45, -1e-40, 3e38, -3e38, 2.0**31, -(2.0**31)])
    x = np.where(rng.random(shape) < 0.02, rng.choice(ends, shape), x)
    with np.errstate(over="ignore"):
        kind = np.dtype(str(rng.choice(["f4", "f4", "f8", "f2"])))
        return np.asarray(x.astype(kind))


def grains(rng: np.random.Generator, shape: tuple[int, ...]) -> Granularity | None:
    if rng.random() < 0.25:
        return None
    axes = sorted(rng.choice(len(shape), rng.integers(1, len(shape) + 1), replace=False).tolist())
    blocks = tuple((a, int(rng.choice([1, 1, 2, 3, 32, 40, shape[a]]))) for a in axes)
    by = None
    if rng.random() < 0.25:
        last, size = blocks[-1]
        by = Array.of(rng.integers(0, -(-shape[last] // size), shape[last]).astype(np.int32))
    return Granularity(blocks, by)


def maps(rng: np.random.Generator, shape: tuple[int, ...], step: float) -> AnyMap:
    """A map of any kind that stands over an array of that shape."""
    kind = dtype(str(rng.choice(STORAGES)))
    low, high = kind.bounds
    if rng.random() < 0.3:
        low, high = low + int(rng.integers(0, 2)), high - int(rng.integers(0, 2))
    grain = grains(rng, shape)
    grid = () if grain is None else tuple(n for n in grain.grid(shape) if isinstance(n, int))

    def numbers(values: NDArray[G]) -> NDArray[G]:
        return np.asarray(values if rng.random() < 0.9 else values.reshape(-1)[:1].reshape(()))

    scale = (step * rng.choice([0.37, 0.5, 1, 1.0 / 3, 2, 1e-3], grid)).astype(
        str(rng.choice(["f4", "f8"]))
    )
    if rng.random() < 0.05:
        scale = np.asarray(scale * 0)
    whole = rng.integers(max(low, -300), min(high, 300) + 1, grid)
    zero = numbers(rng.choice([0, 1]) * whole)
    if rng.random() < 0.2:
        zero = numbers(rng.uniform(-8, 8, grid).astype(F))
    plus = numbers(rng.normal(size=grid).astype(F)) if rng.random() < 0.2 else None
    if grain is None and zero.dtype.kind == "i" and plus is None and rng.random() < 0.5:
        return affine(kind, np.asarray(scale)[()], int(zero), bounds=(low, high))
    return Map(kind, F32, scale, zero, low, high, grain, plus)


def same(one: Callable[[], object], other: Callable[[], object], said: str) -> bool:
    """Equal bytes, or the same refusal; whether there were bytes."""
    outcomes = []
    for call in (one, other):
        try:
            outcomes.append(call())
        except QirError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    first, second = outcomes
    if not isinstance(first, np.ndarray) or not isinstance(second, np.ndarray):
        assert isinstance(first, str), said
        assert first == second, said
        return False
    assert first.dtype == second.dtype, said
    assert first.shape == second.shape, said
    assert first.tobytes() == second.tobytes(), said
    return True


def test_random_quantize_gives_the_definitions_bytes() -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    covered = 0
    for case in range(400):
        rng = np.random.default_rng([seed, case])
        shape = SHAPES[rng.integers(len(SHAPES))]
        step = float(2.0 ** rng.integers(-6, 4))
        to, x = maps(rng, shape, step), random_floats(rng, shape, step)
        by = rng.choice([*["divide", "reciprocal"] * 8, "gain", "span"])
        zero = rng.choice([*["after", "after", "before", "none"] * 4, "pair"])
        compute = rng.choice([*["f32", "f32", "f64", "f64_reciprocal"] * 4, "f16"])
        clip = rng.choice([*["codes", "reals_first"] * 6, "range_first"])
        rare = {"sum": rng.choice([*["whole"] * 15, "real"])}
        rare["far"] = rng.choice([*["end"] * 15, "low_32", "low_64", "wrap_32", "clip_32"])
        kinds = ["zero", "zero_code", "low", "high", "unspecified"]
        rare["nan"] = rng.choice([*kinds * 6, "far"] if rare["far"] == "end" else [*kinds, "far"])
        q = chosen(Quantize, rng, by=by, zero=zero, compute=compute, clip=clip, **rare)
        if rng.random() < 0.5:
            x = np.where(rng.random(shape) < 0.01, np.nan, x).astype(x.dtype)
        rule = Rule("p", quantize=Quantize(**q))  # type: ignore[arg-type]
        said = f"seed {seed}, case {case}: {to} {q} {x.dtype} {shape}"
        covered += (
            same(
                lambda x=x, to=to, rule=rule: quantize(x, to, rule),  # type: ignore[misc]
                lambda x=x, to=to, rule=rule: definition.quantize(x, to, rule),  # type: ignore[misc]
                said,
            )
            and compiled.quantize(x, to, rule) is not None
        )
    assert covered > 80, f"seed {seed}: {covered}"


def test_random_dequantize_gives_the_definitions_bytes() -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    covered = 0
    for case in range(400):
        rng = np.random.default_rng([seed, case])
        shape = SHAPES[rng.integers(len(SHAPES))]
        of = maps(rng, shape, 0.25)
        by = rng.choice([*["(q-z)*s", "(q-z)*s", "q*s-z*s", "q*s+plus"] * 2, "q/gain"])
        if rng.random() < 0.3 and isinstance(of, Map):
            of = floating(rng, of)
        raw = rng.integers(0, 1 << 8 * of.carrier.itemsize, shape)
        quantized = raw.astype(f"u{of.carrier.itemsize}").view(of.carrier)
        if isinstance(of, Map) and of.table is not None:
            quantized = (of.low + raw % of.table.size).astype(of.carrier)
        elif of.storage.is_integer:
            quantized = np.clip(quantized, of.low, of.high).astype(of.carrier)
        d = chosen(Dequantize, rng, by=by)
        rule = Rule("p", dequantize=Dequantize(**d))  # type: ignore[arg-type]
        said = f"seed {seed}, case {case}: {of} {d} {shape}"
        covered += (
            same(
                lambda c=quantized, of=of, rule=rule: dequantize(c, of, rule),  # type: ignore[misc]
                lambda c=quantized, of=of, rule=rule: definition.dequantize(c, of, rule),  # type: ignore[misc]
                said,
            )
            and compiled.dequantize(quantized, of, rule) is not None
        )
    assert covered > 80, f"seed {seed}: {covered}"


def floating(rng: np.random.Generator, of: Map) -> Map:
    """The same numbers, for integers that are floats or stand in a table."""
    zero = np.zeros((), np.int64)
    if rng.random() < 0.5:
        name = rng.choice(["f8e4m3fn", "f8e5m2", "f8e5m2fnuz", "f4e2m1fn", "f6e3m2fn", "f8e8m0"])
        kind = dtype(str(name))
        return Map(kind, dtype("bf16"), of.scale, zero, 0, 0, of.grain, of.plus)
    kind = dtype(str(rng.choice(["u4", "i4", "u8", "i2"])))
    low, high = kind.bounds
    table = rng.normal(size=int(rng.integers(1, high - low + 2))).astype(F)
    return Map(kind, F32, of.scale, zero, low, high, of.grain, of.plus, table)


def test_random_tables_give_the_definitions_bytes() -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    covered = 0
    for case in range(150):
        rng = np.random.default_rng([seed, case])
        shape = SHAPES[rng.integers(len(SHAPES))]
        while (of := floating(rng, maps_of_blocks(rng, shape))).table is None:
            pass
        if rng.random() < 0.5:  # on a grid, so that there are ties and equal entries
            table = rng.integers(-6, 7, of.table.size).astype(F) / 4
            of = Map(of.storage, F32, of.scale, of.zero, of.low, of.high, of.grain, of.plus, table)
        x = random_floats(rng, shape, 0.125)
        if rng.random() < 0.3:
            x = np.where(rng.random(shape) < 0.01, np.nan, x).astype(x.dtype)
        by, clip = rng.choice(["divide", "reciprocal"]), "codes"
        compute = rng.choice(["f32", "f32", "f64"])
        q = chosen(Quantize, rng, by=by, zero="after", compute=compute, clip=clip)
        rule = Rule("p", quantize=Quantize(**q))  # type: ignore[arg-type]
        said = f"seed {seed}, case {case}: {of} {q} {x.dtype} {shape}"
        covered += (
            same(
                lambda x=x, to=of, rule=rule: quantize(x, to, rule),  # type: ignore[misc]
                lambda x=x, to=of, rule=rule: definition.quantize(x, to, rule),  # type: ignore[misc]
                said,
            )
            and compiled.quantize(x, of, rule) is not None
        )
    assert covered > 10, f"seed {seed}: {covered}"


def maps_of_blocks(rng: np.random.Generator, shape: tuple[int, ...]) -> Map:
    """A map that may have blocks and offsets."""
    while not isinstance(found := maps(rng, shape, 0.25), Map):
        pass
    return found


def test_random_requantize_gives_the_definitions_bytes() -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    covered = 0
    for case in range(300):
        rng = np.random.default_rng([seed, case])
        shape = SHAPES[rng.integers(len(SHAPES))]
        axis = int(rng.integers(len(shape)))
        kind = dtype(str(rng.choice(STORAGES)))
        many = rng.random() < 0.6
        multiplier = str(rng.choice(["f32", "f64", "q31"]))
        compute = str(rng.choice(["f32", "f64"])) if multiplier == "f32" else "f64"
        size = (shape[axis],) if many else ()
        factor = 2.0 ** rng.uniform(-14, 0, size)
        factor = np.where(rng.random(size) < 0.5, 2.0 ** rng.integers(-9, 0, size), factor)
        factor = np.asarray(factor.astype(F if multiplier == "f32" else np.float64))
        factor = factor * (2.0**7 if multiplier == "q31" and rng.random() < 0.5 else 1)
        low, high = kind.bounds
        zeros = rng.integers(max(low, -200), min(high, 200) + 1, size)
        y: AnyMap = affine(kind, np.full(size, 0.5, F), zeros, axis=axis if many else None)
        if rng.random() < 0.3:
            y = affine(kind, 0.5, int(zeros.reshape(-1)[0]))
        acc = rng.integers(-(2**31), 2**31, shape) >> rng.integers(0, 20, shape)
        r = chosen(Requant, rng, multiplier=multiplier, compute=compute, input="acc_plus_bias")
        r |= {"wide": "plain", "round": str(rng.choice(["even", "away", "half_up"]))}
        r |= {"order": "(x*w)/y", "plus": "quantize", "clip": str(rng.choice(["codes", "reals"]))}
        if multiplier == "q31":
            ways = ["double", "double_up", "half_up", "even"]
            r |= {"clip": "codes", "round": str(rng.choice(ways))}
            r |= (
                {"zero": str(rng.choice(["after", "none"]))}
                if r["round"] in SECOND_ROUNDINGS
                else {}
            )
        rule = Rule("p", requant=Requant(**r))  # type: ignore[arg-type]
        said = f"seed {seed}, case {case}: {y} {r} {factor.dtype} {shape} {axis}"
        sums = acc.astype(np.int32)
        assert not isinstance(y, Map)
        assert same(
            lambda a=sums, f=factor, y=y, r=rule, x=axis: requantize(a, f, y, r, axis=x),  # type: ignore[misc]
            lambda a=sums, f=factor, y=y, r=rule, x=axis: definition.requantize(a, f, y, r, axis=x),  # type: ignore[misc]
            said,
        ), said
        covered += compiled.requantize(sums, factor, y, rule, axis) is not None
    assert covered > 80, f"seed {seed}: {covered}"


def test_random_conversions_are_dequantize_and_quantize() -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    for case in range(150):
        rng = np.random.default_rng([seed, case])
        shape = (1200, 3) if rng.random() < 0.5 else (40, 3, 30)
        of, to = maps(rng, shape, 0.5), maps(rng, shape, 0.25)
        quantized = rng.integers(max(of.low, -(1 << 20)), min(of.high, 1 << 20) + 1, shape)
        quantized = quantized.astype(of.carrier)
        rule = Rule("p", quantize=Quantize(nan="low"))
        said = f"seed {seed}, case {case}: {of} {to}"
        assert same(
            lambda c=quantized, of=of, to=to, r=rule: convert(c, of, to, r),  # type: ignore[misc]
            lambda c=quantized, of=of, to=to, r=rule: definition.quantize(  # type: ignore[misc]
                definition.dequantize(c, of, r), to, r
            ),
            said,
        ), said


def test_a_code_that_does_not_occur_refuses_nothing() -> None:
    """A scale of infinity times nothing is no number, and only code 0 asks for it."""
    of, to = affine("u8", np.asarray(np.inf, F)[()]), affine("u8", 1.0)
    quantized = np.full(4096, 3, np.uint8)
    assert (convert(quantized, of, to, Rule()) == 255).all()
    quantized[17] = 0
    with pytest.raises(OpError, match="NaN has no quantized value"):
        convert(quantized, of, to, Rule())


def test_threads_and_ways_an_array_lies_in_memory_change_no_byte() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(300, 40)).astype(F)
    to = affine("i8", rng.uniform(0.01, 0.02, 40).astype(F), np.arange(40), axis=1)
    wanted = quantize(x, to, Rule())
    for array in (np.asfortranarray(x), np.repeat(x, 2, 0)[::2], x[::-1][::-1]):
        assert np.array_equal(quantize(array, to, Rule()), wanted)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: quantize(x, to, Rule()), range(20)):
            assert np.array_equal(found, wanted)
    turned = affine("i8", to.scale, to.zero, axis=-1)
    assert np.array_equal(quantize(x, turned, Rule()), wanted)


def test_small_arrays_are_computed_by_the_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "MIN_COMPILED_SIZE", 4096)
    kind = QuantType(dtype("u8"), F32, (0.5,), (3,))
    x = np.linspace(-9, 99, 4096).astype(F)
    assert compiled.quantize(x[1:], map_of(kind), Rule()) is None
    found = compiled.quantize(x, map_of(kind), Rule())
    assert found is not None
    assert np.array_equal(quantize(x[1:], map_of(kind), Rule()), found[1:])
