"""`qir run`: runs a model on data, and compares engines."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.comparison import Parts, join, measured, number, run_each, show_measurements
from qir.cli.models import claim_files, open_model, require_distinct_files
from qir.cli.programs import is_program
from qir.cli.screen import Column, Screen, StyledText, float_text, number_text, plural
from qir.cli.words import shape

if TYPE_CHECKING:
    from qir.cli.engines import Tensor, Tensors
    from qir.inspect.compare import OutputDifference
    from qir.inspect.float_faults import FloatFault
    from qir.ir.graph import Graph

FIRST = 4
Result = tuple[str, str, "Tensor"]
"""The name that a result is written by, the output that it is of, and its array."""


@shared.verb(
    "qir run quantized.onnx --data samples.npy -o results.npz",
    "qir run quantized.onnx --data samples.npy --limit 8 --with cpu",
    "qir run quantized.onnx --data samples.npy --compare cpu,onnxruntime --metric cosine",
)
@shared.model
@shared.data(f"{shared.DATA} A model without inputs needs none.")
@shared.preprocess
@shared.output("Write the results as .npz, by their names.", required=False)
@click.option(
    "--with",
    "engine",
    default="reference",
    show_default=True,
    metavar="ENGINE",
    help="Engine: reference, cpu, onnxruntime, or onnxruntime:plain, without its optimizer.",
)
@click.option(
    "--compare",
    metavar="A,B",
    help="Run two engines, or one and the reference, and compare their results.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0),
    metavar="SHARE",
    help="With --compare: how far results of float sums may be apart, as a share of the largest"
    " value; 0 asks for equal bytes. 1e-4 unless given.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="Measure with --compare, the first engine being right: sqnr, cosine, mean-error, top1, or"
    " a plugin's; may be given several times.",
)
@click.option(
    "--values",
    multiple=True,
    metavar="NAME",
    help="Give this value instead of the outputs; may be given several times.",
)
@shared.isa("Processor by whose rules the reference computes")
@shared.whole("--limit", "Run only so many samples.")
@shared.whole("--batch", "Samples in a batch.")
@shared.feeds
@shared.threads
@shared.strict
@shared.force
@shared.as_json
@shared.quiet
@click.pass_context
def run(
    context: click.Context,
    model: Path,
    data: Path | None,
    preprocess: Path | None,
    output: Path | None,
    engine: str,
    compare: str | None,
    tolerance: float | None,
    metrics: tuple[str, ...],
    values: tuple[str, ...],
    isa: str | None,
    limit: int | None,
    batch: int | None,
    feeds: bool,
    threads: int | None,
    strict: bool,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run a model, or a program file, on samples.

    The reference runs it, which defines what every op computes, unless --with names another engine.
    Rules of a profile for a processor are those of this one, or of --isa. Data are arrays with
    samples along the first axis, named as the inputs; results of all batches are joined. With
    --feeds each file is one run; results are written as FILE/NAME.

    --compare A,B ends with status 1 if the bytes of the two differ. Every engine adds float sums up
    in an order of its own: results that they lead to, with no quantized values after them, may
    differ by --tolerance. --metric measures the distance, of quantized results as integers. A
    runtime gets the model as it is; for the reference and QIR's kernels it is grouped by that
    runtime's profile, as by `qir group`. If bytes differ, each float sum is run alone on the first
    batch: the first that differs by more than the order of float32 sums explains is reported as a
    fault, and the status is 1.

    --json prints {file, engine, samples, outputs: [{name, shape, dtype, low, high}]}, or, with
    --compare, {file, engines, samples, outputs: [{name, elements, differ, largest, codes,
    relative, tolerance, equal, agree, metrics}], fault: {tensor, op, largest, bound}}; tolerance is
    null where bytes must be equal; metrics has a number by name, text where it is infinite, null
    where it is none; fault is null where there is none.
    """
    from qir.cli.engines import compared, fallbacks, grouped, require_kernels, show_fallbacks
    from qir.cli.engines import engine as named_engine
    from qir.errors import UsageError
    from qir.inspect.metrics import metric

    require_distinct_files([model, data], [output])
    engine = _engine_of_file(model, engine, compare)
    _check(output, engine, compare, values, force)
    if tolerance is not None and not compare:
        raise UsageError("--tolerance is for two runs: give --compare A,B")
    if metrics and not compare:
        raise UsageError("--metric measures two runs: give --compare A,B")
    chosen_metrics = [metric(name) for name in dict.fromkeys(metrics)]
    screen = Screen(quiet=quiet)
    graph = open_model(model, data=data, programs=True)
    names = _pair(compare) if compare else [engine]
    # Kernels and runtimes execute on this machine, so no option can change their processor.
    if isa is not None and "reference" not in names:
        raise UsageError("--isa is for the reference: other engines run on this processor")
    if compare:
        engines, computed = compared(names, graph, model, threads, isa=isa)
    else:
        engines = [named_engine(engine, graph, model, threads, values=values, isa=isa)]
    read = partial(
        defaults.batches, graph, data, batch=batch, limit=limit, feeds=feeds, preprocess=preprocess
    )
    batches = read()
    parts = run_each(screen, engines, batches)
    fallback_nodes = fallbacks(engines)
    if strict:
        require_kernels(model, fallback_nodes)
    joined = [join(each, feeds=feeds) for each in parts]
    runs = max(map(len, parts[0].values()), default=0)
    samples = next((len(a) for a in joined[0].values() if a.ndim), 0) if graph.inputs else 1
    # A feed is one complete run, however many rows its arrays have.
    samples = runs if feeds else samples
    unit = "feed" if feeds else "sample"
    defaults.show_samples_left_out(
        screen, graph, data, limit=limit, feeds=feeds, preprocess=preprocess
    )
    if output is not None:
        _save(
            output,
            graph,
            _results_by_feed(data, parts[0]) if feeds else _results_by_name(joined[0]),
        )
    if compare is not None:
        from qir.inspect import compare as differences

        differences_found = differences(
            graph, joined[0], joined[1], computed=computed, tolerance=tolerance
        )
        distances = measured(chosen_metrics, joined[0], joined[1])
        # Only unequal bytes are worth the second run that looks for the first faulty sum.
        fault = None
        if not all(d.equal for d in differences_found):
            fault = _fault(computed, next(iter(read()), {}), names, threads, isa)
        if as_json:
            rows = [_row(d, distances) for d in differences_found]
            head = {"file": str(model), "engines": names, "samples": samples}
            screen.json({**head, "outputs": rows, "fault": fault and fault.to_json()})
        else:
            grouping = _grouped(graph, computed)
            show_fallbacks(screen, fallback_nodes)
            _show_differences(
                screen, names, f"{plural(samples, unit)}{grouping}", differences_found
            )
            defaults.show(screen, graph, data)
            if fault is None:
                _show_sums(screen, computed, differences_found)
            else:
                screen.line(fault.message(names), "red")
            show_measurements(screen, chosen_metrics, distances)
        if fault or not all(d.agree for d in differences_found):
            context.exit(1)
        return
    if not joined[0]:
        raise UsageError(f"{model}: it has no outputs")
    if as_json:
        screen.json(
            {
                "file": str(model),
                "engine": engine,
                "samples": samples,
                "outputs": [_result_json(graph, name, a) for name, a in joined[0].items()],
            }
        )
        return
    grouping = _grouped(graph, grouped(engines[0]) or graph)
    screen.line(f"{model.name} by {engine}: {plural(samples, unit)}{grouping}", "bold")
    show_fallbacks(screen, fallback_nodes)
    defaults.show(screen, graph, data)
    _show(screen, graph, joined[0])


