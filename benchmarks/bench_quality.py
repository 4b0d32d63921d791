"""Accuracy cost of quantizing: QIR's default next to onnxruntime's and NNCF's, on real models.

Each method gets the same calibration samples and is run by onnxruntime. A row says the metric in
float and in int8, the samples that became right and wrong, how often both agree, the
signal-to-noise ratio of the output, and the seconds and the memory of calibrating and quantizing,
each in a process of its own. Below stands QIR's default minus the best peer: the difference and
its 95 % interval, by a paired bootstrap over the labelled samples. Models and labelled data are
looked for in the folder that QIR_ASSETS names, else in ../shared/assets; rows of what is not there
are left out. Rows are kept in a cache: a run that was interrupted goes on. Images need pillow;
NNCF's rows appear where it is installed.

    python benchmarks/bench_quality.py --quick
    python benchmarks/bench_quality.py --samples 1,16,64 --models mobilenet_v2 --markdown
    python benchmarks/bench_quality.py --methods 'QIR,onnxruntime*,NNCF'
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import multiprocessing
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import asdict, dataclass
from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.calibrate import CalibrationDataReader
from onnxruntime.quantization.shape_inference import quant_pre_process

import qir
from qir.passes.quantize.round_weights import MAX_SAMPLES

Floats = NDArray[np.float32]
HOME = Path(__file__).resolve().parents[1]
ASSETS = Path(os.environ.get("QIR_ASSETS") or HOME.parent / "shared" / "assets")
SEED = 20261123
BATCH = 10
RESAMPLES = 10_000
"""So many resamples of the labelled samples give an interval."""
HEADS = (
    *("model", "weights", "samples", "method", "float", "int8", "gained", "lost", "agree"),
    *("SQNR", "seconds", "MB"),
)


@dataclass(frozen=True)
class Data:
    """Samples to calibrate with, and labelled ones."""

    calibration: Floats
    inputs: Floats
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Asset:
    """A model with its data."""

    name: str
    model: str
    data: Callable[[], Data]
    depthwise: bool = False


@dataclass(frozen=True)
class Row:
    """What one method made of one model."""

    model: str
    weights: str
    samples: int
    method: str
    labelled: int
    exact: float
    metric: float
    agreement: float
    sqnr: float
    seconds: float
    megabytes: float
    gained: int
    """Samples that float has wrong and int8 right."""
    lost: int
    right: str
    """Of each labelled sample, 1 where int8 has it right."""


# -- data -----------------------------------------------------------------------------------------


def images(pack: str, size: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Returns the images of a pack, cropped in the middle, and their labels."""
    from PIL import Image

    cropped, labels = [], []
    with zipfile.ZipFile(ASSETS / "packs" / "dev" / pack) as archive:
        has_labels = "labels.csv" in archive.namelist()
        if has_labels:
            lines = archive.read("labels.csv").decode().split()
            names = [(f"images/{n}", int(y)) for n, y in (s.rsplit(",", 1) for s in lines)]
        else:
            names = [(n, -1) for n in sorted(archive.namelist()) if not n.endswith("/")]
        for name, label in names:
            image = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
            edge = (image.width - size) // 2
            cropped.append(np.asarray(image.crop((edge, edge, edge + size, edge + size))))
            labels.append(label)
    return np.stack(cropped), np.array(labels)


def imagenet(size: int, prepare: Callable[[Floats], Floats]) -> Callable[[], Data]:
    """Returns the loader of ImageNet's images, prepared, channels first."""

    def load() -> Data:
        def made(pixels: NDArray[np.uint8]) -> Floats:
            return np.ascontiguousarray(prepare(pixels.astype(np.float32)).transpose(0, 3, 1, 2))

        calibration, _ = images("imagenet_calib_256.zip", size)
        inputs, labels = images("imagenet_val_500.zip", size)
        return Data(made(calibration), made(inputs), labels)

    return load


