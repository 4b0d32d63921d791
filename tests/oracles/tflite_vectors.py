"""Records what TensorFlow Lite computes: `make oracle-tflite`.

For each suite of `tflite_cases` a file holds the results of the reference kernels one after the
other, how far those of the XNNPACK delegate are from them, and a hash of all inputs.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from backends.tflite.models import OpCase, Runner, runtime
from tests.oracles.tflite_cases import SUITES, digest
from tests.oracles.tflite_more import WITHOUT_REFERENCE

Array = NDArray[np.generic]
VECTORS = Path(__file__).parents[1] / "differential" / "vectors"
CHANGED = (
    "conv",
    "conv_u8",
    "conv_u8_ties",
    "depthwise",
    "depthwise_u8",
    "dynamic_conv",
    "dynamic_depthwise",
    "dynamic_linear_blocks",
    "dynamic_linear_i4",
    "dynamic_linear_one",
    "elu",
    "ends",
    "ends_i4",
    "ends_left",
    "ends_left_u8",
    "ends_u8",
    "far_add",
    "far_add_u8",
    "far_sub",
    "far_sub_u8",
    "linear_i4",
    "linear_i4_even",
    "linear_i4_even_ties",
    "linear_i4_ties",
    "matmul",
    "matmul_ties",
    "mean",
    "mean_tied",
    "mean_tied_u8",
    "pixels",
    "sigmoid",
    "sigmoid_u8",
    "sum",
    "sum_tied_u8",
    "sum_u8",
    "tanh",
    "tanh_u8",
    "tiny_hard_swish",
    "tiny_hard_swish_u8",
    "tiny_requantize",
    "tiny_requantize_u8",
    "unread_same",
    "unread_same_real",
    "unread_same_u8",
    "wide_add",
    "wide_add_u8",
    "wide_sub",
    "wide_sub_u8",
)
"""What LiteRT computes otherwise than TensorFlow 2.21, or is claimed of it alone: only
this is recorded of it."""


def results(runner: Runner, name: str, cases: list[OpCase]) -> dict[str, Array]:
    """The results of all cases one after the other, by resolver."""
    found = {
        who: np.concatenate([runner.run(case, who).ravel() for case in cases])
        for who in ("ref", "xnnpack")
        if who != "ref" or name not in WITHOUT_REFERENCE
    }
    return {"ref": found["xnnpack"], **found}


def _apart(found: Array, other: Array) -> Array:
    """How far integers are from others, or the bits in which floats differ."""
    if found.dtype.kind == "f":
        return np.asarray(found.view(np.uint32) ^ other.view(np.uint32))
    kind = other.dtype if other.dtype.itemsize > 2 else np.dtype(np.int16)
    return (found.astype(np.int64) - other.astype(np.int64)).astype(kind)


def record(names: list[str], into: Path | None) -> None:
    """Writes a file for each suite, into a folder or among the tests."""
    version, schema, interpreter = runtime()
    runner = Runner(schema, interpreter)
    newer = version.startswith("ai_edge_litert")
    folder = into or VECTORS / ("litert" if newer else "tflite")
    folder.mkdir(parents=True, exist_ok=True)
    for name in names or (CHANGED if newer else list(SUITES)):
        cases = list(SUITES[name]())
        found = results(runner, name, cases)
        apart = _apart(found["xnnpack"], found["ref"])
        np.savez_compressed(
            folder / f"{name}.npz",
            ref=found["ref"],
            xnnpack=apart,
            inputs=digest(cases),
            runtime=version,
        )
        print(f"{name}: {apart.size} results, {np.count_nonzero(apart)} differ under XNNPACK")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Records what TensorFlow Lite computes.")
    parser.add_argument("--to", type=Path, help="a folder other than the tests' own")
    parser.add_argument("suite", nargs="*")
    given = parser.parse_args()
    record(given.suite, given.to)
