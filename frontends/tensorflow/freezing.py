"""Models that TensorFlow has to freeze first: files in a child process, objects where they are."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from zipfile import is_zipfile

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qir.errors import InputError

from .causes import cause
from .graphdef import GraphSource, Place, place_of, source_from
from .messages import GRAPH, SAVED

_DEFAULT = "serving_default"
_SERVED = "serve"
_UNREADABLE = re.compile("Read less bytes|not an sstable|[Cc]hecksum|truncated|corrupted|Data loss")
"""What TensorFlow says of a checkpoint that is cut short or damaged."""


@dataclass
class FrozenModel:
    """A graph, and by node what its inputs are called, by name which results are its outputs."""

    source: GraphSource
    inputs: dict[str, str]
    outputs: dict[str, Place]


def frozen_folder(path: Path, signature: str) -> FrozenModel | None:
    """Reads a SavedModel folder that holds a frozen graph: no variables, no functions.

    Returns None for others, which TensorFlow has to freeze first.
    """
    try:
        saved = SAVED.FromString((path / "saved_model.pb").read_bytes())
    except (OSError, DecodeError):
        return None  # TensorFlow says what is wrong with it
    if len(saved.meta_graphs) != 1:
        return None
    graph, known = saved.meta_graphs[0].graph_def, saved.meta_graphs[0].signature_def
    variables = any(node.op.startswith(("Var", "Restore")) for node in graph.node)
    signature = signature or _DEFAULT
    if signature not in known or graph.library.function or variables or not graph.node:
        return None
    sides = known[signature]
    inputs = {place_of(info.name)[0]: name for name, info in sides.inputs.items()}
    outputs = {name: place_of(sides.outputs[name].name) for name in sorted(sides.outputs)}
    return FrozenModel(source_from(graph, str(path)), inputs, outputs)


def freeze_file(path: Path, signature: str = "") -> FrozenModel:
    """Freezes a SavedModel folder or a Keras file; raises InputError with what TensorFlow says.

    Without a name it is the signature `serving_default`, or the only one.
    """
    if path.is_dir() and (found := frozen_folder(path, signature)) is not None:
        return found
    if path.is_dir():
        _check_folder(path, signature)
    elif path.suffix.lower() == ".keras" and path.is_file() and not is_zipfile(path):
        raise InputError(f"{path}: is damaged: a .keras file is a zip archive, and this is none")
    _require_tensorflow(str(path))
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", f"{__package__}.child", str(path.resolve()), folder]
        command += [signature] if signature else []
        env = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
        ended = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        if ended.returncode:
            raise InputError(f"{path}: {_told(path, ended)}")
        graph = Path(folder, "graph.pb").read_bytes()
        names = json.loads(Path(folder, "names.json").read_text(encoding="utf-8"))
    return _model(graph, names, str(path))


def _told(path: Path, ended: subprocess.CompletedProcess[str]) -> str:
    """Returns what became of a model that TensorFlow did not freeze."""
    if (number := -ended.returncode) > 0:
        memory = "; memory may not suffice" if number == signal.SIGKILL else ""
        return f"TensorFlow was killed (signal {number}) when it loaded it{memory}"
    lines = [line for line in ended.stderr.splitlines() if line.strip()]
    said = lines[-1] if ended.returncode == 1 and lines else f"status {ended.returncode}"
    if path.is_dir() and _UNREADABLE.search(said):
        return f"TensorFlow does not read its weights, the files in variables/: {said}"
    return f"TensorFlow does not load it: {said}"


def freeze_object(model: object) -> FrozenModel:
    """Freezes a Keras model or a concrete function; raises InputError where TensorFlow cannot."""
    name = getattr(model, "name", "") or type(model).__name__
    _require_tensorflow(name)
    from . import child

    try:
        keras = hasattr(model, "layers")
        graph, names = child.of_keras(model) if keras else child.frozen(model)
    except Exception as error:  # the user's own layers run here
        raise InputError(f"{name}: TensorFlow does not freeze it: {cause(error)}") from error
    return _model(graph, names, name)


def _model(graph: bytes, names: dict[str, list[tuple[str, str]]], file: str) -> FrozenModel:
    inputs = {place_of(tensor)[0]: name for name, tensor in names["inputs"]}
    outputs = {name: place_of(tensor) for name, tensor in names["outputs"]}
    return FrozenModel(source_from(GRAPH.FromString(graph), file), inputs, outputs)


def _require_tensorflow(source: str) -> None:
    if find_spec("tensorflow") is None:
        said = 'is frozen by TensorFlow first, which is missing: pip install "qir[tensorflow]"'
        raise InputError(f"{source}: {said}")


def _check_folder(path: Path, signature: str) -> None:
    """Raises InputError for a signature that a SavedModel lacks, and for missing variables."""
    try:
        metas = SAVED.FromString((path / "saved_model.pb").read_bytes()).meta_graphs
    except (OSError, DecodeError):
        metas = ()  # TensorFlow says what is wrong with it
    else:
        _check_tags(path, [" and ".join(meta.meta_info_def.tags) for meta in metas])
    if len(metas) == 1:
        names = sorted(name for name in metas[0].signature_def if not name.startswith("__"))
        if names and (signature or (_DEFAULT if len(names) > 1 else names[0])) not in names:
            said = f"its signatures are {', '.join(names)}; none is {signature or _DEFAULT}"
            raise InputError(f"{path}: {said}: name one, as in {path.name}#{names[0]}")
    variables = path / "variables"
    if not variables.is_dir() and _has_variables(path):
        raise InputError(f"{path}: the folder lacks variables/, which holds the model's weights")
    for file in (variables, *(variables.iterdir() if variables.is_dir() else ())):
        if not file.resolve().is_relative_to(path.resolve()):
            where = file.relative_to(path)
            raise InputError(f"{path}: {where} leads out of the folder; put a copy in its place")


def _check_tags(path: Path, tags: Sequence[str]) -> None:
    """Raises InputError for a SavedModel of which it is open which graph is meant."""
    if not tags:
        raise InputError(f"{path}: its saved_model.pb holds no graph")
    if len(tags) > 1 and _SERVED not in tags:
        named = ", ".join(tag or "none" for tag in tags)
        said = f"holds {len(tags)} graphs (tags: {named}), none of them with the tag {_SERVED}"
        raise InputError(f"{path}: {said}; save the one that is meant alone")


def _has_variables(folder: Path) -> bool:
    """Returns whether a SavedModel names variables, which live in files of their own."""
    return b"VarHandleOp" in (folder / "saved_model.pb").read_bytes()
