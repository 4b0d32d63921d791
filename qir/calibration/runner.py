"""Runs a graph for calibration and exposes its float values."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.calibration.collect import Observe
from qir.calibration.pieces import InputSpec
from qir.calibration.record import Key
from qir.errors import DataError
from qir.ir.graph import Graph
from qir.ir.layer_channels import layer_data, summed_axis
from qir.ir.node import Value
from qir.ir.ops import spec
from qir.ir.printer import print_graph
from qir.numerics.formulas import quantize_formula
from qir.reference.interpreter import run
from qir.rewrite.channel_groups import channel_groups, stored_values

Arrays: TypeAlias = Mapping[str, NDArray[np.generic]]
Observed: TypeAlias = Callable[
    [Graph, Collection[str]],
    Callable[[Arrays, Callable[[str, NDArray[np.generic]], None]], bool] | None,
]
"""Makes what runs a graph and shows named values, as `qir.target.Target.observed` does."""


class GraphProgram:
    """A float graph; tensors are known by the ids that passes keep."""

    def __init__(self, graph: Graph, observed: Observed | None = None) -> None:
        self.graph = graph
        self._observed = observed(graph, self._watched()) if observed is not None else None
        # By content: weights count by their elements and not by their names.
        text = print_graph(graph, by_content=True).encode()
        self.digest = hashlib.blake2b(text, digest_size=16).hexdigest()

    @property
    def inputs(self) -> Mapping[str, InputSpec]:
        """What the graph takes; a dimension with a name takes any size."""
        return input_specs(self.graph)

    def keys(self) -> list[Key]:
        """Returns every float tensor that is computed; by channel too the data of layers, and what
        is between layers whose channels may be scaled."""
        tensors = Counter(
            value.lineage.tensor
            for node in self.graph
            if node.op not in ("constant", "output")
            for value in node.results
            if has_range(value)
        )
        axes: dict[str, int] = {}
        for node in self.graph:
            data = layer_data(node)
            if data is None or not has_range(data) or data.constant is not None:
                continue
            axis = summed_axis(node, data)
            if axis is not None and isinstance(data.type.shape[axis], int):
                axes.setdefault(data.lineage.tensor, axis)
        for group in channel_groups(self.graph):
            for value in stored_values(group):
                axes.setdefault(value.lineage.tensor, group.axis)
        # Several values may stand for one tensor, with their channels along other axes: they are
        # left out.
        by_channel = [Key(tensor, axis) for tensor, axis in axes.items() if tensors[tensor] == 1]
        return [*(Key(tensor, None) for tensor in tensors), *by_channel]

    def run(self, inputs: Mapping[str, NDArray[np.generic]], observe: Observe) -> None:
        """Runs once, calling `observe` with tensor id and value for every float tensor.

        By the kernels that were given, or by the reference where these do not take the inputs.
        """
        # The kernels of the cpu target are faster; they return False for inputs that they do not
        # take.
        if self._observed is not None:
            tensors = self._watched()
            if self._observed(inputs, lambda name, data: observe(tensors[name], data)):
                return

        def show(value: Value, data: NDArray[np.generic]) -> None:
            if has_range(value) and value.constant is None:
                observe(value.lineage.tensor, data)

        run(self.graph, inputs, observe=show)

    def _watched(self) -> dict[str, str]:
        """Returns the tensor ids of values to be shown, by name."""
        return {
            value.name: value.lineage.tensor
            for node in self.graph
            if node.op != "output"
            for value in node.results
            if has_range(value) and value.constant is None
        }


def require_finite_weights(graph: Graph) -> None:
    """Raises DataError where the weights of a layer hold NaN or infinities, or its bias NaN.

    A bias may be infinite: it rules a class out.
    """
    for node in graph:
        for slot, value in node.operands.items() if layer_data(node) is not None else ():
            if value.constant is None or not has_range(value):
                continue
            weight = slot == (spec(node.op).traits.weight or "w")
            elements = value.constant.data
            bad = ~np.isfinite(elements) if weight else np.isnan(elements)
            if bad.any():
                at = [int(i) for i in np.argwhere(bad)[0]]
                message = (
                    f"{node.name}: {slot!r}, {value.lineage.tensor}, is NaN or infinite at {at}"
                )
                raise DataError(
                    f"{message}, {int(bad.sum())} in all: load the model's weights again"
                )


def has_range(value: Value) -> bool:
    """Returns whether a value is real-valued, so that it has a range."""
    return value.type.quant is None and value.type.dtype.is_float


def input_specs(graph: Graph) -> dict[str, InputSpec]:
    """Returns what the inputs take; optional ones, which data do not hold, are left out."""
    return {v.name: input_spec(v) for v in graph.inputs if not v.type.dtype.is_optional}


def input_spec(value: Value) -> InputSpec:
    """Returns what an input takes, as data sources see it; raises DataError for what is no
    tensor."""
    if value.type.dtype.is_loose:
        what = (
            f"input {value.name!r} has axes of unknown meaning, so its samples cannot be separated"
        )
        raise DataError(f"{what}; give it a shape in the model, or run it from Python, by qir.run")
    if value.type.dtype.is_opaque:
        what = f"input {value.name!r} is {value.type}, which files of data do not hold"
        raise DataError(f"{what}; run it from Python, by qir.run")
    shape = tuple(d if isinstance(d, int) else None for d in value.type.shape)
    quant = value.type.quant
    how = "" if quant is None else quantize_formula(quant)
    return InputSpec(shape, value.type.dtype.carrier, how)
