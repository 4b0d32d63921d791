"""Float models that nobody changed come back bit by bit, whatever they hold beside operators."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import QirError
from qir.ledger import Ledger

FLOAT = TensorProto.FLOAT
node, info = helper.make_node, helper.make_tensor_value_info
NEWEST_OPSET, NEWEST_IR = 26, 13


def net(opset: int = 21, ir: int = 10) -> onnx.ModelProto:
    """Clip with an operand left out in the middle, shared weights, and a name for every part."""
    nodes = [
        node("MatMul", ["x", "w"], ["h"], "first", doc_string="multiplies"),
        node("Add", ["h", "w"], ["k"], "/second/Add"),
        node("Clip", ["k", "", "top"], ["c"], ""),
        node("Identity", ["c"], ["y"]),
    ]
    held = {"w": np.eye(3, dtype=np.float32), "top": np.float32(6), "spare": np.arange(3)}
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in held.items()]
    x, y = info("x", FLOAT, ["batch size", 3], "what comes in"), info("y", FLOAT, [None, 3])
    graph = helper.make_graph(
        nodes,
        "net",
        [x],
        [y],
        tensors,
        doc_string="a graph",
        value_info=[info("h", FLOAT, ["batch size", 3])],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=ir,
        producer_name="somebody",
        producer_version="0.1",
        domain="org.example",
        model_version=7,
        doc_string="a model",
    )
    helper.set_model_props(model, {"author": "them", "empty": ""})
    return model


def _default(model: onnx.ModelProto) -> None:
    model.graph.input.append(info("w", FLOAT, [3, 3]))


def _annotation(model: onnx.ModelProto) -> None:
    held = model.graph.quantization_annotation.add(tensor_name="h")
    held.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="top")


def _training(model: onnx.ModelProto) -> None:
    step = helper.make_graph([node("Relu", ["x"], ["z"])], "step", [], [info("z", FLOAT, None)])
    held = model.training_info.add()
    held.algorithm.CopyFrom(step)
    held.update_binding.add(key="w", value="z")


def _sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.array([6], np.float32), "s")
    at = numpy_helper.from_array(np.array([1], np.int64), "s_at")
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [3]))
    model.graph.node[1].input[1] = "s"


def _words(model: onnx.ModelProto) -> None:
    model.graph.initializer.append(
        helper.make_tensor("t", TensorProto.STRING, [2], [b"a", b"\xff\0"])  # type: ignore[list-item]
    )
    model.graph.node.append(node("Identity", ["t"], ["text"]))
    model.graph.output.append(info("text", TensorProto.STRING, [2]))


def _typed(model: onnx.ModelProto) -> None:
    model.graph.initializer[0].CopyFrom(helper.make_tensor("w", FLOAT, [3, 3], [0.5] * 9))


def _overloads(model: onnx.ModelProto) -> None:
    opset = [helper.make_opsetid("", 21)]
    for name in ("one", "two"):
        made = helper.make_function(
            "mine", "F", ["a"], ["b"], [node("Relu", ["a"], ["b"])], opset, overload=name
        )
        made.metadata_props.add(key="who", value="me")
        model.functions.append(made)
    model.graph.node[3].CopyFrom(node("F", ["c"], ["y"], "call", domain="mine", overload="two"))
    model.opset_import.append(helper.make_opsetid("mine", 1))


def _unknown(model: onnx.ModelProto) -> None:
    model.graph.node[3].CopyFrom(node("Odd", ["c"], ["y"], domain="org.nobody", level=3))
    model.opset_import.append(helper.make_opsetid("org.nobody", 4))


def _noted(model: onnx.ModelProto) -> None:
    for part in (model.graph, model.graph.node[0], model.graph.input[0]):
        part.metadata_props.add(key="pass", value="7")
    model.graph.initializer[0].doc_string = "weights"


def _branches(model: onnx.ModelProto) -> None:
    def branch(op: str) -> onnx.GraphProto:
        return helper.make_graph([node(op, ["c"], ["o"])], op, [], [info("o", FLOAT, None)])

    model.graph.input.append(info("which", TensorProto.BOOL, []))
    model.graph.node[3].CopyFrom(
        node("If", ["which"], ["y"], then_branch=branch("Relu"), else_branch=branch("Neg"))
    )


ADDED = [_default, _annotation, _training, _sparse, _words, _typed, _overloads, _unknown, _noted]
ADDED += [_branches]


def same(model: onnx.ModelProto, folder: Path) -> Ledger:
    source, made = folder / "m.onnx", folder / "made.onnx"
    source.write_bytes(model.SerializeToString())
    ledger = Ledger()
    pipeline.save(pipeline.load(source, ledger=ledger), made, ledger=ledger, force=True)
    assert made.read_bytes() == source.read_bytes()
    return ledger


@pytest.mark.parametrize("add", ADDED, ids=lambda add: str(add.__name__).strip("_"))
def test_what_a_model_holds_comes_back(
    tmp_path: Path, add: Callable[[onnx.ModelProto], None]
) -> None:
    model = net()
    add(model)
    assert not len(same(model, tmp_path))


@pytest.mark.parametrize("ir", range(3, NEWEST_IR + 1))
def test_every_version_of_the_format_comes_back(tmp_path: Path, ir: int) -> None:
    model = net(opset=11, ir=ir)
    if ir < 4:  # what has a value is an input, too
        model.graph.input.extend(info(t.name, t.data_type, t.dims) for t in model.graph.initializer)
    assert not len(same(model, tmp_path))


@pytest.mark.parametrize("opset", [11, 13, 17, 21, 24, 25, NEWEST_OPSET])
def test_every_operator_set_comes_back(tmp_path: Path, opset: int) -> None:
    assert not len(same(net(opset), tmp_path))


def package() -> Iterator[onnx.ModelProto]:
    """The node tests and networks of the package that onnxruntime's versions let through."""
    from onnx.backend.test import __file__ as place
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        models = [case.model for case in collect_testcases(None)]
    models += [onnx.load(path) for path in (Path(place).parent / "data/light").glob("*.onnx")]
    for model in models:
        assert model is not None
        opsets = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
        if model.ir_version <= NEWEST_IR and max(opsets, default=0) <= NEWEST_OPSET:
            yield model


@pytest.mark.slow
def test_the_models_of_the_package_come_back(tmp_path: Path) -> None:
    source, made = tmp_path / "m.onnx", tmp_path / "made.onnx"
    count, refused = 0, []
    for model in package():
        source.write_bytes(model.SerializeToString())
        try:
            graph = pipeline.load(source)
        except QirError as error:
            refused.append(str(error))
            continue
        if any(v.type.quant for _, each in graph.walk() for v in each.values.values()):
            continue  # integers are written anew
        pipeline.save(graph, made, force=True)
        assert made.read_bytes() == source.read_bytes(), model.graph.name
        count += 1
    assert count >= 1560
    assert len(refused) <= 5, refused
