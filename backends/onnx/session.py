"""Models that onnxruntime runs, from a file as it is or from memory."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import shorten

import numpy as np
import onnxruntime

from qir.errors import DataError, InputError
from qir.target import Executable

from . import bit_tensors

SILENT = 4
"""Only what ends the process is logged; what fails is raised."""


class OnnxSession(Executable):
    """A model in onnxruntime's CPU provider."""

    def __init__(
        self, model: Path | bytes, *, threads: int | None = None, optimize: bool = True
    ) -> None:
        """Runs on as many threads, at most one for each processor this process may use.

        Raises InputError for a model that onnxruntime does not take.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = most(threads)
        options.inter_op_num_threads = 1
        options.log_severity_level = SILENT
        if not optimize:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        source = str(model) if isinstance(model, Path) else model
        where = f"{model}: " if isinstance(model, Path) else ""
        try:
            self._session = onnxruntime.InferenceSession(
                source,
                options,
                providers=["CPUExecutionProvider"],
                enable_fallback=0,  # it prints when it tries again
            )
        except Exception as error:  # its errors share no base of their own
            raise InputError(f"{where}onnxruntime does not take it: {_first(error)}") from error

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it on arrays by input name; results by output name.

        Raises DataError for inputs that onnxruntime does not take.
        """
        names = [output.name for output in self._session.get_outputs()]
        lists = {i.name for i in self._session.get_inputs() if not i.type.startswith("tensor")}
        given = {
            n: v.item() if isinstance(v, np.ndarray) and n in lists else v
            for n, v in inputs.items()
        }
        arrays = {n: v if n in lists else _fed(v) for n, v in given.items()}
        try:
            results = self._run(names, arrays)
        except Exception as error:
            raise DataError(f"onnxruntime cannot run it: {_first(error)}") from error
        return dict(zip(names, results, strict=True))

    def _run(self, names: list[str], arrays: dict[str, object]) -> Sequence[object]:
        """Returns the results; bit by bit where NumPy has no type for what goes in or comes out.

        Lists, and texts that go in, can only be handed over by the binding.
        """
        kinds = {each.name: each.type for each in self._session.get_inputs()}
        outs = [each.type for each in self._session.get_outputs()]
        among = [*outs, *(kinds.get(name, "") for name in arrays)]
        whole = all(said.startswith("tensor") for said in among)
        if not whole or "tensor(string)" in kinds.values() or not any(map(bit_tensors.odd, among)):
            results: Sequence[object] = self._session.run(names, arrays)
            return results
        fed = {
            n: bit_tensors.given(np.asarray(a), bit_tensors.odd(kinds.get(n, "")))
            for n, a in arrays.items()
        }
        return [bit_tensors.found(value) for value in self._session.run_with_ort_values(names, fed)]


def most(threads: int | None) -> int:
    """Returns the threads asked for, one a processor at most; 0, onnxruntime's own choice, for
    None."""
    return min(threads or 0, len(os.sched_getaffinity(0)))


def _fed(given: object) -> np.ndarray:
    """As onnxruntime reads it: bytes that are no text end in a zero there."""
    array = np.asarray(given)
    if array.dtype.kind != "O" or not any(isinstance(item, bytes) for item in array.flat):
        return array
    texts = [i if isinstance(i, bytes) else str(i).encode() for i in array.flat]
    return np.array(texts, f"S{max(map(len, texts)) + 1}").reshape(array.shape)


_PLACE = re.compile(r"\S+\.(?:cc|h|cpp):\d+ (?:.*? was false\. )?")
"""Where in its sources a message was made, and of which condition."""
_WIDE = 300


def _first(error: Exception) -> str:
    """Returns what it says, without the lines that tell where in its sources it was."""
    text = " ".join(str(error).split())
    text = text.rpartition(" : ")[2] if text.startswith("[ONNXRuntimeError]") else text
    return shorten(_PLACE.sub("", text), _WIDE, placeholder=" ...")
