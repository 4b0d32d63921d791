"""Writes a model file: converts the graph's form, fills the ledger, saves the protobuf."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Target

from .forms import form_report
from .forms.copied_file import copy, files_to_copy
from .forms.formats import converted
from .optimizer import effects
from .writer import qonnx
from .writer.graph import Dialect, to_parts
from .writer.saving import save


@pause_garbage_collection()
@np.errstate(all="ignore")  # NaNs are reported by the ledger and errors
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

    Raises UsageError for an unknown format. Raises Refused for what ONNX cannot express, and for
    losses that were not allowed.
    """
    target.require_format(format)
    # An untouched model without a requested format is copied byte for byte.
    if format is None and (copies := files_to_copy(graph, path, dialect, ledger)):
        # What reading a model lost is not lost in a copy of its file.
        ledger.withdraw("onnx frontend")
        qonnx.report_qonnx(graph, ledger)
        ledger.check(lossy=lossy)
        for old, new in copies:
            copy(old, new)
        return
    effects.report_declared_ranges(graph, ledger)
    effects.report_releases(graph, target.profile, ledger)
    converted_graph = converted(graph, format, ledger, standard=dialect.standard, lossy=lossy)
    qonnx.report_qonnx(converted_graph, ledger)
    # In QLinear form, moves are of integers too, as the form asks for them.
    form = replace(dialect, moves_integers=format == "qoperator")
    model, large = to_parts(converted_graph, ledger, form)
    if format is not None:
        form_report.report_remaining(model, format, ledger, standard=dialect.standard)
    # Nothing is written until the ledger is checked: a refused loss leaves no file.
    ledger.check(lossy=lossy)
    _set_metadata(model, {"qir.form": format or "", "qir.changes": _change_counts(ledger)})
    save(model, path, large)


def _change_counts(ledger: Ledger) -> str:
    """Returns how many changes of each kind the ledger has, for the file's metadata."""
    return ", ".join(f"{change.value} {count}" for change, count in ledger.counts().items())


def _set_metadata(model: onnx.ModelProto, properties: dict[str, str]) -> None:
    """Sets metadata properties; an empty text removes what an earlier writing set."""
    merged = {p.key: p.value for p in model.metadata_props} | properties
    helper.set_model_props(model, {key: text for key, text in merged.items() if text})
