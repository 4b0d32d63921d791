"""What real TensorFlow models keep of their accuracy: read, written in float, and quantized.

A row says the metric of the model as TensorFlow runs it, of what QIR read of it and wrote for
TensorFlow in float, and of it quantized for TensorFlow's and for onnxruntime's int8 kernels with
the same calibration samples. Models and labelled data are looked for in the folder that QIR_ASSETS
names, else in ../shared/assets; rows of what is not there are left out. Images need pillow.

    python benchmarks/quality_tensorflow.py
    python benchmarks/quality_tensorflow.py mobilenet kws_GRU
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from bench_quality import ASSETS, Floats, images
from numpy.typing import NDArray

import qir
from qir.passes.fold.fold_constants import FoldConstants
from qir.passes.loops.unroll import Unroll
from qir.target import Executable, target

TENSORFLOW = "tensorflow-onednn"
Run = Callable[[Floats], Floats]


@dataclass(frozen=True)
class Data:
    """Batches to calibrate with, batches to measure with, and the metric of the results."""

    calibration: Sequence[Floats]
    inputs: Sequence[Floats]
    metric: Callable[[Sequence[Floats]], float]


@dataclass(frozen=True)
class Asset:
    """A model with its data."""

    model: str
    data: Callable[[], Data]


def _batches(x: Floats, size: int) -> list[Floats]:
    return [x[i : i + size] for i in range(0, len(x), size)]


def _top1(labels: NDArray[np.generic]) -> Callable[[Sequence[Floats]], float]:
    def metric(results: Sequence[Floats]) -> float:
        rows = np.concatenate([part.reshape(len(part), -1) for part in results])
        return float(100 * (rows.argmax(1) == labels).mean())

    return metric


def _labelled(calibration: Floats, x: Floats, y: NDArray[np.generic], size: int = 64) -> Data:
    return Data(_batches(calibration, size), _batches(x, size), _top1(y))


def _imagenet(prepare: Callable[[Floats], Floats]) -> Callable[[], Data]:
    def load() -> Data:
        calibration, _ = images("imagenet_calib_256.zip", 224)
        x, y = images("imagenet_val_500.zip", 224)
        return _labelled(prepare(calibration[:128].astype("f4")), prepare(x.astype("f4")), y)

    return load


def _pack(name: str) -> Mapping[str, NDArray[np.generic]]:
    arrays: Mapping[str, NDArray[np.generic]] = np.load(ASSETS / "packs" / "dev" / name)
    return arrays


def _cifar() -> Data:
    pack = _pack("cifar10_dev.npz")
    calibration, x = (pack[name].astype(np.float32) for name in ("calib_x", "test_x"))
    return _labelled(calibration, x, pack["test_y"])


def _mlperf() -> Data:
    pack = _pack("mlperf_kws01.npz")
    x, y = pack["x"].astype(np.float32).reshape(-1, 49, 10, 1), pack["y"]
    return _labelled(x[:200], x[200:], y[200:])


def _speech(key: str, size: int = 64) -> Callable[[], Data]:
    """Spoken words; recurrent networks are frozen with the state of one of them: fewer words."""

    def load() -> Data:
        pack = _pack("speech_kws_dev.npz")
        x, y = pack[key].astype(np.float32), pack["y"]
        x = x.reshape(len(x), -1)
        calibration, end = (64, 1000) if size == 1 else (200, len(x))
        return _labelled(x[:calibration], x[200:end], y[200:end], size)

    return load


def _superres() -> Data:
    from PIL import Image

    pack = _pack("superres_luma_dev.npz")
    full = [pack[name] for name in pack]
    small = [
        np.asarray(
            Image.fromarray(luma).resize((luma.shape[1] // 2, luma.shape[0] // 2), Image.BICUBIC)
        )
        for luma in full
    ]
    inputs = [(s.astype(np.float32) / 255)[None, :, :, None] for s in small]

    def metric(results: Sequence[Floats]) -> float:
        return float(np.mean([_psnr(a, b) for a, b in zip(results, full[4:], strict=True)]))

    return Data(inputs[:4], inputs[4:], metric)


def _psnr(result: Floats, expected: NDArray[np.generic]) -> float:
    # Two pixels at each border are left out: networks for images pad there.
    inner = np.s_[2:-2, 2:-2]
    pixels = np.clip(result.reshape(expected.shape), 0, 1) * 255.0
    error = np.mean(np.square(pixels[inner] - expected[inner].astype(np.float64)))
    return float(10 * np.log10(255.0**2 / error))


ZOO = "imagenet/{0}_224/{0}_224.pb"
MODELS = (
    Asset(ZOO.format("mobilenet_v1_025"), _imagenet(lambda x: x / 127.5 - 1)),
    Asset(ZOO.format("tiny_darknet"), _imagenet(lambda x: x / 255)),
    Asset("mlperf_tiny/pretrainedResnet.h5", _cifar),
    Asset("mlperf_tiny/kws_dscnn_frozen.pb", _mlperf),
    *(Asset(f"kws_tf/{name}.pb", _speech("mfcc_49x10")) for name in ("DS_CNN_S", "CNN_S")),
    Asset("kws_tf/CRNN_S.pb", _speech("mfcc_49x10", 1)),
    Asset("kws_tf/DNN_S.pb", _speech("mfcc_25x10")),
    *(Asset(f"kws_tf/{name}.pb", _speech("mfcc_25x10", 1)) for name in ("LSTM_S", "GRU_S")),
    Asset("superres/FSRCNN_x2.pb", _superres),
    Asset("superres/ESPCN_x2.pb", _superres),
)


# -- running --------------------------------------------------------------------------------------


def _original(path: Path, name: str) -> Run:
    """Returns the model as TensorFlow runs it."""
    if path.suffix == ".h5":
        import tensorflow as tf

        model = tf.keras.models.load_model(str(path), compile=False)
        return lambda x: np.asarray(model(x, training=False))
    return _one(target(TENSORFLOW).compile_file(path), name)


def _one(executable: Executable, name: str) -> Run:
    """Returns a model with one input and one output as a function."""
    return lambda x: np.asarray(next(iter(executable(**{name: x}).values())))


def _score(data: Data, run: Run) -> float:
    return data.metric([run(x) for x in data.inputs])


def _row(asset: Asset, folder: Path) -> str:
    path = ASSETS / "models" / asset.model
    data = asset.data()
    graph = qir.load(path)
    qir.save(graph, folder / "float.pb", target=TENSORFLOW)
    input_name = graph.inputs[0].name
    float_run = target(TENSORFLOW).compile_file(folder / "float.pb")
    runs = [_original(path, input_name), _one(float_run, input_name)]
    # Quantization knows no loops: recurrent networks are unrolled first.
    if Unroll().run(graph, qir.Ledger()):
        FoldConstants().run(graph, qir.Ledger())
        graph.prune()
    share = qir.plan(graph, target=TENSORFLOW).integer_macs
    statistics = qir.calibrate(graph, [{input_name: x} for x in data.calibration], feeds=True)
    for name in (TENSORFLOW, "onnxruntime"):
        quantized = qir.quantize(graph, statistics, target=name)
        runs.append(_one(target(name).compile(quantized), input_name))
    scores = " | ".join(f"{_score(data, run):.2f}" for run in runs)
    has_known_sizes = all(isinstance(size, int) for size in graph.inputs[0].type.shape[1:])
    return f"| {path.stem} | {scores} | {f'{100 * share:.0f} %' if has_known_sizes else '-'} |"


def main(words: Sequence[str]) -> int:
    """Prints a row for each model whose file is there and whose path holds one of the words."""
    print("| model | TensorFlow | written in float | int8 in TensorFlow | int8 in onnxruntime |"
          " in int8 kernels |\n|---|---|---|---|---|---|")  # fmt: skip
    for asset in MODELS:
        is_named = not words or any(word in asset.model for word in words)
        if is_named and (ASSETS / "models" / asset.model).is_file():
            with tempfile.TemporaryDirectory() as folder:
                print(_row(asset, Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
