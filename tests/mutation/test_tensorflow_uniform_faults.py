"""One field of the profile of TensorFlow's uniform ops changed: they find it, or it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.differential.tensorflow import test_tensorflow_uniform as uniform
from tests.differential.tensorflow.kernels import TensorFlow
from tests.mutation.fields import Mutant
from tests.mutation.indistinct import all_found, none_found
from tests.mutation.replay import Replay

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runtime() -> Iterator[TensorFlow]:
    made = TensorFlow(onednn=False)
    yield made
    made.close()


def replayed(runtime: TensorFlow) -> Replay:
    """All that the ops gave."""
    replay = Replay()
    for kind in ("qint8", "quint8"):
        for many in (False, True):
            replay.add(
                lambda kind=kind, many=many: (  # type: ignore[misc]
                    uniform.quantized(runtime, kind, many=many, trials=8).holds("exact")
                )
            )
        replay.add(lambda kind=kind: uniform.dequantized(runtime, kind).holds("exact"))  # type: ignore[misc]
    for kind in ("qint8", "qint32"):
        replay.add(lambda kind=kind: uniform.requantized(runtime, kind).holds("exact"))  # type: ignore[misc]
        replay.add(lambda kind=kind: uniform.far_requantized(runtime, kind).holds("exact"))  # type: ignore[misc]
    for far in (False, True):
        replay.add(lambda far=far: uniform.multiplied(runtime, far=far).holds("exact"))  # type: ignore[misc]
        replay.add(lambda far=far: uniform.convolved(runtime, far=far).holds("exact"))  # type: ignore[misc]
    return replay


def agreeing(runtime: TensorFlow) -> Callable[[Mutant], None]:
    """Whether a changed profile still gives what the ops gave."""
    replay = replayed(runtime)
    return lambda mutant: replay.agrees()


def test_a_changed_field_is_found_or_listed(runtime: TensorFlow) -> None:
    all_found(uniform.NAME, agreeing(runtime))


@pytest.mark.long
def test_what_is_listed_is_not_found(runtime: TensorFlow) -> None:
    none_found(uniform.NAME, agreeing(runtime))
