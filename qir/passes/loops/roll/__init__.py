"""Rewrites repeated steps as a scan, and scans of a known cell as a recurrent layer.

    graph main as native {
      %x = input() : 3x2xf32
      %h = input() : 2xf32
      %i0 = constant(0) : i64
      %i1 = constant(1) : i64
      %i2 = constant(2) : i64
      %x0 = gather(%x, %i0) : 2xf32
      %x1 = gather(%x, %i1) : 2xf32
      %x2 = gather(%x, %i2) : 2xf32
      %h1 = add(%h, %x0) : 2xf32
      %h2 = add(%h1, %x1) : 2xf32
      %y = add(%h2, %x2) : 2xf32
      output(y=%y)
    }

By `roll` it becomes:

    graph main as native {
      %x = input() : 3x2xf32
      %h = input() : 2xf32
      %y = scan(ss.0=%x, vs.0=%h) {axes = (0,), reverse = (0,)} : 2xf32 with body {
        %v0 = input() : 2xf32
        %s0 = input() : 2xf32
        %y = add(%v0, %s0) : 2xf32
        output(v0=%y)
      }
      output(y=%y)
    }
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ir.text import parse
from qir.ledger import Change, Ledger
from qir.passes.loops.roll.layers import find_layers
from qir.passes.loops.roll.steps import RepeatedSteps, Row, add_scan, last_rows, sequences
from qir.rewrite.runner.contract import Pass
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.tolerance import REGROUPED


@dataclass(frozen=True)
class Roll(Pass):
    """Rewrites equal steps along a sequence as a scan; a scan of a known cell as rnn, lstm or gru.

    Steps become a scan, whose numbers stay to the bit, where

    - each reads its own entry of a sequence, all entries are read, forwards or backwards;
    - all are the same ops with the same attributes, types and profile, on the same values from
      outside or equal constants, on entries of sequences, and on what the step before made;
    - something is handed on from step to step; the first one takes a value of the same type;
    - what others read of them is one value of every step, stacked by a concat in their order or
      turned round, or what the last step hands on.

    A scan becomes a layer where its body is exactly the cell, with sigmoid and tanh (or relu for
    rnn), its weights are constants, and its sequence and stack lie along the first axis or the
    second; sums are then rounded elsewhere. So does a loop that reads one entry of a sequence in
    every round; several cells one on another become several layers. An lstm may have peepholes and
    a projection. `layers=false` leaves scans and loops, `steps=false` steps.

    A first step of which somebody has left constants is one too, where they are to the bit what its
    ops make of the state that it begins with: the one that is said, or zeros.
    """

    name = "roll"
    tolerance = REGROUPED
    layers: bool = True
    steps: bool = True
    least: int = 2

    @classmethod
    def samples(cls) -> Iterable[tuple[Pass, Graph]]:
        """Two steps of a sum along a sequence."""
        text = (
            "graph main as native {\n  %x = input() : 2x1x3xf32\n  %h = input() : 1x3xf32\n"
            "  %zero = constant(0) : i64\n  %one = constant(1) : i64\n"
            "  %a = gather(%x, %zero) : 1x3xf32\n  %b = gather(%x, %one) : 1x3xf32\n"
            "  %c = add(%a, %h) : 1x3xf32\n  %d = tanh(%c) : 1x3xf32\n"
            "  %e = add(%b, %d) : 1x3xf32\n  %y = tanh(%e) : 1x3xf32\n  output(y=%y)\n}\n"
        )
        yield cls(), parse(text)

    def __post_init__(self) -> None:
        self.require_least(least=2)

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        if self.steps:
            count = sum(self._roll(graph, group, ledger) for group in list(sequences(graph)))
        # After the steps: a scan that was just made may be a layer.
        if self.layers:
            count += sum(self._recover_layers(graph, node, ledger) for node in list(graph))
        return count + (graph.prune() if count else 0)

    def _roll(self, graph: Graph, entries: Row, ledger: Ledger) -> int:
        """Rolls steps that read a sequence, forwards and then backwards; returns how many times."""
        count = 0
        # Backwards too, for the second direction of a bidirectional layer.
        for ordered in (entries, entries[::-1]):
            steps = self._find_steps(graph, ordered) if len(ordered) >= self.least else None
            while steps is not None:
                last = steps.first[-1]
                name = last.name
                if not may(self.name, "roll", last.node):
                    break
                scan = add_scan(graph, steps)
                message = f"{len(ordered)} equal steps are a scan"
                ledger.add(Change.EXACT, self.name, name, message)
                count += 1
                graph.prune()
                # Several layers may read one sequence; with an entry gone or unused no other one
                # does.
                is_complete = all(value.node in graph and value.uses for value in ordered)
                steps = self._find_steps(graph, ordered) if is_complete and scan.used else None
        return count

    @staticmethod
    def _find_steps(graph: Graph, entries: Row) -> RepeatedSteps | None:
        if any(value.node not in graph for value in entries):
            return None
        for row in last_rows(entries):
            steps = RepeatedSteps(graph)
            if steps.trace(row) and steps.carried and steps.find_stacks():
                return steps
        return None

    def _recover_layers(self, graph: Graph, node: Node, ledger: Ledger) -> bool:
        if node not in graph or node.op not in ("scan", "loop"):
            return False
        layers = find_layers(graph, node)
        if layers is None or not may(self.name, f"recover {layers.description}", node):
            return False
        name, op = node.name, node.op
        replacements = layers.add_layers(graph)
        renames = [(new, old.name, old.lineage) for old, new in replacements.items()]
        for old, new in replacements.items():
            graph.replace(old, new)
        graph.remove(node)
        for new, old_name, lineage in renames:
            if not graph.has(old_name):
                graph.rename(new, old_name)
                graph.set_lineage(new, lineage)
        ledger.add(Change.REGROUPED, self.name, name, f"the {op} is {layers.description}")
        return True
