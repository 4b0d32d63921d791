"""JSON files of other tools: of bounded size, no name twice, refused in one line."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from qir.errors import InputError

_LARGEST = 1 << 28
"""Bytes: files that describe a model and hold no weights are smaller."""


def read_json(path: Path, what: str) -> object:
    """Returns what a JSON file holds; `what` is the kind of file that it should be.

    Raises InputError, naming the file and the place, for one that cannot be read or is no JSON.
    """
    try:
        if (size := path.stat().st_size) > _LARGEST:
            raise InputError(f"{path}: has {size} bytes, which no {what} has")
        data: object = json.loads(path.read_bytes(), object_pairs_hook=_table)
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except _Twice as twice:
        raise InputError(f"{path}: is no {what}: an object has {twice.args[0]!r} twice") from twice
    except RecursionError as error:
        raise InputError(f"{path}: is no {what}: its JSON is nested too deeply") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise InputError(f"{path}: is no {what}: it is no JSON at {place}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is no {what}: it is no text") from error
    except ValueError as error:  # an integer of more digits than Python reads
        raise InputError(f"{path}: is no {what}: a number has thousands of digits") from error
    return data


class _Twice(Exception):
    """A name stands twice in an object."""


def _table(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    # Python keeps the last of two, other tools the first: such a file means two things.
    if len(table) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise _Twice(counts.most_common(1)[0][0][:40])
    return table
