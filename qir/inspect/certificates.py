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
from qir.inspect.pairs import saturates_in_16_bits, saturating_profiles
from qir.inspect.reachable_sums import MAX_SPAN, sum_reach
from qir.inspect.rows import SAME_SUMS, SUMMING, channel_axis, has_misread_groups, weight_rows
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.ir.types import Array, Element, QuantType, TensorType, uniform
from qir.ir.verify import NodeContext
from qir.ir.verify.step import SLOTS, Product
from qir.numerics import Rule, affine_of
from qir.numerics.rounding import SECOND_ROUNDINGS
from qir.profiles import Profile, library_of, quantize_query, query_for_node, read_profile_for
from qir.profiles.processor import best_isa, on_processor, require_instruction_set
from qir.reference.products import ProductKernel, integer_product
from qir.reference.quantized import activation_bounds

MAX_NUDGE_ULPS = 1024
"""Ulps by which a scale is nudged at most, unless asked for more."""
_MAX_SUMS_PER_CHANNEL = 1 << 12  # sums of a channel of which each is looked at
_DIGIT, _DIGITS = 1 << 14, 5
_CHUNK_SIZE = 1 << 16  # sums that are looked at together
_TRIAL_COUNT = 64  # sums, and channels, on which many nudges are tried first
_BOUNDING_OPS = frozenset({"relu", "clip"})
_WIDE = dtype("i16")
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


@dataclass(frozen=True, slots=True, eq=False)
class _Kernel:
    """A profile's kernel of a layer."""

    rule: Rule
    x: QuantType
    result: QuantType
    bias: Array | None
    ends: tuple[int, int]
    """The quantized values that activations leave."""

    @property
    def zero(self) -> int:
        """The zero point of its results."""
        return int(np.asarray(self.result.zeros()).reshape(-1)[0])


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """A product whose sums decide its quantized values, each channel for itself."""

    own: tuple[_Kernel, ...]
    scales: NDArray[np.float32]
    """Of the weights; one, or one a channel."""
    gain: float
    rows: Integers
    """The weights of each channel, less their zero points; of transposed convolutions, of each kind
    of place one after the other."""
    reals: tuple[int, int]
    """The least and the greatest number that meets a weight."""

    @property
    def channels(self) -> int:
        """How many rows there are; that of a scale is what is left of a row's number by scales."""
        return len(self.rows)

    def scale(self, channel: int) -> np.float32:
        """Returns the scale of a channel's weights."""
        return np.float32(self.scales[channel % self.scales.size])


def _layer(kernels: Sequence[tuple[Node, Product]], compared: Sequence[Profile]) -> _Layer | Ties:
    """Returns the layer, as each profile has it, or why its sums decide nothing."""
    found, profiles = [], tuple(each.name for each in compared)
    for source, (node, product) in zip(compared, kernels, strict=True):
        if isinstance(layer := _layer_of_profile(source, node, product), str):
            return Ties(profiles, why=layer)
        found.append(layer)
    merged = replace(found[0], own=tuple(kernel for layer in found for kernel in layer.own))
    ends = {(kernel.ends[0] - kernel.zero, kernel.ends[1] - kernel.zero) for kernel in merged.own}
    if len(ends) > 1:
        return Ties(profiles, why="its activations clamp at values on which profiles differ")
    for name, layer in zip(profiles, found, strict=True):
        if not _layers_agree(merged, layer):
            return Ties(profiles, why=f"{profiles[0]} and {name} compute it from other numbers")
        if _overflows_when_shifted(layer, layer.own[0].rule):
            return Ties(profiles, why=f"its sums are shifted up under {name}, and leave 32 bits")
    return merged


def _layer_of_profile(source: Profile, node: Node, product: Product) -> _Layer | str:
    """Returns the layer as one profile has it, or why its sums decide nothing."""
    result, weights = node.result.type.quant, product.weights
    why = _why_not_certified(node, product)
    if why or result is None or weights is None:
        return why
    bias = _bias(node, product)
    if isinstance(bias, str):
        return bias
    rule = source.resolve(query_for_node(node))
    if why := _why_profile_silent(rule, source.name, product, weights, result):
        return why
    rule = replace(rule, method=None, acc=replace(rule.acc, pairs="exact"))
    kernel = _Kernel(rule, product.x, result, bias, _activation_ends(node, result, source))
    scales = np.asarray(product.w.scales(), np.float32).reshape(-1)
    rows, reals = weight_rows(product, weights), _centered_bounds(product.x)
    return _Layer((kernel,), scales, _op_gain(node), rows, reals)


def _layers_agree(one: _Layer, other: _Layer) -> bool:
    """Returns whether two layers sum the same numbers, and step alike but for their zero points."""
    a, b = one.own[0], other.own[0]
    is_same = np.array_equal(one.rows, other.rows) and np.array_equal(one.scales, other.scales)
    is_same = is_same and one.gain == other.gain and one.reals == other.reals
    type_pairs = ((a.x, b.x), (a.result, b.result))
    return is_same and all(np.array_equal(p.scales(), q.scales()) for p, q in type_pairs)


