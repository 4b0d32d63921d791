"""A program: nodes, the values they make, and the uses of those values.

The store is a networkx MultiDiGraph whose vertices are the nodes and whose edges are uses,
keyed by slot name. Nodes stand in a linked order that is always topological; each has a rank,
so that asking which of two comes first costs nothing. Only a graph's methods change it, and what
it shows of its tables cannot be written to.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType

import networkx as nx

from qir.errors import GraphError, TypeRuleError
from qir.ir import attrs as attributes
from qir.ir.attrs import Attr
from qir.ir.node import Node, Stage, Use, Value
from qir.ir.ops import Call, spec
from qir.ir.ops.graph import GIVEN
from qir.ir.origin import Lineage, Origin
from qir.ir.printer import print_graph
from qir.ir.scheme import Scheme
from qir.ir.types import Array, TensorType

_GAP = 1 << 24
_SPARSE = 1.6  # how much sparser a range must be for each bit it is wider
COMPANIONS = ("scale", "zero", "min", "max")


class Graph:
    """One program; iterating gives its nodes, producers first.

    Who adds or moves nodes while iterating does it over `list(graph)`.
    """

    def __init__(self, name: str = "main", profile: str = "native") -> None:
        self.name = name
        self.profile = profile
        self._store: nx.MultiDiGraph[Node] = nx.MultiDiGraph()
        self._view: nx.MultiDiGraph[Node] | None = None
        self._first: Node | None = None
        self._last: Node | None = None
        self._values: dict[str, Value] = {}
        self._counts: dict[str, int] = {}
        self._output: Node | None = None
        self.version = 0
        """Rises with every edit; what is derived from a graph is kept by it."""

    # -- reading ------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Node]:
        node = self._first
        while node is not None:
            following = node._next
            yield node
            node = following

    def __reversed__(self) -> Iterator[Node]:
        node = self._last
        while node is not None:
            following = node._prev
            yield node
            node = following

    def __len__(self) -> int:
        return len(self._store)

    def __contains__(self, node: object) -> bool:
        return isinstance(node, Node) and self._store.has_node(node)

    def __getitem__(self, name: str) -> Value:
        try:
            return self._values[name]
        except KeyError:
            raise GraphError(f"graph {self.name} has no value %{name}") from None

    def __repr__(self) -> str:
        return f"<graph {self.name}: {len(self)} nodes>"

    def __str__(self) -> str:
        return print_graph(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        return print_graph(self, by_content=True) == print_graph(other, by_content=True)

    __hash__ = object.__hash__

    def has(self, name: str) -> bool:
        """Whether a value of that name exists."""
        return name in self._values

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values of the input nodes, in order."""
        return tuple(n.result for n in self if n.op == "input")

    @property
    def output(self) -> Node:
        """The output node; GraphError while there is none."""
        if self._output is None:
            raise GraphError(f"graph {self.name} has no output")
        return self._output

    @property
    def outputs(self) -> Mapping[str, Value]:
        """Results by name."""
        return self.output.operands

    @property
    def values(self) -> Mapping[str, Value]:
        """Every value by name."""
        return MappingProxyType(self._values)

    @property
    def nx(self) -> nx.MultiDiGraph[Node]:
        """The graph for networkx: every algorithm at the store's speed, and no writing.

        The data of its edges are for networkx alone; no part of QIR reads them.
        """
        if self._view is None:
            self._view = nx.freeze(nx.graphviews.generic_graph_view(self._store))
        return self._view

    def arrays(self) -> Iterator[Array]:
        """Every array that constants, attributes and types refer to, in order, repeats included."""
        for node in self:
            for value in node._attrs.values():
                yield from attributes.arrays(value)
            for stage in node.stages:
                for value in stage.attrs.values():
                    yield from attributes.arrays(value)
                if stage.type:
                    yield from stage.type.arrays()
            for result in node.results:
                yield from result.type.arrays()

    # -- building -----------------------------------------------------------------------------

    def add(
        self,
        op: str,
        operands: Mapping[str, Value] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        *,
        types: Iterable[TensorType] | None = None,
        name: str | Iterable[str] | None = None,
        before: Node | None = None,
        origins: Iterable[Origin] = (),
        profile: str | None = None,
    ) -> Node:
        """Adds a node, last or before another; types are inferred unless given.

        A name that is taken gets a number. Raises TypeRuleError if the op does not take these
        operands, GraphError for a place before an operand or operands of another graph.
        """
        operands = dict(operands or {})
        row = spec(op)
        if op == "fused":
            raise GraphError("a group is made by add_chain")
        full = row.complete(attrs or {})
        self._check_slots(op, operands)
        if op == "output" and self._output is not None:
            raise GraphError(f"graph {self.name} has an output already")
        node = Node(op, full, tuple(origins), profile)
        if types is None:
            if op in GIVEN and op != "output":
                raise TypeRuleError(f"{op}: its result types are to be given")
            types = infer(op, operands, full)
        kinds = tuple(types)
        if row.results is not None and len(kinds) != row.results:
            raise TypeRuleError(f"{op} makes {row.results} values, {len(kinds)} types are given")
        self._place(node, operands, kinds, name, before)
        if op == "output":
            self._output = node
        return node

    def add_chain(
        self,
        stages: Iterable[Stage],
        operands: Mapping[str, Value],
        type: TensorType,
        *,
        name: str | None = None,
        before: Node | None = None,
        origins: Iterable[Origin] = (),
        profile: str | None = None,
    ) -> Node:
        """Adds a group that is a chain of stages; the operands are those of all stages.

        Raises GraphError if stages and operands do not belong together.
        """
        kept = tuple(stages)
        _check_chain(kept)
        wanted = [slot for i, s in enumerate(kept) for slot in s.group_slots(i)]
        if sorted(wanted) != sorted(operands):
            raise GraphError(
                f"a chain wants {', '.join(wanted)}, it is given {', '.join(operands)}"
            )
        node = Node("fused", {}, tuple(origins), profile, kept)
        ordered = {slot: operands[slot] for slot in wanted}
        self._place(node, ordered, (type,), name, before)
        return node

    def constant(
        self, data: Array, *, name: str | None = None, before: Node | None = None
    ) -> Value:
        """Adds a constant and gives its value."""
        return self.add(
            "constant", {}, {"data": data}, name=name or data.name or None, before=before
        ).result

    def _check_slots(self, op: str, operands: Mapping[str, Value], *, whole: bool = True) -> None:
        row = spec(op)
        if op in ("output", "foreign", "fused"):
            return
        for slot in operands:
            base, _, last = slot.rpartition(".")
            companion = last in COMPANIONS and (not base or row.slot(base) is not None)
            if row.slot(slot) is None and not companion:
                known = ", ".join(s.name for s in row.operands) or "none"
                raise TypeRuleError(f"{op} has no slot {slot}; its slots: {known}")
        for needed in row.operands if whole else ():
            if not (needed.optional or needed.variadic) and needed.name not in operands:
                raise TypeRuleError(f"{op} needs {needed.name}")

    def _place(
        self,
        node: Node,
        operands: Mapping[str, Value],
        kinds: tuple[TensorType, ...],
        name: str | Iterable[str] | None,
        before: Node | None,
    ) -> None:
        if before is not None:
            self._own(before)
        for slot, value in operands.items():
            if value.node not in self:
                raise GraphError(f"{node.op}: %{value.name} in {slot} is of another graph")
            if before is not None and value.node._rank >= before._rank:
                raise GraphError(f"{node.op}: %{value.name} is made after {before.name}")
        names = self._names(node.op, name, len(kinds))
        self._link(node, before)
        self._store.add_node(node)
        node.results = tuple(
            Value(node, i, n, t) for i, (n, t) in enumerate(zip(names, kinds, strict=True))
        )
        for value in node.results:
            self._values[value.name] = value
        for slot, value in operands.items():
            self._bind(node, slot, value)
        self.version += 1

    def _names(self, op: str, name: str | Iterable[str] | None, count: int) -> list[str]:
        if name is None or isinstance(name, str):
            base = op if name is None else name
            wanted = [base if i == 0 else f"{base}.{i}" for i in range(count)]
        else:
            wanted = list(name)
        if len(wanted) != count:
            raise GraphError(f"{op} makes {count} values, {len(wanted)} names are given")
        names: list[str] = []
        for each in wanted:
            found = self.fresh(each)
            while found in names:
                found = self.fresh(f"{found}_1")
            names.append(found)
        return names

    def fresh(self, base: str) -> str:
        """A value name that is not taken: the base itself, or with a number."""
        if base not in self._values:
            return base
        count = self._counts.get(base, 1)
        while f"{base}_{count}" in self._values:
            count += 1
        self._counts[base] = count + 1
        return f"{base}_{count}"

    # -- editing ------------------------------------------------------------------------------

    def set_operand(self, node: Node, slot: str, value: Value | None) -> None:
        """Binds a slot to a value, or empties it; a producer that stands later moves up.

        Raises GraphError if that would close a cycle, TypeRuleError for a slot that the op does
        not have; then nothing is changed.
        """
        self._own(node)
        if value is not None and slot not in node._operands:
            self._check_slots(node.op, {slot: value}, whole=False)
        if value is not None:
            self._own(value.node)
            self._lift(self._late(value.node, node), node)
        if value is not None:
            self._bind(node, slot, value)
        else:
            self._unbind(node, slot)
        self.version += 1

    def replace(self, old: Value, new: Value, *, except_in: Node | None = None) -> int:
        """Gives every use of one value another; says how many there were.

        Raises GraphError if that would close a cycle; then nothing is changed.
        """
        self._own(old.node)
        self._own(new.node)
        uses = [use for use in old._uses if use.node is not except_in]
        if old is new or not uses:
            return 0
        first = min((use.node for use in uses), key=lambda n: n._rank)
        late = self._late(new.node, first)
        for use in uses:
            if use.node in late:
                raise _cycle(use.node, new.node)
        self._lift(late, first)
        for node, slot in uses:
            self._bind(node, slot, new)
        self.version += 1
        return len(uses)

    def remove(self, node: Node) -> None:
        """Takes out a node; GraphError while a value of it is used, naming the user."""
        self._own(node)
        for value in node.results:
            for use in value._uses:
                raise GraphError(f"cannot remove {node.name}: {use.node.name} uses %{value.name}")
        for slot in list(node._operands):
            self._unbind(node, slot)
        for value in node.results:
            del self._values[value.name]
        self._store.remove_node(node)
        self._unlink(node)
        if node is self._output:
            self._output = None
        self.version += 1

    def prune(self) -> int:
        """Takes out every node whose values nobody uses, inputs aside; says how many."""
        dead = [n for n in reversed(self) if n.op not in ("input", "output") and not n.used]
        count = 0
        while dead:
            node = dead.pop()
            if node not in self or node.used:
                continue
            producers = {v.node for v in node._operands.values()}
            self.remove(node)
            count += 1
            dead += [p for p in producers if p.op != "input" and not p.used]
        return count

    def rename(self, value: Value, name: str) -> None:
        """Gives a value another name; GraphError if it is taken."""
        self._own(value.node)
        if name == value.name:
            return
        if name in self._values:
            raise GraphError(f"the name %{name} is taken")
        del self._values[value.name]
        value.name = name
        self._values[name] = value
        self.version += 1

    def set_type(self, value: Value, type: TensorType) -> None:
        """States what a value is; the verifier checks that it fits its op."""
        self._own(value.node)
        value.type = type
        self.version += 1

    def set_attrs(self, node: Node, **changes: Attr) -> None:
        """Changes some attributes; TypeRuleError for one the op does not have."""
        self._own(node)
        node._attrs = spec(node.op).complete({**node._attrs, **changes})
        self.version += 1

    def set_origins(self, node: Node, origins: Iterable[Origin]) -> None:
        """States where a node came from."""
        self._own(node)
        node.origins = tuple(dict.fromkeys(origins))

    def set_slot_origins(self, node: Node, slot: str, origins: Iterable[Origin]) -> None:
        """States whose quantize or dequantize a slot absorbed; none clears it."""
        self._own(node)
        if found := tuple(origins):
            node._slot_origins[slot] = found
        else:
            node._slot_origins.pop(slot, None)

    def set_lineage(self, value: Value, lineage: Lineage) -> None:
        """States which source tensor a value stands for."""
        self._own(value.node)
        value.lineage = lineage

    def set_profile(self, node: Node, profile: str | None) -> None:
        """States whose arithmetic a node follows; None: the graph's."""
        self._own(node)
        node.profile = profile
        self.version += 1

    def set_scheme(self, node: Node, slot: str, scheme: Scheme | None) -> None:
        """Plans a slot, or clears its plan."""
        self._own(node)
        if scheme is None:
            node._schemes.pop(slot, None)
        else:
            node._schemes[slot] = scheme
        self.version += 1

    def copy(self) -> Graph:
        """Another graph, equal to this one; arrays are shared, since nobody writes to them."""
        out = Graph(self.name, self.profile)
        twin: dict[Value, Value] = {}
        for node in self:
            made = Node(node.op, node._attrs, node.origins, node.profile, node.stages)
            made._slot_origins = dict(node._slot_origins)
            made._schemes = dict(node._schemes)
            operands = {slot: twin[value] for slot, value in node._operands.items()}
            types = tuple(value.type for value in node.results)
            out._place(made, operands, types, [v.name for v in node.results], None)
            for value, other in zip(node.results, made.results, strict=True):
                twin[value] = other
                other.lineage = value.lineage
            if node is self._output:
                out._output = made
        return out

    # -- uses and order -----------------------------------------------------------------------

    def _bind(self, node: Node, slot: str, value: Value) -> None:
        """Makes an edge; a slot that held another value keeps its place among the slots."""
        self._release(node, slot)
        node._operands[slot] = value
        value._uses[Use(node, slot)] = None
        self._store.add_edge(value.node, node, key=slot, result=value.index)

    def _unbind(self, node: Node, slot: str) -> None:
        self._release(node, slot)
        node._operands.pop(slot, None)

    def _release(self, node: Node, slot: str) -> None:
        if (value := node._operands.get(slot)) is not None:
            del value._uses[Use(node, slot)]
            self._store.remove_edge(value.node, node, key=slot)

    def _own(self, node: Node) -> None:
        if node not in self:
            raise GraphError(f"{node.name} is of another graph, or was removed")

    def _late(self, producer: Node, user: Node) -> set[Node]:
        """What would have to stand before its user and does not; GraphError for a cycle."""
        late: set[Node] = set()
        todo = [producer]
        while todo:
            node = todo.pop()
            if node._rank >= user._rank and node not in late:
                late.add(node)
                todo += [value.node for value in node._operands.values()]
        if user in late:
            raise _cycle(user, producer)
        return late

    def _lift(self, late: set[Node], user: Node) -> None:
        """Moves nodes, in their order, to just before one."""
        for node in sorted(late, key=lambda n: n._rank):
            self._unlink(node)
            self._link(node, user)

    def _link(self, node: Node, before: Node | None) -> None:
        after = self._last if before is None else before._prev
        node._rank = self._between(after, before)
        node._prev, node._next = after, before
        if after is None:
            self._first = node
        else:
            after._next = node
        if before is None:
            self._last = node
        else:
            before._prev = node

    def _between(self, after: Node | None, before: Node | None) -> int:
        if before is None:
            return (after._rank if after else 0) + _GAP
        if before._rank - (after._rank if after else 0) < 2:
            self._make_room(before)
        return ((after._rank if after else 0) + before._rank) // 2

    def _unlink(self, node: Node) -> None:
        if node._prev is None:
            self._first = node._next
        else:
            node._prev._next = node._next
        if node._next is None:
            self._last = node._prev
        else:
            node._next._prev = node._prev
        node._prev = node._next = None

    def _make_room(self, node: Node) -> None:
        """Spreads the ranks around a node, over the smallest range that is sparse enough.

        Tags of Bender et al., "Two simplified algorithms for maintaining order in a list": an
        insertion costs logarithmic time on average, wherever nodes are put in.
        """
        first = last = node
        count, bits = 1, 0
        while count * _SPARSE**bits > 1 << bits or bits < 2:
            bits += 1
            low = node._rank >> bits << bits
            while first._prev and first._prev._rank >= low:
                first, count = first._prev, count + 1
            while last._next and last._next._rank < low + (1 << bits):
                last, count = last._next, count + 1
        step = (1 << bits) // count
        for i in range(count):
            first._rank = low + i * step + step // 2
            assert i == count - 1 or first._next is not None
            first = first._next or first


