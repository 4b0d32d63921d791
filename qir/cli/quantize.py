"""`qir quantize`: from a float model and data to a quantized one."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import accuracy_goals, boundary, defaults
from qir.cli import check as checking
from qir.cli import verb as shared
from qir.cli.comparison import number
from qir.cli.models import (
    claim_files,
    claim_model,
    file_bytes,
    ledger_json,
    open_model,
    require_distinct_files,
    save_ledger,
    show_ledger,
)
from qir.cli.plan import summary, unrolling
from qir.cli.screen import Column, Screen, percent, plural, size
from qir.errors import UsageError

if TYPE_CHECKING:
    from qir.analysis.decisions import Plan
    from qir.inspect.quantization_noise import QuantizationNoise
    from qir.recipe import Recipe

_VALUE = re.compile(r"%[^\s,;]+")
"""A value in a reason."""


@shared.verb(
    "qir quantize model.onnx --data samples.npy -o quantized.onnx",
    "qir quantize model.onnx --stats model.stats --keep-float '/fc/*' -o mixed.qir",
    "qir quantize model.onnx --dynamic -o dynamic.onnx",
)
@shared.model
@shared.data(f"Samples to calibrate with. {shared.DATA}")
@shared.preprocess
@shared.trust
@click.option("--stats", type=shared.PATH, metavar="FILE", help="Statistics of `qir calibrate`.")
@shared.output("Where to write it: a .qir file, or the target's own kind.")
@shared.target
@click.option(
    "--as",
    "profile",
    metavar="PROFILE",
    help="Quantize for the kernels of a profile, such as tflite-2.21.xnnpack, to a .qir file.",
)
@shared.format_
@shared.granularity
@click.option(
    "--range",
    "range_rule",
    default="minmax",
    show_default=True,
    metavar="RULE",
    help="How ranges are chosen: minmax, auto, percentile:99.99, entropy, mse, mae, k-sigma:4,"
    " mean, median, average:0.01, margin:0.125.",
)
@click.option(
    "--scales",
    default="profile",
    show_default=True,
    metavar="RULE",
    help="How a range gives scale and zero point: as the target's profile says, or by a named"
    " formula, such as onednn, fbgemm or torch.observer (`qir doctor --all` lists them).",
)
@click.option(
    "--corrections",
    default="default",
    show_default=True,
    metavar="NAMES",
    help="Corrections of the rounding error: names with commas, such as correct-bias, or none"
    " (docs/guide/accuracy.md).",
)
@click.option(
    "--float16",
    "float_type",
    flag_value="f16",
    default="",
    help="Compute what stays float in float16, with casts; scales stay float32. For ONNX; of"
    " others, --weights f16 stores the weights so.",
)
@boundary.option
@shared.rules
@shared.keep_float
@accuracy_goals.options
@shared.dynamic
@shared.weights
@shared.opset
@checking.check_option
@checking.check_data_option
@checking.labels_option
@checking.metric_option
@shared.whole("--limit", "Calibrate with only so many samples.")
@shared.whole("--batch", "Samples in a batch.")
@shared.feeds
@shared.threads
@shared.lossy
@shared.force
@shared.save_ledger
@shared.as_json
@shared.quiet
def quantize(
    model: Path,
    data: Path | None,
    preprocess: Path | None,
    trust: bool,
    stats: Path | None,
    output: Path,
    target: str,
    profile: str | None,
    form: str | None,
    granularity: str,
    range_rule: str,
    scales: str,
    corrections: str,
    float_type: str,
    io: str,
    rules: tuple[str, ...],
    floats: tuple[str, ...],
    drop: float | None,
    sqnr: float | None,
    recipe_file: Path | None,
    dynamic: bool,
    weights: str | None,
    opset: int | None,
    wanted: bool,
    check_data: Path | None,
    labels: str | None,
    metrics: tuple[str, ...],
    limit: int | None,
    batch: int | None,
    feeds: bool,
    threads: int | None,
    lossy: bool,
    force: bool,
    ledger_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Quantize a float model, or its weights alone.

    Folds constants and batch norms, calibrates (or takes the statistics of `qir calibrate`), plans
    as `qir plan` shows, and writes the model. --dynamic and --weights need no samples. The same
    inputs give the same bytes, for any number of threads.

    A model that is quantized already, or was trained with simulated quantization, needs no samples
    either: without --data and --stats the ranges of its types are taken, for another target. Ops
    for whose values it states none stay float.

    With --as the model is quantized for the kernels of a profile, with the storage types and zero
    points that these support; `qir group --as` the same profile then predicts the runtime's bytes.
    No target is involved; samples are needed.

    --drop and --sqnr search for the fewest ops to keep in 16 bits, where the target file has such
    activations, or in float, on --data; calibration may be on other data, with --stats. The
    recipe is written next to the output, as NAME.recipe.toml, and --recipe gives the same bytes
    again. If the goal is out of reach the best model is written, and the exit status is 3.

    An interrupted run leaves statistics and trials next to the output; the same command continues
    from there.

    --json prints {file, output, file_bytes, output_bytes, target, integer_macs, integer_ops,
    weight_ops, ops, sqnr: {output: decibels}, noisiest: [{node, op, sqnr, lost}],
    goal: {metric, value, float, wanted, reached, kept, wide, of, recipe}, check: {samples,
    float, quantized, near, flips, worst}, io: [{name, side, type, scale, zero, reason}],
    ledger: {kind: count}}; weight_ops are those whose weights --weights stores. sqnr is measured
    with --data, else null; where one is low, noisiest names the layers that lose most. goal is
    null without a goal, check without --check; io is empty without --io.
    """
    from qir.ledger import Ledger
    from qir.qir_files import read_journal
    from qir.recipe import Recipe
    from qir.workflows import SampleData, quantize_model
    from qir.workflows.quantization import require_one_source

    without_samples = dynamic or weights is not None
    calibrates = data is not None and stats is None
    goal_request = accuracy_goals.GoalRequest(drop, sqnr, labels, output, calibrates)
    goal_request.require(data, alone=without_samples, feeds=feeds, checked=wanted, force=force)
    recipe_options = target, profile or "", granularity, range_rule, scales, corrections, float_type
    recipe = accuracy_goals.read_recipe(
        Recipe(*recipe_options, shared.all_rules(rules, floats), boundary.recipe_text(io)),
        recipe_file,
    )
    target, profile = recipe.target, recipe.profile or None
    require_one_source(
        recipe,
        data=data is not None,
        statistics=stats is not None,
        goal=goal_request.goal,
        dynamic=dynamic,
        weights=weights,
    )
    if data is None and stats is not None and (limit or batch or feeds):
        raise UsageError("--limit, --batch and --feeds go with --data: statistics are ready")
    shared.require_whole(feeds, batch)
    excluded = {"feeds": feeds, "dynamic": dynamic, "weights": weights, "profile": profile}
    checking.require_fitting(wanted, check_data, labels, metrics, data, excluded)
    # All that can be refused is refused before the model is read: calibration takes long.
    require_distinct_files([model, data, stats], [output, ledger_file])
    if profile is not None:
        _require_alone(output, without_samples)
    # The recipe's target and not the option's: a recipe file says its own.
    form = _require_output(recipe, output, form, dynamic=dynamic, weights=weights, force=force)
    claim_files(ledger_file, force=force)
    screen, screen_for_steps = Screen(quiet=quiet), Screen(quiet=quiet or as_json)
    ledger = Ledger()
    graph = open_model(model, ledger, data=data, trust=trust)
    samples = checked_on = None
    if data is not None:
        samples = SampleData(data, labels, limit, batch, feeds, preprocess)
    # --limit is of the data to calibrate with: other data of the check are run whole.
    if wanted and (measured_on := check_data or data) is not None:
        check_limit = limit if check_data is None else None
        checked_on = SampleData(measured_on, labels, check_limit, preprocess=preprocess)
    with accuracy_goals.continued(goal_request):
        outcome = quantize_model(
            graph,
            output,
            recipe,
            data=samples,
            statistics=stats,
            dynamic=dynamic,
            weights=weights,
            goal=goal_request.wanted,
            check=checked_on,
            metrics=metrics,
            format=form,
            opset=opset,
            name=str(model),
            threads=threads,
            progress=screen_for_steps.progress,
            ledger=ledger,
            journal=read_journal(model),
            lossy=lossy,
            force=force,
        )
    if calibrates:
        defaults.show_samples_left_out(screen_for_steps, graph, samples)
    save_ledger(ledger, ledger_file)
    search, plan, noise = outcome.search, outcome.plan, outcome.noise
    lengths = file_bytes(model), file_bytes(output)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "file_bytes": lengths[0],
                "output_bytes": lengths[1],
                "target": profile or target,
                "integer_macs": plan.integer_macs,
                "integer_ops": sum(d.integer for d in plan.decisions),
                "weight_ops": sum(d.becomes == "weights" for d in plan.decisions),
                "ops": sum(d.becomes != "as it is" for d in plan.decisions),
                **_noise_json(noise),
                "goal": accuracy_goals.to_json(search, goal_request),
                "check": checking.to_json(outcome.check),
                "io": boundary.to_json(outcome.boundary),
                "ledger": ledger_json(ledger),
            }
        )
        accuracy_goals.finish(search, goal_request)
        return
    screen.line(f"{model.name} -> {output.name} for {profile or target}", "bold")
    change = f"{size(lengths[0])} -> {size(lengths[1])} ({percent(lengths[1] / lengths[0])})"
    searched = accuracy_goals.facts(search, goal_request) if search is not None else {}
    screen.facts({**summary(plan), "size": change, **searched})
    if data is not None:
        defaults.show_passed_over(screen, graph, data)
    if noise is not None and noise.low:
        screen.line(_warning(noise), "yellow")
    _show(screen, plan)
    boundary.show(screen, outcome.boundary)
    show_ledger(screen, ledger)
    if outcome.check is not None and checked_on is not None:
        checking.show(screen, outcome.check, checked_on.path)
    accuracy_goals.finish(search, goal_request)