def _why_not_certified(node: Node, product: Product) -> str:
    """Returns why the quantized values of a product are no function of its sums and their
    channel."""
    step, result = product.step, node.result.type.quant
    if step.spec.name not in SUMMING or product.swapped:
        return f"{step.spec.name} is not laid out as one row of weights a channel"
    if product.weights is None:
        return "its weights are computed"
    if step.prefix or any(s.op not in _BOUNDING_OPS or s.type for s in node.stages[1:]):
        return "its kernel adds more than a bias to its sums"
    if result is None or (node.stages and node.stages[0].type):
        return "its result is not quantized"
    if product.x.dynamic or product.w.dynamic or result.dynamic:
        return "its scales are computed"
    if (
        product.x.granularity
        or result.granularity
        or (product.w.granularity and product.w.axis != channel_axis(product))
    ):
        return "its scales are not one a tensor, or one a channel of the weights"
    if any(q.scale_dtype not in (None, F32) for q in (product.x, product.w, result)):
        return "its scales are no float32"
    if not all(np.all(np.asarray(q.scales()) > 0) for q in (product.x, product.w, result)):
        return "its scales are not above zero"
    if _op_gain(node) <= 0:
        return "its sums are multiplied with no number above zero"
    return ""


def _why_profile_silent(
    rule: Rule, name: str, product: Product, weights: Array, result: QuantType
) -> str:
    """Returns why a profile's quantized values are not to be had from sums alone."""
    method, op = rule.method, product.step.spec.name
    if method is None and op not in INTEGER_SUM_LAYERS:
        return f"{name} has no quantized kernel for {op}"
    if method is not None and method.name not in SAME_SUMS:
        return f"{name} computes {op} by method {method}"
    if method is not None and method.params.get("misread") and has_misread_groups(product, weights):
        return f"{name} multiplies other weights than those of the graph"
    if rule.acc.pairs == "halve_signed" and product.x.storage.kind == "int":
        return f"weights of signed data are halved under {name}"
    if saturates_in_16_bits(rule.acc.pairs, product):
        return f"pairs of products can saturate in 16 bits under {name}"
    declared = any(q.declared is not None for q in (product.x, product.w, result))
    if rule.requant.order == "gy/gx/gw" and declared:
        return f"{name} takes gains from the ranges that are declared, not from scales"
    return ""


def _op_gain(node: Node) -> float:
    """Returns what a product is multiplied with by its own op."""
    attrs = node.stages[0].attrs if node.stages else node.attrs
    gain = attrs.get("alpha", 1.0)
    return gain if isinstance(gain, float) else 1.0


def _bias(node: Node, product: Product) -> Array | str | None:
    """Returns the bias, whatever it counts in; or why it is not known."""
    step = product.step
    value = step.operands.get(SLOTS[step.spec.name][2])
    if value is None:
        return None
    if step.call.attrs.get("beta", 1.0) != 1.0:
        return "it multiplies its bias"
    array = value.constant
    if array is None or array.data.ndim != 1:
        return "its bias is computed" if array is None else "its bias is not one a channel"
    return array


def _activation_ends(node: Node, result: QuantType, source: Profile) -> tuple[int, int]:
    """Returns the quantized values that activations leave, under a profile."""
    low, high = result.low, result.high
    rule = source.resolve(quantize_query(result))
    mode = source.resolve(query_for_node(node)).stage.ends
    for stage in node.stages[1:]:
        least, greatest = activation_bounds(stage.op, stage.attrs, affine_of(result), rule, mode)
        low, high = max(low, least), min(high, greatest)
    return low, high


def _centered_bounds(x: QuantType) -> tuple[int, int]:
    """Returns the least and the greatest integer less the zero point; beyond an edge there are
    zeros."""
    zero = int(np.asarray(x.zeros()).reshape(-1)[0])
    return min(x.low - zero, 0), max(x.high - zero, 0)


# -- requantized sums -----------------------------------------------------------------------------


