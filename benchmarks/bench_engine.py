"""QIR's kernels next to other runtimes on seven networks, float32 and int8, in one run.

`--kinds dynamic` and `dynamic-u8` are files of onnxruntime's quantize_dynamic, i8 and u8 weights.

Each network is made from one seed, run as it is and as QIR quantizes it for onnxruntime, by every
runtime in turns; what is printed is how many times QIR's median time each of them takes. Above 1,
QIR is faster. All run on the same cores and as many threads; with several, a turn waits until
those of the one before sleep, and begins with a run that is not timed. `--check` runs nothing: it
prints the steps that are Python calls, of these networks or of the files that are named, and fails
if there are any.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray

import qir
from qir.inspect import settle

sys.path.insert(0, str(Path(__file__).parent))
from engine_networks import IMAGE, NETWORKS, USUAL, Size, inputs
from engine_peers import PEERS, Case, NotAvailable, Run

Feed = Mapping[str, NDArray[np.generic]]
WARM = 2


def medians(
    runs: Mapping[str, Run],
    rounds: int,
    seconds: float,
    clock: Callable[[], float],
    threads: int = 1,
    middle: Callable[[list[float]], float] = statistics.median,
) -> dict[str, float]:
    """Returns the median seconds of each by a clock, or what `middle` makes of them, taken in turns
    until the time is over."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    end = time.perf_counter() + seconds
    for turn in range(rounds + WARM):
        for name, run in runs.items():
            # Threads of the run before may still spin, which would slow this one.
            if threads > 1:
                settle()
                run()
            started = clock()
            run()
            if turn >= WARM:
                times[name].append(clock() - started)
        if turn >= WARM + 2 and time.perf_counter() > end:
            break
    return {name: middle(seconds_of_runs) for name, seconds_of_runs in times.items()}


def calls(graph: qir.Graph) -> Counter[str]:
    """Returns the ops of a graph that are steps in Python, and how many of each there are."""
    return Counter(fallback.op for fallback in qir.compile(graph).fallbacks)


def listed(found: Counter[str]) -> str:
    """Returns counts of ops as text."""
    return ", ".join(f"{op} x{count}" for op, count in sorted(found.items())) or "-"


class Table:
    """Rows of ratios, aligned, and their geometric means."""

    def __init__(self, peers: list[str]) -> None:
        self._peers = peers
        self._ratios: dict[tuple[str, str], list[float]] = {}
        heads = "".join(f"{peer:>16}" for peer in peers)
        print(f"{'times of QIR':20}{'':9}{heads}   in NumPy", flush=True)

    def row(self, name: str, kind: str, ratios: Mapping[str, float], numpy: str) -> None:
        """Prints one row."""
        for peer, ratio in ratios.items():
            self._ratios.setdefault((kind, peer), []).append(ratio)
        cells = "".join(
            f"{ratios[peer]:15.2f}x" if peer in ratios else f"{'-':>16}" for peer in self._peers
        )
        print(f"{name:20}{kind:9}{cells}   {numpy}", flush=True)

    def means(self) -> None:
        """Prints the geometric means."""
        for kind in dict.fromkeys(kind for kind, _ in self._ratios):
            ratios_of_peers = (self._ratios.get((kind, peer), [math.nan]) for peer in self._peers)
            means = (
                math.exp(statistics.fmean(map(math.log, ratios))) for ratios in ratios_of_peers
            )
            print(f"{'geometric mean':20}{kind:9}" + "".join(f"{mean:15.2f}x" for mean in means))


def quantized(path: Path, feed: Feed, destination: Path) -> qir.Graph:
    """Returns a network as QIR quantizes it for onnxruntime, which is written too."""
    graph = qir.load(path)
    data = feed if len(feed) > 1 else next(iter(feed.values()))
    result = qir.quantize(graph, qir.calibrate(graph, data))
    qir.save(result, destination)
    return result


