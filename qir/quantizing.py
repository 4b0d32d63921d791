"""The passes that quantize a float graph: preparation, corrections, schemes, parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from qir.analysis.decisions import Plan
from qir.analysis.divisors import observed_divisors
from qir.analysis.integer_boundary import BoundaryTypes
from qir.analysis.kernel_groups import find_kernel_groups, is_float_group
from qir.analysis.kernel_table import kernel_table
from qir.analysis.masks import observed_masks, refuted_masks
from qir.analysis.quantized_regions import quantized_values
from qir.analysis.scheme_assignment import assign_schemes
from qir.analysis.user_rules import UserRule
from qir.arguments import checked
from qir.calibration import Statistics
from qir.calibration.runner import GraphProgram
from qir.calibration.scaling import Scaled, with_scaled
from qir.capability import Capability
from qir.errors import PluginError, UsageError
from qir.ir.graph import Graph
from qir.ir.ops.layers import LAYERS
from qir.ledger import Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.passes.fold.fold_bias import FoldBias
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.integer_io import IntegerIo
from qir.passes.forms.lower_batch_norm import CONVOLUTION, LowerBatchNorm
from qir.passes.forms.lower_linear import MATRIX_RANK, LowerLinear
from qir.passes.forms.narrow_reals import NarrowReals
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.forms.raise_linear import RaiseLinear
from qir.passes.forms.turn_sums import TurnSums
from qir.passes.forms.widen_reals import WidenReals, has_narrow_floats
from qir.passes.quantize.assign_schemes import AssignSchemes
from qir.passes.quantize.clip_weights import ClipWeights
from qir.passes.quantize.correct_bias import CorrectBias
from qir.passes.quantize.equalize import Equalize, scaled_tensors
from qir.passes.quantize.halve_weights import HALVES
from qir.passes.quantize.materialize import Materialize
from qir.passes.quantize.measure_bias import MeasureBias
from qir.passes.quantize.round_weights import RoundWeights, Samples
from qir.passes.quantize.smooth import Smooth, smoothed_tensors
from qir.passes.quantize.widen_outputs import WidenOutputs
from qir.passes.recover import Recover
from qir.profiles import Profile, carry_profile, profile_in, read_profile_for
from qir.recipe import Recipe
from qir.registry import names as registered
from qir.rewrite import Pass, run_passes
from qir.rewrite.runner.journal import Journal
from qir.target import Target
from qir.target import target as named_target

CORRECTIONS = (
    *("smooth", "equalize", "widen-outputs", "clip-weights", "round-weights", "correct-bias"),
    "measure-bias",
)
"""All corrections, in the order in which they run."""
DEFAULT = "default"
"""Selects the corrections that help, for a target and its granularity."""
ON_SAMPLES = ("round-weights", "measure-bias")
"""The corrections that need sample inputs as well as statistics."""
GRANULARITIES = ("channel", "tensor")
"""Granularities of weight scales."""
_ROWS = "* |> *"
"""The groups that are chains of ops."""


@checked
def fold(
    graph: Graph,
    ledger: Ledger | None = None,
    *,
    journal: Journal | None = None,
    data: bool = True,
) -> Graph:
    """Returns the float graph that is quantized: pruned, constants and batch norms folded.

    With `data`, per-channel factors and summands are folded into convolutions, and means over all
    pixels become global pools; without, these stay float. 16-bit floats become float32 in a graph
    without quantized values, since no integer kernel supports them. Groups of float ops are opened;
    `quantize` groups again (see `grouped_by`).
    """
    opened = (OpenGroups(_ROWS, chains=True),) if grouped_by(graph) else ()
    wide = (WidenReals(),) if has_narrow_floats(graph) and not quantized_values(graph) else ()
    # Where kernels were found already, what they hold is not rewritten.
    late_recoveries: tuple[Pass, ...] = ()
    if data and not opened:
        late_recoveries = FoldBias(layers=True, products=False), Recover(("batch-norm", "pools"))
    steps = (*opened, *wide, Prune(), FoldConstants(), *late_recoveries, FoldBatchNorm())
    return run_passes(graph, steps, ledger if ledger is not None else Ledger(), journal=journal)


def in_ops_of(
    table: Capability,
    folded: Graph,
    ledger: Ledger,
    granularity: str = "channel",
    *,
    journal: Journal | None = None,
    sums: bool = True,
) -> Graph:
    """Returns a folded graph in the ops for which a target has integer kernels.

    `sums` is that of `lowered`. Remaining batch norms become convolutions, which needs per-channel
    weight scales.
    """
    lowered_graph = lowered(folded, table, ledger, journal=journal, sums=sums)
    norms = _norms_for(lowered_graph, table) if granularity == "channel" else ()
    return run_passes(lowered_graph, norms, ledger, journal=journal) if norms else lowered_graph


def grouped_by(graph: Graph) -> str:
    """Returns the profile that a float graph is grouped by; empty where it is not."""
    return graph.profile if any(is_float_group(node) for node in graph) else ""


def known_corrections(
    names: Iterable[str] | str, table: Capability | None = None, granularity: str = "channel"
) -> tuple[str, ...]:
    """Parses names of corrections and returns them in the order in which they run.

    "default" is `widen-outputs` and `correct-bias`, and `equalize` where all weights of a layer
    share one scale; "none" is no correction. Raises UsageError for an unknown name.
    """
    listed = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    if listed == [DEFAULT]:
        coarse = granularity == "tensor" or (table is not None and not _by_channel(table))
        usual = ("widen-outputs", "correct-bias")
        return ("equalize", *usual) if coarse else usual
    requested = [] if listed == ["none"] else listed
    for name in requested:
        if name not in CORRECTIONS:
            available = f"there are {', '.join(CORRECTIONS)}; default; and none"
            raise UsageError(f"no correction {name!r}: {available}")
    return tuple(name for name in CORRECTIONS if name in requested)


def _by_channel(table: Capability) -> bool:
    """Returns whether a target supports per-channel weights."""
    rows = (table.ops[op] for op in LAYERS if op in table.ops)
    return any(
        s.granularity == "channel" for row in rows for kinds in row.slots.values() for s in kinds
    )


def equalized(
    graph: Graph, statistics: Statistics, ledger: Ledger, *, journal: Journal | None = None
) -> tuple[Graph, Statistics]:
    """Equalizes channels between layers of a prepared graph; returns it with its statistics."""
    tensors = scaled_tensors(graph, statistics)
    return _scaled(graph, statistics, Equalize(statistics), tensors, ledger, journal)


def smoothed(
    graph: Graph, statistics: Statistics, ledger: Ledger, *, journal: Journal | None = None
) -> tuple[Graph, Statistics]:
    """Smooths the channels of norms in a prepared graph; returns it with its statistics."""
    tensors = smoothed_tensors(graph, statistics)
    return _scaled(graph, statistics, Smooth(statistics), tensors, ledger, journal)


def _scaled(
    graph: Graph,
    statistics: Statistics,
    one: Pass,
    tensors: Mapping[str, Scaled],
    ledger: Ledger,
    journal: Journal | None,
) -> tuple[Graph, Statistics]:
    if not tensors:
        return graph, statistics
    scaled = run_passes(graph, (one,), ledger, journal=journal)
    return scaled, with_scaled(statistics, tensors)


@dataclass(frozen=True)
class ParameterSource:
    """The statistics and the rules that quantization parameters are computed from."""

    statistics: Statistics
    profile: str
    scales: str = "profile"


def quantizing_steps(
    planned: AssignSchemes,
    numbers: ParameterSource,
    corrections: tuple[str, ...],
    exact: Graph | None = None,
    samples: Samples | None = None,
) -> tuple[list[Pass], list[Pass]]:
    """Returns the passes that plan and correct a prepared graph, and those that quantize it.

    `exact` is that graph, for biases; `samples` are the inputs of one run, for `ON_SAMPLES`.
    """
    statistics, profile_name, scales = numbers.statistics, numbers.profile, numbers.scales
    corrected: list[Pass] = []
    # The order matters: clipping sets the range of the weights, rounding chooses integers within
    # it, and the bias corrections then remove the mean error that is left.
    if "clip-weights" in corrections:
        corrected.append(ClipWeights())
    if "round-weights" in corrections:
        later = not {"correct-bias", "measure-bias"}.isdisjoint(corrections)
        corrected.append(RoundWeights(samples or {}, profile_name, scales, later))
    if "correct-bias" in corrections:
        # Where weights changed, the error counts against the weights of the prepared graph.
        before = exact if corrected else None
        corrected.append(
            CorrectBias(
                statistics, profile_name, scales, capability=planned.capability, exact=before
            )
        )
    rounding = tuple(planned.capability.rounding.items())
    if "widen-outputs" in corrections:
        corrected.append(WidenOutputs(statistics))
    materialize = Materialize(statistics, profile_name, scales, rounding)
    return [planned, *corrected], [materialize, TurnSums(), Prune()]


@dataclass(frozen=True)
class Prepared:
    """A float graph prepared for a recipe; it can be quantized by several sets of rules."""

    graph: Graph
    """Folded, lowered for the target, and equalized where the recipe says so."""
    statistics: Statistics
    recipe: Recipe
    capability: Capability
    groups: str
    """The profile whose kernels stay float inside; empty: the target's own chains."""
    profile: str
    """The profile whose rules compute the quantization parameters."""
    corrections: tuple[str, ...]
    samples: Samples | None = None
    """The inputs of one run, for corrections `ON_SAMPLES`."""

    def planned(self, rules: Iterable[str]) -> AssignSchemes:
        """Returns the pass that assigns schemes by these user rules."""
        return AssignSchemes(
            self.capability,
            granularity_named(self.recipe.granularity),
            tuple(UserRule.parse(text) for text in rules),
            self.recipe.range_rule,
            self.groups,
            mask_values(self.graph, self.statistics),
            divisor_distances(self.graph, self.statistics),
        )

    def plan(self, rules: Iterable[str]) -> Plan:
        """Returns the plan by these user rules: what becomes of each op."""
        planned = self.planned(rules)
        rows = (
            find_kernel_groups(self.graph, profile_in(self.graph, planned.groups))
            if planned.groups
            else None
        )
        return assign_schemes(
            self.graph,
            planned.capability,
            planned.granularity,
            planned.user_rules,
            rows,
            planned.masks,
            planned.divisors,
        )[0]

    def quantized(
        self, rules: Iterable[str], ledger: Ledger, *, journal: Journal | None = None
    ) -> Graph:
        """Returns a new graph, quantized by these user rules."""
        by = ParameterSource(self.statistics, self.profile, self.recipe.scales)
        planned = self.planned(rules)
        graph = self.graph
        first, last = quantizing_steps(planned, by, self.corrections, graph, self.samples)
        if self.recipe.float_type:
            integer = (d.node for d in self.plan(rules).decisions if d.integer)
            last += [NarrowReals(tuple(integer), self.statistics), Prune()]
        # This correction runs the quantized graph: the plan is materialized once as a draft, and
        # again with the corrected biases.
        if "measure-bias" in self.corrections:
            graph = run_passes(graph, first, ledger, journal=journal)
            draft = run_passes(graph, last[:1], Ledger())
            first = [
                MeasureBias(
                    self.samples or {}, draft, capability=planned.capability, exact=self.graph
                )
            ]
        out = run_passes(graph, [*first, *last], ledger, journal=journal)
        out.profile = self.profile
        return out


