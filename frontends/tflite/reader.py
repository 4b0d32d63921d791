"""The state of reading a subgraph: the graph under construction, and the value of each tensor."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dims import Shape
from qir.ir.dtype import dtype
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.origin import Origin
from qir.ir.types import Array, Element, QuantType, TensorType
from qir.ledger import Change, Ledger

from .model_file import FileOperator, FileTensor, Subgraph, TfliteFile
from .quantized_types import quantized_type
from .schema import ELEMENT_TYPES

STEP = "read tflite"
"""The step that entries of the ledger name."""


class Unread(Exception):
    """Raised where an operator has no exact form in the language; the text says why."""


class SubgraphReader:
    """The graph under construction, and the value of each tensor of the subgraph in it."""

    def __init__(
        self,
        file: TfliteFile,
        subgraph: Subgraph,
        graph: Graph,
        ledger: Ledger,
        read_operator: Callable[[SubgraphReader, FileOperator], None],
    ) -> None:
        self.file, self.subgraph, self.ledger = file, subgraph, ledger
        self.graph = graph
        self._read_operator = read_operator
        self.values: dict[int, Value] = {}
        self.unnamed: set[Value] = set()
        """Values that may still take the name of the tensor that they are."""
        self._elements: dict[int, Element] = {}

    def read_operators(self) -> list[Value]:
        """Reads all operators, whose inputs are in `values` already; returns the outputs."""
        for operator in self.subgraph.operators:
            self._read_operator(self, operator)
        return [self.value(index) for index in self.subgraph.outputs]

    def inline(self, index: int, graph: Graph, arguments: Sequence[Value]) -> list[Value]:
        """Reads a subgraph into a graph, on arguments that are there; returns its outputs."""
        if not 0 <= index < len(self.file.subgraphs) or self.file.subgraphs[index] is self.subgraph:
            raise Unread(f"its body is subgraph {index} of {len(self.file.subgraphs)}")
        subgraph = self.file.subgraphs[index]
        if len(subgraph.inputs) != len(arguments):
            raise Unread(f"its body takes {len(subgraph.inputs)} tensors, of {len(arguments)}")
        inner = SubgraphReader(self.file, subgraph, graph, self.ledger, self._read_operator)
        inner.values.update(zip(subgraph.inputs, arguments, strict=True))
        return inner.read_operators()

    # -- tensors --------------------------------------------------------------------------------

    def tensor(self, index: int) -> FileTensor:
        """Returns a tensor of the file."""
        return self.subgraph.tensors[index]

    def element(self, index: int) -> Element:
        """Returns what the elements of a tensor are; raises InputError for unknown ones."""
        if index not in self._elements:
            tensor = self.tensor(index)
            if tensor.element not in ELEMENT_TYPES.values():
                raise self.file.refused(tensor, f"has elements of type {tensor.element}")
            quant = quantized_type(self.file, tensor, list(self.subgraph.tensors))
            self._elements[index] = quant or dtype(tensor.element)
        return self._elements[index]

    def quant(self, index: int) -> QuantType | None:
        """Returns the quantized type of a tensor; None for one that is not quantized."""
        element = self.element(index)
        return element if isinstance(element, QuantType) else None

    def scales(self, index: int) -> NDArray[np.float32]:
        """Returns the scales that a tensor has in the file, whatever its elements are."""
        table = self.tensor(index).quantization
        scales = np.zeros(0, np.float32) if table is None else table.numbers("scale")
        return scales.astype(np.float32)

    def shape(self, index: int) -> Shape:
        """Returns the sizes of a tensor, with a symbol for each open one: N for the batch."""
        tensor = self.tensor(index)
        stem = re.sub(r"\W", "_", tensor.name)
        stem = stem if stem[:1].isalpha() else f"s{stem}"
        names = ("N", *(f"{stem}_{i}" for i in range(1, len(tensor.sizes))))
        pairs = zip(tensor.sizes, names, strict=False)
        return tuple(size if size >= 0 else dims.symbol(name) for size, name in pairs)

    def value(self, index: int) -> Value:
        """Returns the value of a tensor; one that the file holds becomes a constant."""
        if index in self.values:
            return self.values[index]
        tensor = self.tensor(index)
        if tensor.is_variable:
            self.values[index] = self._state(index, tensor)
            return self.values[index]
        data = self.file.elements(tensor)
        if data is None:
            raise self.file.refused(tensor, "has no elements, and no operator before makes it")
        kind = TensorType(data.shape, self.element(index))
        self.values[index] = self.graph.constant(Array(data, kind, name_of(tensor)))
        return self.values[index]

    def _state(self, index: int, tensor: FileTensor) -> Value:
        """Returns a state as it is before the first run: zeros."""
        element = self.element(index)
        zero = 0
        if isinstance(element, QuantType):
            zero = int(np.asarray(element.zeros()).reshape(-1)[0])
        sizes = tuple(1 if size < 0 else size for size in tensor.sizes)
        data = np.full(sizes, zero, dtype(tensor.element).carrier)
        reason = "keeps its state from run to run there; here each run begins with zeros"
        self.ledger.add(Change.UNVERIFIED, STEP, tensor.name, reason)
        return self.graph.constant(Array(data, TensorType(sizes, element), name_of(tensor)))

    # -- what converters add ----------------------------------------------------------------------

    def add(
        self,
        operator: FileOperator,
        op: str,
        operands: Mapping[str, Value],
        attrs: Mapping[str, Attr],
        types: Sequence[TensorType] | None = None,
        profile: str | None = None,
        bodies: Mapping[str, Graph] | None = None,
    ) -> Node:
        """Adds an op that stems from an operator of the file."""
        node = self.graph.add(
            op,
            operands,
            attrs,
            types=types,
            name=self.fresh_name(operator, op),
            origins=[self.origin(operator)],
            profile=profile,
            bodies=bodies,
        )
        self.unnamed.update(node.results)
        return node

    def add_chain(
        self,
        operator: FileOperator,
        stages: Sequence[Stage],
        operands: Mapping[str, Value],
        kind: TensorType,
        profile: str | None = None,
    ) -> Value:
        """Adds a layer with the activation that its kernel computes at its end."""
        name = self.fresh_name(operator, stages[0].op)
        origins = [self.origin(operator)]
        node = self.graph.add_chain(
            stages, operands, kind, name=name, origins=origins, profile=profile
        )
        self.unnamed.add(node.result)
        return node.result

    def fresh_name(self, operator: FileOperator, what: str) -> str:
        """Returns a name for a value, after the operator's result."""
        return self.graph.fresh(f"{self.name_of(operator)}/{what}")

    def name_of(self, operator: FileOperator) -> str:
        """Returns the name of an operator's first result; files name no operators."""
        return name_of(self.tensor(operator.outputs[0])) if operator.outputs else operator.op

    def origin(self, operator: FileOperator) -> Origin:
        """Returns the origin of a node: its operator, and the tensors that it reads."""
        name = self.name_of(operator)
        read = [(str(i), self.tensor(t).name) for i, t in enumerate(operator.inputs) if t >= 0]
        return Origin("tflite", operator.op, name, name.rpartition("/")[0], 0, tuple(read))

    def error(self, operator: FileOperator, what: str) -> InputError:
        """Returns an error about an operator, in one line."""
        return InputError(f"{self.file.path}: {operator.op} {self.name_of(operator)} {what}")


def name_of(tensor: FileTensor) -> str:
    """Returns a tensor's name; of what a converter fused, the first of the names that it joined."""
    return next(filter(None, tensor.name.split(";")), "tensor")
