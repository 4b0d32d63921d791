"""Float32 depthwise convolutions in NHWC, joined with the convolutions before and after them.

Between them are the largest values of a mobile network. One step that computes some lines of all
of them at a time keeps these values in the second cache, and needs no memory for the rest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from qir._kernels._cpu import Plan

from .builder import Buffer, PendingStep

LARGE = 128 * 1024
"""Floats of a value that the second cache does not keep until the next step."""
MAX_WEIGHTS = 64 * 1024
"""Floats of weights that are read again for each few lines."""

Part: TypeAlias = (
    "tuple[NDArray[np.float32], NDArray[np.float32] | None, Sequence[tuple[str, object]]]"
)


@dataclass(slots=True)
class _Conv:
    """A convolution in NHWC as its step adds it to a plan."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    options: Mapping[str, Any]

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is convolved alone, and the image is held in NHWC."""
        groups, channels = self.options["groups"], self.options["shape"][1]
        return bool(groups == channels == self.options["kernel"][0] > 1)

    @property
    def is_pointwise(self) -> bool:
        """Whether each output pixel sees one input pixel, in order, in NHWC."""
        _, height, width = self.options["kernel"]
        single = height == width == self.options["groups"] == 1 and not self.options["first"]
        return single and self.options["stride"] == (1, 1) and not any(self.options["pad"])

    @property
    def part(self) -> Part:
        """The convolution as a chain has it."""
        options = [(k, v) for k, v in self.options.items() if k != "added"]
        return self.weight, self.bias, options


@dataclass(slots=True)
class _Plan:
    """Stands in for a plan and keeps the convolution that a step adds, if it is one."""

    conv: _Conv | None = None
    numbers: dict[Buffer, int] = field(default_factory=dict)

    # A step knows how to add itself to a plan, and nothing else: so its convolution is read off the
    # call that it makes.
    def __getattr__(self, method: str) -> Callable[..., None]:
        return lambda *args, **options: None

    def float_last_conv2d(
        self, name: str, x: int, y: int, weight: Any, bias: Any, **options: Any
    ) -> None:
        """Keeps it."""
        self.conv = _Conv(weight, bias, options)


def joined_convolutions(steps: Sequence[PendingStep]) -> list[PendingStep]:
    """Returns the steps of a program, of which chains of convolutions are joined."""
    users = Counter(buffer for step in steps for buffer in (*step.reads, *step.writes))
    convs = [_conv(step) for step in steps]
    out: list[PendingStep] = []
    at = 0
    while at < len(steps):
        middle = convs[at]
        start, end = at, at + 1
        # A chain is made around a depthwise convolution: its operand and its result are the large
        # values.
        if middle is not None and middle.is_depthwise:
            if out and at and out[-1] is steps[at - 1] and _joins(convs, steps, at - 1, users):
                start = at - 1
            if end < len(steps) and _joins(convs, steps, at, users):
                end = at + 2
        if end - start > 1:
            del out[len(out) - (at - start) :]
            parts = (convs[at - 1] if start < at else None, middle,
                     convs[at + 1] if end > at + 1 else None)  # fmt: skip
            out.append(_chain(steps[start:end], parts))
        else:
            out.append(steps[at])
        at = end
    return out


def _conv(step: PendingStep) -> _Conv | None:
    if step.kind != "float_conv2d":
        return None
    plan = _Plan()
    step.add(cast("Plan", plan), lambda buffer: 0)
    return plan.conv


def _joins(
    convs: Sequence[_Conv | None], steps: Sequence[PendingStep], at: int, users: Counter[Buffer]
) -> bool:
    """Returns whether step `at` hands a large value to the next one and to no other."""
    x, y = convs[at], convs[at + 1]
    (between,) = steps[at].writes
    if x is None or y is None or x.options.get("added") is not None:
        return False
    # Written once and read once: a value that somebody else reads must be in memory as a whole.
    if between.external or users[between] != 2 or between is not steps[at + 1].reads[0]:
        return False
    dense, other = (y, x) if x.is_depthwise else (x, y)
    if not other.is_depthwise or dense.is_depthwise or (dense is y and not y.is_pointwise):
        return False
    return between.size >= 4 * LARGE and dense.weight.size <= MAX_WEIGHTS


def _chain(steps: Sequence[PendingStep], parts: Sequence[_Conv | None]) -> PendingStep:
    """Returns one step for two or three."""
    first, last = steps[0], steps[-1]
    source, (target,) = first.reads[0], last.writes
    added = last.reads[1] if len(last.reads) > 1 else None
    given = [None if conv is None else conv.part for conv in parts]
    name = " ".join(step.name for step in steps)
    return PendingStep(
        name,
        "float_chain",
        (source,) if added is None else (source, added),
        (target,),
        last.shape,
        lambda plan, at: plan.float_last_chain(
            name, at(source), at(target), given, added=None if added is None else at(added)
        ),
    )
