"""Compares a quantized graph with its float one on data: metrics, flips, and the worst tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.analysis.quantization_faults import (
    NoiseCause,
    clipped,
    dead_channel,
    outlier_channel,
    shifted_mean,
    wide_range,
)
from qir.calibration import Key, Statistics
from qir.calibration.scaling import Scaled
from qir.inspect.evaluation import against_labels, against_results, can_compare, join_batches
from qir.inspect.metrics import Metric, metric
from qir.inspect.tensor_errors import (
    Errors,
    StoredTensor,
    original_tensor_name,
    stored_tensors,
    weights_of,
    with_channel_scales,
)
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.reference.interpreter import run

Tensor = NDArray[np.generic]
Tensors = Mapping[str, Tensor]
Numbers: TypeAlias = Mapping[str, Mapping[str, float]]

WORST = 10
MOST = 40.0
"""Decibels that count as no noise, where a tensor's own share is asked for."""
LEAST = 0.5
"""A tensor that loses fewer decibels than this is not listed."""
LEFT = 0.01
"""No remedy is said to leave less of a tensor's noise than this share."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How a graph was quantized, as far as remedies depend on it."""

    granularity: str = "channel"
    range_rule: str = "minmax"
    corrections: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Flips:
    """Samples that only one of the two models gets right; without labels, other answers."""

    lost: int
    """Right in float, wrong in integers."""
    gained: int
    """Wrong in float, right in integers."""
    changed: int
    """All whose answer differs."""


@dataclass(frozen=True, slots=True)
class Worst:
    """A tensor, the decibels that it loses against those it is computed from, and why."""

    tensor: str
    node: str
    """The layer before it; keeping it in float keeps the tensor's values."""
    sqnr: float
    lost: float
    cause: str
    detail: str
    remedy: str
    gain: float
    """Decibels that the remedy gives the tensor."""
    measured: bool
    """Whether the gain follows from measurements alone; else it is an estimate."""


@dataclass(frozen=True, slots=True)
class QuantizationCheck:
    """A quantized graph next to its float one; `to_json` has the keys of the fields."""

    samples: int
    metrics: tuple[str, ...]
    float: Numbers
    """By output and metric, of the float graph; empty without labels."""
    quantized: Numbers
    near: Numbers
    """By output, agreement and SQNR of the two."""
    flips: Mapping[str, Flips]
    worst: tuple[Worst, ...]

    def to_json(self) -> dict[str, object]:
        """Returns the fields; infinite numbers stay what they are."""
        return asdict(self)


@dataclass
class _Measured:
    """What one pass over the data finds."""

    stored: Sequence[StoredTensor]
    errors: dict[str, Errors] = field(default_factory=dict)
    wanted: list[Tensors] = field(default_factory=list)
    given: list[Tensors] = field(default_factory=list)


def check_quantized(
    graph: Graph,
    quantized: Graph,
    batches: Iterable[Tensors],
    statistics: Statistics,
    labels: Tensor | None = None,
    metrics: Sequence[Metric] = (),
    *,
    scaled: Mapping[str, Scaled] | None = None,
    settings: Settings | None = None,
    progress: Callable[[int], None] | None = None,
) -> QuantizationCheck:
    """Runs a float graph and what was quantized of it once each on the same batches.

    `scaled` are the tensors that `equalize` divided. The memory holds the tensors of one batch.
    Raises DataError for labels that fit no output.
    """
    scaled, settings = scaled or {}, settings or Settings()
    measured = _Measured(stored_tensors(quantized))
    for batch_count, inputs in enumerate(batches, 1):
        _measure_batch(measured, graph, quantized, inputs, scaled)
        if progress is not None:
            progress(batch_count)
    wanted, given = join_batches(measured.wanted), join_batches(measured.given)
    samples = max((len(array) for array in wanted.values()), default=0)
    comparison_metrics = [metric("agreement"), metric("sqnr")]
    floats, integers = {}, {}
    if labels is not None:
        floats = against_labels(metrics, labels[:samples], wanted)
        integers = against_labels(metrics, labels[:samples], given)
    return QuantizationCheck(
        samples,
        tuple(m.name for m in metrics) if labels is not None else (),
        floats,
        integers,
        against_results(comparison_metrics, wanted, given),
        _flips(wanted, given, None if labels is None else labels[:samples], metrics),
        tuple(
            replace(worst_tensor, tensor=original_tensor_name(worst_tensor.tensor, scaled))
            for worst_tensor in _worst_tensors(measured, statistics, settings)
        ),
    )


