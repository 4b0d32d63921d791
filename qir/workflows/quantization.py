"""Quantizes a model, measures the result and writes it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from qir import evaluating, pipeline
from qir.analysis.decisions import ALREADY_QUANTIZED, Plan, with_float_reasons
from qir.analysis.integer_boundary import BoundaryTypes, BoundaryValue, boundary_values
from qir.analysis.masks import MASKED
from qir.analysis.quantized_regions import quantized_values
from qir.arguments import checked, require_counts
from qir.calibration import Statistics, parse_rule
from qir.errors import DataError, InputError, UsageError
from qir.inspect.metrics import metric
from qir.inspect.quantization_check import QuantizationCheck
from qir.inspect.quantization_noise import SAMPLES, QuantizationNoise, quantization_noise
from qir.inspect.targets import kind_without_data, usual_format
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.mixed_precision import Goal, SearchResult, search_recipe
from qir.numerics.scale_rules import known_scales
from qir.passes.quantize.quantize_dynamic import NOT_A_MATRIX_PRODUCT, NOT_A_PRODUCT
from qir.passes.quantize.round_weights import MAX_SAMPLES
from qir.qir_files import SUFFIX
from qir.quantizing import (
    ON_SAMPLES,
    known_corrections,
    require_integer_io,
    with_integer_io,
)
from qir.recipe import Recipe
from qir.requantizing import reopen
from qir.rewrite.runner.journal import Journal
from qir.target import target as named_target
from qir.workflows.inputs import SampleData, require_inputs, sizes_in
from qir.workflows.progress import Progress, silent

GOAL_NEEDS_SAMPLES = (
    "`drop` and `sqnr` are measured on samples: give `data`, without `dynamic`, `weights` and"
    " `feeds`"
)


@dataclass(frozen=True, slots=True)
class FilesNextTo:
    """The files that quantizing keeps next to its output."""

    output: Path

    @property
    def recipe(self) -> Path:
        """Returns where the recipe that a search found is written."""
        return self.output.with_name(f"{self.output.stem}.recipe.toml")

    @property
    def trials(self) -> Path:
        """Returns the file of trials, from which a search resumes."""
        return self.output.with_name(f"{self.output.name}.trials")

    @property
    def statistics(self) -> Path:
        """Returns where statistics are kept until the output is written."""
        return self.output.with_name(f"{self.output.name}.stats.part")


@dataclass(frozen=True, slots=True)
class QuantizedModel:
    """A quantized model and what is known of it."""

    graph: Graph
    original: Graph
    """The float graph that was quantized."""
    plan: Plan
    """What became of each op in the written form."""
    search: SearchResult | None
    """What the search for the goal found."""
    noise: QuantizationNoise | None
    """The noise of the outputs on the first samples."""
    check: QuantizationCheck | None
    boundary: tuple[BoundaryValue, ...] = ()
    """The inputs and outputs that were asked to be integers, and what became of them."""


@checked
def quantize_model(
    graph: Graph,
    output: str | Path,
    recipe: Recipe | None = None,
    *,
    data: SampleData | str | Path | None = None,
    statistics: Statistics | str | Path | None = None,
    dynamic: bool = False,
    weights: str | None = None,
    goal: Goal | None = None,
    check: SampleData | str | Path | None = None,
    metrics: Sequence[str] = (),
    format: str | None = None,
    opset: int | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str = "",
    threads: int | None = None,
    progress: Progress = silent,
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    lossy: bool = False,
    force: bool = False,
) -> QuantizedModel:
    """Calibrates on the data unless statistics are given, quantizes as `qir.quantize` does, writes
    the model, and measures it.

    `statistics` may be a file of `qir calibrate`. A `goal` is searched for on the data, and the
    recipe that reaches it is written as well. With `check` both models are run on those samples.
    An interrupted run leaves statistics and trials next to the output; the same call continues from
    them. `sizes` count the work of ops of open size; by default those of the data. `name` is what
    errors call the model.

    Raises UsageError where nothing of the model can become integer, or the recipe does not go with
    the rest; DataError for data and labels that do not fit.
    """
    journal = journal if journal is not None else Journal()
    require_counts({"threads": threads})
    require_counts(sizes or {})
    recipe, data, check = (
        recipe or Recipe(),
        SampleData.from_argument(data),
        SampleData.from_argument(check),
    )
    require_one_source(
        recipe,
        data=data is not None,
        statistics=statistics is not None,
        goal=goal is not None,
        dynamic=dynamic,
        weights=weights,
    )
    without_samples = dynamic or weights is not None
    asked = BoundaryTypes.parse(recipe.io or "float")
    if not recipe.profile:
        require_integer_io(asked, named_target(recipe.target))
    if goal is not None and (without_samples or data is None or data.feeds):
        raise UsageError(GOAL_NEEDS_SAMPLES)
    if recipe.profile:
        require_profile_output(Path(output), without_samples)
    has_feeds = any(each is not None and each.feeds for each in (data, check))
    excluded = {"feeds": has_feeds, "dynamic": dynamic, "weights": weights}
    excluded["profile"] = recipe.profile
    labels = check.labels if check is not None else None
    require_fitting_check(check is not None, labels, metrics, excluded)
    if isinstance(statistics, str | Path):
        statistics = _load_finished(Path(statistics))
    # What can be refused is refused here, before calibration takes its time.
    if goal is not None and data is not None:
        data.require_labels(graph)
    if check is not None:
        check.require_labels(graph)
    if data is not None and statistics is None:
        require_inputs(data.path, graph)
    if sizes is None:
        sizes = sizes_in(data.path if data is not None else None, graph)
    work = _Work(
        graph,
        Path(output),
        recipe,
        data,
        ledger if ledger is not None else Ledger(),
        name or graph.name,
        progress,
    )
    if work.output.suffix.lower() != SUFFIX:
        named_target(work.recipe.target).require_quantized_form(work.output, format)
    if dynamic or weights is not None:
        plan = work.plan(dynamic=dynamic, weights=weights)
        _require_work(work.name, plan)
        if work.output.suffix.lower() != SUFFIX:
            backend = named_target(work.recipe.target)
            kind = kind_without_data(dynamic=dynamic, weights=weights)
            format = format or usual_format(backend, kind)
        quantized = pipeline.quantize(
            graph,
            dynamic=dynamic,
            weights=weights,
            target=work.recipe.target,
            granularity=work.recipe.granularity,
            rules=work.recipe.rules,
            ledger=work.ledger,
            journal=journal,
        )
        statistics = None
    else:
        statistics = work.calibrated(statistics, threads)
        if goal is not None:
            work.search(goal, statistics)
        plan = work.plan(statistics=statistics, sizes=sizes)
        _require_work(work.name, plan)
        quantized = work.quantized(statistics, journal)
    target = work.recipe.target
    if work.output.suffix.lower() != SUFFIX:
        # A form may carry less than the target computes: what it cannot carry is float in the file
        # and in what is measured.
        quantized, why = named_target(target).carried(quantized, work.ledger, format=format)
        plan = with_float_reasons(plan, why)
    # What is measured takes and gives floats: the integers inside are the same.
    written = with_integer_io(quantized, asked, work.ledger, journal=journal)
    pipeline.save(
        written,
        work.output,
        target=target,
        format=format,
        ledger=work.ledger,
        journal=journal,
        lossy=lossy,
        force=force,
        opset=opset,
    )
    if work.found is not None:
        # After the model: a recipe without its model would look like a result.
        work.found.recipe.save(work.files.recipe, work.found.facts())
    # The writer decides how far these forms keep ops in integers, so that the file is asked.
    if dynamic and format != "integer":
        plan = pipeline.plan_of_written_file(plan, work.output, target=target)
    elif statistics is not None and format == "qoperator":
        plan = pipeline.plan_of_written_file(plan, work.output, target=target, data=True)
    noise = work.noise(quantized)
    measured = None
    if check is not None and statistics is not None:
        measured = work.check(quantized, statistics, check, metrics)
    # Last of all, when nothing that can fail is left to do.
    work.clear()
    ends = tuple(boundary_values(quantized, asked))
    return QuantizedModel(written, work.graph, plan, work.found, noise, measured, ends)


@dataclass
class _Work:
    """One model on its way, step by step."""

    graph: Graph
    output: Path
    recipe: Recipe
    data: SampleData | None
    ledger: Ledger
    name: str
    progress: Progress
    found: SearchResult | None = None
    calibrates: bool = False

    @property
    def files(self) -> FilesNextTo:
        """Returns the files next to the output."""
        return FilesNextTo(self.output)

    def plan(
        self,
        *,
        dynamic: bool = False,
        weights: str | None = None,
        statistics: Statistics | None = None,
        sizes: Mapping[str, int] | None = None,
    ) -> Plan:
        """Plans by the recipe."""
        return pipeline.plan(
            self.graph,
            target=self.recipe.target,
            granularity=self.recipe.granularity,
            rules=self.recipe.rules,
            dynamic=dynamic,
            weights=weights,
            profile=self.recipe.profile,
            statistics=statistics,
            sizes=sizes,
        )

    def calibrated(self, statistics: Statistics | None, threads: int | None) -> Statistics:
        """Returns the statistics given, those of the data, or the ranges of a quantized model."""
        if statistics is None and self.data is None:
            if not quantized_values(self.graph):
                raise UsageError(
                    "give either `data` with samples, or `statistics` of `qir calibrate`"
                )
            # A quantized model states its ranges in its types, so no data are needed to quantize it
            # anew.
            again = reopen(self.graph, self.recipe, self.ledger)
            self.graph, statistics = again.graph, again.statistics
            # Statistics made of types hold ranges alone, and corrections ask for more.
            self.recipe = replace(self.recipe, rules=again.rules, corrections="none")
        plan = self.plan()
        if not any(d.reason.startswith(MASKED) for d in plan.decisions):
            _require_work(self.name, plan)  # else the data tell whether it is a mask
        if statistics is not None:
            return statistics
        assert self.data is not None
        self.calibrates = True
        return self._observed(self.data, threads)

    def _observed(self, data: SampleData, threads: int | None) -> Statistics:
        # Statistics are saved next to the output while calibration runs; an interrupted run resumes
        # there.
        part = self.files.statistics
        resume = _left(part)
        if resume is None:
            part.unlink(missing_ok=True)
        try:
            with self.progress("calibrating") as progress:
                return pipeline.calibrate(
                    self.graph,
                    data.path,
                    limit=data.limit,
                    batch=data.batch,
                    feeds=data.feeds,
                    preprocess=data.preprocess,
                    threads=threads or len(os.sched_getaffinity(0)),
                    progress=progress,
                    checkpoint=part,
                    resume=resume,
                    fitting=True,
                )
        except DataError:
            if resume is None:
                part.unlink(missing_ok=True)
            raise

    def search(self, goal: Goal, statistics: Statistics) -> None:
        """Finds the recipe that reaches the goal, and goes on with its rules."""
        data = self.data
        assert data is not None
        with self.progress("searching") as progress:
            self.found = search_recipe(
                self.graph,
                statistics,
                data.path,
                drop=goal.drop,
                sqnr=goal.sqnr,
                labels=None if goal.drop is None else data.labels,
                recipe=self.recipe,
                limit=data.limit,
                batch=data.batch,
                preprocess=data.preprocess,
                cache=self.files.trials,
                progress=progress,
            )
        # The search adds rules alone: all else of the recipe is as it was.
        self.recipe = replace(self.recipe, rules=self.found.recipe.rules)

    def quantized(self, statistics: Statistics, journal: Journal | None) -> Graph:
        """Quantizes by the recipe."""
        recipe, samples = self.recipe, None
        if needs_samples(recipe) and self.data is not None:
            samples = self.data.first(self.graph, MAX_SAMPLES)
        return pipeline.quantize(
            self.graph,
            statistics,
            target=recipe.target,
            granularity=recipe.granularity,
            rules=recipe.rules,
            range_rule=recipe.range_rule,
            scales=recipe.scales,
            profile=recipe.profile,
            corrections=recipe.corrections,
            samples=samples,
            float16=bool(recipe.float_type),
            ledger=self.ledger,
            journal=journal,
        )

    def noise(self, quantized: Graph) -> QuantizationNoise | None:
        """Measures the outputs on the first samples; None where these fill no batch."""
        first = self.data.first(self.graph, SAMPLES) if self.data is not None else None
        return None if first is None else quantization_noise(self.graph, quantized, first)

    def check(
        self, quantized: Graph, statistics: Statistics, data: SampleData, metrics: Sequence[str]
    ) -> QuantizationCheck:
        """Runs both models on the samples."""
        with self.progress("checking") as progress:
            return evaluating.check(
                self.graph,
                quantized,
                data.path,
                statistics,
                data.labels,
                metrics=tuple(dict.fromkeys(metrics)),
                target=self.recipe.target,
                granularity=self.recipe.granularity,
                range_rule=self.recipe.range_rule,
                corrections=self.recipe.corrections,
                limit=data.limit,
                preprocess=data.preprocess,
                progress=progress,
            )

    def clear(self) -> None:
        """Removes the state of an interrupted run; it is kept for an easier goal."""
        if self.found is not None and not self.found.reached:
            return
        if self.found is not None:
            self.files.trials.unlink(missing_ok=True)
        if self.calibrates:
            self.files.statistics.unlink(missing_ok=True)


def require_one_source(
    recipe: Recipe,
    *,
    data: bool,
    statistics: bool,
    goal: bool,
    dynamic: bool,
    weights: str | None,
) -> None:
    """Raises UsageError unless ranges come from one place: samples, statistics, or neither."""
    without_samples = dynamic or weights is not None
    if without_samples and (data or statistics or (dynamic and weights)):
        raise UsageError(
            "`dynamic` and `weights` need no samples: leave out `data` and `statistics`"
        )
    # A goal and some corrections are measured on samples, whatever statistics there are.
    uses_both = goal or needs_samples(recipe)
    if not without_samples and data and statistics and not uses_both:
        raise UsageError("give either `data` with samples, or `statistics` of `qir calibrate`")
    require_recipe(recipe, data=data, dynamic=dynamic, weights=weights)


def require_fitting_check(
    wanted: bool,
    labels: str | Path | None,
    metrics: Sequence[str],
    others: Mapping[str, object],
) -> None:
    """Raises UsageError for metrics without a check or labels, or for what excludes a check."""
    if not wanted:
        if metrics:
            raise UsageError("`check_data` and `metrics` go with `check`")
        return
    if metrics and not labels:
        raise UsageError("`metrics` measures by labels: give `labels`, or use qir.evaluate")
    for name in metrics:
        metric(name)
    for name, option_value in others.items():
        if option_value:
            raise UsageError(f"`check` compares what samples quantized: leave `{name}` out")


def require_profile_output(output: Path, without_samples: bool) -> None:
    """Raises UsageError for what does not go with a profile in the target's place."""
    if without_samples:
        raise UsageError("`profile` needs samples: `dynamic` and `weights` are for a target")
    if output.suffix.lower() != SUFFIX:
        raise UsageError(f"{output}: with `profile` the model is for no target; name a .qir file")


