"""Steps by the rules of TensorFlow Lite's profiles give the reference's bytes, none in Python.

Each case is a graph with random types and sizes, which the interpreter runs too; what the
interpreter computes is compared with TensorFlow Lite itself in `tests/differential/tflite`.
"""

import numpy as np
import pytest

from .test_by_rule import Draw, check

XNNPACK, REFERENCE, LITERT = "tflite-2.21.xnnpack", "tflite-2.21.ref", "litert-2.3.xnnpack"
SINGLE = "tflite-2.21.single"
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
            x = np.where(x.astype(int) > 0, 100, low).astype(x.dtype)
        assert check(draw, text, {"x": x}) == ["softmax"]


@pytest.mark.parametrize(("of", "to"), [("i8", "i8"), ("u8", "u8"), ("u8", "i8"), ("i8", "u8")])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("size", [1, 15, 333])
def test_requantized_values(profile: str, of: str, to: str, size: int) -> None:
    draw = Draw(profile)
    text = f"""
    graph main as {profile} {{
      %x = input() : 3x{size}x{draw.affine(storage=of)}
      %y = requantize(%x) : 3x{size}x{draw.affine(storage=to)}
      output(y=%y)
    }}
    """
    assert len(check(draw, text, {"x": draw.integers((3, size), of)})) == 1


@pytest.mark.parametrize("depthwise", [False, True])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", [*PROFILES, SINGLE])
def test_convolutions_by_31_bit_multipliers(profile: str, storage: str, depthwise: bool) -> None:
    draw = Draw(profile)
    pick = draw.rng.integers
    channels = int(pick(2, 140)) if depthwise else int(pick(1, 40))
    out = channels if depthwise else int(pick(1, 80))
    size, kernel = int(pick(3, 12)), int(pick(1, 4))
    w = draw.rng.integers(0, 256, (out, 1 if depthwise else channels, kernel, kernel))
    low = 0 if storage == "u8" else -128
    draw.arrays["w"] = (w + low).clip(-127, 255).astype(np.uint8 if low == 0 else np.int8)
    draw.arrays["b"] = pick(-9000, 9000, out).astype(np.int32)
    xs, ws, ys = (float(np.float32(draw.rng.uniform(*ends))) for ends in SCALES)
    zero, xz = (int(pick(1, 255)) if storage == "u8" else 0), int(pick(0, 256)) + low
    shape = "x".join(map(str, w.shape))
    side = size - kernel + 3
    text = f"""
    graph main as {profile} {{
      %x = input() : 2x{channels}x{size}x{size}x!quant.uniform<{storage}:f32, {xs!r}:{xz}>
      %w = constant(@w) : {shape}x!quant.uniform<{storage}:f32, {ws!r}:{zero}>
      %b = constant(@b) : {out}x!quant.uniform<i32:f32, {float(np.float32(xs) * np.float32(ws))!r}>
      %y = conv2d(%x, %w, bias=%b) {{pad = (1, 1, 1, 1), groups = {channels if depthwise else 1}}}
        |> relu : 2x{out}x{side}x{side}x!quant.uniform<{storage}:f32, {ys!r}:{low + 9}>
      output(y=%y)
    }}
    """
    kinds = check(draw, text, {"x": draw.integers((2, channels, size, size), storage)})
    assert "depthwise" in kinds if depthwise else "conv2d" in kinds


