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


def quantized(graph: Graph, samples: Floats, **settings: str) -> tuple[Graph, Ledger]:
    ledger = Ledger()
    statistics = pipeline.calibrate(graph, samples)
    return pipeline.quantize(graph, statistics, ledger=ledger, **settings), ledger


def widened(ledger: Ledger) -> list[str]:
    return [entry.subject for entry in ledger if entry.step == "widen-outputs"]


def reach(graph: Graph, samples: Floats) -> tuple[float, float]:
    """The least and the largest result for samples far beyond what was calibrated."""
    far = np.concatenate([1000 * samples, -1000 * samples]).astype(np.float32)
    (out,) = qir.run(graph, {"x": far}).values()
    return float(out.min()), float(out.max())


OUTPUT = "  output(s=%s)\n"


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_scores_reach_beyond_what_was_seen(rows: int) -> None:
    samples = np.linspace(-2, 3, rows * CLASSES, dtype=np.float32).reshape(rows, CLASSES)
    made, ledger = quantized(classifier(OUTPUT), samples)
    plain, _ = quantized(classifier(OUTPUT), samples, corrections="none")
    low, high = reach(made, samples)
    step = 8 * 5 / 255  # the data of the layer are clipped where they were seen
    assert reach(plain, samples) == pytest.approx((-2, 3), abs=step)
    assert len(widened(ledger)) == 1
    # The layer's own data are clipped at -2 and 3, so no score is beyond them here.
    assert (low, high) == pytest.approx((-2, 3), abs=step)
    scales = [v.type.quant for n in made for v in n.results if v.type.quant and n.op == "quantize"]
    last = scales[-1]
    assert last is not None
    wanted = 5 * (1 + 2 * float(f"{0.5 / rows**0.5:.3g}")) / 255
    assert float(last.scales()) == pytest.approx(wanted, rel=1e-6)


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
        "  %w = constant([1.0, 0.6, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, -1.0, -1.0, 0.0, 0.0]) : 3x4xf32\n"
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
    summary.update(np.float32([-2, 3]))
    found = parse_rule("margin:0.5").range(summary)
    assert (float(found.low), float(found.high)) == (-4.5, 5.5)
    bounded = Summary()
    bounded.update(np.float32([0, 4]))
    found = parse_rule("margin:0.25").range(bounded)
    assert (float(found.low), float(found.high)) == (0.0, 5.0)
    largest = float(np.finfo(np.float32).max)
    bounded.update(np.float32([largest]))
    assert float(parse_rule("margin:1").range(bounded).high) == largest
    with pytest.raises(UsageError, match="margin:-1"):
        parse_rule("margin:-1")
