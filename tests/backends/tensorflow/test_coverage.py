"""The page of TensorFlow's ops is what the tables and the tests make of it."""

import pytest

from . import coverage

pytest.importorskip("tensorflow")


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    assert coverage.PAGE.read_text(encoding="utf-8") == coverage.page(), (
        "run: python -m tests.backends.tensorflow.coverage"
    )


def test_every_op_that_the_page_calls_read_has_its_test() -> None:
    folder = coverage.ROOT / coverage.READ
    for test in set(coverage.read().values()):
        assert (folder / test).is_file(), test
