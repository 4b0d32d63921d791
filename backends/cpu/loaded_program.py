"""A program that was read from a file: it runs on the sizes that it was compiled for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qir._kernels import _cpu
from qir.errors import DataError, InputError, OpError, UsageError
from qir.target import Executable

from .program_file import ProgramListing, Tensor, read
from .results import result_arrays

if TYPE_CHECKING:  # a program loads and runs without the compiler
    from qir.ir.graph import Graph

    from .builder import Fallback
    from .profiling import StepTime
    from .program import StepRow
    from .sizes import Sizes


class Loaded(Executable):
    """A program that was read from a file, ready to run from any thread.

    Raises InputError for a file that is no program.
    """

    def __init__(self, path: Path, threads: int, isa: str | None = None) -> None:
        self.threads = threads
        self._isa = isa
        self._listing = read(path)
        try:
            self._plan = _rebuilt_plan(self._listing, isa)
        except ValueError as error:
            message = str(error).partition("\n")[0][:120]
            raise InputError(f"{path}: no program for these kernels: {message}") from None
        except (TypeError, OverflowError, MemoryError):
            message = "a step has other operands than its kernel takes, or there is no memory"
            raise InputError(f"{path}: no program for these kernels: {message}") from None

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """None: a program file holds compiled steps alone."""
        return ()

    @property
    def arena(self) -> int:
        """Bytes that all values in between share."""
        return self._listing.arena

    def signature(self) -> Graph:
        """Returns a graph of its inputs alone."""
        from qir.ir.dtype import dtype_of
        from qir.ir.graph import Graph
        from qir.ir.types import TensorType

        graph = Graph("program")
        for name, (kind, shape) in self._listing.inputs.items():
            dtype = dtype_of(np.empty(0, kind))
            graph.add("input", types=[TensorType(shape, dtype)], name=name)
        graph.add("output", {}, types=[])
        return graph

    def __call__(self, /, **inputs: object) -> dict[str, object]:
        """Runs it on arrays by input name; results by output name.

        Raises DataError for an input that is missing, unknown, or of another type or shape.
        """
        return dict(self._run(self._arrays(inputs)))

    def run_into(self, results: Mapping[str, object], /, **inputs: object) -> dict[str, object]:
        """Runs it as a call does, and writes results to arrays by output name; others are new.

        Raises DataError for an array of another type or shape, in pieces, or that inputs share.
        """
        return dict(self._run(self._arrays(inputs), into=results))

    def profile(self, inputs: Mapping[str, object], *, runs: int = 10) -> list[StepTime]:
        """Returns the time of each step; DataError as when it is called."""
        from .profiling import step_times

        if runs < 1:
            raise UsageError(f"{runs} runs; it takes 1 or more")
        arrays = self._arrays(inputs)
        return step_times(self._plan, runs, lambda: self._run(arrays, profile=True))

    def peaks(self) -> dict[str, float]:
        """Multiply-adds a second of the best case of these kernels, for int8 and f32."""
        from .profiling import peaks

        return peaks(self.threads, self._isa)

    def describe(self) -> list[StepRow]:
        """Returns one row a step."""
        from .program import StepRow, kernel_isa

        rows = zip(self._listing.steps, self._plan.steps, strict=True)
        return [
            StepRow(name, kind, kernel_isa(kind, self._isa), recorded.shape, recorded.bytes)
            for recorded, (name, kind) in rows
        ]

    def _run(
        self,
        inputs: Mapping[str, Tensor],
        *,
        profile: bool = False,
        into: Mapping[str, object] | None = None,
    ) -> dict[str, Tensor]:
        results = result_arrays(self._listing.results, into or {}, inputs.values())
        # Constants are the file's own arrays; inputs and results are the caller's.
        arrays = [
            e.data if e.data is not None else (inputs if e.kind == "input" else results)[e.name]
            for e in self._listing.externals
        ]
        try:
            self._plan.run(arrays, threads=self.threads, profile=profile)
        except _cpu.DataFault as error:
            raise OpError(str(error)) from None
        except ValueError:  # a forged step writes to an input or array
            raise InputError("the program writes where it may not; compile it again") from None
        return results

    def _arrays(self, inputs: Mapping[str, object]) -> dict[str, Tensor]:
        expected = self._listing.inputs
        for name in inputs:
            if name not in expected:
                known = ", ".join(expected) or "none"
                raise DataError(f"no input {name!r}; the program takes {known}")
        return {name: self._array(name, inputs) for name in expected}

    def _array(self, name: str, inputs: Mapping[str, object]) -> Tensor:
        kind, shape = self._listing.inputs[name]
        if name not in inputs:
            raise DataError(f"input {name} is missing; the program takes {_text(shape)}")
        array = np.asarray(inputs[name], order="C")
        if array.dtype != kind:
            raise DataError(f"input {name} is {array.dtype}, it takes {kind}")
        if array.shape != shape:
            reason = f"the program was compiled for {_text(shape)}; compile it for other sizes"
            raise DataError(f"input {name} is {_text(array.shape)}, {reason}")
        return array


def _rebuilt_plan(listing: ProgramListing, isa: str | None) -> _cpu.Plan:
    """Adds the recorded steps to a new plan; raises ValueError or TypeError for steps that do
    not fit."""
    external_places = [i for i, (at, _) in enumerate(listing.places) if at == _cpu.EXTERNAL]
    if len(external_places) != len(listing.externals):
        raise ValueError("its buffers are not those that it brings")
    kinds = {"input": listing.inputs, "result": listing.results}
    for buffer_number, external in zip(external_places, listing.externals, strict=True):
        data = external.data
        if data is None:
            kind, shape = kinds[external.kind].get(external.name, (np.dtype("u1"), (-1,)))
            size = int(np.prod(shape, dtype=object)) * kind.itemsize
        else:
            size = data.nbytes
        # A forged file may state another size than that of the array it brings.
        if size != listing.places[buffer_number][1]:
            raise ValueError(
                f"buffer {buffer_number} is of another size than {external.name or 'its array'}"
            )
    plan = _cpu.Plan(listing.arena, listing.places, isa=isa)
    for recorded in listing.steps:
        # Steps are recorded as calls of `_cpu.Plan`'s methods, which check every argument again.
        getattr(plan, recorded.method)(*recorded.args, **recorded.options)
    return plan


def _text(shape: Sizes) -> str:
    """Returns sizes as they are printed: 1x3x32x32."""
    return "x".join(map(str, shape)) or "a scalar"
