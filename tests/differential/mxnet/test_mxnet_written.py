"""What MXNet gave for networks that QIR quantized for it and wrote, tensor by tensor."""

from __future__ import annotations

import pytest

from tests.backends.mxnet.networks import NETWORKS, data
from tests.backends.mxnet.written import integers, quantized, recorded
from tests.differential.predictions import Count


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_that_were_written_give_the_bytes_of_mxnet(name: str) -> None:
    count, found = Count(), integers(quantized(NETWORKS[name](), data()), data())
    _, wanted = recorded(name)
    for tensor, array in wanted.items():
        count.add(found[tensor], array, f"{name} {tensor}")
    count.holds("exact")
