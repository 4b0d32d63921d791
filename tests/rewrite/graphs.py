"""Graphs that the tests of patterns look at, written as text."""

from qir.ir.graph import Graph
from qir.ir.text import parse


def graph(body: str) -> Graph:
    """A graph of these lines; `%x`, `%r` and `%z` are inputs, 2x3xf32, and so is what has no type.

    `%w` is a constant of a weight, `%k` one of a bias.
    """
    lines = [line.strip() for line in body.strip().splitlines()]
    typed = [
        line if " : " in line or line.startswith("output") else f"{line} : 2x3xf32"
        for line in lines
    ]
    head = "".join(f"  %{name} = input() : 2x3xf32\n" for name in "xrz")
    return parse("graph main {\n" + head + "".join(f"  {line}\n" for line in typed) + "}")


GELU = """
    %half = constant(0.5) : f32
    %root = constant(1.4142135) : f32
    %one = constant(1.0) : f32
    %d = div(%x, %root)
    %e = erf(%d)
    %a = add(%e, %one)
    %m = mul(%x, %half)
    %y = mul(%m, %a)
    output(y=%y)
"""
TANH_GELU = """
    %half = constant(0.5) : f32
    %three = constant(3.0) : f32
    %c = constant(0.044715) : f32
    %root = constant(0.7978846) : f32
    %one = constant(1.0) : f32
    %p = pow(%x, %three)
    %q = mul(%c, %p)
    %s = add(%x, %q)
    %u = mul(%s, %root)
    %t = tanh(%u)
    %a = add(%t, %one)
    %h = mul(%a, %x)
    %y = mul(%half, %h)
    output(y=%y)
"""
LAYER_NORM = """
    %two = constant(2.0) : f32
    %eps = constant(0.00001) : f32
    %g = constant([1.0, 2.0, 3.0]) : 3xf32
    %b = constant([0.5, 0.25, 0.125]) : 3xf32
    %mean = reduce_mean(%x) {axes = (-1), keep = true} : 2x1xf32
    %d = sub(%x, %mean)
    %p = pow(%d, %two)
    %var = reduce_mean(%p) {axes = (-1), keep = true} : 2x1xf32
    %ve = add(%var, %eps) : 2x1xf32
    %sd = sqrt(%ve) : 2x1xf32
    %n = div(%d, %sd)
    %ng = mul(%n, %g)
    %y = add(%ng, %b)
    output(y=%y)
"""
SOFTMAX = """
    %m = reduce_max(%x) {axes = (-1), keep = true} : 2x1xf32
    %d = sub(%x, %m)
    %e = exp(%d)
    %s = reduce_sum(%e) {axes = (-1), keep = true} : 2x1xf32
    %y = div(%e, %s)
    output(y=%y)
"""


def residual(blocks: int) -> str:
    """Blocks of relu(matmul(h, w) + h), one after another."""
    lines = []
    h = "x"
    for i in range(blocks):
        lines += [
            f"%w{i} = constant([{', '.join(f'{i}.0' for _ in range(9))}]) : 3x3xf32",
            f"%c{i} = matmul(%{h}, %w{i})",
            f"%a{i} = add(%c{i}, %{h})",
            f"%h{i} = relu(%a{i})",
        ]
        h = f"h{i}"
    return "\n".join([*lines, f"output(y=%{h})"])
