"""What goes wrong, said in one line with the status it deserves."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click

from qir.cli.flags import in_flags
from qir.errors import QirError, Stopped

MAX_LINE_LENGTH = 799
"""Characters of the line, its end not counted."""
FAILED, INTERRUPTED, TERMINATED, PIPE_BROKEN = 2, 130, 143, 141
_DISK_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO)


@contextmanager
def one_line(debug: list[bool]) -> Iterator[None]:
    """Turns every failure into a line on standard error and SystemExit.

    `debug` holds something once --debug was read: then failures show where they come from.
    """
    with _listening(), warnings.catch_warnings():
        # Warnings of libraries would stand between the results; python -W shows them all the same.
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        try:
            _require_output()
            yield
            # Within the try: a full disk shows only when the buffer is written.
            sys.stdout.flush()
        except (SystemExit, click.exceptions.Exit):
            raise
        except BaseException as error:
            status = _report(error, bool(debug))
            _abandon_output()
            raise SystemExit(status) from None


def _require_output() -> None:
    """Finds out before any work that standard output is closed: Python then has none."""
    if sys.stdout is None:
        raise OSError(errno.EBADF, "closed", "standard output")


def _report(error: BaseException, debug: bool) -> int:
    """Says what went wrong, unless nobody listens any more; gives the status."""
    # A reader such as `head` has what it wanted: that is no failure to speak of.
    if isinstance(error, BrokenPipeError):
        return PIPE_BROKEN
    # A wrong command line is no fault of the code, which is all a trace would show.
    if debug and not isinstance(error, click.ClickException):
        traceback.print_exception(error)
    status, text = describe(error)
    # Standard error may be full or closed as well; the status still tells.
    with suppress(OSError, AttributeError):
        print(f"qir: {shorten(text)}", file=sys.stderr, flush=True)
    return status


@contextmanager
def _listening() -> Iterator[None]:
    """Lets the system's request to stop end the process as a failure does, cleared up."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Names that come from files may hold surrogates, which no encoding prints.
            stream.reconfigure(errors="backslashreplace")
    # Python lets the main thread alone handle signals.
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    # As an exception the request passes through every `with`, so that drafts and processes go too.
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def describe(error: BaseException) -> tuple[int, str]:
    """Returns the exit status of a failure, and what to say of it."""
    match error:
        case QirError():
            return error.status, in_flags(str(error))
        case click.UsageError():
            where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
            return FAILED, error.format_message().rstrip(".?") + where
        case click.ClickException():
            return FAILED, error.format_message()
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED, str(error) or "interrupted"
        case Stopped():
            return TERMINATED, str(error) or "stopped by the system"
        case MemoryError():
            return FAILED, "out of memory"
        case OSError():
            # A failed write to an open stream names no file: a full disk is then that of the
            # output.
            place = error.filename or ("standard output" if error.errno in _DISK_FULL else "")
            return FAILED, f"{place}: {error.strerror or error}".removeprefix(": ")
    where = _plugin_at_fault(error) or "QIR"
    return FAILED, f"a fault in {where}: {type(error).__name__}: {error}; --debug shows where"


def _plugin_at_fault(error: BaseException) -> str:
    """Returns the function of another distribution's plugin that was running last, and whose it is;
    nothing where none was."""
    from qir import registry

    frames, level = [], error.__traceback__
    while level:
        frames.append(level.tb_frame)
        level = level.tb_next
    for frame in reversed(frames):
        module = str(frame.f_globals.get("__name__", ""))
        if owner := registry.stranger(module):
            return f"{module}.{frame.f_code.co_name} of {owner}"
    return ""


def shorten(text: str) -> str:
    """Returns one printable line that is short enough; what is too long loses its middle."""
    line = printable(" ".join(text.split()))
    room = MAX_LINE_LENGTH - len("qir: ")
    if len(line) <= room:
        return line
    # The end says most: reasons stand there, after the names of files.
    tail = room * 2 // 3
    return f"{line[: room - tail - 3]}...{line[-tail:]}"


def printable(text: str) -> str:
    """Returns the text with what could move a cursor or colour a screen spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _abandon_output() -> None:
    """Keeps Python from complaining, at its end, about output that nobody takes."""
    if sys.stdout is None:
        return
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError, AttributeError):
        # Python flushes once more as it ends, and would complain a second time.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
