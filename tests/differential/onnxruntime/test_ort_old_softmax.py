"""Softmax before opset 13, which takes all axes from its own on as one: onnxruntime's on
integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir.reference.interpreter import run
from tests.counting import note
from tests.differential.fusion import grouped
from tests.differential.runtime import optimized

Array = NDArray[np.generic]
TYPES = {"u8": np.uint8, "i8": np.int8}
SHAPES = ((40, 60, 5), (6, 5, 4, 3), (7, 9, 1, 1), (1, 2, 30), (12, 33))


class Draw:
    """A model of one such op between a dequantize and a quantize, and what may stand about it."""

    def __init__(self, seed: int, kind: str, op: str = "Softmax") -> None:
        self.rng = rng = np.random.default_rng(seed)
        self.kind, self.op, self.opset = TYPES[kind], op, 10 + seed % 3
        self.shape = SHAPES[seed // 3 % len(SHAPES)]
        self.nodes: list[onnx.NodeProto] = []
        self.held: list[onnx.TensorProto] = []
        ends = np.iinfo(self.kind)
        self.data = rng.integers(ends.min, ends.max + 1, self.shape).astype(self.kind)
        self.data_map = (rng.choice([0.5, 0.25, 0.1, 1 / 32]), int(rng.integers(ends.min, 127)))
        low = ends.min + (0 if seed % 4 else 2 * int(rng.integers(0, 9)) + 1)
        self.made_map = (rng.choice([1 / 256, 1 / 255, rng.uniform(1e-4, 0.1)]), low)

    def map(self, name: str, numbers: tuple[float, int]) -> list[str]:
        scale, zero = np.float32(numbers[0]), self.kind(numbers[1])
        given = {f"{name}_scale": scale, f"{name}_zero": zero}
        self.held += [numpy_helper.from_array(np.asarray(v), n) for n, v in given.items()]
        return list(given)

    def add(self, op: str, *inputs: str, **attrs: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], **attrs))
        return name

    def model(self, *, axis: int | None, turn: bool, cut: str, read: bool) -> onnx.ModelProto:
        """`turn`: transposes stand about it; `cut`: an activation behind; `read`: another reader of
        what the op makes."""
        perm = list(range(len(self.shape)))[::-1]
        x = self.add("DequantizeLinear", "x", *self.map("x", self.data_map))
        x = self.add("Transpose", x, perm=perm) if turn else x
        made = self.add(self.op, x, **({} if axis is None else {"axis": axis}))
        real = made
        x = self.add(cut, made) if cut else made
        x = self.add("Transpose", x, perm=perm) if turn else x
        self.add("QuantizeLinear", x, *self.map("y", self.made_map))
        self.nodes[-1].output[0] = "y"
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(self.kind))
        results = [helper.make_tensor_value_info("y", kind, None)]
        results += [helper.make_tensor_value_info(real, TensorProto.FLOAT, None)] * read
        given = [helper.make_tensor_value_info("x", kind, self.shape)]
        graph = helper.make_graph(self.nodes, "soft", given, results, self.held)
        sets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=sets, ir_version=8)


def compared(draw: Draw, model: onnx.ModelProto) -> tuple[bool, bool]:
    """Whether onnxruntime, and QIR, compute on integers; the bytes are the same."""
    feeds = {"x": draw.data}
    wanted, made = optimized(model, feeds)
    graph = grouped(model)
    found = np.asarray(run(graph, feeds)["y"])
    note(found, wanted["y"])
    assert (found.dtype, found.shape) == (wanted["y"].dtype, wanted["y"].shape)
    assert (found == wanted["y"]).all(), f"{np.count_nonzero(found != wanted['y'])} differ"
    heads = [n for n in graph if "softmax" in (n.op, *(s.op for s in n.stages))]
    kernels = [n.op_type for n in made.graph.node if n.domain == "com.microsoft"]
    return "QLinearSoftmax" in kernels, any(n.result.type.quant for n in heads)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("seed", range(30))
def test_a_softmax_of_axes_taken_as_one_is_on_codes(seed: int, kind: str) -> None:
    draw = Draw(seed, kind)
    axis = [None, *range(-len(draw.shape), len(draw.shape))][seed % (2 * len(draw.shape) + 1)]
    model = draw.model(axis=axis, turn=seed % 5 == 3, cut=("", "Relu")[seed % 7 == 2], read=False)
    there, here = compared(draw, model)
    assert there == here, f"on codes in onnxruntime: {there}, here: {here}"


def test_one_whose_reals_are_read_stays_real() -> None:
    draw = Draw(4, "u8")
    assert compared(draw, draw.model(axis=1, turn=False, cut="", read=True)) == (False, False)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("axis", [1, 2])
def test_sizes_that_are_open_are_taken_as_one(axis: int, kind: str) -> None:
    for seed in (1, 4, 5):
        draw = Draw(seed, kind)
        model = draw.model(axis=axis, turn=False, cut="", read=False)
        for i, size in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
            size.dim_param = f"size{i}"
        assert compared(draw, model) == (True, True)


@pytest.mark.parametrize("op", ["LogSoftmax", "Hardmax"])
def test_others_that_take_axes_as_one_have_no_kernel(op: str) -> None:
    draw = Draw(1, "u8", op)
    draw.made_map = (0.05, 200)
    model = draw.model(axis=1, turn=False, cut="", read=False)
    assert compared(draw, model) == (False, False)
    made = [n.op for n in grouped(model) if any(v.type.quant for v in n.results)]
    assert made == ["input", "quantize"], made
