"""The rows that run wherever the tests do: accuracy, integer share, every quantized tensor."""

from __future__ import annotations

import pytest

from .records import is_ipex, predicted_digest, recorded_measurement
from .rows import NETWORKS, ROWS, Row, float_accuracy, integer_share, measure

IPEX = [row for row in ROWS if is_ipex(row)]
HERE = [row for row in ROWS if row.target in ("onnxruntime", "pytorch-fbgemm")]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.framework} {row.data}")
def test_nearly_all_multiply_adds_are_on_integers(row: Row, name: str) -> None:
    assert integer_share(row, name) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("row", HERE, ids=lambda row: row.target)
def test_every_quantized_tensor_is_the_frameworks(row: Row, name: str) -> None:
    found = measure(row, name)
    assert found.differing == 0
    assert found.tensors > 10
    assert found.accuracy >= float_accuracy(name) - 1


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("row", IPEX, ids=lambda row: row.target)
def test_the_prediction_is_the_one_that_ipex_met(row: Row, name: str) -> None:
    predicted, found = recorded_measurement(row, name)
    assert predicted == predicted_digest(row, name)
    assert found.differing == 0
    assert found.accuracy >= float_accuracy(name) - 1
