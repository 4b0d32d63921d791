"""Quantizes the digits network twice, badly and well, and proves what the result computes."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from model import digits, write
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.group import Group
from qir.rewrite import run_passes

Codes = NDArray[np.generic]
Run = Callable[[NDArray[np.float32]], NDArray[np.generic]]
ROUNDS = 60


def session(model: bytes, *, optimize: bool = True) -> ort.InferenceSession:
    """onnxruntime on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def runner(path: Path) -> Run:
    """The network in a file, run by onnxruntime."""
    made = session(path.read_bytes())
    return lambda x: made.run(None, {"images": x})[0]


def kernels(graph: Graph) -> Run:
    """The network run by QIR's own kernels on one thread."""
    compiled = qir.compile(graph, threads=1)
    assert not compiled.fallbacks, compiled.fallbacks  # type: ignore[attr-defined]
    return lambda x: compiled(images=x)["probabilities"]  # type: ignore[return-value]


def accuracy(run: Run, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Top-1, in percent."""
    return 100 * float((run(images).argmax(1) == labels).mean())


def milliseconds(runs: dict[str, Run], x: NDArray[np.float32]) -> dict[str, float]:
    """Median time of each, taken in turns so that a slow moment hits them all."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.perf_counter()
            run(x)
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(found) for name, found in times.items()}


def integer_tensors(graph: Graph) -> list[str]:
    """Names of the values that are codes, weights aside."""
    return [v.name for n in graph if n.op != "constant" for v in n.results if v.type.quant]


def exposed(path: Path, names: list[str]) -> bytes:
    """The model with those tensors as its outputs."""
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model.SerializeToString()


def with_outputs(graph: Graph, names: list[str]) -> Graph:
    """The graph with those values as its outputs."""
    out = graph.copy()
    out.remove(out.output)
    out.add("output", {name: out[name] for name in names})
    out.prune()
    return out


def equal(names: list[str], a: dict[str, Codes], b: dict[str, Codes]) -> tuple[int, int]:
    """How many bytes were compared, and how many differ."""
    total = sum(a[n].size for n in names)
    return total, sum(int((a[n] != b[n]).sum()) for n in names)


def agreement(graph: Graph, path: Path, images: NDArray[np.float32]) -> list[tuple[str, int, int]]:
    """Each pair of engines, with bytes compared and bytes that differ, over all integer tensors."""
    grouped = run_passes(graph, [Group()], Ledger())
    names = integer_tensors(grouped)
    made = session(exposed(path, names), optimize=False)
    runtime = dict(zip(names, made.run(names, {"images": images}), strict=True))
    reference = qir.run(grouped, {"images": images}, values=names)
    own = qir.compile(with_outputs(grouped, names))(images=images)
    return [
        ("QIR's reference = onnxruntime", *equal(names, reference, runtime)),
        ("QIR's kernels = onnxruntime", *equal(names, own, runtime)),  # type: ignore[arg-type]
    ]


def main() -> None:
    """Runs the demo and prints three tables."""
    console = Console()
    columns = TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
    with tempfile.TemporaryDirectory() as folder, Progress(*columns, console=console) as bar:
        show(console, Path(folder), bar)


def show(console: Console, folder: Path, bar: Progress) -> None:
    """The demo itself."""
    task = bar.add_task("reading the network", total=6)

    def step(name: str) -> None:
        bar.update(task, advance=1, description=name)

    data = digits()
    source = folder / "float.onnx"
    write(source)
    graph = qir.load(source)
    step("calibrating on 128 images")
    seen = qir.calibrate(graph, data.calib_x)
    step("quantizing")
    ledger = Ledger()
    naive = qir.quantize(graph, seen, granularity="tensor")
    good = qir.quantize(graph, seen, ledger=ledger)
    paths = {name: folder / f"{name}.onnx" for name in ("naive", "qdq", "qoperator")}
    qir.save(naive, paths["naive"])
    qir.save(good, paths["qdq"], ledger=ledger)
    qir.save(good, paths["qoperator"], format="qoperator", ledger=ledger)
    step("measuring accuracy")
    runs = {
        "float, onnxruntime": runner(source),
        "int8 per tensor (naive), onnxruntime": runner(paths["naive"]),
        "int8 (QIR's default), onnxruntime": runner(paths["qdq"]),
        "int8 (QIR's default), QIR's kernels": kernels(good),
    }
    hits = {name: accuracy(run, data.test_x, data.test_y) for name, run in runs.items()}
    step("measuring speed")
    one = milliseconds(runs, data.test_x[:1])
    many = milliseconds(runs, data.test_x[:64])
    step("comparing bytes")
    pairs = agreement(good, paths["qoperator"], data.test_x)
    step("done")
    bar.stop()

    sizes = [source, paths["naive"], paths["qdq"], paths["qdq"]]
    names = list(runs)
    table = Table(title="The digits network, 500 test images, one thread", title_justify="left")
    for head, side in (("", "left"), ("top-1", "right"), ("file", "right"), ("1 image", "right"),
                       ("64 images", "right"), ("against float", "right")):  # fmt: skip
        table.add_column(head, justify=side, no_wrap=True)  # type: ignore[arg-type]
    for name, path in zip(names, sizes, strict=True):
        lost = hits[name] - hits[names[0]]
        style = "red" if lost <= -10 else "green" if name != names[0] else ""
        table.add_row(
            name,
            f"[{style}]{hits[name]:.1f}%[/]" if style else f"{hits[name]:.1f}%",
            f"{path.stat().st_size / 1024:.0f} KB",
            f"{1e3 * one[name]:.0f} us",
            f"{many[name]:.2f} ms",
            f"{many[names[0]] / many[name]:.1f}x faster"
            if many[name] < many[names[0]]
            else f"{many[name] / many[names[0]]:.1f}x slower",
        )
    console.print(table)

    said = Table(title="What the ledger says became of the model", title_justify="left")
    said.add_column("entries", justify="right")
    said.add_column("")
    said.add_column("meaning")
    for change, count in ledger.counts().items():
        said.add_row(str(count), change.value, change.meaning)
    console.print(said)

    bytes_ = Table(title="Do the bytes agree? Every integer tensor, all test images",
                   title_justify="left")  # fmt: skip
    for head, side in (("", "left"), ("bytes compared", "right"), ("differ", "right")):
        bytes_.add_column(head, justify=side)  # type: ignore[arg-type]
    for name, total, wrong in pairs:
        bytes_.add_row(name, f"{total:,}", f"[{'red' if wrong else 'green'}]{wrong:,}[/]")
    console.print(bytes_)


if __name__ == "__main__":
    main()
