"""How the targets write a model: its form, what the ledger says of it, and the file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from qir.errors import UsageError
from qir.ir.garbage import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Target

from .forms import remaining
from .forms.formats import formed
from .forms.unchanged import copy, kept_files
from .optimizer import effects
from .writer import qonnx
from .writer.graph import Dialect, to_parts
from .writer.saving import save


@pause_garbage_collection()
@np.errstate(all="ignore")  # numbers that are none are told in words, and need no warnings
def write(
    target: Target,
    dialect: Dialect,
    graph: Graph,
    path: Path,
    ledger: Ledger,
    *,
    format: str | None,
    lossy: bool,
) -> None:
    """Writes a model, by rename.

    Raises UsageError for a form that there is not, Refused for what ONNX cannot say or what would
    be lost unasked.
    """
    if format is not None and format not in target.formats:
        known = f"{', '.join(target.formats[:-1])} and {target.formats[-1]}"
        raise UsageError(f"target {target.name} has no format {format!r}; it has {known}")
    if format is None and (kept := kept_files(graph, path, dialect, ledger)):
        ledger.withdraw("onnx frontend")
        qonnx.told(graph, ledger)
        ledger.check(lossy=lossy)
        for old, new in kept:
            copy(old, new)
        return
    effects.ranges(graph, ledger)
    effects.releases(graph, target.profile, ledger)
    made = formed(graph, format, ledger, standard=dialect.standard, lossy=lossy)
    qonnx.told(made, ledger)
    form = replace(dialect, on_codes=format == "qoperator")
    model, large = to_parts(made, ledger, form)
    if format is not None:
        remaining.told(model, format, ledger, standard=dialect.standard)
    ledger.check(lossy=lossy)
    _say(model, {"qir.form": format or "", "qir.changes": _changes(ledger)})
    save(model, path, large)


def _changes(ledger: Ledger) -> str:
    """Returns what was done to the numbers on the way, in short."""
    return ", ".join(f"{change.value} {count}" for change, count in ledger.counts().items())


def _say(model: onnx.ModelProto, said: dict[str, str]) -> None:
    """Notes where a model comes from, in place of what an earlier writing noted."""
    kept = {p.key: p.value for p in model.metadata_props} | said
    helper.set_model_props(model, {key: text for key, text in kept.items() if text})
