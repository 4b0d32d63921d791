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
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import qir
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.rewrite import run_passes

Integers = NDArray[np.generic]
Run = Callable[[NDArray[np.float32]], NDArray[np.generic]]
ROUNDS = 60


def session(model: bytes, *, optimize: bool = True) -> ort.InferenceSession:
    """Returns a session of onnxruntime on one thread."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    # Without fusions, every integer tensor of the file is computed and can be compared.
    if not optimize:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def runner(path: Path) -> Run:
    """Returns the network in a file, run by onnxruntime."""
    runtime_session = session(path.read_bytes())
    return lambda x: runtime_session.run(None, {"images": x})[0]


def kernels(graph: Graph) -> Run:
    """Returns the network, run by QIR's own kernels on one thread."""
    compiled = qir.compile(graph, threads=1)
    assert not compiled.fallbacks, compiled.fallbacks  # type: ignore[attr-defined]
    return lambda x: compiled(images=x)["probabilities"]  # type: ignore[return-value]


def accuracy(run: Run, images: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Returns the top-1 accuracy in percent."""
    return 100 * float((run(images).argmax(1) == labels).mean())


def milliseconds(runs: dict[str, Run], x: NDArray[np.float32]) -> dict[str, float]:
    """Returns the median time of each run, in turns so that a slow moment affects them all."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.perf_counter()
            run(x)
            times[name].append(1e3 * (time.perf_counter() - started))
    return {name: statistics.median(samples) for name, samples in times.items()}


def integer_tensors(graph: Graph) -> list[str]:
    """Returns the names of quantized values, without weights."""
    return [v.name for n in graph if n.op != "constant" for v in n.results if v.type.quant]


def exposed(path: Path, names: list[str]) -> bytes:
    """Returns the model with those tensors as its outputs."""
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return model.SerializeToString()


def with_outputs(graph: Graph, names: list[str]) -> Graph:
    """Returns the graph with those values as its outputs."""
    reduced = graph.copy()
    reduced.remove(reduced.output)
    reduced.add("output", {name: reduced[name] for name in names})
    reduced.prune()
    return reduced


def equal(names: list[str], a: dict[str, Integers], b: dict[str, Integers]) -> tuple[int, int]:
    """Returns how many integers were compared, and how many differ."""
    total = sum(a[n].size for n in names)
    return total, sum(int((a[n] != b[n]).sum()) for n in names)


def agreement(graph: Graph, path: Path, images: NDArray[np.float32]) -> list[tuple[str, int, int]]:
    """Returns each pair of engines, with counts of compared and different bytes of all integer
    tensors.
    """
    grouped = run_passes(graph, [Group()], Ledger())
    names = integer_tensors(grouped)
    runtime_session = session(exposed(path, names), optimize=False)
    runtime = dict(zip(names, runtime_session.run(names, {"images": images}), strict=True))
    reference = qir.run(grouped, {"images": images}, values=names)
    compiled_results = qir.compile(with_outputs(grouped, names))(images=images)
    return [
        ("QIR's reference and onnxruntime", *equal(names, reference, runtime)),
        ("QIR's kernels and onnxruntime", *equal(names, compiled_results, runtime)),  # type: ignore[arg-type]
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
    ranges = qir.calibrate(graph, data.calib_x)
    step("quantizing")
    ledger = Ledger()
    naive = qir.quantize(graph, ranges, granularity="tensor", corrections="none")
    coarse = qir.quantize(graph, ranges, granularity="tensor")
    good = qir.quantize(graph, ranges, ledger=ledger)
    paths = {name: folder / f"{name}.onnx" for name in ("naive", "coarse", "qdq", "qoperator")}
    qir.save(naive, paths["naive"])
    qir.save(coarse, paths["coarse"])
    qir.save(good, paths["qdq"], ledger=ledger)
    qir.save(good, paths["qoperator"], format="qoperator", ledger=ledger)
    step("measuring accuracy")
    runs = {
        "float, onnxruntime": runner(source),
        "naive int8, onnxruntime": runner(paths["naive"]),
        "corrected int8, onnxruntime": runner(paths["coarse"]),
        "QIR int8, onnxruntime": runner(paths["qdq"]),
        "QIR int8, QIR's kernels": kernels(good),
    }
    hits = {name: accuracy(run, data.test_x, data.test_y) for name, run in runs.items()}
    step("measuring speed")
    single_image = milliseconds(runs, data.test_x[:1])
    batch_of_64 = milliseconds(runs, data.test_x[:64])
    step("comparing bytes")
    pairs = agreement(good, paths["qoperator"], data.test_x)
    step("done")
    bar.stop()

    files_of_runs = (source, paths["naive"], paths["coarse"], paths["qdq"], paths["qdq"])
    files = dict(zip(runs, files_of_runs, strict=True))
    table = sheet(
        console, "The digits network: 500 test images, one thread, medians", "model, engine"
    )
    for head in ("top-1", "size", "1 image", "64 images", "speed"):
        table.add_column(head, justify="right", no_wrap=True)
    first = next(iter(runs))
    for name in runs:
        lost = hits[first] - hits[name]
        table.add_row(
            name,
            f"[{'red' if lost >= 10 else 'green'}]{hits[name]:.1f} %[/]",
            f"{files[name].stat().st_size / 1024:.0f} KB",
            f"{1e3 * single_image[name]:.0f} us",
            f"{batch_of_64[name]:.2f} ms",
            "" if name == first else f"{batch_of_64[first] / batch_of_64[name]:.1f}x",
        )
    console.print(table)
    console.print(
        "[dim]naive: one scale a weight tensor, and no corrections; corrected: with QIR's own."
        " QIR's default: one scale a channel.[/]\n"
    )

    table = sheet(console, "The ledger: what became of the model's numbers", "kind")
    table.add_column("entries", justify="right")
    table.add_column("meaning")
    for change, count in ledger.counts().items():
        table.add_row(change.value, str(count), change.meaning)
    console.print(table)
    table = sheet(console, "Do the bytes agree? Every integer tensor of all test images", "who")
    table.add_column("compared", justify="right")
    table.add_column("differ", justify="right")
    for name, total, wrong in pairs:
        table.add_row(name, f"{total:,}", f"[{'red' if wrong else 'green'}]{wrong:,}[/]")
    console.print(table)
    if any(wrong for _, _, wrong in pairs):
        raise SystemExit("the bytes differ")


def sheet(console: Console, title: str, first: str) -> Table:
    """Returns an empty table in the demo's style, under its title."""
    console.print(f"[bold]{title}[/]")
    table = Table(box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    return table


if __name__ == "__main__":
    main()
