"""An attribute that a node leaves out has the default of ONNX's own schema."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from qir.errors import QirError
from qir.frontends.onnx import OnnxFrontend
from qir.ir.text import print_graph
from qir.ledger import Ledger

from .conformance import Case, cases, with_constants

PER_DIRECTION = frozenset({"activations"})
"""Lists whose default in the schema is that of two directions, whatever the node has."""


def stated(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """The model once more for each attribute with a default that its only node leaves out."""
    (node,) = model.graph.node
    version = next(entry.version for entry in model.opset_import if entry.domain == node.domain)
    if not onnx.defs.has(node.op_type, node.domain):
        return
    schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    for name, attribute in schema.attributes.items():
        default = attribute.default_value
        left_out = name not in {given.name for given in node.attribute} | PER_DIRECTION
        if default.type and left_out:
            out = onnx.ModelProto()
            out.CopyFrom(model)
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
