"""Which real weights and biases onnxruntime makes integers of when it loads a QDQ model.

Networks of one or two layers each, of every kind and rank: with weights and biases that are
constants, follow from constants, are given, are dequantized or quantized by the model itself;
data of every type and grain; activations behind them, results read twice, shown or left real.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto

import qir
from qir.inspect.left_float import ops_left_float
from qir.ir.graph import Graph
from qir.ir.node import Node, Value
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from tests.cli import command
from tests.differential.comparison import read
from tests.differential.fusion import grouped
from tests.differential.runtime import optimized
from tests.installed import OPTIMIZED

from .test_ort_products import Drawn, differs, middle, random_integers

Array = NDArray[np.generic]
Floats = NDArray[np.float32]
CHUNK, SEED = 60, 20261122
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

    def folded(self, floats: Array) -> str:
        """A constant that follows from others."""
        how = self.one(*FOLDED)
        if how == "Transpose":
            perm = [int(i) for i in self.rng.permutation(floats.ndim)]
            held = self.constant(np.transpose(floats, np.argsort(perm)))
            return self.op("Transpose", held, perm=perm)
        if how == "Reshape":
            shape = self.constant(floats.shape, "int64")
            return self.op("Reshape", self.constant(floats.reshape(-1, 1)), shape)
        if how == "Concat":
            half = self.constant(floats[:1]), self.constant(floats[1:])
            return self.op("Concat", *half, axis=0) if len(floats) > 1 else self.constant(floats)
        held = self.constant(floats)
        if how in ("Mul", "Add"):
            return self.op(how, held, self.constant(self.rng.uniform(0.5, 2.0)))
        return self.op(how, held)


def data(m: Layers, shape: tuple[int, ...], *, many: bool) -> tuple[str, str, float]:
    """Dequantized integers; their type, and a step of theirs.

    With `many`, now and then by a list of one scale or of one a channel: onnxruntime's kernels fail
    on the latter, and what it makes of the former beside dequantized weights is not predicted.
    """
    kind = m.one("uint8", "uint8", "uint8", "int8", "uint16", "int16")
    kind = kind if m.opset >= 21 or "16" not in kind else "uint8"
    wide = 256.0 if "16" in kind else 1.0
    step, zero = float(np.float32(0.05 / wide)), middle(kind, int(101 * wide))
    name = "x0"
    m.inputs[name] = random_integers(m, shape, kind)
    how = m.one(*["plain"] * 6, "given", *["one", "axis"] * many)
    if how == "axis":
        each = m.constant(m.rng.uniform(0.03, 0.07, shape[1])), m.constant([zero] * shape[1], kind)
        return m.op("DequantizeLinear", name, *each, axis=1), kind, step
    if how == "given":
        m.inputs["step"] = np.asarray(step, np.float32)
        return m.op("DequantizeLinear", name, "step", m.constant(zero, kind)), kind, step
    one = [1] if how == "one" else []
    told = m.numbers(np.full(one, step), np.full(one, zero), kind)
    return m.op("DequantizeLinear", name, *told), kind, step


def weights(m: Layers, shape: tuple[int, ...], axis: int, other: bool) -> tuple[str, Floats]:
    """Weights, and the scales of their integers, which may lie along the `other` axis.

    Integers that are data have one scale but where no kernel takes them: others are not predicted.
    """
    form, tiny = m.one(*WEIGHTS), np.full((), 0.02, np.float32)
    floats = (m.rng.normal(size=shape) * 0.7 + 0.1).astype(np.float32)
    if form == "folded":
        return m.folded(floats), tiny
    if form == "given":
        return m.given(shape), tiny
    if form in ("real", "default"):
        name = m.constant(floats)
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
        back = m.op("QuantizeLinear", m.constant(floats), *told, **attrs)
        return m.op("DequantizeLinear", back, *told, **attrs), scale
    held = random_integers(m, shape, kind)
    if form == "codes":
        return m.op("DequantizeLinear", m.constant(held, kind), *told, **attrs), scale
    name = f"w{len(m.inputs)}"
    m.inputs[name] = held
    return m.op("DequantizeLinear", name, *told, **attrs), scale


def bias(m: Layers, shape: tuple[int, ...], unit: Floats) -> list[str]:
    """Nothing, or what is added."""
    form = m.one(*BIASES)
    floats = (m.rng.normal(size=shape) * 2).astype(np.float32)
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
        return [m.op("DequantizeLinear", m.op("QuantizeLinear", m.constant(floats), *told), *told)]
    if form == "folded" and shape:
        return [m.folded(floats)]
    name = m.constant(floats)
    m.defaults |= {name} if form == "default" else set()
    return [name]


def _constant(m: Layers, w: str) -> bool:
    """Whether onnxruntime takes weights for real constants."""
    return not w.startswith("DequantizeLinear") and w not in m.defaults


EVERY = (*LAYERS, "Gemm", "Gemm", "MatMulAdd")


def layer(
    m: Layers, names: tuple[str, ...] = EVERY, *, pads: float = 0.0
) -> tuple[str, str, float]:
    """A layer, now and then behind pads, its data's type and the size of a step of its sums."""
    name = m.one(*names)
    if name in ("Gemm", "MatMulAdd"):
        turned = name == "Gemm" and m.chance(0.5)
        shape = (WIDE, DEPTH) if turned else (DEPTH, WIDE)
        w, scale = weights(m, shape, 0 if turned else 1, other=False)
        x, kind, step = data(m, (6, DEPTH), many=name == "Gemm" and _constant(m, w))
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
    w, scale = weights(m, sizes, int(op != "Conv"), other=op != "Conv")
    x, kind, step = data(m, (1, DEPTH, *SIZES[axes]), many=_constant(m, w))
    x = around(m, x) if m.chance(pads) else x
    unit = np.float32(step) * scale
    return m.op(op, x, w, *bias(m, (WIDE,), unit), group=groups), kind, float(unit.max())


