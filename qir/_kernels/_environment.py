"""What the environment says about running."""

import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


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


@dataclass(frozen=True, slots=True)
class InstructionSets:
    """The instruction sets that kernels exist for, and those of this processor."""

    bits: Mapping[str, int]
    """The bits that each needs, best first."""
    detected: int
    asked: Set[str]
    """Those that are used only where QIR_ISA or a cap names them."""

    def names(self, bits: int) -> list[str]:
        """Returns the names of the instruction sets that `bits` allow, best first."""
        return [name for name, needed in self.bits.items() if needed & bits == needed]

    def allowed(self, cap: str | None = None) -> int:
        """Returns the bits left by QIR_ISA, as it is now, and by `cap`, where one is given."""
        best = best_isa(list(self.bits))
        allowed = self._capped(self.detected, best)
        if cap is not None:
            allowed = self._capped(allowed, cap)
        for name in self.asked - {best, cap}:
            allowed &= ~self.bits[name]
        return allowed

    def caps(self) -> list[str]:
        """Returns the names that `cap` may be here, best first."""
        return self.names(self._capped(self.detected, best_isa(list(self.bits))))

    def _capped(self, bits: int, name: str) -> int:
        """Returns the bits that are left when nothing better than `name` may be used."""
        known = list(self.bits)
        if name not in known:
            raise ValueError(f"isa is {name!r}; known are {', '.join(known)}")
        kept = 0
        for other in known[known.index(name) :]:
            kept |= self.bits[other]
        return bits & kept


@cache
def quota() -> int | None:
    """Returns the number of cores' time that the cgroup allows, rounded up; None for no limit.

    Reads cgroup v2, then v1, as they are mounted inside of a container.
    """
    files = [("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us")]
    for names in files:
        try:
            words = [word for name in names for word in (CGROUPS / name).read_text().split()]
            allowed, period = int(words[0]), int(words[1])
        except (OSError, ValueError, IndexError):  # "max" is no limit
            continue
        if allowed > 0 and period > 0:
            return -(-allowed // period)
    return None


def usable_cores() -> int:
    """Returns the number of cores that this process may use at once."""
    cores = len(os.sched_getaffinity(0))
    return min(cores, quota() or cores)


def default_threads() -> int:
    """QIR_NUM_THREADS, else the number of cores this process may use.

    Raises SettingError where the variable is not a positive number.
    """
    text = os.environ.get("QIR_NUM_THREADS")
    if not text:
        return usable_cores()
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise SettingError(f"QIR_NUM_THREADS is {text!r}, not a number of threads: 1 or more")
    return count
