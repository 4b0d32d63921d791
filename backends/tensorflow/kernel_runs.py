"""Runs single kernels of TensorFlow in child processes, with oneDNN or without it.

TensorFlow takes seconds to import, and decides at import whether oneDNN is on. So each setting is a
child process, which receives graphs as plain data.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.inspect.pipe import Plain, ask, close, pack

Array = NDArray[np.generic]


@dataclass(frozen=True)
class RequestedType:
    """An attribute that is an element type, such as quint8."""

    name: str


@dataclass(frozen=True)
class RequestedTypes:
    """An attribute that is a list of element types."""

    names: tuple[str, ...]


Attr = str | int | float | bool | RequestedType | RequestedTypes | tuple[int, ...] | tuple[str, ...]


@dataclass
class GraphRequest:
    """A graph: constants and inputs by name (with their quantized type), nodes in order."""

    constants: dict[str, tuple[Array, str]] = field(default_factory=dict)
    inputs: dict[str, tuple[Array, str]] = field(default_factory=dict)
    nodes: list[tuple[str, str, tuple[str, ...], dict[str, Attr]]] = field(default_factory=list)

    def constant(self, value: Array | float | np.generic, kind: str = "") -> str:
        """Adds a constant; `kind` is its type where the array is quantized."""
        name = f"c{len(self.constants)}"
        array = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        self.constants[name] = (array, kind)
        return name

    def fed(self, value: Array, kind: str = "") -> str:
        """Adds an input, which constant folding does not see."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = (value, kind)
        return name

    def node(self, op: str, inputs: Sequence[str], **attrs: Attr) -> str:
        name = f"n{len(self.nodes)}"
        self.nodes.append((op, name, tuple(inputs), attrs))
        return name


class TensorFlow:
    """A child process in which TensorFlow runs requested graphs."""

    def __init__(self, *, onednn: bool) -> None:
        self.known: dict[bytes, list[Array]] = {}
        env = {
            **os.environ,
            "TF_ENABLE_ONEDNN_OPTS": str(int(onednn)),
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
        }
        self.child = subprocess.Popen(
            [sys.executable, "-m", "qir.backends.tensorflow.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
        )

    def run(self, request: GraphRequest, *fetches: str) -> list[Array]:
        """Returns the arrays of some tensors; raises RuntimeError with TensorFlow's message."""
        question = _as_tagged_tuples((request.constants, request.inputs, request.nodes, fetches))
        key = pack(question)
        if key in self.known:
            # Probes repeat many requests, and each is a graph that TensorFlow builds anew.
            return self.known[key]
        try:
            answer = ask(self.child, question)
        except EOFError:
            raise RuntimeError(f"TensorFlow ended: {self.child.wait()}") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        assert isinstance(answer, list)
        self.known[key] = arrays = [np.asarray(array) for array in answer]
        return arrays

    def op(
        self,
        name: str,
        operands: Sequence[Any],
        **attrs: Attr,
    ) -> list[Array]:
        """Runs one op. Arrays are fed, scalars are constants; a quantized array is a pair with
        its type."""
        request = GraphRequest()
        names = [
            request.fed(*o)
            if isinstance(o, tuple)
            else request.fed(o)
            if isinstance(o, np.ndarray) and o.ndim
            else request.constant(o)
            for o in operands
        ]
        node = request.node(name, names, **attrs)
        return self.run(request, f"{node}:0")

    def close(self) -> None:
        """Ends the child."""
        close(self.child)


def _as_tagged_tuples(value: Any) -> Plain:
    """Returns a request without this module's classes, as tagged tuples."""
    match value:
        case RequestedType():
            return ("kind", value.name)
        case RequestedTypes():
            return ("kinds", value.names)
        case Mapping():
            return {name: _as_tagged_tuples(v) for name, v in value.items()}
        case list():
            return [_as_tagged_tuples(v) for v in value]
        case tuple():
            return tuple(_as_tagged_tuples(v) for v in value)
    plain: Plain = value
    return plain
