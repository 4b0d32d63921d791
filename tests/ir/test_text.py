"""The text of a graph reads back to the same graph, whatever stands in it."""

from __future__ import annotations

import math
import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qir.errors import ParseError, QirError, TypeRuleError
from qir.ir.dtype import F32, dtype
from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.numerals import number_text
from qir.ir.ops import spec
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import Scheme, parse_scheme
from qir.ir.text import array_table, parse, parse_type, print_graph
from qir.ir.types import Array, TensorType
from qir.testing import FORMS, NAMES, graphs, random_graph
from tests.ir.alike import difference


def arrays(graph: Graph) -> dict[str, NDArray[np.generic]]:
    return {name: array.data for name, array in array_table(graph).items()}


def reread(graph: Graph, *, origins: bool = False) -> Graph:
    return parse(print_graph(graph, origins=origins), arrays(graph))


# -- round trips ------------------------------------------------------------------------------


@settings(max_examples=60)
@given(graphs())
def test_the_text_reads_back_to_the_same_graph(graph: Graph) -> None:
    back = reread(graph)
    assert difference(graph, back) == ""
    assert back == graph


@pytest.mark.parametrize("seed", range(120))
def test_odd_names_types_history_and_plans_read_back(seed: int) -> None:
    graph = random_graph(seed, ("float", "qdq", "integer")[seed % 3], decorated=True)
    text = print_graph(graph, origins=True)
    back = parse(text, arrays(graph))
    assert difference(graph, back, history=True) == "", f"seed {seed}"
    assert back == graph, f"seed {seed}"
    assert print_graph(back, origins=True) == text, f"seed {seed}"


def test_without_origins_the_text_says_nothing_of_them() -> None:
    graph = Graph()
    x = graph.add("input", types=[parse_type("2xf32")], name="x", origins=[Origin("onnx", "I")])
    graph.set_lineage(x.result, Lineage("source"))
    graph.add("output", {"y": x.result})
    assert "onnx" not in print_graph(graph)
    assert "source" not in print_graph(graph)
    assert graph == reread(graph)


@pytest.mark.parametrize("name", [*NAMES, "array", "bytes", "inf", "nan", "true", "none", "f32"])
def test_any_name_may_stand_anywhere(name: str) -> None:
    graph = Graph(name, profile=name or "p")
    x = graph.add("input", types=[parse_type("2xf32")], name=name).result
    data = Array.of(np.arange(99, dtype=np.int64), name)
    c = graph.constant(data)
    odd = graph.add(
        "foreign",
        {name: x, f"{name}2": c},
        {"framework": name, "op": name, "attrs": (name, data)},
        types=[parse_type("(N)x2xf32"), parse_type("i64")],
        name=[f"{name}.a", f"{name}.b"],
        origins=[Origin(name, name, name, name, 3, ((name, name),))],
        profile=name or None,
    )
    graph.set_slot_origins(odd, name, [Origin(name)])
    graph.set_scheme(odd, name, Scheme(dtype("u8"), share=name))
    graph.set_lineage(odd.results[0], Lineage(name, (name, name)))
    graph.add("output", {name: odd.results[0]})
    assert difference(graph, reread(graph, origins=True), history=True) == ""


@given(st.text(max_size=8))
@settings(max_examples=200)
def test_any_text_may_be_a_name(name: str) -> None:
    graph = Graph(name)
    x = graph.add("input", types=[parse_type("f32")], name=name).result
    graph.add("output", {name: x})
    back = reread(graph)
    assert difference(graph, back) == ""


def test_stages_keep_names_origins_and_inner_types() -> None:
    graph = Graph()
    kind = parse_type("1x1x2x2x!quant.uniform<u8:f32, 0.5:3>")
    x = graph.add("input", types=[kind], name="x").result
    w = graph.constant(Array.of(np.ones((1, 1, 1, 1), np.float32)), name="w")
    conv, add = spec("conv2d").complete_attrs({}), spec("add").complete_attrs({})
    stages = (
        Stage("conv2d", conv, ("x", "w"), None, kind, "first", (Origin("a"), Origin("b"))),
        Stage("add", add, ("a",), "b", None, 'sec"ond', (Origin("c", operands=(("x", "y"),)),)),
        Stage("relu", {}, (), "x"),
    )
    made = graph.add_chain(stages, {"x": x, "w": w, "1.a": x}, kind, name="y")
    graph.set_slot_origins(made, "1.a", [Origin("d")])
    graph.set_scheme(made, "1.a", Scheme(dtype("u8")))
    graph.add("output", {"y": made.result})
    assert "|> add(%x, .)" in str(graph)
    assert difference(graph, reread(graph, origins=True), history=True) == ""


