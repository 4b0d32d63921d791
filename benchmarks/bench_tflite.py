"""int8 files of TensorFlow Lite: QIR's kernels in turns with TensorFlow's interpreter, one thread.

Networks of keras.applications with random weights are converted, or files are named. Milliseconds
of processor time, medians; results are compared, and the steps that Python computes are counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import qir
from qir.backends.cpu.compiled import Compiled

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
NETWORKS = ("MobileNetV2", "MobileNetV3Small", "MobileNetV3Large", "EfficientNetB0", "ResNet50")
WARM = 3


def converted(name: str, image: int, path: Path) -> Path:
    """Writes a network of keras.applications as TensorFlow's converter quantizes it."""
    import tensorflow as tf

    tf.keras.utils.set_random_seed(1)
    shape, rng = (image, image, 3), np.random.default_rng(1)
    model = getattr(tf.keras.applications, name)(weights=None, input_shape=shape)
    of_pixels = "Efficient" in name or "V3" in name

    def samples() -> Iterator[list[NDArray[np.generic]]]:
        for _ in range(2):
            drawn = rng.uniform(0, 255, (1, *shape)) if of_pixels else rng.normal(0, 1, (1, *shape))
            yield [drawn.astype(np.float32)]

    converter = tf.lite.TFLiteConverter.from_keras_model(model)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = samples
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.int8
    path.write_bytes(converter.convert())
    return path


def medians(runs: Mapping[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Returns the median processor time of each in milliseconds, taken in turns."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[next(iter(runs))]) < 2 * WARM:
        for name, run in runs.items():
            started = time.process_time()
            run()
            times[name].append(time.process_time() - started)
    return {name: 1e3 * statistics.median(found[WARM:]) for name, found in times.items()}


def measure(path: Path, seconds: float) -> None:
    """Prints the row of a file."""
    import tensorflow as tf

    interpreter = tf.lite.Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    (given,), (made,) = interpreter.get_input_details(), interpreter.get_output_details()
    x = np.random.default_rng(2).integers(0, 100, given["shape"]).astype(given["dtype"])
    interpreter.set_tensor(given["index"], x)
    graph = qir.load(path)
    compiled, name = qir.compile(graph, threads=1), graph.inputs[0].name
    assert isinstance(compiled, Compiled)
    found = medians(
        {"QIR": lambda: compiled(**{name: x}), "TensorFlow": interpreter.invoke}, seconds
    )
    (ours,) = compiled(**{name: x}).values()
    differ = np.count_nonzero(np.asarray(ours) != interpreter.get_tensor(made["index"]))
    numbers = "".join(f"{milliseconds:14.3f}" for milliseconds in found.values())
    ratio = found["TensorFlow"] / found["QIR"]
    rest = f"{len(compiled.fallbacks):16}{differ:10}"
    print(f"{path.stem:24}{numbers}{ratio:9.2f}x{rest}", flush=True)


def main() -> None:
    """Measures files, or networks that are converted first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--image", type=int, default=224)
    parser.add_argument("--seconds", type=float, default=3)
    asked = parser.parse_args()
    try:
        import tensorflow  # noqa: F401
    except ImportError:
        print("skipped: TensorFlow is not installed")
        return
    print(
        f"{'file':24}{'QIR':>14}{'TensorFlow':>14}{'ratio':>10}{'python steps':>16}{'differ':>10}"
    )
    for path in asked.files:
        measure(path, asked.seconds)
    if asked.files:
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in asked.networks:
            measure(converted(name, asked.image, Path(folder) / f"{name}.tflite"), asked.seconds)


if __name__ == "__main__":
    main()