def cifar(prepare: Callable[[Floats], Floats]) -> Callable[[], Data]:
    def load() -> Data:
        pack = np.load(ASSETS / "packs" / "dev" / "cifar10_dev.npz")
        parts = (prepare(pack[name].astype(np.float32)) for name in ("calib_x", "test_x"))
        calibration, inputs = parts
        return Data(calibration, inputs, pack["test_y"].astype(np.int64))

    return load


def keywords() -> Data:
    pack = np.load(ASSETS / "packs" / "dev" / "mlperf_kws01.npz")
    return Data(pack["x"][:200], pack["x"][200:], pack["y"][200:].astype(np.int64))


def spoken() -> Data:
    pack = np.load(ASSETS / "packs" / "dev" / "speech_kws_dev.npz")
    x = pack["kwt_98x40"].astype(np.float32)
    return Data(x[:200], x[200:], pack["kwt_y"][200:].astype(np.int64))


def _caffe(x: Floats) -> Floats:
    return x[..., ::-1] - np.array([104, 117, 123], np.float32)


def _torch(x: Floats) -> Floats:
    mean, deviation = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    normalized = (x / 255 - np.array(mean, np.float32)) / np.array(deviation, np.float32)
    return np.ascontiguousarray(normalized.transpose(0, 3, 1, 2), np.float32)


MODELS = (
    Asset(
        "mobilenet_v1_025",
        "imagenet/mobilenet_v1_025_224/mobilenet_v1_025_224.onnx",
        imagenet(224, lambda x: x / np.float32(127.5) - 1),
        depthwise=True,
    ),
    Asset(
        "mobilenet_v2_keras",
        "imagenet_recon/mobilenet_v2_100_keras_224/mobilenet_v2_100_keras_224.onnx",
        imagenet(224, lambda x: x / np.float32(127.5) - 1),
        depthwise=True,
    ),
    Asset(
        "tiny_darknet",
        "imagenet/tiny_darknet_224/tiny_darknet_224.onnx",
        imagenet(224, lambda x: x / np.float32(255)),
    ),
    Asset(
        "squeezenet_v1_1",
        "imagenet/squeezenet_v1_1_227/squeezenet_v1_1_227.onnx",
        imagenet(227, _caffe),
    ),
    Asset("cifar_resnet20", "cifar10/resnet20.onnx", cifar(_torch)),
    Asset("mlperf_resnet8", "mlperf_tiny/ic_resnet8.onnx", cifar(lambda x: x)),
    Asset("mlperf_dscnn", "mlperf_tiny/kws_dscnn.onnx", keywords, depthwise=True),
    Asset("kwt1_transformer", "kwt1/kwt1.onnx", spoken),
)
QUICK = ("mobilenet_v1_025", "mobilenet_v2_keras", "mlperf_dscnn")
QUICK_METHODS = ("QIR", "onnxruntime*", "NNCF")


# -- methods --------------------------------------------------------------------------------------


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Calibration samples for onnxruntime's quantizer, one a run."""

    def __init__(self, name: str, samples: Floats) -> None:
        self.left = iter([{name: samples[i : i + 1]} for i in range(len(samples))])

    def get_next(self) -> dict[str, Floats] | None:
        return next(self.left, None)


def by_qir(corrections: str, rule: str = "minmax") -> Callable[[Path, Floats, str, Path], None]:
    """Returns a quantizer with these corrections; `{default}` is those of the granularity."""

    def make(model: Path, samples: Floats, weights: str, out: Path) -> None:
        graph = qir.load(model)
        statistics = qir.calibrate(graph, samples)
        default = "equalize,correct-bias" if weights == "tensor" else "correct-bias"
        quantized_graph = qir.quantize(
            graph,
            statistics,
            granularity=weights,
            range_rule=rule,
            corrections=corrections.format(default=default),
            samples={graph.inputs[0].name: fixed(graph, samples[:MAX_SAMPLES])},
        )
        qir.save(quantized_graph, out, force=True)

    return make


