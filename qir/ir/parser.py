"""Reading the text of a graph; what it says is built through the graph's own methods."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from qir.arguments import checked
from qir.errors import ParseError, QirError
from qir.ir.array_text import read_array
from qir.ir.attrs import Attr
from qir.ir.attrtext import read_attr
from qir.ir.carried_profiles import ProfileText, read_profile_text
from qir.ir.dims import known_shape
from qir.ir.dtype import DType
from qir.ir.garbage_collection import pause_garbage_collection
from qir.ir.graph import Graph
from qir.ir.lexer import Cursor
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import OPS, OpSpec, no_op, spec
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import Scheme, parse_scheme
from qir.ir.types import Array, Element, TensorType
from qir.ir.typetext import read_element, read_type

_MAX_BODY_DEPTH = 32
_ORIGIN_TEXTS = ("op", "name", "path", "layer")


@pause_garbage_collection()
@checked
def parse(text: str, arrays: Mapping[str, NDArray[np.generic]] | None = None) -> Graph:
    """Reads a graph from its text; `arrays` are those that the text names without elements.

    Raises ParseError with line and column of the first fault.
    """
    return _Parser(text, arrays or {}).graph()


class _Parser:
    def __init__(self, text: str, data: Mapping[str, NDArray[np.generic]]) -> None:
        self.cursor = Cursor(text)
        self.data = dict(data)
        self.arrays: dict[str, Array] = {}
        self.profiles: dict[str, ProfileText] = {}
        self.values: dict[str, Value] = {}
        self.depth = 0

    def graph(self) -> Graph:
        """Returns the text's one graph, whole."""
        cursor = self.cursor
        # `data` lines hold elements, `array` lines declare the types that name them; both come
        # first, so that every `@name` below is known when it is read.
        while cursor.take_word("data"):
            self._hold()
        while cursor.take_word("array"):
            self._declare()
        while cursor.take_word("profile"):
            self._carry()
        if not cursor.take_word("graph"):
            raise cursor.fail(f"'graph' should stand here, not {cursor.near()}")
        cursor.skip()
        graph = Graph(cursor.name())
        self._nodes(graph)
        for profile in self.profiles.values():
            graph.carry_profile(profile)
        if not cursor.done:
            raise cursor.fail(f"{cursor.near()} is too much after the graph")
        return graph

    def _nodes(self, graph: Graph) -> None:
        cursor = self.cursor
        if cursor.take_word("as"):
            graph.profile = cursor.name_or_text()
        cursor.expect("{")
        while not cursor.take("}"):
            if cursor.done:
                raise cursor.fail("the graph's bracket is not closed")
            self._node(graph)

    def _bodies(self) -> dict[str, Graph]:
        """Returns the closed graphs of a node: each sees its own values alone."""
        cursor = self.cursor
        out: dict[str, Graph] = {}
        while cursor.take_word("with"):
            cursor.skip()
            name = cursor.name()
            if name in out:
                raise cursor.fail(f"the body {name} is given twice")
            # A body is closed: it sees none of the values around it.
            outer, self.values = self.values, {}
            self.depth += 1
            if self.depth > _MAX_BODY_DEPTH:
                raise cursor.fail(f"bodies within bodies, more than {_MAX_BODY_DEPTH} deep")
            # An empty profile: a body without `as` follows the profile of the node that holds it.
            out[name] = Graph(name, "")
            self._nodes(out[name])
            self.depth -= 1
            self.values = outer
        return out

    def _hold(self) -> None:
        """The elements of an array: `data @w : 2xf32 = "AAAAAAAAgD8="`."""
        cursor = self.cursor
        cursor.expect("@")
        name = cursor.name()
        if name in self.data:
            raise cursor.fail(f"the elements of @{name} are given twice")
        cursor.expect(":")
        kind = read_type(cursor, self._find)
        cursor.expect("=")
        cursor.skip()
        try:
            self.data[name] = read_array(kind, cursor.string())
        except ParseError as error:
            raise cursor.fail(str(error)) from None

    def _declare(self) -> None:
        cursor = self.cursor
        cursor.expect("@")
        name = cursor.name()
        if name in self.arrays:
            raise cursor.fail(f"array @{name} is declared twice")
        cursor.expect(":")
        kind = read_type(cursor, self._find)
        self.arrays[name] = self._array(name, kind)

    def _carry(self) -> None:
        profile = read_profile_text(self.cursor)
        if profile.name in self.profiles:
            raise self.cursor.fail(f"the profile {profile.name} is given twice")
        self.profiles[profile.name] = profile

    def _find(self, name: str) -> Array:
        if name not in self.arrays:
            raise ParseError(f"array @{name} is named before it is declared")
        return self.arrays[name]

    def _array(self, name: str, kind: TensorType) -> Array:
        if name not in self.data:
            raise self.cursor.fail(f"array @{name} is not given")
        try:
            return Array(_in_carrier(self.data[name], kind), kind, name)
        except QirError as error:
            raise self.cursor.fail(str(error)) from None

    # -- nodes --------------------------------------------------------------------------------

    def _node(self, graph: Graph) -> None:
        cursor = self.cursor
        start = cursor.at
        names: list[str] = []
        while cursor.take("%"):
            names.append(cursor.name())
            if not cursor.take(","):
                cursor.expect("=")
                break
        cursor.skip()
        op = cursor.identifier()
        if op not in OPS:
            # Back to the start of the word, so that the error's column points at it.
            cursor.at -= len(op)
            raise cursor.fail(no_op(op))
        try:
            node = self._constant(graph, names) if op == "constant" else self._op(graph, op, names)
        except ParseError:
            raise
        except QirError as error:
            # An error of the graph has no position: the one of the node's first name is reported.
            cursor.at = start
            cursor.skip()
            raise cursor.fail(str(error)) from None
        for value in node.results:
            self.values[value.name] = value
        self._clauses(graph, node)

    def _constant(self, graph: Graph, names: list[str]) -> Node:
        cursor = self.cursor
        if len(names) != 1:
            raise cursor.fail("a constant makes one value")
        cursor.expect("(")
        if cursor.take("@"):
            name = cursor.name()
            attrs = self._constant_attrs()
            data = self._array(name, read_type(cursor, self._find))
        else:
            items = self._items()
            attrs = self._constant_attrs()
            data = self._inline(items, read_type(cursor, self._find), names[0])
        self._new(graph, names)
        return graph.add("constant", {}, {"data": data, **attrs}, name=names)

    def _constant_attrs(self) -> dict[str, Attr]:
        """Returns what is between the elements and their type."""
        cursor = self.cursor
        cursor.expect(")")
        attrs = self._attrs()
        if "data" in attrs:
            raise cursor.fail("the elements of a constant stand in its brackets")
        cursor.expect(":")
        return attrs

    def _items(self) -> list[bool | int | float]:
        cursor = self.cursor
        if not cursor.take("["):
            return [self._scalar()]
        out = [self._scalar()]
        while cursor.take(","):
            out.append(self._scalar())
        cursor.expect("]")
        return out

    def _scalar(self) -> bool | int | float:
        for word, value in (("true", True), ("false", False)):
            if self.cursor.take_word(word):
                return value
        return self.cursor.number()

    def _inline(self, items: list[bool | int | float], kind: TensorType, name: str) -> Array:
        sizes = known_shape(kind.shape)
        if kind.quant or sizes is None or math.prod(sizes) != len(items):
            raise self.cursor.fail(f"{len(items)} elements in line are no {kind}")
        if not all(_is_literal_of(kind.dtype, item) for item in items):
            raise self.cursor.fail(f"not every element in line is a {kind.dtype}")
        # A literal such as 1e300 in f16 is infinite, as its cast is.
        with np.errstate(over="ignore"):
            flat = np.array(items, kind.dtype.carrier)
        return Array(flat.reshape(sizes), kind, name)

    def _new(self, graph: Graph, names: list[str]) -> None:
        new_names: set[str] = set()
        for name in names:
            if graph.has(name) or name in new_names:
                raise self.cursor.fail(f"%{name} is made twice")
            new_names.add(name)

    def _op(self, graph: Graph, op: str, names: list[str]) -> Node:
        self._new(graph, names)
        stages = [self._stage(op, 0)]
        while self.cursor.take("|>"):
            stages.append(self._stage(self.cursor.identifier(), len(stages)))
        final = stages[-1]
        if len(stages) == 1:
            if final.name:
                raise self.cursor.fail("the stages of a chain are named, a node is not")
            # `output` states no type, and one of an output cannot be inferred from results.
            types = final.types if op != "output" else None
            if len(names) != len(final.types):
                raise self.cursor.fail(f"{len(names)} values but {len(final.types)} types")
            node = graph.add(
                op,
                final.operands,
                final.attrs,
                types=types,
                name=names,
                inner=final.inner,
                bodies=self._bodies(),
            )
            if final.origins:
                graph.set_origins(node, final.origins)
            return node
        if len(names) != 1 or len(final.types) != 1 or any(len(s.types) > 1 for s in stages):
            raise self.cursor.fail("a chain makes one value, and each stage one, of one type")
        if any(s.inner for s in stages):
            raise self.cursor.fail("inner slots belong to a node, not to a stage of a chain")
        operands: dict[str, Value] = {}
        for i, stage in enumerate(stages):
            for slot, value in stage.operands.items():
                # The slots of later stages get the number of their stage, as in `1.y`.
                operands[slot if i == 0 else f"{i}.{slot}"] = value
        chain = [s.stage(final=s is final) for s in stages]
        return graph.add_chain(chain, operands, final.types[0], name=names[0])

    def _stage(self, op: str, index: int) -> _StageDraft:
        cursor = self.cursor
        if op not in OPS:
            raise cursor.fail(no_op(op))
        out = _StageDraft(op)
        if index == 0 or cursor.peek("("):
            out.operands, out.flow = self._operands(spec(op))
        elif spec(op).operands:
            out.flow = spec(op).operands[0].name
        if (index > 0) != (out.flow is not None):
            raise cursor.fail(f"{op}: '.' stands where the stage before flows in, in later stages")
        out.attrs = self._attrs()
        if cursor.take_word("inner"):
            out.inner = self._inner()
        if cursor.take_word("named"):
            out.name = cursor.string()
        while cursor.peek("from "):
            cursor.take_word("from")
            out.origins.append(self._origin())
        if cursor.take(":"):
            out.types.append(read_type(cursor, self._find))
            while cursor.take(","):
                out.types.append(read_type(cursor, self._find))
        return out

    def _inner(self) -> dict[str, Element]:
        cursor = self.cursor
        out: dict[str, Element] = {}
        cursor.expect("{")
        while not cursor.take("}"):
            if out:
                cursor.expect(",")
            cursor.skip()
            slot = cursor.name()
            if slot in out:
                raise cursor.fail(f"{slot} is given twice")
            cursor.expect(":")
            out[slot] = read_element(cursor, self._find)
        return out

    def _operands(self, op_spec: OpSpec) -> tuple[dict[str, Value], str | None]:
        cursor = self.cursor
        out: dict[str, Value] = {}
        flow: str | None = None
        # Required slots may be bound by position, optional and variadic ones only by name.
        unnamed_slots = [s.name for s in op_spec.operands if not s.optional and not s.variadic]
        cursor.expect("(")
        while not cursor.take(")"):
            if out or flow:
                cursor.expect(",")
            if cursor.peek("%") or cursor.peek("."):
                if not unnamed_slots:
                    raise cursor.fail(f"{op_spec.name}: this operand needs its slot's name")
                slot = unnamed_slots.pop(0)
            else:
                cursor.skip()
                slot = cursor.name()
                cursor.expect("=")
                if slot in unnamed_slots:
                    unnamed_slots.remove(slot)
            if slot in out or slot == flow:
                raise cursor.fail(f"{op_spec.name}: slot {slot} is bound twice")
            if cursor.take("%"):
                name = cursor.name()
                if name not in self.values:
                    raise cursor.fail(f"%{name} is used before it is made")
                out[slot] = self.values[name]
            elif flow is None:
                cursor.expect(".")
                flow = slot
            else:
                raise cursor.fail("'.' stands once in a stage")
        return out, flow

    # -- attributes and clauses ---------------------------------------------------------------

    def _attrs(self) -> dict[str, Attr]:
        out: dict[str, Attr] = {}
        cursor = self.cursor
        if not cursor.take("{"):
            return out
        while not cursor.take("}"):
            if out:
                cursor.expect(",")
            name = cursor.identifier()
            if name in out:
                raise cursor.fail(f"{name} is given twice")
            cursor.expect("=")
            out[name] = read_attr(cursor, self.arrays)
        return out

    def _clauses(self, graph: Graph, node: Node) -> None:
        cursor = self.cursor
        if cursor.take_word("as"):
            graph.set_profile(node, cursor.name_or_text())
        if cursor.take_word("plan"):
            self._plan(graph, node)
        origins: list[Origin] = []
        while cursor.take_word("from"):
            slot: str | None = None
            if cursor.take("("):
                cursor.skip()
                slot = cursor.name()
                cursor.expect(")")
            origin = self._origin()
            if slot is None:
                origins.append(origin)
            else:
                graph.set_slot_origins(node, slot, (*node.slot_origins.get(slot, ()), origin))
        if origins:
            graph.set_origins(node, (*node.origins, *origins))
        if cursor.take_word("lineage"):
            lineages = read_attr(cursor, self.arrays)
            if not isinstance(lineages, tuple) or len(lineages) != len(node.results):
                raise cursor.fail(f"a lineage for each of {len(node.results)} values")
            for value, lineage in zip(node.results, lineages, strict=True):
                # A lineage is the tensor's name, then the steps that lead from it to the value.
                tensor, *how = self._texts(lineage)
                graph.set_lineage(value, Lineage(tensor, tuple(how)))

    def _texts(self, value: Attr) -> list[str]:
        """Returns a list of one text or more."""
        texts = [p for p in value if isinstance(p, str)] if isinstance(value, tuple) else []
        if not isinstance(value, tuple) or not texts or len(texts) != len(value):
            raise self.cursor.fail("a list of texts should stand here")
        return texts

    def _plan(self, graph: Graph, node: Node) -> None:
        cursor = self.cursor
        cursor.expect("{")
        while not cursor.take("}"):
            if node.schemes:
                cursor.expect(",")
            cursor.skip()
            slot = cursor.name()
            if slot in node.schemes:
                raise cursor.fail(f"{slot} is planned twice")
            cursor.expect("=")
            graph.set_scheme(node, slot, self._scheme(cursor.string()))

    def _origin(self) -> Origin:
        self.cursor.skip()
        framework = self.cursor.name()
        attrs = self._attrs()
        texts: dict[str, str] = {}
        call, operands = 0, list[tuple[str, str]]()
        for name, value in attrs.items():
            if name == "call" and type(value) is int:
                call = value
            elif name == "operands" and isinstance(value, tuple):
                operands += [self._pair(pair) for pair in value]
            elif name in _ORIGIN_TEXTS and isinstance(value, str):
                texts[name] = value
            else:
                raise self.cursor.fail(_origin_fault(name))
        return Origin(framework, **texts, call=call, operands=tuple(operands))

    def _pair(self, value: Attr) -> tuple[str, str]:
        pair = self._texts(value)
        if len(pair) != 2:
            raise self.cursor.fail("a pair of texts should stand here")
        return pair[0], pair[1]

    def _scheme(self, text: str) -> Scheme:
        try:
            return parse_scheme(text)
        except ParseError as error:
            raise self.cursor.fail(str(error)) from None


