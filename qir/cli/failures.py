"""What goes wrong, said in one line with the status it deserves."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

import click

from qir.errors import QirError

LONGEST = 239
"""Characters of the line, its end not counted."""
FAILED, INTERRUPTED, TERMINATED, PIPE_BROKEN = 2, 130, 143, 141


class Stopped(BaseException):
    """The system asked the process to end; files half written are cleared away on the way out."""


@contextmanager
def one_line(debug: list[bool]) -> Iterator[None]:
    """Turns every failure into a line on standard error and SystemExit.

    `debug` holds something once --debug was read: then failures show where they come from.
    """
    with suppress(ValueError):  # only the main thread may listen
        signal.signal(signal.SIGTERM, _stop)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        yield
        sys.stdout.flush()
    except (SystemExit, click.exceptions.Exit):
        raise
    except BrokenPipeError:
        _abandon_output()
        raise SystemExit(PIPE_BROKEN) from None
    except BaseException as error:
        if debug and not isinstance(error, click.ClickException):
            import traceback

            traceback.print_exc()
        status, text = describe(error)
        with suppress(OSError):
            print(f"qir: {shorten(text)}", file=sys.stderr, flush=True)
        _abandon_output()
        raise SystemExit(status) from None


def describe(error: BaseException) -> tuple[int, str]:
    """The exit status of a failure, and what to say of it."""
    match error:
        case QirError():
            return error.status, str(error)
        case click.UsageError():
            where = f"; see {error.ctx.command_path} --help" if error.ctx else ""
            return FAILED, error.format_message().rstrip(".") + where
        case click.ClickException():
            return FAILED, error.format_message()
        case KeyboardInterrupt() | click.Abort():
            return INTERRUPTED, "interrupted"
        case Stopped():
            return TERMINATED, "stopped by the system"
        case MemoryError():
            return FAILED, "out of memory"
        case OSError():
            where = f"{error.filename}: " if error.filename else ""
            return FAILED, f"{where}{error.strerror or error}"
    return FAILED, f"a fault in QIR: {type(error).__name__}: {error}; --debug shows where"


def shorten(text: str) -> str:
    """One printable line that is short enough; what is too long loses its middle."""
    line = printable(" ".join(text.split()))
    room = LONGEST - len("qir: ")
    if len(line) <= room:
        return line
    tail = room * 2 // 3
    return f"{line[: room - tail - 3]}...{line[-tail:]}"


def printable(text: str) -> str:
    """The text with what could move a cursor or colour a screen spelled out."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped


def _abandon_output() -> None:
    """Keeps Python from complaining, at its end, about output that nobody takes."""
    with suppress(OSError, ValueError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError, AttributeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
