"""Files that arrive whole or not at all.

Each is written as a draft, `.qir-XXXXXXXX.draft` in the folder of the file, which takes the file's
place when it is whole. A draft is locked while it is written, and the system drops the lock when
the process ends, however that happens. So the next file that is written to a folder first removes
the drafts there that nobody holds.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from qir.errors import InputError, UsageError

_PREFIX, _SUFFIX = ".qir-", ".draft"


def claim(*paths: Path, force: bool = False, folder: bool = False) -> None:
    """Raises UsageError unless the paths may be written: no file is there, unless `force`.

    With `folder` it is a folder that is written, and takes the place of another.
    """
    for path in paths:
        _claim(path, force=force, folder=folder)


def _claim(path: Path, *, force: bool, folder: bool) -> None:
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is no name of a file"
        raise UsageError(f"{str(path)[:100]!r} cannot name a file: {reason}") from None
    if path.exists() and path.is_dir() != folder:
        present, expected = ("a file", "a folder") if folder else ("a folder", "a file")
        raise UsageError(f"{path} is {present}; name {expected}")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: there is no folder {path.parent}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists; `force=True` overwrites it")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path to write in the same folder; it replaces the wanted one on success.

    What is written goes into the file that is there, which is locked. Raises InputError where the
    system refuses (a full disk, no permission), leaving nothing.
    """
    draft: Path | None = None
    lock: int | None = None
    try:
        clear_drafts(path.parent)
        lock, draft = _locked_draft(path.parent)
        yield draft
        with draft.open("rb") as written:
            # The bytes before the name: a crash in between must leave the old file or the new one.
            os.fsync(written.fileno())
        # `mkstemp` makes files private; this one gets the rights that `open` gives.
        os.chmod(draft, 0o666 & ~_umask())
        os.replace(draft, path)
        draft = None
    except UnicodeEncodeError as error:
        raise InputError(
            f"cannot write {str(path)!r}: it is no text that the system takes"
        ) from error
    except OSError as error:
        raise InputError(_refused(path, error)) from error
    finally:
        if draft is not None:
            with suppress(OSError):
                draft.unlink()
        if lock is not None:
            os.close(lock)


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields a folder to fill in the same place; it replaces the wanted one on success.

    Raises InputError where the system refuses, leaving nothing.
    """
    draft: Path | None = None
    try:
        draft = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=path.parent))
        yield draft
        os.chmod(draft, 0o777 & ~_umask())
        if path.is_dir():
            old = Path(tempfile.mkdtemp(prefix=_PREFIX, suffix=_SUFFIX, dir=path.parent))
            # A folder that holds something cannot be replaced, so the old one steps aside first.
            os.replace(path, old)
            shutil.rmtree(old, ignore_errors=True)
        os.replace(draft, path)
        draft = None
    except OSError as error:
        raise InputError(_refused(path, error)) from error
    finally:
        if draft is not None:
            shutil.rmtree(draft, ignore_errors=True)


def _refused(path: Path, error: OSError) -> str:
    """Says what the system refuses, and what helps where a disk is full."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    remedy = "; free some, or write to another disk" if full else ""
    return f"cannot write {path}: {error.strerror or error}{remedy}"


def clear_drafts(folder: Path) -> None:
    """Removes the drafts in a folder whose writers have ended; others, and what fails, stay."""
    with suppress(OSError):
        for draft in folder.glob(f"{_PREFIX}????????{_SUFFIX}"):
            with suppress(OSError):
                _clear(draft)


def _clear(draft: Path) -> None:
    """Removes a draft; raises OSError where a process holds it, or where nothing can be locked."""
    descriptor = os.open(draft, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The name may stand for another file by now; then the one that is locked is gone already.
        if os.path.samestat(os.fstat(descriptor), draft.lstat()):
            draft.unlink()
    finally:
        os.close(descriptor)


def _locked_draft(folder: Path) -> tuple[int, Path]:
    """Makes a draft and locks it; another where one was cleared before the lock was taken."""
    while True:
        descriptor, name = tempfile.mkstemp(prefix=_PREFIX, suffix=_SUFFIX, dir=folder)
        try:
            with suppress(OSError):  # without locks drafts are made, and never cleared
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_nlink:
                return descriptor, Path(name)
        except BaseException:
            with suppress(OSError):
                os.unlink(name)
            os.close(descriptor)
            raise
        os.close(descriptor)


def _umask() -> int:
    # The mask can only be read by setting it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: Path, text: str) -> None:
    """Writes a text file by rename."""
    with replacing(path) as draft:
        draft.write_text(text, encoding="utf-8")