def test_arrays_of_every_type_stand_in_the_table() -> None:
    graph = Graph()
    empty = np.zeros((0, 3), np.float32)
    rows: dict[str, NDArray[np.generic]] = {
        "empty": empty,
        "one": np.array(1.5, np.float16),
        "texts": np.array(["a", "é"], object),
    }
    for name, data in rows.items():
        graph.constant(Array.of(data), name=name)
    graph.add("output", {n: graph[n] for n in rows})
    assert difference(graph, reread(graph)) == ""


def test_equal_arrays_share_a_name_and_different_ones_never_do() -> None:
    graph = Graph()
    for fill in (1, 1, 2):
        graph.constant(Array.of(np.full(50, fill, np.int32), "same"))
    text = print_graph(graph)
    assert len(array_table(graph)) == 2
    assert text.count("@same)") == 2
    assert difference(graph, reread(graph)) == ""


# -- numbers ----------------------------------------------------------------------------------

_SPECIAL = (
    [0, 1, 0x7FFFFF, 0x800000, 0x7F7FFFFF, 0x3F800000, 0x3F800001, 0x33333333, 0x3DCCCCCD]
    + [1 << k for k in range(31)]
    + [(1 << k) - 1 for k in range(1, 32) if (1 << k) - 1 < 0x7F800000]
)


def bits_of(value: float) -> int:
    with np.errstate(over="ignore"):
        return int(np.float32(value).view(np.uint32))


def test_a_float_prints_as_the_shortest_decimal_with_its_bits() -> None:
    rng = np.random.default_rng(5)
    drawn = rng.integers(0, 0x7F800000, 3000, dtype=np.uint32)
    for bits in [*_SPECIAL, *drawn.tolist()]:
        for signed in (bits, bits | 0x80000000):
            value = float(np.array(signed, np.uint32).view(np.float32))
            text = number_text(value, F32)
            assert bits_of(float(text)) == signed, text
            digits = text.lstrip("-").split("e")[0].replace(".", "").strip("0")
            for count in range(1, len(digits)):  # no shorter decimal has these bits
                assert bits_of(float(f"{value:.{count - 1}e}")) != signed, (text, count)


@pytest.mark.parametrize("name", ["f16", "bf16", "f8e4m3fn", "f8e5m2", "f8e8m0"])
def test_a_narrow_float_prints_with_its_bits(name: str) -> None:
    kind = dtype(name)
    width = kind.carrier.itemsize
    every = np.arange(256 if width == 1 else 65536).astype(f"u{width}").view(kind.carrier)
    for value in every[:: 1 if width == 1 else 7]:
        if math.isfinite(float(value)):
            text = number_text(float(value), kind)
            again = np.array(float(text)).astype(kind.carrier)
            assert again.tobytes() == value.tobytes(), text


def test_a_scale_is_the_number_that_its_type_holds() -> None:
    kind = parse_type("!quant.uniform<u8:f32, 0.1:3>")
    assert kind.quant is not None
    assert kind.quant.scale == (float(np.float32(0.1)),)
    wide = parse_type("!quant.uniform<u8:f32, 0.1:3, scale f64>")
    assert wide.quant is not None
    assert wide.quant.scale == (0.1,)
    assert kind != wide


def test_floats_in_attributes_keep_their_bits() -> None:
    for value in (-0.0, 0.1, 5e-324, math.inf, -math.inf, 1.7976931348623157e308):
        graph = Graph()
        x = graph.add("input", types=[parse_type("2xf32")], name="x").result
        y = graph.add("pad", {"x": x}, {"pads": (0, 1), "value": value}).result
        graph.add("output", {"y": y})
        back = reread(graph)["pad"].node.attrs["value"]
        assert isinstance(back, float)
        assert np.float64(back).tobytes() == np.float64(value).tobytes()


@pytest.mark.parametrize("name", ["f32", "f64", "i8", "u8", "i64", "u64", "bool"])
def test_elements_in_line_keep_their_bits(name: str) -> None:
    rng = np.random.default_rng(3)
    carrier = dtype(name).carrier
    for shape in ((), (1,), (2, 4), (8,)):
        data = np.frombuffer(rng.bytes(64), carrier)[: math.prod(shape)].reshape(shape)
        data = (data != 0) if name == "bool" else np.nan_to_num(data)
        graph = Graph()
        graph.constant(Array.of(data), name="c")
        assert "@" not in print_graph(graph)
        assert difference(graph, reread(graph)) == ""


