"""`qir quantize`: from a float model and data to a quantized one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.calibrate import observe
from qir.cli.models import (
    claim_files,
    claim_model,
    ledger_json,
    open_model,
    require_apart,
    save_ledger,
    show_ledger,
)
from qir.cli.plan import summary
from qir.cli.screen import Column, Screen, percent, size

if TYPE_CHECKING:
    from qir.calibration import Statistics
    from qir.passes.assign_schemes import Plan


@shared.verb(
    "qir quantize model.onnx --data samples.npy -o quantized.onnx",
    "qir quantize model.onnx --stats model.stats --range percentile:99.99 -o tighter.onnx",
    "qir quantize model.onnx --data samples.npy --keep-float '/fc/*' -o mixed.qir",
)
@shared.model
@shared.data("Samples to calibrate with: an .npy or .npz file, or a folder of them.")
@click.option("--stats", type=shared.PATH, metavar="FILE", help="Statistics of `qir calibrate`.")
@shared.output("Where to write it: a .qir file, or the target's own kind.")
@shared.target
@shared.format_
@shared.granularity
@click.option(
    "--range",
    "range_rule",
    default="minmax",
    show_default=True,
    metavar="RULE",
    help="How ranges are read off: minmax, percentile:99.99, entropy, mse, average:0.01.",
)
@shared.rules
@shared.keep_float
@shared.whole("--limit", "Calibrate with only so many samples.")
@shared.whole("--batch", "Samples in a batch.")
@shared.threads
@shared.lossy
@shared.force
@shared.save_ledger
@shared.as_json
@shared.quiet
def quantize(
    model: Path,
    data: Path | None,
    stats: Path | None,
    output: Path,
    target: str,
    form: str | None,
    granularity: str,
    range_rule: str,
    rules: tuple[str, ...],
    floats: tuple[str, ...],
    limit: int | None,
    batch: int | None,
    threads: int | None,
    lossy: bool,
    force: bool,
    ledger_file: Path | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Quantize a float model to 8-bit integers for one target.

    Folds constants and batch norms, calibrates (or takes the statistics of `qir calibrate`), plans
    as `qir plan` shows, and writes the model. Same inputs give the same bytes, for any number of
    threads.

    --json prints {file, output, file_bytes, output_bytes, target, integer_macs, integer_ops, ops,
    ledger: {kind: count}}.
    """
    from qir import pipeline
    from qir.calibration import Statistics, parse_rule
    from qir.errors import UsageError
    from qir.ledger import Ledger

    if (data is None) == (stats is None):
        raise UsageError("give either --data with samples, or --stats of `qir calibrate`")
    if stats is not None and (limit or batch):
        raise UsageError("--limit and --batch go with --data: statistics are ready")
    require_apart([model, data, stats], [output, ledger_file])
    claim_model(output, target, form, force=force)
    claim_files(ledger_file, force=force)
    parse_rule(range_rule)
    screen = Screen(quiet=quiet)
    ledger = Ledger()
    graph = open_model(model, ledger)
    wishes = shared.all_rules(rules, floats)
    plan = pipeline.plan(graph, target=target, granularity=granularity, rules=wishes)
    _require_work(model, plan)
    statistics: Statistics
    if stats is not None:
        statistics = Statistics.load(stats)
        if statistics.unfinished:
            raise UsageError(f"{stats} is unfinished; qir calibrate --resume goes on with it")
    else:
        assert data is not None
        quietly = Screen(quiet=quiet or as_json)
        statistics = observe(quietly, graph, data, limit=limit, batch=batch, threads=threads)
    journal = pipeline.read_journal(model)
    quantized = pipeline.quantize(
        graph,
        statistics,
        target=target,
        granularity=granularity,
        rules=wishes,
        range_rule=range_rule,
        ledger=ledger,
        journal=journal,
    )
    pipeline.save(
        quantized,
        output,
        target=target,
        format=form,
        ledger=ledger,
        journal=journal,
        lossy=lossy,
        force=force,
    )
    save_ledger(ledger, ledger_file)
    lengths = model.stat().st_size, output.stat().st_size
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "file_bytes": lengths[0],
                "output_bytes": lengths[1],
                "target": target,
                "integer_macs": plan.integer_macs,
                "integer_ops": sum(d.integer for d in plan.decisions),
                "ops": len(plan.decisions),
                "ledger": ledger_json(ledger),
            }
        )
        return
    screen.line(f"{model.name} -> {output.name} for {target}", "bold")
    change = f"{size(lengths[0])} -> {size(lengths[1])} ({percent(lengths[1] / lengths[0])})"
    screen.facts({**summary(plan), "size": change})
    _show(screen, plan)
    show_ledger(screen, ledger)


def _require_work(path: Path, plan: Plan) -> None:
    """UsageError where nothing can become integer, or much is already, with the reason."""
    from qir.errors import UsageError
    from qir.passes.assign_schemes import ALREADY

    reasons = Counter(d.reason for d in plan.decisions if not d.integer)
    if count := reasons[ALREADY]:
        said = f"{count} of its {len(plan.decisions)} ops work on codes"
        raise UsageError(f"{path} is quantized already: {said}; quantize the float model")
    if not any(d.integer for d in plan.decisions):
        why = reasons.most_common(1)[0][0] if reasons else "it has no ops"
        raise UsageError(f"{path}: nothing in it can become integer for {plan.target}: {why}")


def _show(screen: Screen, plan: Plan) -> None:
    integer: Counter[str] = Counter(d.op for d in plan.decisions if d.integer)
    total: Counter[str] = Counter(d.op for d in plan.decisions)
    rows: Sequence[tuple[str, str, str, str]] = [
        (
            op,
            f"{integer[op]:,}",
            f"{count - integer[op]:,}" if count > integer[op] else "-",
            "; ".join(
                dict.fromkeys(d.reason for d in plan.decisions if d.op == op and not d.integer)
            ),
        )
        for op, count in sorted(total.items(), key=lambda item: (-item[1], item[0]))
    ]
    columns = (
        Column("op"),
        Column("integer", "right"),
        Column("float", "right"),
        Column("why float", fit="wrap"),
    )
    screen.table(columns, rows, title="ops")
