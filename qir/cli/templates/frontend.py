"""A new frontend."""

from __future__ import annotations

from collections.abc import Mapping

FILES: Mapping[str, str] = {
    "=points": """\
[project.entry-points."qir.frontends"]
$name = "$module:$Class"
""",
    "=about": """\
A frontend for QIR: it reads models of `.$module` files. To begin with that is a small JSON format
of layers, `dense` and `relu`, which stands for yours.""",
    "=use": """\
Then every verb of QIR reads such files:

```text
qir show net.$module
qir convert net.$module -o net.onnx
```""",
    "$module/__init__.py": '''\
"""Reads networks of dense layers that are written as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from qir.errors import InputError, QirError
from qir.frontend import Frontend
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.origin import Origin
from qir.ir.types import Array, TensorType
from qir.ledger import Ledger

qir_api = 1

HIDDEN = {"kind": "dense", "name": "a", "weights": [[1, -2, 0.5], [3, 0, -1]], "bias": [0.5, -1]}
BEND = {"kind": "relu", "name": "b"}
OUT = {"kind": "dense", "name": "c", "weights": [[2, 1], [-1, 1], [0, 3]]}
SAMPLE = {"input": [1, 3], "layers": [HIDDEN, BEND, OUT]}


class $Class(Frontend):
    """Reads `.$module` files: an input, and the layers that it goes through."""

    name = "$name"
    suffixes = (".$module",)

    def load(self, source: object, ledger: Ledger) -> Graph:
        """Reads a file; InputError, naming file and layer, for one that is damaged."""
        path = Path(str(source))
        try:
            return _read(path, json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from None
        except QirError as error:
            raise InputError(f"{path}: {error}") from error
        except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
            raise InputError(f"{path}: is damaged: {error or type(error).__name__}") from error

    def samples(self, folder: Path) -> Sequence[Path]:
        """Writes a small model, for `qir plugins check`."""
        path = folder / "sample.$module"
        path.write_text(json.dumps(SAMPLE), encoding="utf-8")
        return [path]


def _read(path: Path, data: dict[str, object]) -> Graph:
    graph = Graph("main")
    shape = data["input"]
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int for n in shape):
        raise InputError("input is two sizes, such as [1, 3]")
    origin = Origin("$name", "input", "x")
    kind = TensorType(tuple(shape), F32)
    value = graph.add("input", types=[kind], name="x", origins=[origin]).result
    layers = data["layers"]
    if not isinstance(layers, list):
        raise InputError("layers is a list")
    for number, layer in enumerate(layers):
        if not isinstance(layer, dict):
            raise InputError(f"layer {number} is no object")
        value = _layer(graph, value, layer, number)
    graph.add("output", {"y": value})
    return graph


def _layer(graph: Graph, x: Value, layer: dict[str, object], number: int) -> Value:
    """Adds what a layer computes. Every node says where it came from."""
    name = str(layer.get("name") or f"layer{number}")
    origin = Origin("$name", str(layer.get("kind")), name)
    match layer.get("kind"):
        case "relu":
            return graph.add("relu", {"x": x}, name=graph.fresh(name), origins=[origin]).result
        case "dense":
            operands = {"x": x, "w": _constant(graph, layer["weights"], f"{name}.w", 2)}
            if "bias" in layer:
                operands["bias"] = _constant(graph, layer["bias"], f"{name}.b", 1)
            node = graph.add("linear", operands, name=graph.fresh(name), origins=[origin])
            return node.result
    raise InputError(f"layer {name}: no kind {layer.get('kind')!r}; kinds are dense and relu")


def _constant(graph: Graph, data: object, name: str, axes: int) -> Value:
    array: NDArray[np.float32] = np.array(data, np.float32)
    if array.ndim != axes:
        raise InputError(f"{name} has {array.ndim} axes, {axes} are wanted")
    name = graph.fresh(name)
    return graph.constant(Array.of(array, name), name=name)
''',
    "tests/test_$module.py": '''\
"""The frontend reads what it says, and keeps the contract of frontends."""

from pathlib import Path

import numpy as np
import pytest
import qir
from qir.errors import InputError
from qir.ledger import Ledger
from qir.testing import check_frontend, require

from $module import HIDDEN, OUT, $Class


def test_what_it_reads_computes_what_was_meant(tmp_path: Path) -> None:
    (path,) = $Class().samples(tmp_path)
    graph = $Class().load(path, Ledger())
    x = np.array([[1.0, 2.0, -3.0]], np.float32)
    wanted = np.maximum(x @ np.array(HIDDEN["weights"]).T + HIDDEN["bias"], 0)
    wanted = wanted @ np.array(OUT["weights"]).T
    assert np.allclose(qir.run(graph, {"x": x})["y"], wanted)


def test_a_layer_that_there_is_not_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.$module"
    path.write_text('{"input": [1, 3], "layers": [{"kind": "conv", "name": "first"}]}')
    with pytest.raises(InputError, match="layer first: no kind 'conv'"):
        $Class().load(path, Ledger())


def test_it_keeps_the_contract_of_frontends() -> None:
    require(check_frontend($Class))
''',
}
