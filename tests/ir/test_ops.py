"""Type rules against the shapes that the NumPy reference really makes, and its refusals."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError, TypeRuleError
from qir.ir import dims
from qir.ir.attrs import Attr
from qir.ir.dtype import dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops import FAMILIES, OPS
from qir.ir.text import parse_type
from qir.ir.types import Array, TensorType
from qir.reference.table import FUNCTIONS, compute

Arrays = dict[str, NDArray[np.generic]]
Case = tuple[Arrays, dict[str, Attr]]
Make = Callable[[random.Random], Case]
KINDS = ("f32", "f32", "f32", "f64", "f16", "bf16", "i32", "u8", "bool")


def shape_of(rng: random.Random, least: int = 0, most: int = 4) -> tuple[int, ...]:
    return tuple(rng.choice((0, 1, 1, 2, 3, 4, 5)) for _ in range(rng.randint(least, most)))


def filled(shape: tuple[int, ...], kind: str = "f32") -> NDArray[np.generic]:
    """Ones: no value is at fault where a shape is tried."""
    return np.ones(shape, dtype(kind).carrier)


def broadcasts(rng: random.Random, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with another, mostly."""
    out = [1 if rng.random() < 0.3 else d for d in shape[rng.randint(0, len(shape)) :]]
    if out and rng.random() < 0.2:
        out[rng.randrange(len(out))] = rng.randint(1, 4)
    return (*([rng.randint(1, 3)] if rng.random() < 0.1 else []), *out)


def kinds(rng: random.Random, count: int) -> list[str]:
    first = rng.choice(KINDS)
    return [rng.choice(KINDS) if rng.random() < 0.1 else first for _ in range(count)]


def unary(rng: random.Random) -> Case:
    return {"x": filled(shape_of(rng), rng.choice(KINDS))}, {}


def binary(rng: random.Random) -> Case:
    shape, (a, b) = shape_of(rng), kinds(rng, 2)
    pair = [filled(shape, a), filled(broadcasts(rng, shape), b)]
    rng.shuffle(pair)
    return {"a": pair[0], "b": pair[1]}, {}


def window(rng: random.Random) -> dict[str, Attr]:
    def few(count: int, low: int, high: int) -> tuple[int, ...]:
        if rng.random() < 0.03:
            return tuple(rng.randint(-1, high) for _ in range(rng.randint(0, 5)))
        return tuple(rng.randint(low, high) for _ in range(count))

    return {"stride": few(2, 1, 3), "pad": few(4, 0, 3), "dilation": few(2, 1, 2)}


