"""The pass runner: works on a copy, checks contracts, and reports changes."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from qir.errors import MovedError, PassError, QirError, Stopped
from qir.ir.garbage import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.rewrite.runner.blame import Claims, difference, kept, located
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.failure import failed, noted, place
from qir.rewrite.runner.free_constants import fix_defaults, give_back
from qir.rewrite.runner.interface import GraphInterface
from qir.rewrite.runner.journal import Journal, JournalEntry, written_by
from qir.rewrite.runner.numbering import WHOLE, Numbering, RewriteStep, watched
from qir.rewrite.runner.options import options_text
from qir.rewrite.runner.properties import broken, named
from qir.rewrite.runner.timeout import TooLong, suppressed, within
from qir.rewrite.runner.unchanged import State
from qir.rewrite.runner.validation import Moved, Picture, Validation

EDITS = 200_000
"""So many edits a pass may make, and a thousand more for each node: more are no end."""


@dataclass(frozen=True, slots=True)
class Report:
    """What one run of a pass did."""

    name: str
    changed: int
    seconds: float
    options: str = ""
    """The pass with the options that are not its defaults, as `qir opt` reads it."""
    steps: tuple[RewriteStep, ...] = ()
    """Its rewrites, with the origins of what they were about."""
    nodes: tuple[int, int] = (0, 0)
    """How many the graph had before and has after, bodies not counted."""

    @property
    def rewrites(self) -> Mapping[str, int]:
        """How often it did each of its rewrites."""
        return Counter(step.rewrite for step in self.steps)


After = Callable[[Report, Graph], None]
"""A callback after each pass, with its report and the graph that it left."""


def run_passes(
    graph: Graph,
    passes: Iterable[Pass],
    ledger: Ledger,
    *,
    after: After | None = None,
    journal: Journal | None = None,
    validation: Validation | None = None,
    limit: int | None = None,
    seconds: float | None = None,
) -> Graph:
    """Runs passes on a copy of the graph and returns the copy.

    Passes treat defaults (constants that the caller may replace) as constants; those that one
    relied on stay constants, which the ledger says. `after` is called after every pass, `journal`
    records what was run. With `validation` the graph is run before and after each pass. `limit` is
    the number of rewrites, `seconds` a timeout for each pass.

    Raises PassError, naming pass, rewrite and node, where a pass breaks its contract or fails, and
    MovedError where it moves a tensor further than it declares; ledger and journal are
    then as they were.
    """
    passes = tuple(passes)
    run = _Run(graph, validation, limit, seconds)
    held = fix_defaults(run.work, run.ledger) if passes else {}
    if passes and not _SOUND.holds(graph) and (faults := errors(run.work)):
        raise PassError(f"no pass runs on a graph that is broken: {faults[0]}")
    for one in passes:
        with kept(graph):
            report = run.once(one)
        if report is not None and after:
            after(report, run.work)
    give_back(run.work, held, run.ledger)
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
        """Returns whether it is known to be one."""
        return self._graph() is graph and self._version == graph.version


_SOUND = _Sound()


@dataclass
class _Run:
    """Passes over a copy of a graph."""

    given: Graph
    validation: Validation | None
    limit: int | None = None
    seconds: float | None = None
    ledger: Ledger = field(default_factory=Ledger)
    journal: list[JournalEntry] = field(default_factory=list)
    ran: list[Pass] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = self.given.copy()
        self.numbering = Numbering(self.work, self.limit)
        self.state = -1, State(())

    def once(self, one: Pass) -> Report | None:
        """Runs one pass; None where no rewrite is left for it."""
        if self.numbering.full:
            return None
        self._require(one)
        before = self.work.copy() if self.validation else None
        picture = self.validation.picture(self.work) if self.validation else None
        size, started = len(self.work), time.perf_counter()
        changed, steps = self._change(one, before)
        seconds = time.perf_counter() - started
        if changed and self.validation and picture is not None and before is not None:
            moved = self.validation.moved(picture, self.work, one.tolerance)
            if moved is not None:
                raise self._blame(one, before, picture, moved)
        text = options_text(one)
        counts = dict(sorted(Counter(s.rewrite for s in steps).items()))
        self.journal.append(JournalEntry(one.name, text, written_by(one), changed, counts))
        self.ran.append(one)
        return Report(one.name, changed, seconds, text, steps, (size, len(self.work)))

    def _require(self, one: Pass) -> None:
        for name in one.ensures:
            named(name, f"pass {one.name}")
        lack = broken(self.work, one.requires, f"pass {one.name}")
        if lack is not None:
            name, (node, why) = lack
            where = f"{node.name}: " if node else ""
            error = PassError(f"pass {one.name} requires {name}: {where}{why}")
            raise noted(error, node.name if node else "", self.work)

    def _change(self, one: Pass, before: Graph | None) -> tuple[int, tuple[RewriteStep, ...]]:
        """Runs a pass and looks whether it kept its word."""
        work, numbering = self.work, self.numbering
        version, ends = work.version, GraphInterface.of(work)
        state = self._state()
        try:
            changed = self.apply(one)
        except KeyboardInterrupt as error:
            where = place(numbering, "")
            raise KeyboardInterrupt(f"interrupted in pass {one.name}: {where}") from error
        except Stopped:
            raise
        except BaseException as error:  # whatever a pass raises, SystemExit too
            raised = self._failed(one, before, error)
            if raised is error:
                raise
            raise raised from error
        if isinstance(changed, bool) or not isinstance(changed, int):
            said = f"gives {type(changed).__name__}; run() is to give how much it changed"
            raise self._broke(one, before, said)
        steps = numbering.end(one.name, changed)
        edits = work.version - version
        if said := _miscounted(changed, steps, edits):
            raise self._broke(one, before, said, compared=edits > 0)
        if changed:
            self._check(one, before, ends)
        elif state.other(work):
            said = "reports no change, the graph was edited, past its methods"
            raise self._broke(one, before, said)
        self._ensure(one, before)
        return changed, steps

    def _state(self) -> State:
        """Returns the state of the graph; made anew only after a pass that edited it."""
        version, state = self.state
        if version != self.work.version:
            state = State.of(self.work)
            self.state = self.work.version, state
        return state

    def _failed(self, one: Pass, before: Graph | None, error: BaseException) -> QirError:
        """Returns what to raise where a pass raised."""
        work, numbering = self.work, self.numbering
        if isinstance(error, TooLong):
            error.args = (f"it takes more than {self.seconds:g} s",)
        meant, node = failed(one.name, error, numbering)
        if meant is error:
            return meant
        beside = [value.node.name for value in numbering.beside]
        graphs = [work] if located(work, node) else [self._before(before) or work, work]
        return noted(meant, node, *graphs, beside=beside)

    def apply(self, one: Pass) -> int:
        """Runs a pass on the graph and its bodies, whatever becomes of them."""
        work, changed = self.work, 0
        self.numbering.begin()
        work._most = work.version + EDITS + 1000 * len(work)
        try:
            with watched(self.numbering), pause_garbage_collection(), within(self.seconds):
                for path, graph in list(work.walk()) if one.nested else [("", work)]:
                    inside = path.partition("/")[2]
                    self.numbering.path = f"{inside}/" if inside else ""
                    part = one.run(graph, self.ledger)
                    if isinstance(part, bool) or not isinstance(part, int):
                        return part
                    changed += part
        finally:
            work._most = float("inf")
        return changed

    def _check(self, one: Pass, before: Graph | None, ends: GraphInterface) -> None:
        """Raises PassError where the graph is no program now, or takes and gives something else."""
        with pause_garbage_collection():
            faults = errors(self.work)
        if faults:
            raise self._broke(one, before, f"leaves a broken graph: {faults[0]}", faults[0].node)
        if said := ends.renamed(self.work):
            raise self._broke(one, before, said)
        if one.tolerance.compared and (other := ends.retyped(self.work)) is not None:
            said, node = other
            raise self._broke(one, before, said, node)

    def _ensure(self, one: Pass, before: Graph | None) -> None:
        """Raises PassError where the graph has not what the pass ensures, changed or not."""
        ensured = () if self.numbering.stopped else one.ensures
        lack = broken(self.work, ensured, f"pass {one.name}")
        if lack is not None:
            name, (node, why) = lack
            where = f"{node.name}: " if node else ""
            said = f"does not ensure {name}: {where}{why}"
            raise self._broke(one, before, said, node.name if node else "")

    def _before(self, before: Graph | None) -> Graph | None:
        """Returns the graph as the pass that runs was given it; None where it cannot be made
        again."""
        if before is None:
            again = _Run(self.given, None, self.limit, self.seconds)
            with suppressed():
                for one in self.ran:
                    again.numbering.end(one.name, again.apply(one))
                before = again.work
        return before

    def _broke(
        self,
        one: Pass,
        before: Graph | None,
        said: str,
        node: str = "",
        *,
        compared: bool = True,
    ) -> QirError:
        """Returns the error for a pass that broke its word: at which node, and which rewrite did
        it."""
        before, was = self._before(before), ""
        if not node and compared and before is not None:
            found = difference(before, self.work)
            node = f"{found.path}{found.node}" if found else ""
            said += f"; {found}" if found else "; no node differs from before"
            was = found.was if found else ""
        by = self._claimed(one, before, node) if before is not None else ""
        error = PassError(f"pass {one.name} {said}{f'; {by}' if by else ''}")
        asked = self.numbering.told
        raised = noted(
            error, node or (asked.node if asked else ""), *filter(None, (self.work, before))
        )
        if was:
            raised.add_note(f"before: {was}")
        return raised

    def _claimed(self, one: Pass, before: Graph, node: str) -> str:
        """Returns which rewrite it was that changed a node, in words."""
        last = self.numbering.told
        if not node:
            return f"it asked for {last}" if last else "it asked for no rewrite"
        left = None if self.limit is None else self.limit - self.numbering.first
        again = _Run(before, None, left, self.seconds)
        claims = Claims(again.numbering, node)
        again.numbering.asked = claims
        with suppressed():
            again.apply(one)
        claims()
        return claims.told()

    def _blame(self, one: Pass, before: Graph, picture: Picture, moved: Moved) -> QirError:
        """Returns the error that names the first tensor that moved, and the rewrite that moved
        it."""
        validation, total = self.validation, len(self.numbering.done)
        assert validation is not None
        found = {total: (moved, self.numbering.done[-1])}

        odd: list[str] = []

        def moves(count: int) -> bool:
            again = _Run(before, None, count, self.seconds)
            held, changed, version = picture.of(again.work), None, again.work.version
            with suppressed():
                changed = again.apply(one)
            if changed is None or errors(again.work):
                said = "more than can be shown: cut short, it leaves no program"
                where: Moved | None = Moved(moved.tensor, said)
            else:
                edits = again.work.version - version
                steps = again.numbering.end(one.name, changed)
                if wrong := _miscounted(changed, steps, edits):
                    odd.append(f"; cut short after {count} of its rewrites it {wrong}")
                where = validation.moved(held, again.work, one.tolerance)
            if where is not None:
                found[count] = where, (again.numbering.done or self.numbering.done)[-1]
            return where is not None

        first = search(0, total, moves)
        moved, step = found[first]
        by = f"by {step}, number {first} of {total}"
        by = "no rewrite claims it" if step.rewrite == WHOLE else by
        more = odd[-1] if odd else ""
        error = MovedError(f"pass {one.name}: {moved}; {by}; it declares {one.tolerance}{more}")
        return noted(error, moved.tensor, self.work, before)


def _miscounted(changed: int, steps: tuple[RewriteStep, ...], edits: int) -> str:
    """Returns what is wrong with the number of changes that a pass reports; empty where nothing
    is."""
    said = "no change" if changed == 0 else f"{changed} change{'' if changed == 1 else 's'}"
    if changed < 0 and not edits:
        return f"reports {said}, which is no number of changes; the graph was not edited"
    if changed < 0 or (changed == 0 and edits):
        return f"reports {said}, the graph was edited"
    if changed and not edits:
        return f"reports {said}, the graph was not edited"
    if changed < len(steps):
        return f"reports {said}, {len(steps)} rewrites were done"
    if changed > edits:
        return f"reports {said}, the graph was edited {edits} time{'' if edits == 1 else 's'}"
    return ""


def search(good: int, bad: int, fails: Callable[[int], bool]) -> int:
    """Returns the first number that fails, after one that does not and up to one that does, by
    halves."""
    while bad - good > 1:
        middle = (good + bad) // 2
        if fails(middle):
            bad = middle
        else:
            good = middle
    return bad
