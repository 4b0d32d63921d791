"""A `.tflite` file as it is: its subgraphs, tensors, operators and buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import InputError
from qir.ir.dtype import dtype

from .flatbuffer import FlatFile, Table
from .schema import ELEMENT_TYPES, IDENTIFIER, OPERATORS, OPTIONS, TABLES

_HALF_BYTE = ("i4", "u4")
"""Element types of which a byte of a file holds two."""


@dataclass(frozen=True, eq=False)
class FileTensor:
    """A tensor of a subgraph."""

    name: str
    sizes: tuple[int, ...]
    """-1 where a size is open."""
    element: str
    """The element type, in the language's words; a number where it has none."""
    buffer: int
    quantization: Table | None
    is_variable: bool
    is_sparse: bool


@dataclass(frozen=True, eq=False)
class FileOperator:
    """An operator of a subgraph, with the indices of its tensors; -1 is one left out."""

    index: int
    op: str
    version: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    intermediates: tuple[int, ...]
    options: Table | None


@dataclass(frozen=True, eq=False)
class Subgraph:
    """The tensors and operators of a network, or of a body of one."""

    name: str
    tensors: Sequence[FileTensor]
    operators: Sequence[FileOperator]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Signature:
    """A network of the file that has names: its subgraph, and names by tensor."""

    subgraph: int = 0
    inputs: Mapping[int, str] = field(default_factory=dict)
    outputs: Mapping[int, str] = field(default_factory=dict)


class TfliteFile:
    """An opened file; raises InputError for one that is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = FlatFile(path, TABLES)
        if self._file.part(4, 4).tobytes() != IDENTIFIER:
            raise InputError(f"{path}: is no TensorFlow Lite model; such files say TFL3")
        self._model = self._file.root("Model")
        if (version := self._model.integer("version")) != 3:
            raise InputError(f"{path}: is of version {version} of the format; 3 is read")

    @cached_property
    def subgraphs(self) -> Sequence[Subgraph]:
        """The subgraphs; the first is the network."""
        found = [self._subgraph(table) for table in self._model.tables("subgraphs")]
        if not found:
            raise InputError(f"{self.path}: has no subgraph")
        return found

    @cached_property
    def _operator_codes(self) -> Sequence[tuple[str, int]]:
        """The name and version of each kind of operator."""
        codes = []
        for table in self._model.tables("operator_codes"):
            # Releases before 2.4 wrote the old field alone, which holds numbers up to 127.
            number = max(table.integer("builtin_code"), table.integer("deprecated_builtin_code"))
            known = 0 <= number < len(OPERATORS)
            name = OPERATORS[number] if known else f"operator {number}"
            if name == "CUSTOM":
                name = table.text("custom_code") or name
            codes.append((name, table.integer("version")))
        return codes

    @cached_property
    def _buffers(self) -> Sequence[Table]:
        return list(self._model.tables("buffers"))

    @cached_property
    def signatures(self) -> Mapping[str, Signature]:
        """The signatures by their names."""
        found = {}
        for table in self._model.tables("signature_defs"):
            inputs, outputs = (
                {of.integer("tensor_index"): of.text("name") for of in table.tables(side)}
                for side in ("inputs", "outputs")
            )
            index = table.integer("subgraph_index")
            if index >= len(self.subgraphs):
                raise InputError(f"{self.path}: a signature is of subgraph {index}, of none")
            found[table.text("signature_key")] = Signature(index, inputs, outputs)
        return found

    def elements(self, tensor: FileTensor) -> NDArray[np.generic] | None:
        """Returns the elements that a file holds for a tensor; None where it holds none."""
        if tensor.buffer >= len(self._buffers):
            raise InputError(f"{self.path}: {tensor.name} is in buffer {tensor.buffer}, of none")
        table = self._buffers[tensor.buffer]
        held = table.numbers("data")
        # Files above 2 GB have buffers after the table, whose place is more than a mark of 1.
        if (offset := table.integer("offset")) > 1:
            held = self._file.part(offset, table.integer("size"))
        if not held.size:
            return None
        if tensor.is_sparse:
            raise self.refused(tensor, "is sparse; write the file without sparsity")
        if tensor.element not in ELEMENT_TYPES.values():
            raise self.refused(tensor, f"has elements of type {tensor.element}")
        return self._as_elements(tensor, held.view(np.uint8))

    def _as_elements(self, tensor: FileTensor, held: NDArray[np.uint8]) -> NDArray[np.generic]:
        """Returns bytes as elements of a tensor's type and shape."""
        carrier = np.dtype(dtype(tensor.element).carrier)
        count = int(np.prod(tensor.sizes, dtype=np.int64))
        size = (count + 1) // 2 if tensor.element in _HALF_BYTE else count * carrier.itemsize
        if min(tensor.sizes, default=0) < 0 or held.size < size:
            message = f"holds {held.size} bytes for the shape {list(tensor.sizes)}"
            raise self.refused(tensor, message)
        if tensor.element not in _HALF_BYTE:
            return np.frombuffer(held[:size], carrier).reshape(tensor.sizes)
        # The first of two elements is in the lower half of its byte.
        halves = np.stack([held[:size] & 15, held[:size] >> 4], 1).reshape(-1)[:count]
        if tensor.element == "i4":
            halves = (halves.astype(np.int8) << 4) >> 4
        return halves.astype(carrier).reshape(tensor.sizes)

    def refused(self, tensor: FileTensor, what: str) -> InputError:
        """Returns an error about a tensor."""
        return InputError(f"{self.path}: tensor {tensor.name} {what}")

    def _subgraph(self, table: Table) -> Subgraph:
        tensors = [self._tensor(each) for each in table.tables("tensors")]
        operators = [self._operator(i, t) for i, t in enumerate(table.tables("operators"))]
        inputs, outputs = table.integers("inputs"), table.integers("outputs")
        for operator in operators:
            self._check(operator.op, (*operator.inputs, *operator.intermediates), tensors, -1)
            self._check(operator.op, operator.outputs, tensors, 0)
        self._check("the network", (*inputs, *outputs), tensors, 0)
        return Subgraph(table.text("name") or self.path.stem, tensors, operators, inputs, outputs)

    def _check(
        self, who: str, indices: Sequence[int], tensors: Sequence[FileTensor], least: int
    ) -> None:
        for index in indices:
            if not least <= index < len(tensors):
                raise InputError(f"{self.path}: {who} uses tensor {index} of {len(tensors)}")

    def _tensor(self, table: Table) -> FileTensor:
        sizes, signature = table.integers("shape"), table.integers("shape_signature")
        number = table.integer("type")
        return FileTensor(
            table.text("name"),
            signature if len(signature) == len(sizes) else sizes,
            ELEMENT_TYPES.get(number, f"{number}"),
            table.integer("buffer"),
            table.table("quantization"),
            table.flag("is_variable"),
            table.has("sparsity"),
        )

    def _operator(self, index: int, table: Table) -> FileOperator:
        code = table.integer("opcode_index")
        if code >= len(self._operator_codes):
            raise InputError(f"{self.path}: operator {index} is of kind {code}, which is not there")
        op, version = self._operator_codes[code]
        kind = OPTIONS.get(table.integer("builtin_options_type"), "")
        return FileOperator(
            index,
            op,
            version,
            table.integers("inputs"),
            table.integers("outputs"),
            table.integers("intermediates"),
            table.table("builtin_options", kind) if kind else None,
        )