def around(m: Layers, x: str) -> str:
    """Zeros around images, or what is no pads of a convolution."""
    rank = len(m.inputs["x0"].shape)
    pads = np.zeros((2, rank), np.int64)
    pads[:, 2:] = m.rng.integers(0, 3, (2, rank - 2))
    how = m.one(*["plain"] * 5, "reflect", "one", "channel", "less", "shown")
    if how == "channel":
        pads[:, 1], pads[:, 2:] = (1, -1), 0
    if how == "less":
        pads[0, 2] = -1
    more = [m.constant(float(how == "one"))] if how in ("one", "plain") else []
    mode = how if how == "reflect" else "constant"
    made = m.op("Pad", x, m.constant(pads.reshape(-1), "int64"), *more, mode=mode)
    m.outputs += [made] if how == "shown" else []
    return made


def behind(m: Layers, made: str) -> str:
    """A product, a sum or a normalization by constants, of which one may be given."""
    how, rank = m.one("Mul", "Add", "BatchNormalization"), len(m.inputs["x0"].shape)
    if how == "BatchNormalization":
        numbers = [m.constant(m.rng.uniform(0.5, 1.5, WIDE)) for _ in range(4)]
        m.defaults |= {numbers[2]} if m.chance(0.05) else set()
        return m.op(how, made, *numbers, epsilon=1e-3)
    ones = (1,) * (rank - 2)
    sizes = [(WIDE, *ones)] * 3 + [(1, WIDE, *ones), (), (1,), (1, *ones)]
    other = m.constant(m.rng.uniform(0.5, 1.5, sizes[m.rng.integers(len(sizes))]))
    m.defaults |= {other} if m.chance(0.05) else set()
    return m.op(how, other, made) if how == "Add" and m.chance(0.1) else m.op(how, made, other)


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
    made, kind, unit = layer(m)
    node = m.nodes[-1]
    end(m, made, kind, unit)
    if node.op_type in ("Conv", "ConvTranspose", "Gemm") and m.chance(0.2):
        turned = {a.name: a.i for a in node.attribute}
        again = m.op(node.op_type, *node.input[:2], m.constant(m.rng.normal(size=WIDE)), **turned)
        end(m, again, kind, unit)
    m.outputs = list(dict.fromkeys(m.outputs))
    return m


