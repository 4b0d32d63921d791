"""Records what versions of onnxruntime compute that differ from each other; QIR is not needed.

for v in 1.20.1 1.28.0 1.29.0 1.30.0 1.31.1 1.32.0; do
  python -m venv lab && lab/bin/pip install onnxruntime==$v onnx
  lab/bin/python -m tests.oracles.onnxruntime_vectors; done
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

VECTORS = Path(__file__).parents[1] / "differential" / "vectors" / "onnxruntime"
LENGTHS = (*range(1, 14), 16, 31, 64, 100)
LEVELS = (256, 128, 300, 150, 267, 999, 1500)
"""Reciprocals of the scales of results."""
F = np.float32
Codes = NDArray[np.generic]


@dataclass(frozen=True, eq=False)
class Case:
    """The operands of a QLinearSoftmax along the last axis."""

    x: Codes
    scale: float
    zero: int
    made_scale: float
    made_zero: int


def cases() -> Iterator[Case]:
    """Random rows; and rows of equal greatest entries beside small ones, which end on ties."""
    for kind in (np.uint8, np.int8):
        low, high = np.iinfo(kind).min, np.iinfo(kind).max
        for length in LENGTHS:
            for number, levels in enumerate(LEVELS):
                rng = np.random.default_rng([length, number, low + 128])
                rows = rng.integers(low, high + 1, (8, length))
                order = rng.permuted(np.tile(np.arange(length), (8, 1)), axis=1)
                equal = np.where(order < rng.integers(1, length + 1, (8, 1)), high, low)
                yield Case(
                    np.concatenate([rows, equal]).astype(kind),
                    float(F(rng.choice([0.01, 0.1, 0.5, 1.0, 4.0]))),
                    int(rng.integers(low, high + 1)),
                    float(F(1 / levels)),
                    low if number % 2 == 0 else low + 2 * int(rng.integers(0, 40)) + 5,
                )


def ranges() -> NDArray[np.float32]:
    """Ranges of which the tool chooses scale and zero point: many zero points lie near ties."""
    rng = np.random.default_rng(20)
    reach = np.exp2(rng.uniform(-12, 12, (600, 1)))
    free = rng.normal(size=(600, 2)) * reach
    ties = rng.integers(0, 255, 600) + 0.5
    scales = rng.uniform(0.001, 0.1, 600)
    near = np.stack([-ties * scales, (255 - ties) * scales], 1)
    return np.sort(np.concatenate([free, near]), axis=1).astype(F)


def digest() -> str:
    """A hash of all inputs."""
    state = hashlib.sha256(ranges().tobytes())
    for case in cases():
        numbers = (case.scale, case.zero, case.made_scale, case.made_zero)
        state.update(repr(numbers).encode() + case.x.tobytes())
    return state.hexdigest()[:32]


def record() -> None:
    """Writes the results of all cases, one after the other, and the tool's scales and zeros."""
    import onnxruntime as ort
    from onnx import TensorProto, helper
    from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType

    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    made = []
    for case in cases():
        kind = helper.np_dtype_to_tensor_dtype(case.x.dtype)
        held = [
            helper.make_tensor(name, of, [], [value])
            for name, of, value in (
                ("s", TensorProto.FLOAT, case.scale),
                ("z", kind, case.zero),
                ("t", TensorProto.FLOAT, case.made_scale),
                ("u", kind, case.made_zero),
            )
        ]
        node = helper.make_node(
            "QLinearSoftmax",
            ["x", "s", "z", "t", "u"],
            ["y"],
            domain="com.microsoft",
            axis=-1,
            opset=13,
        )
        ends = [helper.make_tensor_value_info(name, kind, case.x.shape) for name in "xy"]
        graph = helper.make_graph([node], "g", ends[:1], ends[1:], held)
        sets = [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=sets, ir_version=8)
        session = ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        made.append(session.run(None, {"x": case.x})[0].view(np.uint8).reshape(-1))
    chosen = {}
    for name, number in (("u8", TensorProto.UINT8), ("i8", TensorProto.INT8)):
        ends = get_qmin_qmax_for_qType(number)
        pairs = [compute_scale_zp(a, b, *ends, False) for a, b in ranges()]
        chosen[f"{name}_zero"] = np.array([int(p[0]) for p in pairs], np.int16)
        chosen[f"{name}_scale"] = np.array([float(p[1]) for p in pairs], F)
    VECTORS.mkdir(exist_ok=True)
    np.savez_compressed(
        VECTORS / f"{ort.__version__}.npz",
        inputs=np.array(digest()),
        y=np.concatenate(made),
        **chosen,  # type: ignore[arg-type]
    )


if __name__ == "__main__":
    record()
