"""What the fuzzer found, each as the smallest model that shows it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import InputError, PluginError, Refused, TypeRuleError
from qir.ir.text import parse
from qir.ir.verify import verify
from qir.ledger import Ledger

from .models import model, save

FLOAT = TensorProto.FLOAT
node = helper.make_node
pytestmark = pytest.mark.filterwarnings("error")


def told(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        pipeline.load(path)
    said = str(caught.value)
    assert "\n" not in said
    return said


@pytest.mark.skipif(onnx.defs.onnx_opset_version() < 27, reason="the operator is of opset 27")
def test_a_text_of_an_attribute_that_is_not_utf_8_is_told_in_words(tmp_path: Path) -> None:
    it = node("CausalConvWithState", ["x", "w"], ["y", "h"], "it", activation=b"\xb2ilu")
    sizes = {"x": (FLOAT, (1, 2, 8)), "w": (FLOAT, (2, 1, 3))}
    out = {"y": (FLOAT, None), "h": (FLOAT, None)}
    said = told(save(model([it], sizes, out, opset=27), tmp_path))
    assert said.endswith("node it (CausalConvWithState): its results have no shape: "
                         "a text in it is not UTF-8")  # fmt: skip


def test_a_reduction_that_gives_nothing_is_told(tmp_path: Path) -> None:
    nodes = [node("ReduceSum", ["x", "axes"], [], "it"), node("Relu", ["x"], ["y"])]
    given = {"x": (FLOAT, (2, 3)), "axes": (TensorProto.INT64, (1,))}
    said = told(save(model(nodes, given, {"y": (FLOAT, None)}), tmp_path))
    assert "node it (ReduceSum)" in said


SIGNAL = np.array([0x7FA00000], np.uint32).view(np.float32)[0]
"""A NaN that signals: NumPy warns where it is made wider."""


def test_scales_of_blocks_that_are_signaling_nans_are_found_in_silence() -> None:
    text = """array @s : 2x2xf32
    graph main {
      %x = input() : 2x4x!quant.uniform<i8:f32:{0:1, 1:2}, @s>
      output(y=%x)
    }"""
    found = verify(parse(text, {"s": np.full((2, 2), SIGNAL)}))
    assert [f.message for f in found] == ["%x: a scale is not finite"]


def test_positions_of_a_sparse_tensor_that_are_no_numbers_are_told_in_silence(
    tmp_path: Path,
) -> None:
    made = model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, (4,))}, {"y": (FLOAT, None)})
    sparse = made.graph.sparse_initializer.add(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.ones(1, np.float32), "w"))
    sparse.indices.CopyFrom(numpy_helper.from_array(np.array([SIGNAL]), "w_at"))
    assert "w" in told(save(made, tmp_path))


def test_megabytes_of_zeros_are_no_fields(tmp_path: Path) -> None:
    """A field has a number, so a run of zeros is not walked byte by byte."""
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[4 << 20], raw_data=bytes(16 << 20))
    made = model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, (1,))}, {"y": (FLOAT, None)})
    made.graph.initializer.append(tensor)
    data = made.SerializeToString()
    at = data.index(bytes(1 << 20)) - 4
    path = tmp_path / "m.onnx"
    path.write_bytes(data[:at] + b"\1" + data[at + 1 :])
    start = time.process_time()
    assert "m.onnx: " in told(path)
    assert time.process_time() - start < 2


BARE = '%y = foreign(xs.0=%x) {framework = "onnx", op = "Softplus", version = 21%s} : 2xf32'


def foreign(more: str) -> str:
    return f"graph main {{\n%x = input() : 2xf32\n{BARE.replace('%s', more)}\noutput(y=%y)\n}}"


def test_an_operator_that_no_file_had_takes_its_operands_in_order(tmp_path: Path) -> None:
    graph, x = parse(foreign("")), np.array([0, 1], np.float32)
    (y,) = pipeline.run(graph, {"x": x}).values()
    assert np.allclose(y, np.log1p(np.exp(x)))
    pipeline.save(graph, tmp_path / "m.onnx", target="onnx")
    (made,) = onnx.load(tmp_path / "m.onnx").graph.node
    assert (made.op_type, made.input, made.output) == ("Softplus", ["x"], ["y"])


@pytest.mark.parametrize(
    "more",
    [", slots = ((0, 1), (0,))", ', slots = ((0,), (0,)), attrs = (("a", (none, bytes"ff")),)'],
)
def test_an_operator_that_is_not_as_it_says_is_told(tmp_path: Path, more: str) -> None:
    graph = parse(foreign(more))
    with pytest.raises(PluginError, match=r"^y: onnx Softplus: its slots and attrs are not"):
        pipeline.run(graph, {"x": np.ones(2, np.float32)})
    with pytest.raises(Refused, match=r"^y: Softplus: its slots and attrs are not"):
        pipeline.save(graph, tmp_path / "m.onnx", target="onnx")


def integers(scale: float) -> onnx.ModelProto:
    """A product whose floats onnxruntime's own operator gives, with that scale of the weights."""
    names = ["x", "w", "xs", "ws", "", "z"]
    it = node("MatMulIntegerToFloat", names, ["y"], "it", domain="com.microsoft")
    numbers = {"xs": np.array(0.5, np.float32), "ws": np.array(scale, np.float32)}
    held: dict[str, NDArray[Any]] = {"w": np.ones((3, 2), np.uint8), **numbers}
    given = {"x": (TensorProto.UINT8, (2, 3)), "z": (TensorProto.UINT8, ())}
    return model([it], given, {"y": (FLOAT, (2, 2))}, held, domains=("com.microsoft",))


