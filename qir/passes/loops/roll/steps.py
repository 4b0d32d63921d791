"""Finds repeated steps and rewrites them as a scan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from qir.ir import attrs as attributes
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.passes.loops.roll.folded_steps import Folded, zeros

Row: TypeAlias = tuple[Value, ...]
"""What is at one place of every step, in the order of the steps."""
_NEVER_REPEATED = STATED_TYPE_OPS | {"constant"}
_MAX_TRIES = 64


# -- entries of sequences -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SequenceEntry:
    """Which entry of which sequence a value is."""

    source: Value
    axis: int
    index: int


def entry_of(value: Value) -> SequenceEntry | None:
    """Returns the entry that a squeezed slice, a squeezed part of a split, or a gather of one
    is."""
    node = value.node
    x = node.operands.get("x")
    if x is None:
        return None
    if node.op == "gather":
        constant = node.operands["indices"].constant
        if constant is None or constant.contents.ndim:
            return None
        return _entry_at(x, node.attrs["axis"], int(constant.data))
    if node.op != "squeeze" or node.attrs["axes"] in ((), None):
        return None
    axes, source_node = node.attrs["axes"], x.node
    if not isinstance(axes, tuple) or len(axes) != 1:
        return None
    axis = axes[0]
    if source_node.op == "slice":
        bounds = [source_node.attrs[name] for name in ("starts", "ends", "axes", "steps")]
        if any(not isinstance(bound, tuple) or len(bound) != 1 for bound in bounds):
            return None
        start, _, slice_axis, _ = (bound[0] for bound in bounds if isinstance(bound, tuple))
        source = source_node.operands["x"]
        entry = _entry_at(source, slice_axis, start)
        removed = _entry_at(x, axis, 0)
        has_one_entry = x.type.shape[removed.axis] == 1 if removed is not None else False
        return (
            entry
            if has_one_entry and removed is not None and entry and entry.axis == removed.axis
            else None
        )
    if source_node.op == "split" and set(_ints(source_node.attrs["sizes"])) == {1}:
        entry = _entry_at(source_node.operands["x"], source_node.attrs["axis"], x.index)
        removed = _entry_at(x, axis, 0)
        return entry if entry and removed and entry.axis == removed.axis else None
    return None


def _ints(value: Attr) -> tuple[int, ...]:
    return tuple(n for n in value if isinstance(n, int)) if isinstance(value, tuple) else ()


def _entry_at(source: Value, axis: Attr, index: Attr) -> SequenceEntry | None:
    rank = source.type.rank
    if not isinstance(axis, int) or not isinstance(index, int) or not -rank <= axis < rank:
        return None
    size = source.type.shape[axis]
    if not isinstance(size, int) or not -size <= index < size:
        return None
    return SequenceEntry(source, axis % rank, index % size)


def sequences(graph: Graph) -> Iterator[Row]:
    """Yields the entries of every sequence of which all are read, in their order."""
    by_sequence: dict[tuple[Value, int], dict[int, Value]] = {}
    for node in graph:
        if node.op in ("squeeze", "gather") and (entry := entry_of(node.result)) is not None:
            by_sequence.setdefault((entry.source, entry.axis), {}).setdefault(
                entry.index, node.result
            )
    for (source, axis), entries in by_sequence.items():
        if len(entries) == source.type.shape[axis] and len(entries) > 1:
            yield tuple(entries[i] for i in range(len(entries)))


# -- rows -----------------------------------------------------------------------------------------


def last_rows(entries: Row) -> list[Row]:
    """Rows above the entries that somebody else reads, the last ones of a step first."""
    rows = list(_following_rows(entries))
    inside = {value.node for row in rows for value in row}
    read = [r for r in rows if any(u.node not in inside for v in r for u in v.uses)]
    read.sort(key=lambda row: -row[-1].node._rank)
    return read[:_MAX_TRIES]


def _following_rows(entries: Row) -> Iterator[Row]:
    """Yields the users of entries that stand alike in every step, and theirs, nearest first."""
    pending, visited = [entries], {value.node for value in entries}
    while pending:
        row = pending.pop(0)
        users = [_users_by_place(value) for value in row]
        for place, node in users[0].items():
            nodes = [found.get(place) for found in users]
            repeated = [n for n in nodes if n is not None]
            fits = len(repeated) == len(row) == len(set(repeated)) and visited.isdisjoint(repeated)
            if not fits or node.op in _NEVER_REPEATED or node.op == "unsqueeze":
                continue
            visited.update(repeated)
            for i in range(len(node.results)):
                follower = tuple(n.results[i] for n in repeated)
                pending.append(follower)
                yield follower


def _users_by_place(value: Value) -> dict[tuple[str, str, int], Node]:
    """Users by op, slot, and which one of those it is."""
    users: dict[tuple[str, str, int], Node] = {}
    counts: dict[tuple[str, str], int] = {}
    for node, slot in value.uses:
        number = counts.get((node.op, slot), 0)
        counts[node.op, slot] = number + 1
        users[node.op, slot, number] = node
    return users


@dataclass(frozen=True, slots=True)
class Stack:
    """A concat that stacks a row: along which axis of a part, backwards or not."""

    node: Node
    axis: int
    backwards: bool
    others: tuple[int, ...]
    """Axes of 1 that the stack has besides."""


@dataclass
class RepeatedSteps:
    """Rows that were found to be alike, from those that others read down to what they read."""

    graph: Graph
    rows: dict[Row, None] = field(default_factory=dict)
    """Of nodes, one of every step."""
    entries: dict[Row, tuple[Value, int, bool]] = field(default_factory=dict)
    """Rows of entries: the sequence, its axis, and whether it runs backwards."""
    shared: dict[Row, Value] = field(default_factory=dict)
    carried_rows: dict[Row, Row] = field(default_factory=dict)
    """What the step before made, and the row that it made: the first comes from outside."""
    stacked: dict[Row, list[Stack]] = field(default_factory=dict)
    by_later_steps: dict[Row, Row] = field(default_factory=dict)
    nodes: set[Node] = field(default_factory=set)
    initial: dict[Row, Value] = field(default_factory=dict)
    """What the first step begins with, for each row that is handed on."""
    folded: set[tuple[Node, ...]] = field(default_factory=set)
    """Nodes of all steps but the first, of whose node somebody has left a constant."""

    @property
    def carried(self) -> list[Row]:
        """The rows that are handed on, each once."""
        return list(dict.fromkeys(self.carried_rows.values()))

    @property
    def first(self) -> Row:
        """The row that was looked at first."""
        return next(iter(self.rows))

    def trace(self, row: Row) -> bool:
        """Returns whether all that a row is on is alike in every step."""
        pending = [row]
        while pending:
            postponed: list[Row] = []
            moved = False
            while pending:
                current = pending.pop()
                if current in self.rows or self._is_leaf(current):
                    moved = True
                elif self._is_same_op(current):
                    moved = True
                    slots = current[0].node.operands
                    pending += [tuple(v.node.operands[slot] for v in current) for slot in slots]
                elif (first_operands := self._folded_operands(current)) is not None:
                    moved = True
                    pending += [
                        (first, *(v.node.operands[slot] for v in current[1:]))
                        for slot, first in first_operands.items()
                    ]
                else:
                    postponed.append(current)  # it may be handed on by a row that is yet to be met
            if postponed and not moved:
                return False
            pending = postponed
        return True

    def _is_leaf(self, row: Row) -> bool:
        """Returns whether a row is of values from outside, entries, or what was handed on."""
        if row in self.entries or row in self.shared or row in self.carried_rows:
            return True
        first = row[0]
        if all(value is first for value in row) or _equal_constants(row):
            self.shared[row] = first
            return True
        if (carried := self.by_later_steps.get(row[1:])) is not None and first.type == carried[
            0
        ].type:
            start = self.initial.setdefault(carried, first)
            if start is first or _equal_constants((start, first)):
                self.carried_rows[row] = carried
                return True
            return False  # one state begins with two values
        found = [entry_of(value) for value in row]
        sources = {(entry.source, entry.axis) if entry else None for entry in found}
        if None in sources or len(sources) > 1:
            return False
        places = [entry.index for entry in found if entry]
        source, axis = next((entry.source, entry.axis) for entry in found if entry)
        forward = list(range(len(row)))
        if source.type.shape[axis] != len(row) or places not in (forward, forward[::-1]):
            return False
        self.entries[row] = (source, axis, places != forward)
        return True

    def _is_same_op(self, row: Row) -> bool:
        """Returns whether a row is of different nodes that are the same op on the same slots."""
        nodes = [value.node for value in row]
        first = nodes[0]
        if (
            first.op in _NEVER_REPEATED
            or len(set(nodes)) < len(nodes)
            or not self.nodes.isdisjoint(nodes)
        ):
            return False
        if any(value.index != row[0].index for value in row) or not all(
            _same_node(first, node) for node in nodes
        ):
            return False
        self.nodes.update(nodes)
        for results in zip(*(node.results for node in nodes), strict=True):
            self.rows[results] = None
            self.by_later_steps[results[:-1]] = results
        return True

    def _folded_operands(self, row: Row) -> dict[str, Value] | None:
        """Returns the operands of the first step, of which somebody has left what they make, a
        constant."""
        nodes = [value.node for value in row[1:]]
        if (
            row[0].constant is None
            or nodes[0].op in _NEVER_REPEATED
            or len(set(nodes)) < len(nodes)
        ):
            return None
        operands = Folded(self.graph, self._initial_state, _same_node).first_operands(row)
        is_known = tuple(nodes) in self.folded  # another result of the same op
        if operands is None or not (is_known or self.nodes.isdisjoint(nodes)):
            return None
        self.nodes.update(nodes)
        self.folded.add(tuple(nodes))
        self.rows[row] = None
        for results in zip(*(node.results for node in nodes), strict=True):
            self.rows.setdefault((row[0], *results))
        return {} if is_known else operands

    def _initial_state(self, later: Row) -> Value | None:
        """Returns the start of a state that later steps have as these: zeros where nothing else is
        said."""
        carried = self.by_later_steps.get(later)
        if carried is None:
            return None
        return self.initial.get(carried) or zeros(carried[0].type)

    # -- what others read -----------------------------------------------------------------------

    def find_stacks(self) -> bool:
        """Returns whether all that others read can be given by a scan; finds the stacks."""
        for row in self.rows:
            stacks, stacking = self._stacks(row)
            for i, value in enumerate(row):
                if value.constant is not None:
                    continue  # of a first step that was folded: others may have it too
                others = [u.node for u in value.uses if u.node not in self.nodes]
                last = i == len(row) - 1 and row in self.carried
                if not last and any(node not in stacking for node in others):
                    return False
            if stacks:
                self.stacked[row] = stacks
        given = [*self.shared.values(), *(row[0] for row in self.carried_rows)]
        given += [source for source, _, _ in self.entries.values()]
        return not self._stand_on_steps(given)

    def _stacks(self, row: Row) -> tuple[list[Stack], set[Node]]:
        """Returns the stacks of a row, and the nodes between."""
        found: list[Stack] = []
        between: set[Node] = set()
        for node in row[0].users:
            use = node.results[0].only_use if node.op == "unsqueeze" else None
            if use is None or use.node.op != "concat":
                continue
            stack = _stack(use.node, row)
            if stack is not None and all(stack.node is not s.node for s in found):
                found.append(stack)
                between |= {value.node for value in use.node.variadic("xs")}
        return found, between

    def _stand_on_steps(self, values: list[Value]) -> bool:
        """Returns whether one of these is made from what a step makes."""
        # Nodes that stand before the first step cannot be made from one, so the search ends there.
        least = min(node._rank for node in self.nodes)
        todo, seen = [value.node for value in values], set[Node]()
        while todo:
            node = todo.pop()
            if node in self.nodes:
                return True
            if node not in seen and node._rank > least:
                seen.add(node)
                todo += [value.node for value in node.operands.values()]
        return False


def _equal_constants(row: Row) -> bool:
    constant = row[0].constant
    return constant is not None and all(value.constant == constant for value in row)


def _same_node(a: Node, b: Node) -> bool:
    """Returns whether two nodes are one op with the same attributes, types and slots, and no
    bodies."""
    if a is b:
        return True
    if a.op != b.op or a.profile != b.profile or list(a.operands) != list(b.operands):
        return False
    if a.bodies or b.bodies or a.schemes or b.schemes or a.inner or b.inner:
        return False
    if [v.type for v in a.results] != [v.type for v in b.results]:
        return False
    return all(attributes.same(a.attrs[name], b.attrs[name]) for name in a.attrs)


def _stack(node: Node, row: Row) -> Stack | None:
    """Returns how a concat stacks a row, each put on axes of 1 by the same unsqueeze; None: it does
    not."""
    parts = node.variadic("xs")
    unsqueezes = [part.node for part in parts]
    if len(parts) != len(row) or any(m.op != "unsqueeze" for m in unsqueezes):
        return None
    stacked = [maker.operands["x"] for maker in unsqueezes]
    is_forward = stacked == list(row)
    rank = parts[0].type.rank
    axes = {tuple(sorted(a % rank for a in _ints(maker.attrs["axes"]))) for maker in unsqueezes}
    axis = node.attrs["axis"]
    if (
        not (is_forward or stacked == list(row[::-1]))
        or len(axes) != 1
        or not isinstance(axis, int)
    ):
        return None
    (unsqueezed,) = axes
    axis %= rank
    if axis not in unsqueezed:
        return None
    others = tuple(a for a in unsqueezed if a != axis)
    return Stack(node, axis - sum(a < axis for a in others), not is_forward, others)


# -- the scan -------------------------------------------------------------------------------------


def add_scan(graph: Graph, steps: RepeatedSteps) -> Node:
    """Adds the scan that the steps are, and gives their readers what it makes."""
    body, copies, shared = _build_body(steps)
    carried = steps.carried
    parts = [(row, stack) for row, stacks in steps.stacked.items() for stack in stacks]
    body.add(
        "output",
        {
            **{f"v{i}": copies[row[-1]] for i, row in enumerate(carried)},
            **{f"p{i}": copies[row[-1]] for i, (row, _) in enumerate(parts)},
        },
    )
    starts = {after: row[0] for row, after in steps.carried_rows.items()}
    for row, value in starts.items():
        if value.node not in graph and value.constant is not None:
            name = graph.fresh(f"{row[-1].name}.start")
            starts[row] = graph.constant(value.constant, name=name)
    operands = {f"vs.{i}": starts[row] for i, row in enumerate(carried)}
    sequences = list(steps.entries.values())
    operands |= {f"ss.{i}": source for i, (source, _, _) in enumerate(sequences)}
    operands |= {f"xs.{i}": value for i, value in enumerate(shared)}
    attrs: dict[str, Attr] = {
        "axes": tuple(axis for _, axis, _ in sequences),
        "reverse": tuple(int(is_reverse) for _, _, is_reverse in sequences),
        "out_axes": tuple(stack.axis for _, stack in parts),
        "out_reverse": tuple(int(stack.backwards) for _, stack in parts),
    }
    last = steps.first[-1].node
    origins = tuple(dict.fromkeys(o for row in steps.rows for o in row[-1].node.origins))
    name = graph.fresh(f"{last.name}.scan")
    profile = last.profile
    node = graph.add(
        "scan", operands, attrs, name=name, origins=origins, profile=profile, bodies={"body": body}
    )
    replacements = [(row[-1], node.results[i]) for i, row in enumerate(carried)]
    for (_, stack), value in zip(parts, node.results[len(carried) :], strict=True):
        if stack.others:
            attrs = {"axes": stack.others}
            value = graph.add("unsqueeze", {"x": value}, attrs, origins=origins).result
        replacements.append((stack.node.result, value))
    _hand_over(graph, steps, replacements)
    return node


def _hand_over(graph: Graph, steps: RepeatedSteps, replacements: list[tuple[Value, Value]]) -> None:
    """Gives uses, names and lineage to what the scan makes."""
    for old, new in replacements:
        name, lineage, read = old.name, old.lineage, bool(old.uses)
        graph.replace(old, new)
        if read:
            graph.rename(old, graph.fresh(f"{name}.step"))
            graph.rename(new, name)
            graph.set_lineage(new, lineage)


def _build_body(steps: RepeatedSteps) -> tuple[Graph, dict[Value, Value], list[Value]]:
    """Returns the last step as a body, what is in it for each of its values, and what it shares."""
    body = Graph("body", "")
    copies: dict[Value, Value] = {}
    for i, row in enumerate(steps.carried):
        body_input = body.add("input", {}, types=[row[0].type], name=f"v{i}").result
        copies |= {r[-1]: body_input for r, after in steps.carried_rows.items() if after == row}
    for i, row in enumerate(steps.entries):
        copies[row[-1]] = body.add("input", {}, types=[row[0].type], name=f"s{i}").result
    shared: list[Value] = []
    for row, value in steps.shared.items():
        constant = value.constant
        # Small constants are copied into the body, where passes can fold them.
        if constant is not None and constant.contents.size == 1:
            body_input = body.constant(constant, name=body.fresh(value.name))
        elif value in shared:
            body_input = copies[value]
        else:
            body_input = body.add("input", {}, types=[value.type], name=f"x{len(shared)}").result
            shared.append(value)
        copies[row[-1]] = copies[value] = body_input
    nodes = dict.fromkeys(row[-1].node for row in steps.rows)
    for node in sorted(nodes, key=lambda node: node._rank):
        operands = {slot: copies[value] for slot, value in node.operands.items()}
        types = [value.type for value in node.results]
        names = [value.name for value in node.results]
        copy = body.add(node.op, operands, node.attrs, types=types, name=names)
        body.set_origins(copy, node.origins)
        copies |= zip(node.results, copy.results, strict=True)
    return body, copies, shared