def prepare(
    graph: Graph,
    statistics: Statistics,
    recipe: Recipe,
    ledger: Ledger,
    *,
    journal: Journal | None = None,
    samples: Samples | None = None,
) -> Prepared:
    """Prepares a float graph for a recipe; its user rules are not used yet.

    Raises DataError where the statistics are of another model, UsageError where a correction needs
    `samples`, the inputs of one run, and there are none.
    """
    backend = named_target(recipe.target)
    # The statistics are those of the folded graph: `qir calibrate` folds the model the same way.
    folded = fold(graph, ledger, journal=journal)
    statistics.require_model(GraphProgram(folded).digest)
    table, groups, named = backend.capability(), grouped_by(graph), backend.profile
    if recipe.profile:
        of = kernels_of(graph, recipe.profile)
        table, groups, named = kernel_table(of), of.name, of.name
        carry_profile(folded, of)
    corrections = known_corrections(recipe.corrections, table, recipe.granularity)
    if recipe.float_type and (recipe.profile or recipe.float_type not in backend.float_types):
        by_name = recipe.profile or recipe.target
        remedy = "leave float16 out"
        if not recipe.profile and recipe.float_type == HALVES and "float16" in table.row.forms:
            remedy = "`weights='f16'` stores its weights in float16"
        raise UsageError(f"{by_name} computes what stays float in float32; {remedy}")
    if not samples and (needy := [name for name in corrections if name in ON_SAMPLES]):
        raise UsageError(f"{needy[0]} needs samples as well as statistics: give some inputs")
    if "smooth" in corrections:  # before linear layers are reshaped to products of matrices
        folded, statistics = smoothed(folded, statistics, ledger, journal=journal)
    folded = in_ops_of(table, folded, ledger, recipe.granularity, journal=journal, sums=not groups)
    if "equalize" in corrections:
        folded, statistics = equalized(folded, statistics, ledger, journal=journal)
    by = table if recipe.profile else backend.planned(folded)
    return Prepared(folded, statistics, recipe, by, groups, named, corrections, samples)


