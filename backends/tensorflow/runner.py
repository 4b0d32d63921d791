"""The child process that runs whole models: requests on standard input, results on output.

`session` starts it.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import numpy as np

from qir.inspect.pipe import pack, receive

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
    key = (source if isinstance(source, str) else source.tobytes()), threads
    if key not in SESSIONS:
        graph = tf.Graph()
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads,
            inter_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
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
    found = known[_SIGNATURE]
    sides = {"inputs": found.inputs, "outputs": found.outputs}
    return {side: {name: info.name for name, info in held.items()} for side, held in sides.items()}


def graph_interface(graph: Any) -> dict[str, dict[str, str]]:
    """Returns the placeholders of a graph, and the tensors that no op reads."""
    ops = graph.get_operations()
    given = [op for op in ops if op.type.startswith("Placeholder")]
    excluded = ("Const", "Switch")  # a Switch has a dead output on each run
    control_inputs = {before for op in ops for before in op.control_inputs}
    last = [
        op
        for op in ops
        if op.outputs and op.type not in excluded and op not in given and op not in control_inputs
        if not any(tensor.consumers() for tensor in op.outputs)
    ]
    sides = {"inputs": given, "outputs": last}
    return {side: {op.name: op.outputs[0].name for op in held} for side, held in sides.items()}


def as_plain_array(found: Any) -> Any:
    """Returns a result as plain numbers: quantized types are records of one field."""
    held = np.asarray(found)
    return np.asarray(held.view(held.dtype[0]) if held.dtype.names else held, order="C")


def tensor_name(name: str) -> str:
    """Returns the name of a tensor: the first result where a node is named."""
    return name if ":" in name else f"{name}:0"


def main() -> None:
    """Answers one question after the other until the input ends."""
    while True:
        try:
            asked: Any = receive(sys.stdin.buffer)
        except EOFError:
            return
        answer: Any
        try:
            source, threads, feeds, fetches = asked
            session, names = cached_session(source, threads)
            given = {tensor_name(name): array for name, array in feeds.items()}
            places = [tensor_name(name) for name in fetches]
            answer = (
                [as_plain_array(each) for each in session.run(places, given)] if places else names
            )
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        STREAM.write(pack(answer))
        STREAM.flush()


if __name__ == "__main__":
    main()
