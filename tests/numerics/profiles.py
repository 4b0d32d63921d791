"""Profiles made up for a test, and small graphs computed by them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.text import parse as parse_graph
from qir.ir.verify import check
from qir.profiles import parse, profile
from qir.reference.interpreter import run
from tests.overriding import override_profile

Tensor = NDArray[Any]
F = np.float32
HEAD = 'name = "made-up"\nextends = "native"\n'


def computed(fields: str, body: str, **inputs: Tensor) -> Tensor:
    """What `%y` of a graph is where native's fields are changed as said."""
    found = parse(f"{HEAD}{fields}\n", "made-up.toml", profile)
    with override_profile(found):
        graph = parse_graph(f"graph g as made-up {{\n{body}\noutput(y=%y)\n}}", {})
        check(graph)
        return run(graph, inputs)["y"]


def linear(bias: str = "", result: str = "!quant.uniform<u8:f32, 0.5:3>", tail: str = "") -> str:
    """A linear layer of 24 terms and 8 channels, scales 0.25 and 0.125; 64 rows."""
    lines = [
        "%x = input() : 64x24x!quant.uniform<u8:f32, 0.25:7>",
        "%w = input() : 8x24x!quant.uniform<i8:f32, 0.125>",
    ]
    if bias:
        lines.append(f"%b = input() : 8x{bias}")
    operands = "%x, %w, bias=%b" if bias else "%x, %w"
    return "\n".join([*lines, f"%y = linear({operands}){tail} : 64x8x{result}"])


def operands(seed: int) -> dict[str, Tensor]:
    """Integers for it, of which many products fall on ties."""
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 16, (64, 24)).astype(np.uint8)
    return {"x": x, "w": rng.integers(-4, 5, (8, 24)).astype(np.int8)}


def sums(x: Tensor, w: Tensor) -> Tensor:
    """The exact sums, zero points taken off."""
    return np.asarray((x.astype(np.int64) - 7) @ w.astype(np.int64).T)
