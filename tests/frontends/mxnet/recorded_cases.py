"""What MXNet computed for small symbols, recorded by `tests/oracles/mxnet_operators.py`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.frontends.mxnet.samples import parameter_bytes

RECORDED = Path(__file__).with_name("recorded")
Array = NDArray[np.generic]


@dataclass(eq=False)
class Case:
    """One symbol with its inputs, parameters and results."""

    name: str = ""
    symbol: str = ""
    inputs: dict[str, Array] = field(default_factory=dict)
    parameters: dict[str, Array] = field(default_factory=dict)
    results: list[Array] = field(default_factory=list)
    inner: dict[str, Array] = field(default_factory=dict)
    """Integers that nodes made, by the names that MXNet gives their results."""
    refused: str = ""
    """Not empty where MXNet refuses to run the symbol, which then has no results."""

    @property
    def operators(self) -> set[str]:
        """The operators of the symbol."""
        return {node["op"] for node in json.loads(self.symbol)["nodes"]} - {"null"}

    def given(self) -> list[Array]:
        """Returns the inputs in the order of the symbol."""
        names_in_order = (
            node["name"] for node in json.loads(self.symbol)["nodes"] if node["op"] == "null"
        )
        return [self.inputs[name] for name in names_in_order if name in self.inputs]

    def write(self, folder: Path) -> Path:
        """Writes the two files of a model and returns the path of its symbol."""
        path = folder / "model-symbol.json"
        path.write_text(self.symbol)
        (folder / "model-0000.params").write_bytes(parameter_bytes(self.parameters))
        return path


def cases(family: str, folder: Path = RECORDED) -> list[Case]:
    """Returns the cases of a family."""
    by_number: dict[int, Case] = {}
    with np.load(folder / f"{family}.npz") as arrays:
        for key in arrays.files:
            number, _, name = key.partition(".")
            case = by_number.setdefault(int(number), Case())
            kind, _, array_name = name.partition(".")
            if kind == "in":
                case.inputs[array_name] = arrays[key]
            elif kind == "param":
                case.parameters[array_name] = arrays[key]
            elif kind == "out":
                case.results.append(arrays[key])
            elif kind == "inner":
                case.inner[array_name] = arrays[key]
            else:
                setattr(case, kind, str(arrays[key]))
    return list(by_number.values())
