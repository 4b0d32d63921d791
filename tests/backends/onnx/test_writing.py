"""What graphs become in a file, and what onnxruntime then computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.backends.onnx import OnnxRuntimeTarget
from qir.backends.onnx.writer.graph import to_model
from qir.backends.onnx.writer.saving import save
from qir.errors import Refused, UsageError
from qir.frontends.onnx import OnnxFrontend
from qir.ir.dtype import F32, I8, I32, U8
from qir.ir.graph import Graph
from qir.ir.node import Stage, Value
from qir.ir.ops import spec
from qir.ir.types import Array, QuantType, TensorType, uniform
from qir.ledger import Change, Ledger

RNG = np.random.default_rng(7)


def u8(scale: float, zero: int = 0) -> QuantType:
    return uniform(U8, np.array(scale, np.float32), zero)


def i8(*scales: float, axis: int | None = None) -> QuantType:
    numbers = np.array(scales, np.float32)
    return uniform(I8, numbers if axis is not None else numbers[0], 0, axis=axis)


def graph_of(*shape: int, element: QuantType | None = None) -> tuple[Graph, Value]:
    graph = Graph("net")
    return graph, graph.add("input", types=[TensorType(shape, element or F32)], name="x").result


def constant(graph: Graph, name: str, data: NDArray[Any], quant: QuantType | None = None) -> Value:
    array = Array.of(data, name)
    if quant is not None:
        array = Array(data, array.type.with_element(quant), name)
    return graph.constant(array)


def finish(graph: Graph, value: Value, ledger: Ledger | None = None) -> onnx.ModelProto:
    graph.add("output", {"y": value})
    model: onnx.ModelProto = to_model(graph, ledger if ledger is not None else Ledger())
    onnx.checker.check_model(model)
    return model


def run(model: onnx.ModelProto, **inputs: NDArray[Any]) -> NDArray[Any]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: NDArray[Any] = session.run(None, inputs)[0]
    return found


def ops(model: onnx.ModelProto) -> list[str]:
    return [n.op_type for n in model.graph.node]


def floats(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(size=shape).astype(np.float32)


# -- floats -------------------------------------------------------------------------------------


def test_products_with_bias_and_turned_operands_are_spelled_out() -> None:
    x, w, b = floats(2, 4, 5), floats(6, 5), floats(6)
    graph, value = graph_of(2, 4, 5)
    made = graph.add(
        "linear", {"x": value, "w": constant(graph, "w", w), "bias": constant(graph, "b", b)}
    )
    model = finish(graph, made.result)
    np.testing.assert_allclose(run(model, x=x), x @ w.T + b, rtol=1e-5, atol=1e-6)

    graph, value = graph_of(2, 5, 4)
    operands = {"a": value, "b": constant(graph, "w", w), "bias": constant(graph, "b", b)}
    made = graph.add("matmul", operands, {"trans_a": True, "trans_b": True})
    x = floats(2, 5, 4)
    expected = x.transpose(0, 2, 1) @ w.T + b
    np.testing.assert_allclose(run(finish(graph, made.result), x=x), expected, rtol=1e-5, atol=1e-6)


def test_channels_that_stand_last_are_moved_and_moved_back() -> None:
    graph, value = graph_of(1, 5, 6, 3)
    w = floats(4, 3, 1, 1)
    made = graph.add("conv2d", {"x": value, "w": constant(graph, "w", w)}, {"layout": "NHWC"})
    x = floats(1, 5, 6, 3)
    model = finish(graph, made.result)
    np.testing.assert_allclose(run(model, x=x), x @ w[:, :, 0, 0].T, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_batch_norm_works_on_any_axis(axis: int) -> None:
    shape = (3, 4, 5)
    graph, value = graph_of(*shape)
    numbers = {n: np.abs(floats(shape[axis])) + 1 for n in ("gamma", "beta", "mean", "var")}
    operands = {"x": value} | {n: constant(graph, n, a) for n, a in numbers.items()}
    made = graph.add("batch_norm", operands, {"axis": axis, "eps": 0.5})
    x = floats(*shape)
    spread = tuple(-1 if i == axis else 1 for i in range(3))
    g, b, m, v = (numbers[n].reshape(spread) for n in ("gamma", "beta", "mean", "var"))
    expected = (x - m) / np.sqrt(v + 0.5) * g + b
    np.testing.assert_allclose(run(finish(graph, made.result), x=x), expected, rtol=1e-5, atol=1e-6)


def test_results_have_their_names_also_where_a_value_has_two_or_is_an_input(tmp_path: Path) -> None:
    graph, value = graph_of(3)
    made = graph.add("relu", {"x": value}, name="r")
    one = constant(graph, "c", np.ones(2, np.float32))
    graph.add("output", {"a": made.result, "b": made.result, "again": value, "c": one, "x2": one})
    model = to_model(graph, Ledger())
    onnx.checker.check_model(model)
    assert [o.name for o in model.graph.output] == ["a", "b", "again", "c", "x2"]
    session = ort.InferenceSession(model.SerializeToString())
    found = session.run(None, {"x": np.array([-1, 0, 2], np.float32)})
    for array, expected in zip(
        found, ([0, 0, 2], [0, 0, 2], [-1, 0, 2], [1, 1], [1, 1]), strict=True
    ):
        np.testing.assert_array_equal(array, expected)


# -- integers --------------------------------------------------------------------------------------


def conv_group(
    quant: QuantType, *tails: tuple[str, dict[str, float]]
) -> tuple[Graph, Value, NDArray[np.uint8], NDArray[np.int8]]:
    """conv2d |> tails on integers."""
    source = u8(0.02, 120)
    graph, value = graph_of(1, 3, 6, 6, element=source)
    w = RNG.integers(-127, 128, (4, 3, 3, 3)).astype(np.int8)
    weight = constant(graph, "w", w, i8(0.01, 0.02, 0.005, 0.013, axis=0))
    attrs = spec("conv2d").complete_attrs({})
    kind = TensorType((1, 4, 4, 4), quant)
    stages = [
        Stage("conv2d", attrs, ("x", "w")),
        *(Stage(op, more, (), "x") for op, more in tails),
    ]
    made = graph.add_chain(stages, {"x": value, "w": weight}, kind, name="g")
    x = RNG.integers(0, 256, (1, 3, 6, 6)).astype(np.uint8)
    return graph, made.result, x, w


def convolved(x: NDArray[np.uint8], w: NDArray[np.int8]) -> NDArray[np.float64]:
    """The floats of that convolution."""
    real = (x.astype(np.float64) - 120) * np.float32(0.02)
    scales = np.array([0.01, 0.02, 0.005, 0.013], np.float32).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(real, (3, 3), (2, 3))
    weight = w * scales[:, None, None, None]
    return np.asarray(np.einsum("nchwij,ocij->nohw", windows, weight), np.float64)


RELU6 = ("clip", {"min": 0.0, "max": 6.0})


@pytest.mark.parametrize(
    ("quant", "tail", "alone"),
    [
        (u8(0.03, 0), ("relu", {}), True),
        (u8(0.03, 77), ("relu", {}), False),
        (u8(6 / 255, 0), RELU6, True),
        (u8(0.03, 0), RELU6, False),
        (u8(0.02, 0), RELU6, True),
        (u8(0.03, 0), ("clip", {"min": None, "max": 7.65}), True),
        (u8(0.03, 1), ("clip", {"min": 0.0, "max": None}), False),
    ],
)
def test_an_activation_is_written_only_where_saturation_does_not_do_it(
    quant: QuantType, tail: tuple[str, dict[str, float]], alone: bool
) -> None:
    graph, value, x, w = conv_group(quant, tail)
    ledger = Ledger()
    model = finish(graph, value, ledger)
    between = ["DequantizeLinear", "Relu" if tail[0] == "relu" else "Clip", "QuantizeLinear"]
    assert ops(model) == ["QLinearConv", *([] if alone else between)]
    assert [e.change for e in ledger] == ([] if alone else [Change.EXACT])
    low = 0.0 if tail[0] == "relu" else tail[1]["min"]
    high = None if tail[0] == "relu" else tail[1]["max"]
    real = np.clip(convolved(x, w), low, high)
    exact = real / float(quant.scales()) + int(quant.zeros())
    far = np.abs(exact - np.floor(exact) - 0.5) > 1e-4
    expected = np.clip(np.rint(exact), 0, 255)
    found = run(model, x=x)
    assert far.mean() > 0.9
    np.testing.assert_array_equal(found[far], expected[far])
    assert (found.min(), found.max()) == (expected.min(), expected.max())


def test_other_groups_are_refused_by_name() -> None:
    graph, value, _, _ = conv_group(u8(0.03, 3), ("sigmoid", {}))
    with pytest.raises(Refused, match=r"g: .* conv2d \|> sigmoid; `format='qdq'` would do"):
        finish(graph, value)


def test_ops_without_an_operator_on_integers_are_written_between_floats() -> None:
    quant, result = u8(0.05, 100), u8(0.02, 128)
    graph, value = graph_of(2, 6, element=quant)
    made = graph.add(
        "reduce_mean",
        {"x": value},
        {"axes": (1,), "keep": False},
        types=[TensorType((2,), result)],
        name="m",
    )
    ledger = Ledger()
    model = finish(graph, made.result, ledger)
    assert ops(model) == ["DequantizeLinear", "ReduceMean", "QuantizeLinear"]
    assert [(e.change, e.subject) for e in ledger] == [(Change.REGROUPED, "y")]
    x = RNG.integers(0, 256, (2, 6)).astype(np.uint8)
    real = ((x.astype(np.float64) - 100) * np.float32(0.05)).mean(1)
    np.testing.assert_array_equal(
        run(model, x=x), np.clip(np.rint(real / np.float32(0.02)) + 128, 0, 255)
    )


def test_a_raw_bias_between_floats_counts_in_units_of_the_accumulator() -> None:
    graph, value = graph_of(2, 3, element=u8(0.5, 10))
    w = np.array([[1, 2, 3], [4, 5, 6]], np.int8)
    operands = {
        "x": value,
        "w": constant(graph, "w", w, i8(0.25, 0.125, axis=0)),
        "bias": constant(graph, "b", np.array([8, 16], np.int32)),
    }
    made = graph.add("linear", operands, types=[TensorType((2, 2), F32)])
    around = graph.add("relu", {"x": made.result})
    x = np.array([[10, 11, 12], [13, 14, 9]], np.uint8)
    expected = ((x.astype(int) - 10) @ w.T.astype(int) + [8, 16]) * (0.5 * np.array([0.25, 0.125]))
    found = run(finish(graph, around.result), x=x)
    np.testing.assert_array_equal(found, np.maximum(expected, 0))


def test_requantize_goes_through_floats() -> None:
    graph, value = graph_of(256, element=u8(0.5, 100))
    made = graph.add("requantize", {"x": value}, types=[TensorType((256,), u8(0.25, 30))])
    x = np.arange(256, dtype=np.uint8)
    expected = np.clip((np.arange(256) - 100) * 2 + 30, 0, 255)
    np.testing.assert_array_equal(run(finish(graph, made.result), x=x), expected)


def test_padding_of_integers_is_with_the_code_of_the_value() -> None:
    graph, value = graph_of(2, element=u8(0.5, 100))
    made = graph.add("pad", {"x": value}, {"pads": (1, 2), "value": -3.0})
    found = run(finish(graph, made.result), x=np.array([1, 2], np.uint8))
    np.testing.assert_array_equal(found, [94, 1, 2, 94, 94])


def test_scales_and_zero_points_are_named_after_their_tensor_and_shared() -> None:
    graph, value = graph_of(4)
    quant = u8(0.5, 100)
    q = graph.add("quantize", {"x": value}, types=[TensorType((4,), quant)], name="q").result
    graph.set_lineage(q, value.lineage.then("coded"))
    d = graph.add("dequantize", {"x": q}, name="d").result
    model = finish(graph, d)
    assert [t.name for t in model.graph.initializer] == ["x_scale", "x_zero_point"]
    assert [list(n.input) for n in model.graph.node] == [
        ["x", "x_scale", "x_zero_point"],
        ["q", "x_scale", "x_zero_point"],
    ]


# -- what cannot be written ---------------------------------------------------------------------


def test_ops_of_other_frameworks_are_refused_by_name() -> None:
    graph, value = graph_of(4)
    made = graph.add(
        "foreign",
        {"xs.0": value},
        {"framework": "torch", "op": "aten::erf"},
        types=[TensorType((4,), F32)],
        name="e",
    )
    with pytest.raises(Refused, match=r"e: 'aten::erf' is torch's own and unknown to ONNX"):
        finish(graph, made.result)


def test_integers_with_narrow_bounds_are_made_by_a_function_unless_they_are_constants() -> None:
    narrow = uniform(U8, np.array(0.5, np.float32), 3, bounds=(0, 127))
    graph, value = graph_of(4)
    made = graph.add("quantize", {"x": value}, types=[TensorType((4,), narrow)])
    written = finish(graph, made.result)
    assert [f.domain for f in written.functions] == ["qir"]
    kept = uniform(I8, np.array(0.5, np.float32), 0, bounds=(-127, 127))
    for count, many in ((1, "1 constant"), (2, "2 constants")):
        graph, total = graph_of(2)
        for i in range(count):
            w = constant(graph, f"w{i}", np.array([-127, 127 - i], np.int8), kept)
            real = graph.add("dequantize", {"x": w}).result
            total = graph.add("add", {"a": total, "b": real}).result
        ledger = Ledger()
        finish(graph, total, ledger)
        said = f"that quantized values of {many} keep to, which no type of ONNX says"
        assert [(e.change, e.subject, e.reason) for e in ledger] == [
            (Change.DROPPED, "narrower bounds", said)
        ]


def test_an_unknown_format_is_told_with_the_known_ones(tmp_path: Path) -> None:
    graph, value = graph_of(4)
    graph.add("output", {"y": graph.add("relu", {"x": value}).result})
    with pytest.raises(
        UsageError, match="no format 'tflite'; it has qdq, qoperator, integer and nbits"
    ):
        OnnxRuntimeTarget().emit(graph, tmp_path / "m.onnx", Ledger(), format="tflite")
    assert not list(tmp_path.iterdir())


# -- files --------------------------------------------------------------------------------------


def test_large_models_keep_their_tensors_beside_them(tmp_path: Path) -> None:
    graph, value = graph_of(1000)
    big = constant(graph, "big", floats(1000))
    small = constant(graph, "small", np.array(2, np.float32))
    total = graph.add("mul", {"a": graph.add("add", {"a": value, "b": big}).result, "b": small})
    path = tmp_path / "m.onnx"
    save(finish(graph, total.result), path, limit=1000)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "m.onnx.data"}
    assert (tmp_path / "m.onnx.data").stat().st_size == 4000
    array = big.constant
    assert array is not None
    assert OnnxFrontend().load(path, Ledger())["big"].constant == array
    x = floats(1000)
    session = ort.InferenceSession(str(path))
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.add(x, array.data) * 2)


def test_the_same_graph_gives_the_same_bytes() -> None:
    graph, value, _, _ = conv_group(u8(0.03, 77), ("relu", {}))
    graph.add("output", {"y": value})
    texts = {to_model(g, Ledger()).SerializeToString() for g in (graph, graph, graph.copy())}
    assert len(texts) == 1


def test_i32_constants_that_are_integers_are_dequantized_without_a_zero_point() -> None:
    graph, value = graph_of(2)
    kind = uniform(I32, np.array([0.5, 0.25], np.float32), 0, axis=0)
    b = constant(graph, "b", np.array([3, -4], np.int32), kind)
    real = graph.add("dequantize", {"x": b}, name="br").result
    model = finish(graph, graph.add("add", {"a": value, "b": real}).result)
    found = run(model, x=np.zeros(2, np.float32))
    np.testing.assert_array_equal(found, [1.5, -1.0])
    assert len(model.graph.node[0].input) == 2


@pytest.mark.parametrize("zero", [0, 3])
@pytest.mark.parametrize("target", ["onnxruntime", "onnx"])
def test_integers_of_32_bits_are_read_and_never_made(
    tmp_path: Path, target: str, zero: int
) -> None:
    wide = uniform(I32, np.array(0.5, np.float32), zero)
    graph, x = graph_of(4)
    quantized = graph.add("quantize", {"x": x}, types=[TensorType((4,), wide)], name="q").result
    graph.add("output", {"y": graph.add("dequantize", {"x": quantized}).result})
    with pytest.raises(
        Refused, match=r"^q: QuantizeLinear makes quantized values of .* not of i32"
    ):
        pipeline.save(graph, tmp_path / "made.onnx", target=target)
    graph, x = graph_of(4, element=wide)
    graph.add("output", {"y": graph.add("dequantize", {"x": x}).result})
    pipeline.save(graph, tmp_path / "made.onnx", target=target)
    onnx.checker.check_model(onnx.load(tmp_path / "made.onnx"), full_check=True)
    feeds = {"x": np.array([-700, 3, 2, 1 << 30], np.int32)}
    found = ort.InferenceSession(tmp_path / "made.onnx").run(None, feeds)[0]
    assert np.array_equal(found, ((feeds["x"] - zero) * 0.5).astype(np.float32))


def test_integers_of_32_bits_by_computed_scales_are_refused(tmp_path: Path) -> None:
    graph, x = graph_of(4)
    scale = graph.add("input", types=[TensorType((), F32)], name="s").result
    kind = TensorType((4,), QuantType(I32, F32, None, ()))
    made = graph.add("quantize", {"x": x, "scale": scale}, types=[kind], name="q").result
    graph.add("output", {"y": graph.add("dequantize", {"x": made, "x.scale": scale}).result})
    with pytest.raises(
        Refused, match=r"^q: QuantizeLinear makes quantized values of .* not of i32"
    ):
        pipeline.save(graph, tmp_path / "made.onnx")