SCALES = ((0.01, 0.1), (0.002, 0.02), (0.02, 0.5))
"""Of data, weights and results."""


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", [*PROFILES, SINGLE, f"{XNNPACK}.open"])
@pytest.mark.parametrize("seed", range(4))
def test_transposed_convolutions(profile: str, storage: str, seed: int) -> None:
    draw = Draw(profile)
    pick = draw.rng.integers
    n, channels, out = (int(v) for v in pick(1, (3, 40, 60)))
    kernel, stride = pick(1, 5, 2), pick(1, 4, 2)
    size, more = pick(1, 9, 2), pick(0, 2, 2) * (stride > 1)
    pad = pick(0, kernel, 2), pick(0, kernel, 2)
    full = (size - 1) * stride + kernel - pad[0] - pad[1] + more
    if full.min() < 1:
        pad, full = (0 * kernel, 0 * kernel), (size - 1) * stride + kernel + more
    low = 0 if storage == "u8" else -128
    per_channel = storage == "i8" and bool(pick(2))
    w = pick(low + 1, low + 256, (channels, out, *kernel))
    draw.arrays["w"] = w.astype(np.uint8 if low == 0 else np.int8)
    draw.arrays["b"] = pick(-3000, 3000, out).astype(np.int32)
    xs, ws, ys = (float(np.float32(draw.rng.uniform(*ends))) for ends in SCALES)
    scales = draw.rng.uniform(0.002, 0.02, out).astype(np.float32)
    of_w, of_b = f":f32, {ws!r}:{128 + low}", f":f32, {float(np.float32(xs) * np.float32(ws))!r}"
    if per_channel:
        draw.arrays["w.scale"], draw.arrays["b.scale"] = scales, np.float32(xs) * scales
        of_w, of_b = ":f32:1, @w.scale", ":f32:0, @b.scale"
    pads = ", ".join(map(str, (*pad[0], *pad[1])))
    of_x = f"{storage}:f32, {xs!r}:{low + 77}"
    text = f"""
    graph main as {profile} {{
      %x = input() : {n}x{channels}x{size[0]}x{size[1]}x!quant.uniform<{of_x}>
      %w = constant(@w) : {channels}x{out}x{kernel[0]}x{kernel[1]}x!quant.uniform<{storage}{of_w}>
      %b = constant(@b) : {out}x!quant.uniform<i32{of_b}>
      %y = conv_transpose2d(%x, %w, bias=%b) {{stride = ({stride[0]}, {stride[1]}), pad = ({pads}),
        output_pad = ({more[0]}, {more[1]})}}
        : {n}x{out}x{full[0]}x{full[1]}x!quant.uniform<{storage}:f32, {ys!r}:{low + 99}>
      output(y=%y)
    }}
    """
    shape = n, channels, int(size[0]), int(size[1])
    in_vectors = n * out * int(full.prod()) % 16 == 0
    if profile not in (REFERENCE, SINGLE) and storage == "u8" and more.any() and not in_vectors:
        pytest.skip("the last sums fill no vector")
    assert "conv2d" in check(draw, text, {"x": draw.integers(shape, storage)})


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", [XNNPACK, REFERENCE, LITERT])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
@pytest.mark.parametrize("axes", ["(1, 2)", "(2, 3)"])
def test_bilinear_resizes(profile: str, storage: str, coordinates: str, axes: str) -> None:
    if profile == REFERENCE and storage == "u8":
        pytest.skip("it is computed in float32")
    draw = Draw(profile)
    kind = draw.affine(storage=storage)
    n, c, h, w, oh, ow = (int(v) for v in draw.rng.integers(1, (3, 90, 9, 9, 20, 20)))
    shape, out = (
        ((n, h, w, c), (n, oh, ow, c)) if axes == "(1, 2)" else ((n, c, h, w), (n, c, oh, ow))
    )
    draw.arrays["s"] = np.array([oh, ow])
    text = f"""
    graph main as {profile} {{
      %x = input() : {"x".join(map(str, shape))}x{kind}
      %s = constant(@s) : 2xi64
      %y = resize(%x, sizes=%s) {{axes = {axes}, coordinates = "{coordinates}", mode = "linear"}}
        : {"x".join(map(str, out))}x{kind}
      output(y=%y)
    }}
    """
    assert "resize_linear" in check(draw, text, {"x": draw.integers(shape, storage)})


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners"])
def test_nearest_resizes(storage: str, coordinates: str) -> None:
    draw = Draw(XNNPACK)
    kind = draw.affine(storage=storage)
    n, h, w, c, oh, ow = (int(v) for v in draw.rng.integers(1, (3, 9, 9, 90, 20, 20)))
    draw.arrays["s"] = np.array([oh, ow])
    text = f"""
    graph main as {XNNPACK} {{
      %x = input() : {n}x{h}x{w}x{c}x{kind}
      %s = constant(@s) : 2xi64
      %y = resize_nearest(%x, sizes=%s) {{axes = (1, 2), coordinates = "{coordinates}",
        rounding = "{"round_prefer_ceil" if coordinates == "align_corners" else "floor"}"}}
        : {n}x{oh}x{ow}x{c}x{kind}
      output(y=%y)
    }}
    """
    check(draw, text, {"x": draw.integers((n, h, w, c), storage)})


