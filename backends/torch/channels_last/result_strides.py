"""Output strides of torch's quantized kernels, including the strides of size-1 dimensions.

A kernel asks two questions of what it reads: what order it suggests for results, by its steps
alone, and whether it fills its memory in that order. What it makes follows from the answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from qir.ir.attrs import Attr
from qir.ir.ops import spec

from .strides import (
    Sizes,
    Steps,
    both,
    dense,
    fills,
    row,
    spread,
    suggests_last,
)


@dataclass(frozen=True)
class Read:
    """What a kernel reads."""

    sizes: Sizes
    steps: Steps

    @property
    def suggests(self) -> bool:
        """Whether it suggests channels last; a line is asked as the image of one row."""
        return suggests_last(*row(self.sizes, self.steps))

    @property
    def last(self) -> bool:
        """Whether it fills its memory with channels last."""
        return len(self.sizes) > 2 and fills(*row(self.sizes, self.steps), last=True)

    @property
    def plain(self) -> bool:
        """Whether it fills its memory in the plain order."""
        return fills(self.sizes, self.steps)


@dataclass(frozen=True)
class StridedKernel:
    """A kernel: what it reads, and the sizes of what it makes."""

    op: str
    attrs: Mapping[str, Attr]
    data: Sequence[Read]
    sizes: Sizes
    u8_first: bool = False
    """Whether the kernels of u8 alone are asked first, which are QNNPACK's."""
    units: bool = False
    """Whether its quantized values are parts of 256, from 0 on."""

    @property
    def x(self) -> Read:
        return self.data[0]


Rule = Callable[[StridedKernel], Steps]


def result_steps(kernel: StridedKernel) -> Steps:
    """Returns where what a kernel makes is."""
    rule = _RULES.get(kernel.op) or (_alike if spec(kernel.op).traits.elementwise else _plain)
    return rule(kernel)


def _plain(kernel: StridedKernel) -> Steps:
    return dense(kernel.sizes)


def _last(kernel: StridedKernel) -> Steps:
    """Convolutions bring their own order."""
    return dense(kernel.sizes, last=True)


def _alike(kernel: StridedKernel) -> Steps:
    """What goes element by element makes what is suggested, with or without gaps."""
    return _suggested(kernel.sizes, kernel.x)


def _suggested(sizes: Sizes, x: Read) -> Steps:
    return dense(sizes, last=len(sizes) > 3 and len(x.sizes) == len(sizes) and x.suggests)


def _images(kernel: StridedKernel) -> Steps:
    """Kernels of images that take channels last without gaps, and put all else in plain order."""
    return dense(kernel.sizes, last=kernel.x.last and kernel.x.suggests)


def _pool(kernel: StridedKernel) -> Steps:
    """QNNPACK's own have channels last where that is suggested, or where it is the plain order."""
    if not kernel.u8_first or (kernel.op.startswith("max") and kernel.attrs.get("ceil")):
        return _images(kernel)
    sizes = kernel.sizes
    alone = sizes[1] == 1 or set(sizes[2:]) == {1}
    return dense(sizes, last=alone or kernel.x.suggests)


def _mean(kernel: StridedKernel) -> Steps:
    """Means of parts: QNNPACK computes those of images whose windows are alike and above 1."""
    made, read = kernel.sizes[2:], kernel.x.sizes[2:]
    if len(made) == 3:
        return _alike(kernel) if set(made) == {1} else _images(kernel)
    alike = made != read and all(n % m == 0 for n, m in zip(read, made, strict=True) if m)
    return _pool(kernel) if alike else _images(kernel)


def _windows(kernel: StridedKernel) -> Steps:
    """Averages of volumes put what they read with channels last first, if it does not be so."""
    return dense(kernel.sizes, last=not both(kernel.x.sizes, kernel.x.steps))


def _batch(kernel: StridedKernel) -> Steps:
    """Lines come back in the plain order, where they are not in it already."""
    made = dense(kernel.sizes, last=len(kernel.sizes) > 2)
    return made if len(kernel.sizes) != 3 or fills(kernel.sizes, made) else dense(kernel.sizes)


def _norm(kernel: StridedKernel) -> Steps:
    """Norms of groups and instances know channels last of images, not of volumes."""
    return _images(kernel) if len(kernel.sizes) == 4 else _contiguous(kernel)


def _contiguous(kernel: StridedKernel) -> Steps:
    """Returns what is read in the plain order first; what has it already suggests what it will."""
    return dense(
        kernel.sizes,
        last=_suggested(kernel.sizes, kernel.x) != dense(kernel.sizes) and kernel.x.plain,
    )


def _reduced(kernel: StridedKernel) -> Steps:
    """Means along the last axes are a kernel of quantized values, others of floats; QNNPACK has one
    of its own."""
    rank = len(kernel.x.sizes)
    said = kernel.attrs.get("axes") or tuple(range(rank))
    axes = {a % rank for a in said if isinstance(a, int)} if isinstance(said, tuple) else set()
    inner = sorted(axes) == [*range(rank - len(axes), rank)]
    images = kernel.u8_first and rank == 4 and said == (2, 3)
    if len(kernel.sizes) != rank or not inner or images:
        return dense(kernel.sizes)
    return _contiguous(kernel)


