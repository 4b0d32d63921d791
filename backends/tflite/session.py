"""Runs models in TensorFlow Lite's interpreter, in one child process that all sessions share.

TensorFlow takes seconds to import, and an interpreter may end its process: neither should reach
this one.
"""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from qir.errors import DataError, InputError, PluginError
from qir.inspect import pipe
from qir.inspect.pipe import Plain
from qir.target import Executable

_CHILD_LOCK = threading.Lock()
_RUNNING_CHILD: list[subprocess.Popen[bytes]] = []
_PACKAGES = ("tensorflow", "ai_edge_litert")


def _running_child() -> subprocess.Popen[bytes]:
    """Returns the process in which models run, and starts it if there is none."""
    if _RUNNING_CHILD and _RUNNING_CHILD[0].poll() is None:
        return _RUNNING_CHILD[0]
    if not any(find_spec(package) for package in _PACKAGES):
        message = "TensorFlow runs these models, and is missing: pip install ai-edge-litert"
        raise PluginError(message)
    _RUNNING_CHILD[:] = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
    ]
    atexit.register(close)  # the child ends with this process
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
            _RUNNING_CHILD.clear()  # the next request starts a new child
            raise DataError(f"TensorFlow Lite ended with status {status}") from None


class TfliteSession(Executable):
    """A model in the interpreter; inputs and outputs have the names of its signature."""

    def __init__(self, content: bytes, threads: int | None = None, name: str = "") -> None:
        """Loads a model; raises InputError for one that the interpreter rejects."""
        self.content: Plain = np.frombuffer(content, np.uint8)
        self.threads = threads or len(os.sched_getaffinity(0))
        found = _ask((self.content, self.threads, None))
        if isinstance(found, str):
            raise InputError(f"{name}TensorFlow Lite does not take it: {found}")
        assert isinstance(found, tuple)
        self.inputs, self.outputs = found

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs the model on arrays by input name, and returns results by output name.

        Raises DataError for inputs that the interpreter rejects.
        """
        assert isinstance(self.inputs, tuple)
        if unknown := set(inputs) ^ {str(name) for name in self.inputs}:
            raise DataError(f"inputs {', '.join(sorted(unknown))} are missing or unknown")
        feeds: dict[str, Plain] = {name: np.asarray(data) for name, data in inputs.items()}
        results = _ask((self.content, self.threads, feeds))
        if isinstance(results, str):
            raise DataError(f"TensorFlow Lite cannot run it: {results}")
        assert isinstance(results, dict)
        return dict(results)


class TfliteFileSession(TfliteSession):
    """A file as it is."""

    def __init__(self, path: Path, threads: int | None = None) -> None:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InputError(f"{path}: {error.strerror or error}") from error
        super().__init__(content, threads, f"{path}: ")
