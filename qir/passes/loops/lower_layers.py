"""Rewrites recurrent layers as loops over their steps.

    graph main as native {
      %x = input() : 3x2x4xf32
      %w = input() : 1x5x4xf32
      %r = input() : 1x5x5xf32
      %h0 = input() : 1x2x5xf32
      %y, %h = rnn(%x, %w, %r, h0=%h0) : 3x1x2x5xf32, 1x2x5xf32
      output(y=%y)
    }

By `lower-layers` it becomes:

    graph main as native {
      %x = input() : 3x2x4xf32
      %w = input() : 1x5x4xf32
      %r = input() : 1x5x5xf32
      %h0 = input() : 1x2x5xf32
      %y.count = constant(3) : i64
      %squeeze = squeeze(%h0) {axes = (0,)} : 2x5xf32
      %y.loop, %y.loop.1 = loop(count=%y.count, vs.0=%squeeze, xs.0=%x, xs.1=%w, xs.2=%r) : 2x5xf32, 3x2x5xf32 with body {
        %round = input() : i64
        %go = input() : bool
        %s0 = input() : 2x5xf32
        %x = input() : 3x2x4xf32
        %w = input() : 1x5x4xf32
        %r = input() : 1x5x5xf32
        %gather = gather(%x, %round) : 2x4xf32
        %slice = slice(%w) {starts = (0,), ends = (1,), axes = (0,), steps = (1,)} : 1x5x4xf32
        %squeeze = squeeze(%slice) {axes = (0,)} : 5x4xf32
        %slice_1 = slice(%r) {starts = (0,), ends = (1,), axes = (0,), steps = (1,)} : 1x5x5xf32
        %squeeze_1 = squeeze(%slice_1) {axes = (0,)} : 5x5xf32
        %linear = linear(%gather, %squeeze) : 2x5xf32
        %linear_1 = linear(%s0, %squeeze_1) : 2x5xf32
        %add = add(%linear, %linear_1) : 2x5xf32
        %tanh = tanh(%add) : 2x5xf32
        output(go=%go, s0=%tanh, y=%tanh)
      }
      %y = unsqueeze(%y.loop.1) {axes = (1,)} : 3x1x2x5xf32
      output(y=%y)
    }
"""  # noqa: E501 - a line of the text form

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import BOOL, I64
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.ops.recurrent import DIRECTIONS
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.passes.loops.unroll.layers import LAYERS, can_be_written, hidden_of, put_step
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED


@dataclass(frozen=True)
class LowerLayers(Pass):
    """Rewrites rnn, lstm and gru as loops: for runtimes without such layers, at any length.

    A layer stays whose sequences have lengths of their own, which holds quantized values, or whose
    activations are no ops. `projected` lowers only those that project their state.
    """

    name = "lower-layers"
    tolerance = REGROUPED
    projected: bool = False

    def run(self, graph: Graph, ledger: Ledger) -> int:
        found = [node for node in graph if node.op in LAYERS and self._fits(node)]
        for node in found:
            made = _Lowered(graph, node).put()
            named = [(new, old.name, old.lineage) for old, new in made.items()]
            for old, new in made.items():
                graph.replace(old, new)
            name, op = node.name, node.op
            graph.remove(node)
            for new, said, lineage in named:
                if not graph.has(said):
                    graph.rename(new, said)
                    graph.set_lineage(new, lineage)
            ledger.add(Change.REGROUPED, self.name, name, f"{op} becomes a loop")
        return len(found)

    def _fits(self, node: Node) -> bool:
        if self.projected and "proj" not in node.operands:
            return False
        return can_be_written(node) and may(self.name, f"lower {node.op}", node)


