"""TensorFlow's fused convolutions and matrix products of integers with oneDNN, to the byte."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from qir.ir.text import parse
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import Query, profile
from tests.differential.predictions import Array, Count, F, Held, Then, predicted, ranged
from tests.differential.tensorflow.kernels import (
    BOUNDS,
    HAS_VNNI,
    KINDS,
    Asked,
    Kind,
    Kinds,
    TensorFlow,
    random_integers,
)
from tests.overriding import override_profile

pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
NAME = "tf-2.21.onednn"
DEPTHWISE = "_FusedQuantizedDepthwiseConv2D"
LEVELS = {"quint8": 255, "qint8": 127}


@dataclass(frozen=True)
class Form:
    """A fused op: what it is given and what it does after the sums."""

    data: str
    made: str
    stages: tuple[str, ...]
    summand: str = ""
    op: str = "_FusedQuantizedConv2D"
    whole_bias: bool = False


@dataclass(frozen=True, eq=False)
class Layer:
    """Integers, ranges and bias of one layer, weights last axis out."""

    x: Array
    w: Array
    x_reach: np.float32
    w_reach: Array
    bias: Array
    out: np.float32
    summand: Array | None = None
    summand_reach: float = 0.0


def layer(form: Form, seed: int, *, flat: bool) -> Layer:
    """Scales whose ratio to the result's is a hair off a power of two, so that ties are many."""
    rng = np.random.default_rng(seed)
    deep, many = int(rng.integers(1, 9) if seed % 4 else rng.integers(22, 71)), 8
    shape = (300, deep) if flat else (1, 15, 20, deep)
    x = random_integers(rng, form.data, *shape)
    w = rng.integers(-127, 128, (deep, many)).astype(np.int8)
    if form.op == DEPTHWISE:
        x, w = random_integers(rng, form.data, *shape[:-1], many), w[:1]
    x_reach = F(rng.uniform(0.5, 9))
    w_reach = np.asarray(rng.uniform(0.2, 3) * 2.0 ** -rng.integers(0, 2, many), F)
    w_reach = w_reach if seed % 2 else w_reach[:1]
    unit = float(F(x_reach / F(LEVELS[form.data])) * F(w_reach.max() / F(127)))
    most = 127 * LEVELS[form.data] * np.sqrt(w.shape[0]) / 2
    if seed % 3:  # few integers: each step of the result is two or four sums
        few = 6 if form.op == DEPTHWISE else 3
        x = np.asarray(rng.integers(1 - few if form.data == "qint8" else 0, few, x.shape), x.dtype)
        most = 70 * 2 * np.sqrt(w.shape[0])
    levels = LEVELS.get(form.made, 255)
    power = max(2.0 ** np.round(np.log2(most / levels)), 1.0)
    if "Sum" in form.stages or seed % 6 == 1:  # a narrow result, so that enough saturates
        power *= 0.5
    if "LeakyRelu" in form.stages and seed % 3 == 0:  # so that a quarter of a sum saturates, too
        power *= 0.125
    out = F(unit * levels * power)
    bias = (rng.integers(-int(most / 2) - 2, int(most / 2) + 2, many) * 0.5 * unit).astype(F)
    if form.whole_bias:
        bias = rng.integers(-int(most / 2) - 2, int(most / 2) + 2, many).astype(np.int32)
    if not form.summand:
        return Layer(x, w, x_reach, w_reach, bias, out)
    summand = random_integers(rng, form.summand, *x.shape[:-1], many)
    reach = float(F(out / levels * LEVELS[form.summand] * rng.choice([0.5, 0.3])))
    return Layer(x, w, x_reach, w_reach, bias, out, summand, reach)


def reach_of(kind: str, reach: float) -> tuple[float, float]:
    return (-float(reach) if kind == "qint8" else 0.0), float(reach)


