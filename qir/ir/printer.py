"""The text of a graph: one node a line, in the order of the nodes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import numpy as np

from qir.arguments import checked
from qir.ir import attrs as attributes
from qir.ir.array_text import write_array
from qir.ir.attrs import Attr
from qir.ir.carried_profiles import needed_profiles, write_profile
from qir.ir.dtype import DType
from qir.ir.lexer import quote, write_name, write_word
from qir.ir.node import CarriedProfile, GraphLike, Node, Stage, Value
from qir.ir.numerals import number_text
from qir.ir.ops import spec
from qir.ir.ops.graph import FREE_SLOT_OPS
from qir.ir.origin import Lineage, Origin
from qir.ir.types import MAX_INLINE_PARAMS, Array, ArrayName, Element, QuantType, TensorType

RESERVED = "__metadata__"  # safetensors keeps its own matter under this name
_PLAIN = {"f32", "f64", "bool", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64"}


@checked
def print_graph(
    graph: GraphLike,
    *,
    origins: bool = False,
    by_content: bool = False,
    weights: bool = False,
    profiles: bool = True,
) -> str:
    """Returns the text of a graph, which `parse` reads back to an equal one.

    With `weights` the text holds the elements of all arrays; without it `parse` is given those that
    are too large to be in a line. With `origins` it also says where nodes and tensors came from.
    `by_content` names arrays by their hash, so that equal graphs have equal texts. The text holds
    the profiles that the graph carries and names, unless `profiles` is false.
    """
    printer = _Printer(graph, origins, by_content)
    text = printer.text(needed_profiles(graph).values() if profiles else ())
    return "".join(printer.data()) + text if weights else text


def array_table(graph: GraphLike) -> dict[str, Array]:
    """Returns the arrays that the text refers to, by the names it gives them."""
    return dict(_Printer(graph, False, False).table)


def inline(array: Array) -> str | None:
    """Returns the elements in line, where they are few and plain; else None."""
    if (
        array.type.quant
        or array.contents.size > MAX_INLINE_PARAMS
        or array.type.dtype.name not in _PLAIN
    ):
        return None
    data = array.data
    if data.size == 0 or (data.dtype.kind == "f" and not np.isfinite(data).all()):
        return None
    dtype = array.type.dtype
    items = [_scalar(v, dtype) for v in data.reshape(-1).tolist()]
    return items[0] if data.ndim == 0 else f"[{', '.join(items)}]"


def _scalar(value: bool | float, kind: DType) -> str:
    return str(value).lower() if isinstance(value, bool) else number_text(value, kind)


class _Printer:
    def __init__(self, graph: GraphLike, origins: bool, by_content: bool) -> None:
        self.graph = graph
        self.origins = origins
        self.by_content = by_content
        self.table: dict[str, Array] = {}
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._declared: dict[str, Array] = {}
        self._inline: dict[Node, str] = {}
        # Printing a type is slow where it has many parameters, and models repeat types: each
        # object's text is made once.
        self._types: dict[int, str] = {}  # by identity: the graph holds them while it is printed
        self._collect(graph)

    def _collect(self, graph: GraphLike) -> None:
        for node in graph:
            constant = node.result.constant if node.op == "constant" else None
            if constant is not None:
                if (text := inline(constant)) is not None:
                    self._inline[node] = text
                else:
                    self._name(constant, node.name)
            for array in _referenced_arrays(node):
                self._declared[self._name(array, array.name or "array")] = array
            for body in node.bodies.values():
                self._collect(body)

    def _name(self, array: Array, preferred: str) -> str:
        if (name := self._names.get(array.digest)) is not None:
            return name
        # Arrays are named by content: two constants with equal elements print as one array.
        base = array.digest if self.by_content else preferred
        name, count = base, self._counts.get(base, 0)
        while name in self.table or name == RESERVED:
            count += 1
            name = f"{base}.{count}"
        self._counts[base] = count
        self.table[name] = array
        self._names[array.digest] = name
        return name

    def at(self, array: Array) -> str:
        return f"@{write_name(self._names[array.digest])}"

    def type(self, kind: TensorType) -> str:
        text = self._types.get(id(kind))
        if text is None:
            text = self._types[id(kind)] = kind.text(self.at)
        return text

    def data(self) -> Iterator[str]:
        """Yields a line for each array, with its elements."""
        for array in self.table.values():
            yield f"data {self.at(array)} : {write_array(array.data)}\n"

    def text(self, profiles: Iterable[CarriedProfile]) -> str:
        lines = [
            f"array {self.at(a)} : {self.type(a.type)}"
            # An array whose type names other arrays comes after them: the parser reads top to
            # bottom.
            for a in sorted(self._declared.values(), key=lambda a: a.depth)
        ]
        for profile in profiles:
            lines += write_profile(profile)
        lines.append(f"graph {write_name(self.graph.name)} as {write_word(self.graph.profile)} {{")
        lines += [f"  {self.node(node, '  ')}" for node in self.graph]
        return "\n".join([*lines, "}"]) + "\n"

    def node(self, node: Node, indent: str) -> str:
        results = ", ".join(f"%{write_name(v.name)}" for v in node.results)
        parts = [f"{results} = " if results else "", self._body(node)]
        if node.results:
            parts.append(" : " + ", ".join(self.type(v.type) for v in node.results))
        parts += [self._held(name, body, indent) for name, body in node.bodies.items()]
        if node.profile:
            parts.append(f" as {write_word(node.profile)}")
        if node.schemes:
            planned = sorted(node.schemes.items())
            plans = ", ".join(f"{write_name(s)} = {quote(str(p))}" for s, p in planned)
            parts.append(f" plan {{{plans}}}")
        if self.origins:
            parts.extend(self._history(node))
        return "".join(parts)

    def _held(self, name: str, body: GraphLike, indent: str) -> str:
        profile = f" as {write_word(body.profile)}" if body.profile else ""
        lines = [f"{indent}  {self.node(node, indent + '  ')}\n" for node in body]
        return f" with {write_name(name)}{profile} {{\n{''.join(lines)}{indent}}}"

    def _body(self, node: Node) -> str:
        if node.stages:
            return " |> ".join(self._stage(node, i, s) for i, s in enumerate(node.stages))
        if node.op == "constant":
            data = node.attrs["data"]
            assert isinstance(data, Array)
            other_attrs = {name: value for name, value in node.attrs.items() if name != "data"}
            attrs_text = self._attrs("constant", other_attrs)
            return f"constant({self._inline.get(node) or self.at(data)}){attrs_text}"
        text = (
            f"{node.op}({self._operands(node.op, node.operands)}){self._attrs(node.op, node.attrs)}"
        )
        if node.inner:
            kinds = [f"{s} : {_element(e, self.at)}" for s, e in sorted(node.inner.items())]
            text += f" inner {{{', '.join(kinds)}}}"
        return text

    def _operands(self, op: str, operands: Mapping[str, Value], flow: str | None = None) -> str:
        texts = {slot: f"%{write_name(v.name)}" for slot, v in operands.items()}
        if flow is not None:
            texts[flow] = "."
        # Their slots are names of the user's own, not of a spec, so all are written out.
        if op in FREE_SLOT_OPS:
            return ", ".join(f"{write_name(s)}={v}" for s, v in texts.items())
        out = [texts.pop(slot) for slot in _positional_slots(op) if slot in texts]
        by_name = sorted(texts.items(), key=_slot_order)
        return ", ".join([*out, *(f"{write_name(s)}={v}" for s, v in by_name)])

    def _stage(self, node: Node, index: int, stage: Stage) -> str:
        operands = node.stage_operands(index)
        # A stage that reads the flow alone, `|> relu`, needs no brackets.
        bare = index > 0 and not operands
        text = stage.op if bare else f"{stage.op}({self._operands(stage.op, operands, stage.flow)})"
        text += self._attrs(stage.op, stage.attrs)
        if self.origins:
            text += f" named {quote(stage.name)}" if stage.name else ""
            text += "".join(_origin("from", o) for o in stage.origins)
        return text + (f" : {self.type(stage.type)}" if stage.type else "")

    def _attrs(self, op: str, values: Mapping[str, Attr]) -> str:
        defaults = _defaults(op)
        changed = [
            f"{name} = {self.attr(value)}"
            for name, value in values.items()
            # Attributes at their default are left out, so that a new attribute changes no older
            # text.
            if name not in defaults or not attributes.same(value, defaults[name])
        ]
        return f" {{{', '.join(changed)}}}" if changed else ""

    def attr(self, value: Attr) -> str:
        match value:
            case None:
                return "none"
            case bool():
                return str(value).lower()
            case int() | float():
                return number_text(value)
            case str():
                return quote(value)
            case bytes():
                return f'bytes"{value.hex()}"'
            case DType():
                return value.name
            case Array():
                return self.at(value)
            case tuple():
                items = ", ".join(self.attr(v) for v in value)
                return f"({items},)" if len(value) == 1 else f"({items})"

    def _history(self, node: Node) -> Iterator[str]:
        for origin in node.origins:
            yield _origin("from", origin)
        for slot, origins in sorted(node.slot_origins.items()):
            for origin in origins:
                yield _origin(f"from({write_name(slot)})", origin)
        if any(v.lineage != Lineage(v.name) for v in node.results):
            lines = tuple((v.lineage.tensor, *v.lineage.how) for v in node.results)
            yield f" lineage {self.attr(lines)}"


@cache
def _positional_slots(op: str) -> tuple[str, ...]:
    """Returns the slots whose operands print without their names."""
    return tuple(s.name for s in spec(op).operands if not (s.optional or s.variadic))


@cache
def _defaults(op: str) -> dict[str, Attr]:
    return {a.name: a.default for a in spec(op).attrs if not a.required}


def _element(element: Element, at: ArrayName) -> str:
    return element.text(at) if isinstance(element, QuantType) else element.name


def _origin(word: str, origin: Origin) -> str:
    parts = []
    # The first item is the framework, which stands before the braces.
    for name, value in origin.items()[1:]:
        if isinstance(value, tuple):
            pairs = ", ".join(f"({quote(a)}, {quote(b)})" for a, b in value)
            parts.append(f"{name} = ({pairs}{',' if len(value) == 1 else ''})")
        else:
            parts.append(f"{name} = {quote(value) if isinstance(value, str) else value}")
    return f" {word} {write_name(origin.framework)} {{{', '.join(parts)}}}"


def _referenced_arrays(node: Node) -> Iterator[Array]:
    """Arrays that types and attributes name; a constant's own elements aside."""
    for result in node.results:
        if result.type.quant is not None:
            yield from result.type.arrays()
    for element in node.inner.values():
        if isinstance(element, QuantType):
            yield from element.arrays()
    for stage in node.stages:
        if stage.type:
            yield from stage.type.arrays()
        yield from _attr_arrays(stage.attrs)
    if node.op != "constant":
        yield from _attr_arrays(node.attrs)


def _attr_arrays(values: Mapping[str, Attr]) -> Iterable[Array]:
    for value in values.values():
        if isinstance(value, (Array, tuple)):
            yield from attributes.arrays(value)


def _slot_order(item: tuple[str, str]) -> list[str]:
    """`xs.2` before `xs.10`."""
    return [p.zfill(8) if p.isdigit() else p for p in re.split(r"(\d+)", item[0])]