def require_recipe(
    recipe: Recipe, *, data: bool, dynamic: bool = False, weights: str | None = None
) -> None:
    """Raises UsageError for a recipe that is none, or lacks the samples that it needs."""
    parse_rule(recipe.range_rule)
    known_scales(recipe.scales)
    asked = BoundaryTypes.parse(recipe.io or "float")
    on_samples = _corrections_on_samples(recipe)
    if dynamic or weights is not None:
        if recipe.scales != "profile":
            raise UsageError("`scales` needs samples: `dynamic` and `weights` follow the profile")
        if recipe.float_type:
            raise UsageError("`float16` needs samples, and excludes `dynamic` and `weights`")
        if not asked.floats:
            raise UsageError("`io` excludes `dynamic` and `weights`, whose inputs stay float")
        if recipe.corrections != "default":
            raise UsageError("`corrections` needs samples, which show the error of rounding")
    elif on_samples and not data:
        raise UsageError(
            f"`corrections` {on_samples[0]} needs samples besides `statistics`: give `data`"
        )


def needs_samples(recipe: Recipe) -> bool:
    """Returns whether a correction of a recipe needs samples as well as statistics."""
    return bool(_corrections_on_samples(recipe))


def _corrections_on_samples(recipe: Recipe) -> list[str]:
    return [name for name in known_corrections(recipe.corrections) if name in ON_SAMPLES]


