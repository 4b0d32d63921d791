"""The pass runner: works on a copy, checks contracts, and reports changes."""

from __future__ import annotations

import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from qir.errors import MovedError, PassError, QirError, Stopped
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.node import RewriteFilter
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.contract_violation import Claims, difference, locate_node, without_edits
from qir.rewrite.runner.failure import failed, noted, place
from qir.rewrite.runner.filter import allow_all
from qir.rewrite.runner.free_constants import fix_defaults, restore_defaults
from qir.rewrite.runner.interface import GraphInterface
from qir.rewrite.runner.journal import Journal, JournalEntry, written_by
from qir.rewrite.runner.numbering import WHOLE, Numbering, RewriteStep, watched
from qir.rewrite.runner.options import options_text
from qir.rewrite.runner.properties import find_property, first_missing
from qir.rewrite.runner.timeout import TooLong, suppressed, within
from qir.rewrite.runner.unchanged_check import State
from qir.rewrite.runner.validation import Moved, Picture, Validation

MAX_EDITS = 200_000
"""How many edits a pass may make, with a thousand more for each node: more are taken for an
endless loop."""


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
    allow: RewriteFilter = allow_all,
) -> Graph:
    """Runs passes on a copy of the graph and returns the copy.

    Passes treat defaults (constants that the caller may replace) as constants; those that one
    relied on stay constants, which the ledger says. `after` is called after every pass, `journal`
    records what was run. With `validation` the graph is run before and after each pass. `limit` is
    the number of rewrites, `seconds` a timeout for each pass. `allow` is asked before each rewrite
    and leaves it out by returning False.

    Raises PassError, naming pass, rewrite and node, where a pass breaks its contract or fails, and
    MovedError where it moves a tensor further than it declares; ledger and journal are
    then as they were.
    """
    passes = tuple(passes)
    # Passes work on a copy; the ledger and journal of the caller are extended only at the end, so
    # that an error leaves all three as they were.
    run = _PassRun(graph, validation, limit, seconds, allow)
    defaults = fix_defaults(run.work, run.ledger) if passes else {}
    if passes and not _VERIFIED.is_known_sound(graph) and (faults := errors(run.work)):
        raise PassError(f"no pass runs on a graph that is broken: {faults[0]}")
    for each in passes:
        # A pass that holds on to the original graph would otherwise change it unnoticed.
        with without_edits(graph):
            report = run.run_pass(each)
        if report is not None and after:
            after(report, run.work)
    restore_defaults(run.work, defaults, run.ledger)
    if passes:
        _VERIFIED.note(run.work)
    ledger.extend(run.ledger)
    if journal is not None:
        journal.extend(run.journal)
    return run.work


class _LastVerified:
    """The graph that was verified last: what one run leaves is not looked at again by the next."""

    def __init__(self) -> None:
        self._graph: Callable[[], Graph | None] = lambda: None
        self._version = -1

    def note(self, graph: Graph) -> None:
        """The graph is a program, as it is now."""
        self._graph, self._version = weakref.ref(graph), graph.version

    def is_known_sound(self, graph: Graph) -> bool:
        """Returns whether it is known to be one."""
        return self._graph() is graph and self._version == graph.version


_VERIFIED = _LastVerified()


