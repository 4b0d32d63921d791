"""Which products of QDQ models become kernels, all of onnxruntime's optimizations on.

Networks of one product each: with biases of every shape, additions behind it, activations, results
of other types, read twice, shown, or left real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

import qir
from qir.ir.graph import Graph
from tests.differential.fusion import grouped
from tests.differential.runtime import optimized
from tests.numerics.qdq import Nodes

Array = NDArray[np.generic]
KERNELS = ("QLinearConv", "QLinearMatMul", "QGemm", "MatMulIntegerToFloat", "MatMulNBits")
ROWS, DEPTH, WIDE = 6, 12, 4
CHUNK = 60
SHAPES = ((ROWS, DEPTH),) * 4 + ((2, 3, DEPTH), (1, 2, 3, DEPTH), (DEPTH,))


@dataclass
class Drawn(Nodes):
    """A model that is written node by node, and the integers or floats that it is given."""

    rng: np.random.Generator
    inputs: dict[str, Array] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)

    def one(self, *choices: str) -> str:
        return str(self.rng.choice(choices))

    def chance(self, p: float) -> bool:
        return bool(self.rng.random() < p)

    def numbers(self, scale: object, zero: object, kind: str) -> tuple[str, str]:
        return self.constant(scale), self.constant(zero, kind)

    def proto(self) -> ModelProto:
        kind = helper.np_dtype_to_tensor_dtype
        graph = helper.make_graph(
            self.nodes,
            "product",
            [
                helper.make_tensor_value_info(n, kind(v.dtype), v.shape)
                for n, v in self.inputs.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in self.outputs],
            [numpy_helper.from_array(data, name) for name, data in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def random_integers(m: Drawn, shape: tuple[int, ...], kind: str) -> Array:
    ends = np.iinfo(np.dtype(kind))
    return m.rng.integers(ends.min, ends.max + 1, shape).astype(kind)


def middle(kind: str, at: int) -> int:
    return int(np.iinfo(np.dtype(kind)).min) + at


def data(m: Drawn, shape: tuple[int, ...], kind: str, scale: float) -> str:
    """Integers that are given, or made of given floats."""
    told = m.numbers(scale, middle(kind, 101), kind)
    given = random_integers(m, shape, kind)
    name = f"x{len(m.inputs)}"
    if m.chance(0.5):
        m.inputs[name] = given
        return m.op("DequantizeLinear", name, *told)
    floats = (given.astype(np.float64) - middle(kind, 101)) * np.float32(scale)
    m.inputs[name] = floats.astype(np.float32)
    return m.op("DequantizeLinear", m.op("QuantizeLinear", name, *told), *told)


def weights(m: Drawn, shape: tuple[int, ...], scale: Array, axis: int) -> str:
    """Integers, or floats that a pair of the model quantizes; one scale a tensor or a channel."""
    kind = "int8" if scale.ndim or m.chance(0.6) else m.one("uint8", "int8")
    zero = np.zeros(scale.shape, kind) if scale.ndim else np.asarray(middle(kind, 128), kind)
    told = m.numbers(scale, zero, kind)
    attrs = {"axis": axis} if scale.ndim else {}
    held = random_integers(m, shape, kind)
    if m.chance(0.8):
        return m.op("DequantizeLinear", m.constant(held, kind), *told, **attrs)
    along = [-1 if i == axis else 1 for i in range(len(shape))]
    wide = scale.reshape(along) if scale.ndim else scale
    floats = m.constant((held.astype(np.float32) - zero.max()) * wide)
    return m.op("DequantizeLinear", m.op("QuantizeLinear", floats, *told, **attrs), *told, **attrs)


def bias(m: Drawn, form: str, shape: tuple[int, ...], unit: Array) -> str:
    """Floats, or i32 integers in units of the product."""
    if form == "real":
        return m.constant(m.rng.normal(size=shape) * 2)
    whole = m.constant(m.rng.integers(-900, 900, shape), "int32")
    if unit.ndim and shape[-1:] == unit.shape:
        return m.op("DequantizeLinear", whole, m.constant(unit), axis=len(shape) - 1)
    return m.op("DequantizeLinear", whole, m.constant(unit.max()))


def product(m: Drawn) -> tuple[str, str, float]:
    """A product, its data's type and the size of a step of its sums."""
    kind = m.one("uint8", "uint8", "int8")
    step = float(np.float32(0.05))
    scale = np.asarray(0.07, np.float32)
    if m.chance(0.3):
        scale = m.rng.uniform(0.03, 0.07, WIDE).astype(np.float32)
    unit = np.asarray(np.float32(step) * scale)
    op = m.one("MatMul", "Gemm", "Conv", "MatMulAdd")
    form = m.one("real", "codes")
    if op == "Conv":
        x, w = data(m, (1, 3, 4, 5), kind, step), weights(m, (WIDE, 3, 2, 2), scale, 0)
        more = [bias(m, form, (WIDE,), unit)] if m.chance(0.7) else []
        return m.op("Conv", x, w, *more), kind, float(unit.max())
    shape = SHAPES[int(m.rng.integers(len(SHAPES)))] if op != "Gemm" else SHAPES[0]
    both = m.chance(0.1)
    unit = np.asarray(np.float32(step) * np.float32(0.07)) if both else unit
    x, like = data(m, shape, kind, step), (DEPTH, WIDE)
    w = data(m, like, kind, 0.07) if both else weights(m, like, scale, 1)
    sizes = [(WIDE,)] * 3 + [(1, WIDE), (), (1,)]
    sizes += [(ROWS, WIDE), (ROWS, 1)] if len(shape) == 2 else []
    size = sizes[int(m.rng.integers(len(sizes)))]
    if op == "Gemm":
        more = [bias(m, form, size, unit)] if m.chance(0.7) else []
        gains = {} if m.chance(0.8) else {m.one("alpha", "beta"): 0.5}
        return m.op("Gemm", x, w, *more, **gains), kind, float(unit.max())
    made = m.op("MatMul", x, w)
    if op == "MatMulAdd":
        if m.chance(0.1):
            m.outputs.append(made)
        pair = [made, bias(m, form, size, unit)]
        made = m.op("Add", *(pair if m.chance(0.7) else pair[::-1]))
    return made, kind, float(unit.max())


