"""Token ids and other numbers in text files: JSON Lines and CSV, a sample in each line."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from qir.calibration.pieces import InputSpec, Piece, make_piece
from qir.calibration.rows import Array, ArrayRows, MemoryRows
from qir.errors import DataError

SUFFIXES = (".jsonl", ".csv")


class LinePieces:
    """Samples in the lines of a text file.

    A line of JSON is a list of numbers, which may hold lists, or an object that has such a list for
    each input. A line of CSV is the numbers of one sample, for a model with one input.
    """

    identity: str | None = None

    def __init__(self, path: Path, inputs: Mapping[str, InputSpec]) -> None:
        self.name = str(path)
        self._path = path
        self._inputs = inputs
        self._json = path.suffix.lower() == ".jsonl"
        if not self._json and len(inputs) != 1:
            names = ", ".join(inputs)
            raise DataError(
                f"{path}: the model takes {names}: give JSON Lines, an object with these in each"
            )
        # The file is read once to count samples, and again for each run, so that it need not fit
        # the memory.
        self._samples = sum(1 for _ in self._lines())

    def samples(self) -> int:
        return self._samples

    def __iter__(self) -> Iterator[Piece]:
        for number, line in self._lines():
            where = f"{self._path}: line {number}"
            arrays = _json_arrays(line, where) if self._json else _csv_arrays(line, where)
            _require_lengths(where, arrays, self._inputs)
            yield make_piece(where, arrays, self._inputs)

    def _lines(self) -> Iterator[tuple[int, str]]:
        """Yields the lines that are not empty, with their numbers from 1."""
        try:
            with self._path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield number, line
        except OSError as error:
            raise DataError(f"{self._path}: cannot be read: {error.strerror or error}") from None
        except UnicodeError:
            raise DataError(f"{self._path}: cannot be read: it is not UTF-8 text") from None


def _json_arrays(line: str, where: str) -> dict[str, ArrayRows]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON: {error}") from None
    named = found if isinstance(found, dict) else {"": found}
    out: dict[str, ArrayRows] = {}
    for name, given in named.items():
        if isinstance(given, list):
            out[name] = MemoryRows(_numbers(given, where, name)[np.newaxis])
    if not out:
        raise DataError(f"{where}: give a list of numbers, or an object with a list for each input")
    return out


def _csv_arrays(line: str, where: str) -> dict[str, ArrayRows]:
    cells = [cell.strip() for cell in next(csv.reader([line]))]
    try:
        # Token ids must stay integers; a cell with a fraction makes the line one of floats.
        given = [int(cell) for cell in cells]
    except ValueError:
        try:
            array: Array = np.array([float(cell) for cell in cells])
        except ValueError:
            wrong = next(cell for cell in cells if not _is_number(cell))
            raise DataError(f"{where}: {wrong[:40]!r} is no number") from None
        return {"": MemoryRows(array[np.newaxis])}
    return {"": MemoryRows(_numbers(given, where, "")[np.newaxis])}


def _numbers(given: Sequence[object], where: str, name: str) -> Array:
    what = f"{where}: {name!r}" if name else where
    try:
        array = np.array(given)
    except (ValueError, OverflowError):
        raise DataError(f"{what}: its lists differ in length") from None
    if array.dtype.kind not in "iufb":
        raise DataError(f"{what}: holds what is no number of 64 bits")
    return array


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _require_lengths(
    where: str, arrays: Mapping[str, ArrayRows], inputs: Mapping[str, InputSpec]
) -> None:
    """Raises DataError where a sample is longer or shorter than the input; says what to do."""
    for name, rows in arrays.items():
        spec = inputs.get(name) or (next(iter(inputs.values())) if len(inputs) == 1 else None)
        if spec is None or len(spec.shape) != 2 or len(rows.shape) != 2:
            continue
        wanted = spec.shape[1]
        if wanted not in (None, rows.shape[1]):
            has = f"{rows.shape[1]} numbers, the input takes {wanted}"
            raise DataError(f"{where}: {has}: pad or cut the sample")
