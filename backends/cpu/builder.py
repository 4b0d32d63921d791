"""A program while it is being lowered: steps over buffers, and where each value is held."""

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

from .sizes import Sizes

LAST = (0, 2, 3, 1)
"""NCHW to NHWC: the order in which the kernels hold activations."""
FIRST = (0, 3, 1, 2)


@dataclass(eq=False, slots=True)
class Buffer:
    """Memory that steps read and write; one for a value, or for several that share bytes."""

    size: int
    data: NDArray[np.generic] | None = None
    """The elements, where it is a constant."""
    input: str = ""
    output: str = ""

    @property
    def external(self) -> bool:
        """Whether each run brings its memory."""
        return self.data is not None or bool(self.input or self.output)


Add: TypeAlias = "Callable[[Plan, Callable[[Buffer], int]], None]"


@dataclass(frozen=True, slots=True)
class PendingStep:
    """One step of the plan to be; `add` adds it when every buffer has its number."""

    name: str
    kind: str
    reads: tuple[Buffer, ...]
    writes: tuple[Buffer, ...]
    shape: Sizes
    add: Add


@dataclass(frozen=True, slots=True)
class Fallback:
    """A node that the reference computes, and why."""

    node: str
    op: str
    reason: str


class Runs(Protocol):
    """A program of a body."""

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
    """No kernel takes this node; the message says why. Raised before any step is added."""


def sizes(value: Value) -> Sizes:
    """Returns the shape, which is plain numbers by now."""
    known = dims.known_shape(value.type.shape)
    assert known is not None, value
    return known


def itemsize(value: Value) -> int:
    """Bytes an element; Refused for what has no fixed size."""
    carrier = value.type.dtype.carrier
    if carrier.kind == "O":
        raise Refused(f"%{value.name} is {value.type}, which QIR's runtime does not hold")
    return carrier.itemsize


def moved(shape: Sizes, order: Sequence[int]) -> Sizes:
    """Returns the sizes in another order of axes."""
    return tuple(shape[axis] for axis in order)


def strides(shape: Sizes) -> Sizes:
    """Returns the strides of a contiguous array, in elements."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


def still(shape: Sizes, order: Sequence[int]) -> bool:
    """Returns whether a transposition leaves the bytes where they are."""
    wide = [axis for axis in order if shape[axis] != 1]
    return wide == sorted(wide)


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements of a value in an order of their own: a step for each axis, from an offset on."""

    source: Value
    steps: Sizes
    offset: int = 0


@dataclass(frozen=True, slots=True)
class MeanSource:
    """What a mean is taken of: dequantized values, or what a table has for each byte."""

    source: Value
    table: NDArray[np.generic] | None = None


@dataclass(frozen=True, slots=True)
class View:
    """The same in a buffer."""

    buffer: Buffer
    steps: Sizes
    offset: int


