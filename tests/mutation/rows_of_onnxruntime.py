"""Models of one op each between integers, for every row of onnxruntime's profile: of each storage,
with activations that cut and such that do not, with other maps, biases and gains."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from tests.numerics.qdq import Nodes

Array = NDArray[np.generic]
KINDS = {
    "u8": TensorProto.UINT8,
    "i8": TensorProto.INT8,
    "u16": TensorProto.UINT16,
    "i16": TensorProto.INT16,
    "u4": TensorProto.UINT4,
    "i4": TensorProto.INT4,
    "i32": TensorProto.INT32,
}
_LEAST = {"u8": 0, "i8": -128, "u16": 0, "i16": -32768, "u4": 0, "i4": -8, "i32": 0}
_MOST = {"u8": 255, "i8": 127, "u16": 65535, "i16": 32767, "u4": 15, "i4": 7, "i32": 0}
_OLD, _NEW = 17, 21
"""The opset of integers of 8 bits alone, and of others."""
ACTIVATIONS = ("relu", "relu_cuts", "clip", "clip_cuts")
"""Activations, and whether the integers of the result have room for what they cut."""


@dataclass(frozen=True)
class Case:
    """What a model is made of."""

    op: str
    x: str = "u8"
    """The storage of what it reads, of its second operand or weights, and of its result."""
    w: str = ""
    y: str = ""
    tail: str = ""
    bias: str = ""
    gain: float = 1.0
    moved: bool = False
    """Whether the result has another map than the data."""
    behind: str = ""
    """What stands behind the op, before the quantize, or beside it."""
    stacked: bool = False
    """Whether the weights are two matrices with a scale for each column."""

    def __str__(self) -> str:
        said = [self.op, self.x, *[f"by {self.w}"] * bool(self.w), *[f"to {self.y}"] * bool(self.y)]
        said += [self.tail, self.bias, *["moved"] * self.moved]
        said += [f"then {self.behind}"] * bool(self.behind)
        said += [f"gain {self.gain}"] * (self.gain != 1)
        said += ["stacked"] * self.stacked
        return " ".join(filter(None, said))


@dataclass(kw_only=True)
class Written(Nodes):
    """A model while it is written."""

    case: Case
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(5))
    inputs: dict[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    held: list[TensorProto] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    """The tensors that a kernel on integers makes, or not."""

    def integers(self, kind: str, data: object) -> str:
        """A constant of integers, those of four bits among them."""
        name = f"k{len(self.held)}"
        values = np.asarray(data)
        made = helper.make_tensor(name, KINDS[kind], values.shape, values.ravel().tolist())
        self.held.append(made)
        return name

    def told(self, kind: str, scale: float, zero: int | None = None) -> tuple[str, str]:
        """A scale and a zero point; the latter a little above the middle unless it is given."""
        middle = (_LEAST[kind] + _MOST[kind]) // 2 + (0 if kind == "i32" else 1)
        zeros = middle if zero is None else zero
        return self.constant(scale), self.integers(kind, zeros)

    def data(self, kind: str, *shape: int, scale: float = 0.05) -> str:
        """What is given as integers, those of four bits made of others, dequantized."""
        name = f"x{len(self.inputs)}"
        told, narrow = self.told(kind, scale), kind.endswith("4")
        self.inputs[name] = "u8" if narrow else kind, shape
        if narrow:
            made = self.op("DequantizeLinear", name, *self.told("u8", scale))
            name = self.op("QuantizeLinear", made, *told)
        return self.op("DequantizeLinear", name, *told)

    def weights(self, kind: str, *shape: int) -> str:
        low, high = max(_LEAST[kind], -100), min(_MOST[kind], 100)
        held = self.integers(kind, self.rng.integers(low, high + 1, shape))
        return self.op("DequantizeLinear", held, *self.told(kind, 0.05, 0))

    def whole(self, *numbers: int) -> str:
        return self.constant(list(numbers), "int64")

    def proto(self) -> ModelProto:
        kinds = {self.case.x, self.case.w or self.case.x, self.case.y or self.case.x}
        opset = _OLD if kinds <= {"u8", "i8", "real"} else _NEW
        graph = helper.make_graph(
            self.nodes,
            "row",
            [helper.make_tensor_value_info(n, KINDS[k], s) for n, (k, s) in self.inputs.items()],
            [helper.make_empty_tensor_value_info(name) for name in self.outputs],
            [*self.held, *(numpy_helper.from_array(d, n) for n, d in self.constants.items())],
        )
        ids = [helper.make_opsetid("", opset)]
        return helper.make_model(graph, opset_imports=ids, ir_version=10)

    def feeds(self) -> dict[str, Array]:
        """Integers from end to end."""
        kinds = {"u8": "uint8", "i8": "int8", "u16": "uint16", "i16": "int16"}
        return {
            name: self.rng.integers(_LEAST[kind], _MOST[kind] + 1, shape).astype(kinds[kind])
            for name, (kind, shape) in self.inputs.items()
        }


def _bias(m: Written, *shape: int) -> list[str]:
    """No bias, or one of floats, or of integers in units of the product or in others."""
    how = m.case.bias
    if not how:
        return []
    if how.startswith("real"):
        shape = (1, *shape) if how == "real_matrix" else shape
        return [m.constant(m.rng.normal(size=shape))]
    if how == "u8":
        return [m.weights("u8", *shape)]
    scale = float(np.float32(0.05) * np.float32(0.05)) * (1.5 if how == "other_unit" else 1)
    held = m.integers("i32", m.rng.integers(-900, 900, shape))
    return [m.op("DequantizeLinear", held, m.constant(scale))]


def _conv(axes: int) -> Callable[[Written], str]:
    def made(m: Written) -> str:
        x = m.data(m.case.x, 1, 3, *(5,) * axes)
        w = m.weights(m.case.w or "i8", 4, 3, *(2,) * axes)
        return m.op("Conv", x, w, *_bias(m, 4))

    return made


def _matmul(m: Written) -> str:
    kind = m.case.w or "i8"
    if not m.case.stacked:
        return m.op("MatMul", m.data(m.case.x, 3, 8), m.weights(kind, 8, 4))
    x = m.data(m.case.x, 2, 3, 8)
    held = m.integers(kind, m.rng.integers(max(_LEAST[kind], -100), 100, (2, 8, 4)))
    scales, zeros = m.constant([0.05, 0.04, 0.03, 0.06]), m.integers(kind, [0] * 4)
    return m.op("MatMul", x, m.op("DequantizeLinear", held, scales, zeros, axis=2))


def _gemm(m: Written) -> str:
    x, gain = m.data(m.case.x, 3, 8), {"alpha": m.case.gain} if m.case.gain != 1 else {}
    return m.op("Gemm", x, m.weights(m.case.w or "i8", 8, 4), *_bias(m, 4), **gain)


def _two(op: str, **attrs: object) -> Callable[[Written], str]:
    def made(m: Written) -> str:
        return m.op(op, *_pair(m), **attrs)

    return made


def _pair(m: Written) -> tuple[str, str]:
    """Two operands of other maps, the second now and then of real constants."""
    first = m.data(m.case.x, 2, 4, 6)
    if m.case.w == "real":
        return first, m.constant(m.rng.normal(size=(2, 4, 6)))
    return first, m.data(m.case.w or m.case.x, 2, 4, 6, scale=0.03)


def _where(m: Written) -> str:
    chosen = m.constant(m.rng.random((2, 4, 6)) < 0.5, "bool")
    return m.op("Where", chosen, *_pair(m))


def _one(op: str, *shape: int, **attrs: object) -> Callable[[Written], str]:
    return lambda m: m.op(op, m.data(m.case.x, *shape), **attrs)


def _by(
    op: str, shape: tuple[int, ...], *by: tuple[int, ...], **attrs: object
) -> Callable[[Written], str]:
    def made(m: Written) -> str:
        return m.op(op, m.data(m.case.x, *shape), *(m.whole(*one) for one in by), **attrs)

    return made


def _taken_apart(m: Written) -> str:
    at = m.constant(m.rng.integers(0, 4, (2, 3, 6)), "int64")
    return m.op("GatherElements", m.data(m.case.x, 2, 4, 6), at, axis=1)


def _enlarged(m: Written) -> str:
    x = m.data(m.case.x, 1, 4, 3, 3)
    return m.op("Resize", x, "", m.constant([1, 1, 2, 2]), mode="nearest")


def _pool(op: str, axes: int) -> Callable[[Written], str]:
    return _one(op, 1, 4, *(6,) * axes, kernel_shape=[2] * axes)


PRODUCTS: dict[str, Callable[[Written], str]] = {
    **{f"conv{n}d": _conv(n) for n in (1, 2, 3)},
    "matmul": _matmul,
    "gemm": _gemm,
}
METHODS: dict[str, Callable[[Written], str]] = {
    "add": _two("Add"),
    "mul": _two("Mul"),
    "concat": _two("Concat", axis=1),
    "sigmoid": _one("Sigmoid", 2, 4, 6),
    "leaky_relu": _one("LeakyRelu", 2, 4, 6, alpha=0.1),
    "softmax": _one("Softmax", 2, 4, 6, axis=-1),
    **{f"avg_pool{n}d": _pool("AveragePool", n) for n in (1, 2, 3)},
    "global_avg_pool": _one("GlobalAveragePool", 1, 4, 5, 5),
    "where": _where,
}
MOVES: dict[str, Callable[[Written], str]] = {
    **{f"max_pool{n}d": _pool("MaxPool", n) for n in (1, 2, 3)},
    "reshape": _by("Reshape", (2, 4, 6), (4, 12)),
    "flatten": _one("Flatten", 2, 4, 6),
    "transpose": _one("Transpose", 2, 4, 6, perm=[0, 2, 1]),
    "squeeze": _by("Squeeze", (2, 1, 6), (1,)),
    "unsqueeze": _by("Unsqueeze", (2, 6), (1,)),
    "slice": _by("Slice", (2, 4, 6), (1,), (4,), (2,)),
    "gather": _by("Gather", (2, 4, 6), (0, 3, 1), axis=1),
    "gather_elements": _taken_apart,
    "expand": _by("Expand", (4, 6), (2, 4, 6)),
    "tile": _by("Tile", (2, 4), (2, 1)),
    "resize_nearest": _enlarged,
    "depth_to_space": _one("DepthToSpace", 1, 8, 3, 3, blocksize=2),
}
OTHERS: dict[str, Callable[[Written], str]] = {
    "relu": _one("Relu", 2, 4, 6),
    "clip": lambda m: m.op("Clip", m.data(m.case.x, 2, 4, 6), m.constant(0), m.constant(1)),
    "pad": _by("Pad", (2, 4, 6), (0, 1, 0, 0, 0, 2)),
}
"""Ops of which onnxruntime's profile has no row, though QIR's own kernels have."""
_TWO = ("add", "mul", "concat", "where")
_EIGHT = ("max_pool1d", "max_pool2d", "max_pool3d", "resize_nearest", "depth_to_space")
"""Moves whose rows name integers of 8 bits alone."""
_KEPT = ("relu", "clip")
_OTHER = {"u8": "i8", "i8": "u8"}


def write(case: Case) -> Written:
    """The model of a case."""
    m = Written(case=case)
    made = {**PRODUCTS, **METHODS, **MOVES, **OTHERS}[case.op](m)
    kind, cuts = case.y or case.x, case.tail.endswith("cuts")
    if case.behind in ("real", "shown"):
        m.outputs.append(made)
    if case.behind == "relu":
        m.outputs.append(m.op("Relu", made))
    m.asked += m.outputs
    if case.behind in ("real", "relu"):
        return m
    if case.behind == "sigmoid":
        made = m.op("Sigmoid", made)
    if case.tail.startswith("relu"):
        made = m.op("Relu", made)
    if case.tail.startswith("clip"):
        made = m.op("Clip", made, m.constant(0), m.constant(0.5 if cuts else 1e6))
    same = (case.op in MOVES or case.op == "pad") and not case.moved and not case.behind
    zero = _LEAST[kind] + 77 * cuts if case.tail else None
    told = m.told(kind, 0.05 if same else 0.0625, zero)
    quantized = m.op("QuantizeLinear", made, *told)
    m.asked.append(quantized)
    m.outputs.append(
        m.op("DequantizeLinear", quantized, *told) if kind.endswith("4") else quantized
    )
    return m


def cases() -> Iterator[Case]:
    """Those by which the fields of rows are told apart."""
    for op in (*PRODUCTS, *METHODS, *MOVES):
        yield from cases_of(op)


def cases_of(op: str) -> Iterator[Case]:
    """Those of one op."""
    for kind in ("u8", "i8", "u16", "i16"):
        yield Case(op, kind)
        tails = ACTIVATIONS if kind in _OTHER else _KEPT
        yield from (Case(op, kind, tail=tail) for tail in tails if op not in MOVES)
    yield from (Case(op, kind, behind="sigmoid") for kind in _OTHER)
    for kind, other in _OTHER.items():
        for tail in ("", *_KEPT):
            yield Case(op, kind, y=other, tail=tail)
            if op in _TWO:
                yield Case(op, kind, w=other, tail=tail)
                yield Case(op, kind, w="real", tail=tail)
    if op in PRODUCTS:
        yield from _products(op)
    if op in MOVES or op == "pad":
        yield from (Case(op, kind, moved=True) for kind in _OTHER)
        yield from (Case(op, kind) for kind in ("u4", "i4") if op not in _EIGHT)


def _products(op: str) -> Iterator[Case]:
    behind = ("real", "shown", "relu") if op in ("matmul", "gemm") else ()
    for kind, w in [(k, w) for k in ("u8", "i8", "u16", "i16") for w in ("u8", "i8", "u16", "i16")]:
        if kind in _OTHER and (w in _OTHER or kind == "u8"):
            yield from (Case(op, kind, w, tail=tail) for tail in ("", *_KEPT))
        if kind in _OTHER or w in _OTHER:
            yield from (Case(op, kind, w, behind=how) for how in behind)
    if op == "matmul":
        stacks = [(w, tail) for w in _OTHER for tail in ("", *_KEPT)]
        yield from (Case(op, "u8", w, tail=tail, stacked=True) for w, tail in stacks)
    for bias in ("unit", "other_unit", "real", "real_matrix", "u8"):
        if op == "matmul" or (op != "gemm" and bias == "real_matrix"):
            continue
        gains = (1.0, 0.5) if op == "gemm" else (1.0,)
        for gain in gains:
            for tail in ("", *_KEPT):
                yield Case(op, "u8", "i8", tail=tail, bias=bias, gain=gain)
            if op == "gemm":
                yield Case(op, "u8", "i8", bias=bias, gain=gain, behind="real")