def theirs(runtime: TensorFlow, form: Form, of: Layer) -> Array:
    asked = Asked()
    depthwise = form.op == DEPTHWISE
    flat = of.x.ndim == 2
    filters = of.w if flat else of.w.T[None, None] if depthwise else of.w[None, None]
    inputs = [asked.fed(of.x, form.data), asked.constant(filters, "qint8")]
    bias = "qint32" if form.whole_bias else ""
    types = [form.data, "qint8", bias or "float"]
    inputs.append(asked.constant(of.bias, bias))
    if of.summand is not None:
        # One op makes the summand, as another owner of it would end the process.
        most = 127.5 if form.summand == "qint8" else 255.0
        ends = [asked.constant(v) for v in reach_of(form.summand, most)]
        given = [asked.fed(of.summand.astype(F)), *ends]
        how = {"mode": "SCALED", "round_mode": "HALF_TO_EVEN"}
        inputs.append(asked.node("QuantizeV2", given, T=Kind(form.summand), **how))
        types.append(form.summand)
    one = of.w_reach if of.w_reach.size > 1 else of.w_reach[0]
    numbers: list[Array | float] = [*reach_of(form.data, float(of.x_reach)), -one, one]
    if of.summand is not None:
        numbers += reach_of(form.summand, of.summand_reach)
    if "Requantize" in form.stages:
        numbers += reach_of(form.made, float(of.out))
    inputs += [asked.constant(np.asarray(v, F)) for v in numbers]
    many = 1 if form.made == "float" else 3
    outputs = (form.made, "float", "float")[:many]
    common: dict[str, Any] = {
        "fused_ops": form.stages,
        "Thost_inputs": Kinds((*types, *("float",) * len(numbers))),
        "Tdevice_inputs": Kinds(()),
        "Thost_outputs": Kinds(outputs),
        "Tdevice_outputs": Kinds(()),
        "Tbias": Kind(bias or "float"),
        "is_bias_const": True,
    }
    if flat:
        node = asked.node(
            "_QuantizedMatMul",
            inputs,
            T1=Kind(form.data),
            T2=Kind("qint8"),
            U=Kind("float"),
            Tout=Kind(form.made),
            is_weight_const=True,
            leakyrelu_alpha=0.25,
            **common,
        )
    else:
        node = asked.node(
            form.op,
            inputs,
            Tinput=Kind(form.data),
            Tfilter=Kind("qint8"),
            Tsummand=Kind(form.summand or form.made),
            out_type=Kind(form.made),
            data_format="NHWC",
            strides=(1, 1, 1, 1),
            dilations=(1, 1, 1, 1),
            padding="VALID",
            is_filter_const=True,
            **common,
        )
    return runtime.run(asked, f"{node}:0")[0]


STAGES = {
    "Relu": Then("relu"),
    "Relu6": Then("clip", attrs={"min": 0.0, "max": 6.0}),
    "LeakyRelu": Then("leaky_relu", attrs={"alpha": 0.25}),
    "Elu": Then("elu"),
    "Tanh": Then("tanh"),
    "Sigmoid": Then("sigmoid"),
    "GeluExact": Then("gelu"),
    "GeluApproximate": Then("gelu", attrs={"approximate": "tanh"}),
}


SLOTS = {"linear": ("x", "w", "bias"), "matmul": ("a", "b", "bias"), "gemm": ("a", "b", "c")}
"""The ops that _QuantizedMatMul is, and their names for what it is given."""


def ours(form: Form, of: Layer, shape: tuple[int, ...], op: str = "linear") -> Array:
    depthwise = form.op == DEPTHWISE
    flat = of.x.ndim == 2
    level = LEVELS[form.data]
    x = ranged(
        KINDS[form.data], of.x_reach / F(level), *reach_of(form.data, float(of.x_reach)), level
    )
    scales = np.asarray(of.w_reach / F(127), F)
    axis = 0 if scales.size > 1 else None
    w = ranged("i8", scales if axis == 0 else scales[0], -of.w_reach, of.w_reach, 127, axis=axis)
    weights = of.w.T if flat else of.w.T[..., None, None]
    given = {"x": Held(of.x, x), "w": Held(np.ascontiguousarray(weights), w)}
    unit = (of.x_reach / F(level)) * scales
    if form.whole_bias:
        step = F(1) / (F(level * 127) / (of.x_reach * of.w_reach))
        kind = ranged("i32", step if axis == 0 else step[0], -1.0, 1.0, axis=axis)
        given["bias"] = Held(of.bias, kind)
    else:
        given["bias"] = Held(of.bias)
    to = None
    if form.made == "qint32":
        most = float(unit.max())
        to = ranged("i32", most, -most * 2.0**31, most * 2.0**31, 2.0**31)
    elif form.made != "float":
        end = LEVELS[form.made]
        to = ranged(
            KINDS[form.made], of.out / F(end), *reach_of(form.made, float(of.out)), float(end)
        )
    then = []
    if of.summand is not None:
        end, ends = LEVELS[form.summand], reach_of(form.summand, of.summand_reach)
        kind = ranged(KINDS[form.summand], F(of.summand_reach) / F(end), *ends, float(end))
        then.append(Then("add", "a", {}, {"b": Held(of.summand, kind)}))
    then += [STAGES[s] for s in form.stages if s in STAGES]
    if not flat:
        more = {"layout": "NHWC", "groups": 8 if depthwise else 1}
        return predicted(NAME, "conv2d", given, to, shape, more, then)
    named = {to: given[slot] for to, slot in zip(SLOTS[op], ("x", "w", "bias"), strict=True)}
    return predicted(NAME, op, named, to, shape, {} if op == "linear" else {"trans_b": True}, then)


