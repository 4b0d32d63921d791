"""Runs a float graph for calibration, and exposes its values."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from qir.errors import DataError, Refused
from qir.ir.graph import Graph
from qir.reference.interpreter import bind_inputs
from qir.target import See

from .program import Program, Tensor
from .sizes import Sizes, at_sizes

_Key = tuple[tuple[str, Sizes], ...]


class ObservedPrograms:
    """Runs a graph and shows its values, from any thread: one program per thread at work.

    Programs of one set of sizes are kept, those of the latest run.
    """

    def __init__(self, graph: Graph, names: Collection[str], isa: str | None = None) -> None:
        self._graph = graph
        self._names = frozenset(names)
        self._isa = isa
        self._lock = threading.Lock()
        self._key: _Key = ()
        self._idle: list[_ObservedProgram] = []
        self._refused: set[_Key] = set()

    def __call__(self, inputs: Mapping[str, Tensor], see: See) -> bool:
        """Runs the graph and calls `see` with the name and array of each observed value.

        The array is overwritten once `see` returns. Returns False, before anything ran, where there
        is no program for inputs of these sizes.
        """
        # Buffers hold numbers alone: strings and sequences have no fixed size.
        if any(value.type.dtype.is_opaque for value in self._graph.inputs):
            return False
        bind_inputs(self._graph, inputs)
        arrays = {name: np.ascontiguousarray(array) for name, array in inputs.items()}
        key = tuple((name, array.shape) for name, array in arrays.items())
        with self._lock:
            if key in self._refused:
                return False
        try:
            with self._program(key) as program:
                program.run(arrays, see)
        except _NoProgram:
            with self._lock:
                self._refused.add(key)
            return False
        return True

    @contextmanager
    def _program(self, key: _Key) -> Iterator[_ObservedProgram]:
        with self._lock:
            if self._key != key:
                self._key, self._idle = key, []
            # A program is used by one thread at a time: it is taken from the idle ones, and put
            # back.
            program = self._idle.pop() if self._idle else None
        if program is None:
            try:
                program = _ObservedProgram(at_sizes(self._graph, dict(key)), self._names, self._isa)
            except (DataError, Refused) as error:
                raise _NoProgram from error
        yield program
        with self._lock:
            if self._key == key:
                self._idle.append(program)


class _NoProgram(Exception):
    """There is no program for these sizes."""


class _ObservedProgram:
    """A program, and the callback of its current run."""

    def __init__(self, graph: Graph, names: Collection[str], isa: str | None) -> None:
        self._see: See | None = None
        self._program = Program(graph, isa, names, self._show)

    def run(self, inputs: Mapping[str, Tensor], see: See) -> None:
        self._see = see
        with np.errstate(all="ignore"):  # infinities and NaNs are numbers here
            self._program.run(inputs, 1)

    def _show(self, name: str, array: Tensor) -> None:
        assert self._see is not None
        self._see(name, array)
