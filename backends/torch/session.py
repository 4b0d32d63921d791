"""Runs programs of PyTorch on arrays by name."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from qir.errors import DataError, InputError, QirError
from qir.ir.graph import Graph
from qir.ir.types import TensorType
from qir.ir.typetext import parse_type
from qir.target import Executable

from .writer.elements import array, quantized, tensor

_DEPRECATION = ".*quantized tensor creation functions"
"""torch's warning that quantized tensors will be removed: once a program is noise enough."""


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Selects a quantized engine of PyTorch, and one thread, for the duration of a context.

    With more threads, vectors end elsewhere, and the elements left over there are rounded
    differently. Raises InputError for an engine that this PyTorch lacks.
    """
    backend: Any = torch.backends.quantized
    previous_engine, previous_threads = backend.engine, torch.get_num_threads()
    if name not in backend.supported_engines:
        known = ", ".join(backend.supported_engines)
        raise InputError(f"this PyTorch has no engine {name}; it has {known}")
    backend.engine = name
    torch.set_num_threads(1)
    try:
        # torch warns once a program that quantized tensors are deprecated.
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=_DEPRECATION)
            yield
    finally:
        backend.engine = previous_engine
        torch.set_num_threads(previous_threads)


@dataclass(frozen=True)
class ProgramInterface:
    """The inputs and outputs of a program, in order."""

    inputs: dict[str, TensorType]
    outputs: tuple[str, ...]

    @classmethod
    def of(cls, graph: Graph) -> ProgramInterface:
        """Returns the interface of a graph."""
        return cls({value.name: value.type for value in graph.inputs}, tuple(graph.outputs))

    def plain(self) -> ProgramInterface:
        """Returns the interface of a program whose quantized values are plain integer tensors."""
        types = {name: kind.with_element(kind.dtype) for name, kind in self.inputs.items()}
        return ProgramInterface(types, self.outputs)

    def text(self, engine: str = "") -> str:
        """Returns the interface as JSON, with the engine of the program's quantized tensors."""
        inputs = {name: str(kind) for name, kind in self.inputs.items()}
        fields: dict[str, object] = {"inputs": inputs, "outputs": list(self.outputs)}
        return json.dumps(fields | ({"engine": engine} if engine else {}))

    @classmethod
    def parse(cls, text: str) -> ProgramInterface:
        """Reads the JSON; raises InputError for anything else."""
        try:
            fields = json.loads(text)
            inputs = {str(name): parse_type(str(kind)) for name, kind in fields["inputs"].items()}
            return cls(inputs, tuple(map(str, fields["outputs"])))
        except (ValueError, KeyError, TypeError, AttributeError, QirError) as error:
            raise InputError("QIR did not write the file: it names no inputs") from error


@dataclass(frozen=True)
class TorchSession(Executable):
    """A program that is ready to run."""

    run: Callable[..., Any]
    engine: str
    signature: ProgramInterface

    def __call__(self, /, **inputs: object) -> dict[str, object]:
        """Runs the program on arrays by input name; raises DataError for one that is missing or
        unknown.

        The arrays of quantized tensors have their stored integers.
        """
        known = self.signature.inputs
        if mismatched := set(inputs) ^ set(known):
            word = "no" if next(iter(sorted(mismatched))) in inputs else "missing"
            raise DataError(f"{word} input {min(mismatched)!r}; the model takes {', '.join(known)}")
        tensors = [self._tensor(kind, inputs[name]) for name, kind in known.items()]
        with engine(self.engine), torch.no_grad():
            try:
                outputs = self.run(*tensors)
            except (RuntimeError, ValueError) as error:
                raise DataError(f"PyTorch: {' '.join(str(error).split())[-300:]}") from error
        results = [result for result in tree_leaves(outputs) if isinstance(result, torch.Tensor)]
        return {
            name: array(tensor_of_output)
            for name, tensor_of_output in zip(self.signature.outputs, results, strict=True)
        }

    @staticmethod
    def _tensor(kind: TensorType, value: object) -> torch.Tensor:
        data = tensor(np.asarray(value))
        return data if kind.quant is None else quantized(data, kind.quant)
