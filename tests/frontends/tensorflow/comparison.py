"""Compares what QIR computes of a TensorFlow graph with what TensorFlow computes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from qir.ir.graph import Graph
from qir.reference.interpreter import run

Array = NDArray[np.generic]
_OUTPUT_PREFIX = "out"


def build_graph_def(
    function: Callable[..., Any], inputs: Sequence[Array], *, open_axes: int = 0
) -> tuple[Any, list[Array]]:
    """Returns the GraphDef of a function and what TensorFlow computes for the inputs.

    The sizes of the first `open_axes` axes of inputs are not stated.
    """
    graph = tf.Graph()
    with graph.as_default():
        fed = []
        for i, x in enumerate(inputs):
            shape = (*(None,) * open_axes, *x.shape[open_axes:])
            fed.append(tf.compat.v1.placeholder(x.dtype, shape, f"x{i}"))
        made = function(*fed)
        results = list(made) if isinstance(made, (list, tuple)) else [made]
        results = [tf.identity(y, f"{_OUTPUT_PREFIX}{i}") for i, y in enumerate(results)]
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        wanted = session.run(results, dict(zip(fed, inputs, strict=True)))
    return graph.as_graph_def(), [np.asarray(w) for w in wanted]


def save_graph_def(proto: Any, path: Path) -> Path:
    """Writes a GraphDef and returns its path."""
    path.write_bytes(proto.SerializeToString())
    return path


def run_graph(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Returns the results of a graph, its inputs and outputs by their numbers."""
    given = {f"x{i}": x for i, x in enumerate(inputs)}
    made = run(graph, {v.name: given[v.name] for v in graph.inputs})
    return [made[f"{_OUTPUT_PREFIX}{i}"] for i in range(len(made))]
