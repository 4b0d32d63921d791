"""Float ops that a runtime computes as one kernel once its inputs and outputs are quantized."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qir.analysis.activations import fused_activations
from qir.ir.attrs import same
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Use, Value
from qir.ir.ops import spec
from qir.ir.ops.layers import INTEGER_SUM_LAYERS
from qir.profiles import Profile
from qir.profiles.conditions import conditions
from qir.profiles.profile import GroupEntry, When
from qir.records import record
from qir.rewrite.fusing import INDEX_SLOTS, NORM_SLOTS, ChainMatch, bias_slot
from qir.rewrite.linear_layers import adds_row, knows_linear, plain_product


@record
class KernelGroup:
    """A chain of float ops, and the profile's group entry that makes it one quantized kernel."""

    ops: tuple[Node, ...]
    chain: tuple[str, ...]
    """The ops as the profile names them: a product and the add of its bias are one `linear`."""
    entry: GroupEntry | None = None
    """None where a target's table has the chain."""

    @property
    def anchor(self) -> Node:
        """The first op, such as the convolution."""
        return self.ops[0]

    @property
    def last(self) -> Node:
        """The op whose result is the kernel's result."""
        return self.ops[-1]

    def summands(self) -> Iterator[tuple[Node, str]]:
        """Yields the later ops that add another tensor, each with the slot of that tensor."""
        first = 1 + self.biased
        for before, node in zip(self.ops[first - 1 :], self.ops[first:], strict=False):
            for slot, value in node.operands.items():
                if value is not before.result:
                    yield node, slot

    @property
    def biased(self) -> bool:
        """Whether the second op adds the bias of the first."""
        return len(self.ops) > len(self.chain)


def is_float(graph: Graph) -> bool:
    """Returns whether nothing in a graph is quantized."""
    return not any(v.type.quant for _, body in graph.walk() for v in body.values.values())


def find_kernel_groups(graph: Graph, profile: Profile) -> list[KernelGroup]:
    """Returns the kernels of a float graph, in the order of their anchors; each op is in one.

    Conditions on quantized types are assumed to hold. A chain ends where another op reads an inner
    value. If a sum adds two products, the kernel of its first operand takes the sum.
    """
    finder = _KernelFinder(profile)
    for node in graph:
        finder.add_kernel_of(node)
    return finder.groups


def no_kernel_reason(node: Node, profile: Profile) -> str:
    """Returns why no kernel begins with an op; empty where one does."""
    finder = _KernelFinder(profile)
    return "" if finder.add_kernel_of(node) else finder.reason(node)


def wrap_as_group(graph: Graph, ops: Sequence[Node]) -> Node:
    """Replaces a chain of float ops by one group."""
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
    group = graph.add_chain(
        stages,
        operands,
        last.result.type,
        before=last,
        origins=[origin for node in ops for origin in node.origins],
        profile=ops[0].profile,
    )
    graph.substitute(last, group.result, gone=reversed(ops[:-1]))
    return group


def unwrap_group(graph: Graph, group: Node) -> None:
    """Replaces a group of float ops by the ops."""
    result = group.result
    # The last op takes over the name and lineage, by which statistics find the tensor.
    name, lineage = result.name, result.lineage
    graph.rename(result, graph.fresh(f"{name}.group"))
    flow: Value | None = None
    for i, stage in enumerate(group.stages):
        operands = dict(group.stage_operands(i))
        if stage.flow is not None and flow is not None:
            operands[stage.flow] = flow
        # Operands come in the order of the op's slots, as when the op was first added.
        order = [s.name for s in spec(stage.op).operands]
        operands = {s: operands[s] for s in sorted(operands, key=lambda s: _slot_order(s, order))}
        is_last = i == len(group.stages) - 1
        flow = graph.add(
            stage.op,
            operands,
            stage.attrs,
            types=[result.type] if is_last else None,
            name=name if is_last else _stage_name(graph, stage, name),
            before=group,
            origins=stage.origins,
            profile=group.profile,
        ).result
    assert flow is not None
    graph.replace(result, flow)
    graph.remove(group)
    graph.set_lineage(flow, lineage)


def _slot_order(slot: str, order: Sequence[str]) -> tuple[int, str]:
    return order.index(slot.split(".")[0]), slot


def _stage_name(graph: Graph, stage: Stage, of: str) -> str:
    return graph.fresh(stage.name or f"{of}.{stage.op}")


def is_float_group(node: Node) -> bool:
    """Returns whether a node is a group without quantized types."""
    values = (*node.operands.values(), *node.results)
    types = [v.type for v in values] + [s.type for s in node.stages if s.type]
    return bool(node.stages) and not any(t.quant for t in types)