@dataclass
class _PassRun:
    """Passes over a copy of a graph."""

    source: Graph
    validation: Validation | None
    limit: int | None = None
    seconds: float | None = None
    allow: RewriteFilter = allow_all
    ledger: Ledger = field(default_factory=Ledger)
    journal: list[JournalEntry] = field(default_factory=list)
    finished: list[Pass] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.work = self.source.copy()
        self.numbering = Numbering(self.work, self.limit)
        # No version of a graph is -1, so that the first pass makes the state.
        self.state = -1, State(())

    def run_pass(self, one: Pass) -> Report | None:
        """Runs one pass; None where no rewrite is left for it."""
        # The limit counts rewrites of all passes: once it is reached, no later pass runs.
        if self.numbering.full:
            return None
        self._check_requirements(one)
        before = self.work.copy() if self.validation else None
        picture = self.validation.picture(self.work) if self.validation else None
        inputs = GraphInterface.of(self.work).inputs if self.validation else {}
        size, started = len(self.work), time.perf_counter()
        changed, steps = self._run_and_check(one, before)
        seconds = time.perf_counter() - started
        if not changed:
            one.explain_no_change(self.work, self.ledger)
        if changed and self.validation and picture is not None and before is not None:
            moved = self.validation.moved(picture, self.work, one.tolerance)
            if moved is not None:
                raise self._moved_error(one, before, picture, moved)
            self.validation = self.validation.fitted(inputs, self.work)
        text = options_text(one)
        counts = dict(sorted(Counter(s.rewrite for s in steps).items()))
        self.journal.append(JournalEntry(one.name, text, written_by(one), changed, counts))
        self.finished.append(one)
        return Report(one.name, changed, seconds, text, steps, (size, len(self.work)))

    def _check_requirements(self, one: Pass) -> None:
        for name in one.ensures:
            find_property(name, f"pass {one.name}")
        missing = first_missing(self.work, one.requires, f"pass {one.name}")
        if missing is not None:
            name, (node, why) = missing
            where = f"{node.name}: " if node else ""
            error = PassError(f"pass {one.name} requires {name}: {where}{why}")
            raise noted(error, node.name if node else "", self.work)

    def _run_and_check(
        self, one: Pass, before: Graph | None
    ) -> tuple[int, tuple[RewriteStep, ...]]:
        """Runs a pass and looks whether it kept its word."""
        work, numbering = self.work, self.numbering
        version, interface = work.version, GraphInterface.of(work)
        state = self._state()
        try:
            changed = self.apply(one)
        except KeyboardInterrupt as error:
            where = place(numbering, "")
            raise KeyboardInterrupt(f"interrupted in pass {one.name}: {where}") from error
        except Stopped:
            raise
        except BaseException as error:  # whatever a pass raises, SystemExit too
            raised = self._error_for(one, before, error)
            if raised is error:
                raise
            raise raised from error
        # A bool is an int in Python; `return True` would count as one change.
        if isinstance(changed, bool) or not isinstance(changed, int):
            problem = f"gives {type(changed).__name__}; run() is to give how much it changed"
            raise self._contract_error(one, before, problem)
        steps = numbering.end(one.name, changed)
        edits = work.version - version
        if problem := _miscounted(changed, steps, edits):
            raise self._contract_error(one, before, problem, compared=edits > 0)
        if changed:
            self._check_graph(one, before, interface)
        elif state.other(work):
            problem = "reports no change, the graph was edited, past its methods"
            raise self._contract_error(one, before, problem)
        self._check_ensured(one, before)
        return changed, steps

    def _state(self) -> State:
        """Returns the state of the graph; made anew only after a pass that edited it."""
        version, state = self.state
        if version != self.work.version:
            state = State.of(self.work)
            self.state = self.work.version, state
        return state

    def _error_for(self, one: Pass, before: Graph | None, error: BaseException) -> QirError:
        """Returns what to raise where a pass raised."""
        work, numbering = self.work, self.numbering
        if isinstance(error, TooLong):
            error.args = (f"it takes more than {self.seconds:g} s",)
        described, node = failed(one.name, error, numbering)
        if described is error:
            return described
        neighbours = [value.node.name for value in numbering.last_operands]
        graphs = [work] if locate_node(work, node) else [self._graph_before(before) or work, work]
        return noted(described, node, *graphs, neighbours=neighbours)

    def apply(self, one: Pass) -> int:
        """Runs a pass on the graph and its bodies, whatever becomes of them."""
        work, changed = self.work, 0
        self.numbering.begin()
        # The graph itself raises an error beyond this, wherever the pass edits it.
        work._most = work.version + MAX_EDITS + 1000 * len(work)
        try:
            with (
                watched(self.numbering, self.allow),
                pause_garbage_collection(),
                within(self.seconds),
            ):
                for path, graph in list(work.walk()) if one.nested else [("", work)]:
                    below = path.partition("/")[2]
                    self.numbering.path = f"{below}/" if below else ""
                    part_changed = one.run(graph, self.ledger)
                    if isinstance(part_changed, bool) or not isinstance(part_changed, int):
                        return part_changed
                    changed += part_changed
        finally:
            work._most = float("inf")
        return changed

    def _check_graph(self, one: Pass, before: Graph | None, interface: GraphInterface) -> None:
        """Raises PassError where the graph is no program now, or takes and gives something else."""
        with pause_garbage_collection():
            faults = errors(self.work)
        if faults:
            raise self._contract_error(
                one, before, f"leaves a broken graph: {faults[0]}", faults[0].node
            )
        if problem := interface.renamed(self.work):
            raise self._contract_error(one, before, problem)
        if one.tolerance.compared and (retyped := interface.retyped(self.work)) is not None:
            problem, node = retyped
            raise self._contract_error(one, before, problem, node)

    def _check_ensured(self, one: Pass, before: Graph | None) -> None:
        """Raises PassError where the graph has not what the pass ensures, changed or not."""
        # A pass that a limit has cut short cannot have done all that it ensures.
        ensured = () if self.numbering.stopped else one.ensures
        missing = first_missing(self.work, ensured, f"pass {one.name}")
        if missing is not None:
            name, (node, why) = missing
            where = f"{node.name}: " if node else ""
            problem = f"does not ensure {name}: {where}{why}"
            raise self._contract_error(one, before, problem, node.name if node else "")

    def _graph_before(self, before: Graph | None) -> Graph | None:
        """Returns the graph as the pass that runs was given it; None where it cannot be made
        again."""
        if before is None:
            # Made again only for an error: a copy before every pass would cost every run without
            # one.
            rerun = _PassRun(self.source, None, self.limit, self.seconds, self.allow)
            with suppressed():
                for one in self.finished:
                    rerun.numbering.end(one.name, rerun.apply(one))
                before = rerun.work
        return before

    def _contract_error(
        self,
        one: Pass,
        before: Graph | None,
        problem: str,
        node: str = "",
        *,
        compared: bool = True,
    ) -> QirError:
        """Returns the error for a pass that broke its word: at which node, and which rewrite did
        it."""
        before, old_text = self._graph_before(before), ""
        if not node and compared and before is not None:
            changed = difference(before, self.work)
            node = f"{changed.path}{changed.node}" if changed else ""
            problem += f"; {changed}" if changed else "; no node differs from before"
            old_text = changed.was if changed else ""
        claim = self._claiming_rewrite(one, before, node) if before is not None else ""
        error = PassError(f"pass {one.name} {problem}{f'; {claim}' if claim else ''}")
        last_asked = self.numbering.last_asked
        raised = noted(
            error,
            node or (last_asked.node if last_asked else ""),
            *filter(None, (self.work, before)),
        )
        if old_text:
            raised.add_note(f"before: {old_text}")
        return raised

    def _claiming_rewrite(self, one: Pass, before: Graph, node: str) -> str:
        """Returns which rewrite it was that changed a node, in words."""
        last = self.numbering.last_asked
        if not node:
            return f"it asked for {last}" if last else "it asked for no rewrite"
        remaining = None if self.limit is None else self.limit - self.numbering.first
        rerun = _PassRun(before, None, remaining, self.seconds, self.allow)
        claims = Claims(rerun.numbering, node)
        rerun.numbering.before_rewrite = claims
        with suppressed():
            rerun.apply(one)
        claims()
        return claims.summary()

    def _moved_error(self, one: Pass, before: Graph, picture: Picture, moved: Moved) -> QirError:
        """Returns the error that names the first tensor that moved, and the rewrite that moved
        it."""
        validation, total = self.validation, len(self.numbering.done)
        assert validation is not None
        judged = {total: (moved, self.numbering.done[-1])}

        notes: list[str] = []

        def moves(count: int) -> bool:
            rerun = _PassRun(before, None, count, self.seconds, self.allow)
            picture_before, changed, version = picture.of(rerun.work), None, rerun.work.version
            with suppressed():
                changed = rerun.apply(one)
            if changed is None or errors(rerun.work):
                problem = "more than can be shown: cut short, it leaves no program"
                moved_to: Moved | None = Moved(moved.tensor, problem)
            else:
                edits = rerun.work.version - version
                steps = rerun.numbering.end(one.name, changed)
                if wrong := _miscounted(changed, steps, edits):
                    notes.append(f"; cut short after {count} of its rewrites it {wrong}")
                moved_to = validation.moved(picture_before, rerun.work, one.tolerance)
            if moved_to is not None:
                judged[count] = moved_to, (rerun.numbering.done or self.numbering.done)[-1]
            return moved_to is not None

        # Bisection by running the pass again with fewer rewrites: log2(total) runs.
        first = search(0, total, moves)
        moved, step = judged[first]
        claim = f"by {step}, number {first} of {total}"
        claim = "no rewrite claims it" if step.rewrite == WHOLE else claim
        note = notes[-1] if notes else ""
        error = MovedError(f"pass {one.name}: {moved}; {claim}; it declares {one.tolerance}{note}")
        return noted(error, moved.tensor, self.work, before)


def _miscounted(changed: int, steps: tuple[RewriteStep, ...], edits: int) -> str:
    """Returns what is wrong with the number of changes that a pass reports; empty where nothing
    is."""
    reported = "no change" if changed == 0 else f"{changed} change{'' if changed == 1 else 's'}"
    if changed < 0 and not edits:
        return f"reports {reported}, which is no number of changes; the graph was not edited"
    if changed < 0 or (changed == 0 and edits):
        return f"reports {reported}, the graph was edited"
    if changed and not edits:
        return f"reports {reported}, the graph was not edited"
    # Each rewrite is at least one change, and each change at least one edit.
    if changed < len(steps):
        return f"reports {reported}, {len(steps)} rewrites were done"
    if changed > edits:
        return f"reports {reported}, the graph was edited {edits} time{'' if edits == 1 else 's'}"
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
