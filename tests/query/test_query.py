"""Expressions over nodes and values: what they find, and how they fail."""

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qir.errors import ArgumentError, ParseError
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.text import parse
from qir.query.facts import NODE, VALUE, value_quant_type
from qir.query.query import query, query_values, search
from qir.testing import random_graph
from tests.inspect.programs import FLOAT, INTEGER, QDQ, program

LOOP = """
graph main as native {
  %n = input() : i64
  %x = input() : 2x3xf32
  %y = loop(count=%n, vs.0=%x) : 2x3xf32 with body {
    %i = input() : i64
    %go = input() : bool
    %v = input() : 2x3xf32
    %r = relu(%v) : 2x3xf32
    output(go=%go, v=%r)
  }
  %z = relu(%y) : 2x3xf32
  output(z=%z)
}
"""


LAYERS = """
graph layers as native {
  %x = input() : 2x3xf32
  %w = constant(@w) : 3x3x!quant.uniform<i8:f32:1, {0.5, 0.25, 0.125}>
  %wd = dequantize(%w) : 3x3xf32
  %y = matmul(%x, %wd) : 2x3xf32
  %u = constant(@u) : 3x3x!quant.uniform<i8:f32:1, {0.5:1, 0.01:2, 0.5:3}>
  %ud = dequantize(%u) : 3x3xf32
  %v = matmul(%y, %ud) : 2x3xf32
  %g = constant(@g) : 3x3x!quant.uniform<i8:f32:0, {0.5:0, 0.01:2, 0.5:3}>
  %gd = dequantize(%g) : 3x3xf32
  %c = constant([1.0, 2.0, 3.0]) : 3xf32
  %z = gemm(%v, %gd, c=%c) {trans_b = true} : 2x3xf32
  output(z=%z)
}
"""


def found(text: str, expression: str) -> list[str]:
    held = {name: np.ones((3, 3), np.int8) for name in ("w", "u", "g")}
    graph = parse(text, held) if text is LAYERS else program(text)
    return [node.name for node in graph.query(expression)]


# What each finds by the programs' own text, read by a person.
CASES = [
    (INTEGER, '"conv2d" in ops and w.bits == 8 and uses > 1', ["y"]),
    (INTEGER, 'op == "conv2d" and w.bits == 8', ["d"]),
    (QDQ, 'op == "conv2d" and w.bits == 8 and w.dtype == "f32"', ["y"]),
    (FLOAT, 'op == "conv2d" and w.bits == 8', []),
    (FLOAT, "has(bias)", ["y"]),
    (FLOAT, 'not has(w) and not op in ("input", "constant", "output")', ["z"]),
    (FLOAT, "stride == (2, 2) and attr.pad[0] == 1", ["y"]),
    (FLOAT, "w.shape == (6, 3, 3, 3)", ["y"]),
    (FLOAT, 'result.shape[0] == "N" and result.rank == 4 and result.shape[-1] == 4', ["y", "z"]),
    (INTEGER, "stride == (1, 1)", ["y", "d"]),
    (INTEGER, "groups > 1", ["d"]),
    (INTEGER, 'stages == ("conv2d", "relu")', ["y"]),
    (INTEGER, 'any(users, it.op == "sigmoid")', ["r"]),
    (INTEGER, "len(inputs) == 2 and all(inputs, it.quantized)", ["y", "d", "s"]),
    (INTEGER, 'a.node.op == "conv2d" and a.node.w.scale == 0.25', ["s"]),
    (INTEGER, 'b.node.name == "y"', ["s"]),
    (INTEGER, "0.2 < w.scale <= 0.25 and w.zero == 0", ["y", "d"]),
    (INTEGER, 'x.storage == "u8" and x.low == 0 and x.high == 255', ["y", "d", "r", "f"]),
    (INTEGER, "result.min == -1.5 and result.max == 126", ["q", "y", "d", "s", "r"]),
    (INTEGER, 'matches("?")', ["x", "q", "w", "y", "d", "s", "r", "f"]),
    (INTEGER, 'matches(op, "*quant*")', ["q", "r"]),
    (INTEGER, "sum(inputs.bytes) > 54", ["y"]),
    (INTEGER, "result.size / 2 == 81 or result.size // 2 == 27", ["w", "w2"]),
    (INTEGER, "-uses == -2 and 7 % 4 * 2 - 1 == 5", ["y", "s"]),
    (INTEGER, 'op == "input" and uses + 0.5 == 1.5', ["x"]),
    (INTEGER, 'slot("w").constant', ["y", "d"]),
    (INTEGER, 'profile == "native" and op == "output"', ["output"]),
    (INTEGER, "w.bits != 8", []),  # where there is no w, nothing is told apart
    (INTEGER, 'not (w.bits == 8) and op == "add"', ["s"]),
    (INTEGER, "uses / 0 == uses / 0", []),
    (INTEGER, 'w.scale < "a" or name > 3', []),
    (INTEGER, "has(w) and max(w.scale, 3) == 3 and min(w.scale, 3) == 0.25", ["y", "d"]),
    (INTEGER, "has(a) and abs(-a.zero) == 3", ["s"]),
    (LAYERS, "w.scale > .1", ["y"]),
    (LAYERS, "w.zero == 0 and 0 == w.zero", ["y"]),
    (LAYERS, "w.zero != 0", ["v"]),
    (LAYERS, "any(w.zero, it != 0)", ["v", "z"]),
    (LAYERS, "not (w.zero == 0) and has(w)", ["v", "z"]),
    (LAYERS, "() == 0 or result.shape == 1", []),
    (LAYERS, 'w.bits == 8 and x.dtype == "f32"', ["y", "v", "z"]),
    (LAYERS, 'op == "gemm" and bias.dtype == "f32" and not has(slot("bias"))', ["z"]),
    (LAYERS, 'op == "matmul" and has(bias)', []),
    (LAYERS, '-.5e1 == -5 and op == "output"', ["output"]),
]


