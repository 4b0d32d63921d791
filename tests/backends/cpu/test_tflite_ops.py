"""Steps by the rules of TensorFlow Lite's profiles give the reference's bytes, none in Python.

Each case is a graph with random types and sizes, which the interpreter runs too; what the
interpreter computes is compared with TensorFlow Lite itself in `tests/differential/tflite`.
"""

import numpy as np
import pytest

from .test_by_rule import Draw, check

XNNPACK, REFERENCE, LITERT = "tflite-2.21.xnnpack", "tflite-2.21.ref", "litert-2.3.xnnpack"
PROFILES = [XNNPACK, REFERENCE, LITERT]
STORAGES = ["i8", "u8"]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("op", ["reduce_mean", "reduce_sum"])
def test_means_and_sums(profile: str, storage: str, op: str) -> None:
    if op == "reduce_sum" and profile == REFERENCE and storage == "i8":
        pytest.skip("the runtime's kernel returns what is in memory")
    draw = Draw(profile)
    n, h, w, c = (int(v) for v in draw.rng.integers(1, 9, 4))
    c += int(draw.rng.integers(0, 100))
    for axes, shape in (
        ("(1, 2)", (n, 1, 1, c)), ("(2, 3)", (n, h, 1, 1)), ("(3,)", (n, h, w, 1)),
        ("(0, 1, 2, 3)", (1, 1, 1, 1)),
    ):  # fmt: skip
        out = "x".join(map(str, shape))
        text = f"""
        graph main as {profile} {{
          %x = input() : {n}x{h}x{w}x{c}x{draw.affine(storage=storage)}
          %y = {op}(%x) {{axes = {axes}}} : {out}x{draw.affine(storage=storage)}
          output(y=%y)
        }}
        """
        assert "lookup_sums" in check(draw, text, {"x": draw.integers((n, h, w, c), storage)})


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("tail", ["", " |> relu"])
def test_average_pools(profile: str, storage: str, layout: str, tail: str) -> None:
    draw = Draw(profile)
    rng, kind = draw.rng, draw.affine(storage=storage)
    n, c = int(rng.integers(1, 3)), int(rng.integers(1, 140))
    kernel, stride = rng.integers(1, 4, 2), rng.integers(1, 4, 2)
    size = kernel + rng.integers(0, 8, 2)
    before, after = rng.integers(0, kernel), rng.integers(0, kernel)
    out = (size + before + after - kernel) // stride + 1
    shapes = [(n, *s, c) if layout == "NHWC" else (n, c, *s) for s in (size, out)]
    given, made = ("x".join(map(str, shape)) for shape in shapes)
    pad = ", ".join(map(str, (*before, *after)))
    window, steps = (f"({a}, {b})" for a, b in (kernel, stride))
    text = f"""
    graph main as {profile} {{
      %x = input() : {given}x{kind}
      %y = avg_pool2d(%x) {{kernel = {window}, stride = {steps}, pad = ({pad}),
        layout = "{layout}"}}{tail} : {made}x{kind}
      output(y=%y)
    }}
    """
    shape = tuple(int(v) for v in shapes[0])
    assert "lookup_sums" in check(draw, text, {"x": draw.integers(shape, storage)})


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", [XNNPACK, LITERT])
def test_softmax(profile: str, storage: str) -> None:
    draw = Draw(profile)
    width = int(draw.rng.choice([1, 2, 10, 21, 100, 1001]))
    scale = float(np.float32(draw.rng.uniform(0.001, 0.5)))
    zero = -128 if storage == "i8" else 0
    text = f"""
    graph main as {profile} {{
      %x = input() : 5x{width}x!quant.uniform<{storage}:f32, {scale!r}:3>
      %y = softmax(%x) : 5x{width}x!quant.uniform<{storage}:f32, 0.00390625:{zero}>
      output(y=%y)
    }}
    """
    for ends in (False, True):
        x = draw.integers((5, width), storage)
        if ends:  # terms that are all alike, or nothing
            low = 99 if draw.rng.random() < 0.5 else 0
            x = np.where(x > 0, x.dtype.type(100), x.dtype.type(low))
        assert check(draw, text, {"x": x}) == ["softmax"]
