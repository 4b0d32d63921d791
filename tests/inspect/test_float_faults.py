"""Random float sums of two engines lie within the bound of their op, unless one is faulty."""

from __future__ import annotations

import datetime
import os

import numpy as np
import pytest

from qir import pipeline
from qir.inspect.float_faults import FloatFault, first_fault
from qir.ir.graph import Graph
from qir.target import target
from tests.fuzzing import float_ops
from tests.reference.oracles import Array

SEED = os.environ.get("SEED") or datetime.datetime.now(datetime.UTC).date().isoformat()
CONVOLUTIONS = ("conv1d", "conv2d", "conv3d")
BOUND = (*CONVOLUTIONS, "matmul", "gemm", "linear", "avg_pool2d", "global_avg_pool", "softmax")


def _found(op: str, number: int, factor: float) -> FloatFault | None:
    """Returns the fault of onnxruntime's results times a factor."""
    rng = np.random.default_rng(list(f"{SEED}/{op}/{number}".encode()))
    graph, feeds = float_ops.graph_of(op, float_ops.DRAWS[op](rng, number))
    runtime = target("onnxruntime")

    def reference(one: Graph, given: dict[str, Array]) -> dict[str, Array]:
        return pipeline.run(one, given)

    def other(one: Graph, given: dict[str, Array]) -> dict[str, Array]:
        made = runtime.session(one, threads=1)(**given)  # type: ignore[attr-defined]
        return {name: np.multiply(x, np.float32(factor)) for name, x in made.items()}

    return first_fault(graph, feeds, [reference, other])  # type: ignore[list-item]


@pytest.mark.parametrize("op", BOUND)
def test_sums_lie_within_their_bound_and_faults_outside(op: str) -> None:
    for number in range(6):
        fault = _found(op, number, 1.0)
        assert fault is None, f"SEED={SEED}, {op} {number}: {fault}"
    fault = _found(op, 0, 1.5)
    assert fault is not None, f"SEED={SEED}, {op}"
    assert fault.op == op
    assert fault.largest is not None
    assert fault.largest > fault.bound > 0


def test_a_result_that_is_not_finite_is_a_fault() -> None:
    fault = _found("matmul", 0, np.inf)
    assert fault is not None
    assert fault.largest is None
    assert "differ in NaN or infinity" in fault.message(("reference", "onnxruntime"))