@pytest.mark.parametrize("profile", [XNNPACK, LITERT])
@pytest.mark.parametrize("trans_b", [False, True])
def test_products_of_two_tensors(profile: str, trans_b: bool) -> None:
    draw = Draw(profile)
    n, m, k, width = (int(v) for v in draw.rng.integers(1, (4, 40, 70, 40)))
    zero = 0 if profile == LITERT else int(draw.rng.integers(-128, 128))
    scales = [float(np.float32(draw.rng.uniform(*ends))) for ends in ((0.01, 0.1),) * 3]
    a, y = draw.affine(storage="i8"), draw.affine(storage="i8")
    shape = (n, width, k) if trans_b else (n, k, width)
    text = f"""
    graph main as {profile} {{
      %a = input() : {n}x{m}x{k}x{a}
      %b = input() : {"x".join(map(str, shape))}x!quant.uniform<i8:f32, {scales[0]!r}:{zero}>
      %y = matmul(%a, %b) {{trans_b = {str(trans_b).lower()}}} : {n}x{m}x{width}x{y}
      output(y=%y)
    }}
    """
    feed = {"a": draw.integers((n, m, k), "i8"), "b": draw.integers(shape, "i8")}
    assert "matmul" in check(draw, text, feed)


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("op", ["mul", "max", "min"])
def test_operands_that_repeat_along_axes_of_each_other(profile: str, storage: str, op: str) -> None:
    draw = Draw(profile)
    n, h, c = (int(v) for v in draw.rng.integers(2, 12, 3))
    same = draw.affine(storage=storage)
    a, b, y = (same if op != "mul" else draw.affine(storage=storage) for _ in range(3))
    call = "mul(%a, %b)" if op == "mul" else f"{op}(xs.0=%a, xs.1=%b)"
    text = f"""
    graph main as {profile} {{
      %a = input() : {n}x{h}x1x{a}
      %b = input() : {n}x1x{c}x{b}
      %y = {call} : {n}x{h}x{c}x{y}
      output(y=%y)
    }}
    """
    feed = {"a": draw.integers((n, h, 1), storage), "b": draw.integers((n, 1, c), storage)}
    assert {"lookup_pairs", "mul"} & set(check(draw, text, feed))


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize(("axes", "out"), [("(1, 2)", "{n}x1x1x{c}"), ("(3,)", "{n}x{h}x{w}x1")])
def test_greatest_integers(profile: str, storage: str, axes: str, out: str) -> None:
    draw = Draw(profile)
    n, h, w, c = (int(v) for v in draw.rng.integers(1, (3, 9, 9, 90)))
    kind = draw.affine(storage=storage)
    text = f"""
    graph main as {profile} {{
      %x = input() : {n}x{h}x{w}x{c}x{kind}
      %y = reduce_max(%x) {{axes = {axes}}} : {out.format(n=n, h=h, w=w, c=c)}x{kind}
      output(y=%y)
    }}
    """
    assert "max_pool2d" in check(draw, text, {"x": draw.integers((n, h, w, c), storage)})


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", PROFILES)
def test_leaky_relus(profile: str, storage: str) -> None:
    draw = Draw(profile)
    x, y = draw.affine(storage=storage), draw.affine(storage=storage)
    alpha = float(np.float32(draw.rng.choice([0.001, 0.2, 1.5])))
    text = f"""
    graph main as {profile} {{
      %x = input() : 3x300x{x}
      %y = leaky_relu(%x) {{alpha = {alpha!r}}} : 3x300x{y}
      output(y=%y)
    }}
    """
    assert check(draw, text, {"x": draw.integers((3, 300), storage)}) == ["lookup"]


@pytest.mark.parametrize("storage", STORAGES)
def test_choices_between_quantized_values(storage: str) -> None:
    draw = Draw(XNNPACK)
    kind = draw.affine(storage=storage)
    text = f"""
    graph main as {XNNPACK} {{
      %c = input() : 3x1xbool
      %a = input() : 3x70x{kind}
      %b = input() : 70x{kind}
      %y = where(%c, %a, %b) : 3x70x{kind}
      output(y=%y)
    }}
    """
    feed = {"c": np.array([[True], [False], [True]]), "a": draw.integers((3, 70), storage)}
    assert check(draw, text, {**feed, "b": draw.integers((70,), storage)}) == ["where"]


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("op", ["add", "sub", "mul"])
@pytest.mark.parametrize("tail", ["", " |> relu"])
def test_sums_and_products_of_two_tensors(profile: str, storage: str, op: str, tail: str) -> None:
    draw = Draw(profile)
    a, b, y = (draw.affine(storage=storage) for _ in range(3))
    c = int(draw.rng.integers(1, 90))
    text = f"""
    graph main as {profile} {{
      %a = input() : 2x5x5x{c}x{a}
      %b = input() : 2x1x1x{c}x{b}
      %y = {op}(%a, %b){tail} : 2x5x5x{c}x{y}
      output(y=%y)
    }}
    """
    feed = {"a": draw.integers((2, 5, 5, c), storage), "b": draw.integers((2, 1, 1, c), storage)}
    kinds = check(draw, text, feed)
    if profile == XNNPACK:  # vectors compute these: no table is needed
        assert kinds == [{"mul": "mul"}.get(op, "whole_add")]
