"""Regions that are permuted as one: ops, types, schemes and lineage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from qir.ir.graph import Graph
from qir.ir.node import Node, Use, Value
from qir.ledger import Change, Ledger
from qir.passes.layout.crossing import plan
from qir.passes.layout.passing import raised
from qir.rewrite.axis_permutation import (
    LAYOUTS,
    SPATIAL,
    Perm,
    composed,
    inverse,
    perm_to,
    still,
    turned,
    turned_array,
    turned_element,
    turned_lineage,
    turned_type,
)
from qir.rewrite.resize_axes import name_axes
from qir.rewrite.runner.filter import may


@dataclass(eq=False)
class _Region:
    """Nodes that turn together or not at all."""

    nodes: list[Node] = field(default_factory=list)
    must: bool = False


@dataclass
class Turning:
    graph: Graph
    name: str
    """The pass that it is done for."""
    to: str
    ledger: Ledger
    only: frozenset[Node] | None = None
    """The nodes that turn, all of them; None: those that had better."""
    slots: dict[Node, frozenset[str]] = field(default_factory=dict)
    """The operands that turn with a node, for nodes that can turn."""
    done: dict[Value, Perm] = field(default_factory=dict)
    """Values that have turned, with the order that they were brought into."""
    made: dict[tuple[Value, Perm], Value] = field(default_factory=dict)
    fresh: set[Node] = field(default_factory=set)
    """Transposes that this run has made."""

    def run(self) -> int:
        self.slots = self.turnable()
        regions, named = self._regions(), self.only is not None
        chosen = [r for r in regions if (named or r.must or self._gain(r) > 0) and self._may(r)]
        if not chosen:
            return 0
        kept = {node for region in chosen for node in region.nodes}
        self.slots = {node: slots for node, slots in self.slots.items() if node in kept}
        nodes = sorted(kept)
        for node in nodes:
            name_axes(self.graph, node)
        for value in (v for node in nodes for v in node.results):
            self.done[value] = self._perm(value.type.rank)
        loose = {v.node for n in nodes for s, v in n.operands.items() if s in self.slots[n]}
        nodes = [self._turn(node) for node in nodes]
        for node in nodes:
            for value in node.results:
                loose |= self._back(value)
        self._clear(loose)
        return len(nodes)

    def _perm(self, rank: int) -> Perm:
        return perm_to(self.to, rank)

    # -- what can turn, and what does -------------------------------------------------------------

    def turnable(self) -> dict[Node, frozenset[str]]:
        """Returns the nodes that can turn, if they are meant to, each with the slots that turn with
        it."""
        meant = (n for n in self.graph if self.only is None or n in self.only)
        return {node: found for node in meant if (found := self._slots(node))}

    def _slots(self, node: Node) -> frozenset[str]:
        """Returns the slots that turn with a node; none where it cannot turn."""
        if not node.results or node.bodies or node.op in ("transpose", "input", "constant"):
            return frozenset()
        attrs = (node.attrs, *(stage.attrs for stage in node.stages))
        if any(held.get("layout") == self.to.upper() for held in attrs):
            return frozenset()
        ranks = {value.type.rank for value in node.results}
        if len(ranks) > 1 or min(ranks) < 3:
            return frozenset()
        perm = self._perm(ranks.pop())
        found = _chain(node, perm) if node.stages else None
        if not node.stages and (made := turned(node.op, node.attrs, node.operands, perm)):
            found = made.slots
        if not found or any(turned_type(v.type, perm) is None for v in node.results):
            return frozenset()
        inner = [turned_element(e, node.result.type, perm) for e in node.inner.values()]
        operands = [node.operands[s] for s in found]
        fits = None not in inner and all(_turns(value, perm) for value in operands)
        return frozenset(found) if fits else frozenset()

    def _regions(self) -> list[_Region]:
        """Returns the nodes that can turn, in parts that no turning value connects."""
        held: dict[Node, Node] = {node: node for node in self.slots}

        def root(node: Node) -> Node:
            while held[node] is not node:
                held[node] = held[held[node]]
                node = held[node]
            return node

        for node, slots in self.slots.items():
            for slot in slots:
                maker = node.operands[slot].node
                if maker in held:
                    held[root(node)] = root(maker)
        regions: dict[Node, _Region] = {}
        for node in self.slots:
            region = regions.setdefault(root(node), _Region())
            region.nodes.append(node)
            ops = {node.op, *(stage.op for stage in node.stages)}
            region.must = region.must or not ops.isdisjoint(SPATIAL)
        return list(regions.values())

    def _may(self, region: _Region) -> bool:
        return may(self.name, self.to, *region.nodes)

    def _gain(self, region: _Region) -> int:
        """Returns how many transposes fewer there would be."""
        inside, gain = set(region.nodes), 0
        coming = {n.operands[s] for n in region.nodes for s in self.slots[n]}
        for value in coming:
            rank = value.type.rank
            if value.node in inside or value.constant is not None or not rank:
                continue
            order = self._perm(rank)
            found = raised(value, order)
            gain -= not (_undoes(value, order) or (found and still(found.perm)))
            if value.node.op == "transpose":
                gain += all(self._turns_in(use, inside) for use in value.uses)
        for value in (v for node in region.nodes for v in node.results):
            left = [use for use in value.uses if not self._turns_in(use, inside)]
            moves = [use.node for use in left if use.node.op == "transpose"]
            perm = self._perm(value.type.rank)
            gain += sum(move.attrs["perm"] == perm for move in moves)
            others = [use for use in left if use.node.op != "transpose"]
            gain -= bool(others) and plan(others, inverse(perm)) is None
        return gain

    def _turns_in(self, use: Use, inside: Iterable[Node]) -> bool:
        return use.node in inside and use.slot in self.slots[use.node]

    # -- turning ----------------------------------------------------------------------------------

    def _turn(self, node: Node) -> Node:
        """Turns one node, whose makers have turned; gives the one that stands for it."""
        slots = self.slots[node]
        for slot in slots:
            value = node.operands[slot]
            if value not in self.done:
                self.graph.set_operand(node, slot, self._coming(value, node))
        perm = self._perm(node.results[0].type.rank)
        if any(op in SPATIAL for op in (node.op, *(stage.op for stage in node.stages))):
            said = f"computed as {self.to.upper()}"
            self.ledger.add(Change.REGROUPED, self.name, node.name, said)
        if node.stages:
            return self._turn_chain(node, perm)
        found = turned(node.op, node.attrs, node.operands, perm)
        assert found is not None
        if dict(found.attrs) != dict(node.attrs):
            self.graph.set_attrs(node, **found.attrs)
        for slot, element in list(node.inner.items()):
            made = turned_element(element, node.result.type, perm)
            assert made is not None
            self.graph.set_inner(node, slot, made)
        for value in node.results:
            kind = turned_type(value.type, perm)
            assert kind is not None
            self.graph.set_type(value, kind)
            self.graph.set_lineage(value, turned_lineage(value.lineage, perm))
        return node

    def _turn_chain(self, node: Node, perm: Perm) -> Node:
        old = node.result
        kind = turned_type(old.type, perm)
        assert kind is not None
        stages = []
        for i, stage in enumerate(node.stages):
            given: dict[str, Value | None] = dict(node.stage_operands(i))
            if stage.flow:
                given[stage.flow] = None
            found = turned(stage.op, stage.attrs, given, perm)
            assert found is not None
            inner = None if stage.type is None else turned_type(stage.type, perm)
            stages.append(replace(stage, attrs=found.attrs, type=inner))
        made = self.graph.add_chain(
            stages,
            node.operands,
            kind,
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        for slot, origins in node.slot_origins.items():
            self.graph.set_slot_origins(made, slot, origins)
        for slot, scheme in node.schemes.items():
            self.graph.set_scheme(made, slot, scheme)
        self.graph.substitute(node, made.result)
        self.graph.set_lineage(made.result, turned_lineage(old.lineage, perm))
        self.slots[made] = self.slots.pop(node)
        self.done[made.result] = perm
        return made

    def _coming(self, value: Value, user: Node) -> Value:
        """Returns a value from outside, turned."""
        if value.type.rank == 0:
            return value
        perm = self._perm(max(value.type.rank, user.results[0].type.rank))
        known = self.made.get((value, perm))
        if known is None:
            known = self.made[value, perm] = self._brought(value, perm, user)
        return known

    def _brought(self, value: Value, perm: Perm, user: Node) -> Value:
        lineage = turned_lineage(value.lineage, perm)
        if value.constant is not None:
            array = turned_array(value.constant, perm)
            assert array is not None
            made = self.graph.add(
                "constant",
                {},
                {**value.node.attrs, "data": array},
                name=f"{value.name}.{self.to}",
                before=user,
                origins=value.node.origins,
            ).result
            self.graph.set_lineage(made, lineage)
            return made
        x = value
        if value.node.op == "transpose" and not value.node.schemes:
            x = value.node.operands["x"]
            perm = composed(_order(value.node), perm)
            if x in self.done:
                perm = composed(inverse(self.done[x]), perm)
        if still(perm):
            return x
        made = self.graph.add(
            "transpose", {"x": x}, {"perm": perm}, name=f"{value.name}.{self.to}", before=user
        ).result
        self.graph.set_lineage(made, lineage)
        self.fresh.add(made.node)
        return made

    def _back(self, value: Value) -> set[Node]:
        """Gives those outside what they read before; gives transposes that nobody needs now."""
        perm, graph = inverse(self.done[value]), self.graph
        plain, loose = None, set[Node]()
        for node, slot in sorted(value.uses, key=lambda use: use.node):
            if node in self.fresh or slot in self.slots.get(node, ()):
                continue
            if node.op == "transpose" and not node.schemes:
                whole = composed(perm, _order(node))
                if still(whole):
                    graph.replace(node.result, value)
                    loose.add(node)
                else:
                    graph.set_attrs(node, perm=whole)
                continue
            if plain is None:
                other = next(name for name in LAYOUTS if name != self.to)
                name, attrs = f"{value.name}.{other}", {"perm": perm}
                plain = graph.add("transpose", {"x": value}, attrs, name=name, before=node).result
                graph.set_lineage(plain, turned_lineage(value.lineage, perm))
                self.fresh.add(plain.node)
            graph.set_operand(node, slot, plain)
        return loose

    def _clear(self, loose: set[Node]) -> None:
        """Takes out transposes and constants that nobody reads any more."""
        while loose:
            node = loose.pop()
            if node in self.graph and node.op in ("transpose", "constant") and not node.used:
                loose |= {value.node for value in node.operands.values()}
                self.graph.remove(node)


def _order(node: Node) -> Perm:
    perm = node.attrs["perm"]
    assert isinstance(perm, tuple)
    return tuple(axis for axis in perm if isinstance(axis, int))


def _undoes(value: Value, perm: Perm) -> bool:
    """Returns whether turning a value is taking away the transpose that made it."""
    return value.node.op == "transpose" and _order(value.node) == inverse(perm)


def _turns(value: Value, perm: Perm) -> bool:
    """Returns whether an operand's type says what it is with its axes in another order."""
    rank = value.type.rank
    if rank == len(perm):
        return turned_type(value.type, perm) is not None
    return value.type.quant is None or value.type.quant.granularity is None


def _chain(node: Node, perm: Perm) -> frozenset[str] | None:
    """Returns the slots that turn with a group, if all of its stages do."""
    found = set[str]()
    for i, stage in enumerate(node.stages):
        given: dict[str, Value | None] = dict(node.stage_operands(i))
        if stage.flow:
            given[stage.flow] = None
        made = turned(stage.op, stage.attrs, given, perm)
        if made is None or (stage.flow and stage.flow not in made.slots):
            return None
        if stage.type is not None and turned_type(stage.type, perm) is None:
            return None
        names = zip(stage.slots, stage.group_slots(i), strict=True)
        found |= {name for slot, name in names if slot in made.slots}
    return frozenset(found)
