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
_SPREAD = "out"


def built(
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
        results = [tf.identity(y, f"{_SPREAD}{i}") for i, y in enumerate(results)]
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    with tf.compat.v1.Session(graph=graph, config=config) as session:
        wanted = session.run(results, dict(zip(fed, inputs, strict=True)))
    return graph.as_graph_def(), [np.asarray(w) for w in wanted]


def saved(proto: Any, path: Path) -> Path:
    """Writes a GraphDef and returns its path."""
    path.write_bytes(proto.SerializeToString())
    return path


def computed(graph: Graph, inputs: Sequence[Array]) -> list[Array]:
    """Returns the results of a graph, its inputs and outputs by their numbers."""
    given = {f"x{i}": x for i, x in enumerate(inputs)}
    made = run(graph, {v.name: given[v.name] for v in graph.inputs})
    return [made[f"{_SPREAD}{i}"] for i in range(len(made))]


def difference(ours: Array, theirs: Array, near: float) -> str:
    """Returns how two results differ; empty where they agree.

    Integers and truth values must be equal, floats within `near` of the largest one.
    """
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return f"{ours.dtype}{ours.shape}, TensorFlow gives {theirs.dtype}{theirs.shape}"
    if not np.issubdtype(theirs.dtype, np.floating):
        return "" if np.array_equal(ours, theirs) else "other integers"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    if same.all():
        return ""
    off = float(np.abs(np.where(same, 0, a - b)).max())
    largest = float(np.abs(b[np.isfinite(b)]).max(initial=1e-30))
    return "" if off <= near * largest else f"off by {off:.3g} where the largest is {largest:.3g}"
