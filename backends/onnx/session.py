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

LOG_FATAL_ONLY = 4
"""The log level at which onnxruntime prints nothing that it also raises."""


class OnnxSession(Executable):
    """A model in onnxruntime's CPU provider."""

    def __init__(
        self, model: Path | bytes, *, threads: int | None = None, optimize: bool = True
    ) -> None:
        """Loads a model; `threads` is capped by the processors that this process may use.

        Raises InputError for a model that onnxruntime rejects.
        """
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = thread_count(threads)
        # One op at a time: results must not depend on how ops are scheduled.
        options.inter_op_num_threads = 1
        options.log_severity_level = LOG_FATAL_ONLY
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
            raise InputError(
                f"{where}onnxruntime does not take it: {_short_message(error)}"
            ) from error

    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs the model on arrays by input name, and returns results by output name.

        Raises DataError for inputs that onnxruntime rejects.
        """
        names = [output.name for output in self._session.get_outputs()]
        lists = {i.name for i in self._session.get_inputs() if not i.type.startswith("tensor")}
        values = {
            # Inputs that are no tensors, such as sequences, take Python objects.
            n: v.item() if isinstance(v, np.ndarray) and n in lists else v
            for n, v in inputs.items()
        }
        arrays = {n: v if n in lists else _with_text_ends(v) for n, v in values.items()}
        try:
            results = self._run(names, arrays)
        except Exception as error:
            raise DataError(f"onnxruntime cannot run it: {_short_message(error)}") from error
        return dict(zip(names, results, strict=True))

    def _run(self, names: list[str], arrays: dict[str, object]) -> Sequence[object]:
        """Returns the results; OrtValues carry the types that NumPy lacks, such as bfloat16 and
        int4.

        Sequences, and strings as inputs, go through the binding's own conversion.
        """
        kinds = {each.name: each.type for each in self._session.get_inputs()}
        outs = [each.type for each in self._session.get_outputs()]
        types = [*outs, *(kinds.get(name, "") for name in arrays)]
        all_tensors = all(type_text.startswith("tensor") for type_text in types)
        if (
            not all_tensors
            or "tensor(string)" in kinds.values()
            or not any(map(bit_tensors.unsupported_by_numpy, types))
        ):
            results: Sequence[object] = self._session.run(names, arrays)
            return results
        values = {
            n: bit_tensors.to_ort_value(
                np.asarray(a), bit_tensors.unsupported_by_numpy(kinds.get(n, ""))
            )
            for n, a in arrays.items()
        }
        return [
            bit_tensors.from_ort_value(value)
            for value in self._session.run_with_ort_values(names, values)
        ]


def thread_count(threads: int | None) -> int:
    """Returns the threads to use, at most one per processor; 0, onnxruntime's own choice, for
    None."""
    return min(threads or 0, len(os.sched_getaffinity(0)))


def _with_text_ends(value: object) -> np.ndarray:
    # NumPy drops trailing zero bytes of `S` items, so one more byte keeps them.
    """Returns an array as onnxruntime reads it: byte strings that are no text end with a zero."""
    array = np.asarray(value)
    if array.dtype.kind != "O" or not any(isinstance(item, bytes) for item in array.flat):
        return array
    texts = [i if isinstance(i, bytes) else str(i).encode() for i in array.flat]
    return np.array(texts, f"S{max(map(len, texts)) + 1}").reshape(array.shape)


_SOURCE_LOCATION = re.compile(r"\S+\.(?:cc|h|cpp):\d+ (?:.*? was false\. )?")
"""The place in onnxruntime's sources that an error message names, and the failed condition."""
_MAX_MESSAGE = 300


def _short_message(error: Exception) -> str:
    """Returns an error's message without the place in onnxruntime's sources."""
    text = " ".join(str(error).split())
    text = text.rpartition(" : ")[2] if text.startswith("[ONNXRuntimeError]") else text
    return shorten(_SOURCE_LOCATION.sub("", text), _MAX_MESSAGE, placeholder=" ...")
