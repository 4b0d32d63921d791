"""The models that tests hand to onnxruntime to compare what it computes, without running them."""

from __future__ import annotations

import importlib
import inspect
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import onnx
import onnxruntime

FOLDER = Path(__file__).parent
Test = Callable[..., None]


class _Found(BaseException):
    """Ends a test once its model is there, whatever it catches."""


def models(patterns: Sequence[str], most: int) -> Iterator[onnx.ModelProto]:
    """The first model of each test in files of these names, for so many of its parameters."""
    found: list[onnx.ModelProto] = []

    def keep(model: bytes | str, *rest: object, **options: object) -> None:
        whole = isinstance(model, bytes)
        made = onnx.load_model_from_string(model) if whole else onnx.load(str(model))
        if made.graph.name == "foreign":  # asked what an op gives, and not to compute
            raise ValueError
        found.append(made)
        raise _Found

    with (
        warnings.catch_warnings(),
        patch.object(onnxruntime, "InferenceSession", keep),
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        for path in sorted(p for pattern in patterns for p in FOLDER.rglob(pattern)):
            module = importlib.import_module(_module_name(path))
            for test, given in _tests(module, most):
                _until_found(test, given, Path(tempfile.mkdtemp(dir=folder)))
                yield from found
                found.clear()


def _module_name(path: Path) -> str:
    parts = path.relative_to(FOLDER).with_suffix("").parts
    return ".".join((str(__package__), *parts))


def _until_found(test: Test, given: dict[str, Any], folder: Path) -> None:
    """Runs a test up to its first session; one that wants what pytest alone gives is left out."""
    wanted = set(inspect.signature(test).parameters)
    beside = {"tmp_path": folder} if "tmp_path" in wanted else {}
    if wanted != {*given, *beside}:
        return
    try:
        test(**given, **beside)
    except _Found:
        return


def _tests(module: ModuleType, most: int) -> Iterator[tuple[Test, dict[str, Any]]]:
    """The tests of a module, each with parameters spread over all that it has."""
    for name, test in vars(module).items():
        if not name.startswith("test_") or not callable(test):
            continue
        marks = [m for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"]
        rows = [[_bound(m.args[0], value) for value in m.args[1]] for m in marks]
        sets = [dict(p for part in each for p in part.items()) for each in product(*rows)]
        for at in sorted({i * (len(sets) - 1) // max(1, most - 1) for i in range(most)}):
            yield test, sets[at]


def _bound(names: Any, value: Any) -> dict[str, Any]:
    """The names of a mark with one of its values."""
    split = [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    held = getattr(value, "values", value)
    values = value if callable(held) else held  # a dictionary has such a method
    alone = len(split) == 1 and held is value
    return dict(zip(split, [values] if alone else values, strict=True))
