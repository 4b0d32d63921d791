"""Writes loops and branches as TensorFlow's frames: Enter, Merge, Switch, NextIteration and
Exit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

from .nodes import GraphNodes, shape_attr, type_attr
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
        self.again = w.name(f"{frame}/next")
        entered = enter(w, frame, start, kind)
        self.merged = w.add("Merge", (entered, self.again), f"{frame}/merge", T=kind, N=2)
        self.switch = ""

    def split(self, go: str) -> str:
        """Adds the Switch that ends the loop; returns the value as the body reads it."""
        given = (self.merged, go)
        self.switch = self.w.add("Switch", given, f"{self.like}/switch", T=self.kind)
        return f"{self.switch}:1"

    def close(self, after: str) -> None:
        """Carries a value of the body to the next iteration."""
        self.w.node("NextIteration", self.again, (after,), T=self.kind)

    def last(self) -> str:
        """Returns the value after the last iteration; only for values that are read: an unread
        Exit would be an output."""
        return self.w.add("Exit", (self.switch,), f"{self.like}/exit", T=self.kind)


def enter(w: GraphNodes, frame: str, value: str, of: TypeAttr, *, fixed: bool = False) -> str:
    """Brings a value into a loop; a `fixed` one is the same in every iteration."""
    attrs: dict[str, Attr] = {
        "T": of,
        "frame_name": frame,
        "is_constant": fixed,
        "parallel_iterations": PARALLEL_ITERATIONS,
    }
    return w.add("Enter", (value,), f"{frame}/enter", **attrs)


def _int64_constant(w: GraphNodes, number: int) -> str:
    return w.constant(np.asarray(number, np.int64))


def loop(w: GraphNodes, graph: Graph, n: Node, write: Body) -> list[str]:
    """Writes a loop; values of every iteration are written to a TensorArray and stacked."""
    body, carried, given = graph.body(n), n.variadic("vs"), n.variadic("xs")
    frame = w.name(n.name)
    first, flag = body.inputs[:2]
    count, cond = n.operands.get("count"), n.operands.get("cond")
    limit = w.tensor(count) if count else _int64_constant(w, np.iinfo(np.int64).max)
    limit = w.add("Reshape", (limit, w.int_constant([])), n.name, T=TypeAttr("int64"))
    go = w.tensor(cond) if cond else w.constant(np.asarray(True))
    go = w.add("Reshape", (go, w.int_constant([])), n.name, T=TypeAttr("bool"))
    parts = [StackedResult(w, frame, v) for v in list(body.outputs.values())[1 + len(carried) :]]
    starts = [w.tensor(value) for value in carried]
    outside = [enter(w, frame, w.tensor(value), type_attr(value), fixed=True) for value in given]

    round_ = _LoopVariable(w, frame, _int64_constant(w, 0), TypeAttr("int64"))
    condition = _LoopVariable(w, frame, go, TypeAttr("bool"))
    variables = [
        _LoopVariable(w, frame, start, type_attr(v))
        for start, v in zip(starts, body.inputs[2:], strict=False)
    ]
    flows = [_LoopVariable(w, frame, part.flow, TypeAttr("float")) for part in parts]
    limit = enter(w, frame, limit, TypeAttr("int64"), fixed=True)
    more = w.add("Less", (round_.merged, limit), f"{frame}/less", T=TypeAttr("int64"))
    more = w.add("LogicalAnd", (more, condition.merged), f"{frame}/and")
    more = w.add("LoopCond", (more,), f"{frame}/cond")

    index, going = round_.split(more), condition.split(more)
    index = w.add("Identity", (index,), f"{frame}/round", T=TypeAttr("int64"))
    for value, number in ((first, index), (flag, going)):
        w.tensors[value] = _reshaped_scalar(w, number, value, index) if value.uses else number
    inner = body.inputs[2:]
    w.tensors |= zip(inner, [*(ring.split(more) for ring in variables), *outside], strict=True)
    running = [flow.split(more) for flow in flows]
    with w.constants_after(lambda: index):
        write(w, body)
        after, *values = (w.tensor(value) for value in body.outputs.values())
        made, written = values[: len(variables)], values[len(variables) :]
        after = w.add("Reshape", (after, w.int_constant([])), f"{frame}/after", T=TypeAttr("bool"))
        next_ = w.add("AddV2", (index, _int64_constant(w, 1)), f"{frame}/add", T=TypeAttr("int64"))
        ends = [
            part.write(index, value, flow)
            for part, value, flow in zip(parts, written, running, strict=True)
        ]
    for ring, end in zip(
        [round_, condition, *variables, *flows], [next_, after, *made, *ends], strict=True
    ):
        ring.close(end)
    read = [bool(value.uses) for value in n.results]
    results = [ring.last() if used else "" for ring, used in zip(variables, read, strict=False)]
    rounds = round_.last() if any(read[len(variables) :]) else ""
    for part, flow, used in zip(parts, flows, read[len(variables) :], strict=True):
        results.append(part.read(flow.last(), rounds) if used else "")
    return results


def _reshaped_scalar(w: GraphNodes, made: str, value: Value, of: str) -> str:
    """Returns a scalar in the shape that a body expects."""
    if not value.type.rank:
        return made
    with w.constants_after(lambda: of):
        row = w.int_constant([1] * value.type.rank)
    return w.add("Reshape", (made, row), value.name, T=type_attr(value))


class StackedResult:
    """A TensorArray that every iteration of a loop writes."""

    def __init__(self, w: GraphNodes, frame: str, value: Value) -> None:
        self.w, self.kind, self.like = w, type_attr(value), f"{frame}/parts"
        self.shape = shape_attr(value)
        none = w.constant(np.asarray(0, np.int32))
        attrs: dict[str, Attr] = {
            "dtype": self.kind,
            "element_shape": self.shape,
            "dynamic_size": True,
            "clear_after_read": False,
            "identical_element_shapes": False,
            "tensor_array_name": "",
        }
        self.array = w.add("TensorArrayV3", (none,), self.like, **attrs)
        self.flow = f"{self.array}:1"
        self.inside = enter(w, frame, self.array, TypeAttr("resource"), fixed=True)

    def write(self, index: str, value: str, flow: str) -> str:
        """Writes the value of an iteration."""
        at = self.w.add("Cast", (index,), self.like, SrcT=TypeAttr("int64"), DstT=TypeAttr("int32"))
        given = (self.inside, at, value, flow)
        return self.w.add("TensorArrayWriteV3", given, self.like, T=self.kind)

    def read(self, flow: str, rounds: str) -> str:
        """Returns the values of all iterations, stacked."""
        w = self.w
        end = w.add("Cast", (rounds,), self.like, SrcT=TypeAttr("int64"), DstT=TypeAttr("int32"))
        first, step = (w.constant(np.asarray(i, np.int32)) for i in (0, 1))
        all_ = w.add("Range", (first, end, step), self.like, Tidx=TypeAttr("int32"))
        attrs: dict[str, Attr] = {"dtype": self.kind, "element_shape": self.shape}
        return w.add("TensorArrayGatherV3", (self.array, all_, flow), self.like, **attrs)


def branch(w: GraphNodes, graph: Graph, n: Node, write: Body) -> list[str]:
    """Writes both branches; Merge selects the results of the one that ran."""
    pred = w.add(
        "Reshape", (w.tensor(n.operands["cond"]), w.int_constant([])), n.name, T=TypeAttr("bool")
    )
    pivot = w.add("Switch", (pred, pred), n.name, T=TypeAttr("bool"))
    bodies = [graph.body(n, name) for name in ("else", "then")]
    for i, value in enumerate(n.variadic("xs")):
        inner = [body.inputs[i] for body in bodies]
        if any(each.uses for each in inner):
            held = w.add("Switch", (w.tensor(value), pred), n.name, T=type_attr(value))
            w.tensors |= {inner[0]: held, inner[1]: f"{held}:1"}
    made: list[list[str]] = []
    for body, way in zip(bodies, (pivot, f"{pivot}:1"), strict=True):
        with w.constants_after(
            partial(w.add, "Identity", (way,), f"{n.name}/{body.name}", T=TypeAttr("bool"))
        ):
            write(w, body)
            made.append([w.tensor(value) for value in body.outputs.values()])
    pairs = zip(n.results, *made, strict=True)
    return [
        w.add("Merge", pair, v.name, T=type_attr(v), N=2) if v.uses else "" for v, *pair in pairs
    ]


OPS: Mapping[str, WriteControl] = {"loop": loop, "if": branch}
