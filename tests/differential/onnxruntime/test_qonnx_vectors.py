"""What qonnx's Quant gave, recorded, and what its profile says: equal, but for a zero's sign."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.types import TensorType, uniform
from qir.profiles import profile
from qir.reference.interpreter import run
from tests.counting import note
from tests.mutation.fields import Mutant, mutants, survivors
from tests.mutation.indistinct import same
from tests.oracles.qonnx_vectors import VECTORS, Case, cases, digest

PROFILE = "qonnx-1.0"
ROUNDS = {
    "ROUND": "even",
    "CEIL": "ceil",
    "FLOOR": "floor",
    "UP": "up",
    "DOWN": "down",
    "HALF_UP": "away",
}
FILE = Path(VECTORS) / "quant.npz"


def program(case: Case) -> Graph:
    """quantize and dequantize, the rounding stated by the node unless it is the profile's."""
    graph = Graph(profile=PROFILE)
    storage = dtype(f"{'i' if case.signed else 'u'}{case.bits}")
    quant = uniform(storage, np.float32(case.scale), case.zero, bounds=case.bounds)
    x = graph.add("input", types=[TensorType(case.x.shape, F32)], name="x").result
    stated = {} if case.mode == "ROUND" else {"round": ROUNDS[case.mode]}
    kind = TensorType(case.x.shape, quant)
    quantized = graph.add("quantize", {"x": x}, stated, types=[kind]).result
    graph.add("output", {"y": graph.add("dequantize", {"x": quantized}).result})
    return graph


def all_agree() -> None:
    """AssertionError where a result is not what qonnx gave."""
    with np.load(FILE) as file:
        assert str(file["inputs"]) == digest(), "recorded for other inputs"
        wanted = file["y"]
    for case, y in zip(cases(), wanted, strict=True):
        found = run(program(case), {"x": case.x})["y"]
        note(found, y)
        differ = int(np.count_nonzero(found != y))
        assert not differ, f"{case.mode} of {case.bits} bits: {differ} of {y.size} differ"


def test_quant_is_predicted() -> None:
    all_agree()


def test_the_recorded_cases_are_rich() -> None:
    ties = low = high = total = 0
    for case in cases():
        steps = case.x.astype(np.float64) / case.scale + case.zero
        ties += int(np.count_nonzero(np.abs(steps - np.floor(steps) - 0.5) < 1e-6))
        low += int(np.count_nonzero(np.rint(steps) < case.bounds[0]))
        high += int(np.count_nonzero(np.rint(steps) > case.bounds[1]))
        total += steps.size
    assert min(ties, low, high) >= 0.05 * total


def test_a_changed_field_is_found_or_listed() -> None:
    def agrees(mutant: Mutant) -> None:
        all_agree()

    assert survivors(mutants(profile(PROFILE)), agrees) == same(PROFILE)
