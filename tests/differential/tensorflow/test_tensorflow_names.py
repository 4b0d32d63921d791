"""The older names of TensorFlow's fused products ask for kernels that are predicted too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from qir.profiles import Query, profile
from tests.differential.predictions import Array, Count, F
from tests.differential.tensorflow.kernels import HAS_VNNI, Asked, Kind, TensorFlow

from .test_tensorflow_products import DEPTHWISE, Form, Layer, layer, ours, reach_of

NAME = "tf-2.21.onednn"
pytestmark = pytest.mark.skipif(
    not HAS_VNNI, reason="the profile speaks of processors with VNNI, which this one is not"
)


@dataclass(frozen=True)
class Older:
    """An op by its older name, and what it does."""

    name: str
    form: Form
    bias: bool = True

    @property
    def flat(self) -> bool:
        return "MatMul" in self.name


def older() -> Iterator[Older]:
    quantized = ("BiasAdd", "Requantize")
    rectified = ("BiasAdd", "Relu", "Requantize")
    added = ("BiasAdd", "Sum", "Relu", "Requantize")
    for data in ("quint8", "qint8"):
        yield Older("QuantizedConv2DWithBias", Form(data, "qint32", ("BiasAdd",)))
        yield Older("QuantizedConv2DWithBiasAndRelu", Form(data, "qint32", ("BiasAdd", "Relu")))
        yield Older("QuantizedConv2DWithBiasAndRequantize", Form(data, "qint8", quantized))
        yield Older("QuantizedConv2DWithBiasAndReluAndRequantize", Form(data, "quint8", rectified))
    for summand, sign in (("quint8", ""), ("qint8", "Signed")):
        name = f"QuantizedConv2DWithBias{sign}SumAndReluAndRequantize"
        yield Older(name, Form("quint8", "quint8", added, summand))
    yield Older("QuantizedConv2DPerChannel", Form("quint8", "qint32", ()), bias=False)
    yield Older("QuantizedConv2DAndRelu", Form("quint8", "qint32", ("Relu",)), bias=False)
    yield Older("QuantizedConv2DAndRequantize", Form("quint8", "qint8", quantized), bias=False)
    made = Form("quint8", "quint8", rectified)
    yield Older("QuantizedConv2DAndReluAndRequantize", made, bias=False)
    name = "QuantizedDepthwiseConv2D"
    yield Older(name, Form("quint8", "qint32", (), op=DEPTHWISE), bias=False)
    deep = Form("quint8", "qint32", ("BiasAdd",), op=DEPTHWISE)
    yield Older(f"{name}WithBias", deep)
    yield Older(
        f"{name}WithBiasAndRelu", Form("quint8", "qint32", ("BiasAdd", "Relu"), op=DEPTHWISE)
    )
    deep = Form("quint8", "quint8", rectified, op=DEPTHWISE)
    yield Older(f"{name}WithBiasAndReluAndRequantize", deep)
    name = "QuantizedMatMulWithBias"
    yield Older(f"{name}AndRequantize", Form("quint8", "quint8", quantized))
    yield Older(f"{name}AndReluAndRequantize", Form("quint8", "quint8", rectified))
    yield Older(f"{name}AndDequantize", Form("quint8", "float", ("BiasAdd", "Dequantize")))


OLDER = tuple(older())


def asked_by(runtime: TensorFlow, of: Older, one: Layer) -> Array:
    """What the kernel makes: operands, ranges of both, of a result, and a summand with its own."""
    asked, form = Asked(), of.form
    depthwise = form.op == DEPTHWISE
    filters = one.w if of.flat else one.w.T[None, None] if depthwise else one.w[None, None]
    inputs = [asked.fed(one.x, form.data), asked.constant(filters, "qint8")]
    if of.bias:
        inputs.append(asked.constant(one.bias))
    reach = one.w_reach if one.w_reach.size > 1 else one.w_reach[0]
    ends: list[Array | float] = [*reach_of(form.data, float(one.x_reach)), -reach, reach]
    if form.made not in ("qint32", "float"):
        ends += reach_of(form.made, float(one.out))
    elif form.made == "float":
        ends += [-1.0, 1.0]
    inputs += [asked.constant(np.asarray(v, F)) for v in ends]
    attrs: dict[str, Any] = {}
    if one.summand is not None:
        most = 127.5 if form.summand == "qint8" else 255.0
        given = [asked.constant(v) for v in reach_of(form.summand, most)]
        how = {"mode": "SCALED", "round_mode": "HALF_TO_EVEN"}
        data = asked.fed(one.summand.astype(F))
        inputs.append(asked.node("QuantizeV2", [data, *given], T=Kind(form.summand), **how))
        own = reach_of(form.summand, one.summand_reach)
        inputs += [asked.constant(np.asarray(v, F)) for v in own]
        attrs["Tsummand"] = Kind(form.summand)
    if of.bias and ("Requantize" in of.name or of.flat):
        attrs["Tbias"] = Kind("float")
    if of.flat:
        attrs |= {"T1": Kind(form.data), "T2": Kind("qint8"), "Toutput": Kind(form.made)}
        attrs["input_quant_mode"] = "SCALED"
    else:
        attrs |= {"Tinput": Kind(form.data), "Tfilter": Kind("qint8"), "padding": "VALID"}
        attrs |= {"strides": (1, 1, 1, 1), "out_type": Kind(form.made)}
    node = asked.node(of.name, inputs, **attrs)
    return runtime.run(asked, f"{node}:0")[0]


def as_a_convolution(of: Layer) -> Array:
    """What a product of u8 gives whose sums are multiplied by one over the result's scale."""
    sums = (of.x.astype(np.int64) @ of.w.astype(np.int64)).astype(F)
    unit = F(F(of.x_reach / F(255)) * F(of.w_reach[0] / F(127)))
    floats = (sums * unit).astype(F) + of.bias
    return np.asarray(np.clip(np.rint(floats * F(F(1) / F(of.out / F(255)))), 0, 255))


def anywhere(form: Form, seed: int) -> Layer:
    """A product whose results are seldom ties."""
    rng, one = np.random.default_rng(seed + 100), layer(form, seed, flat=True)
    unit = float(one.x_reach / F(255) * one.w_reach[0] / F(127))
    bias = (rng.normal(0, 500, one.bias.shape) * unit).astype(F)
    return replace(one, bias=bias, out=F(one.out * rng.uniform(0.7, 1.4)))


@pytest.mark.parametrize("of", OLDER, ids=lambda of: f"{of.name} {of.form.data}")
def test_older_names_ask_for_the_kernels_of_the_newer(runtime: TensorFlow, of: Older) -> None:
    count, one_scale = Count(), of.flat or of.name == "QuantizedConv2DAndRequantize"
    for seed in range(0, 8, 2) if one_scale else range(4):
        one = layer(of.form, seed, flat=of.flat)
        if not of.bias:
            one.bias[:] = 0
        wanted = asked_by(runtime, of, one)
        found = ours(of.form, one, wanted.shape)
        if of.flat and "Requantize" in of.name:  # which nothing is claimed of
            off = np.abs(found.astype(np.int32) - wanted)
            assert off.max() <= 1
            assert off.mean() < 0.1
            assert np.array_equal(as_a_convolution(one), wanted)
            drawn = anywhere(of.form, seed)
            wanted = asked_by(runtime, of, drawn)
            assert np.array_equal(ours(of.form, drawn, wanted.shape), wanted)
        else:
            count.add(found, wanted, seed)
    if count.total:
        count.holds(profile(NAME).resolve(Query("linear" if of.flat else "conv2d")).claim)
