"""Runs a graph before and after each pass, and names the first tensor that moved.

After the pass, every tensor that both runs have is given the elements that it had before, once it
was compared. So what a rewrite does is seen where it is done, and is no excuse for what is after
it. Tensors are the same that have one name and one lineage; constants are not compared, what is
computed from them is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Lineage
from qir.ir.types import QuantType, TensorType
from qir.profiles import (
    NamedProfile,
    dequantize_by_profile,
    library_of,
    quantize_by_profile,
)
from qir.rewrite.runner.interface import refines
from qir.rewrite.runner.tolerance import Tolerance

Tensor: TypeAlias = NDArray[np.generic]
"""Elements of any type."""
See: TypeAlias = "Callable[[Value, Tensor], Tensor | None]"
"""Sees a value as it is made; may give other elements, which take their place."""


class Run(Protocol):
    """Runs a graph; `observe` sees each value as it is made, and may give it other elements."""

    def __call__(
        self, graph: Graph, inputs: Mapping[str, Tensor], *, observe: See
    ) -> Mapping[str, Tensor]: ...


@dataclass(frozen=True, slots=True)
class RunTensor:
    """A tensor of a run."""

    data: Tensor
    type: TensorType
    lineage: Lineage
    made_up: bool
    """Whether its name is only its op's."""


@dataclass(frozen=True, slots=True)
class Picture:
    """What a graph computed, sample by sample, by the names of values."""

    samples: tuple[Mapping[str, RunTensor], ...]
    outputs: tuple[Mapping[str, RunTensor], ...]
    held: frozenset[Value] = frozenset()
    """The values of the graph itself, which tell what is new from what has an old name."""

    def of(self, graph: Graph) -> Picture:
        """Returns the same of a copy that is about to be changed."""
        return Picture(self.samples, self.outputs, frozenset(graph.values.values()))


@dataclass(frozen=True, slots=True)
class Moved:
    """A tensor that moved further than it may."""

    tensor: str
    far: str
    """How far, and how far it may."""
    sample: int = 0

    def __str__(self) -> str:
        return f"%{self.tensor} moved by {self.far}"


@dataclass(frozen=True)
class Validation:
    """Sample inputs, and what runs graphs on them."""

    run: Run
    samples: Sequence[Mapping[str, Tensor]]

    def picture(self, graph: Graph) -> Picture:
        """Runs a graph and returns all its values."""
        samples: list[Mapping[str, RunTensor]] = []
        outputs: list[Mapping[str, RunTensor]] = []
        for inputs in self.samples:
            values: dict[str, RunTensor] = {}

            def see(value: Value, data: Tensor, values: dict[str, RunTensor] = values) -> None:
                if value.node.op != "constant":
                    values[value.name] = RunTensor(
                        data, value.type, value.lineage, _has_default_name(value)
                    )

            results = self.run(graph, inputs, observe=see)
            ends = {n: (results[n], v.type, v.lineage, False) for n, v in graph.outputs.items()}
            outputs.append({name: RunTensor(*end) for name, end in ends.items()})
            samples.append(values)
        return Picture(tuple(samples), tuple(outputs)).of(graph)

    def fitted(self, before: Mapping[str, TensorType], graph: Graph) -> Validation:
        """Returns the validation with samples for the inputs that a pass quantized, or made floats;
        `before` are the types of the inputs before it."""
        pairs = {value.name: (before[value.name].quant, value.type.quant) for value in graph.inputs}
        changed = {name: p for name, p in pairs.items() if (p[0] is None) != (p[1] is None)}
        if not changed:
            return self
        rules = library_of(graph).named(graph.profile).find()
        samples = [dict(inputs) for inputs in self.samples]
        for inputs in samples:
            for name, (old, new) in changed.items():
                if new is not None:
                    inputs[name] = quantize_by_profile(rules, inputs[name], new)
                elif old is not None:
                    inputs[name] = dequantize_by_profile(rules, inputs[name], old)
        return Validation(self.run, samples)

    def moved(self, before: Picture, graph: Graph, tolerance: Tolerance) -> Moved | None:
        """Returns the first tensor of a changed graph that is not what it was; None where all
        are."""
        if not tolerance.compared:
            return None
        for number, inputs in enumerate(self.samples):
            observer = _Look(before, number, tolerance, library_of(graph).named(graph.profile))
            try:
                results = self.run(graph, inputs, observe=observer)
            except _Found:
                return observer.moved
            except QirError as error:
                return Moved(
                    observer.last or graph.name, f"more than can be shown: {error}", number
                )
            observer.outputs(graph, results)
            if observer.moved is not None:
                return observer.moved
        return None


class _Found(Exception):
    """Ends a run once a tensor has moved."""


