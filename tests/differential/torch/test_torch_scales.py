"""Torch's kernels on elements by scales of every kind: powers of two, whose results lie on ties,
and any others, near each other and far apart, and zero points at the ends of their integers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from qir.ir.attrs import Attr
from tests.differential.torch.kernels import (
    BOUNDS,
    Asked,
    F,
    Held,
    Map,
    Tally,
    claim,
    computed,
    dequantized,
    engine,
    hold,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from . import draws_of_torch as draws
from .draws_of_torch import KINDS, Floats, Maps, Rng, exactly
from .test_torch_elements import OPS, torch_pair
from .test_torch_elements import pytestmark as pytestmark

# -- two operands ---------------------------------------------------------------------------------


def every_pair(kind: str) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """All integers beside all integers."""
    low, high = BOUNDS[kind]
    each = np.arange(low, high + 1).astype(np.uint8 if kind == "u8" else np.int8)
    return np.repeat(each, 256), np.tile(each, 256)


def beside(maps: Maps, rng: Rng, op: str, a: Held, b: Held, *, step: int = 1) -> Asked:
    """A result that holds some of what there is, and not all; its zero point is often anywhere."""
    asked = draws.joined(rng, op, a, b, step=step)
    assert asked.out is not None
    if rng.random() < 0.6:
        return asked
    zero = maps.zero(rng, asked.out.storage)
    return replace(asked, out=of(asked.out.storage, asked.out.scale, zero))


def maps_of_two(maps: Maps, rng: Rng, kind: str) -> tuple[Map, Map]:
    """Scales that are near each other."""
    one = maps.scale(rng, low=1e-3, high=1)
    near = F(2.0 ** rng.integers(-2, 3)) if rng.random() < 0.7 else F(rng.uniform(0.1, 9))
    left, right = (of(kind, s, maps.zero(rng, kind)) for s in (one, F(one * near)))
    return left, right


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_all_pairs_of_codes_by_any_scales(name: str, op: str, kind: str) -> None:
    tally, maps, where = Tally(), Maps(), named(name)
    a, b = every_pair(kind)
    with engine(name):
        for number in range(24):
            rng = np.random.default_rng(number)
            left, right = maps_of_two(maps, rng, kind)
            step = int(rng.choice([3, 5, 9])) if op == "mul" and number % 6 else 1
            some = Held(a, left) if step == 1 else draws.multiples(rng, left, step, *a.shape)
            asked = beside(maps, rng, op, some, Held(b, right), step=step)
            assert asked.out is not None
            tally.see(exactly(asked), asked.out)
            hold(tally, where, asked, torch_pair(asked, False), number)
    tally.rich()
    maps.rich()
    assert claim(where, asked) == "exact"
    tally.exact()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_products_beyond_32_bits_turn_round_in_vectors_alone(name: str, kind: str) -> None:
    """In vectors, of which single elements are what is left over; there zero points turn too."""
    tally, maps, beyond = Tally(), Maps(), 0
    with engine(name):
        for length in (*range(1, 71), 127, 128, 129, 200):
            rng = np.random.default_rng(length)
            operands = {
                s: Held(
                    random_integers(rng, kind, length),
                    of(kind, maps.scale(rng), maps.zero(rng, kind)),
                )
                for s in "ab"
            }
            out = of(kind, maps.scale(rng, low=1e-9, high=1e-6), maps.zero(rng, kind))
            asked = Asked("mul", operands, out)
            beyond += int((np.abs(exactly(asked)) > 2.0**31).sum())
            hold(tally, named(name), asked, torch_pair(asked, False), length)
    maps.rich()
    assert 0.05 * tally.total < beyond < 0.95 * tally.total
    tally.exact()


@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("kind", KINDS)
def test_sums_beyond_32_bits_turn_round_after_a_relu(kind: str, relu: bool) -> None:
    """With a zero point above 127 the highest become the lowest, which no relu raises."""
    tally, maps, beyond = Tally(), Maps(), 0
    with engine("fbgemm"):
        for length in (*range(1, 71), 127, 128, 129, 200):
            rng = np.random.default_rng(length)
            scales = [maps.scale(rng, low=1, high=100) for _ in "ab"]
            operands = {
                slot: Held(
                    random_integers(rng, kind, length), of(kind, scale, maps.zero(rng, kind))
                )
                for slot, scale in zip("ab", scales, strict=True)
            }
            out = of(kind, maps.scale(rng, low=1e-9, high=1e-6), maps.zero(rng, kind))
            asked = Asked("add", operands, out, tails=("relu",) if relu else ())
            beyond += int((np.abs(exactly(asked)) > 2.0**31).sum())
            hold(tally, named("fbgemm"), asked, torch_pair(asked, relu), length)
    maps.rich()
    assert beyond > 0.05 * tally.total
    tally.exact()


RATIOS = (-14, -13, -12, -11, -10, -6, -1, 0, 4, 7)
OTHERS = (1.0, 0.5, 0.5, 1.5, 0.5, 1.25)


@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
def test_qnnpack_adds_codes_of_all_ratios_it_takes(relu: bool) -> None:
    """Below 2^-10 it shifts by 32 bits and more; the last elements of 4096 where no vector fits.

    The other operand is often of half steps, and one element of three that is added to it is 0."""
    tally, zeros, where = Tally(), Maps(), named("qnnpack")
    shapes = [(n,) for n in range(1, 71)] + [(4096 + n,) for n in range(1, 10)] + [(3, 7, 197)]
    with engine("qnnpack"):
        for number, shape in enumerate(shapes):
            for power in RATIOS:
                rng = np.random.default_rng((number, power + 14))
                one = F(2.0**power * rng.choice([1, 1.5, rng.uniform(1, 2)]))
                maps = [of("u8", s, zeros.zero(rng, "u8")) for s in (one, rng.choice(OTHERS))]
                held = [Held(random_integers(rng, "u8", *shape), m) for m in maps]
                held[0].data[rng.random(shape) < 0.3] = maps[0].zero
                operands = dict(zip(rng.permutation(["a", "b"]).tolist(), held, strict=True))
                operands = {s: operands[s] for s in "ab"}
                out = of("u8", 1, min(zeros.zero(rng, "u8"), 254))  # it knows no relu of 255
                asked = Asked("add", operands, out, tails=("relu",) if relu else ())
                hold(tally, where, asked, torch_pair(asked, relu), (shape, power))
    assert zeros.seen == {"end", "odd", "even"}
    tally.exact()


@pytest.mark.parametrize("tail", ["", "_relu"])
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_beside_codes_by_qnnpack(kind: str, op: str, tail: str) -> None:
    """Which QNNPACK leaves to torch's own kernels."""
    tally, maps, name = Tally(), Maps(), named("qnnpack")
    for length in range(1, 71):
        rng = np.random.default_rng(length)
        x = Held(
            random_integers(rng, kind, 3, length), of(kind, maps.scale(rng), maps.zero(rng, kind))
        )
        assert x.map is not None
        number = F(rng.normal() * float(x.map.scale) * 10.0 ** rng.integers(0, 4))
        with engine("qnnpack"):
            made = getattr(OPS, f"{op}_scalar{tail}")(tensor(x), float(number))
        out = of(kind, F(made.q_scale()), made.q_zero_point())
        operands = {"a": x, "b": Held(np.asarray(number))}
        asked = Asked(op, operands, out, tails=("relu",) if tail else ())
        tally.add(computed(asked, name), taken(made), f"{op} {length}")
    maps.rich()
    assert claim(name, asked) == "exact"
    tally.exact()


