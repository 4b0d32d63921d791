"""Ops on quantized values that releases of one runtime compute differently, as profiles say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qir.inspect.probing import head_of, matches_settings
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import Profile, profile, profile_in, profile_names, query_for_node
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
    def warning(self) -> str:
        """The warning, in a line."""
        versions = " and of ".join(self.versions)
        return f"{self.runtime} of {versions} may give other values for this {self.op}"


def siblings(name: str) -> tuple[str, ...]:
    """Returns the profiles of other versions of a profile's runtime, with the same settings."""
    if name not in profile_names():
        return ()
    own_head = head_of(profile(name))
    others = {n: head_of(profile(n)) for n in profile_names() if n != name}
    return tuple(
        n
        for n, head in others.items()
        if head.backend == own_head.backend and matches_settings(head.settings, own_head.settings)
    )


def disagreements(graph: Graph, name: str, others: Sequence[str]) -> tuple[Disagreement, ...]:
    """Returns the ops that a profile's runtime computes on quantized values, and other ones not so.

    The graph is grouped as that profile groups it; `others` are profiles of other releases.
    """
    own_profile, other_profiles = profile_in(graph, name), [profile(n) for n in others if n != name]
    if not other_profiles or not _ops(graph) & _suspects(own_profile, other_profiles):
        return ()
    # The caller's graph stays as it is: grouping serves the comparison alone.
    grouped = graph.copy()
    Group(name).run(grouped, Ledger())
    return tuple(
        Disagreement(
            path, node.name, node.stages[0].op if node.stages else node.op, backend, other_versions
        )
        for backend in (head_of(own_profile).backend,)
        for path, part in grouped.walk()
        for node in part
        if (
            other_versions := tuple(
                _version_text(p) for p in other_profiles if _differs(node, own_profile, p)
            )
        )
    )


def _differs(node: Node, a: Profile, b: Profile) -> bool:
    """Returns whether two profiles compute the result of an op on quantized values by different
    rules."""
    if not node.results or any(r.type.quant is None for r in node.results):
        return False
    query = query_for_node(node)
    differing_fields = differences(a.resolve(query), b.resolve(query))
    return any(not field.startswith("choose.") for field in differing_fields)  # those are a tool's


def _ops(graph: Graph) -> set[str]:
    return {op for _, g in graph.walk() for n in g for op in (n.op, *(s.op for s in n.stages))}


def _suspects(own_profile: Profile, others: Sequence[Profile]) -> set[str]:
    """Returns the ops of rules that not all of these profiles have."""
    every = [own_profile, *others]
    # Layers that all of them have cannot make a difference.
    shared = set.intersection(*({layer.name for layer in p.layers} for p in every))
    unshared_layers = [layer for p in every for layer in p.layers if layer.name not in shared]
    return {op for layer in unshared_layers for rule in layer.rules for op in rule.ops}


def _version_text(source: Profile) -> str:
    return head_of(source).versions.removeprefix("==")
