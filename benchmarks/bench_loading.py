"""From an ONNX file to the first result, in a process that has read models before.

QIR and onnxruntime load each file in turns, and run it once; milliseconds of processor time, the
medians. The networks are those of `bench_engine.py`: float, as QIR quantizes them in both forms,
and as onnxruntime's own tool does. `--new` runs each turn in a new process, imports included.
"""

from __future__ import annotations

import argparse
import gc
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import qir

sys.path.insert(0, str(Path(__file__).parent))
from bench_engine import quantized
from engine_networks import IMAGE, NETWORKS, Size, inputs

Feed = dict[str, NDArray[np.generic]]
USUAL = ["ResNet-50", "MobileNetV2", "MobileNetV3-large", "MiniLM-L6/128"]


class OneSample(CalibrationDataReader):
    """One sample, for onnxruntime's tool."""

    def __init__(self, feed: Feed) -> None:
        self._left = iter([feed])

    def get_next(self) -> Feed | None:
        """Returns the sample, then nothing."""
        return next(self._left, None)


def written(name: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """Yields the forms of a network and their files."""
    model = NETWORKS[name](Size(1, IMAGE))
    feed = dict(inputs(model, 1))
    files = {form: folder / f"{form}.onnx" for form in ("float", "QDQ", "QOperator", "ort")}
    onnx.save(model, files["float"])
    qir.save(quantized(files["float"], feed, files["QDQ"]), files["QOperator"], format="qoperator")
    quantize_static(
        files["float"], files["ort"], OneSample(feed), quant_format=QuantFormat.QDQ,
        per_channel=True,
    )  # fmt: skip
    yield "float", files["float"]
    yield "QDQ", files["QDQ"]
    yield "QOperator", files["QOperator"]
    yield "QDQ of onnxruntime", files["ort"]


def session(path: Path) -> ort.InferenceSession:
    """Returns onnxruntime's session with one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def zeros(path: Path) -> Feed:
    """Returns zeros for each input of a file."""
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {
        i.name: np.zeros([d if isinstance(d, int) else 1 for d in i.shape], kinds[i.type])
        for i in session(path).get_inputs()
    }


def turn(path: Path, feed: Feed) -> list[float]:
    """Returns onnxruntime's time, and those of reading, compiling and the first run."""
    gc.collect()
    clock = [time.process_time()]
    session(path).run(None, feed)
    clock.append(time.process_time())
    gc.collect()
    clock.append(time.process_time())
    graph = qir.load(path)
    clock.append(time.process_time())
    program = qir.compile(graph, threads=1)
    clock.append(time.process_time())
    program(**feed)
    clock.append(time.process_time())
    took = [(b - a) * 1e3 for a, b in pairwise(clock)]
    return [took[0], *took[2:]]


SCRIPTS = {
    "onnxruntime": "import numpy as np, onnxruntime as ort\n"
    "o = ort.SessionOptions(); o.intra_op_num_threads, o.log_severity_level = 1, 4\n"
    "s = ort.InferenceSession(sys.argv[1], o, providers=['CPUExecutionProvider'])\n"
    "s.run(None, dict(np.load(sys.argv[2])))",
    "qir": "import numpy as np, qir\n"
    "p = qir.compile(qir.load(sys.argv[1]), threads=1)\n"
    "p(**dict(np.load(sys.argv[2])))",
}


def new_process(engine: str, path: Path, feed: Path) -> float:
    """Returns the processor time of a process that does nothing else, its start included."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    code = f"import sys\n{SCRIPTS[engine]}"
    subprocess.run([sys.executable, "-c", code, str(path), str(feed)], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3


def main() -> None:
    """Prints a line for each form of each network."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=USUAL)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--new", action="store_true", help="each turn in a new process")
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    heads = "" if args.new else f"{'load':>8}{'compile':>9}{'run':>7}"
    print(f"{'milliseconds':20}{'':20}{'onnxruntime':>12}{heads}{'QIR':>8}{'ratio':>7}")
    for name in args.networks:
        with tempfile.TemporaryDirectory() as made:
            for form, path in written(name, Path(made)):
                feed = zeros(path)
                sample = Path(made) / "feed.npz"
                np.savez(sample, **feed)
                # The first turn warms caches up, of the file too.
                rows = [
                    [new_process(engine, path, sample) for engine in SCRIPTS]
                    if args.new
                    else turn(path, feed)
                    for _ in range(args.rounds + 1)
                ][1:]
                peer, *parts = (statistics.median(column) for column in zip(*rows, strict=True))
                whole = statistics.median(sum(row[1:]) for row in rows)
                cells = "" if args.new else "{:8.1f}{:9.1f}{:7.1f}".format(*parts)
                print(f"{name:20}{form:20}{peer:12.1f}{cells}{whole:8.1f}{whole / peer:7.2f}")


if __name__ == "__main__":
    main()
