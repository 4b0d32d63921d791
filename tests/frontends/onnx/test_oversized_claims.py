"""Small files that ask for much: refused in one line, in little time and memory."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from qir import pipeline
from qir.errors import InputError, OpError
from qir.frontends.onnx.elements import SparseBudget

from .models import save

FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
node, info = helper.make_node, helper.make_tensor_value_info
OPSETS = [helper.make_opsetid("", 19), helper.make_opsetid("mine", 1)]


def net(
    nodes: Sequence[onnx.NodeProto],
    held: dict[str, object] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    tensors = [numpy_helper.from_array(np.asarray(a), n) for n, a in (held or {}).items()]
    graph = helper.make_graph(
        list(nodes), "g", [info("x", FLOAT, [4])], [info("y", FLOAT, None)], tensors
    )
    return helper.make_model(graph, functions=list(functions), opset_imports=OPSETS, ir_version=9)


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        pipeline.load(path)
    said = str(caught.value)
    assert "\n" not in said
    assert len(said) < 240
    return said


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """Calls one after the other."""
    names = ["a", *(f"t{i}" for i in range(len(calls) - 1)), "b"]
    steps = zip(calls, names, names[1:], strict=False)
    body = [node(call, [a], [b], domain="" if call == "Relu" else "mine") for call, a, b in steps]
    return helper.make_function("mine", name, ["a"], ["b"], body, OPSETS)


def call(name: str) -> list[onnx.NodeProto]:
    return [node(name, ["x"], ["y"], domain="mine")]


def test_functions_that_double_forty_times_are_not_written_out(tmp_path: Path) -> None:
    made = [function("F0", "Relu", "Relu")]
    made += [function(f"F{i}", f"F{i - 1}", f"F{i - 1}") for i in range(1, 40)]
    said = refused(save(net(call("F39"), functions=made), tmp_path))
    assert "functions: written out they are 1099511627776 operators" in said
    ten = save(net(call("F9"), functions=made[:10]), tmp_path)
    assert sum(n.op == "relu" for n in pipeline.load(ten)) == 1024


def test_functions_with_large_constants_count_by_their_bytes(tmp_path: Path) -> None:
    data = numpy_helper.from_array(np.zeros(1 << 18, np.float32), "k")
    first = function("F0", "Relu")
    first.node.insert(0, node("Constant", [], ["k"], value=data))
    made = [first, *(function(f"F{i}", f"F{i - 1}", f"F{i - 1}") for i in range(1, 13))]
    assert "of 2 GiB are read" in refused(save(net(call("F12"), functions=made), tmp_path))


def test_functions_with_large_attributes_count_by_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qir.frontends.onnx.files._MAX_FILE_BYTES", 1 << 24)
    made = function("F", "Relu")
    made.attribute.append("t")
    for i in range(20):
        part = node("Constant", [], [f"k{i}"])
        part.attribute.add(name="value", ref_attr_name="t", type=onnx.AttributeProto.TENSOR)
        made.node.append(part)
    data = numpy_helper.from_array(np.zeros(1 << 18, np.float32), "k")
    calls = [node("F", ["x"], ["y"], domain="mine", t=data)]
    assert "hold more than" in refused(save(net(calls, functions=[made]), tmp_path))


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ([function("F", "F")], "recursive"),
        ([function("F", "G"), function("G", "F")], "recursive"),
        ([function("F", "F0"), function("F0", "Relu")], ""),
    ],
)
def test_functions_that_call_themselves_are_told(
    tmp_path: Path, made: list[onnx.FunctionProto], said: str
) -> None:
    path = save(net(call("F"), functions=made), tmp_path)
    if said:
        assert said in refused(path)
    else:
        assert pipeline.load(path)["y"].node.op == "relu"


def test_functions_a_thousand_deep_are_told(tmp_path: Path) -> None:
    made = [function("F0", "Relu"), *(function(f"F{i}", f"F{i - 1}") for i in range(1, 1000))]
    assert "functions" in refused(save(net(call("F999"), functions=made), tmp_path))


def test_graphs_in_graphs_are_read_as_deep_as_messages_go(tmp_path: Path) -> None:
    def branch(depth: int) -> onnx.GraphProto:
        out = f"o{depth}"
        inner = node("Relu", ["x"], [out])
        if depth:
            inner = node("If", ["c"], [out], then_branch=branch(depth - 1), else_branch=flat(depth))
        return helper.make_graph([inner], f"g{depth}", [], [info(out, FLOAT, None)])

    def flat(depth: int) -> onnx.GraphProto:
        out = f"e{depth}"
        return helper.make_graph([node("Relu", ["x"], [out])], out, [], [info(out, FLOAT, None)])

    body = node("If", ["c"], ["y"], then_branch=branch(25), else_branch=flat(99))
    graph = pipeline.load(save(net([body], {"c": np.array(True)}), tmp_path))
    assert sum(1 for _ in graph.walk()) == 53
    deeper = net([node("If", ["c"], ["y"], then_branch=branch(25), else_branch=flat(99))])
    whole = deeper.SerializeToString()
    inner = whole
    for _ in range(40):  # a field of a field of a field
        inner = b"\x3a" + _length(len(inner)) + inner
    path = tmp_path / "deep.onnx"
    path.write_bytes(inner)
    refused(path)


def _length(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def test_sparse_tensors_have_room_for_their_zeros_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SparseBudget.limit == 1 << 26
    monkeypatch.setattr(SparseBudget, "limit", 1 << 20)
    made = net([])
    for i in range(9):
        values = numpy_helper.from_array(np.ones(1), f"w{i}")
        at = numpy_helper.from_array(np.zeros(1, np.int64), f"a{i}")
        made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, at, [1 << 14]))
        made.graph.node.append(node("Shape", [f"w{i}"], [f"y{i}"]))
    made.graph.output[0].CopyFrom(info("y0", TensorProto.INT64, [1]))
    path = save(made, tmp_path)
    assert "tensor w8: sparse, of shape [16384]; with their zeros" in refused(path)


@pytest.mark.parametrize("sizes", [[1 << 33], [1 << 31, 1 << 31], [1 << 40]])
def test_a_tensor_that_no_memory_holds_is_told_when_it_is_made(
    tmp_path: Path, sizes: list[int]
) -> None:
    steps = [
        node("ConstantOfShape", ["s"], ["k"]),
        node("ReduceSum", ["k"], ["r"], keepdims=0),
        node("Add", ["x", "r"], ["y"]),
    ]
    path = save(net(steps, {"s": np.array(sizes)}), tmp_path)
    graph = pipeline.load(path)
    pipeline.save(graph, tmp_path / "again.onnx")
    if sizes[0] > 1 << 33 or len(sizes) > 1:  # 32 GB may be there
        with pytest.raises(OpError, match="does not fit into the memory"):
            pipeline.run(graph, {"x": np.ones(4, np.float32)})


@pytest.mark.parametrize(
    ("steps", "held", "said"),
    [
        ([node("Unsqueeze", ["x", "a"], ["y"])], np.arange(100_000), "a tensor of 100001 axes"),
        ([node("Pad", ["x", "a"], ["y"])], np.array([1 << 61, 1 << 61]), "an axis of"),
        ([node("Tile", ["x", "a"], ["y"])], np.array([1 << 62]), "an axis of"),
        ([node("Split", ["x"], [f"s{i}" for i in range(9999)], num_outputs=9999)], 0, "(Split)"),
    ],
)
def test_sizes_that_no_tensor_has_are_told(
    tmp_path: Path, steps: list[onnx.NodeProto], held: object, said: str
) -> None:
    assert said in refused(save(net(steps, {"a": held}), tmp_path))


def test_a_device_that_never_ends_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qir.frontends.onnx.files._MAX_FILE_BYTES", 1 << 20)
    path = tmp_path / "zero.onnx"
    path.symlink_to("/dev/zero")
    assert "does not end before 2 GiB" in refused(path)


def test_a_pipe_is_read_like_a_file(tmp_path: Path) -> None:
    data = net([node("Relu", ["x"], ["y"])]).SerializeToString()
    path = tmp_path / "pipe.onnx"
    os.mkfifo(path)
    if os.fork() == 0:  # who writes
        path.write_bytes(data)
        os._exit(0)
    assert pipeline.load(path)["y"].node.op == "relu"
    os.wait()


# -- damage that only shows when all is put together ----------------------------------------------


def _cut(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")


def _few(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.float_data.extend([1.0, 2.0])


@pytest.mark.parametrize("harm", [_cut, _few])
def test_a_tensor_without_its_data_is_told_in_our_words(
    tmp_path: Path, harm: Callable[[onnx.ModelProto], None]
) -> None:
    made = net([node("Add", ["x", "w"], ["y"])], {"w": np.ones(4, np.float32)})
    harm(made)
    said = refused(save(made, tmp_path))
    assert said.endswith("tensor w: its data do not make up [4] of f32")


@pytest.mark.parametrize("names", [[""], ["x", ""], []])
def test_an_operand_that_is_absent_at_the_end_is_told(tmp_path: Path, names: list[str]) -> None:
    said = refused(save(net([node("Mul", names, ["y"], "it")]), tmp_path))
    assert "node it (Mul): " in said
    assert "lacks operand" in said or "operands" in said


def test_a_group_whose_numbers_do_not_fit_is_told(tmp_path: Path) -> None:
    gemm = node("QGemm", "A as az B bs bz".split(), ["y"], "it", domain="com.microsoft")
    held = {
        "as": np.float32(0.1),
        "az": np.uint8(3),
        "B": np.ones((4, 5), np.uint8),
        "bs": np.float32(0.1),
    }
    made = net([gemm], held)
    made.graph.input[0].CopyFrom(info("A", TensorProto.UINT8, [2, 4]))
    made.graph.input.append(info("bz", TensorProto.UINT8, [3, 9]))
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    said = refused(save(made, tmp_path))
    assert "y (onnx QGemm it): b.zero is 3x9xu8, and a whole tensor has one" in said


def test_a_function_whose_name_is_no_text_and_that_nobody_calls_is_passed_over(
    tmp_path: Path,
) -> None:
    made = net([node("Relu", ["x"], ["y"])], functions=[function("Quantize_a", "Relu")])
    data = made.SerializeToString().replace(b"Quantize_a", b"Quantize_\xff")
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert pipeline.load(path)["y"].node.op == "relu"


def test_many_sizes_whose_names_become_one_and_many_outputs_take_little_time(
    tmp_path: Path,
) -> None:
    """A second here; minutes where each name is looked for among all others."""
    count = 20_000
    marks = ["".join("-+*/"[i >> 2 * k & 3] for k in range(8)) for i in range(count)]
    made = net([node("Relu", [f"x{i}"], [f"y{i}"]) for i in range(count)])
    made.graph.ClearField("input")
    made.graph.ClearField("output")
    made.graph.input.extend(info(f"x{i}", FLOAT, [f"n{m}"]) for i, m in enumerate(marks))
    made.graph.output.extend(info(f"y{i}", FLOAT, None) for i in range(count))
    path = save(made, tmp_path)
    start = time.process_time()
    graph = pipeline.load(path)
    assert time.process_time() - start < 15
    assert len({str(v.type.shape) for v in graph.inputs}) == count


def test_an_operator_of_onnxruntime_that_lacks_its_parts_is_told(tmp_path: Path) -> None:
    made = net([node("FastGelu", [], ["y"], "it", domain="com.microsoft")])
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    said = refused(save(made, tmp_path))
    assert said.endswith("node it (FastGelu): 0 operands, 1 results: not as its operator is")


def test_axes_that_are_one_number_do_not_stop_the_reader(tmp_path: Path) -> None:
    made = net([node("ReduceSum", ["x", "a"], ["y"], "it")])
    made.graph.input.append(info("a", TensorProto.INT64, []))
    assert pipeline.load(save(made, tmp_path))["y"].node.op == "foreign"
