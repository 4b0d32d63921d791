"""Records which scales TensorFlow Lite's converter and MXNet 1.9.1 give 10,000 ranges.

`python -m tests.oracles.scale_rules` in the project's own environment writes the ranges and what
TensorFlow's converter makes of them; `MXNET_PYTHON tests/oracles/scale_rules.py FILE`, in an
environment of MXNet's, adds what that makes. Knows nothing of QIR.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

F = np.float32
FILE = Path(__file__).parents[1] / "differential" / "vectors" / "ranges.npz"
COUNT = 10_000
ENDS = (
    *((0, 0), (-0.0, 0), (1e-45, 1e-45), (-1e-45, -1e-45), (-1e-45, 0), (0, 1e-45), (0, 1e-38)),
    *((0, 1.1754944e-38), (3, 5), (-5, -3), (-3.4028235e38, 3.4028235e38), (-3.4028235e38, 0)),
    *((0, 3.4028235e38), (1, 1), (-1, -1), (-1e-6, 0), (0, 1e-6), (-5e-7, 5e-7)),
)


def ranges() -> tuple[Any, Any]:
    """Of every size from subnormal numbers to the ends of float32: random ones, from zero up, up to
    zero, of one number, with the zero point on a tie, and with one that float32 puts elsewhere than
    float64."""
    rng = np.random.default_rng(1)
    size = np.exp2(rng.uniform(-149, 126, COUNT))
    low, high = np.sort(rng.normal(size=(2, COUNT)) * size, axis=0).astype(F)
    low[:500], high[:500] = 0, abs(high[:500])
    low[500:1000] = high[500:1000]
    low[1000:1500], high[1000:1500] = -abs(low[1000:1500]), 0
    ties, step = rng.integers(0, 255, 1000) + 0.5, np.exp2(rng.integers(-100, 100, 1000))
    low[1500:2500], high[1500:2500] = -ties * step, (255 - ties) * step
    size = np.exp2(rng.uniform(-24, -14, 2000))
    low[2500:4500], high[2500:4500] = np.sort(rng.normal(size=(2, 2000)) * size, axis=0)
    found = parting(rng)
    low[4500 : 4500 + len(found[0])], high[4500 : 4500 + len(found[0])] = found
    low[-len(ENDS) :], high[-len(ENDS) :] = np.array(ENDS, F).T
    return low, high


def parting(rng: Any) -> tuple[Any, Any]:
    """Ranges whose lower end is a whole number of steps and a half in float32, not in float64."""
    low = -rng.uniform(0, 300, 4_000_000).astype(F)
    high = rng.uniform(0, 300, low.size).astype(F)
    scale = (high - low) / F(255)
    wide = low.astype(np.float64) / scale
    apart = np.rint(low / scale) != np.rint(wide)
    apart |= np.floor(low / scale + F(0.5)) != np.floor(wide + 0.5)
    return low[apart][:400], high[apart][:400]


def _converted(function: Any, sample: Any) -> Any:
    import tensorflow as tf

    converter = tf.lite.TFLiteConverter.from_concrete_functions([function.get_concrete_function()])
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: iter([[sample]])
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    return tf.lite.Interpreter(model_content=converter.convert())


def activations(low: Any, high: Any, at_once: int = 500) -> tuple[Any, Any]:
    """Scales and zero points of results that reach from one end to the other, asked for as products
    of ones with both; a scale of NaN where the converter folds the product."""
    scale, zero = np.full(len(low), np.nan, F), np.zeros(len(low), np.int8)
    for first in range(0, len(low), at_once):
        ends = np.stack([low, high], 1)[first : first + at_once]
        model = _converted(_products(ends), np.ones(2, F))
        tensors = {t["index"]: t["quantization_parameters"] for t in model.get_tensor_details()}
        made = {op["outputs"][0]: op for op in model._get_ops_details()}
        for i, out in enumerate(model.get_output_details()):
            if (op := made.get(out["index"])) is not None and op["op_name"] == "DEQUANTIZE":
                found = tensors[op["inputs"][0]]
                scale[first + i], zero[first + i] = found["scales"][0], found["zero_points"][0]
    return scale, zero


def _products(ends: Any) -> Any:
    import tensorflow as tf

    @tf.function(input_signature=[tf.TensorSpec((2,), tf.float32)])  # type: ignore[untyped-decorator]
    def function(x: Any) -> Any:
        return [tf.multiply(x, pair) for pair in ends]

    return function


def weights(low: Any, high: Any) -> Any:
    """Scales of filters that hold both ends; NaN where the converter would refuse the scale."""
    import tensorflow as tf

    reach = np.maximum(abs(low), abs(high))
    fit = (reach > 2.0**-110) & (reach < 2.0**100)
    held = np.stack([low[fit], high[fit]]).reshape(1, 2, 1, -1)

    sides = tf.TensorSpec((1, 1, 2, 1), tf.float32)

    @tf.function(input_signature=[sides])  # type: ignore[untyped-decorator]
    def function(x: Any) -> Any:
        return tf.nn.conv2d(x, held, 1, "VALID")

    model = _converted(function, np.ones((1, 1, 2, 1), F))
    many = [
        tensor["quantization_parameters"]["scales"]
        for tensor in model.get_tensor_details()
        if tensor["dtype"] is np.int8 and len(tensor["quantization_parameters"]["scales"]) > 1
    ]
    scale = np.full(len(low), np.nan, F)
    (scale[fit],) = many
    return scale


def of_mxnet(low: Any, high: Any) -> dict[str, Any]:
    """What a step of quantize_v2's integers means, and how a calibrated graph writes its ranges."""
    import mxnet as mx
    from mxnet.contrib import quantization

    found: dict[str, Any] = {}
    for kind in ("int8", "uint8"):
        steps = []
        for least, most in zip(low, high):  # noqa: B905
            ends = {"min_calib_range": float(least), "max_calib_range": float(most)}
            _, *given = mx.nd.contrib.quantize_v2(mx.nd.array([0.0]), out_type=kind, **ends)
            one = mx.nd.array([1], dtype=kind)
            steps.append(mx.nd.contrib.dequantize(one, *given, out_type="float32").asnumpy()[0])
        found[f"mxnet_{kind}"] = np.array(steps, F)
    names = [f"d{i}" for i in range(0, len(low), 20)]
    layers = [
        mx.sym.FullyConnected(mx.sym.Variable(n), num_hidden=1, no_bias=True, name=f"f{n}")
        for n in names
    ]
    made, _ = quantization._quantize_symbol(mx.sym.Group(layers), mx.cpu(), quantized_dtype="int8")
    table = {n: (float(low[int(n[1:])]), float(high[int(n[1:])])) for n in names}
    made = quantization._calibrate_quantized_sym(made, table)
    told = {}
    for node in json.loads(made.tojson())["nodes"]:
        if "min_calib_range" in node.get("attrs", {}):
            told[node["name"].split("_")[0]] = node["attrs"]
    text = [[told[n][f"{end}_calib_range"] for end in ("min", "max")] for n in names]
    found["mxnet_written"] = np.array(text, "S")
    return found


def main() -> None:
    """Writes the file, or adds MXNet's part to it."""
    if len(sys.argv) > 1:
        np.bool = bool  # type: ignore[assignment,misc]
        path = Path(sys.argv[1])
        held = dict(np.load(path))
        held.update(of_mxnet(held["low"], held["high"]))
    else:
        path, (low, high) = FILE, ranges()
        held = dict(np.load(path)) if path.exists() else {}
        scale, zero = activations(low, high)
        held.update(low=low, high=high, tflite=scale, tflite_zero=zero)
        held["tflite_weights"] = weights(low, high)
    np.savez_compressed(path, **held)


if __name__ == "__main__":
    main()
