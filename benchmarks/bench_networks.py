"""Whole networks, QIR's kernels next to onnxruntime's, in turns, one thread and two.

The digits network is the repository's own. Larger ones are looked for in the folder that QIR_ASSETS
names; without it only the digits run.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import qir

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "digits"))
from model import digits, write

ROUNDS = 40
ASSETS = (
    "models/imagenet/mobilenet_v1_025_224/mobilenet_v1_025_224.onnx",
    "models/imagenet_recon/mobilenet_v2_100_keras_224/mobilenet_v2_100_keras_224.onnx",
    "models/imagenet/squeezenet_v1_1_227/squeezenet_v1_1_227.onnx",
    "models/mlperf_tiny/ic_resnet8.onnx",
)
Run = Callable[[], object]


def session(path: Path, threads: int) -> ort.InferenceSession:
    """onnxruntime with its optimizer."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def medians(runs: dict[str, Run]) -> dict[str, float]:
    """Returns the median seconds of each run, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(ROUNDS + 5):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            if turn >= 5:
                times[name].append(time.perf_counter() - started)
    return {name: statistics.median(samples) for name, samples in times.items()}


def measure(name: str, source: Path, data: NDArray[np.float32], folder: Path) -> None:
    """One network, quantized and run by both."""
    graph = qir.load(source)
    (value,) = graph.inputs
    quantized = qir.quantize(graph, qir.calibrate(graph, data))
    path = folder / f"{name}.onnx"
    qir.save(quantized, path)
    feed = {value.name: data[:1]}
    for threads in (1, 2):
        int8_session, float_session = session(path, threads), session(source, threads)
        compiled = qir.compile(quantized, threads=threads)
        times = medians(
            {
                "float": partial(float_session.run, None, feed),
                "onnxruntime": partial(int8_session.run, None, feed),
                "qir": partial(compiled, **feed),
            }
        )
        ratio = times["onnxruntime"] / times["qir"]
        cells = "".join(f"{1e3 * times[n]:12.3f}" for n in ("float", "onnxruntime", "qir"))
        print(f"{name:28}{threads:8}{cells}{ratio:9.2f}x", flush=True)


def main() -> None:
    """Prints a table."""
    print(f"{'ms, batch 1, medians':28}{'threads':>8}{'ort float':>12}{'ort int8':>12}"
          f"{'qir int8':>12}{'ratio':>10}")  # fmt: skip
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "digits-float.onnx")
        measure("digits", folder / "digits-float.onnx", digits().calib_x, folder)
        for asset in ASSETS:
            source = Path(os.environ.get("QIR_ASSETS", "no-assets")) / asset
            if source.exists():
                shape = [
                    d if isinstance(d, int) else 1 for d in qir.load(source).inputs[0].type.shape
                ]
                data = np.random.default_rng(0).normal(size=(2, *shape[1:])).astype(np.float32)
                measure(source.stem, source, data, folder)


if __name__ == "__main__":
    main()
