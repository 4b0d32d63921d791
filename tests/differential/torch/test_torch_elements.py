"""Torch's kernels on elements, means and norms against the methods of its profiles."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest
import torch

from qir.ir.attrs import Attr
from tests.differential.torch.kernels import (
    BOUNDS,
    Array,
    Asked,
    F,
    Held,
    Tally,
    claim,
    computed,
    engine,
    hold,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.profile_in_use import named

from . import draws_of_torch as draws
from .draws_of_torch import KINDS, LENGTHS, Rng, exactly, image, odd, pair

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512, which this processor has not",
)

OPS = torch.ops.quantized


# -- two operands ---------------------------------------------------------------------------------


def torch_pair(asked: Asked, relu: bool) -> torch.Tensor:
    assert asked.out is not None
    run = getattr(OPS, asked.op + ("_relu" if relu else ""))
    a, b = (tensor(asked.operands[s]) for s in "ab")
    made: torch.Tensor = run(a, b, float(asked.out.scale), int(asked.out.zero))
    return made


@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_sums_and_products_of_codes_are_torchs(name: str, op: str, kind: str, relu: bool) -> None:
    tally, where = Tally(), named(name)
    with engine(name):
        for length in LENGTHS:
            rng = np.random.default_rng(length)
            asked = pair(rng, op, kind, (length,), (length,))
            assert asked.out is not None
            exact = exactly(asked)
            tally.see(np.maximum(exact, 0) if relu else exact, asked.out)
            full = Asked(op, asked.operands, asked.out, tails=("relu",) if relu else ())
            hold(tally, where, full, torch_pair(asked, relu), length)
    if not relu:
        tally.rich()
    tally.within(claim(where, asked))


SHAPES: dict[str, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]] = {
    "b one": lambda n: ((n,), (1,)),
    "b a row": lambda n: ((3, n), (1, n)),
    "b a column": lambda n: ((3, n), (3, 1)),
    "b a channel": lambda n: ((2, 3, n), (1, 3, 1)),
    "all alike": lambda n: ((2, 3, n), (2, 3, n)),
    "ones inside": lambda n: ((n, 1, 2), (n, 1, 2)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_vectors_run_as_far_as_operands_move_alike(shape: str) -> None:
    tally = Tally()
    with engine("fbgemm"):
        for length in (*range(1, 71, 3), 100, 130, 300):
            rng = np.random.default_rng(length)
            asked = pair(rng, "add", KINDS[length % 2], *SHAPES[shape](length))
            hold(tally, named("fbgemm"), asked, torch_pair(asked, False), (shape, length))
    tally.exact()


# -- one operand ----------------------------------------------------------------------------------


def bounds_of(rng: Rng, x: Held) -> tuple[float, float]:
    """Two floats, most of them half way between two integers."""
    assert x.map is not None
    steps = np.sort(rng.integers(*x.map.bounds, 2) - int(x.map.zero)) + 0.5
    if rng.random() < 0.3:
        steps = np.sort(steps + rng.random(2))
    low, high = (float(F(x.map.scale * F(step))) for step in steps)
    return low, high


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_bounds_are_torchs(name: str, kind: str) -> None:
    tally = Tally()
    with engine(name):
        for length in range(1, 71):
            rng = np.random.default_rng(length)
            x = Held(
                random_integers(rng, kind, length), of(kind, rng.uniform(0.01, 0.1), odd(rng, kind))
            )
            low, high = bounds_of(rng, x)
            made = {
                "relu": (torch.relu(tensor(x)), {}),
                "clip": (torch.clamp(tensor(x), low, high), {"min": low, "max": high}),
            }
            for op, (wanted, attrs) in made.items():
                hold(tally, named(name), Asked(op, {"x": x}, x.map, attrs), wanted, length)
            six = Asked("clip", {"x": x}, x.map, {"min": 0.0, "max": 6.0})
            hold(tally, named(name), six, OPS.relu6(tensor(x)), length)
    tally.exact()


UNASKED = ("fbgemm", "qnnpack")
"""Engines of profiles that state kernels of their own which torch does not choose by engine."""

# -- concat ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", UNASKED)
@pytest.mark.parametrize("relu", [False, True], ids=["plain", "relu"])
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kind", KINDS)
def test_concat_is_torchs(kind: str, last: bool, relu: bool, name: str) -> None:
    tally = Tally()
    with engine(name):
        for length in (*range(2, 71), 100, 200):  # one channel lies both ways in memory
            rng = np.random.default_rng(length)
            out = of(kind, rng.uniform(0.02, 0.1), odd(rng, kind))
            held: list[Held] = []
            for _ in range(3):
                ratio = F(rng.choice([0.5, 0.25, 1.5]))
                of_x = of(kind, F(out.scale * ratio), odd(rng, kind))
                if rng.random() < 0.2:
                    of_x = out
                held.append(Held(random_integers(rng, kind, 2, length, 2, 3), of_x))
            run = OPS.cat_relu if relu else OPS.cat
            tensors = [tensor(h, channels_last=last) for h in held]
            made = taken(run(tensors, 1, float(out.scale), int(out.zero)))
            if last:
                held = [Held(back(h.data), h.map) for h in held]
                made = back(made)
            operands = {f"xs.{i}": h for i, h in enumerate(held)}
            tails = ("relu",) if relu else ()
            asked = Asked("concat", operands, out, {"axis": 3 if last else 1}, tails)
            tally.add(computed(asked, named(name)), made, f"length {length}")
    tally.within(claim(named(name), asked))


def back(data: Array) -> Array:
    """Channels last."""
    return np.ascontiguousarray(np.moveaxis(data, 1, -1))


# -- means ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kind", KINDS)
def test_average_pools_are_torchs(kind: str, last: bool) -> None:
    tally = Tally()
    for number in range(80):
        rng = np.random.default_rng(number)
        kernel = tuple(int(v) for v in rng.integers(1, 5, 2))
        stride = tuple(int(v) for v in rng.integers(1, 4, 2))
        pad = tuple(int(rng.integers(0, k // 2 + 1)) for k in kernel)
        ceil, counted = bool(number & 1), bool(number & 2)
        x = image(rng, kind, 2, int(rng.integers(1, 70)), *(int(v) for v in rng.integers(4, 9, 2)))
        with engine("fbgemm"):
            made = torch.nn.functional.avg_pool2d(
                tensor(x, channels_last=last), kernel, stride, pad, ceil, counted
            )
        attrs: dict[str, Attr] = {
            "kernel": kernel,
            "stride": stride,
            "pad": pad * 2,
            "ceil": ceil,
            "count_pad": counted,
        }
        compare_pool(tally, "avg_pool2d", x, made, attrs, last, number)
    tally.exact()


def compare_pool(
    tally: Tally,
    op: str,
    x: Held,
    made: torch.Tensor,
    attrs: Mapping[str, Attr],
    last: bool,
    where: int,
    name: str = named("fbgemm"),
) -> None:
    wanted = taken(made)
    if last:
        x, wanted, attrs = Held(back(x.data), x.map), back(wanted), {**attrs, "layout": "NHWC"}
    asked = Asked(op, {"x": x}, x.map, attrs)
    assert claim(name, asked) == "exact"
    tally.add(computed(asked, name), wanted, f"{op} {where}")


@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("kind", KINDS)
def test_global_means_are_torchs(kind: str, last: bool) -> None:
    tally = Tally()
    for number in range(60):
        rng = np.random.default_rng(number)
        sizes = [int(v) for v in rng.integers(2, 9, 2)]
        x = image(rng, kind, 2, int(rng.integers(2, 70)), *sizes)
        with engine("fbgemm"):
            made = torch.nn.functional.adaptive_avg_pool2d(tensor(x, channels_last=last), 1)
            compare_pool(tally, "global_avg_pool", x, made, {}, last, number)
            if not last:
                mean = tensor(x).mean([-2, -1], keepdim=True)
                attrs: dict[str, Attr] = {"axes": (-2, -1), "keep": True}
                compare_pool(tally, "reduce_mean", x, mean, attrs, last, number)
    tally.exact()


@pytest.mark.parametrize("kind", KINDS)
def test_means_of_parts_and_of_volumes_are_torchs(kind: str) -> None:
    tally = Tally()
    for number in range(40):
        rng = np.random.default_rng(number)
        sizes = [int(v) for v in rng.integers(3, 9, 2)]
        size = (int(rng.integers(1, sizes[0] + 1)), int(rng.integers(1, sizes[1] + 1)))
        x = image(rng, kind, 2, int(rng.integers(2, 40)), *sizes)
        with engine("fbgemm"):
            made = torch.nn.functional.adaptive_avg_pool2d(tensor(x), size)
            compare_pool(tally, "adaptive_avg_pool", x, made, {"size": size}, False, number)
            cube = image(rng, kind, 1, int(rng.integers(1, 70)), 4, *sizes)
            made = torch.nn.functional.avg_pool3d(tensor(cube), (2, 2, 3), (1, 2, 1))
            attrs: dict[str, Attr] = {"kernel": (2, 2, 3), "stride": (1, 2, 1)}
            compare_pool(tally, "avg_pool3d", cube, made, attrs, False, number)
    tally.exact()


# -- integers that only move
# -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_greatest_codes_are_torchs(kind: str) -> None:
    tally = Tally()
    for number in range(20):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 2, 3, *(int(v) for v in rng.integers(5, 9, 2)))
        with engine("fbgemm"):
            made = torch.nn.functional.max_pool2d(tensor(x), (3, 2), (2, 1), (1, 0))
        attrs: dict[str, Attr] = {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 0, 1, 0)}
        compare_pool(tally, "max_pool2d", x, made, attrs, False, number)
    tally.exact()


# -- numbers a channel ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_thresholds_are_torchs(kind: str) -> None:
    tally = Tally()
    for length in LENGTHS:
        rng = np.random.default_rng(length)
        x = image(rng, kind, length)
        assert x.map is not None
        step = int(rng.integers(*BOUNDS[kind])) - int(x.map.zero)
        alpha = float(F(step * x.map.scale)) if length & 1 else float(F(rng.uniform(-3, 3)))
        asked = Asked("thresholded_relu", {"x": x}, x.map, {"alpha": alpha})
        hold(tally, named("fbgemm"), asked, OPS.threshold(tensor(x), alpha, 0.0), length)
    tally.within(claim(named("fbgemm"), asked))


@pytest.mark.parametrize("kind", KINDS)
def test_products_of_two_tensors_are_as_near_to_torchs_as_is_claimed(kind: str) -> None:
    tally = Tally()
    for number in range(60):
        rng = np.random.default_rng(number)
        m, k, n = (int(v) for v in rng.integers(1, 71, 3))
        one, two = (of(kind, draws.scale(rng, 0.01, 0.1), draws.odd(rng, kind)) for _ in "ab")
        held, step = draws.weights(rng, k, 2, k, n)
        beside = of(kind, two.scale, int(two.zero) // 2 if kind == "i8" else 121)
        b = Held((beside.zero + held).astype(random_integers(rng, kind).dtype), beside)
        asked = draws.joined(
            rng, "matmul", Held(random_integers(rng, kind, 2, m, k), one), b, step=step
        )
        a, out = asked.operands["a"], asked.out
        assert out is not None
        tally.see(exactly(asked), out)
        made = OPS.matmul(tensor(a), tensor(b), float(out.scale), int(out.zero))
        hold(tally, named("fbgemm"), asked, made, number)
    tally.rich()
    tally.within(claim(named("fbgemm"), asked))


# -- norms ----------------------------------------------------------------------------------------

Norm = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, float, int], torch.Tensor]
NORMS: dict[str, tuple[Norm, Mapping[str, Attr]]] = {
    "layer_norm": (
        lambda x, g, b, s, z: OPS.layer_norm(x, list(x.shape[-1:]), g, b, 1e-5, s, z),
        {"axis": -1},
    ),
    "instance_norm": (lambda x, g, b, s, z: OPS.instance_norm(x, g, b, 1e-5, s, z), {}),
    "group_norm": (
        lambda x, g, b, s, z: OPS.group_norm(x, 2, g, b, 1e-5, s, z),
        {"groups": 2},
    ),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", NORMS)
def test_norms_are_as_near_to_torchs_as_is_claimed(op: str, kind: str) -> None:
    run, attrs = NORMS[op]
    tally = Tally()
    for number in range(40):
        rng = np.random.default_rng(number)
        x = image(rng, kind, 3, 2 * int(rng.integers(1, 9)), 4, int(rng.integers(2, 40)))
        size = x.data.shape[-1 if op == "layer_norm" else 1]
        gamma, beta = (np.asarray(rng.normal(size=size), F) for _ in range(2))
        out = of(kind, F(2.0 ** -int(rng.integers(3, 8))), odd(rng, kind))
        with engine("fbgemm"):
            made = run(
                tensor(x),
                torch.from_numpy(gamma),
                torch.from_numpy(beta),
                float(out.scale),
                int(out.zero),
            )
        operands = {"x": x, "gamma": Held(gamma), "beta": Held(beta)}
        asked = Asked(op, operands, out, attrs)
        hold(tally, named("fbgemm"), asked, made, number)
    tally.within(claim(named("fbgemm"), asked))


@pytest.mark.parametrize("name", UNASKED)
@pytest.mark.parametrize("kind", KINDS)
def test_softmax_is_as_near_to_torchs_as_is_claimed(kind: str, name: str) -> None:
    tally = Tally()
    out = of(kind, 1 / 256, 0 if kind == "u8" else -128)
    for length in (*range(1, 71), 500):
        rng = np.random.default_rng(length)
        x = image(rng, kind, 5, length)
        with engine(name):
            made = OPS.softmax(tensor(x), 1, float(out.scale), int(out.zero))
        asked = Asked("softmax", {"x": x}, out, {"axis": 1})
        hold(tally, named(name), asked, made, length)
    tally.within(claim(named(name), asked))