def conv2d(rng: random.Random) -> Case:
    layout = rng.choice(["NCHW", "NCHW", "NHWC", "NWHC"][: rng.choice((3, 3, 4))])
    groups = rng.choice((1, 1, 2, 3))
    channels = groups * rng.randint(1, 2) + (rng.random() < 0.05)
    out = groups * rng.randint(1, 3) + (rng.random() < 0.05)
    x = (rng.randint(0, 2), channels, rng.randint(1, 7), rng.randint(1, 7))
    x = x if layout == "NCHW" else (x[0], x[2], x[3], x[1])
    w = (out, max(1, channels // groups), rng.randint(1, 4), rng.randint(1, 4))
    xk, wk, bk = kinds(rng, 3) if rng.random() < 0.1 else ["f32"] * 3
    operands: Arrays = {"x": filled(x, xk), "w": filled(w[: rng.choice((4,) * 20 + (3,))], wk)}
    if rng.random() < 0.5:
        operands["bias"] = filled((out + (rng.random() < 0.05),), wk if bk == xk else bk)
    return operands, {**window(rng), "groups": groups, "layout": layout}


def pool(dilated: bool) -> Make:
    def make(rng: random.Random) -> Case:
        attrs = window(rng)
        dilation = attrs.pop("dilation")
        attrs |= {"dilation": dilation} if dilated else {"count_pad": rng.random() < 0.5}
        attrs |= {"kernel": (rng.randint(0, 4), rng.randint(1, 4)), "ceil": rng.random() < 0.6}
        x = tuple(rng.randint(1, 8) for _ in range(rng.choice((4,) * 20 + (3,))))
        return {"x": filled(x, rng.choice(KINDS))}, attrs

    return make


def matmul(rng: random.Random) -> Case:
    m, k, n = (rng.choice((0, 1, 2, 3)) for _ in range(3))
    lead = shape_of(rng, 0, 2)
    turn = [rng.random() < 0.3, rng.random() < 0.3]
    a, b = (k, m) if turn[0] else (m, k), (n, k) if turn[1] else (k, n)
    a, b = (a, b) if rng.random() < 0.9 else (b, a)
    left, right = (*lead, *a), (*broadcasts(rng, lead), *b)
    if rng.random() < 0.15:
        left = left[-1:]
    if rng.random() < 0.15:
        right = right[-1:]
    ak, bk = kinds(rng, 2)
    operands: Arrays = {"a": filled(left, ak), "b": filled(right, bk)}
    if rng.random() < 0.4:
        operands["bias"] = filled(broadcasts(rng, (*lead, m, n)), ak)
    return operands, {"trans_a": turn[0], "trans_b": turn[1]}


def gemm(rng: random.Random) -> Case:
    operands, attrs = matmul(rng)
    if rng.random() < 0.9:  # without the leading axes
        operands = {s: v[(0,) * max(0, v.ndim - 2)] if v.size else v for s, v in operands.items()}
    if "bias" in operands:
        operands["c"] = operands.pop("bias")
    return operands, {**attrs, "alpha": 2.0}


def linear(rng: random.Random) -> Case:
    x, w, out = shape_of(rng, 0, 3), rng.choice((1, 2, 3)), rng.choice((1, 2, 3))
    width = x[-1] if x and rng.random() < 0.85 else w
    operands: Arrays = {"x": filled(x), "w": filled((out, width))}
    if rng.random() < 0.5:
        operands["bias"] = filled(broadcasts(rng, (*x[:-1], out)))
    return operands, {}


def batch_norm(rng: random.Random) -> Case:
    shape = shape_of(rng, 1, 4)
    axis = rng.randint(-len(shape), len(shape) - 1)
    axis = axis if rng.random() < 0.9 else rng.randint(-5, 5)
    size = shape[axis % len(shape)]
    operands: Arrays = {"x": filled(shape)}
    for slot in ("gamma", "beta", "mean", "var"):
        operands[slot] = filled((size if rng.random() < 0.97 else 7,))
    return operands, {"axis": axis}


def along(rng: random.Random) -> Case:
    return {"x": filled(shape_of(rng), rng.choice(KINDS))}, {"axis": rng.randint(-4, 4)}


def reshape(rng: random.Random) -> Case:
    x = shape_of(rng)
    wanted = list(x)
    rng.shuffle(wanted)
    if len(wanted) > 1 and rng.random() < 0.5:
        wanted[:2] = [wanted[0] * wanted[1]]
    if wanted and rng.random() < 0.4:
        wanted[rng.randrange(len(wanted))] = -1
    if wanted and rng.random() < 0.2:
        wanted[rng.randrange(len(wanted))] = rng.choice((0, -1, -2, 5))
    shape = np.array(wanted, rng.choice((np.int64, np.int64, np.int32)))
    if rng.random() < 0.05:
        shape = shape.astype(np.float32) if rng.random() < 0.5 else shape[None]
    return {"x": filled(x), "shape": shape}, {"allow_zero": rng.random() < 0.3}


def transpose(rng: random.Random) -> Case:
    shape = shape_of(rng)
    perm = list(range(len(shape)))
    rng.shuffle(perm)
    if perm and rng.random() < 0.15:
        perm[0] = rng.randint(-1, 4)
    return {"x": filled(shape)}, {"perm": tuple(perm)}


def concat(rng: random.Random) -> Case:
    shape = shape_of(rng, 1, 3)
    axis = rng.randint(-len(shape), len(shape) - 1) if rng.random() < 0.9 else rng.randint(-4, 4)
    operands: Arrays = {}
    for i in range(rng.randint(1, 4)):
        part = list(shape)
        if rng.random() < 0.5:
            part[axis % len(shape)] = rng.randint(0, 3)
        if rng.random() < 0.1:
            part[rng.randrange(len(part))] += 1
        if rng.random() < 0.03:
            part.append(1)
        kind = rng.choice(KINDS) if rng.random() < 0.05 else "f32"
        operands[f"xs.{i}"] = filled(tuple(part), kind)
    return operands, {"axis": axis}


def pad(rng: random.Random) -> Case:
    shape = shape_of(rng, 0, 3)
    pads = tuple(rng.choice((0, 0, 1, 2, -1, -2)) for _ in range(2 * len(shape)))
    if rng.random() < 0.05:
        pads = (*pads, 1)
    mode = rng.choice(["constant", "constant", "reflect", "edge", "wrap", "symmetric"])
    return {"x": filled(shape)}, {"pads": pads, "mode": mode}


def reduce_mean(rng: random.Random) -> Case:
    shape = shape_of(rng)
    axes = tuple(rng.randint(-len(shape) - 1, len(shape)) for _ in range(rng.randint(0, 3)))
    return {"x": filled(shape)}, {"axes": axes, "keep": rng.random() < 0.5}


def cast(rng: random.Random) -> Case:
    return {"x": filled(shape_of(rng), rng.choice(KINDS))}, {"to": dtype(rng.choice(KINDS))}


def clip(rng: random.Random) -> Case:
    return unary(rng)[0], {"min": 0.0, "max": rng.choice((None, 6.0))}


MAKES: dict[str, Make] = {
    "conv2d": conv2d,
    "max_pool2d": pool(True),
    "avg_pool2d": pool(False),
    "global_avg_pool": lambda rng: (pool(True)(rng)[0], {"layout": rng.choice(["NCHW", "NHWC"])}),
    "matmul": matmul,
    "gemm": gemm,
    "linear": linear,
    "batch_norm": batch_norm,
    "softmax": along,
    "flatten": along,
    "reshape": reshape,
    "transpose": transpose,
    "concat": concat,
    "pad": pad,
    "reduce_mean": reduce_mean,
    "cast": cast,
    "clip": clip,
}
PLAIN = {"elementwise", "activations", "unary", "logic"}  # families that work element by element
for _family in FAMILIES:
    for _row in _family.OPS if _family.__name__.rpartition(".")[2] in PLAIN else ():
        _slots = [s.name for s in _row.operands]
        if _row.name in FUNCTIONS and not any(a.required for a in _row.attrs):
            if _slots in (["x"], ["a", "b"]):
                MAKES.setdefault(_row.name, unary if _slots == ["x"] else binary)


def typed(
    op: str, operands: Arrays, attrs: dict[str, Attr], kinds: dict[str, TensorType]
) -> tuple[TensorType, ...]:
    """The result types by the op's rule; a reshape's target is a constant, other values inputs."""
    graph = Graph()
    values: dict[str, Value] = {}
    for slot, data in operands.items():
        if slot == "shape":
            values[slot] = graph.constant(Array.of(data))
        else:
            values[slot] = graph.add("input", types=[kinds[slot]]).result
    return tuple(v.type for v in graph.add(op, values, attrs).results)


def exact(operands: Arrays) -> dict[str, TensorType]:
    return {slot: TensorType(data.shape, dtype_of(data)) for slot, data in operands.items()}


def made(op: str, operands: Arrays, attrs: dict[str, Attr]) -> NDArray[np.generic] | None:
    try:
        return compute(op, operands, {**OPS[op].complete_attrs(attrs)})
    except (OpError, TypeRuleError):
        return None


@pytest.mark.parametrize("op", MAKES)
def test_the_rule_gives_the_shape_that_the_reference_makes_and_refuses_what_it_refuses(
    op: str,
) -> None:
    fine = refused = 0
    for seed in range(400):
        operands, attrs = MAKES[op](random.Random(seed))
        where = f"seed {seed}: {exact(operands)} {attrs}"
        result = made(op, operands, attrs)
        said = ""
        try:
            kinds = typed(op, operands, attrs, exact(operands))
        except TypeRuleError as error:
            kinds, said = (), str(error)
        if result is None or said:
            assert result is None, f"{where}: {said}, but the reference makes {result!r}"
            assert said, f"{where}: {kinds}, but the reference refuses"
            refused += 1
            continue
        assert [(k.shape, k.dtype.carrier) for k in kinds] == [(result.shape, result.dtype)], where
        fine += 1
    assert fine > 20
    assert refused > 0 or op in ALWAYS


ALWAYS = {"cast"}  # takes anything that is generated here


@pytest.mark.parametrize("op", MAKES)
def test_named_sizes_give_what_numbers_give(op: str) -> None:
    told = 0
    for seed in range(300):
        rng = random.Random(seed)
        operands, attrs = MAKES[op](rng)
        result = made(op, operands, attrs)
        if result is None:
            continue
        sizes: dict[str, int] = {}
        kinds: dict[str, TensorType] = {}
        for slot, data in operands.items():
            shape: list[dims.Dim] = list(data.shape)
            for axis, size in enumerate(data.shape):
                if size != 1 and rng.random() < 0.4:  # a named size never broadcasts as 1 does
                    name = f"d{size}"
                    shape[axis] = dims.symbol(name) if rng.random() < 0.8 else None
                    sizes[name] = size
            kinds[slot] = TensorType(tuple(shape), dtype_of(data))
        (kind,) = typed(op, operands, attrs, kinds)
        bound = [dims.bind(d, sizes) for d in kind.shape]
        where = f"seed {seed}: {kinds} {attrs}: {kind}, really {result.shape}"
        assert len(bound) == result.ndim, where
        assert all(b is None or b == n for b, n in zip(bound, result.shape, strict=True)), where
        told += sum(isinstance(d, dims.Sym) for d in kind.shape)
    assert told > 5


@pytest.mark.parametrize(
    ("op", "codes", "attrs", "wanted"),
    [
        ("transpose", "2x3x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"perm": (1, 0)}, "3x2x:1"),
        ("reshape", "2x6x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"to": (2, 3, 2)}, "2x3x2x:0"),
        ("reshape", "1x2x6x!quant.uniform<u8:f32:1, {0.5, 0.25}>", {"to": (2, 6)}, "2x6x:0"),
        ("reshape", "2x6x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"to": (12,)}, ""),
        ("reshape", "4x3x!quant.uniform<u8:f32:0, {0.5, 0.25, 1.0, 2.0}>", {"to": (2, 2, 3)}, ""),
        ("flatten", "2x3x4x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"axis": 1}, "2x12x:0"),
        ("flatten", "2x3x4x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"axis": 2}, ""),
        ("concat", "2x3x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"axis": 1}, "2x6x:0"),
        ("concat", "2x3x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"axis": 0}, ""),
        ("pad", "2x3x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"pads": (0, 1, 0, 1)}, "2x5x:0"),
        ("pad", "2x3x!quant.uniform<u8:f32:0, {0.5, 0.25}>", {"pads": (1, 0, 0, 0)}, ""),
        ("transpose", "2x3x!quant.uniform<u8:f32, 0.5:3>", {"perm": (1, 0)}, "3x2x"),
        ("transpose", "2x4x!quant.uniform<u8:f32:{0:1, 1:2}, ?>", {"perm": (1, 0)}, ""),
    ],
)
def test_a_quantized_axis_moves_with_its_elements_or_is_refused(
    op: str, codes: str, attrs: dict[str, Attr], wanted: str
) -> None:
    graph = Graph()
    kind = parse_type(codes)
    x = graph.add("input", types=[kind]).result
    operands = {"xs.0": x, "xs.1": x} if op == "concat" else {"x": x}
    given = dict(attrs)
    if (to := given.pop("to", None)) is not None:
        operands["shape"] = graph.constant(Array.of(np.array(to, np.int64)))
    if not wanted:
        with pytest.raises(TypeRuleError, match="does not survive"):
            graph.add(op, operands, given)
        return
    found = graph.add(op, operands, given).result.type
    shape, _, axis = wanted.partition(":")
    assert "".join(f"{d}x" for d in found.shape) == shape
    assert found.quant is not None
    assert kind.quant is not None
    assert found.quant.axis == (int(axis) if axis else None)
    assert found.quant.scale == kind.quant.scale


def test_every_op_says_what_it_does_and_has_slots_of_its_own() -> None:
    for name, row in OPS.items():
        assert row.name == name
        assert row.doc, name
        slots = [s.name for s in row.operands]
        assert len(set(slots)) == len(slots), name
        for slot in (*row.traits.same_params, row.traits.weight, row.traits.bias):
            assert slot is None or slot in slots, name
        assert row.traits.weight is None or row.traits.data in slots, name


def test_multiply_adds_are_counted() -> None:
    graph = Graph()
    x = graph.add("input", types=[parse_type("2x4x5x5xf32")]).result
    w = graph.add("input", types=[parse_type("6x2x3x3xf32")]).result
    node = graph.add("conv2d", {"x": x, "w": w}, {"groups": 2})
    from qir.ir.calls import make_call

    cost = OPS["conv2d"].cost
    assert cost is not None
    call = make_call(node.op, node.operands, node.attrs)
    assert cost(call, node.result.type.shape) == 2 * 6 * 3 * 3 * (2 * 3 * 3)
    named = (dims.symbol("N"), 6, 3, 3)
    assert cost(call, named) == 0
