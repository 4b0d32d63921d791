"""Networks quantized for PyTorch and TensorFlow: QIR's kernels beside its reference, one thread.

The reference is what `qir run` and `qir eval` used for such models before kernels had these
runtimes' arithmetic. Milliseconds of processor time for one image; `python steps` are those that
the reference still computes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnx

import qir
from qir.profiles import library_of
from qir.reference.interpreter import run

sys.path.insert(0, str(Path(__file__).parent))
from engine_networks import IMAGE, NETWORKS, Size, inputs

TARGETS = (
    "pytorch-x86",
    "pytorch-fbgemm",
    "pytorch-onednn",
    "pytorch-qnnpack",
    "pt2e",
    "tensorflow-onednn",
)


def milliseconds(call: Callable[[], object], rounds: int) -> float:
    """Returns the median processor time of a call."""
    times = []
    for _ in range(rounds):
        started = time.process_time()
        call()
        times.append(time.process_time() - started)
    return 1e3 * statistics.median(times)


def measure(name: str, targets: list[str], image: int, rounds: int) -> None:
    """Prints a row for each target."""
    model = NETWORKS[name](Size(1, image))
    feed = inputs(model, 1)
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, path := Path(folder) / "float.onnx")
        graph = qir.load(path)
    statistics_ = qir.calibrate(graph, next(iter(feed.values())))
    for target in targets:
        made = qir.quantize(graph, statistics_, target=target)
        compiled = qir.compile(made, threads=1)
        call = partial(compiled, **feed)
        call()
        kernels = milliseconds(call, rounds)
        here = library_of(compiled.graph).on_processor()
        reference = milliseconds(partial(run, compiled.graph, feed, profiles=here), 1)
        steps = f"{len(compiled.fallbacks)} of {len(compiled.describe())}"
        print(f"{name:20}{target:20}{reference:12.0f}{kernels:12.1f}   {steps}", flush=True)


def main() -> None:
    """Measures the networks that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--network", nargs="*", default=["MobileNetV2", "ResNet-50"])
    parser.add_argument("--target", nargs="*", default=list(TARGETS))
    parser.add_argument("--image", type=int, default=IMAGE)
    parser.add_argument("--rounds", type=int, default=20)
    asked = parser.parse_args()
    print(f"{'network':20}{'target':20}{'reference':>12}{'kernels':>12}   python steps")
    for name in asked.network:
        measure(name, asked.target, asked.image, asked.rounds)


if __name__ == "__main__":
    main()