def test_a_scale_that_a_group_is_given_is_a_scale_or_the_operator_is_kept(tmp_path: Path) -> None:
    graph = pipeline.load(save(integers(0.25), tmp_path))
    assert graph["y"].node.op == "fused"
    text = str(graph).replace("constant(0.25)", "constant(-0.25)")
    assert "constant(-0.25)" in text
    errors = [
        str(f)
        for f in verify(parse(text, {"w": np.ones((3, 2), np.uint8)}))
        if f.severity == "error"
    ]
    assert len(errors) == 1
    assert errors[0].endswith("b.scale: a scale is not positive and finite [positive-scale]")
    kept = pipeline.load(save(integers(-0.25), tmp_path))
    assert kept["y"].node.op == "foreign"
    said = [f.message for f in verify(kept) if f.rule == "kept"]
    assert said == ["kept as onnx MatMulIntegerToFloat: its b_scale is not positive and finite"]


def test_moves_that_make_no_shape_are_one_finding() -> None:
    text = """array @s : 3xf32
    array @w : 3x1xi8
    graph main {
      %x = input() : 1073741824x1073741824x3x!quant.uniform<i8:f32:2, @s>
      %reals = dequantize(%x) : 1073741824x1073741824x3xf32
      %flat = flatten(%reals) {axis = 2} : 1x3xf32
      %w = constant(@w) : 3x1x!quant.uniform<i8:f32, 0.5>
      %v = dequantize(%w) : 3x1xf32
      %y = matmul(%flat, %v) : 1x1xf32
      output(y=%y)
    }"""
    graph = parse(text, {"s": np.ones(3, np.float32), "w": np.ones((3, 1), np.int8)})
    (error,) = [f for f in verify(graph) if f.severity == "error"]
    assert (error.node, error.rule) == ("flat", "types")


def test_parts_of_a_sparse_tensor_that_lie_beside_go_along(tmp_path: Path) -> None:
    sparse = onnx.SparseTensorProto(dims=[4])
    sparse.values.CopyFrom(numpy_helper.from_array(np.array([5], np.float32), "w"))
    at = TensorProto(name="w_at", data_type=TensorProto.INT64, dims=[1])
    at.data_location = TensorProto.EXTERNAL
    at.external_data.add(key="location", value="d.bin")
    sparse.indices.CopyFrom(at)
    (tmp_path / "d.bin").write_bytes(np.array([2], np.int64).tobytes())
    made = model([node("Add", ["x", "w"], ["y"])], {"x": (FLOAT, (4,))}, {"y": (FLOAT, (4,))})
    made.graph.sparse_initializer.append(sparse)
    graph = pipeline.load(save(made, tmp_path))
    (tmp_path / "into").mkdir()
    again = tmp_path / "into" / "m.onnx"
    pipeline.save(graph, again, target="onnx")
    (y,) = pipeline.run(pipeline.load(again), {"x": np.zeros(4, np.float32)}).values()
    assert y.tolist() == [0, 0, 5, 0]


