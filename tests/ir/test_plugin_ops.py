"""An op of a plugin is an op: it parses, prints, verifies, runs, is queried and matched."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

import qir
from qir import registry
from qir.errors import InputError, ParseError, PluginError, Refused, TypeRuleError
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.ops import OPS, AttrSpec, Elsewhere, OpSpec, PluginOp, Slot, Traits, spec
from qir.ir.ops.elementwise import float_unary
from qir.ir.ops.plugin import gather, ops_with
from qir.ir.types import TensorType
from qir.query.query import query
from qir.rewrite.patterns.matching import match_at
from qir.rewrite.patterns.parser import parse_pattern
from tests.installed import OPTIMIZED

KIND = "qir.ops"
HUSH = PluginOp(
    OpSpec(
        "acme_hush",
        (Slot("x"),),
        float_unary,
        (AttrSpec("loudness", "float", 0.5),),
        Traits(elementwise=True),
        doc="x, or 0 where it is no louder",
    ),
    lambda x, loudness: np.where(np.abs(x) > loudness, x, 0).astype(x.dtype),
)
TEXT = """\
graph main as native {
  %x = input() : 2x3xf32
  %y = acme_hush(%x) {loudness = 1.0} : 2x3xf32
  output(y=%y)
}
"""


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, object]]:
    """Ops by entry point, without a distribution."""
    known: dict[str, object] = {"acme_hush": HUSH}
    names, find = registry.names, registry.find

    def found(kind: str, name: str) -> object:
        if kind != KIND or name not in known:
            return find(kind, name)
        if isinstance(known[name], PluginError):
            raise PluginError(str(known[name]))
        return known[name]

    with monkeypatch.context() as patch:
        patch.setattr(registry, "names", lambda kind: tuple(known) if kind == KIND else names(kind))
        patch.setattr(registry, "find", found)
        yield known


def program() -> Graph:
    graph = Graph("main")
    x = graph.add("input", types=[TensorType((2, 3), F32)], name="x").result
    y = graph.add("acme_hush", {"x": x}, {"loudness": 1.0}, name="y").result
    graph.add("output", {"y": y})
    return graph


def test_it_prints_and_parses() -> None:
    graph = program()
    assert "acme_hush(%x) {loudness = 1.0}" in str(graph)
    assert str(qir.parse(str(graph))) == str(graph)


def test_it_verifies_and_runs() -> None:
    graph = program()
    assert qir.verify(graph) == []
    x = np.array([[0.5, -1.0, 2.0], [-3.0, 0.0, 1.5]], np.float32)
    wanted = np.array([[0.0, 0.0, 2.0], [-3.0, 0.0, 1.5]], np.float32)
    assert (qir.run(graph, {"x": x})["y"] == wanted).all()


def test_its_rule_is_held_to() -> None:
    graph = program()
    with pytest.raises(TypeRuleError, match=r"acme_hush has no attribute loudnes; did you mean"):
        graph.add("acme_hush", {"x": graph["x"]}, {"loudnes": 1.0})


def test_it_is_asked_for_by_name_attribute_and_pattern() -> None:
    graph = program()
    assert query(graph, "op == 'acme_hush'") == [graph["y"].node]
    assert query(graph, "loudness > 0.9") == [graph["y"].node]
    assert match_at(parse_pattern("acme_hush(%x)"), graph["y"].node)


def test_names_gathered_after_it_was_loaded_hold_its_own() -> None:
    assert spec("acme_hush") is HUSH.spec
    attributes = gather(OPS.values(), lambda row: [attr.name for attr in row.attrs], ["more"])
    assert {"loudness", "stride", "more"} <= attributes
    assert {"acme_hush", "relu"} <= ops_with(OPS.values(), lambda row: row.traits.elementwise)


def test_integers_go_through_it_as_floats() -> None:
    text = str(program()).replace("2x3xf32", "2x3x!quant.uniform<u8:f32, 0.5:10>")
    graph = qir.parse(text)
    quantized = np.array([[10, 11, 12], [13, 8, 9]], np.uint8)
    wanted = np.array([[10, 10, 10], [13, 10, 10]], np.uint8)
    assert (qir.run(graph, {"x": quantized})["y"] == wanted).all()


def test_it_is_no_part_of_the_table_that_is_gone_through() -> None:
    assert spec("acme_hush") is HUSH.spec
    assert "acme_hush" in OPS
    assert "acme_hush" not in list(OPS)


def test_an_op_of_nobody_is_told_as_such() -> None:
    with pytest.raises(ParseError, match=r"no op 'acme_hiss'; did you mean acme_hush\?"):
        qir.parse(str(program()).replace("acme_hush", "acme_hiss"))
    with pytest.raises(TypeRuleError, match="no op 'xyzzy'; no plugin here brings it"):
        spec("xyzzy")


ROW = HUSH.spec
WRONG = {
    "is no qir.ir.ops.PluginOp": ROW,
    "calls itself 'acme_hush'": HUSH,
    "holds bodies or inner slots": PluginOp(
        dataclasses.replace(ROW, name="acme_bad", bodies=("body",)), HUSH.reference
    ),
    "has a slot 'scale'": PluginOp(
        dataclasses.replace(ROW, name="acme_bad", operands=(Slot("scale"),)), HUSH.reference
    ),
    "has a variadic slot": PluginOp(
        dataclasses.replace(ROW, name="acme_bad", operands=(Slot("many", variadic=True),)),
        HUSH.reference,
    ),
}


@pytest.mark.parametrize("said", WRONG)
def test_what_cannot_be_an_op_is_refused_in_one_line(
    said: str, installed: dict[str, object]
) -> None:
    installed["acme_bad"] = WRONG[said]
    with pytest.raises(PluginError, match=said):
        spec("acme_bad")


def test_an_op_of_ours_is_not_taken_over(installed: dict[str, object]) -> None:
    row = dataclasses.replace(ROW, name="relu")
    installed["relu"] = PluginOp(row, HUSH.reference)
    assert spec("relu") is not row
    with pytest.raises(PluginError, match="has the name of an op of qir itself"):
        qir.ir.ops.plugin_op("relu")


def test_one_that_is_broken_harms_only_programs_that_use_it(installed: dict[str, object]) -> None:
    installed["acme_bad"] = PluginError("op 'acme_bad' of acme 1.0 breaks: it exits")
    assert qir.parse(TEXT)
    assert qir.parse(TEXT.replace("acme_hush(%x) {loudness = 1.0}", "relu(%x)"))
    with pytest.raises(ParseError, match=r"op 'acme_bad' of acme 1\.0 breaks: it exits"):
        qir.parse(TEXT.replace("acme_hush(%x) {loudness = 1.0}", "acme_bad(%x)"))


def test_it_goes_to_onnx_and_back_under_the_name_that_it_has_there(
    tmp_path: Path, installed: dict[str, object]
) -> None:
    with pytest.raises(Refused, match="acme_hush has no form in ONNX; the plugin names none"):
        qir.save(program(), tmp_path / "a.onnx")
    there = Elsewhere("com.acme", "Hush", 2, {"loudness": "level"})
    installed["acme_hush"] = dataclasses.replace(HUSH, elsewhere={"onnx": there})
    qir.save(program(), tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    (node,) = model.graph.node
    assert (node.domain, node.op_type, list(node.input)) == ("com.acme", "Hush", ["x"])
    assert {a.name: a.f for a in node.attribute} == {"level": 1.0}
    assert {o.domain: o.version for o in model.opset_import}["com.acme"] == 2
    back = qir.load(tmp_path / "a.onnx")
    assert str(back) == str(program()).replace("native", OPTIMIZED)
    node.attribute[0].name = "volume"
    onnx.save(model, tmp_path / "b.onnx")
    with pytest.raises(InputError, match="attribute 'volume' that acme_hush does not take"):
        qir.load(tmp_path / "b.onnx")
