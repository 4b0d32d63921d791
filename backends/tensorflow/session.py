"""Runs models in TensorFlow, in one child process that all sessions share.

TensorFlow takes seconds to import, and prints and crashes: none of that should reach this process.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from qir.errors import DataError, InputError, PluginError
from qir.inspect import pipe
from qir.inspect.pipe import Plain
from qir.target import Executable

from .writer.graphdef import WrittenGraph

_CHILD_LOCK = threading.Lock()
_RUNNING_CHILD: list[subprocess.Popen[bytes]] = []


def _running_child() -> subprocess.Popen[bytes]:
    """Returns the process in which TensorFlow runs, and starts it if there is none."""
    if _RUNNING_CHILD and _RUNNING_CHILD[0].poll() is None:
        return _RUNNING_CHILD[0]
    if find_spec("tensorflow") is None:
        message = 'TensorFlow runs its models, and is missing: pip install "qir[tensorflow]"'
        raise PluginError(message)
    _RUNNING_CHILD[:] = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # No GPU: the profiles are about TensorFlow's CPU kernels.
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
    ]
    # The child ends with this process.
    atexit.register(close)
    return _RUNNING_CHILD[0]


def close() -> None:
    """Ends the child process."""
    with _CHILD_LOCK:
        for child in _RUNNING_CHILD:
            pipe.close(child)
        _RUNNING_CHILD.clear()


def _ask(question: Plain) -> Plain:
    with _CHILD_LOCK:
        child = _running_child()
        try:
            return pipe.ask(child, question)
        except EOFError:
            status = child.wait()
            # The next request starts a new child.
            _RUNNING_CHILD.clear()
            raise DataError(f"TensorFlow ended with status {status}") from None


class _ModelInChild(Executable):
    """A model that the child process has."""

    def __init__(self, source: Plain, name: str, threads: int | None) -> None:
        """Lets TensorFlow build the graph; raises InputError for one that it rejects."""
        self.source = source
        self.threads = threads or len(os.sched_getaffinity(0))
        # A request without fetches only builds the graph, and returns its inputs and outputs.
        interface = _ask((source, self.threads, {}, ()))
        if isinstance(interface, str):
            raise InputError(f"{name}TensorFlow does not take it: {interface}")
        assert isinstance(interface, dict)
        self.inputs, self.outputs = (_tensor_names(interface[key]) for key in ("inputs", "outputs"))

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs the model on arrays by input name, and returns results by output name.

        Raises DataError for inputs that TensorFlow rejects.
        """
        return self.values(inputs, self.outputs)

    def values(self, inputs: Mapping[str, object], places: Mapping[str, str]) -> dict[str, object]:
        """Returns the values of some tensors of the graph, by the keys of `places`."""
        if not places:
            return {}
        if unknown := set(inputs) ^ set(self.inputs):
            raise DataError(f"inputs {', '.join(sorted(unknown))} are missing or unknown")
        feeds = {self.inputs[name]: np.asarray(data) for name, data in inputs.items()}
        results = self._run(feeds, tuple(places.values()))
        if isinstance(results, str):
            raise DataError(f"TensorFlow cannot run it: {results}")
        assert isinstance(results, list)
        return dict(zip(places, results, strict=True))

    def _run(self, feeds: dict[str, np.ndarray], fetches: tuple[str, ...]) -> Plain:
        feeds_by_tensor: dict[str, Plain] = dict(feeds)
        return _ask((self.source, self.threads, feeds_by_tensor, fetches))


def _tensor_names(names: Plain) -> dict[str, str]:
    assert isinstance(names, dict)
    return {name: str(place) for name, place in names.items()}


class TensorFlowSession(_ModelInChild):
    """A graph that QIR wrote; inputs and outputs have the names of the graph."""

    def __init__(self, model: WrittenGraph, threads: int | None = None) -> None:
        super().__init__(np.frombuffer(model.data, np.uint8), "", threads)
        self.inputs, self.outputs = dict(model.inputs), dict(model.outputs)


class FileSession(_ModelInChild):
    """A frozen graph or a SavedModel folder, as it is."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        try:
            source_data = np.fromfile(path, np.uint8) if path.is_file() else str(path.resolve())
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        super().__init__(source_data, f"{path}: ", threads)