def test_axes_of_a_count_that_nobody_can_hold_are_told(tmp_path: Path) -> None:
    it = node("ReduceSum", ["x", "axes"], ["y"], "it", keepdims=2**62, noop_with_empty_axes=0)
    given = {"x": (FLOAT, (2, 3)), "axes": (TensorProto.INT64, (0,))}
    graph = pipeline.load(save(model([it], given, {"y": (FLOAT, None)}), tmp_path))
    assert graph["y"].type.shape == (1, 1)


def test_a_chain_has_no_attributes_of_its_own() -> None:
    text = """graph main {
      %x = input() : 2xf32
      %y = relu(%x) |> abs : 2xf32
      output(y=%y)
    }"""
    graph = parse(text)
    with pytest.raises(TypeRuleError, match="y is a chain, whose stages have the attributes"):
        graph.set_attrs(graph["y"].node, kernel="k")


def test_what_is_moved_of_raw_numbers_is_read_with_its_meaning_behind(tmp_path: Path) -> None:
    """An input that is kept raw by one operator, and integers of another that are moved of it."""
    nodes = [
        node("QLinearAdd", "x s s x s z s z".split(), ["h"], domain="com.microsoft"),
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("QLinearMatMul", "x s z t s z s z".split(), ["y"]),
    ]
    held: dict[str, NDArray[Any]] = {"s": np.array(0.5, np.float32), "z": np.array(3, np.uint8)}
    quantized_values = (TensorProto.UINT8, (4, 4))
    outs = {"y": quantized_values, "h": (TensorProto.UINT8, None)}
    made = model(nodes, {"x": quantized_values}, outs, held, domains=("com.microsoft",))
    graph = pipeline.load(save(made, tmp_path))
    assert graph["h"].node.op == "foreign"
    assert [f for f in verify(graph) if f.severity == "error"] == []


def test_a_scan_over_batches_has_no_newer_form(tmp_path: Path) -> None:
    names = [helper.make_tensor_value_info(n, FLOAT, [2]) for n in ("s", "v", "t", "w")]
    nodes = [node("Add", ["s", "v"], ["t"]), node("Identity", ["t"], ["w"])]
    body = helper.make_graph(nodes, "body", names[:2], names[2:])
    it = node("Scan", ["", "a", "x"], ["y", "z"], "it", body=body, num_scan_inputs=1)
    given = {"a": (FLOAT, (1, 2)), "x": (FLOAT, (1, 3, 2))}
    outs = {"y": (FLOAT, (1, 2)), "z": (FLOAT, (1, 3, 2))}
    graph = pipeline.load(save(model([it], given, outs, opset=8), tmp_path))
    with pytest.raises(Refused, match="Scan of opset 8 goes over batches"):
        pipeline.save(graph, tmp_path / "again.onnx", format="qdq")


def test_a_zero_point_of_another_type_is_no_zero_point(tmp_path: Path) -> None:
    """Integers of 4 bits whose zero point says that they have 8."""
    held: dict[str, NDArray[Any]] = {"s": np.array(0.5, np.float32), "z": np.array(153, np.uint8)}
    nodes = [node("Transpose", ["x"], ["t"]), node("DequantizeLinear", ["t", "s", "z"], ["y"])]
    kinds = {"x": (TensorProto.UINT4, (4, 4))}
    made = model(nodes, kinds, {"y": (FLOAT, (4, 4))}, held, opset=21)
    with pytest.raises(InputError, match=r"x_zero_point has inconsistent type tensor\(uint8\)"):
        pipeline.load(save(made, tmp_path))


def test_a_mask_of_bytes_is_counted_in_operators_that_onnx_has(tmp_path: Path) -> None:
    domain = "com.microsoft"
    ins = "ids seg word pos sege g b mask".split()
    it = node("EmbedLayerNormalization", ins, ["y", "count"], domain=domain)
    tables = {"word": (9, 4), "pos": (5, 4), "sege": (2, 4), "g": (4,), "b": (4,)}
    held: dict[str, NDArray[Any]] = {n: np.ones(s, np.float32) for n, s in tables.items()}
    kinds = {n: (int(TensorProto.INT32), (2, 5)) for n in ("ids", "seg")}
    kinds["mask"] = (TensorProto.INT8, (2, 5))
    outs: dict[str, tuple[int, None]] = {"y": (FLOAT, None), "count": (TensorProto.INT32, None)}
    graph = pipeline.load(save(model([it], kinds, outs, held, domains=(domain,)), tmp_path))
    pipeline.save(graph, tmp_path / "parts.onnx", format="qdq", target="onnx")
    again = pipeline.load(tmp_path / "parts.onnx")
    mask = np.array([[1, 1, 0, 1, 0], [1, 1, 1, 1, 1]], np.int8)
    ids, seg = np.ones((2, 5), np.int32), np.zeros((2, 5), np.int32)
    feeds: dict[str, NDArray[Any]] = {"ids": ids, "seg": seg, "mask": mask}
    assert list(pipeline.run(again, feeds)["count"]) == [3, 5]


