"""Models of one or more of onnxruntime's own operators: read, run, written back, beside it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from qir.backends.onnx.writer.graph import to_model
from qir.frontends.onnx import OnnxFrontend
from qir.ir.graph import Graph
from qir.ir.printer import array_table
from qir.ir.text import parse
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.reference.interpreter import run
from tests.counting import note
from tests.differential import runtime
from tests.frontends.onnx.models import model, save

Tensor = NDArray[Any]
MS = "com.microsoft"
F = np.float32
_KINDS = {
    np.dtype(np.float32): TensorProto.FLOAT,
    np.dtype(np.float16): TensorProto.FLOAT16,
    np.dtype(np.uint8): TensorProto.UINT8,
    np.dtype(np.int8): TensorProto.INT8,
    np.dtype(np.int16): TensorProto.INT16,
    np.dtype(np.uint16): TensorProto.UINT16,
    np.dtype(np.int32): TensorProto.INT32,
    np.dtype(np.int64): TensorProto.INT64,
    np.dtype(np.bool_): TensorProto.BOOL,
}


@dataclass(frozen=True)
class Case:
    """A model with what is fed to it."""

    proto: onnx.ModelProto
    feeds: Mapping[str, Tensor]

    def judged(self) -> dict[str, Tensor]:
        """What onnxruntime gives, its optimizer off."""
        results: dict[str, Tensor] = runtime.run(self.proto, self.feeds, optimize=False)
        return results


def case(
    nodes: Sequence[onnx.NodeProto],
    feeds: Mapping[str, Tensor],
    constants: Mapping[str, Tensor],
    results: Mapping[str, int],
    *,
    symbolic: bool = False,
    opset: int = 21,
) -> Case:
    """A model of these nodes; nothing is said of the shapes of its results."""

    def sizes(name: str, data: Tensor) -> list[int | str]:
        first: int | str = f"n_{name}" if symbolic and data.ndim else 0
        return [first or d if i == 0 else d for i, d in enumerate(data.shape)]

    inputs = {n: (_KINDS[a.dtype], sizes(n, a)) for n, a in feeds.items()}
    outputs = {n: (kind, None) for n, kind in results.items()}
    return Case(model(nodes, inputs, outputs, constants, opset, (MS,)), feeds)


def one(
    op: str,
    operands: Sequence[tuple[str, Tensor] | None],
    fed: Sequence[str],
    results: Mapping[str, int],
    *,
    symbolic: bool = False,
    **attrs: Any,
) -> Case:
    """One operator; operands in order, those of the names in `fed` are inputs."""
    names = [o[0] if o else "" for o in operands]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op, names, list(results), "it", domain=MS, **attrs)
    arrays = dict(o for o in operands if o)
    feeds = {n: arrays[n] for n in fed}
    constants = {n: a for n, a in arrays.items() if n not in fed}
    present_results = {n: k for n, k in results.items() if n}
    return case([node], feeds, constants, present_results, symbolic=symbolic)


def loaded(proto: onnx.ModelProto) -> Graph:
    """The model as QIR reads it, which verifies and prints as text that reads back."""
    with tempfile.TemporaryDirectory() as folder:
        graph: Graph = OnnxFrontend().load(save(proto, Path(folder)), Ledger())
    check(graph)
    arrays = {name: array.data for name, array in array_table(graph).items()}
    assert parse(str(graph), arrays) == graph
    return graph


def kept(graph: Graph) -> list[str]:
    """The ops that are kept as their file had them."""
    return [str(n.attrs["op"]) for n in graph.query('op == "foreign"')]


def through(case: Case, *, known: bool = True) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Returns what onnxruntime and the interpreter give; the model written back gives the same
    bytes.
    """
    expected = case.judged()
    graph = loaded(case.proto)
    assert not known or not kept(graph), f"kept: {kept(graph)}"
    rewritten = to_model(graph, Ledger())
    same_nodes(case.proto, rewritten)
    again: dict[str, Tensor] = runtime.run(rewritten, case.feeds, optimize=False)
    for name, data in expected.items():
        assert again[name].dtype == data.dtype
        assert again[name].tobytes() == data.tobytes(), f"{name} written back"
    return expected, run(graph, dict(case.feeds))


_DEFAULTS: dict[str, set[Any]] = {
    "strides": {1},
    "dilations": {1},
    "pads": {0},
    "group": {1},
    "ceil_mode": {0},
    "count_include_pad": {0},
    "channels_last": {0},
    "alpha": {1.0},
    "transA": {0},
    "transB": {0},
    "kernel_shape": set(),
}
"""What attributes say that need not be there; a kernel's shape is its weights'."""


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Returns what attributes say, without those that state the default."""
    stated: dict[str, Any] = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    needed = {}
    for name, value in stated.items():
        values: set[Any] = set(value) if isinstance(value, list) else {value}
        # A convolution's kernel shape follows from its weights, a pool's does not.
        implied = name == "kernel_shape" and "Pool" not in node.op_type
        if not implied and not values <= _DEFAULTS.get(name, set()):
            needed[name] = value
    return dict(sorted(needed.items()))


def same_nodes(proto: onnx.ModelProto, written: onnx.ModelProto) -> None:
    """The same operators under the same names, with the same attributes, operands and results."""

    def shown(m: onnx.ModelProto) -> list[Any]:
        return sorted(
            (n.domain, n.op_type, n.name, str(_attributes(n)), list(n.input), list(n.output))
            for n in m.graph.node
            if n.op_type != "Constant"
        )

    for after, before in zip(shown(written), shown(proto), strict=True):
        assert after == before, f"{after} was {before}"


def equal(case: Case, **options: bool) -> None:
    """All results are the same, byte for byte."""
    expected, actual = through(case, **options)
    for name, data in expected.items():
        assert actual[name].dtype == data.dtype, name
        assert actual[name].shape == data.shape, name
        note(actual[name], data)
        different = np.count_nonzero(actual[name] != data)
        assert actual[name].tobytes() == data.tobytes(), (
            f"{name}: {different} of {data.size} differ"
        )


def near(case: Case, bound: float, **options: bool) -> None:
    """Floats within a share of the greatest of them, whole numbers the same."""
    expected, actual = through(case, **options)
    for name, data in expected.items():
        assert actual[name].dtype == data.dtype, name
        assert actual[name].shape == data.shape, name
        if data.dtype.kind != "f":
            assert np.array_equal(actual[name], data), name
            continue
        greatest = max(float(np.abs(data).max(initial=0.0)), 1e-30)
        distance = float(np.abs(actual[name].astype(np.float64) - data).max(initial=0.0))
        assert distance <= bound * greatest, f"{name}: {distance / greatest:.3g} of the greatest"
