"""Steps by the rules of QNNPACK's profiles give the reference's bytes, none in Python."""

import pytest

from .test_by_rule import Draw, check

PROFILES = ["torch-2.13.qnnpack", "torch-2.15.qnnpack"]
FIXED = {"sigmoid": "0.00390625:0", "hard_sigmoid": "0.00390625:0", "tanh": "0.0078125:128"}
"""The quantized types of results of tables."""


@pytest.mark.parametrize("size", [1, 7, 64, 333])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("tail", ["", " |> relu"])
def test_sums_of_two_tensors_of_one_shape(profile: str, size: int, tail: str) -> None:
    draw = Draw(profile)
    text = f"""
    graph main as {profile} {{
      %a = input() : 3x{size}x{draw.affine()}
      %b = input() : 3x{size}x{draw.affine()}
      %y = add(%a, %b){tail} : 3x{size}x{draw.affine()}
      output(y=%y)
    }}
    """
    feed = {name: draw.integers((3, size)) for name in "ab"}
    assert check(draw, text, feed) in (["lookup_pairs"], ["whole_add"])


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("op", ["global_avg_pool", "avg_pool2d"])
@pytest.mark.parametrize("profile", PROFILES)
def test_means_of_images(profile: str, op: str, layout: str) -> None:
    draw = Draw(profile)
    kind, (n, c, h, w) = draw.affine(), (int(v) for v in draw.rng.integers(2, (3, 90, 9, 9)))
    window = "kernel = (2, 2), stride = (1, 1), " if op == "avg_pool2d" else ""
    size = (h - 1, w - 1) if op == "avg_pool2d" else (1, 1)
    shapes = [(n, *s, c) if layout == "NHWC" else (n, c, *s) for s in ((h, w), size)]
    given, made = ("x".join(map(str, shape)) for shape in shapes)
    text = f"""
    graph main as {profile} {{
      %x = input() : {given}x{kind}
      %y = {op}(%x) {{{window}layout = "{layout}"}} : {made}x{kind}
      output(y=%y)
    }}
    """
    assert "lookup_sums" in check(draw, text, {"x": draw.integers(shapes[0])})


@pytest.mark.parametrize("op", FIXED)
@pytest.mark.parametrize("profile", PROFILES)
def test_functions_by_tables(profile: str, op: str) -> None:
    draw = Draw(profile)
    slope = f" {{alpha = {1 / 6!r}}}" if op == "hard_sigmoid" else ""
    text = f"""
    graph main as {profile} {{
      %x = input() : 3x90x{draw.affine()}
      %y = {op}(%x){slope} : 3x90x!quant.uniform<u8:f32, {FIXED[op]}>
      output(y=%y)
    }}
    """
    assert check(draw, text, {"x": draw.integers((3, 90))}) == ["lookup"]
