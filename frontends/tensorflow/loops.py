"""Loops: reads While with its functions, and TensorFlow 1's frames, as `loop`.

The body of `loop` is closed. A list of tensors becomes a tensor with one more axis: getting an
element is a gather, and elements that each iteration sets are stacked by the loop.
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
from .graphdef import GraphDefNode, GraphSource, ResultPlace, function_source
from .spectra import ComplexPair

if TYPE_CHECKING:
    from .reader import GraphDefReader


@dataclass(frozen=True, eq=False)
class EmptyList:
    """A list without elements so far; its size if it is known."""

    size: int | None


@dataclass(frozen=True, eq=False)
class WrittenList:
    """A list of which an iteration set one element."""

    size: int | None
    index: Value
    value: Value


ValueOrList: TypeAlias = "Value | EmptyList | WrittenList | ComplexPair"


@dataclass(frozen=True)
class LoopParts:
    """Condition and body of a loop, with their arguments and results in the source."""

    condition: GraphSource
    condition_args: Sequence[Sequence[ResultPlace]]
    condition_result: ResultPlace
    body: GraphSource
    body_args: Sequence[Sequence[ResultPlace]]
    body_results: Sequence[ResultPlace]
    """One for each of the first arguments; the others are loop-invariant."""


def loop_of_functions(source: GraphSource, node: GraphDefNode) -> LoopParts:
    """Returns the loop of a While node."""
    condition, cond_args, cond_results = function_source(source, node, "cond")
    body, args, results = function_source(source, node, "body")
    return LoopParts(condition, cond_args, cond_results[0], body, args, results)


def read(reader: GraphDefReader, node: GraphDefNode, loop: LoopParts) -> list[ValueOrList]:
    """Adds a `loop` node and returns its results."""
    return _LoopBuilder(reader, node, loop).read()


class _LoopBuilder:
    """Builds one loop; sorts its arguments into carried, invariant and written ones."""

    def __init__(self, reader: GraphDefReader, node: GraphDefNode, loop: LoopParts) -> None:
        self.reader, self.node, self.loop = reader, node, loop
        self.given: list[ValueOrList] = [reader.operand(node, place) for place in node.inputs]
        # Results that the body returns unchanged are invariant, and need not be carried.
        self.fixed = [self._is_fixed(i) for i in range(len(self.given))]
        body = loop.body
        self.inner = type(reader)(body, "body", reader.ledger, graph=Graph("body", profile=""))
        self.carried = [
            i for i, held in enumerate(self.given) if isinstance(held, Value) and not self.fixed[i]
        ]
        self.outside: list[Value] = []
        """Invariant values that are not constant, which become inputs of the body."""

    def _is_fixed(self, index: int) -> bool:
        """Returns whether the body returns an argument unchanged."""
        results = self.loop.body_results
        if index >= len(results):
            return True
        return self._source(results[index]) in self.loop.body_args[index]

    def _source(self, place: ResultPlace) -> ResultPlace:
        nodes, place = self.loop.body.nodes, self.loop.body.resolve(place)
        while place[0] in nodes and nodes[place[0]].op == "Identity":
            place = nodes[place[0]].inputs[0]
        return place

    def read(self) -> list[ValueOrList]:
        body = self.inner.graph
        # The language's `loop` gives a body the iteration count and the condition first.
        body.add("input", types=[TensorType((), I64)], name="round")
        continues = body.add("input", types=[TensorType((), BOOL)], name="continues").result
        self._give_arguments()

        results = self.inner.read_places(self.loop.body_results)
        carried = [results[i] for i in self.carried]
        writes = [i for i, held in enumerate(results) if isinstance(held, WrittenList)]
        # The condition is evaluated for the next iteration, at the end of the body.
        after = self._condition(self.inner, [*results, *self._inside(len(results))])
        # A known trip count makes a counted loop, which passes can unroll.
        iterations = self._rounds(after, results)
        outputs = {"continues": after if iterations is None else continues}
        for index, held in zip(self.carried, carried, strict=True):
            outputs[f"carried_{index}"] = self._value(held)
        for index in writes:
            outputs[f"written_{index}"] = self._part(index, results[index])
        body.add("output", outputs)
        if iterations is None:
            operands = {"cond": self._condition(self.reader, self.given)}
        elif isinstance(iterations, Value):
            cast = self.reader.add(self.node, "cast", {"x": iterations}, {"to": I64})
            operands = {"count": cast.result}
        else:
            name = self.reader.names(self.node, "rounds")
            count = self.reader.graph.constant(np.asarray(iterations, np.int64), name=name)
            operands = {"count": count}
        operands |= {f"vs.{n}": self._value(self.given[i]) for n, i in enumerate(self.carried)}
        operands |= {f"xs.{n}": value for n, value in enumerate(self.outside)}
        made = self.reader.add_control(self.node, "loop", operands, {"body": body})
        return self._results(made, results, writes)

    def _value(self, held: ValueOrList) -> Value:
        if not isinstance(held, Value):
            raise KeepNode("a list is used in its loop otherwise than read or written")
        return held

    def _give_arguments(self) -> None:
        """Adds the arguments to the body, as inputs or as constants."""
        body = self.inner.graph
        for index in self.carried:
            kind = self._value(self.given[index]).type
            self._bind(index, body.add("input", types=[kind], name=f"carried_{index}").result)
        for index, held in enumerate(self.given):
            if index in self.carried:
                continue
            # Constants are copied into the body, which lets converters use them as axes and sizes.
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
        """Returns the elements of a value that depends on constants only; None for others."""
        found = self.reader.known.elements(value)
        return None if found is None or found.dtype == object else found

    def _bind(self, index: int, held: ValueOrList) -> None:
        for place in self.loop.body_args[index]:
            self.inner.results[place] = held

    def _inside(self, start: int) -> list[ValueOrList]:
        """Returns the values of the arguments from `start` on inside the body."""
        return [self.inner.results[places[0]] for places in self.loop.body_args[start:]]

    def _condition(self, reader: GraphDefReader, held: Sequence[ValueOrList]) -> Value:
        """Reads the condition for these arguments into a graph.

        That graph is the one before the loop, or its body.
        """
        loop = self.loop
        # The same condition is read twice: into the outer graph before the loop, and into the body.
        inner = type(reader)(loop.condition, "condition", reader.ledger, graph=reader.graph)
        for places, one in zip(loop.condition_args, held, strict=True):
            for place in places:
                inner.results[place] = one
        (found,) = inner.read_places([loop.condition_result])
        return self._value(found)

    def _part(self, index: int, held: ValueOrList) -> Value:
        """Returns the element that an iteration sets.

        Raises KeepNode unless elements are in order.
        """
        assert isinstance(held, WrittenList)
        # A list of one element is how TensorFlow 2 stores only the last state of an RNN.
        if held.size == 1 and self._number(held.index) == 0:
            return held.value
        if not self._counts(held.index):
            raise KeepNode(f"its list {index} is not written one element after another")
        return held.value

    def _number(self, value: Value) -> int | None:
        found = self.inner.known.elements(value)
        return None if found is None else int(found.reshape(-1)[0])

    def _counts(self, value: Value) -> bool:
        """Returns whether a value is the iteration count: carried, from 0, incremented by 1."""
        # The index may be cast from the counter.
        while value.node.op in ("cast", "identity"):
            value = value.node.operands["x"]
        for index in self.carried:
            if self.inner.results[self.loop.body_args[index][0]] is value:
                return self._start(index) == 0
        return False

    def _start(self, index: int) -> int | None:
        """Returns the start of a carried value that grows by 1; None for others."""
        value = self.inner.results[self.loop.body_args[index][0]]
        first = self.reader.known.elements(self._value(self.given[index]))
        after = self.inner.results[self._source(self.loop.body_results[index])]
        if not isinstance(after, Value) or after.node.op != "add" or first is None:
            return None
        others = [v for v in after.node.operands.values() if v is not value]
        # counter + 1, in the body.
        grows = first.size == 1 and len(others) == 1 and self._number(others[0]) == 1
        return int(first.reshape(-1)[0]) if grows else None

    def _rounds(self, condition: Value, results: Sequence[ValueOrList]) -> int | Value | None:
        """Returns the trip count if counters alone decide it; None otherwise.

        The condition must be `counter < constant`, or `counter < value` for a counter from 0, or a
        conjunction of these.
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
        # The condition compares the counter after the increment, which is the value the body
        # returns.
        index = next((i for i in self.carried if results[i] is counter), None)
        start = None if index is None else self._start(index)
        if start == 0 and (outer := self._outer(limit)) is not None:
            return outer
        end = self._number(limit) if limit.type.rank == 0 else None
        return None if start is None or end is None else max(end - start, 0)

    def _outer(self, value: Value) -> Value | None:
        """Returns the scalar outside the loop that a value inside the body is; None for others."""
        # Inputs of the body: iteration count, condition, carried values, then invariant ones.
        given = self.inner.graph.inputs[2 + len(self.carried) :]
        if value.type.rank or value not in given:
            return None
        outer = self.outside[given.index(value)]
        while outer.node.op == "identity":
            outer = outer.node.operands["x"]
        return outer

    def _results(
        self, made: Sequence[Value], results: Sequence[ValueOrList], writes: Sequence[int]
    ) -> list[ValueOrList]:
        found: list[ValueOrList] = []
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
        """Returns a list from the elements of all iterations.

        A list of one element that is overwritten has the last of them.
        """
        graph = self.reader.graph
        if written.size == 1 and not self._counts(written.index):
            last = {"starts": (-1,), "ends": (2**63 - 1,), "axes": (0,), "steps": (1,)}
            parts = self.reader.add(self.node, "slice", {"x": parts}, last).result
        # The loop's trip count may be open; the size of the list is known.
        if written.size is not None:
            graph.set_type(parts, parts.type.with_shape((written.size, *parts.type.shape[1:])))
        return parts


