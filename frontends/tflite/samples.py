"""Small `.tflite` files that hold what the frontend reads, for those who check it."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .schema import ELEMENT_TYPES, IDENTIFIER, OPERATORS, OPTIONS, TABLES

Fields: TypeAlias = "Mapping[str, object]"

_PACKED = {"i1": "<b", "u1": "<B", "i4": "<i", "u4": "<I", "u8": "<Q", "f4": "<f", "flag": "<?"}
_SLOT = 8
"""Bytes of a table that each field gets: room for the widest."""
_ELEMENTS = {name: number for number, name in ELEMENT_TYPES.items()}


def encode(root: Fields) -> bytes:
    """Returns a file whose tables and vectors follow those that refer to them."""
    data = bytearray(b"\0\0\0\0" + IDENTIFIER)
    _refer(data, 0, _add_table(data, "Model", root))
    return bytes(data)


def _align(data: bytearray, size: int = 16) -> int:
    data.extend(b"\0" * (-len(data) % size))
    return len(data)


def _refer(data: bytearray, place: int, target: int) -> None:
    """Writes the distance from a place to what it refers to."""
    data[place : place + 4] = struct.pack("<I", target - place)


def _add_table(data: bytearray, kind: str, fields: Fields) -> int:
    """Adds a table after its list of fields, then what they refer to; returns its place."""
    declared = TABLES[kind]
    count = max(field.number for field in declared.values()) + 1
    listed = _align(data)
    table = listed + (-(-(4 + 2 * count) // _SLOT)) * _SLOT
    data.extend(b"\0" * (table + _SLOT * (count + 1) - listed))
    data[listed : listed + 4] = struct.pack("<HH", 4 + 2 * count, _SLOT * (count + 1))
    data[table : table + 4] = struct.pack("<i", table - listed)
    for name, value in fields.items():
        field = declared[name]
        place = _SLOT * (field.number + 1)
        at = listed + 4 + 2 * field.number
        data[at : at + 2] = struct.pack("<H", place)
        if field.kind in _PACKED:
            packed = struct.pack(_PACKED[field.kind], value)
            data[table + place : table + place + len(packed)] = packed
        else:
            _refer(data, table + place, _add_held(data, field.kind, value))
    return table


def _add_held(data: bytearray, kind: str, value: object) -> int:
    """Adds a text, a vector or a table that a field refers to; returns its place."""
    if isinstance(value, str):
        place = _align(data)
        text = value.encode()
        data.extend(struct.pack("<I", len(text)) + text + b"\0")
        return place
    if kind == "Options":  # one of several tables, by its name
        assert isinstance(value, tuple)
        name, fields = value
        return _add_table(data, name, fields)
    if isinstance(value, Mapping):
        return _add_table(data, kind, value)
    inner = kind[1:-1]
    if inner in TABLES:
        assert isinstance(value, Sequence)
        place = _align(data)
        data.extend(struct.pack("<I", len(value)) + b"\0" * (4 * len(value)))
        for i, fields in enumerate(value):
            _refer(data, place + 4 + 4 * i, _add_table(data, inner, fields))
        return place
    array = np.asarray(value, f"<{inner}").reshape(-1)
    # Elements begin at a multiple of 16, four bytes after their number.
    place = _align(data) + 12
    data.extend(b"\0" * 12 + struct.pack("<I", array.size) + array.tobytes())
    return place


class _Network:
    """One subgraph, operator by operator."""

    def __init__(self) -> None:
        self.tensors: list[dict[str, object]] = []
        self.buffers: list[dict[str, object]] = [{}]
        self.operators: list[dict[str, object]] = []
        self.codes: list[str] = []
        self.random = np.random.default_rng(0)

    def tensor(self, name: str, kind: str, *shape: int, scale: float = 0.0, zero: int = 0) -> int:
        """Adds a tensor, quantized if it has a scale; returns its index."""
        fields: dict[str, object] = {"name": name, "type": _ELEMENTS[kind], "shape": shape}
        if scale:
            fields["quantization"] = {"scale": [scale], "zero_point": [zero]}
        self.tensors.append(fields)
        return len(self.tensors) - 1

    def constant(self, name: str, data: NDArray[np.generic], scale: float = 0.0) -> int:
        """Adds a constant; returns its index."""
        kind = {"f": "f32", "i": f"i{8 * data.itemsize}"}[data.dtype.kind]
        index = self.tensor(name, kind, *data.shape, scale=scale)
        self.tensors[index]["buffer"] = len(self.buffers)
        self.buffers.append({"data": np.frombuffer(data.tobytes(), np.uint8)})
        return index

    def operator(
        self, op: str, inputs: Sequence[int], output: int, kind: str = "", **options: int | float
    ) -> int:
        """Adds an operator; returns its result's index."""
        if op not in self.codes:
            self.codes.append(op)
        fields: dict[str, object] = {
            "opcode_index": self.codes.index(op),
            "inputs": inputs,
            "outputs": [output],
        }
        if kind:
            (number,) = (n for n, name in OPTIONS.items() if name == kind)
            fields |= {"builtin_options_type": number, "builtin_options": (kind, options)}
        self.operators.append(fields)
        return output

    def file(self, inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
        """Returns the file."""
        codes = [
            {"deprecated_builtin_code": min(n, 127), "builtin_code": n, "version": 1}
            for n in map(OPERATORS.index, self.codes)
        ]
        subgraph = {
            "name": "main",
            "tensors": self.tensors,
            "inputs": inputs,
            "outputs": outputs,
            "operators": self.operators,
        }
        return encode(
            {
                "version": 3,
                "operator_codes": codes,
                "subgraphs": [subgraph],
                "buffers": self.buffers,
            }
        )


def _float_network() -> bytes:
    """A convolution, a pool, a mean, a fully connected layer and softmax, of floats."""
    net = _Network()
    normal = net.random.normal
    x = net.tensor("image", "f32", 1, 8, 8, 3)
    w = net.constant("kernel", normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32))
    b = net.constant("bias", normal(0, 0.3, 8).astype(np.float32))
    steps = {"stride_w": 2, "stride_h": 2}
    y = net.tensor("conv", "f32", 1, 4, 4, 8)
    net.operator("CONV_2D", [x, w, b], y, "Conv2DOptions", **steps, fused_activation_function=3)
    pooled = net.tensor("pool", "f32", 1, 2, 2, 8)
    sides = {"filter_width": 2, "filter_height": 2, "padding": 1}
    net.operator("MAX_POOL_2D", [y], pooled, "Pool2DOptions", **steps, **sides)
    axes = net.constant("axes", np.array([1, 2], np.int32))
    mean = net.operator("MEAN", [pooled, axes], net.tensor("mean", "f32", 1, 8), "ReducerOptions")
    w = net.constant("dense", normal(0, 0.3, (4, 8)).astype(np.float32))
    sums = net.tensor("sums", "f32", 1, 4)
    net.operator("FULLY_CONNECTED", [mean, w, -1], sums, "FullyConnectedOptions")
    made = net.tensor("probabilities", "f32", 1, 4)
    net.operator("SOFTMAX", [sums], made, "SoftmaxOptions", beta=1.0)
    return net.file([x], [made])


