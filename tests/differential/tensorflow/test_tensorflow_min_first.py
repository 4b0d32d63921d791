"""_QuantizedMatMul on data and results of mode MIN_FIRST, whose types have an offset."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from qir.ir.types import QuantType
from qir.profiles import Query, profile
from tests.differential.predictions import Array, Count, F, Held, predicted, ranged
from tests.differential.tensorflow.kernels import (
    HAS_VNNI,
    KINDS,
    Asked,
    Kind,
    Kinds,
    TensorFlow,
    random_integers,
)

from .test_tensorflow_codes import offset
from .test_tensorflow_products import LEVELS, SLOTS, STAGES

pytestmark = pytest.mark.skipif(not HAS_VNNI, reason="the profile speaks of processors with VNNI")
NAME = "tf-2.21.onednn.min_first"
Ends = tuple[float, float]


def kind_of(storage: str, ends: Ends, *, first: bool) -> QuantType:
    """A type by its range, in mode MIN_FIRST or SCALED."""
    if first:
        return offset(storage, *ends, first=True)
    return ranged(KINDS[storage], F(ends[1]) / F(LEVELS[storage]), *ends, float(LEVELS[storage]))


def theirs(
    runtime: TensorFlow,
    given: tuple[tuple[Array, str, Ends], tuple[Array, Array], Array],
    made: tuple[str, Ends],
    modes: tuple[str, str],
    stages: tuple[str, ...],
) -> Array:
    (x, data, x_ends), (w, reach), bias = given
    asked = Asked()
    inputs = [asked.fed(x, data), asked.constant(w.T.copy(), "qint8"), asked.constant(bias)]
    one = reach if reach.size > 1 else reach[0]
    numbers: list[Any] = [*x_ends, -one, one, *(made[1] if made[0] != "float" else ())]
    inputs += [asked.constant(np.asarray(v, F)) for v in numbers]
    outputs = (made[0], "float", "float")[: 1 if made[0] == "float" else 3]
    node = asked.node(
        "_QuantizedMatMul",
        inputs,
        T1=Kind(data),
        T2=Kind("qint8"),
        Tbias=Kind("float"),
        U=Kind("float"),
        Tout=Kind(made[0]),
        is_weight_const=True,
        is_bias_const=True,
        leakyrelu_alpha=0.25,
        fused_ops=stages,
        input_quant_mode=modes[0],
        output_quant_mode=modes[1],
        Thost_inputs=Kinds((data, "qint8", "float", *("float",) * len(numbers))),
        Tdevice_inputs=Kinds(()),
        Thost_outputs=Kinds(outputs),
        Tdevice_outputs=Kinds(()),
    )
    return runtime.run(asked, f"{node}:0")[0]


def compared(
    runtime: TensorFlow, data: str, made: str, modes: tuple[str, str], stages: tuple[str, ...]
) -> tuple[Count, Count]:
    count, seen = Count(), Count()
    for seed in range(16):
        rng = np.random.default_rng(seed)
        first, even = modes[0] == "MIN_FIRST", seed % 4 != 3
        deep, many = int(rng.integers(1, 71)), int(rng.integers(1, 20))
        w = rng.integers(-4 if even else -127, 5 if even else 128, (many, deep)).astype(np.int8)
        x = random_integers(rng, data, int(rng.integers(1, 71)), deep)
        x = np.asarray(x % (4 if first else 24) if even else x)
        reach = rng.uniform(0.2, 3, many if seed & 1 else 1).astype(F)
        high = float(F(rng.uniform(0.5, 9)))
        low = float(F(-rng.uniform(0, 3))) if first else -high if data == "qint8" else 0.0
        if even:  # steps that are powers of two, of the result two sums each: ties are many
            reach = (127.0 * 2.0 ** -rng.integers(3, 5, reach.shape)).astype(F)
            low, high = (-17 / 8, 238 / 8) if first else (low and -127 / 8, LEVELS[data] / 8)
        step = (high - low) / 255 if first else high / LEVELS[data]
        real = (x.astype(np.float64) * step + (low if first else 0)) @ (w.T * reach / 127.0)
        bias = (rng.normal(size=many) * real.std() / 3).astype(F)
        bias = np.rint(bias * 128) / F(128) if even else bias
        real = real + bias
        end = float(F(max(float(np.quantile(real, 0.9)), 0.01 * high)))
        start = float(F(min(float(np.quantile(real, 0.1)), 0.0)))
        if even:  # a range of 255 such steps, zero inside
            start, end = -96 / 64, 159 / 64 if modes[1] == "MIN_FIRST" else LEVELS.get(made, 1) / 64
        ends = (start, end) if modes[1] == "MIN_FIRST" else (-end if made == "qint8" else 0.0, end)
        given = (x, data, (low, high)), (w, reach), bias
        wanted = theirs(runtime, given, (made, ends), modes, stages)
        scales = reach / F(127)
        axis = 0 if scales.size > 1 else None
        weights = ranged("i8", scales if axis == 0 else scales[0], -reach, reach, 127, axis=axis)
        bag = (
            Held(x, kind_of(data, (low, high), first=first)),
            Held(w, weights),
            Held(bias),
        )
        op = ("linear", "matmul", "gemm")[seed % 3]
        named = dict(zip(SLOTS[op], bag, strict=True))
        to = None if made == "float" else kind_of(made, ends, first=modes[1] == "MIN_FIRST")
        attrs = {} if op == "linear" else {"trans_b": True}
        then = [STAGES[s] for s in stages if s in STAGES]
        found = predicted(NAME, op, named, to, wanted.shape, attrs, then)
        count.add(found, wanted, (op, seed))
        if modes[1] == "MIN_FIRST":
            seen.see((real - start) * 255 / (end - start), 0, 255)
        elif made != "float":
            seen.see(real * LEVELS[made] / end, -127 if made == "qint8" else 0, LEVELS[made])
    return count, seen


FORMS = [
    ("quint8", "float", ("MIN_FIRST", "SCALED"), ("BiasAdd", "Dequantize")),
    ("quint8", "float", ("MIN_FIRST", "SCALED"), ("BiasAdd", "Relu", "Dequantize")),
    ("quint8", "quint8", ("MIN_FIRST", "SCALED"), ("BiasAdd", "Relu", "Requantize")),
    ("quint8", "qint8", ("MIN_FIRST", "SCALED"), ("BiasAdd", "Requantize")),
    ("quint8", "quint8", ("MIN_FIRST", "MIN_FIRST"), ("BiasAdd", "Requantize")),
    ("quint8", "quint8", ("MIN_FIRST", "MIN_FIRST"), ("BiasAdd", "LeakyRelu", "Requantize")),
    ("quint8", "quint8", ("SCALED", "MIN_FIRST"), ("BiasAdd", "Requantize")),
    ("qint8", "quint8", ("SCALED", "MIN_FIRST"), ("BiasAdd", "Requantize")),
]


@pytest.mark.parametrize(("data", "made", "modes", "stages"), FORMS, ids=str)
def test_matrix_products(
    runtime: TensorFlow, data: str, made: str, modes: tuple[str, str], stages: tuple[str, ...]
) -> None:
    count, seen = compared(runtime, data, made, modes, stages)
    for op in SLOTS:
        count.holds(profile(NAME).resolve(Query(op)).claim)
    if made != "float":
        seen.rich()
