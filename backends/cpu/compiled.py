"""A model compiled for QIR's kernels, which keeps a program for each set of input sizes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from qir.atomic import claim
from qir.errors import DataError, UsageError
from qir.ir.graph import Graph
from qir.ir.origin import default_input_names
from qir.ledger import Ledger
from qir.target import Executable

from . import program_file
from .builder import Fallback
from .program import Program, StepRow, Tensor
from .sizes import Sizes, at_sizes, shape_text, trial_sizes

if TYPE_CHECKING:
    from .profiling import StepTime

MAX_PROGRAMS = 8
"""Programs that a compiled model keeps, for different input sizes."""


class Compiled(Executable):
    """A graph that is compiled for QIR's kernels, ready to run from any thread."""

    def __init__(self, graph: Graph, threads: int, isa: str | None, ledger: Ledger) -> None:
        self.graph = graph
        """The graph that runs: in integer form where kernels exist."""
        self.ledger = ledger
        """The changes that compiling made to the given graph."""
        self.threads = threads
        self._isa = isa
        self._lock = threading.Lock()
        self._programs: OrderedDict[tuple[Sizes, ...], Program] = OrderedDict()
        self._latest: Program | None = None
        # Compiling for sizes of 1 reports refusals early, and lets `describe` work before the
        # first run.
        with suppress(DataError):  # sizes left open need not go through as 1
            self._program(trial_sizes(graph))

    def __call__(self, /, **inputs: object) -> dict[str, object]:
        """Runs the model on arrays by input name, and returns results by output name.

        Raises DataError for an input that is missing, unknown, or of another type or shape.
        """
        arrays, program = self._inputs_and_program(inputs)
        return cast("dict[str, object]", program.run(arrays, self.threads))

    def run_into(self, results: Mapping[str, object], /, **inputs: object) -> dict[str, object]:
        """Runs the model as a call does, and writes results to arrays by output name; others are
        new.

        Raises DataError for an array of another type or shape, in pieces, or that inputs share.
        """
        arrays, program = self._inputs_and_program(inputs)
        return cast("dict[str, object]", program.run(arrays, self.threads, into=results))

    def profile(self, inputs: Mapping[str, object], *, runs: int = 10) -> list[StepTime]:
        """Returns the time of each step; raises DataError as a call does."""
        if runs < 1:
            raise UsageError(f"{runs} runs; it takes 1 or more")
        arrays, program = self._inputs_and_program(inputs)
        return program.profile(arrays, self.threads, runs)

    def peaks(self) -> dict[str, float]:
        """Returns the multiply-adds per second of the fastest kernels, for int8 and f32."""
        from .profiling import peaks

        return peaks(self.threads, self._isa)

    def describe(self) -> list[StepRow]:
        """Returns the steps for the sizes last run; before a first run, open sizes are 1."""
        return self._described.describe()

    def save(
        self, path: Path | str, sizes: Mapping[str, int] | None = None, *, force: bool = False
    ) -> None:
        """Writes a program file; open dimensions take the sizes given by name, or else 1.

        Raises Refused where a step is a Python call. Raises UsageError for another suffix, a size
        that no dimension of the model has, or a file that exists, unless `force`.
        """
        path = Path(path)
        if path.suffix.lower() != program_file.SUFFIX:
            raise UsageError(f"{path}: program files end in {program_file.SUFFIX}")
        claim(path, force=force)
        inputs = trial_sizes(self.graph, sizes or {})
        program_file.write(path, self._program(inputs).listing(), force=force)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The nodes that the reference computes, for the sizes that `describe` means."""
        return self._described.fallbacks

    @property
    def arena(self) -> int:
        """Bytes of the arena that all intermediate values share."""
        return self._described.arena

    @property
    def _described(self) -> Program:
        if self._latest is None:
            raise UsageError("the model leaves sizes open; run it once first")
        return self._latest

    def _inputs_and_program(
        self, inputs: Mapping[str, object]
    ) -> tuple[Mapping[str, Tensor], Program]:
        latest = self._latest
        if latest is not None and latest.accepts(inputs):  # as in a loop: nothing is looked up
            return cast("Mapping[str, Tensor]", inputs), latest
        known = [value.name for value in self.graph.inputs]
        for name in inputs:
            if name not in known:
                if name in default_input_names(self.graph.output.origins):
                    reason = "has a default, which is compiled in; the reference takes another"
                    raise DataError(f"input {name!r} {reason}")
                raise DataError(f"no input {name!r}; the model takes {', '.join(known) or 'none'}")
        arrays = {name: self._array(name, inputs) for name in known}
        return arrays, self._program({name: a.shape for name, a in arrays.items()})

    def _array(self, name: str, inputs: Mapping[str, object]) -> Tensor:
        expected = self.graph[name].type
        if name not in inputs:
            raise DataError(
                f"input {name} is missing; the model takes {shape_text(expected.shape)}"
            )
        array = np.asarray(inputs[name])
        if array.dtype != expected.dtype.carrier:
            raise DataError(f"input {name} is {array.dtype}, it takes {expected.dtype.carrier}")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)

    # Programs are bound to sizes: steps, memory plan and packed weights depend on them.
    def _program(self, sizes: Mapping[str, Sizes]) -> Program:
        key = tuple(sizes.values())
        with self._lock:
            program = self._programs.get(key)
            if program is None:
                program = Program(at_sizes(self.graph, sizes), self._isa)
                self._programs[key] = program
                if len(self._programs) > MAX_PROGRAMS:
                    self._programs.popitem(last=False)
            # The least recently used program is dropped first.
            self._programs.move_to_end(key)
            self._latest = program
        return program