def _cycle(user: Node, producer: Node) -> GraphError:
    return GraphError(f"{user.name} would need its own result, through {producer.name}")


def _check_chain(stages: tuple[Stage, ...]) -> None:
    if len(stages) < 2:
        raise GraphError(f"a chain of {len(stages)} stages; one op alone is a plain node")
    for i, stage in enumerate(stages):
        flow = spec(stage.op).slot(stage.flow) if stage.flow else None
        if (i > 0) != (flow is not None) or stage.flow in stage.slots:
            raise GraphError(f"stage {i}, {stage.op}: the flow from the stage before is amiss")
    if stages[-1].type is not None:
        raise GraphError("the last stage's type is the group's")


def infer(
    op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]
) -> tuple[TensorType, ...]:
    """The result types by the op's rule; codes stay codes where the op only moves them."""
    row = spec(op)
    call = make_call(op, operands, attrs)
    types = row.rule(call)
    if row.move and len(types) == 1:
        slot = next((s for s in ("x", "xs.0") if s in operands), next(iter(operands)))
        element = operands[slot].type.quant
        if element is not None:
            moved = row.move(call, element)
            if moved is None:
                raise TypeRuleError(f"{op}: the quantized axis {element.axis} does not survive")
            return (types[0].with_element(moved),)
    return types


def make_call(op: str, operands: Mapping[str, Value], attrs: Mapping[str, Attr]) -> Call:
    """What an op's rules see of one use."""
    constants = {
        slot: value.node._attrs["data"]
        for slot, value in operands.items()
        if value.node.op == "constant"
    }
    if op == "constant":
        constants = {"data": attrs["data"]}
    found = {k: v for k, v in constants.items() if isinstance(v, Array)}
    return Call(op, {slot: value.type for slot, value in operands.items()}, attrs, found)
