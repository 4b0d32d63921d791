"""Searches for the fewest ops to keep in float so that a quantized model keeps its accuracy.

1. Each op alone is quantized on a few samples; the noise that this makes at the outputs ranks ops.
2. The noisiest ops get activations of 16 bits, as many as the goal needs, on all samples; where the
   target has none, or they do not suffice, the ops are kept in float.
3. Each of them is tried in 8 bits again, and then in 16, the least noisy first.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.analysis.wide_activations import wide_rules
from qir.arguments import checked
from qir.calibration import DataSource, Preprocess, Statistics, open_data
from qir.calibration.data import Data, first_batch, fixed_batch
from qir.calibration.runner import GraphProgram, input_specs
from qir.errors import DataError, SchemeError, UsageError
from qir.evaluating import labels_of
from qir.inspect.evaluation import against_labels, can_compare, require_some
from qir.inspect.metrics import Sqnr, Top1
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ledger import Ledger
from qir.passes.quantize.round_weights import MAX_SAMPLES
from qir.quantizing import Prepared, prepare
from qir.recipe import Recipe
from qir.reference.cached_run import CachedRun
from qir.reference.interpreter import run as run_reference
from qir.target import target as named_target
from qir.trial_cache import TrialCache

Tensor = NDArray[np.generic]
SAMPLES = 8
"""So many samples rank the ops, unless their values do not fit."""
KEPT = 1 << 29
"""Bytes that the kept values of the float graph may take."""
ENGINE = "cpu"
"""The target that runs trials."""
Level: TypeAlias = Literal["float", "wide"]
"""An op stays float, or has activations of 16 bits."""
Choice: TypeAlias = Mapping[str, Level]
"""What becomes of the ops that are not in 8 bits, the noisiest first."""
Progress = Callable[[int, int | None, str], None]
"""Is called with steps done, all of them where that is known, and what is done."""


@dataclass(frozen=True, slots=True)
class Goal:
    """The accuracy that a quantized model must keep: one of the two."""

    drop: float | None = None
    """It may lose so many points of the top-1 of the float model, of labelled samples."""
    sqnr: float | None = None
    """Each output must keep so many decibels of signal-to-noise ratio."""

    def __post_init__(self) -> None:
        set_goals = [n for n in (self.drop, self.sqnr) if n is not None]
        if len(set_goals) != 1:
            raise UsageError("give one goal: a drop of top-1 in points, or an SQNR in decibels")
        if not math.isfinite(set_goals[0]) or (self.drop is not None and not 0 <= self.drop <= 100):
            raise UsageError(f"goal {set_goals[0]:g}: give a drop of 0 to 100 points, or decibels")

    @property
    def metric(self) -> str:
        """Returns the name of what is measured."""
        return "sqnr" if self.drop is None else "top1"

    def least(self, exact: float) -> float:
        """Returns what must be reached where the float model has `exact`."""
        return exact - self.drop if self.drop is not None else float(self.sqnr or 0)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The recipe that a search found, and the accuracy that it keeps."""

    recipe: Recipe
    """With the user's rules and those that keep ops in float."""
    reached: bool
    value: float
    """The metric of the model that the recipe makes."""
    exact: float
    """The metric of the float model; infinite decibels."""
    wanted: float
    kept: tuple[str, ...]
    """The ops that stay in float, in the graph's order."""
    wide: tuple[str, ...]
    """The ops with activations of 16 bits, in the graph's order."""
    candidates: int
    """How many ops were quantized before."""
    metric: str

    def facts(self) -> dict[str, str | float | int]:
        """Returns what a recipe's file says of it."""
        facts: dict[str, str | float | int] = {"metric": self.metric, "value": round(self.value, 4)}
        if math.isfinite(self.exact):
            facts["float_value"] = round(self.exact, 4)
        facts["kept_in_float"] = len(self.kept)
        if self.wide:
            facts["in_16_bits"] = len(self.wide)
        return facts | {"of_ops": self.candidates}


