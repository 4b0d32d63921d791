"""What comparisons with runtimes share: runtimes in processes of their own, and what runs whole."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

CORE = ("test_claims.py", "test_richness.py")
"""Files that hold every profile to what was counted: they are run whole each time."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.path.name in CORE:
            item.add_marker(pytest.mark.whole)


@pytest.fixture(scope="session")
def vnni() -> Iterator[ProcessPoolExecutor]:
    """A process whose oneDNN knows no more than VNNI; it imports torch once for all files."""
    from tests.differential.torch.kernels import processor

    with processor("AVX512_CORE_VNNI") as pool:
        yield pool


@pytest.fixture(scope="session")
def runtimes() -> Iterator[Mapping[str, object]]:
    """TensorFlow with oneDNN and without, by profile; each starts once for all files."""
    from tests.differential.tensorflow.kernels import started

    with started() as by_profile:
        yield by_profile


@pytest.fixture(scope="session")
def runtime(runtimes: Mapping[str, object]) -> object:
    """TensorFlow with oneDNN."""
    return runtimes["tf-2.21.onednn"]
