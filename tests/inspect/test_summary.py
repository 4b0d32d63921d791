"""What a summary says of programs that can be counted by hand."""

import json

import numpy as np
import pytest

from qir.errors import UsageError
from qir.inspect import explain, summarize
from qir.ir.quantized_ops import longest_chain, quantized_nodes
from qir.ir.text import parse
from qir.query.cost import macs
from tests.inspect.programs import FLOAT, INTEGER, QDQ, program


def multiplications(x: tuple[int, ...], w: tuple[int, ...], out: tuple[int, ...]) -> int:
    """How often a convolution multiplies, counted one by one."""
    channels, inside, rows, columns = w
    assert x[0] == 1
    return sum(inside * rows * columns for _ in range(channels) for _ in range(out[2] * out[3]))


def test_work_is_counted_for_one_sample() -> None:
    summary = summarize(program(FLOAT))
    assert summary.macs == multiplications((1, 3, 8, 8), (6, 3, 3, 3), (1, 6, 4, 4))
    assert summary.integer_macs == 0
    assert summary.longest_integer_chain == ()


def test_work_of_chains_and_depthwise_layers_is_counted() -> None:
    summary = summarize(program(INTEGER))
    first = multiplications((1, 3, 8, 8), (6, 3, 3, 3), (1, 6, 8, 8))
    depthwise = multiplications((1, 6, 8, 8), (6, 1, 3, 3), (1, 6, 8, 8))
    assert summary.macs == summary.integer_macs == first + depthwise
    assert [layer.macs for layer in summary.layers if layer.macs] == [first, depthwise]


def test_work_that_depends_on_an_open_size_is_not_known() -> None:
    text = FLOAT.replace("(N)x3x8x8", "(N)x3x(H)x8").replace("(N)x6x4x4", "(N)x6x((H+1)//2)x4")
    graph = program(text)
    assert [macs(node, {"N": 1}) for node in graph if node.op == "conv2d"] == [None]
    assert macs(graph["y"].node, {"N": 1, "H": 8}) == summarize(program(FLOAT)).macs


def test_parameters_and_bytes_are_those_of_the_constants() -> None:
    summary = summarize(program(FLOAT))
    assert summary.parameters == 6 * 3 * 3 * 3 + 6
    assert summary.bytes == {"f32": 4 * (6 * 3 * 3 * 3 + 6)}
    assert summarize(program(INTEGER)).bytes == {"i8": 6 * 27 + 6 * 9}


def test_a_constant_that_stands_twice_is_counted_once() -> None:
    text = FLOAT.replace("%b =", "%w3 = constant(@w) : 6x3x3x3xf32\n  %b =").replace(
        "output(z=%z)", "%v = conv2d(%x, %w3) : (N)x6x6x6xf32\n  output(z=%z, v=%v)"
    )
    assert summarize(program(text)).parameters == summarize(program(FLOAT)).parameters


def test_inputs_and_outputs_are_told_with_their_codes() -> None:
    summary = summarize(program(INTEGER))
    (x,) = summary.inputs
    assert (x.name, x.shape, x.dtype, x.codes) == ("x", ("N", 3, 8, 8), "f32", None)
    f, s = summary.outputs
    assert (f.name, f.dtype, f.codes) == ("f", "f32", None)
    assert s.codes is not None
    assert (s.codes.storage, s.codes.scale, s.codes.zero) == ("u8", (0.5,), (3,))


def test_ops_of_the_integer_form_work_on_codes() -> None:
    graph = program(INTEGER)
    found = {node.name: done for node, done in quantized_nodes(graph).items()}
    assert found == {"y": True, "d": True, "s": True, "f": False}
    assert [node.name for node in longest_chain(graph)] == ["y", "d", "s"]


def test_ops_between_dequantize_and_quantize_work_on_codes() -> None:
    graph = program(QDQ)
    found = {node.name: done for node, done in quantized_nodes(graph).items()}
    assert found == {"y": True, "a": True, "p": True, "s": False}
    assert [node.name for node in longest_chain(graph)] == ["y", "a", "p"]


