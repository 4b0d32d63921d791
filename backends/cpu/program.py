"""A graph compiled for one set of input sizes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from qir._kernels import _cpu
from qir.errors import OpError
from qir.ir.graph import Graph
from qir.records import record
from qir.target import See

from .arena import Lifetime, plan_arena
from .builder import Buffer, Fallback, PendingStep, ProgramBuilder, sizes
from .lower import lower
from .program_file import External, ProgramListing, recorded_steps
from .results import result_arrays
from .sizes import Sizes

if TYPE_CHECKING:
    from .profiling import StepTime

Tensor = NDArray[np.generic]
PRODUCT_KINDS = frozenset(
    "conv2d depthwise grouped linear dynamic_linear dynamic_conv2d matmul".split()
)
"""Kinds of steps whose kernels multiply bytes."""
VECTOR_KINDS = frozenset(
    {
        "code_means",
        "resize_linear",
        "lookup_sums",
        "choose",
        "encode",
        "softmax",
        "real_softmax",
        "layer_norm",
        "quantize_by",
        "max_pool2d",
        "avg_pool2d",
        "global_avg_pool",
        "float_linear",
        "float_matmul",
        "float_conv2d",
        "float_chain",
        "float_depthwise",
        "float_max_pool2d",
        "float_avg_pool2d",
        "float_batch_norm",
        "float_mean",
        "float_last_conv2d",
        "float_last_chain",
        "float_last_pool2d",
        "float_last_mean",
        "pointwise",
        "recurrent",
        "wide_conv",
        "wide_product",
    }
    | {f"float_{op}" for op in _cpu.UNARY}
)
"""Kinds of steps whose kernels multiply no bytes."""
BYTE_KINDS = frozenset({"add", "mul", "whole_add", "real", "lookup", "quantize", "dequantize"})
"""Kinds of steps of which some read tables of bytes."""
X86_PRODUCTS = ("avx512vnni", "avx512", "avxvnni_evex", "avxvnni", "avx2")
FLOAT_KINDS = frozenset(kind for kind in VECTOR_KINDS if kind.startswith("float_"))
KERNEL_SETS = {
    frozenset({"depthwise", "grouped"}): (*X86_PRODUCTS, "neondot", "scalar"),
    PRODUCT_KINDS: (*X86_PRODUCTS, "neondot", "neon", "scalar"),
    FLOAT_KINDS: ("avx512", "avx2", "neon", "scalar"),
    VECTOR_KINDS: ("avx512", "avx2", "scalar"),
    BYTE_KINDS: ("avx512vbmi", "avx512", "avx2", "neon", "scalar"),
}
"""The instruction sets that kernels exist for, best first; the first row of a kind counts."""


@record
class StepRow:
    """A step as tables show it."""

    step: str
    kind: str
    isa: str
    shape: Sizes
    bytes: int
    """How many bytes it reads and writes, without weights."""


class Program:
    """A graph of known sizes, compiled to steps over one arena."""

    def __init__(
        self,
        graph: Graph,
        isa: str | None = None,
        watched: Collection[str] = (),
        see: See | None = None,
        *,
        is_float_model: bool | None = None,
    ) -> None:
        def compile_body(graph: Graph, is_float: bool) -> Program:
            return Program(graph, isa, is_float_model=is_float)

        lowered = lower(graph, watched, see, is_float_model=is_float_model, compile=compile_body)
        self.steps: tuple[PendingStep, ...] = tuple(lowered.steps)
        self.fallbacks: tuple[Fallback, ...] = tuple(lowered.fallbacks)
        self._isa = isa
        self._results = {
            name: (v.type.dtype.carrier, sizes(v)) for name, v in graph.outputs.items()
        }
        self._inputs = {v.name: (v.type.dtype.carrier, sizes(v)) for v in graph.inputs}
        # The plan knows buffers by number: external ones first, so that a run passes their arrays
        # in order.
        buffers = _all_buffers(lowered)
        self._external = [b for b in buffers if b.external]
        places = list(enumerate(self._external))
        self._constant_arrays = [b.data for b in self._external]
        self._input_slots = [(i, b.input) for i, b in places if b.data is None and not b.output]
        self._result_slots = [
            (name, shape, kind, [i for i, b in places if b.data is None and b.output == name])
            for name, (kind, shape) in self._results.items()
        ]
        self.arena, offsets = _arena(self.steps, buffers)
        self._plan = _cpu.Plan(self.arena, offsets, isa=isa)
        self._offsets = offsets
        self._number = {b: i for i, b in enumerate(buffers)}
        for step in self.steps:
            step.add(self._plan, self._number.__getitem__)

    def listing(self) -> ProgramListing:
        """Returns everything that a program file holds; raises Refused where a step is a Python
        call."""
        externals = [
            External("array", data=b.data)
            if b.data is not None
            else External(*(("result", b.output) if b.output else ("input", b.input)))
            for b in self._external
        ]
        steps = recorded_steps(self.steps, self._number.__getitem__)
        return ProgramListing(
            self.arena, self._offsets, externals, self._inputs, self._results, steps
        )

    def accepts(self, inputs: Mapping[str, object]) -> bool:
        """Returns whether inputs are arrays of exactly these names, types, sizes, and
        contiguous."""
        if len(inputs) != len(self._inputs):
            return False
        for name, (dtype, shape) in self._inputs.items():
            array = inputs.get(name)
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
            if not array.flags.c_contiguous:
                return False
        return True

    def run(
        self,
        inputs: Mapping[str, Tensor],
        threads: int,
        *,
        profile: bool = False,
        into: Mapping[str, object] | None = None,
    ) -> dict[str, Tensor]:
        """Runs all steps on inputs that were checked; results are new arrays, or those of `into`.

        Raises DataError for an array of `into` that results cannot be written to.
        """
        given = result_arrays(self._results, into, inputs.values()) if into else {}
        results, arrays = {}, self._constant_arrays.copy()
        for name, shape, kind, buffer_numbers in self._result_slots:
            results[name] = result = given[name] if given else np.empty(shape, kind)
            for buffer_number in buffer_numbers:
                arrays[buffer_number] = result
        for buffer_number, name in self._input_slots:
            arrays[buffer_number] = inputs[name]
        try:
            self._plan.run(cast("list[Tensor]", arrays), threads=threads, profile=profile)
        except _cpu.DataFault as error:
            raise OpError(str(error)) from None
        return results

    def profile(self, inputs: Mapping[str, Tensor], threads: int, runs: int) -> list[StepTime]:
        """Returns the time of each step."""
        from .profiling import step_times

        return step_times(self._plan, runs, lambda: self.run(inputs, threads, profile=True))

    def describe(self) -> list[StepRow]:
        """Returns one entry for each step."""
        rows = zip(self.steps, self._plan.steps, strict=True)
        return [
            StepRow(step.name, kind, kernel_isa(kind, self._isa), step.shape, _touched_bytes(step))
            for step, (_, kind) in rows
        ]


def kernel_sets(kind: str) -> tuple[str, ...]:
    """Returns the instruction sets that a kind of step has kernels for, best first."""
    # All others are plain C, the same on every processor.
    return next((sets for kinds, sets in KERNEL_SETS.items() if kind in kinds), ("scalar",))


def kernel_isa(kind: str, cap: str | None) -> str:
    """Returns the instruction set of the kernel that computes a step; `cap` limits it."""
    if kind == "call":
        return "python"
    allowed = _cpu.isa(cap)
    return next(isa for isa in kernel_sets(kind) if isa in allowed)


def _touched_bytes(step: PendingStep) -> int:
    return sum(b.size for b in (*step.reads, *step.writes))


def _all_buffers(lowered: ProgramBuilder) -> list[Buffer]:
    """Returns every buffer once: external ones, in the order of the graph's inputs, then the
    rest."""
    touched = {b: None for step in lowered.steps for b in (*step.reads, *step.writes)}
    external = {b: None for b in lowered.buffers() if b.external}
    return list(external | touched)


def _arena(
    steps: tuple[PendingStep, ...], buffers: list[Buffer]
) -> tuple[int, list[tuple[int, int]]]:
    """Returns the arena's size, and the (offset, size) of every buffer in it."""
    first: dict[Buffer, int] = {}
    last: dict[Buffer, int] = {}
    for index, step in enumerate(steps):
        for buffer in (*step.reads, *step.writes):
            first.setdefault(buffer, index)
            last[buffer] = index
    # External buffers have memory of their own; each run passes its address.
    inner = [b for b in buffers if not b.external]
    arena, offsets = plan_arena([Lifetime(b.size, first[b], last[b]) for b in inner])
    offset_of = dict(zip(inner, offsets, strict=True))
    return arena, [(offset_of.get(b, _cpu.EXTERNAL), b.size) for b in buffers]