def in_steps(form: Form, of: Layer) -> Array:
    """Results before they are rounded, in steps of their integers, in float64."""
    x, w = of.x.astype(np.float64), of.w.astype(np.float64)
    total = x * w[0] if form.op == DEPTHWISE else x @ w
    unit = float(of.x_reach) / LEVELS[form.data] * of.w_reach.astype(np.float64) / 127
    real = (total + of.bias) * unit if form.whole_bias else total * unit + of.bias
    if of.summand is not None:
        real = real + of.summand * of.summand_reach / LEVELS[form.summand]
    return np.asarray(real * LEVELS[form.made] / float(of.out))


def compared(
    runtime: TensorFlow, form: Form, *, flat: bool, trials: int, op: str = "linear"
) -> tuple[Count, Count]:
    count, seen = Count(), Count()
    for seed in range(trials):
        of = layer(form, seed, flat=flat)
        wanted = theirs(runtime, form, of)
        count.add(ours(form, of, wanted.shape, op), wanted, (form, seed))
        if form.made in LEVELS:
            seen.see(in_steps(form, of), *BOUNDS[form.made])
    return count, seen


BIAS, RELU = ("BiasAdd", "Requantize"), ("BiasAdd", "Relu", "Requantize")
SUM = ("BiasAdd", "Sum", "Relu", "Requantize")
CONVOLUTIONS = [
    form
    for data in LEVELS
    for form in (
        Form(data, "qint8", BIAS),
        Form(data, "quint8", RELU),
        Form(data, "quint8", SUM, "quint8"),
        Form(data, "quint8", SUM, "qint8"),
        Form(data, "qint32", ("BiasAdd",)),
        Form(data, "qint32", ("BiasAdd", "Relu")),
        Form(data, "qint8", BIAS, op=DEPTHWISE),
        Form(data, "quint8", RELU, op=DEPTHWISE),
    )
]


@pytest.mark.parametrize("form", CONVOLUTIONS, ids=str)
def test_convolutions(runtime: TensorFlow, form: Form) -> None:
    count, seen = compared(runtime, form, flat=False, trials=12)
    count.holds(profile(NAME).resolve(Query("conv2d")).claim)
    if seen.seen:
        seen.rich()


@pytest.mark.parametrize("summand", LEVELS)
def test_a_sum_with_a_signed_result_aborts_and_is_no_kernel(summand: str) -> None:
    form = Form("quint8", "qint8", SUM, summand)
    runtime = TensorFlow(onednn=True)
    try:
        with pytest.raises(RuntimeError, match="TensorFlow ended: -6"):
            theirs(runtime, form, layer(form, 0, flat=False))
    finally:
        runtime.close()
    chain, storage = ("conv2d", "add", "relu"), {"x": "u8", "w": "i8"}
    claims = [
        profile(NAME).group(chain, Query("conv2d", {**storage, "result": made}))
        for made in ("u8", "i8")
    ]
    assert claims[0] is not None
    assert claims[0].claim == "exact"
    assert claims[1] is None


def test_a_group_of_the_profile_never_has_a_sum_with_a_signed_result() -> None:
    for made in ("u8", "i8"):
        graph = parse(SUMMED.format(made=made), {"w": np.ones((1, 2, 1, 1), np.int8)})
        Group().run(graph, Ledger())
        chains = [[s.op for s in node.stages] for node in graph if node.stages]
        assert (["conv2d", "add", "relu"] in chains) == (made == "u8")


