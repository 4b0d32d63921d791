"""The public functions of QIR: load, plan, calibrate, quantize, verify, save, run, compile."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from qir.analysis.decisions import (
    Plan,
    with_file_verdicts,
    with_float_reasons,
    with_macs_at,
    with_quantized_moves,
    with_target_verdicts,
)
from qir.analysis.integer_boundary import BoundaryTypes
from qir.analysis.kernel_groups import find_kernel_groups
from qir.analysis.kernel_table import kernel_table
from qir.analysis.masks import possible_mask_inputs
from qir.analysis.quantized_regions import quantized_values
from qir.analysis.scheme_assignment import assign_schemes
from qir.analysis.user_rules import UserRule
from qir.arguments import checked
from qir.atomic import claim
from qir.calibration import Statistics, collect, open_data, open_feeds
from qir.calibration.collect import Batches
from qir.calibration.data import Item
from qir.calibration.preprocess import Preprocess
from qir.calibration.runner import GraphProgram, require_finite_weights
from qir.capability import Verdict
from qir.errors import InputError, Refused, UsageError
from qir.execution import compile as compile
from qir.execution import run as run
from qir.graph_dump import Dump
from qir.ir.graph import Graph
from qir.ir.verify import Finding, check
from qir.ir.verify import verify as verify_graph
from qir.ledger import Ledger
from qir.loading import load as load
from qir.passes.cleanup.prune import Prune
from qir.passes.quantize.halve_weights import HALVES, HalveWeights, plan_halves
from qir.passes.quantize.quantize_dynamic import QuantizeDynamic, plan_dynamic
from qir.passes.quantize.quantize_weights import QuantizeWeights, WeightStorage, plan_weights
from qir.profiles import profile_in
from qir.programs import KERNELS
from qir.qir_files import SUFFIX, write_qir
from qir.quantizing import (
    DEFAULT,
    divisor_distances,
    granularity_named,
    grouped_by,
    in_ops_of,
    kernels_of,
    lowered,
    mask_values,
    prepare,
    require_integer_io,
    with_integer_io,
)
from qir.quantizing import fold as fold
from qir.recipe import Recipe
from qir.reference.constants import compute_constants
from qir.reference.interpreter import run as run_reference
from qir.registry import DEFAULT_TARGET
from qir.requantizing import reopen
from qir.rewrite import Pass, Report, run_passes
from qir.rewrite.runner.driver import After
from qir.rewrite.runner.journal import Journal
from qir.rewrite.runner.options import parse_passes
from qir.rewrite.runner.validation import Validation
from qir.target import Target
from qir.target import target as named_target


@checked
def save(
    graph: Graph,
    destination: str | Path,
    *,
    target: str = DEFAULT_TARGET,
    format: str | None = None,
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    lossy: bool = False,
    force: bool = False,
    opset: int | None = None,
) -> None:
    """Writes a model: a `.qir` file, or a file of a target in one of its forms.

    `.qir` files also hold the ledger and the journal. `opset` is the operator set, for targets
    that have several.

    Raises UsageError for an existing file unless `force`, VerifyError for an invalid graph, and
    Refused where the file would lose something, unless `lossy`. Then nothing is written.
    """
    path = Path(destination)
    is_qir_file = path.suffix.lower() == SUFFIX
    claim(path, force=force, folder=not is_qir_file and format in named_target(target).folders)
    ledger = ledger if ledger is not None else Ledger()
    if is_qir_file:
        ledger.check(lossy=lossy)
        write_qir(graph, path, ledger, journal)
        return
    backend = named_target(target) if opset is None else named_target(target).at(opset)
    format = backend.form_of(path, format)
    claim(*backend.files(path)[1:], force=force)
    check(graph)
    backend.emit(graph, path, ledger, format=format, lossy=lossy)


@checked
def build(
    graph: Graph,
    *,
    target: str,
    format: str | None = None,
    ledger: Ledger | None = None,
    lossy: bool = False,
    module: object | None = None,
) -> object:
    """Returns the object that `qir.save` would write for a target, such as a module of PyTorch.

    `module` is the user's own, for formats that convert it, such as PyTorch's `eager`. Raises
    UsageError for a target that has only files, and otherwise as `qir.save`.
    """
    check(graph)
    ledger = ledger if ledger is not None else Ledger()
    backend = named_target(target)
    if module is None:
        return backend.build(graph, ledger, format=format, lossy=lossy)
    return backend.build(graph, ledger, format=format, lossy=lossy, module=module)


@checked
def verify(graph: Graph, *, target: str | None = None) -> list[Finding]:
    """Returns the findings of the verifier, and, with `target`, the ops it does not support."""
    found = verify_graph(graph, compute_constants)
    if target is not None:
        found += named_target(target).verify(graph)
    return found


def op_verdicts(graph: Graph, *, target: str = DEFAULT_TARGET) -> list[Verdict]:
    """Returns for each op whether the target computes it on integers, or why not."""
    return named_target(target).verdicts(graph)


@checked
def optimize(
    graph: Graph,
    passes: str | Iterable[Pass | str],
    *,
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    samples: Iterable[Mapping[str, NDArray[np.generic]]] = (),
    dump: str | Path | None = None,
    after: After | None = None,
    seconds: float | None = None,
    force: bool = False,
) -> Graph:
    """Runs passes, such as `"prune; fold-constants{limit=4096}"`, and returns a new graph.

    A list holds such texts, or passes: `["prune", FoldConstants(limit=4096)]`.
    With `samples` the graph is run before and after each pass; MovedError names the first tensor
    that moved further than its pass declares, and the rewrite. `dump` is a folder for the graph
    after each pass; UsageError where it holds another run, which `force` replaces. `seconds` is a
    timeout for each pass.
    """
    listed = [passes] if isinstance(passes, str) else passes
    steps = tuple(
        step for one in listed for step in (parse_passes(one) if isinstance(one, str) else (one,))
    )
    kept_samples = list(samples)
    listeners: list[After] = [after] if after else []
    if dump is not None:
        listeners.append(Dump(Path(dump), graph, force=force))

    def notify(report: Report, graph: Graph) -> None:
        for each in listeners:
            each(report, graph)

    return run_passes(
        graph,
        steps,
        ledger if ledger is not None else Ledger(),
        after=notify,
        journal=journal,
        validation=Validation(run_reference, kept_samples) if kept_samples else None,
        seconds=seconds,
    )


@checked
def plan(
    graph: Graph,
    *,
    target: str = DEFAULT_TARGET,
    granularity: str = "channel",
    rules: Iterable[str] = (),
    dynamic: bool = False,
    weights: str | None = None,
    profile: str = "",
    statistics: Statistics | None = None,
    sizes: Mapping[str, int] | None = None,
    format: str | None = None,
) -> Plan:
    """Returns for each op whether it would be integer or float, and why, without quantizing.

    The arguments are those of `quantize`. With statistics, masks are also found in the ranges of
    tensors, and constants that only look like masks are recognized as such. `sizes` are those by
    which ops of open size are counted, by the names that the graph has for them. With a `format`,
    what this form of the target does not hold in integers is float.
    """
    if profile:
        return _plan_by_profile(graph, profile, granularity_named(granularity), rules, statistics)
    backend = named_target(target)
    backend.require_format(format)
    table = backend.capability()
    static = not dynamic and weights is None
    sums = static and not grouped_by(graph)
    folded = fold(graph, data=static)
    if static:
        folded = in_ops_of(table, folded, Ledger(), granularity, sums=sums)
    else:
        folded = lowered(folded, table, Ledger())
    user_rules = [UserRule.parse(text) for text in rules]
    if weights == HALVES:
        found = plan_halves(folded, table.name, user_rules)
    elif weights is not None:
        found = plan_weights(folded, table.name, WeightStorage.parse(weights), user_rules)[0]
    elif dynamic:
        found = plan_dynamic(folded, table, granularity_named(granularity), user_rules)[0]
    else:
        groups = grouped_by(graph)
        kernel_groups = find_kernel_groups(folded, profile_in(folded, groups)) if groups else None
        masks = mask_values(folded, statistics)
        capability = backend.planned(folded)
        found = assign_schemes(
            folded,
            capability,
            granularity_named(granularity),
            user_rules,
            kernel_groups,
            masks,
            divisor_distances(folded, statistics),
        )[0]
        if statistics is None:
            planned = {d.node for d in found.decisions if d.becomes == "integer"}
            found = replace(found, maybe_masks=possible_mask_inputs(folded, planned))
        found = with_macs_at(found, folded, sizes or {})
    if format is not None and weights is None:
        try:
            found = with_float_reasons(
                found, backend.uncarried(folded, format=format, dynamic=dynamic)
            )
        except Refused as error:
            found = replace(found, refused=str(error))
    return (
        with_target_verdicts(found, backend.verdicts(folded), folded.name)
        if quantized_values(folded)
        else found
    )


def plan_of_written_file(
    plan: Plan, path: str | Path, *, target: str = DEFAULT_TARGET, data: bool = False
) -> Plan:
    """Corrects a plan by the file that was written, if a frontend reads it; `data`: of samples."""
    try:
        graph = load(path)
    except InputError:
        return plan
    return (with_quantized_moves if data else with_file_verdicts)(
        plan, op_verdicts(graph, target=target)
    )


def _plan_by_profile(
    graph: Graph,
    name: str,
    granularity: Literal["channel", "tensor"],
    rules: Iterable[str],
    statistics: Statistics | None,
) -> Plan:
    kernel_profile = kernels_of(graph, name)
    table, user_rules = kernel_table(kernel_profile), [UserRule.parse(text) for text in rules]
    folded = fold(graph)
    masks = mask_values(folded, statistics)
    return assign_schemes(
        folded,
        table,
        granularity,
        user_rules,
        find_kernel_groups(folded, kernel_profile),
        masks,
        divisor_distances(folded, statistics),
    )[0]


@checked
def calibrate(
    graph: Graph,
    data: str | Path | Item | Iterable[Item],
    *,
    limit: int | None = None,
    batch: int | None = None,
    feeds: bool = False,
    threads: int = 1,
    progress: Callable[[int, int | None], None] | None = None,
    checkpoint: Path | None = None,
    resume: Statistics | None = None,
    fitting: bool = False,
    preprocess: Preprocess | str | Path | None = None,
) -> Statistics:
    """Runs the folded float graph on sample data and returns the statistics of its tensors.

    Data hold samples along the first axis, or are images with a `preprocess` file. With `feeds`
    each item, or file of a folder, is the complete inputs of one run instead. `resume` are
    statistics to continue from; with `fitting`, those of another model or other data are ignored.

    Raises DataError for data that do not fit, or hold NaN, and UsageError for feeds in batches.
    """
    if threads < 1:
        raise UsageError(f"threads {threads}: give at least 1")
    folded = fold(graph)
    require_finite_weights(folded)
    program = GraphProgram(folded, named_target(KERNELS).observed)
    source: Batches
    if feeds:
        if batch is not None:
            raise UsageError(f"batch {batch}: feeds are complete, each is one run")
        source = open_feeds(data, program.inputs, limit=limit)
    else:
        source = open_data(data, program.inputs, batch=batch, limit=limit, preprocess=preprocess)
    return collect(
        program,
        source,
        program.keys(),
        resume=resume,
        fitting=fitting,
        checkpoint=checkpoint,
        progress=progress,
        threads=threads,
    )


@checked
def quantize(
    graph: Graph,
    statistics: Statistics | None = None,
    *,
    dynamic: bool = False,
    weights: str | None = None,
    target: str = DEFAULT_TARGET,
    granularity: str = "channel",
    rules: Iterable[str] = (),
    range_rule: str = "minmax",
    scales: str = "profile",
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    profile: str = "",
    corrections: Iterable[str] | str = DEFAULT,
    samples: Mapping[str, NDArray[np.generic]] | None = None,
    float16: bool = False,
    io: str = "float",
) -> Graph:
    """Quantizes a float graph for a target; returns a new graph in QDQ form.

    Static quantization needs the `statistics` of `qir.calibrate`. Two modes need none: `dynamic`
    computes the scales of activations at run time; `weights="u4:32"` quantizes weights alone, and
    "f16" stores them in float16. They
    accept `target`, `rules`, `ledger` and `journal`, and `dynamic` a `granularity`. Without any of
    these, a quantized or trained model is quantized anew by the ranges of its types.

    Scales follow the target's profile, or a named rule or family (`qir.numerics.SCALE_FORMULAS`). A
    graph that was grouped by a profile stays float inside that profile's kernels. `profile`
    replaces the target: tensors between its kernels are quantized by its rules, and the graph,
    grouped by it (again), gives its runtime's bytes. `corrections` names the passes that reduce the
    rounding error (docs/guide/accuracy.md), or "none"; `round-weights` and `measure-bias` need
    `samples`, the inputs of one run. With `float16`, ops that stay float use float16
    (`narrow-reals`). With `io="integer"` inputs and outputs are integers where the model quantizes
    them; `i8` and `u8` name their storage, and `u8:float` asks for inputs and outputs apart.

    In a model that is partly quantized, only its float ops are. Raises UsageError if it has none
    left, DataError where the statistics are of another model.
    """
    rules = tuple(rules)
    if dynamic or weights is not None:
        static_choices = (range_rule, scales, profile, corrections, samples, float16, io)
        if statistics is not None or static_choices != (
            "minmax",
            "profile",
            "",
            DEFAULT,
            None,
            False,
            "float",
        ):
            raise UsageError("dynamic and weights take no statistics, and no choices about them")
        if dynamic and weights is not None:
            raise UsageError("dynamic and weights exclude each other: give one of them")
        call = partial(quantize_dynamic, graph, granularity=granularity)
        if weights is not None:
            call = partial(quantize_weights, graph, weights)
        return call(target=target, rules=rules, ledger=ledger, journal=journal)
    ledger, ends = ledger if ledger is not None else Ledger(), BoundaryTypes.parse(io)
    if not profile:
        require_integer_io(ends, named_target(target))
    if statistics is None:
        if not quantized_values(graph) or samples or corrections not in (DEFAULT, "none"):
            modes = "give statistics of qir.calibrate, or dynamic=True, or weights='u4:32'"
            raise UsageError(f"quantize: {modes}")
        recipe = Recipe(target, profile, granularity, range_rule, scales, "none", "", rules)
        reopened = reopen(graph, recipe, ledger)
        graph, statistics, rules = reopened.graph, reopened.statistics, reopened.rules
        corrections = "none"
    if quantized_values(graph):
        planned = plan(
            graph,
            target=target,
            granularity=granularity,
            rules=rules,
            profile=profile,
            statistics=statistics,
        )
        _require_float_work(graph, planned, profile or named_target(target).profile)
    names = corrections if isinstance(corrections, str) else ",".join(corrections) or "none"
    float_type = "f16" if float16 else ""
    recipe = Recipe(target, profile, granularity, range_rule, scales, names, float_type, rules)
    prepared = prepare(graph, statistics, recipe, ledger, journal=journal, samples=samples)
    quantized = prepared.quantized(rules, ledger, journal=journal)
    return with_integer_io(quantized, ends, ledger, journal=journal)


def _require_float_work(graph: Graph, planned: Plan, profile: str) -> None:
    """Raises UsageError for a model without float work, or quantized by another profile."""
    names = quantized_values(graph)
    if not any(d.new for d in planned.decisions):
        raise UsageError(
            f"the model is quantized already: {len(names)} values are quantized, {names[0]} first; "
            "without samples and statistics the ranges of its types are taken for the target"
        )
    if (own := graph.profile) != profile:
        has_kernels = bool(profile_in(graph, own).groups)
        remedy = f"with --as {own}, to a .qir file" if has_kernels else "for its target"
        raise UsageError(
            f"the model is quantized by the rules of {own}, {names[0]} first, and would get more "
            f"by those of {profile}; quantize it {remedy}"
        )


@checked
def quantize_dynamic(
    graph: Graph,
    *,
    target: str = DEFAULT_TARGET,
    granularity: str = "channel",
    rules: Iterable[str] = (),
    ledger: Ledger | None = None,
    journal: Journal | None = None,
) -> Graph:
    """Quantizes matrix products whose activation scales are computed at run time: no data needed.

    The result is in QDQ form; ONNX's format "integer" writes the usual operators for it. Quantized
    ops stay as they are; raises UsageError where no float op is left.
    """
    rules = tuple(rules)
    if quantized_values(graph):
        planned = plan(graph, target=target, granularity=granularity, rules=rules, dynamic=True)
        _require_float_work(graph, planned, named_target(target).profile)
    backend = named_target(target)
    user_rules, granularity_choice = (
        tuple(UserRule.parse(text) for text in rules),
        granularity_named(granularity),
    )
    quantizer = QuantizeDynamic(
        backend.capability(), granularity_choice, user_rules, backend.profile
    )
    return _without_data(graph, quantizer, backend, ledger, journal)


@checked
def quantize_weights(
    graph: Graph,
    weights: str = "u4:32",
    *,
    target: str = DEFAULT_TARGET,
    rules: Iterable[str] = (),
    ledger: Ledger | None = None,
    journal: Journal | None = None,
) -> Graph:
    """Quantizes the weights of matrix products per block, such as `u4:32`; data stay float.

    `u4:32` is 4 bits, affine (`i4` is symmetric), one scale for 32 terms of the sum. `f16` stores
    the weights of all ops in float16, which is computed with in float32. Raises UsageError where no
    float product is left, SchemeError for another `weights`.
    """
    rules = tuple(rules)
    if quantized_values(graph):
        planned = plan(graph, target=target, rules=rules, weights=weights)
        _require_float_work(graph, planned, named_target(target).profile)
    backend = named_target(target)
    user_rules = tuple(UserRule.parse(text) for text in rules)
    quantizer: Pass = HalveWeights(user_rules)
    if weights != HALVES:
        quantizer = QuantizeWeights(WeightStorage.parse(weights), user_rules, backend.profile)
    return _without_data(graph, quantizer, backend, ledger, journal)


def _without_data(
    graph: Graph, quantizer: Pass, backend: Target, ledger: Ledger | None, journal: Journal | None
) -> Graph:
    ledger = ledger if ledger is not None else Ledger()
    # Without data, factors and means stay float ops: folding them serves integer convolutions only.
    folded = fold(graph, ledger, journal=journal, data=False)
    folded = lowered(folded, backend.capability(), ledger, journal=journal)
    out = run_passes(folded, (quantizer, Prune()), ledger, journal=journal)
    out.profile = backend.profile
    return out
