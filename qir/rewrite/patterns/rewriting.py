"""Replaces matches until no pattern matches any more.

    GELU = Rewrite(gelu, lambda graph, m: graph.add("gelu", {"x": m["x"]}).result)

    @dataclass(frozen=True)
    class Recover(PatternPass):
        name = "recover"
        rewrites = (GELU,)

The node nearest the output comes first, so that of two matches that overlap the larger wins; at one
node the rewrites are tried in their order. What a replacement makes, and what is after it, is
looked at again. Name, lineage and uses of the old value go to the new one, origins of all nodes
that matched to the new nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import ClassVar, TypeAlias

from qir.errors import ArgumentError, PassError, QirError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.types import TensorType
from qir.ledger import Change, Ledger
from qir.rewrite.patterns.match import Match
from qir.rewrite.patterns.matching import match_at
from qir.rewrite.patterns.pattern import Pattern
from qir.rewrite.patterns.prefilter import candidates, roots
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.filter import current_filter

Replacement: TypeAlias = "Callable[[Graph, Match], Value | Sequence[Value] | None]"
"""Builds what stands instead, by the graph's own methods; None: declines, and has changed nothing.

It removes nothing: matched nodes are removed by the driver. New nodes need no place; they move to
their users. `qir.rewrite.replacement` makes one of a function of the pattern's variables.
"""

_CROWD = 64
"""Users of a value that are looked at again one by one; more than that wait for the next sweep."""
_AGES = 100
"""A node may stem from so many rewrites, and one more for each node of the graph."""


@dataclass(frozen=True)
class Rewrite:
    """A pattern and its replacement."""

    pattern: Pattern
    replace: Replacement
    change: Change = Change.REGROUPED
    says: str = ""
    """What the ledger says happened; it may name `{nodes}`, the ops that matched."""
    named: str = ""

    def __post_init__(self) -> None:
        # A wrong order of arguments would show only where the pass runs, as an AttributeError.
        if not isinstance(self.pattern, Pattern):
            kind = type(self.pattern).__name__
            raise ArgumentError(
                f"Rewrite: argument pattern is a {kind}; it takes a Pattern first, then its "
                "replacement, and its own name as named="
            )
        if not callable(self.replace):
            kind = type(self.replace).__name__
            raise ArgumentError(
                f"Rewrite: argument replace is a {kind}; it takes a function of the graph and the "
                "match, or what @replacement makes of one"
            )

    @property
    def name(self) -> str:
        """Its own name, or else the pattern's."""
        return self.named or self.pattern.name


@dataclass(frozen=True)
class PatternPass(Pass):
    """A pass made of pattern rewrites; its options may leave some out."""

    rewrites: ClassVar[tuple[Rewrite, ...]] = ()

    def chosen(self) -> tuple[Rewrite, ...]:
        """Returns the rewrites that the options leave."""
        return self.rewrites

    @property
    def patterns(self) -> dict[str, Pattern]:
        """Its patterns by name."""
        return {rewrite.name: rewrite.pattern for rewrite in self.rewrites}

    def run(self, graph: Graph, ledger: Ledger) -> int:
        return rewrite(graph, self.chosen(), ledger, self.name)


def rewrite(graph: Graph, rewrites: Iterable[Rewrite], ledger: Ledger, step: str) -> int:
    """Rewrites a graph until no pattern matches; says how many matches there were.

    Raises PassError, naming rewrite and node, where a replacement makes another type, breaks the
    graph, or where rewrites continue for ever.
    """
    return _RewriteRun(graph, tuple(rewrites), ledger, step).sweep()