# -- errors -----------------------------------------------------------------------------------

HEAD = "graph main as native {\n  %x = input() : 2x3xf32\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1, column 1: 'graph' should stand here, not the end"),
        ("graph main as native {", "line 1, column 23: the graph's bracket is not closed"),
        (f"{HEAD}  %y = relv(%x) : f32\n}}", "line 3, column 8: no op 'relv'"),
        (f"{HEAD}  %y = relu(%z) : f32\n}}", "line 3, column 15: %z is used before it is made"),
        (f"{HEAD}  %x = relu(%x) : f32\n}}", "line 3, column 12: %x is made twice"),
        (f"{HEAD}  %y = relu() : f32\n}}", "line 3, column 3: relu needs x"),
        (f"{HEAD}  %y = relu(%x, %x) : f32\n}}", "this operand needs its slot's name"),
        (f"{HEAD}  %y = relu(%x, x=%x) : f32\n}}", "slot x is bound twice"),
        (f"{HEAD}  %y = relu(%x) : 2x3xf3\n}}", "line 3, column 25: 'f3' is not an element type"),
        (f"{HEAD}  %y = relu(%x) {{a = 1}} : f32\n}}", "relu has no attribute a"),
        (f"{HEAD}  %y = relu(%x)\n}}", "1 values but 0 types"),
        (f"{HEAD}  relu(%x)\n}}", "relu makes 1 values, 0 types are given"),
        (f"{HEAD}  %y = concat(xs.a=%x) {{axis = 0}} : f32\n}}", "concat has no slot xs.a"),
        (f"{HEAD}  %y = fused() : f32\n}}", "a group is made by add_chain"),
        (f"{HEAD}  %c = constant(@c) : 4xf32\n}}", "array @c is not given"),
        (f"{HEAD}  %c = constant(1.5) : i8\n}}", "not every element in line is a i8"),
        (f"{HEAD}  %c = constant(300) : u8\n}}", "not every element in line is a u8"),
        (f"{HEAD}  %c = constant([1, 2]) : 3xi8\n}}", "2 elements in line are no 3xi8"),
        (f"{HEAD}  %c = constant(8) : u3\n}}", "not every element in line is a u3"),
        (f"{HEAD}  %y = relu(%x) : (N//0)xf32\n}}", "divides by zero"),
        (f"{HEAD}  %y = relu(%x) : (Nxf32\n}}", "a dimension's bracket is not closed"),
        (f"{HEAD}  %y = relu(%x) : (N)*xf32\n}}", "an x should stand after a dimension"),
        (f"{HEAD}}} extra", "'extra' is too much after the graph"),
        (f'{HEAD}  %"a\\q" = relu(%x) : f32\n}}', "has a broken escape"),
        (f"{HEAD}  %y = cast(%x) {{to = f33}} : f32\n}}", "'f33' is not an element type"),
        (f"{HEAD}  %y = cast(%x) {{to = @q}} : f32\n}}", "array @q is named before it is declared"),
        (f'{HEAD}  %y = relu(%x) : f32 plan {{x = "q8"}}\n}}', "'q8' is not an element type"),
        (f"{HEAD}  %y = relu(%x) : f32 from onnx {{a = 1}}\n}}", "an origin has no a"),
        (f"{HEAD}  output(y=%x)\n  output(y=%x)\n}}", "graph main has an output already"),
        (f"{HEAD}  %y = relu(%x) : f32 lineage 5\n}}", "a lineage for each of 1 values"),
        (f"{HEAD}  %y = relu(%x) : f32 lineage ((),)\n}}", "a list of texts should stand here"),
        (f"{HEAD}  %y = relu(%x) : f32 from a {{op = 5}}\n}}", "op of an origin is a text"),
        (f"{HEAD}  %y = relu(%x) : f32 from a {{call = 1.5}}\n}}", "call of an origin is a whole"),
        (
            f'{HEAD}  %y = relu(%x) : f32 from a {{operands = (("a",),)}}\n}}',
            "a pair of texts should stand here",
        ),
        (f'{HEAD}  %y = relu(%x) : f32 plan {{x = "u8", x = "i8"}}\n}}', "x is planned twice"),
        (f'{HEAD}  %y = relu(%x) named "a" : f32\n}}', "a node is not"),
        (f"{HEAD}  %y = relu(%x) |> clip inner {{h : f32}} : f32\n}}", "inner slots belong to"),
        (f"{HEAD}  %y = relu(%x) |> input : f32\n}}", "'.' stands where the stage before"),
        (f"{HEAD}  %y = input() |> relu : f32\n}}", "a stage makes one value of its operands"),
        (f"{HEAD}  %y = relu(%x) |> if : f32\n}}", "a stage makes one value of its operands"),
        (f'{HEAD}  %y = cast(%x) {{to = bytes"0"}} : f32\n}}', "pairs of hexadecimal digits"),
    ],
)
def test_a_fault_is_told_with_its_place_in_one_line(text: str, message: str) -> None:
    with pytest.raises(ParseError) as caught:
        parse(text)
    said = str(caught.value)
    assert message in said
    assert said.startswith("line ")
    assert "column " in said
    assert "\n" not in said
    assert len(said) < 240


