"""What the environment says about running."""

import os


def default_threads() -> int:
    """QIR_NUM_THREADS, else the number of processors this process may use.

    Raises ValueError where the variable is not a positive number.
    """
    text = os.environ.get("QIR_NUM_THREADS")
    if not text:
        return len(os.sched_getaffinity(0))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"QIR_NUM_THREADS is {text!r}, not a number of threads")
    return int(text)
