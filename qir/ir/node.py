"""Nodes, the values they make, and the stages of a group.

Only a graph changes them: what they show of their tables is a view that cannot be written to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from operator import attrgetter
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    NamedTuple,
    Never,
    Protocol,
    SupportsIndex,
    TypeAlias,
    TypeVar,
)

from qir.errors import GraphError
from qir.ir import attrs as attributes
from qir.ir.attrs import Attr
from qir.ir.ops import spec
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import Scheme
from qir.ir.types import Array, Element, QuantType, TensorType
from qir.records import record

_T = TypeVar("_T")
EMPTY_TABLE: Mapping[str, Never] = MappingProxyType({})
"""The one empty table of all nodes whose table is empty; most are."""


if TYPE_CHECKING:
    # A type checker sees `property`; at run time a C-level getter saves a Python call for each read
    # of an attribute, the commonest operation of every pass.
    from builtins import property as shown
    from builtins import property as viewed
else:

    def shown(getter: Callable[[object], object]) -> property:
        """Returns a property that reads the attribute of its name and `_`, without a call of
        Python."""
        return property(attrgetter(f"_{getter.__name__}"), doc=getter.__doc__)

    def viewed(getter: Callable[[object], object]) -> property:
        """Returns such a property of the view that a node keeps of its table of that name."""
        return property(attrgetter(f"_{getter.__name__}_view"), doc=getter.__doc__)


def with_entry(table: Mapping[str, _T], slot: str, item: _T | None) -> Mapping[str, _T]:
    """Returns a node's table with that entry, or without it; the one that all share is left
    empty."""
    # EMPTY_TABLE is a mappingproxy, not a dict: the first entry of a node makes a dict of its own.
    entries = table if isinstance(table, dict) else {}
    if item is None:
        entries.pop(slot, None)
    else:
        entries[slot] = item
    return entries


def escape_name(name: str) -> str:
    """Returns a name for a prompt, in one line whatever it holds."""
    if name.isprintable():
        return name
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name)


class Use(NamedTuple):
    """One use of a value: an edge of the graph, keyed by slot."""

    node: Node
    slot: str


RewriteFilter: TypeAlias = "Callable[[str, str, tuple[Node, ...]], bool]"
"""Returns whether a rewrite is allowed, from the pass, the rewrite and its nodes, root first."""


class CarriedProfile(Protocol):
    """A profile as a graph carries it; every one is a `qir.profiles.Profile`."""

    @property
    def name(self) -> str:
        """The name by which the graph and its nodes mean it."""

    @property
    def text(self) -> str:
        """The text of its file."""


class GraphLike(Protocol):
    """A graph as its nodes see it, and the bodies they hold; every one is a `Graph`."""

    @property
    def name(self) -> str:
        """Its name; a body has that of its slot."""

    @property
    def profile(self) -> str:
        """The profile of nodes that name none."""

    @property
    def own_profiles(self) -> Mapping[str, CarriedProfile]:
        """The profiles that the program carries, by name."""

    @property
    def rewrite_filter(self) -> RewriteFilter | None:
        """What is asked before each rewrite while passes run; None: all are allowed."""

    def __iter__(self) -> Iterator[Node]: ...

    @property
    def inputs(self) -> tuple[Value, ...]:
        """The values of the input nodes, in order."""

    @property
    def outputs(self) -> Mapping[str, Value]:
        """Results by name."""


class _Part:
    """What belongs to one graph, and is neither copied nor pickled without it."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex) -> Never:
        """Raises GraphError: copy and pickle come here."""
        raise GraphError(f"{self!r} is part of a graph: copy or pickle the graph")


