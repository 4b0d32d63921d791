"""Builds a graph from the nodes of a frozen TensorFlow graph."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from qir.errors import InputError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.node import Node as Made
from qir.ir.node import Stage, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.passes.fold.fold_shapes import MADE_TO, made_to

from . import branches, foreign, kernels, loops
from .call import KeepNode, NodeCall
from .elements import element, is_type, name_of, shape_of, tensor
from .frames import LOOP, join_frames
from .graphdef import BRANCHES, LOOPS, GraphDefNode, GraphSource, Place, in_order
from .known import KnownValues
from .operators import OPS
from .ranks import inferred_shape
from .switches import SWITCHED, join_switches

_CONTROL = LOOPS | BRANCHES | {LOOP, SWITCHED}
_WITH_LISTS = frozenset((*loops.OPS, "Identity"))
"""Ops that may read lists of tensors."""


class GraphDefReader:
    """The graph that is built, and what each result of the source has become in it."""

    def __init__(
        self,
        source: GraphSource,
        name: str,
        ledger: Ledger,
        inputs: Mapping[str, str] | None = None,
        graph: Graph | None = None,
    ) -> None:
        self.source = source
        self.inputs = inputs or {}
        """By node that is an input: what the model calls it."""
        self.graph = Graph(name) if graph is None else graph
        self.ledger = ledger
        self.known = KnownValues()
        self.found: dict[Place, loops.Held] = {}
        self.loops: dict[str, loops.Loop] = {}
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node whose result they are."""

    def read(self, outputs: Mapping[str, Place]) -> Graph:
        """Reads what the outputs hang on; InputError names the node that cannot be read."""
        places = {name: self.source.resolve(place) for name, place in outputs.items()}
        for name, (held, _) in places.items():
            if held not in self.source.nodes:
                raise InputError(f"{self.source.name}: output {name} names no node of the file")
        join_switches(self.source)
        self.loops = join_frames(self.source)
        nodes = list(in_order(self.source, list(places.values())))
        reached = {node.name for node in nodes}
        for node in self.source.nodes.values():
            if node.op in ("Placeholder", "PlaceholderV2") and node.name in reached:
                self.found[node.name, 0] = self._input(node)
        for node in nodes:
            if (node.name, 0) not in self.found:
                self._read(node)
        self.graph.add("output", {name: self._result(at) for name, at in places.items()})
        return self.graph

    def read_places(self, places: Sequence[Place]) -> list[loops.Held]:
        """Reads what results of a body hang on, its arguments being known, and returns them."""
        given = {name for name, _ in self.found}
        for node in in_order(self.source, places, given):
            self._read(node)
        return [self.found[place] for place in places]

    def _read(self, node: GraphDefNode) -> None:
        if node.op == "Const":
            self.found[node.name, 0] = self._constant(node)
            return
        if "T" in node.attrs and node.attrs["T"].WhichOneof("value") == "type":
            number = node.attrs["T"].type  # of loops it is a list of types
            if not is_type(number):
                raise self.fail(node, f"has T = {number}, which is no element type")
        if node.op in _CONTROL:
            self._set(node, self._control(node))
            return
        operands = [self.held(node, place) for place in node.inputs]
        call = NodeCall(self, node, operands)  # type: ignore[arg-type]
        if node.op not in _WITH_LISTS and not all(isinstance(held, Value) for held in operands):
            raise self.fail(node, "reads a list of tensors, which it cannot")
        handler = OPS.get(node.op)
        if handler is None:
            said = "is no op that is read; cut it off, or freeze a part without it"
            self._set(node, self._kept(node, operands, said))
            return
        try:
            made = handler(call)
        except (KeepNode, TypeRuleError) as why:
            if node.op not in kernels.OPS:
                raise self.fail(node, f"is not read: {why}") from why
            made = self._kept(node, operands, "is not read", str(why))
        except (ArithmeticError, LookupError, ValueError) as error:  # a damaged file says anything
            said = f"is not read: its operands and attributes do not fit ({error!r})"
            raise self.fail(node, said) from error
        self._set(node, list(made) if isinstance(made, Sequence) else [made])

    def _kept(
        self, node: GraphDefNode, operands: Sequence[loops.Held], said: str, reason: str = ""
    ) -> Sequence[Value]:
        """Returns the results of an op that is kept as it is; else fails by the reason."""
        values = [held for held in operands if isinstance(held, Value)]
        try:
            return foreign.keep(self, node, values, reason)
        except KeepNode as why:
            said += f": {reason}; it cannot be kept either ({why})" if reason else f" ({why})"
            raise self.fail(node, said) from why

    def _set(self, node: GraphDefNode, results: Sequence[loops.Held]) -> None:
        for index, held in enumerate(results):
            self.found[node.name, index] = held
            if isinstance(held, Value):
                self._name(held, f"{node.name}:{index}" if index else node.name)

    def _control(self, node: GraphDefNode) -> list[loops.Held]:
        try:
            if node.op in BRANCHES or node.op == SWITCHED:
                return branches.read(self, node)
            loop = self.loops.get(node.name) or loops.of_functions(self.source, node)
            return loops.read(self, node, loop)
        except (KeepNode, TypeRuleError) as why:
            raise self.fail(node, f"is not read: {why}") from why

    def held(self, node: GraphDefNode, place: Place) -> loops.Held:
        """Returns an operand of a node, which may be a list of tensors."""
        if place not in self.found:
            said = f"reads result {place[1]} of {place[0]}, which is not read"
            raise self.fail(node, said)
        return self.found[place]

    def _result(self, place: Place) -> Value:
        if place not in self.found:
            raise InputError(f"{self.source.name}: {place[0]} has no result {place[1]}")
        found = self.found[place]
        if not isinstance(found, Value):
            raise InputError(f"{self.source.name}: output {place[0]} is a list of tensors")
        return found

    def _input(self, node: GraphDefNode) -> Value:
        number = node.attrs["dtype"].type
        kind = element(number)
        if kind is None:
            raise self.fail(node, f"is an input of {name_of(number)}, which is not read")
        stated = shape_of(node.attrs["shape"].shape) if "shape" in node.attrs else None
        stated = inferred_shape(self.source, node.name) if stated is None else stated
        if stated is None:
            raise self.fail(node, "is an input of unknown rank; freeze the graph with its shape")
        if min(stated, default=0) < -1:
            raise self.fail(node, f"is an input of the shape {list(stated)}; open sizes are -1")
        made = self.graph.add(
            "input",
            types=[TensorType(self._dims(node, stated), kind)],
            name=self.inputs.get(node.name, node.name),
            origins=[self.origin(node)],
        )
        return made.result

    def _dims(self, node: GraphDefNode, stated: Sequence[int]) -> tuple[Dim, ...]:
        """Returns sizes with a symbol for each open one: N for the batch."""
        stem = re.sub(r"\W", "_", node.name)
        stem = stem if stem[:1].isalpha() else f"s{stem}"
        names = ("N", *(f"{stem}_{i}" for i in range(1, len(stated))))
        return tuple(
            size if size >= 0 else dims.symbol(name)
            for size, name in zip(stated, names, strict=False)
        )

    def _constant(self, node: GraphDefNode) -> Value:
        proto = node.attrs["value"].tensor if "value" in node.attrs else None
        if proto is None:
            raise self.fail(node, "is a constant without a value")
        data = tensor(proto, f"{self.source.name}: Const {node.name}")
        stated = node.attrs["dtype"].type if "dtype" in node.attrs else proto.dtype
        if stated != proto.dtype:
            said = f"states {name_of(stated)} and holds {name_of(proto.dtype)}"
            raise self.fail(node, said)
        return self.graph.constant(Array.of(data, node.name), name=node.name)

    # -- what converters ask for ----------------------------------------------------------------

    def add(
        self,
        node: GraphDefNode,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType] | None = None,
    ) -> Made:
        """Adds an op that stems from a node of the source."""
        origins, name = [self.origin(node)], self.names(node, op)
        made = self.graph.add(op, operands, attrs, types=types, name=name, origins=origins)
        self.unnamed.update(made.results)
        if op in MADE_TO and None in made.result.type.shape:
            self._state_sizes(made)
        return made

    def add_control(
        self,
        node: GraphDefNode,
        op: str,
        operands: Mapping[str, Value],
        bodies: Mapping[str, Graph],
    ) -> Sequence[Value]:
        """Adds an op that holds bodies; returns its results."""
        name = self.names(node, op)
        origins = [self.origin(node)]
        made = self.graph.add(op, operands, name=name, origins=origins, bodies=bodies)
        self.unnamed.update(made.results)
        return made.results

    def add_group(
        self,
        node: GraphDefNode,
        stages: Sequence[Stage],
        operands: Mapping[str, Value],
        kind: TensorType,
    ) -> Value:
        """Adds what one fused kernel of the source computes."""
        origins, name = [self.origin(node)], self.names(node, "group")
        if len(stages) > 1:
            made = self.graph.add_chain(stages, operands, kind, name=name, origins=origins)
        else:
            (one,) = stages
            types = [kind]
            made = self.graph.add(
                one.op, operands, one.attrs, types=types, name=name, origins=origins
            )
        self.unnamed.add(made.result)
        return made.result

    def _state_sizes(self, made: Made) -> None:
        """Writes sizes into a type that follow from constants and from shapes."""
        sizes = self.known.sizes(made.operands["shape"])
        shape = None if sizes is None else made_to(made, sizes.astype(object))
        kind = made.result.type
        if shape is not None and len(shape) == kind.rank:
            more = tuple(n if o is None else o for o, n in zip(kind.shape, shape, strict=True))
            self.graph.set_type(made.result, kind.with_shape(more))

    def names(self, node: GraphDefNode, what: str) -> str:
        """Returns a name for a value that the source does not name."""
        return self.graph.fresh(f"{node.name}/{what}")

    def origin(self, node: GraphDefNode) -> Origin:
        """Returns where a node came from: its op and name, and the scope that it is in."""
        operands = tuple((str(i), name) for i, (name, _) in enumerate(node.inputs))
        return Origin("tensorflow", node.op, node.name, node.name.rpartition("/")[0], 0, operands)

    def _name(self, value: Value, name: str) -> None:
        """Gives a value the name of the node that makes it, unless it has a name of the source."""
        if value in self.unnamed and not self.graph.has(name):
            self.unnamed.discard(value)
            self.graph.rename(value, name)

    def fail(self, node: GraphDefNode, what: str) -> InputError:
        """Returns the error for a node, in one line."""
        return InputError(f"{self.source.name}: {node.op} {node.name} {what}")
