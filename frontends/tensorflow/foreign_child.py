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
    op: str, attrs: Any, operands: Any, element_types: Any, are_constants: Any
) -> tuple[Any, list[int], list[int]]:
    """Returns a GraphDef of one node, the operands to feed, and the element types of all operands.

    Without `element_types` all operands are arrays, and `are_constants` says which are constants.
    """
    op_def = op_def_registry.get(op)
    if op_def is None:
        raise ValueError(f"TensorFlow {tf.__version__} has no such op")
    if op_def.is_stateful:
        raise ValueError("it has a state")
    node = tf.compat.v1.NodeDef(name="kept", op=op)
    for name, (field, value) in attrs:
        if not name.startswith("_"):
            _set_attribute(node.attr[name], field, value)
    operand_types = _operand_types(op_def, node.attr)
    if len(operand_types) != len(operands):
        raise ValueError(f"it takes {len(operand_types)} operands, not {len(operands)}")
    proto, fed_indices = tf.compat.v1.GraphDef(), []
    proto.versions.producer = _PRODUCER_VERSION
    for i, (array, number) in enumerate(zip(operands, operand_types, strict=True)):
        # Shape inference needs the elements of constants such as axes and sizes.
        is_constant = isinstance(array, np.ndarray) and (bool(element_types) or are_constants[i])
        operand_node = proto.node.add(name=f"x{i}", op="Const" if is_constant else "Placeholder")
        operand_node.attr["dtype"].type = number
        sizes = array.shape if isinstance(array, np.ndarray) else array
        if is_constant:
            tensor = operand_node.attr["value"].tensor
            tensor.dtype, tensor.tensor_content = number, array.tobytes()
            tensor.tensor_shape.CopyFrom(tf.TensorShape(sizes).as_proto())
        else:
            open_or_known = [None if s < 0 else s for s in sizes]
            operand_node.attr["shape"].shape.CopyFrom(tf.TensorShape(open_or_known).as_proto())
            fed_indices.append(i)
        node.input.append(f"x{i}")
    proto.node.append(node)
    return proto, fed_indices, operand_types


def _operand_types(op_def: Any, attrs: Any) -> list[int]:
    """Returns the element types of an op's operands, by its OpDef."""
    stated: dict[str, Any] = {
        a.name: attrs[a.name] if a.name in attrs else a.default_value for a in op_def.attr
    }
    numbers: list[int] = []
    for arg in op_def.input_arg:
        if arg.type_list_attr:
            numbers += stated[arg.type_list_attr].list.type
            continue
        number = stated[arg.type_attr].type if arg.type_attr else arg.type
        # An operand may stand for N tensors of one type.
        numbers += [number] * (stated[arg.number_attr].i if arg.number_attr else 1)
    return numbers


def answer(
    what: str, op: str, attrs: Any, operands: Any, element_types: Any, are_constants: Any
) -> Any:
    """Returns result and operand types for "types", else the results."""
    proto, fed, operand_types = _build_graph(op, attrs, operands, element_types, are_constants)
    graph = tf.Graph()
    with graph.as_default():
        tf.compat.v1.import_graph_def(proto, name="")
    outputs = graph.get_operation_by_name("kept").outputs
    if what == "types":
        ranks = [tensor.shape.rank for tensor in outputs]
        shapes = (
            [tensor.shape for tensor in outputs]
            if None not in ranks
            else _shapes_by_running(graph, outputs, operands, fed, operand_types)
        )
        return [_type_of_tensor(*pair) for pair in zip(outputs, shapes, strict=True)], operand_types
    return [_as_plain_array(array) for array in _run(graph, outputs, operands, fed, operand_types)]


def _run(graph: Any, outputs: Any, operands: Any, fed: list[int], operand_types: list[int]) -> Any:
    feeds = {f"x{i}:0": _as_tensorflow_array(operands[i], operand_types[i]) for i in fed}
    with tf.compat.v1.Session(graph=graph) as session:
        return session.run(list(outputs), feeds)


def _shapes_by_running(
    graph: Any, outputs: Any, operands: Any, fed: list[int], operand_types: list[int]
) -> Any:
    """Returns result shapes that TensorFlow does not infer, by running the op on zeros.

    Raises ValueError if zeros would take much memory.
    """
    arguments = list(operands)
    for i in fed:
        if min(operands[i], default=0) < 0 or math.prod(operands[i]) > _MAX_ZEROS:
            raise ValueError("the rank of its result is not known before it runs")
        arguments[i] = np.zeros(operands[i], _array_dtype(operand_types[i]))
    return [array.shape for array in _run(graph, outputs, arguments, fed, operand_types)]


def _array_dtype(number: int) -> Any:
    """Returns the dtype of arrays; quantized types of TensorFlow are records of one field."""
    numpy_type = np.dtype(tf.as_dtype(number).as_numpy_dtype)
    return numpy_type[0] if numpy_type.names else numpy_type


def _as_tensorflow_array(array: Any, number: int) -> Any:
    """Returns an array of the dtype that TensorFlow expects."""
    numpy_type = np.dtype(tf.as_dtype(number).as_numpy_dtype)
    return array.view(numpy_type) if numpy_type.names else array


def _as_plain_array(result: Any) -> Any:
    array = np.asarray(result, order="C")
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
            question: Any = receive(sys.stdin.buffer)
        except EOFError:
            return
        try:
            reply = answer(*question)
        except Exception as error:  # TensorFlow raises what it likes
            reply = " ".join(str(error).split())[:300] or type(error).__name__
        STREAM.write(pack(reply))
        STREAM.flush()


if __name__ == "__main__":
    main()
