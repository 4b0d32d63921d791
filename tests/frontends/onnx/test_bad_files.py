"""Files that are damaged, or not what they say: one line that names file and place."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from qir.errors import InputError, QirError
from qir.frontends.onnx import OnnxFrontend
from qir.ledger import Ledger
from qir.reference.interpreter import run

from .models import conv_net, model, quantized, save

FLOAT = TensorProto.FLOAT


def message(path: Path) -> str:
    """What reading says; it is one line, short, and names the file."""
    with pytest.raises(InputError) as caught:
        OnnxFrontend().load(path, Ledger())
    text = str(caught.value)
    assert len(text) < 240
    assert "\n" not in text
    assert path.name in text
    return text


def relu(**changes: object) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], "first"),
        helper.make_node("Relu", ["h"], ["y"]),
    ]
    return model(nodes, {"x": (FLOAT, [2])}, {"y": (FLOAT, [2])}, {"c": np.ones(4, np.float32)})


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    assert "does not exist" in message(tmp_path / "missing.onnx")
    assert "folder" in message(tmp_path)


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x1a\n" + bytes(100), b"PK\x03\x04rest", b"\0"])
def test_foreign_bytes_are_told(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert "model" in message(path) or "empty" in message(path)


@pytest.mark.parametrize("nodes", [0, 1])
def test_a_graph_without_results_is_told_as_that(tmp_path: Path, nodes: int) -> None:
    held = [helper.make_node("Relu", ["x"], ["h"])][:nodes]
    x = helper.make_tensor_value_info("x", FLOAT, [2])
    path = save(helper.make_model(helper.make_graph(held, "e", [x][:nodes], [])), tmp_path)
    onnx.checker.check_model(str(path))
    assert message(path).endswith("outputs: there is none, so nothing is asked for")
    bare = save(helper.make_model(helper.make_graph([], "", [], [])), tmp_path)
    assert message(bare).endswith("is no ONNX model: it holds no graph")


def test_a_file_beyond_what_protobuf_holds_is_told_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.onnx"
    with path.open("wb") as stream:
        stream.truncate(3 << 30)
    assert "2 GiB" in message(path)


def _cycle(m: onnx.ModelProto) -> None:
    m.graph.node[0].input[0] = "y"


def _twice(m: onnx.ModelProto) -> None:
    m.graph.node[1].output[0] = "h"


def _missing(m: onnx.ModelProto) -> None:
    m.graph.node[0].input[0] = "nobody"


def _no_output(m: onnx.ModelProto) -> None:
    m.graph.output[0].name = "nobody"


def _unknown_op(m: onnx.ModelProto) -> None:
    m.graph.node[0].op_type = "Rleu"


def _unknown_domain(m: onnx.ModelProto) -> None:
    m.graph.node[0].domain = "org.nobody"


def _old(m: onnx.ModelProto) -> None:
    m.opset_import[0].version = 6


def _future(m: onnx.ModelProto) -> None:
    m.opset_import[0].version = 999


def _negative(m: onnx.ModelProto) -> None:
    m.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -5


def _attribute(m: onnx.ModelProto) -> None:
    m.graph.node[0].attribute.append(helper.make_attribute("alpha", 1.0))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_cycle, "node first (Relu): needs its own result: the graph has a cycle"),
        (_twice, "node 1 (Relu): makes 'h', which is made elsewhere"),
        (_missing, "node first (Relu): reads 'nobody', which nothing makes"),
        (_no_output, "output nobody: nothing makes it"),
        (_unknown_op, "node first (Rleu): is no operator of opset 17"),
        (_unknown_domain, "domain 'org.nobody', which the file does not import"),
        (_old, "uses opset 6; 7 to"),
        (_future, "uses opset 999; 7 to"),
        (_negative, "a size of -5"),
        (_attribute, "opset 17 has no attribute 'alpha'"),
    ],
)
def test_faults_of_structure_name_the_place(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], expected: str
) -> None:
    proto = relu()
    change(proto)
    assert expected in message(save(proto, tmp_path))


def test_a_tensor_whose_data_do_not_fill_its_shape_is_told(tmp_path: Path) -> None:
    for dims in ([5], [-4], [1 << 40, 1 << 40]):
        proto = relu()
        proto.graph.node[1].op_type = "Add"
        proto.graph.node[1].input.append("c")
        proto.graph.initializer[0].dims[:] = dims
        assert "tensor c: " in message(save(proto, tmp_path))


def test_shapes_that_do_not_fit_an_op_name_the_node(tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv")
    w = np.ones((4, 3, 3, 3), np.float32)
    proto = model([node], {"x": (FLOAT, [1, 2, 8, 8])}, {"y": (FLOAT, None)}, {"w": w})
    assert "node conv (Conv): conv2d: x has 2 channels" in message(save(proto, tmp_path))


# -- data beside the model ----------------------------------------------------------------------


def external(folder: Path, location: str, length: int | None = 16, offset: int | str = 0) -> Path:
    nodes = [helper.make_node("Add", ["x", "c"], ["y"])]
    proto = model(nodes, {"x": (FLOAT, [4])}, {"y": (FLOAT, [4])}, {"c": np.ones(4, np.float32)})
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return save(proto, folder)


def test_data_beside_the_model_are_read(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(bytes(8) + np.arange(4, dtype=np.float32).tobytes())
    graph = OnnxFrontend().load(external(tmp_path, "d.bin", 16, 8), Ledger())
    array = graph["c"].constant
    assert array is not None
    np.testing.assert_array_equal(array.data, [0, 1, 2, 3])


def test_data_without_a_length_are_as_long_as_their_type_says(tmp_path: Path) -> None:
    held = np.arange(9, dtype=np.float32)
    (tmp_path / "d.bin").write_bytes(held.tobytes())
    x = np.zeros(4, np.float32)
    for first in (0, 1, 5):
        path = external(tmp_path, "d.bin", None, 4 * first)
        found = run(OnnxFrontend().load(path, Ledger()), {"x": x})["y"]
        assert np.array_equal(found, held[first : first + 4])
        assert np.array_equal(ort.InferenceSession(path).run(None, {"x": x})[0], found)
    said = message(external(tmp_path, "d.bin", None, 24))
    assert "tensor c: bytes 24 to 40 of 'd.bin', which holds 36" in said


def test_numbers_of_bytes_below_zero_are_told(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(bytes(64))
    assert "tensor c: its length is -3, below 0" in message(external(tmp_path, "d.bin", -3))
    assert "tensor c: its offset is -8, below 0" in message(external(tmp_path, "d.bin", 16, -8))


@pytest.mark.parametrize("location", ["../secret.bin", "/etc/passwd", "link.bin", "a/../../s", ""])
def test_data_outside_the_models_folder_are_not_read(tmp_path: Path, location: str) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "secret.bin").write_bytes(bytes(16))
    os.symlink(tmp_path / "secret.bin", inner / "link.bin")
    assert "folder" in message(external(inner, location))


@pytest.mark.parametrize(("length", "offset"), [(16, 8), (8, 0), (-3, 0), (16, -1), (1 << 50, 0)])
def test_data_of_the_wrong_size_are_told(tmp_path: Path, length: int, offset: int) -> None:
    (tmp_path / "d.bin").write_bytes(bytes(20))
    assert "tensor c: " in message(external(tmp_path, "d.bin", length, offset))


@pytest.mark.parametrize("offset", ["abc", "", "1.5", "9" * 5000, " 0 ", "0\n", "+0"])
def test_an_offset_that_is_no_number_is_told(tmp_path: Path, offset: str) -> None:
    (tmp_path / "d.bin").write_bytes(bytes(20))
    said = message(external(tmp_path, "d.bin", 16, offset))
    assert "tensor c: its offset " in said
    assert said.endswith("is no number of bytes that a file has")


def test_links_that_lead_nowhere_or_to_a_second_name_are_told(tmp_path: Path) -> None:
    (tmp_path / "round.bin").symlink_to("round.bin")
    assert "cannot be found" in message(external(tmp_path, "round.bin"))
    assert "tensor c: " in message(external(tmp_path, "é" * 400))
    (tmp_path / "secret").write_bytes(bytes(16))
    os.link(tmp_path / "secret", tmp_path / "hard.bin")
    said = message(external(tmp_path, "hard.bin"))
    assert "'hard.bin' has another name (a hard link); copy it" in said


PLACES = ["file:///etc/passwd", "http://h/d.bin", "D.BIN", "d.bin\0x", "~/d"]


@pytest.mark.parametrize("place", [*PLACES, "d.bin/", "d.bin/.", "in\\d.bin", ".\\d.bin"])
def test_a_place_is_a_path_and_nothing_else(tmp_path: Path, place: str) -> None:
    (tmp_path / "in").mkdir()
    for path in (tmp_path / "d.bin", tmp_path / "in" / "d.bin"):
        path.write_bytes(bytes(16))
    assert "tensor c: its data" in message(external(tmp_path, place))
    if "\0" not in place:
        with pytest.raises(Exception, match="External data path"):
            ort.InferenceSession(external(tmp_path, place))


def test_a_length_of_nothing_is_one(tmp_path: Path) -> None:
    """As the `onnx` package has it; onnxruntime takes it for none."""
    (tmp_path / "d.bin").write_bytes(bytes(16))
    path = external(tmp_path, "d.bin", 0)
    said = "tensor c: its length is 0, where [4] of f32 takes 16 bytes; state that, or none"
    assert said in message(path)
    with pytest.raises(ValueError, match="reshape"):
        onnx.numpy_helper.to_array(onnx.load(path).graph.initializer[0])
    ort.InferenceSession(path)


def test_texts_beside_a_model_are_told(tmp_path: Path) -> None:
    (tmp_path / "d.bin").write_bytes(bytes(16))
    proto = onnx.load(external(tmp_path, "d.bin"), load_external_data=False)
    proto.graph.initializer[0].data_type = TensorProto.STRING
    said = "tensor c: its texts are at 'd.bin'; texts are held in the model itself"
    assert said in message(save(proto, tmp_path))


def test_data_of_few_bits_are_not_read_before_their_size_is_right(tmp_path: Path) -> None:
    with (tmp_path / "d.bin").open("wb") as stream:
        stream.truncate(1 << 40)  # a hole, which no memory holds
    path = external(tmp_path, "d.bin", 1 << 40)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].data_type = TensorProto.INT4
    assert "[4] of i4 takes 2 bytes" in message(save(proto, tmp_path))


def test_data_that_are_a_folder_are_told(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    assert "tensor c: its data are at 'd', which is a folder" in message(external(tmp_path, "d"))


def test_data_that_are_a_pipe_are_told_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "d")
    said = message(external(tmp_path, "d"))
    assert "tensor c: its data are at 'd', which is no regular file" in said
    assert "its data file 'e' is not there" in message(external(tmp_path, "e"))


# -- damage -------------------------------------------------------------------------------------


def _cut(rng: np.random.Generator, data: bytearray) -> None:
    del data[rng.integers(len(data)) :]


def _flip(rng: np.random.Generator, data: bytearray) -> None:
    for _ in range(rng.integers(1, 6)):
        data[rng.integers(len(data))] ^= 1 << int(rng.integers(8))


def _overwrite(rng: np.random.Generator, data: bytearray) -> None:
    at = int(rng.integers(len(data)))
    data[at : at + 8] = rng.bytes(8)


@pytest.mark.parametrize("kind", ["float", "qdq", "qoperator"])
def test_damaged_bytes_give_a_graph_or_one_line(tmp_path: Path, kind: str) -> None:
    seed = 20260
    proto = conv_net(1)
    if kind != "float":
        proto = quantized(proto, (2, 3, 8, 8), 1, qdq=kind == "qdq", per_channel=True)
    whole = proto.SerializeToString()
    rng = np.random.default_rng(seed)
    path, read, told = tmp_path / "m.onnx", 0, 0
    for round_ in range(300):
        data = bytearray(whole)
        (_cut, _flip, _overwrite)[round_ % 3](rng, data)
        path.write_bytes(bytes(data))
        try:
            assert str(OnnxFrontend().load(path, Ledger()))
            read += 1
        except QirError as error:
            text = str(error)
            assert len(text) < 240, f"seed {seed}, round {round_}: {text}"
            assert "\n" not in text, f"seed {seed}, round {round_}: {text}"
            assert "m.onnx" in text, f"seed {seed}, round {round_}: {text}"
            told += 1
    assert read > 10
    assert told > 100


@pytest.mark.parametrize("place", ["input x", "tensor h", "tensor y"])
@pytest.mark.parametrize(
    ("size", "axes", "kind", "said"),
    [
        (-2, 1, 1, "a size of -2"),
        (2**62, 1, 1, "an axis of 4611686018427387904 elements"),
        (1, 65, 1, "a tensor of 65 axes; 64 are possible"),
        (1, 1, 99, "element type 99 is unknown here"),
        (1, -1, 99, "element type 99 is unknown here"),
    ],
)
def test_a_type_that_is_none_is_told_with_the_tensor_that_has_it(
    tmp_path: Path, place: str, size: int, axes: int, kind: int, said: str
) -> None:
    proto = relu()
    proto.graph.value_info.append(helper.make_tensor_value_info("h", FLOAT, [2]))
    infos = {"x": proto.graph.input[0], "h": proto.graph.value_info[0], "y": proto.graph.output[0]}
    tensor = infos[place.split()[1]].type.tensor_type
    tensor.elem_type = kind
    tensor.ClearField("shape")
    for _ in range(axes):
        tensor.shape.dim.add(dim_value=size)
    assert f"{place}: {said}" in message(save(proto, tmp_path))
