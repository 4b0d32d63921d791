"""Records what MXNet 1.9.1 computes for small symbols, each made of the operators QIR reads.

`python -m tests.oracles.mxnet_operators FOLDER`, in the environment of `make oracle-mxnet`, writes
one npz file a family. Knows nothing of QIR. Each case of a file is a number and a name: `3.symbol`
is MXNet's JSON, `3.in.data` an input, `3.param.w` a parameter, `3.out.0` a result. Everything is
drawn from SEED.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mxnet as mx
import numpy as np

from tests.oracles.mxnet_layers import layers
from tests.oracles.mxnet_moves import moves
from tests.oracles.mxnet_points import points

SEED = 20261123
FAMILIES = {"layers": layers, "moves": moves, "points": points}


def drawn(rng: Any, name: str, shape: Any) -> Any:
    """Returns a parameter: variances and factors are positive."""
    if name.endswith(("var", "gamma")):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return (rng.randn(*shape) * 0.3).astype(np.float32)


def computed(rng: Any, symbol: Any, feeds: dict[str, Any]) -> dict[str, Any]:
    """Returns the entries of one case."""
    shapes = {name: data.shape for name, data in feeds.items()}
    wanted, _, states = symbol.infer_shape(**shapes)
    both = dict(zip(symbol.list_arguments(), wanted))  # noqa: B905 of Python 3.8
    both.update(zip(symbol.list_auxiliary_states(), states))  # noqa: B905
    labels = {name for name in both if name.endswith("label")}
    held = {n: drawn(rng, n, s) for n, s in both.items() if n not in feeds and n not in labels}
    given = {n: mx.nd.array(d, dtype=d.dtype) for n, d in {**held, **feeds}.items()}
    given.update({n: mx.nd.zeros(both[n]) for n in labels})
    arguments = {n: given[n] for n in symbol.list_arguments()}
    others = {n: given[n] for n in symbol.list_auxiliary_states()}
    made = symbol.bind(mx.cpu(), arguments, aux_states=others, grad_req="null").forward(
        is_train=False
    )
    entries = {"symbol": np.array(symbol.tojson())}
    entries.update({f"in.{n}": d for n, d in feeds.items()})
    entries.update({f"param.{n}": d for n, d in held.items()})
    entries.update({f"out.{i}": d.asnumpy() for i, d in enumerate(made)})
    return entries


def cases(name: str) -> Iterator[tuple[str, Any]]:
    """Returns the entries of each case of a family."""
    rng = np.random.RandomState(SEED)
    for index, (said, symbol, feeds) in enumerate(FAMILIES[name](rng)):
        with mx.name.NameManager():
            try:
                entries = computed(rng, symbol, feeds)
            except Exception as error:
                raise RuntimeError(f"{name} {index} {said}") from error
        yield f"{index}.name", np.array(said)
        for key, data in entries.items():
            yield f"{index}.{key}", data


def main(folder: str) -> None:
    for name in FAMILIES:
        held = dict(cases(name))
        np.savez_compressed(Path(folder) / f"{name}.npz", **held)
        print(name, sum(key.endswith(".name") for key in held), "cases")


if __name__ == "__main__":
    main(sys.argv[1])
