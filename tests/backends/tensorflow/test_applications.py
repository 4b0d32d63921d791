"""Every network of keras.applications computes in int8 what is predicted: `make test-all`."""

import pytest

from tests.differential.tensorflow.kernels import HAS_VNNI

from . import applications

tf = pytest.importorskip("tensorflow")
SHARE = {"MobileNetV3Large": 0.8, "MobileNetV3Small": 0.8}


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
@pytest.mark.parametrize("name", applications.NAMES)
def test_a_network_of_keras_computes_in_int8_what_is_predicted(name: str) -> None:
    held = applications.measured(name)
    assert held.share >= SHARE.get(name, 0.95)
    assert held.found.integers > 100_000
    assert held.found.far <= 1e-5
    assert held.found.tied <= 1e-4 * held.found.integers


def test_the_page_lists_networks_of_keras() -> None:
    found = {name for name in dir(tf.keras.applications) if name[0].isupper()}
    assert set(applications.NAMES) == found
    assert applications.rows().keys() <= found
