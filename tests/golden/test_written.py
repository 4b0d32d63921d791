"""QIR writes the bytes that it wrote before, of small networks and of asset models."""

from __future__ import annotations

import pytest

from tests.golden.written import ASSETS, MODELS, NETWORKS, found, of_asset, of_network, recorded

AGAIN = "if this is meant, say so in the CHANGELOG and run `python -m tests.golden.written`"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_written_as_recorded(name: str) -> None:
    assert of_network(name) == recorded()[name], AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_asset_model_is_written_as_recorded(name: str) -> None:
    if name not in found():
        pytest.skip(f"no {name}.onnx in {ASSETS}: set QIR_ASSETS")
    assert of_asset(name) == recorded()[name], AGAIN


def test_the_record_holds_what_is_compared_and_no_more() -> None:
    assert list(recorded()) == [*NETWORKS, *MODELS]
    assert len(set(recorded().values())) == len(recorded())
