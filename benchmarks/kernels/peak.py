"""What one core can do at most: multiply-adds of bytes a second, and bytes that it reads."""

import ctypes
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

SOURCE = Path(__file__).with_name("peak.c")
STEPS = 20_000
"""A run of some hundred microseconds: short enough to lie between two interruptions."""


def compiled() -> ctypes.CDLL:
    """Returns the loops of `peak.c`, compiled for this processor."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "peak.so")
        command = ["cc", "-O2", "-march=native", "-shared", "-fPIC", str(SOURCE), "-o", library]
        subprocess.run(command, check=True)
        return ctypes.CDLL(str(library))


def shortest(run: object, seconds: float = 1.0) -> float:
    """Returns the shortest time of a call."""
    assert callable(run)
    least, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - start)
    return least


def multiply_adds(library: ctypes.CDLL, threads: int = 1, seconds: float = 1.0) -> float:
    """Returns the multiply-adds of bytes that cores make in a second, all at the same time."""
    steps = ctypes.c_long(STEPS * 50 if threads > 1 else STEPS)
    done = threads * steps.value * int(library.peak_i8_step())
    if threads == 1:
        return done / shortest(lambda: library.peak_i8(steps), seconds)
    with ThreadPoolExecutor(threads) as pool:  # ctypes lets other threads run meanwhile
        return done / shortest(lambda: list(pool.map(library.peak_i8, [steps] * threads)), seconds)


def bytes_read(library: ctypes.CDLL, size: int, seconds: float = 1.0) -> float:
    """Returns the bytes a second that a core reads of an array that was just read."""
    data = np.ones(size // 8, np.int64)
    where, count = data.ctypes.data_as(ctypes.c_void_p), ctypes.c_long(data.nbytes)
    return data.nbytes / shortest(lambda: library.read_bytes(where, count), seconds)
