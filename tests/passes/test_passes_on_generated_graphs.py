"""Passes on graphs that say whatever the language can make programs that compute the same."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from qir.errors import QirError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.passes.cleanup.prune import Prune
from qir.passes.fold.fold_batch_norm import FoldBatchNorm
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.passes.forms.turn_sums import TurnSums
from qir.reference.interpreter import Tensor, run
from qir.rewrite import Pass, run_passes
from qir.testing import random_graph, sample_inputs

PASSES: tuple[Pass, ...] = (
    *(ExpandQdq(), FoldBatchNorm(), FoldConstants()),
    *(FuseQdq(), Prune(), TurnSums()),
)
SEEDS = range(60)


@cache
def whole(seed: int) -> Graph:
    return random_graph(seed, "whole")


def results(graph: Graph, seed: int) -> dict[str, Tensor] | None:
    """What it computes; None where it cannot be run here."""
    try:
        with np.errstate(all="ignore"):
            return run(graph, sample_inputs(graph, seed))
    except QirError:
        return None


@cache
def wanted(seed: int) -> dict[str, Tensor] | None:
    return results(whole(seed), seed)


@pytest.mark.parametrize("step", PASSES, ids=lambda step: step.name)
def test_a_pass_leaves_a_program_that_computes_the_same(step: Pass) -> None:
    ran = 0
    for seed in SEEDS:
        graph = run_passes(whole(seed), (step,), Ledger())
        found = errors(graph)
        assert not found, f"seed {seed}: {found[0]}"
        want = wanted(seed)
        if want is None:
            continue
        made = results(graph, seed)
        assert made is not None, f"seed {seed}"
        for name, data in want.items():
            if isinstance(step, FoldBatchNorm):  # other factors, other roundings
                continue
            assert data.tobytes() == made[name].tobytes(), f"seed {seed}: {name}"
        ran += 1
    assert ran > 10


def test_constants_that_nobody_can_compute_stay() -> None:
    graph = parse("""graph main {
      %x = input() : 2xi64
      %a = constant([4, 6]) : 2xi64
      %zero = constant([0, 2]) : 2xi64
      %q = floor_div(%a, %zero) : 2xi64
      %two = constant([2, 2]) : 2xi64
      %h = floor_div(%a, %two) : 2xi64
      output(q=%q, h=%h, x=%x)
    }""")
    made = run_passes(graph, (FoldConstants(),), Ledger())
    assert made["q"].node.op == "floor_div"
    held = made["h"].constant
    assert held is not None
    assert held.data.tolist() == [2, 3]