def fixed(graph: qir.Graph, samples: Floats) -> Floats:
    """So many of the samples as the model takes in one run."""
    size = graph.inputs[0].type.shape[0]
    return samples[:size] if isinstance(size, int) else samples


def by_onnxruntime(method: CalibrationMethod) -> Callable[[Path, Floats, str, Path], None]:
    def make(model: Path, samples: Floats, weights: str, out: Path) -> None:
        ready = out.with_suffix(".ready.onnx")
        quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
        name = onnx.load(ready).graph.input[0].name
        quantize_static(
            str(ready),
            str(out),
            Reader(name, samples),
            quant_format=QuantFormat.QDQ,
            per_channel=weights == "channel",
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            calibrate_method=method,
        )
        ready.unlink()

    return make


def by_nncf(model: Path, samples: Floats, weights: str, out: Path) -> None:
    import nncf

    proto = onnx.load(model)
    name = proto.graph.input[0].name
    data = nncf.Dataset([samples[i : i + 1] for i in range(len(samples))], lambda x: {name: x})
    onnx.save(nncf.quantize(proto, data, subset_size=len(samples)), out)


METHODS: dict[str, Callable[[Path, Floats, str, Path], None]] = {
    "QIR": by_qir("default"),
    "QIR, no corrections": by_qir("none"),
    "QIR, correct-bias alone": by_qir("correct-bias"),
    "QIR, equalize alone": by_qir("equalize"),
    "QIR and smooth": by_qir("smooth,{default}"),
    "QIR and clip-weights": by_qir("clip-weights,{default}"),
    "QIR and measure-bias": by_qir("measure-bias,{default}"),
    "QIR and round-weights": by_qir("round-weights,{default}"),
    "QIR, range auto": by_qir("{default}", "auto"),
    "onnxruntime minmax": by_onnxruntime(CalibrationMethod.MinMax),
    "onnxruntime entropy": by_onnxruntime(CalibrationMethod.Entropy),
    "onnxruntime percentile": by_onnxruntime(CalibrationMethod.Percentile),
}
if importlib.util.find_spec("nncf"):
    METHODS["NNCF"] = by_nncf


# -- measuring ------------------------------------------------------------------------------------


def outputs(model: Path, inputs: Floats) -> NDArray[np.float64]:
    """Returns the first output for all inputs, by onnxruntime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    model_input = session.get_inputs()[0]
    size = model_input.shape[0] if isinstance(model_input.shape[0], int) else BATCH
    parts = [
        session.run(None, {model_input.name: inputs[i : i + size]})[0]
        for i in range(0, len(inputs) - len(inputs) % size, size)
    ]
    results = np.concatenate(parts)
    return results.reshape(len(results), -1).astype(np.float64)


def measured(asset: Asset, data: Data, weights: str, samples: int, method: str, work: Path) -> Row:
    model, out = ASSETS / "models" / asset.model, work / "quantized.onnx"
    exact = cached_floats(asset, data, work)
    sample_order = np.random.default_rng(SEED).permutation(len(data.calibration))[:samples]
    # A new process for each method, whose peak memory is its own.
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        job = method, model, data.calibration[sample_order], weights, out
        seconds, megabytes = pool.apply(quantized, job)
    results = outputs(out, data.inputs)
    exact, labels = exact[: len(results)], data.labels[: len(results)]
    signal, noise = float(np.sum(exact**2)), float(np.sum((exact - results) ** 2))
    predicted, float_predicted = results.argmax(axis=1), exact.argmax(axis=1)
    before, after = float_predicted == labels, predicted == labels
    return Row(
        asset.name,
        weights,
        samples,
        method,
        len(results),
        100 * float(np.mean(before)),
        100 * float(np.mean(after)),
        100 * float(np.mean(predicted == float_predicted)),
        10 * float(np.log10(signal / noise)) if noise else float("inf"),
        seconds,
        megabytes,
        int(np.sum(after & ~before)),
        int(np.sum(before & ~after)),
        "".join("01"[right] for right in after.astype(int)),
    )


def quantized(
    method: str, model: Path, samples: Floats, weights: str, out: Path
) -> tuple[float, float]:
    """Quantizes in this process; returns the seconds, and the memory that it took at most."""
    before = peak()
    began = time.perf_counter()
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):  # what peers report
        METHODS[method](model, samples, weights, out)
    seconds = time.perf_counter() - began
    return seconds, (peak() - before) / 1024


def peak() -> float:
    """Returns the most memory that this process had so far, in KB; 0 outside Linux."""
    # Not getrusage: its maximum counts the process that started this one.
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0.0
    return next((float(line.split()[1]) for line in lines if line.startswith("VmHWM:")), 0.0)


def cached_floats(asset: Asset, data: Data, work: Path) -> NDArray[np.float64]:
    """Returns the float model's outputs, computed once."""
    path = work / f"{asset.name}-{len(data.inputs)}.npy"
    if not path.exists():
        np.save(path, outputs(ASSETS / "models" / asset.model, data.inputs))
    return np.asarray(np.load(path))


