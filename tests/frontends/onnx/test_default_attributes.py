"""An attribute that a node leaves out has the default of ONNX's own schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import qir
from qir.errors import QirError
from qir.frontends.onnx import OnnxFrontend
from qir.ir.text import print_graph
from qir.ledger import Ledger

from .conformance import Case, cases, with_constants

PER_DIRECTION = frozenset({"activations"})
"""Lists whose default in the schema is that of two directions, whatever the node has."""


def stated(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model once more for each attribute of its only node whose value is the default.

    One that the node leaves out is stated, and one that it states is left out.
    """
    (node,) = model.graph.node
    version = next(entry.version for entry in model.opset_import if entry.domain == node.domain)
    if not onnx.defs.has(node.op_type, node.domain):
        return
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    given = {attribute.name: attribute for attribute in node.attribute}
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        if not default.type or name in PER_DIRECTION or given.get(name, default) != default:
            continue
        out = onnx.ModelProto()
        out.CopyFrom(model)
        if name in given:
            out.graph.node[0].attribute.remove(given[name])
        else:
            out.graph.node[0].attribute.append(default)
        yield name, out


def read(model: onnx.ModelProto, folder: Path) -> str:
    path = folder / "case.onnx"
    path.write_bytes(model.SerializeToString())
    try:
        return print_graph(OnnxFrontend().load(path, Ledger()))
    except QirError as error:
        return f"refused: {error}"


@pytest.mark.slow
def test_a_default_that_is_stated_is_the_default_that_is_left_out(tmp_path: Path) -> None:
    alone = [case for case in cases() if len(case.model.graph.node) == 1]
    both: list[Case] = [each for case in alone for each in (case, with_constants(case)) if each]
    compared, wrong = 0, []
    for case in both:
        silent = read(case.model, tmp_path)
        for name, model in stated(case.model):
            said = read(model, tmp_path)
            kept = "foreign" in said and "foreign" in silent  # with the attributes as stated
            if said != silent and not kept:
                wrong.append(f"{case.name}: {name}")
            compared += not kept
    assert not wrong
    assert compared > 1000


DOCUMENTED = {
    "QLinearLeakyRelu": ("alpha", 0.01),
    "GatherBlockQuantized": ("block_size", 128),
    "DequantizeLinear": ("axis", 1),
}
"""Of onnxruntime's own operators, by its ContribOperators.md."""


def contrib(op: str, attributes: dict[str, float]) -> onnx.ModelProto:
    """A model of one operator of onnxruntime's own."""
    byte, real = TensorProto.UINT8, TensorProto.FLOAT
    inputs = [helper.make_tensor_value_info("x", byte, [2, 3])]
    held = [
        helper.make_tensor("s", real, [1], [0.5]),
        helper.make_tensor("z", byte, [1], [3]),
        helper.make_tensor("many", real, [3], [0.5, 0.25, 2.0]),
        helper.make_tensor("zeros", byte, [3], [3, 0, 9]),
    ]
    names, out, kind = ["x", "s", "z", "s", "z"], [2, 3], byte
    if op == "DequantizeLinear":
        names, kind = ["x", "many", "zeros"], real
    if op == "GatherBlockQuantized":
        table = np.arange(4 * 256) % 16
        held.append(helper.make_tensor("table", TensorProto.UINT4, [4, 256], table))
        held.append(helper.make_tensor("scales", real, [4, 2], np.arange(1, 9) / 8))
        inputs = [helper.make_tensor_value_info("x", TensorProto.INT64, [3])]
        names, out, kind = ["table", "x", "scales"], [3, 256], real
    node = helper.make_node(op, names, ["y"], domain="com.microsoft")
    node.attribute.extend(helper.make_attribute(*each) for each in attributes.items())
    result = helper.make_tensor_value_info("y", kind, out)
    used = [tensor for tensor in held if tensor.name in names]
    graph = helper.make_graph([node], "m", inputs, [result], used)
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=sets, ir_version=10)


@pytest.mark.parametrize("op", DOCUMENTED)
def test_defaults_of_onnxruntimes_own_operators_are_those_it_documents(
    op: str, tmp_path: Path
) -> None:
    name, default = DOCUMENTED[op]
    silent = read(contrib(op, {}), tmp_path)
    assert "foreign" not in silent
    assert "refused" not in silent
    said = read(contrib(op, {name: default}), tmp_path)
    bare = f'attrs = (("{name}", {default}),)'  # of an op with a body, which keeps what it was
    assert silent == said.replace(f", {bare}", "")


def test_codes_of_rank_one_have_scales_along_their_only_axis(tmp_path: Path) -> None:
    tensor = helper.make_tensor
    held = [
        tensor("s", TensorProto.FLOAT, [3], [0.5, 0.25, 2.0]),
        tensor("z", TensorProto.UINT8, [3], [3, 0, 9]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, [3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    node = helper.make_node("DequantizeLinear", ["x", "s", "z"], ["y"])  # whose axis is 1
    graph = helper.make_graph([node], "m", [x], [y], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    assert "foreign" not in read(proto, tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    made = qir.run(qir.load(path), {"x": np.array([5, 6, 7], np.uint8)})["y"]
    assert made.tolist() == [1.0, 1.5, -4.0]
