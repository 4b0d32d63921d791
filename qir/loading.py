"""Reading a model: what `qir.load` needs, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qir.arguments import checked
from qir.errors import InputError, UsageError
from qir.frontend import frontend as named_frontend
from qir.frontend import frontend_for
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.source import SUFFIX, remember


@pause_garbage_collection()
@checked
def load(
    source: object,
    *,
    inputs: Sequence[object] | None = None,
    frontend: str | None = None,
    ledger: Ledger | None = None,
    trust: bool = False,
) -> Graph:
    """Reads a model: a framework's file, a `.qir` file, or a model in memory.

    `inputs` are example inputs for models that are traced, or shapes or examples for files without
    them, such as MXNet's. `trust` opens files that run code, such as pickled modules. Raises
    InputError for a missing or damaged file, and for one that no frontend reads.
    """
    ledger = ledger if ledger is not None else Ledger()
    if not isinstance(source, (str, Path)):
        traced = named_frontend(frontend) if frontend else frontend_for(source)
        return traced.load_object(source, ledger, inputs)
    path = Path(source)
    is_qir_file = frontend is None and path.suffix.lower() == SUFFIX
    reader = None if is_qir_file else named_frontend(frontend) if frontend else frontend_for(path)
    if inputs is not None and not (reader and reader.files_take_inputs):
        raise UsageError(f"{source}: a file has its own inputs; leave out inputs=")
    if reader is None:
        from qir.qir_files import read_qir

        return read_qir(path, ledger)
    if not reader.file_of(path).exists():
        raise InputError(f"{path}: there is no such file")
    if trust:
        graph = reader.load_trusted(path, ledger, inputs)
    else:
        graph = reader.load_object(path, ledger, inputs) if inputs else reader.load(path, ledger)
    remember(graph, path)
    return graph


__all__ = ["load"]
