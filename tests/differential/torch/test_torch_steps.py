"""Where what each of torch's kernels makes lies in memory, whatever order it reads: every step,
along axes of size 1 too, since later kernels ask for those."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch

from qir.backends.torch.channels_last.result_strides import (
    Operand,
    StridedKernel,
    requantized,
    result_strides,
    unpredicted_reason,
)
from qir.backends.torch.channels_last.strides import (
    Sizes,
    Strides,
    contiguous_strides,
    squeezed,
    unsqueezed,
    viewed,
)
from qir.ir.attrs import Attr
from tests.differential.torch.kernels import engine

ENGINES = ("fbgemm", "qnnpack", "onednn", "x86")
ops, nf = torch.ops.quantized, torch.nn.functional
Made = Callable[..., torch.Tensor]
SIZES: dict[int, tuple[Sizes, ...]] = {
    2: ((2, 9), (1, 9), (2, 1)),
    3: ((2, 9, 1), (1, 8, 1), (2, 1, 9), (2, 5, 4), (1, 6, 8), (1, 1, 1), (1, 1, 4)),
    4: (
        *((2, 9, 1, 1), (1, 8, 1, 1), (2, 5, 1, 6), (2, 5, 6, 1), (1, 1, 5, 4), (2, 1, 4, 6)),
        *((2, 8, 2, 2), (2, 3, 4, 6), (3, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 4), (1, 1, 4, 1)),
    ),
    5: (
        *((2, 7, 2, 1, 1), (2, 7, 1, 1, 1), (1, 6, 4, 2, 2), (2, 1, 1, 1, 1), (1, 8, 1, 1, 1)),
        *((2, 8, 1, 3, 3), (1, 1, 3, 3, 3)),
    ),
}
"""Among them one channel, images of one element, one high or wide, and batches of one."""


def orders(sizes: Sizes) -> Iterator[Strides]:
    """Plain, channels last, any permutation, parts of more channels, every second of the last."""
    rank = len(sizes)
    for many in (sizes, tuple(n + (axis == 1) for axis, n in enumerate(sizes))):
        yield contiguous_strides(many)
        yield contiguous_strides(many, channels_last=rank > 2)
    for perm in itertools.permutations(range(rank)):
        held = contiguous_strides(tuple(sizes[axis] for axis in perm))
        yield tuple(held[perm.index(axis)] for axis in range(rank))
    yield tuple(2 * step for step in contiguous_strides(sizes))


def drawn(rng: np.random.Generator, sizes: Sizes, count: int) -> list[Strides]:
    """Some orders, plain and channels last among them."""
    first, second, *every = dict.fromkeys((*orders(sizes), *orders(sizes)))
    some = rng.permutation(len(every))[: max(count - 2, 0)]
    return [first, second, *(every[i] for i in some)]


def lying(sizes: Sizes, steps: Strides, kind: torch.dtype = torch.uint8) -> torch.Tensor:
    """Any integers that lie so."""
    count = 1 + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    low, high = (0, 256) if kind == torch.uint8 else (-128, 128)
    held = torch.randint(low, high, (count,), dtype=kind)
    return torch._make_per_tensor_quantized_tensor(held, 0.05, 10).as_strided(sizes, steps)


@dataclass(frozen=True)
class Op:
    """A kernel of torch and what QIR calls it."""

    name: str
    made: Made
    attrs: dict[str, Attr] = field(default_factory=dict)
    units: bool = False
    signed: bool = True
    """Whether it takes integers of i8 too."""


def weights(*sizes: int) -> torch.Tensor:
    return torch.quantize_per_tensor(torch.randn(*sizes), 0.01, 0, torch.qint8)


def convolution(rank: int, size: int, back: bool) -> Op:
    name = f"conv{'_transpose' if back else ''}{rank - 2}d"
    ones, sides = [1] * (rank - 2), [size] * (rank - 2)

    def made(x: torch.Tensor) -> torch.Tensor:
        shape = (x.shape[1], 3) if back else (3, x.shape[1])
        pad = [0 if back else size // 2] * (rank - 2)
        out = ([0] * (rank - 2),) if back else ()
        packed = getattr(ops, f"{name}_prepack")(
            weights(*shape, *sides), None, ones, pad, *out, ones, 1
        )
        done: torch.Tensor = getattr(ops, name)(x, packed, 0.1, 100)
        return done

    return Op(name, made, signed=False)


def normal(rank: int) -> Op:
    by = getattr(ops, f"batch_norm{max(rank - 2, 1)}d")
    return Op(
        "batch_norm",
        lambda x: by(x, *(torch.rand(x.shape[1]) + 0.1 for _ in range(4)), 1e-5, 0.1, 99),
    )


def over(count: Callable[[torch.Tensor], int], by: Made) -> Made:
    """A norm whose factors are one for each of so many."""

    def made(x: torch.Tensor) -> torch.Tensor:
        many = count(x)
        return by(x, torch.ones(many), torch.zeros(many))

    return made


def pools(rank: int) -> Iterator[Op]:
    d = rank - 2
    most, mean = getattr(nf, f"max_pool{d}d"), getattr(nf, f"avg_pool{d}d")
    part = getattr(nf, f"adaptive_avg_pool{d}d")
    for ceil in (False, True):
        yield Op(f"max_pool{d}d", lambda x, c=ceil: most(x, 2, 2, 1, ceil_mode=c), {"ceil": ceil})
    yield Op(f"avg_pool{d}d", lambda x: mean(x, 2, 2, 1))
    yield Op("global_avg_pool", lambda x: part(x, 1))
    yield from (Op("adaptive_avg_pool", lambda x, n=n: part(x, n)) for n in (1, 2, 3))


def images(rank: int) -> Iterator[Op]:
    by = nf.interpolate
    for scale in (1, 2):
        yield Op("resize_nearest", lambda x, n=scale: by(x, scale_factor=n))
        if rank == 4:
            yield Op("resize", lambda x, n=scale: by(x, scale_factor=n, mode="bilinear"))


def every(rank: int) -> Iterator[Op]:
    """All that torch computes on integers of one tensor."""
    if rank > 2:
        yield from (convolution(rank, n, back) for n in (1, 3) for back in (False, True))
        yield from pools(rank)
        one = over(lambda x: x.shape[1], lambda x, w, b: ops.group_norm(x, 1, w, b, 1e-5, 0.1, 99))
        yield Op("group_norm", one)
        one = over(lambda x: x.shape[1], lambda x, w, b: ops.instance_norm(x, w, b, 1e-5, 0.1, 99))
        yield Op("instance_norm", one)
    yield from images(rank) if rank > 3 else ()
    yield normal(rank)
    one = over(
        lambda x: x.shape[-1],
        lambda x, w, b: ops.layer_norm(x, [x.shape[-1]], w, b, 1e-5, 0.1, 99),
    )
    yield Op("layer_norm", one)
    linear = lambda x: ops.linear(x, ops.linear_prepack(weights(3, x.shape[-1]), None), 0.1, 99)  # noqa: E731
    yield Op("linear", linear, signed=False)
    yield Op("relu", torch.relu)
    yield Op("leaky_relu", lambda x: ops.leaky_relu(x, 0.25, False, 0.1, 99))
    yield Op("sigmoid", torch.sigmoid)
    yield Op("tanh", torch.tanh)
    yield Op("gelu", nf.gelu)
    yield Op("hard_swish", lambda x: ops.hardswish(x, 0.1, 3))
    yield Op("hard_sigmoid", nf.hardsigmoid)
    yield Op("elu", lambda x: ops.elu(x, 0.1, 99, 1.0))
    yield Op("celu", lambda x: ops.celu(x, 0.1, 99, 1.0))
    yield Op("thresholded_relu", lambda x: nf.threshold(x, 0.1, 0.2))
    slope = torch.quantize_per_tensor(torch.rand(1), 0.01, 0, torch.quint8)
    yield Op("prelu", lambda x: ops.prelu(x, slope, 0.1, 99), signed=False)
    yield Op("mul", lambda x: ops.mul_scalar(x, -0.5))
    yield Op("add", lambda x: ops.add_scalar(x, 0.5))
    yield Op("pad", lambda x: nf.pad(x, (1, 1)))
    yield from means(rank)
    for axis in range(rank):
        yield Op("softmax", lambda x, a=axis: ops.softmax(x, a, 1 / 256, 0), {"axis": axis}, True)
        yield Op("softmax", lambda x, a=axis: ops.softmax(x, a, 0.01, 3), {"axis": axis})


def means(rank: int) -> Iterator[Op]:
    some = ((-1,), (1,), (0,), (-2,), (-2, -1), (0, -1), tuple(range(1, rank)))
    for axes in (*some, (2, 3), (3, 2)) if rank > 3 else some:
        for keep in (True, False):
            by: Made = lambda x, a=axes, k=keep: x.mean(list(a), keepdim=k)  # noqa: E731
            yield Op("reduce_mean", by, {"axes": axes, "keep": keep})


def compare(op: Op, data: list[torch.Tensor], name: str) -> bool:
    """Whether torch takes it, and if so that it lies as is said."""
    try:
        made = op.made(*data)
    except RuntimeError:
        return False
    reads = [Operand(tuple(x.shape), tuple(x.stride())) for x in data]
    qnnpack = name == "qnnpack" and data[0].dtype == torch.quint8
    kernel = StridedKernel(op.name, op.attrs, reads, tuple(made.shape), qnnpack, op.units)
    assert result_strides(kernel) == tuple(made.stride()), kernel
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENGINES)
def test_results_of_kernels_lie_as_said(name: str) -> None:
    rng, count = np.random.default_rng(1), 0
    with engine(name):
        for rank, many in SIZES.items():
            for op, sizes in itertools.product([*every(rank)], many):
                for steps in drawn(rng, sizes, 10):
                    count += compare(op, [lying(sizes, steps)], name)
                if op.signed:
                    last = drawn(rng, sizes, 3)[-1]
                    compare(op, [lying(sizes, last, torch.int8)], name)
    assert count > 6_000


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENGINES)
def test_results_of_two_tensors_lie_as_said(name: str) -> None:
    """Sums, products and tensors that are joined, in equal and different orders."""
    rng, count = np.random.default_rng(2), 0
    with engine(name):
        for rank, many in SIZES.items():
            pairs = [Op("add", lambda x, y: ops.add(x, y, 0.1, 99))]
            pairs += [Op("add", lambda x, y: ops.add_relu(x, y, 0.1, 99))]
            pairs += [Op("mul", lambda x, y: ops.mul(x, y, 0.1, 99))]
            for axis in range(rank):
                join: Made = lambda x, y, a=axis: ops.cat([x, y], a, 0.1, 99)  # noqa: E731
                pairs.append(Op("concat", join, {"axis": axis}))
            for op, sizes in itertools.product(pairs, many):
                either = drawn(rng, sizes, 8), drawn(rng, sizes, 8)
                for one, other in itertools.product(*either):
                    count += compare(op, [lying(sizes, one), lying(sizes, other)], name)
    assert count > 5_000


SPREAD: tuple[tuple[Sizes, Sizes], ...] = (
    *(((2, 5, 4, 3), (2, 5, 1, 1)), ((2, 5, 4, 3), (1, 5, 1, 1)), ((2, 5, 4, 3), (5, 1, 1))),
    *(((2, 5, 4, 3), (1,)), ((1, 5, 4, 3), (2, 5, 1, 1)), ((2, 5, 4), (5, 1)), ((3, 7), (7,))),
    *(((2, 5, 4), (2, 5, 1)), ((2, 1, 4, 3), (1, 5, 4, 1)), ((2, 5, 2, 3, 4), (2, 5, 1, 1, 1))),
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ENGINES)
def test_results_of_operands_that_are_repeated_lie_as_said(name: str) -> None:
    rng, count = np.random.default_rng(3), 0
    both: list[tuple[str, Any]] = [("add", ops.add), ("mul", ops.mul)]
    with engine(name):
        for (word, by), pair in itertools.product(both, SPREAD):
            op = Op(word, lambda x, y, by=by: by(x, y, 0.1, 99))
            for one, other in (pair, pair[::-1]):
                either = drawn(rng, one, 8), drawn(rng, other, 8)
                for steps in itertools.product(*either):
                    data = [lying(n, s) for n, s in zip((one, other), steps, strict=True)]
                    count += compare(op, data, name)
    assert count > 1_000


@pytest.mark.filterwarnings("ignore")
def test_softmaxes_of_other_rows_are_told_of_qnnpack() -> None:
    """Whatever is not told has the integers of the formula, within two of them."""
    rng, told, wrong = np.random.default_rng(5), 0, 0
    with engine("qnnpack"):
        for rank, many in SIZES.items():
            for sizes, axis in itertools.product(many, range(rank)):
                for steps in drawn(rng, sizes, 12):
                    x = lying(sizes, steps)
                    made = ops.softmax(x, axis, 1 / 256, 0).int_repr().double()
                    wanted = (torch.softmax(x.dequantize(), axis) * 256).clamp(0, 255)
                    off = float((made - wanted).abs().max()) > 2
                    read = [Operand(sizes, steps)]
                    why = unpredicted_reason(
                        StridedKernel("softmax", {"axis": axis}, read, sizes, True, True)
                    )
                    assert why or not off, (sizes, steps, axis)
                    told, wrong = told + bool(why), wrong + off
    assert told
    assert wrong > 0.9 * told


@pytest.mark.filterwarnings("ignore")
def test_views_and_integers_made_anew_lie_as_said() -> None:
    """One-wide axes put in and left out, other shapes, and integers of what integers mean."""
    rng = np.random.default_rng(4)
    for many in SIZES.values():
        for sizes, steps in ((n, s) for n in many for s in drawn(rng, n, 14)):
            x, rank = lying(sizes, steps), len(sizes)
            again = torch.quantize_per_tensor(x.dequantize(), 0.1, 99, torch.quint8)
            assert requantized(sizes, steps) == again.stride(), (sizes, steps)
            for axis in range(rank + 1):
                put = tuple(x.unsqueeze(axis).stride())
                assert unsqueezed(sizes, steps, (axis,)) == put, (sizes, steps, axis)
            for axis in (a for a, n in enumerate(sizes) if n == 1):
                left = tuple(x.squeeze(axis).stride())
                assert squeezed(sizes, steps, (axis,)) == left, (sizes, steps, axis)
            for shape in shapes(rng, sizes):
                seen = tuple(x.reshape(shape).stride())
                assert viewed(sizes, steps, shape) == seen, (sizes, steps, shape)


def shapes(rng: np.random.Generator, sizes: Sizes) -> Iterator[Sizes]:
    """Other shapes of as many elements, ones among the sizes."""
    total = int(np.prod(sizes))
    for _ in range(4):
        left, shape = total, []
        for _ in range(int(rng.integers(1, 4))):
            parts = [n for n in range(1, left + 1) if left % n == 0]
            shape.append(int(rng.choice(parts)))
            left //= shape[-1]
        yield tuple(int(n) for n in rng.permutation([*shape, left]))


warnings.filterwarnings("ignore", message=".*An output with one or more elements was resized.*")