def _quantized_results(
    layer: _Layer, kernel: _Kernel, sums: Integers, channel: int, scales: NDArray[np.float32]
) -> NDArray[np.int64]:
    """Returns the reference's quantized values of some sums of one channel, for each of some scales
    of its weights; counted from the zero point of the first profile's."""
    high, low = np.divmod(sums, _DIGIT)
    digits = []
    for _ in range(_DIGITS):
        digits.append(np.clip(high, -(1 << 15), (1 << 15) - 1))
        high = high - digits[-1]
    # The reference's own product makes the sums: x holds digits of the sum in base 2^14, w the
    # base, so that rounding, bias and saturation are those of the product.
    x = np.stack([*digits, low], 1).astype(np.int16)
    row = np.array([_DIGIT] * _DIGITS + [1], np.int16)
    w = np.tile(row, (scales.size, 1))
    arrays: dict[str, NDArray[np.generic]] = {"x": x, "w": w}
    x_scale = np.asarray(kernel.x.scales(), np.float32).reshape(())
    types = {
        "x": TensorType(x.shape, uniform(_WIDE, x_scale)),
        "w": TensorType(w.shape, uniform(_WIDE, scales, axis=0, name="w")),
    }
    if kernel.bias is not None:
        bias_value = kernel.bias.data[channel % kernel.bias.data.size]
        arrays["bias"] = np.repeat(bias_value, scales.size)
        types["bias"] = TensorType((scales.size,), _bias_element(kernel.bias, channel))
    kind = TensorType((sums.size, scales.size), kernel.result)
    product = ProductKernel("linear", {"alpha": layer.gain}, types, kind, kernel.rule)
    quantized = np.clip(integer_product(product, arrays).astype(np.int64), *kernel.ends)
    return quantized - kernel.zero + layer.own[0].zero


def _bias_element(bias: Array, channel: int) -> Element:
    quant = bias.type.quant
    if quant is None:
        return bias.type.element
    scales = np.asarray(quant.scales(), np.float32).reshape(-1)
    zeros = np.asarray(quant.zeros()).reshape(-1)
    scale, zero = scales[channel % scales.size], zeros[channel % zeros.size]
    return uniform(quant.storage, np.asarray(scale), zero)


def _sum_worth(layer: _Layer, channel: int) -> tuple[float, float]:
    """About how many quantized values a sum is worth, and the bias in sums."""
    kernel = layer.own[0]
    x, y = (float(np.asarray(q.scales()).reshape(-1)[0]) for q in (kernel.x, kernel.result))
    unit = layer.gain * x * float(layer.scale(channel))
    if kernel.bias is None:
        return unit / y, 0.0
    bias = float(kernel.bias.data[channel % kernel.bias.data.size])
    quant = kernel.bias.type.quant
    if quant is None:
        return unit / y, bias if kernel.bias.type.dtype.is_integer else bias / unit
    return unit / y, bias  # in units of the sums, or nearly


def _overflows_when_shifted(layer: _Layer, rule: Rule) -> bool:
    """Returns whether some sum leaves 32 bits where a rule shifts it before it is scaled."""
    if rule.requant.round not in SECOND_ROUNDINGS:
        return False
    for channel, row in enumerate(layer.rows):
        worth, bias = _sum_worth(layer, channel)
        _, shift = np.frexp(worth * (1 + 2.0**-20))
        reached = sum_reach(row, *layer.reals)
        furthest = max(abs(reached.least + bias), abs(reached.greatest + bias)) + 1
        if shift > 0 and furthest * 2.0**shift >= 2.0**31:
            return True
    return False


@dataclass(frozen=True, slots=True, eq=False)
class _Steps:
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


def _steps(layer: _Layer, channel: int) -> _Steps:
    """Returns all sums of a channel where they are few, else those near the steps of its
    integers."""
    reached = sum_reach(layer.rows[channel], *layer.reals)
    least, greatest = reached.least, reached.greatest
    if reached.count <= _MAX_SUMS_PER_CHANNEL:
        return _each_sum(reached.every())
    worth, bias = _sum_worth(layer, channel)
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
    return _Steps(sums, runs, reached.meets(sums), reached.count)


def _each_sum(sums: Integers) -> _Steps:
    """Sums that are looked at one by one."""
    return _Steps(sums, None, np.ones(sums.size, bool), sums.size)


# -- the search -----------------------------------------------------------------------------------


def _smallest_nudges(layer: _Layer, profiles: tuple[str, ...], max_ulps: int) -> Ties:
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


def _channel_steps(layer: _Layer, channel: int) -> tuple[_Steps, _Differences]:
    """Returns the steps of a channel; all of its sums where its integers step elsewhere."""
    steps = _steps(layer, channel)
    differences = _compare(layer, steps, channel, [0])
    if differences.counts[0] is None and steps.count <= MAX_SPAN:
        steps = _each_sum(sum_reach(layer.rows[channel], *layer.reals).every())
        differences = _compare(layer, steps, channel, [0])
    return steps, differences


def _smallest_nudge(
    layer: _Layer,
    looked: Sequence[_Steps],
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


def _compare(layer: _Layer, steps: _Steps, channel: int, nudges: Sequence[int]) -> _Differences:
    """Where profiles differ, for each nudge."""
    scale = layer.scale(channel)
    scales = np.array([nudged(scale, n) for n in nudges], np.float32)
    proven = np.isfinite(scales) & (scales > 0)
    pieces = range(0, steps.sums.size, _CHUNK_SIZE) if steps.runs is None else (None,)
    parts = []
    for start in pieces:
        piece = slice(None) if start is None else slice(start, start + _CHUNK_SIZE)
        results = [
            _quantized_results(layer, k, steps.sums[piece], channel, scales) for k in layer.own
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