@dataclass
class _Look:
    """Sees one run after a pass."""

    before: Picture
    sample: int
    tolerance: Tolerance
    profile: NamedProfile
    moved: Moved | None = None
    last: str = ""

    def __call__(self, value: Value, data: Tensor) -> Tensor | None:
        self.last = value.name
        old = self.before.samples[self.sample].get(value.name)
        if old is None or value.node.op == "constant":
            return None
        # Another tensor may have taken over the name; the lineage tells them apart.
        if old.lineage != value.lineage and not _has_default_lineage(value):
            return None
        if (old.made_up or _has_default_name(value)) and value not in self.before.held:
            return None
        distance = self._distance(old, value.type, data)
        if distance:
            self.moved = Moved(value.name, distance, self.sample)
            raise _Found
        is_comparable = old.type.element == value.type.element and old.data.shape == data.shape
        # The run goes on with the old data, so that each tensor is blamed for its own error alone.
        return old.data if is_comparable else None

    def outputs(self, graph: Graph, results: Mapping[str, Tensor]) -> None:
        """Looks at the results, which may be other tensors now, each what it was."""
        for name, value in graph.outputs.items():
            old = self.before.outputs[self.sample].get(name)
            if old is None or self.moved is not None:
                continue
            if old.data.shape != results[name].shape or not refines(old.type, value.type):
                distance = f"more than can be shown: it was {old.type}, and is {value.type}"
            else:
                distance = self._distance(old, value.type, results[name])
            if distance:
                self.moved = Moved(name, distance, self.sample)

    def _distance(self, old: RunTensor, kind: TensorType, new: Tensor) -> str:
        """Returns how far elements moved, if it is further than they may."""
        old_quant, new_quant = old.type.quant, kind.quant
        if (old_quant is None) != (new_quant is None) or old.data.shape != new.shape:
            return ""  # float values that were quantized, or another layout: nothing to compare
        if old_quant is None or new_quant is None:
            return float_distance(old.data, new, self.tolerance.ulps)
        if old_quant.dynamic or new_quant.dynamic or old_quant.has_same_mapping(new_quant):
            return _integer_distance(old.data, new, old_quant, self.tolerance.codes)
        rules = self.profile.find()
        floats = (
            dequantize_by_profile(rules, old.data, old_quant),
            dequantize_by_profile(rules, new, new_quant),
        )
        # The types differ, so integers cannot be compared: floats may differ by steps of the
        # coarser one.
        step = max(float(np.max(np.abs(q.scales()))) for q in (old_quant, new_quant))
        return float_distance(*floats, self.tolerance.ulps, self.tolerance.codes * step)


def _has_default_name(value: Value) -> bool:
    """Returns whether a name says only the op: such a name may be given again."""
    return not value.node.origins and _is_default_name(value.name, value.node.op)


def _has_default_lineage(value: Value) -> bool:
    """Returns whether a value states no tensor that it stands for, so that its name does."""
    return not value.lineage.how and _is_default_name(value.lineage.tensor, value.node.op)


def _is_default_name(name: str, op: str) -> bool:
    # Names such as `add_3` are given again to other nodes, so they do not identify a tensor.
    rest = name[len(op) :] if name.startswith(op) else "-"
    return not rest or (rest[0] in "_." and rest[1:].isdecimal())


def float_distance(old: Tensor, new: Tensor, ulps: float, allowance: float = 0.0) -> str:
    """Describes the distance of two float arrays; empty if it is within the tolerance.

    Of two types, it is by the units of the old one.
    """
    if old.dtype.kind not in "fV" or new.dtype.kind not in "fV":
        return "" if np.array_equal(old, new) else _unequal(old, new)
    a, b = old.astype(np.float64), new.astype(np.float64)
    with np.errstate(all="ignore"):
        # Equal infinities and two NaNs are no difference, though their subtraction gives NaN.
        gap = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    gap = np.where(np.isnan(gap), np.inf, gap)
    if not gap.any():
        return ""
    finite = np.abs(a[np.isfinite(a)])
    # One ulp of the largest element, not of each: sums of mixed signs cancel.
    unit = _eps(old.dtype) * float(finite.max() if finite.size else 0.0)
    largest = float(gap.max())
    if largest <= ulps * unit + allowance:
        return ""
    index = tuple(map(int, np.unravel_index(int(gap.argmax()), gap.shape)))
    units = f", {largest / unit:.3g} ulp of its largest" if unit else ""
    return f"{largest:.3g}{units}: {a[index]:.7g} -> {b[index]:.7g} at {list(index)}"


def _eps(kind: np.dtype[np.generic]) -> float:
    return float(ml_dtypes.finfo(kind).eps)  # type: ignore[no-untyped-call]


def _integer_distance(old: Tensor, new: Tensor, quant: QuantType, allowed: float) -> str:
    if not quant.storage.is_integer:
        return "" if np.array_equal(old.view(np.uint8), new.view(np.uint8)) else _unequal(old, new)
    gap = np.abs(old.astype(np.float64) - new.astype(np.float64))
    largest = float(gap.max()) if gap.size else 0.0
    if largest <= allowed:
        return ""
    index = tuple(map(int, np.unravel_index(int(gap.argmax()), gap.shape)))
    return f"{largest:g} steps: {old[index]} -> {new[index]} at {list(index)}"


def _unequal(old: Tensor, new: Tensor) -> str:
    differ = old != new
    index = tuple(map(int, np.unravel_index(int(np.argmax(differ)), old.shape)))
    return f"{int(np.sum(differ))} elements: {old[index]} -> {new[index]} at {list(index)}"
