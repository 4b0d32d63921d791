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
        placeholders = []
        for i, x in enumerate(inputs):
            shape = (*(None,) * open_axes, *x.shape[open_axes:])
            placeholders.append(tf.compat.v1.placeholder(x.dtype, shape, f"x{i}"))
        returned = function(*placeholders)
        results = list(returned) if isinstance(returned, (list, tuple)) else [returned]
        results = [tf.identity(y, f"{_OUTPUT_PREFIX}{i}") for i, y in enumerate(results)]
    # With one thread, sums are added in the same order in each run.
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        expected = session.run(results, dict(zip(placeholders, inputs, strict=True)))
    return graph.as_graph_def(), [np.asarray(w) for w in expected]


def save_graph_def(proto: Any, path: Path) -> Path:
    """Writes a GraphDef and returns its path."""
    path.write_bytes(proto.SerializeToString())
    return path


def run_graph(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Returns the results of a graph, its inputs and outputs by their numbers."""
    by_name = {f"x{i}": x for i, x in enumerate(inputs)}
    results = run(graph, {v.name: by_name[v.name] for v in graph.inputs})
    return [results[f"{_OUTPUT_PREFIX}{i}"] for i in range(len(results))]
