"""Loops and branches as TensorFlow's frames: Enter, Merge, Switch, NextIteration and Exit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from qir.ir.graph import Graph
from qir.ir.node import Node, Value

from .nodes import Nodes, kind, sizes
from .wire import Attr, TypeAttr

_MANY = 10
"""Rounds that TensorFlow may run at once: its default."""
Body = Callable[[Nodes, Graph], None]
"""Writes the nodes of a body, whose inputs have their tensors."""
WriteControl = Callable[[Nodes, Graph, Node, Body], list[str]]


class _Ring:
    """A value that is carried around a loop."""

    def __init__(self, w: Nodes, frame: str, start: str, kind: TypeAttr) -> None:
        self.w, self.kind, self.like = w, kind, frame
        self.again = w.name(f"{frame}/next")
        entered = enter(w, frame, start, kind)
        self.merged = w.add("Merge", (entered, self.again), f"{frame}/merge", T=kind, N=2)
        self.switch = ""

    def split(self, go: str) -> str:
        """Lets the value go round while a truth value holds; returns it as the body reads it."""
        given = (self.merged, go)
        self.switch = self.w.add("Switch", given, f"{self.like}/switch", T=self.kind)
        return f"{self.switch}:1"

    def close(self, after: str) -> None:
        """Carries what the body gives to the next round."""
        self.w.node("NextIteration", self.again, (after,), T=self.kind)

    def last(self) -> str:
        """Returns the value after the last round; nobody should ask who does not read it."""
        return self.w.add("Exit", (self.switch,), f"{self.like}/exit", T=self.kind)


def enter(w: Nodes, frame: str, value: str, of: TypeAttr, *, fixed: bool = False) -> str:
    """Brings a value into a loop; a fixed one is the same in every round."""
    attrs: dict[str, Attr] = {
        "T": of,
        "frame_name": frame,
        "is_constant": fixed,
        "parallel_iterations": _MANY,
    }
    return w.add("Enter", (value,), f"{frame}/enter", **attrs)


def _whole(w: Nodes, number: int) -> str:
    return w.constant(np.asarray(number, np.int64))


def loop(w: Nodes, graph: Graph, n: Node, write: Body) -> list[str]:
    """Writes a loop; what each round gives is written to a TensorArray and stacked."""
    body, carried, given = graph.body(n), n.variadic("vs"), n.variadic("xs")
    frame = w.name(n.name)
    first, flag = body.inputs[:2]
    count, cond = n.operands.get("count"), n.operands.get("cond")
    limit = w.read(count) if count else _whole(w, np.iinfo(np.int64).max)
    limit = w.add("Reshape", (limit, w.row([])), n.name, T=TypeAttr("int64"))
    go = w.read(cond) if cond else w.constant(np.asarray(True))
    go = w.add("Reshape", (go, w.row([])), n.name, T=TypeAttr("bool"))
    parts = [StackedResult(w, frame, v) for v in list(body.outputs.values())[1 + len(carried) :]]
    starts = [w.read(value) for value in carried]
    outside = [enter(w, frame, w.read(value), kind(value), fixed=True) for value in given]

    round_ = _Ring(w, frame, _whole(w, 0), TypeAttr("int64"))
    condition = _Ring(w, frame, go, TypeAttr("bool"))
    rings = [
        _Ring(w, frame, start, kind(v)) for start, v in zip(starts, body.inputs[2:], strict=False)
    ]
    flows = [_Ring(w, frame, part.flow, TypeAttr("float")) for part in parts]
    limit = enter(w, frame, limit, TypeAttr("int64"), fixed=True)
    more = w.add("Less", (round_.merged, limit), f"{frame}/less", T=TypeAttr("int64"))
    more = w.add("LogicalAnd", (more, condition.merged), f"{frame}/and")
    more = w.add("LoopCond", (more,), f"{frame}/cond")

    index, going = round_.split(more), condition.split(more)
    index = w.add("Identity", (index,), f"{frame}/round", T=TypeAttr("int64"))
    for value, number in ((first, index), (flag, going)):
        w.places[value] = _shaped(w, number, value, index) if value.uses else number
    inner = body.inputs[2:]
    w.places |= zip(inner, [*(ring.split(more) for ring in rings), *outside], strict=True)
    running = [flow.split(more) for flow in flows]
    with w.pivot(lambda: index):
        write(w, body)
        after, *values = (w.read(value) for value in body.outputs.values())
        made, written = values[: len(rings)], values[len(rings) :]
        after = w.add("Reshape", (after, w.row([])), f"{frame}/after", T=TypeAttr("bool"))
        next_ = w.add("AddV2", (index, _whole(w, 1)), f"{frame}/add", T=TypeAttr("int64"))
        ends = [
            part.write(index, value, flow)
            for part, value, flow in zip(parts, written, running, strict=True)
        ]
    for ring, end in zip(
        [round_, condition, *rings, *flows], [next_, after, *made, *ends], strict=True
    ):
        ring.close(end)
    read = [bool(value.uses) for value in n.results]
    results = [ring.last() if used else "" for ring, used in zip(rings, read, strict=False)]
    rounds = round_.last() if any(read[len(rings) :]) else ""
    for part, flow, used in zip(parts, flows, read[len(rings) :], strict=True):
        results.append(part.read(flow.last(), rounds) if used else "")
    return results


def _shaped(w: Nodes, made: str, value: Value, of: str) -> str:
    """Returns one number in the shape that a body takes it in."""
    if not value.type.rank:
        return made
    with w.pivot(lambda: of):
        row = w.row([1] * value.type.rank)
    return w.add("Reshape", (made, row), value.name, T=kind(value))


class StackedResult:
    """What every round of a loop writes, stacked."""

    def __init__(self, w: Nodes, frame: str, value: Value) -> None:
        self.w, self.kind, self.like = w, kind(value), f"{frame}/parts"
        self.shape = sizes(value)
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
        """Writes what a round gives."""
        at = self.w.add("Cast", (index,), self.like, SrcT=TypeAttr("int64"), DstT=TypeAttr("int32"))
        given = (self.inside, at, value, flow)
        return self.w.add("TensorArrayWriteV3", given, self.like, T=self.kind)

    def read(self, flow: str, rounds: str) -> str:
        """Returns what all rounds wrote."""
        w = self.w
        end = w.add("Cast", (rounds,), self.like, SrcT=TypeAttr("int64"), DstT=TypeAttr("int32"))
        first, step = (w.constant(np.asarray(i, np.int32)) for i in (0, 1))
        all_ = w.add("Range", (first, end, step), self.like, Tidx=TypeAttr("int32"))
        attrs: dict[str, Attr] = {"dtype": self.kind, "element_shape": self.shape}
        return w.add("TensorArrayGatherV3", (self.array, all_, flow), self.like, **attrs)


def branch(w: Nodes, graph: Graph, n: Node, write: Body) -> list[str]:
    """Writes both branches; of their results Merge takes those of the branch that ran."""
    pred = w.add("Reshape", (w.read(n.operands["cond"]), w.row([])), n.name, T=TypeAttr("bool"))
    pivot = w.add("Switch", (pred, pred), n.name, T=TypeAttr("bool"))
    bodies = [graph.body(n, name) for name in ("else", "then")]
    for i, value in enumerate(n.variadic("xs")):
        inner = [body.inputs[i] for body in bodies]
        if any(each.uses for each in inner):
            held = w.add("Switch", (w.read(value), pred), n.name, T=kind(value))
            w.places |= {inner[0]: held, inner[1]: f"{held}:1"}
    made: list[list[str]] = []
    for body, way in zip(bodies, (pivot, f"{pivot}:1"), strict=True):
        with w.pivot(
            partial(w.add, "Identity", (way,), f"{n.name}/{body.name}", T=TypeAttr("bool"))
        ):
            write(w, body)
            made.append([w.read(value) for value in body.outputs.values()])
    pairs = zip(n.results, *made, strict=True)
    return [w.add("Merge", pair, v.name, T=kind(v), N=2) if v.uses else "" for v, *pair in pairs]


OPS: Mapping[str, WriteControl] = {"loop": loop, "if": branch}
