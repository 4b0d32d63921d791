"""`qir run`: runs a model on data, and compares engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.comparison import number, show_fallbacks, show_measurements
from qir.cli.models import claim_files, open_model, require_distinct_files
from qir.cli.programs import is_program
from qir.cli.screen import Column, Screen, StyledText, float_text, number_text, plural
from qir.cli.words import shape

if TYPE_CHECKING:
    from qir.inspect.compare import OutputDifference
    from qir.ir.graph import Graph
    from qir.workflows.engines import Tensor, Tensors
    from qir.workflows.inputs import SampleData
    from qir.workflows.running import EngineComparison

FIRST = 4
"""Elements of a result that are shown."""


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

    --json prints {file, engine, samples, outputs: [{name, shape, dtype, low, high, inf,
    nan}]}, or, with
    --compare, {file, engines, samples, outputs: [{name, elements, differ, largest, codes,
    relative, tolerance, equal, agree, metrics}], fault: {tensor, op, largest, bound}}; tolerance is
    null where bytes must be equal; metrics has a number by name, text where it is infinite, null
    where it is none; fault is null where there is none.
    """
    from qir.errors import UsageError
    from qir.workflows import SampleData, compare_engines, run_model

    require_distinct_files([model, data], [output])
    engine = _engine_of_file(model, engine, compare)
    _require_fitting(output, compare, tolerance, metrics, values, force=force)
    shared.require_whole(feeds, batch)
    screen = Screen(quiet=quiet)
    graph = open_model(model, data=data, programs=True)
    samples = None
    if data is not None:
        samples = SampleData(data, None, limit, batch, feeds, preprocess)
    if compare is not None:
        comparison = compare_engines(
            graph,
            samples,
            engines=[name.strip() for name in compare.split(",")],
            file=model,
            tolerance=tolerance,
            metrics=metrics,
            isa=isa,
            threads=threads,
            strict=strict,
            progress=screen.progress,
        )
        defaults.show_samples_left_out(screen, graph, samples)
        if as_json:
            screen.json({"file": str(model), **_comparison_json(comparison)})
        else:
            _show_comparison(screen, graph, samples, comparison, metrics)
        # The status is the answer of a script; what differs has been printed.
        context.exit(0 if comparison.agree else 1)
    done = run_model(
        graph,
        samples,
        engine=engine,
        file=model,
        values=values,
        isa=isa,
        threads=threads,
        strict=strict,
        output=output,
        force=force,
        progress=screen.progress,
    )
    defaults.show_samples_left_out(screen, graph, samples)
    # A table without rows would look like success.
    if not done.results:
        raise UsageError(f"{model}: it has no outputs")
    if as_json:
        screen.json(
            {
                "file": str(model),
                "engine": engine,
                "samples": done.samples,
                "outputs": [_result_json(graph, name, a) for name, a in done.results.items()],
            }
        )
        return
    over = f"{_count_text(done.samples, samples)}{_grouped(graph, done.computed)}"
    screen.line(f"{model.name} by {engine}: {over}", "bold")
    show_fallbacks(screen, done.fallbacks)
    defaults.show(screen, graph, data)
    _show(screen, graph, done.results)


def _engine_of_file(model: Path, engine: str, compare: str | None) -> str:
    """Returns the engine that runs a file: a program file runs on QIR's kernels alone."""
    from qir.errors import UsageError
    from qir.programs import KERNELS

    if not is_program(model):
        return engine
    if compare or engine not in (KERNELS, "reference"):
        raise UsageError(f"{model}: a program file runs on {KERNELS} alone; compare its model")
    return KERNELS


def _require_fitting(
    output: Path | None,
    compare: str | None,
    tolerance: float | None,
    metrics: Sequence[str],
    values: Sequence[str],
    *,
    force: bool,
) -> None:
    """Raises UsageError for options that do not go together, before the model is read."""
    from qir.errors import UsageError
    from qir.inspect.metrics import metric
    from qir.workflows.running import require_tolerance

    claim_files(output, force=force)
    if compare and values:
        raise UsageError("--values needs the reference: other engines keep no values in between")
    if compare and output is not None:
        raise UsageError("--compare writes nothing; leave -o out")
    if tolerance is not None and not compare:
        raise UsageError("--tolerance is for two runs: give --compare A,B")
    if metrics and not compare:
        raise UsageError("--metric measures two runs: give --compare A,B")
    for name in metrics:
        metric(name)
    if tolerance is not None:
        require_tolerance(tolerance)


