"""Loops: `While` with its functions, and the frames of Enter, Merge, Switch and NextIteration.

Both become `loop`, whose body is closed. Lists of tensors are tensors with one more axis: reading
an element is a gather, and what every round writes is stacked by the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import BOOL, I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType

from .call import KeepNode, NodeCall
from .graphdef import GraphDefNode, GraphSource, Place, body_source

if TYPE_CHECKING:
    from .reader import GraphDefReader


@dataclass(frozen=True, eq=False)
class Pending:
    """A list that nothing was written to; its size where that is known."""

    size: int | None


@dataclass(frozen=True, eq=False)
class WrittenList:
    """A list that one element was written to, in the round of a loop."""

    size: int | None
    index: Value
    value: Value


Held: TypeAlias = "Value | Pending | WrittenList"


@dataclass(frozen=True)
class Loop:
    """What a loop runs: where its arguments are in the nodes, and what it gives back."""

    condition: GraphSource
    condition_args: Sequence[Sequence[Place]]
    condition_result: Place
    body: GraphSource
    body_args: Sequence[Sequence[Place]]
    body_results: Sequence[Place]
    """One for each of the first arguments; the others never change."""


def of_functions(source: GraphSource, node: GraphDefNode) -> Loop:
    """Returns the loop of a While node."""
    condition, cond_args, cond_results = body_source(source, node, "cond")
    body, args, results = body_source(source, node, "body")
    return Loop(condition, cond_args, cond_results[0], body, args, results)


def read(reader: GraphDefReader, node: GraphDefNode, loop: Loop) -> list[Held]:
    """Adds a loop and returns its results."""
    return _Loop(reader, node, loop).read()


class _Loop:
    """A loop that is built: which arguments are carried around it, given to it, or written."""

    def __init__(self, reader: GraphDefReader, node: GraphDefNode, loop: Loop) -> None:
        self.reader, self.node, self.loop = reader, node, loop
        self.given: list[Held] = [reader.held(node, place) for place in node.inputs]
        self.fixed = [self._is_fixed(i) for i in range(len(self.given))]
        body = loop.body
        self.inner = type(reader)(body, "body", reader.ledger, graph=Graph("body", profile=""))
        self.carried = [
            i for i, held in enumerate(self.given) if isinstance(held, Value) and not self.fixed[i]
        ]
        self.outside: list[Value] = []
        """Values that never change and are no constants."""

    def _is_fixed(self, index: int) -> bool:
        """Returns whether the body gives an argument back as it is."""
        results = self.loop.body_results
        if index >= len(results):
            return True
        return self._source(results[index]) in self.loop.body_args[index]

    def _source(self, place: Place) -> Place:
        nodes, place = self.loop.body.nodes, self.loop.body.resolve(place)
        while place[0] in nodes and nodes[place[0]].op == "Identity":
            place = nodes[place[0]].inputs[0]
        return place

    def read(self) -> list[Held]:
        body = self.inner.graph
        body.add("input", types=[TensorType((), I64)], name="round")
        continues = body.add("input", types=[TensorType((), BOOL)], name="continues").result
        self._give_arguments()

        results = self.inner.read_places(self.loop.body_results)
        carried = [results[i] for i in self.carried]
        writes = [i for i, held in enumerate(results) if isinstance(held, WrittenList)]
        after = self._condition(self.inner, [*results, *self._inside(len(results))])
        rounds = self._rounds(after, results)
        outputs = {"continues": after if rounds is None else continues}
        for index, held in zip(self.carried, carried, strict=True):
            outputs[f"carried_{index}"] = self._value(held)
        for index in writes:
            outputs[f"written_{index}"] = self._part(index, results[index])
        body.add("output", outputs)
        if rounds is None:
            operands = {"cond": self._condition(self.reader, self.given)}
        elif isinstance(rounds, Value):
            cast = self.reader.add(self.node, "cast", {"x": rounds}, {"to": I64})
            operands = {"count": cast.result}
        else:
            name = self.reader.names(self.node, "rounds")
            count = self.reader.graph.constant(np.asarray(rounds, np.int64), name=name)
            operands = {"count": count}
        operands |= {f"vs.{n}": self._value(self.given[i]) for n, i in enumerate(self.carried)}
        operands |= {f"xs.{n}": value for n, value in enumerate(self.outside)}
        made = self.reader.add_control(self.node, "loop", operands, {"body": body})
        return self._results(made, results, writes)

    def _value(self, held: Held) -> Value:
        if not isinstance(held, Value):
            raise KeepNode("a list is used in its loop otherwise than read or written")
        return held

    def _give_arguments(self) -> None:
        """Makes the arguments known in the body: as its inputs, or as constants."""
        body = self.inner.graph
        for index in self.carried:
            kind = self._value(self.given[index]).type
            self._bind(index, body.add("input", types=[kind], name=f"carried_{index}").result)
        for index, held in enumerate(self.given):
            if index in self.carried:
                continue
            if isinstance(held, Value) and held.constant is not None:
                self._bind(index, body.constant(held.constant, name=f"constant_{index}"))
            elif isinstance(held, Value) and (data := self._known(held)) is not None:
                self._bind(index, body.constant(data, name=f"constant_{index}"))
            elif isinstance(held, Value):
                self.outside.append(held)
                name = f"given_{index}"
                self._bind(index, body.add("input", types=[held.type], name=name).result)
            else:
                self._bind(index, held)

    def _known(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a value that follows from constants, such as a size."""
        found = self.reader.known.elements(value)
        return None if found is None or found.dtype == object else found

    def _bind(self, index: int, held: Held) -> None:
        for place in self.loop.body_args[index]:
            self.inner.found[place] = held

    def _inside(self, start: int) -> list[Held]:
        """Returns the arguments from one on as the body knows them."""
        return [self.inner.found[places[0]] for places in self.loop.body_args[start:]]

    def _condition(self, reader: GraphDefReader, held: Sequence[Held]) -> Value:
        """Reads the condition into the graph of a reader, for these arguments."""
        loop = self.loop
        inner = type(reader)(loop.condition, "condition", reader.ledger, graph=reader.graph)
        for places, one in zip(loop.condition_args, held, strict=True):
            for place in places:
                inner.found[place] = one
        (found,) = inner.read_places([loop.condition_result])
        return self._value(found)

    def _part(self, index: int, held: Held) -> Value:
        """Returns what a round writes to a list; Keep for writes that are out of order."""
        assert isinstance(held, WrittenList)
        if held.size == 1 and self._number(held.index) == 0:
            return held.value
        if not self._counts(held.index):
            raise KeepNode(f"its list {index} is not written one element after another")
        return held.value

    def _number(self, value: Value) -> int | None:
        found = self.inner.known.elements(value)
        return None if found is None else int(found.reshape(-1)[0])

    def _counts(self, value: Value) -> bool:
        """Returns whether a carried value is the number of the round: from zero, by one."""
        while value.node.op in ("cast", "identity"):
            value = value.node.operands["x"]
        for index in self.carried:
            if self.inner.found[self.loop.body_args[index][0]] is value:
                return self._start(index) == 0
        return False

    def _start(self, index: int) -> int | None:
        """Returns where a carried value starts that grows by one a round; None for others."""
        value = self.inner.found[self.loop.body_args[index][0]]
        first = self.reader.known.elements(self._value(self.given[index]))
        after = self.inner.found[self._source(self.loop.body_results[index])]
        if not isinstance(after, Value) or after.node.op != "add" or first is None:
            return None
        others = [v for v in after.node.operands.values() if v is not value]
        grows = first.size == 1 and len(others) == 1 and self._number(others[0]) == 1
        return int(first.reshape(-1)[0]) if grows else None

    def _rounds(self, condition: Value, results: Sequence[Held]) -> int | Value | None:
        """Returns how often the body runs where counters alone decide it.

        These are counters below constants, or from zero below one value from outside.
        """
        node = condition.node
        if node.op == "logical_and":
            sides = [self._rounds(side, results) for side in node.operands.values()]
            if all(side is sides[0] for side in sides):
                return sides[0]
            known = [side for side in sides if isinstance(side, int)]
            return min(known) if len(known) == len(sides) else None
        if node.op != "less":
            return None
        counter, limit = node.operands.values()
        index = next((i for i in self.carried if results[i] is counter), None)
        start = None if index is None else self._start(index)
        if start == 0 and (outer := self._outer(limit)) is not None:
            return outer
        end = self._number(limit) if limit.type.rank == 0 else None
        return None if start is None or end is None else max(end - start, 0)

    def _outer(self, value: Value) -> Value | None:
        """Returns the single number from outside that an argument of the body is."""
        given = self.inner.graph.inputs[2 + len(self.carried) :]
        if value.type.rank or value not in given:
            return None
        outer = self.outside[given.index(value)]
        while outer.node.op == "identity":
            outer = outer.node.operands["x"]
        return outer

    def _results(
        self, made: Sequence[Value], results: Sequence[Held], writes: Sequence[int]
    ) -> list[Held]:
        found: list[Held] = []
        for index, held in enumerate(self.given[: len(results)]):
            if index in self.carried:
                found.append(made[self.carried.index(index)])
            elif index in writes:
                one = results[index]
                assert isinstance(one, WrittenList)
                parts = made[len(self.carried) + writes.index(index)]
                found.append(self._stacked(parts, one))
            else:
                found.append(held)
        return found

    def _stacked(self, parts: Value, written: WrittenList) -> Value:
        """Returns a list from what all rounds wrote; one of one element holds what was last."""
        graph = self.reader.graph
        if written.size == 1 and not self._counts(written.index):
            last = {"starts": (-1,), "ends": (2**63 - 1,), "axes": (0,), "steps": (1,)}
            parts = self.reader.add(self.node, "slice", {"x": parts}, last).result
        if written.size is not None:
            graph.set_type(parts, parts.type.with_shape((written.size, *parts.type.shape[1:])))
        return parts