SUMMED = """
graph main as tf-2.21.onednn {{
  %x = input() : 1x2x3x3x!quant.uniform<u8:f32, 0.5>
  %s = input() : 1x1x3x3x!quant.uniform<u8:f32, 0.25>
  %w = constant(@w) : 1x2x1x1x!quant.uniform<i8:f32, 0.5>
  %xd = dequantize(%x) : 1x2x3x3xf32
  %sd = dequantize(%s) : 1x1x3x3xf32
  %wd = dequantize(%w) : 1x2x1x1xf32
  %c = conv2d(%xd, %wd) : 1x1x3x3xf32
  %a = add(%c, %sd) : 1x1x3x3xf32
  %r = relu(%a) : 1x1x3x3xf32
  %y = quantize(%r) : 1x1x3x3x!quant.uniform<{made}:f32, 0.25>
  output(y=%y)
}}
"""


@pytest.mark.parametrize("data", LEVELS)
@pytest.mark.parametrize("made", ["qint8", "quint8"])
def test_convolutions_with_whole_biases(runtime: TensorFlow, data: str, made: str) -> None:
    form = Form(data, made, BIAS if made == "qint8" else RELU, whole_bias=True)
    count, _ = compared(runtime, form, flat=False, trials=12)
    count.holds(profile(NAME).resolve(Query("conv2d")).claim)


PRODUCTS = [
    form
    for data in LEVELS
    for form in (
        Form(data, "qint8", BIAS),
        Form(data, "quint8", RELU),
        Form(data, "quint8", ("BiasAdd", "Relu6", "Requantize")),
        Form(data, "qint8", ("BiasAdd", "LeakyRelu", "Requantize")),
        Form(data, "float", ("BiasAdd", "Dequantize")),
        Form(data, "float", ("BiasAdd", "Relu", "Dequantize")),
    )
]


@pytest.mark.parametrize("op", SLOTS)
@pytest.mark.parametrize("form", PRODUCTS, ids=str)
def test_matrix_products(runtime: TensorFlow, form: Form, op: str) -> None:
    """The same kernel under each name; a process asked twice remembers what it said."""
    count, seen = compared(runtime, form, flat=True, trials=12 if op == "linear" else 4, op=op)
    count.holds(profile(NAME).resolve(Query(op)).claim)
    if seen.seen and op == "linear":
        seen.rich()


ISAS = {"avx2": "AVX2", "avx512": "AVX512_CORE"}
"""What oneDNN may take the processor for, by the name that profiles have for it."""


@pytest.mark.parametrize("isa", ISAS)
def test_processors_without_vnni(monkeypatch: pytest.MonkeyPatch, isa: str) -> None:
    """Pairs of products saturate in 16 bits; of signed data weights are halved before."""
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", ISAS[isa])
    runtime, other = TensorFlow(onednn=True), profile(NAME).on(isa)
    try:
        with override_profile(other):
            for flat, forms in ((False, CONVOLUTIONS), (True, PRODUCTS)):
                for form in forms:
                    count, _ = compared(runtime, form, flat=flat, trials=4)
                    op = "linear" if flat else "conv2d"
                    count.holds(other.resolve(Query(op, {"x": KINDS[form.data], "w": "i8"})).claim)
    finally:
        runtime.close()


CURVES = ("Elu", "Tanh", "Sigmoid", "GeluExact", "GeluApproximate")


@pytest.mark.parametrize("made", ["qint8", "quint8", "float"])
@pytest.mark.parametrize("curve", CURVES)
def test_curves_after_products_are_as_near_as_is_claimed(
    runtime: TensorFlow, curve: str, made: str
) -> None:
    """Of floats before they are rounded: other exponentials than ours, last bits apart."""
    count, chain = Count(), ("linear", STAGES[curve].op)
    for seed in range(12):
        form = Form(
            "quint8" if seed & 1 else "qint8",
            made,
            ("BiasAdd", curve, "Dequantize" if made == "float" else "Requantize"),
        )
        of = layer(form, seed, flat=True)
        if curve in ("Tanh", "Sigmoid"):
            of = replace(of, out=F(1))
        wanted = theirs(runtime, form, of)
        count.add(ours(form, of, wanted.shape), wanted, (form, seed))
    result = "real" if made == "float" else "codes"
    found = profile(NAME).group(chain, Query("linear"), result=result)
    assert found is not None
    if made == "float":
        assert found.claim.startswith("close:")
        assert count.most <= float(found.claim[6:])
    else:
        count.holds(found.claim)
