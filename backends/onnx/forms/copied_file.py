"""Copies the file of a model that was not changed, with its external data."""

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


def files_to_copy(
    graph: Graph, path: Path, dialect: Dialect, ledger: Ledger
) -> list[tuple[Path, Path]]:
    """Returns the (source, destination) pairs to copy for an untouched graph; empty where copying
    fails.

    It fails where the target does not accept the file's operator set, format or domains. External
    data come before the model. The ledger reports a destination that other files occupy.
    """
    source = untouched(graph)
    if source is None or source.suffix.lower() != ".onnx":
        return []
    if dialect.opset not in (None, source_opset(graph)):
        return []
    if not _is_accepted(graph, source, dialect):
        return []
    data_files = _external_data_files(source)
    if data_files is None or not all((source.parent / place).is_file() for place in data_files):
        return []
    if occupied := next(
        (p for p in data_files if not _is_free(source.parent / p, path.parent / p)), None
    ):
        reason = f"written anew, not copied: {str(occupied)!r} in its folder is another file"
        ledger.add(Change.EXACT, STEP, graph.name, reason)
        return []
    return [*((source.parent / place, path.parent / place) for place in data_files), (source, path)]


def copy(source: Path, to: Path) -> None:
    """Copies a file, by rename; raises InputError where the system refuses."""
    if to.exists() and to.samefile(source):
        return
    to.parent.mkdir(parents=True, exist_ok=True)
    with replacing(to) as draft:
        shutil.copyfile(source, draft)


def _is_accepted(graph: Graph, source: Path, dialect: Dialect) -> bool:
    """Returns whether the target accepts the file's format, operator set and domains."""
    opset = source_opset(graph)
    with source.open("rb") as stream:
        first_bytes = stream.read(2)
    # The first field of every ModelProto is its ir_version: byte 8 is field 1, a varint.
    version = (
        first_bytes[1] if len(first_bytes) == 2 and first_bytes[0] == 8 else 128
    )  # 128: a version of two bytes
    was_read = any((o.framework, o.op) == ("onnx", "Output") for o in graph.output.origins)
    if not was_read or version > 127 or (opset is not None and opset > dialect.newest):
        return False
    if not dialect.standard:
        return version <= _NEWEST_IR
    domains = {qonnx.domain_and_operator(n)[0] for _, each in graph.walk() for n in each}
    only_standard = all(not d or d == DOMAIN or d.startswith("ai.onnx") for d in domains)
    return only_standard and not _has_microsoft_operators(source)


def _has_microsoft_operators(source: Path) -> bool:
    """Returns whether the file has operators of onnxruntime's domain, as whatever they were
    read."""
    with (
        source.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        # Parsing a large model takes seconds: the text of the domain rules most files out.
        if mapped.find(MICROSOFT.encode()) < 0:
            return False
    model = onnx.load(str(source), load_external_data=False)
    return any(
        _is_microsoft(each) for each in (model.graph.node, *(f.node for f in model.functions))
    )


def _is_microsoft(nodes: Iterable[onnx.NodeProto]) -> bool:
    for node in nodes:
        if node.domain.startswith(MICROSOFT):
            return True
        if any(_is_microsoft(g.node) for a in node.attribute for g in (a.g, *a.graphs)):
            return True
    return False


def _external_data_files(source: Path) -> list[PurePosixPath] | None:
    """Returns the files of external data; None where a name leads outside the model's folder."""
    with (
        source.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
    ):
        if mapped.find(b"location") < 0:
            return []
    # Mapped first: parsing is needed only where a tensor names a file.
    model = onnx.load(str(source), load_external_data=False)
    tensors = filter(uses_external_data, (*_get_all_tensors(model), *_sparse(model.graph)))
    locations = [e.value for t in tensors for e in t.external_data if e.key == "location"]
    places = dict.fromkeys(map(PurePosixPath, locations))
    # A path that leaves the folder could overwrite or expose files of others.
    return list(places) if all(_is_next_to(source.parent, place) for place in locations) else None


def _sparse(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Yields the parts of the sparse tensors of a graph and of those within it."""
    attributes = [a for node in graph.node for a in node.attribute]
    sparse_attributes = (t for a in attributes for t in (a.sparse_tensor, *a.sparse_tensors))
    for each in (*graph.sparse_initializer, *sparse_attributes):
        yield from (each.values, each.indices)
    for inner in (g for a in attributes for g in (a.g, *a.graphs)):
        yield from _sparse(inner)


def _is_next_to(folder: Path, place: str) -> bool:
    """Returns whether a file is in the model's folder, and no link leads elsewhere."""
    parts = PurePosixPath(place.replace("\\", "/"))
    if "\0" in place or not parts.parts or parts.is_absolute() or ".." in parts.parts:
        return False
    try:
        model_folder = folder.resolve()
        file = (model_folder / parts).resolve()
        # A second hard link means that another program may own the file.
        is_single_file = file.is_file() and file.stat().st_nlink == 1
    except (OSError, RuntimeError):  # links in a circle, names that are too long
        return False
    return is_single_file and file.is_relative_to(model_folder)


def _is_free(old: Path, new: Path) -> bool:
    """Returns whether no other file has the name of the model's data at the destination."""
    return not new.exists() or new.samefile(old)
