"""If, loop and scan: their bodies are compiled programs, called from Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError, QirError, Refused
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import TensorType
from qir.reference import control
from qir.reference.interpreter import profile_name_of

from .builder import BodyProgram, CannotLower, Fallback, ProgramBuilder, itemsize, sizes
from .sizes import Sizes, at_sizes

Tensor = NDArray[np.generic]
CONTROL_OPS = frozenset(control.FUNCTIONS)
MAX_PROGRAMS = 8
"""Programs of one body that are kept, for different sizes."""


class CompiledBody:
    """A body of a control op, compiled for each set of sizes it is called with."""

    def __init__(self, graph: Graph, compile: Callable[[Graph], BodyProgram]) -> None:
        self._graph = graph
        self._compile = compile
        self._programs: dict[tuple[Sizes, ...], BodyProgram] = {}

    @property
    def takes(self) -> Sequence[TensorType]:
        """The types of its inputs."""
        return [value.type for value in self._graph.inputs]

    @property
    def kinds(self) -> Sequence[TensorType]:
        """The types of its outputs."""
        return [value.type for value in self._graph.outputs.values()]

    def __call__(self, given: Sequence[Tensor]) -> list[Tensor]:
        """Runs the body once, on inputs in their order."""
        arrays = {
            value.name: np.asarray(array, value.type.dtype.carrier, order="C")
            for value, array in zip(self._graph.inputs, given, strict=True)
        }
        results = self.program([array.shape for array in arrays.values()]).run(arrays, 1)
        return [results[name] for name in self._graph.outputs]

    def program(self, shapes: Sequence[Sizes]) -> BodyProgram:
        """Returns the program for inputs of these sizes, compiled at its first use; raises as
        `at_sizes` does."""
        key = tuple(shapes)
        if key not in self._programs:
            names = [value.name for value in self._graph.inputs]
            program = self._compile(at_sizes(self._graph, dict(zip(names, key, strict=True))))
            # Dictionaries keep the order of insertion: the oldest program is dropped.
            if len(self._programs) == MAX_PROGRAMS:
                self._programs.pop(next(iter(self._programs)))
            self._programs[key] = program
        return self._programs[key]


def run_bodies(b: ProgramBuilder, node: Node) -> None:
    """Lowers a control op: Python runs the op's own logic, a compiled program each round."""
    if b.compile is None:
        raise CannotLower("values inside of bodies are not shown")
    bodies = {
        name: CompiledBody(_with_profile(b, node, body), b.compile)
        for name, body in node.bodies.items()
        if isinstance(body, Graph)  # every one is
    }
    for name, body in bodies.items():
        try:
            # Compiling for the first round finds refusals now, where the reference can still take
            # over.
            program = body.program(_first_round_sizes(node, name, body))
        except (DataError, Refused) as error:
            raise CannotLower(f"its {name}: {error}") from error
        for fallback in program.fallbacks:
            path = f"{node.name}/{name}/{fallback.node}"
            b.fallbacks.append(Fallback(path, fallback.op, fallback.reason))
    slots = list(node.operands)
    sources = [b.buffer(value) for value in node.operands.values()]
    buffers = [b.allocate(value) for value in node.results]
    operands = [_dtype_and_shape(value) for value in node.operands.values()]
    results = [_dtype_and_shape(value) for value in node.results]

    def call(*arrays: Tensor) -> None:
        operand_arrays = dict(zip(slots, arrays, strict=False))
        try:
            computed = control.FUNCTIONS[node.op](operand_arrays, node.attrs, bodies)
        except QirError as error:
            raise type(error)(f"{node.name}: {error}") from error
        # Sizes may change from round to round; the buffers of the results were planned for these.
        for out, result in zip(arrays[len(slots) :], computed, strict=True):
            if out.shape != result.shape:
                raise DataError(f"{node.name}: a result is {result.shape}, not {out.shape}")
            out[...] = result

    b.add(
        node.name,
        "call",
        sources,
        buffers,
        results[0][1] if results else (),
        lambda plan, at: plan.call(
            node.name,
            call,
            [(at(x), kind, shape) for x, (kind, shape) in zip(sources, operands, strict=True)],
            [(at(y), kind, shape) for y, (kind, shape) in zip(buffers, results, strict=True)],
        ),
    )


def _with_profile(b: ProgramBuilder, node: Node, body: Graph) -> Graph:
    """Returns a copy of a body that names the profile it is computed by."""
    copied = body.copy()
    copied.profile = body.profile or profile_name_of(b.graph, node)
    return copied


def _dtype_and_shape(value: Value) -> tuple[np.dtype[np.generic], Sizes]:
    itemsize(value)  # refuses what has no fixed size
    return value.type.dtype.carrier, sizes(value)


def _first_round_sizes(node: Node, name: str, body: CompiledBody) -> list[Sizes]:
    """Returns the sizes of a body's inputs in the first round."""
    variadic = _variadic_sizes(node.operands)
    if node.op == "if":
        return variadic["xs"]
    if node.op == "loop":
        # Counter and condition of a loop are single elements of any rank.
        scalars: list[Sizes] = [(1,) * kind.rank for kind in body.takes[:2]]
        return [*scalars, *variadic["vs"], *variadic["xs"]]
    axes = node.attrs["axes"]
    assert isinstance(axes, tuple)
    # A scan reads one slice per round: its sizes without the scanned axis.
    scan_axes = [a for a in axes if isinstance(a, int)] or [0] * len(variadic["ss"])
    entries = [
        tuple(size for i, size in enumerate(shape) if i != axis % len(shape))
        for shape, axis in zip(variadic["ss"], scan_axes, strict=True)
    ]
    return [*variadic["vs"], *entries, *variadic["xs"]]


def _variadic_sizes(operands: Mapping[str, Value]) -> dict[str, list[Sizes]]:
    """Returns the sizes of the operands of each variadic slot, in order."""
    by_slot: dict[str, list[Sizes]] = {"xs": [], "vs": [], "ss": []}
    order = sorted(operands, key=lambda slot: int(f"0{slot.partition('.')[2]}"))
    for slot in order:
        prefix, dot, _ = slot.partition(".")
        if dot:
            by_slot[prefix].append(sizes(operands[slot]))
    return by_slot