def end(m: Drawn, made: str, kind: str, unit: float) -> None:
    """Activations, and what reads the result; some of it is shown."""
    zero = middle(kind, 0 if m.chance(0.5) else 77)
    tails = int(m.rng.choice([0, 0, 1, 1, 2]))
    if m.nodes[-1].op_type == "Gemm" and m.chance(0.15):
        made, tails = m.op("Transpose", made, perm=[1, 0]), 0
    for _ in range(tails):
        if m.chance(0.08):
            m.outputs.append(made)
        if m.chance(0.7):
            made = m.op("Relu", made)
        else:
            made = m.op("Clip", made, m.constant(0), m.constant(m.one("2", "6", "500")))
    if m.chance(0.1):
        m.outputs.append(made)
    how = m.one(*["codes"] * 5, "other", "twice", "both", "real", "read")
    if how in ("real", "read"):
        m.outputs.append(made if how == "real" else m.op("Neg", made))
        return
    wanted = "int8" if (kind == "uint8") is (how == "other") else "uint8"
    zero = zero if wanted == kind else middle(wanted, 77)
    told = m.numbers(np.float32(unit * 90), zero, wanted)
    q = m.op("QuantizeLinear", made, *told)
    m.outputs.append(m.op("DequantizeLinear", q, *told) if m.chance(0.5) else q)
    if how == "twice":
        again = m.numbers(np.float32(unit * 110), middle(wanted, 90), wanted)
        m.outputs.append(m.op("QuantizeLinear", made, *again))
    if how == "both":
        m.outputs.append(m.op("Abs", made))


def network(seed: int) -> Drawn:
    m = Drawn(np.random.default_rng(seed))
    end(m, *product(m))
    m.outputs = list(dict.fromkeys(m.outputs))
    return m


