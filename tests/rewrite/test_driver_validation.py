"""Validation names the first tensor that moved further than its pass declares, and the rewrite."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from qir import pipeline
from qir.errors import MovedError, UsageError
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ir.text import parse
from qir.ir.types import Array
from qir.ledger import Ledger
from qir.passes.cleanup.prune import Prune
from qir.reference.interpreter import run
from qir.rewrite import ANOTHER, Pass, Tolerance, run_passes
from qir.rewrite.runner.bisection import Trial, bisect
from qir.rewrite.runner.filter import may
from qir.rewrite.runner.validation import Validation, float_distance

COUNT = 40
SEED = 7


def row(count: int = COUNT, op: str = "tanh") -> Graph:
    """x -> x * 1.5 -> tanh -> * 1.5 -> tanh ..."""
    lines = ["%x = input() : 3xf32", "%k = constant(1.5) : f32"]
    for i in range(count):
        lines.append(f"%m{i} = mul(%{f't{i - 1}' if i else 'x'}, %k) : 3xf32")
        lines.append(f"%t{i} = {op}(%m{i}) : 3xf32")
    return parse("graph main as native {\n" + "\n".join(lines) + f"\noutput(y=%t{count - 1})\n}}")


@dataclass(frozen=True)
class Scale(Pass):
    """Writes every product by a constant of its own: the same number, but at one node another."""

    name = "scale"
    wrong: str = ""
    by: float = 1.0

    def run(self, graph: Graph, ledger: Ledger) -> int:
        count = 0
        for node in list(graph):
            if node.op == "mul" and may(self.name, "scale", node):
                self.scale(graph, node)
                count += 1
        return count + (graph.prune() if count else 0)

    def scale(self, graph: Graph, node: Node) -> None:
        factor = 1.5 * (self.by if node.name == self.wrong else 1.0)
        own = graph.constant(
            Array.of(np.array(factor, np.float32)), name=f"{node.name}.k", before=node
        )
        graph.set_operand(node, "b", own)


def validation(graph: Graph, count: int = 2) -> Validation:
    rng = np.random.default_rng(SEED)
    samples = [{"x": rng.normal(0, 1, 3).astype(np.float32)} for _ in range(count)]
    return Validation(run, samples)


def validated(graph: Graph, *passes: Pass) -> Graph:
    return run_passes(graph, passes, Ledger(), validation=validation(graph))


def test_what_moves_nothing_goes_through() -> None:
    done = validated(row(), Scale(), Scale())
    assert sum(node.op == "constant" for node in done) == COUNT


@pytest.mark.parametrize("index", [0, 1, 17, COUNT - 1])
def test_the_first_tensor_that_moved_and_its_rewrite_are_named(index: int) -> None:
    graph = row()
    with pytest.raises(MovedError) as error:
        validated(graph, Scale(), Scale(wrong=f"m{index}", by=1.01))
    said = str(error.value)
    assert f"pass scale: %m{index} moved by" in said
    assert f"by rewrite scale at m{index}, number {index + 1} of {COUNT}" in said
    assert "it declares exact" in said
    assert any(line.startswith(f"-> %m{index} ") for line in error.value.__notes__[0].splitlines())
    assert graph == row()


def test_a_tensor_may_move_as_far_as_the_pass_declares_and_no_further() -> None:
    @dataclass(frozen=True)
    class Loose(Scale):
        tolerance: ClassVar[Tolerance] = Tolerance(ulps=100)

    eps = float(np.finfo(np.float32).eps)
    validated(row(), Loose("m3", 1 + 90 * eps))
    with pytest.raises(MovedError, match=r"%m3 moved by .* 12\d ulp of its largest.*100 ulp"):
        validated(row(), Loose("m3", 1 + 125 * eps))


def test_a_pass_that_is_asked_to_change_the_meaning_is_not_compared() -> None:
    @dataclass(frozen=True)
    class Another(Scale):
        tolerance: ClassVar[Tolerance] = ANOTHER

    validated(row(), Another("m3", 2.0))


def test_many_small_moves_are_each_measured_by_themselves() -> None:
    """Each of 40 products moves by as much as it may: what stands behind them is not blamed."""

    @dataclass(frozen=True)
    class Drift(Scale):
        tolerance: ClassVar[Tolerance] = Tolerance(ulps=100)

        def scale(self, graph: Graph, node: Node) -> None:
            factor = np.array(1.5 * (1 + 90 * float(np.finfo(np.float32).eps)), np.float32)
            own = graph.constant(Array.of(factor), name=f"{node.name}.k", before=node)
            graph.set_operand(node, "b", own)

    graph = row(op="abs")
    done = validated(graph, Drift())
    inputs = validation(graph).samples[0]
    before, after = (run(g, inputs)["y"] for g in (graph, done))
    assert float_distance(before, after, 100), "free runs of the two drift apart"


def test_integers_are_measured_in_steps_and_an_output_by_its_name() -> None:
    text = """graph main as native {
      %x = input() : 3xf32
      %h = mul(%x, %k) : 3xf32
      %q = quantize(%h) : 3x!quant.uniform<u8:f32, 0.05:128>
      output(y=%q)
    }"""
    graph = parse(text.replace("%h = mul", "%k = constant(1.5) : f32\n%h = mul"))

    @dataclass(frozen=True)
    class Skip(Pass):
        """Quantizes what is not yet multiplied: the result has another value's name."""

        name = "skip"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            made: Value = graph.add(
                "quantize", {"x": graph["x"]}, types=[graph["q"].type], name="other"
            ).result
            graph.replace(graph["q"], made)
            return 1 + graph.prune()

    with pytest.raises(MovedError, match=r"pass skip: %y moved by \d+ steps: \d+ -> \d+ at"):
        validated(graph, Skip())


