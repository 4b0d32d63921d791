"""Chains of ops on each element alone run as one table, with the bytes of each op in turn."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from qir import profiles
from qir._kernels._cpu import isa
from qir.backends.cpu import CpuTarget
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.profiles import parser
from qir.reference import interpreter
from tests.overriding import override_profile

from .nets import Net

F = np.float32
Q = "!quant.uniform<u8:f32, 0.047:131>"
GELU = """
graph main as ort-1.31 {
  %x = input() : 2x3x70x!quant.uniform<u8:f32, 0.047:131>
  %root = constant(1.4142135) : f32
  %one = constant(1.0) : f32
  %half = constant(0.5) : f32
  %d = dequantize(%x) : 2x3x70xf32
  %v = div(%d, %root) : 2x3x70xf32
  %e = erf(%v) : 2x3x70xf32
  %eq = quantize(%e) : 2x3x70x!quant.uniform<i8:f32, 0.0078:1>
  %ed = dequantize(%eq) : 2x3x70xf32
  %s = add(%ed, %one) : 2x3x70xf32
  %sq = quantize(%s) : 2x3x70x!quant.uniform<u8:f32, 0.0079>
  %sd = dequantize(%sq) : 2x3x70xf32
  %m = mul(%d, %sd) : 2x3x70xf32
  %h = mul(%m, %half) : 2x3x70xf32
  %y = quantize(%h) : 2x3x70x!quant.uniform<u8:f32, 0.024:7>
  output(y=%y)
}
"""


def everything(*shape: int) -> NDArray[np.uint8]:
    """Integers in which every byte occurs, in random places."""
    size = math.prod(shape)
    every = np.resize(np.arange(256, dtype=np.uint8), size)
    return np.random.default_rng(size).permutation(every).reshape(shape)


def quantize_floats(
    floats: NDArray[np.float32], scale: float, zero: int, low: int, high: int
) -> Any:
    return np.clip(np.rint(floats / F(scale)) + zero, low, high)


def agrees(graph: Graph, data: dict[str, Any], **options: Any) -> list[str]:
    """The compiled graph gives what the reference does; returns the kinds of its steps."""
    compiled = CpuTarget().compile(graph, **options)
    expected, got = interpreter.run(compiled.graph, data), compiled(**data)
    for name, wanted in expected.items():
        found = np.asarray(got[name])
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert found.tobytes() == wanted.tobytes(), f"{name} of\n{graph}"
    return [row.kind for row in compiled.describe()]


@pytest.mark.parametrize("cap", isa())
def test_gelu_written_in_five_ops_is_one_lookup(cap: str) -> None:
    x = everything(2, 3, 70)
    compiled = CpuTarget().compile(parse(GELU), isa=cap)
    assert [row.kind for row in compiled.describe()] == ["lookup"]
    d = (x.astype(F) - F(131)) * F(0.047)
    e = np.array([math.erf(float(v)) for v in (d / F(1.4142135)).ravel()]).astype(F)
    ed = ((quantize_floats(e.reshape(d.shape), 0.0078, 1, -128, 127) - 1) * F(0.0078)).astype(F)
    sd = (quantize_floats(ed + F(1), 0.0079, 0, 0, 255) * F(0.0079)).astype(F)
    wanted = quantize_floats(d * sd * F(0.5), 0.024, 7, 0, 255).astype(np.uint8)
    assert np.array_equal(np.asarray(compiled(x=x)["y"]), wanted)


UNARY = ("erf tanh gelu hard_swish silu hard_sigmoid sigmoid relu leaky_relu elu exp log sqrt abs"
         " neg mish softplus floor round sign reciprocal log1p")  # fmt: skip
BINARY = "add sub mul div pow min max squared_difference".split()


def chain(seed: int) -> tuple[str, dict[str, Any]]:
    """A random chain of ops on scalars and earlier values, rounded now and then."""
    rng = np.random.default_rng(seed)
    storage, zero = (("u8", 119), ("i8", -9))[seed % 2]
    shape = [(3, 300), (2, 5, 9, 11), (7, 1), (1,), (1, 4, 1, 1)][seed % 5]
    of = "x".join(map(str, shape))
    quant = f"!quant.uniform<{storage}:f32, {{}}:{zero}>"
    lines = [f"%x = input() : {of}x{quant.format(0.043)}", f"%v0 = dequantize(%x) : {of}xf32"]
    made = ["v0"]
    for i in range(1, int(rng.integers(3, 9))):
        x = made[int(rng.integers(max(0, len(made) - 3), len(made)))]
        if rng.integers(2):
            op = UNARY.split()[int(rng.integers(len(UNARY.split())))]
            lines.append(f"%v{i} = {op}(%{x}) : {of}xf32")
        else:
            op = BINARY[int(rng.integers(len(BINARY)))]
            other = made[int(rng.integers(len(made)))]
            if rng.integers(2) or math.prod(shape) == 1:
                kind = ("f32", "1xf32")[int(rng.integers(2))]
                number = f"{rng.normal(0, 2):.4f}"
                lines.append(
                    f"%c{i} = constant({number if kind == 'f32' else f'[{number}]'}) : {kind}"
                )
                other = f"c{i}"
            pair = (x, other) if rng.integers(2) else (other, x)
            names = ("xs.0=%{}, xs.1=%{}" if op in ("min", "max") else "%{}, %{}").format(*pair)
            lines.append(f"%v{i} = {op}({names}) : {of}xf32")
        if rng.integers(3) == 0:
            scale = rng.uniform(0.01, 0.1)
            lines.append(f"%q{i} = quantize(%v{i}) : {of}x{quant.format(f'{scale:.4f}')}")
            lines.append(f"%r{i} = dequantize(%q{i}) : {of}xf32")
            made.append(f"r{i}")
        else:
            made.append(f"v{i}")
    lines.append(f"%y = quantize(%{made[-1]}) : {of}x{quant.format(0.031)}")
    ends = f"y=%y, real=%{made[-1]}, middle=%{made[len(made) // 2]}"
    data = everything(*shape)
    text = "graph main as ort-1.31 {\n" + "\n".join(lines) + f"\noutput({ends})\n}}"
    return text, {"x": data if storage == "u8" else data.view(np.int8)}


@pytest.mark.parametrize("seed", range(60))
def test_a_random_chain_gives_the_bytes_of_its_ops(seed: int) -> None:
    text, data = chain(seed)
    cap = isa()[seed % len(isa())]
    kinds = agrees(parse(text), data, isa=cap, threads=1 + seed % 2)
    if math.prod(data["x"].shape) > 1:
        assert set(kinds) <= {"lookup", "dequantize", "copy"}, text


@pytest.mark.parametrize("shape", [(3, 90), (3, 90, 1), (300, 1, 1), (1, 5, 60, 1)])
@pytest.mark.parametrize("number", [(), (1,), (1, 1, 1, 1)])
@pytest.mark.parametrize("first", [True, False])
def test_a_scalar_is_added_in_the_turn_of_the_whole_tensor(
    shape: tuple[int, ...], number: tuple[int, ...], first: bool
) -> None:
    for seed in range(4):
        net = Net(seed)
        x, c = net.input(*shape), net.integers(*number)
        pair = {"a": c, "b": x} if first else {"a": x, "b": c}
        whole = np.broadcast_shapes(shape, number)
        graph = net.done(y=net.op("add", pair, whole), z=net.op("mul", pair, whole, 0.001))
        assert agrees(graph, {"x": everything(*shape)}) == ["lookup", "lookup"]


def test_what_a_runtime_computes_by_the_place_of_an_element_has_a_table_for_the_end() -> None:
    text = 'name = "lanes"\nextends = "native"\n[[rule]]\nop = "add"\n'
    text += 'method = {name = "vectors", lanes = 64, after = true}\n'
    with override_profile(parser.parse(text, "lanes.toml", profiles.profile)):
        graph = parse(f"""
        graph main as lanes {{
          %x = input() : 90x{Q}
          %y = add(%x, %x) : 90x{Q.replace("0.047", "0.188")}
          output(y=%y)
        }}
        """)
        assert agrees(graph, {"x": everything(90)}) == ["lookup_pairs"]


def test_values_that_only_lead_to_tables_are_not_made() -> None:
    text = f"""
    graph main {{
      %x = input() : 2x40x{Q}
      %z = input() : 2x40x{Q}
      %a = sigmoid(%x) : 2x40x{Q}
      %b = mul(%x, %a) : 2x40x{Q}
      %c = mul(%b, %z) : 2x40x{Q}
      %d = mul(%c, %c) : 2x40x{Q}
      %e = dequantize(%d) : 2x40xf32
      output(d=%d, e=%e)
    }}
    """
    data = {"x": everything(2, 40), "z": everything(2, 40)[::-1].copy()}
    assert agrees(parse(text), data) == ["lookup", "mul", "lookup", "lookup"]


def test_floats_of_constant_integers_are_made_once() -> None:
    text = """
    graph main {
      %x = input() : 2x3xf32
      %c = constant([3, 4, 250]) : 3xu8
      %r = recode(%c) : 3x!quant.uniform<u8:f32, 0.5:7>
      %d = dequantize(%r) : 3xf32
      %y = add(%x, %d) : 2x3xf32
      output(y=%y, d=%d)
    }
    """
    compiled = CpuTarget().compile(parse(text))
    assert [row.kind for row in compiled.describe()] == ["real", "copy"]
    x = np.array([[1, 2, 3], [4, 5, 6]], F)
    got = compiled(x=x)
    assert np.array_equal(np.asarray(got["y"]), x + np.array([-2, -1.5, 121.5], F))
    assert np.array_equal(np.asarray(got["d"]), np.array([-2, -1.5, 121.5], F))
