"""One TensorFlow process for all tests of this folder."""

from collections.abc import Iterator

import pytest

from qir.backends.tensorflow import session


@pytest.fixture(scope="session", autouse=True)
def one_process() -> Iterator[None]:
    yield
    session.close()
