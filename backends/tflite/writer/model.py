"""A TensorFlow Lite model under construction: its tensors, buffers and operators, by number."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .flatbuffer import Field, FlatBufferBuilder, Table
from .schema import IDENTIFIER, LARGEST_OLD_CODE, OPERATORS, OPTIONS, TABLES, VERSION

MAX_BYTES = 2**31 - 1
"""The largest file: offsets count bytes in 32 bits, and readers take them as signed."""
SIGNATURE = "serving_default"


@dataclass(frozen=True)
class Quantization:
    """What the integers of a tensor mean; along an axis where there are several scales."""

    scales: NDArray[np.float32]
    zeros: NDArray[np.int64]
    axis: int = 0

    def table(self) -> Table:
        """Returns it as the file has it."""
        zeros = np.broadcast_to(self.zeros, self.scales.shape)
        table: dict[str, Field] = {"scale": self.scales, "zero_point": zeros}
        return table | ({"quantized_dimension": self.axis} if self.scales.size > 1 else {})

    def along(self, axis: int) -> Quantization:
        """Returns it for a tensor whose axes are in another order."""
        return Quantization(self.scales, self.zeros, axis)

    def key(self) -> tuple[bytes, bytes, int]:
        """Returns what equal ones have in common."""
        return self.scales.tobytes(), self.zeros.tobytes(), self.axis


class ModelBuilder:
    """Tensors, buffers, and operators in the order in which they run."""

    def __init__(self) -> None:
        self.buffers: list[Table] = [{}]
        """The first is that of all tensors that hold no elements."""
        self.tensors: list[dict[str, Field]] = []
        self.operators: list[tuple[Sequence[int], Table]] = []
        """Each with the tensors that it makes."""
        self.bytes = 0
        self._codes: dict[tuple[str, int], int] = {}
        self._shared: dict[object, int] = {}
        self._names: set[str] = set()

    def tensor(
        self,
        name: str,
        sizes: Sequence[int],
        element: int,
        quantization: Quantization | None = None,
        data: NDArray[np.generic] | None = None,
    ) -> int:
        """Adds a tensor; -1 is an open size. Returns its number. Equal constants are one."""
        key = stored = None
        if data is not None:
            stored = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            meaning = quantization and quantization.key()
            key = element, tuple(sizes), hashlib.sha256(stored.data).digest(), meaning
            if key in self._shared:
                return self._shared[key]
        table: dict[str, Field] = {
            "shape": np.maximum(np.asarray(sizes, np.int32), 1) if -1 in sizes else sizes,
            "type": element,
            "buffer": 0 if stored is None else len(self.buffers),
            "name": self._unique(name),
        }
        if -1 in sizes:
            table["shape_signature"] = sizes
        if quantization is not None:
            table["quantization"] = quantization.table()
        if stored is not None:
            self.buffers.append({"data": stored})
            self.bytes += stored.size
        self.tensors.append(table)
        if key is not None:
            self._shared[key] = len(self.tensors) - 1
        return len(self.tensors) - 1

    def operator(
        self,
        op: str,
        version: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: tuple[str, Table] | None,
    ) -> None:
        """Adds an operator; -1 is an input that is left out."""
        code = self._codes.setdefault((op, version), len(self._codes))
        table: dict[str, Field] = {"opcode_index": code, "inputs": inputs, "outputs": outputs}
        if options is not None:
            table |= {"builtin_options_type": OPTIONS[options[0]], "builtin_options": options}
        self.operators.append((outputs, table))

    def build(self, name: str, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> bytes:
        """Returns the file; inputs and outputs have these names in its signature."""
        subgraph: Table = {
            "tensors": self.tensors,
            "inputs": list(inputs.values()),
            "outputs": list(outputs.values()),
            "operators": [table for _, table in self.operators],
            "name": name,
        }
        signature: Table = {
            "inputs": [{"name": key, "tensor_index": at} for key, at in inputs.items()],
            "outputs": [{"name": key, "tensor_index": at} for key, at in outputs.items()],
            "signature_key": SIGNATURE,
            "subgraph_index": 0,
        }
        model: Table = {
            "version": VERSION,
            "operator_codes": [_code(*pair) for pair in self._codes],
            "subgraphs": [subgraph],
            "description": "QIR",
            "buffers": self.buffers,
            "signature_defs": [signature],
        }
        return FlatBufferBuilder(TABLES).build("Model", model, IDENTIFIER)

    def _unique(self, name: str) -> str:
        unique, count = name, 0
        while unique in self._names:
            count += 1
            unique = f"{name}_{count}"
        self._names.add(unique)
        return unique


def _code(op: str, version: int) -> Table:
    """Returns an operator and its version as the file lists them."""
    number = OPERATORS[op]
    old = min(number, LARGEST_OLD_CODE)
    return {"deprecated_builtin_code": old, "builtin_code": number, "version": version}
