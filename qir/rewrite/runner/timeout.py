"""Wall-clock timeout for a pass."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from qir.errors import Stopped


class TooLong(BaseException):
    """Raised in the thread that takes too long; nothing but its starter is to catch it."""


ENDING = (KeyboardInterrupt, Stopped)
"""What ends the whole program, and is nobody else's to catch."""


@contextmanager
def suppressed() -> Iterator[None]:
    """Lets what runs inside fail in any way; what ends the program ends it."""
    try:
        yield
    except ENDING:
        raise
    except BaseException:  # whatever a pass raises, SystemExit too
        return


@contextmanager
def within(seconds: float | None) -> Iterator[None]:
    """Raises TooLong in what runs inside, once so many seconds are over; None: never.

    Compiled code is not stopped, but what called it is when it gives back.
    """
    # threading.Timer raises OverflowError beyond TIMEOUT_MAX.
    if seconds is None or seconds > threading.TIMEOUT_MAX:
        yield
        return
    thread = ctypes.c_ulong(threading.get_ident())
    guard, ended, raised = threading.Lock(), False, False

    def stop() -> None:
        nonlocal raised
        with guard:
            if not ended:
                raised = True
                # CPython's only way to raise an exception in another thread; it is seen between two
                # bytecodes.
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(TooLong))

    timer = threading.Timer(float(seconds), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    except TooLong:
        raised = False
        raise
    finally:
        with guard:
            ended = True
        timer.cancel()
        while raised:  # it is on its way
            time.sleep(0)
