"""Networks of torch that onnxruntime's tools quantized go as docs/reference/onnx-tools.md says."""

from __future__ import annotations

import pytest

from . import ort_tools
from .tools_page import NETS, NONE, PAGE, SAME, STEPS, listed, outcome

FEW = (
    ("grouped", "qdq-QUInt8-QInt8-channel"),
    ("transformer", "qoperator-QUInt8-QInt8"),
    ("lstm", "dynamic-QUInt8"),
    ("embedding", "nbits-4-affine-qoperator"),
)


def goes_as_the_page_says(net: str, variant: str) -> None:
    found = outcome(net, variant)
    said = listed(PAGE.read_text(encoding="utf-8")).get((net, variant))
    assert (found is None) == (said is None), (net, variant)
    if found is None or said is None:
        return
    assert not found.silent, f"{net}, {variant}: the ledger says nothing of {found.silent}"
    for mine, theirs in zip(found.cells, said, strict=True):
        assert (mine == NONE) == (theirs == NONE), found
        assert mine == SAME or theirs != SAME, found
        assert mine != STEPS or theirs == STEPS, found


@pytest.mark.parametrize(("net", "variant"), FEW)
def test_some_go_as_the_page_says(net: str, variant: str) -> None:
    goes_as_the_page_says(net, variant)


@pytest.mark.long
@pytest.mark.parametrize("variant", ort_tools.ALL)
@pytest.mark.parametrize("net", NETS)
def test_all_go_as_the_page_says(net: str, variant: str) -> None:
    goes_as_the_page_says(net, variant)


def test_the_page_has_every_network_and_most_variants() -> None:
    said = listed(PAGE.read_text(encoding="utf-8"))
    for net in NETS:
        assert len([v for n, v in said if n == net]) > 0.8 * len(ort_tools.ALL), net
