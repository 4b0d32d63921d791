"""The child process of `foreign`: infers result types of single ops, and runs them.

Questions arrive on standard input. Stateful ops, which may read or write files, are refused.
"""

from __future__ import annotations

import math
import os
import sys
from typing import Any

import numpy as np

from qir.inspect.pipe import pack, receive

from .elements import DTYPE_NAMES, QUANTIZED_STORAGE

if __name__ == "__main__":  # TensorFlow prints to stdout, which must not mix with the answers
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

import tensorflow as tf
from tensorflow.python.framework import op_def_registry

_MAX_ZEROS = 1 << 24
"""Elements of an operand of zeros, at most."""
_PRODUCER_VERSION = 1882
"""The producer version of the GraphDefs that are built; ops check it for compatibility."""


def _set_attribute(proto: Any, field: str, value: Any) -> None:
    """Sets an attribute of a node from its kept form."""
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


def _build_graph(
    op: str, attrs: Any, operands: Any, kinds: Any, held: Any
) -> tuple[Any, list[int], list[int]]:
    """Returns a GraphDef of one node, the operands to feed, and the element types of all operands.

    Without `kinds` all operands are arrays, and `held` says which are constants.
    """
    known = op_def_registry.get(op)
    if known is None:
        raise ValueError(f"TensorFlow {tf.__version__} has no such op")
    if known.is_stateful:
        raise ValueError("it has a state")
    node = tf.compat.v1.NodeDef(name="kept", op=op)
    for name, (field, value) in attrs:
        if not name.startswith("_"):
            _set_attribute(node.attr[name], field, value)
    taken = _operand_types(known, node.attr)
    if len(taken) != len(operands):
        raise ValueError(f"it takes {len(taken)} operands, not {len(operands)}")
    proto, fed = tf.compat.v1.GraphDef(), []
    proto.versions.producer = _PRODUCER_VERSION
    for i, (array, number) in enumerate(zip(operands, taken, strict=True)):
        constant = isinstance(array, np.ndarray) and (bool(kinds) or held[i])
        made = proto.node.add(name=f"x{i}", op="Const" if constant else "Placeholder")
        made.attr["dtype"].type = number
        sizes = array.shape if isinstance(array, np.ndarray) else array
        if constant:
            tensor = made.attr["value"].tensor
            tensor.dtype, tensor.tensor_content = number, array.tobytes()
            tensor.tensor_shape.CopyFrom(tf.TensorShape(sizes).as_proto())
        else:
            open_or_known = [None if s < 0 else s for s in sizes]
            made.attr["shape"].shape.CopyFrom(tf.TensorShape(open_or_known).as_proto())
            fed.append(i)
        node.input.append(f"x{i}")
    proto.node.append(node)
    return proto, fed, taken


def _operand_types(known: Any, attrs: Any) -> list[int]:
    """Returns the element types of an op's operands, by its OpDef."""
    stated: dict[str, Any] = {
        a.name: attrs[a.name] if a.name in attrs else a.default_value for a in known.attr
    }
    out: list[int] = []
    for arg in known.input_arg:
        if arg.type_list_attr:
            out += stated[arg.type_list_attr].list.type
            continue
        number = stated[arg.type_attr].type if arg.type_attr else arg.type
        out += [number] * (stated[arg.number_attr].i if arg.number_attr else 1)
    return out


def answer(what: str, op: str, attrs: Any, operands: Any, kinds: Any, held: Any) -> Any:
    """Returns result and operand types for "types", else the results."""
    proto, fed, taken = _build_graph(op, attrs, operands, kinds, held)
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.import_graph_def(proto, name="")
    made = graph.get_operation_by_name("kept").outputs
    if what == "types":
        ranks = [tensor.shape.rank for tensor in made]
        shapes = (
            [tensor.shape for tensor in made]
            if None not in ranks
            else _shapes_by_running(graph, made, operands, fed, taken)
        )
        return [_type_of_tensor(*pair) for pair in zip(made, shapes, strict=True)], taken
    return [_as_plain_array(array) for array in _run(graph, made, operands, fed, taken)]


def _run(graph: Any, made: Any, operands: Any, fed: list[int], taken: list[int]) -> Any:
    feeds = {f"x{i}:0": _as_tensorflow_array(operands[i], taken[i]) for i in fed}
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(list(made), feeds)


def _shapes_by_running(
    graph: Any, made: Any, operands: Any, fed: list[int], taken: list[int]
) -> Any:
    """Returns result shapes that TensorFlow does not infer, by running the op on zeros.

    Raises ValueError if zeros would take much memory.
    """
    given = list(operands)
    for i in fed:
        if min(operands[i], default=0) < 0 or math.prod(operands[i]) > _MAX_ZEROS:
            raise ValueError("the rank of its result is not known before it runs")
        given[i] = np.zeros(operands[i], _array_dtype(taken[i]))
    return [array.shape for array in _run(graph, made, given, fed, taken)]


def _array_dtype(number: int) -> Any:
    """Returns the dtype of arrays; quantized types of TensorFlow are records of one field."""
    kind = np.dtype(tf.as_dtype(number).as_numpy_dtype)
    return kind[0] if kind.names else kind


def _as_tensorflow_array(array: Any, number: int) -> Any:
    """Returns an array of the dtype that TensorFlow expects."""
    kind = np.dtype(tf.as_dtype(number).as_numpy_dtype)
    return array.view(kind) if kind.names else array


def _as_plain_array(found: Any) -> Any:
    array = np.asarray(found, order="C")
    return array.view(array.dtype[0]) if array.dtype.names else array


def _type_of_tensor(tensor: Any, shape: Any) -> tuple[str, Any]:
    number = int(tensor.dtype.as_datatype_enum)
    if number not in DTYPE_NAMES | QUANTIZED_STORAGE:
        raise ValueError(f"it gives {tensor.dtype.name}")
    return (DTYPE_NAMES | QUANTIZED_STORAGE)[number], [
        -1 if size is None else size for size in shape
    ]


def main() -> None:
    """Answers questions until the input ends."""
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
