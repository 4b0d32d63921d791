"""Functions of a model that stand for maps which ONNX lacks, as `backends/onnx` writes them.

A function is believed to be what its metadata say as long as its operators are those that the
hash there is of. Where one was edited all are written out like any other function: codes that one
makes another reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import onnx

from qir.ir.types import Array, QuantType
from qir.ir.typetext import parse_type

DOMAIN = "qir"
_TYPE, _ARRAYS, _HASH, _ROUND = "qir.type", "qir.arrays", "qir.hash", "qir.round"


@dataclass(frozen=True, slots=True)
class Custom:
    """What a function stands for."""

    op: str
    text: str
    arrays: tuple[tuple[str, str], ...]
    """Names in the type, and the element types of what is given for them."""
    round: str

    def quant(self, held: Mapping[str, Array], rank: int) -> QuantType:
        """The type of tensors of so many axes, with the arrays that a call gives."""
        found = parse_type("?x" * rank + self.text, lambda name: held[name]).quant
        if found is None:
            raise ValueError(f"{self.text!r} is no quantized type")
        return found


def customs(functions: Iterable[onnx.FunctionProto]) -> dict[str, Custom]:
    """The functions that stand for maps, by name."""
    found: dict[str, Custom] = {}
    for function in functions:
        said = {p.key: p.value for p in function.metadata_props}
        op = function.name.partition("_")[0]
        if function.domain != DOMAIN or op not in ("Quantize", "Dequantize"):
            continue
        if not {_TYPE, _ARRAYS, _HASH, _ROUND} <= said.keys():
            continue
        names = [*function.input][1:]
        stated = [said[_TYPE], said[_ARRAYS], said[_ROUND]]
        whole = list(function.input)[:1] == ["x"] and list(function.output) == ["y"]
        if not whole or said[_HASH] != _digest(op, function.node, names, stated):
            return {}
        pairs = [p.partition(":") for p in said[_ARRAYS].split(",") if p]
        arrays = tuple((name, kind) for name, _, kind in pairs)
        if [name for name, _ in arrays] == names:
            found[function.name] = Custom(op, said[_TYPE], arrays, said[_ROUND])
    return found


def _digest(
    op: str, nodes: Iterable[onnx.NodeProto], arrays: list[str], said: Iterable[str]
) -> str:
    state = hashlib.sha256("\0".join([op, *arrays, *said]).encode())
    for node in nodes:
        state.update(node.SerializeToString(deterministic=True))
    return state.hexdigest()