def _engine_of_file(model: Path, engine: str, compare: str | None) -> str:
    """Returns the engine that runs a file: a program file runs on QIR's kernels alone."""
    from qir.errors import UsageError
    from qir.programs import KERNELS

    if not is_program(model):
        return engine
    if compare or engine not in (KERNELS, "reference"):
        raise UsageError(f"{model}: a program file runs on {KERNELS} alone; compare its model")
    return KERNELS


def _check(
    output: Path | None, engine: str, compare: str | None, values: Sequence[str], force: bool
) -> None:
    from qir.errors import UsageError

    claim_files(output, force=force)
    if output is not None and output.suffix != ".npz":
        raise UsageError(f"{output}: results are written as .npz")
    if values and (compare or engine != "reference"):
        raise UsageError("--values needs the reference: other engines keep no values in between")
    if compare and output is not None:
        raise UsageError("--compare writes nothing; leave -o out")


def _pair(text: str) -> list[str]:
    from qir.errors import UsageError

    names = [name.strip() for name in text.split(",")]
    names = ["reference", *names] if len(names) == 1 else names
    if len(names) != 2 or not all(names):
        raise UsageError(f"--compare {text!r}: name two engines, such as cpu,onnxruntime")
    return names


def _grouped(graph: Graph, computed: Graph) -> str:
    """Says by whose kernels a graph was grouped before it ran; nothing where it was not."""
    if computed is graph:
        return ""
    return f", grouped as {computed.profile}" if computed.profile else ", grouped"