class _KernelFinder:
    """Finds the longest kernel of each op in graph order; grouped ops are not used again."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.activations = fused_activations(profile)
        self.knows_linear = knows_linear(profile)
        self.grouped: set[Node] = set()
        self.groups: list[KernelGroup] = []

    def add_kernel_of(self, node: Node) -> bool:
        """Adds the longest kernel that begins with an op; returns whether there is one."""
        if node in self.grouped or node.op in _NOT_COMPUTED or node.schemes or node.stages:
            return False
        longest = max(self._candidates(node), key=lambda k: len(k.ops), default=None)
        if longest is None:
            return False
        self.grouped.update(longest.ops)
        self.groups.append(longest)
        return True

    def reason(self, node: Node) -> str:
        """Returns why no kernel begins with an op."""
        op, start = self._start(node)
        entries = [g for g in self.profile.groups if g.chain[0] == op]
        if not entries:
            joined = next((g.chain for g in self.profile.groups if op in g.chain), ())
            position = f" but after another op, as {' |> '.join(joined)}" if joined else ""
            return f"no group of {self.profile.name} takes it{position}"
        if reason := _unfit_reason(start):
            return reason
        if not any(g.chain == (op,) for g in entries):
            return f"no group of {self.profile.name} is {op}, and nothing joins it"
        match = ChainMatch(start, dict(node.operands), None)
        return next(reason for g in entries if (reason := self._unmet_condition(g, op, match)))

    def _start(self, node: Node) -> tuple[str, tuple[Node, ...]]:
        """Returns the profile's name of an op, and the ops that it covers.

        A runtime with `linear` takes a gemm, or a matmul with the add of a constant bias, as one.
        """
        if self.knows_linear and node.op in ("gemm", "matmul") and plain_product(node, real=True):
            bias_add = adds_row(node, real=True)
            is_grouped = bias_add is None or bias_add in self.grouped
            return "linear", (node,) if bias_add is None or is_grouped else (node, bias_add)
        return node.op, (node,)

    def _candidates(self, node: Node) -> Iterator[KernelGroup]:
        """Yields the kernels that begin with an op, shortest first."""
        op, ops = self._start(node)
        if _unfit_reason(ops):
            return
        match = ChainMatch(ops, dict(node.operands), None)
        chain: tuple[str, ...] = (op,)
        while True:
            if entry := self._matching_entry(chain, op, match):
                yield KernelGroup(ops, chain, entry)
            use = ops[-1].result.only_use
            if use is None or not self._can_join(use, op, chain):
                return
            ops, chain = (*ops, use.node), (*chain, use.node.op)

    def _matching_entry(
        self, chain: tuple[str, ...], op: str, match: ChainMatch
    ) -> GroupEntry | None:
        entries = [g for g in self.profile.groups if g.chain == chain]
        # Several entries may have one chain. Those with quantized results are tried first, since a
        # quantized model has them wherever a quantize follows.
        entries.sort(key=lambda g: g.result == "real")
        return next((g for g in entries if not self._unmet_condition(g, op, match)), None)

    def _unmet_condition(self, entry: GroupEntry, op: str, match: ChainMatch) -> str:
        """Returns the first unmet condition of a group entry that needs no quantized types."""
        # The attributes of a gemm are not those of the `linear` that the entry speaks of.
        attrs = {} if op != match.anchor.op else match.anchor.attrs
        for name, value in entry.when.attrs.items():
            if name not in attrs or not same(attrs[name], value):
                return f"{name} is not {value!r}"
        if not _fits_processor(entry.when, self.profile.isa):
            return "the profile's condition on processors is not met"
        needed = (conditions()[need] for need in entry.needs)
        unmet = (one for one in needed if not one.of_types and not one.met(match))
        return next((f"needs that {one.description}" for one in unmet), "")

    def _can_join(self, use: Use, op: str, chain: tuple[str, ...]) -> bool:
        """Returns whether a reader may be fused: an activation, or the add after a product."""
        node, value = use.node, use.node.operands[use.slot]
        if (
            node in self.grouped
            or node.schemes
            or node.stages
            or node.profile != value.node.profile
        ):
            return False
        if len(node.results) != 1 or node.result.type != value.type:
            return False
        if node.op in self.activations:
            return True
        if node.op != "add" or op not in INTEGER_SUM_LAYERS or len(chain) > 1:
            return False
        # If both operands of the add are products, the kernel of operand `a` takes the add.
        other = node.operands["b" if use.slot == "a" else "a"]
        return other.type == value.type and not (use.slot == "b" and self._could_take_sum(other))

    def _could_take_sum(self, value: Value) -> bool:
        """Returns whether a product's kernel makes a value and could fuse the add that reads it."""
        node = value.node
        if value.only_use is None or node in self.grouped or node.schemes or node.stages:
            return False
        if node.op == "add":
            products = (v.node for v in node.operands.values() if v.node.op in INTEGER_SUM_LAYERS)
            node = next((n for n in products if self._start(n)[1][-1] is node), node)
        op, ops = self._start(node)
        known = any(g.chain[:2] == (op, "add") for g in self.profile.groups)
        return (
            ops[-1] is value.node and op in INTEGER_SUM_LAYERS and known and not _unfit_reason(ops)
        )


_NOT_COMPUTED = frozenset({"input", "constant", "output", "foreign"})


def _fits_processor(when: When, isa: str) -> bool:
    return not when.isa or isa in when.isa


def _unfit_reason(ops: tuple[Node, ...]) -> str:
    """Returns why an op cannot have quantized operands and result; empty where it can."""
    node = ops[0]
    if node.bodies or node.inner or len(node.results) != 1:
        return "it is no op with one result"
    for slot, value in node.operands.items():
        if (node.op, slot) in INDEX_SLOTS:
            continue
        if bias_slot(node.op) == slot or slot in NORM_SLOTS:
            if value.constant is None:
                return f"{slot} is computed"
        elif value.type.element != F32:
            return f"{slot} is {value.type.element}, not f32"
    last = ops[-1].result.type
    return "" if last.element == F32 else f"its result is {last.element}, not f32"


__all__ = [
    "KernelGroup",
    "find_kernel_groups",
    "is_float",
    "is_float_group",
    "no_kernel_reason",
    "unwrap_group",
    "wrap_as_group",
]
