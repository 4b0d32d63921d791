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
    found = _Measured(stored_tensors(quantized))
    for done, inputs in enumerate(batches, 1):
        _one(found, graph, quantized, inputs, scaled)
        if progress is not None:
            progress(done)
    wanted, given = join_batches(found.wanted), join_batches(found.given)
    samples = max((len(array) for array in wanted.values()), default=0)
    near_by = [metric("agreement"), metric("sqnr")]
    floats, integers = {}, {}
    if labels is not None:
        floats = against_labels(metrics, labels[:samples], wanted)
        integers = against_labels(metrics, labels[:samples], given)
    return QuantizationCheck(
        samples,
        tuple(m.name for m in metrics) if labels is not None else (),
        floats,
        integers,
        against_results(near_by, wanted, given),
        _flips(wanted, given, None if labels is None else labels[:samples], metrics),
        tuple(
            replace(each, tensor=original_tensor_name(each.tensor, scaled))
            for each in _worst(found, statistics, settings)
        ),
    )


def _one(
    found: _Measured,
    graph: Graph,
    quantized: Graph,
    inputs: Tensors,
    scaled: Mapping[str, Scaled],
) -> None:
    """Runs both graphs on a batch and adds the errors of each stored tensor."""
    needed = {original_tensor_name(each.tensor, scaled) for each in found.stored}
    reals: dict[str, Tensor] = {}

    def keep(value: Value, data: Tensor) -> None:
        if value.lineage.tensor in needed and value.type.dtype.is_float:
            reals[value.lineage.tensor] = data

    found.wanted.append(run(graph, inputs, observe=keep))
    ends = {each.value: each for each in found.stored}
    starts = {each.before for each in found.stored}
    held: dict[Value, Tensor] = {}

    def measure(value: Value, data: Tensor) -> None:
        if value in starts:
            held[value] = data
        each = ends.get(value)
        if each is None:
            return
        wanted = reals.get(original_tensor_name(each.tensor, scaled))
        before = None if each.before is None else held.get(each.before)
        if wanted is None or wanted.shape != data.shape or not wanted.size:
            return
        errors = found.errors.setdefault(each.value.name, Errors(each.axis, each.covered))
        errors.add(with_channel_scales(wanted, each.tensor, scaled), data, before)

    found.given.append(run(quantized, inputs, observe=measure))


def _flips(
    wanted: Tensors, given: Tensors, labels: Tensor | None, metrics: Sequence[Metric]
) -> dict[str, Flips]:
    """By output that gives an answer a row: how many answers differ, and which were right."""
    judge = next((m for m in metrics if m.labels and labels is not None), None)
    out = {}
    for name, one in wanted.items():
        other = given.get(name)
        if other is None or one.ndim < 2 or other.shape != one.shape or one.dtype.kind in "OSUT":
            continue
        flat = [array.reshape(len(array), -1) for array in (one, other)]
        if labels is not None and (judge is None or not can_compare([judge], labels, one)):
            continue
        if labels is None or judge is None:
            changed = int((flat[0].argmax(axis=1) != flat[1].argmax(axis=1)).sum())
            out[name] = Flips(0, 0, changed)
            continue
        right = [judge.right(*judge.fitted(labels, array)) for array in (one, other)]
        if right[0] is None or right[1] is None:
            continue
        a, b = right[0], right[1]
        answers = [array.reshape(*labels.shape, -1).argmax(axis=-1) for array in (one, other)]
        changed = int((answers[0] != answers[1]).sum())
        out[name] = Flips(int((a & ~b).sum()), int((b & ~a).sum()), changed)
    return out


def _worst(found: _Measured, statistics: Statistics, settings: Settings) -> tuple[Worst, ...]:
    """Returns the tensors that lose most, the worst first."""
    sqnr = {
        each.tensor: min(MOST, found.errors[each.value.name].sqnr)
        for each in found.stored
        if each.value.name in found.errors
    }
    rows = []
    for each in found.stored:
        errors = found.errors.get(each.value.name)
        if errors is None or not float(errors.signal.sum()):
            continue
        best = min((sqnr[name] for name in each.sources if name in sqnr), default=MOST)
        lost = best - min(MOST, errors.sqnr)
        if lost >= LEAST and not math.isinf(errors.sqnr):
            rows.append((lost, each, errors))
    rows.sort(key=lambda row: -row[0])
    return tuple(_explained(*row, statistics, settings) for row in rows[:WORST])


