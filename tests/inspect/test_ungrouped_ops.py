"""What grouping leaves in float is told op by op, with what of the profile's groups is not met."""

from __future__ import annotations

import pytest

from qir.inspect.left_float import ops_left_float
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile, profile_names
from qir.rewrite import run_passes

HEAD = """graph main {
  %x = input() : 2x4x4x4x!quant.uniform<STORAGE:f32, 0.1:3>
  %xr = dequantize(%x) : 2x4x4x4xf32
"""
TAIL = """  %q = quantize(%y) : SHAPExRESULT
  output(q=%q)
}
"""
KEPT, OTHER = "!quant.uniform<u8:f32, 0.1:3>", "!quant.uniform<u8:f32, 0.2:3>"


def left(profile: str, lines: str, result: str = KEPT, storage: str = "u8") -> list[str]:
    text = HEAD.replace("STORAGE", storage) + lines
    shape = text.rpartition(" : ")[2].rpartition("x")[0]
    text += TAIL.replace("SHAPE", shape).replace("RESULT", result)
    made = run_passes(parse(text), [Group(profile)], Ledger())
    return [f"{one.op}: {one.reason}" for one in ops_left_float(made)]


SOFTMAX = "  %y = softmax(%xr) : 2x4x4x4xf32\n"
POOL = "  %y = global_avg_pool(%xr) : 2x4x1x1xf32\n"


def test_what_is_grouped_is_not_told() -> None:
    assert left("ort-1.31", SOFTMAX) == []


@pytest.mark.parametrize(
    ("profile", "lines", "result", "storage", "said"),
    [
        ("tf-2.21.core", SOFTMAX, KEPT, "u8", ["softmax: tf-2.21.core groups nothing"]),
        ("mxnet-1.9", SOFTMAX, KEPT, "u8", ["softmax: no group of mxnet-1.9 takes it"]),
        (
            "ort-1.31",
            SOFTMAX,
            KEPT.replace("u8", "u16"),
            "u16",
            ["softmax: storage u16, not u8 or i8"],
        ),
        (
            "mxnet-1.9",
            "  %y = add(%xr, %xr) : 2x4x4x4xf32\n",
            KEPT,
            "u8",
            ["add: its quantized values have a zero point, and those of mxnet-1.9 have none"],
        ),
        (
            "torch-2.13.fbgemm",
            POOL,
            OTHER,
            "u8",
            [
                "global_avg_pool: needs that the result has the first operand's scale, "
                "zero point and storage"
            ],
        ),
        (
            "torch-2.13.fbgemm",
            "  %b = sigmoid(%xr) : 2x4x4x4xf32\n  %y = exp(%b) : 2x4x4x4xf32\n",
            KEPT,
            "u8",
            [
                "sigmoid: its result goes to exp, not to a quantize",
                "exp: no group of torch-2.13.fbgemm takes it",
            ],
        ),
        (
            "torch-2.13.fbgemm",
            "  %b = exp(%xr) : 2x4x4x4xf32\n  %y = sigmoid(%b) : 2x4x4x4xf32\n",
            KEPT,
            "u8",
            [
                "exp: no group of torch-2.13.fbgemm takes it",
                "sigmoid: x is float, not a dequantized value",
            ],
        ),
        (
            "torch-2.13.fbgemm",
            "  %y = add(%xr, %xr) : 2x4x4x4xf32\n",
            "!quant.uniform<u8:f32, ?:?>".replace("?:?", "0.1:3.5"),
            "u8",
            ["add: no kernel has the quantization parameters of its result"],
        ),
        (
            "torch-2.13.fbgemm",
            "  %b = sigmoid(%xr) : 2x4x4x4xf32\n  %y = relu(%b) : 2x4x4x4xf32\n",
            KEPT,
            "u8",
            [
                "sigmoid: no group of torch-2.13.fbgemm is sigmoid |> relu",
                "relu: x is float, not a dequantized value",
            ],
        ),
    ],
)
def test_the_reason_is_told(
    profile: str, lines: str, result: str, storage: str, said: list[str]
) -> None:
    assert left(profile, lines, result, storage) == said


def float_model() -> Graph:
    return parse("""graph main {
  %x = input() : 2x4xf32
  %w = input() : 4x4xf32
  %y = linear(%x, %w) : 2x4xf32
  %z = relu(%y) : 2x4xf32
  output(z=%z)
}
""")


@pytest.mark.parametrize("name", profile_names())
def test_of_a_float_model_every_op_is_in_a_kernel_or_told(name: str) -> None:
    made = run_passes(float_model(), [Group(name)], Ledger())
    left = [f"{one.op}: {one.reason}" for one in ops_left_float(made)]
    chains = [group.chain for group in profile(name).groups]
    assert [len(node.stages) for node in made if node.stages] == [2] * (
        ("linear", "relu") in chains
    )
    if ("linear", "relu") in chains:
        assert left == []
    elif chains:
        behind = "it but after another op, as conv2d |> relu"
        assert left == [
            f"linear: no group of {name} takes it",
            f"relu: no group of {name} takes {behind}",
        ]
    else:
        assert left == [f"{op}: {name} groups nothing" for op in ("linear", "relu")]
