"""One process of the interpreter for all tests of this folder."""

from collections.abc import Iterator

import pytest

from qir.backends.tflite import session


@pytest.fixture(scope="session", autouse=True)
def one_process() -> Iterator[None]:
    yield
    session.close()
