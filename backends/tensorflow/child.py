"""The child process that runs single kernels: graphs on standard input, results on output.

`asking` starts it, with oneDNN or without.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from qir.inspect.pipe import serve

if __name__ == "__main__":  # what TensorFlow prints, while it loads too, stays out of the answers
    # Answers go to a copy of the original standard output; file descriptor 1 becomes stderr.
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.framework import tensor_util

NUMPY_TYPES = {"quint8": np.uint8, "qint8": np.int8, "qint32": np.int32, "quint16": np.uint16}
"""The storage of TensorFlow's quantized types."""
NUMPY_TYPES["qint16"] = np.int16


def type_enum(name: str) -> int:
    return int(tf.as_dtype(name).as_datatype_enum)


def set_attr(attr: Any, value: Any) -> None:
    match value:
        case ("kind", name):
            attr.type = type_enum(name)
        case ("kinds", names):
            attr.list.SetInParent()
            attr.list.type.extend([type_enum(name) for name in names])
        case bool():
            attr.b = value
        case int():
            attr.i = value
        case float():
            attr.f = value
        case str():
            attr.s = value.encode()
        case _:
            attr.list.SetInParent()
            if value and isinstance(value[0], str):
                attr.list.s.extend([v.encode() for v in value])
            else:
                attr.list.i.extend(value)


def add_constant(graph: Any, name: str, array: Any, quantized_type: str) -> None:
    node = graph.node.add()
    node.op, node.name = "Const", name
    tensor = node.attr["value"].tensor
    if quantized_type:
        # make_tensor_proto knows no quantized types, so their bytes are stored as they are.
        array_of_type = np.asarray(array, NUMPY_TYPES[quantized_type])
        tensor.dtype = type_enum(quantized_type)
        tensor.tensor_shape.SetInParent()
        for size in array_of_type.shape:
            tensor.tensor_shape.dim.add().size = size
        tensor.tensor_content = array_of_type.tobytes()
    else:
        tensor.CopyFrom(tensor_util.make_tensor_proto(array))
    node.attr["dtype"].type = tensor.dtype


def to_tensorflow(array: Any, quantized_type: str) -> Any:
    """Returns plain integers as the quantized type that a placeholder accepts."""
    return np.asarray(array, NUMPY_TYPES[quantized_type]).astype(
        tf.as_dtype(quantized_type).as_numpy_dtype
    )


def run_graph(constants: Any, fed: Any, nodes: Any, fetches: Any) -> list[Any]:
    graph = graph_pb2.GraphDef()
    # A recent producer version, as TensorFlow converts graphs of very old ones when it loads them.
    graph.versions.producer = 1882
    for name, (array, quantized_type) in fed.items():
        node = graph.node.add()
        node.op, node.name = "Placeholder", name
        node.attr["dtype"].type = type_enum(quantized_type or str(array.dtype))
    for name, (array, quantized_type) in constants.items():
        add_constant(graph, name, array, quantized_type)
    for op, name, inputs, attrs in nodes:
        node = graph.node.add()
        node.op, node.name = op, name
        node.input.extend(inputs)
        for key, value in attrs.items():
            set_attr(node.attr[key], value)
    # One thread, so that sums have one order.
    config = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=1
    )
    # Grappler would fold and fuse what is measured.
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    tf_graph = tf.Graph()
    with tf_graph.as_default():
        tf.compat.v1.import_graph_def(graph, name="")
    with tf.compat.v1.Session(graph=tf_graph, config=config) as session:
        feed = {f"{n}:0": to_tensorflow(a, c) if c else a for n, (a, c) in fed.items()}
        results = session.run(list(fetches), feed)
    return [as_plain_array(f) for f in results]


def as_plain_array(result: Any) -> Any:
    """Returns a result as plain numbers: TensorFlow's quantized types are records of one field."""
    records = np.asarray(result)
    return records.view(records.dtype[0]) if records.dtype.names else records


if __name__ == "__main__":
    serve(lambda request: run_graph(*request), STREAM, (Exception,))
