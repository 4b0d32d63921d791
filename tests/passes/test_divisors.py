"""Divisors that 8 bits would make 0 stay float; others are integer as before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qir import pipeline
from qir.analysis.sensitive_values import sensitive_values
from qir.ir.graph import Graph
from qir.ir.text import parse

SHAPE, PART = "2x4x8x8xf32", "2x4x8x1xf32"
LAST = "{starts = (-1,), ends = (8,), axes = (3,), steps = (1,)}"


def attention(tiny: float) -> Graph:
    """Returns the end of a linear attention: all columns over the last one."""
    return parse(
        f"""graph main {{
  %a = input() : {SHAPE}
  %b = input() : {SHAPE}
  %tiny = constant({tiny!r}) : f32
  %n = relu(%a) : {SHAPE}
  %r = relu(%b) : {SHAPE}
  %d = slice(%r) {LAST} : {PART}
  %e = add(%d, %tiny) : {PART}
  %y = div(%n, %e) : {SHAPE}
  output(y=%y)
}}"""
    )


def samples(seed: int, least: float = 1e-3) -> dict[str, np.ndarray]:
    """Returns data whose divisors are up to 1, many of them below half a step of that."""
    rng = np.random.default_rng(seed)
    b = 10 ** rng.uniform(np.log10(least), 0, (2, 4, 8, 8))
    b[0, 0, 0, -1], b[0, 0, 1, -1] = 1, least
    return {"a": rng.normal(size=b.shape).astype(np.float32), "b": b.astype(np.float32)}


@pytest.mark.parametrize("target", ["onnxruntime", "pytorch-x86"])
@pytest.mark.parametrize("seed", range(3))
def test_small_divisors_give_what_float_gives(seed: int, target: str, tmp_path: Path) -> None:
    graph, data = attention(1e-15), samples(seed)
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [data]), target=target)
    if target == "onnxruntime":
        import onnxruntime

        pipeline.save(made, tmp_path / "y.onnx", target=target)
        (found,) = onnxruntime.InferenceSession(tmp_path / "y.onnx").run(None, data)
    else:
        import torch

        pipeline.save(made, tmp_path / "y.pt", target=target)
        tensors = map(torch.from_numpy, data.values())
        load: Callable[[Path], Callable[..., torch.Tensor]] = torch.jit.load
        found = load(tmp_path / "y.pt")(*tensors).numpy()
    wanted = np.maximum(data["a"], 0) / (data["b"][..., -1:] + np.float32(1e-15))
    assert np.isfinite(found).all(), f"seed {seed}"
    np.testing.assert_allclose(found, wanted, rtol=0, atol=wanted.max() / 100)


def test_the_plan_says_why_and_data_decide() -> None:
    graph = attention(1e-15)
    found = {d.node: d for d in pipeline.plan(graph).decisions}
    why = "it makes or reads what feeds a divisor near 0: few bits are too coarse for that"
    assert {n: found[n].reason for n in ("d", "e")} == {"d": why, "e": why}
    for least, becomes in ((1e-3, "float"), (0.5, "integer")):
        statistics = pipeline.calibrate(graph, [samples(0, least)])
        by_data = {d.node: d for d in pipeline.plan(graph, statistics=statistics).decisions}
        assert by_data["e"].becomes == becomes
        made = pipeline.quantize(graph, statistics)
        assert any(v.name.startswith("e.q") for v in made.values.values()) == (least == 0.5)


def test_a_divisor_far_from_0_stays_integer() -> None:
    graph = attention(1.0)
    assert not sensitive_values(graph)
    statistics = pipeline.calibrate(graph, [samples(0)])
    for given in (None, statistics):
        found = {d.node: d for d in pipeline.plan(graph, statistics=given).decisions}
        assert found["e"].becomes == "integer"


def test_data_show_a_divisor_near_0_that_the_ops_do_not() -> None:
    text = str(attention(0.002)).replace("relu(%b)", "neg(%b)")
    assert not sensitive_values(parse(text))
    graph, data = parse(text), samples(0)
    statistics = pipeline.calibrate(graph, [data])
    found = {d.node: d for d in pipeline.plan(graph, statistics=statistics).decisions}
    assert found["e"].becomes == "float"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("reciprocal(%s)", "reciprocal of numbers near 0"),
        ("log(%s)", "log of numbers near 0"),
        ("rsqrt(%s)", "rsqrt of numbers near 0"),
        ("pow(%s, %least)", "pow of numbers near 0"),
        ("pow(%s, %two)", ""),
        ("div(%s, %two)", ""),
        ("mul(%s, %x)", ""),
    ],
)
@pytest.mark.parametrize("made_by", ["sigmoid(%x)", "add(%x, %tiny)", "clip(%x) {min = 0.00001}"])
def test_like_ops_count_too(line: str, said: str, made_by: str) -> None:
    graph = parse(
        f"graph main {{\n  %x = input() : 4xf32\n  %least = constant(-1.0) : f32\n"
        f"  %two = constant(2.0) : f32\n  %tiny = constant(0.00001) : f32\n"
        f"  %s = {made_by} : 4xf32\n  %y = {line} : 4xf32\n  output(y=%y)\n}}"
    )
    wanted = {"s": f"feeds {said}"} if said else {}
    assert {v.name: said for v, said in sensitive_values(graph).items() if v.name != "x"} == wanted
