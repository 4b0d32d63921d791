"""A program that is being lowered: its steps, buffers, and the layouts in which values are held."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir._kernels._cpu import Plan
from qir.errors import Refused
from qir.ir import dims
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.records import record

from .sizes import Sizes

TO_NHWC = (0, 2, 3, 1)
"""The permutation from NCHW to NHWC: most int8 kernels read and write NHWC."""
TO_NCHW = (0, 3, 1, 2)
"""The permutation from NHWC to NCHW."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that steps read and write. Values that share bytes, such as a reshape, share a
    buffer."""

    size: int
    data: NDArray[np.generic] | None = None
    """The elements of a constant; None where a step or the caller writes them."""
    input: str = ""
    """The name of the graph input that it holds, if any."""
    output: str = ""
    """The name of the graph output that it holds, if any."""

    @property
    def external(self) -> bool:
        """Whether it is outside the arena: a constant, or memory that the caller brings to each
        run."""
        return self.data is not None or bool(self.input or self.output)


Add: TypeAlias = "Callable[[Plan, Callable[[Buffer], int]], None]"


@record
class PendingStep:
    """A step that is not in a plan yet; `add` adds it once every buffer has its number."""

    name: str
    kind: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    shape: Sizes
    add: Add


@record
class Fallback:
    """A node that the reference computes, and why."""

    node: str
    op: str
    reason: str


class BodyProgram(Protocol):
    """The compiled body of a branch or loop."""

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The nodes that the reference computes."""
        ...

    def run(
        self, inputs: Mapping[str, NDArray[np.generic]], threads: int
    ) -> dict[str, NDArray[np.generic]]:
        """Runs it on inputs by name; results by output name."""
        ...


class CannotLower(Exception):
    """Raised where no kernel computes a node; the message says why. No step was added by then."""


def sizes(value: Value) -> Sizes:
    """Returns the shape of a value. Every dimension is known: `at_sizes` has bound the graph."""
    known = dims.known_shape(value.type.shape)
    assert known is not None, value
    return known


def itemsize(value: Value) -> int:
    """Returns the bytes of an element; raises Refused for strings and the like."""
    carrier = value.type.dtype.carrier
    if carrier.kind == "O":
        raise Refused(f"%{value.name} is {value.type}, which QIR's runtime does not hold")
    return carrier.itemsize


def permuted(shape: Sizes, order: Sequence[int]) -> Sizes:
    """Returns sizes or strides in another order of axes."""
    return tuple(shape[axis] for axis in order)


