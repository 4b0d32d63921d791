"""Float sums that IPEX 2.8 computes in the memory of data that are still read."""

from __future__ import annotations

import pytest

from qir.backends.ipex.session import overwritten_summand
from qir.ir.text import parse


@pytest.mark.parametrize(
    ("summands", "name"), [("%two, %act", "s"), ("%act, %two", "s"), ("%two, %one", None)]
)
def test_a_convolution_whose_own_data_is_added_is_found(summands: str, name: str | None) -> None:
    """Live, the first two are off by 1e5 and the third by 1e-5 (IPEX 2.8, random weights)."""
    graph = parse(
        "graph main {\n  %x = input() : 1x1x2x2xf32\n"
        "  %w = constant([2.0]) : 1x1x1x1xf32\n  %one = conv2d(%x, %w) : 1x1x2x2xf32\n"
        "  %act = relu(%one) : 1x1x2x2xf32\n  %two = conv2d(%act, %w) : 1x1x2x2xf32\n"
        f"  %s = add({summands}) : 1x1x2x2xf32\n  output(y=%s)\n}}\n"
    )
    assert overwritten_summand(graph) == name
