"""What is certain of a layer's sums: whether they wrap, and on which of them two runtimes differ.

A kernel brings a sum to a quantized value by a quantized type that never falls. So two profiles
agree on every sum if their quantized values step at the same sums: it is enough to look at the sums
around each step, and to count those that some input makes. Where there are few, each is looked at.
All quantized values are the reference's own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from qir.errors import QirError, UsageError
from qir.inspect.grouped import layers
from qir.inspect.overflow import SumRange, sums_of
from qir.inspect.pairs import saturating_profiles
from qir.inspect.reachable_sums import MAX_SPAN, sum_reach
from qir.inspect.sum_layers import (
    SumLayer,
    layer_of_profile,
    layers_agree,
    overflows_when_shifted,
    quantized_results,
    sum_worth,
)
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.verify import NodeContext
from qir.ir.verify.step import Product
from qir.profiles import Profile, library_of, query_for_node, read_profile_for
from qir.profiles.processor import best_isa, on_processor, require_instruction_set

MAX_NUDGE_ULPS = 1024
"""Ulps by which a scale is nudged at most, unless asked for more."""
_MAX_SUMS_PER_CHANNEL = 1 << 12  # sums of a channel of which each is looked at
_CHUNK_SIZE = 1 << 16  # sums that are looked at together
_TRIAL_COUNT = 64  # sums, and channels, on which many nudges are tried first
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Ties:
    """Where profiles part ways on the sums of one layer, and how to keep them together."""

    profiles: tuple[str, ...]
    proof: str = ""
    """`sums`: each was looked at; `steps`: those around each step of a quantized type that never
    falls."""
    sums: int = 0
    """Sums that some input makes, over all channels, and of transposed convolutions over all kinds
    of places, which meet other taps; of a channel with more than 4,194,304 steps of
    its weights' greatest common divisor from end to end, and gaps between, every such step."""
    differ: int = 0
    """Those of which the profiles make different quantized values."""
    nudges: tuple[int, ...] = ()
    """Ulps of float32 by which each scale of the weights is to change, for all to agree."""
    scales: tuple[float, ...] = ()
    """The scales after that."""
    why: str = ""
    """Why nothing can be said, or no nudge does; empty where one does."""
    claims: tuple[str, ...] = ()
    """What each claims of its rule for the layer: of rules whose claim is `unknown` nothing shows
    that a runtime obeys them."""

    @property
    def free(self) -> bool:
        """Whether the profiles agree, as it is, on every sum that some input makes."""
        return not self.why and not self.differ

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """The profiles whose rule is not claimed to be the runtime's, on each sum."""
        named = zip(self.profiles, self.claims, strict=True)
        return tuple(name for name, claim in named if claim != "exact")

    @property
    def furthest(self) -> int:
        """The nudge that goes furthest."""
        return max(self.nudges, key=abs, default=0)


@dataclass(frozen=True, slots=True)
class Certificate:
    """One integer product."""

    sums: SumRange
    ties: Ties | None
    """None where no profiles were named."""
    saturated_by: tuple[str, ...] = ()
    """The profiles under which, on that processor, pairs of its products can saturate, or quantized
    values of a window, which zero points of weights are multiplied with, as they are added: of
    those named, and where runtimes have a kernel of its form, such as depthwise layers, of all."""

    @property
    def classes(self) -> Mapping[str, str]:
        """What becomes of pairs of products in kernels for any layer, by class of processors."""
        if self.sums.pairs is None:
            return {}
        return {"avx2": "saturate" if self.sums.saturates else "exact", "vnni": "exact"}


