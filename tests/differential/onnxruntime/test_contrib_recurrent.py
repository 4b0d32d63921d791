"""DynamicQuantizeLSTM beside onnxruntime's, step after step.

Its products are sums of integers and exact; sigmoid and tanh are approximations in float32, whose
last bits a state may carry over a tie of its own quantization: then a step of 1/255 of the state's
range, times the weights, is added. So results are held to a thousandth of the greatest.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from qir import pipeline
from tests.differential import runtime

from .contrib import Case, F, loaded, near, one

FLOAT = TensorProto.FLOAT
BOUND = 1e-3
HIDDEN, INPUT, LENGTH, BATCH = 5, 7, 4, 3


def layer(
    seed: int, sides: int, kind: Any, *, columns: bool, more: str, zero: int
) -> list[tuple[str, Any] | None]:
    rng = np.random.default_rng(seed)
    low, high = (-60, 60) if kind is np.int8 else (60, 190)

    def random_integers(*shape: int) -> Any:
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
        ("w", random_integers(sides, INPUT, 4 * HIDDEN)),
        ("r", random_integers(sides, HIDDEN, 4 * HIDDEN)),
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


RESULTS = {"y": FLOAT, "yh": FLOAT, "yc": FLOAT}
LENGTHS = ([4, 4, 4], [1, 4, 2], [3, 1, 2], [2, 0, 3], [1, 1, 1])


def ended(
    lengths: list[int], direction: str, *, fed: tuple[str, ...], results: Mapping[str, int]
) -> Case:
    """A layer over sequences that end early."""
    sides = 2 if direction == "bidirectional" else 1
    operands = layer(sum(lengths), sides, np.int8, columns=True, more="bhcp", zero=0)
    operands[4] = ("lengths", np.array(lengths, np.int32))
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": HIDDEN}
    return one("DynamicQuantizeLSTM", operands, fed, results, **attrs)


@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("fed", [("x",), ("x", "h", "c", "lengths")], ids=len)
def test_sequences_end_early(lengths: list[int], direction: str, fed: tuple[str, ...]) -> None:
    near(ended(lengths, direction, fed=fed, results=RESULTS), BOUND)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
def test_a_batch_of_any_size_ends_early(direction: str) -> None:
    """Nobody says how many sequences there are, so their number is a name."""
    operands = layer(44, 1 + (direction != "forward"), np.int8, columns=True, more="b", zero=0)
    operands[4] = ("lengths", np.array([3, 1, 4], np.int32))
    attrs: dict[str, Any] = {"direction": direction, "hidden_size": HIDDEN}
    case = one("DynamicQuantizeLSTM", operands, ["x", "lengths"], RESULTS, **attrs)
    for info, places in (("x", (0, 1)), ("lengths", (0,))):
        (given,) = (i for i in case.proto.graph.input if i.name == info)
        for place in places:
            given.type.tensor_type.shape.dim[place].dim_param = "TN"[place] if info == "x" else "N"
    near(case, BOUND)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_states_that_nobody_reads_step_by_step_stay_as_they_were(direction: str) -> None:
    """Where y is left out, a sequence that is over still counts in the range of the states."""
    results = {"": 0, "yh": FLOAT, "yc": FLOAT}
    for lengths in ([1, 4, 2], [3, 1, 2]):
        near(ended(lengths, direction, fed=("x",), results=results), BOUND)


def test_what_lies_behind_the_longest_sequence_is_not_read() -> None:
    """It would widen the range by which all of the input is quantized."""
    for direction in ("forward", "reverse"):
        case = ended([2, 1, 3], direction, fed=("x", "lengths"), results=RESULTS)
        case.feeds["x"][3] = 1000
        near(case, BOUND)


@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("lengths", [[2, 0, 3], [4, 1, 4]], ids=str)
def test_parts_of_a_layer_of_ended_sequences_compute_what_it_does(
    tmp_path: Path, direction: str, lengths: list[int]
) -> None:
    case = ended(lengths, direction, fed=("x", "lengths"), results=RESULTS)
    made = tmp_path / "parts.onnx"
    pipeline.save(loaded(case.proto), made, target="onnx", force=True)
    written = onnx.load(made)
    assert not {n.domain for n in written.graph.node} - {""}
    theirs, mine = case.judged(), runtime.run(written, case.feeds, optimize=False)
    for name, data in theirs.items():
        assert np.abs(mine[name] - data).max() <= BOUND * np.abs(data).max(), name


CURVES: dict[str, tuple[list[float], list[float]]] = {
    "Relu": ([], []),
    "Affine": ([0.7], [0.1]),
    "LeakyRelu": ([0.2], []),
    "ThresholdedRelu": ([0.1], []),
    "ScaledTanh": ([0.8], [1.3]),
    "HardSigmoid": ([0.3], [0.4]),
    "Elu": ([0.9], []),
    "Softsign": ([], []),
    "Softplus": ([], []),
    "Tanh": ([], []),
    "Sigmoid": ([], []),
}


CHOSEN = [*((n, True) for n in CURVES), *((n, False) for n, held in CURVES.items() if held[0])]


@pytest.mark.parametrize(("name", "said"), CHOSEN)
def test_gates_and_states_have_other_activations(name: str, said: bool) -> None:
    """Each at each of the three places, with numbers of its own and those that it has without."""
    operands = layer(43, 1, np.int8, columns=False, more="b", zero=0)
    alpha, beta = CURVES[name]
    for place in range(3):
        names = ["Sigmoid", "tanh", "Tanh"]
        names[place] = name
        attrs: dict[str, Any] = {"hidden_size": HIDDEN, "activations": names, "clip": 0.9}
        if said and alpha:
            attrs["activation_alpha"] = alpha
        if said and beta:
            attrs["activation_beta"] = beta
        near(one("DynamicQuantizeLSTM", operands, ["x"], RESULTS, **attrs), BOUND)
