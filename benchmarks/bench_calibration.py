"""Time and memory to quantize a network with samples: QIR next to onnxruntime's tool.

Each turn is a process of its own, on as many cores as `--threads` says, that reads the ONNX file
and the samples, calibrates, quantizes and writes the int8 file. It did so with one sample before,
which imports what there is to import. Engines take turns; printed are medians of processor time,
and the memory at the peak.

    python benchmarks/bench_calibration.py
    python benchmarks/bench_calibration.py --networks MobileNetV2 --samples 32 --rounds 5
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent))
from engine_networks import IMAGE, NETWORKS, Size

SEED = 20261129
IMAGES = ["MobileNetV2", "ResNet-50", "VGG16", "EfficientNet-B0", "MobileNetV3-large"]


class Cost(NamedTuple):
    """What one turn took: seconds of processor time, and memory at most, in MB."""

    seconds: float
    peak: float


def by_qir(rule: str, corrections: str = "default") -> Callable[[Path, Path, Path], None]:
    """Returns a quantizer with this range rule; it does what `qir quantize` does by default."""

    def quantize(model: Path, data: Path, out: Path) -> None:
        import qir

        graph = qir.load(model)
        samples = np.load(data, mmap_mode="r")
        ranges = qir.calibrate(graph, samples)
        quantized = qir.quantize(graph, ranges, range_rule=rule, corrections=corrections)
        qir.save(quantized, out, force=True)

    return quantize


def by_onnxruntime(method: str) -> Callable[[Path, Path, Path], None]:
    """Returns onnxruntime's quantizer with this calibration method."""

    def quantize(model: Path, data: Path, out: Path) -> None:
        import onnxruntime.quantization as ort

        name = onnx.load(model).graph.input[0].name
        samples = np.load(data, mmap_mode="r")

        class Reader(ort.CalibrationDataReader):  # type: ignore[misc]
            """The samples, one a run."""

            def __init__(self) -> None:
                self.left = ({name: samples[i : i + 1]} for i in range(len(samples)))

            def get_next(self) -> dict[str, NDArray[np.float32]] | None:
                """Returns the next sample."""
                return next(self.left, None)

        ort.quantize_static(
            model, out, Reader(), quant_format=ort.QuantFormat.QDQ, per_channel=True,
            activation_type=ort.QuantType.QUInt8, weight_type=ort.QuantType.QInt8,
            calibrate_method=ort.CalibrationMethod[method],
        )  # fmt: skip

    return quantize


METHODS = {
    "onnxruntime minmax": by_onnxruntime("MinMax"),
    "QIR minmax": by_qir("minmax"),
    "QIR minmax, no corrections": by_qir("minmax", "none"),
    "QIR percentile": by_qir("percentile:99.99"),
    "QIR entropy": by_qir("entropy"),
    "QIR mse": by_qir("mse"),
    "onnxruntime percentile": by_onnxruntime("Percentile"),
    "onnxruntime entropy": by_onnxruntime("Entropy"),
}
USUAL = list(METHODS)[:5]  # onnxruntime's histograms keep every value: tens of GB for 128 images


def turn(method: str, model: Path, data: Path, out: Path, threads: int) -> Cost:
    """Quantizes in this process; returns what it took."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    first = data.with_suffix(".first.npy")
    np.save(first, np.load(data, mmap_mode="r")[:1])
    METHODS[method](model, first, out)
    began = time.process_time()
    METHODS[method](model, data, out)
    seconds = time.process_time() - began
    # Not getrusage: its maximum counts the process that started this one.
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return Cost(seconds, peak / 1024)


def in_new_process(*job: object) -> Cost:
    """Returns what a turn takes in a process that did nothing before."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(turn, job)


def main() -> None:
    """Prints a line for each method and network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", choices=IMAGES, default=["ResNet-50"])
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=USUAL)
    parser.add_argument("--samples", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "QIR_THREADS"):
        os.environ[variable] = str(args.threads)
    print(f"{args.samples} samples, threads {args.threads}, rounds {args.rounds}")
    print(f"{'network':20}{'method':30}{'seconds':>9}{'ratio':>7}{'MB':>8}{'ratio':>7}")
    for network in args.networks:
        with tempfile.TemporaryDirectory() as made:
            model, data, out = (Path(made) / name for name in ("net.onnx", "x.npy", "int8.onnx"))
            onnx.save(NETWORKS[network](Size(1)), model)
            shape = (args.samples, 3, IMAGE, IMAGE)
            np.save(data, np.random.default_rng(SEED).standard_normal(shape, np.float32))
            costs: dict[str, list[Cost]] = {method: [] for method in args.methods}
            for _ in range(args.rounds):
                for method, found in costs.items():
                    found.append(in_new_process(method, model, data, out, args.threads))
        medians = {m: Cost(*map(statistics.median, zip(*c, strict=True))) for m, c in costs.items()}
        first = medians[args.methods[0]]
        for method, (seconds, peak) in medians.items():
            ratios = seconds / first.seconds, peak / first.peak
            cells = f"{seconds:9.2f}{ratios[0]:7.2f}{peak:8.0f}{ratios[1]:7.2f}"
            print(f"{network:20}{method:30}{cells}", flush=True)


if __name__ == "__main__":
    main()
