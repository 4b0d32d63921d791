"""Small models in MXNet's files, written without MXNet, for those who check the frontend."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .parameters import DTYPES, MAGIC, V2, Array

_FLAGS = {kind: flag for flag, kind in DTYPES.items()}


def parameter_bytes(arrays: Mapping[str, Array]) -> bytes:
    """Returns the bytes of a `.params` file with these arrays, dense and of version V2."""
    parts = [struct.pack("<QQQ", MAGIC, 0, len(arrays))]
    for data in arrays.values():
        shape = data.shape
        parts.append(struct.pack(f"<Iii{len(shape)}q", V2, 0, len(shape), *shape))
        parts.append(struct.pack("<iii", 1, 0, _FLAGS[data.dtype]) + data.tobytes())
    parts.append(struct.pack("<Q", len(arrays)))
    for name in arrays:
        parts.append(struct.pack("<Q", len(name.encode())) + name.encode())
    return b"".join(parts)


class _SymbolBuilder:
    """A symbol that grows node by node."""

    def __init__(self) -> None:
        self.nodes: list[dict[str, Any]] = []

    def add(self, op: str, name: str, *inputs: int, **attrs: object) -> int:
        node: dict[str, Any] = {"op": op, "name": name}
        if attrs:
            node["attrs"] = {key: str(value) for key, value in attrs.items()}
        node["inputs"] = [[index, 0, 0] for index in inputs]
        self.nodes.append(node)
        return len(self.nodes) - 1

    def text(self) -> str:
        variables = [i for i, node in enumerate(self.nodes) if node["op"] == "null"]
        return json.dumps(
            {
                "nodes": self.nodes,
                "arg_nodes": variables,
                "heads": [[len(self.nodes) - 1, 0, 0]],
                "attrs": {"mxnet_version": ["int", 10901]},
            },
            indent=2,
        )


def _convolutional(random: np.random.Generator) -> tuple[_SymbolBuilder, dict[str, Array]]:
    symbol = _SymbolBuilder()
    parameters: dict[str, Array] = {}
    window: dict[str, object] = {"kernel": "(3, 3)", "pad": "(1, 1)", "num_filter": 8}
    x = symbol.add("null", "data")
    w = symbol.add("null", "conv0_weight")
    x = symbol.add("Convolution", "conv0", x, w, no_bias=True, **window)
    norm_parameters = [
        symbol.add("null", f"bn0_{n}") for n in ("gamma", "beta", "moving_mean", "moving_var")
    ]
    x = symbol.add("BatchNorm", "bn0", x, *norm_parameters, fix_gamma=False)
    x = symbol.add("Activation", "relu0", x, act_type="relu")
    x = symbol.add("Pooling", "pool0", x, pool_type="avg", kernel="(1, 1)", global_pool=True)
    x = symbol.add("Flatten", "flat", x)
    layer_parameters = symbol.add("null", "fc0_weight"), symbol.add("null", "fc0_bias")
    symbol.add("FullyConnected", "fc0", x, *layer_parameters, num_hidden=4)
    for name, shape in {
        "arg:conv0_weight": (8, 3, 3, 3),
        "arg:bn0_beta": (8,),
        "aux:bn0_moving_mean": (8,),
        "arg:fc0_weight": (4, 8),
        "arg:fc0_bias": (4,),
    }.items():
        parameters[name] = random.normal(0, 0.3, shape).astype(np.float32)
    for name in ("arg:bn0_gamma", "aux:bn0_moving_var"):
        parameters[name] = random.uniform(0.5, 1.5, 8).astype(np.float32)
    return symbol, parameters


def _pointwise() -> _SymbolBuilder:
    symbol = _SymbolBuilder()
    x = symbol.add("null", "data", __shape__="(2, 3, 4)")
    y = symbol.add("Reshape", "rows", x, shape="(0, -1)")
    y = symbol.add("_mul_scalar", "half", y, scalar=0.5)
    symbol.add("softmax", "probabilities", y, axis=-1)
    return symbol


def write(folder: Path) -> Sequence[Path]:
    """Writes them into a folder and returns the paths of their symbols."""
    network, parameters = _convolutional(np.random.default_rng(0))
    paths = [folder / "network-symbol.json", folder / "pointwise-symbol.json"]
    paths[0].write_text(network.text())
    (folder / "network-0000.params").write_bytes(parameter_bytes(parameters))
    paths[1].write_text(_pointwise().text())
    return paths