def test_a_scale_that_is_no_float_is_no_scale_of_a_product(tmp_path: Path) -> None:
    """An operator whose numbers make no sense is kept, and is nobody's program."""
    domain = "com.microsoft"
    it = node("MatMulIntegerToFloat", ["a", "b", "as", "bs", "az", "bz"], ["y"], domain=domain)
    held: dict[str, NDArray[Any]] = {
        "b": np.ones((4, 8), np.int8),
        "as": np.array(0.5, np.float32),
        "bs": np.ones(8, np.int8),
        "az": np.array(3, np.uint8),
        "bz": np.zeros(8, np.int8),
    }
    kinds = {"a": (TensorProto.UINT8, (2, 4))}
    outs = {"y": (FLOAT, (2, 8))}
    graph = pipeline.load(save(model([it], kinds, outs, held, domains=(domain,)), tmp_path))
    assert graph["y"].node.op == "foreign"
    assert [f for f in verify(graph) if f.severity == "error"] == []


@pytest.mark.parametrize("op", ["EmbedLayerNormalization", "QEmbedLayerNormalization"])
def test_an_embedding_without_a_table_is_kept_with_the_reason(tmp_path: Path, op: str) -> None:
    domain, quantized = "com.microsoft", op.startswith("Q")
    ins = ["ids", "seg", "word", "", "sege", "g", "b"]
    if quantized:
        ins += ["", "s", "", "s", "s", "s", "z", "", "z", "z", "z"]
    kind = np.uint8 if quantized else np.float32
    tables = {"word": (9, 4), "sege": (2, 4), "g": (4,), "b": (4,)}
    held: dict[str, NDArray[Any]] = {n: np.ones(s, kind) for n, s in tables.items()}
    if quantized:
        held |= {"s": np.array(0.5, np.float32), "z": np.array(3, np.uint8)}
    kinds = {n: (int(TensorProto.INT32), (2, 5)) for n in ("ids", "seg")}
    outs: dict[str, tuple[int, None]] = {"y": (FLOAT, None), "count": (TensorProto.INT32, None)}
    it = node(op, ins, ["y", "count"], domain=domain)
    graph = pipeline.load(save(model([it], kinds, outs, held, domains=(domain,)), tmp_path))
    assert graph["y"].node.attrs["why"] == "it has no table of words, or none of positions"


def test_a_zero_point_beside_codes_of_another_type_is_told(tmp_path: Path) -> None:
    """Signed integers, whose zero point says 200."""
    domain = "com.microsoft"
    it = node("MatMulIntegerToFloat", ["a", "b", "as", "bs", "az"], ["y"], domain=domain)
    held: dict[str, NDArray[Any]] = {
        "b": np.ones((4, 8), np.int8),
        "bs": np.array(0.5, np.float32),
        "az": np.array(200, np.uint8),
    }
    kinds = {"a": (TensorProto.INT8, (2, 4)), "as": (FLOAT, ())}
    outs = {"y": (FLOAT, (2, 8))}
    graph = pipeline.load(save(model([it], kinds, outs, held, domains=(domain,)), tmp_path))
    assert graph["y"].node.attrs["why"] == "its a_zero_point is outside -128..127"


@pytest.mark.parametrize("op", ["DynamicQuantizeLSTM", "DynamicQuantizeMatMul"])
def test_what_quantizes_other_reals_than_f32_as_it_runs_is_kept(tmp_path: Path, op: str) -> None:
    domain, kind = "com.microsoft", TensorProto.BFLOAT16
    held: dict[str, NDArray[Any]] = {"s": np.array([0.5], np.float32), "z": np.zeros(1, np.int8)}
    if op.endswith("LSTM"):
        sizes: tuple[int, ...] = (4, 2, 3)
        out: tuple[int, ...] = (4, 1, 2, 5)
        held |= {n: np.ones((1, k, 20), np.int8) for n, k in (("w", 3), ("r", 5))}
        it = node(op, ["x", "w", "r", *[""] * 5, *"szsz"], ["y"])
        it.attribute.append(helper.make_attribute("hidden_size", 5))
    else:
        sizes, out = (2, 3), (2, 20)
        held["w"] = np.ones((3, 20), np.int8)
        it = node(op, ["x", "w", "s", "z"], ["y"])
    it.domain = domain
    made = model([it], {"x": (kind, sizes)}, {"y": (kind, out)}, held, domains=(domain,))
    graph = pipeline.load(save(made, tmp_path))
    assert graph["y"].node.attrs["why"] == "bf16 is not quantized as it runs"


