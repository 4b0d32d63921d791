"""A graph as a table for notebooks: one file of HTML without scripts, for light pages and dark.

Its colours are translucent and its text has the page's own, so that it suits any background.
"""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

from qir.ir import attrs as attributes
from qir.ir.attrs import Attr
from qir.ir.node import GraphLike, Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array
from qir.query.display import FAMILIES, element, family, op_name, parameters_text, shape, storage
from qir.query.facts import value_quant_type

MAX_ROWS = 300
_MAX_PARTS = 12
_MAX_LETTERS = 160
_HEADS = ("node", "op", "reads", "makes", "numbers")
_TINTS = (
    "20,160,140",
    "60,160,60",
    "40,110,200",
    "90,95,200",
    "150,70,190",
    "215,140,20",
    "128,128,128",
    "128,128,128",
)
_STYLE = """\
.qir{font:13px/1.45 system-ui,sans-serif;color:inherit;overflow-x:auto}
.qir table{border-collapse:collapse;margin:4px 0}
.qir th,.qir td{text-align:left;vertical-align:top;padding:2px 10px 2px 4px;\
border-bottom:1px solid rgba(128,128,128,.25);overflow-wrap:anywhere}
.qir th{font-weight:600;opacity:.7}
.qir td:nth-last-child(-n+2){white-space:nowrap}
.qir td[colspan]{white-space:normal}
.qir code{font:12px/1.4 ui-monospace,monospace;background:none;color:inherit}
.qir small{opacity:.65}
.qir summary{cursor:pointer}
.qir b.s{font:12px ui-monospace,monospace;padding:0 5px;border-radius:4px}
"""


def graph_html(graph: GraphLike) -> str:
    """Returns the table of a graph; what is over some hundred rows is only counted."""
    head = _escape(f"{graph.name} as {graph.profile}")
    counts = f"{sum(1 for _ in graph):,} nodes"
    inside = _table(graph, [MAX_ROWS])
    return _page(f"<div><strong>{head}</strong> <small>{counts}</small></div>{inside}")


def node_html(node: Node) -> str:
    """Returns a node as one row of such a table."""
    return _page(_table_html(_HEADS, [_row(node, [MAX_ROWS])]))


def value_html(value: Value) -> str:
    """Returns a value as one row: what it is called, what makes it, what it holds, who reads it."""
    cells = (
        f"<code>{_escape(value.name)}</code>",
        f"<code>{_escape(op_name(value.node))}</code>",
        f"{_shape(value)} {_type_badge(value)}",
        _numbers(value),
        _joined_lines(f"<code>{_escape(user.name)}</code>" for user in value.users),
    )
    row = f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
    return _page(_table_html(("value", "made by", "holds", "numbers", "read by"), [row]))


def rows_html(heads: Sequence[str], rows: Sequence[Sequence[str]], left: int = 0) -> str:
    """Returns a table of plain texts, and how many rows more there are."""
    lines = [f"<tr>{''.join(f'<td>{_escape(cell)}</td>' for cell in row)}</tr>" for row in rows]
    if left:
        lines.append(f'<tr><td colspan="{len(heads)}"><small>and {left:,} more</small></td></tr>')
    return _page(_table_html(heads, lines))


def _page(inside: str) -> str:
    tints = "".join(
        f".qir b.{name}{{background:rgba({tint},{'.12' if name == 'float32' else '.28'})}}\n"
        for name, tint in zip(FAMILIES, _TINTS, strict=True)
    )
    return f'<div class="qir"><style>{_STYLE}{tints}</style>{inside}</div>'


def _table_html(heads: Sequence[str], rows: Sequence[str]) -> str:
    headings = "".join(f"<th>{name}</th>" for name in heads)
    return f"<table><thead><tr>{headings}</tr></thead><tbody>{''.join(rows)}</tbody></table>"


