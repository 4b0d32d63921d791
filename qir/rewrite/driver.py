"""The pass runner: works on a copy, holds passes to their word, and says what changed."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from qir.errors import MovedError, PassError
from qir.ir.graph import Graph
from qir.ir.growth import growth
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.rewrite.contract import Pass
from qir.rewrite.journal import Entry, Journal, written_by
from qir.rewrite.numbering import WHOLE, Numbering, Step, watched
from qir.rewrite.options import options_text
from qir.rewrite.properties import broken
from qir.rewrite.trouble import around, failed, noted
from qir.rewrite.validation import Moved, Picture, Validation

EDITS = 200_000
"""So many edits a pass may make, and a thousand more for each node: more are no end."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one pass did."""

    name: str
    changed: int
    seconds: float
    options: str = ""
    """The pass with the options that are not its defaults, as `qir opt` reads it."""
    steps: tuple[Step, ...] = ()
    """Its rewrites, with the origins of what they were about."""
    nodes: tuple[int, int] = (0, 0)
    """How many the graph had before and has after, bodies not counted."""

    @property
    def rewrites(self) -> Mapping[str, int]:
        """How often it did each of its rewrites."""
        return Counter(step.rewrite for step in self.steps)


After = Callable[[Report, Graph], None]
"""Is told what a pass did, and of the graph as it left it."""


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    ledger: Ledger,
    *,
    after: After | None = None,
    journal: Journal | None = None,
    validation: Validation | None = None,
    limit: int | None = None,
) -> Graph:
    """Runs passes on a copy and gives the copy; the caller's graph stays as it was.

    `after` is told of every pass, `journal` keeps what was run. With `validation` the graph is run
    before and after each pass. Only `limit` rewrites are done, all if it is not given. Raises
    PassError, naming pass, rewrite and node, where a pass breaks its contract or fails,
    and MovedError where it moves a tensor further than it declares; ledger and journal are then
    as they were.
    """
    passes = tuple(passes)
    run = _Run(graph.copy(), validation, limit)
    if passes and not _SOUND.holds(graph) and (faults := errors(run.work)):
        raise PassError(f"no pass runs on a graph that is broken: {faults[0]}")
    for one in passes:
        report = run.once(one)
        if report is not None and after:
            after(report, run.work)
    if passes:
        _SOUND.note(run.work)
    ledger.extend(run.ledger)
    if journal is not None:
        journal.extend(run.journal)
    return run.work


class _Sound:
    """The graph that was verified last: what one run leaves is not looked at again by the next."""

    def __init__(self) -> None:
        self._graph: Callable[[], Graph | None] = lambda: None
        self._version = -1

    def note(self, graph: Graph) -> None:
        """The graph is a program, as it is now."""
        self._graph, self._version = weakref.ref(graph), graph.version

    def holds(self, graph: Graph) -> bool:
        """Whether it is known to be one."""
        return self._graph() is graph and self._version == graph.version


_SOUND = _Sound()


