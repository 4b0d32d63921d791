"""What is checked of a SavedModel's folder before TensorFlow loads it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from qir.errors import InputError

from .messages import AssetFileMessage, SavedModelMessage

DEFAULT_SIGNATURE = "serving_default"
"""The signature that is read where none is named."""
_SERVING_TAG = "serve"
_FILE_OPS = frozenset({"ReadFile", "WriteFile", "MatchingFiles"})
"""Ops that take any path."""


def check_folder(path: Path, signature: str) -> None:
    """Raises InputError for a missing signature, missing variables, and what leaves the folder."""
    if not (path / "saved_model.pb").exists() and (path / "saved_model.pbtxt").exists():
        # TensorFlow reads it, and nothing below would have looked into it.
        raise InputError(f"{path}: saved_model.pbtxt is text; save the model with saved_model.pb")
    try:
        metas = SavedModelMessage.FromString((path / "saved_model.pb").read_bytes()).meta_graphs
    except (OSError, DecodeError):
        metas = ()  # TensorFlow says what is wrong with it
    else:
        _check_tags(path, [" and ".join(meta.meta_info_def.tags) for meta in metas])
    if len(metas) == 1:
        names = sorted(name for name in metas[0].signature_def if not name.startswith("__"))
        if (
            names
            and (signature or (DEFAULT_SIGNATURE if len(names) > 1 else names[0])) not in names
        ):
            message = (
                f"its signatures are {', '.join(names)}; none is {signature or DEFAULT_SIGNATURE}"
            )
            raise InputError(f"{path}: {message}: name one, as in {path.name}#{names[0]}")
    variables = path / "variables"
    if not variables.is_dir() and _has_variables(path):
        raise InputError(f"{path}: the folder lacks variables/, which holds the model's weights")
    for meta in metas:
        _check_assets(path, meta)
        _check_file_ops(path, meta.graph_def)
    _check_links(path)


def _check_assets(path: Path, meta: Any) -> None:
    """Raises InputError for an asset elsewhere, which TensorFlow would open."""
    packed = meta.collection_def["saved_model_assets"].any_list.value
    try:
        assets = [*meta.asset_file_def, *(AssetFileMessage.FromString(a.value) for a in packed)]
    except DecodeError:
        raise InputError(f"{path}: its list of assets is damaged") from None
    for asset in assets:
        folders = PurePosixPath(asset.filename)
        if folders.is_absolute() or ".." in folders.parts:
            message = f"its asset {asset.filename!r} leads out of the folder"
            raise InputError(f"{path}: {message}; save the model with a copy of it")


def _check_file_ops(path: Path, graph: Any) -> None:
    """Raises InputError for ops that read or write any file; initializers run them on loading."""
    functions = (function.node_def for function in graph.library.function)
    for node in chain(graph.node, *functions):
        if node.op in _FILE_OPS:
            message = f"{node.op} {node.name} may open any file when TensorFlow loads it"
            raise InputError(f"{path}: {message}; save the model without it")


def _check_links(path: Path) -> None:
    """Raises InputError for links that lead out of the folder to any file of the system."""
    for name in ("variables", "assets"):
        folder = path / name
        for file in (folder, *(folder.rglob("*") if folder.is_dir() else ())):
            if not file.resolve().is_relative_to(path.resolve()):
                message = f"{file.relative_to(path)} leads out of the folder"
                raise InputError(f"{path}: {message}; put a copy in its place")


def _check_tags(path: Path, tags: Sequence[str]) -> None:
    """Raises InputError for a SavedModel with no graph, or several without the serving tag."""
    if not tags:
        raise InputError(f"{path}: its saved_model.pb holds no graph")
    if len(tags) > 1 and _SERVING_TAG not in tags:
        listed = ", ".join(tag or "none" for tag in tags)
        message = (
            f"holds {len(tags)} graphs (tags: {listed}), none of them with the tag {_SERVING_TAG}"
        )
        raise InputError(f"{path}: {message}; save the one that is meant alone")


def _has_variables(folder: Path) -> bool:
    """Returns whether a SavedModel has variables, which are stored in separate files."""
    return b"VarHandleOp" in (folder / "saved_model.pb").read_bytes()
