"""Weights that are cut into gates by sizes which the model asks for, while others stay open."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper

import qir
from tests.differential.runtime import run

from .models import model, save

HIDDEN, INPUTS, STEPS = 6, 8, 5
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2)}
"""The order in which ONNX has the gates that torch writes one after another."""
node = helper.make_node


def begun(zeros: str) -> list[NodeProto]:
    """A state of zeros, as large as the batch; and the last of its sizes, asked of it."""
    return [
        node("Shape", ["x"], ["batch"], start=1, end=2),
        node("Concat", ["one", "batch", "hidden"], ["sizes"], axis=0),
        node(zeros, ["nought", "sizes"] if zeros == "Expand" else ["sizes"], ["h0"]),
        node("Shape", ["h0"], ["size"], start=2, end=3),
    ]


def cut(name: str, order: tuple[int, ...]) -> list[NodeProto]:
    """Constant weights in another order of gates, with an axis for the direction in front."""
    nodes = []
    for gate in range(len(order)):
        nodes += [
            node("Mul", ["size", f"times{gate}"], [f"{name}.from{gate}"]),
            node("Mul", ["size", f"times{gate + 1}"], [f"{name}.to{gate}"]),
            node(
                "Slice",
                [name, f"{name}.from{gate}", f"{name}.to{gate}", "first"],
                [f"{name}.{gate}"],
            ),
        ]
    nodes.append(node("Concat", [f"{name}.{g}" for g in order], [f"{name}.gates"], axis=0))
    return [*nodes, node("Unsqueeze", [f"{name}.gates", "first"], [f"{name}.cut"])]


@pytest.mark.parametrize("zeros", ["Expand", "ConstantOfShape"])
@pytest.mark.parametrize("kind", GATES)
def test_a_layer_whose_weights_are_cut_by_sizes_asked_for_is_a_layer(
    kind: str, zeros: str, tmp_path: Path
) -> None:
    rng, order = np.random.default_rng(11), GATES[kind]
    held: dict[str, NDArray[np.generic]] = {
        "w": rng.normal(size=(len(order) * HIDDEN, INPUTS)).astype(np.float32),
        "r": rng.normal(size=(len(order) * HIDDEN, HIDDEN)).astype(np.float32),
        "nought": np.array(0, np.float32),
        "one": np.array([1]),
        "hidden": np.array([HIDDEN]),
        "first": np.array([0]),
        **{f"times{i}": np.array(i) for i in range(len(order) + 1)},
    }
    state = ["h0"] * (2 if kind == "LSTM" else 1)
    layer = node(kind, ["x", "w.cut", "r.cut", "", "", *state], ["y", "h"], hidden_size=HIDDEN)
    proto = model(
        [*begun(zeros), *cut("w", order), *cut("r", order), layer],
        {"x": (TensorProto.FLOAT, [STEPS, "N", INPUTS])},
        {n: (TensorProto.FLOAT, None) for n in "yh"},
        held,
        opset=20,
    )
    graph = qir.load(save(proto, tmp_path))
    ops = [n.op for n in graph]
    assert "foreign" not in ops
    assert kind.lower() in ops
    feeds = {"x": rng.normal(size=(STEPS, 3, INPUTS)).astype(np.float32)}
    wanted, found = run(proto, feeds, optimize=False), qir.run(graph, feeds)
    for name, data in wanted.items():
        assert np.allclose(found[name], data, 1e-5, 1e-6)