@dataclass(slots=True)
class ProgramBuilder:
    """Collects steps; a value of four axes may be held as it is typed or channels last, or both."""

    graph: Graph
    real: bool = False
    """Whether nothing in the graph is quantized: the order of float sums moves no integer then."""
    watched: Collection[str] = ()
    """Names of values that are shown as they are made: no step leaves them out."""
    steps: list[PendingStep] = field(default_factory=list)
    fallbacks: list[Fallback] = field(default_factory=list)
    means: dict[Value, MeanSource] = field(default_factory=dict)
    """Results that are means of dequantized values: these are not made first."""
    fused: set[str] = field(default_factory=set)
    """Names of nodes that a step computes with another one."""
    compile: Callable[[Graph], Runs] | None = None
    """Makes a program of a body; None: the reference runs what holds bodies."""
    _held: dict[tuple[Value, bool], Buffer] = field(default_factory=dict)
    _waiting: dict[Value, Elements] = field(default_factory=dict)
    _folds: dict[Value, tuple[Value, Callable[[], NDArray[np.generic]]]] = field(
        default_factory=dict
    )

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
        """Allocates memory that is no value of the graph."""
        return Buffer(size)

    def make(self, value: Value, *, last: bool = False) -> Buffer:
        """Allocates memory for a value that the next step writes."""
        return self.hold(value, Buffer(math.prod(sizes(value)) * itemsize(value)), last=last)

    def hold(self, value: Value, buffer: Buffer, *, last: bool = False) -> Buffer:
        """Says that a buffer holds a value."""
        assert not last or value.type.rank == 4, value
        self._held[value, last] = buffer
        if value.type.rank == 4 and still(sizes(value), LAST):
            self._held[value, not last] = buffer
        return buffer

    def holds(self, value: Value, *, last: bool) -> bool:
        """Returns whether the value is there in that order already."""
        return (value, last) in self._held

    def buffers(self) -> Iterable[Buffer]:
        """Returns every buffer that holds a value."""
        return self._held.values()

    def need(self, value: Value, *, last: bool = False) -> Buffer:
        """Returns the memory that holds a value in the order wanted, moving it there if it is
        not."""
        found = self._held.get((value, last))
        if found is not None:
            return found
        known = None if (value, not last) in self._held else self.known(value)
        if known is not None:
            elements = np.ascontiguousarray(known)
            found = self.hold(value, Buffer(elements.nbytes, data=elements))
            return found if not last else self.need(value, last=True)
        if value in self._waiting and (value, not last) not in self._held:
            self._copied(value)
            return self.need(value, last=last)
        x = self._held[value, not last]
        y = self.make(value, last=last)
        shape = sizes(value) if last else moved(sizes(value), LAST)
        order = LAST if last else FIRST
        self.transpose(
            f"{value.name} to {'NHWC' if last else 'NCHW'}", x, y, shape, order, itemsize(value)
        )
        return y

    def defer(self, value: Value, elements: Elements) -> None:
        """Records that a value has the elements of another; copied only if needed."""
        self._waiting[value] = elements

    def elements(self, value: Value) -> Elements:
        """Returns the buffer of a value's elements, contiguous in its own type."""
        if value in self._waiting and (value, False) not in self._held:
            return self._waiting[value]
        return Elements(value, strides(sizes(value)))

    def view(self, value: Value) -> View:
        """Returns the buffer and strides of a value, for steps that accept any order of axes."""
        found = self.elements(value)
        return View(self.need(found.source), found.steps, found.offset)

    def _copied(self, value: Value) -> None:
        given = self._waiting.pop(value)
        self.strided(value, self.need(given.source), self.make(value), sizes(value), given)

    def strided(self, value: Value, x: Buffer, y: Buffer, shape: Sizes, elements: Elements) -> None:
        """Adds a step that copies elements of a buffer, which need not be neighbours."""
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
                steps=elements.steps,
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
            moved(shape, order),
            lambda plan, at: plan.transpose(
                name, at(x), at(y), shape=shape, perm=order, itemsize=width
            ),
        )

    def fold(self, value: Value, source: Value, made: Callable[[], NDArray[np.generic]]) -> None:
        """Records that a value depends on a constant alone; it is computed if it is needed."""
        self._folds[value] = source, made

    def folded(self, value: Value) -> Value | None:
        """Returns the constant that decides a value that was folded."""
        return self._folds[value][0] if value in self._folds else None

    def known(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a constant, or of what one decides; None where a run decides
        them."""
        if value.constant is not None:
            return value.constant.data
        return self._folds[value][1]() if value in self._folds else None

    def prefers_last(self, value: Value) -> bool:
        """Returns whether a value is best held channels last: its users decide."""
        if value.type.rank != 4 or itemsize(value) != 1:
            return False
        wishes = [_wish(node) for node in value.users]
        return True in wishes or (None in wishes and False not in wishes)


_SPATIAL = frozenset({"conv2d", "max_pool2d", "avg_pool2d", "global_avg_pool"})
_ANY = frozenset({"add", "mul", "concat", "pad", "relu", "clip", "sigmoid", "requantize"})


def _wish(node: Node) -> bool | None:
    """Channels last, as typed, or either."""
    op, attrs = (node.stages[0].op, node.stages[0].attrs) if node.stages else (node.op, node.attrs)
    if op in _SPATIAL:
        return attrs["layout"] == "NCHW"
    return None if op in _ANY else False
