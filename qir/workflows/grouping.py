"""Groups the ops that a runtime computes as one kernel, and writes the result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qir import pipeline
from qir.analysis.claims import BASIS
from qir.analysis.kernel_groups import is_float
from qir.arguments import checked
from qir.errors import UsageError
from qir.inspect.float_sums import FloatSum, float_sums
from qir.inspect.left_float import FloatOp, PredictedKernel, ops_left_float, predicted_kernels
from qir.ir.graph import Graph
from qir.ledger import Change, Entry, Ledger
from qir.passes.forms.group import Group
from qir.profiles import read_profile_for
from qir.qir_files import SUFFIX
from qir.rewrite import Report
from qir.rewrite.runner.journal import Journal
from qir.rewrite.runner.numbering import RewriteStep


@dataclass(frozen=True, slots=True)
class GroupedModel:
    """A model whose ops are grouped as a runtime computes them."""

    graph: Graph
    profile: str
    is_float: bool
    """Whether the groups hold float ops, as the model does."""
    kernels: tuple[RewriteStep | PredictedKernel, ...]
    loaded: int
    """How many changes were made before: what the runtime does on loading, or what folding does."""
    claims: Mapping[str, str]
    """How far the profile claims the runtime's bytes, by group; where it is silent, exact."""
    doubts: tuple[Entry, ...]
    """Nodes that the runtime may load in a way that is not predicted."""
    left: tuple[FloatOp, ...]
    """Ops that stay float, each with the reason."""
    float_sums: tuple[FloatSum, ...]
    """Ops on quantized tensors that the runtime computes in float32 in an order of its own."""


@checked
def group_model(
    graph: Graph,
    profile: str,
    output: str | Path,
    *,
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    force: bool = False,
) -> GroupedModel:
    """Groups the ops that the runtime of a profile computes as one kernel; writes a `.qir` file.

    A float model is folded first, as for quantizing; no number of it changes. Raises UsageError for
    an output of another kind.
    """
    require_kept_groups(output)
    ledger = ledger if ledger is not None else Ledger()
    journal = journal if journal is not None else Journal()
    reports: list[Report] = []
    wanted = Group(profile)
    real, read = is_float(graph), len(ledger)
    graph = pipeline.fold(graph, ledger, journal=journal) if real else graph
    # Before the pass: it replaces the ops of which these are made.
    kernels = predicted_kernels(graph, read_profile_for(graph, profile))
    # Entries of folding stand between those of reading and of grouping.
    folded = len(ledger) - read
    done = pipeline.optimize(
        graph,
        [wanted],
        ledger=ledger,
        journal=journal,
        after=lambda report, _: reports.append(report),
    )
    pipeline.save(done, output, ledger=ledger, journal=journal, force=force, lossy=True)
    # Steps that wrap ops are named "chain by row"; all others prepare the graph as loading does.
    wrapped = [step for report in reports for step in report.steps if " by " in step.rewrite]
    said = [entry for entry in list(ledger)[read:] if entry.step == "group"]
    claims = {entry.subject: entry.reason for entry in said if entry.basis == BASIS}
    doubts = [e for e in said if e.change is Change.UNVERIFIED and e.basis != BASIS]
    left = tuple(ops_left_float(done))
    return GroupedModel(
        done,
        wanted.profile,
        real,
        tuple(kernels if real else wrapped),
        folded if real else len(said) - len(claims) - len(wrapped) - len(doubts),
        claims,
        tuple(doubts),
        left,
        tuple(float_sums(done, 0)) if left and not real else (),
    )


def require_kept_groups(output: str | Path) -> None:
    """Raises UsageError for a file of another kind than `.qir`, which would lose the groups."""
    if Path(output).suffix.lower() != SUFFIX:
        raise UsageError(f"{output}: groups are kept in .qir files; qir convert writes others")