def repeated(seed: int) -> Drawn:
    """A product whose integers are dequantized and quantized again by the same numbers."""
    m = Drawn(np.random.default_rng(seed))
    made, kind, unit = product(m)
    kind = kind if m.chance(0.7) else "int8"
    told = m.numbers(np.float32(unit * 90), middle(kind, 77), kind)
    first = m.op("QuantizeLinear", made, *told)
    last = m.op("QuantizeLinear", m.op("DequantizeLinear", first, *told), *told)
    how = m.one("shown", "shown", "real", "both", "twice", "first")
    m.outputs += [] if how == "real" else [last]
    if how in ("real", "both", "twice"):
        m.outputs.append(m.op("DequantizeLinear", last, *told))
    if how == "twice":
        m.outputs.append(m.op("Neg", m.op("DequantizeLinear", last, *told)))
    if how == "first":
        m.outputs.append(m.op("Neg", m.op("DequantizeLinear", first, *told)))
    m.outputs = list(dict.fromkeys(m.outputs))
    return m


def kernels_of(proto: ModelProto) -> Counter[str]:
    return Counter(n.op_type for n in proto.graph.node if n.op_type in KERNELS)


def kernels_predicted(graph: Graph) -> Counter[str]:
    """What onnxruntime would call them."""
    found: Counter[str] = Counter()
    for node in graph:
        head = node.stages[0].op if node.stages else node.op
        given = next(iter(node.operands.values()), None)
        if head not in ("conv2d", "matmul", "gemm") or given is None or not given.type.quant:
            continue
        real = node.result.type.quant is None
        product = "MatMulIntegerToFloat" if real else "QLinearMatMul"
        found[{"conv2d": "QLinearConv", "gemm": "QGemm"}.get(head, product)] += 1
    return found


@cache
def report(
    chunk: int, make: Callable[[int], Drawn] = network
) -> tuple[tuple[str, ...], Counter[str]]:
    """What differs, and how many networks had which kernel, or none."""
    wrong, seen = [], Counter[str]()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        m = make(seed)
        proto = m.proto()
        judge, shown = optimized(proto, m.inputs)
        graph = grouped(proto)
        made, predicted = kernels_of(shown), kernels_predicted(graph)
        seen.update(made.keys() or ["none"])
        if made != predicted:
            wrong.append(f"seed {seed}: {dict(made)} there, {dict(predicted)} here")
            continue
        mine = qir.run(graph, m.inputs)
        for name, value in judge.items():
            if told := differs(value, np.asarray(mine[name]), integer=bool(made)):
                wrong.append(f"seed {seed}, {name}: {told}")
    return tuple(wrong), seen


def differs(there: Array, here: Array, *, integer: bool) -> str:
    """What differs: with a kernel on integers, to the byte; without, more than sums in float32
    may."""
    if there.dtype != here.dtype or there.shape != here.shape:
        return f"{there.dtype} {there.shape} there, {here.dtype} {here.shape} here"
    if integer:
        off = int((there != here).sum())
        return f"{off} of {there.size} differ" if off else ""
    if there.dtype.kind == "f":
        apart = ~np.isclose(there, here, rtol=1e-5, atol=2e-5)
    else:
        apart = there != here
    return f"{apart.sum()} of {there.size} differ" if apart.sum() > 1 else ""


def agrees(chunk: int) -> None:
    wrong, _ = report(chunk)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("chunk", range(8))
def test_products_become_the_kernels_that_onnxruntime_makes_of_them(chunk: int) -> None:
    agrees(chunk)


@pytest.mark.parametrize("chunk", range(3))
def test_a_pair_that_makes_the_same_codes_again_is_dropped_before_codes_become_unsigned(
    chunk: int,
) -> None:
    wrong, seen = report(chunk, repeated)
    assert not wrong, "\n".join(wrong)
    assert all(seen[name] >= 4 for name in ("QGemm", "QLinearMatMul", "QLinearConv", "none")), seen


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(8, 40))
def test_two_thousand_more_products_do(chunk: int) -> None:
    agrees(chunk)


def test_every_kernel_and_none_is_among_them() -> None:
    seen: Counter[str] = Counter()
    for chunk in range(8):
        seen += report(chunk)[1]
    assert all(seen[name] >= 10 for name in (*KERNELS[:4], "none")), seen
