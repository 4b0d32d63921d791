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


def parameter_bytes(held: Mapping[str, Array]) -> bytes:
    """Returns the bytes of a `.params` file with these arrays, dense and of version V2."""
    parts = [struct.pack("<QQQ", MAGIC, 0, len(held))]
    for data in held.values():
        shape = data.shape
        parts.append(struct.pack(f"<Iii{len(shape)}q", V2, 0, len(shape), *shape))
        parts.append(struct.pack("<iii", 1, 0, _FLAGS[data.dtype]) + data.tobytes())
    parts.append(struct.pack("<Q", len(held)))
    for name in held:
        parts.append(struct.pack("<Q", len(name.encode())) + name.encode())
    return b"".join(parts)


class _Written:
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
        found = [i for i, node in enumerate(self.nodes) if node["op"] == "null"]
        return json.dumps(
            {
                "nodes": self.nodes,
                "arg_nodes": found,
                "heads": [[len(self.nodes) - 1, 0, 0]],
                "attrs": {"mxnet_version": ["int", 10901]},
            },
            indent=2,
        )


def _convolutional(drawn: np.random.Generator) -> tuple[_Written, dict[str, Array]]:
    made = _Written()
    held: dict[str, Array] = {}
    sides: dict[str, object] = {"kernel": "(3, 3)", "pad": "(1, 1)", "num_filter": 8}
    x = made.add("null", "data")
    w = made.add("null", "conv0_weight")
    x = made.add("Convolution", "conv0", x, w, no_bias=True, **sides)
    rows = [made.add("null", f"bn0_{n}") for n in ("gamma", "beta", "moving_mean", "moving_var")]
    x = made.add("BatchNorm", "bn0", x, *rows, fix_gamma=False)
    x = made.add("Activation", "relu0", x, act_type="relu")
    x = made.add("Pooling", "pool0", x, pool_type="avg", kernel="(1, 1)", global_pool=True)
    x = made.add("Flatten", "flat", x)
    more = made.add("null", "fc0_weight"), made.add("null", "fc0_bias")
    made.add("FullyConnected", "fc0", x, *more, num_hidden=4)
    for name, shape in {
        "arg:conv0_weight": (8, 3, 3, 3),
        "arg:bn0_beta": (8,),
        "aux:bn0_moving_mean": (8,),
        "arg:fc0_weight": (4, 8),
        "arg:fc0_bias": (4,),
    }.items():
        held[name] = drawn.normal(0, 0.3, shape).astype(np.float32)
    for name in ("arg:bn0_gamma", "aux:bn0_moving_var"):
        held[name] = drawn.uniform(0.5, 1.5, 8).astype(np.float32)
    return made, held


def _pointwise() -> _Written:
    made = _Written()
    x = made.add("null", "data", __shape__="(2, 3, 4)")
    y = made.add("Reshape", "rows", x, shape="(0, -1)")
    y = made.add("_mul_scalar", "half", y, scalar=0.5)
    made.add("softmax", "probabilities", y, axis=-1)
    return made


def write(folder: Path) -> Sequence[Path]:
    """Writes them into a folder and returns the paths of their symbols."""
    network, held = _convolutional(np.random.default_rng(0))
    paths = [folder / "network-symbol.json", folder / "pointwise-symbol.json"]
    paths[0].write_text(network.text())
    (folder / "network-0000.params").write_bytes(parameter_bytes(held))
    paths[1].write_text(_pointwise().text())
    return paths