def _origin_fault(name: str) -> str:
    kinds = dict.fromkeys(_ORIGIN_TEXTS, "text") | {
        "call": "whole number",
        "operands": "list of pairs",
    }
    if name in kinds:
        return f"{name} of an origin is a {kinds[name]}"
    return f"an origin has no {name}; it has {', '.join(kinds)}"


def _is_literal_of(kind: DType, item: bool | float) -> bool:
    """Returns whether a number in line is one of that type."""
    if isinstance(item, bool) or kind.name == "bool":
        return isinstance(item, bool) and kind.name == "bool"
    if kind.is_integer:
        return isinstance(item, int) and kind.bounds[0] <= item <= kind.bounds[1]
    return kind.is_float


def _in_carrier(data: NDArray[np.generic], kind: TensorType) -> NDArray[np.generic]:
    """Returns the elements in their type's carrier; files keep unusual ones as bytes of equal
    width."""
    # safetensors and NumPy's files have no name for 8-bit and smaller floats: their bits were
    # stored as unsigned integers, and are viewed here as what they are.
    carrier = kind.dtype.carrier
    if carrier.kind == "O" and data.dtype == np.uint8:
        return _read_strings(data, kind)
    unusual = carrier.isbuiltin == 2  # what ml_dtypes adds to NumPy
    if unusual and data.dtype == np.dtype(f"u{carrier.itemsize}"):
        return data.view(carrier)
    return data