def joined(seed: int) -> Layers:
    """A convolution and what is taken into its weights."""
    m = Layers(np.random.default_rng(seed))
    m.opset = int(m.one("13", "17", "21", "22"))
    made, kind, unit = layer(m, LAYERS, pads=0.25)
    for _ in range(int(m.one("1", "1", "2"))):
        if m.chance(0.06):
            m.outputs.append(made)
        made = behind(m, made)
    end(m, made, kind, unit)
    m.outputs = list(dict.fromkeys(m.outputs))
    return m


Kind = tuple[str, str, str]
"""An op and what its weights and its bias are: real, integers, or none; a kernel on integers by
name."""
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
        elif node.op_type == "MatMulNBits":  # a layer of integers, of real data that are rounded
            b = ([*node.input, "", "", ""])[5]
            bias = "codes" if makers.get(b) == "DequantizeLinear" else "real"
            found["gemm", "codes", bias if b else "none"] += 1
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
        if node.stages or _reads_quantized(node):
            found[base, "codes", "kernel"] += 1
            continue
        slots = ("w", "bias") if base.startswith("conv") else ("b", "c")
        w, b = (node.operands.get(slot) for slot in slots)
        base = "gemm" if base == "matmul" and _few_bits(node.operands["a"]) else base
        found[base, _told(w), _told(b)] += 1
    return found


def _few_bits(data: Value) -> bool:
    """Whether data are rounded: of MatMulNBits nothing says which product it was."""
    node = data.node
    while node.op in ("slice", "reshape", "mul"):
        node = next(iter(node.operands.values())).node
    return node.op == "round"


def _reads_quantized(node: Node) -> bool:
    return next(iter(node.operands.values())).type.quant is not None


def _told(value: Value | None) -> str:
    if value is None:
        return "none"
    rounded = [v.node.op for v in value.node.operands.values()]
    return "codes" if value.node.op == "dequantize" or "round" in rounded else "real"


def apart(there: Array, here: Array, *, integer: bool) -> str:
    """What differs; of integers of 16 bits that stand on sums in float32 few may be a little
    off."""
    if integer or there.dtype.kind == "f" or there.dtype.itemsize == 1:
        return differs(there, here, integer=integer)
    off = np.abs(there.astype(np.int64) - here.astype(np.int64))
    few = off.max(initial=0) < 5 and np.count_nonzero(off) <= off.size / 10
    return "" if few else f"{np.count_nonzero(off)} of {off.size} differ, by {off.max()} at most"


def _coded(found: Counter[Kind]) -> Counter[Kind]:
    """Layers with integers: of those in float32 onnxruntime makes others, as of products by
    rows."""
    return Counter({kind: n for kind, n in found.items() if "codes" in kind or "kernel" in kind})


@cache
def report(
    chunk: int, make: Callable[[int], Layers] = network
) -> tuple[tuple[str, ...], Counter[Kind]]:
    """What differs, and how many layers of each kind there were."""
    wrong, seen = [], Counter[Kind]()
    for seed in range(chunk * CHUNK, (chunk + 1) * CHUNK):
        m = make(seed)
        proto = m.proto()
        judge, shown = optimized(proto, m.inputs)
        graph = grouped(proto)
        there, here = _coded(made_there(shown)), _coded(made_here(graph))
        seen += made_there(shown)
        kernels = [kind == "kernel" for _, _, kind in made_there(shown)]
        if any(kernels) and "step" in m.inputs:
            reasons = [left.reason for left in ops_left_float(graph)]
            if not any("not predicted" in said for said in reasons):
                wrong.append(f"seed {seed}: {reasons}")
            continue
        if there != here:
            wrong.append(f"seed {seed}: {dict(there)} there, {dict(here)} here")
            continue
        mine = qir.run(graph, m.inputs)
        for name, value in judge.items():
            if told := apart(value, np.asarray(mine[name]), integer=all(kernels)):
                wrong.append(f"seed {seed}, {name}: {told}")
    return tuple(wrong), seen


