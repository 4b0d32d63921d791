"""Ops on quantized values that releases of one runtime compute differently, as profiles say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qir.inspect.probing import head_of, matches_settings
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import Profile, profile, profile_names, query_for_node
from qir.profiles.profile import differences


@dataclass(frozen=True, slots=True)
class Disagreement:
    """One op, and the releases that give other values for some inputs."""

    path: str
    node: str
    op: str
    runtime: str
    versions: tuple[str, ...]
    """Versions of the runtime, as the heads of their profiles state them."""

    @property
    def said(self) -> str:
        """The warning, in a line."""
        named = " and of ".join(self.versions)
        return f"{self.runtime} of {named} may give other values for this {self.op}"


def siblings(name: str) -> tuple[str, ...]:
    """Returns the profiles of other versions of a profile's runtime, with the same settings."""
    if name not in profile_names():
        return ()
    own = head_of(profile(name))
    others = {n: head_of(profile(n)) for n in profile_names() if n != name}
    return tuple(
        n
        for n, head in others.items()
        if head.backend == own.backend and matches_settings(head.settings, own.settings)
    )


def disagreements(graph: Graph, name: str, others: Sequence[str]) -> tuple[Disagreement, ...]:
    """Returns the ops that a profile's runtime computes on quantized values, and other ones not so.

    The graph is grouped as that profile groups it; `others` are profiles of other releases.
    """
    mine, rest = profile(name), [profile(n) for n in others if n != name]
    if not rest or not _ops(graph) & _suspects(mine, rest):
        return ()
    grouped = graph.copy()
    Group(name).run(grouped, Ledger())
    return tuple(
        Disagreement(path, node.name, node.stages[0].op if node.stages else node.op, backend, found)
        for backend in (head_of(mine).backend,)
        for path, each in grouped.walk()
        for node in each
        if (found := tuple(_said(p) for p in rest if _differs(node, mine, p)))
    )


def _differs(node: Node, a: Profile, b: Profile) -> bool:
    """Returns whether two profiles compute the result of an op on quantized values by different
    rules."""
    if not node.results or any(r.type.quant is None for r in node.results):
        return False
    query = query_for_node(node)
    found = differences(a.resolve(query), b.resolve(query))
    return any(not field.startswith("choose.") for field in found)  # those are a tool's


def _ops(graph: Graph) -> set[str]:
    return {op for _, g in graph.walk() for n in g for op in (n.op, *(s.op for s in n.stages))}


def _suspects(mine: Profile, others: Sequence[Profile]) -> set[str]:
    """Returns the ops of rules that not all of these profiles have."""
    every = [mine, *others]
    shared = set.intersection(*({layer.name for layer in p.layers} for p in every))
    own = [layer for p in every for layer in p.layers if layer.name not in shared]
    return {op for layer in own for rule in layer.rules for op in rule.ops}


def _said(of: Profile) -> str:
    return head_of(of).versions.removeprefix("==")
