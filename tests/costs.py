"""Measures the CPU seconds of each test file, child processes included, and lists the slowest.

A child counts for the file that it ends with: runtimes that serve many files count for the last.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Mapping

SHOWN = 20
KEY = "cpu"
"""The user property of a report that holds the CPU seconds of its phase."""


def cpu_seconds() -> float:
    """Returns the CPU time of this process and of the child processes it has waited for."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def listed(by_file: Mapping[str, float]) -> list[str]:
    """Returns the slowest files, each with its CPU seconds, and the sum over all files.

    A run of few files is not summarized.
    """
    if len(by_file) <= SHOWN:
        return []
    slowest = Counter(by_file).most_common(SHOWN)
    lines = [f"CPU seconds by file, the {SHOWN} slowest of {len(by_file)}:"]
    lines += [f"{seconds:8.1f}  {file}" for file, seconds in slowest]
    return [*lines, f"{sum(by_file.values()):8.1f}  all files"]