def _quantized_network() -> bytes:
    """A depthwise convolution, a sum and a fully connected layer, of 8-bit integers."""
    net = _Network()
    integers = net.random.integers
    x = net.tensor("image", "i8", 1, 6, 6, 4, scale=0.05, zero=-3)
    w = net.constant("kernel", integers(-127, 128, (1, 3, 3, 4)).astype(np.int8), 0.01)
    b = net.constant("bias", integers(-900, 900, 4).astype(np.int32))
    steps = {"stride_w": 1, "stride_h": 1, "depth_multiplier": 1}
    y = net.tensor("depthwise", "i8", 1, 6, 6, 4, scale=0.08, zero=-20)
    net.operator("DEPTHWISE_CONV_2D", [x, w, b], y, "DepthwiseConv2DOptions", **steps)
    added = net.tensor("sum", "i8", 1, 6, 6, 4, scale=0.1, zero=-128)
    net.operator("ADD", [x, y], added, "AddOptions", fused_activation_function=1)
    flat = net.tensor("flat", "i8", 1, 144, scale=0.1, zero=-128)
    shape = net.constant("shape", np.array([1, 144], np.int32))
    net.operator("RESHAPE", [added, shape], flat, "ReshapeOptions")
    w = net.constant("dense", integers(-127, 128, (5, 144)).astype(np.int8), 0.005)
    b = net.constant("more", integers(-900, 900, 5).astype(np.int32))
    made = net.tensor("sums", "i8", 1, 5, scale=0.2, zero=4)
    net.operator("FULLY_CONNECTED", [flat, w, b], made, "FullyConnectedOptions")
    return net.file([x], [made])


def write(folder: Path) -> Sequence[Path]:
    """Writes them into a folder and returns their paths."""
    paths = []
    for name, data in (("float", _float_network()), ("quantized", _quantized_network())):
        paths.append(folder / f"{name}.tflite")
        paths[-1].write_bytes(data)
    return paths