@dataclass
class _RewriteRun:
    graph: Graph
    rewrites: tuple[Rewrite, ...]
    ledger: Ledger
    step: str
    ages: dict[Node, int] = field(default_factory=dict)
    """From how many rewrites in a row a node stems, those that shrink the graph not counted."""
    crowded: bool = False
    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.is_allowed = current_filter(self.graph)
        self.max_age = len(self.graph) + _AGES
        self.by_op: dict[str, list[Rewrite]] = {}
        for one in self.rewrites:
            for op in roots(one.pattern):
                self.by_op.setdefault(op, []).append(one)
        plans = [r.pattern.plan for r in self.rewrites]
        # An inner value of a match has no more readers than the pattern has operands, so values
        # with more need no second look.
        self.widest = max((p.edges for p in plans), default=0)
        if any(p.open for p in plans):
            self.widest = max(self.widest, _CROWD)
        self.deepest = max((p.depth for p in plans), default=0)
        self.endless = any(p.endless for p in plans)

    def sweep(self) -> int:
        """Returns all matches of the graph, and again where users of a value were too many to
        follow."""
        while True:
            self.crowded = False
            before = len(self.done)
            # `pop` takes the node nearest the outputs, where the larger of two overlapping matches
            # begins.
            pending = candidates(self.graph, [r.pattern for r in self.rewrites])
            while pending:
                node = pending.pop()
                # An earlier rewrite may have removed it.
                if node in self.graph:
                    pending += self.visit(node)
            if not self.crowded or len(self.done) == before:
                return len(self.done)

    def visit(self, node: Node) -> list[Node]:
        """Rewrites at one node; gives the nodes that are to be looked at again."""
        for one in self.by_op.get("" if node.stages else node.op, ()):
            match = match_at(one.pattern, node)
            if match is not None:
                again = self.apply(one, match)
                if again is not None:
                    return again
        return []

    def apply(self, one: Rewrite, match: Match) -> list[Node] | None:
        """Puts the replacement in the place of a match; None where it declines."""
        if not self.is_allowed(self.step, one.name, about(match)):
            return None
        place = f"pass {self.step}: rewrite {one.name} at {match.root.name}"
        edits, count = self.graph.version, len(self.graph._values)
        root_name, ops = match.root.name, " ".join(dict.fromkeys(n.op for n in match.nodes))
        try:
            returned = one.replace(self.graph, match)
            if returned is None:
                # A declined match must leave the graph as it was, since other patterns are tried on
                # it next.
                if self.graph.version != edits:
                    raise PassError("declines, but has changed the graph")
                return None
            values = (returned,) if isinstance(returned, Value) else tuple(returned)
            added = self._added_nodes(match, values, len(self.graph._values) - count)
            self._count_age(one, match, added)
            loose_operands = self._hand_over(match, values, added)
        except QirError as error:
            raise PassError(f"{place}: {error}") from error
        except Exception as error:
            raise PassError(f"{place}: {type(error).__name__}: {error}") from error
        message = one.says.format(nodes=ops) if one.says else one.name
        self.ledger.add(one.change, self.step, root_name, message)
        self.done.append(one.name)
        return self._nodes_to_revisit(values, added, loose_operands)

    def _added_nodes(self, match: Match, values: tuple[Value, ...], count: int) -> list[Node]:
        """Returns the nodes that a replacement has made: a graph keeps its values as they came."""
        if count < 0 or any(node not in self.graph for node in match.nodes):
            raise PassError("removes nodes; what matched goes by itself")
        if len(values) != len(match.results):
            raise PassError(f"gives {len(values)} values for {len(match.results)}")
        newest = islice(reversed(self.graph._values.values()), count)
        added = list(reversed(dict.fromkeys(value.node for value in newest)))
        for old, new in zip(match.results, values, strict=True):
            if old is new:
                raise PassError(f"gives back %{old.name} itself; None declines")
            if not _fits(new.type, old.type):
                raise PassError(f"makes {new.type} of %{old.name}, which is {old.type}")
        return added

    def _count_age(self, one: Rewrite, match: Match, added: list[Node]) -> None:
        """Counts rewrites of what rewrites have made; raises PassError where that has no end."""
        age = max(self.ages.get(node, 0) for node in match.nodes)
        # A rewrite that shrinks the graph cannot go on for ever; the others are counted.
        age += len(added) >= len(match.nodes)
        if age > self.max_age:
            recent = ", ".join(dict.fromkeys(self.done[-20:] or [one.name]))
            raise PassError(f"goes on for ever; what it rewrites was made by {recent}")
        self.ages.update(dict.fromkeys(added, age))

    def _hand_over(self, match: Match, values: tuple[Value, ...], added: list[Node]) -> list[Value]:
        """Gives the uses to the new values; gives operands that have lost a use."""
        graph, added_set = self.graph, frozenset(added)
        origins = tuple(dict.fromkeys(o for node in match.nodes for o in node.origins))
        for node in added:
            if node.op != "constant":
                graph.set_origins(node, node.origins or origins)
                if node.profile is None and match.root.profile is not None:
                    graph.set_profile(node, match.root.profile)
        # Removing the old nodes frees their names, which the new values then take over.
        names = [(old.name, old.lineage) for old in match.results]
        for old, value in zip(match.results, values, strict=True):
            # The replacement itself reads the old result, and keeps doing so.
            if any(use.node in added_set for use in old.uses):
                for use in [use for use in old.uses if use.node not in added_set]:
                    graph.set_operand(use.node, use.slot, value)
            else:
                graph.replace(old, value)
        loose_operands = self._clear(match, added)
        for (name, lineage), value in zip(names, values, strict=True):
            if value.node in added_set and value.node in graph and not graph.has(name):
                graph.rename(value, name)
                graph.set_lineage(value, lineage)
        return loose_operands

    def _clear(self, match: Match, added: list[Node]) -> list[Value]:
        """Takes out what nobody uses any more; gives the operands that are left."""
        touched: dict[Value, None] = {}
        dead = [*match.nodes, *added]
        while dead:
            node = dead.pop()
            if node not in self.graph or node.used or node.op in ("input", "output"):
                continue
            # Their producers may be unused once this node is gone.
            operands = list(dict.fromkeys(node.operands.values()))
            self.graph.remove(node)
            self.ages.pop(node, None)
            touched.update(dict.fromkeys(operands))
            dead += [v.node for v in operands if not v.node.used]
        return [value for value in touched if value.node in self.graph]

    def _nodes_to_revisit(
        self, values: tuple[Value, ...], added: list[Node], loose_operands: list[Value]
    ) -> list[Node]:
        """Returns what may match now and did not: the new nodes, and those that are on them."""
        # A repetition reaches further than any fixed depth below, so that only another sweep finds
        # all.
        self.crowded = self.crowded or self.endless
        reached = {node: None for node in added if node in self.graph}
        level = list(dict.fromkeys([*values, *(v for n in reached for v in n.results)]))
        widely_read = [value for value in level if len(value.uses) > _CROWD]
        self.crowded = self.crowded or bool(widely_read)
        level = [value for value in level if len(value.uses) <= _CROWD]
        level += [value for value in loose_operands if len(value.uses) <= self.widest]
        for _ in range(self.deepest):
            users = dict.fromkeys(use.node for value in level for use in value.uses)
            users = {node: None for node in users if node not in reached}
            reached.update(users)
            level = [v for n in users for v in n.results if len(v.uses) <= self.widest]
            if not level:
                break
        roots_reached = [node for node in reached if ("" if node.stages else node.op) in self.by_op]
        return sorted(roots_reached, key=lambda node: node._rank)


def about(match: Match) -> tuple[Node, ...]:
    """Returns the nodes of a match, the one it is named by first."""
    return (match.root, *(node for node in match.nodes if node is not match.root))


def _fits(new: TensorType, old: TensorType) -> bool:
    """Returns whether one type may stand for another: sizes may be unknown in either."""
    if new == old:
        return True
    if new.element != old.element or new.rank != old.rank:
        return False
    pairs = zip(new.shape, old.shape, strict=True)
    return all(a == b or a is None or b is None for a, b in pairs)
