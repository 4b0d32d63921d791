"""The child process that runs whole models: requests on standard input, results on output.

`session` starts it.
"""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np

from qir.inspect.pipe import Plain, serve

if __name__ == "__main__":  # what TensorFlow prints, while it loads too, stays out of the answers
    STREAM = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)

from .models import runtime

warnings.simplefilter("ignore")
SIGNATURE = "serving_default"
LOADED: dict[tuple[bytes, int], LoadedModel] = {}
"""The latest model, by its bytes and the number of threads."""


class LoadedModel:
    """A model in an interpreter, with the tensors that are its inputs and outputs by name."""

    def __init__(self, content: bytes, threads: int) -> None:
        module = runtime()[2]
        self.interpreter = module.Interpreter(model_content=content, num_threads=threads)
        signature = self.interpreter._get_full_signature_list().get(SIGNATURE)
        if signature is None:
            details = self.interpreter.get_input_details(), self.interpreter.get_output_details()
            inputs, outputs = ({d["name"]: d["index"] for d in side} for side in details)
        else:
            inputs, outputs = signature["inputs"], signature["outputs"]
        self.inputs: dict[str, int] = dict(inputs)
        self.outputs: dict[str, int] = dict(outputs)

    def run(self, feeds: dict[str, Any]) -> dict[str, Plain]:
        """Returns the results by name."""
        interpreter = self.interpreter
        for name, at in self.inputs.items():
            interpreter.resize_tensor_input(at, np.shape(feeds[name]))
        interpreter.allocate_tensors()
        for name, at in self.inputs.items():
            interpreter.set_tensor(at, feeds[name])
        interpreter.invoke()
        return {name: interpreter.get_tensor(at) for name, at in self.outputs.items()}


def answer(request: Any) -> Plain:
    """Returns the names of a model's inputs and outputs; with feeds, its results by name."""
    content, threads, feeds = request
    key = content.tobytes(), threads
    if key not in LOADED:
        LOADED.clear()
        LOADED[key] = LoadedModel(*key)
    model = LOADED[key]
    if feeds is None:
        return tuple(model.inputs), tuple(model.outputs)
    return model.run(feeds)


if __name__ == "__main__":
    serve(answer, STREAM, (Exception,))