def _fault(
    graph: Graph, inputs: Tensors, names: Sequence[str], threads: int | None, isa: str | None
) -> FloatFault | None:
    """Returns the first float sum on which two engines differ more than its bound allows."""
    from qir.cli.engines import engine as named_engine
    from qir.inspect.float_faults import first_fault

    def alone(name: str, one: Graph, feeds: Tensors) -> Tensors:
        return named_engine(name, one, Path("one.qir"), threads, isa=isa).run(feeds)

    return first_fault(graph, inputs, [partial(alone, name) for name in names])


def _show_sums(screen: Screen, graph: Graph, found: Sequence[OutputDifference]) -> None:
    """Says, where results differ, which ops each engine computes in an order of its own."""
    from qir.inspect.float_sums import float_sums, float_sums_text

    sums = [] if all(d.equal for d in found) else float_sums(graph)
    if sums:
        screen.line(float_sums_text(sums, "each engine"))


def _results_by_name(results: Tensors) -> Iterator[Result]:
    """Results as they are written: each by its own name."""
    return ((name, name, array) for name, array in results.items())


def _results_by_feed(data: Path | None, parts: Parts) -> Iterator[Result]:
    """Yields the results of each feed as they are written: of a folder with the name of its
    file."""
    from qir.calibration.data import data_files

    if data is None or not data.is_dir():
        yield from ((name, name, array) for name, arrays in parts.items() for array in arrays)
        return
    files = data_files(data)
    stems = [file.stem for file in files]
    for index, file in enumerate(files):
        start = file.stem if stems.count(file.stem) == 1 else file.name
        for name, arrays in parts.items():
            if index < len(arrays):  # there may be a limit
                yield f"{start}/{name}", name, arrays[index]


def _save(path: Path, graph: Graph, results: Iterable[Result]) -> None:
    """Writes arrays, strings as those of NumPy; raises DataError for what no such array is."""
    import numpy as np

    from qir.atomic import replacing
    from qir.errors import DataError
    from qir.ir.dtype import decode_texts

    arrays = {}
    for key, name, array in results:
        kind = _kind(graph, name, array)
        if kind.startswith("opaque"):
            raise DataError(f"{path}: {name} is {kind}, which no .npz holds: leave -o out")
        arrays[key] = storable = _texts(array) if array.dtype == object else array
        if storable is not array and not (decode_texts(storable) == array).all():
            raise DataError(f"{path}: {name} has texts that end in zeros, which no .npz holds")
    with replacing(path) as draft, draft.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