# -- lists ----------------------------------------------------------------------------------------


def _reserve_list(call: NodeCall) -> ValueOrList:
    found = call.reader.known.elements(call[1])
    return EmptyList(None if found is None else int(found))


def _tensor_array(call: NodeCall) -> Sequence[ValueOrList]:
    """Reads TensorArrayV3; both results, handle and flow, stand for the list."""
    found = call.reader.known.elements(call[0])
    # A list with dynamic_size grows, so that its initial size says nothing.
    grows = call.flag("dynamic_size")
    pending = EmptyList(None if found is None or grows else int(found))
    return [pending, pending]


def _whole_list(call: NodeCall) -> ValueOrList:
    return call[0]


def _get_element(call: NodeCall, of: int, index: int) -> Value:
    x = call[of]
    if not isinstance(x, Value):
        raise KeepNode("it reads a list that nothing was written to")
    return call.add("gather", {"x": x, "indices": call[index]}, {"axis": 0})


def _set_element(call: NodeCall, of: int, index: int, value: int) -> ValueOrList:
    held: ValueOrList = call[of]
    if not isinstance(held, EmptyList):
        raise KeepNode("it writes to a list that was written before")
    return WrittenList(held.size, call[index], call[value])


def _scatter_list(call: NodeCall) -> Value:
    """Reads TensorArrayScatterV3: a list of the entries of a tensor."""
    _keep_unless_counting(call, 1)
    return call[2]


