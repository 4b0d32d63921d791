"""Which real weights and biases onnxruntime makes codes of when it loads a QDQ model.

Networks of one or two layers each, of every kind and rank: with weights and biases that are
constants, follow from constants, are given, are dequantized or quantized by the model itself;
data of every type and grain; activations behind them, results read twice, shown or left real.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

import qir
from qir.inspect.left_float import left_float
from qir.ir.graph import Graph
from qir.ir.node import Node, Value

from .fusion import grouped
from .runtime import optimized
from .test_ort_products import Drawn, codes, differs, middle

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
CHUNK = 60
LAYERS = ("Conv1", "Conv2", "Conv3", "ConvTranspose1", "ConvTranspose2", "ConvTranspose3")
SIZES = {1: (9,), 2: (5, 4), 3: (4, 3, 3)}
WIDE, DEPTH = 4, 4
FOLDED = ("Transpose", "Reshape", "Mul", "Add", "Neg", "Concat", "Identity")
WEIGHTS = (*["real"] * 4, *["folded"] * 3, *["codes"] * 3, "given", "default", "pair", "data")
BIASES = (*["none"] * 3, *["real"] * 4, *["folded"] * 2, "given", "default", "codes", "pair")


@dataclass
class Layers(Drawn):
    """A model whose constants may be given in another's place."""

    opset: int = 17
    defaults: set[str] = field(default_factory=set)

    def proto(self) -> ModelProto:
        made = super().proto()
        made.opset_import[0].version = self.opset
        made.ir_version = 10
        for held in made.graph.initializer:
            if held.name in self.defaults:
                kind = onnx.helper.make_tensor_value_info(held.name, held.data_type, held.dims)
                made.graph.input.append(kind)
        return made

    def given(self, shape: tuple[int, ...]) -> str:
        name = f"in{len(self.inputs)}"
        self.inputs[name] = self.rng.normal(size=shape).astype(np.float32)
        return name

    def folded(self, reals: Array) -> str:
        """A constant that follows from others."""
        how = self.one(*FOLDED)
        if how == "Transpose":
            perm = [int(i) for i in self.rng.permutation(reals.ndim)]
            held = self.constant(np.transpose(reals, np.argsort(perm)))
            return self.op("Transpose", held, perm=perm)
        if how == "Reshape":
            shape = self.constant(reals.shape, "int64")
            return self.op("Reshape", self.constant(reals.reshape(-1, 1)), shape)
        if how == "Concat":
            half = self.constant(reals[:1]), self.constant(reals[1:])
            return self.op("Concat", *half, axis=0) if len(reals) > 1 else self.constant(reals)
        held = self.constant(reals)
        if how in ("Mul", "Add"):
            return self.op(how, held, self.constant(self.rng.uniform(0.5, 2.0)))
        return self.op(how, held)


def data(m: Layers, shape: tuple[int, ...], *, many: bool) -> tuple[str, str, float]:
    """Dequantized codes; their type, and a step of theirs; by `many` scales now and then."""
    kind = m.one("uint8", "uint8", "uint8", "int8", "uint16", "int16")
    kind = kind if m.opset >= 21 or "16" not in kind else "uint8"
    wide = 256.0 if "16" in kind else 1.0
    step, zero = float(np.float32(0.05 / wide)), middle(kind, int(101 * wide))
    name = f"x{len(m.inputs)}"
    m.inputs[name] = codes(m, shape, kind)
    how = m.one(*["plain"] * 6, "one", "axis", "given")
    if how == "axis" and many:
        each = m.constant(m.rng.uniform(0.03, 0.07, shape[1])), m.constant([zero] * shape[1], kind)
        return m.op("DequantizeLinear", name, *each, axis=1), kind, step
    if how == "given":
        m.inputs["step"] = np.asarray(step, np.float32)
        return m.op("DequantizeLinear", name, "step", m.constant(zero, kind)), kind, step
    one = [1] if how == "one" else []
    told = m.numbers(np.full(one, step), np.full(one, zero), kind)
    return m.op("DequantizeLinear", name, *told), kind, step


