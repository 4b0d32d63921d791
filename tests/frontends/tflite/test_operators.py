"""Files of one operator: what is read computes the bytes that TensorFlow Lite's kernels gave."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import qir
from backends.tflite.models import OpFileWriter, runtime, to_file_layout
from tests.counting import note
from tests.differential.tflite.test_tflite_vectors import VECTORS, recorded, reference
from tests.oracles.tflite_cases import SUITES, OpCase
from tests.oracles.tflite_dynamic import WITHOUT_DELEGATE
from tests.oracles.tflite_more import WITHOUT_REFERENCE
from tests.sampling import sample

UNREAD = ("recode_i16_i32",)
"""Suites of what no reader makes: quantized values of 32 bits."""
CASES = 4


def computed(case: OpCase, path: Path, profile: str | None) -> np.ndarray:
    """Writes a case as a file, reads it, and runs what was read."""
    _, schema, _ = runtime("tensorflow")
    path.write_bytes(OpFileWriter(schema, case).model())
    graph = qir.load(path)
    feeds = {
        value.name: to_file_layout(case, case.operands[slot].data)
        for value, slot in zip(graph.inputs, case.fed, strict=True)
    }
    (made,) = qir.run(graph, feeds, profile=profile).values()
    return to_file_layout(case, made, back=True).reshape(case.shape)


@pytest.mark.sampled(40)
@pytest.mark.parametrize("name", [name for name in SUITES if name not in UNREAD])
@pytest.mark.parametrize("who", ["ref", "xnnpack"])
def test_what_is_read_computes_the_bytes_of_the_kernels(
    name: str, who: str, tmp_path: Path
) -> None:
    if name in (WITHOUT_REFERENCE if who == "ref" else WITHOUT_DELEGATE):
        pytest.skip(f"{who} has no kernel for it")
    # What a file is read as says XNNPACK; the reference's kernels are asked for.
    profile = reference(name) if who == "ref" else None
    pairs = recorded(VECTORS / "tflite", name, who)
    for case, wanted in sample(f"read {name} {who}", pairs, CASES):
        found = computed(case, tmp_path / "one.tflite", profile)
        assert found.dtype == wanted.dtype
        note(found, wanted)
        assert np.array_equal(found, wanted), f"{case.op}: {np.count_nonzero(found != wanted)}"


def test_values_of_32_bits_are_refused_by_name(tmp_path: Path) -> None:
    (case, _), *_ = recorded(VECTORS / "tflite", UNREAD[0], "ref")
    with pytest.raises(qir.errors.InputError, match="QUANTIZE result is not read"):
        computed(case, tmp_path / "one.tflite", None)
