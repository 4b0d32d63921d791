"""Loops: reads While with its functions, and TensorFlow 1's frames, as `loop`.

The body of `loop` is closed. A list of tensors becomes a tensor with one more axis: getting an
element is a gather, and elements that each iteration sets are stacked by the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from qir.ir.dtype import BOOL, I64
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import TensorType

from .call import NodeCall
from .graphdef import GraphDefNode, GraphSource, LoopParts, ResultPlace, function_source
from .reader import GraphDefReader, KeepNode
from .results import EmptyList, ValueOrList, WrittenList


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
        self.arguments: list[ValueOrList] = [reader.operand(node, place) for place in node.inputs]
        # Results that the body returns unchanged are invariant, and need not be carried.
        self.is_invariant = [self._is_returned_unchanged(i) for i in range(len(self.arguments))]
        body = loop.body
        # A body has no numerics profile of its own.
        self.inner = reader.nested(body, "body", Graph("body", profile=""))
        self.carried = [
            i
            for i, argument in enumerate(self.arguments)
            if isinstance(argument, Value) and not self.is_invariant[i]
        ]
        self.captured: list[Value] = []
        """Invariant values that are not constant, which become inputs of the body."""

    def _is_returned_unchanged(self, index: int) -> bool:
        """Returns whether the body returns an argument unchanged."""
        body_results = self.loop.body_results
        if index >= len(body_results):
            return True
        return self._source(body_results[index]) in self.loop.body_args[index]

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
        self._bind_arguments()

        results = self.inner.read_places(self.loop.body_results)
        carried = [results[i] for i in self.carried]
        writes = [i for i, result in enumerate(results) if isinstance(result, WrittenList)]
        # The condition is evaluated for the next iteration, at the end of the body.
        continues_after = self._condition(
            self.inner, [*results, *self._values_inside(len(results))]
        )
        # A known trip count makes a counted loop, which passes can unroll.
        iterations = self._trip_count(continues_after, results)
        outputs = {"continues": continues_after if iterations is None else continues}
        for index, result in zip(self.carried, carried, strict=True):
            outputs[f"carried_{index}"] = self._value(result)
        for index in writes:
            outputs[f"written_{index}"] = self._written_element(index, results[index])
        body.add("output", outputs)
        if iterations is None:
            operands = {"cond": self._condition(self.reader, self.arguments)}
        elif isinstance(iterations, Value):
            cast = self.reader.add(self.node, "cast", {"x": iterations}, {"to": I64})
            operands = {"count": cast.result}
        else:
            name = self.reader.names(self.node, "rounds")
            count = self.reader.graph.constant(np.asarray(iterations, np.int64), name=name)
            operands = {"count": count}
        operands |= {f"vs.{n}": self._value(self.arguments[i]) for n, i in enumerate(self.carried)}
        operands |= {f"xs.{n}": value for n, value in enumerate(self.captured)}
        node_results = self.reader.add_control(self.node, "loop", operands, {"body": body})
        return self._results(node_results, results, writes)

    def _value(self, argument: ValueOrList) -> Value:
        if not isinstance(argument, Value):
            raise KeepNode("a list is used in its loop otherwise than read or written")
        return argument

    def _bind_arguments(self) -> None:
        """Adds the arguments to the body, as inputs or as constants."""
        body = self.inner.graph
        for index in self.carried:
            carried_type = self._value(self.arguments[index]).type
            self._bind(
                index, body.add("input", types=[carried_type], name=f"carried_{index}").result
            )
        for index, argument in enumerate(self.arguments):
            if index in self.carried:
                continue
            # Constants are copied into the body, which lets converters use them as axes and sizes.
            if isinstance(argument, Value) and argument.constant is not None:
                self._bind(index, body.constant(argument.constant, name=f"constant_{index}"))
            elif (
                isinstance(argument, Value) and (data := self._known_elements(argument)) is not None
            ):
                self._bind(index, body.constant(data, name=f"constant_{index}"))
            elif isinstance(argument, Value):
                self.captured.append(argument)
                name = f"given_{index}"
                self._bind(index, body.add("input", types=[argument.type], name=name).result)
            else:
                self._bind(index, argument)

    def _known_elements(self, value: Value) -> NDArray[np.generic] | None:
        """Returns the elements of a value that depends on constants only; None for others."""
        elements = self.reader.known.elements(value)
        return None if elements is None or elements.dtype == object else elements

    def _bind(self, index: int, argument: ValueOrList) -> None:
        for place in self.loop.body_args[index]:
            self.inner.results[place] = argument

    def _values_inside(self, start: int) -> list[ValueOrList]:
        """Returns the values of the arguments from `start` on inside the body."""
        return [self.inner.results[places[0]] for places in self.loop.body_args[start:]]

    def _condition(self, reader: GraphDefReader, arguments: Sequence[ValueOrList]) -> Value:
        """Reads the condition for these arguments into a graph.

        That graph is the one before the loop, or its body.
        """
        loop = self.loop
        # The same condition is read twice: into the outer graph before the loop, and into the body.
        inner = reader.nested(loop.condition, "condition", reader.graph)
        for places, argument in zip(loop.condition_args, arguments, strict=True):
            for place in places:
                inner.results[place] = argument
        (condition,) = inner.read_places([loop.condition_result])
        return self._value(condition)

    def _written_element(self, index: int, written: ValueOrList) -> Value:
        """Returns the element that an iteration sets.

        Raises KeepNode unless elements are in order.
        """
        assert isinstance(written, WrittenList)
        # A list of one element is how TensorFlow 2 stores only the last state of an RNN.
        if written.size == 1 and self._scalar(written.index) == 0:
            return written.value
        if not self._is_counter(written.index):
            raise KeepNode(f"its list {index} is not written one element after another")
        return written.value

    def _scalar(self, value: Value) -> int | None:
        elements = self.inner.known.elements(value)
        return None if elements is None else int(elements.reshape(-1)[0])

    def _is_counter(self, value: Value) -> bool:
        """Returns whether a value is the iteration count: carried, from 0, incremented by 1."""
        # The index may be cast from the counter.
        while value.node.op in ("cast", "identity"):
            value = value.node.operands["x"]
        for index in self.carried:
            if self.inner.results[self.loop.body_args[index][0]] is value:
                return self._counter_start(index) == 0
        return False

    def _counter_start(self, index: int) -> int | None:
        """Returns the start of a carried value that grows by 1; None for others."""
        value = self.inner.results[self.loop.body_args[index][0]]
        start_value = self.reader.known.elements(self._value(self.arguments[index]))
        next_value = self.inner.results[self._source(self.loop.body_results[index])]
        if not isinstance(next_value, Value) or next_value.node.op != "add" or start_value is None:
            return None
        # Of counter + 1, the operand that is not the counter.
        addends = [v for v in next_value.node.operands.values() if v is not value]
        # counter + 1, in the body.
        grows_by_one = start_value.size == 1 and len(addends) == 1 and self._scalar(addends[0]) == 1
        return int(start_value.reshape(-1)[0]) if grows_by_one else None

    def _trip_count(self, condition: Value, results: Sequence[ValueOrList]) -> int | Value | None:
        """Returns the trip count if counters alone decide it; None otherwise.

        The condition must be `counter < constant`, or `counter < value` for a counter from 0, or a
        conjunction of these.
        """
        node = condition.node
        if node.op == "logical_and":
            trip_counts = [self._trip_count(operand, results) for operand in node.operands.values()]
            if all(operand is trip_counts[0] for operand in trip_counts):
                return trip_counts[0]
            counts = [operand for operand in trip_counts if isinstance(operand, int)]
            return min(counts) if len(counts) == len(trip_counts) else None
        if node.op != "less":
            return None
        counter, limit = node.operands.values()
        # The condition compares the counter after the increment, which is the value the body
        # returns.
        index = next((i for i in self.carried if results[i] is counter), None)
        start = None if index is None else self._counter_start(index)
        if start == 0 and (outer := self._value_outside(limit)) is not None:
            return outer
        end = self._scalar(limit) if limit.type.rank == 0 else None
        return None if start is None or end is None else max(end - start, 0)

    def _value_outside(self, value: Value) -> Value | None:
        """Returns the scalar outside the loop that a value inside the body is; None for others."""
        # Inputs of the body: iteration count, condition, carried values, then invariant ones.
        invariant_inputs = self.inner.graph.inputs[2 + len(self.carried) :]
        if value.type.rank or value not in invariant_inputs:
            return None
        outer = self.captured[invariant_inputs.index(value)]
        while outer.node.op == "identity":
            outer = outer.node.operands["x"]
        return outer

    def _results(
        self, node_results: Sequence[Value], results: Sequence[ValueOrList], writes: Sequence[int]
    ) -> list[ValueOrList]:
        loop_results: list[ValueOrList] = []
        for index, argument in enumerate(self.arguments[: len(results)]):
            if index in self.carried:
                loop_results.append(node_results[self.carried.index(index)])
            elif index in writes:
                written = results[index]
                assert isinstance(written, WrittenList)
                stacked = node_results[len(self.carried) + writes.index(index)]
                loop_results.append(self._stack_elements(stacked, written))
            else:
                # Invariant: the argument itself.
                loop_results.append(argument)
        return loop_results

    def _stack_elements(self, stacked: Value, written: WrittenList) -> Value:
        """Returns a list from the elements of all iterations.

        A list of one element that is overwritten has the last of them.
        """
        graph = self.reader.graph
        if written.size == 1 and not self._is_counter(written.index):
            last_element = {"starts": (-1,), "ends": (2**63 - 1,), "axes": (0,), "steps": (1,)}
            stacked = self.reader.add(self.node, "slice", {"x": stacked}, last_element).result
        # The loop's trip count may be open; the size of the list is known.
        if written.size is not None:
            graph.set_type(
                stacked, stacked.type.with_shape((written.size, *stacked.type.shape[1:]))
            )
        return stacked


# -- lists ----------------------------------------------------------------------------------------


def _reserve_list(call: NodeCall) -> ValueOrList:
    size = call.reader.known.elements(call[1])
    return EmptyList(None if size is None else int(size))


def _tensor_array(call: NodeCall) -> Sequence[ValueOrList]:
    """Reads TensorArrayV3; both results, handle and flow, stand for the list."""
    size = call.reader.known.elements(call[0])
    # A list with dynamic_size grows, so that its initial size says nothing.
    grows = call.flag("dynamic_size")
    pending = EmptyList(None if size is None or grows else int(size))
    return [pending, pending]


def _same_list(call: NodeCall) -> ValueOrList:
    return call[0]


def _get_element(call: NodeCall, list_index: int, index: int) -> Value:
    x = call[list_index]
    if not isinstance(x, Value):
        raise KeepNode("it reads a list that nothing was written to")
    # A list is a tensor with one more axis at the front.
    return call.add("gather", {"x": x, "indices": call[index]}, {"axis": 0})


def _set_element(call: NodeCall, list_index: int, index: int, value: int) -> ValueOrList:
    target: ValueOrList = call[list_index]
    if not isinstance(target, EmptyList):
        raise KeepNode("it writes to a list that was written before")
    return WrittenList(target.size, call[index], call[value])


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
    elements = call.reader.known.elements(call[index])
    node = call[index].node
    if elements is not None:
        is_counting = np.array_equal(elements, np.arange(elements.size))
    else:
        elements_by_operand = [call.reader.known.elements(v) for v in node.operands.values()]
        bounds = [None if f is None else int(f) for f in elements_by_operand]
        # range(0, n, 1) with an unknown n.
        is_counting = node.op == "range" and bounds[0] == 0 and bounds[2] == 1
    if not is_counting:
        raise KeepNode("its elements are not in their order")


OPS: dict[str, Callable[[NodeCall], ValueOrList | Sequence[ValueOrList]]] = {
    "TensorListReserve": _reserve_list,
    "TensorListFromTensor": _same_list,
    "TensorListStack": _same_list,
    "TensorListGetItem": lambda call: _get_element(call, 0, 1),
    "TensorListSetItem": lambda call: _set_element(call, 0, 1, 2),
    "TensorArrayV3": _tensor_array,
    "TensorArrayScatterV3": _scatter_list,
    "TensorArrayGatherV3": _gather_list,
    "TensorArrayReadV3": lambda call: _get_element(call, 2, 1),
    "TensorArrayWriteV3": lambda call: _set_element(call, 3, 1, 2),
}