def _joined(kernel: StridedKernel) -> Steps:
    """Channels of images with channels last are joined as quantized values, all else as floats."""
    rank, axis = len(kernel.sizes), kernel.attrs.get("axis", 0)
    if rank == 4 and isinstance(axis, int) and axis % 4 == 1 and all(x.last for x in kernel.data):
        return dense(kernel.sizes, last=True)
    reals = (Read(x.sizes, _suggested(x.sizes, x)) for x in kernel.data)
    made = dense(kernel.sizes, last=rank > 3 and all(x.suggests for x in reals))
    return _suggested(kernel.sizes, Read(kernel.sizes, made))


def requantized(sizes: Sizes, steps: Steps) -> Steps:
    """Quantized values that are made float and integers again, or what goes through float so."""
    return _suggested(sizes, Read(sizes, _suggested(sizes, Read(sizes, steps))))


def _pair(kernel: StridedKernel) -> Steps:
    """Returns the first operand's order, if the result has its sizes."""
    first = kernel.x
    if len(kernel.data) < 2 or first.sizes == kernel.sizes or kernel.op == "mul":
        return _suggested(kernel.sizes, first)
    return _iterated(kernel.sizes, kernel.data)


def _iterated(sizes: Sizes, data: Sequence[Read]) -> Steps:
    """Returns a result that is made in the order of steps in which operands are gone through."""
    every = [spread(sizes, of.sizes, of.steps) for of in data]
    order = [*reversed(range(len(sizes)))]
    for i in range(1, len(order)):
        at = i
        for j in range(i - 1, -1, -1):
            turn = _turn(sizes, every, order[j], order[at])
            if turn < 0:
                break
            if turn:
                order[j], order[at], at = order[at], order[j], j
    made, step = [0] * len(sizes), 1
    for axis in order:
        made[axis], step = step, step * max(sizes[axis], 1)
    return tuple(made)


def _turn(sizes: Sizes, every: Sequence[Steps], one: int, other: int) -> int:
    """Returns whether one axis goes after another: above 0 yes, below no."""
    for steps in every:
        if not steps[one] or not steps[other]:
            continue
        if steps[one] != steps[other]:
            return 1 if steps[one] > steps[other] else -1
        if sizes[one] > sizes[other]:
            return 1
    return 0


def _softmax(kernel: StridedKernel) -> Steps:
    """QNNPACK goes along the axis of step 1, or along the last one after it has changed places."""
    rank, at = len(kernel.sizes), kernel.attrs.get("axis", -1)
    if not kernel.u8_first or not kernel.units or not isinstance(at, int):
        return dense(kernel.sizes)
    axes = [*range(rank)]
    axes[at], axes[-1] = axes[-1], axes[at]
    if kernel.x.steps[at] == 1:
        return _suggested(kernel.sizes, kernel.x)
    sizes, steps = (tuple(of[a] for a in axes) for of in (kernel.sizes, kernel.x.steps))
    moved = _suggested(sizes, Read(sizes, steps if fills(sizes, steps) else dense(sizes)))
    return tuple(moved[axis] for axis in axes)


def unpredicted(kernel: StridedKernel) -> str:
    """Returns why nobody can tell what torch's kernel makes, for its order; empty where one can."""
    x, sizes = kernel.x, kernel.sizes
    if kernel.op in ("instance_norm", "group_norm"):
        alone = len(sizes) == 4 and sizes[0] > 1 and set(sizes[2:]) == {1}
        return _WRITES if alone and x.last else ""
    at = kernel.attrs.get("axis", -1)
    if kernel.op != "softmax" or not kernel.u8_first or not kernel.units or not isinstance(at, int):
        return ""
    if x.steps[at] != 1 or sizes[at] == 1:
        return ""
    made, last = result_steps(kernel), sizes[at]
    rest = [a for a, n in enumerate(sizes) if n > 1 and a != at % len(sizes)]
    return _READS if any(x.steps[a] != made[a] or made[a] % last for a in rest) else ""


_WRITES = "it writes the first of images of one element, and leaves the others: not predicted"
_READS = "it reads these strides as rows of another axis, or as contiguous: not predicted"

_RULES: Mapping[str, Rule] = {
    **dict.fromkeys((f"conv{of}{n}d" for of in ("", "_transpose") for n in (1, 2, 3)), _last),
    **dict.fromkeys("max_pool1d max_pool2d avg_pool1d avg_pool2d".split(), _pool),
    **dict.fromkeys("global_avg_pool adaptive_avg_pool".split(), _mean),
    **dict.fromkeys("max_pool3d resize resize_nearest".split(), _images),
    **dict.fromkeys("instance_norm group_norm".split(), _norm),
    **dict.fromkeys("elu celu linear matmul".split(), _plain),
    **dict.fromkeys("add sub mul div min max".split(), _pair),
    **dict.fromkeys("quantize dequantize requantize cast prelu pad".split(), _alike),
    "avg_pool3d": _windows,
    "batch_norm": _batch,
    "layer_norm": _contiguous,
    "reduce_mean": _reduced,
    "concat": _joined,
    "softmax": _softmax,
}
"""By op; others that go element by element make what is suggested, and all else the plain order."""

__all__ = ["Read", "StridedKernel", "requantized", "result_steps", "unpredicted"]
