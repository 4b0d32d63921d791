"""Whole ONNX models of every kind that is read, for the cases that break them."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from qir.backends.onnx.writer.graph import to_model
from qir.errors import QirError
from qir.frontends.onnx import samples
from qir.ledger import Ledger
from tests.differential import compared
from tests.differential.models import STYLES, Taste, make
from tests.differential.networks import network
from tests.differential.onnxruntime.test_contrib_networks import Net
from tests.differential.onnxruntime.test_custom_maps import generated, graph_of, named

_LARGEST = 40_000
"""Bytes of a model that is worth breaking many times."""
_QONNX = "qonnx.custom_op.general"
_FLOAT = TensorProto.FLOAT


@lru_cache(1)
def whole() -> Mapping[str, Sequence[bytes]]:
    """Models by kind; a process makes them once, before others are split off."""
    kinds: dict[str, Callable[[], Iterator[onnx.ModelProto]]] = {
        "standard": _standard,
        "contrib": _contrib,
        "networks": _networks,
        "custom": _custom,
        "qonnx": _qonnx,
        "nested": _nested,
        "stored": _stored,
    }
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):  # seeds of tests
        warnings.simplefilter("ignore")
        made = {k: [m.SerializeToString() for m in models()] for k, models in kinds.items()}
    return {k: [d for d in data if len(d) <= _LARGEST] for k, data in made.items()}


def drawn(rng: random.Random) -> onnx.ModelProto:
    """One of them; of random networks a new one each time."""
    kinds = whole()
    kind = rng.choice([*kinds, "drawn", "drawn"])
    if kind != "drawn":
        return onnx.load_model_from_string(rng.choice(kinds[kind]))
    seed = rng.randrange(2**32)
    if rng.random() < 0.5:
        return network(seed, layers=3).proto
    return make(seed, Taste(layers=3), qdq=rng.random() < 0.5).proto


def _standard() -> Iterator[onnx.ModelProto]:
    """Every operator, control flow, sequences and opaque values, as the package tests them."""
    from onnx.backend.test.case.node import collect_testcases

    for each in collect_testcases(None):
        if each.model is not None:
            yield each.model


def _contrib() -> Iterator[onnx.ModelProto]:
    """What the tests of onnxruntime's own operators hand to it."""
    return compared.models(["test_contrib*.py"], 3)


def _networks() -> Iterator[onnx.ModelProto]:
    """What the frontend's own samples, QDQ, QOperator and contrib networks look like."""
    for seed in range(6):
        yield network(seed, layers=3).proto
        yield Net(seed).grown(4).proto
        for qdq in (False, True):
            yield make(seed, Taste(("u8", "i8")[seed % 2], STYLES[0], layers=4), qdq=qdq).proto
    with tempfile.TemporaryDirectory() as folder:
        for path in samples.write(Path(folder)):
            yield onnx.load(path)


def _custom() -> Iterator[onnx.ModelProto]:
    """Schemes that ONNX lacks, as functions."""
    rng = np.random.default_rng(0)
    schemes = [*named(rng).values(), *(generated(seed) for seed in range(12))]
    for i, (quant, rounding) in enumerate(schemes):
        try:
            yield to_model(graph_of(quant, rounding, i), Ledger())
        except QirError:
            continue


def _qonnx() -> Iterator[onnx.ModelProto]:
    held = {"s": np.float32(0.25), "z": np.float32(3), "b": np.float32(4)}
    wide = {"s": np.full((1, 6), 0.5, np.float32), "z": np.float32(0), "b": np.float32(8)}
    for numbers in (held, wide):
        for mode in ("ROUND", "FLOOR", "HALF_UP"):
            attrs: dict[str, Any] = {"signed": 1, "narrow": 1, "rounding_mode": mode}
            yield _one(helper.make_node("Quant", ["x", *numbers], ["y"], **attrs), numbers)
    scale = {"s": np.float32(0.5)}
    yield _one(helper.make_node("BipolarQuant", ["x", "s"], ["y"]), scale)
    cut = {**held, "o": np.float32(2)}
    node = helper.make_node("Trunc", ["x", *cut], ["y"], rounding_mode="FLOOR")
    yield _one(node, cut)


def _one(node: onnx.NodeProto, held: Mapping[str, Any], domain: str = _QONNX) -> onnx.ModelProto:
    node.domain, node.name = domain, "it"
    return _model([node], held, domains=(domain,))


