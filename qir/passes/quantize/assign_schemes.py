"""Decides what will be stored as integers, and writes the schemes on slots.

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.5, -1.0]) : 1x3xf32
      %m = linear(%x, %w) : 2x1xf32
      %r = relu(%m) : 2x1xf32
      output(y=%r)
    }

By `assign-schemes` it becomes:

    graph main as native {
      %x = input() : 2x3xf32
      %w = constant([1.0, 0.5, -1.0]) : 1x3xf32
      %m = linear(%x, %w) : 2x1xf32
          plan {w = "i8<-127:127> symmetric channel minmax",
          x = "u8 affine tensor minmax"}
      %r = relu(%m) : 2x1xf32 plan {result = "u8 affine tensor minmax"}
      output(y=%r)
    }

The target here computes linear and relu in one integer kernel. Every value that an integer op makes
or reads is stored. Slots of one stored value, and slots that an op requires to have one
quantized type, form a share set with one scheme. Schemes are matched against the target's table;
every op that stays float has a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Literal

from qir.analysis.activations import why_cut
from qir.analysis.decisions import ALREADY, WITHIN, Decision, GraphFacts, Plan
from qir.analysis.existing_types import before_codes, held_map, kept, leaves_out, settled, takes
from qir.analysis.kernel_groups import KernelGroup, kernels
from qir.analysis.kernel_table import kernel_table
from qir.analysis.masks import masks, merged, of_text, told, with_text
from qir.analysis.obstacles import form_obstacle
from qir.analysis.quantized_regions import coded, decoded
from qir.analysis.sensitive_values import explain, sensitive
from qir.analysis.signs import by_ops
from qir.analysis.target_chains import target_chains
from qir.analysis.user_rules import Wish, fitted
from qir.calibration import parse_rule
from qir.capability import Capability, OpCapability, no_row
from qir.errors import SchemeError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import CONVERSION_OPS, STRUCTURAL_OPS, quantized_nodes
from qir.ir.scheme import RESULT, Scheme
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.profiles import profile, profile_names, resolve_profile_name
from qir.query.display import op_name, why_foreign
from qir.rewrite import Pass, Tolerance
from qir.rewrite.runner.options import option
from qir.target import target


def read_capability(name: str | list[str]) -> Capability:
    """Reads the table of a target, or of the kernels of a profile, by name."""
    if str(name) in profile_names():
        return kernel_table(profile(str(name)))
    return target(str(name)).capability()


def write_capability(table: object) -> str:
    """Returns the name of a table."""
    return table.name if isinstance(table, Capability) else ""


def _range(text: str | list[str]) -> str:
    parse_rule(str(text))
    return str(text)


def _texts(wishes: object) -> list[str]:
    return [w.text for w in wishes if isinstance(w, Wish)] if isinstance(wishes, tuple) else []


def _wishes(texts: str | list[str]) -> tuple[Wish, ...]:
    return tuple(map(Wish.parse, [texts] if isinstance(texts, str) else texts))


@dataclass(frozen=True)
class AssignSchemes(Pass):
    """Writes on each slot the scheme that a target file asks for."""

    name = "assign-schemes"
    nested = False
    tolerance = Tolerance(why="it writes plans; no number moves")
    capability: Capability = field(
        default_factory=lambda: Capability("none", {}),
        metadata=option(name="target", read=read_capability, write=write_capability, kind="target"),
    )
    """What the target takes in integers, or the kernels of a profile."""
    granularity: Literal["channel", "tensor"] = "channel"
    """What one scale of a weight stands for."""
    wishes: tuple[Wish, ...] = field(
        default=(), metadata=option(name="rules", read=_wishes, write=_texts, kind="list of rule")
    )
    """The user's rules, such as "op=softmax: float"; the last that speaks of a slot wins."""
    range_rule: str = field(default="minmax", metadata=option(name="range", read=_range))
    """The range rule of slots for which neither table nor user names one."""
    groups: str = field(default="", metadata=option(kind="profile"))
    """The profile whose kernels get no quantized values inside; empty: the target's own chains."""
    masks: tuple[tuple[str, float], ...] = field(
        default=(), metadata=option(read=of_text, write=with_text, kind="list of number and value")
    )
    """Values in which calibration saw numbers of a mask, each after the least of these; after 0
    those in which a constant puts numbers that are none next to what it saw."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "groups", resolve_profile_name(self.groups))

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Returns a product and an activation, for QIR's own kernels."""
        text = (
            "graph main as native {\n  %x = input() : 2x3xf32\n"
            "  %w = constant([1.0, 0.5, -1.0]) : 1x3xf32\n  %m = linear(%x, %w) : 2x1xf32\n"
            "  %r = relu(%m) : 2x1xf32\n  output(y=%r)\n}\n"
        )
        yield cls(read_capability("cpu")), parse(text)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = kernels(graph, profile(self.groups)) if self.groups else None
        _, schemes = assign(
            graph, self.capability, self.granularity, self.wishes, found, self.masks
        )
        count = 0
        for node, slots in schemes.items():
            for slot, scheme in slots.items():
                rule = self.range_rule if scheme.range == "minmax" else scheme.range
                wanted = replace(scheme, range=rule)
                if node.schemes.get(slot) != wanted:
                    graph.set_scheme(node, slot, wanted)
                    count += 1
        if count:
            self._tell(found or (), schemes, ledger)
        return count

    def _tell(self, found: Iterable[KernelGroup], schemes: Schemes, ledger: Ledger) -> None:
        """Says which kernels of another profile the target does not have."""
        for kernel in found:
            ops, planned = tuple(n.op for n in kernel.ops), schemes.get(kernel.last, {})
            if len(ops) > 1 and RESULT in planned and not self.capability.chain(ops):
                said = f"{' |> '.join(ops)} as {self.groups} has it, "
                said += "float between quantized values: "
                said += f"{self.capability.name} has no such kernel"
                ledger.add(Change.REGROUPED, self.name, kernel.last.name, said)


