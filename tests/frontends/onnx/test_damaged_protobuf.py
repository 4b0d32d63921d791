"""Files that protobuf refuses: the field that is damaged, and where it ends."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, helper

from qir.errors import InputError
from qir.frontends.onnx import OnnxFrontend
from qir.ledger import Ledger

from .models import conv_net, model

FLOAT = TensorProto.FLOAT


def message(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    with pytest.raises(InputError) as caught:
        OnnxFrontend().load(path, Ledger())
    said = str(caught.value)
    assert len(said) < 240
    assert "\n" not in said
    return said.removeprefix(f"{path}: ")


def parses(data: bytes) -> bool:
    try:
        onnx.load_model_from_string(data)
    except DecodeError:
        return False
    return True


def with_weights(size: int) -> bytes:
    held = {"w": np.ones(size, np.float32)}
    node = helper.make_node("Add", ["x", "w"], ["y"], "add")
    proto = model([node], {"x": (FLOAT, [size])}, {"y": (FLOAT, [size])}, held)
    return bytes(proto.SerializeToString())


@pytest.mark.parametrize("size", [64, 1 << 19])
def test_a_file_that_was_cut_off_names_the_field_and_the_missing_bytes(
    tmp_path: Path, size: int
) -> None:
    data = with_weights(size)
    raw = np.ones(size, np.float32).tobytes()
    end = data.index(raw) + len(raw)
    said = message(tmp_path / "m.onnx", data[: end - 10])
    told = f"is damaged: the file ends at byte {end - 10}, this goes on to {end}"
    assert said == f"graph.initializer[0].raw_data: {told}"


def test_a_length_that_leads_out_of_its_message_is_told(tmp_path: Path) -> None:
    data = with_weights(4)
    at = data.index(b"\x0a\x01x")  # the operator's first operand
    said = message(tmp_path / "m.onnx", data[: at + 1] + b"\x7f" + data[at + 2 :])
    start = f"graph.node[0].input[0]: is damaged: it goes on to byte {at + 2 + 127}, "
    assert said.startswith(f"{start}graph.node[0] ends at ")


@pytest.mark.parametrize("deep", [33, 34, 60])
def test_graphs_in_graphs_beyond_what_protobuf_reads_are_told(tmp_path: Path, deep: int) -> None:
    graph = onnx.GraphProto(name="inner").SerializeToString()
    for _ in range(deep):
        for field in (6, 5, 1):  # an attribute's graph, a node's attribute, a graph's node
            graph = _field(field, graph)
    data = _field(7, graph)
    assert parses(data) == (deep == 33)
    said = message(tmp_path / "m.onnx", data)
    assert ("more than 100 messages are in one another" in said) == (deep > 33)
    assert deep == 33 or said.startswith("graph.node[0].attribute[0].g: is damaged")


def _field(number: int, content: bytes) -> bytes:
    size, out = len(content), bytearray([number << 3 | 2])
    while size > 127:
        out.append(size & 127 | 128)
        size >>= 7
    return bytes(out) + bytes([size]) + content


@pytest.mark.parametrize(
    "data", [b"\x89PNG\r\n\x1a\n" + bytes(100), b"PK\x03\x04rest", b"\0", b'{"a": 1}', b"<html>"]
)
def test_what_is_no_model_is_not_called_a_damaged_one(tmp_path: Path, data: bytes) -> None:
    assert message(tmp_path / "m.onnx", data).startswith("is no ONNX model: its first bytes")


def test_whatever_byte_is_broken_the_place_is_named(tmp_path: Path) -> None:
    seed = 6
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = conv_net(1).SerializeToString()
    told = 0
    for _ in range(1500):
        data = bytearray(whole)
        data[rng.randrange(len(data))] = rng.randrange(256)
        if not parses(bytes(data)):
            said = message(tmp_path / "m.onnx", bytes(data))
            told += said.startswith(("graph.", "graph[", "graph:", "opset_import"))
            assert "byte" in said
    assert told > 50
