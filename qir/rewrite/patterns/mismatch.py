"""Explains why a pattern does not match at a node: the first condition that failed.

The node may be anywhere in the pattern: where its op is one of the pattern's inner ops, matching
starts at the results that it reaches. Of all attempts, the one that matched most terms before it
failed is reported; among equals the first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from qir.errors import UsageError
from qir.ir.node import Node, Value
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.matching import match_from
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.prefilter import GROUP, roots
from qir.rewrite.patterns.terms import Chain, Op, Out, Term, children

# A value that hundreds of nodes read would be tried at each: the nearest 64 results are enough for
# an explanation.
_MAX_ROOTS = 64
_MAX_DISTANCE = 1000


@dataclass(frozen=True, slots=True)
class WhyNot:
    """Whether a pattern matches at a node; if not, the first condition that failed."""

    pattern: Pattern
    match: Match | None
    """The match that holds the node, if there is one."""
    root: Node | None = None
    """Where the pattern's result was laid."""
    at: Node | None = None
    """The node that failed."""
    reason: str = ""
    met: int = 0
    """How many parts were met before."""

    def __str__(self) -> str:
        """In one line."""
        if self.match is not None:
            return f"{self.pattern.name} matches at {self.match.root.name}"
        where = f" at {self.at.name}" if self.at else ""
        tried_at = (
            f" (laid on at {self.root.name})" if self.root and self.root is not self.at else ""
        )
        return f"{self.pattern.name} does not match{where}: {self.reason}{tried_at}"


def why_not(pattern: Pattern, node: Node) -> WhyNot:
    """Returns whether a pattern matches with a node in it, or the first condition that failed."""
    best: WhyNot | None = None
    for value in _roots(pattern, node):
        explained = _explain(pattern, value, node)
        if explained.match is not None:
            return explained
        if best is None or explained.met > best.met:
            best = explained
    if best is not None:
        return best
    op = " |> ".join(stage.op for stage in node.stages) or node.op
    ends = " or ".join(name or "a group" for name in sorted(roots(pattern)))
    # No result of the pattern is reached from here; say whether the op occurs in it at all.
    inside = any(node.op in term.ops for term in _ops(pattern))
    if inside:
        reason = f"it is {op}, but leads to no {ends} as the pattern's {op} does"
    else:
        reason = f"it is {op}, which the pattern does not have; it ends in {ends}"
    return WhyNot(pattern, None, None, node, reason)


def nearest(patterns: Iterable[Pattern], node: Node) -> WhyNot:
    """Returns the first of several patterns that matches, or else the one that came furthest."""
    best: WhyNot | None = None
    for pattern in patterns:
        explained = why_not(pattern, node)
        if explained.match is not None:
            return explained
        if best is None or (explained.met, explained.root is not None) > (
            best.met,
            best.root is not None,
        ):
            best = explained
    if best is None:
        raise UsageError("no pattern is given")
    return best


def _explain(pattern: Pattern, value: Value, wanted: Node) -> WhyNot:
    failures: list[tuple[int, Node, str]] = []

    def failed(met: int, node: Node, text: str) -> None:
        # The attempt that matched most terms explains best why the pattern does not match.
        if not failures or met > failures[-1][0]:
            failures.append((met, node, text))

    match = match_from(pattern, value, failed)
    if match is not None and wanted in match.nodes:
        return WhyNot(pattern, match, value.node)
    if match is not None:
        reason = f"the match there takes {wanted.op} elsewhere"
        return WhyNot(pattern, None, value.node, wanted, reason)
    if not failures:
        return WhyNot(pattern, None, value.node, value.node, "it can be laid on in no way")
    met, node, text = failures[-1]
    return WhyNot(pattern, None, value.node, node, text, met)


def _ops(pattern: Pattern) -> Iterator[Op]:
    visited: set[Term] = set()
    pending: list[Term] = list(reversed(pattern.results))
    while pending:
        term = pending.pop()
        if term in visited:
            continue
        visited.add(term)
        if isinstance(term, Op):
            yield term
        pending += reversed(list(children(term)))


def _roots(pattern: Pattern, node: Node) -> Iterator[Value]:
    """Values at which the pattern may be laid on so that it holds a node, the nearest first."""
    root_ops = roots(pattern)
    inner = {op for term in _ops(pattern) for op in term.ops}
    has_groups = any(isinstance(r, Chain) for r in pattern.results)
    visited: dict[Node, None] = {node: None}
    level = [node] if node.op in inner or (node.stages and has_groups) else []
    depth, count = 0, 0
    pattern_plan = pattern.plan
    while level and depth <= (_MAX_DISTANCE if pattern_plan.endless else pattern_plan.depth):
        for reached in level:
            if (GROUP if reached.stages else reached.op) in root_ops:
                yield reached.results[min(_index(pattern), len(reached.results) - 1)]
                count += 1
                if count >= _MAX_ROOTS:
                    return
        users = dict.fromkeys(
            user for reached in level for v in reached.results for user in v.users
        )
        level = [user for user in users if user not in visited][:_MAX_ROOTS]
        visited.update(dict.fromkeys(level))
        depth += 1


def _index(pattern: Pattern) -> int:
    """Returns which result of its op the pattern's first result is."""
    first = pattern.results[0]
    return first.index if isinstance(first, Out) else 0