Schemes = dict[Node, dict[str, Scheme]]
"""The schemes of every node's slots."""


def assign(
    graph: Graph,
    capability: Capability,
    granularity: str = "channel",
    wishes: Iterable[Wish] = (),
    rows: Iterable[KernelGroup] | None = None,
    seen: Iterable[tuple[str, float]] = (),
) -> tuple[Plan, Schemes]:
    """Returns the plan, and the scheme of every slot; raises SchemeError where wishes cannot hold
    together.

    Kernels are the target's chains, unless `rows` says which ones there are. `seen` are values that
    hold numbers of a mask, next to those that the graph's constants put there, and (after 0) values
    in which these are none.
    """
    low = {graph.values[name]: least for name, least in seen if name in graph.values}
    asked = tuple(wishes), None if rows is None else tuple(rows)
    cut: dict[Node, str] = {}
    while True:
        work = _Assignment(graph, capability, granularity, *asked, cut)
        work.masks = merged(work.masks, low)
        work.decide()
        work.check_wishes()
        found = work.share() or work.cutting()
        if not found:
            return work.plan(), work.schemes()
        cut |= found


class _Assignment:
    def __init__(
        self,
        graph: Graph,
        table: Capability,
        granularity: str,
        wishes: tuple[Wish, ...],
        rows: Iterable[KernelGroup] | None,
        cut: Mapping[Node, str],
    ) -> None:
        self.graph = graph
        self.table = table
        self.granularity = granularity
        self.wishes = wishes
        self.rows = None if rows is None else {n: k for k in rows for n in k.ops[1:]}
        self.cut = cut
        """Activations that are in no kernel because they cut quantized values, and why."""
        self.on_codes = quantized_nodes(graph)
        self.before = before_codes(graph, {op for op, row in table.ops.items() if row.share})
        self.masks = masks(graph)
        self.sensitive = sensitive(graph)
        self.reason: dict[Node, str] = {}
        self.inside: dict[Node, Node] = {}
        """Activation -> the op in whose kernel it is computed."""
        self.tails: dict[Node, list[Node]] = {}
        """Op -> the activations in its kernel, in order."""
        self.parent: dict[Value, Value] = {}
        self.chosen: dict[Value, Scheme] = {}
        self.members: dict[Value, list[tuple[Node, str]]] = {}

    # -- which ops ----------------------------------------------------------------------------

    def decide(self) -> None:
        if self.rows is None:
            found = target_chains(self.graph, self.table, self._kept_out)
            self.rows = {n: k for k in found for n in k.ops[1:]}
        movers: list[Node] = []
        for node in self.graph:
            if node.op in STRUCTURAL_OPS:
                continue
            row = self.table.ops.get(node.op)
            if (head := self._head(node)) is not None and not self._kept_out(node):
                self.inside[node] = head
                self.tails.setdefault(head, []).append(node)
            elif row and (row.share or row.unasked) and not self._obstacle(node, row):
                movers.append(node)
            else:
                self.reason[node] = self._obstacle(node, row)
        self._settle(movers)

    def _settle(self, movers: list[Node]) -> None:
        """Ops that only move elements follow their neighbours: integers stay integers.

        What is not asked for is integer between quantized values alone, where the runtime takes it
        anyway.
        """
        for node in movers:
            beside = any(held_map(v) for v in (*node.operands.values(), *node.results))
            rest = ALREADY if beside else "nothing next to it is integer"
            self.reason[node] = self.table.ops[node.op].unasked or rest
        changed = True
        while changed:
            changed = False
            for node in movers:
                if self.reason[node] and self._follows(node):
                    self.reason[node] = ""
                    changed = True

    def _follows(self, node: Node) -> bool:
        """Returns whether what an op reads, or what reads it, is integer; all of both if it is
        unasked, but for constants where quantized values are new all around."""
        row = self.table.ops[node.op]
        near = [v.node for s, v in node.operands.items() if s.split(".")[0] in row.slots]
        near += [user for value in node.results for user in value.users]
        if row.unasked:
            there = any(held_map(v) for v in (*node.operands.values(), *node.results))
            known = CONVERSION_OPS if there else CONVERSION_OPS | {"constant"}
            return all(n.op in known or self._integer(n) for n in near)
        return any(map(self._integer, near))

    def _integer(self, node: Node) -> bool:
        node = self.inside.get(node, node)
        return self.reason.get(node, "float") == ""

    def _head(self, node: Node) -> Node | None:
        """Returns the integer op in whose kernel this one is computed, if all between them are."""
        kernel = (self.rows or {}).get(node)
        if kernel is None or self.reason.get(kernel.head) != "":
            return None
        between = kernel.ops[1 : kernel.ops.index(node)]
        return kernel.head if all(self.inside.get(n) is kernel.head for n in between) else None

    def _summands(self, node: Node) -> dict[str, Value]:
        """Returns what an op in a chain adds to its data, where that is stored as integers."""
        kernel = (self.rows or {}).get(node) if node in self.inside else None
        slots = [slot for n, slot in kernel.summands() if n is node] if kernel else []
        return {slot: node.operands[slot] for slot in slots}

    def _obstacle(self, node: Node, row: OpCapability | None) -> str:
        """Returns why an op stays float; empty where nothing keeps it from integers."""
        if settled(node, self.on_codes.get(node, False)):
            return ALREADY
        if row and row.share and leaves_out(node, self.before):
            return ALREADY
        if node.op == "foreign":
            return why_foreign(node)
        if node.op == "fused" and node.bodies:
            return f"it stays {op_name(node)}, as the file has it"
        if node.bodies:
            return WITHIN
        if said := self.table.float_reason(node):
            return said
        if row is None:
            return self._left_out(node) or no_row(self.table.name, node.op)
        if self._wished_float(node):
            return "a rule keeps it float"
        if row.share and node in self.cut:
            return self.cut[node]
        moved = [v for s, v in node.operands.items() if s.split(".")[0] in row.share]
        if moved and all(v.constant for v in moved):
            return "it moves a constant: what it takes of it is quantized after it"
        found = form_obstacle(node, row, self.table.name) or self._codes_obstacle(node, row)
        found = found or self._mask(node)
        return found or self._too_coarse(node)

    def _mask(self, node: Node) -> str:
        """Returns what an op reads or makes that a mask leaves no room in, unless a rule gives it
        integers."""
        for slot, value in (*node.operands.items(), *((RESULT, made) for made in node.results)):
            computed = value.constant is None and value.type.quant is None
            if value in self.masks and computed and self._last(node, slot) is None:
                return told(self.masks[value])
        return ""

    def _too_coarse(self, node: Node) -> str:
        """Returns which value of an op few bits are too coarse for, unless a rule quantizes it."""
        if any(self._last(node, slot) for slot in (*node.operands, RESULT)):
            return ""
        values = (*node.operands.values(), *node.results)
        return next((explain(self.sensitive[v]) for v in values if v in self.sensitive), "")

    def _kept_out(self, node: Node) -> bool:
        """Returns whether an op is in no kernel, though its target has one."""
        asked = node in self.cut or self._wished_float(node)
        return asked or bool(self._mask(node) or self._too_coarse(node))

    def _codes_obstacle(self, node: Node, row: OpCapability) -> str:
        """Returns the quantized operands that the target does not support there; they stay."""
        for slot, value in (*node.operands.items(), *((RESULT, made) for made in node.results)):
            quant = held_map(value) or next(iter(coded(value) if slot == RESULT else ()), None)
            allowed = row.allowed(slot.split(".")[0], value.constant is not None)
            if quant is not None and not takes(allowed, quant):
                said = f"its {slot} is quantized already, by a type that {self.table.name}"
                return f"{said} does not take"
        return ""

    def _left_out(self, node: Node) -> str:
        """Returns why an op that is integer only in another's kernel is in none; empty for other
        ops."""
        if not any(node.op in chain[1:] for chain in self.table.chains):
            return ""
        if self._wished_float(node):
            return "a rule keeps it float"
        if node in self.cut:
            return f"{self.cut[node]}: {self.table.name} cuts none"
        x = node.operands.get("x")
        before = self.reason.get(x.node) if x else None
        return f"its input comes from %{x.name}, which stays float" if x and before else ""

    def _data(self, node: Node) -> list[tuple[str, Value]]:
        slots = self.table.ops[node.op].slots
        return [(slot, v) for slot, v in node.operands.items() if slot.split(".")[0] in slots]

    def _wished_float(self, node: Node) -> bool:
        last = [w for w in self.wishes if w.slot == RESULT and w.matches(node)]
        return bool(last) and last[-1].scheme is None

    # -- which slots --------------------------------------------------------------------------

    def find(self, value: Value) -> Value:
        root = value
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while value is not root:
            self.parent[value], value = root, self.parent.get(value, value)
        return root

    def share(self) -> dict[Node, str]:
        """Unites what must hold one quantized type, and gives each set its scheme.

        Returns what must stay float, and why, where no scheme suits all of a set.
        """
        members = self.members
        laws: dict[Value, Scheme] = {}
        for node in self.graph:
            for slot, value in self._summands(node).items():
                members.setdefault(value, []).append((node, slot))
            if self.reason.get(node, "float") != "":
                continue
            slots = self._stored(node, laws)
            shared = [v for s, v in slots if s.split(".")[0] in self.table.ops[node.op].share]
            for a, b in pairwise(shared):
                self.parent[self.find(b)] = self.find(a)
            for slot, value in slots:
                members.setdefault(value, []).append((node, slot))
        sets: dict[Value, list[tuple[Node, str]]] = {}
        of_set: dict[Value, Scheme] = {}
        values: dict[Value, list[Value]] = {}
        for value, slots_ in members.items():
            root = self.find(value)
            sets.setdefault(root, []).extend(slots_)
            values.setdefault(root, []).append(value)
            if value in laws:
                of_set.setdefault(root, laws[value])
        for root, users in sets.items():
            found = self._scheme(users, of_set.get(root))
            if found is None:
                return self._apart(users)
            self.chosen[root] = by_ops(found, values[root])
        return {}

    def _apart(self, users: list[tuple[Node, str]]) -> dict[Node, str]:
        """Returns the last op of a share set that allows no common scheme."""
        movers = [n for n, _ in users if self.table.ops[n.op].share]
        if not movers:
            n, slot = users[0]
            raise SchemeError(f"{n.name}: no scheme in {slot} suits all that share it")
        return {movers[-1]: "what it joins has no storage in common"}

    def _stored(self, node: Node, laws: dict[Value, Scheme]) -> list[tuple[str, Value]]:
        """Slots of an integer op that hold activations, with the values in them that get quantized
        values.

        What has quantized values is read by their map, in the other sign if the slot asks for it:
        `laws` learns of it, and of what moves them.
        """
        out: list[tuple[str, Value]] = []
        share = self.table.ops[node.op].share
        moved: Scheme | None = None
        held = [(s, v) for s, v in self._data(node) if not self._parameter(node, s)]
        for slot, value in held + [(RESULT, made) for made in self.tail(node).results]:
            quant = held_map(value)
            if quant is not None:
                law = kept(self._allowed(node, slot), quant, first=bool(share))
                moved = law if slot in share else moved
                if decoded(value) and law.storage == quant.storage:
                    continue
                laws[value] = law
            elif moved is not None and slot in share:
                laws.setdefault(value, moved)
            out.append((slot, value))
        return out

    def _parameter(self, node: Node, slot: str) -> bool:
        traits = spec(node.op).traits
        return slot == traits.bias or (
            slot == traits.weight and node.operands[slot].constant is not None
        )

    def tail(self, node: Node) -> Node:
        """Returns the last op of the kernel that this op heads."""
        return self.tails.get(node, [node])[-1]

    def _scheme(self, users: list[tuple[Node, str]], law: Scheme | None) -> Scheme | None:
        """Returns one scheme for all members: what quantized values that exist, or a law, fix, what
        a user wants, what all allow; None where there is none."""
        if law is not None and all(self._takes(n, slot, law) for n, slot in users):
            return law
        fixed = (s for n, slot in users for s in self._allowed(n, slot) if s.scale is not None)
        laws = dict.fromkeys(fixed)
        wanted = self._wanted(users)
        options = [wanted] if wanted else list(laws) or list(self._allowed(*users[0]))
        for each in options:
            found: Scheme | None = each
            for n, slot in users:
                if found is None:
                    break
                found = next((f for a in self._allowed(n, slot) if (f := fitted(a, found))), None)
            if found is not None:
                return found
        if wanted:
            raise self._untaken(*next((n, s) for n, s in users if not self._takes(n, s, wanted)))
        if len(laws) > 1:
            names = " and ".join(sorted({n.name for n, _ in users}))
            raise SchemeError(f"{names} share their parameters, but their fixed scales differ")
        return None

    def cutting(self) -> dict[Node, str]:
        """Activations in kernels that cut no integers which cut those that were chosen, and why."""
        out: dict[Node, str] = {}
        for head, tails in self.tails.items():
            scheme = self.chosen.get(self.find(tails[-1].result))
            if scheme and (head.op, *(tail.op for tail in tails)) in self.table.uncut:
                out |= {tail: why for tail in tails if (why := why_cut(tail, scheme))}
        return out

    def _takes(self, node: Node, slot: str, wanted: Scheme) -> bool:
        return any(fitted(a, wanted) for a in self._allowed(node, slot))

    def _untaken(self, node: Node, slot: str) -> SchemeError:
        """Returns the error for a wish that the target does not grant, with what it does."""
        wish = self._last(node, slot)
        said = f"rule {wish}: " if wish else ""
        takes = " or ".join(str(a).removesuffix(" minmax") for a in self._allowed(node, slot))
        return SchemeError(f"{said}{node.name}: {self.table.name} takes {takes} in {slot}")

    def _last(self, node: Node, slot: str) -> Wish | None:
        """Returns the rule that decides a slot; a kernel's result is also its activations'."""
        names = (node, *self.tails.get(node, ())) if slot == RESULT else (node,)
        found = [
            w
            for w in self.wishes
            if w.scheme and w.slot in (slot, slot.split(".")[0]) and any(map(w.matches, names))
        ]
        return found[-1] if found else None

    def _wanted(self, users: list[tuple[Node, str]]) -> Scheme | None:
        found: dict[Scheme, str] = {}
        for node, slot in users:
            wish = self._last(node, slot)
            if wish is not None and wish.scheme is not None:
                found[wish.scheme] = f"{wish} ({node.name})"
        if len(found) > 1:
            raise SchemeError(f"two rules want one share set: {' and '.join(found.values())}")
        return next(iter(found), None)

    def check_wishes(self) -> None:
        """Raises SchemeError for a rule that decides nothing: a slip, or another model's."""
        ops = [n for n in self.graph if n.op not in STRUCTURAL_OPS]
        for wish in self.wishes:
            hit = [n for n in ops if wish.matches(n)]
            if not hit:
                raise SchemeError(f"rule {wish} hits no op of this model")
            slots = {s.split(".")[0] for n in hit for s in n.operands} | {RESULT}
            if wish.slot.split(".")[0] not in slots:
                there = ", ".join(sorted(slots))
                raise SchemeError(f"rule {wish}: what it hits has no slot {wish.slot}: {there}")
            heads = {self.inside.get(n, n) for n in hit}
            if wish.scheme and all(self.reason.get(n) for n in heads):
                first = next(iter(hit))
                why = self.reason.get(self.inside.get(first, first))
                stays = "as it is" if why == ALREADY else "float"
                raise SchemeError(f"rule {wish}: {first.name} stays {stays}: {why}")

    def _allowed(self, node: Node, slot: str) -> tuple[Scheme, ...]:
        ops = (node.op, *(tail.op for tail in self.tails.get(node, ())))
        if node in self.inside:
            head = self.inside[node]
            chain = self.table.chain_row((head.op, *(tail.op for tail in self.tails[head])))
            if chain is not None and chain.summand:
                return chain.summand
            if node.op not in self.table.ops:
                node, slot = head, spec(head.op).traits.data
        value = node.operands.get(slot)
        constant = value is not None and value.constant is not None
        row = self.table.kernel(ops) or self.table.ops[node.op]
        return row.allowed(slot.split(".")[0], constant)

    # -- the answer ---------------------------------------------------------------------------

    def schemes(self) -> Schemes:
        """Returns every slot's scheme: activations from their sets, weights and biases by their
        op."""
        out: Schemes = {}
        sizes: dict[Value, int] = {}
        for value in self.members:
            root = self.find(value)
            sizes[root] = sizes.get(root, 0) + 1
        for value, users in self.members.items():
            root = self.find(value)
            scheme = self.chosen[root]
            if sizes[root] > 1:
                scheme = replace(scheme, share=root.name)
            for node, slot in users:
                at = self.tail(node) if slot == RESULT else node
                out.setdefault(at, {})[slot] = scheme
        for node in self.graph:
            if self.reason.get(node, "float") == "":
                for slot in node.operands:
                    if self._parameter(node, slot) and self._allowed(node, slot):
                        out.setdefault(node, {})[slot] = self._parameter_scheme(node, slot)
        return out

    def _parameter_scheme(self, node: Node, slot: str) -> Scheme:
        allowed = self._allowed(node, slot)
        wish = self._last(node, slot)
        if wish is not None and wish.scheme is not None:
            found = next((f for a in allowed if (f := fitted(a, wish.scheme))), None)
            if found is None or found.scale is not None:
                raise self._untaken(node, slot)
            return found
        return next((s for s in allowed if s.granularity == self.granularity), allowed[0])

    def plan(self) -> Plan:
        schemes = self.schemes()
        known = GraphFacts(self.graph)
        decisions = tuple(
            self._decision(n, schemes, known) for n in self.graph if n.op not in STRUCTURAL_OPS
        )
        sets: dict[Value, list[str]] = {}
        for value in self.members:
            sets.setdefault(self.find(value), []).append(value.name)
        shared = tuple(tuple(names) for names in sets.values() if len(names) > 1)
        return Plan(self.table.name, decisions, shared)

    def _decision(self, node: Node, schemes: Schemes, known: GraphFacts) -> Decision:
        head = self.inside.get(node)
        if said := self._between(node):
            return known.decision(node, said)
        if head is not None:
            return replace(
                known.decision(node, ""), reason=f"in the kernel of {head.name}", group=head.name
            )
        found = {s: str(k) for s, k in schemes.get(node, {}).items()}
        if RESULT not in found and (tail := self.tail(node)) is not node:
            found[RESULT] = str(schemes.get(tail, {}).get(RESULT, ""))
        return known.decision(node, self.reason[node], found)

    def _between(self, node: Node) -> str:
        """Returns why an op of another profile's kernel stays float in any case; or nothing."""
        head = self.inside.get(node, node)
        if self.rows is None or head not in self.tails:
            return ""
        ops = (head.op, *(tail.op for tail in self.tails[head]))
        if self.table.chain(ops):
            return ""
        return f"float between quantized values: {self.table.name} has no kernel {' |> '.join(ops)}"


__all__ = ["AssignSchemes", "Decision", "Plan", "Schemes", "Wish", "assign"]