# -- lists ----------------------------------------------------------------------------------------


def _reserve(call: NodeCall) -> Held:
    found = call.reader.known.elements(call[1])
    return Pending(None if found is None else int(found))


def _array(call: NodeCall) -> Sequence[Held]:
    """Reads TensorArrayV3: a handle, and the list itself."""
    found = call.reader.known.elements(call[0])
    grows = call.flag("dynamic_size")
    pending = Pending(None if found is None or grows else int(found))
    return [pending, pending]


def _tensor(call: NodeCall) -> Held:
    return call[0]


def _element(call: NodeCall, of: int, index: int) -> Value:
    x = call[of]
    if not isinstance(x, Value):
        raise KeepNode("it reads a list that nothing was written to")
    return call.add("gather", {"x": x, "indices": call[index]}, {"axis": 0})


def _set(call: NodeCall, of: int, index: int, value: int) -> Held:
    held: Held = call[of]
    if not isinstance(held, Pending):
        raise KeepNode("it writes to a list that was written before")
    return WrittenList(held.size, call[index], call[value])


def _scattered(call: NodeCall) -> Value:
    """Reads TensorArrayScatterV3, which makes a list of the entries of a tensor."""
    _require_range(call, 1)
    return call[2]


def _gathered(call: NodeCall) -> Value:
    """Reads TensorArrayGatherV3, which makes a tensor of a list."""
    _require_range(call, 1)
    if not isinstance(call[2], Value):
        raise KeepNode("it reads a list that nothing was written to")
    return call[2]


def _require_range(call: NodeCall, index: int) -> None:
    """Keep unless an operand is 0, 1, 2, ..."""
    found = call.reader.known.elements(call[index])
    node = call[index].node
    if found is not None:
        counts = np.array_equal(found, np.arange(found.size))
    else:
        first = [call.reader.known.elements(v) for v in node.operands.values()]
        numbers = [None if f is None else int(f) for f in first]
        counts = node.op == "range" and numbers[0] == 0 and numbers[2] == 1
    if not counts:
        raise KeepNode("its elements are not in their order")


OPS: dict[str, Callable[[NodeCall], Held | Sequence[Held]]] = {
    "TensorListReserve": _reserve,
    "TensorListFromTensor": _tensor,
    "TensorListStack": _tensor,
    "TensorListGetItem": lambda call: _element(call, 0, 1),
    "TensorListSetItem": lambda call: _set(call, 0, 1, 2),
    "TensorArrayV3": _array,
    "TensorArrayScatterV3": _scattered,
    "TensorArrayGatherV3": _gathered,
    "TensorArrayReadV3": lambda call: _element(call, 2, 1),
    "TensorArrayWriteV3": lambda call: _set(call, 3, 1, 2),
}
