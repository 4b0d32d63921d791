"""The file that a graph was read from, as long as neither was changed since."""

from __future__ import annotations

from pathlib import Path
from weakref import finalize

from qir.ir.graph import Graph
from qir.records import record

SUFFIX = ".qir"
"""The suffix of QIR's own files."""


@record
class _Source:
    path: Path
    size: int
    time: int
    version: int


_SOURCES: dict[int, _Source] = {}
"""By the identity of graphs, as long as they live: what can be edited has no hash."""


def remember(graph: Graph, path: Path) -> None:
    """Notes that a graph says what a file says."""
    try:
        stat = path.stat()
        full_path = path.resolve()
    except OSError:
        return
    if id(graph) not in _SOURCES:
        # Identities are used again, so an entry must not outlive its graph.
        finalize(graph, _SOURCES.pop, id(graph), None).atexit = False
    _SOURCES[id(graph)] = _Source(full_path, stat.st_size, stat.st_mtime_ns, graph.version)


def untouched(graph: Graph) -> Path | None:
    """Returns the file of a graph that nobody edited, where it is as it was; else nothing."""
    source = _SOURCES.get(id(graph))
    if source is None or source.version != graph.version:
        return None
    try:
        stat = source.path.stat()
    except OSError:
        return None
    is_unchanged = (stat.st_size, stat.st_mtime_ns) == (source.size, source.time)
    return source.path if is_unchanged else None