def _load_finished(file: Path) -> Statistics:
    """Loads statistics that are complete; raises UsageError for those of an interrupted run."""
    statistics = Statistics.load(file)
    if statistics.unfinished:
        raise UsageError(f"{file} is unfinished; `qir calibrate --resume` continues it")
    return statistics


def _left(part: Path) -> Statistics | None:
    """Returns the statistics that an interrupted run left, if they can be read."""
    try:
        return Statistics.load(part) if part.exists() else None
    # A file that was cut off, or written by another version, is no more than a lost start.
    except InputError:
        return None


def _require_work(name: str, plan: Plan) -> None:
    """Raises UsageError where nothing can become integer, with the reason."""
    if any(d.new for d in plan.decisions):
        return
    ops = [d for d in plan.decisions if d.becomes != "as it is"]
    if count := sum(d.reason.startswith(ALREADY_QUANTIZED) for d in ops):
        said = f"{count} of its {len(ops)} ops are quantized"
        raise UsageError(f"{name} is quantized already: {said}; nothing is left to quantize")
    # One reason says more than a list: usually all products stay float for the same one.
    why = _reason(plan)
    raise UsageError(f"{name}: nothing in it can become integer for {plan.target}: {why}")


def _reason(plan: Plan) -> str:
    """Returns why nothing of a model becomes integer: what keeps products, else the commonest
    reason."""
    floats = [d.reason for d in plan.decisions if d.becomes == "float"]
    # Ops that are no products always stay float here, which explains nothing about the model.
    ranked = Counter(said for said in floats if said not in (NOT_A_PRODUCT, NOT_A_MATRIX_PRODUCT))
    ranked = ranked or Counter(floats)
    return ranked.most_common(1)[0][0] if ranked else "it has no ops"