def certify(
    graph: Graph,
    profiles: Sequence[str | Profile] = (),
    *,
    layer: str | None = None,
    most: int = MAX_NUDGE_ULPS,
    isa: str | None = None,
) -> tuple[Certificate, ...]:
    """Returns the certificates of every quantized product, or of one node.

    A profile is given by its name or as a `.toml` file; its rules are those that it has for this
    processor, or for `isa`, on the kernels that it groups. Raises UsageError for a layer that there
    is not, one profile alone or a processor unknown; ProfileError for a profile that there is not.
    """
    require_instruction_set(isa)
    target_isa = isa or best_isa()
    compared = [on_processor(read_profile_for(graph, each), target_isa) for each in profiles]
    if len({each.name for each in compared}) == 1:
        raise UsageError("two profiles or more are compared; one alone agrees with itself")
    # A copy carries them, so that it is grouped as on that processor.
    graph = graph.copy()
    for each in compared:
        graph.carry_profile(each, replace=True)
    names = tuple(each.name for each in compared)
    products, own_layers = layers(graph, names)
    certificates = tuple(
        Certificate(
            sums_of(context, product),
            _ties(context, product, compared, [own.get(place) for own in own_layers], most),
            saturating_profiles(context.node, product, names, target_isa, library_of(graph)),
        )
        for place, (context, product) in products.items()
        if layer is None or context.node.name == layer
    )
    if layer is not None and not certificates:
        raise UsageError(f"no quantized product is named {layer!r}")
    return certificates


def _ties(
    context: NodeContext,
    product: Product,
    compared: Sequence[Profile],
    own: Sequence[tuple[NodeContext, Product] | None],
    max_ulps: int,
) -> Ties | None:
    """Returns what parts profiles on a layer, each by the kernel that it makes of it."""
    if not compared:
        return None
    profiles = tuple(each.name for each in compared)
    sums, kernels = sums_of(context, product), [its or (context, product) for its in own]
    queries = [query_for_node(each.node) for each, _ in kernels]
    claims = tuple(each.resolve(query).claim for each, query in zip(compared, queries, strict=True))
    if in_float := [name for name, its in zip(profiles, own, strict=True) if its is None]:
        verb = "computes" if len(in_float) == 1 else "compute"
        why = f"{' and '.join(in_float)} {verb} it in float32: no subject of proof"
        return Ties(profiles, claims=claims, why=why)
    if sums.wraps is not False:
        return Ties(profiles, claims=claims, why=sums.why or "its sums can wrap in 32 bits")
    try:
        layer = _layer([(each.node, own_product) for each, own_product in kernels], compared)
        ties = layer if isinstance(layer, Ties) else _smallest_nudges(layer, profiles, max_ulps)
    except QirError as error:
        ties = Ties(profiles, why=str(error))
    return replace(ties, claims=claims)


# -- one layer ------------------------------------------------------------------------------------


def _layer(kernels: Sequence[tuple[Node, Product]], compared: Sequence[Profile]) -> SumLayer | Ties:
    """Returns the layer, as each profile has it, or why its sums decide nothing."""
    found, profiles = [], tuple(each.name for each in compared)
    for source, (node, product) in zip(compared, kernels, strict=True):
        if isinstance(layer := layer_of_profile(source, node, product), str):
            return Ties(profiles, why=layer)
        found.append(layer)
    merged = replace(found[0], own=tuple(kernel for layer in found for kernel in layer.own))
    ends = {(kernel.ends[0] - kernel.zero, kernel.ends[1] - kernel.zero) for kernel in merged.own}
    if len(ends) > 1:
        return Ties(profiles, why="its activations clamp at values on which profiles differ")
    for name, layer in zip(profiles, found, strict=True):
        if not layers_agree(merged, layer):
            why = f"{profiles[0]} and {name} compute it from other numbers"
            return Ties(profiles, why=why)
        if overflows_when_shifted(layer, layer.own[0].rule):
            return Ties(profiles, why=f"its sums are shifted up under {name}, and leave 32 bits")
    return merged