class _Lowered:
    """Builds the loop in the place of one layer."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.first = node.attrs["batch_first"] is True
        self.ways = DIRECTIONS[str(node.attrs["direction"])]
        self.x = node.operands["x"]
        self.body = Graph("body", profile="")
        self.outside: list[Value] = []

    def add(self, op: str, attrs: dict[str, Attr] | None = None, **operands: Value) -> Value:
        """Adds an op before the layer."""
        node = self.node
        made = self.graph.add(
            op, operands, attrs, before=node, origins=node.origins, profile=node.profile
        )
        return made.result

    def held(self, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str) -> Value:
        """Adds a constant before the layer."""
        free = self.graph.fresh(f"{self.node.name}.{name}")
        return self.graph.constant(data, name=free, before=self.node)

    def put(self) -> dict[Value, Value]:
        """Adds the loop; gives what stands for each result that is used."""
        node, body, along = self.node, self.body, 1 if self.first else 0
        index = body.add("input", types=[TensorType((), I64)], name="round").result
        go = body.add("input", types=[TensorType((), BOOL)], name="go").result
        count = self._size(along, "count")
        starts = [self._starts(way) for way in range(len(self.ways))]
        states = [
            tuple(body.add("input", types=[v.type], name=body.fresh(f"s{way}")).result for v in row)
            for way, row in enumerate(starts)
        ]
        outputs: dict[str, Value] = {"go": go}
        hidden: list[Value] = []
        inner = [(slot, v) for slot, v in node.operands.items() if slot not in ("h0", "c0", "x")]
        flipped = self.add("flip", {"axes": (along,)}, x=self.x) if any(self.ways) else self.x
        sequences = [self._given(flipped if back else self.x, "x") for back in self.ways]
        weights = {slot: self._given(value, slot) for slot, value in inner}
        for way, row in enumerate(states):
            gather: dict[str, Attr] = {"axis": along}
            given = {"x": sequences[way], "indices": index}
            entry = body.add("gather", given, gather, profile=node.profile).result
            after = put_step(body, node, weights, way, entry, row)
            for i, value in enumerate(after):
                outputs[f"s{way}{'' if i == 0 else f'.{i}'}"] = value
            hidden.append(after[0])
        for way, value in enumerate(hidden):
            outputs["y" if way == 0 else f"y.{way}"] = value
        body.add("output", outputs)
        body.prune()
        flat = [value for row in starts for value in row]
        operands = {"count": count, **{f"vs.{i}": v for i, v in enumerate(flat)}}
        operands |= {f"xs.{i}": v for i, v in enumerate(self.outside)}
        loop = self.graph.add(
            "loop",
            operands,
            name=self.graph.fresh(f"{node.name}.loop"),
            before=node,
            origins=node.origins,
            profile=node.profile,
            bodies={"body": body},
        )
        for part in loop.results[len(flat) :]:  # the count is the length of x
            shape = (self.x.type.shape[along], *part.type.shape[1:])
            self.graph.set_type(part, part.type.with_shape(shape))
        return self._stands(loop, len(starts[0]))

    def _given(self, value: Value, name: str) -> Value:
        """Returns a value from outside as the body has it."""
        body = self.body
        if (held := value.constant) is not None:
            return body.constant(Array(held.data, held.type), name=body.fresh(name))
        if value in self.outside:
            start = len(body.inputs) - len(self.outside)
            return body.inputs[start + self.outside.index(value)]
        self.outside.append(value)
        return body.add("input", types=[value.type], name=body.fresh(name)).result

    def _size(self, axis: int, name: str) -> Value:
        """Returns how long x is along an axis."""
        size = self.x.type.shape[axis]
        if isinstance(size, int):
            return self.held(np.asarray(size, np.int64), name)
        at = self.held(np.asarray(axis, np.int64), "axis")
        return self.add("gather", {"axis": 0}, x=self.add("shape", x=self.x), indices=at)

    def _starts(self, way: int) -> tuple[Value, ...]:
        """Returns the states before the first step of a direction."""
        node, batch = self.node, 0 if self.first else 1
        out = node.operands["r"].type.shape[2]
        found: list[Value] = []
        for slot, size in (("h0", out), ("c0", hidden_of(node)))[: 2 if node.op == "lstm" else 1]:
            if (given := node.operands.get(slot)) is not None:
                axis = 1 if self.first else 0
                if len(self.ways) > 1:
                    cut: dict[str, Attr] = {
                        "starts": (way,), "ends": (way + 1,), "axes": (axis,), "steps": (1,),
                    }  # fmt: skip
                    given = self.add("slice", cut, x=given)
                found.append(self.add("squeeze", {"axes": (axis,)}, x=given))
                continue
            kind, many = self.x.type.dtype, self.x.type.shape[batch]
            assert isinstance(size, int)
            if isinstance(many, int):
                found.append(self.held(np.zeros((many, size), kind.carrier), slot))
                continue
            rows = self.add("unsqueeze", {"axes": (0,)}, x=self._size(batch, "batch"))
            columns = self.held(np.asarray([size], np.int64), "size")
            shape = self.graph.add(
                "concat", {"xs.0": rows, "xs.1": columns}, {"axis": 0}, before=node
            ).result
            zero = Array(np.zeros(1, kind.carrier), TensorType((1,), kind))
            types = [TensorType((many, size), kind)]
            made = self.graph.add(
                "constant_of_shape", {"shape": shape}, {"value": zero}, types=types, before=node
            )
            found.append(made.result)
        return tuple(found)

    def _stands(self, loop: Node, each: int) -> dict[Value, Value]:
        """Returns what stands for the results of the layer that are used."""
        stands: dict[Value, Value] = {}
        count = len(self.ways)
        for i, result in enumerate(self.node.results):
            if not result.uses:
                continue
            if i:
                axis = 1 if self.first else 0
                parts = [loop.results[way * each + i - 1] for way in range(count)]
            else:
                axis = 2 if self.first else 1
                parts = [
                    self.add("flip", {"axes": (0,)}, x=part) if back else part
                    for part, back in zip(loop.results[count * each :], self.ways, strict=True)
                ]
                if self.first:
                    parts = [self.add("transpose", {"perm": (1, 0, 2)}, x=part) for part in parts]
            wide = [self.add("unsqueeze", {"axes": (axis,)}, x=part) for part in parts]
            operands = {f"xs.{n}": part for n, part in enumerate(wide)}
            stands[result] = (
                wide[0]
                if count == 1
                else self.graph.add("concat", operands, {"axis": axis}, before=self.node).result
            )
        return stands
