"""Float networks that QIR quantizes: both files that it writes of one graph do as it foretells."""

from __future__ import annotations

import pytest

from .emission import integer_tensors, qdq_differences, qoperator_differences, quantized
from .networks import network

CHUNK = 8
GRANULARITIES = ("channel", "tensor")


def agrees(chunk: int) -> None:
    seen = there = 0
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        made = quantized(network(seed), GRANULARITIES[seed % 2])
        for differences in (qoperator_differences, qdq_differences):
            found, compared = differences(made)
            assert not found, "\n".join(map(str, found))
            seen += compared
        there += len(integer_tensors(made.qdq)) + len(integer_tensors(made.qoperator))
    assert there > 8 * CHUNK, there
    assert seen > 0.9 * there, f"only {seen} of {there} tensors were compared"


@pytest.mark.parametrize("chunk", range(3))
def test_every_tensor_of_both_formats_equals_the_prediction(chunk: int) -> None:
    agrees(chunk)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(3, 20))
def test_a_hundred_more_networks_equal_the_prediction(chunk: int) -> None:
    agrees(chunk)
