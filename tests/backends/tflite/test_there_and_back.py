"""Files of TensorFlow's converter, read and written again, compute the same bytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.forms import converted
from tests.frontends.comparison import difference

pytest.importorskip("tensorflow")
pytestmark = pytest.mark.slow
KINDS = ("float", "float16", "dynamic", "int8", "int16")
NAMES = "activations attention dense images inverted moves sequence unread windows".split()
ABSENT = {("images", "int16"), ("attention", "int16"), ("moves", "int16")}
"""Networks that TensorFlow's own interpreter refuses: it has no 16-bit kernel for their ops."""
DEFECTS = {("unread", "float"), ("unread", "float16"), ("unread", "dynamic")}
"""Float layers of which XNNPACK reads nothing as the converter writes them, and all as QIR does."""
CASES = [(name, kind) for name in NAMES for kind in KINDS]


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("name", "kind"), [c for c in CASES if c not in ABSENT | DEFECTS])
def test_a_file_written_again_computes_the_same(name: str, kind: str, tmp_path: Path) -> None:
    from tests.frontends.tflite import networks

    model = networks.build(networks.NETWORKS[name], 11)
    first = networks.converted(model, kind, 11, tmp_path / "first.tflite")
    graph = qir.load(first)
    second = tmp_path / "second.tflite"
    second.write_bytes(to_tflite(converted(graph, qir.Ledger())))
    for seed in range(3):
        feeds = list(networks.drawn(graph, seed).values())
        wanted, found = (networks.interpreted(path, feeds) for path in (first, second))
        for ours, theirs in zip(found, wanted, strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            if theirs.dtype.kind == "i":
                assert np.array_equal(ours, theirs)
            else:
                assert difference(ours, theirs, 1e-4) == ""
    back = qir.load(second)
    assert back.profile == graph.profile
