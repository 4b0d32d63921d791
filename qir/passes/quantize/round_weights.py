"""Rounds each weight up or down so that a layer's results stay nearest (AdaRound's objective).

    graph main as native {
      %x = input() : 4x3xf32
      %w = constant([7.0, 2.4, 1.4]) : 1x3xf32
      %y = linear(%x, %w) : 4x1xf32 plan {w = "i8<-7:7> symmetric tensor minmax"}
      output(y=%y)
    }

By `round-weights` it becomes:

    graph main as native {
      %x = input() : 4x3xf32
      %w.rounded = constant([7.0, 3.0, 1.0]) : 1x3xf32
      %y = linear(%x, %w.rounded) : 4x1xf32 plan {w = "i8<-7:7> symmetric tensor minmax"}
      output(y=%y)
    }

One step is 1.0 here, and the three inputs of each sample are equal. Weights rounded to the nearest
step have the least error each, but their errors add up over the inputs of a layer, which are
correlated. So layer by layer, on samples, weights are moved to their other neighbour as long as the
squared error of the results falls (Nagel et al., Up or Down?, 2020; here by coordinate descent,
which needs no random numbers).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from qir.errors import DataError
from qir.ir.dtype import I8
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.layers import CONVOLUTIONS, MATRIX_PRODUCTS
from qir.ir.scheme import Scheme
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.numerics.scale_rules import known_scales
from qir.passes.quantize.clip_weights import symmetric_layers
from qir.passes.quantize.materialize import weight_type
from qir.profiles import Profile, profile_in, quantize_by_profile
from qir.reference.interpreter import run as run_reference
from qir.rewrite import ANOTHER, Pass
from qir.rewrite.layer_weights import Float64Array, float_weights, groups, operands, slots, store
from qir.rewrite.runner.options import option

Tensor = NDArray[np.generic]
Samples = Mapping[str, Tensor]
Number = TypeVar("Number", np.float64, np.int64)
MAX_SAMPLES = 16
"""So many samples of data are enough."""
MAX_RESULTS = 4096
"""So many results of a layer are looked at, evenly spread over all."""
MAX_PRODUCTS = 4608
"""Layers whose results sum over more products keep nearest rounding: correlations would not fit."""
SWEEPS = 4
"""So often each weight may be moved, on average."""


def read_samples(path: str | list[str]) -> Samples:
    """Reads the inputs of one run from an .npz file."""
    if isinstance(path, list):
        raise ValueError("a list")
    try:
        with np.load(Path(path), allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: no .npz file of inputs: {error}") from error


@dataclass(frozen=True)
class RoundWeights(Pass):
    """Chooses between the two neighbours of each weight of planned layers, on samples.

    It runs between `assign-schemes`, which says how weights will be stored, and `materialize`,
    which finds each weight on a step. Transposed convolutions keep nearest rounding.
    """

    name = "round-weights"
    nested = False
    tolerance = ANOTHER
    inputs: Samples = field(
        default_factory=dict, metadata=option(name="samples", read=read_samples, kind="file")
    )
    """Inputs of one run of the model."""
    profile: str = "native"
    """Whose rules the quantized values of weights are found by."""
    scales: str = field(default="profile", metadata=option(read=lambda t: known_scales(str(t))))
    """The scale rule, or the family of them, that takes the place of the profile's."""
    centered: bool = False
    """Whether the mean error may stay, because `correct-bias` takes it away after this."""

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product of strongly correlated data, in few steps."""
        text = (
            "graph main as native {\n  %x = input() : 4x3xf32\n"
            "  %w = constant([7.0, 2.4, 1.4]) : 1x3xf32\n  %y = linear(%x, %w) : 4x1xf32\n"
            "  output(y=%y)\n}\n"
        )
        graph = parse(text)
        node = next(n for n in graph if n.op == "linear")
        graph.set_scheme(node, "w", Scheme(I8, bounds=(-7, 7), symmetric=True))
        yield cls({"x": np.outer([1, 2, 3, 4], [1, 1, 1]).astype(np.float32)}), graph

    def run(self, graph: Graph, ledger: Ledger) -> int:
        if not self.inputs:
            return 0
        layers = [
            (node, scheme)
            for node, scheme in symmetric_layers(graph)
            if node.op in CONVOLUTIONS | MATRIX_PRODUCTS
            and _products_per_result(node) <= MAX_PRODUCTS
        ]
        moments = _input_moments(graph, [node for node, _ in layers], self.inputs, self.centered)
        rules, count = profile_in(graph, self.profile), 0
        for node, scheme in layers:
            changed = _round_layer(graph, node, scheme, moments[node], rules, self.scales)
            if changed:
                message = f"rounds {changed} weights to the other neighbour, for nearer results"
                ledger.add(Change.QUANTIZED, self.name, node.name, message)
                count += 1
        return count + (graph.prune() if count else 0)


def _products_per_result(node: Node) -> int:
    """Returns how many products a result sums over."""
    shape = float_weights(operands(node)[1]).shape
    return (
        int(np.prod(shape[1:]))
        if node.op in CONVOLUTIONS
        else shape[1 if _has_transposed_weights(node) else 0]
    )


def _has_transposed_weights(node: Node) -> bool:
    """Tells a matrix product whose weights have a row for each result."""
    return node.op == "linear" or node.attrs.get("trans_b") is True


def _input_moments(
    graph: Graph, layers: Iterable[Node], inputs: Samples, centered: bool
) -> dict[Node, Float64Array]:
    """For each layer, by group, the mean products of each two of the numbers that it sums over."""
    readers: dict[Value, list[Node]] = {}
    for node in layers:
        readers.setdefault(operands(node)[0], []).append(node)
    moments: dict[Node, Float64Array] = {}

    def record(value: Value, data: Tensor) -> None:
        for node in readers.get(value, ()):
            # Only a layer with a bias can have the mean error taken away later.
            without_mean = centered and slots(node)[2] in node.operands
            moments[node] = _mean_products(
                _summed_values(node, data.astype(np.float64)), without_mean
            )

    run_reference(graph, inputs, observe=record)
    return moments


def _mean_products(values: Float64Array, centered: bool) -> Float64Array:
    """Of an array of group, sample and number, the mean products of two numbers of a group."""
    values = values - values.mean(axis=1, keepdims=True) if centered else values
    products = np.stack(
        [group_values.T @ group_values / max(1, len(group_values)) for group_values in values]
    )
    # The grid is far above the rounding errors of BLAS, whose order of summing varies.
    unit = np.abs(products).max(initial=0) * 2.0**-36
    return np.asarray(np.rint(products / unit) * unit if unit else products)


def _summed_values(node: Node, data: Float64Array) -> Float64Array:
    """Returns what results sum over: group, result and number, in the order of the weights."""
    if node.op in MATRIX_PRODUCTS:
        rows = data.T if node.attrs.get("trans_a") is True else data.reshape(-1, data.shape[-1])
        return _evenly_spaced(rows)[None]
    shape = float_weights(operands(node)[1]).shape
    rank = len(shape) - 2
    if node.attrs.get("layout") == "NHWC":
        data = np.moveaxis(data, -1, 1)
    strides, dilations, pads = (
        _int_attribute(node, name) for name in ("stride", "dilation", "pad")
    )
    padding = [(0, 0), (0, 0), *((pads[i], pads[i + rank]) for i in range(rank))]
    data = np.pad(data, padding)
    extent = [(k - 1) * d + 1 for k, d in zip(shape[2:], dilations, strict=True)]
    axes = tuple(range(2, 2 + rank))
    # Views of all windows at stride 1, then the strides and dilations are picked out of them; only
    # the chosen windows are copied.
    windows = np.lib.stride_tricks.sliding_window_view(data, extent, axis=axes)
    steps = [slice(None, None, s) for s in strides]
    taps = [slice(None, None, d) for d in dilations]
    windows = windows[(slice(None), slice(None), *steps, *taps)]
    windows = np.moveaxis(windows, 1, 1 + rank)
    positions = windows.shape[: 1 + rank]
    chosen = _evenly_spaced(np.arange(int(np.prod(positions))))
    rows = windows[np.unravel_index(chosen, positions)]
    grouped = rows.reshape(len(rows), groups(node), -1)
    return np.asarray(np.moveaxis(grouped, 1, 0))


def _evenly_spaced(rows: NDArray[Number]) -> NDArray[Number]:
    """Rows evenly spread over all, at most `ROWS`."""
    return rows[:: max(1, -(-len(rows) // MAX_RESULTS))]


def _int_attribute(node: Node, name: str) -> tuple[int, ...]:
    numbers = node.attrs[name]
    assert isinstance(numbers, tuple)
    return tuple(int(n) for n in numbers if isinstance(n, int))


def _round_layer(
    graph: Graph, node: Node, scheme: Scheme, moments: Float64Array, rules: Profile, scales: str
) -> int:
    """Stores the chosen weights of a layer; says how many are not the nearest."""
    weight = operands(node)[1]
    assert weight.constant is not None
    quant_type = weight_type(rules, node, weight, scheme, scales)
    nearest = quantize_by_profile(rules, weight.constant.data, quant_type).astype(np.int64)
    exact, nearest_rows = (
        _with_result_rows(node, float_weights(weight)),
        _with_result_rows(node, nearest),
    )
    scale = np.asarray(quant_type.scales(), np.float64).reshape(-1)
    if scale.size not in (1, len(exact)):
        return 0
    scale = np.broadcast_to(scale, len(exact))
    grouped_shape = (len(moments), len(exact) // len(moments), -1)
    chosen = choose_rounding(
        moments,
        exact.reshape(grouped_shape),
        nearest_rows.reshape(grouped_shape),
        scale.reshape(grouped_shape[:2]),
        scheme.high,
    ).reshape(nearest_rows.shape)
    changed = int((chosen != nearest_rows).sum())
    if not changed:
        return 0
    slot = slots(node)[1]
    new_weight = _in_stored_layout(node, chosen * scale[:, None], nearest.shape)
    store(graph, node, new_weight, None, "rounded")
    new_value = node.operands[slot]
    assert new_value.constant is not None
    quant_type = weight_type(rules, node, new_value, scheme, scales)
    stored = quantize_by_profile(rules, new_value.constant.data, quant_type).astype(np.int64)
    if (
        # A profile that rounds the stored floats to other integers would undo the choice.
        _with_result_rows(node, stored) != chosen
    ).any():  # a profile that would round them differently
        graph.set_operand(node, slot, weight)
        return 0
    return changed


def choose_rounding(
    moments: Float64Array,
    exact: Float64Array,
    nearest: NDArray[np.int64],
    step: Float64Array,
    high: int,
) -> NDArray[np.int64]:
    """Returns the quantized values of weights whose results have the least squared error that was
    found.

    Weights are by group, result and number; steps by group and result. The error of a result is
    `e @ moments @ e`, where e = quantized values * step - exact. Of each result the weight whose
    other neighbour helps most is moved, until none helps.
    """
    scale_column = step[..., None]
    positions = exact / scale_column
    lower = np.floor(positions)
    # A weight can move if it is no integer step already and both neighbours are in range.
    is_movable = (
        (np.abs(positions - np.rint(positions)) > 1e-4) & (lower >= -high) & (lower + 1 <= high)
    )
    chosen = np.where(is_movable, np.clip(nearest, lower, lower + 1), nearest).astype(np.float64)
    # Half the gradient of e @ M @ e for each weight, updated as weights move.
    gradient = (chosen * scale_column - exact) @ moments
    own_moments = np.diagonal(moments, axis1=1, axis2=2)[:, None, :]
    group, result = np.indices(step.shape)
    for _ in range(SWEEPS * exact.shape[-1]):
        step_change = np.where(
            is_movable, np.where(chosen == lower, scale_column, -scale_column), 0.0
        )
        # (e + d) @ M @ (e + d) - e @ M @ e = d * (2 * gradient + d * M_ii), for a step d of weight
        # i.
        error_change = step_change * (2 * gradient + step_change * own_moments)
        best_input = error_change.argmin(axis=-1)
        best_index = group, result, best_input
        # The threshold ends the descent where gains are only rounding errors.
        is_better = error_change[best_index] < -1e-12 * own_moments[group, 0, best_input] * step**2
        if not is_better.any():
            break
        change = np.where(is_better, step_change[best_index], 0.0)
        chosen[best_index] = np.rint(chosen[best_index] + change / step)
        gradient += change[..., None] * moments[group, best_input]
    return np.asarray(chosen, np.int64)


def _has_result_rows(node: Node) -> bool:
    """Tells layers whose weights have a row for each result."""
    return node.op in CONVOLUTIONS or _has_transposed_weights(node)


def _with_result_rows(node: Node, array: NDArray[Number]) -> NDArray[Number]:
    """Weights with a row for each result."""
    return np.asarray(array.reshape(len(array), -1) if _has_result_rows(node) else array.T)


def _in_stored_layout(node: Node, rows: Float64Array, shape: tuple[int, ...]) -> Float64Array:
    return rows.reshape(shape) if _has_result_rows(node) else np.ascontiguousarray(rows.T)
