"""Freezes models by TensorFlow: files in a child process, objects in this process."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import is_zipfile

import numpy as np
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from qir.errors import InputError

from .error_causes import error_cause
from .folders import DEFAULT_SIGNATURE, check_folder
from .graphdef import GraphSource, ResultPlace, parse_place, source_from
from .messages import GraphDefMessage, SavedModelMessage

_DAMAGED_CHECKPOINT = re.compile(
    "Read less bytes|not an sstable|[Cc]hecksum|truncated|corrupted|Data loss"
)
"""Messages of TensorFlow about a truncated or damaged checkpoint."""


@dataclass
class FrozenModel:
    """A frozen graph; `inputs` has names by placeholder, `outputs` results by name."""

    source: GraphSource
    inputs: dict[str, str]
    outputs: dict[str, ResultPlace]


def read_frozen_folder(path: Path, signature: str) -> FrozenModel | None:
    """Reads a SavedModel folder without variables and functions, which needs no TensorFlow.

    Returns None for others.
    """
    try:
        saved = SavedModelMessage.FromString((path / "saved_model.pb").read_bytes())
    except (OSError, DecodeError):
        return None  # TensorFlow says what is wrong with it
    if len(saved.meta_graphs) != 1:
        return None
    graph, signatures = saved.meta_graphs[0].graph_def, saved.meta_graphs[0].signature_def
    has_variables = any(node.op.startswith(("Var", "Restore")) for node in graph.node)
    signature = signature or DEFAULT_SIGNATURE
    if signature not in signatures or graph.library.function or has_variables or not graph.node:
        return None
    chosen = signatures[signature]
    # A map of protobuf has no order of its own: its entries come as they are hashed.
    places = {parse_place(info.name)[0]: name for name, info in chosen.inputs.items()}
    inputs = {node.name: places[node.name] for node in graph.node if node.name in places}
    outputs = {name: parse_place(chosen.outputs[name].name) for name in sorted(chosen.outputs)}
    return FrozenModel(source_from(graph, str(path)), inputs, outputs)


def freeze_file(path: Path, signature: str = "") -> FrozenModel:
    """Freezes a SavedModel folder or a Keras file; raises InputError with TensorFlow's message.

    Without a name, the signature is `serving_default`, or the only one.
    """
    if path.is_dir() and (frozen := read_frozen_folder(path, signature)) is not None:
        return frozen
    if path.is_dir():
        check_folder(path, signature)
    elif path.suffix.lower() == ".keras" and path.is_file() and not is_zipfile(path):
        raise InputError(f"{path}: is damaged: a .keras file is a zip archive, and this is none")
    _require_tensorflow(str(path))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"{__package__}.child", str(path.resolve()), folder]
        command += [signature] if signature else []
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        # TensorFlow may abort on a damaged file: only the child dies.
        ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if ended.returncode:
            raise InputError(f"{path}: {_failure_text(path, ended)}")
        graph = Path(folder, "graph.pb").read_bytes()
        names = json.loads(Path(folder, "names.json").read_text(encoding="utf-8"))
        # The file goes with its folder; what is mapped of it stays as long as an array is used.
        weights = {
            name: np.memmap(Path(folder, "weights.bin"), dtype, "r", offset, tuple(shape))
            for name, (dtype, shape, offset) in names["weights"].items()
        }
    return _frozen_model(graph, names, weights, str(path))


def _failure_text(path: Path, ended: subprocess.CompletedProcess[str]) -> str:
    """Returns why the child process did not freeze a model."""
    if (number := -ended.returncode) > 0:
        memory = "; memory may not suffice" if number == signal.SIGKILL else ""
        return f"TensorFlow was killed (signal {number}) when it loaded it{memory}"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    message = lines[-1] if ended.returncode == 1 and lines else f"status {ended.returncode}"
    if path.is_dir() and _DAMAGED_CHECKPOINT.search(message):
        return f"TensorFlow does not read its weights, the files in variables/: {message}"
    return f"TensorFlow does not load it: {message}"


def name_of(model: object) -> str:
    """Returns the name of a Keras model, or of the function that was made concrete."""
    name = getattr(model, "name", "") or type(model).__name__
    text = name.decode() if isinstance(name, bytes) else str(name)
    # TensorFlow adds a prefix and a number to a function's own name.
    found = re.fullmatch(r"__inference_(.+)_\d+", text)
    return found[1] if found else text


def freeze_object(model: object) -> FrozenModel:
    """Freezes a Keras model or a concrete function; raises InputError if TensorFlow cannot."""
    name = name_of(model)
    _require_tensorflow(name)
    from . import child

    try:
        is_keras = hasattr(model, "layers")
        frozen = child.freeze_keras(model) if is_keras else child.freeze_function(model)
    except Exception as error:  # the user's own layers run here
        raise InputError(f"{name}: TensorFlow does not freeze it: {error_cause(error)}") from error
    weights = {each: variable.numpy() for each, variable in frozen.weights.items()}
    return _frozen_model(frozen.data, frozen.names, weights, name)


def _frozen_model(
    graph: bytes,
    names: Mapping[str, Sequence[tuple[str, str]]],
    weights: Mapping[str, NDArray[np.generic]],
    file: str,
) -> FrozenModel:
    inputs = {parse_place(tensor)[0]: name for name, tensor in names["inputs"]}
    outputs = {name: parse_place(tensor) for name, tensor in names["outputs"]}
    source = source_from(GraphDefMessage.FromString(graph), file)
    source.weights = weights
    return FrozenModel(source, inputs, outputs)


def _require_tensorflow(source: str) -> None:
    if find_spec("tensorflow") is None:
        message = 'is frozen by TensorFlow first, which is missing: pip install "qir[tensorflow]"'
        raise InputError(f"{source}: {message}")
