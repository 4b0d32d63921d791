"""Quantizes a model, measures the result and writes it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import evaluating, pipeline
from qir.analysis.decisions import ALREADY_QUANTIZED, Plan, with_float_reasons
from qir.analysis.masks import MASKED
from qir.analysis.quantized_regions import quantized_values
from qir.arguments import checked
from qir.calibration import Preprocess, Statistics, open_feeds
from qir.calibration.data import first_batch
from qir.calibration.runner import input_specs
from qir.errors import DataError, InputError, UsageError
from qir.inspect.quantization_check import QuantizationCheck
from qir.inspect.quantization_noise import SAMPLES, QuantizationNoise, quantization_noise
from qir.inspect.targets import usual_format
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.mixed_precision import Goal, SearchResult, search_recipe
from qir.passes.quantize.quantize_dynamic import NOT_A_MATRIX_PRODUCT, NOT_A_PRODUCT
from qir.passes.quantize.round_weights import MAX_SAMPLES
from qir.qir_files import SUFFIX
from qir.quantizing import ON_SAMPLES, known_corrections
from qir.recipe import Recipe
from qir.requantizing import reopen
from qir.rewrite.runner.journal import Journal
from qir.target import target as named_target

Tell = Callable[..., None]
"""Takes the number of steps done, their total, and perhaps the current op."""
Progress = Callable[[str], AbstractContextManager[Tell]]
"""Gives, for the name of a stage, what the stage reports its steps to."""


@dataclass(frozen=True, slots=True)
class SampleData:
    """Sample data in a file or a folder, and how they are read."""

    path: Path
    labels: str | Path | None = None
    limit: int | None = None
    """Only so many samples are read."""
    batch: int | None = None
    feeds: bool = False
    """Whether each file holds the complete inputs of one run."""
    preprocess: Preprocess | str | Path | None = None

    def first(self, graph: Graph, most: int) -> Mapping[str, NDArray[np.generic]] | None:
        """Returns the first samples as inputs of one run; None where they fill no batch."""
        inputs = input_specs(graph)
        if self.feeds:
            return next(iter(open_feeds(self.path, inputs, limit=1)), None)
        return first_batch(
            self.path, inputs, most, batch=self.batch, limit=self.limit, preprocess=self.preprocess
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


@contextmanager
def _silent(stage: str) -> Iterator[Tell]:
    yield lambda *done: None


@checked
def quantize_model(
    graph: Graph,
    output: str | Path,
    recipe: Recipe | None = None,
    *,
    data: SampleData | None = None,
    statistics: Statistics | None = None,
    dynamic: bool = False,
    weights: str | None = None,
    goal: Goal | None = None,
    check: SampleData | None = None,
    metrics: Sequence[str] = (),
    format: str | None = None,
    opset: int | None = None,
    sizes: Mapping[str, int] | None = None,
    name: str = "",
    threads: int | None = None,
    progress: Progress = _silent,
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    lossy: bool = False,
    force: bool = False,
) -> QuantizedModel:
    """Calibrates on the data unless statistics are given, quantizes as `qir.quantize` does, writes
    the model, and measures it.

    A `goal` is searched for on the data, and the recipe that reaches it is written as well. With
    `check` both models are run on those samples. An interrupted run leaves statistics and trials
    next to the output; the same call continues from them. `name` is what errors call the model.

    Raises UsageError where nothing of the model can become integer.
    """
    work = _Work(
        graph,
        Path(output),
        recipe or Recipe(),
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
            format = format or usual_format(backend, "dynamic" if dynamic else "weights")
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
        quantized, why = named_target(target).carried(quantized, work.ledger, format=format)
        plan = with_float_reasons(plan, why)
    pipeline.save(
        quantized,
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
        work.found.recipe.save(work.files.recipe, work.found.facts())
    if dynamic and format != "integer":
        plan = pipeline.plan_of_written_file(plan, work.output, target=target)
    elif statistics is not None and format == "qoperator":
        plan = pipeline.plan_of_written_file(plan, work.output, target=target, data=True)
    noise = work.noise(quantized)
    measured = None
    if check is not None and statistics is not None:
        measured = work.check(quantized, statistics, check, metrics)
    work.clear()
    return QuantizedModel(quantized, work.graph, plan, work.found, noise, measured)


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
                raise UsageError(f"{self.name}: give samples, or statistics of calibrating")
            again = reopen(self.graph, self.recipe, self.ledger)
            self.graph, statistics = again.graph, again.statistics
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
        if data is None or data.feeds:
            raise UsageError("a goal is measured on samples: give data, and no feeds")
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
        self.recipe = replace(self.recipe, rules=self.found.recipe.rules)

    def quantized(self, statistics: Statistics, journal: Journal | None) -> Graph:
        """Quantizes by the recipe."""
        recipe, samples = self.recipe, None
        needy = any(name in ON_SAMPLES for name in known_corrections(recipe.corrections))
        if needy and self.data is not None:
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


def _left(part: Path) -> Statistics | None:
    """Returns the statistics that an interrupted run left, if they can be read."""
    try:
        return Statistics.load(part) if part.exists() else None
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
    why = _reason(plan)
    raise UsageError(f"{name}: nothing in it can become integer for {plan.target}: {why}")


def _reason(plan: Plan) -> str:
    """Returns why nothing of a model becomes integer: what keeps products, else the commonest
    reason."""
    floats = [d.reason for d in plan.decisions if d.becomes == "float"]
    ranked = Counter(said for said in floats if said not in (NOT_A_PRODUCT, NOT_A_MATRIX_PRODUCT))
    ranked = ranked or Counter(floats)
    return ranked.most_common(1)[0][0] if ranked else "it has no ops"