@pytest.mark.parametrize(("text", "expression", "wanted"), CASES, ids=[c[1] for c in CASES])
def test_an_expression_finds(text: str, expression: str, wanted: list[str]) -> None:
    assert found(text, expression) == wanted


def test_values_are_found_by_their_own_facts() -> None:
    graph = program(INTEGER)
    assert [v.name for v in query_values(graph, "constant and bytes == 162")] == ["w"]
    assert [v.name for v in query_values(graph, 'uses == 2 and node.op == "add"')] == ["s"]
    assert [v.name for v in query_values(graph, "not quantized")] == ["x", "f"]


def test_variadic_slots_are_rows() -> None:
    graph = parse(
        "graph g as native {\n %a = input() : 2x3xf32\n %b = input() : 2x5xf16\n"
        " %c = input() : 2x5xf32\n %z = concat(xs.0=%a, xs.1=%c) {axis = 1} : 2x8xf32\n"
        " output(z=%z, b=%b)\n}"
    )
    for expression in (
        "len(xs) == 2",
        "xs.1.shape[1] == 5",
        "5 in (xs.0.shape[1], xs.1.shape[1])",
        'any(xs, it.name == "c") and all(xs, it.rank == 2)',
        'xs.name == ("a", "c")',
        "axis == 1",
    ):
        assert [n.name for n in graph.query(expression)] == ["z"], expression


def test_nodes_of_bodies_are_found_with_their_path() -> None:
    graph = parse(LOOP)
    matches = search(graph, 'op == "relu"')
    assert [(m.node.name, m.path) for m in matches] == [("r", ("y/body",)), ("z", ())]
    assert [n.name for n in graph.query("has(bodies)")] == ["y"]


BAD = {
    "op == conv2d": (7, "quote it: 'conv2d'"),
    "x.constant == True": (15, "True is written true"),
    "x.0.1 == 2": (3, "[0]"),
    "op = 3": (4, "write =="),
    "bits > 3": (1, "result.bits"),
    'op == "conv2"': (4, "did you mean conv2d"),
    "w.bitz == 1": (3, "did you mean bits"),
    "strid == 1": (1, "did you mean stride"),
    "(1": (3, "')' should stand here"),
    "": (1, "not the end"),
    "a b": (3, "'b' is one too many"),
    "len()": (1, "len(inputs)"),
    "matches(op)": (1, "matches("),
    "it == 1": (1, "any(.., ..)"),
    "x..y": (3, "a name should stand here"),
    '"abc': (1, "not closed"),
    "attr": (5, "'.' should stand here"),
    "foo(3)": (1, "no function foo"),
    "w == none": (6, "has(bias)"),
    "1 < not 2": (5, "brackets"),
    "uses > 1 and": (13, "not the end"),
    "x == $": (6, "'$' means nothing"),
    "uses > 1234567890123456789012": (8, "18 digits"),
    "__import__('os')": (1, "no function __import__"),
    "x.__class__": (3, "nothing has a fact"),
    "(" * 5000: (80, "more than 80 deep"),
    "not " * 2000 + "-": (8002, "not the end"),
}


@pytest.mark.parametrize("expression", BAD, ids=[e[:20] for e in BAD])
def test_what_is_no_expression_is_told_in_a_line_with_its_column(expression: str) -> None:
    column, said = BAD[expression]
    with pytest.raises(ParseError) as caught:
        program(FLOAT).query(expression)
    text = str(caught.value)
    assert said in text
    assert len(text) < 200
    assert text.isprintable()
    assert abs(int(text.split()[1].strip(":")) - column) <= 1, text


@settings(max_examples=400, deadline=None, derandomize=True)
@given(
    st.lists(
        st.sampled_from(
            "op name uses w x xs bias it stride attr . . , ( ) [ ] == != < in not and or any all "
            "has len matches slot sum max + - * / // % 0 1 2.5 'a*' \"conv2d\" true origin".split()
        ),
        max_size=24,
    )
)
def test_any_row_of_words_is_answered_or_refused(words: list[str]) -> None:
    try:
        answer = query(GRAPH, " ".join(words))
    except ParseError:
        return
    assert set(answer) <= set(GRAPH)


GRAPH = program(INTEGER)


