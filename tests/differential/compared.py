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


def models(patterns: Sequence[str], at_most: int) -> Iterator[onnx.ModelProto]:
    """Yields the first model of each test in files of these names, for some of its parameters."""
    collected: list[onnx.ModelProto] = []

    def keep(model: bytes | str, *others: object, **options: object) -> None:
        is_bytes = isinstance(model, bytes)
        loaded = onnx.load_model_from_string(model) if is_bytes else onnx.load(str(model))
        if loaded.graph.name == "foreign":  # asked what an op gives, and not to compute
            raise ValueError
        collected.append(loaded)
        # An exception ends the test here: it need not be run further.
        raise _Found

    with (
        warnings.catch_warnings(),
        patch.object(onnxruntime, "InferenceSession", keep),
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        for path in sorted(p for pattern in patterns for p in FOLDER.rglob(pattern)):
            module = importlib.import_module(_module_name(path))
            for test, arguments in _tests(module, at_most):
                _until_found(test, arguments, Path(tempfile.mkdtemp(dir=folder)))
                yield from collected
                collected.clear()


def _module_name(path: Path) -> str:
    parts = path.relative_to(FOLDER).with_suffix("").parts
    return ".".join((str(__package__), *parts))


def _until_found(test: Test, arguments: dict[str, Any], folder: Path) -> None:
    """Runs a test up to its first session; one that wants what pytest alone gives is left out."""
    parameters = set(inspect.signature(test).parameters)
    fixtures = {"tmp_path": folder} if "tmp_path" in parameters else {}
    if parameters != {*arguments, *fixtures}:
        return
    try:
        test(**arguments, **fixtures)
    except _Found:
        return


def _tests(module: ModuleType, at_most: int) -> Iterator[tuple[Test, dict[str, Any]]]:
    """Yields the tests of a module, each with parameters spread over all that it has."""
    for name, test in vars(module).items():
        if not name.startswith("test_") or not callable(test):
            continue
        marks = [m for m in getattr(test, "pytestmark", ()) if m.name == "parametrize"]
        rows = [[_bound(m.args[0], value) for value in m.args[1]] for m in marks]
        all_parameters = [
            dict(p for part in chosen for p in part.items()) for chosen in product(*rows)
        ]
        for index in sorted(
            {i * (len(all_parameters) - 1) // max(1, at_most - 1) for i in range(at_most)}
        ):
            yield test, all_parameters[index]


def _bound(names: Any, value: Any) -> dict[str, Any]:
    """Returns the names of a mark with one of its values."""
    argument_names = (
        [n.strip() for n in names.split(",")] if isinstance(names, str) else list(names)
    )
    inner = getattr(value, "values", value)
    values = value if callable(inner) else inner  # a dictionary has such a method
    is_single = len(argument_names) == 1 and inner is value
    return dict(zip(argument_names, [values] if is_single else values, strict=True))
