"""Finds the rewrite after which a graph is bad: bisects the passes, then the rewrites of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.driver import Report, run_passes, search
from qir.rewrite.runner.numbering import WHOLE, RewriteStep
from qir.rewrite.runner.options import options_text

_UNSTEADY = "the check is not steady, so nothing can be found by it:"


@dataclass(frozen=True, slots=True)
class Trial:
    """One graph that was judged."""

    passes: int
    """So many passes had run, the last of them as far as `rewrites` says."""
    rewrites: int | None
    """So many of its rewrites; None: all."""
    good: bool


@dataclass(frozen=True, slots=True)
class Culprit:
    """The pass and the rewrite after which a graph is bad."""

    index: int
    """Of the pass, from 0."""
    text: str
    """The pass with its options."""
    step: RewriteStep
    """The rewrite, numbered from 1 within its pass."""
    rewrites: int
    """How many the pass does in all."""

    @property
    def whole(self) -> bool:
        """Whether nothing smaller than the pass can be named: it asks for no change by itself."""
        return self.step.rewrite == WHOLE


def bisect(
    graph: Graph,
    passes: Sequence[Pass],
    good: Callable[[Graph], bool],
    *,
    tell: Callable[[Trial], None] = lambda trial: None,
) -> Culprit | None:
    """Returns the first rewrite after which a graph is not good; None where all passes leave it
    good.

    Raises UsageError for a graph that is not good to begin with, and where one graph was judged
    both good and bad; PassError where a pass fails.
    """

    def judge(result: Graph, count: int, rewrites: int | None = None) -> bool:
        is_good = bool(good(result))  # NumPy's own is neither True nor False
        tell(Trial(count, rewrites, is_good))
        return is_good

    def after(count: int) -> Graph:
        return run_passes(graph, passes[:count], Ledger())

    # Both ends are tried first: bisection needs a good start and a bad end.
    if not judge(graph, 0):
        raise UsageError("the check fails before any pass has run: there is nothing to search")
    if not passes or judge(after(len(passes)), len(passes)):
        return None
    bad = search(0, len(passes), lambda count: not judge(after(count), count))
    # First the pass, then its rewrite: a pass may do thousands of them.
    base, faulty = after(bad - 1), passes[bad - 1]
    reports: list[Report] = []
    run_passes(base, [faulty], Ledger(), after=lambda report, _: reports.append(report))
    rewrite_count = len(reports[0].steps)
    if not rewrite_count:
        raise UsageError(f"{_UNSTEADY} {faulty.name} changes nothing, and was said to make it bad")

    def is_bad_after(count: int) -> bool:
        done = run_passes(base, [faulty], Ledger(), limit=count)
        return not judge(done, bad, count)

    first = search(0, rewrite_count, is_bad_after)
    for count, expected in ((first - 1, True), (first, False)):  # once more: it may be chance
        if judge(run_passes(base, [faulty], Ledger(), limit=count), bad, count) is not expected:
            before, now = ("good", "bad") if expected else ("bad", "good")
            message = f"{count} rewrites of {faulty.name} were said to be {before}, and then {now}"
            raise UsageError(f"{_UNSTEADY} {message}")
    return Culprit(bad - 1, options_text(faulty), reports[0].steps[first - 1], rewrite_count)
