"""Drawings and data of graphs: read back by other readers, whatever names they hold."""

import io
import json
import re
from collections import Counter
from html.parser import HTMLParser

import networkx as nx
import numpy as np
import pytest

from qir.inspect.export import FORMATS, to_dot, to_graphml, to_json, to_mermaid
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.query.html import MAX_ROWS
from qir.testing import random_graph
from tests.inspect.programs import FLOAT, INTEGER, QDQ, program
from tests.query.test_query import LOOP

NAMES = (
    'a "quoted" name',
    "back\\slash \\n",
    "line\nbreak\r\ttab",
    "<b>&amp;</b><script>alert(1)</script>",
    "]]> --> %% end",
    "`markdown` **bold** #quot; #35;",
    "é ü 名前 🦊",
    "\x00\x07\x1b[31m\x7f",
    "\ud800 alone",
    "subgraph end",
    "n0",
    "}{)(|",
    "",
    "x" * 5000,
)


def odd(names: tuple[str, ...] = NAMES) -> Graph:
    """A graph whose values, results and name are called so."""
    graph = Graph(names[0])
    value = graph.add("input", types=[TensorType((1, 4), F32)], name=names[0]).result
    for name in names[1:]:
        value = graph.add("relu", {"x": value}, name=name).result
    w = graph.constant(Array.of(np.ones(4, np.float32)), name="<w>")
    value = graph.add("add", {"a": value, "b": w}).result
    graph.add("output", dict.fromkeys(names[1:5], value))
    return graph


GRAPHS = {
    "float": program(FLOAT),
    "integer": program(INTEGER),
    "qdq": program(QDQ),
    "loop": parse(LOOP),
    "odd": odd(),
    **{f"random {seed}": random_graph(seed, "qdq", decorated=True) for seed in range(12)},
}
each = pytest.mark.parametrize("graph", GRAPHS.values(), ids=GRAPHS)


def total(graph: Graph) -> tuple[int, int]:
    """How many nodes and uses there are, those of bodies too."""
    graphs = [held for _, held in graph.walk()]
    return sum(map(len, graphs)), sum(len(n.operands) for g in graphs for n in g)


@each
def test_networkx_reads_every_node_and_use_of_the_graphml(graph: Graph) -> None:
    text = to_graphml(graph)
    read = nx.read_graphml(io.BytesIO(text.encode()), force_multigraph=True)
    assert (read.number_of_nodes(), read.number_of_edges()) == total(graph)
    slots = Counter(data.get("slot", "") for _, _, data in read.edges(data=True))
    plain = [s for _, g in graph.walk() for n in g for s in n.operands if s.isalnum()]
    assert all(slots[slot] == count for slot, count in Counter(plain).items())
    if all(re.fullmatch(r"[ -~]*", v.name) for v in graph.values.values()):
        names = {n.name for _, g in graph.walk() for n in g}
        assert names == {data.get("name", "") for _, data in read.nodes(data=True)}
        assert nx.is_directed_acyclic_graph(read)


# The grammar of what is written, by Graphviz's own rules for quoted texts.
QUOTED = r'"(?:[^"\\\n]|\\["\\n])*"'
DOT_LINE = re.compile(
    rf"""digraph\ {QUOTED}\ {{ | \ *}} | \ *rankdir=TB; | \ *(?:node|edge)\ \[[^\[\]]*\];
    | \ *(?P<node>\w+)\ \[label={QUOTED},\ fillcolor="\#\w{{6}}",\ color="\#\w{{6}}"\];
    | \ *(?P<from>\w+)\ ->\ (?P<to>\w+)\ \[label={QUOTED}\];
    | \ *subgraph\ cluster_\w+\ {{ | \ *label={QUOTED};""",
    re.VERBOSE,
)


@each
def test_dot_is_quoted_by_graphviz_rules_and_draws_all_but_constants(graph: Graph) -> None:
    lines = to_dot(graph).removesuffix("\n").split("\n")
    found = [DOT_LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, ok in zip(lines, found, strict=True) if not ok][:3]
    nodes = [m["node"] for m in found if m and m["node"]]
    drawn = [n for _, g in graph.walk() for n in g if n.op != "constant"]
    assert len(set(nodes)) == len(nodes) == len(drawn)
    ends = {m[side] for m in found if m and m["from"] for side in ("from", "to")}
    assert ends <= set(nodes)
    edges = sum(v.node.op != "constant" for n in drawn for v in n.operands.values())
    assert sum(m is not None and m["from"] is not None for m in found) == edges


