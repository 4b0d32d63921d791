"""What written files hold: their tables, alignment, names, sizes and versions; and refusals."""

import struct
from pathlib import Path

import numpy as np
import pytest

import qir
from qir.backends.tflite.writer import schema
from qir.backends.tflite.writer.file import to_tflite
from qir.backends.tflite.writer.flatbuffer import FlatBufferBuilder, parse_tables
from qir.backends.tflite.writer.forms import converted
from qir.errors import Refused, UsageError
from qir.frontends.tflite import schema as read_schema
from qir.frontends.tflite.model_file import TfliteFile
from tests.backends.tensorflow.networks import Net, inverted

from .written import TARGET, quantized_net

F = np.float32


def test_numbers_are_those_that_the_frontend_reads() -> None:
    assert all(read_schema.OPERATORS[i] == op for op, i in schema.OPERATORS.items())
    assert all(read_schema.OPTIONS[i] == title for title, i in schema.OPTIONS.items())
    assert all(read_schema.ELEMENT_TYPES[i] == word for word, i in schema.ELEMENT_TYPES.items())


@pytest.mark.slow
def test_numbers_are_those_of_tensorflows_schema() -> None:
    tables = pytest.importorskip("tensorflow.lite.python.schema_py_generated")
    for op, number in schema.OPERATORS.items():
        assert getattr(tables.BuiltinOperator, op) == number
    for title, number in schema.OPTIONS.items():
        assert getattr(tables.BuiltinOptions, title) == number
    for table, fields in schema.TABLES.items():
        for field, kind in fields.items():
            added = "".join(word.capitalize() for word in field.split("_"))
            builder = _Numbers()
            getattr(tables, f"{table}Add{added}")(builder, 0)
            assert builder.numbers == [kind.number], (table, field)


class _Numbers:
    """Takes the place of a builder, and notes the number of the field that is added."""

    def __init__(self) -> None:
        self.numbers: list[int] = []

    def __getattr__(self, name: str) -> object:
        return lambda number, *rest: self.numbers.append(number)


def test_a_builder_aligns_numbers_and_shares_layouts() -> None:
    tables = parse_tables("A = small:i1 long:i8 all:[A] names:text\nB = data:[u1] numbers:[i8]")
    inner = {"small": -3, "long": 1 << 40, "names": "é"}
    data = FlatBufferBuilder(tables).build("A", {"all": [inner, inner, {}]}, b"TEST")
    assert data[4:8] == b"TEST"
    (root,) = struct.unpack_from("<I", data, 0)
    places = []
    vector = _field(data, root, 2)
    assert struct.unpack_from("<I", data, vector) == (3,)
    for i in range(2):
        at = vector + 4 + 4 * i
        table = at + struct.unpack_from("<I", data, at)[0]
        long = _place(data, table, 1)
        assert long % 8 == 0
        assert struct.unpack_from("<q", data, long) == (1 << 40,)
        assert struct.unpack_from("<b", data, _place(data, table, 0)) == (-3,)
        text = _field(data, table, 3)
        assert data[text : text + 7] == struct.pack("<I", 2) + "é".encode() + b"\0"
        places.append(table - struct.unpack_from("<i", data, table)[0])
    assert places[0] == places[1]
    elements = {"data": np.arange(5, dtype=np.uint8), "numbers": np.arange(3)}
    data = FlatBufferBuilder(tables).build("B", elements, b"TEST")
    (root,) = struct.unpack_from("<I", data, 0)
    assert (_field(data, root, 0) + 4) % 16 == 0
    assert (_field(data, root, 1) + 4) % 8 == 0


def _place(data: bytes, table: int, number: int) -> int:
    layout = table - struct.unpack_from("<i", data, table)[0]
    (place,) = struct.unpack_from("<H", data, layout + 4 + 2 * number)
    return int(table + place)


def _field(data: bytes, table: int, number: int) -> int:
    at = _place(data, table, number)
    return int(at + struct.unpack_from("<I", data, at)[0])


