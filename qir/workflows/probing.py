"""Measures what the runtimes of this machine compute, next to what their profiles say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from qir.arguments import checked
from qir.atomic import claim, write_text
from qir.errors import UsageError
from qir.inspect.measurements import Runtime, assumed, draft, keep
from qir.inspect.probing import Measured, chosen, measure, place
from qir.workflows.progress import Progress, silent


@dataclass(frozen=True, slots=True)
class ProbedRuntimes:
    """What was measured of runtimes."""

    measured: tuple[Measured, ...]
    assumed: tuple[Runtime, ...]
    """Profiles that no probe here can measure; none where runtimes were named."""

    @property
    def has_findings(self) -> bool:
        """Whether a claim of a profile does not hold."""
        return any(each.drifts for each in self.measured)


@checked
def probe_runtimes(
    names: Sequence[str] = (),
    *,
    python: str | None = None,
    output: str | Path | None = None,
    force: bool = False,
    progress: Progress = silent,
) -> ProbedRuntimes:
    """Runs small models on runtimes and compares the results with their profiles.

    Without names, all that are installed are measured. `python` is an interpreter that has the
    named runtime where QIR's own has not. `output` is a profile file to write, for one runtime: the
    nearest profile, extended by what differs. What was found is kept for `qir doctor`.

    Raises UsageError for a runtime that is not installed.
    """
    # Before the probes are chosen, which asks whether their runtimes are installed.
    if python is not None:
        place(names, python)
    probes = chosen(names)
    if output is not None:
        claim(Path(output), force=force)
        if len(probes) != 1:
            found = ", ".join(probe.name for probe in probes) or "none"
            raise UsageError(f"-o takes one runtime, these are {found}")
    # All begin before the first is measured: some start a process of their own, which takes time.
    for probe in probes:
        probe.begin()
    measured: list[Measured] = []
    with progress("probing") as tell:
        for done, probe in enumerate(probes):
            tell(done, len(probes), probe.name)
            measured.append(measure(probe))
            # At once: an interrupted run keeps what was measured so far.
            keep(probe, measured[-1])
    if output is not None:
        write_text(Path(output), draft(measured[0], Path(output).name.removesuffix(".toml")))
    return ProbedRuntimes(tuple(measured), () if names else assumed())