# -- requantized sums -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class _SumSteps:
    """The sums of one channel that are looked at, and what is to hold at the ends of each run."""

    sums: Integers
    runs: NDArray[np.int64] | None
    """Rows of three: the index of the first sum of a run, that of its last, and the quantized value
    that the first must not pass and the last must. None: all sums there are."""
    met: NDArray[np.bool_]
    """Which of the sums some input makes."""
    count: int
    """How many sums some input makes in all."""

    def hold(self, quantized: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Returns whether no quantized value steps outside the runs, for each column of
        integers."""
        if self.runs is None:
            return np.ones(quantized.shape[1], bool)
        if not len(self.runs):
            is_constant: NDArray[np.bool_] = quantized[0] == quantized[-1]
            return is_constant
        first, last, code = self.runs.T
        low, high = self.sums[0], self.sums[-1]
        before = (quantized[first] <= code[:, None]) | (self.sums[first] == low)[:, None]
        after = (quantized[last] > code[:, None]) | (self.sums[last] == high)[:, None]
        rises = (np.diff(quantized, axis=0) >= 0).all(0)
        ends = (quantized[0] >= code[0]) & (quantized[-1] <= code[-1] + 1)
        result: NDArray[np.bool_] = rises & ends & before.all(0) & after.all(0)
        return result


def _steps(layer: SumLayer, channel: int) -> _SumSteps:
    """Returns all sums of a channel where they are few, else those near the steps of its
    integers."""
    reached = sum_reach(layer.rows[channel], *layer.reals)
    least, greatest = reached.least, reached.greatest
    if reached.count <= _MAX_SUMS_PER_CHANNEL:
        return _each_sum(reached.every())
    worth, bias = sum_worth(layer, channel)
    kernel = layer.own[0]
    code = np.arange(kernel.ends[0], kernel.ends[1])
    centers = (code - kernel.zero + 0.5) / worth - bias
    # How far the float arithmetic above may be off, so that each true step is inside its run.
    span = 3 + np.ceil(np.abs(centers) * 2.0**-18 + abs(bias) * 2.0**-18 + 1 / worth * 2.0**-12)
    near = (centers + span >= least) & (centers - span <= greatest)
    code, centers, span = code[near], centers[near], span[near]
    start = np.clip(np.floor(centers - span), least, greatest).astype(np.int64)
    last = np.clip(np.ceil(centers + span), least, greatest).astype(np.int64)
    spans = [np.arange(a, b + 1) for a, b in zip(start, last, strict=True)]
    sums = np.unique(np.concatenate([*spans, [least, greatest]]))
    runs = np.stack([np.searchsorted(sums, start), np.searchsorted(sums, last), code], 1)
    return _SumSteps(sums, runs, reached.meets(sums), reached.count)


def _each_sum(sums: Integers) -> _SumSteps:
    """Sums that are looked at one by one."""
    return _SumSteps(sums, None, np.ones(sums.size, bool), sums.size)


# -- the search -----------------------------------------------------------------------------------


def _smallest_nudges(layer: SumLayer, profiles: tuple[str, ...], max_ulps: int) -> Ties:
    """Returns the smallest nudges for which profiles agree on every sum."""
    channel_steps = [_channel_steps(layer, channel) for channel in range(layer.channels)]
    looked = [steps for steps, _ in channel_steps]
    differences = [found for _, found in channel_steps]
    total = sum(s.count for s in looked)
    if any(f.counts[0] is None for f in differences):
        why = (
            "its stored integers do not step where its scales say, and a channel has over "
            f"{MAX_SPAN:,} sums"
        )
        return Ties(profiles, sums=total, why=why)
    proof = "sums" if all(s.runs is None for s in looked) else "steps"
    ties = Ties(profiles, proof, total, sum(f.counts[0] or 0 for f in differences))
    count = layer.scales.size
    sets = [list(range(first, layer.channels, count)) for first in range(count)]
    nudges = [_smallest_nudge(layer, looked, differences, channels, max_ulps) for channels in sets]
    if None in nudges:
        unsolved = sum(n is None for n in nudges)
        subject = f"{unsolved} of its {len(nudges)} scales" if len(nudges) > 1 else "its scale"
        outcome = "keeps them together: each" if proof == "sums" else "is proven to: by steps, each"
        why = f"no nudge of {subject} by up to {max_ulps} ulps {outcome} was tried"
        return replace(ties, why=why)
    solved = tuple(n for n in nudges if n is not None)
    scales = tuple(float(nudged(s, n)) for s, n in zip(layer.scales, solved, strict=True))
    return replace(ties, nudges=solved, scales=scales)


def _channel_steps(layer: SumLayer, channel: int) -> tuple[_SumSteps, _Differences]:
    """Returns the steps of a channel; all of its sums where its integers step elsewhere."""
    steps = _steps(layer, channel)
    differences = _compare(layer, steps, channel, [0])
    if differences.counts[0] is None and steps.count <= MAX_SPAN:
        steps = _each_sum(sum_reach(layer.rows[channel], *layer.reals).every())
        differences = _compare(layer, steps, channel, [0])
    return steps, differences


def _smallest_nudge(
    layer: SumLayer,
    looked: Sequence[_SumSteps],
    differences: Sequence[_Differences],
    channels: list[int],
    max_ulps: int,
) -> int | None:
    """Returns the smallest nudge of one scale for which profiles agree on all channels that have
    it.

    Nudges are tried on the sums that part profiles as it is, and what passes on all.
    """
    if not any(differences[c].counts[0] for c in channels):
        return 0
    worst = sorted(channels, key=lambda c: -(differences[c].counts[0] or 0))
    for candidates in _batches(max_ulps):
        for channel in worst[:_TRIAL_COUNT]:
            trial_sums = looked[channel].sums[differences[channel].where][:_TRIAL_COUNT]
            if trial_sums.size and candidates:
                counts = _compare(layer, _each_sum(trial_sums), channel, candidates).counts
                candidates = [n for n, count in zip(candidates, counts, strict=True) if count == 0]
        for channel in worst:
            if not candidates:
                break
            counts = _compare(layer, looked[channel], channel, candidates).counts
            candidates = [n for n, count in zip(candidates, counts, strict=True) if count == 0]
        if candidates:
            return candidates[0]
    return None


def _batches(max_ulps: int) -> Iterator[list[int]]:
    """Nudges in the order of their size, some at a time."""
    order = [sign * size for size in range(1, max_ulps + 1) for sign in (1, -1)]
    width = 8
    while order:
        yield order[:width]
        order, width = order[width:], min(64, 2 * width)


@dataclass(frozen=True, slots=True, eq=False)
class _Differences:
    """On how many sums profiles differ for each nudge, and on which for the first."""

    counts: list[int | None]
    """None where nothing proves that the sums that were not looked at agree."""
    where: NDArray[np.int64]


def _compare(
    layer: SumLayer, steps: _SumSteps, channel: int, nudges: Sequence[int]
) -> _Differences:
    """Where profiles differ, for each nudge."""
    scale = layer.scale(channel)
    scales = np.array([nudged(scale, n) for n in nudges], np.float32)
    proven = np.isfinite(scales) & (scales > 0)
    pieces = range(0, steps.sums.size, _CHUNK_SIZE) if steps.runs is None else (None,)
    parts = []
    for start in pieces:
        piece = slice(None) if start is None else slice(start, start + _CHUNK_SIZE)
        results = [
            quantized_results(layer, k, steps.sums[piece], channel, scales) for k in layer.own
        ]
        parts.append(np.logical_or.reduce([quantized != results[0] for quantized in results]))
        for quantized in results:
            proven &= steps.hold(quantized)
    differs = np.concatenate(parts) & steps.met[:, None]
    counts = [int(w.sum()) if ok else None for w, ok in zip(differs.T, proven, strict=True)]
    return _Differences(counts, np.flatnonzero(differs[:, 0]))


def nudged(scale: np.float32, ulps: int) -> np.float32:
    """Returns the float32 so many steps away."""
    bits = np.float32(scale).view(np.int32) + np.int32(ulps)
    return bits.view(np.float32)