def _count_text(count: int, samples: SampleData | None) -> str:
    """Returns how many samples were run, or how many feeds."""
    return plural(count, "feed" if samples is not None and samples.feeds else "sample")


def _grouped(graph: Graph, computed: Graph) -> str:
    """Says by whose kernels a graph was grouped before it ran; nothing where it was not."""
    if computed is graph:
        return ""
    return f", grouped as {computed.profile}" if computed.profile else ", grouped"


def _comparison_json(comparison: EngineComparison) -> dict[str, object]:
    fault = comparison.fault
    return {
        "engines": list(comparison.engines),
        "samples": comparison.samples,
        "outputs": [_row(output, comparison.distances) for output in comparison.outputs],
        "fault": fault and fault.to_json(),
    }


def _show_comparison(
    screen: Screen,
    graph: Graph,
    samples: SampleData | None,
    comparison: EngineComparison,
    metrics: Sequence[str],
) -> None:
    from qir.inspect.metrics import metric

    outputs, computed = comparison.outputs, comparison.computed
    show_fallbacks(screen, comparison.fallbacks)
    over = f"{_count_text(comparison.samples, samples)}{_grouped(graph, computed)}"
    _show_differences(screen, comparison.engines, over, outputs)
    defaults.show(screen, graph, samples.path if samples is not None else None)
    if comparison.fault is None:
        _show_sums(screen, computed, outputs)
    else:
        screen.line(comparison.fault.message(comparison.engines), "red")
    chosen_metrics = [metric(name) for name in dict.fromkeys(metrics)]
    show_measurements(screen, chosen_metrics, comparison.distances)


def _show_sums(screen: Screen, graph: Graph, found: Sequence[OutputDifference]) -> None:
    """Says, where results differ, which ops each engine computes in an order of its own."""
    from qir.inspect.float_sums import float_sums, float_sums_text

    # Where every byte is equal nothing is left to explain.
    sums = [] if all(d.equal for d in found) else float_sums(graph)
    if sums:
        screen.line(float_sums_text(sums, "each engine"))


def _row(found: OutputDifference, near: Mapping[str, Mapping[str, float]]) -> dict[str, object]:
    metrics = {name: number(x) for name, x in near.get(found.name, {}).items()}
    return {**found.to_json(), "metrics": metrics}


def _result_json(graph: Graph, name: str, array: Tensor) -> dict[str, object]:
    from qir.workflows.running import kind_of_result

    low, high = _finite_range(array)
    return {
        "name": name,
        "shape": list(array.shape),
        "dtype": kind_of_result(graph, name, array),
        "low": low,
        "high": high,
        **_non_finite(array),
    }


def _finite_range(array: Tensor) -> tuple[float | None, float | None]:
    """Returns the least and the greatest of the finite elements."""
    import numpy as np

    # V: ml_dtypes' small types, such as bfloat16 and int4, are void to NumPy and convert all the
    # same.
    if array.dtype.kind not in "biufV" or not array.size:
        return None, None
    floats = array.astype(np.float64)
    finite = floats[np.isfinite(floats)]
    return (float(finite.min()), float(finite.max())) if finite.size else (None, None)


def _non_finite(array: Tensor) -> dict[str, int]:
    """Returns how many elements are infinite and how many are NaN."""
    import numpy as np

    if array.dtype.kind not in "fV":
        return {"inf": 0, "nan": 0}
    floats = array.astype(np.float64)
    return {"inf": int(np.isinf(floats).sum()), "nan": int(np.isnan(floats).sum())}


def _show(screen: Screen, graph: Graph, results: Tensors) -> None:
    from qir.workflows.running import kind_of_result

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
        kind = kind_of_result(graph, name, array)
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
    for name, array in results.items():
        count = _non_finite(array)
        if any(count.values()):
            said = f"{name}: {count['inf']:,} inf, {count['nan']:,} NaN of {array.size:,} elements"
            screen.line(f"{said}; least and greatest are of the others.", "yellow")


def _element(value: object) -> str:
    """Returns an element; a list or the like, which is no tensor, as Python shows it."""
    import numpy as np

    # Whole numbers and texts in full; float_text would round the former to four figures.
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