def _noise_json(noise: QuantizationNoise | None) -> dict[str, object]:
    from dataclasses import asdict

    if noise is None:
        return {"sqnr": None, "noisiest": []}
    layers = [{**asdict(layer), "sqnr": number(layer.sqnr)} for layer in noise.layers]
    sqnr = {name: number(decibels) for name, decibels in noise.outputs.items()}
    return {"sqnr": sqnr, "noisiest": layers}


def _warning(noise: QuantizationNoise) -> str:
    """Returns the line that warns of noisy outputs and names the layers that lose most."""
    name, sqnr = next(iter(noise.low.items()))
    others = f" and {len(noise.low) - 1} more outputs" if len(noise.low) > 1 else ""
    # Whole decibels: on so few samples the digits after them are noise.
    worst = ", ".join(f"{layer.node} ({layer.lost:.0f} dB)" for layer in noise.layers)
    blame = f"; most is lost at {worst}" if worst else ""
    loss = f"{name}{others} keeps an SQNR of {sqnr:.1f} dB on {plural(noise.samples, 'sample')}"
    return f"warning: output {loss}{blame}; try --keep-float on them, or another --range"


def _require_output(
    recipe: Recipe,
    output: Path,
    form: str | None,
    *,
    dynamic: bool,
    weights: str | None,
    force: bool,
) -> str | None:
    """Returns the form to write; raises UsageError unless it may be written, before any work."""
    from qir.inspect.targets import kind_without_data, require_kind, usual_format
    from qir.qir_files import SUFFIX
    from qir.target import target as named_target

    # A .qir file holds every kind; a target has forms that hold one and not the other.
    if (dynamic or weights is not None) and output.suffix.lower() != SUFFIX:
        backend = named_target(recipe.target)
        kind = kind_without_data(dynamic=dynamic, weights=weights)
        require_kind(backend, kind)
        form = form or usual_format(backend, kind)
    claim_model(output, recipe.target, form, force=force, quantized=True)
    return form


