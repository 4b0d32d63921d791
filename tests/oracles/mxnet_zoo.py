"""Records networks of Gluon's zoo, with weights by a seed, and what MXNet 1.9.1 computes.

`python -m tests.oracles.mxnet_zoo FOLDER`, in the environment of `make oracle-mxnet`, writes
`zoo.npz`: of each network its symbol, the shapes of its parameters as JSON, and its results.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np
from mxnet.gluon.model_zoo import vision

from tests.oracles.mxnet_weights import images, weights

CLASSES = 20
NETWORKS = {
    "resnet18_v1": 64,
    "resnet18_v2": 64,
    "mobilenet0_25": 64,
    "mobilenet_v2_0_25": 64,
    "squeezenet1_1": 224,  # its last pooling takes 13 pixels: MXNet runs no smaller images
}
"""By name: how many pixels the sides of images have."""


def recorded(name: str, side: int) -> dict[str, Any]:
    """Returns the entries of one network."""
    with mx.name.NameManager(), tempfile.TemporaryDirectory() as folder:
        network = getattr(vision, name)(classes=CLASSES)
        network.initialize()
        network.hybridize()
        x = mx.nd.array(images(2, side))
        network(x)
        network.export(str(Path(folder) / name))
        symbol = mx.sym.load(f"{folder}/{name}-symbol.json")
    known, _, states = symbol.infer_shape(data=x.shape)
    pairs = [*zip(symbol.list_arguments(), known)]  # noqa: B905 of Python 3.8
    pairs += zip(symbol.list_auxiliary_states(), states)  # noqa: B905
    shapes = {n: s for n, s in pairs if n != "data"}
    held = {n: mx.nd.array(d) for n, d in weights(shapes).items()}
    given = {n: x if n == "data" else held[n] for n in symbol.list_arguments()}
    more = {n: held[n] for n in symbol.list_auxiliary_states()}
    (made,) = symbol.bind(mx.cpu(), given, aux_states=more, grad_req="null").forward(is_train=False)
    text = json.dumps(json.loads(symbol.tojson()))
    return {"symbol": text, "shapes": json.dumps(shapes), "side": side, "out": made.asnumpy()}


def main(folder: str) -> None:
    entries: dict[str, Any] = {}
    for name, side in NETWORKS.items():
        made = recorded(name, side)
        entries.update({f"{name}.{key}": np.array(value) for key, value in made.items()})
        print(name, made["out"].std())
    np.savez_compressed(Path(folder) / "zoo.npz", **entries)


if __name__ == "__main__":
    main(sys.argv[1])