def _texts(array: Tensor) -> Tensor:
    """Texts as an array of NumPy's; of bytes, where one is bytes that are no text."""
    import numpy as np

    items = array.reshape(-1).tolist()
    if not any(isinstance(item, bytes) for item in items):
        return array.astype(np.str_)
    encoded = [item if isinstance(item, bytes) else str(item).encode() for item in items]
    return np.array(encoded, np.bytes_).reshape(array.shape)


def _kind(graph: Graph, name: str, array: Tensor) -> str:
    """Returns what a result holds: its elements' type, or its own where it is no tensor."""
    from qir.ir.dtype import dtype_of

    value = graph.outputs.get(name) or graph.values.get(name)
    if value is None:
        return str(dtype_of(array))
    kind = value.type.dtype
    if kind.is_opaque:
        return str(value.type if array.dtype == object else dtype_of(array))
    return str(kind if array.dtype == kind.carrier else dtype_of(array))


def _row(found: OutputDifference, near: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    metrics = {name: number(x) for name, x in near.get(found.name, {}).items()}
    return {**found.to_json(), "metrics": metrics}


def _result_json(graph: Graph, name: str, array: Tensor) -> dict[str, object]:
    low, high = _finite_range(array)
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": _kind(graph, name, array),
        "low": low,
        "high": high,
    }


def _finite_range(array: Tensor) -> tuple[float | None, float | None]:
    """Returns the least and the greatest of the finite elements."""
    import numpy as np

    if array.dtype.kind not in "biufV" or not array.size:
        return None, None
    reals = array.astype(np.float64)
    finite = reals[np.isfinite(reals)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def _show(screen: Screen, graph: Graph, results: Tensors) -> None:
    columns = (
        Column("output", fit="fold"),
        Column("shape"),
        Column("holds"),
        Column("least", "right"),
        Column("greatest", "right"),
        Column("first of it", fit="drop"),
    )
    rows = []
    for name, array in results.items():
        low, high = _finite_range(array)
        first = "  ".join(_element(v) for v in array.reshape(-1)[:FIRST])
        more = "  .." if array.size > FIRST else ""
        kind = _kind(graph, name, array)
        row = (
            name,
            shape(array.shape, kind),
            kind,
            number_text(low),
            number_text(high),
            first + more,
        )
        rows.append(row)
    screen.table(columns, rows)


def _element(value: object) -> str:
    """Returns an element; a list or the like, which is no tensor, as Python shows it."""
    import numpy as np

    if not isinstance(value, np.generic) or value.dtype.kind in "biuOUST":
        return str(value)
    return float_text(float(value))


def _show_differences(
    screen: Screen, names: Sequence[str], over: str, found: Sequence[OutputDifference]
) -> None:
    agree = sum(d.agree for d in found)
    largest_distance = max((d.relative for d in found if d.agree), default=0.0)
    verdict = "all equal" if agree == len(found) else f"{agree} of {len(found)} equal"
    closeness = f" within {largest_distance:.2g} of the largest value" if largest_distance else ""
    title = f"{names[0]} and {names[1]} over {over}: {verdict}{closeness}"
    screen.line(title, "green" if agree == len(found) else "yellow")
    columns = (
        Column("output", fit="fold"),
        Column("elements", "right"),
        Column("bytes"),
        Column("differ", "right"),
        Column("by at most", "right"),
        Column("in steps", "right"),
    )
    rows = [
        (
            d.name,
            f"{d.elements:,}",
            _verdict(d),
            f"{d.differ:,}",
            number_text(d.largest, 3) if d.differ else "",
            number_text(d.codes, 3) if d.differ and d.codes is not None else "",
        )
        for d in found
    ]
    screen.table(columns, rows)


def _verdict(found: OutputDifference) -> StyledText:
    if found.equal:
        return StyledText("equal", "green")
    return StyledText("close", "green") if found.agree else StyledText("differ", "red")
