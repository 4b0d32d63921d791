"""Float networks on words that QIR quantizes: both files that it writes do as it foretells."""

from __future__ import annotations

from collections import Counter

import pytest

from .emission import Quantized, integer_tensors, qdq_differences, qoperator_differences, quantized
from .sentences import sentences

CHUNK = 4


def agrees(seed: int) -> tuple[int, int, Quantized]:
    """How many tensors of integers were compared, and how many there are."""
    made = quantized(sentences(seed), ("channel", "tensor")[seed % 2])
    seen = 0
    for differences in (qoperator_differences, qdq_differences):
        found, compared = differences(made)
        assert not found, "\n".join(map(str, found))
        seen += compared
    return seen, len(integer_tensors(made.qdq)) + len(integer_tensors(made.qoperator)), made


@pytest.mark.parametrize("chunk", range(2))
def test_every_tensor_of_both_formats_equals_the_prediction(chunk: int) -> None:
    ops: Counter[str] = Counter()
    compared = there = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        seen, all_of_them, made = agrees(seed)
        compared, there = compared + seen, there + all_of_them
        ops.update(n.op_type for n in made.qoperator.graph.node)
    assert compared > 0.75 * there, f"only {compared} of {there} tensors were compared"
    assert {"QLinearMatMul", "QLinearAdd", "QLinearSoftmax"} <= set(ops), ops


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 180))
def test_eighty_more_networks_equal_the_prediction(seed: int) -> None:
    agrees(seed)