@pytest.mark.parametrize("text", [b"\xff", "\u00e9".encode()])
def test_texts_that_are_no_ascii_come_through_what_is_kept(tmp_path: Path, text: bytes) -> None:
    made = model(
        [node("StringNormalizer", ["w"], ["y"], "it")], {}, {"y": (TensorProto.STRING, None)}
    )
    made.graph.initializer.append(
        TensorProto(name="w", data_type=TensorProto.STRING, dims=[2], string_data=[b"a", text])
    )
    graph = pipeline.load(save(made, tmp_path))
    pipeline.save(graph, tmp_path / "again.onnx", opset=18)
    again = onnx.load(tmp_path / "again.onnx")
    assert list(again.graph.initializer[0].string_data) == [b"a", text]


def test_a_group_norm_of_an_older_set_that_gives_nothing_is_told(tmp_path: Path) -> None:
    it = node("GroupNormalization", ["x", "s", "b"], [""], "it", num_groups=3)
    given = {n: (FLOAT, z) for n, z in (("x", (2, 6, 4)), ("s", (3,)), ("b", (3,)))}
    nodes = [it, node("Relu", ["x"], ["y"])]
    said = told(save(model(nodes, given, {"y": (FLOAT, None)}, opset=18), tmp_path))
    assert said.endswith("node it (GroupNormalization): its result has no name")


def test_an_axis_that_no_tensor_has_is_told_and_ends_no_process(tmp_path: Path) -> None:
    it = node("LayerNormalization", ["x", "w"], ["y", "mean"], "it", axis=1 << 31)
    given = {"x": (FLOAT, (2, 3, 4)), "w": (FLOAT, (4,))}
    outs = {"y": (FLOAT, None), "mean": (FLOAT, None)}
    said = told(save(model([it], given, outs, opset=17), tmp_path))
    assert said.endswith("attribute 'axis' is 2147483648: no tensor has such an axis")


def test_words_of_another_type_than_embeddings_take_are_kept(tmp_path: Path) -> None:
    names = ["ids", "", "w", "p", "", "g", "b"]
    it = node("EmbedLayerNormalization", names, ["y", "count"], "it", domain="com.microsoft")
    given = {"ids": (TensorProto.INT16, (2, 5))}
    sizes = {"w": (9, 4), "p": (7, 4), "g": (4,), "b": (4,)}
    held = {n: np.ones(size, np.float32) for n, size in sizes.items()}
    outs = {"y": (FLOAT, None), "count": (TensorProto.INT32, None)}
    graph = pipeline.load(save(model([it], given, outs, held, domains=["com.microsoft"]), tmp_path))
    assert graph["y"].node.op == "foreign"
    with pytest.raises(Refused, match="its words are i16"):
        pipeline.save(graph, tmp_path / "again.onnx", target="onnx")


def test_scales_of_more_axes_than_one_are_told(tmp_path: Path) -> None:
    it = node("Upsample", ["x", "s"], ["y"], "it")
    given = {"x": (FLOAT, (1, 1, 12, 2)), "s": (FLOAT, (1, 1, 6))}
    said = told(save(model([it], given, {"y": (FLOAT, None)}, opset=9), tmp_path))
    assert said.endswith("node it (Upsample): its scales have 3 axes")


def test_a_window_as_wide_as_numbers_go_is_told_each_time(tmp_path: Path) -> None:
    it = node("NhwcMaxPool", ["x"], ["y"], "it", domain="com.microsoft", kernel_shape=[1 << 31] * 2,
              pads=[1, 0, 1, 1], strides=[2, 1])  # fmt: skip
    given = {"x": (TensorProto.UINT8, (2, 7, 6, 5))}
    outs = {"y": (TensorProto.UINT8, None)}
    path = save(model([it], given, outs, domains=["com.microsoft"]), tmp_path)
    graph = pipeline.load(path)
    assert graph["y"].node.op == "foreign"
    pipeline.save(graph, tmp_path / "again.onnx", force=True, format="qoperator")
    assert pipeline.load(tmp_path / "again.onnx")["y"].node.op == "foreign"