def _require_alone(output: Path, alone: bool) -> None:
    """Raises UsageError for what does not go with --as."""
    from qir.workflows.quantization import require_profile_output

    context = click.get_current_context()
    # The option has a default, so that only its source tells whether somebody asked for a target.
    if context.get_parameter_source("target") is click.core.ParameterSource.COMMANDLINE:
        raise UsageError("give --target or --as: with --as no target is asked")
    require_profile_output(output, alone)


def _reasons(reasons: Iterable[str]) -> str:
    """The reasons of one op's nodes; one stands for all that name another value alone."""
    by_gist: dict[str, list[str]] = {}
    for reason in reasons:
        by_gist.setdefault(_VALUE.sub("%", reason), []).append(reason)
    counts = ((each[0], len(set(each))) for each in by_gist.values())
    return "; ".join(f"{one} ({count:,} such)" if count > 1 else one for one, count in counts)


def _show(screen: Screen, plan: Plan) -> None:
    quantizable = [d for d in plan.decisions if d.becomes != "as it is"]
    # --weights stores weights in few bits and computes in float, so that "integer" would be wrong.
    weights_only = any(d.becomes == "weights" for d in quantizable)
    integer_counts: Counter[str] = Counter(d.op for d in quantizable if d.becomes != "float")
    op_counts: Counter[str] = Counter(d.op for d in quantizable)
    rows: Sequence[tuple[str, str, str, str]] = [
        (
            op,
            f"{integer_counts[op]:,}",
            f"{count - integer_counts[op]:,}" if count > integer_counts[op] else "-",
            _reasons(d.reason for d in quantizable if d.op == op and d.becomes == "float"),
        )
        for op, count in sorted(op_counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    columns = (
        Column("op"),
        Column("few-bit weights" if weights_only else "integer", "right"),
        Column("float", "right"),
        Column("why float", fit="wrap"),
    )
    screen.table(columns, rows, title="ops")
    if hint := unrolling(plan):
        screen.line(hint)