@dataclass(frozen=True)
class _Candidate:
    fault: NoiseCause
    remedy: str
    share: float
    """Of all of the tensor's noise, what the remedy removes."""
    node: str = ""


def _explained(
    lost: float, each: StoredTensor, errors: Errors, statistics: Statistics, settings: Settings
) -> Worst:
    """Returns the cause whose remedy removes most of a tensor's noise."""
    layer = each.layers[0] if each.layers else None
    node = _named(layer if layer is not None else (each.before or each.value).node)
    keep = f"--keep-float '{node}'"
    candidates = [*_of_values(each, errors, statistics, settings, keep)]
    candidates += [c for made in each.layers for c in _of_weights(made, errors, settings, keep)]
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
    left = max(1 - best.share, LEFT)
    return Worst(
        each.tensor,
        best.node or node,
        errors.sqnr,
        lost,
        best.fault.cause,
        best.fault.detail,
        best.remedy,
        -10 * math.log10(left),
        best.fault.measured,
    )


def _of_values(
    each: StoredTensor, errors: Errors, statistics: Statistics, settings: Settings, keep: str
) -> list[_Candidate]:
    """Faults of what a tensor holds."""
    out = []
    noise, own = float(errors.noise.sum()), float(errors.own.sum())
    mean = shifted_mean(errors.error, errors.count, noise)
    if mean is not None:
        missing = "correct-bias" not in settings.corrections
        names = ",".join((*settings.corrections, "correct-bias"))
        out.append(_Candidate(mean, f"--corrections {names}" if missing else keep, mean.removed))
    part = min(1.0, own / noise) if noise else 0.0
    covered = each.covered
    if covered is None or not part:
        return out
    seen = float(errors.high.max() - min(0.0, float(errors.low.min())))
    share = float(errors.outside.sum() / errors.count.sum())
    cut = clipped(own, float(errors.beyond.sum()), share, seen, covered[1] - covered[0])
    if cut is not None:
        wide = settings.range_rule == "minmax"
        remedy = "calibrate with more samples" if wide else "--range minmax"
        out.append(_Candidate(cut, remedy, part * cut.removed))
    sizes = np.maximum(np.abs(errors.low), np.abs(errors.high))
    channel = outlier_channel(sizes)
    if channel is not None:
        able = any(weights_of(layer) is not None for layer in each.layers)
        missing = able and "equalize" not in settings.corrections
        remedy = "--corrections equalize,correct-bias" if missing else keep
        out.append(_Candidate(channel, remedy, part * channel.removed))
    summary = statistics.get(Key(each.tensor))
    if summary is not None and each.quant is not None:
        levels = each.quant.high - each.quant.low + 1
        wide_one = wide_range(summary, *covered, levels)
        if wide_one is not None:
            # A range beyond all that was seen is the target's own, as of a softmax.
            free = max(map(abs, covered)) < 1.1 * max(-summary.low, summary.high)
            remedy = "--range mse" if free and settings.range_rule != "mse" else keep
            out.append(_Candidate(wide_one, remedy, part * wide_one.removed))
    return out


def _of_weights(layer: Node, errors: Errors, settings: Settings, keep: str) -> list[_Candidate]:
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
    loud = np.maximum(np.square(rows).sum(axis=1), rounding)
    each = rounding / loud * errors.signal
    added = float(each.sum())
    fault = outlier_channel(np.abs(rows).max(axis=1), each)
    if fault is None:
        return []
    fault = replace(fault, detail=f"of the weights, {fault.detail}")
    missing = settings.granularity != "channel"
    remedy = "--granularity channel" if missing else keep
    return [_Candidate(fault, remedy, min(1.0, added / noise) * fault.removed, _named(layer))]


def _named(node: Node) -> str:
    """Returns what the source calls an op, else what the graph does."""
    return next((o.name for o in node.origins if o.name), node.name)
