"""Arrays for the graphs in `cases/`, made from what their text says of each."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import ParseError
from qir.ir import dims
from qir.ir.graph import Graph
from qir.ir.text import parse, parse_type
from qir.ir.types import Array, TensorType

HERE = Path(__file__).parent / "cases"
FILES = sorted(HERE.glob("*.txt"))
Data: TypeAlias = NDArray[Any]

_DECLARED = re.compile(r"^array @(\w+) : (.*)$", re.MULTILINE)
_CONSTANT = re.compile(
    r"constant\(@(\w+)\) : (.*?)(?: as [\w.-]+| plan .*| lineage .*| from \w+ \{.*)?$",
    re.MULTILINE,
)


def read_case(name: str) -> Graph:
    """The graph of one case."""
    text = (HERE / f"{name}.txt").read_text()
    return parse(text, make_arrays(text))


def make_arrays(text: str) -> dict[str, Data]:
    """Elements for every array that a text names; always the same ones."""
    rng = np.random.default_rng(20)
    out: dict[str, Data] = {}
    held: dict[str, Array] = {}

    def find(name: str) -> Array:
        if name not in held:
            raise ParseError(f"@{name} stands before its declaration")
        return held[name]

    for name, said in _DECLARED.findall(text):
        kind = parse_type(said, find)
        out[name] = _derived_elements(name, out) if name in DERIVED else _random_qparams(rng, kind)
        out[name] = out[name].astype(kind.dtype.carrier)
        held[name] = Array(out[name], kind, name)
    for name, said in _CONSTANT.findall(text):
        out[name] = _random_elements(rng, parse_type(said, find))
    return out


DERIVED: dict[str, Callable[[dict[str, Data]], Data]] = {
    "bs": lambda a: np.float32(0.0235) * a["ws"] if "ws" in a else np.full(4, 0.0006, np.float32),
    "gi": lambda a: np.random.default_rng(4).permutation(64) // 32,
    "us": lambda a: a["gs"][None],
    "lo": lambda a: np.linspace(-2, -1, 12),
    "hi": lambda a: np.linspace(1, 3, 12),
    "nf4": lambda a: np.sinh(np.linspace(-1.2, 1.2, 16)) / np.sinh(1.2),
}
"""Arrays whose elements follow from others, or are a table."""


def _derived_elements(name: str, made: dict[str, Data]) -> Data:
    found: Data = np.asarray(DERIVED[name](made))
    return found


def _known_shape(kind: TensorType) -> tuple[int, ...]:
    shape = dims.known_shape(kind.shape)
    assert shape is not None
    return shape


def _random_qparams(rng: np.random.Generator, kind: TensorType) -> Data:
    """Scales where they are floats, zeros where they are whole."""
    if kind.dtype.name == "f8e8m0":
        return 2.0 ** rng.integers(-6, 0, _known_shape(kind)).astype(np.float32)
    if kind.quant is not None and kind.dtype.is_float:
        return rng.uniform(1, 100, _known_shape(kind))
    if kind.dtype.is_float:
        return rng.uniform(0.005, 0.02, _known_shape(kind))
    return rng.integers(8, 15, _known_shape(kind))


def _random_elements(rng: np.random.Generator, kind: TensorType) -> Data:
    if kind.dtype.is_float:
        return rng.normal(size=_known_shape(kind)).astype(kind.dtype.carrier)
    low, high = (kind.quant.low, kind.quant.high) if kind.quant else kind.dtype.bounds
    low, high = max(low, -300), min(high, 300)
    return rng.integers(low, high + 1, _known_shape(kind)).astype(kind.dtype.carrier)