class Value(_Part):
    """One result of one node."""

    __slots__ = ("_index", "_lineage", "_name", "_node", "_type", "_uses")

    def __init__(self, node: Node, index: int, name: str, type: TensorType) -> None:
        self._node = node
        self._index = index
        self._name = name
        self._type = type
        self._uses: dict[Use, None] = {}
        self._lineage: Lineage | None = None

    @shown
    def node(self) -> Node:
        """The node that makes it."""
        return self._node

    @shown
    def index(self) -> int:
        """Its place among the node's results."""
        return self._index

    @shown
    def name(self) -> str:
        """Its name, which no other value of the graph has; `Graph.rename` changes it."""
        return self._name

    @shown
    def type(self) -> TensorType:
        """Its type; `Graph.set_type` states another."""
        return self._type

    @property
    def lineage(self) -> Lineage:
        """The source tensor that it represents: by default the one of its name."""
        return self._lineage or Lineage(self._name)

    @property
    def uses(self) -> Mapping[Use, None]:
        """Where it is used, in the order in which that came about."""
        return MappingProxyType(self._uses)

    @property
    def constant(self) -> Array | None:
        """The elements, where the value is a constant."""
        data = self._node._attrs.get("data") if self._node._op == "constant" else None
        return data if isinstance(data, Array) else None

    @property
    def users(self) -> tuple[Node, ...]:
        """The nodes that use it, each once."""
        return tuple(dict.fromkeys(use.node for use in self._uses))

    @property
    def only_use(self) -> Use | None:
        """The use, where there is exactly one."""
        return next(iter(self._uses)) if len(self._uses) == 1 else None

    def __repr__(self) -> str:
        return f"%{escape_name(self._name)} : {self._type!r}"


