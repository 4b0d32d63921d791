"""`qir bench`: how fast engines run a model, measured in turns."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import defaults
from qir.cli import verb as shared
from qir.cli.comparison import show_fallbacks
from qir.cli.models import claim_files, open_model, require_distinct_files
from qir.cli.profiling import show_steps, time
from qir.cli.programs import is_program
from qir.cli.screen import Column, Screen, percent, plural
from qir.cli.words import shape
from qir.registry import DEFAULT_TARGET

if TYPE_CHECKING:
    from qir.inspect.timing import Timing

_DEFAULT_ENGINES = f"cpu,{DEFAULT_TARGET}"


@shared.verb(
    "qir bench quantized.onnx",
    "qir bench quantized.onnx --data samples.npy --batch 8 --with cpu",
    "qir bench quantized.onnx --with cpu --runs 20 --profile --trace steps.json",
)
@shared.model
@shared.data("Samples to run on, the first batch of them; random ones by default.")
@click.option(
    "--with",
    "engines",
    default=_DEFAULT_ENGINES,
    show_default=True,
    metavar="ENGINES",
    help="Engines to measure: cpu, onnxruntime, onnxruntime:plain, reference.",
)
@shared.whole("--batch", "Samples in a call.", 1)
@click.option(
    "--size", "sizes", multiple=True, metavar="NAME=N", help="A size that the model leaves open."
)
@shared.whole("--seed", "Seed of the random samples.", 0, least=0)
@shared.whole("--runs", "How often each is measured.", 50)
@shared.whole("--threads", "Threads to use; onnxruntime takes at most one a processor.", 1)
@click.option("--profile", is_flag=True, help="Show the time of each step, for cpu.")
@click.option(
    "--trace",
    type=shared.PATH,
    metavar="FILE",
    help="Write the steps as a Chrome trace, for cpu.",
)
@shared.strict
@shared.force
@shared.as_json
def bench(
    model: Path,
    data: Path | None,
    engines: str,
    batch: int,
    sizes: tuple[str, ...],
    seed: int,
    runs: int,
    threads: int,
    profile: bool,
    trace: Path | None,
    strict: bool,
    force: bool,
    as_json: bool,
) -> None:
    """Measure how fast a model, or a program file, runs.

    The engines take turns, so that a busy machine slows all of them alike; the ratio is the median
    over the turns of the time of each to that of the first. Spread is the range of the middle
    half of the times. With several threads a turn waits until those of the one before sleep, and
    begins with a run that is not measured. An engine that does not support the model, or data for a
    default, is left out if another one does.

    --profile shows the steps of cpu: the median time, multiply-adds a second, their share of the
    peak (the most that the same kernels reach in a product of large matrices, before the steps and
    after them) and bytes a second.

    --json prints {file, batch, threads, inputs, engines: [{name, runs, median, least, spread,
    ratio}], left_out: [{engine, reason}], fallbacks, steps: [{step, kind, seconds, spread, bytes,
    multiply_adds, multiply_adds_per_second, share_of_peak, bytes_per_second}]}; times are in
    seconds.
    """
    from qir.errors import UsageError
    from qir.programs import KERNELS
    from qir.workflows import benchmark_model

    require_distinct_files([model, data], [trace])
    claim_files(trace, force=force)
    names = _names(engines)
    if is_program(model):
        if engines != _DEFAULT_ENGINES and names != [KERNELS]:
            raise UsageError(f"{model}: a program file runs on {KERNELS} alone; measure its model")
        names = [KERNELS]  # the default names another engine too
    given_sizes = open_sizes(sizes)
    screen = Screen()
    graph = open_model(model, programs=True)
    measured = benchmark_model(
        graph,
        data,
        engines=names,
        file=model,
        batch=batch,
        sizes=given_sizes,
        seed=seed,
        runs=runs,
        threads=threads,
        steps=profile or trace is not None,
        strict=strict,
        progress=screen.progress,
    )
    if measured.steps is not None and trace is not None:
        measured.steps.trace(trace)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "batch": batch,
                "threads": threads,
                "inputs": {name: list(array.shape) for name, array in measured.inputs.items()},
                "engines": [timing.to_json() for timing in measured.timings],
                "left_out": measured.left_out,
                "fallbacks": measured.fallbacks,
                "steps": measured.steps.to_json() if measured.steps is not None else [],
            }
        )
        return
    shapes = ", ".join(f"{name} {shape(array.shape)}" for name, array in measured.inputs.items())
    on = f"on {shapes}" if shapes else "without inputs"
    screen.line(f"{model.name} {on}, {plural(threads, 'thread')}", "bold")
    defaults.show(screen, graph, data)
    timings = measured.timings
    _show(screen, timings)
    for name in _indistinguishable(timings):
        advice = "differ by less than their spread; take more --runs, or a quieter machine"
        screen.line(f"  {timings[0].name} and {name} {advice}", "yellow")
    for each in measured.left_out:
        screen.line(f"  {each['engine']} is not measured: {each['reason']}", "yellow")
    show_fallbacks(screen, measured.fallbacks)
    if measured.steps is not None and profile:
        show_steps(screen, measured.steps)


def _names(text: str) -> list[str]:
    from qir.errors import UsageError

    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError("--with names no engine; such as cpu,onnxruntime")
    return names


def open_sizes(texts: Sequence[str]) -> dict[str, int]:
    """Sizes by name, as --size has them; raises UsageError for other words."""
    from qir.errors import UsageError

    out = {}
    for text in texts:
        name, equals, number = text.partition("=")
        # Long words are refused unread: int() raises for those of many thousand digits.
        is_count = number.isdecimal() and len(number) <= len(str(shared.MAX_COUNT))
        if not equals or not is_count or not 0 < int(number) <= shared.MAX_COUNT:
            raise UsageError(f"--size {text!r}: write a name and a number, such as H=224")
        out[name] = int(number)
    return out


def _show(screen: Screen, timings: Sequence[Timing]) -> None:
    columns = (
        Column("engine"),
        Column("median", "right"),
        Column("least", "right"),
        Column("spread", "right"),
        Column("ratio", "right"),
    )
    rows = [
        (t.name, time(t.median), time(t.least), percent(t.spread), f"{t.ratio:.2f}")
        for t in timings
    ]
    screen.table(columns, rows)


def _indistinguishable(timings: Sequence[Timing]) -> list[str]:
    """Returns the engines whose times are as near to the first one's as the times of one run to
    another."""
    first, *rest = timings
    # The wider of both spreads: one steady engine does not make the other's times surer.
    return [t.name for t in rest if abs(t.ratio - 1) <= max(t.spread, first.spread)]
