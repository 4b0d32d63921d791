"""Verifies a model, alone and for a target."""

from __future__ import annotations

from dataclasses import dataclass

from qir import pipeline
from qir.arguments import checked
from qir.capability import Verdict
from qir.inspect.float_sums import FloatSum, float_sums
from qir.inspect.overflow import SumRange
from qir.inspect.overflow import overflow as sums_of
from qir.ir.graph import Graph
from qir.ir.verify import Finding


@dataclass(frozen=True, slots=True)
class VerifiedModel:
    """What the verifier, and a target, say of a model."""

    findings: tuple[Finding, ...]
    """Rules of the language that it breaks, and ops that the target does not support."""
    verdicts: tuple[Verdict, ...] | None
    """For each op whether the target computes it in integers; None without a target."""
    float_sums: tuple[FloatSum, ...]
    """Ops that the target computes in float32 in an order of its own."""
    sums: tuple[SumRange, ...] | None
    """The range of the sums of each product; None unless asked for."""


@checked
def verify_model(
    graph: Graph, *, target: str | None = None, overflow: bool = False
) -> VerifiedModel:
    """Checks that a model is well formed and, with `target`, what that target computes in integers.

    `overflow` also gives the range of the sums of each product.
    """
    found = pipeline.verify(graph, target=target)
    sums = tuple(sums_of(graph)) if overflow else None
    if target is None:
        return VerifiedModel(tuple(found), None, (), sums)
    verdicts = tuple(pipeline.op_verdicts(graph, target=target))
    left = {(v.path, v.node) for v in verdicts if v.taken != "integer"}
    # Beyond 0 bits: ops on quantized values alone, whose results may end a step away.
    own = tuple(s for s in float_sums(graph, 0) if (s.path, s.node) in left)
    return VerifiedModel(tuple(found), verdicts, own, sums)