def agrees(chunk: int, make: Callable[[int], Layers] = network) -> None:
    wrong, _ = report(chunk, make)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("chunk", range(6))
def test_weights_and_biases_become_codes_where_onnxruntime_makes_codes_of_them(chunk: int) -> None:
    agrees(chunk)


@pytest.mark.parametrize("chunk", range(3))
def test_what_stands_behind_real_weights_is_taken_into_them_first(chunk: int) -> None:
    agrees(chunk, joined)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(6, 40))
def test_four_thousand_more_networks_do(chunk: int) -> None:
    agrees(chunk)
    agrees(chunk, joined)


def test_every_kind_of_layer_is_among_them() -> None:
    seen: Counter[Kind] = Counter()
    for chunk in range(6):
        seen += report(chunk)[1]
    kinds = ("codes", "real")
    rare = [(op, w) for op in ("conv", "conv_transpose", "gemm") for w in kinds]
    rare = [(op, w) for op, w in rare if any(seen[op, w, b] < 3 for b in (*kinds, "none"))]
    assert not rare, seen
    assert all(seen[op, "codes", "kernel"] >= 10 for op in ("conv", "gemm")), seen


def odd(op: str, weight: float, bias: list[float]) -> Layers:
    """A layer whose weights or biases are so small or large that integers have no place for
    them."""
    m = Layers(np.random.default_rng(SEED))
    shape, like = ((6, DEPTH), (DEPTH, WIDE)) if op == "Gemm" else ((1, DEPTH, 5), (4, 4, 2))
    m.inputs["x0"] = random_integers(m, shape, "uint8")
    x = m.op("DequantizeLinear", "x0", *m.numbers(0.05, 101, "uint8"))
    made = m.op(op, x, m.constant(m.rng.normal(size=like) * weight), m.constant(bias))
    m.outputs.append(m.op("QuantizeLinear", made, *m.numbers(0.7, 77, "uint8")))
    return m


@pytest.mark.parametrize("op", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("weight", [0.0, 1e-40, 1e-37, 1.0])
def test_weights_without_a_scale_and_biases_beyond_32_bits_are_those_of_onnxruntime(
    op: str, weight: float
) -> None:
    """A range of zero has the scale 1, and a bias beyond 32 bits becomes the least of them."""
    for bias in ([1.0, -1.0, 0.0, 3.0], [1e9, -1e9, 3e38, 1.0], [np.inf, -np.inf, 2.0, 1e7]):
        m = odd(op, weight, bias)
        proto = m.proto()
        judge, _ = optimized(proto, m.inputs)
        mine = qir.run(grouped(proto), m.inputs)
        assert all(np.array_equal(judge[name], mine[name]) for name in judge), f"{op} {bias}"


def said(m: Layers) -> list[str]:
    """What the ledger says of a model's grouping that nobody verified."""
    ledger, graph = Ledger(), read(m.proto())
    Group(profile=OPTIMIZED).run(graph, ledger)
    return [entry.reason for entry in ledger if entry.change is Change.UNVERIFIED]


def test_what_is_not_predicted_is_told(tmp_path: Path) -> None:
    assert said(odd("Conv", np.nan, [1.0] * 4)) == [
        "some of its weights are no numbers: not predicted"
    ]
    assert said(odd("Gemm", 1.0, [np.nan] * 4)) == [
        "some of its biases are no numbers: not predicted"
    ]
    m = odd("Conv", 1.0, [1.0] * 4)
    grown = m.op("Exp", m.nodes[1].input[1])
    m.nodes.insert(0, m.nodes.pop())
    next(n for n in m.nodes if n.op_type == "Conv").input[1] = grown
    doubt = "the runtime's exp of constants may differ in the last bit"
    assert said(m) == [doubt]
    given, made = tmp_path / "model.onnx", tmp_path / "made.qir"
    given.write_bytes(m.proto().SerializeToString())
    shown = command.qir("group", given, "--as", OPTIMIZED, "-o", made)
    assert doubt in " ".join(shown.out.split()), shown
