"""Parts of integers: integers of one map, in integer form and in QDQ form."""

from __future__ import annotations

import numpy as np
import pytest

from qir.backends.onnx.writer.graph import to_model
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.verify import check, verify
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.fuse_qdq import FuseQdq
from qir.reference.interpreter import run

MAP = "!quant.uniform<u8:f32, 0.1:7>"
OTHER = "!quant.uniform<u8:f32, 0.1:9>"
HEAD = f"%x = input() : 2x6x{MAP}\n"


def program(body: str) -> Graph:
    graph = parse(f"graph g as ort-1.31 {{\n{HEAD}{body}\n}}")
    check(graph)
    return graph


def coded() -> Graph:
    return program(
        f"""%a, %b = split(%x) {{sizes = (2, 4), axis = 1}} : 2x2x{MAP}, 2x4x{MAP}
        %c = dequantize(%b) : 2x4xf32
        output(a=%a, c=%c)"""
    )


def test_parts_keep_the_map_and_the_elements() -> None:
    x = np.arange(12, dtype=np.uint8).reshape(2, 6)
    made = run(coded(), {"x": x})
    assert np.array_equal(made["a"], x[:, :2])
    real = (x[:, 2:].astype(np.float32) - 7) * np.float32(0.1)
    assert np.array_equal(made["c"], real)


def test_the_map_of_parts_is_inferred_unless_it_lies_along_the_cut() -> None:
    text = "%a, %b = split(%w) {sizes = (1, 2), axis = AXIS} : 1x2xQ, 2x2xQ"
    kind = "!quant.uniform<i8:f32:1, {0.5, 0.25}>"
    head = "%w = input() : 3x2xQ\n"
    body = f"{head}{text}\noutput(a=%a, b=%b)"
    graph = parse(f"graph g as native {{\n{body}\n}}".replace("Q", kind).replace("AXIS", "0"))
    check(graph)
    across = body.replace("axis = AXIS", "axis = 1").replace("(1, 2)", "(1, 1)")
    across = across.replace("1x2xQ, 2x2xQ", "3x1xQ, 3x1xQ").replace("Q", kind)
    found = verify(parse(f"graph g as native {{\n{across}\n}}"))
    assert any(
        "different quantization parameters" in f.message or "survive" in f.message for f in found
    ), found


def test_parts_of_another_map_are_found() -> None:
    body = f"""%a, %b = split(%x) {{sizes = (2, 4), axis = 1}} : 2x2x{MAP}, 2x4x{OTHER}
    output(a=%a, b=%b)"""
    graph = parse(f"graph g as ort-1.31 {{\n{HEAD}{body}\n}}")
    assert any("different quantization parameters" in f.message for f in verify(graph))


def test_both_forms_are_made_of_each_other() -> None:
    graph = coded()
    ExpandQdq().run(graph, Ledger())
    check(graph)
    (split,) = graph.query('op == "split"')
    assert split.operands["x"].type.quant is None
    ledger = Ledger()
    assert FuseQdq().run(graph, ledger)
    check(graph)
    assert str(graph) == str(coded())


@pytest.mark.parametrize("kept", [MAP, OTHER])
def test_parts_that_are_stored_otherwise_stay_real(kept: str) -> None:
    graph = program(
        f"""%d = dequantize(%x) : 2x6xf32
        %a, %b = split(%d) {{sizes = (2, 4), axis = 1}} : 2x2xf32, 2x4xf32
        %p = quantize(%a) : 2x2x{MAP}
        %q = quantize(%b) : 2x4x{kept}
        output(p=%p, q=%q)"""
    )
    before = run(graph, {"x": np.arange(12, dtype=np.uint8).reshape(2, 6)})
    FuseQdq().run(graph, Ledger())
    check(graph)
    (split,) = graph.query('op == "split"')
    assert (split.operands["x"].type.quant is not None) == (kept == MAP)
    after = run(graph, {"x": np.arange(12, dtype=np.uint8).reshape(2, 6)})
    assert all(np.array_equal(before[n], after[n]) for n in before)


def test_integers_that_onnx_cannot_part_are_refused_in_one_line() -> None:
    graph = parse(
        """graph g as native {
        %x = input() : 4x!quant.uniform<u4:f32, 0.1:7>
        %a, %b = split(%x) {sizes = (2, 2), axis = 0} : 2x!quant.uniform<u4:f32, 0.1:7>, """
        """2x!quant.uniform<u4:f32, 0.1:7>
        output(a=%a, b=%b)
        }"""
    )
    with pytest.raises(Refused, match=r"no split of .*u4.*; `format='qdq'` would do"):
        to_model(graph, Ledger())
