"""Searches for the fewest ops to keep in float so that a quantized model keeps its accuracy.

1. Each op alone is quantized on a few samples; the noise that this makes at the outputs ranks ops.
2. The noisiest ops are kept in float, as many as the goal needs, on all samples.
3. Each of them is tried in integers again, the least noisy first.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.arguments import checked
from qir.atomic import write_text
from qir.calibration import Preprocess, Source, Statistics, open_data
from qir.calibration.data import Data, first_batch, fixed_batch
from qir.calibration.runner import GraphProgram, input_specs
from qir.errors import DataError, UsageError
from qir.evaluating import labels_of
from qir.inspect.metrics import Sqnr
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.ops import spec
from qir.ledger import Ledger
from qir.passes.quantize.round_weights import FEW
from qir.quantizing import Prepared, prepare
from qir.recipe import Recipe
from qir.reference.cached_run import CachedRun
from qir.reference.interpreter import run as run_reference
from qir.target import target as named_target

Tensor = NDArray[np.generic]
SAMPLES = 8
"""So many samples rank the ops, unless their values do not fit."""
KEPT = 1 << 29
"""Bytes that the kept values of the float graph may take."""
ENGINE = "cpu"
"""The target that runs trials."""
Progress = Callable[[int, int | None, str], None]
"""Is called with steps done, all of them where that is known, and what is done."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What a quantized model must keep: one of the two."""

    drop: float | None = None
    """It may lose so many points of the top-1 of the float model, of labelled samples."""
    sqnr: float | None = None
    """Each output must keep so many decibels of signal-to-noise ratio."""

    def __post_init__(self) -> None:
        given = [n for n in (self.drop, self.sqnr) if n is not None]
        if len(given) != 1:
            raise UsageError("give one goal: a drop of top-1 in points, or an SQNR in decibels")
        if not math.isfinite(given[0]) or (self.drop is not None and not 0 <= self.drop <= 100):
            raise UsageError(f"goal {given[0]:g}: give a drop of 0 to 100 points, or decibels")

    @property
    def metric(self) -> str:
        """Returns the name of what is measured."""
        return "sqnr" if self.drop is None else "top1"

    def least(self, exact: float) -> float:
        """Returns what must be reached where the float model has `exact`."""
        return exact - self.drop if self.drop is not None else float(self.sqnr or 0)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

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
    candidates: int
    """How many ops were quantized before."""
    metric: str

    def facts(self) -> dict[str, str | float | int]:
        """Returns what a recipe's file says of it."""
        facts: dict[str, str | float | int] = {"metric": self.metric, "value": round(self.value, 4)}
        if math.isfinite(self.exact):
            facts["float_value"] = round(self.exact, 4)
        return facts | {"kept_in_float": len(self.kept), "of_ops": self.candidates}


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
) -> Found:
    """Finds a recipe that keeps the fewest ops in float and reaches a goal on the data.

    Give `drop` with labels, one a sample, or `sqnr`. `recipe` holds the settings and rules to start
    from. With a `cache` file a search that was interrupted goes on where it was. Where the goal is
    out of reach, the best recipe that was tried is returned, with `reached` False.

    Raises UsageError for a goal without what it needs, DataError for labels of another length.
    """
    goal = Goal(drop, sqnr)
    if (goal.drop is None) != (labels is None):
        raise UsageError("labels go with a drop of top-1; an SQNR needs none")
    source = open_data(data, input_specs(graph), batch=batch, limit=limit, preprocess=preprocess)
    recipe = recipe or Recipe()
    seen = None if labels is None else labels_of(labels, data, source.samples, limit)
    key = _key(graph, statistics, source.digest(), seen, recipe)
    few = first_batch(
        data, input_specs(graph), FEW, batch=batch, limit=limit, preprocess=preprocess
    )
    prepared = prepare(graph, statistics, recipe, Ledger(), samples=few)
    trials = _Trials(prepared, source, goal, seen, _Cache(cache, key))
    return _Search(trials, progress or (lambda done, total, now: None)).run()


def _key(
    graph: Graph, statistics: Statistics, data: str, labels: Tensor | None, recipe: Recipe
) -> str:
    """A hash of all that trials depend on, but for the goal."""
    told = "none" if labels is None else hashlib.blake2b(labels.tobytes()).hexdigest()
    parts = (GraphProgram(graph).digest, statistics.digest, data, told, repr(recipe.key()))
    return hashlib.blake2b("\n".join(parts).encode(), digest_size=16).hexdigest()