@pytest.mark.parametrize(
    "text",
    [
        "!quant.uniform<string:f32, 1.0>",
        "!quant.uniform<bool:f32, 1.0>",
        "!quant.uniform<u8:i32, 1.0>",
        "!quant.uniform<u8<5:3>:f32, 1.0>",
        "!quant.uniform<u8<0:256>:f32, 1.0>",
        "!quant.uniform<u8:f32, {1.0, 2.0}>",
        "!quant.uniform<u8:f32:0, 1.0>",
        "3x!quant.uniform<u8:f32:0, {1.0:1, 2.0, 3.0}>",
        "3x!quant.uniform<u8:f32:0, {1.0, 2.0}:{1, 2, 3}>",
        "3x!quant.uniform<u8:f32:{0:0}, 1.0>",
        "3x3x!quant.uniform<u8:f32:{1:1, 0:1}, 1.0>",
        "9x!quant.uniform<u8:f32:0, {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0}>",
        "!quant.lut<u8:f32, 1.0>",
        "!quant.uniform<u8:f32, 1.0, codes [1]>",
        "!quant.uniform<u8:f32, 1.0, scale i8>",
        "!quant.uniform<u8:f32, 1.0, plus {1.0, 2.0}>",
        "!quant.affine<u8:f32, 1.0>",
        "!quant.uniform<u8:f32>",
        "!quant.uniform<u8:f32, @s>",
        "!quant.uniform<u65:f32, 1.0>",
        "f32x",
        "2x",
        "-2xf32",
        "9999999999999999999xf32",
        "x".join(["1"] * 70) + "xf32",
        "(" * 500 + "N" + ")" * 500 + "xf32",
        "(" + "*".join("(A+B)" for _ in range(100)) + ")xf32",
        "(" + "*".join(f"(a{i}+b{i})" for i in range(40)) + ")xf32",
        "(" + "9" * 50 + ")xf32",
        "\u0663xf32",
        "!quant.uniform<u8:f32, \u0663.5>",
        "!quant.uniform<u8:f32, 1.0, plus 1.0, plus 2.0>",
        "!quant.uniform<u8:f32, 0.5:18446744073709551616>",
        "!quant.uniform<i8:f32, 0.5:-9223372036854775809>",
        "3x!quant.uniform<u8:f32:-1, 1.0>",
        "!quant.uniform<" * 5000,
        "1000000000000000000xf32",
        "(N*" + "*".join(["999999999999"] * 20) + ")xf32",
    ],
)
def test_a_type_that_cannot_be_meant_is_refused(text: str) -> None:
    started = time.process_time()
    with pytest.raises(ParseError) as caught:
        parse_type(text)
    assert time.process_time() - started < 1
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 240


def test_an_array_is_declared_once() -> None:
    with pytest.raises(ParseError, match="line 1, column 26: array @a is declared twice"):
        parse("array @a : 1xf32 array @a : 1xf32", {"a": np.ones(1, np.float32)})


@pytest.mark.parametrize("size", [-1, 10**18, 10**30])
def test_a_size_that_no_array_has_is_no_size(size: int) -> None:
    with pytest.raises(TypeRuleError, match=f"an axis of {size} elements"):
        TensorType((2, size), F32)


def test_an_op_that_would_make_such_a_size_is_refused() -> None:
    graph = Graph()
    x = graph.add("input", types=[parse_type("3xf32")], name="x").result
    for _ in range(2):
        x = graph.add("tile", {"x": x}, {"repeats": (10**6,)}).result
    with pytest.raises(TypeRuleError, match="an axis of 3000000000000000000 elements"):
        graph.add("tile", {"x": x}, {"repeats": (10**6,)})
    graph.add("output", {"y": x})
    assert difference(graph, reread(graph)) == ""