def test_a_name_that_only_says_the_op_is_not_taken_for_the_same_tensor() -> None:
    text = """graph main as native {
      %x = input() : 3xf32
      %relu = relu(%x) : 3xf32
      %y = abs(%relu) : 3xf32
      output(y=%y)
    }"""

    @dataclass(frozen=True)
    class Turn(Pass):
        """relu(x) stands behind neg now, under the name that it had."""

        name = "turn"

        def run(self, graph: Graph, ledger: Ledger) -> int:
            x, y = graph["x"], graph["y"].node
            graph.set_operand(y, "x", x)
            graph.prune()
            turned = graph.add("neg", {"x": x}, before=y).result
            back = graph.add("relu", {"x": turned}, before=y).result
            minus = graph.add("sub", {"a": x, "b": back}, before=y)
            again = graph.add("add", {"a": minus.result, "b": back}, before=y)
            kept = graph.add("relu", {"x": again.result}, before=y)
            graph.set_operand(y, "x", kept.result)
            return 1

    done = run_passes(parse(text), [Turn()], Ledger())
    assert done["relu"].node.operands["x"].node.op == "neg"
    validated(parse(text), Turn())


def test_a_new_node_that_takes_over_a_name_alone_is_the_same_tensor() -> None:
    @dataclass(frozen=True)
    class Doubled(Scale):
        def scale(self, graph: Graph, node: Node) -> None:
            twice = graph.add(
                "add", {"a": node.operands["a"], "b": node.operands["a"]}, before=node
            )
            name = node.name
            graph.replace(node.result, twice.result)
            graph.remove(node)
            graph.rename(twice.result, name)

    with pytest.raises(MovedError, match=r"%m0 moved by .* by rewrite scale at m0, number 1 of"):
        validated(row(), Doubled())


@pytest.mark.parametrize(
    ("old", "new", "ulps", "far"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0, False),
        ([np.nan, np.inf, -np.inf], [np.nan, np.inf, -np.inf], 0, False),
        ([1.0], [np.nan], 1e6, True),
        ([np.inf], [1.0], 1e6, True),
        ([1.0, 1024.0], [1.0 + 2**-13, 1024.0], 1, False),  # a unit of the largest
        ([1.0, 1024.0], [1.0 + 2**-12, 1024.0], 1, True),
        ([0.0], [1e-30], 1e6, True),  # the largest is 0
    ],
)
def test_floats_move_by_units_of_the_largest(
    old: list[float], new: list[float], ulps: float, far: bool
) -> None:
    a, b = np.array(old, np.float32), np.array(new, np.float32)
    assert bool(float_distance(a, b, ulps)) == far