def require_integer_io(asked: BoundaryTypes, backend: Target) -> None:
    """Raises UsageError where inputs or outputs are to be integers, and a target has floats."""
    if asked.floats or not backend.float_io:
        return
    others = ", ".join(_targets_with_integer_io())
    remedy = f"leave `io` out, or quantize for another target: {others}"
    raise UsageError(f"target {backend.name} takes and gives floats: {backend.float_io}; {remedy}")


def _targets_with_integer_io() -> list[str]:
    found = []
    for name in registered("qir.targets"):
        with suppress(PluginError):  # a broken plugin is reported when it is asked for
            if not named_target(name).float_io:
                found.append(name)
    return found


def with_integer_io(
    graph: Graph, asked: BoundaryTypes, ledger: Ledger, *, journal: Journal | None = None
) -> Graph:
    """Returns a quantized graph with the inputs and outputs that are asked for, where it can.

    The ledger says which stay float, and why.
    """
    if asked.floats:
        return graph
    return run_passes(graph, (IntegerIo(asked.inputs, asked.outputs),), ledger, journal=journal)


def lowered(
    graph: Graph,
    table: Capability,
    ledger: Ledger,
    *,
    journal: Journal | None = None,
    sums: bool = False,
) -> Graph:
    """Returns a float graph in the ops of a target, which may have only one of `linear` and `gemm`.

    With `sums` a constant that is added to a product is fused into it as a bias.
    """
    if "linear" in table.ops and not {"gemm", "matmul"} & set(table.ops):
        raised = (RaiseLinear(), FoldBias(layers=True)) if sums else (RaiseLinear(),)
        return run_passes(graph, raised, ledger, journal=journal)
    product = table.ops.get("matmul")
    added = "matmul" if product is None or "bias" not in product.slots else ""
    ops = tuple(op for op in ("linear", added) if op and (op == added or op not in table.ops))
    if not ops or "gemm" not in table.ops:
        return graph
    added_to = (FoldBias(layers=True),) if sums and added else ()
    stacked = "matmul" in table.ops and table.ops["matmul"].ranks.get("a") == MATRIX_RANK
    return run_passes(graph, (*added_to, LowerLinear(ops, stacked)), ledger, journal=journal)