def strides(shape: Sizes) -> Sizes:
    """Returns the strides of a contiguous array, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def is_noop_transpose(shape: Sizes, order: Sequence[int]) -> bool:
    """Returns whether a transpose moves no byte: axes of size 1 may go anywhere."""
    long_axes = [axis for axis in order if shape[axis] != 1]
    return long_axes == sorted(long_axes)


@record
class StridedElements:
    """A value as a strided view of another one: a stride for each axis, and an offset, in
    elements."""

    source: Value
    strides: Sizes
    offset: int = 0


@record
class MeanSource:
    """The quantized tensor that a mean is computed from: dequantized, or looked up in a table of
    256 floats."""

    source: Value
    table: NDArray[np.generic] | None = None


@record
class View:
    """A strided view of a buffer; see StridedElements."""

    buffer: Buffer
    strides: Sizes
    offset: int


@dataclass(slots=True)
class ProgramBuilder:
    """Collects the steps of a program and knows which buffer holds each value.

    A value of four axes may be held as its type says, in NHWC, or both: the flag `nhwc` says which
    is meant.
    """

    graph: Graph
    is_float: bool = False
    """Whether the graph has no quantized values. Float sums may then be in any order: no
    rounding to integers depends on them."""
    watched: Collection[str] = ()
    """Names of values that calibration observes. No step may fuse them away."""
    steps: list[PendingStep] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    means: dict[Value, MeanSource] = field(default_factory=dict)
    """Means that are computed from quantized values directly, without a dequantized tensor."""
    fused: set[str] = field(default_factory=set)
    """Names of nodes that the step of another node computes too."""
    compile: Callable[[Graph], BodyProgram] | None = None
    """Compiles a body; None: the reference runs the ops that have bodies."""
    _held: dict[tuple[Value, bool], Buffer] = field(default_factory=dict)
    """The buffer of a value, by (value, whether it is NHWC)."""
    _deferred: dict[Value, StridedElements] = field(default_factory=dict)
    """Views that no step has copied yet: many consumers read strided operands."""
    _folds: dict[Value, tuple[Value, Callable[[], NDArray[np.generic]]]] = field(
        default_factory=dict
    )
    """Values that constants decide, with that constant; computed at their first use."""

    def add(
        self,
        name: str,
        kind: str,
        reads: Iterable[Buffer],
        writes: Iterable[Buffer],
        shape: Sizes,
        add: Add,
    ) -> None:
        """Adds a step."""
        self.steps.append(PendingStep(name, kind, tuple(reads), tuple(writes), shape, add))

    def scratch(self, size: int) -> Buffer:
        """Returns memory for an intermediate result that is no value of the graph."""
        return Buffer(size)

    def allocate(self, value: Value, *, nhwc: bool = False) -> Buffer:
        """Returns a new buffer for a value, which the next step writes."""
        return self.set_buffer(value, Buffer(math.prod(sizes(value)) * itemsize(value)), nhwc=nhwc)

    def set_buffer(self, value: Value, buffer: Buffer, *, nhwc: bool = False) -> Buffer:
        """Records the buffer that holds a value, and returns it."""
        assert not nhwc or value.type.rank == 4, value
        self._held[value, nhwc] = buffer
        # NCHW and NHWC are the same bytes where the image is one pixel or has one channel.
        if value.type.rank == 4 and is_noop_transpose(sizes(value), TO_NHWC):
            self._held[value, not nhwc] = buffer
        return buffer

    def has_buffer(self, value: Value, *, nhwc: bool) -> bool:
        """Returns whether the value is held in that layout already."""
        return (value, nhwc) in self._held

    def buffers(self) -> Iterable[Buffer]:
        """Returns every buffer that holds a value."""
        return self._held.values()

    def buffer(self, value: Value, *, nhwc: bool = False) -> Buffer:
        """Returns the buffer of a value in the wanted layout. Adds a transpose or copy where
        there is none."""
        held = self._held.get((value, nhwc))
        if held is not None:
            return held
        # A constant becomes a buffer at its first use. One that a kernel packs itself never does.
        elements_of_constant = (
            None if (value, not nhwc) in self._held else self.constant_elements(value)
        )
        if elements_of_constant is not None:
            elements = np.ascontiguousarray(elements_of_constant)
            held = self.set_buffer(value, Buffer(elements.nbytes, data=elements))
            return held if not nhwc else self.buffer(value, nhwc=True)
        # A deferred view is copied once some step needs it contiguous.
        if value in self._deferred and (value, not nhwc) not in self._held:
            self._copy_deferred(value)
            return self.buffer(value, nhwc=nhwc)
        # Held in the other layout only: add a transpose, and keep both buffers.
        x = self._held[value, not nhwc]
        y = self.allocate(value, nhwc=nhwc)
        shape = sizes(value) if nhwc else permuted(sizes(value), TO_NHWC)
        order = TO_NHWC if nhwc else TO_NCHW
        self.transpose(
            f"{value.name} to {'NHWC' if nhwc else 'NCHW'}", x, y, shape, order, itemsize(value)
        )
        return y

    def defer_copy(self, value: Value, elements: StridedElements) -> None:
        """Records that a value is a strided view; the copy is added when a step needs it
        contiguous."""
        self._deferred[value] = elements

    def strided(self, value: Value) -> StridedElements:
        """Returns a value as strided elements: of itself, or of the value it is a view of."""
        # A value that was copied meanwhile is read from its own buffer.
        if value in self._deferred and (value, False) not in self._held:
            return self._deferred[value]
        return StridedElements(value, strides(sizes(value)))

    def view(self, value: Value) -> View:
        """Returns the buffer and strides of a value, for kernels that read any strides."""
        elements = self.strided(value)
        return View(self.buffer(elements.source), elements.strides, elements.offset)

    def _copy_deferred(self, value: Value) -> None:
        elements = self._deferred.pop(value)
        source, target = self.buffer(elements.source), self.allocate(value)
        self.add_strided_copy(value, source, target, sizes(value), elements)

    def add_strided_copy(
        self, value: Value, x: Buffer, y: Buffer, shape: Sizes, elements: StridedElements
    ) -> None:
        """Adds a step that copies strided elements to a contiguous buffer."""
        name, width = value.name, itemsize(value)
        self.add(
            name,
            "strided",
            [x],
            [y],
            shape,
            lambda plan, at: plan.strided(
                name,
                at(x),
                at(y),
                shape=shape,
                steps=elements.strides,
                offset=elements.offset,
                itemsize=width,
            ),
        )

    def transpose(
        self, name: str, x: Buffer, y: Buffer, shape: Sizes, order: Sequence[int], width: int
    ) -> None:
        """Adds a step that permutes axes."""
        self.add(
            name,
            "transpose",
            [x],
            [y],
            permuted(shape, order),
            lambda plan, at: plan.transpose(
                name, at(x), at(y), shape=shape, perm=order, itemsize=width
            ),
        )

    def fold(self, value: Value, source: Value, compute: Callable[[], NDArray[np.generic]]) -> None:
        """Records that a constant decides a value; `compute` runs if some step needs it."""
        self._folds[value] = source, compute

    def folded_source(self, value: Value) -> Value | None:
        """Returns the constant that a folded value is computed from, such as quantized weights."""
        return self._folds[value][0] if value in self._folds else None

    def constant_elements(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a constant or folded value; None where they are computed in a
        run."""
        if value.constant is not None:
            return value.constant.data
        return self._folds[value][1]() if value in self._folds else None

    def is_nhwc(self, value: Value) -> bool:
        """Returns whether a value is held in NHWC alone: elementwise ops then keep it so."""
        return self.has_buffer(value, nhwc=True) and not self.has_buffer(value, nhwc=False)

    def prefers_nhwc(self, value: Value) -> bool:
        """Returns whether NHWC is the better layout for a value, by the consumers it has."""
        if value.type.rank != 4 or itemsize(value) != 1:
            return False
        preferences = [_preferred_layout(node) for node in value.users]
        # Elementwise consumers read either layout. They follow the kernels behind them, which are
        # mostly convolutions.
        return True in preferences or (None in preferences and False not in preferences)


_LAYOUT_OPS = frozenset({"conv2d", "max_pool2d", "avg_pool2d", "global_avg_pool"})
"""Ops with an int8 kernel that reads NHWC."""
_EITHER_LAYOUT_OPS = frozenset(
    {"add", "mul", "concat", "pad", "relu", "clip", "sigmoid", "requantize"}
)
"""Ops whose kernels read any layout, as long as all operands have the same."""


def _preferred_layout(node: Node) -> bool | None:
    """Returns whether a consumer reads NHWC (True), the layout of the type (False), or either
    (None)."""
    op, attrs = (node.stages[0].op, node.stages[0].attrs) if node.stages else (node.op, node.attrs)
    if op in _LAYOUT_OPS:
        return attrs["layout"] == "NCHW"
    return None if op in _EITHER_LAYOUT_OPS else False
