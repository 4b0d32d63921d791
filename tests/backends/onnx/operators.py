"""One ONNX operator as a model: read, written again, and run by onnxruntime and the reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray
from onnx import helper

from qir.backends.onnx.writer.graph import to_model
from qir.frontends.onnx import OnnxFrontend
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.frontends.onnx.models import model, save
from tests.reference.oracles import assert_close

Data = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """An operator with its operands; those named `c...` are constants, None is absent.

    The others are inputs, of named sizes but for one called `shape`.
    """

    op: str
    operands: Mapping[str, Data | None]
    attrs: dict[str, Any] = field(default_factory=dict)
    opsets: tuple[int, ...] = (17,)
    results: int = 1
    exact: bool = False
    inexact: float = 1e-5

    def proto(self, opset: int) -> onnx.ModelProto:
        names = [n if data is not None else "" for n, data in self.operands.items()]
        given = {n: d for n, d in self.operands.items() if d is not None}
        inputs = {n: d for n, d in given.items() if not n.startswith("c")}
        outputs = [f"y{i}" for i in range(self.results)]
        node = helper.make_node(self.op, names, outputs, "node", **self.attrs)
        proto = model(
            [node],
            {
                n: (helper.np_dtype_to_tensor_dtype(d.dtype), _sizes(n, d))
                for n, d in inputs.items()
            },
            {n: (1, None) for n in outputs},
            {n: d for n, d in given.items() if n.startswith("c")},
            opset,
        )
        for info in proto.graph.output:
            info.ClearField("type")
        proto.ir_version = 10
        return proto

    def feeds(self) -> dict[str, Data]:
        return {n: d for n, d in self.operands.items() if d is not None and not n.startswith("c")}


def _sizes(name: str, data: Data) -> list[int | str]:
    return list(data.shape) if name == "shape" else [f"{name}_{i}" for i in range(data.ndim)]


def onnxruntime_runs(proto: onnx.ModelProto, feeds: dict[str, Data]) -> Sequence[Data]:
    """What onnxruntime computes without its optimizer."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: Sequence[Data] = session.run(None, feeds)
    return found


def assert_comes_through(case: Case, opset: int, folder: Path) -> None:
    """The operator is one of the language's, is written with the same bytes, reads back equal, and
    the reference computes what onnxruntime does."""
    proto, feeds = case.proto(opset), case.feeds()
    theirs = onnxruntime_runs(proto, feeds)
    graph = OnnxFrontend().load(save(proto, folder), Ledger())
    assert not [n for n in graph if n.op == "foreign"], f"{case.op} {opset}: {graph}"
    written: onnx.ModelProto = to_model(graph, Ledger())
    onnx.checker.check_model(written)
    again = onnxruntime_runs(written, feeds)
    assert OnnxFrontend().load(save(written, folder, "again.onnx"), Ledger()) == graph
    ours = run(graph, feeds)
    for name, value, one, other in zip(ours, graph.outputs.values(), theirs, again, strict=True):
        where = f"{case.op} {case.attrs} opset {opset}, {name}"
        assert one.dtype == other.dtype, where
        assert one.shape == other.shape, where
        assert one.tobytes() == other.tobytes(), where
        got = ours[name]
        assert got.dtype == one.dtype, where
        assert got.shape == one.shape, where
        assert value.type.rank == one.ndim, where
        if case.exact or got.dtype.kind != "f":
            assert np.array_equal(got, one, equal_nan=got.dtype.kind == "f"), where
        else:
            assert_close(got, one, case.inexact, where)