@dataclass
class _Run:
    """Passes over one graph."""

    work: Graph
    validation: Validation | None
    limit: int | None = None
    ledger: Ledger = field(default_factory=Ledger)
    journal: list[Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.numbering = Numbering(self.work, self.limit)

    def once(self, one: Pass) -> Report | None:
        """Runs one pass; None where no rewrite is left for it."""
        if self.numbering.full:
            return None
        self._require(one)
        before = self.work.copy() if self.validation else self.work
        picture = self.validation.picture(self.work) if self.validation else None
        size, started = len(self.work), time.perf_counter()
        changed, steps = self._change(one, before)
        seconds = time.perf_counter() - started
        if changed and self.validation and picture is not None:
            moved = self.validation.moved(picture, self.work, one.tolerance)
            if moved is not None:
                raise self._blame(one, before, picture, moved)
        text = options_text(one)
        counts = dict(sorted(Counter(s.rewrite for s in steps).items()))
        self.journal.append(Entry(one.name, text, written_by(one), changed, counts))
        return Report(one.name, changed, seconds, text, steps, (size, len(self.work)))

    def _require(self, one: Pass) -> None:
        lack = broken(self.work, one.requires, f"pass {one.name}")
        if lack is not None:
            name, (node, why) = lack
            where = f"{node.name}: " if node else ""
            error = PassError(f"pass {one.name} requires {name}: {where}{why}")
            raise noted(error, self.work, self.work, node.name if node else "")

    def _change(self, one: Pass, before: Graph) -> tuple[int, tuple[Step, ...]]:
        """Runs a pass and looks whether it kept its word."""
        work, numbering = self.work, self.numbering
        version = work.version
        numbering.begin()
        work._most = version + EDITS + 1000 * len(work)
        try:
            with watched(numbering), growth():
                changed = self._run(one)
        except Exception as error:
            meant = failed(one.name, error, numbering, before)
            if meant is error:
                raise
            raise meant from error
        finally:
            work._most = float("inf")
        if not isinstance(changed, int):
            kind = type(changed).__name__
            raise PassError(f"pass {one.name} gives {kind}; run() is to give how much it changed")
        steps = numbering.end(one.name, changed)
        if (changed == 0) != (work.version == version):
            said = "no change" if changed == 0 else f"{changed} changes"
            raise PassError(f"pass {one.name} reports {said}, the graph says otherwise")
        if changed:
            self._check(one, steps, before)
        return changed, steps

    def _run(self, one: Pass) -> int:
        if not one.nested:
            return one.run(self.work, self.ledger)
        changed = 0
        for path, graph in list(self.work.walk()):
            inside = path.partition("/")[2]
            self.numbering.path = f"{inside}/" if inside else ""
            part = one.run(graph, self.ledger)
            if not isinstance(part, int):
                return part
            changed += part
        return changed

    def _check(self, one: Pass, steps: tuple[Step, ...], before: Graph) -> None:
        """PassError where the graph is no program now, or has not what the pass ensures."""
        with growth():
            faults = errors(self.work)
        if faults:
            last = f", last {steps[-1]}" if steps else ""
            error = PassError(f"pass {one.name} leaves a broken graph: {faults[0]}{last}")
            raise noted(error, self.work, before, faults[0].node)
        ensured = () if self.numbering.stopped else one.ensures
        lack = broken(self.work, ensured, f"pass {one.name}")
        if lack is not None:
            name, (node, why) = lack
            where = f"{node.name}: " if node else ""
            error = PassError(f"pass {one.name} does not ensure {name}: {where}{why}")
            raise noted(error, self.work, before, node.name if node else "")

    def _blame(self, one: Pass, before: Graph, picture: Picture, moved: Moved) -> MovedError:
        """The error that names the first tensor that moved, and the rewrite that moved it."""
        validation, total = self.validation, len(self.numbering.done)
        assert validation is not None
        found = {total: (moved, self.numbering.done[-1])}

        def moves(count: int) -> bool:
            again = _Run(before.copy(), None, count)
            held = picture.of(again.work)
            try:
                again.once(one)
            except PassError as error:  # cut short, it may leave no program
                where: Moved | None = Moved(moved.tensor, f"more than can be told: {error}")
            else:
                where = validation.moved(held, again.work, one.tolerance)
            if where is not None:
                found[count] = where, again.numbering.done[-1]
            return where is not None

        first = search(0, total, moves)
        moved, step = found[first]
        by = "" if step.rewrite == WHOLE else f"; by {step}, number {first} of {total}"
        error = MovedError(f"pass {one.name}: {moved}{by}; it declares {one.tolerance}")
        error.add_note(around(self.work, moved.tensor) or around(before, moved.tensor))
        return error


def search(good: int, bad: int, fails: Callable[[int], bool]) -> int:
    """The first number that fails, after one that does not and up to one that does, by halves."""
    while bad - good > 1:
        middle = (good + bad) // 2
        if fails(middle):
            bad = middle
        else:
            good = middle
    return bad
