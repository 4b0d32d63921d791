"""Runs whole frozen graphs that come in on standard input, and writes their results to the output.

Started by `session`.
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

_KEPT = 4
SESSIONS: dict[tuple[bytes, int], Any] = {}
"""The graphs that were run last."""


def session_of(data: bytes, threads: int) -> Any:
    """Returns a session of a graph, made once."""
    key = data, threads
    if key not in SESSIONS:
        graph = tf.Graph()
        with graph.as_default():
            tf.compat.v1.import_graph_def(tf.compat.v1.GraphDef.FromString(data), name="")
        config = tf.compat.v1.ConfigProto(
            intra_op_parallelism_threads=threads,
            inter_op_parallelism_threads=1,
            use_per_session_threads=True,
        )
        while len(SESSIONS) >= _KEPT:
            SESSIONS.pop(next(iter(SESSIONS))).close()
        SESSIONS[key] = tf.compat.v1.Session(graph=graph, config=config)
    return SESSIONS[key]


def plain(found: Any) -> Any:
    """Returns a result as plain numbers: quantized types are records of one field."""
    held = np.asarray(found)
    return np.ascontiguousarray(held.view(held.dtype[0]) if held.dtype.names else held)


def main() -> None:
    """Answers one question after the other until the input ends."""
    while True:
        try:
            asked: Any = receive(sys.stdin.buffer)
        except EOFError:
            return
        answer: Any
        try:
            data, threads, feeds, fetches = asked
            session = session_of(data.tobytes(), threads)
            given = {f"{name}:0": array for name, array in feeds.items()}
            places = [name if ":" in name else f"{name}:0" for name in fetches]
            answer = [plain(each) for each in session.run(places, given)] if places else []
        except Exception as error:
            answer = f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
        STREAM.write(pack(answer))
        STREAM.flush()


if __name__ == "__main__":
    main()
