"""What a golden file says: passes, a graph, and the whole graph that they make of it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import registry
from qir.ir.dims import known_shape
from qir.ir.graph import Graph
from qir.ir.lexer import Cursor
from qir.ir.printer import print_graph
from qir.ir.text import parse
from qir.ir.types import Array, TensorType
from qir.ir.typetext import read_type
from qir.ledger import Ledger
from qir.rewrite import Pass, run_passes

LINE = "# ----\n"
_PASS = re.compile(r"([\w-]+)(?:\{([^}]*)\})?")
_ARRAY = re.compile(r"(?:\barray |\bconstant\()@([\w.]+)\)? : ")


@dataclass(frozen=True)
class Golden:
    """A file in its parts: first line, comment and input, expected text."""

    path: Path
    run: str
    given: str
    expected: str

    @classmethod
    def read(cls, path: Path) -> Golden:
        text = path.read_text(encoding="utf-8")
        head, _, rest = text.partition("\n")
        given, line, expected = rest.partition(LINE)
        assert head.startswith("# RUN: "), f"{path.name}: the first line is no RUN line"
        assert line, f"{path.name}: no line of dashes"
        return cls(path, head.removeprefix("# RUN: "), given, expected)

    def write(self, text: str) -> None:
        self.path.write_text(f"# RUN: {self.run}\n{self.given}{LINE}{text}", encoding="utf-8")

    def passes(self) -> list[Pass]:
        return [_pass(name, options) for name, options in _PASS.findall(self.run)]

    def graph(self) -> Graph:
        return parse(self.given, generate_arrays(self.given))

    def result(self) -> Graph:
        return run_passes(self.graph(), self.passes(), Ledger())

    def text(self, graph: Graph) -> str:
        """The printed graph, with its history where the input tells any."""
        return print_graph(graph, origins=" from " in self.given)


def _pass(name: str, options: str) -> Pass:
    made = registry.find("qir.passes", name)
    assert isinstance(made, type)
    assert issubclass(made, Pass)
    given: dict[str, int | str] = {}
    for part in filter(None, options.split(",")):
        key, _, value = part.partition("=")
        given[key.strip()] = int(value) if value.isdecimal() else value
    return made(**given)


def generate_arrays(text: str) -> Mapping[str, NDArray[np.generic]]:
    """Elements for the arrays of a text, from their names and types alone.

    Whole numbers lie within their bounds, floats are eighths from 1/8 to 8: sums and products of
    a few are exact, and each may be a scale.
    """
    declared: dict[str, Array] = {}
    for name, kind in _declared_types(text, declared):
        sizes = known_shape(kind.shape)
        assert sizes is not None, f"@{name} has a size that is no number"
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        if kind.dtype.is_float:
            data = (rng.integers(1, 65, sizes) / 8).astype(kind.dtype.carrier)
        else:
            low, high = (kind.quant.low, kind.quant.high) if kind.quant else kind.dtype.bounds
            data = rng.integers(low, high, sizes, endpoint=True).astype(kind.dtype.carrier)
        declared[name] = Array(data, kind, name)
    return {name: array.data for name, array in declared.items()}


def _declared_types(text: str, declared: Mapping[str, Array]) -> Iterator[tuple[str, TensorType]]:
    for found in _ARRAY.finditer(text):
        cursor = Cursor(text)
        cursor.at = found.end()
        yield found[1], read_type(cursor, declared.__getitem__)
