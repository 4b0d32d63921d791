"""DynamicQuantizeLSTM beside onnxruntime's, step after step.

Its products are sums of codes and exact; sigmoid and tanh are approximations in float32, whose
last bits a state may carry over a tie of its own quantization: then a step of 1/255 of the state's
range, times the weights, is added. So results are held to a thousandth of the greatest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from .contrib import F, near, one

FLOAT = TensorProto.FLOAT
BOUND = 1e-3
HIDDEN, INPUT, LENGTH, BATCH = 5, 7, 4, 3


def layer(
    seed: int, sides: int, kind: Any, *, columns: bool, more: str, zero: int
) -> list[tuple[str, Any] | None]:
    rng = np.random.default_rng(seed)
    low, high = (-60, 60) if kind is np.int8 else (60, 190)

    def codes(*shape: int) -> Any:
        return rng.integers(low, high, shape).astype(kind)

    size = (sides, 4 * HIDDEN) if columns else (sides,)
    scale = [np.asarray(rng.random(size) * 0.004 + 0.002, F) for _ in "wr"]
    zeros = np.full(size, zero if kind is np.int8 else 125, kind)
    extra: dict[str, Any] = {
        "b": rng.normal(size=(sides, 8 * HIDDEN)).astype(F),
        "h": rng.normal(size=(sides, BATCH, HIDDEN)).astype(F),
        "c": rng.normal(size=(sides, BATCH, HIDDEN)).astype(F),
        "p": rng.normal(size=(sides, 3 * HIDDEN)).astype(F),
    }
    parts = {n: (n, a) if n in more else None for n, a in extra.items()}
    return [
        ("x", rng.normal(size=(LENGTH, BATCH, INPUT)).astype(F)),
        ("w", codes(sides, INPUT, 4 * HIDDEN)),
        ("r", codes(sides, HIDDEN, 4 * HIDDEN)),
        parts["b"],
        None,
        parts["h"],
        parts["c"],
        parts["p"],
        ("ws", scale[0]),
        ("wz", zeros),
        ("rs", scale[1]),
        ("rz", zeros),
    ]


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("more", ["", "b", "bhc", "bhcp"])
def test_a_layer_quantizes_as_it_runs(direction: str, kind: Any, columns: bool, more: str) -> None:
    sides = 2 if direction == "bidirectional" else 1
    operands = layer(41, sides, kind, columns=columns, more=more, zero=0)
    fed = ["x", *(n for n in "hc" if n in more)]
    results = {"y": FLOAT, "yh": FLOAT, "yc": FLOAT}
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": HIDDEN}
    near(one("DynamicQuantizeLSTM", operands, fed, results, **attrs), BOUND)


def test_numbers_that_are_computed_and_gates_that_are_kept() -> None:
    operands = layer(42, 1, np.int8, columns=True, more="b", zero=0)
    results = {"y": FLOAT, "yh": FLOAT, "yc": FLOAT}
    for forget in (0, 1):
        attrs: dict[str, Any] = {"hidden_size": HIDDEN, "clip": 0.4, "input_forget": forget}
        fed = ["x", "ws", "wz", "rs", "rz"]
        near(one("DynamicQuantizeLSTM", operands, fed, results, **attrs), BOUND)
