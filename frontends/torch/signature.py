"""Reads `qir.json` of files that QIR wrote: names of inputs and outputs, and the engine.

PyTorch names inputs after arguments and outputs after operators. The names of the graph that was
written are restored, since data files refer to them.
"""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from qir.ir.graph import Graph

_MEMBER = "extra/qir.json"


def restore_names(graph: Graph, path: Path) -> None:
    """Renames inputs and outputs of a graph as its file states."""
    inputs, outputs = _stated_names(path)
    if len(inputs) == len(graph.inputs):
        for value, name in zip(graph.inputs, inputs, strict=True):
            _rename(graph, value.name, name)
    results = list(graph.outputs.values())
    if len(outputs) == len(results):
        # The names are slots of the output node, which is replaced as a whole.
        call = graph.output.attrs
        graph.remove(graph.output)
        graph.add("output", dict(zip(outputs, results, strict=True)), call)


def stated_engine(path: Path) -> str:
    """Returns the engine that a TorchScript file was written for; empty if it states none."""
    return str(_qir_record(path).get("engine", ""))


def states_types(path: Path) -> bool:
    """Returns whether a file states the types of its inputs, as files of QIR do."""
    return bool(_qir_record(path))


def _rename(graph: Graph, old: str, new: str) -> None:
    if old == new:
        return
    # Another value has the name: it moves away first.
    if (fresh_name := graph.fresh(new)) != new:
        graph.rename(graph[new], fresh_name)
    graph.rename(graph[old], new)


def _qir_record(path: Path) -> dict[str, Any]:
    """Returns the content of `qir.json`; empty for files of other tools."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = [n for n in archive.namelist() if n.partition("/")[2] == _MEMBER]
            record = json.loads(archive.read(members[0])) if members else {}
    except (OSError, ValueError, zipfile.BadZipFile):
        return {}
    return record if isinstance(record, dict) else {}


def _stated_names(path: Path) -> tuple[list[str], list[str]]:
    """Returns names of inputs and outputs; empty if the file states none, or duplicates."""
    record = _qir_record(path)
    try:
        inputs, outputs = (list(map(str, record.get(key, ()))) for key in ("inputs", "outputs"))
    except TypeError:
        return [], []
    are_unique = len(set(inputs)) == len(inputs) and len(set(outputs)) == len(outputs)
    return (inputs, outputs) if are_unique and all((*inputs, *outputs)) else ([], [])
