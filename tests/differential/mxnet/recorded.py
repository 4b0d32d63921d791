"""MXNet's recorded results, and what the profile `mxnet-1.9` foresees for each."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qir.ir.types import QuantType
from tests.differential.predictions import Array, F, Held, Then, predicted, ranged

VECTORS = Path(__file__).parents[1] / "vectors" / "mxnet"
PROFILE = "mxnet-1.9"
LEVELS = {"int8": 127.5, "uint8": 255.5}
NAMES = {"int8": "i8", "uint8": "u8", "int32": "i32"}
Said = Mapping[str, Any]
Floats = NDArray[np.float64]
Case = tuple[Said, Mapping[str, Array]]


def cases(name: str, folder: Path = VECTORS) -> Iterator[Case]:
    """Yields what was given to an op and what it returned, case by case."""
    stored = np.load(folder / f"{name}.npz")
    for i in range(len(stored.files)):
        if f"{i}.said" not in stored:
            return
        arrays = {
            key.split(".", 1)[1]: stored[key] for key in stored.files if key.startswith(f"{i}.")
        }
        yield json.loads(str(arrays.pop("said"))), arrays


def bytes_of(kind: str, high: float, low: float | None = None) -> QuantType:
    """Returns the type of bytes of a range, as MXNet reads them."""
    lowest = (-high if kind == "int8" else 0.0) if low is None else low
    scale = F(max(abs(F(lowest)), abs(F(high)))) / F(LEVELS[kind])
    return ranged(NAMES[kind], scale, lowest, high, LEVELS[kind])


def made_of(said: Said, arrays: Mapping[str, Array]) -> QuantType:
    """Returns the type of a result, by the range that the op returned."""
    low, high = (float(v) for v in arrays["range"])
    return bytes_of(str(arrays["y"].dtype), high, low)


def quantize_v2(said: Said, arrays: Mapping[str, Array]) -> Array:
    kind = bytes_of(said["kind"], said["max"], said["min"])
    return predicted(PROFILE, "quantize", {"x": Held(arrays["x"])}, kind, arrays["x"].shape)


def dequantize(said: Said, arrays: Mapping[str, Array]) -> Array:
    x = Held(arrays["x"], bytes_of(said["kind"], said["max"], said["min"]))
    return predicted(PROFILE, "dequantize", {"x": x}, None, x.data.shape)


def requantize(said: Said, arrays: Mapping[str, Array]) -> Array:
    high = said["high"]
    kind = ranged("i32", F(high) / F(2**31 - 1), -high, high, 2.0**31 - 1)
    x = Held(arrays["x"], kind)
    return predicted(PROFILE, "requantize", {"x": x}, made_of(said, arrays), x.data.shape)


def pooling(said: Said, arrays: Mapping[str, Array]) -> Array:
    kind = bytes_of(said["kind"], 3.0)
    height, width = arrays["x"].shape[2:]
    size, pad = (tuple(np.broadcast_to(said[key], 2).tolist()) for key in ("size", "pad"))
    attrs: dict[str, Any] = {"kernel": size, "stride": (said["stride"],) * 2, "pad": pad * 2}
    if said["whole"]:
        attrs = {"kernel": (height, width)}
    if said.get("full"):
        attrs["ceil"] = True
    if said["what"] == "avg":
        attrs["count_pad"] = said["counts"]
    op = f"{said['what']}_pool2d"
    operands = {"x": Held(arrays["x"], kind)}
    return predicted(PROFILE, op, operands, kind, arrays["y"].shape, attrs)


def whole_means() -> Iterator[tuple[QuantType, Array, Array]]:
    """Recorded means of windows without padding: each window an image of which there is one mean.

    MXNet computes global pools by the kernel of other pools, with a window that is the image.
    """
    for said, arrays in cases("pooling_wide"):
        if said["what"] == "avg" and not any(np.ravel(said["pad"])):
            height, width = np.broadcast_to(said["size"], 2).tolist()
            windows = np.lib.stride_tricks.sliding_window_view(arrays["x"], (height, width), (2, 3))
            windows = windows[:, :, :: said["stride"], :: said["stride"]].transpose(
                0, 2, 3, 1, 4, 5
            )
            images = np.ascontiguousarray(windows).reshape(-1, arrays["x"].shape[1], height, width)
            means = arrays["y"].transpose(0, 2, 3, 1).reshape(len(images), -1, 1, 1)
            yield bytes_of(said["kind"], 3.0), images, means


def act(said: Said, arrays: Mapping[str, Array]) -> Array:
    kind = bytes_of(said["kind"], 3.0)
    return predicted(PROFILE, "relu", {"x": Held(arrays["x"], kind)}, kind, arrays["y"].shape)


def add(said: Said, arrays: Mapping[str, Array]) -> Array:
    maps = [bytes_of(k, r) for k, r in zip(said["kinds"], said["ranges"], strict=True)]
    operands = {s: Held(arrays[s], kind) for s, kind in zip("ab", maps, strict=True)}
    return predicted(PROFILE, "add", operands, made_of(said, arrays), arrays["y"].shape)


def mul(said: Said, arrays: Mapping[str, Array]) -> Array:
    maps = [bytes_of("int8", r) for r in said["ranges"]]
    operands = {s: Held(arrays[s], kind) for s, kind in zip("ab", maps, strict=True)}
    result_type: QuantType | None = None
    if said["made"] == "int8":
        result_type = bytes_of("int8", said["top"])
    if said["made"] == "int32":
        step = F(F(said["ranges"][0]) / F(127)) * F(F(said["ranges"][1]) / F(127))
        result_type = ranged("i32", step, -step * 2.0**31, step * 2.0**31, 2.0**31)
    return predicted(PROFILE, "mul", operands, result_type, arrays["y"].shape)


def sums(said: Said, arrays: Mapping[str, Array]) -> Array:
    maps = [bytes_of(k, r) for k, r in zip(said["kinds"], said["ranges"], strict=True)]
    operands = {s: Held(arrays[s], kind) for s, kind in zip("ab", maps, strict=True)}
    low, high = (float(v) for v in arrays["range"])
    result_type = ranged("i32", F(high) / F(2**31 - 1), low, high, 2.0**31 - 1)
    return predicted(PROFILE, "add", operands, result_type, arrays["y"].shape)


def embedding(said: Said, arrays: Mapping[str, Array]) -> Array:
    kind = bytes_of("int8", said["high"])
    operands = {"w": Held(arrays["w"], kind), "indices": Held(arrays["rows"])}
    return predicted(PROFILE, "embedding", operands, kind, arrays["y"].shape)


def concat(said: Said, arrays: Mapping[str, Array]) -> Array:
    maps = [bytes_of(k, r) for k, r in zip(said["kinds"], said["ranges"], strict=True)]
    operands = {f"xs.{i}": Held(arrays[f"x{i}"], kind) for i, kind in enumerate(maps)}
    kind = made_of(said, arrays)
    return predicted(PROFILE, "concat", operands, kind, arrays["y"].shape, {"axis": 1})


def batch_norm(said: Said, arrays: Mapping[str, Array]) -> Array:
    operands = {"x": Held(arrays["x"], bytes_of(said["kind"], said["high"]))}
    operands |= {s: Held(arrays[s]) for s in ("gamma", "beta", "mean", "var")}
    kind = bytes_of("int8", said["top"])
    return predicted(PROFILE, "batch_norm", operands, kind, arrays["y"].shape, {"eps": said["eps"]})


def conv(said: Said, arrays: Mapping[str, Array]) -> Array:
    """32-bit sums: the range that is given out counts 127 and 255, which is not looked at."""
    x, w = bytes_of(said["kind"], said["high"]), bytes_of("int8", said["span"])
    operands = {"x": Held(arrays["x"], x), "w": Held(arrays["w"], w)}
    step = F(F(1) / F(F(LEVELS[said["kind"]]) / F(said["high"]))) / F(F(127.5) / F(said["span"]))
    kind = ranged("i32", step, -step * 2.0**31, step * 2.0**31, 2.0**31)
    return predicted(PROFILE, "conv2d", operands, kind, arrays["y"].shape, {"pad": (1, 1, 1, 1)})


def fused_conv(said: Said, arrays: Mapping[str, Array]) -> Array:
    operands = {
        "x": Held(arrays["x"], bytes_of(said["kind"], said["high"])),
        "w": Held(arrays["w"]),
    }
    if said["has_bias"]:
        operands["bias"] = Held(arrays["bias"])
    then = []
    if said["sum"]:
        summand = Held(arrays["sum"], bytes_of(said["sum"], said["sum_high"]))
        then.append(Then("add", "a", {}, {"b": summand}))
    if said["relu"]:
        then.append(Then("relu"))
    kind = made_of(said, arrays)
    return predicted(PROFILE, "conv2d", operands, kind, arrays["y"].shape, then=then)


def fused_linear(said: Said, arrays: Mapping[str, Array]) -> Array:
    operands = {s: Held(arrays[s]) for s in ("w", "bias")}
    if said.get("whole"):
        operands = {
            "w": Held(arrays["w"], bytes_of("int8", said["span"])),
            "bias": Held(arrays["bias"], bytes_of("int8", said["bias_span"])),
        }
    operands = {"x": Held(arrays["x"], bytes_of(said["kind"], said["high"])), **operands}
    then = [Then("relu")] if said["relu"] else []
    kind = None if said["real"] else made_of(said, arrays)
    return predicted(PROFILE, "linear", operands, kind, arrays["y"].shape, then=then)


PREDICTED: Mapping[str, Callable[[Said, Mapping[str, Array]], Array]] = {
    "quantize_v2": quantize_v2,
    "dequantize": dequantize,
    "requantize": requantize,
    "pooling": pooling,
    "act": act,
    "add": add,
    "concat": concat,
    "batch_norm": batch_norm,
    "conv": conv,
    "fused_conv": fused_conv,
    "fused_linear": fused_linear,
    "fused_linear_codes": fused_linear,
    "mul": mul,
    "sums": sums,
    "pooling_full": pooling,
    "pooling_wide": pooling,
    "embedding": embedding,
    "fused_conv_odd": fused_conv,
    "fused_conv_sum": fused_conv,
}
"""What the profile foresees, by the name of the file that recorded it."""


# -- richness -------------------------------------------------------------------------------------


def in_steps(name: str, said: Said, arrays: Mapping[str, Array]) -> Floats:
    """Results before they are rounded, in steps of their integers, in float64."""
    if name == "quantize_v2":
        reach = max(abs(said["min"]), abs(said["max"]))
        return np.asarray(arrays["x"] * (LEVELS[said["kind"]] / reach), np.float64)
    if name == "requantize":
        most = 127 if said["kind"] == "int8" else 255
        step = said["high"] / (2**31 - 1) * most / said["max"]
        return np.asarray(arrays["x"] * step, np.float64)
    if name == "add":
        terms = [
            arrays[slot].astype(np.float64) * reach / LEVELS[kind]
            for slot, kind, reach in zip("ab", said["kinds"], said["ranges"], strict=True)
        ]
        gain = LEVELS[str(arrays["y"].dtype)] / said["top"]
        return np.asarray((terms[0] + terms[1]) * gain, np.float64)
    return _sums(said, arrays)


def _sums(said: Said, arrays: Mapping[str, Array]) -> Floats:
    """A layer's sums of integers, weights quantized one scale a channel."""
    data_scale = LEVELS[said["kind"]] / said["high"]
    weights = arrays["w"].reshape(len(arrays["w"]), -1).astype(np.float64)
    gains = 127.5 / np.abs(weights).max(1)
    quantized_weights = np.clip(np.rint(weights * gains[:, None]), -128, 127)
    x = np.moveaxis(arrays["x"].astype(np.float64), 1, -1)
    total = x @ quantized_weights.T
    if "bias" in arrays:
        total = total + np.rint(arrays["bias"] * gains * data_scale)
    real = total / gains / data_scale
    if said.get("sum"):
        summand = np.moveaxis(arrays["sum"].astype(np.float64), 1, -1)
        real = real + summand * said["sum_high"] / LEVELS[said["sum"]]
    return np.asarray(real * LEVELS[said["made"]] / said["top"])
