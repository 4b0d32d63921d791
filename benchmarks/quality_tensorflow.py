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
    def metric(found: Sequence[Floats]) -> float:
        rows = np.concatenate([part.reshape(len(part), -1) for part in found])
        return float(100 * (rows.argmax(1) == labels).mean())

    return metric


def _labelled(calibration: Floats, x: Floats, y: NDArray[np.generic], size: int = 64) -> Data:
    return Data(_batches(calibration, size), _batches(x, size), _top1(y))


def _imagenet(prepare: Callable[[Floats], Floats]) -> Callable[[], Data]:
    def load() -> Data:
        seen, _ = images("imagenet_calib_256.zip", 224)
        x, y = images("imagenet_val_500.zip", 224)
        return _labelled(prepare(seen[:128].astype("f4")), prepare(x.astype("f4")), y)

    return load


def _pack(name: str) -> Mapping[str, NDArray[np.generic]]:
    held: Mapping[str, NDArray[np.generic]] = np.load(ASSETS / "packs" / "dev" / name)
    return held


def _cifar() -> Data:
    held = _pack("cifar10_dev.npz")
    seen, x = (held[name].astype(np.float32) for name in ("calib_x", "test_x"))
    return _labelled(seen, x, held["test_y"])


def _mlperf() -> Data:
    held = _pack("mlperf_kws01.npz")
    x, y = held["x"].astype(np.float32).reshape(-1, 49, 10, 1), held["y"]
    return _labelled(x[:200], x[200:], y[200:])


def _speech(key: str, size: int = 64) -> Callable[[], Data]:
    """Spoken words; recurrent networks are frozen with the state of one of them: fewer words."""

    def load() -> Data:
        held = _pack("speech_kws_dev.npz")
        x, y = held[key].astype(np.float32), held["y"]
        x = x.reshape(len(x), -1)
        seen, last = (64, 1000) if size == 1 else (200, len(x))
        return _labelled(x[:seen], x[200:last], y[200:last], size)

    return load


def _superres() -> Data:
    from PIL import Image

    held = _pack("superres_luma_dev.npz")
    full = [held[name] for name in held]
    small = [
        np.asarray(Image.fromarray(h).resize((h.shape[1] // 2, h.shape[0] // 2), Image.BICUBIC))
        for h in full
    ]
    given = [(s.astype(np.float32) / 255)[None, :, :, None] for s in small]

    def metric(found: Sequence[Floats]) -> float:
        return float(np.mean([_psnr(a, b) for a, b in zip(found, full[4:], strict=True)]))

    return Data(given[:4], given[4:], metric)


def _psnr(made: Floats, wanted: NDArray[np.generic]) -> float:
    inner = np.s_[2:-2, 2:-2]
    pixels = np.clip(made.reshape(wanted.shape), 0, 1) * 255.0
    error = np.mean(np.square(pixels[inner] - wanted[inner].astype(np.float64)))
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


def _one(held: Executable, name: str) -> Run:
    """Returns a model with one input and one output as a function."""
    return lambda x: np.asarray(next(iter(held(**{name: x}).values())))


def _score(data: Data, run: Run) -> float:
    return data.metric([run(x) for x in data.inputs])


def _row(asset: Asset, folder: Path) -> str:
    path = ASSETS / "models" / asset.model
    data = asset.data()
    graph = qir.load(path)
    qir.save(graph, folder / "float.pb", target=TENSORFLOW)
    given = graph.inputs[0].name
    written = target(TENSORFLOW).compile_file(folder / "float.pb")
    runs = [_original(path, given), _one(written, given)]
    if Unroll().run(graph, qir.Ledger()):
        FoldConstants().run(graph, qir.Ledger())
        graph.prune()
    share = qir.plan(graph, target=TENSORFLOW).integer_macs
    statistics = qir.calibrate(graph, [{given: x} for x in data.calibration], feeds=True)
    for name in (TENSORFLOW, "onnxruntime"):
        made = qir.quantize(graph, statistics, target=name)
        runs.append(_one(target(name).compile(made), given))
    scores = " | ".join(f"{_score(data, run):.2f}" for run in runs)
    known = all(isinstance(size, int) for size in graph.inputs[0].type.shape[1:])
    return f"| {path.stem} | {scores} | {f'{100 * share:.0f} %' if known else '-'} |"


def main(words: Sequence[str]) -> int:
    """Prints a row for each model whose file is there and whose path holds one of the words."""
    print("| model | TensorFlow | written in float | int8 in TensorFlow | int8 in onnxruntime |"
          " in int8 kernels |\n|---|---|---|---|---|---|")  # fmt: skip
    for asset in MODELS:
        wanted = not words or any(word in asset.model for word in words)
        if wanted and (ASSETS / "models" / asset.model).is_file():
            with tempfile.TemporaryDirectory() as folder:
                print(_row(asset, Path(folder)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
