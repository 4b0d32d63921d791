"""Files: their tables, names, open sizes, and what is said of those that are damaged."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qir
from qir.errors import InputError, QirError
from qir.frontends.tflite import samples
from qir.frontends.tflite.operators import OPS
from qir.frontends.tflite.schema import ACTIVATIONS, ELEMENT_TYPES, OPERATORS, OPTIONS, TABLES
from qir.ledger import Ledger

SEED = 5


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return list(samples.write(tmp_path))


def schema() -> Any:
    return pytest.importorskip("tensorflow.lite.python.schema_py_generated")


def members(of: Any) -> dict[str, int]:
    return {name: number for name, number in vars(of).items() if not name.startswith("_")}


def test_operators_have_tensorflows_numbers() -> None:
    theirs = members(schema().BuiltinOperator)
    assert {name: number for number, name in enumerate(OPERATORS)}.items() <= theirs.items()
    assert set(OPS) <= set(OPERATORS)


def test_element_types_and_activations_have_tensorflows_numbers() -> None:
    kinds = {"f32": "FLOAT32", "f16": "FLOAT16", "f64": "FLOAT64", "bf16": "BFLOAT16"}
    theirs = members(schema().TensorType)
    for number, name in ELEMENT_TYPES.items():
        longer = name.replace("i", "INT", 1).replace("u", "UINT", 1) if name != "bool" else "BOOL"
        assert theirs[kinds.get(name, longer)] == number
    theirs = members(schema().ActivationFunctionType)
    assert [theirs[name.upper() or "NONE"] for name in ACTIVATIONS] == list(range(len(ACTIVATIONS)))


def test_tables_have_tensorflows_fields() -> None:
    """Fields are numbered in the order of the functions that add them, by their slots."""
    of = schema()
    text = Path(of.__file__).read_text()
    for table, fields in TABLES.items():
        for name, field in fields.items():
            title = "".join(word.capitalize() for word in name.split("_"))
            found = re.search(rf"def {table}Add{title}\(builder, \w+\):\s+.*?Slot\((\d+), ", text)
            assert found, f"{table}.{name} is no field of TensorFlow's schema"
            assert int(found[1]) == field.number, f"{table}.{name}"
    theirs = members(of.BuiltinOptions)
    assert {name: number for number, name in OPTIONS.items()}.items() <= theirs.items()


def test_what_a_file_says_is_in_the_graph(files: list[Path]) -> None:
    graph = qir.load(files[1])
    assert [node.op for node in graph if node.op not in ("input", "constant", "output")] == [
        "conv2d",
        "fused",
        "reshape",
        "linear",
    ]
    assert graph.profile == "tflite-2.21.xnnpack"
    assert str(graph["depthwise"].type).startswith("1x6x6x4x!quant.uniform<i8:f32, 0.08")
    assert str(graph["depthwise"].node.origins[0]) == "tflite DEPTHWISE_CONV_2D depthwise"


def edited(network: samples._Network, **fields: object) -> bytes:
    """A file of one operator that adds its input to itself."""
    x = network.tensor("x", "f32", 2, 3)
    made = network.operator("ADD", [x, x], network.tensor("y", "f32", 2, 3), "AddOptions")
    network.tensors[x] |= fields
    return bytes(network.file([x], [made]))


def test_an_open_batch_is_named(tmp_path: Path) -> None:
    path = tmp_path / "open.tflite"
    path.write_bytes(edited(samples._Network(), shape_signature=(-1, 3)))
    graph = qir.load(path)
    assert str(graph.inputs[0].type) == "(N)x3xf32"
    assert qir.run(graph, {"x": np.ones((5, 3), np.float32)})["y"].shape == (5, 3)


def test_each_signature_is_a_network(tmp_path: Path) -> None:
    """The first subgraph is read, and a note says what others there are."""
    net = samples._Network()
    x = net.tensor("x", "f32", 2, 3)
    y = net.operator("RELU", [x], net.tensor("y", "f32", 2, 3))
    z = net.operator("ABS", [x], net.tensor("z", "f32", 2, 3))
    codes = [{"builtin_code": OPERATORS.index(op), "version": 1} for op in net.codes]
    subgraphs = [
        {"tensors": net.tensors, "inputs": [x], "outputs": [made], "operators": [operator]}
        for made, operator in zip((y, z), net.operators, strict=True)
    ]
    signatures = [
        {
            "inputs": [{"name": "given", "tensor_index": x}],
            "outputs": [{"name": "made", "tensor_index": made}],
            "signature_key": key,
            "subgraph_index": index,
        }
        for index, (key, made) in enumerate((("relu", y), ("abs", z)))
    ]
    path = tmp_path / "two.tflite"
    fields = {"version": 3, "operator_codes": codes, "subgraphs": subgraphs, "buffers": [{}]}
    path.write_bytes(samples.encode({**fields, "signature_defs": signatures}))
    ledger = Ledger()
    given = np.array([[-1, 2, -3]] * 2, np.float32)
    for source, wanted in ((path, given.clip(0)), (f"{path}#abs", np.abs(given))):
        assert np.array_equal(qir.run(qir.load(source), {"given": given})["made"], wanted)
    qir.load(path, ledger=ledger)
    assert [entry.subject for entry in ledger] == ["abs"]
    with pytest.raises(InputError, match="has no signature 'other'; it has relu, abs"):
        qir.load(f"{path}#other")


REFUSED: dict[str, dict[str, Any]] = {
    "is no operator that is read; cut it off": {"op": "SVDF"},
    "is not read: the activation at its end is sign_bit": {"fused_activation_function": 5},
    "tensor x has elements of type 8": {"type": 8},
    "tensor x has 2 scales along axis 0 of \\[2, 4\\]": {
        "type": 9,
        "shape": (2, 4),
        "quantization": {"scale": [0.5] * 2, "quantized_dimension": 1},
    },
    "tensor x has a scale of 0": {"type": 9, "quantization": {"scale": [0.0]}},
    "is quantized by a custom rule": {"type": 9, "quantization": {"details_type": 1}},
}


def refused_files() -> Iterator[tuple[str, bytes]]:
    for reason, fields in REFUSED.items():
        network = samples._Network()
        x = network.tensor("x", "f32", 2, 3)
        options = {k: v for k, v in fields.items() if k == "fused_activation_function"}
        op = str(fields.get("op", "ADD"))
        held = {k: v for k, v in fields.items() if k not in (*options, "op")}
        network.tensors[x] |= held
        y = network.tensor("y", "f32", 2, 3)
        kind = "AddOptions" if op == "ADD" else ""
        network.operator(op, [x, x], y, kind, **options)
        yield reason.replace("axis 0", "axis 1"), network.file([x], [y])


@pytest.mark.parametrize(("reason", "data"), list(refused_files()), ids=list(REFUSED))
def test_what_is_not_read_is_refused_by_name(reason: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "refused.tflite"
    path.write_bytes(data)
    with pytest.raises(InputError, match=reason) as found:
        qir.load(path)
    assert "\n" not in str(found.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    for data, reason in (
        (b"", "is empty"),
        (b"TFL3", "is damaged or cut off"),
        (b"\0\0\0\0ONNX1234", "is no TensorFlow Lite model"),
    ):
        path = tmp_path / "other.tflite"
        path.write_bytes(data)
        with pytest.raises(InputError, match=reason):
            qir.load(path)


@pytest.mark.parametrize("which", [0, 1])
def test_damaged_files_are_refused_or_still_programs(
    which: int, files: list[Path], tmp_path: Path
) -> None:
    """Bytes that are changed, cut off or repeated: no error but QIR's own, in one line."""
    data, seeds = files[which].read_bytes(), random.Random(SEED)
    print(f"seed {SEED}")
    messages = []
    for _ in range(400):
        broken = bytearray(data)
        for _ in range(seeds.randint(1, 4)):
            place = seeds.randrange(len(broken))
            broken[place] = seeds.choice((0, 1, 127, 128, 255, seeds.randrange(256)))
        if not seeds.randrange(5):
            del broken[seeds.randrange(len(broken)) :]
        path = tmp_path / "broken.tflite"
        path.write_bytes(broken)
        try:
            qir.load(path)
        except QirError as error:
            messages.append(str(error))
    assert not any("\n" in message for message in messages)
    assert 50 < len(messages) < 400