def _model(
    nodes: Sequence[onnx.NodeProto],
    held: Mapping[str, Any],
    *,
    domains: Sequence[str] = (),
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    x, y = (helper.make_tensor_value_info(n, _FLOAT, [4, 6]) for n in "xy")
    graph = helper.make_graph(list(nodes), "g", [x], [y], tensors)
    imports = [helper.make_opsetid("", 19), *(helper.make_opsetid(d, 1) for d in domains)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=9)


def _nested() -> Iterator[onnx.ModelProto]:
    """Graphs in graphs, functions of functions, graphs in functions, sequences in loops."""
    node, info = helper.make_node, helper.make_tensor_value_info

    def branch(name: str, depth: int) -> onnx.GraphProto:
        out = f"{name}_{depth}"
        if not depth:
            return helper.make_graph(
                [node("Mul", ["x", "k"], [out])], out, [], [info(out, _FLOAT, None)]
            )
        inner = node(
            "If",
            ["c"],
            [out],
            then_branch=branch(f"{name}t", depth - 1),
            else_branch=branch(f"{name}e", depth - 1),
        )
        return helper.make_graph([inner], out, [], [info(out, _FLOAT, None)])

    given = {"k": np.float32(2), "c": np.array(True), "n": np.int64(3)}
    for depth in (0, 3):
        yes, no = branch("t", depth), branch("e", depth)
        yield _model([node("If", ["c"], ["y"], then_branch=yes, else_branch=no)], given)
    body = helper.make_graph(
        [
            node("Identity", ["on"], ["go"]),
            node("Mul", ["h", "k"], ["h2"]),
            node("SequenceInsert", ["s", "h2"], ["s2"]),
        ],
        "body",
        [
            info("i", TensorProto.INT64, []),
            info("on", TensorProto.BOOL, []),
            info("h", _FLOAT, [4, 6]),
            helper.make_tensor_sequence_value_info("s", _FLOAT, None),
        ],
        [
            info("go", TensorProto.BOOL, []),
            info("h2", _FLOAT, [4, 6]),
            helper.make_tensor_sequence_value_info("s2", _FLOAT, None),
        ],
    )
    looped = _model(
        [
            node("SequenceEmpty", [], ["s0"]),
            node("Loop", ["n", "c", "x", "s0"], ["h", "all"], "it", body=body),
            node("ConcatFromSequence", ["all"], ["wide"], axis=0),
            node("ReduceSum", ["wide"], ["sum"], keepdims=0),
            node("Add", ["h", "sum"], ["y"]),
        ],
        given,
    )
    looped.graph.value_info.append(info("wide", _FLOAT, [None, 6]))
    yield looped
    opset = [helper.make_opsetid("", 19), helper.make_opsetid("mine", 1)]
    square = helper.make_function(
        "mine", "Square", ["a"], ["b"], [node("Mul", ["a", "a"], ["b"])], opset
    )
    slope = node("LeakyRelu", ["t"], ["b"])
    slope.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    quartic = helper.make_function(
        "mine",
        "Quartic",
        ["a"],
        ["b"],
        [
            node("Square", ["a"], ["s"], domain="mine"),
            node("Square", ["s"], ["t"], domain="mine"),
            slope,
        ],
        opset,
        attributes=["slope"],
    )
    call = node("Quartic", ["x"], ["y"], domain="mine", slope=0.5)
    yield _model([call], {}, domains=("mine",), functions=(square, quartic))


def _stored() -> Iterator[onnx.ModelProto]:
    """Tensors of all kinds of storage: sparse, strings, few bits, typed fields, annotations."""
    node = helper.make_node
    for indices in (np.array([1, 5]), np.array([[0, 1], [3, 2]])):
        values = numpy_helper.from_array(np.array([7, -2], np.float32), "w")
        at = numpy_helper.from_array(indices.astype(np.int64), "w_at")
        sparse = helper.make_sparse_tensor(values, at, [4, 6])
        made = _model([node("Add", ["x", "w"], ["y"])], {})
        made.graph.sparse_initializer.append(sparse)
        yield made
        yield _model(
            [node("Constant", [], ["w"], sparse_value=sparse), node("Add", ["x", "w"], ["y"])], {}
        )
    for kind in (TensorProto.INT4, TensorProto.UINT4, TensorProto.FLOAT8E4M3FN):
        quantized = helper.make_tensor("w", kind, [4, 6], [1] * 24)
        made = _model([node("DequantizeLinear", ["w", "s"], ["d"])], {"s": np.float32(0.5)})
        made.graph.node.append(node("Add", ["x", "d"], ["y"]))
        made.graph.initializer.append(quantized)
        made.opset_import[0].version, made.ir_version = 21, 10
        yield made
    typed = _model([node("Add", ["x", "w"], ["y"])], {})
    typed.graph.initializer.append(helper.make_tensor("w", _FLOAT, [6], [0.5] * 6))
    annotation = typed.graph.quantization_annotation.add(tensor_name="x")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="w")
    helper.set_model_props(typed, {"author": "somebody"})
    yield typed
    words = _model([node("Identity", ["w"], ["text"]), node("Relu", ["x"], ["y"])], {})
    words.graph.initializer.append(
        helper.make_tensor("w", TensorProto.STRING, [2], [b"a", b"\xff"])  # type: ignore[list-item]
    )
    words.graph.output.append(helper.make_tensor_value_info("text", TensorProto.STRING, [2]))
    yield words
