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
from qir.ir.ops.layers import RECURRENT_OPS
from qir.ir.ops.recurrent import DIRECTIONS
from qir.ir.types import Array, TensorType
from qir.ledger import Change, Ledger
from qir.passes.loops.unroll.layers import hidden_size, is_expressible, write_step
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
        layers = [node for node in graph if node.op in RECURRENT_OPS and self._fits(node)]
        for node in layers:
            replacements = _LayerLoop(graph, node).add_loop()
            renames = [(new, old.name, old.lineage) for old, new in replacements.items()]
            for old, new in replacements.items():
                graph.replace(old, new)
            name, op = node.name, node.op
            graph.remove(node)
            for new, old_name, lineage in renames:
                if not graph.has(old_name):
                    graph.rename(new, old_name)
                    graph.set_lineage(new, lineage)
            ledger.add(Change.REGROUPED, self.name, name, f"{op} becomes a loop")
        return len(layers)

    def _fits(self, node: Node) -> bool:
        if self.projected and "proj" not in node.operands:
            return False
        return is_expressible(node) and may(self.name, f"lower {node.op}", node)


class _LayerLoop:
    """Builds the loop in the place of one layer."""

    def __init__(self, graph: Graph, node: Node) -> None:
        self.graph, self.node = graph, node
        self.batch_first = node.attrs["batch_first"] is True
        self.directions = DIRECTIONS[str(node.attrs["direction"])]
        self.x = node.operands["x"]
        self.body = Graph("body", profile="")
        self.outside: list[Value] = []

    def add(self, op: str, attrs: dict[str, Attr] | None = None, **operands: Value) -> Value:
        """Adds an op before the layer."""
        node = self.node
        added = self.graph.add(
            op, operands, attrs, before=node, origins=node.origins, profile=node.profile
        )
        return added.result

    def add_constant(
        self, data: np.ndarray[tuple[int, ...], np.dtype[np.generic]], name: str
    ) -> Value:
        """Adds a constant before the layer."""
        fresh_name = self.graph.fresh(f"{self.node.name}.{name}")
        return self.graph.constant(data, name=fresh_name, before=self.node)

    def add_loop(self) -> dict[Value, Value]:
        """Adds the loop; gives what stands for each result that is used."""
        node, body, time_axis = self.node, self.body, 1 if self.batch_first else 0
        index = body.add("input", types=[TensorType((), I64)], name="round").result
        go = body.add("input", types=[TensorType((), BOOL)], name="go").result
        step_count = self._length_of_x(time_axis, "count")
        initial = [self._initial_states(direction) for direction in range(len(self.directions))]
        states = [
            tuple(
                body.add("input", types=[v.type], name=body.fresh(f"s{direction}")).result
                for v in row
            )
            for direction, row in enumerate(initial)
        ]
        outputs: dict[str, Value] = {"go": go}
        hidden: list[Value] = []
        parameters = [
            (slot, v) for slot, v in node.operands.items() if slot not in ("h0", "c0", "x")
        ]
        # The reverse direction reads a flipped sequence, so that both share one counter.
        flipped = (
            self.add("flip", {"axes": (time_axis,)}, x=self.x) if any(self.directions) else self.x
        )
        sequences = [
            self._in_body(flipped if is_reverse else self.x, "x") for is_reverse in self.directions
        ]
        weights = {slot: self._in_body(value, slot) for slot, value in parameters}
        for direction, row in enumerate(states):
            gather: dict[str, Attr] = {"axis": time_axis}
            gather_operands = {"x": sequences[direction], "indices": index}
            entry = body.add("gather", gather_operands, gather, profile=node.profile).result
            new_states = write_step(body, node, weights, direction, entry, row)
            for i, value in enumerate(new_states):
                outputs[f"s{direction}{'' if i == 0 else f'.{i}'}"] = value
            hidden.append(new_states[0])
        for direction, value in enumerate(hidden):
            outputs["y" if direction == 0 else f"y.{direction}"] = value
        body.add("output", outputs)
        body.prune()
        flat = [value for row in initial for value in row]
        operands = {"count": step_count, **{f"vs.{i}": v for i, v in enumerate(flat)}}
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
            shape = (self.x.type.shape[time_axis], *part.type.shape[1:])
            self.graph.set_type(part, part.type.with_shape(shape))
        return self._layer_results(loop, len(initial[0]))

    def _in_body(self, value: Value, name: str) -> Value:
        """Returns a value from outside as the body has it."""
        body = self.body
        if (constant := value.constant) is not None:
            # Copied into the body, where passes see its elements.
            return body.constant(Array(constant.data, constant.type), name=body.fresh(name))
        if value in self.outside:
            start = len(body.inputs) - len(self.outside)
            return body.inputs[start + self.outside.index(value)]
        self.outside.append(value)
        return body.add("input", types=[value.type], name=body.fresh(name)).result

    def _length_of_x(self, axis: int, name: str) -> Value:
        """Returns how long x is along an axis."""
        size = self.x.type.shape[axis]
        if isinstance(size, int):
            return self.add_constant(np.asarray(size, np.int64), name)
        axis_value = self.add_constant(np.asarray(axis, np.int64), "axis")
        return self.add("gather", {"axis": 0}, x=self.add("shape", x=self.x), indices=axis_value)

    def _initial_states(self, direction: int) -> tuple[Value, ...]:
        """Returns the states before the first step of a direction."""
        node, batch = self.node, 0 if self.batch_first else 1
        # With a projection the output state is smaller than the cell state.
        out = node.operands["r"].type.shape[2]
        states: list[Value] = []
        for slot, size in (("h0", out), ("c0", hidden_size(node)))[: 2 if node.op == "lstm" else 1]:
            if (initial := node.operands.get(slot)) is not None:
                axis = 1 if self.batch_first else 0
                if len(self.directions) > 1:
                    slice_attrs: dict[str, Attr] = {
                        "starts": (direction,),
                        "ends": (direction + 1,),
                        "axes": (axis,),
                        "steps": (1,),
                    }
                    initial = self.add("slice", slice_attrs, x=initial)
                states.append(self.add("squeeze", {"axes": (axis,)}, x=initial))
                continue
            dtype, batch_size = self.x.type.dtype, self.x.type.shape[batch]
            assert isinstance(size, int)
            if isinstance(batch_size, int):
                states.append(self.add_constant(np.zeros((batch_size, size), dtype.carrier), slot))
                continue
            # The batch size is known only at run time, so the zeros are made there.
            rows = self.add("unsqueeze", {"axes": (0,)}, x=self._length_of_x(batch, "batch"))
            columns = self.add_constant(np.asarray([size], np.int64), "size")
            shape = self.graph.add(
                "concat", {"xs.0": rows, "xs.1": columns}, {"axis": 0}, before=node
            ).result
            zero = Array(np.zeros(1, dtype.carrier), TensorType((1,), dtype))
            types = [TensorType((batch_size, size), dtype)]
            filled = self.graph.add(
                "constant_of_shape", {"shape": shape}, {"value": zero}, types=types, before=node
            )
            states.append(filled.result)
        return tuple(states)

    def _layer_results(self, loop: Node, states_per_direction: int) -> dict[Value, Value]:
        """Returns what stands for the results of the layer that are used."""
        replacements: dict[Value, Value] = {}
        count = len(self.directions)
        for i, result in enumerate(self.node.results):
            if not result.uses:
                continue
            if i:
                axis = 1 if self.batch_first else 0
                parts = [
                    loop.results[direction * states_per_direction + i - 1]
                    for direction in range(count)
                ]
            else:
                axis = 2 if self.batch_first else 1
                parts = [
                    # The loop stacks along a new first axis, these states from the end of the
                    # sequence on.
                    self.add("flip", {"axes": (0,)}, x=part) if is_reverse else part
                    for part, is_reverse in zip(
                        loop.results[count * states_per_direction :], self.directions, strict=True
                    )
                ]
                if self.batch_first:
                    parts = [self.add("transpose", {"perm": (1, 0, 2)}, x=part) for part in parts]
            expanded = [self.add("unsqueeze", {"axes": (axis,)}, x=part) for part in parts]
            operands = {f"xs.{index}": part for index, part in enumerate(expanded)}
            replacements[result] = (
                expanded[0]
                if count == 1
                else self.graph.add("concat", operands, {"axis": axis}, before=self.node).result
            )
        return replacements
