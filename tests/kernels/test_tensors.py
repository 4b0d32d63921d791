"""Loops on elements of any type, against NumPy and the C library."""

import itertools
import math
import os
import re
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import ArrayLike, NDArray

from qir._kernels import _cpu
from qir._kernels._cpu import EXTERNAL, DataFault, Plan

from .one import ISAS, one

TYPES = {"bool": np.dtype("?")} | {
    name: np.dtype({"f": "float", "i": "int", "u": "uint"}[name[0]] + name[1:])
    for name in _cpu.KINDS
    if name != "bool"
}
UFUNCS: dict[str, Callable[..., NDArray[np.generic]]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def drawn(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Elements rich in equal ones and in ends; floats have NaN and infinities."""
    if kind.startswith("f"):
        x = (rng.integers(-6, 7, shape) / 4).astype(TYPES[kind])
        some = rng.random(shape)
        return np.where(some < 0.05, np.nan, np.where(some > 0.95, np.inf, x)).astype(TYPES[kind])
    if kind == "bool":
        return rng.random(shape) < 0.5
    ends = np.iinfo(TYPES[kind])
    near = rng.integers(max(-5, ends.min), 6, shape)
    far = rng.choice([ends.min, ends.max], shape)
    return np.where(rng.random(shape) < 0.2, far, near).astype(TYPES[kind])


@pytest.mark.parametrize("op", UFUNCS)
@pytest.mark.parametrize("steps", [((5, 1), (5, 1)), ((5, 1), (0, 1)), ((1, 0), (5, 1)),
                                   ((0, 0), (2, 3))])  # fmt: skip
def test_operands_meet_by_their_steps(
    op: str, steps: tuple[tuple[int, int], tuple[int, int]]
) -> None:
    rng = np.random.default_rng(2)
    for kind in _cpu.applied()[op]:
        a, b = (drawn(rng, kind, (40,)) for _ in "ab")
        views = [
            np.lib.stride_tricks.as_strided(x, (3, 5), [by * x.itemsize for by in given])
            for x, given in zip((a, b), steps, strict=True)
        ]
        with np.errstate(all="ignore"):
            wanted = UFUNCS[op](*views)
        got = one("apply", [a, b], (3, 5), wanted.dtype.type, op=op, kind=kind, shape=(3, 5),
                  a_steps=steps[0], b_steps=steps[1])  # fmt: skip
        assert got.dtype == wanted.dtype
        assert np.array_equal(got, wanted, equal_nan=kind.startswith("f")), kind


def test_quotients_of_integers_are_cut_and_never_trap() -> None:
    a = np.array([7, -7, -(2**31), 5, 2**31 - 1], np.int32)
    b = np.array([2, 2, -1, 0, -1], np.int32)
    got = one("apply", [a, b], a.shape, np.int32, op="div", kind="i32", shape=(5,), a_steps=(1,),
              b_steps=(1,))  # fmt: skip
    assert got.tolist() == [3, -3, -(2**31), 0, -(2**31) + 1]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_long_sum_is_split_among_threads(threads: int) -> None:
    a, b = np.random.default_rng(3).normal(size=(2, 70, 1001)).astype(np.float32)
    got = one("apply", [a, b[0]], a.shape, np.float32, op="add", kind="f32", shape=a.shape,
              a_steps=(1001, 1), b_steps=(0, 1), threads=threads)  # fmt: skip
    assert np.array_equal(got, a + b[0])


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32, np.int64])
def test_where_chooses_elements(dtype: type[np.generic]) -> None:
    rng = np.random.default_rng(4)
    c, a = rng.random((6, 1)) < 0.5, rng.integers(0, 100, (6, 7)).astype(dtype)
    b = np.array([7], dtype)
    got = one("where", [c, a, b], a.shape, dtype, shape=a.shape, condition_steps=(1, 0),
              a_steps=(7, 1), b_steps=(0, 0), itemsize=a.itemsize)  # fmt: skip
    assert np.array_equal(got, np.where(c, a, b))


C: dict[str, Callable[[float], float]] = {
     "reciprocal": lambda x: 1 / x, "round": round, "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
     "rsqrt": lambda x: 1 / math.sqrt(x), "neg": lambda x: -x, "abs": abs,
     "square": lambda x: x * x, "softsign": lambda x: x / (1 + abs(x)),
     "sign": lambda x: math.copysign(1, x)}  # fmt: skip


@pytest.mark.parametrize("op", [*C, "exp", "log", "sqrt", "floor", "ceil", "trunc", "sin", "cos",
                                "tan", "atan", "sinh", "cosh", "asinh", "exp2", "expm1", "log1p",
                                "log2", "log10", "erf", "erfc", "tanh"])  # fmt: skip
def test_functions_are_those_of_the_c_library_rounded_once(op: str) -> None:
    x = np.random.default_rng(5).uniform(0.01, 8, 500).astype(np.float32)
    function = C.get(op) or getattr(math, op)
    wanted = np.array([function(v) for v in x.tolist()]).astype(np.float32)
    got = one("function", [x], x.shape, np.float32, op=op, size=x.size)
    assert np.array_equal(got, wanted)


def to_the(power: float) -> float:
    return math.inf if power > 709 else math.exp(power)


def gate(v: float) -> float:
    small = math.exp(-abs(v))
    return (small if v < 0 else 1) / (1 + small)


def soft(v: float) -> float:
    return math.log1p(math.exp(-abs(v))) + (v if v > 0 or v != v else 0)


A, B = 1.25, 0.75
QUICK: dict[str, Callable[[float], float]] = {
    "exp": to_the,
    "tanh": math.tanh,
    "erf": math.erf,
    "gelu": lambda v: v * 0.5 * math.erfc(v * -0.7071067811865476),
    "elu": lambda v: v if v > 0 else A * math.expm1(v),
    "selu": lambda v: B * (v if v > 0 else A * math.expm1(v)),
    "softplus": soft,
    "log_sigmoid": lambda v: -soft(-v),
    "sigmoid": gate,
    "silu": lambda v: v * gate(A * v),
    "mish": lambda v: v * math.tanh(soft(v)),
    "gelu_tanh": lambda v: v * gate(2 * (0.7978845608028654 * (v + 0.044715 * v * v * v))),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("op", QUICK)
def test_quick_functions_give_the_bytes_of_the_c_library(op: str, isa: str) -> None:
    """Of numbers of every size, also where results are no normal numbers, and special ones."""
    seed = int(os.environ.get("SEED", "0"))
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    odd = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-45, -1e-45, 3.4e38, -3.4e38, 1.0, -1.0]
    sizes = np.exp(rng.uniform(-100, 5, 2000)) * rng.choice([-1, 1], 2000)
    x = np.concatenate([odd, sizes, rng.normal(0, 3, 2000), rng.uniform(-110, 110, 2000)])
    x = x.astype(np.float32)
    with np.errstate(over="ignore"):
        wanted = np.array([QUICK[op](v) for v in x.tolist()]).astype(np.float32)
    got = one("function", [x], x.shape, np.float32, isa=isa, op=op, size=x.size, a=A, b=B)
    assert np.array_equal(np.isnan(got), np.isnan(wanted))
    there = ~np.isnan(wanted)
    assert got[there].tobytes() == wanted[there].tobytes(), x[there][got[there] != wanted[there]]


@pytest.mark.parametrize(("of", "to"), [*itertools.permutations(_cpu.KINDS, 2)])
def test_casts_between_all_kinds(of: str, to: str) -> None:
    x = drawn(np.random.default_rng(6), of, (300,))
    if of.startswith("f"):
        x = np.where(np.isfinite(x), x, 3).astype(TYPES[of])  # the others are below
    if of.startswith("f") and to != "bool" and not to.startswith("f"):
        wanted = np.trunc(x).astype(np.int64).astype(TYPES[to])
    else:
        wanted = x.astype(TYPES[to])
    got = one("cast", [x], x.shape, TYPES[to].type, size=x.size, x_kind=of, y_kind=to)
    assert np.array_equal(got, wanted)


def test_what_integers_do_not_hold_becomes_the_least_of_32_or_64_bits_first() -> None:
    x = np.array([3e9, -3e9, np.nan, np.inf, 1e20], np.float32)
    far = [3_000_000_000, -3_000_000_000, *[-(2**63)] * 3]
    for to, wanted in {"i32": [-(2**31)] * 5, "i8": [0] * 5, "i64": far}.items():
        got = one("cast", [x], x.shape, TYPES[to].type, size=5, x_kind="f32", y_kind=to)
        assert got.tolist() == wanted


def along(shape: tuple[int, int, int], kind: str) -> NDArray[np.generic]:
    return np.random.default_rng(7).integers(-5, 6, shape).astype(TYPES[kind])


@pytest.mark.parametrize("shape", [(1, 9, 1), (3, 7, 5), (2, 6, 130)])
@pytest.mark.parametrize("kind", ["f32", "i32", "i64"])
def test_reductions_of_whole_numbers(shape: tuple[int, int, int], kind: str) -> None:
    x = along(shape, kind)
    wanted = {"sum": x.sum(1), "prod": x.prod(1), "max": x.max(1), "min": x.min(1)}
    if kind == "f32":
        wide = x.astype(np.float64)
        wanted |= {"l1": abs(wide).sum(1), "sum_square": (wide * wide).sum(1),
                   "l2": np.sqrt((wide * wide).sum(1)), "mean": wide.sum(1) / shape[1]}  # fmt: skip
    for op, found in wanted.items():
        got = one("reduce", [x], found.shape, TYPES[kind].type, op=op, shape=shape, kind=kind)
        assert np.array_equal(got, found.astype(TYPES[kind])), op


def test_logarithms_of_sums_do_not_overflow_and_nan_wins() -> None:
    x = np.array([[1000, 1001], [-np.inf, 2], [np.nan, 3]], np.float32)
    got = one("reduce", [x], (3,), np.float32, op="log_sum_exp", shape=(3, 2, 1))
    assert np.allclose(got, [1001 + math.log1p(math.exp(-1)), 2, np.nan], equal_nan=True)
    for op in ("max", "min"):
        got = one("reduce", [x], (3,), np.float32, op=op, shape=(3, 2, 1))
        assert np.isnan(got[2])
        assert not np.isnan(got[:2]).any()


@pytest.mark.parametrize("kind", ["f32", "i32", "i64"])
def test_places_and_the_greatest_are_those_of_a_stable_order(kind: str) -> None:
    rng = np.random.default_rng(8)
    shape = (3, 11, 70)
    x = drawn(rng, kind, shape)
    for least in (False, True):
        wanted = (np.argmin if least else np.argmax)(x, 1)
        got = one("place", [x], (3, 70), np.int64, shape=shape, kind=kind, least=least)
        assert np.array_equal(got, wanted)
        mirrored = (np.argmin if least else np.argmax)(x[:, ::-1], 1)
        got = one("place", [x], (3, 70), np.int64, shape=shape, kind=kind, least=least, last=True)
        assert np.array_equal(got, 10 - mirrored)
        for k in (0, 1, 4, 11):
            y, places = np.zeros((3, k, 70), x.dtype), np.zeros((3, k, 70), np.int64)
            held: list[NDArray[np.generic]] = [x, y, places]
            plan = Plan(0, [(EXTERNAL, a.nbytes) for a in held])
            plan.top_k("t", 0, 1, 2, shape=shape, k=k, kind=kind, least=least)
            plan.run(held)
            for o, i in np.ndindex(3, 70):
                row = x[o, :, i].tolist()
                key = [(math.isnan(v), 0 if math.isnan(v) else v) for v in row]
                order = sorted(range(11), key=lambda r: key[r]) if least else sorted(
                    range(11), key=lambda r: (-key[r][0], -key[r][1])
                )  # fmt: skip
                assert places[o, :, i].tolist() == order[:k]
            assert np.array_equal(y, np.take_along_axis(x, places, 1), equal_nan=kind == "f32")


@pytest.mark.parametrize("kind", ["i8", "u8", "i16", "u16"])
def test_integers_of_a_scale_a_channel(kind: str) -> None:
    rng, ends = np.random.default_rng(9), np.iinfo(TYPES[kind])
    shape = (2, 3, 50)
    scale = rng.uniform(0.01, 0.3, 3).astype(np.float32)
    zero = rng.integers(ends.min, ends.max + 1, 3)
    x = (rng.integers(-300, 300, shape) * scale[:, None] / 2).astype(np.float32)  # half are ties
    x[0, 0, :3] = np.nan, np.inf, -np.inf
    near = np.rint(x[:, :, :] / scale[:, None])
    near[0, 0, 0] = -np.inf  # NaN is the least
    wanted = np.clip(near + zero[:, None], ends.min, ends.max).astype(TYPES[kind])
    got = one("encode", [x], shape, TYPES[kind].type, shape=shape, kind=kind, low=ends.min,
              high=ends.max, scale=scale, zero=zero)  # fmt: skip
    assert np.array_equal(got, wanted)
    quotient = (x / scale[:, None]).astype(np.float64)
    away = np.copysign(np.floor(np.abs(quotient) + 0.5), quotient)
    away[0, 0, 0] = -np.inf
    got = one("encode", [x], shape, TYPES[kind].type, shape=shape, kind=kind, low=ends.min,
              high=ends.max, scale=scale, zero=zero, away=True)  # fmt: skip
    assert np.array_equal(got, np.clip(away + zero[:, None], ends.min, ends.max))
    back = one("decode", [wanted], shape, np.float32, shape=shape, kind=kind, scale=scale,
               zero=zero)  # fmt: skip
    steps = (wanted.astype(np.int64) - zero[:, None]).astype(np.float32)
    assert np.array_equal(back, steps * scale[:, None])


def test_only_halves_are_rounded_away_from_zero() -> None:
    ties = np.arange(-255.5, 256, dtype=np.float32)
    near = np.nextafter(ties, np.array([[-np.inf], [0], [np.inf]], np.float32)).reshape(-1)
    x = np.concatenate([ties, near])
    exact = x.astype(np.float64)
    wanted = np.copysign(np.floor(np.abs(exact) + 0.5), exact)
    got = one("encode", [x], x.shape, np.int16, shape=(1, 1, x.size), kind="i16", low=-32768,
              high=32767, scale=np.ones(1, np.float32), zero=[0], away=True)  # fmt: skip
    assert np.array_equal(got, wanted)


def test_a_scale_is_chosen_and_read_by_the_next_step() -> None:
    x = np.array([-1, 0.5, 3], np.float32)
    scale, zero, quantized = np.zeros(1, np.float32), np.zeros(1, np.uint8), np.zeros(3, np.uint8)
    arrays: list[NDArray[np.generic]] = [x, scale, zero, quantized]
    plan = Plan(0, [(EXTERNAL, a.nbytes) for a in arrays])
    plan.choose("c", 0, 1, 2, size=3, kind="u8")
    plan.encode("e", 0, 3, shape=(1, 1, 3), kind="u8", low=0, high=255, scale_at=1, zero_at=2)
    plan.run(arrays)
    by = np.float32(4) / np.float32(255)
    assert scale[0] == by
    assert zero[0] == round(1 / float(by))
    assert quantized.tolist() == np.rint(x / by + float(zero[0])).tolist()
    with pytest.raises(DataFault, match="c: x holds NaN"):
        plan.run([np.array([0, np.nan, 1], np.float32), *arrays[1:]])


@pytest.mark.parametrize(
    ("zero", "said"),
    [
        (np.array([3 + 1j]), "zero is complex128 (1,), not int32"),
        (np.array([3.5]), "zero is float64 (1,), not int32"),
        (np.array([1 << 32]), "zero has integers that int32 does not hold"),
        (np.array([1 << 31], np.uint64), "zero has integers that int32 does not hold"),
        (None, "zero is object (), not int32"),
        ([1 << 30 | 1], "a zero is beyond"),
    ],
)
def test_zero_points_that_are_no_integers_are_refused(zero: ArrayLike, said: str) -> None:
    plan, scale = Plan(0, [(EXTERNAL, 40), (EXTERNAL, 40)]), np.ones(1, np.float32)
    with pytest.raises(ValueError, match=re.escape(said)):
        plan.encode("e", 0, 1, shape=(1, 1, 10), kind="i8", low=-9, high=9, scale=scale, zero=zero)
    with pytest.raises(ValueError, match=re.escape(said)):
        plan.decode("d", 0, 1, shape=(1, 1, 10), kind="i8", scale=scale, zero=zero)


def test_what_does_not_fit_is_named() -> None:
    plan = Plan(0, [(EXTERNAL, 40), (EXTERNAL, 40), (EXTERNAL, 40)])
    with pytest.raises(ValueError, match="no operation 'hypot'"):
        plan.apply("p", 0, 1, 2, op="hypot", kind="f32", shape=(10,), a_steps=(1,), b_steps=(1,))
    with pytest.raises(ValueError, match="no loop for pow of i32"):
        plan.apply("p", 0, 1, 2, op="pow", kind="i32", shape=(10,), a_steps=(1,), b_steps=(1,))
    with pytest.raises(ValueError, match="a is buffer 0 of 40 bytes, 76 are needed"):
        plan.apply("p", 0, 1, 2, op="add", kind="f32", shape=(10,), a_steps=(2,), b_steps=(1,))
    with pytest.raises(ValueError, match="no l2 of i32"):
        plan.reduce("p", 0, 1, op="l2", shape=(1, 10, 1), kind="i32")
    with pytest.raises(ValueError, match="k is 11; 10 is the most possible"):
        plan.top_k("p", 0, 1, 2, shape=(1, 10, 1), k=11)
