"""Ranges to scales and zero points, against each framework's own tool: 10,000 ranges, every bit."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper
from onnxruntime.quantization.quant_utils import compute_scale_zp, get_qmin_qmax_for_qType
from torch.ao.quantization import get_default_qconfig
from torch.ao.quantization.observer import PerChannelMinMaxObserver
from torch.ao.quantization.qconfig import (
    default_per_channel_symmetric_qnnpack_qconfig,
    default_symmetric_qnnpack_qconfig,
)

from qir.errors import ProfileError
from qir.ir.dtype import I8, U8, dtype
from qir.numerics import SCALE_FORMULAS, choose
from qir.numerics.fields import Choose
from qir.profiles import Query, profile

from .tensorflow.kernels import Asked, Kind, TensorFlow
from .torch.profile_in_use import named

F = np.float32
Floats = NDArray[np.float32]
HELD = np.load(Path(__file__).parent / "vectors" / "ranges.npz")
LOW, HIGH = HELD["low"], HELD["high"]


def rule_of(name: str, storage: str, op: str = "quantize", grain: str = "tensor") -> Choose:
    """The rule of a profile, or the one of that name."""
    if name in SCALE_FORMULAS:
        return SCALE_FORMULAS[name]
    return profile(name).resolve(Query(op, {"result": storage}, grain)).choose


def chosen(rule: Choose, storage: str, *, symmetric: bool) -> tuple[Floats, NDArray[np.int64]]:
    with np.errstate(all="ignore"):
        scale, zero = choose(LOW, HIGH, dtype(storage), rule, symmetric=symmetric)
    return np.asarray(scale, F), zero


def same(found: tuple[NDArray[np.generic], ...], wanted: tuple[NDArray[np.generic], ...]) -> None:
    """Equal bits, element by element."""
    for mine, theirs in zip(found, wanted, strict=True):
        off = np.flatnonzero(mine != theirs.astype(mine.dtype))
        told = [(LOW[i], HIGH[i], mine[i], theirs[i]) for i in off[:3]]
        assert not len(off), f"{len(off)} of {len(mine)} differ: {told}"


def test_the_ranges_are_of_every_kind() -> None:
    assert len(LOW) == 10_000
    assert not np.any(LOW > HIGH)
    for count in (LOW == HIGH, LOW == 0, HIGH == 0, LOW > 0, HIGH < 0, abs(HIGH) < 2.0**-126):
        assert count.sum() > 300
    scale = (HIGH - LOW)[1500:2500].astype(np.float64) / 255
    steps = -LOW[1500:2500] / scale
    assert np.all(steps - np.floor(steps) == 0.5)


TORCH = ("fbgemm", "x86", "onednn", "qnnpack", "pt2e")
SYMMETRIC = "torch.qnnpack.symmetric"
OBSERVERS = ["torch.observer", SYMMETRIC, *(named(engine) for engine in TORCH), "ipex-2.8"]


def eps_of(name: str) -> float:
    """The least scale of the observers that torch's own configuration names."""
    if name == SYMMETRIC:
        return float(default_symmetric_qnnpack_qconfig.activation().eps)
    engine = name.rpartition(".")[2]
    known = engine in ("fbgemm", "x86", "onednn", "qnnpack")
    config = get_default_qconfig(engine if known else "x86")  # type: ignore[no-untyped-call]
    return float(config.activation().eps)


