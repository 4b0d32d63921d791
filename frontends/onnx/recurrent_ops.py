"""RNN, LSTM and GRU; the language has ONNX's layout of their weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS

from .op import KeepOperator, OnnxOp
from .reader import OnnxReader

_SLOTS = ("x", "w", "r", "bias", "lengths", "h0", "c0", "peephole")
_FLOATS = ("f16", "f32", "f64", "bf16")
ACTIVATION_NAMES = {name.replace("_", ""): name for name in ACTIVATIONS}
"""Activations of the language by the names that ONNX gives them, in lower case."""
_UNSPECIFIED_PARAMETERS = frozenset({"affine", "scaled_tanh"})
"""Activations whose default alpha and beta the standard leaves open; onnxruntime takes 0."""


def result_names(reader: OnnxReader, op: OnnxOp, names: Sequence[str]) -> list[str]:
    """Returns a name for each result: the file's, or a generated one where the file has none."""
    file_names = [*op.proto.output, *[""] * len(names)]
    stem = next((n for n in file_names if n), op.proto.name or op.type)
    return [
        n or reader.unused_name(f"{stem}.{default_name}")
        for n, default_name in zip(file_names, names, strict=False)
    ]


def keep_unless_one_float_type(reader: OnnxReader, op: OnnxOp, indices: Sequence[int]) -> None:
    """Raises KeepOperator unless the present operands are floats of one type."""
    types = [reader.type_of(op, op.input(i)) for i in indices if op.input(i)]
    if any(operand_type.quant or operand_type.dtype.name not in _FLOATS for operand_type in types):
        raise KeepOperator
    if len({operand_type.dtype.name for operand_type in types}) > 1:
        raise KeepOperator


def _layer(reader: OnnxReader, op: OnnxOp) -> None:
    op_name = op.type.lower()
    keep_unless_one_float_type(reader, op, [0, 1, 2, 3, 5, 6, 7])
    # W is [directions, gates * hidden, input].
    weight_shape = reader.type_of(op, op.input(1)).shape
    if (
        len(weight_shape) != 3
        or not isinstance(weight_shape[1], int)
        or not all(op.input(i) for i in range(3))
    ):
        raise KeepOperator
    attrs: dict[str, Attr] = {
        "direction": op.text("direction", "forward"),
        "batch_first": op.integer("layout", 0) != 0,
        "clip": op.floating("clip", 0.0) if op.attribute("clip") else None,
        **_activations(op, op_name),
    }
    clip = attrs["clip"]
    if attrs["direction"] not in DIRECTIONS or (isinstance(clip, float) and not clip > 0):
        raise KeepOperator
    if op_name == "lstm":
        attrs["input_forget"] = op.integer("input_forget", 0) != 0
    if op_name == "gru":
        attrs["linear_before_reset"] = op.integer("linear_before_reset", 0) != 0
    operands = {s: reader.value(op, n) for s, n in zip(_SLOTS, op.inputs, strict=False) if n}
    results = ("y", "h", "c") if op_name == "lstm" else ("y", "h")
    reader.add(op, op_name, operands, attrs, names=result_names(reader, op, results))


def _activations(op: OnnxOp, op_name: str) -> dict[str, Attr]:
    """Returns the activations, with an alpha and a beta for each.

    The lists of a file have numbers only for activations that use them. Raises KeepOperator for an
    unknown activation, or too many numbers.
    """
    attribute = op.attribute("activations")
    texts = [s.decode("utf-8", "replace") for s in attribute.strings] if attribute else []
    names = tuple(ACTIVATION_NAMES.get(text.lower(), "") for text in texts)
    count = len(DEFAULT_ACTIVATIONS[op_name]) * len(
        DIRECTIONS.get(op.text("direction", "forward"), ())
    )
    if "" in names or len(names) not in (0, count):
        raise KeepOperator
    attrs: dict[str, Attr] = {"activations": names}
    for parameter_kind, slot in (("alpha", 0), ("beta", 1)):
        parameter = op.attribute(f"activation_{parameter_kind}")
        stated = list(parameter.floats) if parameter else []
        numbers: list[float] = []
        for name in names:
            default = ACTIVATIONS[name][slot]
            if default is not None and not stated and name in _UNSPECIFIED_PARAMETERS:
                raise KeepOperator
            # A list holds numbers only for activations that have the parameter: each takes the next
            # one.
            number = None if default is None else stated.pop(0) if stated else default
            numbers.append(0.0 if number is None else float(np.float32(number)))
        if stated:
            raise KeepOperator
        is_used = any(ACTIVATIONS[name][slot] is not None for name in names)
        attrs[parameter_kind] = tuple(numbers) if is_used else ()
    return attrs


OPS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {
    "RNN": _layer,
    "LSTM": _layer,
    "GRU": _layer,
}