SPREADS: tuple[Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]], ...] = (
    lambda n: ((3, n), (1, n)),
    lambda n: ((3, n), (3, 1)),
    lambda n: ((2, 3, n), (1, 3, 1)),
)


@pytest.mark.parametrize("spread", SPREADS)
def test_operands_of_two_shapes_are_left_to_vectors_by_qnnpack(
    spread: Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]],
) -> None:
    tally, maps = Tally(), Maps()
    with engine("qnnpack"):
        for length in range(2, 71):
            rng = np.random.default_rng(length)
            both = zip(spread(length), maps_of_two(maps, rng, "u8"), strict=True)
            held = (Held(random_integers(rng, "u8", *shape), m) for shape, m in both)
            asked = beside(maps, rng, "add", *held)
            assert asked.out is not None
            tally.see(exactly(asked), asked.out)
            hold(tally, named("qnnpack"), asked, torch_pair(asked, False), length)
    tally.rich()
    maps.rich()
    tally.exact()


# -- functions of one number ----------------------------------------------------------------------

Unary = Callable[[torch.Tensor, float, int], torch.Tensor]
UNARY: dict[str, tuple[Unary, Mapping[str, Attr]]] = {
    "sigmoid": (lambda x, s, z: OPS.sigmoid(x, s, z), {}),
    "tanh": (lambda x, s, z: torch.tanh(x), {}),
    "leaky_relu": (lambda x, s, z: OPS.leaky_relu(x, 0.125, False, s, z), {"alpha": 0.125}),
    "elu": (lambda x, s, z: OPS.elu(x, s, z, 1.5, 1.0, 1.0), {"alpha": 1.5}),
    "celu": (lambda x, s, z: OPS.celu(x, s, z, 1.25), {"alpha": 1.25}),
    "hard_swish": (lambda x, s, z: OPS.hardswish(x, s, z), {}),
    "hard_sigmoid": (
        lambda x, s, z: torch.nn.functional.hardsigmoid(x),
        {"alpha": float(F(1) / F(6)), "beta": 0.5},
    ),
    "gelu": (lambda x, s, z: torch.nn.functional.gelu(x), {}),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", UNARY)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_functions_of_every_code_by_any_scales(name: str, op: str, kind: str) -> None:
    functions(name, op, kind, 96).rich()


def functions(name: str, op: str, kind: str, count: int) -> Maps:
    """Compares a function of every code in so many maps."""
    run, attrs = UNARY[op]
    tally, maps, where = Tally(), Maps(), named(name)
    low, high = BOUNDS[kind]
    with engine(name):
        for number in range(count):
            rng = np.random.default_rng(number)
            length = int(rng.choice([256, 257, 319, 320, 333]))
            data = np.resize(np.arange(low, high + 1), length).astype(
                random_integers(rng, kind).dtype
            )
            m = of(kind, maps.scale(rng), maps.zero(rng, kind))
            if op == "hard_sigmoid" and number % 4 == 0:  # what lies on ties of its sixths
                m = of(kind, 3 / 256, maps.zero(rng, kind))
            x = Held(data, m)
            to = maps.scale(rng, low=1e-3, high=1)
            if number % 2:  # linear parts give ties then
                to = F(m.scale * F(rng.choice([2, 2, 4, 2 / 3])))
            wanted = of(kind, to, maps.zero(rng, kind))
            if op == "sigmoid" and name == "qnnpack" and kind == "u8":
                wanted = of(kind, 1 / 256, 0)
            made = run(tensor(x), float(wanted.scale), int(wanted.zero))
            out = of(kind, made.q_scale(), made.q_zero_point())
            asked = Asked(op, {"x": x}, out, attrs)
            hold(tally, where, asked, made, number)
    assert claim(where, asked) == "exact"
    tally.exact()
    return maps


def test_gelu_by_tanh_of_every_code() -> None:
    tally, maps = Tally(), Maps()
    for number in range(96):
        rng = np.random.default_rng(number)
        data = np.resize(np.arange(256), int(rng.integers(257, 400))).astype(np.uint8)
        x = Held(data, of("u8", maps.scale(rng), maps.zero(rng, "u8")))
        with engine("fbgemm"):
            made = torch.nn.functional.gelu(tensor(x), approximate="tanh")
        asked = Asked("gelu", {"x": x}, x.map, {"approximate": "tanh"})
        hold(tally, named("fbgemm"), asked, made, number)
    maps.rich()
    tally.exact()


# -- numbers a channel ----------------------------------------------------------------------------


def norm(maps: Maps, rng: Rng, kind: str, rank: int, *, wild: bool) -> Asked:
    """A batch norm of any ratio of scales, whose results lie on ties, often, or beyond 32 bits."""
    count = int(rng.integers(1, 71))
    sides = tuple(int(v) for v in rng.integers(1, 5, rank))
    x = Held(
        random_integers(rng, kind, 2, count, *sides),
        of(kind, maps.scale(rng), maps.zero(rng, kind)),
    )
    assert x.map is not None
    step = float(x.map.scale)
    ratio = rng.choice([1, 0.5, 2, 4, 1, 0.5, 2, 4, 0.3, 0.1, 3, 0.7, rng.uniform(0.1, 9)])
    out = of(kind, F(step * ratio), maps.zero(rng, kind))
    held = {
        "gamma": 2.0 ** rng.integers(-2, 2, count) * rng.choice([1, -1], count),
        "beta": rng.integers(-8, 8, count) * float(out.scale) / 2,
        "mean": rng.integers(-90, 90, count) * step,
        "var": rng.uniform(0.1, 3, count) if rng.random() < 0.2 else np.full(count, 4.0),
    }
    if wild:
        held["gamma"] = rng.normal(size=count) * 10.0 ** rng.integers(5, 20, count)
    operands = {"x": x, **{s: Held(np.asarray(v, F)) for s, v in held.items()}}
    return Asked("batch_norm", operands, out, {"eps": float(F(rng.choice([1e-5, 1e-3, *[0] * 6])))})


@pytest.mark.parametrize("wild", [False, True], ids=["tame", "beyond 32 bits"])
@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_batch_norms_of_any_ratio_of_scales(kind: str, rank: int, wild: bool) -> None:
    tally, maps = Tally(), Maps()
    for number in range(120):
        rng = np.random.default_rng(number)
        asked = norm(maps, rng, kind, rank, wild=wild)
        assert asked.out is not None
        run, eps = getattr(OPS, f"batch_norm{rank}d"), asked.attrs["eps"]
        parts = [asked.operands[s].data for s in ("gamma", "beta", "mean", "var")]
        tally.see(normed(asked), asked.out)
        with engine("fbgemm"):
            made = run(
                tensor(asked.operands["x"]),
                *(torch.from_numpy(p) for p in parts),
                eps,
                float(asked.out.scale),
                int(asked.out.zero),
            )
        hold(tally, named("fbgemm"), asked, made, number)
    maps.rich()
    assert min(tally.low, tally.high) >= 0.05 * tally.total
    assert wild or tally.ties >= 0.05 * tally.total
    assert claim(named("fbgemm"), asked) == "exact"
    tally.exact()


def normed(asked: Asked) -> Floats:
    """The result in steps of its map, unrounded."""
    x = dequantized(asked.operands["x"])
    shape = (1, -1, *(1,) * (x.ndim - 2))
    gamma, beta, mean, var = (
        asked.operands[s].data.astype(np.float64).reshape(shape)
        for s in ("gamma", "beta", "mean", "var")
    )
    eps, out = asked.attrs["eps"], asked.out
    assert isinstance(eps, float)
    assert out is not None
    return np.asarray(((x - mean) / np.sqrt(var + eps) * gamma + beta) / float(out.scale))


# -- concat ---------------------------------------------------------------------------------------

SHAPES: Mapping[str, tuple[tuple[int, ...], int]] = {
    "lines": ((3, 5), 1),
    "rows": ((2, 3, 5), -1),
    "images": ((2, 3, 4, 5), 0),
    "channels": ((2, 3, 4, 5), 1),
    "heights": ((2, 3, 4, 5), 2),
    "one channel": ((2, 1, 4, 5), 2),
    "one element each": ((3, 9, 1, 1), 1),
    "channels of one": ((2, 1, 4, 5), 1),
    "volumes": ((2, 3, 2, 4, 5), 3),
    "ends of volumes": ((2, 3, 2, 4, 5), -1),
}


def joined(maps: Maps, rng: Rng, kind: str, shape: tuple[int, ...], axis: int) -> Asked:
    """Three operands, now and then of the result's map, and of any length along the axis."""
    out = of(kind, maps.scale(rng), maps.zero(rng, kind))
    held: dict[str, Held] = {}
    for number in range(3):
        sizes = list(shape)
        sizes[axis] = shape[axis] if shape[axis] == 1 else int(rng.integers(1, 71))
        ratio = rng.choice([0.5, 0.25, 1.5, rng.uniform(0.1, 3)])
        m = of(kind, F(out.scale * F(ratio)), maps.zero(rng, kind))
        held[f"xs.{number}"] = Held(
            random_integers(rng, kind, *sizes), out if rng.random() < 0.2 else m
        )
    return Asked("concat", held, out, {"axis": axis})


def torch_joined(asked: Asked, axis: int, *, last: bool = False) -> torch.Tensor:
    assert asked.out is not None
    parts = [tensor(h, channels_last=last) for h in asked.operands.values()]
    made: torch.Tensor = OPS.cat(parts, axis, float(asked.out.scale), int(asked.out.zero))
    return made


def see_joined(tally: Tally, asked: Asked) -> None:
    assert asked.out is not None
    for held in asked.operands.values():
        tally.see(dequantized(held) / float(asked.out.scale), asked.out)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_concat_along_all_axes_but_the_last_of_images(kind: str, shape: str) -> None:
    tally, maps = Tally(), Maps()
    sizes, axis = SHAPES[shape]
    for number in range(40):
        rng = np.random.default_rng(number)
        asked = joined(maps, rng, kind, sizes, axis)
        see_joined(tally, asked)
        with engine("fbgemm"):
            made = torch_joined(asked, axis)
        hold(tally, named("fbgemm"), asked, made, number)
        assert claim(named("fbgemm"), asked) == "exact"
    assert tally.ties >= 0.05 * tally.total
    maps.rich()
    tally.exact()


@pytest.mark.parametrize("kind", KINDS)
def test_concat_along_the_last_axis_of_images(kind: str) -> None:
    """Channels of those that lie so; the width of others, which are volumes of one slice."""
    width, channels, maps = Tally(), Tally(), Maps()
    apart = total = 0
    for number in range(40):
        rng = np.random.default_rng(number)
        asked = joined(maps, rng, kind, (2, 3, 4, 5), 3)
        back = Asked("concat", asked.operands, asked.out, {"axis": -1})
        found = computed(asked, named("fbgemm"))
        assert np.array_equal(found, computed(back, named("fbgemm")))
        volumes = {s: Held(h.data[:, None], h.map) for s, h in asked.operands.items()}
        as_volumes = Asked("concat", volumes, asked.out, {"axis": 4})
        sliced = computed(as_volumes, named("fbgemm"))[:, 0]
        with engine("fbgemm"):
            for axis in (3, -1):
                made = taken(torch_joined(asked, axis))
                width.add(sliced, made, f"width {number}")
                apart, total = apart + int((found != made).sum()), total + made.size
            turned = {
                s: Held(np.ascontiguousarray(np.moveaxis(h.data, -1, 1)), h.map)
                for s, h in asked.operands.items()
            }
            made = taken(torch_joined(Asked("concat", turned, asked.out), 1, last=True))
        channels.add(found, np.ascontiguousarray(np.moveaxis(made, 1, -1)), f"channels {number}")
        claims = {claim(named("fbgemm"), a) for a in (asked, back, as_volumes)}
        assert claims == {"exact"}
    maps.rich()
    width.exact()
    channels.exact()
    least = 0.02 if named("fbgemm") == "torch-2.13.fbgemm" else 0.005  # since 2.14 both round alike
    assert apart > least * total  # they are two kernels


# -- a slope a channel ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_slopes_by_any_scales(kind: str) -> None:
    tally, maps = Tally(), Maps()
    for number in range(160):
        rng = np.random.default_rng(number)
        count = int(rng.integers(1, 71))
        sides = tuple(int(v) for v in rng.integers(1, 12, int(rng.integers(0, 3))))
        m = of(kind, maps.scale(rng), maps.zero(rng, kind))
        x = Held(random_integers(rng, kind, 2, count, *sides), m)
        slope = of(kind, maps.scale(rng, low=1e-3, high=1), maps.zero(rng, kind))
        by = Held(random_integers(rng, kind, count), slope)
        far = 1e-9 if number % 4 == 0 else 1
        step = F(m.scale * F(rng.choice([2, 2, 2 / 3, 0.5, 0.7]) * far))
        out = of(kind, step, maps.zero(rng, kind))
        with engine("fbgemm"):
            made = OPS.prelu(tensor(x), tensor(by), float(out.scale), int(out.zero))
        shaped = Held(by.data.reshape(count, *(1,) * len(sides)), slope)
        asked = Asked("prelu", {"x": x, "slope": shaped}, out)
        hold(tally, named("fbgemm"), asked, made, number)
    maps.rich()
    tally.exact()


def test_a_hard_sigmoid_that_torch_has_not_is_refused() -> None:
    x = Held(random_integers(np.random.default_rng(0), "u8", 9), of("u8", 0.1, 3))
    asked = Asked("hard_sigmoid", {"x": x}, of("u8", 1 / 256, 0), _SLOPE)
    with pytest.raises(Exception, match="the kernel has alpha = 1/6 and beta = 1/2"):
        computed(asked, named("fbgemm"))


_SLOPE: Mapping[str, Attr] = {"alpha": 0.25, "beta": 0.5}
