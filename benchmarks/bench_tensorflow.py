"""TensorFlow's own float networks next to the int8 graphs that QIR writes of them, in turns.

Networks of keras.applications with random weights are frozen by TensorFlow, and run by it as they
are; quantized for `tensorflow-onednn`, written, and run by the same TensorFlow. Times are medians
of runs in turns, so that the ratio holds on a machine that others use. Then each network's ops
are listed by the time that TensorFlow's own trace gives them.

    python benchmarks/bench_tensorflow.py
    python benchmarks/bench_tensorflow.py MobileNet EfficientNetB0
"""

from __future__ import annotations

import os
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.convert_to_constants import convert_variables_to_constants_v2

import qir

TARGET = "tensorflow-onednn"
NETWORKS = ("ResNet50", "MobileNet", "MobileNetV2")
ROUNDS, WARM = 60, 5
TRACED = 8
MOST = 6
"""Ops of each graph that are listed."""
Run = Callable[[], object]
v1 = tf.compat.v1


def frozen(name: str) -> Any:
    """Returns a network of keras.applications as TensorFlow freezes it."""
    tf.keras.utils.set_random_seed(1)
    model = getattr(tf.keras.applications, name)(weights=None)
    call = tf.function(lambda x: model(x, training=False), autograph=False)
    spec = tf.TensorSpec((None, *model.input_shape[1:]), tf.float32, name="image")
    return convert_variables_to_constants_v2(call.get_concrete_function(spec)).graph.as_graph_def()


class Ready:
    """A graph in a session of its own."""

    def __init__(self, proto: Any, threads: int) -> None:
        graph = tf.Graph()
        with graph.as_default():
            v1.import_graph_def(proto, name="")
        self.input_name = f"{next(n.name for n in proto.node if n.op == 'Placeholder')}:0"
        names_read = {name.split(":")[0].lstrip("^") for n in proto.node for name in n.input}
        self.made = f"{[n.name for n in proto.node if n.name not in names_read][-1]}:0"
        threaded = {"intra_op_parallelism_threads": threads, "inter_op_parallelism_threads": 1}
        self.session = v1.Session(graph=graph, config=v1.ConfigProto(**threaded))

    def run(self, x: np.ndarray) -> np.ndarray:
        """Its result."""
        return np.asarray(self.session.run(self.made, {self.input_name: x}))

    def ops(self, x: np.ndarray) -> Counter[str]:
        """Microseconds of each kind of op in a run, the least of several."""
        rows = [self._traced(x) for _ in range(TRACED)]
        return min(rows[1:], key=Counter.total)

    def _traced(self, x: np.ndarray) -> Counter[str]:
        options = v1.RunOptions(trace_level=v1.RunOptions.FULL_TRACE)
        metadata = v1.RunMetadata()
        self.session.run(self.made, {self.input_name: x}, options=options, run_metadata=metadata)
        micros_by_op: Counter[str] = Counter()
        for device in metadata.step_stats.dev_stats:
            for node in device.node_stats:
                op = re.search(r"= (\w+)\(", node.timeline_label)
                micros_by_op[op[1] if op else node.node_name] += node.op_end_rel_micros
        return micros_by_op


def medians(runs: Mapping[str, Run]) -> dict[str, float]:
    """Returns the median milliseconds of each run, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + WARM):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if turn >= WARM:
                times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in times.items()}


def quantized(proto: Any, x: np.ndarray, folder: Path) -> Any:
    """Returns the graph that QIR writes for a frozen one."""
    source, target_file = folder / "float.pb", folder / "int8.pb"
    source.write_bytes(proto.SerializeToString())
    graph = qir.load(source)
    statistics_ = qir.calibrate(graph, [{graph.inputs[0].name: x}])
    qir.save(
        qir.quantize(graph, statistics_, target=TARGET), target_file, target=TARGET, force=True
    )
    return v1.GraphDef.FromString(target_file.read_bytes())


def measure(name: str, folder: Path) -> None:
    """Prints a network's times, and the ops that take most of them."""
    proto = frozen(name)
    x = np.random.default_rng(2).uniform(-1, 1, (8, 224, 224, 3)).astype(np.float32)
    graphs = {"float": proto, "int8": quantized(proto, x[:2], folder)}
    for threads in (1, 2):
        ready = {kind: Ready(graph_def, threads) for kind, graph_def in graphs.items()}
        for images in (1, 8):
            times = medians({kind: partial(r.run, x[:images]) for kind, r in ready.items()})
            cells = "".join(f"{times[kind]:11.1f}" for kind in graphs)
            ratio = times["float"] / times["int8"]
            print(f"{name:14}{threads:8}{images:8}{cells}{ratio:9.2f}x", flush=True)
        if threads == 1:
            rows = {kind: r.ops(x[:1]) for kind, r in ready.items()}
    for kind, ops in rows.items():
        total = ops.total()
        top = ", ".join(f"{op} {100 * t / total:.0f} %" for op, t in ops.most_common(MOST))
        print(f"  {kind:6}{total / 1e3:8.1f} ms in ops: {top}", flush=True)


def main(names: Sequence[str]) -> None:
    """Prints a row for each network, number of threads and number of images."""
    print(f"{'network':14}{'threads':>8}{'images':>8}{'float ms':>11}{'int8 ms':>11}{'speed':>10}")
    for name in names or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            measure(name, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
