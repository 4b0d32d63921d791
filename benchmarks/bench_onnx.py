"""Reading and writing ONNX beside onnx.load and onnx.save, and what memory a large model takes.

Seconds of the clock, the median of several runs that take turns; a model of many ops in seconds of
the processor, beside what its message and its structure alone take; memory is the peak of what a
process holds for itself, without the pages of mapped files.
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
from onnx_models import bert, beside, long, resnet50

import qir

ROUNDS = 5
NODES = int(os.environ.get("BENCH_NODES", "100000"))
BYTES = int(os.environ.get("BENCH_BYTES", str(2 << 30)))
MOST_TIMES, MOST_READING, MOST_MEMORY = 1.5, 5.0, 400 << 20
"""Limits: times onnx.load and onnx.save, seconds for 100,000 ops, bytes of a process's own."""
SETTLE = 0.002
"""Seconds between two looks at the memory."""


def by_onnx(source: Path, made: Path) -> None:
    """What QIR is held against."""
    onnx.save(onnx.load(source), made)


def by_qir(source: Path, made: Path) -> None:
    """Read and written anew; without a form, a model that nobody changed is copied."""
    qir.save(qir.load(source), made, format="qdq", force=True)


BROKEN: list[str] = []
"""Limits that did not hold."""


def held(found: float, most: float, limit: str) -> str:
    """A limit, and whether it holds; what does not is remembered."""
    if found > most:
        BROKEN.append(limit)
    return f"; at most {limit}: {'holds' if found <= most else 'DOES NOT HOLD'}"


def seconds(do: Callable[[Path, Path], None], source: Path, made: Path) -> float:
    begin = time.perf_counter()
    do(source, made)
    return time.perf_counter() - begin


def both_ways(name: str, model: onnx.ModelProto, folder: Path) -> float:
    """Prints how long reading and writing takes, and gives the ratio."""
    source, made = folder / f"{name}.onnx", folder / "made.onnx"
    onnx.save(model, source)
    size = source.stat().st_size
    found = [(seconds(by_onnx, source, made), seconds(by_qir, source, made)) for _ in range(ROUNDS)]
    theirs, ours = (statistics.median(column) for column in zip(*found, strict=True))
    print(
        f"{name:12}{size / 1e6:8.0f} MB{theirs:10.3f}{ours:10.3f}{ours / theirs:8.2f}x"
        f"{held(ours / theirs, MOST_TIMES, f'{MOST_TIMES}x')}",
        flush=True,
    )
    source.unlink()
    made.unlink()
    return ours / theirs


def alone(source: Path) -> None:
    """What reading a model of many ops is held against: its message, and networkx's graph of it."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    for node in onnx.load(source).graph.node:
        for slot, name in enumerate(node.input):
            graph.add_edge(name, node.output[0], key=slot, result=0)


def busy(do: Callable[[Path], object], source: Path) -> float:
    """Seconds of the processor, garbage that was there before aside."""
    gc.collect()
    begin = time.process_time()
    do(source)
    return time.process_time() - begin


def reading(folder: Path) -> tuple[float, float]:
    """Seconds to read a long model, and how many times what is there alone takes."""
    source = folder / "long.onnx"
    onnx.save(long(NODES), source)
    found = [(busy(qir.load, source), busy(alone, source)) for _ in range(3)]
    ours, theirs = (statistics.median(column) for column in zip(*found, strict=True))
    return ours, ours / theirs


def anonymous(pid: int) -> int:
    """Bytes that a process holds for itself."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    return 0


def peak(arguments: list[str]) -> tuple[int, float]:
    """The most that a process holds for itself, and how long it runs."""
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments])
    most, done = 0, threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            try:
                most = max(most, anonymous(process.pid))
            except OSError:
                return
            done.wait(SETTLE)

    watcher = threading.Thread(target=watch)
    watcher.start()
    code = process.wait()
    done.set()
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
    """Memory and time of verbs on a model whose weights lie beside it, and on what they make."""
    beside(folder / "large.onnx", BYTES)
    for verb, source, made, *how in STEPS:
        files = [str(folder / source), "-o", str(folder / made)]
        most, spent = peak(["-m", "qir", verb, *files, *how, "--quiet"])
        yield f"{verb} {source} {' '.join(how) or made}", most, spent


def main() -> None:
    """Prints the table; ends with status 1 where a limit does not hold."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        print(f"{'read + write':12}{'':>11}{'onnx s':>10}{'qir s':>10}{'ratio':>9}")
        both_ways("ResNet-50", resnet50(), folder)
        both_ways("BERT-base", bert(), folder)
        read, times = reading(folder)
        said = f"{times:.1f}x onnx.load and networkx's graph"
        limit = held(read, MOST_READING * NODES / 100_000, f"{MOST_READING * NODES / 100_000:g} s")
        print(f"{NODES} ops are read in {read:.2f} s of the processor, {said}{limit}")
        print(f"{BYTES / 2**30:.1f} GiB of data beside a model:")
        for what, most, spent in converted(folder):
            limit = held(most, MOST_MEMORY, "400 MiB")
            print(f"  {what}: {spent:.1f} s, {most / 2**20:.0f} MiB of its own{limit}", flush=True)
    if BROKEN:
        raise SystemExit(f"limits that do not hold: {', '.join(BROKEN)}")


if __name__ == "__main__":
    main()
