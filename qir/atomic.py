"""Files that arrive whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qir.errors import InputError, UsageError


def claim(path: Path, *, force: bool = False) -> None:
    """UsageError unless the path may be written: no file is there, unless `force`."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or "it is no name of a file"
        raise UsageError(f"{str(path)[:100]!r} cannot name a file: {said}") from None
    if path.is_dir():
        raise UsageError(f"{path} is a folder; name a file")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; --force overwrites it")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Gives a path to write beside the wanted one; it takes its place when all went well.

    Raises InputError where the system refuses (a full disk, no permission), leaving nothing.
    """
    draft: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(handle)
        draft = Path(name)
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
        draft = None
    except UnicodeEncodeError as error:
        raise InputError(
            f"cannot write {str(path)!r}: it is no text that the system takes"
        ) from error
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        if draft is not None:
            with suppress(OSError):
                draft.unlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Writes a text file by rename."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