class _Cache:
    """What was measured, in a file that is written after each measurement."""

    def __init__(self, path: Path | None, key: str) -> None:
        self._path, self._key = path, key
        self.numbers: dict[str, float] = {}
        if path is not None and path.exists():
            self.numbers = _numbers(path, key)

    def get(self, name: str, measure: Callable[[], float]) -> float:
        if name not in self.numbers:
            self.numbers[name] = measure()
            if self._path is not None:
                write_text(self._path, json.dumps({"key": self._key, "numbers": self.numbers}))
        return self.numbers[name]


def _numbers(path: Path, key: str) -> dict[str, float]:
    """The numbers of a cache file; none where it is of other data, or damaged."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(held, dict) or held.get("key") != key:
        return {}
    numbers = held.get("numbers")
    if not isinstance(numbers, dict) or not all(isinstance(n, float) for n in numbers.values()):
        return {}
    return numbers


class _Trials:
    """Measures quantized graphs that keep some ops in float."""

    def __init__(
        self,
        prepared: Prepared,
        source: Source,
        goal: Goal,
        labels: Tensor | None,
        cache: _Cache,
    ) -> None:
        self.prepared, self.goal, self._source, self._cache = prepared, goal, source, cache
        self._labels = labels
        self._engine = named_target(ENGINE)
        self.rules = prepared.recipe.rules
        self.candidates = _candidates(prepared, self.rules)
        self._exact: list[dict[str, Tensor]] = []
        self._few: CachedRun | None = None
        self._wanted: Mapping[str, Tensor] = {}
        self.tell: Callable[[int, int | None], None] = lambda done, batches: None
        """Is called with batches done, and all of them where that is known."""

    def graph(self, kept: Sequence[str]) -> Graph:
        """The graph that keeps these ops in float, beside those of the user's rules."""
        return self.prepared.quantized(self.with_floats(kept), Ledger())

    def with_floats(self, kept: Sequence[str]) -> tuple[str, ...]:
        """The user's rules, and those that keep these ops in float, in the graph's order."""
        return (*self.rules, *(f"name={name}: float" for name in self.candidates if name in kept))

    def exact(self) -> float:
        """The metric of the float model."""
        if self.goal.drop is None:
            return math.inf
        return self._cache.get("float", lambda: self._hits(self._float_outputs()))

    def value(self, kept: Sequence[str]) -> float:
        """The metric of the model that keeps these ops in float."""
        name = f"{self.goal.metric} " + json.dumps(sorted(kept))
        return self._cache.get(name, lambda: self._measured(self.graph(kept)))

    def noise(self, name: str) -> float:
        """The noise at the outputs where this op alone is quantized, as a share of the signal."""
        return self._cache.get(f"noise {name}", lambda: self._alone(name))

    def _alone(self, name: str) -> float:
        few = self._few or self._keep()
        given = few.run(self.graph([other for other in self.candidates if other != name]))
        shares = [_share(self._wanted[n], given[n]) for n in self._wanted if n in given]
        return float(np.mean(shares)) if shares else 0.0

    def _keep(self) -> CachedRun:
        """Runs the float graph on as many samples as may be kept."""
        graph = self.graph(list(self.candidates))
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
        given: Iterator[dict[str, Tensor]] = (
            {name: np.asarray(data) for name, data in runner(**inputs).items()}
            for inputs in self._batches()
        )
        if self.goal.drop is not None:
            return self._hits(given)
        self._exact = self._exact or [_floats(found) for found in self._float_outputs()]
        return _worst_sqnr(self._exact, list(given))

    def _float_outputs(self) -> Iterator[dict[str, Tensor]]:
        graph = self.prepared.graph
        return (run_reference(graph, inputs) for inputs in self._batches())

    def _batches(self) -> Iterator[Mapping[str, Tensor]]:
        """The batches of the data; each is reported when the next one is asked for."""
        for done, inputs in enumerate(self._source):
            self.tell(done, self._source.batches)
            yield inputs

    def _hits(self, outputs: Iterator[dict[str, Tensor]]) -> float:
        """Percent of the samples whose largest number of the first output is at their label."""
        assert self._labels is not None
        found = np.concatenate([_classes(next(iter(each.values()))) for each in outputs])
        if len(found) != len(self._labels):
            raise DataError(f"{len(self._labels)} labels for {len(found)} samples: give one each")
        return 100 * float(np.mean(found == self._labels))


def _classes(scores: Tensor) -> NDArray[np.int64]:
    """The index of the largest score of each sample."""
    return np.asarray(scores.reshape(len(scores), -1).astype(np.float64).argmax(axis=1))


