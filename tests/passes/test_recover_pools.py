"""Means over all axes but batch and channels are global average pools."""

from __future__ import annotations

import numpy as np
import pytest

from qir import pipeline
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.recover import Recover
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from tests.passes.test_recover import ops

SHAPES = ((2, 3, 7), (2, 5, 4, 6), (1, 3, 2, 3, 4))


def text(shape: tuple[int, ...], axes: tuple[int, ...], keep: bool) -> str:
    gone = {axis % len(shape) for axis in axes} or set(range(len(shape)))
    left = [1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone]
    sizes = "".join(f"{d}x" for d in shape)
    made = "".join(f"{d}x" for d in left)
    told = ", ".join(map(str, axes)) + ("," if len(axes) == 1 else "")
    return (
        f"graph main {{\n  %x = input() : {sizes}f32\n  %y = reduce_mean(%x) "
        f"{{axes = ({told}), keep = {str(keep).lower()}}} : {made}f32\n  output(y=%y)\n}}"
    )


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("negative", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_mean_over_space_is_a_global_pool(
    shape: tuple[int, ...], negative: bool, keep: bool
) -> None:
    axes = tuple(range(2 - len(shape), 0) if negative else range(2, len(shape)))
    after = run_passes(parse(text(shape, axes, keep)), [Recover()], Ledger())
    assert ops(after) == (["global_avg_pool"] if keep else ["global_avg_pool", "squeeze"])
    x = np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)
    wanted = x.astype(np.float64).mean(axes, keepdims=keep)
    made = np.asarray(run(after, {"x": x})["y"], np.float64)
    np.testing.assert_allclose(made, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("shape", "axes"),
    [((2, 5, 4, 6), (3,)), ((2, 5, 4, 6), (1, 2)), ((2, 5, 4, 6), (1, 2, 3)), ((2, 5), (1,)),
     ((2, 5, 4, 6), ()), ((2, 5, 4, 6), (2,))],
)  # fmt: skip
def test_another_mean_is_none(shape: tuple[int, ...], axes: tuple[int, ...]) -> None:
    made = run_passes(parse(text(shape, axes, True)), [Recover()], Ledger())
    assert ops(made) == ["reduce_mean"]


def test_a_recovered_pool_is_planned_on_quantized_values() -> None:
    program = text((2, 5, 4, 6), (2, 3), True).replace(
        "%y = reduce_mean(%x)", "%y = reduce_mean(%d)"
    )
    held = {"w": np.ones((5, 5, 1, 1), np.float32)}
    conv = "%w = constant(@w) : 5x5x1x1xf32\n  %d = conv2d(%x, %w) : 2x5x4x6xf32\n  %y ="
    graph = parse(program.replace("%y =", conv, 1), held)
    planned = {d.op: d.becomes for d in pipeline.plan(graph).decisions}
    assert planned == {"conv2d": "integer", "global_avg_pool": "integer"}
