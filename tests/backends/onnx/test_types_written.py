"""What is written has types that its operator set knows and onnxruntime has kernels for."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state

from qir import pipeline
from qir.backends.onnx.opset.element_types import OPERATORS
from qir.errors import Refused
from qir.frontends.onnx.frontend import _HANDLERS
from tests.frontends.onnx.models import model

from .operators import onnxruntime_runs

OLDEST, NEWEST = 13, 26
I32, I64 = np.dtype(np.int32), np.dtype(np.int64)
X = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
KINDS = {
    f"tensor({TensorProto.DataType.Name(helper.np_dtype_to_tensor_dtype(d)).lower()})": d
    for d in map(np.dtype, ("f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?"))
}
"""Elements by onnxruntime's names for tensors of them."""
BESIDE = {"TopK": [np.array([2])], "CumSum": [np.array(0)]}
OPS = (
    "Add Sub Mul Div Sum Relu Equal IsInf ReduceMax CumSum TopK Clip Max Abs Pow Where Pad".split()
)
BOOL = np.dtype(np.bool_)


def wide(name: str) -> dict[int, set[str]]:
    """The elements that an operator takes from each set on, beyond those of the oldest."""
    found: dict[int, set[str]] = {}
    known: set[str] | None = None
    for opset in range(OLDEST, NEWEST + 1):
        try:
            schema = onnx.defs.get_schema(name, opset, "")
        except onnx.defs.SchemaError:
            continue
        kinds = {k for k in (schema.inputs[0].types if schema.inputs else ()) if k in PLAIN}
        if known is not None and kinds - known:
            found[opset] = kinds - known
        known = kinds if known is None else known | kinds
    return found


PLAIN = {*KINDS, "tensor(bfloat16)", "tensor(string)"}
ELSEWHERE = {"QuantizeLinear", "DequantizeLinear", "Scan"}
"""Whose sets are told by their integers, or by what goes in."""


def test_every_operator_that_takes_more_in_newer_sets_is_known() -> None:
    names = {s.name for s in onnx.defs.get_all_schemas() if not s.domain}
    later = {n for n in names if ("", n) in _HANDLERS and OLDEST < max(wide(n), default=0)}
    first = {n for n in later if onnx.defs.get_schema(n, NEWEST, "").since_version > OLDEST}
    assert first - ELSEWHERE - set(OPERATORS.values()) == set()


def kernels(name: str, opset: int) -> list[np.dtype[Any]]:
    """The elements that onnxruntime has kernels of an operator for."""
    found = set()
    for kernel in onnxruntime_pybind11_state.get_all_opkernel_def():
        first, last = kernel.version_range
        own = kernel.provider == "CPUExecutionProvider" and not kernel.domain
        if own and kernel.op_name == name and first <= opset <= last:
            for kinds in kernel.type_constraints.values():
                found |= {KINDS[k] for k in kinds if k in KINDS}
    return sorted(found, key=str)


def operands(name: str, kind: np.dtype[Any]) -> list[NDArray[Any]]:
    x = (np.arange(1, 7) if kind != BOOL else np.arange(6) % 2).reshape(2, 3).astype(kind)
    match name:
        case "Relu" | "IsInf" | "Abs" | "ReduceMax":
            return [x]
        case "TopK" | "CumSum":
            return [x, *BESIDE[name]]
        case "Clip":
            return [x, np.array(2, kind), np.array(4, kind)]
        case "Where":
            return [np.array([[True], [False]]), x, np.array(3, kind)]
        case "Pad":
            return [x, np.array([0, 1, 1, 0]), np.array(1, kind)]
        case _:
            return [x, np.array(1 if kind == BOOL else 2, kind)]


@pytest.mark.parametrize("name", OPS)
def test_elements_that_a_set_lacks_are_refused_there_and_others_run(
    name: str, tmp_path: Path
) -> None:
    """In every set, with each operand but the first a constant, or none."""
    made, tried = tmp_path / "made.onnx", 0
    newest = max(onnx.defs.get_schema(name, NEWEST, "").since_version, OLDEST + 1)
    for kind, fed in product(kernels(name, newest), (1, 9)):
        arrays = dict(zip("xabc", operands(name, kind), strict=False))
        given = {n: a for i, (n, a) in enumerate(arrays.items()) if i < fed}
        node = helper.make_node(name, list(arrays), ["y"] + ["i"] * (name == "TopK"))
        inputs = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in given.items()}
        held = {n: a for n, a in arrays.items() if n not in given}
        proto = model([node], inputs, {"y": (1, None)}, held, newest)
        proto.graph.output[0].ClearField("type")
        try:
            (wanted,) = onnxruntime_runs(proto, given)
        except Exception:  # the kernel is for another operand's type
            continue
        onnx.save(proto, tmp_path / "m.onnx")
        graph = pipeline.load(tmp_path / "m.onnx")
        for opset in sorted({OLDEST, newest - 1, newest, NEWEST}):
            try:
                pipeline.save(graph, made, opset=opset, force=True)
            except Refused:
                if opset >= newest:
                    raise
                continue
            (found,) = onnxruntime_runs(onnx.load(made), given)
            assert found.dtype == wanted.dtype, (opset, kind)
            assert found.tobytes() == wanted.tobytes(), (opset, kind)
            tried += 1
    assert tried


@pytest.mark.parametrize("kind", [I32, I64], ids=str)
@pytest.mark.parametrize("held", ["", "s", "se", "sea", "seat", "a", "t", "at", "eat"])
def test_what_says_where_to_slice_has_one_type(
    kind: np.dtype[Any], held: str, tmp_path: Path
) -> None:
    """Starts, ends, axes and steps, some of them constants."""
    whole = {"s": [1, 0], "e": [4, 3], "a": [2, 0], "t": [2, 1]}
    arrays = {n: np.array(v, kind) for n, v in whole.items()}
    fed = {"x": X, **{n: a for n, a in arrays.items() if n not in held}}
    inputs = {n: (helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in fed.items()}
    node = helper.make_node("Slice", ["x", "s", "e", "a", "t"], ["y"])
    constants = {n: a for n, a in arrays.items() if n in held}
    proto = model([node], inputs, {"y": (1, [None] * 3)}, constants, 17)
    onnx.save(proto, tmp_path / "m.onnx")
    (wanted,) = onnxruntime_runs(proto, fed)
    graph = pipeline.load(tmp_path / "m.onnx")
    for opset in (None, 13, 26):
        pipeline.save(graph, tmp_path / "made.onnx", format="qdq", opset=opset, force=True)
        (found,) = onnxruntime_runs(onnx.load(tmp_path / "made.onnx"), fed)
        assert (found == wanted).all()
    assert (pipeline.run(graph, fed)["y"] == wanted).all()