@checked
def search_recipe(
    graph: Graph,
    statistics: Statistics,
    data: Data,
    *,
    drop: float | None = None,
    sqnr: float | None = None,
    labels: str | Path | Tensor | None = None,
    recipe: Recipe | None = None,
    limit: int | None = None,
    batch: int | None = None,
    preprocess: Preprocess | str | Path | None = None,
    cache: Path | None = None,
    progress: Progress | None = None,
) -> SearchResult:
    """Finds a recipe that keeps the fewest ops in float and reaches a goal on the data.

    Give `drop` with labels, one a sample, or `sqnr`. `recipe` holds the settings and rules to start
    from. With a `cache` file a search that was interrupted continues where it was. Where the goal
    is out of reach, the result is the best recipe that was tried; its `SearchResult.reached` is
    False.

    Raises UsageError for a goal without what it needs, DataError for labels of another length.
    """
    goal = Goal(drop, sqnr)
    if (goal.drop is None) != (labels is None):
        raise UsageError("labels go with a drop of top-1; an SQNR needs none")
    source = open_data(data, input_specs(graph), batch=batch, limit=limit, preprocess=preprocess)
    recipe = recipe or Recipe()
    used_labels = None if labels is None else labels_of(labels, data, source.samples, limit)
    key = _key(graph, statistics, source.digest(), used_labels, recipe)
    few = first_batch(
        data, input_specs(graph), MAX_SAMPLES, batch=batch, limit=limit, preprocess=preprocess
    )
    prepared = prepare(graph, statistics, recipe, Ledger(), samples=few)
    trials = _Trials(prepared, source, goal, used_labels, TrialCache(cache, key))
    return _Search(trials, progress or (lambda done, total, now: None)).run()


def _key(
    graph: Graph, statistics: Statistics, data: str, labels: Tensor | None, recipe: Recipe
) -> str:
    """Returns a hash of all that trials depend on, but for the goal."""
    labels_digest = "none" if labels is None else hashlib.blake2b(labels.tobytes()).hexdigest()
    parts = (GraphProgram(graph).digest, statistics.digest, data, labels_digest, repr(recipe.key()))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


