"""Models written for TensorFlow compute there what QIR's reference predicts, to the bit."""

from collections.abc import Iterator

import numpy as np
import pytest

from qir.backends.tensorflow import session

from .networks import branches, inverted, residual
from .written import close, compared, quantized

pytest.importorskip("tensorflow")
NETWORKS = {"residual": residual, "inverted": inverted, "branches": branches}


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    yield
    session.close()


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("low", [True, False], ids=["signed", "unsigned"])
def test_every_quantized_tensor_is_tensorflows(name: str, low: bool) -> None:
    net = NETWORKS[name](7)
    made = quantized(net.graph, net.feeds(4, low=low))
    feeds = net.feeds(16)
    feeds["x"] *= np.float32(1.5)  # beyond what was seen: values saturate
    assert compared(made, feeds) > 10_000


@pytest.mark.parametrize("name", NETWORKS)
def test_float_networks_are_close(name: str) -> None:
    net = NETWORKS[name](8)
    close(net.graph, net.feeds(4))