def quantized_dynamically(path: Path, destination: Path, weights: str) -> qir.Graph:
    """Returns a network as onnxruntime's own tool quantizes it dynamically, which is written."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kinds = {"dynamic": QuantType.QInt8, "dynamic-u8": QuantType.QUInt8}
    quantize_dynamic(path, destination, weight_type=kinds[weights])
    return qir.load(destination)


def measure(name: str, size: Size, args: argparse.Namespace, table: Table, folder: Path) -> None:
    """Prints the rows of one network."""
    model = NETWORKS[name](size)
    feed = inputs(model, 1)
    source, integer_file = folder / "float.onnx", folder / "int8.onnx"
    onnx.save(model, source)
    del model
    for kind in args.kinds:
        path = source if kind == "float32" else integer_file
        if kind.startswith("dynamic"):
            graph = quantized_dynamically(source, integer_file, kind)
        else:
            graph = qir.load(source) if kind == "float32" else quantized(source, feed, integer_file)
        runs: dict[str, Run] = {}
        # The others have no kernels for what onnxruntime's tool writes, or another network.
        peers = ["onnxruntime"] if kind.startswith("dynamic") else args.peers
        for peer in peers:
            with suppress(NotAvailable):
                runs[peer] = PEERS[peer](Case(name, kind, path, feed, args.threads))
        compiled = qir.compile(graph, threads=args.threads)
        clock = time.process_time if args.processor_time else time.perf_counter
        runs["qir"] = partial(compiled, **feed)
        middle = min if args.shortest else statistics.median
        seconds = medians(runs, args.rounds, args.seconds, clock, args.threads, middle)
        ratios = {peer: seconds[peer] / seconds["qir"] for peer in args.peers if peer in runs}
        table.row(name, kind, ratios, listed(Counter(f.op for f in compiled.fallbacks)))
    for path in (source, integer_file):
        path.unlink(missing_ok=True)


def check(args: argparse.Namespace, folder: Path) -> int:
    """Prints the steps that are Python calls; returns 1 if there are any."""
    failed = 0
    print(f"{'':34}{'':9}   in NumPy")

    def row(name: str, kind: str, make: Callable[[], qir.Graph]) -> None:
        nonlocal failed
        try:
            steps = listed(calls(make()))
        except qir.errors.QirError as error:
            steps = f"refused: {error}"
        failed += steps != "-"
        print(f"{name[-33:]:34}{kind:9}   {steps}", flush=True)

    for file in args.files:
        row(file.stem, "as it is", partial(qir.load, file))
    for name in [] if args.files else args.networks:
        model = NETWORKS[name](Size(1, 64, 1))
        source, integer_file = folder / "float.onnx", folder / "int8.onnx"
        onnx.save(model, source)
        row(name, "float32", partial(qir.load, source))
        row(name, "int8", partial(quantized, source, inputs(model, 1), integer_file))
        integer_file.unlink(missing_ok=True)
    return min(failed, 1)


def arguments() -> argparse.Namespace:
    """Returns what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    installed = [name for name in PEERS if importlib.util.find_spec(name) is not None]
    parser.add_argument("files", nargs="*", type=Path, help="models for --check")
    parser.add_argument("--check", action="store_true", help="list the steps in Python, run none")
    parser.add_argument("--quick", action="store_true", help="two layers, small images, few runs")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=USUAL)
    parser.add_argument("--kinds", nargs="+",
                        choices=["float32", "int8", "dynamic", "dynamic-u8"],
                        default=["float32", "int8"],
                        help="dynamic: by onnxruntime's quantize_dynamic")  # fmt: skip
    parser.add_argument("--peers", nargs="+", choices=installed, default=installed)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="of this process, not the clock's: for one thread beside other jobs",
    )
    parser.add_argument(
        "--shortest",
        action="store_true",
        help="compare shortest runs, not medians: for several threads beside other jobs",
    )
    parser.add_argument("--rounds", type=int, default=30, help="runs of each, at most")
    parser.add_argument("--seconds", type=float, default=20.0, help="of one row, about")
    return parser.parse_args()


def main() -> int:
    """Prints a table."""
    args = arguments()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[: args.threads])
    size = Size(args.batch, 96, 2) if args.quick else Size(args.batch, IMAGE)
    if args.quick:
        args.rounds, args.seconds = min(args.rounds, 9), min(args.seconds, 4.0)
    with tempfile.TemporaryDirectory() as name:
        if args.check:
            return check(args, Path(name))
        print(f"batch {args.batch}, {args.threads} threads, {size.image}x{size.image} images, "
              f"{size.layers or 'all'} layers; "
              f"{'shortest' if args.shortest else 'medians'}, in turns")  # fmt: skip
        table = Table(args.peers)
        for network in args.networks:
            measure(network, size, args, table, Path(name))
        table.means()
    return 0


if __name__ == "__main__":
    sys.exit(main())
