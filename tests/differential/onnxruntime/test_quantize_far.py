"""QuantizeLinear of floats that 32 bits of steps do not hold, as the guide tells them apart."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir import pipeline
from tests.differential.runtime import run

KINDS = {
    "i8": TensorProto.INT8,
    "u8": TensorProto.UINT8,
    "i16": TensorProto.INT16,
    "u16": TensorProto.UINT16,
    "i4": TensorProto.INT4,
    "u4": TensorProto.UINT4,
    "i2": TensorProto.INT2,
    "u2": TensorProto.UINT2,
}
SATURATES = tuple(map(int, onnxruntime.__version__.split(".")[:2])) >= (1, 32)
"""Whether onnxruntime ends far floats where QIR does: since 1.32."""
NEAR = [2.0**30, -(2.0**30), 3e8, -3e8, 100, -100, 2.5, 1.5, -0.5, 0]
FAR = [np.inf, -np.inf, np.nan, 2.0**32, -(2.0**33), 2.0**40, -(2.0**50), 2.0**31]


def model(kind: str, real: int, scale: float, zero: int) -> onnx.ModelProto:
    code, bits = KINDS[kind], int(kind[1:])
    z = onnx.TensorProto(name="z", data_type=code)
    z.raw_data = (zero & ((1 << bits) - 1)).to_bytes(2 if bits == 16 else 1, "little")
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("Cast", ["q"], ["y"], to=TensorProto.FLOAT),
    ]
    x = helper.make_tensor_value_info("x", real, ["n"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])
    held = [helper.make_tensor("s", real, [], [scale]), z]
    of = [helper.make_opsetid("", 25)]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=of, ir_version=12)


def ends(kind: str) -> tuple[int, int]:
    bits = int(kind[1:])
    low = 0 if kind[0] == "u" else -(1 << bits - 1)
    return low, low + (1 << bits) - 1


def both(
    proto: onnx.ModelProto, x: NDArray[np.generic], path: Path
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """What QIR makes of data, and what onnxruntime does."""
    onnx.save(proto, path)
    found = pipeline.run(pipeline.load(path), {"x": x})["y"]
    return found, run(proto, {"x": x}, optimize=False)["y"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("half", [False, True])
def test_reals_too_far_out(tmp_path: Path, kind: str, half: bool) -> None:
    """float16, and integers of two bits: in 32 bits, where sums with zero points wrap."""
    if not half and kind not in ("i2", "u2"):
        return
    real = TensorProto.FLOAT16 if half else TensorProto.FLOAT
    carrier = np.dtype(np.float16 if half else np.float32)
    scale = 6e-8 if half else 0.5
    low, high = ends(kind)
    for zero in (low, -1 if low else 0, 0, 1):
        proto = model(kind, real, scale, zero)
        with np.errstate(over="ignore"):
            near, far = ((np.array(n) * scale).astype(carrier) for n in (NEAR, FAR))
            steps = far.astype(np.float64) / float(carrier.type(scale))
        found, wanted = both(proto, np.tile(near, 9), tmp_path / "m.onnx")
        assert np.array_equal(found, wanted)
        found, theirs = both(proto, np.tile(far, 9), tmp_path / "m.onnx")
        mine = np.where(np.isnan(steps) | (steps < 0), low, high)
        assert np.array_equal(found, np.tile(mine, 9))
        beyond = high if zero < 0 else low
        assert np.array_equal(theirs, found if SATURATES else np.full_like(theirs, beyond))


@pytest.mark.parametrize("kind", ["i4", "u4"])
def test_the_last_of_an_odd_count(tmp_path: Path, kind: str) -> None:
    proto, (low, high) = model(kind, TensorProto.FLOAT, 0.5, 0), ends(kind)
    found, theirs = both(proto, np.full(21, 2.0**31, np.float32), tmp_path / "m.onnx")
    assert np.array_equal(found, np.full(21, high))
    assert np.array_equal(theirs, [high] * 20 + [high if SATURATES else low])


@pytest.mark.parametrize("kind", ["i8", "u8", "i16", "u16"])
def test_float32_is_the_same_however_far(tmp_path: Path, kind: str) -> None:
    for zero in (-1 if kind[0] == "i" else 0, 0, 3):
        x = np.tile(np.array([*NEAR, *FAR], np.float32), 5)
        found, theirs = both(model(kind, TensorProto.FLOAT, 0.5, zero), x, tmp_path / "m.onnx")
        assert np.array_equal(found, theirs)
