"""Models and files as verbs take and give them, looked at before any work."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from qir.cli.screen import Column, Screen, plural

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.ledger import Ledger


def open_model(path: Path, ledger: Ledger | None = None) -> Graph:
    """Reads a model; a `.qir` file's own ledger goes before what reading adds."""
    from qir import pipeline

    if ledger is not None:
        ledger.extend(pipeline.read_ledger(path))
    return pipeline.load(path, ledger=ledger)


def claim_model(path: Path, target: str, form: str | None, *, force: bool) -> None:
    """UsageError unless a model of that target and form may be written there."""
    from qir import pipeline
    from qir.atomic import claim
    from qir.errors import UsageError
    from qir.target import target as named

    claim(path, force=force)
    backend = named(target)
    if path.suffix.lower() == pipeline.SUFFIX:
        if form is not None:
            raise UsageError(f"{path}: a .qir file has no form {form}; leave --format out")
        return
    if not backend.suffix:
        raise UsageError(f"target {target} writes no files; write a .qir file, or name another")
    if path.suffix.lower() != backend.suffix:
        raise UsageError(f"{path}: target {target} writes {backend.suffix} files, and .qir ones")
    if form is not None and form not in backend.formats:
        known = ", ".join(backend.formats) or "none"
        raise UsageError(f"target {target} has no form {form!r}; its forms: {known}")


def claim_files(*paths: Path | None, force: bool) -> None:
    """UsageError unless each file that is named may be written."""
    from qir.atomic import claim

    for path in paths:
        if path is not None:
            claim(path, force=force)


def save_ledger(ledger: Ledger, path: Path | None) -> None:
    """Writes the ledger as JSON, if a file for it is named."""
    from qir.atomic import write_text

    if path is not None:
        write_text(path, ledger.to_json() + "\n")


STYLES = {"exact": "green", "approximated": "yellow", "refused": "red", "unverified": "yellow"}


def show_ledger(screen: Screen, ledger: Ledger, limit: int = 12) -> None:
    """Prints what became of the numbers: entries alike in one row, mildest first."""
    from qir.cli.screen import Cell

    groups: Counter[tuple[str, str, str]] = Counter()
    first: dict[tuple[str, str, str], str] = {}
    order = list(ledger.counts())
    for entry in sorted(ledger, key=lambda e: order.index(e.change)):
        key = (entry.change.value, entry.step, entry.reason)
        groups[key] += 1
        first.setdefault(key, entry.subject)
    rows = [
        (
            Cell(change, STYLES.get(change, "")),
            f"{count:,}",
            step,
            reason,
            first[change, step, reason],
        )
        for (change, step, reason), count in list(groups.items())[:limit]
    ]
    columns = (
        Column("what"),
        Column("count", "right"),
        Column("by", fit="drop"),
        Column("reason", fit="wrap"),
        Column("first of them", fit="drop"),
    )
    screen.table(columns, rows, title="ledger")
    if len(groups) > limit:
        screen.line(
            f"  and {plural(len(groups) - limit, 'more kind')}; --ledger FILE has all", "dim"
        )


def ledger_json(ledger: Ledger) -> dict[str, int]:
    """How many entries there are of each kind."""
    return {change.value: count for change, count in ledger.counts().items()}