def _measure_batch(
    measured: _Measured,
    graph: Graph,
    quantized: Graph,
    inputs: Tensors,
    scaled: Mapping[str, Scaled],
) -> None:
    """Runs both graphs on a batch and adds the errors of each stored tensor."""
    needed = {original_tensor_name(stored.tensor, scaled) for stored in measured.stored}
    float_values: dict[str, Tensor] = {}

    def keep(value: Value, data: Tensor) -> None:
        if value.lineage.tensor in needed and value.type.dtype.is_float:
            float_values[value.lineage.tensor] = data

    measured.wanted.append(run(graph, inputs, observe=keep))
    ends = {stored.value: stored for stored in measured.stored}
    starts = {stored.before for stored in measured.stored}
    before_values: dict[Value, Tensor] = {}

    def measure(value: Value, data: Tensor) -> None:
        if value in starts:
            before_values[value] = data
        stored = ends.get(value)
        if stored is None:
            return
        expected = float_values.get(original_tensor_name(stored.tensor, scaled))
        before = None if stored.before is None else before_values.get(stored.before)
        if expected is None or expected.shape != data.shape or not expected.size:
            return
        errors = measured.errors.setdefault(stored.value.name, Errors(stored.axis, stored.covered))
        errors.add(with_channel_scales(expected, stored.tensor, scaled), data, before)

    measured.given.append(run(quantized, inputs, observe=measure))


def _flips(
    wanted: Tensors, given: Tensors, labels: Tensor | None, metrics: Sequence[Metric]
) -> dict[str, Flips]:
    """By output that gives an answer a row: how many answers differ, and which were right."""
    judge = next((m for m in metrics if m.labels and labels is not None), None)
    out = {}
    for name, float_result in wanted.items():
        quantized_result = given.get(name)
        if (
            quantized_result is None
            or float_result.ndim < 2
            or quantized_result.shape != float_result.shape
            or float_result.dtype.kind in "OSUT"
        ):
            continue
        flat = [array.reshape(len(array), -1) for array in (float_result, quantized_result)]
        if labels is not None and (judge is None or not can_compare([judge], labels, float_result)):
            continue
        if labels is None or judge is None:
            changed = int((flat[0].argmax(axis=1) != flat[1].argmax(axis=1)).sum())
            out[name] = Flips(0, 0, changed)
            continue
        right_rows = [
            judge.right(*judge.fitted(labels, array)) for array in (float_result, quantized_result)
        ]
        if right_rows[0] is None or right_rows[1] is None:
            continue
        a, b = right_rows[0], right_rows[1]
        answers = [
            array.reshape(*labels.shape, -1).argmax(axis=-1)
            for array in (float_result, quantized_result)
        ]
        changed = int((answers[0] != answers[1]).sum())
        out[name] = Flips(int((a & ~b).sum()), int((b & ~a).sum()), changed)
    return out


def _worst_tensors(
    measured: _Measured, statistics: Statistics, settings: Settings
) -> tuple[Worst, ...]:
    """Returns the tensors that lose most, the worst first."""
    sqnr = {
        stored.tensor: min(MOST, measured.errors[stored.value.name].sqnr)
        for stored in measured.stored
        if stored.value.name in measured.errors
    }
    losses = []
    for stored in measured.stored:
        errors = measured.errors.get(stored.value.name)
        if errors is None or not float(errors.signal.sum()):
            continue
        best = min((sqnr[name] for name in stored.sources if name in sqnr), default=MOST)
        lost = best - min(MOST, errors.sqnr)
        if lost >= LEAST and not math.isinf(errors.sqnr):
            losses.append((lost, stored, errors))
    losses.sort(key=lambda row: -row[0])
    return tuple(_explain_loss(*row, statistics, settings) for row in losses[:WORST])


@dataclass(frozen=True)
class _Candidate:
    fault: NoiseCause
    remedy: str
    share: float
    """Of all of the tensor's noise, what the remedy removes."""
    node: str = ""