def _read_strings(data: NDArray[np.generic], kind: TensorType) -> NDArray[np.generic]:
    """Texts as files keep them: a list of texts, or of bytes that need not be one."""
    try:
        # One JSON list of all elements: a string, or a list of numbers for bytes that are no UTF-8.
        items = json.loads(data.tobytes())
    except (ValueError, RecursionError):
        items = None
    sizes = known_shape(kind.shape)
    if not isinstance(items, list) or sizes is None or len(items) != math.prod(sizes):
        raise ParseError(f"the texts of {kind} are no list of so many")
    out = np.empty(len(items), object)
    for i, item in enumerate(items):
        if isinstance(item, str):
            out[i] = item
        elif isinstance(item, list) and all(type(b) is int and 0 <= b < 256 for b in item):
            out[i] = bytes(item)
        else:
            raise ParseError(f"text {i} of {kind} is neither a text nor bytes")
    return out.reshape(sizes)


class _StageDraft:
    """A stage as far as it is read."""

    def __init__(self, op: str) -> None:
        self.op = op
        self.operands: dict[str, Value] = {}
        self.flow: str | None = None
        self.attrs: Mapping[str, Attr] = {}
        self.types: list[TensorType] = []
        self.inner: dict[str, Element] = {}
        self.name = ""
        self.origins: list[Origin] = []

    def stage(self, *, final: bool) -> Stage:
        kind = None if final or not self.types else self.types[0]
        attrs, slots = spec(self.op).complete_attrs(self.attrs), tuple(self.operands)
        return Stage(self.op, attrs, slots, self.flow, kind, self.name, tuple(self.origins))
