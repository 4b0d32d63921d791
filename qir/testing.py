"""Random graphs for property tests: `graphs()` for hypothesis, `random_graph` for seeded loops.

Every graph is well formed: `verify` finds no error in it, and `sample_inputs` fits it; what
decoration adds prints and parses, but its scales may be NaN. The same choices give the same graph.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from qir.errors import PluginError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.calls import make_call
from qir.ir.dtype import F16, F32, F64, I8, I32, U8, DType, dtype
from qir.ir.graph import Graph
from qir.ir.node import Node, Stage, Value
from qir.ir.ops import spec
from qir.ir.origin import Lineage, Origin
from qir.ir.scheme import RESULT, Scheme
from qir.ir.types import Array, Declared, Grain, Param, QuantType, TensorType, uniform

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import DrawFn, SearchStrategy
except ImportError as error:
    raise PluginError('qir.testing needs hypothesis: pip install "qir[test]"') from error

Form: TypeAlias = Literal["float", "qdq", "integer"]
Pick: TypeAlias = Callable[[int], int]
"""A whole number from 0 to below another: the one source of chance."""

FORMS: tuple[Form, ...] = ("float", "qdq", "integer")
DTYPES = (
    "f64 f32 f16 bf16 f8e4m3fn f8e4m3fnuz f8e5m2 f8e5m2fnuz f8e8m0 f6e2m3fn f6e3m2fn f4e2m1fn "
    "bool string i8 u8 i16 u16 i32 u32 i64 u64 i1 u1 u2 i3 i4 u4 i7 u9 i12 u17 i31 i33 u63"
).split()
NAMES = (
    "plain",
    "a.b",
    "a-b",
    "1st",
    "",
    " ",
    ".",
    "two words",
    'quo"te',
    "back\\slash",
    "new\nline",
    "tab\t",
    "nul\x00",
    "\u2028",
    "ünïcödé",
    "日本語",
    "💥",
    "\ud800",
    "%percent",
    "@at",
    "# hash",
    "// slashes",
    "}{)(",
    "graph",
    "__metadata__",
    "x=%y, z",
    "as",
    "é",
)


def random_graph(seed: int, form: Form = "float", *, decorated: bool = False) -> Graph:
    """The graph of a seed; `decorated` ones have odd names, types, history and plans."""
    return _build(random.Random(seed).randrange, form, decorated)


def graphs(form: Form | None = None, *, decorated: bool = False) -> SearchStrategy[Graph]:
    """Graphs for hypothesis, of one form or of any."""

    @st.composite
    def build(draw: DrawFn) -> Graph:
        pick = _picking(draw)
        return _build(pick, form or FORMS[pick(len(FORMS))], decorated)

    return build()


def tensor_types() -> SearchStrategy[TensorType]:
    """Types of every kind that the grammar has."""

    @st.composite
    def build(draw: DrawFn) -> TensorType:
        return odd_type(_picking(draw))

    return build()


def _picking(draw: DrawFn) -> Pick:
    return lambda count: draw(st.integers(0, count - 1))


def sample_inputs(graph: Graph, seed: int) -> dict[str, NDArray[np.generic]]:
    """Arrays that fit the inputs of a graph; unknown sizes are small."""
    rng = np.random.default_rng(seed)
    out: dict[str, NDArray[np.generic]] = {}
    for value in graph.inputs:
        names = sorted(dims.names(value.type.shape))
        sizes = {name: 2 + len(name) % 3 for name in names}
        shape = tuple(2 if d is None else dims.bind(d, sizes) for d in value.type.shape)
        known = dims.known(shape)
        assert known is not None
        kind = value.type.dtype
        if kind.is_float:
            out[value.name] = rng.normal(0, 2, known).astype(kind.carrier)
        else:
            low, high = kind.bounds
            out[value.name] = rng.integers(low, high, known, endpoint=True).astype(kind.carrier)
    return out


def _build(pick: Pick, form: Form, decorated: bool) -> Graph:
    maker = _Codes(pick) if form == "integer" else _Reals(pick)
    graph = maker.build()
    if form == "qdq":
        _insert_pairs(pick, graph)
    if decorated:
        _decorate(pick, graph)
    return graph


def _map(pick: Pick, storage: DType) -> QuantType:
    low, high = storage.bounds
    scale = np.float32(2.0 ** -(3 + pick(4)) * (1 + pick(99) / 64))
    return uniform(storage, np.asarray(scale), low + pick(high - low + 1))


class _Reals:
    """Grows a float network layer by layer; every layer takes a value that is there."""

    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.graph = Graph("main")
        self.rng = np.random.default_rng(pick(1 << 16))
        self.values: list[Value] = []

    def build(self) -> Graph:
        batch: tuple[dims.Dim, ...] = (1, 2, dims.symbol("N"))
        shape = (
            batch[self.pick(3)],
            (1, 2, 3, 4, 6)[self.pick(5)],
            4 + self.pick(5),
            4 + self.pick(5),
        )
        for name in ("x", "y")[: 1 + self.pick(2)]:
            kind = self.kind(shape)
            self.values.append(self.graph.add("input", types=[kind], name=name).result)
        for _ in range(1 + self.pick(7)):
            layer = self.layers()[self.pick(len(self.layers()))]
            made = layer(self.values[-1 - self.pick(min(3, len(self.values)))])
            if made is not None:
                self.values.append(made)
        ends = [v for v in self.values if not v.uses] or [self.values[-1]]
        if self.pick(2):
            ends.append(self.head(ends[0]))
        if self.pick(4) == 0:  # what nobody needs
            self.pool(self.values[0])
        self.graph.add("output", {f"y{i}": v for i, v in enumerate(ends)})
        return self.graph

    def kind(self, shape: dims.Shape) -> TensorType:
        return TensorType(shape, F32)

    def layers(self) -> list[Callable[[Value], Value | None]]:
        return [
            self.conv,
            self.conv,
            self.activation,
            self.residual,
            self.pool,
            self.norm,
            self.arithmetic,
            self.move,
        ]

    def constant(self, *shape: int, positive: bool = False) -> Value:
        data = self.rng.normal(0, 1, shape).astype(np.float32)
        return self.graph.constant(Array.of(abs(data) + 0.5 if positive else data), name="c")

    def add(self, op: str, operands: dict[str, Value], **attrs: Attr) -> Value:
        return self.graph.add(op, operands, attrs).result

    def size(self, x: Value, axis: int) -> int:
        size = x.type.shape[axis]
        assert isinstance(size, int)
        return size

    def window(self, x: Value) -> dict[str, tuple[int, ...]]:
        """A kernel that fits, with stride and pad."""
        kernel = tuple(1 + self.pick(min(3, self.size(x, axis))) for axis in (2, 3))
        pad = tuple(self.pick(k) for k in (*kernel, *kernel))
        return {"kernel": kernel, "stride": (1 + self.pick(2), 1 + self.pick(2)), "pad": pad}

    def conv(self, x: Value) -> Value:
        window, attrs, channels, out = self.filters(x)
        kernel = window.pop("kernel")
        weight = self.constant(out, channels, *kernel)
        operands = {"x": x, "w": weight}
        if self.pick(3):
            operands["bias"] = self.constant(out)
        return self.add("conv2d", operands, **window, **attrs)

    def filters(self, x: Value) -> tuple[dict[str, tuple[int, ...]], dict[str, Attr], int, int]:
        """Window, groups, channels a group and output channels: dense, grouped or depthwise."""
        channels = self.size(x, 1)
        groups = (1, channels, 2 if channels % 2 == 0 else 1)[self.pick(3)]
        return self.window(x), {"groups": groups}, channels // groups, groups * (1 + self.pick(2))

    def activation(self, x: Value) -> Value:
        match self.pick(4):
            case 0:
                return self.add("relu", {"x": x})
            case 1:
                return self.add("clip", {"x": x}, min=0.0, max=6.0)
            case 2:
                return self.add("sigmoid", {"x": x})
            case _:
                return self.add("softmax", {"x": x}, axis=self.pick(4))

    def residual(self, x: Value) -> Value:
        alike = [v for v in self.values if v.type.shape == x.type.shape]
        return self.add("add", {"a": x, "b": alike[self.pick(len(alike))]})

    def pool(self, x: Value) -> Value:
        window: dict[str, Attr] = dict(self.window(x))
        if self.pick(2):
            return self.add("max_pool2d", {"x": x}, **window, ceil=bool(self.pick(2)))
        return self.add("avg_pool2d", {"x": x}, **window, count_pad=bool(self.pick(2)))

    def norm(self, x: Value) -> Value:
        size = self.size(x, 1)
        rows = {s: self.constant(size) for s in ("gamma", "beta", "mean")}
        return self.add("batch_norm", {"x": x, **rows, "var": self.constant(size, positive=True)})

    def arithmetic(self, x: Value) -> Value:
        op = ("add", "sub", "mul")[self.pick(3)]
        shape = ((), (1, self.size(x, 1), 1, 1))[self.pick(2)]
        b = self.constant(*shape)
        if self.pick(4) == 0:  # a constant that is yet to be computed
            b = self.add("mul", {"a": b, "b": self.constant()})
        return self.add(op, {"a": x, "b": b})

    def move(self, x: Value) -> Value:
        match self.pick(3):
            case 0:
                return self.add("transpose", {"x": x}, perm=(0, 1, 3, 2))
            case 1:
                alike = [v for v in self.values if v.type == x.type]
                parts = {"xs.0": x, "xs.1": alike[self.pick(len(alike))]}
                return self.add("concat", parts, axis=1)
            case _:
                return self.add("pad", {"x": x}, pads=(0, 0, 1, 0, 0, 0, 0, self.pick(2)))

    def head(self, x: Value) -> Value:
        x = self.add("flatten", {"x": self.add("global_avg_pool", {"x": x})})
        width, out = self.size(x, 1), 1 + self.pick(4)
        match self.pick(3):
            case 0:
                w, bias = self.constant(out, width), self.constant(out)
                return self.add("linear", {"x": x, "w": w, "bias": bias})
            case 1:
                b, c = self.constant(width, out), self.constant(out)
                return self.add("gemm", {"a": x, "b": b, "c": c})
            case _:
                return self.add("matmul", {"a": x, "b": self.constant(width, out)})


class _Codes(_Reals):
    """Grows a network on codes, in integer form, with groups."""

    def kind(self, shape: dims.Shape) -> TensorType:
        return TensorType(shape, _map(self.pick, U8))

    def layers(self) -> list[Callable[[Value], Value | None]]:
        return [self.conv, self.conv, self.chain, self.residual, self.pool, self.move]

    def codes(self, shape: dims.Shape) -> TensorType:
        return TensorType(shape, _map(self.pick, U8))

    def state(self, op: str, operands: dict[str, Value], **attrs: Attr) -> Value:
        """An op whose result is of a map of its own."""
        full = spec(op).complete(attrs)
        (kind,) = spec(op).rule(make_call(op, operands, full))
        return self.graph.add(op, operands, attrs, types=[self.codes(kind.shape)]).result

    def weights(self, x: Value) -> tuple[dict[str, Value], dict[str, Attr]]:
        window, attrs, channels, out = self.filters(x)
        shape = (out, channels, *window.pop("kernel"))
        scales = self.rng.uniform(0.01, 0.1, out).astype(np.float32)
        element = uniform(I8, scales, axis=0, bounds=(-127, 127), name="w")
        data = self.rng.integers(-127, 127, shape, endpoint=True).astype(np.int8)
        operands = {"x": x, "w": self.graph.constant(Array(data, TensorType(shape, element), "w"))}
        if self.pick(2):
            bias = self.rng.integers(-999, 999, out).astype(np.int32)
            operands["bias"] = self.graph.constant(Array.of(bias, "b"))
        return operands, {**window, **attrs}

    def conv(self, x: Value) -> Value:
        operands, attrs = self.weights(x)
        return self.state("conv2d", operands, **attrs)

    def chain(self, x: Value) -> Value:
        operands, attrs = self.weights(x)
        full = spec("conv2d").complete(attrs)
        (kind,) = spec("conv2d").rule(make_call("conv2d", operands, full))
        inner = self.codes(kind.shape) if self.pick(3) == 0 else None
        stages = [Stage("conv2d", full, tuple(operands), None, inner, "conv")]
        alike = [v for v in self.values if v.type.shape == kind.shape]
        if alike and self.pick(2):
            operands["1.b"] = alike[self.pick(len(alike))]
            stages.append(Stage("add", {}, ("b",), "a", None, "sum"))
        stages.append(Stage("relu", {}, (), "x", None, ""))
        return self.graph.add_chain(stages, operands, self.codes(kind.shape), name="g").result

    def residual(self, x: Value) -> Value:
        alike = [v for v in self.values if v.type.shape == x.type.shape]
        return self.state("add", {"a": x, "b": alike[self.pick(len(alike))]})

    def pool(self, x: Value) -> Value:
        window: dict[str, Attr] = dict(self.window(x))
        if self.pick(2):
            return self.add("max_pool2d", {"x": x}, **window)
        return self.state("avg_pool2d", {"x": x}, **window)

    def head(self, x: Value) -> Value:
        return self.add("dequantize", {"x": x})


# -- QDQ form ---------------------------------------------------------------------------------


def _insert_pairs(pick: Pick, graph: Graph) -> None:
    """Puts quantize and dequantize behind values, and makes codes of weights and biases."""
    for node in list(graph):
        if node.op != "output" and pick(4):
            _weigh(pick, graph, node)
        if node.results and node.op != "constant" and node.used and pick(4):
            _pair(pick, graph, node.result)


def _pair(pick: Pick, graph: Graph, value: Value) -> None:
    kind = _map(pick, (U8, I8)[pick(2)])
    moved = value.node.operands.get("x")
    if moved is not None and spec(value.node.op).traits.same_params and pick(8):
        if moved.node.op != "dequantize":
            return
        kind = moved.node.operands["x"].type.quant or kind
    users = set(value.users)
    first = next(n for n in graph if n in users)
    quantized = value.type.with_element(kind)
    name = value.name
    codes = graph.add("quantize", {"x": value}, types=[quantized], name=f"{name}.q", before=first)
    real = graph.add("dequantize", {"x": codes.result}, name=f"{name}.dq", before=first)
    for made in (codes, real):
        graph.set_origins(made, [Origin("onnx", made.op, f"{name}/{made.op}")])
    graph.set_lineage(codes.result, value.lineage.then("coded"))
    graph.replace(value, real.result, except_in=codes)


def _weigh(pick: Pick, graph: Graph, node: Node) -> None:
    traits = spec(node.op).traits
    if traits.weight is None or traits.weight_axis is None:
        return
    data, weight = node.operands[traits.data], node.operands[traits.weight]
    if data.node.op != "dequantize" or weight.constant is None:
        return
    axis = traits.weight_axis(make_call(node.op, node.operands, node.attrs)) if pick(2) else None
    rest = tuple(i for i in range(weight.type.rank) if i != axis)
    reach = np.abs(weight.constant.data).max(axis=rest if axis is not None else None)
    kind = uniform(I8, np.asarray(reach / np.float32(127), np.float32), axis=axis, name="w")
    along = [-1 if i == axis else 1 for i in range(weight.type.rank)]
    scale = np.asarray(kind.scales()).reshape(along if axis is not None else ())
    real: NDArray[np.float64] = weight.constant.data.astype(np.float64)
    codes = np.rint(np.divide(real, scale)).clip(-127, 127)
    _coded(graph, node, traits.weight, codes, kind)
    bias = node.operands.get(traits.bias or "")
    source = data.node.operands["x"].type.quant
    if traits.bias and bias is not None and bias.constant is not None and source is not None:
        unit = np.asarray(np.float32(source.scales()) * kind.scales(), np.float32)
        row = uniform(I32, unit, axis=0 if unit.ndim else None, name="b")
        _coded(graph, node, traits.bias, np.rint(np.divide(bias.constant.data, unit)), row)


def _coded(
    graph: Graph, node: Node, slot: str, codes: NDArray[np.floating], kind: QuantType
) -> None:
    data = Array(codes.astype(kind.storage.carrier), TensorType(codes.shape, kind), slot)
    made = graph.constant(data, name=f"{node.name}.{slot}", before=node)
    real = graph.add("dequantize", {"x": made}, name=f"{made.name}.dq", before=node)
    graph.set_origins(real, [Origin("onnx", "DequantizeLinear", f"{made.name}/dq")])
    graph.set_operand(node, slot, real.result)


# -- what is odd ------------------------------------------------------------------------------


def odd_name(pick: Pick) -> str:
    """A name that tries the text form."""
    if pick(3):
        return NAMES[pick(len(NAMES))]
    return "".join(chr(pick(0x1F600 if pick(4) == 0 else 0x250)) for _ in range(pick(5)))


def odd_array(pick: Pick, kind: DType, shape: tuple[int, ...]) -> NDArray[np.generic]:
    """Elements of a type, drawn from all its bit patterns."""
    rng = np.random.default_rng(pick(1 << 16))
    size = int(np.prod(shape))
    if kind.name == "string":
        out = np.empty(size, object)
        out[:] = [odd_name(pick).encode(errors="surrogatepass") for _ in range(size)]
        return out.reshape(shape)
    if kind.name == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    width = kind.carrier.itemsize
    bits = np.frombuffer(rng.bytes(size * width), f"u{width}").reshape(shape)
    if kind.is_float:
        return (bits >> (8 * width - kind.bits)).astype(bits.dtype).view(kind.carrier)
    low, high = kind.bounds
    whole = [low + int(b) % (high - low + 1) for b in bits.reshape(-1)]
    return np.array(whole, kind.carrier).reshape(shape)


def odd_number(pick: Pick) -> float:
    """A number of any size, its bits drawn."""
    if pick(2):
        return (0.1, 1.0, 0.0235, 1e-45, 3.4e38, 1e-7, 16777217.0, 1 / 3)[pick(8)]
    bits = np.array([pick(1 << 16) << 16 | pick(1 << 16)], np.uint32)
    value = float(bits.view(np.float32)[0])
    return abs(value) if np.isfinite(value) and value else 0.5


def odd_type(pick: Pick) -> TensorType:
    """A type of any shape and element."""
    sizes = (1, 2, 3, 5, 8, 9, None, dims.symbol("N"), dims.parse("(N+3)//2*M - 1"))
    shape = tuple(sizes[pick(len(sizes))] for _ in range(pick(4)))
    if pick(4) == 0:
        return TensorType(shape, dtype(DTYPES[pick(len(DTYPES))]))
    return TensorType(shape, odd_quant(pick, shape, nested=True))


def odd_quant(pick: Pick, shape: dims.Shape, *, nested: bool) -> QuantType:
    """A map from codes that uses any part of the grammar."""
    storage = dtype(f"{'iu'[pick(2)]}{1 + pick(64)}" if pick(3) else f"f{_SMALL[pick(5)]}")
    if not storage.is_float and pick(2):
        storage = (U8, I8)[pick(2)]
    bounds = None
    if storage.is_integer and pick(2):
        low, high = storage.bounds
        bounds = (low + pick(min(high - low, 100)), high)
    express = (F32, F32, F64, F16, dtype("bf16"))[pick(5)]
    grain, grid = _odd_grain(pick, shape)
    scale_dtype = (None, None, F64, F32, dtype("f8e8m0"))[pick(5)]
    scale = _odd_scale(pick, grain, grid, scale_dtype or express, nested)
    zero = _odd_zero(pick, scale, storage)
    one = grain is None or pick(2) == 0
    declared = None
    if pick(4) == 0 and one:
        level = (None, 127.5, 255.0)[pick(3)]
        declared = Declared((-odd_number(pick),), (odd_number(pick),), level)
    plus = (odd_number(pick),) if pick(5) == 0 else None
    table = None
    if storage.is_integer and storage.bits <= 4 and pick(2):
        table = tuple(odd_number(pick) for _ in range(1 << storage.bits))
    kind: Literal["uniform", "lut"] = "lut" if table else "uniform"
    return QuantType(
        storage, express, scale, zero, grain, bounds, scale_dtype, plus, declared, kind, table
    )


_SMALL = ("8e4m3fn", "8e5m2", "4e2m1fn", "6e2m3fn", "8e4m3fnuz")


def _odd_grain(pick: Pick, shape: dims.Shape) -> tuple[Grain | None, tuple[int, ...]]:
    known = [(i, d) for i, d in enumerate(shape) if isinstance(d, int)]
    if not known or pick(3) == 0:
        return None, ()
    if pick(2):
        axis, size = known[pick(len(known))]
        return Grain(((axis, 1),)), (size,)
    blocks = tuple((axis, 1 + pick(size)) for axis, size in known)
    by = Array.of(np.arange(known[0][1], dtype=np.int32), "g_idx") if pick(3) == 0 else None
    grain = Grain(blocks, by)
    return grain, dims.known(grain.grid(tuple(d if isinstance(d, int) else 1 for d in shape))) or ()


def _odd_scale(
    pick: Pick, grain: Grain | None, grid: tuple[int, ...], kind: DType, nested: bool
) -> Param:
    count = int(np.prod(grid))
    if pick(6) == 0:
        return None
    if grain is None or (grain.axis is not None and count <= 8 and pick(2)):
        return tuple(odd_number(pick) for _ in range(count))
    if nested and pick(3) == 0:
        inner = odd_quant(pick, grid, nested=False)
        data = odd_array(pick, inner.storage, grid)
        return Array(data, TensorType(grid, inner), odd_name(pick))
    return Array.of(odd_array(pick, kind, grid), odd_name(pick))


def _odd_zero(pick: Pick, scale: Param, storage: DType) -> Param:
    low, high = storage.bounds
    choice = pick(5)
    if storage.is_float or choice == 0:
        return ()
    if choice == 1:
        return None
    if isinstance(scale, Array):
        return Array.of(np.full(scale.data.shape, pick(100), np.int32), odd_name(pick))
    count = len(scale) if scale else 1
    if choice == 2:
        return tuple(odd_number(pick) for _ in range(count))
    return tuple(low + pick(min(high - low + 1, 1 << 30)) for _ in range(count))


def _decorate(pick: Pick, graph: Graph) -> None:
    graph.name = odd_name(pick)
    graph.profile = ("native", "ort-1.31", odd_name(pick) or "x")[pick(3)]
    _odd_constants(pick, graph)
    for node in list(graph):
        if pick(3) == 0:
            graph.set_origins(node, [_origin(pick) for _ in range(1 + pick(2))])
        if node.operands and pick(3) == 0:
            slots = [*node.operands, RESULT]
            slot = slots[pick(len(slots))]
            graph.set_scheme(node, slot, _scheme(pick))
            graph.set_slot_origins(node, slot, [_origin(pick)])
        if pick(5) == 0:
            graph.set_profile(node, odd_name(pick) or "p")
        for value in node.results:
            if pick(3) == 0 and not graph.has(name := odd_name(pick)):
                graph.rename(value, name)
            if pick(3) == 0:
                graph.set_lineage(value, Lineage(odd_name(pick), ("coded", odd_name(pick))))


def _odd_constants(pick: Pick, graph: Graph) -> None:
    parts: dict[str, Value] = {}
    for _ in range(pick(4)):
        kind = dtype(DTYPES[pick(len(DTYPES))])
        shape = tuple(pick(4) for _ in range(pick(3)))
        array = Array.of(odd_array(pick, kind, shape), odd_name(pick))
        typed = Array(array.data, TensorType(shape, kind), array.name)
        parts[odd_name(pick)] = graph.constant(typed)
    attrs: dict[str, Attr] = {"framework": odd_name(pick), "op": odd_name(pick)}
    attrs["attrs"] = (("f", odd_number(pick)), ("b", b"\x00\xff"), ("t", (True, None, F32, ())))
    graph.add("foreign", parts, attrs, types=[odd_type(pick) for _ in range(pick(3))])


def _origin(pick: Pick) -> Origin:
    pairs = tuple((odd_name(pick), odd_name(pick)) for _ in range(pick(3)))
    return Origin(odd_name(pick), "Conv", odd_name(pick), odd_name(pick), pick(3), pairs)


def _scheme(pick: Pick) -> Scheme:
    return Scheme(
        (U8, I8, I32)[pick(3)],
        symmetric=pick(2) == 0,
        grain="channel" if pick(2) else "tensor",
        bounds=(0, 100) if pick(2) else None,
        range=("minmax", "percentile:99.9")[pick(2)],
        zero=(None, 3)[pick(2)],
        scale=(None, None, 0.1)[pick(3)],
        share=odd_name(pick),
    )
