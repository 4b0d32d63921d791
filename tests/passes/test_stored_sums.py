"""The ledger says where a kernel stores a sum in the type of its summand, and saturates."""

import numpy as np
import pytest

import qir
from qir.ledger import Change
from qir.passes.forms.expand_qdq import ExpandQdq

SOURCE = """\
graph main as {profile} {{
  %x = input() : 1x2x2x2x!quant.uniform<u8:f32, 0.5>
  %s = input() : 1x2x2x2x!quant.uniform<{summand}:f32, 0.25>
  %w = constant(@w) : 2x2x1x1x!quant.uniform<i8:f32, 0.125>
  %y = conv2d(%x, %w) |> add(., %s) |> relu : 1x2x2x2x!quant.uniform<u8:f32, 0.25>
  output(y=%y)
}}
"""


@pytest.mark.parametrize(
    ("profile", "summand", "change"),
    [
        ("mxnet-1.9", "i8", Change.APPROXIMATED),
        ("mxnet-1.9", "u8", Change.REGROUPED),
        ("native", "i8", Change.REGROUPED),
    ],
)
def test_the_ledger_says_where_a_sum_saturates(profile: str, summand: str, change: Change) -> None:
    text = SOURCE.format(profile=profile, summand=summand)
    graph = qir.parse(text, {"w": np.ones((2, 2, 1, 1), np.int8)})
    ledger = qir.Ledger()
    assert ExpandQdq().run(graph, ledger) == 1
    (entry,) = ledger
    assert entry.change == change
    assert ("stores the sum as i8" in entry.reason) == (change is Change.APPROXIMATED)
