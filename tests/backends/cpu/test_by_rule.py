"""Steps by the rules of PyTorch's and TensorFlow's profiles give the reference's bytes.

Each case is a graph with random types, weights and sizes; the interpreter on the same processor is
what the kernels are compared with, and no step may be a Python call.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir._kernels import _cpu
from qir.backends.cpu import CpuTarget
from qir.errors import OpError
from qir.ir.text import parse
from qir.profiles import library_of
from qir.profiles.processor import best_isa
from qir.reference.interpreter import run

F32 = np.float32
TORCH = ["torch-2.13.x86", "torch-2.13.fbgemm", "torch-2.13.onednn", "torch-2.15.x86"]
PROFILES = [*TORCH, "torch-2.13.pt2e", "tf-2.21.onednn"]
Array = NDArray[np.generic]
PAIRS = (["lookup_pairs"], ["whole_add"], ["mul"])
"""Steps of two tensors: a formula where it gives all results of the table, else the table."""
ISAS: list[str | None] = [None, *_cpu.caps()]
MORE = pytest.mark.slow
"""Of cases that add little to those beside them: all of them take seconds."""

pytestmark = pytest.mark.skipif(
    best_isa() not in ("vnni", "amx"), reason="before VNNI these runtimes saturate pairs"
)


class Draw:
    """Random numbers of one case, and the text of types and constants with them."""

    def __init__(self, profile: str) -> None:
        self.seed = int(np.random.SeedSequence().generate_state(1)[0])
        self.rng = np.random.default_rng(self.seed)
        self.symmetric = profile.startswith("tf")
        self.arrays: dict[str, Array] = {}

    def affine(self, *, storage: str = "u8") -> str:
        """A type with one scale; TensorFlow's zero points are 0."""
        zero = 0 if self.symmetric else int(self.rng.integers(0, 256)) - 128 * (storage == "i8")
        return f"!quant.uniform<{storage}:f32, {float(F32(self.rng.uniform(0.01, 0.2)))!r}:{zero}>"

    def weights(self, name: str, shape: tuple[int, ...], per_channel: bool) -> str:
        """Text of a constant of i8, and its type."""
        data = self.rng.integers(-127, 128, shape).astype(np.int8)
        self.arrays[name] = data
        scales = self.rng.uniform(0.002, 0.02, shape[0] if per_channel else 1).astype(F32)
        of = "x".join(map(str, shape))
        if per_channel:
            self.arrays[f"{name}.scale"] = scales
            numbers = f":f32:0, @{name}.scale"
        else:
            numbers = f":f32, {float(scales[0])!r}"
        return f"%{name} = constant(@{name}) : {of}x!quant.uniform<i8<-127:127>{numbers}>"

    def bias(self, name: str, channels: int) -> str:
        self.arrays[name] = self.rng.normal(0, 3, channels).astype(F32)
        return f"%{name} = constant(@{name}) : {channels}xf32"

    def integers(self, shape: tuple[int, ...], storage: str = "u8") -> Array:
        low, high = (0, 256) if storage == "u8" else (-128, 128)
        kind = np.uint8 if storage == "u8" else np.int8
        return self.rng.integers(low, high, shape).astype(kind)


def check(draw: Draw, text: str, feed: dict[str, Array]) -> list[str]:
    """Compares every instruction set with the reference; returns the kinds of the steps."""
    declared = (
        f"array @{n} : {len(a)}xf32" for n, a in draw.arrays.items() if n.endswith(".scale")
    )
    graph = parse("\n".join([*declared, text]), draw.arrays)
    wanted = run(graph, feed, profiles=library_of(graph).on_processor())
    for isa in ISAS:
        made = CpuTarget().compile(graph, threads=2, isa=isa)
        assert not made.fallbacks, (draw.seed, made.fallbacks)
        got = made(**feed)
        for result, array in wanted.items():
            same = np.array_equal(np.asarray(got[result]), array, equal_nan=array.dtype.kind == "f")
            assert same, f"seed {draw.seed}, {isa}: {result} differs\n{text}"
    return [row.kind for row in made.describe()]