def test_lists_within_lists_end_somewhere() -> None:
    deep = "(" * 5000
    with pytest.raises(ParseError, match="lists within lists"):
        parse(f'{HEAD}  %y = foreign() {{framework = "a", op = "b", attrs = {deep}')


def test_types_within_arrays_within_types_end_somewhere() -> None:
    lines = ["array @a0 : 16xf32"]
    lines += [
        f"array @a{i} : 16x!quant.uniform<u8:f32:0, @a{i - 1}>".replace(f"@a{i} ", f"@a{i} ", 1)
        for i in range(1, 50)
    ]
    data: dict[str, NDArray[np.generic]] = {"a0": np.ones(16, np.float32)}
    data |= {f"a{i}": np.ones(16, np.uint8) for i in range(1, 50)}
    with pytest.raises(ParseError, match="arrays within types, over 8 deep"):
        parse("\n".join([*lines, "graph main {}"]), data)


def mutations(text: str, rng: random.Random) -> str:
    at = rng.randrange(len(text))
    match rng.randrange(6):
        case 0:
            return text[:at]
        case 1:
            return text[:at] + rng.choice('%@(){}<>[]:,.="x?!|#/\\\n-+0 9é\x00') + text[at + 1 :]
        case 2:
            return text[:at] + text[at + rng.randrange(1, 9) :]
        case 3:
            return text[:at] + text[at : at + rng.randrange(1, 30)] * 2 + text[at:]
        case 4:
            other = rng.randrange(len(text))
            return text[:at] + text[other : other + 12] + text[at:]
        case _:
            word = rng.choice(["inf", "nan", "9" * 80, "-1", "none", "?", "(N//0)x", "xs.0=", "as"])
            return text[:at] + word + text[at:]


def test_broken_text_never_breaks_the_reader() -> None:
    from qir.ir.verify import verify

    seed = 20
    rng = random.Random(seed)
    read = 0
    graphs = [random_graph(n, FORMS[n % 3], decorated=n % 2 > 0) for n in range(30)]
    given = [(print_graph(g, origins=n % 4 > 1), arrays(g)) for n, g in enumerate(graphs)]
    for case in range(2500):
        text, data = given[case % len(given)]
        for _ in range(1 + rng.randrange(2)):
            text = mutations(text, rng) or "x"
        try:
            made = parse(text, data)
        except ParseError as error:
            said = str(error)
            assert said.startswith("line "), f"seed {seed}, case {case}: {said}"
            assert "\n" not in said, f"seed {seed}, case {case}: {said}"
            continue
        except QirError as error:
            pytest.fail(f"seed {seed}, case {case}: {type(error).__name__} {error}\n{text}")
        read += 1
        verify(made)  # must find, not break
        assert difference(made, reread(made, origins=True), history=True) == "", (seed, case)
    assert read > 60  # some mutations are harmless: then the rest was tried, too


@pytest.mark.parametrize("text", ["u8 affine tensor minmax", "i8<-127:127> symmetric channel mse"])
def test_a_scheme_reads_back(text: str) -> None:
    assert str(parse_scheme(text)) == text


@pytest.mark.parametrize(
    "scheme",
    [
        Scheme(dtype("u8"), zero=7),
        Scheme(dtype("u8"), zero=7, share="a)b\n("),
        Scheme(dtype("u8"), scale=0.1, range="mse"),
        Scheme(dtype("u8"), scale=1e-9, zero=3, share="x"),
        Scheme(dtype("i4"), True, "channel", (-7, 7), "percentile:99.9"),
        Scheme(dtype("u8"), bounds=(0, 255)),
    ],
)
def test_every_scheme_reads_back(scheme: Scheme) -> None:
    assert parse_scheme(str(scheme)) == scheme


@pytest.mark.parametrize("text", ["", "f32", "i8<5:3>", "u8<0:999>", "u8 fixed(a:1)", "u99"])
def test_a_scheme_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ParseError) as refused:
        parse_scheme(text)
    assert "could not convert" not in str(refused.value)


def test_a_type_stands_in_one_line() -> None:
    kind = TensorType((2, None), F32)
    assert str(kind) == "2x?xf32"
    assert repr(kind) == "2x?xf32"