def test_long_rows_of_operators_need_no_depth() -> None:
    late = " or ".join(["false"] * 1100 + ["true"])
    for row in (" + ".join("1" * 2500), late, "- " * 4001 + "1", "x" + ".node.x" * 1000 + " == x"):
        assert len(query(GRAPH, row)) == (0 if "x" in row else len(GRAPH)), row[:20]
    with pytest.raises(ParseError, match="at most 10000"):
        query(GRAPH, "1" * 10_001)


def test_a_query_that_would_look_at_everything_of_everything_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("qir.query.query._MAX_EVALUATIONS", 10_000)
    graph = Graph()
    x = graph.add("input", types=[GRAPH["x"].type], name="x").result
    for _ in range(600):
        graph.add("relu", {"x": x})
    assert len(graph.query('op == "relu" and x.uses == 600')) == 600
    assert [n.name for n in graph.query('any(users, it.op == "relu")')] == ["x"]
    with pytest.raises(ParseError, match="too many elements"):
        graph.query("all(x.users, it.op == op)")


def test_a_row_of_users_is_looked_at_once_for_all_its_readers() -> None:
    graph = Graph()
    x = graph.add("input", types=[GRAPH["x"].type], name="x").result
    for i in range(20_000):
        graph.add("tanh" if i == 19_999 else "relu", {"x": x})
    start = time.process_time()
    assert len(graph.query('any(x.users, it.op == "tanh") and all(x.users, it.x.name == "x")')) == (
        20_000
    )
    assert len(graph.query('all(x.users, it.op == "relu")')) == 0
    assert time.process_time() - start < 5
    assert (
        len(graph.query("any(x.users, it.op == op) and uses == 0 and len(x.users) > 9")) == 20_000
    )


def test_what_is_asked_of_the_subject_is_asked_anew() -> None:
    graph = Graph()
    x = graph.add("input", types=[GRAPH["x"].type], name="x").result
    for i in range(40):
        graph.add("relu", {"x": x}, name=f"r{i}")
    wanted = [f"r{i}" for i in range(40)]
    for question in ("any(x.users, it.name == name)", "any(x.users, all(users, it.op == 'add'))"):
        assert [n.name for n in graph.query(question)] == wanted
    assert graph.query("all(x.users, it.name == name)") == []


@pytest.mark.parametrize("expression", [5, None, b"op"])
def test_an_expression_is_a_text(expression: object) -> None:
    with pytest.raises(ArgumentError, match=r"^query: argument expression is .* it takes str$"):
        GRAPH.query(expression)  # type: ignore[arg-type]


def plain(node: Node) -> bool:
    """The same question as EXPRESSION, asked in Python."""
    w = node.operands.get("w")
    quant = value_quant_type(w) if w is not None else None
    bits = quant.storage.bits if quant else w.type.dtype.bits if w is not None else None
    many = len([u for v in node.results for u in v.uses]) > 1
    return (node.op == "conv2d" and bits == 8) or (many and "x" in node.operands)


EXPRESSION = 'op == "conv2d" and w.bits == 8 or uses > 1 and has(slot("x"))'


def test_a_query_answers_as_python_would_on_random_graphs() -> None:
    hits = 0
    for seed in range(60):
        form = random.Random(seed).choice(["float", "qdq", "integer"])
        graph = random_graph(seed, form)  # type: ignore[arg-type]
        wanted = [node for node in graph if plain(node)]
        assert query(graph, EXPRESSION) == wanted, f"seed {seed}, {form}"
        hits += len(wanted)
    assert hits > 50


@pytest.mark.parametrize("name", [*VALUE, *NODE])
def test_every_fact_can_be_asked_of_every_graph(name: str) -> None:
    ask = query_values if name in VALUE else query
    for seed in range(12):
        graph = random_graph(seed, "whole", decorated=seed % 2 == 0)
        assert not ask(graph, f"{name} < 0 and {name} > 0"), f"seed {seed}"
        assert not ask(graph, f"not has({name}) and {name} == 1"), f"seed {seed}"
        ask(graph, f"any({name}, it.name == 'x') or max({name}) > 1 or {name}[0] == 1")


@pytest.mark.parametrize(
    "name", sorted(set(VALUE) - {"name", "users", "uses", "axis", "max", "min"})
)
@pytest.mark.parametrize("form", ["{} > 100", "max({}) > 100", "{} == 'u8'", "has(op) and not {}"])
def test_a_fact_of_values_alone_is_an_error_that_names_the_result(name: str, form: str) -> None:
    with pytest.raises(ParseError, match=f"{name} is a fact of values, such as result.{name}"):
        query(random_graph(1, "float"), form.format(name))


def test_a_slot_that_is_called_as_a_fact_is_asked_as_a_slot() -> None:
    graph = parse(
        "graph main { %x = input() : 2x3xf32\\n%s = constant([6]) : 1xi64\\n"
        "%y = reshape(%x, %s) : 6xf32\\n output(y=%y) }".replace("\\n", "\n")
    )
    for asked in ("has(shape)", "shape.constant", 'shape.dtype == "i64"', "max(result.shape) > 5"):
        assert [n.op for n in query(graph, f'{asked} and op == "reshape"')] == ["reshape"], asked
