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
    given = [*op.proto.output, *[""] * len(names)]
    stem = next((n for n in given if n), op.proto.name or op.type)
    return [
        n or reader.unused_name(f"{stem}.{ours}") for n, ours in zip(given, names, strict=False)
    ]


def keep_unless_one_float_type(reader: OnnxReader, op: OnnxOp, places: Sequence[int]) -> None:
    """Raises KeepOperator unless the present operands are floats of one type."""
    kinds = [reader.type_of(op, op.input(i)) for i in places if op.input(i)]
    if any(k.quant or k.dtype.name not in _FLOATS for k in kinds):
        raise KeepOperator
    if len({k.dtype.name for k in kinds}) > 1:
        raise KeepOperator


def _layer(reader: OnnxReader, op: OnnxOp) -> None:
    kind = op.type.lower()
    keep_unless_one_float_type(reader, op, [0, 1, 2, 3, 5, 6, 7])
    rows = reader.type_of(op, op.input(1)).shape
    if len(rows) != 3 or not isinstance(rows[1], int) or not all(op.input(i) for i in range(3)):
        raise KeepOperator
    attrs: dict[str, Attr] = {
        "direction": op.text("direction", "forward"),
        "batch_first": op.integer("layout", 0) != 0,
        "clip": op.floating("clip", 0.0) if op.attribute("clip") else None,
        **_activations(op, kind),
    }
    clip = attrs["clip"]
    if attrs["direction"] not in DIRECTIONS or (isinstance(clip, float) and not clip > 0):
        raise KeepOperator
    if kind == "lstm":
        attrs["input_forget"] = op.integer("input_forget", 0) != 0
    if kind == "gru":
        attrs["linear_before_reset"] = op.integer("linear_before_reset", 0) != 0
    operands = {s: reader.value(op, n) for s, n in zip(_SLOTS, op.inputs, strict=False) if n}
    results = ("y", "h", "c") if kind == "lstm" else ("y", "h")
    reader.add(op, kind, operands, attrs, names=result_names(reader, op, results))


def _activations(op: OnnxOp, kind: str) -> dict[str, Attr]:
    """Returns the activations, with an alpha and a beta for each.

    The lists of a file have numbers only for activations that use them. Raises KeepOperator for an
    unknown activation, or too many numbers.
    """
    found = op.attribute("activations")
    texts = [s.decode("utf-8", "replace") for s in found.strings] if found else []
    names = tuple(ACTIVATION_NAMES.get(text.lower(), "") for text in texts)
    count = len(DEFAULT_ACTIVATIONS[kind]) * len(
        DIRECTIONS.get(op.text("direction", "forward"), ())
    )
    if "" in names or len(names) not in (0, count):
        raise KeepOperator
    out: dict[str, Attr] = {"activations": names}
    for which, slot in (("alpha", 0), ("beta", 1)):
        held = op.attribute(f"activation_{which}")
        given = list(held.floats) if held else []
        numbers: list[float] = []
        for name in names:
            usual = ACTIVATIONS[name][slot]
            if usual is not None and not given and name in _UNSPECIFIED_PARAMETERS:
                raise KeepOperator
            own = None if usual is None else given.pop(0) if given else usual
            numbers.append(0.0 if own is None else float(np.float32(own)))
        if given:
            raise KeepOperator
        used = any(ACTIVATIONS[name][slot] is not None for name in names)
        out[which] = tuple(numbers) if used else ()
    return out


OPS: dict[str, Callable[[OnnxReader, OnnxOp], None]] = {
    "RNN": _layer,
    "LSTM": _layer,
    "GRU": _layer,
}