@pytest.mark.parametrize(
    ("change", "by", "lost"),
    [
        ("conv2d(%xd, %wd)", "conv2d(%x, %wd)", {"y", "a"}),  # reads floats
        ("quantize(%a)", "quantize(%y)", {"y", "a"}),  # its floats are used as well
        # Reads floats of a kernel.
        ("global_avg_pool(%ad)", "global_avg_pool(%a)", {"y", "a", "p"}),
    ],
)
def test_what_touches_reals_does_not_work_on_codes(change: str, by: str, lost: set[str]) -> None:
    found = quantized_nodes(program(QDQ.replace(change, by)))
    assert {node.name for node, done in found.items() if not done} == lost | {"s"}


def test_ops_are_counted_with_how_many_work_on_codes() -> None:
    counts = {row.op: (row.count, row.in_codes) for row in summarize(program(QDQ)).ops}
    assert counts == {
        "quantize": (3, 0),
        "dequantize": (4, 0),
        "conv2d": (1, 1),
        "relu": (1, 1),
        "global_avg_pool": (1, 1),
        "sigmoid": (1, 0),
    }


def test_a_layer_is_stored_as_its_only_reader_rounds_it() -> None:
    layers = {layer.name: layer for layer in summarize(program(QDQ)).layers}
    assert (layers["y"].storage, layers["a"].storage, layers["s"].storage) == ("f32", "u8", "f32")
    weights = layers["y"].weights
    assert weights is not None
    assert (weights.dtype, weights.shape) == ("i8", (6, 3, 3, 3))


@pytest.mark.parametrize("axes", [1, 2, 3])
def test_a_transposed_convolution_has_weights(axes: int) -> None:
    sizes, window = "x5" * axes, "x3" * axes
    graph = parse(
        f"""graph main as native {{
  %x = input() : 1x4{sizes}xf32
  %w = input() : 4x6{window}x!quant.uniform<i8:f32, 0.5>
  %v = dequantize(%w) : 4x6{window}xf32
  %y = conv_transpose{axes}d(%x, %v) : 1x6{"x7" * axes}xf32
  output(y=%y)
}}"""
    )
    weights = {layer.name: layer.weights for layer in summarize(graph).layers}["y"]
    assert weights is not None
    assert (weights.dtype, weights.shape) == ("i8", (4, 6, *[3] * axes))


@pytest.mark.parametrize("text", [FLOAT, INTEGER, QDQ])
def test_summaries_and_explanations_are_json(text: str) -> None:
    graph = program(text)
    json.dumps(summarize(graph).to_json(), allow_nan=False)
    for node in graph:
        if node.results:
            json.dumps(explain(graph, node.name).to_json(), allow_nan=False)


def test_an_explanation_tells_what_lies_in_the_weights() -> None:
    graph = program(INTEGER)
    x, w = explain(graph, "y").operands
    assert (x.slot, x.tensor.name, x.contents) == ("x", "q", None)
    data = graph["w"].constant
    assert data is not None
    assert w.contents is not None
    assert (w.contents.low, w.contents.high) == (data.data.min(), data.data.max())
    assert w.contents.zeros == float(np.count_nonzero(data.data == 0)) / data.data.size
    assert w.contents.at_bounds == 0


def test_a_name_that_is_not_there_is_guessed() -> None:
    with pytest.raises(UsageError, match=r"no node 'relu' among \d+$"):
        explain(program(FLOAT), "relu")
    with pytest.raises(UsageError, match="did you mean wd"):
        explain(program(QDQ), "wdd")


def test_what_bodies_hold_is_counted_once() -> None:
    graph = parse(
        """graph main as native {
  %c = input() : bool
  %x = input() : 2x3xf32
  %y = if(%c, xs.0=%x) : 2x4xf32 with then {
    %a = input() : 2x3xf32
    %w = constant(@w) : 3x4xf32
    %m = matmul(%a, %w) : 2x4xf32
    output(m=%m)
  } with else {
    %a = input() : 2x3xf32
    %w = constant(@w) : 3x4xf32
    %m = matmul(%a, %w) : 2x4xf32
    %n = neg(%m) : 2x4xf32
    output(n=%n)
  }
  output(y=%y)
}
""",
        {"w": np.ones((3, 4), np.float32)},
    )
    found = summarize(graph)
    assert [(layer.name, layer.macs) for layer in found.layers] == [
        ("y", 0),
        ("y/then/m", 24),
        ("y/else/m", 24),
        ("y/else/n", 0),
    ]
    assert (found.nodes, found.parameters, found.bytes) == (13, 12, {"f32": 48})
    assert {op.op: op.count for op in found.ops} == {"if": 1, "matmul": 2, "neg": 1}