@record
class Stage:
    """One op inside a chain.

    `slots` are its operands by the op's own names; `flow` is the slot where the previous stage's
    result flows in. A type says that the stage's result is rounded and stored; none, that it
    stays in the kernel's working precision. The last stage's type is the group's.
    """

    op: str
    attrs: Mapping[str, Attr]
    slots: tuple[str, ...]
    flow: str | None = None
    type: TensorType | None = None
    name: str = ""
    origins: tuple[Origin, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        # The dataclass is frozen; its mapping has to be a read-only copy to match.
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def group_slots(self, index: int) -> list[str]:
        """The names its operands have on the group that holds it."""
        return [slot if index == 0 else f"{index}.{slot}" for slot in self.slots]


class Node(_Part):
    """One op with its operands and results."""

    __slots__ = (
        "_attrs",
        "_bodies",
        "_fallback",
        "_graph",
        "_inner",
        "_next",
        "_op",
        "_operands",
        "_operands_view",
        "_origins",
        "_prev",
        "_profile",
        "_rank",
        "_results",
        "_schemes",
        "_slot_origins",
        "_stages",
    )

    def __init__(
        self,
        op: str,
        attrs: Mapping[str, Attr],
        origins: tuple[Origin, ...] = (),
        profile: str | None = None,
        stages: tuple[Stage, ...] = (),
    ) -> None:
        self._op = op
        self._attrs = attrs
        self._operands: dict[str, Value] = {}
        # Made once: nothing of a node is read as often.
        self._operands_view = MappingProxyType(self._operands)
        self._results: tuple[Value, ...] = ()
        self._origins = origins
        self._slot_origins: Mapping[str, tuple[Origin, ...]] = EMPTY_TABLE
        self._profile = profile
        self._stages = stages
        self._schemes: Mapping[str, Scheme] = EMPTY_TABLE
        self._inner: Mapping[str, Element] = EMPTY_TABLE
        self._bodies: Mapping[str, GraphLike] = EMPTY_TABLE
        self._graph: GraphLike | None = None
        self._prev: Node | None = None
        self._next: Node | None = None
        self._rank = 0
        self._fallback = op

    @shown
    def op(self) -> str:
        """The name of its op."""
        return self._op

    @shown
    def graph(self) -> GraphLike | None:
        """The graph that it is part of, or was until it was removed."""
        return self._graph

    @shown
    def results(self) -> tuple[Value, ...]:
        """The values that it makes."""
        return self._results

    @shown
    def stages(self) -> tuple[Stage, ...]:
        """The stages of a chain; none for other nodes."""
        return self._stages

    @shown
    def profile(self) -> str | None:
        """The profile whose arithmetic it follows; None: that of its graph."""
        return self._profile

    @shown
    def origins(self) -> tuple[Origin, ...]:
        """The operators of the source that it came from."""
        return self._origins

    @property
    def attrs(self) -> Mapping[str, Attr]:
        """Its attributes, every one its op has."""
        return MappingProxyType(self._attrs)

    @viewed
    def operands(self) -> Mapping[str, Value]:
        """The value in each slot."""
        return self._operands_view

    @property
    def schemes(self) -> Mapping[str, Scheme]:
        """What is planned for slots."""
        return MappingProxyType(self._schemes)

    @property
    def inner(self) -> Mapping[str, Element]:
        """What values inside the op are rounded to, by the names its spec gives them."""
        return MappingProxyType(self._inner)

    @property
    def bodies(self) -> Mapping[str, GraphLike]:
        """The closed graphs it holds, such as a loop's body: they see their own inputs alone."""
        return MappingProxyType(self._bodies)

    @property
    def slot_origins(self) -> Mapping[str, tuple[Origin, ...]]:
        """Origins of the quantize and dequantize nodes that a slot absorbed."""
        return MappingProxyType(self._slot_origins)

    @property
    def name(self) -> str:
        """The name of its first result, or its op where it has none."""
        return self._results[0].name if self._results else self._fallback

    @property
    def result(self) -> Value:
        """The one result."""
        (value,) = self._results
        return value

    def precedes(self, other: Node) -> bool:
        """Returns whether it comes before another node of its graph."""
        return self._rank < other._rank

    def __lt__(self, other: Node) -> bool:
        # Lets `sorted` and heaps put nodes into the graph's order.
        return self._rank < other._rank

    @property
    def used(self) -> bool:
        """Whether somebody uses a result."""
        for value in self._results:  # a loop: passes ask this of every node
            if value._uses:
                return True
        return False

    def attr(self, name: str) -> Attr:
        """Returns an attribute; raises KeyError if the op has none of that name."""
        return self._attrs[name]

    def arrays(self) -> Iterator[Array]:
        """Yields every array that its attributes and types refer to, in order, repeats included."""
        for value in self._attrs.values():
            yield from attributes.arrays(value)
        for stage in self._stages:
            for value in stage.attrs.values():
                yield from attributes.arrays(value)
            if stage.type:
                yield from stage.type.arrays()
        for result in self._results:
            yield from result._type.arrays()
        for element in self._inner.values():
            if isinstance(element, QuantType):
                yield from element.arrays()

    def variadic(self, prefix: str) -> list[Value]:
        """Returns the operands of a variadic slot, in order."""
        # `xs.10` comes after `xs.9`: sorted by number, not by text.
        start = len(prefix) + 1
        slots = [s for s in self._operands if s[:start] == f"{prefix}." and s[start:].isdigit()]
        return [self._operands[s] for s in sorted(slots, key=lambda s: int(s.rpartition(".")[2]))]

    def stage_operands(self, index: int) -> Mapping[str, Value]:
        """Returns the operands of one stage, by the stage op's own slot names."""
        stage = self._stages[index]
        names = stage.group_slots(index)
        # An optional operand that is absent has no slot on the group.
        slots = zip(stage.slots, names, strict=True)
        return {slot: self._operands[g] for slot, g in slots if g in self._operands}

    @property
    def weight(self) -> Value | None:
        """The operand in the op's weight slot, for ops that have one."""
        slot = spec(self._op).traits.weight
        return self._operands.get(slot) if slot else None

    def __repr__(self) -> str:
        results = ", ".join(f"%{escape_name(v._name)}" for v in self.results)
        used = ", ".join(f"{s}=%{escape_name(v._name)}" for s, v in self._operands.items())
        types = ", ".join(repr(v._type) for v in self.results)
        op = " |> ".join(stage.op for stage in self.stages) or self._op
        # A foreign node is shown under the name that its framework gives the operator.
        op = str(self._attrs["op"]) if op == "foreign" else op
        return f"{results}{' = ' if results else ''}{op}({used}){' : ' if types else ''}{types}"