class _Trials:
    """Measures quantized graphs that keep some ops in float."""

    def __init__(
        self,
        prepared: Prepared,
        source: DataSource,
        goal: Goal,
        labels: Tensor | None,
        cache: TrialCache,
    ) -> None:
        self.prepared, self.goal, self._source, self._cache = prepared, goal, source, cache
        self._labels = labels
        self._engine = named_target(ENGINE)
        self.rules = prepared.recipe.rules
        self.candidates = _candidates(prepared, self.rules)
        self.wide = _wide(prepared, self.rules, self.candidates)
        self._exact: list[dict[str, Tensor]] = []
        self._few: CachedRun | None = None
        self._wanted: Mapping[str, Tensor] = {}
        self.tell: Callable[[int, int | None], None] = lambda done, batches: None
        """Is called with batches done, and all of them where that is known."""

    def graph(self, choice: Choice) -> Graph:
        """Returns the graph of a choice, next to the user's rules."""
        return self.prepared.quantized(self.with_rules(choice), Ledger())

    def with_rules(self, choice: Choice) -> tuple[str, ...]:
        """Returns the user's rules, and those of a choice, in the graph's order."""
        rules = list(self.rules)
        for name in self.candidates:
            if level := choice.get(name):
                rules += self.wide[name] if level == "wide" else (f"name={name}: float",)
        return tuple(rules)

    def exact(self) -> float:
        """Returns the metric of the float model."""
        if self.goal.drop is None:
            return math.inf
        return self._cache.get("float", lambda: self._hits(self._float_outputs()))

    def value(self, choice: Choice) -> float:
        """Returns the metric of the model of a choice; the worst where its rules cannot hold
        together."""

        def measure() -> float:
            try:
                graph = self.graph(choice)
            except SchemeError:
                return -math.inf
            return self._measured(graph)

        name = f"{self.goal.metric} " + json.dumps(sorted(choice.items()))
        return self._cache.get(name, measure)

    def noise(self, name: str) -> float:
        """Returns the noise at the outputs where this op alone is quantized, as a share of the
        signal."""
        return self._cache.get(f"noise {name}", lambda: self._noise_alone(name))

    def _noise_alone(self, name: str) -> float:
        few = self._few or self._cached_run()
        outputs = few.run(self.graph({n: "float" for n in self.candidates if n != name}))
        shares = [_noise_share(self._wanted[n], outputs[n]) for n in self._wanted if n in outputs]
        return float(np.mean(shares)) if shares else 0.0

    def _cached_run(self) -> CachedRun:
        """Runs the float graph on as many samples as may be kept."""
        graph = self.graph(dict.fromkeys(self.candidates, "float"))
        first = next(iter(self._source))
        count = max((len(a) for a in first.values() if np.ndim(a)), default=1)
        sizes = [count] if fixed_batch(self._source.inputs) else [1, min(SAMPLES, count)]
        for size in sizes:
            if self._few is not None:
                size = max(1, min(size, KEPT // max(1, self._few.kept_bytes)))
            inputs = {n: a[:size] if np.ndim(a) else a for n, a in first.items()}
            self._few = CachedRun(inputs)
            self._wanted = _floats(self._few.keep(graph))
        assert self._few is not None
        return self._few

    def _measured(self, graph: Graph) -> float:
        runner = self._engine.compile(graph)
        outputs: Iterator[dict[str, Tensor]] = (
            {name: np.asarray(data) for name, data in runner(**inputs).items()}
            for inputs in self._batches()
        )
        if self.goal.drop is not None:
            return self._hits(outputs)
        self._exact = self._exact or [_floats(found) for found in self._float_outputs()]
        return _worst_sqnr(self._exact, list(outputs))

    def _float_outputs(self) -> Iterator[dict[str, Tensor]]:
        graph = self.prepared.graph
        return (run_reference(graph, inputs) for inputs in self._batches())

    def _batches(self) -> Iterator[Mapping[str, Tensor]]:
        """Yields the batches of the data; each is reported when the next one is asked for."""
        for done, inputs in enumerate(self._source):
            self.tell(done, self._source.batches)
            yield inputs

    def _hits(self, outputs: Iterator[dict[str, Tensor]]) -> float:
        """Percent of the labelled samples that the first output with classes is right about."""
        assert self._labels is not None
        require_some(self._labels)
        judge, right, done = Top1(), [], 0
        for batch in outputs:
            count = len(next(iter(batch.values())))
            labels = self._labels[done : done + count]
            output = next(
                (n for n, made in batch.items() if can_compare([judge], labels, made)), None
            )
            if output is None:
                against_labels([judge], labels, batch)  # which says why
            else:
                right.append(judge.right(*judge.fitted(labels, batch[output])))
            done += count
        if done != len(self._labels):
            raise DataError(f"{len(self._labels)} labels for {done} samples: give one each")
        return 100 * float(np.mean(np.concatenate(right)))


def _floats(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the outputs that hold float values; raises UsageError where there are none."""
    floats = {n: a for n, a in outputs.items() if a.dtype.kind == "f" or a.dtype.name == "bfloat16"}
    if not floats:
        raise UsageError("no output of the model is float, so it has no SQNR")
    return floats


def _noise_share(expected: Tensor, computed: Tensor) -> float:
    """Returns the power of the noise in the power of the signal."""
    exact, actual = expected.astype(np.float64), computed.astype(np.float64)
    noise = float(np.square(actual - exact).sum()) if exact.shape == actual.shape else math.inf
    share = noise / max(float(np.square(exact).sum()), np.finfo(np.float64).tiny)
    return math.inf if math.isnan(share) else share


def _worst_sqnr(
    expected: Sequence[Mapping[str, Tensor]], computed: Sequence[Mapping[str, Tensor]]
) -> float:
    """Returns the SQNR of the worst output over all batches."""
    ratios = []
    for name in expected[0]:
        sides = [
            np.concatenate([np.ravel(each[name]) for each in side]) for side in (expected, computed)
        ]
        sqnr = Sqnr()(*sides)
        ratios.append(-math.inf if math.isnan(sqnr) else sqnr)
    return min(ratios)


def _candidates(prepared: Prepared, rules: Sequence[str]) -> dict[str, Node]:
    """Returns the planned ops that compute, by the pattern that a rule names each of them by."""
    plan = prepared.plan(rules)
    nodes = {node.name: node for node in prepared.graph}
    chosen = [nodes[d.node] for d in plan.decisions if d.becomes == "integer" and not d.group]
    chosen = [node for node in chosen if not spec(node.op).traits.value_preserving]
    shared = Counter(o.name for node in prepared.graph for o in node.origins if o.name)
    by_name: dict[str, Node] = {}
    for node in chosen:
        own = (o.name for o in node.origins if o.name and shared[o.name] == 1)
        by_name[_pattern(next(own, node.name))] = node
    return by_name


def _wide(
    prepared: Prepared, rules: Sequence[str], candidates: Mapping[str, Node]
) -> dict[str, tuple[str, ...]]:
    """Returns the rules of ops that may have activations of 16 bits, where no op becomes float by
    them."""

    def integers(more: Sequence[str]) -> set[str]:
        return {d.node for d in prepared.plan((*rules, *more)).decisions if d.integer}

    before = integers(())
    rules_by_name = {}
    for name, node in candidates.items():
        node_rules = wide_rules(node, prepared.capability, name)
        with suppress(SchemeError):
            if node_rules and integers(node_rules) == before:
                rules_by_name[name] = node_rules
    return rules_by_name


def _pattern(name: str) -> str:
    """Returns a pattern of a rule that matches a name; what has a meaning there matches as any
    letter."""
    return "".join("?" if c.isspace() or c in "*[]" else c for c in name)


class _Search:
    def __init__(self, trials: _Trials, progress: Progress) -> None:
        self.trials, self._progress = trials, progress
        self._best: tuple[float, int, Choice] = (-math.inf, 0, {})
        self.wanted = math.inf

    def run(self) -> SearchResult:
        self._begin("float model")
        exact = self.trials.exact()
        self.wanted = self.trials.goal.least(exact)
        if self._reaches({}):
            return self._found({}, exact, reached=True)
        count = len(self.trials.candidates)
        noise: dict[str, float] = {}
        for done, name in enumerate(self.trials.candidates):
            self._progress(done, count, f"noise of {name}")
            noise[name] = self.trials.noise(name)
        ranked = sorted(noise, key=lambda name: -noise[name])
        # 16 bits first: they keep an op in integer arithmetic, where float does not.
        levels: tuple[Level, ...] = ("wide", "float") if self.trials.wide else ("float",)
        for level in levels:
            choice = self._largest_choice(ranked, level)
            if choice is not None:
                return self._found(self._smallest_choice(choice), exact, reached=True)
        return self._found(self._best[2], exact, reached=False)

    def _largest_choice(self, ranked: Sequence[str], level: Level) -> Choice | None:
        """Returns the noisiest ops at a level, as many as are needed; None where these do not
        suffice.

        One op at least stays quantized; those that have no 16 bits are float.
        """
        wide = self.trials.wide if level == "wide" else {}

        def noisiest(count: int) -> Choice:
            return {name: "wide" if name in wide else "float" for name in ranked[:count]}

        # Doubling finds a size that suffices, bisection the least such size: about 2 log2(n)
        # trials.
        fails, size = 0, 1
        last = len(ranked) - (0 if len(wide) == len(ranked) else 1)
        while True:
            size = min(size, last)
            if size <= fails:
                return None
            if self._reaches(noisiest(size)):
                break
            fails, size = size, size * 2
        while size - fails > 1:
            middle = (size + fails) // 2
            if self._reaches(noisiest(middle)):
                size = middle
            else:
                fails = middle
        return noisiest(size)

    def _smallest_choice(self, choice: Choice) -> Choice:
        """Gives ops fewer bits where these suffice, the least noisy first."""
        left = dict(choice)
        names = list(choice)[::-1]
        for done, name in enumerate(names):
            rest: Choice = {n: level for n, level in left.items() if n != name}
            # Without the first of them the others were tried before.
            if done and self._reaches(rest, done, len(names)):
                left.pop(name)
            elif left[name] == "float" and name in self.trials.wide:
                narrower: Choice = {**left, name: "wide"}
                if self._reaches(narrower, done, len(names)):
                    left[name] = "wide"
        return left

    def _reaches(self, choice: Choice, done: int = 0, of: int = 1) -> bool:
        """Tells whether the goal is reached, by trial `done` of so many."""
        counts = Counter(choice.values())
        wide = f"{counts['wide']} ops in 16 bits, " if counts["wide"] else ""
        self._begin(f"{wide}{counts['float']} ops in float", done, of)
        value = self.trials.value(choice)
        self._best = max(self._best, (value, -len(choice), choice), key=lambda b: b[:2])
        return value >= self.wanted - 1e-9

    def _begin(self, now: str, trial: int = 0, of: int = 1) -> None:
        """Reports the batches of a trial, as part of all of its trials."""

        def tell(done: int, batches: int | None) -> None:
            before = trial * (batches or 0)
            self._progress(before + done, batches and of * batches, now)

        self.trials.tell = tell

    def _found(self, choice: Choice, exact: float, *, reached: bool) -> SearchResult:
        trials = self.trials

        def at(level: Level) -> tuple[str, ...]:
            return tuple(name for name in trials.candidates if choice.get(name) == level)

        return SearchResult(
            replace(trials.prepared.recipe, rules=trials.with_rules(choice)),
            reached,
            trials.value(choice),
            exact,
            self.wanted,
            at("float"),
            at("wide"),
            len(trials.candidates),
            trials.goal.metric,
        )


__all__ = ["Goal", "SearchResult", "search_recipe"]
