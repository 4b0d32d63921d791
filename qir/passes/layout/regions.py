"""Regions that are permuted as one: ops, types, schemes and lineage."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from qir.ir.graph import Graph
from qir.ir.node import Node, Use, Value
from qir.ledger import Change, Ledger
from qir.passes.layout.crossing import plan
from qir.passes.layout.transpose_motion import reshape_without_transpose
from qir.rewrite.axis_permutation import (
    LAYOUTS,
    SPATIAL,
    Perm,
    composed,
    inverse,
    is_identity,
    perm_to,
    permuted_array,
    permuted_element,
    permuted_lineage,
    permuted_op,
    permuted_type,
)
from qir.rewrite.resize_axes import name_axes
from qir.rewrite.runner.filter import may


@dataclass(eq=False)
class _Region:
    """Nodes that are permuted together or not at all."""

    nodes: list[Node] = field(default_factory=list)
    must: bool = False


@dataclass
class PermutedRegions:
    """Permutes regions of a graph to a layout."""

    graph: Graph
    name: str
    """The pass that it is done for."""
    to: str
    ledger: Ledger
    required: frozenset[Node] | None = None
    """The nodes to permute, all of them; None: those that need fewer transposes then."""
    slots: dict[Node, frozenset[str]] = field(default_factory=dict)
    """The operands that are permuted with a node, for nodes that can be."""
    permuted_values: dict[Value, Perm] = field(default_factory=dict)
    """The permuted values, each with its permutation."""
    brought: dict[tuple[Value, Perm], Value] = field(default_factory=dict)
    added_transposes: set[Node] = field(default_factory=set)
    """Transposes that this run has made."""

    def run(self) -> int:
        self.slots = self.turnable()
        regions, is_required = self._regions(), self.required is not None
        # A region with a convolution is always permuted; others only where that saves transposes.
        chosen = [
            r
            for r in regions
            if (is_required or r.must or self._removed_transposes(r) > 0) and self._may(r)
        ]
        if not chosen:
            return 0
        chosen_nodes = {node for region in chosen for node in region.nodes}
        self.slots = {node: slots for node, slots in self.slots.items() if node in chosen_nodes}
        nodes = sorted(chosen_nodes)
        for node in nodes:
            name_axes(self.graph, node)
        for value in (v for node in nodes for v in node.results):
            self.permuted_values[value] = self._perm(value.type.rank)
        removable = {
            v.node for n in nodes for slot, v in n.operands.items() if slot in self.slots[n]
        }
        nodes = [self._turn(node) for node in nodes]
        for node in nodes:
            for value in node.results:
                removable |= self._restore_readers(value)
        self._clear(removable)
        return len(nodes)

    def _perm(self, rank: int) -> Perm:
        return perm_to(self.to, rank)

    # -- choosing regions -------------------------------------------------------------------------

    def turnable(self) -> dict[Node, frozenset[str]]:
        """Returns the nodes that can be permuted, each with the slots that are permuted with it.

        Only `required` nodes, if these are given.
        """
        candidates = (n for n in self.graph if self.required is None or n in self.required)
        return {node: slots for node in candidates if (slots := self._slots(node))}

    def _slots(self, node: Node) -> frozenset[str]:
        """Returns the slots that are permuted with a node; none where it cannot be."""
        if not node.results or node.bodies or node.op in ("transpose", "input", "constant"):
            return frozenset()
        attrs = (node.attrs, *(stage.attrs for stage in node.stages))
        if any(held.get("layout") == self.to.upper() for held in attrs):
            return frozenset()
        # Below three axes there is no layout of channels.
        ranks = {value.type.rank for value in node.results}
        if len(ranks) > 1 or min(ranks) < 3:
            return frozenset()
        perm = self._perm(ranks.pop())
        permuted = _permuted_slots(node, perm) if node.stages else None
        if not node.stages and (moved := permuted_op(node.op, node.attrs, node.operands, perm)):
            permuted = moved.slots
        if not permuted or any(permuted_type(v.type, perm) is None for v in node.results):
            return frozenset()
        inner = [
            permuted_element(element, node.result.type, perm) for element in node.inner.values()
        ]
        operands = [node.operands[slot] for slot in permuted]
        fits = None not in inner and all(_is_turnable_operand(value, perm) for value in operands)
        return frozenset(permuted) if fits else frozenset()

    def _regions(self) -> list[_Region]:
        """Returns the nodes that can be permuted, in parts that share no permuted value."""
        parents: dict[Node, Node] = {node: node for node in self.slots}

        def root(node: Node) -> Node:
            while parents[node] is not node:
                # Union-find with path halving.
                parents[node] = parents[parents[node]]
                node = parents[node]
            return node

        for node, slots in self.slots.items():
            for slot in slots:
                producer = node.operands[slot].node
                if producer in parents:
                    parents[root(node)] = root(producer)
        regions: dict[Node, _Region] = {}
        for node in self.slots:
            region = regions.setdefault(root(node), _Region())
            region.nodes.append(node)
            ops = {node.op, *(stage.op for stage in node.stages)}
            region.must = region.must or not ops.isdisjoint(SPATIAL)
        return list(regions.values())

    def _may(self, region: _Region) -> bool:
        return may(self.name, self.to, *region.nodes)

    def _removed_transposes(self, region: _Region) -> int:
        """Returns how many transposes fewer there would be."""
        inside, gain = set(region.nodes), 0
        incoming = {n.operands[s] for n in region.nodes for s in self.slots[n]}
        for value in incoming:
            rank = value.type.rank
            if value.node in inside or value.constant is not None or not rank:
                continue
            order = self._perm(rank)
            reshape = reshape_without_transpose(value, order)
            # An operand from outside costs a transpose, unless it comes from one that is undone by
            # it.
            gain -= not (_undoes(value, order) or (reshape and is_identity(reshape.perm)))
            if value.node.op == "transpose":
                gain += all(self._turns_inside(use, inside) for use in value.uses)
        for value in (v for node in region.nodes for v in node.results):
            outside_uses = [use for use in value.uses if not self._turns_inside(use, inside)]
            transposes = [use.node for use in outside_uses if use.node.op == "transpose"]
            perm = self._perm(value.type.rank)
            gain += sum(transpose.attrs["perm"] == perm for transpose in transposes)
            others = [use for use in outside_uses if use.node.op != "transpose"]
            # Readers outside share one transpose, and need none if it can pass all of them.
            gain -= bool(others) and plan(others, inverse(perm)) is None
        return gain

    def _turns_inside(self, use: Use, inside: Iterable[Node]) -> bool:
        return use.node in inside and use.slot in self.slots[use.node]

    # -- permuting --------------------------------------------------------------------------------

    def _turn(self, node: Node) -> Node:
        """Permutes one node after its producers; returns the node that replaces it."""
        slots = self.slots[node]
        for slot in slots:
            value = node.operands[slot]
            if value not in self.permuted_values:
                self.graph.set_operand(node, slot, self._permuted_operand(value, node))
        perm = self._perm(node.results[0].type.rank)
        if any(op in SPATIAL for op in (node.op, *(stage.op for stage in node.stages))):
            message = f"computed as {self.to.upper()}"
            self.ledger.add(Change.REGROUPED, self.name, node.name, message)
        if node.stages:
            return self._turn_chain(node, perm)
        moved = permuted_op(node.op, node.attrs, node.operands, perm)
        assert moved is not None
        if dict(moved.attrs) != dict(node.attrs):
            self.graph.set_attrs(node, **moved.attrs)
        for slot, element in list(node.inner.items()):
            inner_element = permuted_element(element, node.result.type, perm)
            assert inner_element is not None
            self.graph.set_inner(node, slot, inner_element)
        for value in node.results:
            tensor_type = permuted_type(value.type, perm)
            assert tensor_type is not None
            self.graph.set_type(value, tensor_type)
            self.graph.set_lineage(value, permuted_lineage(value.lineage, perm))
        return node

    def _turn_chain(self, node: Node, perm: Perm) -> Node:
        old = node.result
        tensor_type = permuted_type(old.type, perm)
        assert tensor_type is not None
        stages = []
        for i, stage in enumerate(node.stages):
            stage_operands: dict[str, Value | None] = dict(node.stage_operands(i))
            if stage.flow:
                stage_operands[stage.flow] = None
            moved = permuted_op(stage.op, stage.attrs, stage_operands, perm)
            assert moved is not None
            inner = None if stage.type is None else permuted_type(stage.type, perm)
            stages.append(replace(stage, attrs=moved.attrs, type=inner))
        new_chain = self.graph.add_chain(
            stages,
            node.operands,
            tensor_type,
            before=node,
            origins=node.origins,
            profile=node.profile,
        )
        # The new chain takes over the origins and schemes of the old one.
        for slot, origins in node.slot_origins.items():
            self.graph.set_slot_origins(new_chain, slot, origins)
        for slot, scheme in node.schemes.items():
            self.graph.set_scheme(new_chain, slot, scheme)
        self.graph.substitute(node, new_chain.result)
        self.graph.set_lineage(new_chain.result, permuted_lineage(old.lineage, perm))
        self.slots[new_chain] = self.slots.pop(node)
        self.permuted_values[new_chain.result] = perm
        return new_chain

    def _permuted_operand(self, value: Value, user: Node) -> Value:
        """Returns a value from outside the region, permuted."""
        if value.type.rank == 0:
            return value
        perm = self._perm(max(value.type.rank, user.results[0].type.rank))
        existing = self.brought.get((value, perm))
        if existing is None:
            existing = self.brought[value, perm] = self._bring_into_layout(value, perm, user)
        return existing

    def _bring_into_layout(self, value: Value, perm: Perm, user: Node) -> Value:
        lineage = permuted_lineage(value.lineage, perm)
        if value.constant is not None:
            array = permuted_array(value.constant, perm)
            assert array is not None
            constant = self.graph.add(
                "constant",
                {},
                {**value.node.attrs, "data": array},
                name=f"{value.name}.{self.to}",
                before=user,
                origins=value.node.origins,
            ).result
            self.graph.set_lineage(constant, lineage)
            return constant
        x = value
        if value.node.op == "transpose" and not value.node.schemes:
            x = value.node.operands["x"]
            # Two transposes in a row become one, or none.
            perm = composed(_perm_of(value.node), perm)
            if x in self.permuted_values:
                perm = composed(inverse(self.permuted_values[x]), perm)
        if is_identity(perm):
            return x
        constant = self.graph.add(
            "transpose", {"x": x}, {"perm": perm}, name=f"{value.name}.{self.to}", before=user
        ).result
        self.graph.set_lineage(constant, lineage)
        self.added_transposes.add(constant.node)
        return constant

    def _restore_readers(self, value: Value) -> set[Node]:
        """Gives those outside what they read before; gives transposes that nobody needs now."""
        perm, graph = inverse(self.permuted_values[value]), self.graph
        restored, removable = None, set[Node]()
        for node, slot in sorted(value.uses, key=lambda use: use.node):
            if node in self.added_transposes or slot in self.slots.get(node, ()):
                continue
            if node.op == "transpose" and not node.schemes:
                combined = composed(perm, _perm_of(node))
                if is_identity(combined):
                    graph.replace(node.result, value)
                    removable.add(node)
                else:
                    graph.set_attrs(node, perm=combined)
                continue
            if restored is None:
                other = next(name for name in LAYOUTS if name != self.to)
                name, attrs = f"{value.name}.{other}", {"perm": perm}
                restored = graph.add(
                    "transpose", {"x": value}, attrs, name=name, before=node
                ).result
                graph.set_lineage(restored, permuted_lineage(value.lineage, perm))
                self.added_transposes.add(restored.node)
            graph.set_operand(node, slot, restored)
        return removable

    def _clear(self, removable: set[Node]) -> None:
        """Takes out transposes and constants that nobody reads any more."""
        while removable:
            node = removable.pop()
            if node in self.graph and node.op in ("transpose", "constant") and not node.used:
                removable |= {value.node for value in node.operands.values()}
                self.graph.remove(node)


def _perm_of(node: Node) -> Perm:
    perm = node.attrs["perm"]
    assert isinstance(perm, tuple)
    return tuple(axis for axis in perm if isinstance(axis, int))


def _undoes(value: Value, perm: Perm) -> bool:
    """Returns whether permuting a value undoes the transpose that produced it."""
    return value.node.op == "transpose" and _perm_of(value.node) == inverse(perm)


def _is_turnable_operand(value: Value, perm: Perm) -> bool:
    """Returns whether an operand's type says what it is with its axes in another order."""
    rank = value.type.rank
    if rank == len(perm):
        return permuted_type(value.type, perm) is not None
    return value.type.quant is None or value.type.quant.granularity is None


def _permuted_slots(node: Node, perm: Perm) -> frozenset[str] | None:
    """Returns the slots that are permuted with a group; None unless all of its stages can be."""
    slots = set[str]()
    for i, stage in enumerate(node.stages):
        stage_operands: dict[str, Value | None] = dict(node.stage_operands(i))
        if stage.flow:
            stage_operands[stage.flow] = None
        moved = permuted_op(stage.op, stage.attrs, stage_operands, perm)
        if moved is None or (stage.flow and stage.flow not in moved.slots):
            return None
        if stage.type is not None and permuted_type(stage.type, perm) is None:
            return None
        names = zip(stage.slots, stage.group_slots(i), strict=True)
        slots |= {name for slot, name in names if slot in moved.slots}
    return frozenset(slots)