def test_validation_of_quantizing_passes_on_random_graphs() -> None:
    """Our own passes move generated graphs no further than they declare."""
    from qir.testing import random_graph, sample_inputs

    for seed in range(6):
        graph = random_graph(seed, ("float", "qdq", "integer")[seed % 3])
        samples = [sample_inputs(graph, seed)]
        text = "prune; fold-constants; fold-batch-norm; turn-sums; fuse-qdq; expand-qdq"
        pipeline.optimize(graph, text, samples=samples)


def test_a_pass_whose_count_is_fixed_is_blamed_for_the_rewrite_that_moved_a_tensor() -> None:
    """Cut short in the search it reports what it always does; that is no move of numbers."""

    @dataclass(frozen=True)
    class Fixed(Scale):
        def run(self, graph: Graph, ledger: Ledger) -> int:
            super().run(graph, ledger)
            return COUNT

    with pytest.raises(MovedError) as error:
        validated(row(), Fixed("m7", 2.0))
    said = str(error.value)
    assert "pass scale: %m7 moved by" in said
    assert f"by rewrite scale at m7, number 8 of {COUNT}" in said
    assert f"of its rewrites it reports {COUNT} changes" in said


# -- bisecting -----------------------------------------------------------------------------------


def judged(graph: Graph) -> bool:
    """Good while every product is by 1.5, an oracle that knows nothing of passes."""
    factors = [n.operands["b"].constant for n in graph if n.op == "mul"]
    return all(float(f.data) == 1.5 for f in factors if f is not None)


def test_bisecting_finds_pass_and_rewrite_in_few_trials() -> None:
    pick = random.Random(SEED)
    for _ in range(3):
        index, bad = pick.randrange(COUNT), pick.randrange(4)
        passes = [*[Scale()] * bad, Scale(f"m{index}", 2.0), *[Prune()] * (3 - bad)]
        trials: list[Trial] = []
        found = bisect(row(), passes, judged, tell=trials.append)
        assert found is not None, f"seed {SEED}"
        assert (found.index, found.step.node) == (bad, f"m{index}")
        assert (found.step.number, found.rewrites) == (index + 1, COUNT)
        assert found.text == f"scale{{wrong=m{index}, by=2.0}}"
        assert len(trials) <= 2 + 2 + 6 + 2


def test_bisecting_says_that_nothing_is_bad_or_that_all_is() -> None:
    assert bisect(row(), [Scale(), Scale()], judged) is None
    assert bisect(row(), [], judged) is None
    with pytest.raises(UsageError, match="fails before any pass has run"):
        bisect(row(), [Scale()], lambda graph: False)


def test_a_check_may_answer_by_a_boolean_of_numpy() -> None:
    found = bisect(row(), [Scale("m7", 2.0)], lambda graph: np.bool_(judged(graph)))  # type: ignore[arg-type, return-value]
    assert found is not None
    assert found.step.node == "m7"


def test_a_check_that_is_not_steady_is_found_out() -> None:
    """What was found is judged once more, and a pass that does nothing cannot be to blame."""
    passes = [Scale(), Scale("m7", 2.0), Prune()]
    trials: list[Trial] = []
    assert bisect(row(), passes, judged, tell=trials.append) is not None
    for flipped in (len(trials) - 2, len(trials) - 1):
        turn = iter(range(100))

        def good(graph: Graph, turn: Iterator[int] = turn, flipped: int = flipped) -> bool:
            return judged(graph) != (next(turn) == flipped)

        with pytest.raises(UsageError, match=r"the check is not steady.* of scale were said to be"):
            bisect(row(), passes, good)
    calls = iter([True, False])
    with pytest.raises(UsageError, match="prune changes nothing, and was said to make it bad"):
        bisect(row(), [Prune()], lambda graph: next(calls))