def _norms_for(graph: Graph, table: Capability) -> tuple[LowerBatchNorm, ...]:
    """Returns the pass that lowers batch norms for a target, where that makes them integer.

    A target must have integer kernels of convolutions with a scale for each channel, and none of
    batch norms.
    """
    norms = {node.result.type.rank for node in graph if node.op == "batch_norm"}
    convolutions = {CONVOLUTION[rank] for rank in norms if rank in CONVOLUTION}
    if "batch_norm" in table.ops or not convolutions or not convolutions <= set(table.ops):
        return ()
    schemes = [s for op in convolutions for s in table.ops[op].slots.get("w", ())]
    if not any(scheme.granularity == "channel" for scheme in schemes):
        return ()
    return (LowerBatchNorm(frozenset(table.ops) | {op for chain in table.chains for op in chain}),)


def mask_values(folded: Graph, statistics: Statistics | None) -> tuple[tuple[str, float], ...]:
    """Returns the values that hold masks by the statistics, with their least element.

    The least is 0 for values that a constant suggests, but the statistics refute.
    """
    if statistics is None:
        return ()
    found = dict.fromkeys(refuted_masks(folded, statistics), 0.0) | observed_masks(
        folded, statistics
    )
    return tuple(sorted((value.name, least) for value, least in found.items()))


def divisor_distances(
    folded: Graph, statistics: Statistics | None
) -> tuple[tuple[str, float], ...]:
    """Returns the divisors on which statistics and ops decide otherwise, as a plan takes them."""
    if statistics is None:
        return ()
    found = observed_divisors(folded, statistics)
    return tuple(sorted((value.name, distance) for value, distance in found.items()))


def kernels_of(graph: Graph, name: str) -> Profile:
    """Returns the named profile; raises UsageError where a graph is grouped by another."""
    of, groups = read_profile_for(graph, name), grouped_by(graph)
    if groups not in ("", of.name):
        raise UsageError(f"the model is grouped as {groups}: quantize it as that, not as {of.name}")
    return of


def granularity_named(name: str) -> Literal["channel", "tensor"]:
    """Parses a granularity; raises UsageError for another word."""
    if name not in GRANULARITIES:
        raise UsageError(f"granularity {name!r} is neither channel nor tensor")
    return "tensor" if name == "tensor" else "channel"