def _gather_list(call: NodeCall) -> Value:
    """Reads TensorArrayGatherV3: a tensor of the elements of a list."""
    _keep_unless_counting(call, 1)
    if not isinstance(call[2], Value):
        raise KeepNode("it reads a list that nothing was written to")
    return call[2]


def _keep_unless_counting(call: NodeCall, index: int) -> None:
    """Raises KeepNode unless an operand is 0, 1, 2, ..."""
    found = call.reader.known.elements(call[index])
    node = call[index].node
    if found is not None:
        counts = np.array_equal(found, np.arange(found.size))
    else:
        first = [call.reader.known.elements(v) for v in node.operands.values()]
        numbers = [None if f is None else int(f) for f in first]
        # range(0, n, 1) with an unknown n.
        counts = node.op == "range" and numbers[0] == 0 and numbers[2] == 1
    if not counts:
        raise KeepNode("its elements are not in their order")


OPS: dict[str, Callable[[NodeCall], ValueOrList | Sequence[ValueOrList]]] = {
    "TensorListReserve": _reserve_list,
    "TensorListFromTensor": _whole_list,
    "TensorListStack": _whole_list,
    "TensorListGetItem": lambda call: _get_element(call, 0, 1),
    "TensorListSetItem": lambda call: _set_element(call, 0, 1, 2),
    "TensorArrayV3": _tensor_array,
    "TensorArrayScatterV3": _scatter_list,
    "TensorArrayGatherV3": _gather_list,
    "TensorArrayReadV3": lambda call: _get_element(call, 2, 1),
    "TensorArrayWriteV3": lambda call: _set_element(call, 3, 1, 2),
}
