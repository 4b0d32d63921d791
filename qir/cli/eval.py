"""`qir eval`: how good a model is on data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.comparison import number
from qir.cli.models import open_model, require_distinct_files
from qir.cli.screen import Column, Screen, float_text, percent, plural

if TYPE_CHECKING:
    from qir.inspect.evaluation import Evaluation

SHARES = ("top1", "top5", "agreement")
"""Metrics that are shares of the samples, which are printed in percent."""


@shared.verb(
    "qir eval model.onnx --data samples.npy --labels labels.npy --metric top1 --metric top5",
    "qir eval quantized.onnx --data samples.npy --labels labels.npy --with onnxruntime",
    "qir eval quantized.onnx --data samples.npy --against model.onnx",
)
@shared.model
@shared.data(shared.DATA, required=True)
@shared.preprocess
@click.option(
    "--labels",
    metavar="FILE",
    help="What is right: .npy, .npz (of several arrays FILE.npz:NAME), or .csv with a label, or a"
    " sample's name and its label, in each line.",
)
@click.option(
    "--against",
    type=shared.PATH,
    metavar="MODEL",
    help="Measure against the results of this model, such as the float one, instead of labels.",
)
@click.option(
    "--metric",
    "metrics",
    multiple=True,
    metavar="NAME",
    help="top1, top5, psnr, spearman, perplexity, agreement, sqnr, cosine, mean-error, or a"
    " plugin's; may be given several times. Without it top1, or agreement and sqnr.",
)
@click.option(
    "--with",
    "engine",
    default="",
    metavar="ENGINE",
    help="Engine: cpu (QIR's kernels), reference, or a target such as onnxruntime. Without"
    " it cpu, or the reference where the kernels do not run the model.",
)
@shared.whole("--limit", "Measure only so many samples.")
@shared.whole("--batch", "Samples in a batch.")
@shared.threads
@shared.as_json
@shared.quiet
def evaluate(
    model: Path,
    data: Path,
    preprocess: Path | None,
    labels: str | None,
    against: Path | None,
    metrics: tuple[str, ...],
    engine: str,
    limit: int | None,
    batch: int | None,
    threads: int | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Measure a model on labelled data, or against another.

    Takes every model that QIR reads, float or quantized. Labels are class numbers from 0, a label
    below 0 leaves its sample out; psnr and spearman take arrays of the output's shape. Metrics are
    measured of each output that the labels fit.

    --json prints {file, engine, samples, metrics: [name], outputs: [{name, metrics}]}; metrics has
    a number by name, text where it is infinite, null where there is none. Shares are 0 to 1.
    """
    from qir.evaluating import WITH_LABELS, WITH_MODEL
    from qir.evaluating import evaluate as measure

    require_distinct_files([model], [])
    screen = Screen(quiet=quiet)
    graph = open_model(model)
    other = None if against is None else open_model(against)
    chosen = tuple(dict.fromkeys(metrics)) or (WITH_LABELS if labels else WITH_MODEL)
    with Screen(quiet=quiet or as_json).progress("evaluating") as progress:
        evaluation = measure(
            graph,
            data,
            labels,
            metrics=chosen,
            against=other,
            target=engine,
            batch=batch,
            limit=limit,
            preprocess=preprocess,
            threads=threads or len(os.sched_getaffinity(0)),
            progress=progress,
        )
    defaults.show_samples_left_out(screen, graph, data, limit=limit, preprocess=preprocess)
    if as_json:
        outputs = [
            {"name": name, "metrics": {m: number(x) for m, x in row.items()}}
            for name, row in evaluation.outputs.items()
        ]
        head = {"file": str(model), "engine": evaluation.engine, "samples": evaluation.samples}
        screen.json({**head, "metrics": list(chosen), "outputs": outputs})
        return
    reference_text = f", against {against.name}" if against is not None else ""
    title = f"{plural(evaluation.samples, 'sample')} by {evaluation.engine}{reference_text}"
    screen.line(f"{model.name}: {title}", "bold")
    _show(screen, evaluation, chosen)


def _show(screen: Screen, evaluation: Evaluation, names: tuple[str, ...]) -> None:
    columns = (Column("output", fit="fold"), *(Column(name, "right") for name in names))
    rows = [(name, *(shown(m, row[m]) for m in names)) for name, row in evaluation.outputs.items()]
    screen.table(columns, rows)


def shown(name: str, value: float) -> str:
    """Returns a metric's number as it is printed: shares in percent, decibels with their unit."""
    from qir.inspect.metrics import metric

    if name in SHARES:
        return percent(value)
    unit = metric(name).unit
    return f"{value:.1f} {unit}" if unit == "dB" else float_text(value)


evaluate.name = "eval"