def weights(m: Layers, shape: tuple[int, ...], axis: int, other: bool) -> tuple[str, Floats]:
    """Weights, and the scales of their codes, which may lie along the `other` axis.

    Codes that are data have one scale but where no kernel takes them: others are not foreseen.
    """
    form, tiny = m.one(*WEIGHTS), np.full((), 0.02, np.float32)
    reals = (m.rng.normal(size=shape) * 0.7 + 0.1).astype(np.float32)
    if form == "folded":
        return m.folded(reals), tiny
    if form == "given":
        return m.given(shape), tiny
    if form in ("real", "default"):
        name = m.constant(reals)
        m.defaults |= {name} if form == "default" else set()
        return name, tiny
    kind, along = m.one("int8", "int8", "uint8"), 1 - axis if other and m.chance(0.3) else axis
    how = m.one("tensor", "tensor", "one", "channel", "channel")
    how = "tensor" if how == "one" and (len(shape) == 2 or shape[1] == 1) else how
    how = how if form != "data" or (axis == 1 and other) else "tensor"
    scale = tiny
    if how != "tensor":
        scale = m.rng.uniform(0.01, 0.03, 1 if how == "one" else shape[along]).astype(np.float32)
    kind = kind if how == "tensor" else "int8"
    zero = np.full(scale.shape, 128 if kind == "uint8" else 0)
    attrs = {"axis": along - len(shape) if m.chance(0.3) else along} if scale.ndim else {}
    if how == "one":
        attrs = {}
    told = m.numbers(scale, zero, kind)
    if form == "pair":
        back = m.op("QuantizeLinear", m.constant(reals), *told, **attrs)
        return m.op("DequantizeLinear", back, *told, **attrs), scale
    held = codes(m, shape, kind)
    if form == "codes":
        return m.op("DequantizeLinear", m.constant(held, kind), *told, **attrs), scale
    name = f"w{len(m.inputs)}"
    m.inputs[name] = held
    return m.op("DequantizeLinear", name, *told, **attrs), scale


def bias(m: Layers, shape: tuple[int, ...], unit: Floats) -> list[str]:
    """Nothing, or what is added."""
    form = m.one(*BIASES)
    reals = (m.rng.normal(size=shape) * 2).astype(np.float32)
    if form == "none":
        return []
    if form == "given":
        return [m.given(shape)]
    if form == "codes":
        whole = m.constant(m.rng.integers(-900, 900, shape), "int32")
        if unit.ndim and shape == unit.shape:
            return [m.op("DequantizeLinear", whole, m.constant(unit), axis=0)]
        return [m.op("DequantizeLinear", whole, m.constant(unit.max()))]
    if form == "pair":
        told = m.numbers(0.05, 0, "int8")
        return [m.op("DequantizeLinear", m.op("QuantizeLinear", m.constant(reals), *told), *told)]
    if form == "folded" and shape:
        return [m.folded(reals)]
    name = m.constant(reals)
    m.defaults |= {name} if form == "default" else set()
    return [name]


def layer(m: Layers) -> tuple[str, str, float]:
    """A layer, its data's type and the size of a step of its sums."""
    name = m.one(*LAYERS, "Gemm", "Gemm", "MatMulAdd")
    if name in ("Gemm", "MatMulAdd"):
        turned = name == "Gemm" and m.chance(0.5)
        shape = (WIDE, DEPTH) if turned else (DEPTH, WIDE)
        x, kind, step = data(m, (6, DEPTH), many=name == "Gemm")
        w, scale = weights(m, shape, 0 if turned else 1, other=False)
        unit = np.float32(step) * scale
        size = [(WIDE,), (WIDE,), (WIDE,), (1,), (), (1, WIDE), (6, WIDE)][m.rng.integers(7)]
        more = bias(m, size, unit)
        if name == "Gemm":
            return m.op("Gemm", x, w, *more, transB=int(turned)), kind, float(unit.max())
        made = m.op("MatMul", x, w)
        return m.op("Add", made, *more) if more else made, kind, float(unit.max())
    op, axes = name[:-1], int(name[-1])
    groups = int(m.one("1", "1", "2", str(DEPTH)))
    inner = DEPTH // groups if op == "Conv" else WIDE // groups
    sizes = (WIDE if op == "Conv" else DEPTH, inner, *(2,) * axes)
    x, kind, step = data(m, (1, DEPTH, *SIZES[axes]), many=True)
    w, scale = weights(m, sizes, int(op != "Conv"), other=op != "Conv")
    unit = np.float32(step) * scale
    return m.op(op, x, w, *bias(m, (WIDE,), unit), group=groups), kind, float(unit.max())