def test_a_file_states_names_open_sizes_and_versions(tmp_path: Path) -> None:
    net = inverted(7)
    path = tmp_path / "net.tflite"
    qir.save(quantized_net(net), path, target=TARGET)
    file = TfliteFile(path)
    (subgraph,) = file.subgraphs
    signature = file.signatures["serving_default"]
    inputs = signature.inputs
    outputs = {name: index for index, name in signature.outputs.items()}
    assert list(inputs.values()) == ["x"]
    assert list(outputs) == ["y"]
    assert subgraph.tensors[subgraph.inputs[0]].sizes == (-1, 3, 24, 24)
    versions = {operator.op: operator.version for operator in subgraph.operators}
    assert versions["CONV_2D"] == versions["DEPTHWISE_CONV_2D"] == 3
    assert versions["QUANTIZE"] == versions["RESHAPE"] == 1
    names = [tensor.name for tensor in subgraph.tensors]
    assert len(set(names)) == len(names)
    back = qir.load(path)
    assert [value.name for value in back.inputs] == ["x"]
    assert back.profile == "tflite-2.21.xnnpack"


def test_what_is_written_is_read_back_with_its_integers(tmp_path: Path) -> None:
    net = inverted(7)
    made, feeds = quantized_net(net), net.feeds(3)
    path = tmp_path / "net.tflite"
    qir.save(made, path, target=TARGET)
    (wanted,) = qir.run(converted(made, qir.Ledger()), feeds).values()
    (found,) = qir.run(qir.load(path), feeds).values()
    assert np.array_equal(found, wanted)
    assert to_tflite(converted(made, qir.Ledger())) == path.read_bytes()


def test_an_untouched_file_is_copied(tmp_path: Path) -> None:
    net = Net(3, 8, 1)
    net.ends(net.conv(net.x, 4))
    first, second = tmp_path / "first.tflite", tmp_path / "second.tflite"
    qir.save(net.graph, first, target=TARGET)
    first.write_bytes(first.read_bytes() + b"more")
    qir.save(qir.load(first), second, target=TARGET)
    assert second.read_bytes() == first.read_bytes()
    graph = qir.load(first)
    graph.rename(graph["x"], "other")
    qir.save(graph, second, target=TARGET, force=True)
    assert list(TfliteFile(second).signatures["serving_default"].inputs.values()) == ["other"]


def test_what_has_no_operator_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    graph = qir.parse(
        "graph main as native { %x = input() : 3xf32 %y = tan(%x) : 3xf32 output(y=%y) }"
    )
    path = tmp_path / "net.tflite"
    with pytest.raises(Refused, match=r"^y: tan: TensorFlow Lite has no operator for it; cut"):
        qir.save(graph, path, target=TARGET)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("%y = elu(%x) {alpha = 0.5} : 1x4x6x6xf32", "ELU has alpha = 1"),
        (
            "%y = max_pool2d(%x) {kernel = (2, 2), dilation = (2, 2)} : 1x4x4x4xf32",
            "pools have no dilation",
        ),
        (
            "%y = pad(%x) {pads = (0, 0, 0, 0, 0, 0, 1, 1), mode = 'edge'} : 1x4x7x7xf32",
            "mode edge",
        ),
    ],
)
def test_attributes_without_a_counterpart_are_refused(body: str, message: str) -> None:
    text = f"graph main as native {{ %x = input() : 1x4x6x6xf32 {body} output(y=%y) }}"
    with pytest.raises(Refused, match=message) as error:
        to_tflite(converted(qir.parse(text.replace("'", '"')), qir.Ledger()))
    assert "\n" not in str(error.value)


def test_half_floats_and_other_forms_are_refused(tmp_path: Path) -> None:
    graph = qir.parse(
        "graph main as native { %x = input() : 3xbf16 %y = relu(%x) : 3xbf16 output(y=%y) }"
    )
    with pytest.raises(Refused, match="no kernels on bf16"):
        to_tflite(converted(graph, qir.Ledger()))
    with pytest.raises(UsageError, match="no format 'int4'"):
        qir.save(graph, tmp_path / "net.tflite", target=TARGET, format="int4")
