"""Builds a graph from the nodes of a frozen TensorFlow graph.

Each node is read by the converter of its op (`operators`). Unknown ops become foreign nodes, which
TensorFlow runs; control flow is read by `branches` and `loops`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from qir.errors import InputError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Dim
from qir.ir.graph import Graph
from qir.ir.node import Node as IrNode
from qir.ir.node import Stage, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger
from qir.passes.fold.fold_shapes import SHAPED_BY_OPERAND, requested_shape

from . import branches, foreign, kernels, loops
from .call import KeepNode, NodeCall
from .constant_evaluation import KnownValues
from .dilations import replace_dilations
from .elements import dtype_of_number, is_type_number, shape_of, tensor_elements, type_name
from .frames import LOOP_OP, replace_frames
from .graphdef import (
    BRANCH_OPS,
    LOOP_OPS,
    GraphDefNode,
    GraphSource,
    ResultPlace,
    topological_order,
)
from .operators import OPS
from .ranks import inferred_shape
from .spectra import READS_PAIRS, ComplexPair
from .switches import BRANCH_OP, replace_switches

_CONTROL_OPS = LOOP_OPS | BRANCH_OPS | {LOOP_OP, BRANCH_OP}
_LIST_OPS = frozenset((*loops.OPS, *READS_PAIRS, "Identity"))
"""Ops that may have lists of tensors, or complex ones, as operands."""

_KEPT_OPS = frozenset((*kernels.OPS, "DenseBincount", "GatherV2"))
"""Ops that are kept as foreign where their converter refuses them."""
_SKIPS_OPERANDS = frozenset((*kernels.OPS, *loops.OPS))
"""Ops with operands that say nothing new, such as ranges and shapes."""
_MISFITS = (ArithmeticError, LookupError, TypeError, ValueError)
"""What converters raise where a damaged file says anything."""


class GraphDefReader:
    """The graph under construction, and the value of each result of the source in it."""

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
        """By placeholder: the name of the input in the signature."""
        self.graph = Graph(name) if graph is None else graph
        self.ledger = ledger
        self.known = KnownValues()
        self.results: dict[ResultPlace, loops.ValueOrList] = {}
        self.loops: dict[str, loops.LoopParts] = {}
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the node that returns them."""

    def read(self, outputs: Mapping[str, ResultPlace]) -> Graph:
        """Reads the nodes that the outputs depend on; raises InputError for what cannot be read."""
        places = {name: self.source.resolve(place) for name, place in outputs.items()}
        for name, (node_name, _) in places.items():
            if node_name not in self.source.nodes:
                raise InputError(f"{self.source.name}: output {name} names no node of the file")
        # The control flow of TensorFlow 1 is rewritten to ops with bodies first.
        replace_switches(self.source)
        self.loops = replace_frames(self.source)
        replace_dilations(self.source)
        # Only what the outputs depend on is read: training ops, savers and the like are left out.
        nodes = list(topological_order(self.source, list(places.values())))
        reached = {node.name for node in nodes}
        # Inputs have the order of the signature, then of the file, whatever reads them first.
        signed = [name for name in self.inputs if name in self.source.nodes]
        for node_name in dict.fromkeys([*signed, *self.source.nodes]):
            node = self.source.nodes[node_name]
            if node.op in ("Placeholder", "PlaceholderV2") and node.name in reached:
                self.results[node.name, 0] = self._input(node)
        for node in nodes:
            if (node.name, 0) not in self.results:
                self._read(node)
        self.graph.add("output", {name: self._result(at) for name, at in places.items()})
        return self.graph

    def read_places(self, places: Sequence[ResultPlace]) -> list[loops.ValueOrList]:
        """Reads the nodes that results of a body depend on.

        Its arguments are in `results` already.
        """
        read_before = {name for name, _ in self.results}
        for node in topological_order(self.source, places, read_before):
            self._read(node)
        return [self.results[place] for place in places]

    def _read(self, node: GraphDefNode) -> None:
        if node.op == "Const":
            self.results[node.name, 0] = self._constant(node)
            return
        # A wrong number would fail in a converter, without the name of the node.
        if "T" in node.attrs and node.attrs["T"].WhichOneof("value") == "type":
            number = node.attrs["T"].type  # loops have a list of types there
            if not is_type_number(number):
                raise self.error(node, f"has T = {number}, which is no element type")
        if node.op in _CONTROL_OPS:
            self._set_results(node, self._read_control(node))
            return
        operands = [self.operand(node, place) for place in node.inputs]
        call = NodeCall(self, node, operands)  # type: ignore[arg-type]
        if node.op not in _LIST_OPS and not all(isinstance(operand, Value) for operand in operands):
            raise self.error(node, f"reads {_kind(operands)}, which it cannot")
        handler = OPS.get(node.op)
        if handler is None:
            reason = "is no op that is read; cut it off, or freeze a part without it"
            self._set_results(node, self._keep(node, operands, reason))
            return
        try:
            results = handler(call)
            if call.used < call.count and node.op not in _SKIPS_OPERANDS:
                raise KeepNode(f"it has {call.count} inputs, and takes {call.used}")
        except (KeepNode, TypeRuleError) as why:
            if node.op not in _KEPT_OPS:
                raise self.error(node, f"is not read: {why}") from why
            results = self._keep(node, operands, "is not read", str(why))
        except _MISFITS as error:
            raise self.error(node, f"is not read: {_misfit(operands)}") from error
        self._set_results(node, list(results) if isinstance(results, Sequence) else [results])

    def _keep(
        self,
        node: GraphDefNode,
        operands: Sequence[loops.ValueOrList],
        message: str,
        reason: str = "",
    ) -> Sequence[Value]:
        """Keeps a node as foreign.

        Raises InputError with the reason if TensorFlow cannot run it.
        """
        values = [operand for operand in operands if isinstance(operand, Value)]
        try:
            return foreign.keep(self, node, values, reason)
        except KeepNode as why:
            message += f": {reason}; it cannot be kept either ({why})" if reason else f" ({why})"
            raise self.error(node, message) from why

    def _set_results(self, node: GraphDefNode, results: Sequence[loops.ValueOrList]) -> None:
        for index, result in enumerate(results):
            self.results[node.name, index] = result
            if isinstance(result, Value):
                self._name(result, f"{node.name}:{index}" if index else node.name)

    def _read_control(self, node: GraphDefNode) -> list[loops.ValueOrList]:
        try:
            if node.op in BRANCH_OPS or node.op == BRANCH_OP:
                return branches.read(self, node)
            loop = self.loops.get(node.name) or loops.loop_of_functions(self.source, node)
            return loops.read(self, node, loop)
        except (KeepNode, TypeRuleError) as why:
            raise self.error(node, f"is not read: {why}") from why
        except _MISFITS as error:
            operands = [self.results[place] for place in node.inputs if place in self.results]
            raise self.error(node, f"is not read: {_misfit(operands)}") from error

    def operand(self, node: GraphDefNode, place: ResultPlace) -> loops.ValueOrList:
        """Returns an operand, which may be a list of tensors."""
        if place not in self.results:
            message = f"reads result {place[1]} of {place[0]}, which is not read"
            raise self.error(node, message)
        return self.results[place]

    def _result(self, place: ResultPlace) -> Value:
        if place not in self.results:
            raise InputError(f"{self.source.name}: {place[0]} has no result {place[1]}")
        result = self.results[place]
        if not isinstance(result, Value):
            said = f"output {place[0]} is {_kind([result])}"
            raise InputError(f"{self.source.name}: {said}")
        return result

    def _input(self, node: GraphDefNode) -> Value:
        number = node.attrs["dtype"].type
        element_type = dtype_of_number(number)
        if element_type is None:
            raise self.error(node, f"is an input of {type_name(number)}, which is not read")
        sizes = shape_of(node.attrs["shape"].shape) if "shape" in node.attrs else None
        # Without a rank, consumers may require one: a convolution has images of rank 4.
        sizes = inferred_shape(self.source, node.name) if sizes is None else sizes
        if sizes is None:
            raise self.error(node, "is an input of unknown rank; freeze the graph with its shape")
        if min(sizes, default=0) < -1:
            raise self.error(node, f"is an input of the shape {list(sizes)}; open sizes are -1")
        input_node = self.graph.add(
            "input",
            types=[TensorType(self._dims(node, sizes), element_type)],
            name=self.inputs.get(node.name, node.name),
            origins=[self.origin(node)],
        )
        return input_node.result

    def _dims(self, node: GraphDefNode, sizes: Sequence[int]) -> tuple[Dim, ...]:
        """Returns sizes with a symbol for each open one: N for the batch."""
        stem = re.sub(r"\W", "_", node.name)
        stem = stem if stem[:1].isalpha() else f"s{stem}"
        names = ("N", *(f"{stem}_{i}" for i in range(1, len(sizes))))
        return tuple(
            size if size >= 0 else dims.symbol(name)
            for size, name in zip(sizes, names, strict=False)
        )

    def _constant(self, node: GraphDefNode) -> Value:
        proto = node.attrs["value"].tensor if "value" in node.attrs else None
        if proto is None:
            raise self.error(node, "is a constant without a value")
        data = self.source.weights.get(node.name)
        if data is None:
            data = tensor_elements(proto, f"{self.source.name}: Const {node.name}")
        declared = node.attrs["dtype"].type if "dtype" in node.attrs else proto.dtype
        if declared != proto.dtype:
            message = f"states {type_name(declared)} and holds {type_name(proto.dtype)}"
            raise self.error(node, message)
        return self.graph.constant(Array.of(data, node.name), name=node.name)

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

    def _name(self, value: Value, name: str) -> None:
        """Names a value after its node, unless it has a name of the source already."""
        if value in self.unnamed and not self.graph.has(name):
            self.unnamed.discard(value)
            # Converters add several ops; the last one has the name of the source's node.
            self.graph.rename(value, name)

    def error(self, node: GraphDefNode, what: str) -> InputError:
        """Returns an error for a node, in one line."""
        return InputError(f"{self.source.name}: {node.op} {node.name} {what}")


def _misfit(operands: Sequence[loops.ValueOrList]) -> str:
    """Returns what is wrong with a node whose converter failed: what its operands are, in words."""
    types = [_short(each.type) if isinstance(each, Value) else _kind([each]) for each in operands]
    listed = f", {' and '.join(types)}," if types else ""
    return f"its operands{listed} and its attributes do not fit each other"


def _short(kind: TensorType) -> str:
    """Returns a type without its scales."""
    return "x".join([*map(str, kind.shape), str(kind.dtype)])


def _kind(held: Sequence[loops.ValueOrList]) -> str:
    """Returns what values are that are no single tensors."""
    pairs = any(isinstance(each, ComplexPair) for each in held)
    return "complex numbers" if pairs else "a list of tensors"
