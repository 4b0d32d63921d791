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
from qir.inspect.pipe import Plain, pack, receive
from qir.target import Executable

from .writer.graphdef import WrittenGraph

_CHILD_LOCK = threading.Lock()
_RUNNING_CHILD: list[subprocess.Popen[bytes]] = []


def _running_child() -> subprocess.Popen[bytes]:
    """Returns the process in which TensorFlow runs, and starts it if there is none."""
    if _RUNNING_CHILD and _RUNNING_CHILD[0].poll() is None:
        return _RUNNING_CHILD[0]
    if find_spec("tensorflow") is None:
        said = 'TensorFlow runs its models, and is missing: pip install "qir[tensorflow]"'
        raise PluginError(said)
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
    atexit.register(close)
    return _RUNNING_CHILD[0]


def close() -> None:
    """Ends the child process."""
    with _CHILD_LOCK:
        for child in _RUNNING_CHILD:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(60)
        _RUNNING_CHILD.clear()


def _ask(question: Plain) -> Plain:
    with _CHILD_LOCK:
        child = _running_child()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(pack(question))
            child.stdin.flush()
            return receive(child.stdout)
        except (EOFError, BrokenPipeError):
            status = child.wait()
            _RUNNING_CHILD.clear()
            raise DataError(f"TensorFlow ended with status {status}") from None


class _ModelInChild(Executable):
    """A model that the child process has."""

    def __init__(self, source: Plain, name: str, threads: int | None) -> None:
        """Lets TensorFlow build the graph; raises InputError for one that it rejects."""
        self.source = source
        self.threads = threads or len(os.sched_getaffinity(0))
        found = _ask((source, self.threads, {}, ()))
        if isinstance(found, str):
            raise InputError(f"{name}TensorFlow does not take it: {found}")
        assert isinstance(found, dict)
        self.inputs, self.outputs = (_tensor_names(found[key]) for key in ("inputs", "outputs"))

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
        found = self._run(feeds, tuple(places.values()))
        if isinstance(found, str):
            raise DataError(f"TensorFlow cannot run it: {found}")
        assert isinstance(found, list)
        return dict(zip(places, found, strict=True))

    def _run(self, feeds: dict[str, np.ndarray], fetches: tuple[str, ...]) -> Plain:
        given: dict[str, Plain] = dict(feeds)
        return _ask((self.source, self.threads, given, fetches))


def _tensor_names(found: Plain) -> dict[str, str]:
    assert isinstance(found, dict)
    return {name: str(place) for name, place in found.items()}


class TensorFlowSession(_ModelInChild):
    """A graph that QIR wrote; inputs and outputs have the names of the graph."""

    def __init__(self, model: WrittenGraph, threads: int | None = None) -> None:
        super().__init__(np.frombuffer(model.data, np.uint8), "", threads)
        self.inputs, self.outputs = dict(model.inputs), dict(model.outputs)


class FileSession(_ModelInChild):
    """A frozen graph or a SavedModel folder, as it is."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        try:
            whole = np.fromfile(path, np.uint8) if path.is_file() else str(path.resolve())
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        super().__init__(whole, f"{path}: ", threads)
