"""Writes recurrent layers as ONNX's RNN, LSTM and GRU."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from qir.ir.ops.layers import RECURRENT_OPS
from qir.ir.ops.recurrent import ACTIVATIONS, GATE_COUNTS

from .operator_table import OperatorWriter
from .writer import AttrValue, OnnxWriter, OpToWrite

_ACTIVATION_NAMES = {name: "".join(w.title() for w in name.split("_")) for name in ACTIVATIONS}
_RECURRENT_SLOTS = {
    "rnn": ("x", "w", "r", "bias", "lengths", "h0"),
    "lstm": ("x", "w", "r", "bias", "lengths", "h0", "c0", "peephole"),
    "gru": ("x", "w", "r", "bias", "lengths", "h0"),
}
_BATCH_PERMUTATIONS = {3: (1, 0, 2), 4: (2, 0, 1, 3)}
"""By rank, the permutation that brings steps or directions before the batch."""


def ordered_operands(names: Mapping[str, str], slots: tuple[str, ...]) -> list[str]:
    """Returns the operands in ONNX's order; absent ones in between are empty names."""
    out = [names.get(slot, "") for slot in slots]
    while out and not out[-1]:
        out.pop()
    return out


def refuse_inner(writer: OnnxWriter, work: OpToWrite) -> None:
    """Raises Refused where values are rounded inside, or where a result beyond the first is
    quantized."""
    if work.node.inner:
        names = ", ".join(sorted(work.node.inner))
        raise writer.refuse(work.node, f"ONNX's {work.op} does not round {names} inside")
    if any(v.type.quant for v in work.node.results):
        raise writer.refuse(work.node, f"{work.op} has no integer form; expand-qdq decomposes it")


def _layer(writer: OnnxWriter, work: OpToWrite, ins: dict[str, str]) -> None:
    refuse_inner(writer, work)
    if "proj" in ins:
        raise writer.refuse(work.node, "ONNX's LSTM does not project its state")
    # w is [directions, gates * hidden, input]; the gate count is fixed per op.
    gate_rows = work.operands["w"].type.shape[1]
    if not isinstance(gate_rows, int):
        raise writer.refuse(work.node, "ONNX wants to know the hidden size, and w does not say it")
    # ONNX's sequence_lens is int32.
    lengths = work.operands.get("lengths")
    if lengths is not None and lengths.type.dtype.name != "i32":
        ins["lengths"] = _cast(writer, ins["lengths"], f"{work.out}_lengths")
    if "bias" in ins:
        ins["bias"] = _both_biases(writer, work, ins["bias"], gate_rows)
    outs = [writer.name(v) if v.uses else "" for v in work.node.results]
    # A node needs an output; y is written where nothing else is read.
    if not any(outs):
        outs[0] = work.out
    if work.attrs["batch_first"]:
        _batch_first(writer, work, ins, outs, gate_rows)
        return
    operands = ordered_operands(ins, _RECURRENT_SLOTS[work.op])
    attrs = _attrs(work, gate_rows)
    writer.emit(work.op.upper(), operands, _trimmed(outs), attrs, origins=work.origins)


def _batch_first(
    writer: OnnxWriter, work: OpToWrite, ins: dict[str, str], outs: list[str], rows: int
) -> None:
    """Writes the layer with steps first, and transposes its inputs and outputs.

    onnxruntime runs no other: ONNX's attribute layout=1 has no kernel there.
    """
    for slot in ("x", "h0", "c0"):
        if slot in ins:
            ins[slot] = writer.transposed(ins[slot], _BATCH_PERMUTATIONS[3])
    steps_first = [writer.fresh(f"{out}_steps_first") if out else "" for out in outs]
    operands = ordered_operands(ins, _RECURRENT_SLOTS[work.op])
    attrs = _attrs(work, rows)
    writer.emit(work.op.upper(), operands, _trimmed(steps_first), attrs, origins=work.origins)
    for value, source, out in zip(work.node.results, steps_first, outs, strict=True):
        if out:
            writer.transposed(source, _BATCH_PERMUTATIONS[value.type.rank], out)


def _trimmed(names: list[str]) -> list[str]:
    out = list(names)
    while out and not out[-1]:
        out.pop()
    return out


def _cast(writer: OnnxWriter, source: str, name: str) -> str:
    out = writer.fresh(name)
    writer.emit("Cast", [source], [out], {"to": 6})
    return out


def _both_biases(writer: OnnxWriter, work: OpToWrite, name: str, rows: int) -> str:
    """Returns the bias with zeros for the recurrent product, where it has none."""
    kind = work.operands["bias"].type
    directions = work.operands["w"].type.shape[0]
    # ONNX's B concatenates the biases of both products, Wb and Rb.
    if kind.shape[1] == 2 * rows:
        return name
    if kind.shape[1] != rows or not isinstance(directions, int):
        raise writer.refuse(work.node, f"its bias is {kind}, whose length must be known")
    out = writer.fresh(f"{name}_both")
    zeros = writer.constant(np.zeros((directions, rows), kind.express.carrier), f"{name}_zeros")
    writer.emit("Concat", [name, zeros], [out], {"axis": 1})
    return out


def _attrs(work: OpToWrite, rows: int) -> dict[str, AttrValue]:
    names = [str(n) for n in _tuple(work, "activations")]
    out: dict[str, AttrValue] = {"hidden_size": rows // len(GATE_COUNTS[work.op])}
    if names:
        out["activations"] = tuple(_ACTIVATION_NAMES[n] for n in names)
    for attr, slot in (("alpha", 0), ("beta", 1)):
        stated = _tuple(work, attr)
        defaults = [ACTIVATIONS[n][slot] for n in names]
        # alpha and beta list values only for those activations that have one, in order.
        values = [stated[i] if stated else u for i, u in enumerate(defaults) if u is not None]
        if values:
            out[f"activation_{attr}"] = tuple(v for v in values if isinstance(v, float))
    if isinstance(clip := work.attrs["clip"], float):
        out["clip"] = clip
    if work.attrs["direction"] != "forward":
        out["direction"] = str(work.attrs["direction"])
    out |= {n: 1 for n in ("input_forget", "linear_before_reset") if work.attrs.get(n)}
    return out


def _tuple(work: OpToWrite, name: str) -> tuple[object, ...]:
    value = work.attrs[name]
    return value if isinstance(value, tuple) else ()


OPS: dict[str, OperatorWriter] = dict.fromkeys(RECURRENT_OPS, _layer)