def test_weights_of_qnnpacks_symmetric_configuration() -> None:
    """Integers from -127 to 127, in steps of 2^-12 and more."""
    watcher = default_per_channel_symmetric_qnnpack_qconfig.weight()
    watcher.min_val, watcher.max_val = torch.from_numpy(LOW), torch.from_numpy(HIGH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale, zero = watcher.calculate_qparams()
    rule, quantized = SCALE_FORMULAS[SYMMETRIC], (-127, 127)
    found = choose(LOW, HIGH, dtype("i8"), rule, symmetric=True, bounds=quantized)
    same((np.asarray(found[0], F), found[1]), (scale.numpy(), zero.numpy()))


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("storage", ["u8", "i8"])
@pytest.mark.parametrize("name", OBSERVERS)
def test_torchs_observers(name: str, storage: str, symmetric: bool) -> None:
    """Those of the engines' default configurations; 10,000 channels are 10,000 ranges."""
    rule = rule_of(name, storage)
    short = name in (named("fbgemm"), named("x86"))
    if short and symmetric and storage == "u8":
        pytest.skip("torch's observers reduce no symmetric u8")
    watcher = PerChannelMinMaxObserver(
        dtype=torch.quint8 if storage == "u8" else torch.qint8,
        qscheme=torch.per_channel_symmetric if symmetric else torch.per_channel_affine,
        reduce_range=short,
        eps=eps_of(name),
    )
    watcher.min_val, watcher.max_val = torch.from_numpy(LOW), torch.from_numpy(HIGH)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scale, zero = watcher.calculate_qparams()
    same(chosen(rule, storage, symmetric=symmetric), (scale.numpy(), zero.numpy()))


@pytest.mark.parametrize("short", [False, True])
def test_torchs_dynamic_layers(short: bool) -> None:
    rule = rule_of(named("fbgemm"), "u8", "choose_qparams")
    rule = replace(rule, reduce="activations7" if short else "none")
    pairs = zip(LOW, HIGH, strict=True)
    made = [torch._choose_qparams_per_tensor(torch.tensor(pair), short) for pair in pairs]
    scale, zero = np.array(made).T
    same(chosen(rule, "u8", symmetric=False), (scale.astype(F), zero))


KINDS = {"u8": TensorProto.UINT8, "i8": TensorProto.INT8, "i16": TensorProto.INT16}


@pytest.mark.parametrize("symmetric", [False, True], ids=["affine", "symmetric"])
@pytest.mark.parametrize("storage", KINDS)
def test_onnxruntimes_tool(storage: str, symmetric: bool) -> None:
    low, high = get_qmin_qmax_for_qType(KINDS[storage], symmetric=symmetric)
    with np.errstate(all="ignore"):
        made = [
            compute_scale_zp(least, most, low, high, symmetric)
            for least, most in zip(LOW, HIGH, strict=True)
        ]
    zero, scale = (np.array([np.asarray(pair[i]) for pair in made]) for i in (0, 1))
    for name in ("native", "ort-1.31", "onnxruntime.tool"):
        rule, bounds = rule_of(name, storage), (int(low), int(high))
        with np.errstate(all="ignore"):
            found = choose(LOW, HIGH, dtype(storage), rule, bounds=bounds, symmetric=symmetric)
        same(found, (scale.astype(F), zero))


@pytest.mark.parametrize("least", [-128, -127], ids=["all codes", "narrow"])
def test_tensorflows_ranges_as_quantize_v2_gives_them_out(
    least: int, runtimes: Mapping[str, TensorFlow]
) -> None:
    """Ten thousand channels; what reads integers takes for a step what the wider side's end
    spans."""
    low, high = np.minimum(LOW, 0), np.maximum(HIGH, 0)
    fit = (high < 2.0**120) & (low > -(2.0**120))
    low, high = low[fit], high[fit]
    asked = Asked()
    x = asked.fed(np.stack([low, high], 1))
    ends = [asked.constant(low), asked.constant(high)]
    narrow = least == -127
    node = asked.node(
        "QuantizeV2", [x, *ends], T=Kind("qint8"), mode="SCALED", axis=0, narrow_range=narrow
    )
    made = runtimes["tf-2.21.core"].run(asked, f"{node}:1", f"{node}:2")
    rule = rule_of("tf-2.21.core", "i8")
    found, zero = choose(low, high, I8, rule, bounds=(least, 127), symmetric=True)
    assert not zero.any()
    size = np.maximum(np.maximum(abs(low), abs(high)), F(1))
    most = np.maximum(high, low + F(0.01) * size)
    with np.errstate(divide="ignore"):
        gain = np.minimum(F(127) / most, np.where(low, F(least) / low, F(np.inf)))
    assert np.array_equal(made[0], F(least) / gain)
    assert np.array_equal(made[1], F(127) / gain)
    assert np.array_equal(found, np.maximum(most / F(127), low / F(least)))


@pytest.mark.parametrize("name", ["tf-2.21.core", "onednn.u8"])
def test_unsigned_integers_that_count_from_zero_need_something_above_it(name: str) -> None:
    rule = rule_of(name, "u8")
    with pytest.raises(ProfileError, match="holds nothing above zero"):
        choose(-2.0, 0.0, U8, rule, symmetric=True)
    scale, _ = choose(-2.0, 1.0, U8, rule, symmetric=True)
    assert scale == F(1) / F(255)


def test_the_converter_of_tensorflow_lite() -> None:
    """Recorded; a product with what its converter folds away has no scale."""
    rule = rule_of("tflite-2.21.ref", "i8")
    there = np.isfinite(HELD["tflite"])
    assert there.sum() > 9_900
    scale, zero = chosen(rule, "i8", symmetric=False)
    scale, zero = (np.where(there, mine, 0) for mine in (scale, zero))
    same((scale, zero), tuple(np.where(there, HELD[n], 0) for n in ("tflite", "tflite_zero")))
    there = np.isfinite(HELD["tflite_weights"])
    assert there.sum() > 7_000
    scale, _ = chosen(rule, "i8", symmetric=True)
    same((np.where(there, scale, 0),), (np.where(there, HELD["tflite_weights"], 0),))


def test_mxnet() -> None:
    """Recorded: what a step of its integers means, and the six decimals that its files hold."""
    for storage, kind in (("i8", "int8"), ("u8", "uint8")):
        rule = rule_of("mxnet-1.9", storage)
        theirs = HELD[f"mxnet_{kind}"]
        scale, _ = chosen(replace(rule, decimals="exact", small="none"), storage, symmetric=True)
        same((scale,), (theirs,))
        # The profile has 1 where MXNet's scale is 0 or no normal number: nothing divides by those.
        scale, _ = chosen(replace(rule, decimals="exact"), storage, symmetric=True)
        same((scale,), (np.where(theirs < np.finfo(F).tiny, F(1), theirs),))
        written = np.array(HELD["mxnet_written"].astype(np.float64), F).T
        kept = choose(
            written[0], written[1], dtype(storage), replace(rule, decimals="exact"), symmetric=True
        )
        mine, _ = choose(LOW[::20], HIGH[::20], dtype(storage), rule, symmetric=True)
        assert np.array_equal(mine, kept[0])


def test_dynamic_quantize_linear() -> None:
    """onnxruntime's operator, which a graph names by the rule `onnx.dynamic`."""
    from qir.ir.text import parse
    from qir.reference.interpreter import run

    names = ("q", "s", "z")
    kinds = (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8)
    shapes = ((2,), (), ())
    graph = helper.make_graph(
        [helper.make_node("DynamicQuantizeLinear", ["x"], list(names))],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info(*one) for one in zip(names, kinds, shapes, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    mine = parse("""graph main as ort-1.31 {
  %x = input() : 2xf32
  %s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8
  output(s=%s, z=%z)
}
""")
    finite = np.isfinite(HIGH - LOW)
    for pair in np.stack([LOW, HIGH], 1)[finite][::10]:
        scale, zero = session.run(["s", "z"], {"x": pair})
        found = run(mine, {"x": pair})
        assert (found["s"], found["z"]) == (scale, zero), pair


@pytest.mark.parametrize("ends", [(0, np.inf), (-np.inf, 0), (np.nan, 1), (1, np.nan), (2, 1)])
def test_what_is_no_range_is_refused(ends: tuple[float, float]) -> None:
    for name in (*SCALE_FORMULAS, "tflite-2.21.ref", named("fbgemm"), "mxnet-1.9"):
        with pytest.raises(ProfileError, match="has no scale"):
            choose(*ends, U8, rule_of(name, "u8"), symmetric=True)
