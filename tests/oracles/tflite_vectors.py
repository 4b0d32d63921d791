"""Records what TensorFlow Lite computes: `make oracle-tflite`.

For each suite of `tflite_cases` a file holds the results of the reference kernels one after the
other, how far those of the XNNPACK delegate are from them, and a hash of all inputs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from tests.oracles.tflite_cases import SUITES, digest
from tests.oracles.tflite_models import Runner, runtime

VECTORS = Path(__file__).parents[1] / "differential" / "vectors" / "tflite"


def record(names: list[str], folder: Path) -> None:
    """Writes a file for each suite."""
    version, schema, interpreter = runtime()
    runner = Runner(schema, interpreter)
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        cases = list(SUITES[name]())
        found = {
            who: np.concatenate([runner.run(case, who).ravel() for case in cases])
            for who in ("ref", "xnnpack")
        }
        apart = found["xnnpack"].astype(np.float64) - found["ref"].astype(np.float64)
        kind = np.int16 if found["ref"].dtype.kind != "f" else np.float32
        np.savez_compressed(
            folder / f"{name}.npz",
            ref=found["ref"],
            xnnpack=apart.astype(kind),
            inputs=digest(cases),
            runtime=version,
        )
        print(f"{name}: {apart.size} results, {np.count_nonzero(apart)} differ under XNNPACK")


if __name__ == "__main__":
    record(sys.argv[1:] or list(SUITES), VECTORS)
