"""A row that ends in any activation which a profile's groups name is found in QDQ form."""

from __future__ import annotations

import pytest

from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile, profile_names

HEADS = {
    "linear": ("%d0 = dequantize(%w) : 5x4xf32", "linear(%dx, %d0)", "2x4", "5x4", "2x5"),
    "conv2d": (
        "%d0 = dequantize(%w) : 3x4x1x1xf32",
        "conv2d(%dx, %d0)",
        "2x4x3x3",
        "3x4x1x1",
        "2x3x3x3",
    ),
}
ACTIVATIONS = ("silu", "gelu", "tanh", "sigmoid", "hard_swish", "leaky_relu", "elu")
CHAINS = sorted(
    {
        (name, group.chain)
        for name in profile_names()
        for group in profile(name).groups
        if len(group.chain) == 2 and group.chain[0] in HEADS and group.chain[1] in ACTIVATIONS
    }
)


WITHOUT_ZERO_POINTS = frozenset({"mxnet-1.9", "tf-2.21.onednn"})


@pytest.mark.parametrize(
    ("name", "chain"), CHAINS, ids=lambda v: v if isinstance(v, str) else "-".join(v)
)
def test_an_activation_behind_a_product_is_one_kernel_with_it(
    name: str, chain: tuple[str, ...]
) -> None:
    head, tail = chain
    real, call, x, w, y = HEADS[head]
    weight = "i8<-127:127>" if name.startswith("mxnet") else "i8"
    x_zero, y_zero = ("0", "0") if name in WITHOUT_ZERO_POINTS else ("3", "5")
    values = ", ".join(str(i % 7 - 3) for i in range(elements(w)))
    graph = parse(f"""graph main as {name} {{
  %x = input() : {x}x!quant.uniform<u8:f32, 0.125:{x_zero}>
  %r = constant([{values}]) : {w}xf32
  %w = quantize(%r) : {w}x!quant.uniform<{weight}:f32, 0.0625>
  %dx = dequantize(%x) : {x}xf32
  {real}
  %p = {call} : {y}xf32
  %t = {tail}(%p) : {y}xf32
  %q = quantize(%t) : {y}x!quant.uniform<u8:f32, 0.25:{y_zero}>
  output(y=%q)
}}
""")
    assert Group().run(graph, Ledger()) > 0
    (kernel,) = [node for node in graph if node.op == "fused"]
    assert tuple(stage.op for stage in kernel.stages) == chain
    assert not [node.name for node in graph if node.op in ("dequantize", "quantize")]


def elements(shape: str) -> int:
    size = 1
    for part in shape.split("x"):
        size *= int(part)
    return size


def test_some_profiles_have_such_groups() -> None:
    assert len({tail for _, (_, tail) in CHAINS}) >= 5
