"""Models and files as verbs take and give them, looked at before any work."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from qir.cli.programs import is_program, open_program
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.ledger import Entry, Ledger


def open_model(
    path: Path,
    ledger: Ledger | None = None,
    inputs: Sequence[object] = (),
    *,
    data: Path | None = None,
    programs: bool = False,
    trust: bool = False,
) -> Graph:
    """Reads a model; a `.qir` file's own ledger goes before what reading adds.

    `inputs` are the shapes of inputs of files that do not hold them; without these, shapes are
    those of the arrays in `data`. `trust` opens files that run code. Of a program file, where
    these may be given, it is a graph of the inputs alone.
    """
    from qir.errors import InputError, ShapesNeeded, UsageError
    from qir.qir_files import read_ledger

    require_file(path)
    if is_program(path):
        if not programs:
            reason = "a program file, which qir run and qir bench take; give the model it is of"
            raise UsageError(f"{path} is {reason}")
        # What data are checked against is all that a caller asks of a program's graph.
        return open_program(path)[1].signature()
    if ledger is not None:
        ledger.extend(read_ledger(path))
    graph: Graph | None = None
    # The file's own shapes come first: data only fill in what a file does not say.
    with suppress(ShapesNeeded) if data is not None and not inputs else nullcontext():
        graph = _read(path, ledger, inputs, trust=trust)
        if data is None or inputs or _states_shapes(path) or _accepts_shapes(graph, data):
            return graph
    assert data is not None
    from qir.workflows.inputs import array_shapes

    shapes = array_shapes(data)
    # First with any batch, so that the model takes samples in batches of other sizes.
    any_batch = [("batch", *shape[1:]) for shape in shapes]
    with suppress(InputError):  # such as a loop that was traced for so many steps
        return _read(path, ledger, any_batch, trust=trust)
    # Then with the sizes as they are; what was read without any shapes is the last resort.
    with suppress(InputError) if graph is not None else nullcontext():
        return _read(path, ledger, shapes, trust=trust)
    assert graph is not None
    return graph


def _read(path: Path, ledger: Ledger | None, inputs: Sequence[object], *, trust: bool) -> Graph:
    """Reads a model; the ledger is extended where that succeeds."""
    from qir import loading
    from qir.ledger import Ledger

    # A reading that fails half-way is tried again with other shapes, and must not leave entries
    # twice.
    own_ledger = Ledger()
    graph = loading.load(path, ledger=own_ledger, inputs=list(inputs) or None, trust=trust)
    if ledger is not None:
        ledger.extend(own_ledger)
    return graph


def _states_shapes(path: Path) -> bool:
    from qir.errors import InputError
    from qir.frontend import frontend_for

    try:
        return frontend_for(path).states_shapes(path)
    except InputError:  # QIR's own
        return True


def _accepts_shapes(graph: Graph, data: Path) -> bool:
    """Returns whether arrays have the ranks and known sizes of a graph's inputs, the batch aside.

    True for data of another kind, such as images, whose shapes are not known.
    """
    from qir.errors import QirError
    from qir.ir import dims
    from qir.workflows.inputs import array_shapes

    try:
        shapes = array_shapes(data)
    except (QirError, OSError):
        return True
    kinds = [value.type.shape for value in graph.inputs]
    if len(kinds) != len(shapes):
        return True
    return all(
        len(kind) == len(shape) and all(map(dims.may_be_equal, kind[1:], shape[1:]))
        for kind, shape in zip(kinds, shapes, strict=True)
    )


def require_file(path: Path) -> None:
    """Raises InputError where nothing is there to be read."""
    from qir.errors import InputError
    from qir.frontend import frontend_for

    file = path
    if not path.exists():
        with suppress(InputError):
            file = frontend_for(path).file_of(path)
    if not file.exists():
        raise InputError(f"{path}: there is no such file")


def file_bytes(path: Path) -> int:
    """Bytes of a model on disk, with those of the external data."""
    from qir.errors import InputError
    from qir.frontend import frontend_for

    files: Sequence[Path] = (path,)
    with suppress(InputError):  # external data of an unreadable file are unknown
        files = frontend_for(path).files(path)
    stored_files = (
        stored for file in files for stored in (file.rglob("*") if file.is_dir() else (file,))
    )
    return sum(stored.stat().st_size for stored in stored_files if stored.is_file())


def claim_model(
    path: Path, target: str, form: str | None, *, force: bool, quantized: bool = False
) -> None:
    """Raises UsageError unless a model of that target and form may be written there."""
    from qir.atomic import claim
    from qir.errors import UsageError
    from qir.qir_files import SUFFIX
    from qir.target import target as named

    backend, own = named(target), path.suffix.lower() == SUFFIX
    claim(path, force=force, folder=not own and form in backend.folders)
    if own:
        if form is not None:
            raise UsageError(f"{path}: a .qir file has no form {form}; leave --format out")
        return
    if not backend.suffix:
        said = "write a .qir file, or name another target"
        raise UsageError(f"target {target} writes no files; {said}")
    if form is not None and form not in backend.formats:
        known = ", ".join(backend.formats) or "none"
        raise UsageError(f"target {target} has no form {form!r}; its forms: {known}")
    backend.form_of(path, form)
    if quantized:
        backend.require_quantized_form(path, form)
    # A target may write files besides the model, such as weights: those are in the way as well.
    claim(*backend.files(path)[1:], force=force)


def claim_files(*paths: Path | None, force: bool) -> None:
    """Raises UsageError unless each file that is named may be written."""
    from qir.atomic import claim

    for path in paths:
        if path is not None:
            claim(path, force=force)


def require_distinct_files(reads: Sequence[Path | None], writes: Sequence[Path | None]) -> None:
    """Raises UsageError where a file that is to be written is also read, or written for two
    reasons.

    The model comes first of what is read: InputError where it is not there.
    """
    from qir.errors import UsageError

    if reads and reads[0] is not None:
        require_file(reads[0])
    claimed = [path for path in reads if path is not None]
    for path in writes:
        if path is None:
            continue
        for other in claimed:
            if _same(other, path):
                conflict = (
                    "is named twice" if str(other) == str(path) else f"is the file {other} too"
                )
                raise UsageError(f"{path} {conflict}; name another file to write")
            # A file written into a folder of data would be read as a sample the next time.
            if other.is_dir() and path.exists() and _same(other, path.parent):
                raise UsageError(f"{path} is one of the data; name another file to write")
        claimed.append(path)


def _same(one: Path, other: Path) -> bool:
    with suppress(OSError):
        if one.samefile(other):
            return True
    # A file to be written is mostly not there yet: then the names decide.
    return os.path.realpath(one) == os.path.realpath(other)


def save_ledger(ledger: Ledger, path: Path | None) -> None:
    """Writes the ledger as JSON, if a file for it is named."""
    from qir.atomic import write_text

    if path is not None:
        write_text(path, ledger.to_json() + "\n")


_PLAIN = re.compile(r"[iu]\d+|[(]?[A-Za-z][a-z]*(?:[-'][a-z]+)*[.,;:)]*")
STYLES = {"exact": "green", "approximated": "yellow", "refused": "red", "unverified": "yellow"}


def show_ledger(screen: Screen, ledger: Ledger, limit: int = 12) -> None:
    """Prints what became of the numbers: entries alike in one row, mildest first."""
    by_kind: dict[tuple[str, str, str], list[Entry]] = {}
    # `counts` has the kinds of change from the mildest on.
    order = list(ledger.counts())
    for entry in sorted(ledger, key=lambda e: order.index(e.change)):
        by_kind.setdefault(
            (entry.change.value, entry.step, _without_names(entry.reason)), []
        ).append(entry)
    rows = [
        (
            StyledText(change, STYLES.get(change, "")),
            f"{len(entries):,}",
            step,
            entries[0].subject,
            # Names are left out only where they differ; of one reason they say which value it was.
            gist if len({entry.reason for entry in entries}) > 1 else entries[0].reason,
        )
        for (change, step, gist), entries in list(by_kind.items())[:limit]
    ]
    columns = (
        Column("change"),
        Column("count", "right"),
        Column("by", fit="drop"),
        Column("such as", fit="fold"),
        Column("what happened", fit="wrap"),
    )
    screen.table(columns, rows, title="ledger")
    if len(by_kind) > limit:
        more = plural(len(by_kind) - limit, "more kind")
        screen.line(f"  and {more}; --ledger FILE has all", "dim")


def _without_names(reason: str) -> str:
    """Returns a reason without the names and numbers in it, which tell entries of one kind
    apart."""
    words = [word if _PLAIN.fullmatch(word) else ".." for word in reason.split()]
    # A list of names is one gap, however long: lists of several lengths are of one kind.
    return " ".join(w for i, w in enumerate(words) if w != ".." or words[i - 1 : i] != [".."])


def ledger_json(ledger: Ledger) -> dict[str, int]:
    """Returns how many entries there are of each kind."""
    return {change.value: count for change, count in ledger.counts().items()}