def test_a_text_in_a_function_that_is_not_utf_8_is_told_in_words(tmp_path: Path) -> None:
    inside = node("Relu", ["a"], ["b"], alpha=1.0)
    made = model(
        [node("F", ["x"], ["y"], domain="own")], {"x": (FLOAT, (2,))}, {"y": (FLOAT, None)}
    )
    made.opset_import.add(domain="own", version=1)
    function = helper.make_function(
        "own", "F", ["a"], ["b"], [inside], [helper.make_opsetid("", 17)]
    )
    made.functions.append(function)
    data = made.SerializeToString()
    path = tmp_path / "m.onnx"
    path.write_bytes(data.replace(b"alpha", b"al\x9dha"))
    said = told(path)
    assert "codec" not in said
    assert "not UTF-8" in said


def test_what_a_kept_graph_reads_is_renamed_though_it_is_an_operand_too(tmp_path: Path) -> None:
    """The condition has another name since bodies have one of its name."""

    def branch(name: str, *nodes: onnx.NodeProto) -> onnx.GraphProto:
        out = helper.make_tensor_value_info(name, FLOAT, None)
        return helper.make_graph(list(nodes), name, [], [out])

    def chosen(name: str, of: onnx.GraphProto, other: onnx.GraphProto) -> onnx.NodeProto:
        return node("If", ["c"], [name], then_branch=of, else_branch=other)

    def leaf(name: str) -> onnx.GraphProto:
        return branch(name, node("Mul", ["x", "k"], [name]))

    rest = branch("r", node("ReduceSum", ["x"], ["r"], keepdims=0))
    inner = chosen("w", branch("d", chosen("d", leaf("d0"), leaf("d1"))), rest)
    odd = branch("o", inner, node("Shape", ["w"], ["s"]), node("Reshape", ["w", "s"], ["o"]))
    first = chosen("y", branch("t", chosen("t", leaf("t0"), leaf("t1"))), leaf("e"))
    second = chosen("v", odd, leaf("v0"))
    held = {"k": np.array(2, np.float32), "c": np.array(True)}
    given, outs = {"x": (FLOAT, (4, 6))}, {n: (FLOAT, None) for n in "yv"}
    graph = pipeline.load(save(model([first, second], given, outs, held, opset=19), tmp_path))
    assert graph["v"].node.op == "foreign"
    pipeline.save(graph, tmp_path / "again.onnx", opset=20)
    x = np.arange(24, dtype=np.float32).reshape(4, 6)
    found = pipeline.run(pipeline.load(tmp_path / "again.onnx"), {"x": x})
    assert all(np.array_equal(a, 2 * x) for a in found.values())


@pytest.mark.parametrize("rows", [(7, 4), (0, 4), (5, 1, 4), (4,), (5, 8), (5, 4)])
def test_experts_whose_router_has_other_rows_or_experts_are_kept(
    rows: tuple[int, ...], tmp_path: Path
) -> None:
    quantized_values = {f"w{i}": np.full((4, 8, 4), 0x87, np.uint8) for i in (1, 2)}
    gains = {f"s{i}": np.full((4, 8), 0.1, np.float32) for i in (1, 2)}
    read = ["x", "r", "w1", "s1", "", "w2", "s2", ""]
    it = node("QMoE", read, ["y"], "it", domain="com.microsoft", k=2, activation_type="relu")
    given, held = {"x": (FLOAT, (5, 8)), "r": (FLOAT, rows)}, dict[str, NDArray[Any]]()
    held |= quantized_values | gains
    made = model([it], given, {"y": (FLOAT, None)}, held, domains=["com.microsoft"])
    graph = pipeline.load(save(made, tmp_path), ledger=(ledger := Ledger()))
    assert {f.rule for f in verify(graph)} <= {"kept"}
    why = "its router chooses among other experts than it has"
    why = why if rows == (5, 8) else "its router has other rows than its data"
    assert any(why in entry.reason for entry in ledger) == (rows != (5, 4))
    kept = [n.op == "foreign" for n in graph if n.op in ("foreign", "fused")]
    assert kept == [rows != (5, 4)]
    pipeline.save(graph, tmp_path / "again.onnx", force=True)
    assert [n.op_type for n in onnx.load(tmp_path / "again.onnx").graph.node] == ["QMoE"]
