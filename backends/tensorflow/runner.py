"""The child process that runs whole models: requests on standard input, results on output.

`session` starts it.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from qir.inspect.pipe import serve

if __name__ == "__main__":  # what TensorFlow prints, while it loads too, stays out of the answers
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

import tensorflow as tf

MAX_SESSIONS = 4
_SIGNATURE = "serving_default"
SESSIONS: dict[tuple[Any, int], tuple[Any, dict[str, dict[str, str]]]] = {}
"""The latest models, each with the tensors that are its inputs and outputs."""


def cached_session(source: Any, threads: int) -> tuple[Any, dict[str, dict[str, str]]]:
    """Returns the session of a frozen graph or SavedModel folder, which is created once."""
    # The bytes of a frozen graph are its key; a folder's path is that of a SavedModel.
    key = (source if isinstance(source, str) else source.tobytes()), threads
    if key not in SESSIONS:
        graph = tf.Graph()
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads,
            inter_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        # Dictionaries keep the order of insertion, so the first session is the oldest.
        while len(SESSIONS) >= MAX_SESSIONS:
            SESSIONS.pop(next(iter(SESSIONS)))[0].close()
        with graph.as_default():
            if isinstance(source, str):
                session = tf.compat.v1.Session(graph=graph, config=config)
                names = load_saved_model(session, source)
            else:
                proto = tf.compat.v1.GraphDef.FromString(source.tobytes())
                tf.compat.v1.import_graph_def(proto, name="")
                session = tf.compat.v1.Session(graph=graph, config=config)
                names = graph_interface(graph)
        SESSIONS[key] = session, names
    return SESSIONS[key]


def load_saved_model(session: Any, folder: str) -> dict[str, dict[str, str]]:
    """Loads a SavedModel, and returns the tensors that its signature names."""
    meta = tf.compat.v1.saved_model.load(session, ["serve"], folder)
    known = meta.signature_def
    if _SIGNATURE not in known:
        raise ValueError(f"its signatures are {', '.join(sorted(known))}; none is {_SIGNATURE}")
    signature = known[_SIGNATURE]
    sides = {"inputs": signature.inputs, "outputs": signature.outputs}
    return {
        side: {name: info.name for name, info in infos.items()} for side, infos in sides.items()
    }


def graph_interface(graph: Any) -> dict[str, dict[str, str]]:
    """Returns the placeholders of a graph, and the tensors that no op reads."""
    ops = graph.get_operations()
    placeholders = [op for op in ops if op.type.startswith("Placeholder")]
    excluded = ("Const", "Switch")  # a Switch has a dead output on each run
    control_inputs = {control_op for op in ops for control_op in op.control_inputs}
    final_ops = [
        op
        for op in ops
        if op.outputs
        and op.type not in excluded
        and op not in placeholders
        and op not in control_inputs
        if not any(tensor.consumers() for tensor in op.outputs)
    ]
    sides = {"inputs": placeholders, "outputs": final_ops}
    return {
        side: {op.name: op.outputs[0].name for op in side_ops} for side, side_ops in sides.items()
    }


def as_plain_array(result: Any) -> Any:
    """Returns a result as plain numbers: quantized types are records of one field."""
    records = np.asarray(result)
    return np.asarray(records.view(records.dtype[0]) if records.dtype.names else records, order="C")


def tensor_name(name: str) -> str:
    """Returns the name of a tensor: the first result where a node is named."""
    return name if ":" in name else f"{name}:0"


def answer(request: Any) -> Any:
    """Returns the fetched tensors, or the model's interface where nothing is fetched."""
    source, threads, feeds, fetches = request
    session, names = cached_session(source, threads)
    if not fetches:
        return names
    feed_arrays = {tensor_name(name): array for name, array in feeds.items()}
    results = session.run([tensor_name(name) for name in fetches], feed_arrays)
    return [as_plain_array(result) for result in results]


if __name__ == "__main__":
    serve(answer, STREAM, (Exception,))
