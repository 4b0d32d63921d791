"""The runtimes that `bench_engine.py` times next to QIR, each as a function without arguments.

onnxruntime and OpenVINO read the same ONNX file. PyTorch runs the same network as QIR writes it for
`pytorch-x86`. TFLite runs the network of `keras.applications` with the same architecture, in its
own conversion, because no tool reads these ONNX files for it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

import qir

Run = Callable[[], object]


class NotAvailable(Exception):
    """A peer has no such network."""


@dataclass(frozen=True, slots=True)
class Case:
    """A measurement: a network's file, `float32` or `int8`, its inputs and the threads."""

    name: str
    kind: str
    path: Path
    feed: Mapping[str, NDArray[np.generic]]
    threads: int


def by_onnxruntime(case: Case) -> Run:
    """Returns a run by onnxruntime with its optimizer."""
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = case.threads, 1
    options.log_severity_level = 3
    session = ort.InferenceSession(str(case.path), options, providers=["CPUExecutionProvider"])
    return partial(session.run, None, dict(case.feed))


def by_openvino(case: Case) -> Run:
    """Returns a run by OpenVINO, in the precision that the file has."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": case.threads, "INFERENCE_PRECISION_HINT": "f32"}
    request = openvino.Core().compile_model(str(case.path), "CPU", settings).create_infer_request()
    return partial(request.infer, dict(case.feed))


def by_torch(case: Case) -> Run:
    """Returns a run by PyTorch: float32 as aten ops, int8 as one `quantized::*` call per group."""
    import torch

    torch.set_num_threads(case.threads)
    form = "float" if case.kind == "float32" else "fx"
    try:
        built = qir.build(qir.load(case.path), target="pytorch-x86", format=form)
    except qir.errors.QirError as error:
        raise NotAvailable(str(error)) from error
    module = built.module() if isinstance(built, torch.export.ExportedProgram) else built
    inputs = [torch.from_numpy(np.ascontiguousarray(array)) for array in case.feed.values()]

    def run() -> object:
        with torch.inference_mode():
            return module(*inputs)

    return run


KERAS = {
    "MobileNetV2": "MobileNetV2",
    "ResNet-50": "ResNet50",
    "VGG16": "VGG16",
    "EfficientNet-B0": "EfficientNetB0",
    "MobileNetV3-large": "MobileNetV3Large",
}
CONVERT = """
import sys
import numpy as np, tensorflow as tf
network, kind, image, path = sys.argv[1:]
tf.keras.utils.set_random_seed(0)
shape = (int(image), int(image), 3)
model = getattr(tf.keras.applications, network)(weights=None, input_shape=shape)
converter = tf.lite.TFLiteConverter.from_keras_model(model)
if kind == "int8":
    images = np.random.default_rng(0).random((4, 1, *shape), np.float32)
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([image] for image in images)
open(path, "wb").write(converter.convert())
"""


def by_ai_edge_litert(case: Case) -> Run:
    """Returns a run by TFLite with XNNPACK; a child process converts."""
    from ai_edge_litert.interpreter import Interpreter

    if case.name not in KERAS:
        raise NotAvailable("keras.applications has no such network")
    batch, _, image, _ = next(iter(case.feed.values())).shape
    path = case.path.with_suffix(".tflite")
    arguments = [KERAS[case.name], case.kind, str(image), str(path)]
    process = subprocess.run(
        [sys.executable, "-c", CONVERT, *arguments], capture_output=True, text=True, check=False
    )
    if process.returncode:
        raise NotAvailable(process.stderr.strip().splitlines()[-1])
    interpreter = Interpreter(model_path=str(path), num_threads=case.threads)
    (entry,) = interpreter.get_input_details()
    interpreter.resize_tensor_input(entry["index"], [batch, image, image, 3])
    interpreter.allocate_tensors()
    interpreter.set_tensor(
        entry["index"], np.random.default_rng(1).random((batch, image, image, 3), np.float32)
    )
    path.unlink()
    return partial(_invoke, interpreter)


def _invoke(interpreter: object) -> None:
    # A bound method of it would keep NumPy arrays of its tensors alive, which `invoke` refuses.
    interpreter.invoke()  # type: ignore[attr-defined]


PEERS: dict[str, Callable[[Case], Run]] = {
    "onnxruntime": by_onnxruntime,
    "openvino": by_openvino,
    "torch": by_torch,
    "ai_edge_litert": by_ai_edge_litert,
}
"""By the name of the package that has to be installed."""
