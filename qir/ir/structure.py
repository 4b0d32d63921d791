"""What holds a graph together: the order of its nodes, the uses of their values, and the names.

Nodes are in a linked order that is always topological; each has a rank, so that comparing the
places of two nodes takes constant time. For networkx there is a store whose edges are the uses,
once somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import repeat
from types import MappingProxyType
from typing import TYPE_CHECKING

from qir.arguments import checked_methods
from qir.errors import GraphError
from qir.ir.carried_profiles import says_the_same
from qir.ir.node import CarriedProfile, Node, RewriteFilter, Use, Value
from qir.ir.order import Order
from qir.ir.types import TensorType

if TYPE_CHECKING:  # networkx takes as long to import as a small model to read
    import networkx as nx

    from qir.ir.store import Store

_NEW_USE = tuple.__new__  # of a use, without going through Python


@checked_methods
class Structure:
    """Nodes in order with their uses and names; `Graph` adds the edits that everybody may call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: set[Node] = set()
        self._order = Order()
        self._store: Store | None = None
        self._values: dict[str, Value] = {}
        self._counts: dict[str, int] = {}
        self._holder: Structure | None = None
        # `_most` edits are allowed (a pass that never ends is stopped by it); `_kept` counts the
        # pass runs that work on a copy, during which this graph may not change.
        self._edits, self._most, self._kept = 0, float("inf"), 0
        # The runner sets it while passes run; a copy has none.
        self._rewrite_filter: RewriteFilter | None = None
        # Of a whole program; bodies have those of what holds them.
        self._own_profiles: dict[str, CarriedProfile] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._order)

    def __reversed__(self) -> Iterator[Node]:
        return reversed(self._order)

    def __len__(self) -> int:
        return len(self._nodes)

    def __contains__(self, node: object) -> bool:
        return isinstance(node, Node) and node in self._nodes

    def __getitem__(self, name: str) -> Value:
        try:
            return self._values[name]
        except KeyError:
            raise GraphError(f"graph {self.name} has no value %{name}") from None

    @property
    def name(self) -> str:
        """Its name; a body has that of its slot."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        self._free()
        self._name = name
        self._touch()

    @property
    def version(self) -> int:
        """A number that every edit raises, also one of a body; caches are keyed by it."""
        return self._edits

    @property
    def own_profiles(self) -> Mapping[str, CarriedProfile]:
        """The profiles that the program carries, by name; others are those installed.

        A body has those of the graph that holds it.
        """
        return MappingProxyType(self._outermost()._own_profiles)

    def carry_profile(self, profile: CarriedProfile, *, replace: bool = False) -> bool:
        """Adds a profile, which the program means by its name from then on; says if it is new.

        Raises GraphError where it carries another by that name, unless `replace`.
        """
        self._free()
        if not replace:
            self._check_profiles((profile,))
        own_profiles = self._outermost()._own_profiles
        is_new = own_profiles.get(profile.name) is not profile
        if is_new:
            own_profiles[profile.name] = profile
            self._touch()
        return is_new

    def _check_profiles(self, profiles: Iterable[CarriedProfile]) -> None:
        own_profiles = dict(self._outermost()._own_profiles)
        for profile in profiles:
            # Two of them may have one name too, such as those of the branches of an `if`.
            known = own_profiles.setdefault(profile.name, profile)
            if known is not profile and not says_the_same(known, profile):
                raise GraphError(f"graph {self.name} carries another profile {profile.name}")

    def _outermost(self) -> Structure:
        graph = self
        while graph._holder is not None:
            graph = graph._holder
        return graph

    @property
    def rewrite_filter(self) -> RewriteFilter | None:
        """What is asked before each rewrite: its own, or the nearest of the graphs that hold it."""
        graph: Structure | None = self
        while graph is not None:
            if graph._rewrite_filter is not None:
                return graph._rewrite_filter
            graph = graph._holder
        return None

    def has(self, name: str) -> bool:
        """Returns whether a value of that name exists."""
        return name in self._values

    @property
    def values(self) -> Mapping[str, Value]:
        """Every value by name."""
        return MappingProxyType(self._values)

    @property
    def nx(self) -> nx.MultiDiGraph[Node]:
        """The graph for networkx: every algorithm on a MultiDiGraph that follows each edit, and no
        writing.

        The data of its edges are for networkx alone; no part of QIR reads them.
        """
        if self._store is None:
            from qir.ir.store import Store

            self._store = Store(self)
        return self._store.view

    def fresh(self, base: str) -> str:
        """Returns a value name that is not taken: the base itself, or with a number."""
        return self._fresh(base)

    def _fresh(self, base: str) -> str:
        if base not in self._values:
            return base
        count = self._counts.get(base, 1)
        while (name := f"{base}_{count}") in self._values:
            count += 1
        self._counts[base] = count + 1
        return name

    # -- checks, before anything is changed ---------------------------------------------------

    def _free(self) -> None:
        """Raises GraphError where nobody may edit the graph now, or a pass has edited it too
        often."""
        if self._kept:
            raise GraphError(f"graph {self.name} stays as it is while passes run on its copy")
        graph: Structure | None = self
        while graph is not None:
            if graph._edits >= graph._most:
                message = f"edited for ever: {graph._edits + 1:,} times by now"
                raise GraphError(f"graph {graph.name} is {message}")
            graph = graph._holder

    def _own(self, node: Node) -> None:
        self._free()
        if node not in self:
            raise GraphError(f"{node.name} is of another graph, or was removed")

    def _late(self, producer: Node, user: Node) -> set[Node]:
        """Returns what would have to be before its user and does not; raises GraphError for a
        cycle."""
        late: set[Node] = set()
        todo = [producer]
        while todo:
            node = todo.pop()
            # A node before the user needs only nodes before itself: the search stops there.
            if node._rank >= user._rank and node not in late:
                late.add(node)
                todo += [value._node for value in node._operands.values()]
        if user in late:
            raise cycle(user, producer)
        return late

    def _check_removal(self, node: Node, removed: Container[Node] = ()) -> None:
        """Raises GraphError where a node that stays uses a value of one that is to be removed."""
        for value in node._results:
            for user, _ in value._uses:
                if user not in removed:
                    raise GraphError(f"cannot remove {node.name}: {user.name} uses %{value._name}")

    def _check_substitution(self, dead: Sequence[Node], values: Sequence[Value]) -> None:
        """Raises GraphError unless all can be removed, and values replace what the first makes."""
        for node in dead:
            self._own(node)
        for value in values:
            self._own(value._node)
        node = dead[0]
        if len(values) != len(node._results):
            count = f"{node.name} makes {len(node._results)} values"
            raise GraphError(f"{count}, {len(values)} are given for them")
        if producer := next((v._node for v in values if v._node in dead), None):
            raise GraphError(
                f"{producer.name} makes a value that is to stay, so it cannot be removed"
            )
        for i, each in enumerate(dead[1:], 1):
            if each in dead[:i]:
                raise GraphError(f"{each.name} is to be removed twice")
            self._check_removal(each, dead[:i])
        self._check_cycle(dict(zip(node._results, values, strict=True)))

    def _check_cycle(self, instead: Mapping[Value, Value]) -> None:
        """Raises GraphError where uses of values cannot be given others without closing a cycle."""
        users = {user for old in instead for user, _ in old._uses}
        if not users:
            return
        first = min(user._rank for user in users)
        ancestors: dict[Node, list[Node]] = {}
        todo = [new._node for new in instead.values()]
        while todo:
            node = todo.pop()
            # Only nodes at or after the first user can be part of a new cycle.
            if node._rank >= first and node not in ancestors:
                operands = [instead.get(value, value) for value in node._operands.values()]
                # Operands as they would be after the edit.
                ancestors[node] = [value._node for value in operands]
                todo += ancestors[node]
        if users.isdisjoint(ancestors):
            return
        try:
            TopologicalSorter(ancestors).prepare()
        except CycleError as error:
            _, circle = error.args
            user = next(node for node in circle if node in users)
            raise cycle(user, circle[circle.index(user) - 1]) from None

    # -- edits, once nothing speaks against them ----------------------------------------------

    def _place(
        self,
        node: Node,
        operands: Mapping[str, Value],
        kinds: tuple[TensorType, ...],
        name: str | Iterable[str] | None,
        before: Node | None,
    ) -> None:
        self._free()
        if before is not None:
            self._own(before)
        nodes = self._nodes
        for slot, value in operands.items():
            if value._node not in nodes:
                raise GraphError(f"{node._op}: %{value._name} in {slot} is of another graph")
            if before is not None and value._node._rank >= before._rank:
                raise GraphError(f"{node._op}: %{value._name} is made after {before.name}")
        names = self._names(node._op, name, len(kinds))
        # From here on nothing raises: an edit happens whole or not at all.
        self._insert(node, operands, kinds, names, before)

    def _insert(
        self,
        node: Node,
        operands: Mapping[str, Value],
        kinds: tuple[TensorType, ...],
        names: list[str],
        before: Node | None,
    ) -> None:
        """Places a node that is known to fit, with names that are not taken."""
        node._graph = self  # type: ignore[assignment]  # every structure is a graph
        self._order.insert(node, before)
        self._nodes.add(node)
        if len(kinds) == 1:
            only_value = self._values[names[0]] = Value(node, 0, names[0], kinds[0])
            node._results = (only_value,)
        else:
            values = tuple(map(Value, repeat(node), range(len(kinds)), names, kinds))
            node._results = values
            self._values.update(zip(names, values, strict=True))
        bound = node._operands
        for slot, value in operands.items():
            bound[slot] = value
            # A dict used as an ordered set: uses keep the order in which they came about.
            value._uses[_NEW_USE(Use, (node, slot))] = None
        if self._store is not None:
            self._store.put(node, operands)
        self._touch()

    def _names(self, op: str, name: str | Iterable[str] | None, count: int) -> list[str]:
        if name is None or isinstance(name, str):
            base = op if name is None else name
            if count == 1:
                return [self._fresh(base)]
            preferred = [base if i == 0 else f"{base}.{i}" for i in range(count)]
        else:
            preferred = list(name)
            check_names(preferred)
        if len(preferred) != count:
            raise GraphError(f"{op} makes {count} values, {len(preferred)} names are given")
        if count == 1:
            return [self._fresh(preferred[0])]
        names: dict[str, None] = {}
        for unique in map(self._fresh, preferred):
            # Two results of this node may ask for one name; it is not in the graph's table yet.
            while unique in names:
                unique = self._fresh(f"{unique}_1")
            names[unique] = None
        return list(names)

    def _bind(self, node: Node, slot: str, value: Value) -> None:
        """Makes an edge; a slot that held another value keeps its place among the slots."""
        self._release(node, slot)
        self._join(node, slot, value)

    def _join(self, node: Node, slot: str, value: Value) -> None:
        node._operands[slot] = value
        value._uses[Use(node, slot)] = None
        if self._store is not None:
            self._store.join(value, node, slot)

    def _unbind(self, node: Node, slot: str) -> None:
        self._release(node, slot)
        node._operands.pop(slot, None)

    def _release(self, node: Node, slot: str) -> None:
        if (value := node._operands.get(slot)) is not None:
            del value._uses[Use(node, slot)]
            if self._store is not None:
                self._store.part(value, node, slot)

    def _lift(self, late: set[Node], user: Node) -> None:
        """Moves nodes, in their order, to just before one."""
        # Sorted by rank, so that the moved nodes stay in topological order among themselves.
        for node in sorted(late, key=lambda n: n._rank):
            self._order.take_out(node)
            self._order.insert(node, user)

    def _give(self, uses: Iterable[Use], value: Value) -> None:
        for node, slot in uses:
            self._bind(node, slot, value)
        self._touch()

    def _take_out(self, node: Node) -> None:
        """Removes a node that nobody uses."""
        for slot in list(node._operands):
            self._unbind(node, slot)
        for value in node._results:
            del self._values[value._name]
        self._nodes.remove(node)
        if self._store is not None:
            self._store.take_out(node)
        self._order.take_out(node)
        self._touch()

    def _rename(self, value: Value, name: str) -> None:
        """Gives a value a name that is not taken; it still stands for the same source tensor."""
        del self._values[value._name]
        # The default lineage is the value's name, so it is stored before the name changes.
        value._lineage = value.lineage
        value._name = name
        self._values[name] = value
        self._touch()

    def _touch(self) -> None:
        graph: Structure | None = self
        while graph is not None:
            # An edit of a body is an edit of every graph around it: their caches are keyed by
            # `version`.
            graph._edits += 1
            graph = graph._holder


def check_names(names: Iterable[str]) -> None:
    """Raises GraphError for what cannot be the name of a value."""
    for name in names:
        if not isinstance(name, str):
            raise GraphError(f"names of values are texts, and {name!r:.60} is none")


def cycle(user: Node, producer: Node) -> GraphError:
    """Returns the error for an edit that would make a node need its own result."""
    return GraphError(f"{user.name} would need its own result, through {producer.name}")
