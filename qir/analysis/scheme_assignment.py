"""Assigns a scheme to every slot that will be stored as integers, and states the plan.

Every value that an integer op makes or reads is stored. Slots of one stored value, and slots that
an op requires to have one quantized type, form a share set with one scheme. Schemes are matched
against the target's table; every op that stays float has a reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from qir.analysis.activations import clamping_reason
from qir.analysis.decisions import ALREADY_QUANTIZED, BODIES_STAY_FLOAT, Decision, GraphFacts, Plan
from qir.analysis.existing_types import (
    accepts,
    existing_type,
    is_settled,
    leaves_out_elements,
    scheme_of_type,
    values_moved_to_quantize,
)
from qir.analysis.fixed_scales import FixedScales, Requantized, Stored
from qir.analysis.kernel_groups import KernelGroup
from qir.analysis.masks import constant_masks, mask_reason, merge_masks
from qir.analysis.obstacles import form_obstacle
from qir.analysis.quantized_regions import is_dequantized, quantized_types
from qir.analysis.sensitive_values import sensitive_reason, sensitive_values
from qir.analysis.signs import with_known_sign
from qir.analysis.target_chains import target_chains
from qir.analysis.user_rules import UserRule, check_rule, fit_to_slot, with_fixed_scale
from qir.capability import Capability, OpCapability, unsupported_op_text
from qir.errors import SchemeError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops import spec
from qir.ir.quantized_ops import CONVERSION_OPS, STRUCTURAL_OPS, quantized_nodes
from qir.ir.scheme import RESULT, Scheme
from qir.query.display import op_name, why_foreign

Schemes = dict[Node, dict[str, Scheme]]
"""The schemes of every node's slots."""


def assign_schemes(
    graph: Graph,
    capability: Capability,
    granularity: str = "channel",
    user_rules: Iterable[UserRule] = (),
    kernels: Iterable[KernelGroup] | None = None,
    observed_masks: Iterable[tuple[str, float]] = (),
    divisors: Iterable[tuple[str, float]] = (),
) -> tuple[Plan, Schemes]:
    """Returns the plan, and the scheme of every slot.

    Kernels are the target's chains, unless `kernels` lists them. `observed_masks` are values in
    which calibration found a mask, with its number; 0 refutes a mask that a constant suggests.
    `divisors` are divisors with their observed distance from 0, as a share of their range.
    Raises SchemeError for user rules that contradict each other or the target.
    """
    masks = {graph.values[name]: least for name, least in observed_masks if name in graph.values}
    choices = tuple(user_rules), None if kernels is None else tuple(kernels)
    distances = {graph.values[name]: x for name, x in divisors if name in graph.values}
    sensitive = sensitive_values(graph, distances)
    clamping: dict[Node, str] = {}
    lacking: dict[Node, str] = {}
    # Schemes are known only after all ops are decided, and may show that an op has to stay float
    # after all. Then everything is decided anew; each round adds an op, so this ends.
    while True:
        work = _SchemeAssignment(graph, capability, granularity, *choices, clamping, sensitive)
        work.masks, work.lacking = merge_masks(work.masks, masks), lacking
        work.decide()
        work.check_rules()
        more_float = work.choose_schemes() or work.clamping_activations()
        if not more_float:
            return work.plan(), work.schemes()
        clamping |= more_float


