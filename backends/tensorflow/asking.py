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

from qir.inspect.pipe import Plain, pack, receive

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
    given: dict[str, tuple[Array, str]] = field(default_factory=dict)
    nodes: list[tuple[str, str, tuple[str, ...], dict[str, Attr]]] = field(default_factory=list)

    def constant(self, value: Array | float | np.generic, kind: str = "") -> str:
        """Adds a constant; `kind` is its type where the array is quantized."""
        name = f"c{len(self.constants)}"
        held = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        self.constants[name] = (held, kind)
        return name

    def fed(self, value: Array, kind: str = "") -> str:
        """Adds an input, which constant folding does not see."""
        name = f"x{len(self.given)}"
        self.given[name] = (value, kind)
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

    def run(self, asked: GraphRequest, *fetches: str) -> list[Array]:
        """Returns the arrays of some tensors; raises RuntimeError with TensorFlow's message."""
        assert self.child.stdin is not None
        assert self.child.stdout is not None
        plain = (asked.constants, asked.given, asked.nodes, fetches)
        question = pack(_as_tagged_tuples(plain))
        if question in self.known:
            return self.known[question]
        self.child.stdin.write(question)
        self.child.stdin.flush()
        try:
            answer = receive(self.child.stdout)
        except EOFError:
            raise RuntimeError(f"TensorFlow ended: {self.child.wait()}") from None
        if isinstance(answer, str):
            raise RuntimeError(answer)
        assert isinstance(answer, list)
        self.known[question] = found = [np.asarray(array) for array in answer]
        return found

    def op(
        self,
        name: str,
        operands: Sequence[Any],
        **attrs: Attr,
    ) -> list[Array]:
        """Runs one op. Arrays are fed, scalars are constants; a quantized array is a pair with
        its type."""
        asked = GraphRequest()
        names = [
            asked.fed(*o)
            if isinstance(o, tuple)
            else asked.fed(o)
            if isinstance(o, np.ndarray) and o.ndim
            else asked.constant(o)
            for o in operands
        ]
        node = asked.node(name, names, **attrs)
        return self.run(asked, f"{node}:0")

    def close(self) -> None:
        """Ends the child."""
        assert self.child.stdin is not None
        self.child.stdin.close()
        self.child.wait(60)


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
