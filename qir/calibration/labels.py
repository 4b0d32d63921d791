"""Reads labels: one for each sample of some data, from an array, or from a file."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from qir.calibration.rows import Array, ArrayRows, open_npy, open_npz, refuse_objects
from qir.errors import DataError

LABEL_NAMES = ("labels", "label", "targets", "target", "y")
"""Names by which an .npz file may call its labels."""
_SUFFIXES = ".npy, .npz, .csv or .txt"


def read_labels(labels: str | Path | Array, samples: Sequence[str] | None = None) -> Array:
    """Returns labels along the first axis.

    An .npz file with several arrays calls them `labels`, `targets` or `y`, or is named as
    `FILE.npz:NAME`. A text file has a label in each line, or a sample's name and its label with a
    comma between; `samples` are the names in their order, as a folder of images has them.

    Raises DataError for what does not fit, naming file and line.
    """
    if not isinstance(labels, str | Path):
        array = np.asarray(labels)
        refuse_objects(array.dtype, "labels")
        return array
    text = str(labels)
    # Not at the first colon, which stands after the drive of some paths.
    path, _, name = text.partition(".npz:")
    if name:
        return _member(Path(f"{path}.npz"), name)
    file = Path(text)
    if not file.is_file():
        raise DataError(f"{file}: there is no such file of labels")
    if file.suffix == ".npy":
        return _all(open_npy(file))
    if file.suffix == ".npz":
        return _member(file, "")
    if file.suffix in (".csv", ".txt"):
        return _lines(file, samples)
    raise DataError(f"{file}: labels are read from {_SUFFIXES}")


def _all(rows: ArrayRows) -> Array:
    return np.array(rows.read(0, rows.shape[0] if rows.shape else 1))


def _member(file: Path, name: str) -> Array:
    if not file.is_file():
        raise DataError(f"{file}: there is no such file of labels")
    arrays = open_npz(file)
    found = [n for n in ([name] if name else LABEL_NAMES) if n in arrays]
    # A file with one array alone leaves no doubt, whatever its name.
    if not found and not name and len(arrays) == 1:
        found = list(arrays)
    if len(found) != 1:
        has = ", ".join(arrays)
        problem = f"no array {name!r}" if name else "no array is named labels"
        raise DataError(f"{file}: {problem}; it has {has}: name one as {file.name}:NAME")
    return _all(arrays[found[0]])


def _lines(file: Path, samples: Sequence[str] | None) -> Array:
    """Labels of a text file: one a line, or by the names of the samples."""
    try:
        rows = [fields for fields in csv.reader(file.read_text("utf-8").splitlines()) if fields]
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(f"{file}: cannot be read as text: {error}") from None
    if rows and not _is_number(rows[0][-1]):
        rows = rows[1:]  # the names of the columns
    column_counts = {len(fields) for fields in rows}
    if not rows or not column_counts <= {1, 2} or len(column_counts) > 1:
        raise DataError(f"{file}: a line is a label, or a sample's name, a comma and its label")
    for number, fields in enumerate(rows, 1):
        if not _is_number(fields[-1]):
            raise DataError(f"{file}: label {number} is {fields[-1][:40]!r}, which is no number")
    if column_counts == {2} and samples is not None:
        rows = _ordered(file, rows, samples)
    numbers = [fields[-1].strip() for fields in rows]
    # Class labels stay integers; a single fraction makes all of them floats.
    are_integers = all(number.lstrip("+-").isdecimal() for number in numbers)
    return np.array([int(n) if are_integers else float(n) for n in numbers])


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _ordered(file: Path, rows: Sequence[list[str]], samples: Sequence[str]) -> list[list[str]]:
    """Returns the lines in the order of the samples; by the end of a path where only that is
    named."""
    by_name = {found[0].strip(): found for found in rows}
    if len(by_name) < len(rows):
        raise DataError(f"{file}: a sample is named twice")
    out = []
    for sample in samples:
        found = (
            by_name.get(sample) or by_name.get(Path(sample).name) or by_name.get(Path(sample).stem)
        )
        if found is None:
            raise DataError(f"{file}: no label for sample {sample}")
        out.append(found)
    return out
