"""Float ops that a runtime computes as one kernel once its inputs and outputs are quantized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from qir.analysis.activations import tails_of
from qir.ir.attrs import same
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Use, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.profiles import Profile
from qir.profiles.conditions import conditions
from qir.profiles.profile import GroupEntry as Row
from qir.profiles.profile import When
from qir.rewrite.fusing import NUMBERS, PLAIN, ChainMatch, bias_of
from qir.rewrite.linear_layers import adds_row, knows_linear, plain_product


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Real ops in a row, and the row of a profile that says they are one quantized kernel."""

    ops: tuple[Node, ...]
    chain: tuple[str, ...]
    """As the profile names them: a product and the add of its bias are one linear layer."""
    row: Row | None = None
    """None where a target's table has the chain."""

    @property
    def head(self) -> Node:
        """The op that computes."""
        return self.ops[0]

    @property
    def last(self) -> Node:
        """The op whose result the kernel makes."""
        return self.ops[-1]

    def summands(self) -> Iterator[tuple[Node, str]]:
        """Yields the ops after the first, each with the slot of the tensor that it adds."""
        first = 1 + self.biased
        for before, node in zip(self.ops[first - 1 :], self.ops[first:], strict=False):
            for slot, value in node.operands.items():
                if value is not before.result:
                    yield node, slot

    @property
    def biased(self) -> bool:
        """Whether the second op adds the bias of the layer that the first one is."""
        return len(self.ops) > len(self.chain)


def is_float(graph: Graph) -> bool:
    """Returns whether nothing in a graph is quantized."""
    return not any(v.type.quant for _, body in graph.walk() for v in body.values.values())


def kernels(graph: Graph, profile: Profile) -> list[KernelGroup]:
    """Returns the kernels of a float graph, in the order of what computes in them, each op in one.

    Conditions on quantized values are taken to hold. A row ends where somebody else reads what is
    between; of two products that one sum adds, its first operand's takes the sum.
    """
    found = _Found(profile)
    for node in graph:
        found.take(node)
    return found.made


def lacking(node: Node, profile: Profile) -> str:
    """Returns why an op heads no kernel; empty where it does."""
    found = _Found(profile)
    return "" if found.take(node) else found.why(node)


def wrap(graph: Graph, ops: Sequence[Node]) -> Node:
    """Makes one group of float ops in a row."""
    last = ops[-1]
    stages: list[Stage] = []
    operands: dict[str, Value] = {}
    before: Value | None = None
    for i, node in enumerate(ops):
        own = {slot: v for slot, v in node.operands.items() if v is not before}
        flow = next((slot for slot, v in node.operands.items() if v is before), None)
        stage = Stage(node.op, node.attrs, tuple(own), flow, None, node.name, node.origins)
        operands |= zip(stage.group_slots(i), own.values(), strict=True)
        stages.append(stage)
        before = node.result
    made = graph.add_chain(
        stages,
        operands,
        last.result.type,
        before=last,
        origins=[origin for node in ops for origin in node.origins],
        profile=ops[0].profile,
    )
    graph.substitute(last, made.result, gone=reversed(ops[:-1]))
    return made


def unwrap(graph: Graph, group: Node) -> None:
    """Puts the ops of a group of floats in its place."""
    result = group.result
    name, lineage = result.name, result.lineage
    graph.rename(result, graph.fresh(f"{name}.group"))
    flow: Value | None = None
    for i, stage in enumerate(group.stages):
        operands = dict(group.stage_operands(i))
        if stage.flow is not None and flow is not None:
            operands[stage.flow] = flow
        order = [s.name for s in spec(stage.op).operands]
        operands = {s: operands[s] for s in sorted(operands, key=lambda s: _place(s, order))}
        end = i == len(group.stages) - 1
        flow = graph.add(
            stage.op,
            operands,
            stage.attrs,
            types=[result.type] if end else None,
            name=name if end else _name(graph, stage, name),
            before=group,
            origins=stage.origins,
            profile=group.profile,
        ).result
    assert flow is not None
    graph.replace(result, flow)
    graph.remove(group)
    graph.set_lineage(flow, lineage)


def _place(slot: str, order: Sequence[str]) -> tuple[int, str]:
    return order.index(slot.split(".")[0]), slot


def _name(graph: Graph, stage: Stage, of: str) -> str:
    return graph.fresh(stage.name or f"{of}.{stage.op}")


def of_reals(node: Node) -> bool:
    """Returns whether a node is a group of ops that compute with floats alone."""
    values = (*node.operands.values(), *node.results)
    types = [v.type for v in values] + [s.type for s in node.stages if s.type]
    return bool(node.stages) and not any(t.quant for t in types)


