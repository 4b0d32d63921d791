"""On which processor profiles are asked: this one, or one that is named."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from qir.errors import UsageError
from qir.profiles.parser import INSTRUCTION_SETS
from qir.profiles.profile import Profile

FEATURES = ("sse4", "avx", "fma", "f16c", "amx", "asimd", "i8mm", "sve")
"""How the names of features begin that kernels ask for."""
CPUINFO = Path("/proc/cpuinfo")


def processor_features(known: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the processor's features by the system's account; where it gives none, `known`."""
    try:
        lines = CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return known
    words = next((line.split() for line in lines if line.startswith(("flags", "Features"))), [])
    return tuple(word for word in words if word.startswith(FEATURES)) or known


@cache
def best_isa() -> str:
    """Returns the best of the instruction sets of which profiles speak, of those this processor
    has."""
    found = processor_features(())
    # From the newest: each includes those after it.
    for isa, start in (("amx", "amx_int8"), ("vnni", "avx512_vnni"), ("avx512", "avx512f")):
        if start in found:
            return isa
    return "avx2" if "avx2" in found else "any"


def depends(source: Profile, isa: str) -> bool:
    """Returns whether a profile claims something of that processor alone."""
    rules = (rule for layer in source.layers for rule in layer.rules if isa in rule.when.isa)
    return any(rule.fields.get(("", "claim"), "unknown") != "unknown" for rule in rules)


_MOVED_PROFILES: dict[tuple[int, bool, str], tuple[Profile, Profile]] = {}
_MAX_CACHED = 64


def require_instruction_set(isa: str | None) -> None:
    """Raises UsageError for a name that is no instruction set; None is this processor's."""
    if isa is not None and isa not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS)
        raise UsageError(f"no instruction set {isa!r}; profiles know {known}")


def on_processor(source: Profile, isa: str | None = None) -> Profile:
    """Returns a profile as it is on `isa`, else on this processor; the same object each time.

    Where no `isa` is given, a profile that claims nothing of this processor alone, and one that
    speaks of a processor itself, stay as they are. UsageError for a name that is none.
    """
    key = id(source), isa is None, isa or best_isa()
    cached = _MOVED_PROFILES.get(key)
    # The id of a profile may be given to another once it is gone: the entry holds the profile.
    if cached is None or cached[0] is not source:
        if len(_MOVED_PROFILES) >= _MAX_CACHED:
            _MOVED_PROFILES.clear()
        cached = _MOVED_PROFILES[key] = source, _moved(source, isa)
    return cached[1]


def _moved(source: Profile, isa: str | None) -> Profile:
    require_instruction_set(isa)
    target_isa = isa or best_isa()
    is_unchanged = source.isa == target_isa or (
        isa is None and (source.isa != "any" or not depends(source, target_isa))
    )
    return source if is_unchanged else source.on(target_isa)
