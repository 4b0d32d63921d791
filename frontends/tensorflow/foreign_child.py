"""Infers the types of single ops and runs them; questions come in on standard input.

Started by `foreign`. Ops with a state, which may read or write files, are refused.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from qir.inspect.pipe import pack, receive

from .elements import KINDS

if __name__ == "__main__":  # what TensorFlow prints, while it loads too, stays out of the answers
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_NUMBERS = {name: number for number, name in KINDS.items()}


def _attr(proto: Any, field: str, value: Any) -> None:
    """Sets an attribute of a node to what was kept of it."""
    if field == "shape":
        proto.shape.SetInParent()
        for size in value:
            proto.shape.dim.add().size = size
    elif field.startswith("list."):
        part = field.removeprefix("list.")
        proto.list.SetInParent()
        getattr(proto.list, part).extend(_bytes(row) for row in value)
    else:
        setattr(proto, field, _bytes(value))


def _bytes(value: Any) -> Any:
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def _built(op: str, attrs: Any, operands: Any, kinds: Any, graph: Any) -> tuple[Any, list[Any]]:
    """Adds a node and its operands to a graph; returns the op and the placeholders."""
    known = op_def_registry.get(op)
    if known is None:
        raise ValueError(f"TensorFlow {tf.__version__} has no such op")
    if known.is_stateful:
        raise ValueError("it has a state")
    node = tf.compat.v1.NodeDef(name="kept", op=op)
    for name, (field, value) in attrs:
        _attr(node.attr[name], field, value)
    given = []
    with graph.as_default():
        tensors = []
        for i, held in enumerate(operands):
            if isinstance(held, np.ndarray) and kinds:
                tensors.append(tf.constant(held))
                continue
            number = _NUMBERS[kinds[i] if kinds else _kind(held)]
            shape = [None if s < 0 else s for s in (held if kinds else held.shape)]
            tensors.append(tf.compat.v1.placeholder(tf.as_dtype(number), shape))
            given.append(tensors[-1])
        node.input.extend(tensor.name for tensor in tensors)
        proto = graph.as_graph_def()
        proto.node.append(node)
    return proto, [tensor.name for tensor in given]


def _kind(held: Any) -> str:
    return KINDS[int(tf.as_dtype(held.dtype).as_datatype_enum)]


def answer(what: str, op: str, attrs: Any, operands: Any, kinds: Any) -> Any:
    """Returns the types of the results by name and shape, or the results."""
    proto, names = _built(op, attrs, operands, kinds, tf.Graph())
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.import_graph_def(proto, name="")
    made = graph.get_operation_by_name("kept").outputs
    if what == "types":
        return [_type(tensor) for tensor in made]
    with tf.compat.v1.Session(graph=graph) as session:
        found = session.run(list(made), dict(zip(names, operands, strict=True)))
    return [np.asarray(array, order="C") for array in found]


def _type(tensor: Any) -> tuple[str, Any]:
    number = int(tensor.dtype.as_datatype_enum)
    if number not in KINDS:
        raise ValueError(f"it gives {tensor.dtype.name}")
    rank = tensor.shape.rank
    return KINDS[number], None if rank is None else [-1 if s is None else s for s in tensor.shape]


def main() -> None:
    """Answers one question after the other until the input ends."""
    while True:
        try:
            asked: Any = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            said = answer(*asked)
        except Exception as error:  # TensorFlow raises what it likes
            said = " ".join(str(error).split())[:300] or type(error).__name__
        STREAM.write(pack(said))
        STREAM.flush()


if __name__ == "__main__":
    main()
