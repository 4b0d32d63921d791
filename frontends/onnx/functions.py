"""Functions of a model that stand for maps which ONNX lacks, as `backends/onnx` writes them.

A function is believed to be what its metadata say as long as its operators are those that the
hash there is of. Where one was edited all are written out like any other function: quantized values
that one makes another reads.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

import onnx

from qir.ir.types import Array, QuantType
from qir.ir.typetext import parse_type

from .op import held_graphs

DOMAIN = "qir"
_TYPE, _ARRAYS, _HASH, _ROUND = "qir.type", "qir.arrays", "qir.hash", "qir.round"
_PROFILE = "qir.rules"


@dataclass(frozen=True, slots=True)
class Custom:
    """What a function stands for."""

    op: str
    text: str
    arrays: tuple[tuple[str, str], ...]
    """Names in the type, and the element types of what is given for them."""
    round: str
    profile: str | None = None
    """Whose arithmetic it is, where that is not the model's."""

    def quant(self, held: Mapping[str, Array], rank: int) -> QuantType:
        """Returns the type of tensors of so many axes, with the arrays that a call gives."""
        found = parse_type("?x" * rank + self.text, lambda name: held[name]).quant
        if found is None:
            raise ValueError(f"{self.text!r} is no quantized type")
        return found


def customs(functions: Iterable[onnx.FunctionProto]) -> dict[str, Custom]:
    """Returns the functions that stand for maps, by name."""
    found: dict[str, Custom] = {}
    for function in functions:
        said = {p.key: p.value for p in function.metadata_props}
        texts = [function.name, *function.input, *function.output, *said, *said.values()]
        if not all(isinstance(text, str) for text in texts):
            continue  # no text: whoever writes the function out says that
        op = function.name.partition("_")[0]
        if function.domain != DOMAIN or op not in ("Quantize", "Dequantize"):
            continue
        if not {_TYPE, _ARRAYS, _HASH, _ROUND} <= said.keys():
            continue
        names = [*function.input][1:]
        stated = [said[key] for key in (_TYPE, _ARRAYS, _ROUND, _PROFILE) if key in said]
        whole = list(function.input)[:1] == ["x"] and list(function.output) == ["y"]
        if not whole or said[_HASH] != _digest(op, function.node, names, stated):
            return {}
        pairs = [p.partition(":") for p in said[_ARRAYS].split(",") if p]
        arrays = tuple((name, kind) for name, _, kind in pairs)
        if [name for name, _ in arrays] == names:
            found[function.name] = Custom(op, said[_TYPE], arrays, said[_ROUND], said.get(_PROFILE))
    return found


DEEPEST = 100
"""Calls within calls; the library that writes functions out takes no more."""


def written_out(proto: onnx.ModelProto, kept: Container[str]) -> tuple[int, int]:
    """Returns how many operators a model has, and bytes of them, once its functions are written
    out."""
    functions = {key_of(f.domain, f.name, f.overload): f for f in proto.functions}
    done: dict[tuple[str, str, str], tuple[int, int]] = {}

    def called(key: tuple[str, str, str], depth: int) -> tuple[int, int]:
        if key not in done:
            done[key] = 0, 0  # of what calls itself the library tells
            done[key] = (0, 0) if depth > DEEPEST else sums(functions[key].node, depth)
        return done[key]

    def sums(nodes: Iterable[onnx.NodeProto], depth: int) -> tuple[int, int]:
        count = size = 0
        for node in nodes:
            key = key_of(node.domain, node.op_type, node.overload)
            known = key in functions and not (key[0] == DOMAIN and key[1] in kept)
            parts = [called(key, depth + 1) if known else (1, node.ByteSize())]
            parts += [sums(g.node, depth) for a in node.attribute for g in held_graphs(a)]
            count += sum(part[0] for part in parts)
            size += sum(part[1] for part in parts)
        return count, size

    return sums(proto.graph.node, 0)


def key_of(domain: str, name: str, overload: str) -> tuple[str, str, str]:
    """Returns what a function is called by."""
    return "" if domain == "ai.onnx" else domain, name, overload


def _digest(
    op: str, nodes: Iterable[onnx.NodeProto], arrays: list[str], said: Iterable[str]
) -> str:
    state = hashlib.sha256("\0".join([op, *arrays, *said]).encode())
    for node in nodes:
        state.update(node.SerializeToString(deterministic=True))
    return state.hexdigest()