class _SchemeAssignment:
    """One round of deciding which ops are integer, and which scheme each slot gets."""

    def __init__(
        self,
        graph: Graph,
        table: Capability,
        granularity: str,
        user_rules: tuple[UserRule, ...],
        kernels: Iterable[KernelGroup] | None,
        clamping: Mapping[Node, str],
        sensitive: Mapping[Value, str],
    ) -> None:
        self.graph = graph
        self.table = table
        self.granularity = granularity
        self.user_rules = user_rules
        self.kernel_of = None if kernels is None else {n: k for k in kernels for n in k.ops[1:]}
        self.clamping = clamping
        """Ops that must stay float by an earlier round, such as clamping activations, and why."""
        self.lacking: dict[Node, str] = {}
        """Those of them that have no kernel on the storage that a rule gives a neighbour."""
        self.on_integers = quantized_nodes(graph)
        self.quantized_later = values_moved_to_quantize(
            graph, {op for op, row in table.ops.items() if row.share}
        )
        self.masks = constant_masks(graph)
        self.sensitive = sensitive
        self.reasons: dict[Node, str] = {}
        self.anchor_of: dict[Node, Node] = {}
        """Fused op -> the anchor of its kernel."""
        self.epilogues: dict[Node, list[Node]] = {}
        """Anchor -> the ops that are fused after it, in order."""
        self.parent: dict[Stored, Stored] = {}
        self.scheme_of_root: dict[Stored, Scheme] = {}
        self.slots_of: dict[Stored, list[tuple[Node, str]]] = {}
        self.requantized: set[Requantized] = set()

    # -- which ops ----------------------------------------------------------------------------

    def decide(self) -> None:
        if self.kernel_of is None:
            kernels = target_chains(self.graph, self.table, self._stays_out)
            self.kernel_of = {n: k for k in kernels for n in k.ops[1:]}
        movers: list[Node] = []
        for node in self.graph:
            if node.op in STRUCTURAL_OPS:
                continue
            entry = self.table.ops.get(node.op)
            if (anchor := self._integer_anchor(node)) is not None and not self._stays_out(node):
                self.anchor_of[node] = anchor
                self.epilogues.setdefault(anchor, []).append(node)
            elif entry and (entry.share or entry.unasked) and not self._obstacle(node, entry):
                movers.append(node)
            else:
                self.reasons[node] = self._obstacle(node, entry)
        self._plan_movers(movers)

    def _plan_movers(self, movers: list[Node]) -> None:
        """Makes ops that only move elements integer where their neighbours are.

        Ops that a target has but does not ask for are integer only between quantized values.
        """
        for node in movers:
            has_quantized_neighbour = any(
                existing_type(v) for v in (*node.operands.values(), *node.results)
            )
            rest = ALREADY_QUANTIZED if has_quantized_neighbour else "nothing next to it is integer"
            self.reasons[node] = self.table.ops[node.op].unasked or rest
        # A move may make the next one integer, in either direction: repeat until nothing changes.
        changed = True
        while changed:
            changed = False
            for node in movers:
                if self.reasons[node] and self._follows_neighbours(node):
                    self.reasons[node] = ""
                    changed = True

    def _follows_neighbours(self, node: Node) -> bool:
        """Returns whether a producer or consumer of an op is integer; all of them for unasked ops.

        Constants do not count there, unless the model has quantized values around the op already.
        """
        entry = self.table.ops[node.op]
        neighbours = [v.node for s, v in node.operands.items() if s.split(".")[0] in entry.slots]
        neighbours += [user for value in node.results for user in value.users]
        if entry.unasked:
            there = any(existing_type(v) for v in (*node.operands.values(), *node.results))
            known = CONVERSION_OPS if there else CONVERSION_OPS | {"constant"}
            return all(n.op in known or self._is_integer(n) for n in neighbours)
        return any(map(self._is_integer, neighbours))

    def _is_integer(self, node: Node) -> bool:
        node = self.anchor_of.get(node, node)
        return self.reasons.get(node, "float") == ""

    def _integer_anchor(self, node: Node) -> Node | None:
        """Returns the integer anchor of an op's kernel, if all ops between them are fused too."""
        kernel = (self.kernel_of or {}).get(node)
        if kernel is None or self.reasons.get(kernel.anchor) != "":
            return None
        between = kernel.ops[1 : kernel.ops.index(node)]
        return (
            kernel.anchor if all(self.anchor_of.get(n) is kernel.anchor for n in between) else None
        )

    def _summands(self, node: Node) -> dict[str, Value]:
        """Returns the operands that a fused op adds to its data, by slot."""
        kernel = (self.kernel_of or {}).get(node) if node in self.anchor_of else None
        slots = [slot for n, slot in kernel.summands() if n is node] if kernel else []
        return {slot: node.operands[slot] for slot in slots}

    def _obstacle(self, node: Node, entry: OpCapability | None) -> str:
        """Returns why an op stays float; empty for an op that can be integer.

        The first obstacle names the reason: existing integers come first, then what the target
        lacks, then what the user asked for, and last what would cost accuracy.
        """
        # What the model has quantized stays as it is.
        if is_settled(node, self.on_integers.get(node, False)):
            return ALREADY_QUANTIZED
        if entry and entry.share and leaves_out_elements(node, self.quantized_later):
            return ALREADY_QUANTIZED
        if node.op == "foreign":
            return why_foreign(node)
        if node.op == "fused" and node.bodies:
            return f"it stays {op_name(node)}, as the file has it"
        if node.bodies:
            return BODIES_STAY_FLOAT
        if reason := self.table.float_reason(node):
            return reason
        if entry is None:
            return self._unfused_reason(node) or unsupported_op_text(
                self.table.name, node.op, node.attrs
            )
        if self._is_float_by_rule(node):
            return "a rule keeps it float"
        if node in (self.clamping if entry.share else self.lacking):
            return self.clamping[node]
        moved = [v for s, v in node.operands.items() if s.split(".")[0] in entry.share]
        if moved and all(v.constant for v in moved):
            return "it moves a constant: what it takes of it is quantized after it"
        obstacle = form_obstacle(node, entry, self.table.name) or self._existing_type_obstacle(
            node, entry
        )
        obstacle = obstacle or self._mask_obstacle(node)
        return obstacle or self._precision_obstacle(node)

    def _mask_obstacle(self, node: Node) -> str:
        """Returns why an op with a masked operand or result stays float, unless a rule says not."""
        for slot, value in (*node.operands.items(), *((RESULT, result) for result in node.results)):
            computed = value.constant is None and value.type.quant is None
            if value in self.masks and computed and self._deciding_rule(node, slot) is None:
                return mask_reason(self.masks[value])
        return ""

    def _precision_obstacle(self, node: Node) -> str:
        """Returns why 8 bits are too coarse for a value of an op, unless a rule quantizes it."""
        if any(self._deciding_rule(node, slot) for slot in (*node.operands, RESULT)):
            return ""
        values = (*node.operands.values(), *node.results)
        return next(
            (sensitive_reason(self.sensitive[v]) for v in values if v in self.sensitive), ""
        )

    def _stays_out(self, node: Node) -> bool:
        """Returns whether an op must not be fused, though its target has the kernel."""
        asked = node in self.clamping or self._is_float_by_rule(node)
        return asked or bool(self._mask_obstacle(node) or self._precision_obstacle(node))

    def _existing_type_obstacle(self, node: Node, entry: OpCapability) -> str:
        """Returns which operand or result has a quantized type that the target does not accept."""
        for slot, value in (*node.operands.items(), *((RESULT, result) for result in node.results)):
            quant = existing_type(value) or next(
                iter(quantized_types(value) if slot == RESULT else ()), None
            )
            allowed = entry.allowed(slot.split(".")[0], value.constant is not None)
            if quant is not None and not accepts(allowed, quant):
                prefix = f"its {slot} is quantized already, by a type that {self.table.name}"
                return f"{prefix} does not take"
        return ""

    def _unfused_reason(self, node: Node) -> str:
        """Returns why an op that is integer only when fused is in no kernel; empty for others."""
        if not any(node.op in chain[1:] for chain in self.table.chains):
            return ""
        if self._is_float_by_rule(node):
            return "a rule keeps it float"
        if node in self.clamping:
            return f"{self.clamping[node]}: {self.table.name} cuts none"
        x = node.operands.get("x")
        before = self.reasons.get(x.node) if x else None
        return f"its input comes from %{x.name}, which stays float" if x and before else ""

    def _data_operands(self, node: Node) -> list[tuple[str, Value]]:
        slots = self.table.ops[node.op].slots
        return [(slot, v) for slot, v in node.operands.items() if slot.split(".")[0] in slots]

    def _is_float_by_rule(self, node: Node) -> bool:
        last = [w for w in self.user_rules if w.slot == RESULT and w.matches(node)]
        return bool(last) and last[-1].scheme is None

    # -- which slots --------------------------------------------------------------------------

    def find_root(self, value: Stored) -> Stored:
        root = value
        while (up := self.parent.get(root, root)) is not root:
            root = up
        while value is not root:
            self.parent[value], value = root, self.parent.get(value, value)
        return root

    def choose_schemes(self) -> dict[Node, str]:
        """Forms share sets of values with one quantized type, and chooses the scheme of each.

        Returns an op that must stay float, with the reason, where no scheme suits all of a set.
        """
        fixed = FixedScales()
        sets, imposed = self._share_sets(fixed)
        for values in sets.values():
            self.requantized |= fixed.too_narrow(values, self._rule_scheme(self._users(values)))
        if self.requantized:
            sets, imposed = self._share_sets(fixed)
        for root, values in sets.items():
            users = self._users(values)
            asked = next((imposed[v] for v in values if v in imposed), None)
            found = self._common_scheme(users, asked)
            if found is None:
                return self._float_mover(users)
            read = (v.value if isinstance(v, Requantized) else v for v in values)
            self.scheme_of_root[root] = with_known_sign(found, read)
        return {}

    def _share_sets(
        self, fixed: FixedScales
    ) -> tuple[dict[Stored, list[Stored]], dict[Stored, Scheme]]:
        """Returns the values of each share set, by root, and the schemes that values impose."""
        self.parent, self.slots_of = {}, {}
        members = self.slots_of
        imposed: dict[Stored, Scheme] = {}
        for node in self.graph:
            for slot, value in self._summands(node).items():
                members.setdefault(value, []).append((node, slot))
            if self.reasons.get(node, "float") != "":
                continue
            slots = self._stored_values(node, imposed)
            shared = [(s, v) for s, v in slots if s.split(".")[0] in self.table.ops[node.op].share]
            made, allowed = self.last_of_kernel(node).results, self._allowed_schemes(node, RESULT)
            fixed.note(node, [each for each in shared if each[0] != RESULT], made, allowed)
            # Union-find: values that must share one quantized type end in one set. Roots are
            # values of the graph, which name their set.
            alike = sorted(
                (self._stored(node, slot, value) for slot, value in shared),
                key=lambda stored: isinstance(stored, Requantized),
            )
            for a, b in pairwise(alike):
                self.parent[self.find_root(b)] = self.find_root(a)
            for slot, value in slots:
                members.setdefault(self._stored(node, slot, value), []).append((node, slot))
        sets: dict[Stored, list[Stored]] = {}
        for stored in members:
            sets.setdefault(self.find_root(stored), []).append(stored)
        return sets, imposed

    def _users(self, values: list[Stored]) -> list[tuple[Node, str]]:
        return [user for value in values for user in self.slots_of[value]]

    def _stored(self, node: Node, slot: str, value: Value) -> Stored:
        again = Requantized(value, node, slot)
        return again if again in self.requantized else value

    def _float_mover(self, users: list[tuple[Node, str]]) -> dict[Node, str]:
        """Returns the last op of a share set that only moves elements, which is to stay float.

        Raises SchemeError where the set has none, since no other op could be left out.
        """
        if lacking := {n: why for n, why in self.lacking.items() if n not in self.clamping}:
            return lacking
        movers = [n for n, _ in users if self.table.ops[n.op].share]
        if not movers:
            n, slot = users[0]
            raise SchemeError(f"{n.name}: no scheme in {slot} suits all that share it")
        return {movers[-1]: "what it joins has no storage in common"}

    def _stored_values(self, node: Node, imposed: dict[Stored, Scheme]) -> list[tuple[str, Value]]:
        """Returns the slots of an integer op that hold activations to quantize, with their values.

        Values that are quantized already keep their type, in the other sign if the slot asks for
        it. Such schemes are added to `imposed`, also for values that the op moves them to.
        """
        out: list[tuple[str, Value]] = []
        share = self.table.ops[node.op].share
        moved: Scheme | None = None
        held = [(s, v) for s, v in self._data_operands(node) if not self._is_parameter(node, s)]
        for slot, value in held + [(RESULT, made) for made in self.last_of_kernel(node).results]:
            quant = existing_type(value)
            if quant is not None:
                scheme = scheme_of_type(self._allowed_schemes(node, slot), quant, first=bool(share))
                moved = scheme if slot in share else moved
                if is_dequantized(value) and scheme.storage == quant.storage:
                    continue
                imposed[value] = scheme
            elif moved is not None and slot in share:
                imposed.setdefault(value, moved)
            out.append((slot, value))
        return out

    def _is_parameter(self, node: Node, slot: str) -> bool:
        traits = spec(node.op).traits
        return slot == traits.bias or (
            slot == traits.weight and node.operands[slot].constant is not None
        )

    def last_of_kernel(self, node: Node) -> Node:
        """Returns the last op of the kernel that begins with an op."""
        return self.epilogues.get(node, [node])[-1]

    def _common_scheme(
        self, users: list[tuple[Node, str]], imposed: Scheme | None
    ) -> Scheme | None:
        """Returns one scheme that all slots of a share set accept, or None.

        In this order: what an existing type imposes, what a user rule wants, a fixed scale that a
        slot requires (softmax: 1 / 256), and the first scheme that all allow.
        """
        if imposed is not None and all(self._accepts(n, slot, imposed) for n, slot in users):
            return imposed
        fixed = (
            s for n, slot in users for s in self._allowed_schemes(n, slot) if s.scale is not None
        )
        fixed_schemes = dict.fromkeys(fixed)
        wanted = with_fixed_scale(self._rule_scheme(users), fixed_schemes)
        options = (
            [wanted] if wanted else list(fixed_schemes) or list(self._allowed_schemes(*users[0]))
        )
        for each in options:
            found: Scheme | None = each
            for n, slot in users:
                if found is None:
                    break
                found = next(
                    (f for a in self._allowed_schemes(n, slot) if (f := fit_to_slot(a, found))),
                    None,
                )
            if found is not None:
                return found
        if wanted:
            refusing = [(n, s) for n, s in users if not self._accepts(n, s, wanted)]
            if lacking := next((n for n, s in refusing if self._is_left_float(n, s, wanted)), None):
                asked = f"on {wanted.storage}, which a rule asks for"
                self.lacking[lacking] = f"{self.table.name} has no integer {lacking.op} {asked}"
                return None
            raise self._rule_error(*refusing[0])
        if len(fixed_schemes) > 1:
            names = " and ".join(sorted({n.name for n, _ in users}))
            raise SchemeError(f"{names} share their parameters, but their fixed scales differ")
        return None

    def clamping_activations(self) -> dict[Node, str]:
        """Returns the fused activations that clamp quantized values where the kernel cannot.

        The runtimes of such kernels drop the activation: the chosen type has to clamp in its place.
        """
        out: dict[Node, str] = {}
        for head, tails in self.epilogues.items():
            scheme = self.scheme_of_root.get(self.find_root(tails[-1].result))
            if scheme and (head.op, *(tail.op for tail in tails)) in self.table.uncut:
                out |= {tail: why for tail in tails if (why := clamping_reason(tail, scheme))}
        return out

    def _accepts(self, node: Node, slot: str, wanted: Scheme) -> bool:
        return any(fit_to_slot(a, wanted) for a in self._allowed_schemes(node, slot))

    def _is_left_float(self, node: Node, slot: str, wanted: Scheme) -> bool:
        """Returns whether an op has no kernel on a storage that a rule is to give other ops."""
        storages = {s for a in self._allowed_schemes(node, slot) for s in a.storages}
        if not storages.isdisjoint(wanted.storages):
            return False
        rule = self._deciding_rule(node, slot)
        return rule is None or any(
            n is not node and rule.matches(n) and self._accepts(n, slot, wanted)
            for n in self.graph
            if self.reasons.get(n) == "" and (slot == RESULT or slot in n.operands)
        )

    def _rule_error(self, node: Node, slot: str) -> SchemeError:
        """Returns the error for a user rule that the target cannot meet, with what it accepts."""
        rule = self._deciding_rule(node, slot)
        said = f"rule {rule}: " if rule else ""
        takes = " or ".join(
            str(a).removesuffix(" minmax") for a in self._allowed_schemes(node, slot)
        )
        return SchemeError(f"{said}{node.name}: {self.table.name} takes {takes} in {slot}")

    def _deciding_rule(self, node: Node, slot: str) -> UserRule | None:
        """Returns the last rule that matches a slot; rules of fused ops count for the result."""
        names = (node, *self.epilogues.get(node, ())) if slot == RESULT else (node,)
        found = [
            w
            for w in self.user_rules
            if w.scheme and w.slot in (slot, slot.split(".")[0]) and any(map(w.matches, names))
        ]
        return found[-1] if found else None

    def _rule_scheme(self, users: list[tuple[Node, str]]) -> Scheme | None:
        found: dict[Scheme, str] = {}
        for node, slot in users:
            rule = self._deciding_rule(node, slot)
            if rule is not None and rule.scheme is not None:
                found[rule.scheme] = f"{rule} ({node.name})"
        if len(found) > 1:
            raise SchemeError(f"two rules want one share set: {' and '.join(found.values())}")
        return next(iter(found), None)

    def check_rules(self) -> None:
        """Raises SchemeError for a rule without effect, such as a misspelt name."""
        ops = {n: self.anchor_of.get(n, n) for n in self.graph if n.op not in STRUCTURAL_OPS}
        for rule in self.user_rules:
            check_rule(rule, {n: self.reasons.get(anchor) for n, anchor in ops.items()})

    def _allowed_schemes(self, node: Node, slot: str) -> tuple[Scheme, ...]:
        ops = (node.op, *(tail.op for tail in self.epilogues.get(node, ())))
        if node in self.anchor_of:
            anchor = self.anchor_of[node]
            chain = self.table.chain_row((anchor.op, *(tail.op for tail in self.epilogues[anchor])))
            if chain is not None and chain.summand:
                return chain.summand
            if node.op not in self.table.ops:
                node, slot = anchor, spec(anchor.op).traits.data
        value = node.operands.get(slot)
        constant = value is not None and value.constant is not None
        row = self.table.kernel(ops) or self.table.ops[node.op]
        return row.allowed(slot.split(".")[0], constant)

    # -- the answer ---------------------------------------------------------------------------

    def schemes(self) -> Schemes:
        """Returns every slot's scheme: activations by share set, weights and biases by op."""
        out: Schemes = {}
        sizes: dict[Stored, int] = {}
        for value in self.slots_of:
            root = self.find_root(value)
            sizes[root] = sizes.get(root, 0) + 1
        for value, users in self.slots_of.items():
            root = self.find_root(value)
            scheme = self.scheme_of_root[root]
            if sizes[root] > 1:
                scheme = replace(scheme, share=root.name)
            for node, slot in users:
                at = self.last_of_kernel(node) if slot == RESULT else node
                out.setdefault(at, {})[slot] = scheme
        for node in self.graph:
            if self.reasons.get(node, "float") == "":
                for slot in node.operands:
                    if self._is_parameter(node, slot) and self._allowed_schemes(node, slot):
                        out.setdefault(node, {})[slot] = self._parameter_scheme(node, slot)
        return out

    def _parameter_scheme(self, node: Node, slot: str) -> Scheme:
        allowed = self._allowed_schemes(node, slot)
        traits = spec(node.op).traits
        if slot == traits.bias:
            data = self.scheme_of_root.get(self.find_root(node.operands[traits.data]))
            allowed = self.table.ops[node.op].biases(slot, data)
        rule = self._deciding_rule(node, slot)
        if rule is not None and rule.scheme is not None:
            found = next((f for a in allowed if (f := fit_to_slot(a, rule.scheme))), None)
            if found is None or found.scale is not None:
                raise self._rule_error(node, slot)
            return found
        # No runtime's integer kernel has a scale for each column of stacked matrices.
        granularity = "tensor" if _is_stack_of_matrices(node, slot) else self.granularity
        return next((s for s in allowed if s.granularity == granularity), allowed[0])

    def plan(self) -> Plan:
        schemes = self.schemes()
        known = GraphFacts(self.graph)
        decisions = tuple(
            self._decision(n, schemes, known) for n in self.graph if n.op not in STRUCTURAL_OPS
        )
        sets: dict[Stored, list[str]] = {}
        for value in (v for v in self.slots_of if not isinstance(v, Requantized)):
            sets.setdefault(self.find_root(value), []).append(value.name)
        shared = tuple(tuple(names) for names in sets.values() if len(names) > 1)
        return Plan(self.table.name, decisions, shared)

    def _decision(self, node: Node, schemes: Schemes, known: GraphFacts) -> Decision:
        anchor = self.anchor_of.get(node)
        if said := self._missing_kernel_reason(node):
            return known.decision(node, said)
        if anchor is not None:
            return replace(
                known.decision(node, ""),
                reason=f"in the kernel of {anchor.name}",
                group=anchor.name,
            )
        found = {s: str(k) for s, k in schemes.get(node, {}).items()}
        if RESULT not in found and (tail := self.last_of_kernel(node)) is not node:
            found[RESULT] = str(schemes.get(tail, {}).get(RESULT, ""))
        return known.decision(node, self.reasons[node], found)

    def _missing_kernel_reason(self, node: Node) -> str:
        """Returns why ops of a kernel that the target lacks stay float; empty for others."""
        anchor = self.anchor_of.get(node, node)
        if self.kernel_of is None or anchor not in self.epilogues:
            return ""
        ops = (anchor.op, *(tail.op for tail in self.epilogues[anchor]))
        if self.table.chain(ops):
            return ""
        return f"float between quantized values: {self.table.name} has no kernel {' |> '.join(ops)}"


def _is_stack_of_matrices(node: Node, slot: str) -> bool:
    """Returns whether an operand is the weight of a matrix product and more than one matrix."""
    traits = spec(node.op).traits
    is_weight = traits.layer == "matrix" and slot == traits.weight
    return is_weight and node.operands[slot].type.rank > 2


__all__ = ["Schemes", "assign_schemes"]
