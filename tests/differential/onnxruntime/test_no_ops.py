"""Operators that do nothing: onnxruntime removes them, and then merges the pairs around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.reference.interpreter import run
from tests.differential import runtime
from tests.differential.fusion import grouped

SHAPE = (2, 3, 4, 8)
Held = NDArray[np.generic]
Op = tuple[str, list[Held], dict[str, Any], bool]
"""An operator, its constants, its attributes, and whether the constant comes first."""


def f32(value: float, *shape: int) -> Held:
    return np.full(shape, value, np.float32)


def transposes(perm: Sequence[int]) -> list[Op]:
    back = [int(i) for i in np.argsort(perm)]
    return [("Transpose", [], {"perm": list(p)}, False) for p in (perm, back)]


NOTHING: dict[str, list[Op]] = {
    "mul": [("Mul", [f32(1)], {}, False)],
    "mul, a row": [("Mul", [f32(1, 1, 1)], {}, True)],
    "div": [("Div", [f32(1, 1)], {}, False)],
    "add": [("Add", [f32(0)], {}, False)],
    "add, first": [("Add", [f32(-0.0, 1)], {}, True)],
    "sub": [("Sub", [f32(0, 1, 1, 1, 1)], {}, False)],
    "cast": [("Cast", [], {"to": TensorProto.FLOAT}, False)],
    "expand": [("Expand", [np.array(SHAPE)], {}, False)],
    "expand by ones": [("Expand", [np.array([1, 1])], {}, False)],
    "transposes": transposes([0, 2, 3, 1]),
    "three transposes": [("Transpose", [], {"perm": [0, 2, 3, 1]}, False)] * 3,
    "dropout": [("Dropout", [], {}, False)],
    "identity": [("Identity", [], {}, False)],
}
STAYS: dict[str, list[Op]] = {
    "ones of the whole shape": [("Mul", [f32(1, *SHAPE)], {}, False)],
    "ones of a channel": [("Mul", [f32(1, 3, 1, 1)], {}, False)],
    "zeros of the whole shape": [("Add", [f32(0, *SHAPE)], {}, False)],
    "nearly 1": [("Mul", [np.nextafter(f32(1), f32(2))], {}, False)],
    "nearly 0": [("Add", [f32(1e-9)], {}, False)],
    "1 divided": [("Div", [f32(1)], {}, True)],
    "0 less": [("Sub", [f32(0)], {}, True)],
    "one maximum": [("Max", [], {}, False)],
    "two negations": [("Neg", [], {}, False), ("Neg", [], {}, False)],
}


def model(seed: int, ops: Sequence[Op], *, shown: bool = False) -> onnx.ModelProto:
    """Operators between two pairs of different parameters; `shown`: their result is the model's."""
    rng = np.random.default_rng(seed)
    scales = [f32(rng.uniform(0.02, 0.2)) for _ in range(2)]
    zeros = [np.array(rng.integers(20, 200), np.uint8) for _ in range(2)]
    held = [numpy_helper.from_array(s, f"s{i}") for i, s in enumerate(scales)]
    held += [numpy_helper.from_array(z, f"z{i}") for i, z in enumerate(zeros)]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s0", "z0"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s0", "z0"], ["v0"]),
    ]
    for i, (op, constants, attrs, first) in enumerate(ops):
        names = [f"c{i}.{j}" for j in range(len(constants))]
        held += [numpy_helper.from_array(c, n) for c, n in zip(constants, names, strict=True)]
        given = [*names, f"v{i}"] if first else [f"v{i}", *names]
        nodes.append(helper.make_node(op, given, [f"v{i + 1}"], **attrs))
    last = f"v{len(ops)}"
    nodes += [
        helper.make_node("QuantizeLinear", [last, "s1", "z1"], ["r"]),
        helper.make_node("DequantizeLinear", ["r", "s1", "z1"], ["y"]),
    ]
    outputs = ["y", last] if shown else ["y"]
    graph = helper.make_graph(
        nodes,
        "nothing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        held,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def differing(proto: onnx.ModelProto, seed: int) -> int:
    """How many elements differ between onnxruntime and what QIR predicts."""
    x = np.random.default_rng(seed).normal(0, 6, SHAPE).astype(np.float32)
    wanted = runtime.run(proto, {"x": x}, optimize=True)
    made = run(grouped(proto), {"x": x})
    return sum(int((made[name] != data).sum()) for name, data in wanted.items())


@pytest.mark.parametrize("name", [*NOTHING, *STAYS])
def test_what_does_nothing_is_removed_between_pairs(name: str) -> None:
    ops = NOTHING.get(name) or STAYS[name]
    for seed in range(3):
        assert not differing(model(seed, ops), seed), f"seed {seed}"
        assert not differing(model(seed, ops, shown=True), seed), f"seed {seed}, shown"


def test_removing_it_moves_numbers() -> None:
    """Without its optimizer, which removes nothing, onnxruntime gives other numbers."""
    proto = model(0, NOTHING["mul"])
    x = np.random.default_rng(0).normal(0, 6, SHAPE).astype(np.float32)
    one, other = (runtime.run(proto, {"x": x}, optimize=how)["y"] for how in (True, False))
    assert (one != other).mean() > 0.2


def test_random_rows_of_such_operators_are_predicted() -> None:
    several = [*NOTHING.values(), *STAYS.values()]
    for seed in range(120):
        rng = np.random.default_rng(seed)
        ops: list[Op] = []
        for i in rng.integers(0, len(several), rng.integers(1, 5)):
            if several[i] not in (NOTHING["three transposes"],):
                ops += several[i]
            if rng.random() < 0.2:
                ops.append(("Relu", [], {}, False))
        assert not differing(model(seed, ops), seed), f"seed {seed}: {[o[0] for o in ops]}"
