"""The state of reading a frozen graph: the graph under construction, and the result of each node.

Converters of ops (`elementwise`, `movement`, ...) add nodes by it. Which converter reads a node is
decided in `dispatch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from qir.errors import InputError
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.node import Node as IrNode
from qir.ir.node import Stage, Value
from qir.ir.origin import Origin
from qir.ir.types import TensorType
from qir.ledger import Ledger
from qir.passes.fold.fold_shapes import SHAPED_BY_OPERAND, requested_shape

from .constant_evaluation import KnownValues
from .graphdef import GraphDefNode, GraphSource, LoopParts, ResultPlace, topological_order
from .results import ValueOrList


class KeepNode(Exception):
    """Raised where a node has no exact form in the language; the text says why."""


class GraphDefReader:
    """The graph under construction, and the value of each result of the source in it."""

    def __init__(
        self,
        source: GraphSource,
        name: str,
        ledger: Ledger,
        read_node: Callable[[GraphDefReader, GraphDefNode], None],
        inputs: Mapping[str, str] | None = None,
        graph: Graph | None = None,
    ) -> None:
        self.source = source
        self._read_node = read_node
        self.inputs = inputs or {}
        """By placeholder: the name of the input in the signature."""
        self.graph = Graph(name) if graph is None else graph
        self.ledger = ledger
        self.known = KnownValues()
        self.results: dict[ResultPlace, ValueOrList] = {}
        self.loops: dict[str, LoopParts] = {}
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node that returns them."""

    def nested(self, source: GraphSource, name: str, graph: Graph) -> GraphDefReader:
        """Returns a reader for a body, such as a branch."""
        return GraphDefReader(source, name, self.ledger, self._read_node, graph=graph)

    def read_places(self, places: Sequence[ResultPlace]) -> list[ValueOrList]:
        """Reads the nodes that results of a body depend on.

        Its arguments are in `results` already.
        """
        read_before = {name for name, _ in self.results}
        for node in topological_order(self.source, places, read_before):
            self._read_node(self, node)
        return [self.results[place] for place in places]

    def operand(self, node: GraphDefNode, place: ResultPlace) -> ValueOrList:
        """Returns an operand, which may be a list of tensors."""
        if place not in self.results:
            message = f"reads result {place[1]} of {place[0]}, which is not read"
            raise self.error(node, message)
        return self.results[place]

    # -- what converters ask for ----------------------------------------------------------------

    def add(
        self,
        node: GraphDefNode,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType] | None = None,
    ) -> IrNode:
        """Adds an op that stems from a node of the source."""
        origins, name = [self.origin(node)], self.names(node, op)
        ir_node = self.graph.add(op, operands, attrs, types=types, name=name, origins=origins)
        self.unnamed.update(ir_node.results)
        if op in SHAPED_BY_OPERAND and None in ir_node.result.type.shape:
            self._set_known_sizes(ir_node)
        return ir_node

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
        control = self.graph.add(op, operands, name=name, origins=origins, bodies=bodies)
        self.unnamed.update(control.results)
        return control.results

    def add_group(
        self,
        node: GraphDefNode,
        stages: Sequence[Stage],
        operands: Mapping[str, Value],
        result_type: TensorType,
    ) -> Value:
        """Adds what one fused kernel of the source computes."""
        origins, name = [self.origin(node)], self.names(node, "group")
        # One stage alone is a plain op, no group.
        if len(stages) > 1:
            group = self.graph.add_chain(stages, operands, result_type, name=name, origins=origins)
        else:
            (stage,) = stages
            types = [result_type]
            group = self.graph.add(
                stage.op, operands, stage.attrs, types=types, name=name, origins=origins
            )
        self.unnamed.add(group.result)
        return group.result

    def _set_known_sizes(self, ir_node: IrNode) -> None:
        """Writes sizes into a type that follow from constants and from shapes."""
        sizes = self.known.sizes(ir_node.operands["shape"])
        shape = None if sizes is None else requested_shape(ir_node, sizes.astype(object))
        result_type = ir_node.result.type
        if shape is not None and len(shape) == result_type.rank:
            refined = tuple(
                n if o is None else o for o, n in zip(result_type.shape, shape, strict=True)
            )
            self.graph.set_type(ir_node.result, result_type.with_shape(refined))

    def names(self, node: GraphDefNode, what: str) -> str:
        """Returns a name for a value that the source does not name."""
        return self.graph.fresh(f"{node.name}/{what}")

    def origin(self, node: GraphDefNode) -> Origin:
        """Returns the origin of a node: its op, name and name scope."""
        operands = tuple((str(i), name) for i, (name, _) in enumerate(node.inputs))
        return Origin("tensorflow", node.op, node.name, node.name.rpartition("/")[0], 0, operands)

    def error(self, node: GraphDefNode, what: str) -> InputError:
        """Returns an error for a node, in one line."""
        return InputError(f"{self.source.name}: {node.op} {node.name} {what}")