class _Found:
    """Kernels as they are found, one op after the other."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.tails = tails_of(profile)
        self.layers = knows_linear(profile)
        self.taken: set[Node] = set()
        self.made: list[KernelGroup] = []

    def take(self, node: Node) -> bool:
        """Takes the kernel that an op heads, the longest there is; says whether it heads one."""
        if node in self.taken or node.op in _STRUCTURE or node.schemes or node.stages:
            return False
        found = max(self._rows(node), key=lambda k: len(k.ops), default=None)
        if found is None:
            return False
        self.taken.update(found.ops)
        self.made.append(found)
        return True

    def why(self, node: Node) -> str:
        """Returns why no row begins with an op."""
        op, start = self._start(node)
        heads = [g for g in self.profile.groups if g.chain[0] == op]
        if not heads:
            joined = next((g.chain for g in self.profile.groups if op in g.chain), ())
            behind = f" but after another op, as {' |> '.join(joined)}" if joined else ""
            return f"no group of {self.profile.name} takes it{behind}"
        if told := _unfit(start):
            return told
        if not any(g.chain == (op,) for g in heads):
            return f"no group of {self.profile.name} is {op}, and nothing joins it"
        match = ChainMatch(start, dict(node.operands), None)
        return next(told for g in heads if (told := self._refused(g, op, match)))

    def _start(self, node: Node) -> tuple[str, tuple[Node, ...]]:
        """Returns what a profile calls an op, and the ops that this is."""
        if self.layers and node.op in ("gemm", "matmul") and plain_product(node, real=True):
            behind = adds_row(node, real=True)
            taken = behind is None or behind in self.taken
            return "linear", (node,) if behind is None or taken else (node, behind)
        return node.op, (node,)

    def _rows(self, node: Node) -> Iterator[KernelGroup]:
        """Yields the kernels that begin with an op."""
        op, ops = self._start(node)
        if _unfit(ops):
            return
        match = ChainMatch(ops, dict(node.operands), None)
        chain: tuple[str, ...] = (op,)
        while True:
            if row := self._row(chain, op, match):
                yield KernelGroup(ops, chain, row)
            use = ops[-1].result.only_use
            if use is None or not self._joins(use, op, chain):
                return
            ops, chain = (*ops, use.node), (*chain, use.node.op)

    def _row(self, chain: tuple[str, ...], op: str, match: ChainMatch) -> Row | None:
        named = [g for g in self.profile.groups if g.chain == chain]
        named.sort(key=lambda g: g.result == "real")
        return next((g for g in named if not self._refused(g, op, match)), None)

    def _refused(self, row: Row, op: str, match: ChainMatch) -> str:
        """Returns which condition of a group is not met, of those that no integers are asked
        for."""
        attrs = {} if op != match.head.op else match.head.attrs
        for name, value in row.when.attrs.items():
            if name not in attrs or not same(attrs[name], value):
                return f"{name} is not {value!r}"
        if not _processor(row.when, self.profile.isa):
            return "the profile's condition on processors is not met"
        asked = (conditions()[need] for need in row.needs)
        lacks = (one for one in asked if not one.of_types and not one.met(match))
        return next((f"needs that {one.said}" for one in lacks), "")

    def _joins(self, use: Use, op: str, chain: tuple[str, ...]) -> bool:
        """Returns whether a reader may be a later op of a row: an activation, or a sum with a
        product."""
        node, value = use.node, use.node.operands[use.slot]
        if node in self.taken or node.schemes or node.stages or node.profile != value.node.profile:
            return False
        if len(node.results) != 1 or node.result.type != value.type:
            return False
        if node.op in self.tails:
            return True
        if node.op != "add" or op not in INTEGER_SUM_LAYERS or len(chain) > 1:
            return False
        other = node.operands["b" if use.slot == "a" else "a"]
        return other.type == value.type and not (use.slot == "b" and self._sums(other))

    def _sums(self, value: Value) -> bool:
        """Returns whether a product makes a value and could take the sum that alone reads it."""
        node = value.node
        if value.only_use is None or node in self.taken or node.schemes or node.stages:
            return False
        if node.op == "add":
            made = (v.node for v in node.operands.values() if v.node.op in INTEGER_SUM_LAYERS)
            node = next((n for n in made if self._start(n)[1][-1] is node), node)
        op, ops = self._start(node)
        known = any(g.chain[:2] == (op, "add") for g in self.profile.groups)
        return ops[-1] is value.node and op in INTEGER_SUM_LAYERS and known and not _unfit(ops)


_STRUCTURE = frozenset({"input", "constant", "output", "foreign"})


def _processor(when: When, isa: str) -> bool:
    return not when.isa or isa in when.isa


def _unfit(ops: tuple[Node, ...]) -> str:
    """Returns why an op's operands could not all be quantized, or what may stay float; empty where
    they can."""
    node = ops[0]
    if node.bodies or node.inner or len(node.results) != 1:
        return "it is no op with one result"
    for slot, value in node.operands.items():
        if (node.op, slot) in PLAIN:
            continue
        if bias_of(node.op) == slot or slot in NUMBERS:
            if value.constant is None:
                return f"{slot} is computed"
        elif value.type.element != F32:
            return f"{slot} is {value.type.element}, not f32"
    last = ops[-1].result.type
    return "" if last.element == F32 else f"its result is {last.element}, not f32"


__all__ = ["KernelGroup", "is_float", "kernels", "lacking", "of_reals", "unwrap", "wrap"]
