"""Frozen graphs that TensorFlow runs, in a child process that all sessions share."""

from __future__ import annotations

import atexit
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from importlib.util import find_spec

import numpy as np

from qir.errors import DataError, InputError, PluginError
from qir.inspect.pipe import Plain, pack, receive
from qir.target import Executable

from .writer.graphdef import Written

_LOCK = threading.Lock()
_CHILDREN: list[subprocess.Popen[bytes]] = []


def _child() -> subprocess.Popen[bytes]:
    """Returns the process in which TensorFlow runs, started where there is none."""
    if _CHILDREN and _CHILDREN[0].poll() is None:
        return _CHILDREN[0]
    if find_spec("tensorflow") is None:
        said = 'TensorFlow runs its models, and is missing: pip install "qir[tensorflow]"'
        raise PluginError(said)
    _CHILDREN[:] = [
        subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.runner"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""},
        )
    ]
    atexit.register(close)
    return _CHILDREN[0]


def close() -> None:
    """Ends the process in which TensorFlow runs."""
    with _LOCK:
        for child in _CHILDREN:
            assert child.stdin is not None
            child.stdin.close()
            child.wait(60)
        _CHILDREN.clear()


def _ask(question: Plain) -> Plain:
    with _LOCK:
        child = _child()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(pack(question))
            child.stdin.flush()
            return receive(child.stdout)
        except (EOFError, BrokenPipeError):
            status = child.wait()
            _CHILDREN.clear()
            raise DataError(f"TensorFlow ended with status {status}") from None


class Session(Executable):
    """A frozen graph in TensorFlow."""

    def __init__(self, model: Written, threads: int | None = None) -> None:
        self.model = model
        self.threads = threads or len(os.sched_getaffinity(0))
        self._load(model)

    def _load(self, model: Written) -> None:
        """Lets TensorFlow build the graph; InputError for one that it does not take."""
        if isinstance(said := self._run({}, ()), str):
            raise InputError(f"TensorFlow does not take it: {said}")

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it on arrays by input name; results by output name.

        Raises DataError for inputs that TensorFlow does not take.
        """
        return self.values(inputs, self.model.outputs)

    def values(
        self, inputs: Mapping[str, object], places: Mapping[str, str]
    ) -> dict[str, object]:
        """Returns tensors of the graph, each named by a key."""
        if unknown := set(inputs) ^ set(self.model.inputs):
            raise DataError(f"inputs {', '.join(sorted(unknown))} are missing or unknown")
        feeds = {self.model.inputs[name]: np.asarray(data) for name, data in inputs.items()}
        found = self._run(feeds, tuple(places.values()))
        if isinstance(found, str):
            raise DataError(f"TensorFlow cannot run it: {found}")
        assert isinstance(found, list)
        return dict(zip(places, found, strict=True))

    def _run(self, feeds: dict[str, np.ndarray], fetches: tuple[str, ...]) -> Plain:
        return _ask((np.frombuffer(self.model.data, np.uint8), self.threads, feeds, fetches))
