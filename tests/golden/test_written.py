"""QIR writes the bytes that it wrote before, of small networks and of asset models."""

from __future__ import annotations

import pytest

from tests.golden.written import (
    ASSETS,
    MODELS,
    NETWORKS,
    available_assets,
    digest_of_asset,
    digest_of_network,
    recorded_digests,
)

AGAIN = "if this is meant, say so in the CHANGELOG and run `python -m tests.golden.written`"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_is_written_as_recorded(name: str) -> None:
    assert digest_of_network(name) == recorded_digests()[name], AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_an_asset_model_is_written_as_recorded(name: str) -> None:
    if name not in available_assets():
        pytest.skip(f"no {name}.onnx in {ASSETS}: set QIR_ASSETS")
    assert digest_of_asset(name) == recorded_digests()[name], AGAIN


def test_the_record_holds_what_is_compared_and_no_more() -> None:
    assert list(recorded_digests()) == [*NETWORKS, *MODELS]
    assert len(set(recorded_digests().values())) == len(recorded_digests())
