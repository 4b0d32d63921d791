"""What the environment says about running."""

import os


class SettingError(ValueError):
    """An environment variable that says what cannot be."""


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