def code_digest() -> str:
    """Returns a hash of QIR's sources: rows of another version are measured again."""
    state = hashlib.blake2b(digest_size=8)
    for path in sorted([*(HOME / "qir").rglob("*.py"), *(HOME / "backends").rglob("*.toml")]):
        state.update(path.read_bytes())
    return state.hexdigest()


def rows(options: argparse.Namespace) -> Iterator[Row]:
    """Yields each row; measures what the cache lacks."""
    work = options.cache
    work.mkdir(parents=True, exist_ok=True)
    digest = code_digest()
    for asset in MODELS:
        if not any(name in asset.name for name in options.models):
            continue
        if not (ASSETS / "models" / asset.model).exists():
            print(f"{asset.name}: not in {ASSETS}, left out")
            continue
        data: Data | None = None
        for weights in options.weights:
            for samples in options.samples:
                for method in METHODS:
                    if not any(fnmatch(method, name) for name in options.methods):
                        continue
                    if method == "NNCF" and weights == "tensor":
                        continue  # it knows weights by channel alone
                    tool_version = (
                        digest if method.startswith("QIR") else version(method.split()[0].lower())
                    )
                    key = (
                        f"{asset.name}|{weights}|{samples}|{options.limit}|{method}|{tool_version}"
                    )
                    name = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
                    path = work / f"{name}.json"
                    if not path.exists():
                        data = data or limited(asset.data(), options.limit)
                        row = measured(asset, data, weights, samples, method, work)
                        draft = path.with_suffix(".draft")
                        draft.write_text(json.dumps(asdict(row)))
                        # Written at once, so that an interrupted run leaves no half row.
                        draft.replace(path)
                    yield Row(**json.loads(path.read_text()))


def limited(data: Data, limit: int | None) -> Data:
    """Returns at most `limit` labelled samples, spread over all."""
    if limit is None or limit >= len(data.inputs):
        return data
    indices = np.linspace(0, len(data.inputs) - 1, limit).round().astype(int)
    return Data(data.calibration, data.inputs[indices], data.labels[indices])


def interval(right_by_qir: str, right_by_peer: str) -> tuple[float, float, float]:
    """Returns the difference of two metrics in points, and its 95 % interval."""
    pairs = [
        np.frombuffer(right.encode(), np.uint8).astype(np.float64)
        for right in (right_by_qir, right_by_peer)
    ]
    differences = 100 * (pairs[0] - pairs[1])
    # Paired: both methods are resampled at the same samples.
    draws = np.random.default_rng(SEED).integers(
        len(differences), size=(RESAMPLES, len(differences))
    )
    low, high = np.percentile(differences[draws].mean(axis=1), (2.5, 97.5))
    return float(differences.mean()), float(low), float(high)