def _floats(outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The outputs that hold float values; UsageError where there are none."""
    found = {n: a for n, a in outputs.items() if a.dtype.kind == "f" or a.dtype.name == "bfloat16"}
    if not found:
        raise UsageError("no output of the model is float, so it has no SQNR")
    return found


def _share(wanted: Tensor, given: Tensor) -> float:
    """The power of the noise in the power of the signal."""
    exact, found = wanted.astype(np.float64), given.astype(np.float64)
    noise = float(np.square(found - exact).sum()) if exact.shape == found.shape else math.inf
    share = noise / max(float(np.square(exact).sum()), np.finfo(np.float64).tiny)
    return math.inf if math.isnan(share) else share


def _worst_sqnr(
    wanted: Sequence[Mapping[str, Tensor]], given: Sequence[Mapping[str, Tensor]]
) -> float:
    """The SQNR of the worst output over all batches."""
    found = []
    for name in wanted[0]:
        sides = [
            np.concatenate([np.ravel(each[name]) for each in side]) for side in (wanted, given)
        ]
        sqnr = Sqnr()(*sides)
        found.append(-math.inf if math.isnan(sqnr) else sqnr)
    return min(found)


def _candidates(prepared: Prepared, rules: Sequence[str]) -> dict[str, Node]:
    """The planned ops that compute, by the pattern that a rule names each of them by."""
    plan = prepared.plan(rules)
    nodes = {node.name: node for node in prepared.graph}
    chosen = [nodes[d.node] for d in plan.decisions if d.becomes == "integer" and not d.group]
    chosen = [node for node in chosen if not spec(node.op).traits.value_preserving]
    shared = Counter(o.name for node in prepared.graph for o in node.origins if o.name)
    found: dict[str, Node] = {}
    for node in chosen:
        own = (o.name for o in node.origins if o.name and shared[o.name] == 1)
        found[_pattern(next(own, node.name))] = node
    return found


def _pattern(name: str) -> str:
    """A pattern of a rule that matches a name; what has a meaning there matches as any letter."""
    return "".join("?" if c.isspace() or c in "*[]" else c for c in name)


class _Search:
    def __init__(self, trials: _Trials, progress: Progress) -> None:
        self.trials, self._progress = trials, progress
        self._best: tuple[float, int, tuple[str, ...]] = (-math.inf, 0, ())
        self.wanted = math.inf

    def run(self) -> Found:
        self._begin("float model")
        exact = self.trials.exact()
        self.wanted = self.trials.goal.least(exact)
        if self._reaches(()):
            return self._found((), exact, reached=True)
        count = len(self.trials.candidates)
        noise: dict[str, float] = {}
        for done, name in enumerate(self.trials.candidates):
            self._progress(done, count, f"noise of {name}")
            noise[name] = self.trials.noise(name)
        ranked = sorted(noise, key=lambda name: -noise[name])
        most = self._most(ranked)
        if most is None:
            return self._found(self._best[2], exact, reached=False)
        return self._found(self._fewest(ranked[:most]), exact, reached=True)

    def _most(self, ranked: Sequence[str]) -> int | None:
        """How many of the noisiest ops must stay float; None where all but one do not suffice."""
        fails, size, last = 0, 1, len(ranked) - 1
        while True:
            size = min(size, last)
            if size <= fails:
                return None
            if self._reaches(ranked[:size]):
                break
            fails, size = size, size * 2
        while size - fails > 1:
            middle = (size + fails) // 2
            if self._reaches(ranked[:middle]):
                size = middle
            else:
                fails = middle
        return size

    def _fewest(self, kept: Sequence[str]) -> tuple[str, ...]:
        """Leaves out what is not needed, the least noisy first; the last one was tried before."""
        left = list(kept)
        trials = kept[:-1]
        for done, name in enumerate(reversed(trials)):
            fewer = [other for other in left if other != name]
            if self._reaches(fewer, done, len(trials)):
                left = fewer
        return tuple(left)

    def _reaches(self, kept: Sequence[str], done: int = 0, of: int = 1) -> bool:
        """Tells whether the goal is reached, by trial `done` of so many."""
        self._begin(f"{len(kept)} ops in float", done, of)
        value = self.trials.value(kept)
        self._best = max(self._best, (value, -len(kept), tuple(kept)), key=lambda b: b[:2])
        return value >= self.wanted - 1e-9

    def _begin(self, now: str, trial: int = 0, of: int = 1) -> None:
        """Reports the batches of a trial, as part of all of its trials."""

        def tell(done: int, batches: int | None) -> None:
            before = trial * (batches or 0)
            self._progress(before + done, batches and of * batches, now)

        self.trials.tell = tell

    def _found(self, kept: Sequence[str], exact: float, *, reached: bool) -> Found:
        trials = self.trials
        return Found(
            replace(trials.prepared.recipe, rules=trials.with_floats(kept)),
            reached,
            trials.value(kept),
            exact,
            self.wanted,
            tuple(name for name in trials.candidates if name in kept),
            len(trials.candidates),
            trials.goal.metric,
        )


__all__ = ["Found", "Goal", "search_recipe"]
