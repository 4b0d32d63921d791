"""A program: nodes, the values they make, and the uses of those values.

Only a graph's methods change it, and what it shows of its tables cannot be written to. An edit
that is refused changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import SupportsIndex

import numpy as np
from numpy.typing import ArrayLike

from qir.arguments import checked_methods
from qir.errors import GraphError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.calls import check_chain, check_operand, check_slots, infer_result_types
from qir.ir.carried_profiles import needed_profiles
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.inlining import extract, merge
from qir.ir.node import EMPTY_TABLE, CarriedProfile, Node, Stage, Value, with_entry
from qir.ir.ops import spec
from qir.ir.ops.graph import STATED_TYPE_OPS
from qir.ir.origin import Lineage, Origin
from qir.ir.printer import print_graph
from qir.ir.scheme import Scheme
from qir.ir.structure import Structure, check_names, cycle
from qir.ir.type_inference import infer_types
from qir.ir.types import Array, Element, TensorType

_MAX_BODY_DEPTH = 32  # bodies within bodies


@checked_methods
class Graph(Structure):
    """One program; iterating gives its nodes, producers first.

    Who adds or moves nodes while iterating does it over `list(graph)`.
    """

    def __init__(self, name: str = "main", profile: str = "native") -> None:
        super().__init__(name)
        self._profile = profile
        self._output: Node | None = None
        self._bodies: dict[Node, Mapping[str, Graph]] = {}
        self._holder: Graph | None = None

    # -- reading ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        from qir.query.display import brief_graph

        return brief_graph(self)

    def __str__(self) -> str:
        return print_graph(self)

    def _repr_html_(self) -> str:
        from qir.query.html import graph_html

        return graph_html(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Graph):
            return NotImplemented
        if self is other:
            return True
        return print_graph(self, by_content=True) == print_graph(other, by_content=True)

    # A graph is equal by its text and can be edited, so a hash by content would change under a
    # dict.
    __hash__ = None  # type: ignore[assignment]
    """What is compared by its contents and can be edited has no hash; `id(graph)` is its own."""

    def __copy__(self) -> Graph:
        return self.copy()

    def __deepcopy__(self, memo: dict[int, object]) -> Graph:
        return self.copy()

    def __reduce_ex__(
        self, protocol: SupportsIndex
    ) -> tuple[
        Callable[[bytes, Mapping[str, CarriedProfile]], Graph],
        tuple[bytes, Mapping[str, CarriedProfile]],
    ]:
        """For pickle: the bytes of a `.qir` file, and the profiles that it carries."""
        from qir.ir.file import graph_bytes, graph_of

        return graph_of, (graph_bytes(self), dict(self.own_profiles))

    @property
    def profile(self) -> str:
        """The profile of nodes that name none; a body without one has that of its holder."""
        return self._profile

    @profile.setter
    def profile(self, name: str) -> None:
        self._free()
        self._profile = name
        self._touch()

    def body(self, node: Node, name: str = "body") -> Graph:
        """Returns a body of one of its nodes; raises GraphError where there is none of that
        name."""
        try:
            return self._bodies[node][name]
        except KeyError:
            raise GraphError(f"{node.name} has no body {name}") from None

    @property
    def holder(self) -> tuple[Graph, Node] | None:
        """The graph that holds it and the node whose body it is; None for a whole program."""
        if self._holder is None:
            return None
        # Only the holder's table says whose body a graph is: a node that is moved or removed needs
        # no second entry kept true.
        for node, bodies in self._holder._bodies.items():
            if any(body is self for body in bodies.values()):
                return self._holder, node
        raise AssertionError(f"{self._holder.name} does not hold {self.name}")

    def walk(self, path: str = "") -> Iterator[tuple[str, Graph]]:
        """This graph and every body within it, inner ones first, each with its path."""
        here = f"{path}/{self.name}" if path else self.name
        for node, bodies in list(self._bodies.items()):
            for body in bodies.values():
                yield from body.walk(f"{here}/{node.name}")
        yield here, self

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values of the input nodes, in order."""
        return tuple(n.result for n in self if n.op == "input")

    @property
    def defaults(self) -> tuple[Value, ...]:
        """The constants that the caller may give instead, in order."""
        return tuple(n.result for n in self if n.op == "constant" and n.attrs["default"])

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

    def arrays(self) -> Iterator[Array]:
        """Yields every array that constants, attributes and types refer to, in order, repeats
        included."""
        for node in self:
            yield from node.arrays()
            for body in self._bodies.get(node, {}).values():
                yield from body.arrays()

    def query(self, expression: str) -> list[Node]:
        """Returns the nodes, of bodies too, of which it is true: `op == "conv2d" and w.bits ==
        8`."""
        from qir.query.query import query

        return query(self, expression)

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
        bodies: Mapping[str, Graph] | None = None,
        inner: Mapping[str, Element] | None = None,
    ) -> Node:
        """Adds a node, last or before another; types are inferred unless given.

        A name that is taken gets a number. `bodies` become the node's own: copy one that another
        node holds. Raises TypeRuleError if the op does not take these operands, GraphError for a
        place before an operand or operands of another graph.
        """
        operands = operands or EMPTY_TABLE
        op_spec = spec(op)
        own_bodies = dict(bodies) if bodies else EMPTY_TABLE
        if op == "fused" and not own_bodies:
            raise GraphError("a group is made by add_chain, or it has a body")
        # Most ops are added without attributes: all such nodes share one complete table.
        complete = (
            op_spec.default_attrs
            if not attrs and op_spec.default_attrs is not None
            else op_spec.complete_attrs(attrs or {})
        )
        check_slots(op, operands)
        if own_bodies or op_spec.bodies:
            self._check_bodies(op, operands, own_bodies)
        # Everything is checked before the first change, so that a refused edit leaves the graph as
        # it was.
        if op == "output" and self._output is not None:
            raise GraphError(f"graph {self.name} has an output already")
        node = Node(op, complete, tuple(origins), profile)
        if types is None:
            # The types of inputs, constants, foreign nodes and quantized results cannot be
            # inferred.
            if op in STATED_TYPE_OPS and op != "output":
                raise TypeRuleError(f"{op}: its result types are to be given")
            types = infer_result_types(op, operands, complete, own_bodies)
        result_types = tuple(types)
        if op_spec.results is not None and len(result_types) != op_spec.results:
            raise TypeRuleError(
                f"{op} makes {op_spec.results} values, {len(result_types)} types are given"
            )
        for slot, element in inner.items() if inner else ():
            node._inner = with_entry(node._inner, _inner_slot(op, slot), element)
        self._place(node, operands, result_types, name, before)
        if own_bodies:
            self._hold(node, own_bodies)
        if op == "output":
            self._output = node
        return node

    def _hold(self, node: Node, bodies: Mapping[str, Graph]) -> None:
        for name, body in bodies.items():
            self._outermost()._own_profiles |= body._own_profiles
            body._holder, body._name = self, name
            body._own_profiles = {}
        if bodies:
            self._bodies[node] = bodies
            node._bodies = bodies

    def _check_bodies(
        self, op: str, operands: Mapping[str, Value], bodies: Mapping[str, Graph]
    ) -> None:
        """Raises GraphError for bodies that the op does not have, or that are not free to be
        held."""
        required = spec(op).bodies
        if op != "foreign" and sorted(required) != sorted(bodies):
            has = f"the bodies {', '.join(required)}" if required else "no bodies"
            raise GraphError(f"{op} has {has}, it is given {', '.join(bodies) or 'none'}")
        for i, (name, body) in enumerate(bodies.items()):
            # A graph that already has a holder, that is this graph or one around it, or that is
            # named twice would have two parents: edits of one would show in the other.
            in_use = (*self._holders(), *list(bodies.values())[:i])
            if body._holder is not None or any(body is g for g in in_use):
                raise GraphError(f"{op}: the graph of {name} has a place already; copy it first")
            # Reading the property is the check: it raises GraphError where there is no output.
            body.output  # noqa: B018 - raises where there is none
        self._check_profiles(p for body in bodies.values() for p in body._own_profiles.values())
        # A fused body's inputs are bound by name, since a group has the slots of its stages.
        if op == "fused" and [v.name for v in bodies["body"].inputs] != list(operands):
            names = ", ".join(v.name for v in bodies["body"].inputs)
            raise GraphError(f"the body takes {names}; the group has {', '.join(operands)}")
        if (
            bodies
            and len(self._holders()) + max(b._depth() for b in bodies.values()) > _MAX_BODY_DEPTH
        ):
            raise GraphError(f"{op}: bodies within bodies, more than {_MAX_BODY_DEPTH} deep")

    def _holders(self) -> list[Graph]:
        """This graph, the one that holds it, the one that holds that, ..."""
        out = [self]
        while (holder := out[-1]._holder) is not None:
            out.append(holder)
        return out

    def _depth(self) -> int:
        """Returns how many graphs deep it is, itself counted."""
        inner = (b for bodies in self._bodies.values() for b in bodies.values())
        return 1 + max((b._depth() for b in inner), default=0)

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
        chain = tuple(stages)
        check_chain(chain)
        check_slots("fused", operands)
        # Slot `1.y` of the group is slot `y` of stage 1; stage 0 keeps its plain names.
        required = [slot for i, s in enumerate(chain) for slot in s.group_slots(i)]
        if sorted(required) != sorted(operands):
            message = f"a chain wants {', '.join(required)}, it is given {', '.join(operands)}"
            raise GraphError(message)
        node = Node("fused", spec("fused").complete_attrs({}), tuple(origins), profile, chain)
        # Operands in the order of the stages: the printer and the hash of the text depend on it.
        ordered = {slot: operands[slot] for slot in required}
        self._place(node, ordered, (type,), name, before)
        return node

    def constant(
        self, data: Array | ArrayLike, *, name: str | None = None, before: Node | None = None
    ) -> Value:
        """Adds a constant and gives its value; elements alone have their own plain type."""
        array = data if isinstance(data, Array) else Array.of(np.asarray(data))
        value_name = name or array.name or None
        attrs = {"data": array}
        node = self.add(
            "constant", None, attrs, types=(array.type,), name=value_name, before=before
        )
        return node.result

    def insert_after(
        self,
        value: Value | str,
        op: str,
        operands: Mapping[str, Value] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        *,
        slot: str = "",
        types: Iterable[TensorType] | None = None,
        name: str | None = None,
    ) -> Node:
        """Adds an op that reads a value, and gives its result to all other users of that value.

        `slot` is where it reads the value, by default its first; `operands` are the others. The
        value may be given by name. Raises as `add` does, and GraphError if that would close a
        cycle.
        """
        value = self._named(value)
        op_spec = spec(op)
        if not slot and not op_spec.operands:
            raise TypeRuleError(f"{op} reads no operand")
        first = op_spec.operands[0]
        slot = slot or (f"{first.name}.0" if first.variadic else first.name)
        node = self.add(op, {slot: value, **(operands or {})}, attrs, types=types, name=name)
        try:
            # `node` itself keeps reading `value`; every other user reads the new result.
            self._replace(value, node.results[0], node)
        except GraphError:
            self._take_out(node)
            raise
        return node

    def merge(
        self,
        other: Graph,
        given: Mapping[str, Value],
        *,
        before: Node | None = None,
        prefix: str = "",
    ) -> dict[str, Value]:
        """Adds a copy of another graph's nodes; returns the values of its outputs by name.

        `given` take the place of its inputs. Names that are taken get a number; `prefix` is put
        before all. Raises GraphError where `given` does not fit its inputs.
        """
        return merge(self, other, given, before, prefix)

    def extract(self, inputs: Iterable[Value | str], outputs: Iterable[Value | str]) -> Graph:
        """Returns another graph: the nodes between some values and others, their constants, and
        the profiles that these name.

        Values may be given by name. Raises GraphError where an output depends on an input of this
        graph that is not given.
        """
        profiles = (graph.profile for graph in self._holders())
        out = Graph(self.name, next(filter(None, profiles), "native"))
        out._own_profiles = dict(self.own_profiles)
        ends = [[self._named(value) for value in values] for values in (inputs, outputs)]
        extract(self, out, *ends)
        out._own_profiles = needed_profiles(out)
        return out

    def _named(self, value: Value | str) -> Value:
        return self[value] if isinstance(value, str) else value

    # -- editing ------------------------------------------------------------------------------

    def set_operand(self, node: Node, slot: str, value: Value | None) -> None:
        """Binds a slot to a value, or empties it; a producer that comes later moves up.

        Raises GraphError if that would close a cycle, TypeRuleError for a slot that the op does
        not have, or cannot do without.
        """
        self._own(node)
        check_operand(node, slot, value)
        if value is None:
            if slot not in node._operands:
                return
            self._unbind(node, slot)
        else:
            self._own(value._node)
            # Nodes stay in topological order: a producer that comes later moves up, with all that
            # it needs.
            self._lift(self._late(value._node, node), node)
            self._bind(node, slot, value)
        self._touch()

    def replace(self, old: Value, new: Value, *, except_in: Node | None = None) -> int:
        """Replaces every use of a value by another; returns how many there were.

        Raises GraphError if that would close a cycle.
        """
        self._own(old.node)
        self._own(new.node)
        return self._replace(old, new, except_in)

    def _replace(self, old: Value, new: Value, except_in: Node | None = None) -> int:
        uses = [use for use in old._uses if use.node is not except_in]
        if old is new or not uses:
            return 0
        # The new producer must come before the first of the users; one of them among those that
        # have to move up closes a cycle.
        first = min((use.node for use in uses), key=lambda n: n._rank)
        late = self._late(new.node, first)
        for use in uses:
            if use.node in late:
                raise cycle(use.node, new.node)
        self._lift(late, first)
        self._give(uses, new)
        return len(uses)

    def substitute(self, node: Node, *values: Value, gone: Iterable[Node] = ()) -> None:
        """Replaces a node by values, and removes it and the nodes of `gone`.

        The values get the uses, names and lineage of what it made; what the caller of the graph
        gives by name keeps its own name and lineage. Raises as `replace` and `remove` do.
        """
        # All is checked before the first edit; after it the steps below cannot fail.
        dead = (node, *gone)
        self._check_substitution(dead, values)
        for old, new in zip(node._results, values, strict=True):
            self._replace(old, new)
        for each in dead:
            self._take_out(each)
        for old, new in zip(node._results, values, strict=True):
            # An input or default keeps its name: the caller of the model passes it by that name.
            if not _is_named_by_caller(new.node):
                self._rename(new, old.name)
                new._lineage = old.lineage

    def remove(self, node: Node) -> None:
        """Takes out a node; GraphError while a value of it is used, naming the user."""
        self._own(node)
        self._check_removal(node)
        self._take_out(node)

    def _take_out(self, node: Node) -> None:
        super()._take_out(node)
        for body in self._bodies.pop(node, {}).values():
            body._holder = None
        if node is self._output:
            self._output = None

    def prune(self) -> int:
        """Removes every node but inputs whose values are not used; returns how many."""
        self._free()
        # Consumers come off the stack first; a producer is looked at again once its last user is
        # gone.
        dead = [n for n in reversed(self) if n.op not in ("input", "output") and not n.used]
        count = 0
        while dead:
            node = dead.pop()
            if node not in self or node.used:
                continue
            producers = {v._node for v in node._operands.values()}
            self._take_out(node)
            count += 1
            dead += [p for p in producers if p.op != "input" and not p.used]
        return count

    def rename(self, value: Value, name: str) -> None:
        """Gives a value another name; raises GraphError if it is taken."""
        self._own(value._node)
        if name == value.name:
            return
        check_names((name,))
        if name in self._values:
            raise GraphError(f"the name %{name} is taken")
        self._rename(value, name)

    def set_type(self, value: Value, type: TensorType) -> None:
        """States what a value is; the verifier checks that it fits its op."""
        self._own(value._node)
        value._type = type
        self._touch()

    def infer_types(self) -> int:
        """Infers the types of all values again, after one was changed; returns how many changed.

        Inputs and constants keep their types, quantized results their quantization parameters.
        Sizes that ops compute from shapes stay unknown: run the pass `fold-shapes`, then infer
        again. Raises TypeRuleError, naming the node, where an op does not take its operands; then
        nothing is changed.
        """
        return infer_types(self)

    def set_attrs(self, node: Node, **changes: Attr) -> None:
        """Changes some attributes; raises TypeRuleError for one the op does not have. A chain has
        those of its stages alone."""
        self._own(node)
        if node._stages and changes:
            raise TypeRuleError(f"{node.name} is a chain, whose stages have the attributes")
        # A new table, never an edit in place: nodes without attributes share their op's default
        # one.
        node._attrs = spec(node._op).complete_attrs({**node._attrs, **changes})
        self._touch()

    def set_inner(self, node: Node, slot: str, element: Element | None) -> None:
        """States what a value inside an op is rounded to; None: it is not."""
        self._own(node)
        known = slot if element is None else _inner_slot(node._op, slot)
        node._inner = with_entry(node._inner, known, element)
        self._touch()

    def set_origins(self, node: Node, origins: Iterable[Origin]) -> None:
        """States where a node came from."""
        self._own(node)
        node._origins = tuple(dict.fromkeys(origins))

    def set_slot_origins(self, node: Node, slot: str, origins: Iterable[Origin]) -> None:
        """States whose quantize or dequantize a slot absorbed; none clears it."""
        self._own(node)
        node._slot_origins = with_entry(node._slot_origins, slot, tuple(origins) or None)

    def set_lineage(self, value: Value, lineage: Lineage) -> None:
        """States the source tensor of a value."""
        self._own(value._node)
        value._lineage = lineage

    def set_profile(self, node: Node, profile: str | None) -> None:
        """States whose arithmetic a node follows; None: the graph's."""
        self._own(node)
        node._profile = profile
        self._touch()

    def set_scheme(self, node: Node, slot: str, scheme: Scheme | None) -> None:
        """Plans a slot, or clears its plan."""
        self._own(node)
        node._schemes = with_entry(node._schemes, slot, scheme)
        self._touch()

    @pause_garbage_collection()
    def copy(self) -> Graph:
        """Returns another graph, equal to this one; arrays, which are read-only, are shared."""
        out = Graph(self.name, self.profile)
        out._own_profiles = dict(self.own_profiles)
        copies: dict[Value, Value] = {}
        for node in self:
            node_copy = Node(node._op, node._attrs, node._origins, node._profile, node._stages)
            # Tables are copied, since each node edits its own in place; EMPTY_TABLE is never
            # edited, and most are that one.
            if node._slot_origins:
                node_copy._slot_origins = dict(node._slot_origins)
            if node._schemes:
                node_copy._schemes = dict(node._schemes)
            if node._inner:
                node_copy._inner = dict(node._inner)
            operands = {slot: copies[value] for slot, value in node._operands.items()}
            types = tuple([value._type for value in node._results])
            out._insert(node_copy, operands, types, [v._name for v in node._results], None)
            if node in self._bodies:
                out._hold(node_copy, {n: b.copy() for n, b in self._bodies[node].items()})
            for value, value_copy in zip(node._results, node_copy._results, strict=True):
                copies[value] = value_copy
                value_copy._lineage = value._lineage
            if node is self._output:
                out._output = node_copy
        return out


def _is_named_by_caller(node: Node) -> bool:
    """Returns whether the caller of a graph may give the node's value, by its name."""
    return node._op == "input" or (node._op == "constant" and node._attrs["default"] is True)


def _inner_slot(op: str, slot: str) -> str:
    """Returns the name; raises TypeRuleError where the op rounds nothing of that name within."""
    known = spec(op).inner
    if slot not in known:
        raise TypeRuleError(f"{op} has no inner slot {slot}; it has {', '.join(known) or 'none'}")
    return slot