@pytest.mark.parametrize("round_", [0, 1, *(pytest.param(i, marks=MORE) for i in (2, 3))])
@pytest.mark.parametrize("profile", PROFILES)
def test_convolutions_and_what_follows_them(profile: str, round_: int) -> None:
    draw = Draw(profile)
    pick = draw.rng.integers
    depthwise = bool(round_ % 2)
    channels = int(pick(101, 140)) if depthwise else int(pick(1, 40))
    out = channels if depthwise else int(pick(1, 80))
    size, kernel = int(pick(3, 12)), int(pick(1, 4))
    pad = int(pick(0, kernel))
    side = size + 2 * pad - kernel + 1
    if side < 1:
        side, pad, size = size, 0, size
    groups = channels if depthwise else 1
    tail = ["", " |> relu"][int(pick(2))]
    weights = draw.weights("w", (out, channels // groups, kernel, kernel), bool(pick(2)))
    side = size + 2 * pad - kernel + 1
    x, y = draw.affine(), draw.affine()
    text = f"""
    graph main as {profile} {{
      %x = input() : 2x{size}x{size}x{channels}x{x}
      {weights}
      {draw.bias("b", out)}
      %y = conv2d(%x, %w, bias=%b) {{pad = ({pad}, {pad}, {pad}, {pad}), groups = {groups},
        layout = "NHWC"}}{tail} : 2x{side}x{side}x{out}x{y}
      output(y=%y)
    }}
    """
    kinds = check(draw, text, {"x": draw.integers((2, size, size, channels))})
    assert kinds == ["depthwise" if depthwise else "conv2d"]


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("profile", [*TORCH, "torch-2.13.pt2e"])
def test_convolutions_of_lines_and_volumes(profile: str, axes: int) -> None:
    draw = Draw(profile)
    channels, out = (int(v) for v in draw.rng.integers(2, 30, 2))
    size, kernel = (6,) * axes, (3,) * axes
    x, y = draw.affine(), draw.affine()
    tail = " |> relu" if draw.rng.random() < 0.5 else ""
    made = f"2x{out}x{'x'.join(map(str, size))}x{y}"
    text = f"""
    graph main as {profile} {{
      %x = input() : 2x{channels}x{"x".join(map(str, size))}x{x}
      {draw.weights("w", (out, channels, *kernel), bool(draw.rng.integers(2)))}
      {draw.bias("b", out)}
      %y = conv{axes}d(%x, %w, bias=%b) {{pad = {(1,) * 2 * axes}}}{tail} : {made}
      output(y=%y)
    }}
    """
    assert "conv2d" in check(draw, text, {"x": draw.integers((2, channels, *size))})


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("result", ["u8", "real"])
def test_linear_layers(profile: str, result: str) -> None:
    draw = Draw(profile)
    pick = draw.rng.integers
    rows, depth, out = (int(v) for v in pick(1, 70, 3))
    y = "f32" if result == "real" else draw.affine()
    text = f"""
    graph main as {profile} {{
      %x = input() : {rows}x{depth}x{draw.affine()}
      {draw.weights("w", (out, depth), bool(pick(2)))}
      {draw.bias("b", out)}
      %y = linear(%x, %w, bias=%b) : {rows}x{out}x{y}
      output(y=%y)
    }}
    """
    assert check(draw, text, {"x": draw.integers((rows, depth))}) == ["linear"]


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("profile", ["torch-2.13.onednn", "torch-2.13.pt2e", "tf-2.21.onednn"])
def test_sums_that_convolutions_add_to(profile: str, relu: bool) -> None:
    if profile.startswith("tf") and not relu:
        pytest.skip("TensorFlow has no sum without relu")
    draw = Draw(profile)
    channels, out, size = (int(v) for v in draw.rng.integers(1, 40, 3))
    tail = " |> relu" if relu else ""
    shape = f"1x{size}x{size}x{out}"
    text = f"""
    graph main as {profile} {{
      %x = input() : 1x{size}x{size}x{channels}x{draw.affine()}
      %z = input() : {shape}x{draw.affine()}
      {draw.weights("w", (out, channels, 1, 1), True)}
      {draw.bias("b", out)}
      %y = conv2d(%x, %w, bias=%b) {{layout = "NHWC"}} |> add(., %z){tail} : {shape}x{draw.affine()}
      output(y=%y)
    }}
    """
    feed = {"x": draw.integers((1, size, size, channels)), "z": draw.integers((1, size, size, out))}
    assert check(draw, text, feed) == ["conv2d"]


@pytest.mark.parametrize("size", [1, pytest.param(64, marks=MORE), 200])
@pytest.mark.parametrize("op", ["add", "mul"])
@pytest.mark.parametrize("profile", TORCH)
def test_sums_and_products_of_two_tensors(profile: str, op: str, size: int) -> None:
    draw = Draw(profile)
    tail = " |> relu" if draw.rng.random() < 0.5 else ""
    wide = draw.rng.random() < 0.5
    other = f"3x{size}" if wide else f"1x{size}"
    text = f"""
    graph main as {profile} {{
      %x = input() : 3x{size}x{draw.affine()}
      %z = input() : {other}x{draw.affine()}
      %y = {op}(%x, %z){tail} : 3x{size}x{draw.affine()}
      output(y=%y)
    }}
    """
    feed = {"x": draw.integers((3, size)), "z": draw.integers((3 if wide else 1, size))}
    assert check(draw, text, feed) in PAIRS


def test_a_constant_tensor_is_added() -> None:
    draw = Draw("torch-2.13.x86")
    draw.arrays["z"] = draw.integers((70,))
    text = f"""
    graph main as torch-2.13.x86 {{
      %x = input() : 3x70x{draw.affine()}
      %z = constant(@z) : 70x{draw.affine()}
      %y = add(%x, %z) : 3x70x{draw.affine()}
      output(y=%y)
    }}
    """
    assert check(draw, text, {"x": draw.integers((3, 70))}) in PAIRS


@pytest.mark.parametrize("op", ["hard_swish", "sigmoid", "tanh", "hard_sigmoid", "gelu"])
@pytest.mark.parametrize("profile", TORCH)
def test_functions_of_one_tensor(profile: str, op: str) -> None:
    draw = Draw(profile)
    size = int(draw.rng.integers(1, 300))
    attrs = f" {{alpha = {float(F32(1 / 6))!r}, beta = 0.5}}" if op == "hard_sigmoid" else ""
    text = f"""
    graph main as {profile} {{
      %x = input() : {size}x{draw.affine()}
      %y = {op}(%x){attrs} : {size}x{draw.affine()}
      output(y=%y)
    }}
    """
    (kind,) = check(draw, text, {"x": draw.integers((size,))})
    assert kind in ("lookup", "lookup_runs")


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("op", ["global_avg_pool", "avg_pool2d"])
@pytest.mark.parametrize("profile", TORCH)
def test_means(profile: str, op: str, layout: str) -> None:
    draw = Draw(profile)
    h, w, c = (int(v) for v in draw.rng.integers(3, 30, 3))
    out = (1, 1) if op == "global_avg_pool" else (h // 2, w // 2)
    attrs = "" if op == "global_avg_pool" else ", kernel = (2, 2), stride = (2, 2)"
    order = (2, h, w, c) if layout == "NHWC" else (2, c, h, w)
    made = (2, *out, c) if layout == "NHWC" else (2, c, *out)
    q = draw.affine()
    text = f"""
    graph main as {profile} {{
      %x = input() : {"x".join(map(str, order))}x{q}
      %y = {op}(%x) {{layout = "{layout}"{attrs}}} : {"x".join(map(str, made))}x{q}
      output(y=%y)
    }}
    """
    assert "code_means" in check(draw, text, {"x": draw.integers(order)})


@pytest.mark.parametrize("profile", TORCH)
def test_joined_channels(profile: str) -> None:
    draw = Draw(profile)
    first, second = (int(v) for v in draw.rng.integers(1, 30, 2))
    q = draw.affine()
    text = f"""
    graph main as {profile} {{
      %x = input() : 1x3x3x{first}x{draw.affine()}
      %z = input() : 1x3x3x{second}x{q}
      %y = concat(xs.0=%x, xs.1=%z) {{axis = 3}} : 1x3x3x{first + second}x{q}
      output(y=%y)
    }}
    """
    feed = {"x": draw.integers((1, 3, 3, first)), "z": draw.integers((1, 3, 3, second))}
    check(draw, text, feed)


@pytest.mark.parametrize("profile", PROFILES)
def test_quantize_and_dequantize(profile: str) -> None:
    draw = Draw(profile)
    storage = str(draw.rng.choice(["u8", "i8"]))
    q, size = draw.affine(storage=storage), int(draw.rng.integers(1, 900))
    text = f"""
    graph main as {profile} {{
      %x = input() : {size}xf32
      %q = quantize(%x) : {size}x{q}
      %y = dequantize(%q) : {size}xf32
      output(q=%q, y=%y)
    }}
    """
    step = float(q.rpartition(", ")[2].partition(":")[0])
    x = (draw.rng.integers(-600, 600, size) * 0.5 * step).astype(F32)
    x[draw.rng.random(size) < 0.1] = draw.rng.choice(np.array([np.inf, -np.inf, 3e38, 1e10], F32))
    check(draw, text, {"x": x})


@pytest.mark.parametrize("profile", TORCH)
def test_layer_norms(profile: str) -> None:
    draw = Draw(profile)
    rows, width = (int(v) for v in draw.rng.integers(1, 90, 2))
    text = f"""
    graph main as {profile} {{
      %x = input() : {rows}x{width}x{draw.affine()}
      {draw.bias("g", width)}
      {draw.bias("b", width)}
      %y = layer_norm(%x, gamma=%g, beta=%b) {{axis = -1}} : {rows}x{width}x{draw.affine()}
      output(y=%y)
    }}
    """
    kinds = check(draw, text, {"x": draw.integers((rows, width))})
    assert kinds == ["dequantize", "layer_norm", "quantize_by"]


def test_a_nan_that_a_profile_gives_no_value_is_refused() -> None:
    text = """
    graph main as tf-2.21.onednn {
      %x = input() : 2xf32
      %q = quantize(%x) : 2x!quant.uniform<u8:f32, 0.5:0>
      output(q=%q)
    }
    """
    made = CpuTarget().compile(parse(text))
    assert not made.fallbacks
    with pytest.raises(OpError, match="x holds NaN"):
        made(x=np.array([1, np.nan], F32))


def test_program_files_hold_such_steps(tmp_path: Path) -> None:
    draw = Draw("torch-2.15.x86")
    text = f"""
    graph main as torch-2.15.x86 {{
      %r = input() : 1x5x5x110xf32
      %x = quantize(%r) : 1x5x5x110x{draw.affine()}
      {draw.weights("w", (110, 1, 3, 3), True)}
      {draw.bias("b", 110)}
      %c = conv2d(%x, %w, bias=%b) {{pad = (1, 1, 1, 1), groups = 110,
        layout = "NHWC"}} |> relu : 1x5x5x110x{draw.affine()}
      %h = hard_swish(%c) : 1x5x5x110x{draw.affine()}
      %s = add(%h, %x) : 1x5x5x110x{draw.affine()}
      output(s=%s)
    }}
    """
    declared = f"array @w.scale : 110xf32\n{text}"
    made = CpuTarget().compile(parse(declared, draw.arrays))
    made.save(tmp_path / "program.qirp")
    x = draw.rng.normal(0, 3, (1, 5, 5, 110)).astype(F32)
    loaded = CpuTarget().compile_file(tmp_path / "program.qirp")
    assert np.array_equal(np.asarray(loaded(r=x)["s"]), np.asarray(made(r=x)["s"]))
