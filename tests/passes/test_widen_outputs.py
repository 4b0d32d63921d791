"""Scores of which few samples were seen get a wider range; all else keeps its own."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir import pipeline
from qir.calibration import parse_rule
from qir.calibration.summary import Summary
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger

Floats = NDArray[np.float32]
CLASSES = 4


def classifier(tail: str, *, relu: bool = False) -> Graph:
    """A linear layer that repeats its input as scores, and what follows it."""
    w = ", ".join("1.0" if i == j else "0.0" for i in range(CLASSES) for j in range(CLASSES))
    last = f"  %s = {'relu(%y)' if relu else 'identity(%y)'} : (N)x4xf32\n"
    return parse(
        "graph main {\n  %x = input() : (N)x4xf32\n"
        f"  %w = constant([{w}]) : 4x4xf32\n  %y = linear(%x, %w) : (N)x4xf32\n"
        f"{last}{tail}}}\n"
    )


def quantized(
    graph: Graph, samples: Floats, *, corrections: str = "default", range_rule: str = "minmax"
) -> tuple[Graph, Ledger]:
    ledger = Ledger()
    statistics = pipeline.calibrate(graph, samples)
    made = pipeline.quantize(
        graph, statistics, ledger=ledger, corrections=corrections, range_rule=range_rule
    )
    return made, ledger


def widened(ledger: Ledger) -> list[str]:
    return [entry.subject for entry in ledger if entry.step == "widen-outputs"]


OUTPUT = "  output(s=%s)\n"


def result_span(graph: Graph) -> float:
    """The span of the range that the integers of the result cover."""
    *_, last = (n.result.type.quant for n in graph if n.op == "quantize")
    assert last is not None
    return float(last.scales()) * 255


@pytest.mark.parametrize(("rows", "span"), [(1, 10), (4, 7.5), (16, 6.25)])
def test_the_range_of_scores_exceeds_what_was_seen(rows: int, span: float) -> None:
    samples = np.linspace(-2, 3, rows * CLASSES, dtype=np.float32).reshape(rows, CLASSES)
    plain, silent = quantized(classifier(OUTPUT), samples, corrections="none")
    assert result_span(plain) == pytest.approx(5, rel=1e-6)
    assert widened(silent) == []
    made, ledger = quantized(classifier(OUTPUT), samples)
    assert result_span(made) == pytest.approx(span, rel=1e-6)
    assert len(widened(ledger)) == 1


def test_the_bounds_of_a_clip_stay() -> None:
    graph = classifier("  %c = clip(%s) {min = 0.0, max = 6.0} : (N)x4xf32\n  output(c=%c)\n")
    samples = np.linspace(-2, 9, 2 * CLASSES, dtype=np.float32).reshape(2, CLASSES)
    assert widened(quantized(graph, samples)[1]) == []


def test_many_rows_are_trusted() -> None:
    samples = np.linspace(-2, 3, 300 * CLASSES, dtype=np.float32).reshape(300, CLASSES)
    assert widened(quantized(classifier(OUTPUT), samples)[1]) == []


def test_the_bound_of_a_relu_stays() -> None:
    samples = np.linspace(-2, 3, 2 * CLASSES, dtype=np.float32).reshape(2, CLASSES)
    made, ledger = quantized(classifier(OUTPUT, relu=True), samples)
    assert len(widened(ledger)) == 1
    (value,) = (n.operands["s"] for n in made if n.op == "output")
    quant = value.node.operands["x"].type.quant
    assert quant is not None
    assert int(quant.zeros()) == 0


def test_scores_before_a_softmax_are_found() -> None:
    samples = np.linspace(-2, 3, 2 * CLASSES, dtype=np.float32).reshape(2, CLASSES)
    tail = "  %p = softmax(%s) : (N)x4xf32\n  output(p=%p)\n"
    assert len(widened(quantized(classifier(tail), samples)[1])) == 1


def test_images_keep_their_ranges() -> None:
    graph = parse(
        "graph main {\n  %x = input() : (N)x1x32x32xf32\n  %w = constant([0.5]) : 1x1x1x1xf32\n"
        "  %y = conv2d(%x, %w) : (N)x1x32x32xf32\n  output(y=%y)\n}\n"
    )
    samples = np.linspace(-2, 3, 9 * 1024, dtype=np.float32).reshape(9, 1, 32, 32)
    assert widened(quantized(graph, samples)[1]) == []


def test_another_range_rule_stays() -> None:
    samples = np.linspace(-2, 3, 2 * CLASSES, dtype=np.float32).reshape(2, CLASSES)
    assert widened(quantized(classifier(OUTPUT), samples, range_rule="mse")[1]) == []


def test_the_answer_of_another_sample_is_kept() -> None:
    """The best two scores of other samples lie beyond those that were seen, and clip to a tie."""
    text = (
        "graph main {\n  %x = input() : (N)x4xf32\n"
        "  %w = constant([1.0, 0.6, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0])"
        " : 3x4xf32\n"
        "  %y = linear(%x, %w) : (N)x3xf32\n  output(y=%y)\n}\n"
    )
    graph = parse(text)
    samples = np.array([[1, 0, -1, 0]], np.float32)
    others = np.array([[1, 0.9, 0, 0], [0.8, 1, 0, 0], [1, 0.6, 1, -1]], np.float32)
    right = {}
    for corrections in ("none", "widen-outputs"):
        made, _ = quantized(graph, samples, corrections=corrections)
        (out,) = qir.run(made, {"x": others}).values()
        right[corrections] = int((out.argmax(1) == 1).sum())
    assert right == {"none": 0, "widen-outputs": len(others)}


def test_margin_moves_both_ends_but_zero() -> None:
    summary = Summary()
    summary.update(np.array([-2, 3], np.float32))
    found = parse_rule("margin:0.5").range(summary)
    assert (float(found.low), float(found.high)) == (-4.5, 5.5)
    bounded = Summary()
    bounded.update(np.array([0, 4], np.float32))
    found = parse_rule("margin:0.25").range(bounded)
    assert (float(found.low), float(found.high)) == (0.0, 5.0)
    largest = float(np.finfo(np.float32).max)
    bounded.update(np.array([largest], np.float32))
    assert float(parse_rule("margin:1").range(bounded).high) == largest
    with pytest.raises(UsageError, match="margin:-1"):
        parse_rule("margin:-1")
