"""Writes loops and branches as TensorFlow's frames: Enter, Merge, Switch, NextIteration and
Exit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

from .nodes import GraphNodes, refusal, shape_attr, type_attr
from .wire import Attr, TypeAttr

PARALLEL_ITERATIONS = 10
"""Iterations that TensorFlow may run at once: its default."""
Body = Callable[[GraphNodes, Graph], None]
"""Writes the nodes of a body, whose inputs have their tensors."""
WriteControl = Callable[[GraphNodes, Graph, Node, Body], list[str]]


class _LoopVariable:
    """A value that a loop carries from one iteration to the next."""

    def __init__(self, w: GraphNodes, frame: str, start: str, kind: TypeAttr) -> None:
        self.w, self.kind, self.like = w, kind, frame
        # The Merge reads NextIteration, which is written later: its name is reserved here.
        self.again = w.name(f"{frame}/next")
        entered = enter(w, frame, start, kind)
        self.merged = w.add("Merge", (entered, self.again), f"{frame}/merge", T=kind, N=2)
        self.switch = ""

    def split(self, condition: str) -> str:
        """Adds the Switch that ends the loop; returns the value as the body reads it."""
        inputs = (self.merged, condition)
        self.switch = self.w.add("Switch", inputs, f"{self.like}/switch", T=self.kind)
        return f"{self.switch}:1"

    def close(self, value: str) -> None:
        """Carries a value of the body to the next iteration."""
        self.w.node("NextIteration", self.again, (value,), T=self.kind)

    def last(self) -> str:
        """Returns the value after the last iteration; only for values that are read: an unread
        Exit would be an output."""
        return self.w.add("Exit", (self.switch,), f"{self.like}/exit", T=self.kind)


def enter(w: GraphNodes, frame: str, value: str, element: TypeAttr, *, fixed: bool = False) -> str:
    """Brings a value into a loop; a `fixed` one is the same in every iteration."""
    attrs: dict[str, Attr] = {
        "T": element,
        "frame_name": frame,
        "is_constant": fixed,
        "parallel_iterations": PARALLEL_ITERATIONS,
    }
    return w.add("Enter", (value,), f"{frame}/enter", **attrs)


def _int64_constant(w: GraphNodes, number: int) -> str:
    return w.constant(np.asarray(number, np.int64))


def loop(w: GraphNodes, graph: Graph, n: Node, write: Body) -> list[str]:
    """Writes a loop; values of every iteration are written to a TensorArray and stacked."""
    body, carried, outer_values = graph.body(n), n.variadic("vs"), n.variadic("xs")
    frame = w.name(n.name)
    index_input, condition_input = body.inputs[:2]
    count, cond = n.operands.get("count"), n.operands.get("cond")
    limit = w.tensor(count) if count else _int64_constant(w, np.iinfo(np.int64).max)
    # A one-element list is a count in ONNX's loops: TensorFlow's frame needs a scalar.
    limit = w.add("Reshape", (limit, w.int_constant([])), n.name, T=TypeAttr("int64"))
    start_condition = w.tensor(cond) if cond else w.constant(np.asarray(True))
    start_condition = w.add(
        "Reshape", (start_condition, w.int_constant([])), n.name, T=TypeAttr("bool")
    )
    stacked = list(body.outputs.values())[1 + len(carried) :]
    if any(value.type.quant for value in stacked):
        raise refusal(n, "TensorFlow stacks no quantized values; dequantize them inside the loop")
    parts = [StackedResult(w, frame, value) for value in stacked]
    starts = [w.tensor(value) for value in carried]
    entered = [
        enter(w, frame, w.tensor(value), type_attr(value), fixed=True) for value in outer_values
    ]

    # The frame's variables: iteration counter, condition, carried values, TensorArray flows.
    counter = _LoopVariable(w, frame, _int64_constant(w, 0), TypeAttr("int64"))
    condition = _LoopVariable(w, frame, start_condition, TypeAttr("bool"))
    variables = [
        _LoopVariable(w, frame, start, type_attr(v))
        for start, v in zip(starts, body.inputs[2:], strict=False)
    ]
    flows = [_LoopVariable(w, frame, part.flow, TypeAttr("float")) for part in parts]
    limit = enter(w, frame, limit, TypeAttr("int64"), fixed=True)
    continues = w.add("Less", (counter.merged, limit), f"{frame}/less", T=TypeAttr("int64"))
    continues = w.add("LogicalAnd", (continues, condition.merged), f"{frame}/and")
    continues = w.add("LoopCond", (continues,), f"{frame}/cond")

    # From here on, values are those inside the body, behind the Switch.
    index, still_true = counter.split(continues), condition.split(continues)
    index = w.add("Identity", (index,), f"{frame}/round", T=TypeAttr("int64"))
    for value, number in ((index_input, index), (condition_input, still_true)):
        w.tensors[value] = _reshaped_scalar(w, number, value, index) if value.uses else number
    inner = body.inputs[2:]
    w.tensors |= zip(
        inner, [*(variable.split(continues) for variable in variables), *entered], strict=True
    )
    running = [flow.split(continues) for flow in flows]
    # Constants inside a frame need a control input of the frame, else they belong outside of it.
    with w.constants_after(lambda: index):
        write(w, body)
        next_condition, *values = (w.tensor(value) for value in body.outputs.values())
        next_values, stacked_values = values[: len(variables)], values[len(variables) :]
        next_condition = w.add(
            "Reshape", (next_condition, w.int_constant([])), f"{frame}/after", T=TypeAttr("bool")
        )
        next_index = w.add(
            "AddV2", (index, _int64_constant(w, 1)), f"{frame}/add", T=TypeAttr("int64")
        )
        next_flows = [
            part.write(index, value, flow)
            for part, value, flow in zip(parts, stacked_values, running, strict=True)
        ]
    for variable, next_value in zip(
        [counter, condition, *variables, *flows],
        [next_index, next_condition, *next_values, *next_flows],
        strict=True,
    ):
        variable.close(next_value)
    # Only results that are read get an Exit: an unread one would be taken for an output.
    is_read = [bool(value.uses) for value in n.results]
    results = [
        variable.last() if needs_result else ""
        for variable, needs_result in zip(variables, is_read, strict=False)
    ]
    rounds = counter.last() if any(is_read[len(variables) :]) else ""
    for part, flow, needs_result in zip(parts, flows, is_read[len(variables) :], strict=True):
        results.append(part.read(flow.last(), rounds) if needs_result else "")
    return results


def _reshaped_scalar(w: GraphNodes, scalar_tensor: str, value: Value, control_input: str) -> str:
    """Returns a scalar in the shape that a body expects."""
    if not value.type.rank:
        return scalar_tensor
    with w.constants_after(lambda: control_input):
        ones = w.int_constant([1] * value.type.rank)
    return w.add("Reshape", (scalar_tensor, ones), value.name, T=type_attr(value))


class StackedResult:
    """A TensorArray that every iteration of a loop writes."""

    def __init__(self, w: GraphNodes, frame: str, value: Value) -> None:
        self.w, self.kind, self.like = w, type_attr(value), f"{frame}/parts"
        self.shape = shape_attr(value)
        initial_size = w.constant(np.asarray(0, np.int32))
        attrs: dict[str, Attr] = {
            "dtype": self.kind,
            "element_shape": self.shape,
            "dynamic_size": True,
            "clear_after_read": False,
            "identical_element_shapes": False,
            "tensor_array_name": "",
        }
        self.array = w.add("TensorArrayV3", (initial_size,), self.like, **attrs)
        self.flow = f"{self.array}:1"
        self.inside = enter(w, frame, self.array, TypeAttr("resource"), fixed=True)

    def write(self, index: str, value: str, flow: str) -> str:
        """Writes the value of an iteration."""
        position = self.w.add(
            "Cast", (index,), self.like, SrcT=TypeAttr("int64"), DstT=TypeAttr("int32")
        )
        inputs = (self.inside, position, value, flow)
        return self.w.add("TensorArrayWriteV3", inputs, self.like, T=self.kind)

    def read(self, flow: str, rounds: str) -> str:
        """Returns the values of all iterations, stacked."""
        w = self.w
        count = w.add("Cast", (rounds,), self.like, SrcT=TypeAttr("int64"), DstT=TypeAttr("int32"))
        start, step = (w.constant(np.asarray(i, np.int32)) for i in (0, 1))
        positions = w.add("Range", (start, count, step), self.like, Tidx=TypeAttr("int32"))
        attrs: dict[str, Attr] = {"dtype": self.kind, "element_shape": self.shape}
        return w.add("TensorArrayGatherV3", (self.array, positions, flow), self.like, **attrs)


def branch(w: GraphNodes, graph: Graph, n: Node, write: Body) -> list[str]:
    """Writes both branches; Merge selects the results of the one that ran."""
    pred = w.add(
        "Reshape", (w.tensor(n.operands["cond"]), w.int_constant([])), n.name, T=TypeAttr("bool")
    )
    pivot = w.add("Switch", (pred, pred), n.name, T=TypeAttr("bool"))
    bodies = [graph.body(n, name) for name in ("else", "then")]
    for i, value in enumerate(n.variadic("xs")):
        body_inputs = [body.inputs[i] for body in bodies]
        if any(body_input.uses for body_input in body_inputs):
            # A Switch has two outputs: the first one is alive where the condition is false.
            switched = w.add("Switch", (w.tensor(value), pred), n.name, T=type_attr(value))
            w.tensors |= {body_inputs[0]: switched, body_inputs[1]: f"{switched}:1"}
    results_of_bodies: list[list[str]] = []
    for body, alive in zip(bodies, (pivot, f"{pivot}:1"), strict=True):
        with w.constants_after(
            partial(w.add, "Identity", (alive,), f"{n.name}/{body.name}", T=TypeAttr("bool"))
        ):
            write(w, body)
            results_of_bodies.append([w.tensor(value) for value in body.outputs.values()])
    pairs = zip(n.results, *results_of_bodies, strict=True)
    return [
        w.add("Merge", pair, v.name, T=type_attr(v), N=2) if v.uses else "" for v, *pair in pairs
    ]


OPS: Mapping[str, WriteControl] = {"loop": loop, "if": branch}
