"""Quantized files become program files without a step in Python, with the interpreter's bytes."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.cpu.compiled import Compiled
from tests.counting import note
from tests.differential.tensorflow.kernels import HAS_VNNI
from tests.frontends.comparison import difference

from .networks import NETWORKS, build, converted, drawn, interpreted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI"),
]
NEAR = 1e-4
"""How near floats are that a network returns."""
SEED = 12
WITH_PYTHON = {"moves", "unread"}
"""Networks with a quotient of two tensors, and with a layer that XNNPACK misreads."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["int8", "int8_float_ends"])
@pytest.mark.parametrize("name", sorted(NETWORKS.keys() - WITH_PYTHON))
def test_a_program_file_computes_what_the_interpreter_computes(
    name: str, kind: str, tmp_path: Path
) -> None:
    path = converted(build(NETWORKS[name], SEED), kind, SEED, tmp_path / "net.tflite")
    graph = qir.load(path)
    compiled = qir.compile(graph)
    assert isinstance(compiled, Compiled)
    compiled.save(tmp_path / "net.qirp")
    program = qir.load_program(tmp_path / "net.qirp")
    for seed in range(3):
        feeds = drawn(graph, seed)
        wanted = interpreted(path, list(feeds.values()))
        for ours, theirs in zip(program(**feeds).values(), wanted, strict=True):
            if theirs.dtype.kind == "f":
                assert difference(np.asarray(ours), theirs, NEAR) == ""
                continue
            note(np.asarray(ours), theirs)
            assert np.array_equal(np.asarray(ours), theirs), name