def compare(all_rows: list[Row]) -> Iterator[str]:
    """Yields lines that compare QIR's default with the best peer of each case."""
    cases: dict[tuple[str, str, int], list[Row]] = {}
    for row in all_rows:
        cases.setdefault((row.model, row.weights, row.samples), []).append(row)
    gains: dict[str, list[float]] = {}
    depthwise_models = {asset.name for asset in MODELS if asset.depthwise}
    for (model, weights, samples), rows_of_case in cases.items():
        qir_row = next((row for row in rows_of_case if row.method == "QIR"), None)
        peers = [row for row in rows_of_case if not row.method.startswith("QIR")]
        if qir_row is None or not peers:
            continue
        best = max(peers, key=lambda row: row.metric)
        difference, low, high = interval(qir_row.right, best.right)
        verdict = "BELOW" if high < 0 else "above" if low > 0 else "within chance"
        nearest = max(peers, key=lambda row: row.sqnr)
        yield (
            f"{model}, {weights}, {samples}: QIR - {best.method} = {difference:+.1f} points"
            f" [{low:+.1f}, {high:+.1f}], {verdict};"
            f" SQNR {qir_row.sqnr - nearest.sqnr:+.1f} dB to {nearest.method}"
        )
        if model in depthwise_models and weights == "channel":
            for name in ("onnxruntime", "NNCF"):
                peer_sqnrs = [row.sqnr for row in peers if row.method.startswith(name)]
                gains.setdefault(name, []).extend(
                    [qir_row.sqnr - max(peer_sqnrs)] if peer_sqnrs else []
                )
    for name, gains_of_peer in gains.items():
        if gains_of_peer:
            mean = np.mean(gains_of_peer)
            yield f"networks with depthwise layers, by channel: {mean:+.1f} dB to {name}'s best"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    split = lambda text: tuple(text.split(","))  # noqa: E731
    numbers = lambda text: tuple(map(int, text.split(",")))  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="three models, 16 samples")
    parser.add_argument("--models", type=split, default=None, help="parts of names, with commas")
    parser.add_argument("--weights", type=split, default=("channel", "tensor"))
    parser.add_argument("--methods", type=split, default=None, help="patterns of names")
    parser.add_argument("--samples", type=numbers, default=None)
    parser.add_argument("--limit", type=int, default=None, help="labelled samples of each model")
    parser.add_argument("--cache", type=Path, default=HOME / "build" / "bench_quality")
    parser.add_argument("--markdown", action="store_true")
    options = parser.parse_args()
    options.models = options.models or (QUICK if options.quick else ("",))
    options.methods = options.methods or (QUICK_METHODS if options.quick else ("*",))
    options.samples = options.samples or ((16,) if options.quick else (1, 4, 16, 64))
    options.limit = options.limit or (200 if options.quick else None)
    print(line(HEADS, options.markdown))
    if options.markdown:
        print("|---" * len(HEADS) + "|")
    all_rows = []
    for row in rows(options):
        all_rows.append(row)
        cells = [row.model, row.weights, str(row.samples), row.method]
        cells += [f"{row.exact:.1f}", f"{row.metric:.1f}", str(row.gained), str(row.lost)]
        cells += [f"{row.agreement:.1f}", f"{row.sqnr:.1f}", f"{row.seconds:.1f}"]
        print(line((*cells, f"{row.megabytes:.0f}"), options.markdown), flush=True)
    print(*compare(all_rows), sep="\n")


def line(cells: Sequence[str], markdown: bool) -> str:
    """Returns a row of the table as text."""
    if markdown:
        return "| " + " | ".join(cells) + " |"
    widths = (20, 8, 8, 24, 6, 6, 7, 5, 6, 6, 8, 6)
    return " ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True))


if __name__ == "__main__":
    main()
