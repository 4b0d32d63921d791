"""What the environment says about running."""

import os
from collections.abc import Sequence


class SettingError(ValueError):
    """An environment variable that says what cannot be."""


def best_isa(known: Sequence[str]) -> str:
    """QIR_ISA, else the first of those known, which is the best.

    Raises SettingError where the variable is none of them.
    """
    name = os.environ.get("QIR_ISA") or known[0]
    if name not in known:
        raise SettingError(f"QIR_ISA is {name!r}; known are {', '.join(known)}")
    return name


def default_threads() -> int:
    """QIR_NUM_THREADS, else the number of processors this process may use.

    Raises SettingError where the variable is not a positive number.
    """
    text = os.environ.get("QIR_NUM_THREADS")
    if not text:
        return len(os.sched_getaffinity(0))
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise SettingError(f"QIR_NUM_THREADS is {text!r}, not a number of threads: 1 or more")
    return count