MERMAID_LINE = re.compile(
    r"""flowchart\ TD | \ *(?P<node>\w+)\["(?P<label>[^"]*)"\]:::\w+
    | \ *(?P<from>\w+)\ -->\|"[^"]*"\|\ (?P<to>\w+) | \ *subgraph\ \w+\["[^"]*"\] | \ *end
    | \ *classDef\ \w+\ fill:\#\w{6},stroke:\#\w{6},color:\#000""",
    re.VERBOSE,
)


@each
def test_mermaid_labels_hold_nothing_that_it_reads_as_its_own(graph: Graph) -> None:
    lines = to_mermaid(graph).removesuffix("\n").split("\n")
    found = [MERMAID_LINE.fullmatch(line) for line in lines]
    assert all(found), [line for line, ok in zip(lines, found, strict=True) if not ok][:3]
    nodes = {m["node"] for m in found if m and m["node"]}
    assert {m[s] for m in found if m and m["from"] for s in ("from", "to")} <= nodes
    for match in found:
        if match and match["label"]:
            bare = re.sub(r"<br/>|#\d+;", "", match["label"])
            assert not re.search(r"[<>&#`\"\[\]{}()]", bare), bare


def test_mermaid_numbers_stand_for_the_letters() -> None:
    text = to_mermaid(odd(("x", 'a "b" <c>')))
    label = re.search(r'n1\["relu<br/>([^"]*?)<br/>', text)
    assert label is not None
    assert re.sub(r"#(\d+);", lambda m: chr(int(m[1])), label[1]) == 'a "b" <c>'


@each
def test_json_tells_every_node_value_and_body(graph: Graph) -> None:
    told = json.loads(FORMATS["json"](graph).encode().decode())
    assert told == json.loads(json.dumps(to_json(graph), allow_nan=False))
    nodes = [n for n in graph if n.op != "output"]
    assert len(told["nodes"]) == len(nodes)
    made = [v["name"] for n in told["nodes"] for v in n["results"]]
    used = [name for n in told["nodes"] for name in n["operands"].values()]
    assert set(used) | set(told["outputs"].values()) <= set(made)
    for node, row in zip(nodes, told["nodes"], strict=True):
        assert [v["type"] for v in row["results"]] == [str(v.type) for v in node.results]
        assert [s["op"] for s in row["stages"]] == [s.op for s in node.stages]
        assert set(row["bodies"]) == set(node.bodies)


class Page(HTMLParser):
    """What a browser would see: tags in their order, and the texts between them."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.texts: list[str] = []
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


@each
def test_the_page_of_a_graph_is_whole_and_runs_nothing(graph: Graph) -> None:
    text = graph._repr_html_()
    text.encode()
    page = Page()
    page.feed(text)
    page.close()
    assert not page.open
    known = "div style strong small table thead tbody tr th td code b br details summary ol li"
    assert set(page.tags) <= set(known.split())
    assert page.attributes <= {"class", "colspan"}
    if graph.name == "integer":
        assert {"conv2d |> relu", "u8", "0.5:3", "y"} <= set(page.texts)
        assert page.tags["details"] == 1
    if graph is GRAPHS["odd"]:
        assert "<b>&amp;</b><script>alert(1)</script>" in page.texts


def test_a_long_graph_shows_some_hundred_rows_and_says_so() -> None:
    graph = Graph()
    value = graph.add("input", types=[TensorType((1, 4), F32)], name="x").result
    for _ in range(2000):
        value = graph.add("relu", {"x": value}).result
    graph.add("output", {f"y{i}": value for i in range(500)})
    page = Page()
    page.feed(graph._repr_html_())
    assert page.tags["tr"] == MAX_ROWS + 2
    assert "and 1,702 more nodes; graph.query(..) finds any" in page.texts
    assert len(graph._repr_html_()) < 200_000


def test_what_a_prompt_shows_is_short_and_telling() -> None:
    graph = program(INTEGER)
    assert repr(graph) == "<graph integer as native: x -> f, s, 10 nodes, 6 quantized values>"
    assert repr(graph["y"].node).startswith("%y = conv2d |> relu(x=%q, w=%w) : ")
    assert repr(graph["y"]) == "%y : (N)x6x8x8x!quant.uniform<u8:f32, 0.5:3>"
    assert repr(graph["w"].constant) == "<array @w : 6x3x3x3x!quant.uniform<i8:f32, 0.25>>"
    assert all(len(repr(node)) < 400 for node in graph)
