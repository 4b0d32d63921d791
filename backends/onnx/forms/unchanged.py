"""Copies the file of a model that was not changed."""

from __future__ import annotations

import mmap
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import onnx
from onnx.external_data_helper import _get_all_tensors, uses_external_data

from qir.atomic import replacing
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger
from qir.source import untouched

from ..writer import qonnx
from ..writer.custom import DOMAIN
from ..writer.graph import Dialect
from ..writer.provenance import source_opset
from ..writer.writer import MICROSOFT, STEP

_NEWEST_IR = 13
"""The newest version of the format that onnxruntime 1.31 takes."""


def kept_files(
    graph: Graph, path: Path, dialect: Dialect, ledger: Ledger
) -> list[tuple[Path, Path]]:
    """Returns what to copy for an untouched graph, and where to; nothing where that will not do.

    It will not where the target takes no operator set, format or domain that the file has. What is
    next to the model comes first. The ledger says where another file has the name of data.
    """
    source = untouched(graph)
    if source is None or source.suffix.lower() != ".onnx":
        return []
    if dialect.opset not in (None, source_opset(graph)):
        return []
    if not _taken(graph, source, dialect):
        return []
    beside = _beside(source)
    if beside is None or not all((source.parent / place).is_file() for place in beside):
        return []
    if taken := next((p for p in beside if not _free(source.parent / p, path.parent / p)), None):
        said = f"written anew, not copied: {str(taken)!r} in its folder is another file"
        ledger.add(Change.EXACT, STEP, graph.name, said)
        return []
    return [*((source.parent / place, path.parent / place) for place in beside), (source, path)]


def copy(source: Path, to: Path) -> None:
    """Copies a file, by rename; raises InputError where the system refuses."""
    if to.exists() and to.samefile(source):
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as draft:
        shutil.copyfile(source, draft)


def _taken(graph: Graph, source: Path, dialect: Dialect) -> bool:
    """Returns whether the target takes the file's format, operator set and domains."""
    opset = source_opset(graph)
    with source.open("rb") as stream:
        head = stream.read(2)
    version = (
        head[1] if len(head) == 2 and head[0] == 8 else 128
    )  # the first field, as all write it
    read = any((o.framework, o.op) == ("onnx", "Output") for o in graph.output.origins)
    if not read or version > 127 or (opset is not None and opset > dialect.newest):
        return False
    if not dialect.standard:
        return version <= _NEWEST_IR
    domains = {qonnx.named(n)[0] for _, each in graph.walk() for n in each}
    known = all(not d or d == DOMAIN or d.startswith("ai.onnx") for d in domains)
    return known and not _microsoft(source)


def _microsoft(source: Path) -> bool:
    """Returns whether a model has operators of onnxruntime's own, in whatever form they were
    read."""
    with (
        source.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as held,
    ):
        if held.find(MICROSOFT.encode()) < 0:
            return False
    model = onnx.load(str(source), load_external_data=False)
    return any(_named(each) for each in (model.graph.node, *(f.node for f in model.functions)))


def _named(nodes: Iterable[onnx.NodeProto]) -> bool:
    for node in nodes:
        if node.domain.startswith(MICROSOFT):
            return True
        if any(_named(g.node) for a in node.attribute for g in (a.g, *a.graphs)):
            return True
    return False


def _beside(source: Path) -> list[PurePosixPath] | None:
    """Returns the files of data that the model names; None where a name leads elsewhere."""
    with (
        source.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as held,
    ):
        if held.find(b"location") < 0:
            return []
    model = onnx.load(str(source), load_external_data=False)
    tensors = filter(uses_external_data, (*_get_all_tensors(model), *_sparse(model.graph)))
    said = [e.value for t in tensors for e in t.external_data if e.key == "location"]
    places = dict.fromkeys(map(PurePosixPath, said))
    return list(places) if all(_inside(source.parent, place) for place in said) else None


def _sparse(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yields the parts of the sparse tensors of a graph and of those within it."""
    attributes = [a for node in graph.node for a in node.attribute]
    held = (t for a in attributes for t in (a.sparse_tensor, *a.sparse_tensors))
    for each in (*graph.sparse_initializer, *held):
        yield from (each.values, each.indices)
    for inner in (g for a in attributes for g in (a.g, *a.graphs)):
        yield from _sparse(inner)


def _inside(folder: Path, place: str) -> bool:
    """Returns whether a file of a model's data is next to it, no link leading to it from
    elsewhere."""
    parts = PurePosixPath(place.replace("\\", "/"))
    if "\0" in place or not parts.parts or parts.is_absolute() or ".." in parts.parts:
        return False
    try:
        home = folder.resolve()
        file = (home / parts).resolve()
        alone = file.is_file() and file.stat().st_nlink == 1
    except (OSError, RuntimeError):  # links in a circle, names that are too long
        return False
    return alone and file.is_relative_to(home)


def _free(old: Path, new: Path) -> bool:
    """Returns whether nothing but data of the model has their name in the new place."""
    return not new.exists() or new.samefile(old)