def _explain_loss(
    lost: float, stored: StoredTensor, errors: Errors, statistics: Statistics, settings: Settings
) -> Worst:
    """Returns the cause whose remedy removes most of a tensor's noise."""
    layer = stored.layers[0] if stored.layers else None
    node = _source_name(layer if layer is not None else (stored.before or stored.value).node)
    keep = f"--keep-float '{node}'"
    candidates = [*_value_faults(stored, errors, statistics, settings, keep)]
    candidates += [
        c
        for weighted_layer in stored.layers
        for c in _weight_faults(weighted_layer, errors, settings, keep)
    ]
    best = max(candidates, key=lambda c: c.share, default=None)
    if best is None or best.share < 0.1:
        dead = dead_channel(errors.low, errors.high)
        share = 1 - 10 ** (-lost / 10)
        fault = NoiseCause("rounding", "no single fault: 8 bits are few for its values", share)
        if dead is not None:
            fault = replace(fault, detail=f"{fault.detail}; {dead.detail}")
        best = _Candidate(fault, keep, share)
    elif best.remedy == keep:  # which takes away all that is lost here
        best = replace(
            best, fault=replace(best.fault, measured=False), share=1 - 10 ** (-lost / 10)
        )
    noise_left = max(1 - best.share, LEFT)
    return Worst(
        stored.tensor,
        best.node or node,
        errors.sqnr,
        lost,
        best.fault.cause,
        best.fault.detail,
        best.remedy,
        -10 * math.log10(noise_left),
        best.fault.measured,
    )


def _value_faults(
    stored: StoredTensor, errors: Errors, statistics: Statistics, settings: Settings, keep: str
) -> list[_Candidate]:
    """Faults of what a tensor holds."""
    out = []
    noise, own_noise = float(errors.noise.sum()), float(errors.own.sum())
    mean = shifted_mean(errors.error, errors.count, noise)
    if mean is not None:
        missing = "correct-bias" not in settings.corrections
        names = ",".join((*settings.corrections, "correct-bias"))
        out.append(_Candidate(mean, f"--corrections {names}" if missing else keep, mean.removed))
    # Of the tensor's noise only the part that its own rounding adds can be removed here.
    part = min(1.0, own_noise / noise) if noise else 0.0
    covered = stored.covered
    if covered is None or not part:
        return out
    observed = float(errors.high.max() - min(0.0, float(errors.low.min())))
    share = float(errors.outside.sum() / errors.count.sum())
    clipping = clipped(
        own_noise, float(errors.beyond.sum()), share, observed, covered[1] - covered[0]
    )
    if clipping is not None:
        is_minmax = settings.range_rule == "minmax"
        remedy = "calibrate with more samples" if is_minmax else "--range minmax"
        out.append(_Candidate(clipping, remedy, part * clipping.removed))
    sizes = np.maximum(np.abs(errors.low), np.abs(errors.high))
    channel = outlier_channel(sizes)
    if channel is not None:
        can_equalize = any(weights_of(layer) is not None for layer in stored.layers)
        missing = can_equalize and "equalize" not in settings.corrections
        remedy = "--corrections equalize,correct-bias" if missing else keep
        out.append(_Candidate(channel, remedy, part * channel.removed))
    summary = statistics.get(Key(stored.tensor))
    if summary is not None and stored.quant is not None:
        levels = stored.quant.high - stored.quant.low + 1
        wide_one = wide_range(summary, *covered, levels)
        if wide_one is not None:
            # A range beyond all that was seen is the target's own, as of a softmax.
            free = max(map(abs, covered)) < 1.1 * max(-summary.low, summary.high)
            remedy = "--range mse" if free and settings.range_rule != "mse" else keep
            out.append(_Candidate(wide_one, remedy, part * wide_one.removed))
    return out


def _weight_faults(layer: Node, errors: Errors, settings: Settings, keep: str) -> list[_Candidate]:
    """Faults of a layer's weights.

    Their share of the noise is an estimate: rounding the weights w of a channel by steps s adds
    noise of sum(s**2 / 12) / sum(w**2) of the channel's signal.
    """
    stored = weights_of(layer)
    if stored is None:
        return []
    weights, quant, axis = stored
    noise = float(errors.noise.sum())
    rows = np.moveaxis(weights, axis, 0).reshape(weights.shape[axis], -1)
    if np.size(quant.scales()) != 1 or len(rows) != errors.signal.size or not noise:
        return []
    rounding = rows.shape[1] * float(np.asarray(quant.scales()).reshape(-1)[0]) ** 2 / 12
    power = np.maximum(np.square(rows).sum(axis=1), rounding)
    noise_by_channel = rounding / power * errors.signal
    added = float(noise_by_channel.sum())
    fault = outlier_channel(np.abs(rows).max(axis=1), noise_by_channel)
    if fault is None:
        return []
    fault = replace(fault, detail=f"of the weights, {fault.detail}")
    missing = settings.granularity != "channel"
    remedy = "--granularity channel" if missing else keep
    return [_Candidate(fault, remedy, min(1.0, added / noise) * fault.removed, _source_name(layer))]


def _source_name(node: Node) -> str:
    """Returns what the source calls an op, else what the graph does."""
    return next((o.name for o in node.origins if o.name), node.name)
