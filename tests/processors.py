"""Which processor this is, and which others a test can have a runtime take it for."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from pathlib import Path

import pytest

from qir.profiles.parser import INSTRUCTION_SETS
from qir.profiles.processor import best_isa

LACKS = "this processor has no "
"""How the reason of a test begins that is skipped because of the processor."""

_NEEDS = {"AVX2": "avx2", "AVX512": "avx512"}
_NEEDS |= {f"AVX512_CORE{end}": isa for end, isa in (("", "avx512"), ("_VNNI", "vnni"))}
_NEEDS["AVX512_CORE_AMX"] = "amx"
"""What a processor must have so that a runtime can be capped at that name."""


def name() -> str:
    """Returns the processor's name as Linux has it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def has(isa: str) -> bool:
    """Returns whether this processor has an instruction set that profiles know."""
    return INSTRUCTION_SETS.index(best_isa()) >= INSTRUCTION_SETS.index(isa)


def require(isa: str) -> None:
    """Skips the test where this processor lacks the instruction set.

    A cap such as ONEDNN_MAX_CPU_ISA only takes features away, so a processor without AMX does not
    get it from a cap at AMX.
    """
    if not has(isa):
        pytest.skip(f"{LACKS}{isa.upper()}")


def require_cap(cap: str) -> None:
    """Skips the test where this processor lacks what a runtime is to be capped at."""
    require(_NEEDS[cap])


def closing_lines(reasons: Iterable[str]) -> list[str]:
    """Returns what ends a run of the tests: the processor, and what was skipped for lack of it."""
    lines = [f"processor: {name()}, best instruction set of the profiles: {best_isa()}"]
    lacking: dict[str, int] = {}
    for reason in reasons:
        if LACKS in reason:
            missing = reason.partition(LACKS)[2]
            lacking[missing] = lacking.get(missing, 0) + 1
    lines += [f"skipped, {LACKS}{missing}: {count}" for missing, count in sorted(lacking.items())]
    return lines
