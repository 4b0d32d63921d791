"""How graphs, nodes, values and differences look in a prompt and in a notebook."""

from html.parser import HTMLParser

from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import TensorType
from qir.query.diff import diff
from qir.query.html import node_html, value_html
from tests.inspect.programs import FLOAT, INTEGER, program
from tests.query.test_query import LOOP

ODD = "a<b>\n\t\x00&'\""


class Page(HTMLParser):
    """The cells of a table; fails where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag != "br":
            self.open.append(tag)
        if tag == "td":
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells[-1] += data


def odd() -> Graph:
    """A graph whose names hold what neither a line nor HTML takes."""
    graph = Graph(ODD)
    x = graph.add("input", types=[TensorType((2,), F32)], name=ODD).result
    graph.add("output", {"y": graph.add("relu", {"x": x}, name=f"{ODD}2").result})
    return graph


def test_a_prompt_shows_one_line_whatever_a_name_holds() -> None:
    graph = odd()
    node = graph[f"{ODD}2"].node
    for text in (repr(graph), repr(node), repr(node.result), repr(graph.inputs[0])):
        assert text.isprintable(), text
        assert "a<b>\\n" in text


def test_a_node_is_a_row_and_a_value_too() -> None:
    graph = program(INTEGER)
    cells = Page(node_html(graph["y"].node)).cells
    assert cells[0] == "y"
    assert "conv2d |> relu" in cells[1]
    assert "Nx6x8x8" in cells[3]
    cells = Page(value_html(graph["y"])).cells
    assert cells == ["y", "conv2d |> relu", "Nx6x8x8 u8", "0.5:3", "ds"]
    assert "a&lt;b&gt;" in value_html(odd()[f"{ODD}2"])
    assert len(Page(value_html(odd()[ODD])).cells) == 5


def test_a_difference_is_a_table_and_a_short_one() -> None:
    found = diff(program(FLOAT), program(FLOAT.replace("stride = (2, 2)", "stride = (4, 2)")))
    told = Page(found._repr_html_()).cells
    assert "stride" in told
    assert "(4, 2)" in told
    assert "no difference" in diff(odd(), odd())._repr_html_()
    long, other = Graph(), Graph()
    for i in range(500):
        long.add("input", types=[TensorType((2,), F32)], name=f"x{i}")
        other.add("input", types=[TensorType((3,), F32)], name=f"x{i}")
    text = diff(long, other)._repr_html_()
    assert "and 440 more" in text
    assert len(text) < 40_000


def test_nodes_of_bodies_are_counted() -> None:
    found = diff(parse(LOOP), parse(LOOP.replace("%r = relu", "%r = abs")))
    assert found.nodes == (10, 10)
    assert sum(found.matched.values()) == 10
    assert ("y/body/r", "y/body/r") in {(pair.a, pair.b) for pair in found.pairs}