def _table(graph: GraphLike, room: list[int]) -> str:
    rows: list[str] = []
    hidden = 0
    for node in graph:
        if node.op == "constant":
            continue
        if room[0] <= 0:
            hidden += 1
            continue
        # One list for the graph and all its bodies: the whole page is bounded.
        room[0] -= 1
        rows.append(_row(node, room))
    if hidden:
        message = f"and {hidden:,} more nodes; graph.query(..) finds any"
        rows.append(f'<tr><td colspan="5"><small>{message}</small></td></tr>')
    return _table_html(_HEADS, rows)


def _row(node: Node, room: list[int]) -> str:
    cells = (
        f"<code>{_escape(node.name)}</code>{_origin(node)}",
        _op(node, room),
        _joined_lines(_operand(slot, value) for slot, value in node.operands.items()),
        _joined_lines(f"{_shape(value)} {_type_badge(value)}" for value in node.results),
        _joined_lines(_numbers(value) for value in node.results),
    )
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _origin(node: Node) -> str:
    return f"<br><small>{_escape(str(node.origins[0]))}</small>" if node.origins else ""


def _op(node: Node, room: list[int]) -> str:
    name = f"<code>{_escape(op_name(node))}</code>"
    if node.stages:
        stages = "".join(f"<li>{_stage(stage)}</li>" for stage in node.stages)
        return f"<details><summary>{name}</summary><ol>{stages}</ol></details>"
    markup = name + _attrs(node.op, node.attrs)
    for title, body in node.bodies.items():
        inside = _table(body, room)
        markup += f"<details><summary>{_escape(title)}</summary>{inside}</details>"
    return markup


def _stage(stage: Stage) -> str:
    stored = f" <code>{_escape(str(stage.type))}</code>" if stage.type else ""
    return f"<code>{_escape(stage.op)}</code>{_attrs(stage.op, stage.attrs)}{stored}"


def _attrs(op: str, values: Mapping[str, Attr]) -> str:
    """Returns the attributes that are not as they usually are."""
    defaults = {row.name: row.default for row in spec(op).attrs if not row.required}
    texts = [
        f"{name} = {_attr(value)}"
        for name, value in values.items()
        if name not in defaults or not attributes.same(value, defaults[name])
    ]
    return f"<br><small>{_escape(', '.join(texts))}</small>" if texts else ""


def _attr(value: Attr) -> str:
    if isinstance(value, Array):
        return f"{shape(value.type)} {value.type.dtype}"
    return value.hex() if isinstance(value, bytes) else str(value)


def _operand(slot: str, value: Value) -> str:
    markup = f"<small>{_escape(slot)}</small> <code>{_escape(value.name)}</code>"
    if value.node.op == "constant":
        markup += f" <small>{_escape(f'{shape(value.type)} {element(value)}')}</small>"
    return markup


def _shape(value: Value) -> str:
    return f"<code>{_escape(shape(value.type))}</code>"


def _type_badge(value: Value) -> str:
    kind = storage(value)
    expressed = f" <small>as {value.type.dtype}</small>" if kind != value.type.dtype else ""
    return f'<b class="s {family(kind)}">{_escape(str(kind))}</b>{expressed}'


def _numbers(value: Value) -> str:
    quant = value_quant_type(value)
    return f"<code>{_escape(parameters_text(quant).partition(' ')[2])}</code>" if quant else ""


def _joined_lines(parts: Iterator[str]) -> str:
    """Returns a line for each; of very many, the first."""
    lines = list(parts)
    if len(lines) > _MAX_PARTS:
        lines = [*lines[:_MAX_PARTS], f"<small>and {len(lines) - _MAX_PARTS:,} more</small>"]
    return "<br>".join(lines)


def _escape(text: str) -> str:
    """Text that HTML takes for nothing else; what is very long loses its end."""
    if len(text) > _MAX_LETTERS:
        text = f"{text[:_MAX_LETTERS]}.."
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return html.escape(text)