def end(m: Layers, made: str, kind: str, unit: float) -> None:
    """Activations, and what reads the result; some of it is shown."""
    wide = 256 if "16" in kind else 1
    for _ in range(int(m.one("0", "0", "0", "1", "1", "2"))):
        if m.chance(0.06):
            m.outputs.append(made)
        how = m.one("Relu", "Relu", "Clip", "Clip", "Clip given", "LeakyRelu")
        if how == "Clip given":
            made = m.op("Clip", made, m.given(()))
        elif how == "Clip":
            made = m.op("Clip", made, m.constant(0), m.constant(m.one("2", "6", "500")))
        else:
            made = m.op(how, made)
    if m.chance(0.08):
        m.outputs.append(made)
    how = m.one(*["codes"] * 6, "other", "twice", "both", "real")
    if how == "real":
        m.outputs.append(made)
        return
    wanted = kind
    if how == "other":
        wanted, wide = ("int8" if kind != "int8" else "uint8"), 1
    told = m.numbers(np.float32(unit * 29 / wide), middle(wanted, 77 * wide), wanted)
    q = m.op("QuantizeLinear", made, *told)
    m.outputs.append(m.op("DequantizeLinear", q, *told) if m.chance(0.3) else q)
    if how == "twice":
        again = m.numbers(np.float32(unit * 43 / wide), middle(wanted, 90), wanted)
        m.outputs.append(m.op("QuantizeLinear", made, *again))
    if how == "both":
        m.outputs.append(m.op("Abs", made))


def network(seed: int) -> Layers:
    m = Layers(np.random.default_rng(seed))
    m.opset = int(m.one("13", "17", "21", "22"))
    end(m, *layer(m))
    m.outputs = list(dict.fromkeys(m.outputs))
    return m


Kind = tuple[str, str, str]
"""An op and what its weights and its bias are: real, codes, or none; a kernel on codes by name."""
KERNELS = {"QLinearConv": "conv", "QGemm": "gemm", "QLinearMatMul": "matmul"}
KERNELS |= {"MatMulIntegerToFloat": "matmul"}
REALS = {"Conv": "conv", "FusedConv": "conv", "ConvTranspose": "conv_transpose"}
REALS |= {"Gemm": "gemm", "FusedGemm": "gemm", "MatMul": "matmul"}


def made_there(proto: ModelProto) -> Counter[Kind]:
    """The layers of the graph that onnxruntime runs."""
    found: Counter[Kind] = Counter()
    makers = {out: node.op_type for node in proto.graph.node for out in node.output}
    for node in proto.graph.node:
        if node.op_type in KERNELS:
            found[KERNELS[node.op_type], "codes", "kernel"] += 1
        elif node.op_type in REALS:
            w, b = ([*node.input, "", ""])[1:3]
            kinds = ["codes" if makers.get(n) == "DequantizeLinear" else "real" for n in (w, b)]
            found[REALS[node.op_type], kinds[0], kinds[1] if b else "none"] += 1
    return found


def made_here(graph: Graph) -> Counter[Kind]:
    """The layers of the graph that QIR foresees."""
    found: Counter[Kind] = Counter()
    for node in graph:
        head = node.stages[0].op if node.stages else node.op
        base = head.rstrip("123d")
        if base not in REALS.values():
            continue
        if node.stages or _on_codes(node):
            found[base, "codes", "kernel"] += 1
            continue
        slots = ("w", "bias") if base.startswith("conv") else ("b", "c")
        w, b = (node.operands.get(slot) for slot in slots)
        found[base, _told(w), _told(b)] += 1
    return found


def _on_codes(node: Node) -> bool:
    return next(iter(node.operands.values())).type.quant is not None


def _told(value: Value | None) -> str:
    if value is None:
        return "none"
    rounded = [v.node.op for v in value.node.operands.values()]
    return "codes" if value.node.op == "dequantize" or "round" in rounded else "real"


@cache
def report(chunk: int) -> tuple[tuple[str, ...], Counter[Kind]]:
    """What differs, and how many layers of each kind there were."""
    wrong, seen = [], Counter[Kind]()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        m = network(seed)
        proto = m.proto()
        judge, shown = optimized(proto, m.inputs)
        graph = grouped(proto)
        there, here = made_there(shown), made_here(graph)
        seen += there
        kernel = any(kind == "kernel" for _, _, kind in there)
        if kernel and "step" in m.inputs:
            reasons = [left.reason for left in left_float(graph)]
            if not any("not foreseen" in said for said in reasons):
                wrong.append(f"seed {seed}: {reasons}")
            continue
        if there != here:
            wrong.append(f"seed {seed}: {dict(there)} there, {dict(here)} here")
            continue
        mine = qir.run(graph, m.inputs)
        for name, value in judge.items():
            if told := differs(value, np.asarray(mine[name]), integer=kernel):
                wrong.append(f"seed {seed}, {name}: {told}")
    return tuple(wrong), seen


@pytest.mark.parametrize("chunk", range(6))
def test_weights_and_biases_become_codes_where_onnxruntime_makes_codes_of_them(chunk: int) -> None:
    wrong, _ = report(chunk)
    assert not wrong, "\n".join(wrong)
