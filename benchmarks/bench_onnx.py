"""Compares reading and writing ONNX with onnx.load and onnx.save, and measures the memory of large
models.

Seconds of the clock are the median of several runs that take turns. A model of many ops takes
seconds of the processor, compared with parsing its message and building its structure. Memory is
the peak of what a process holds for itself, without the pages of mapped files.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import networkx as nx
import onnx
from onnx_models import bert, many_ops, resnet50, write_with_external_data

import qir

ROUNDS = 5
NODES = int(os.environ.get("BENCH_NODES", "100000"))
BYTES = int(os.environ.get("BENCH_BYTES", str(2 << 30)))
MOST_TIMES, MOST_READING, MOST_MEMORY = 1.5, 5.0, 400 << 20
"""Limits: times onnx.load and onnx.save, seconds for 100,000 ops, bytes of a process's own."""
SETTLE = 0.002
"""Seconds between two looks at the memory."""


def by_onnx(source: Path, target_file: Path) -> None:
    """Reads and writes by onnx, the baseline of QIR."""
    onnx.save(onnx.load(source), target_file)


def by_qir(source: Path, target_file: Path) -> None:
    """Reads a model and writes it anew; without a format, an unchanged model is copied."""
    qir.save(qir.load(source), target_file, format="qdq", force=True)


FAILED_LIMITS: list[str] = []
"""Limits that did not hold."""


def check_limit(measured: float, limit_value: float, limit: str) -> str:
    """Returns a limit and whether it holds, as text; records one that does not."""
    if measured > limit_value:
        FAILED_LIMITS.append(limit)
    return f"; at most {limit}: {'holds' if measured <= limit_value else 'DOES NOT HOLD'}"


def seconds(convert: Callable[[Path, Path], None], source: Path, target_file: Path) -> float:
    begin = time.perf_counter()
    convert(source, target_file)
    return time.perf_counter() - begin


def both_ways(name: str, model: onnx.ModelProto, folder: Path) -> float:
    """Prints how long reading and writing takes; returns the ratio."""
    source, target_file = folder / f"{name}.onnx", folder / "made.onnx"
    onnx.save(model, source)
    size = source.stat().st_size
    timings = [
        (seconds(by_onnx, source, target_file), seconds(by_qir, source, target_file))
        for _ in range(ROUNDS)
    ]
    onnx_seconds, qir_seconds = (statistics.median(column) for column in zip(*timings, strict=True))
    print(
        f"{name:12}{size / 1e6:8.0f} MB{onnx_seconds:10.3f}{qir_seconds:10.3f}"
        f"{qir_seconds / onnx_seconds:8.2f}x"
        f"{check_limit(qir_seconds / onnx_seconds, MOST_TIMES, f'{MOST_TIMES}x')}",
        flush=True,
    )
    source.unlink()
    target_file.unlink()
    return qir_seconds / onnx_seconds


def parse_baseline(source: Path) -> None:
    """Parses the message and builds networkx's graph of it: the baseline of reading many ops."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for node in onnx.load(source).graph.node:
        for slot, name in enumerate(node.input):
            graph.add_edge(name, node.output[0], key=slot, result=0)


def processor_seconds(read_model: Callable[[Path], object], source: Path) -> float:
    """Returns seconds of the processor; earlier garbage is collected first."""
    gc.collect()
    begin = time.process_time()
    read_model(source)
    return time.process_time() - begin


def reading(folder: Path) -> tuple[float, float]:
    """Returns the seconds to read a model of many ops, and how many times the baseline that is."""
    source = folder / "long.onnx"
    onnx.save(many_ops(NODES), source)
    timings = [
        (processor_seconds(qir.load, source), processor_seconds(parse_baseline, source))
        for _ in range(3)
    ]
    qir_seconds, baseline_seconds = (
        statistics.median(column) for column in zip(*timings, strict=True)
    )
    return qir_seconds, qir_seconds / baseline_seconds


def anonymous(pid: int) -> int:
    """Returns the bytes that a process holds for itself."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def peak(arguments: list[str]) -> tuple[int, float]:
    """Returns the most bytes that a process holds for itself, and its running time."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments])
    most, has_ended = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not has_ended.is_set():
            try:
                most = max(most, anonymous(process.pid))
            except OSError:
                return
            has_ended.wait(SETTLE)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    has_ended.set()
    watcher.join()
    if code:
        raise SystemExit(f"{arguments}: status {code}")
    return most, time.perf_counter() - begin


STEPS = (
    ("convert", "large.onnx", "made.onnx", "--format", "qdq"),
    ("quantize", "large.onnx", "few.onnx", "--weights", "u4:32", "--format", "nbits"),
    ("convert", "few.onnx", "few.qir"),
    ("convert", "few.onnx", "pairs.onnx", "--format", "qdq"),
    ("convert", "pairs.onnx", "again.onnx", "--format", "nbits"),
    ("quantize", "large.onnx", "wide.onnx", "--weights", "i8:4096", "--format", "qdq"),
    ("quantize", "large.onnx", "dynamic.onnx", "--dynamic", "--format", "integer"),
)
"""A verb, what it reads, what it writes, and how."""


def converted(folder: Path) -> Iterator[tuple[str, int, float]]:
    """Yields memory and time of verbs on a model with external data, and on their results."""
    write_with_external_data(folder / "large.onnx", BYTES)
    for verb, source, target_file, *options in STEPS:
        files = [str(folder / source), "-o", str(folder / target_file)]
        most_bytes, spent = peak(["-m", "qir", verb, *files, *options, "--quiet"])
        yield f"{verb} {source} {' '.join(options) or target_file}", most_bytes, spent


def main() -> None:
    """Prints the table; ends with status 1 where a limit does not hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'read + write':12}{'':>11}{'onnx s':>10}{'qir s':>10}{'ratio':>9}")
        both_ways("ResNet-50", resnet50(), folder)
        both_ways("BERT-base", bert(), folder)
        read, times = reading(folder)
        comparison = f"{times:.1f}x onnx.load and networkx's graph"
        limit = check_limit(
            read, MOST_READING * NODES / 100_000, f"{MOST_READING * NODES / 100_000:g} s"
        )
        print(f"{NODES} ops are read in {read:.2f} s of the processor, {comparison}{limit}")
        print(f"{BYTES / 2**30:.1f} GiB of data beside a model:")
        for what, most, spent in converted(folder):
            limit = check_limit(most, MOST_MEMORY, "400 MiB")
            print(f"  {what}: {spent:.1f} s, {most / 2**20:.0f} MiB of its own{limit}", flush=True)
    if FAILED_LIMITS:
        raise SystemExit(f"limits that do not hold: {', '.join(FAILED_LIMITS)}")


if __name__ == "__main__":
    main()
