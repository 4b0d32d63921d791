"""A use of every op, for tests that go through the whole table: add a line here for a new op.

Run as a module it prints a digest of what each op computes, in the order that it is told.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from qir.ir.attrs import Attr
from qir.ir.dtype import I8, dtype_of
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType
from qir.reference.interpreter import run
from tests.reference.oracles import Array, frozen

Make = Callable[[np.random.Generator], Array]


@dataclass(frozen=True)
class Case:
    """One use: operands and attributes, or a whole program as text with its inputs.

    Operands named in `constant` are constants of the program, the others inputs. `k` is how many
    halves of a float32 ulp (2^-24 of the value) its float results may lie from those of the same
    numbers in float64; None where it gives no floats, or its floats are integers' own.
    """

    given: Mapping[str, Make]
    attrs: Mapping[str, Attr] = field(default_factory=dict)
    k: float | None = 1.0
    constant: tuple[str, ...] = ()
    text: str = ""

    def arrays(self, seed: int) -> dict[str, Array]:
        """What goes in, float32 where it is floats."""
        rng = np.random.default_rng(seed)
        return {name: frozen(np.asarray(make(rng))) for name, make in self.given.items()}

    def compute(self, op: str, arrays: Mapping[str, Array]) -> list[Array]:
        """Every result of the program, with floats in the type that the arrays have."""
        if self.text:
            wide = any(a.dtype == np.float64 for a in arrays.values())
            graph = parse(self.text.replace("f32", "f64") if wide else self.text)
            return list(run(graph, arrays).values())
        graph, operands = Graph("case", "native"), {}
        for slot, data in arrays.items():
            if slot in self.constant:
                operands[slot] = graph.constant(Stored.of(data, slot))
            else:
                kind = TensorType(data.shape, dtype_of(data))
                operands[slot] = graph.add("input", types=[kind], name=slot).result
        node = graph.add(op, operands, dict(self.attrs))
        graph.add("output", {f"y{i}": v for i, v in enumerate(node.results)})
        feeds = {s: d for s, d in arrays.items() if s not in self.constant}
        return list(run(graph, feeds).values())


# -- what goes in ---------------------------------------------------------------------------------


def normal(*shape: int) -> Make:
    return lambda rng: rng.standard_normal(shape).astype(np.float32) * np.float32(2)


def between(low: float, high: float, *shape: int) -> Make:
    return lambda rng: rng.uniform(low, high, shape).astype(np.float32)


def whole(low: int, high: int, *shape: int) -> Make:
    """Whole numbers from low to before high."""
    return lambda rng: rng.integers(low, high, shape)


def small(low: int, high: int, *shape: int) -> Make:
    return lambda rng: rng.integers(low, high, shape).astype(np.uint8)


def flags(*shape: int) -> Make:
    return lambda rng: np.asarray(rng.random(shape) < 0.5)


def apart(limit: int, *shape: int) -> Make:
    """Whole numbers below the limit, no two alike."""
    return lambda rng: rng.permutation(limit)[: int(np.prod(shape))].reshape(shape)


def just(*values: float) -> Make:
    """These numbers."""
    kind = np.int64 if all(isinstance(v, int) for v in values) else np.float32
    return lambda rng: np.array(values, kind)


def one(value: float) -> Make:
    kind = np.int64 if isinstance(value, int) else np.float32
    return lambda rng: np.array(value, kind)


# -- the table ------------------------------------------------------------------------------------

X, PAIR = {"x": normal(3, 40)}, {"a": normal(3, 1, 40), "b": normal(5, 1)}
INSIDE, ABOVE = {"x": between(-0.99, 0.99, 3, 40)}, {"x": between(1, 60, 3, 40)}
WHOLE = {"a": whole(-90, 90, 4, 9), "b": whole(-90, 90, 9)}
BITS = {"a": small(0, 255, 4, 9), "b": small(0, 8, 9)}
TRUTH = {"a": flags(4, 9), "b": flags(9)}
MANY = {"xs.0": normal(3, 40), "xs.1": normal(40), "xs.2": normal(3, 1)}
ROWS, IMAGE, SPACE = normal(2, 3, 17), normal(2, 3, 9, 11), normal(2, 3, 5, 6, 7)
SQUARE = {"x": normal(4, 5, 5)}
CHANNELS = {"gamma": normal(6), "beta": normal(6)}
MAPS = {"x": normal(2, 6, 7, 8), **CHANNELS}
SLID: dict[str, Attr] = {"kernel": (2, 3), "stride": (2, 1), "pad": (1, 0, 0, 1)}
SLID1: dict[str, Attr] = {"kernel": (3,), "stride": (2,), "pad": (1, 0)}
SLID3: dict[str, Attr] = {"kernel": (2, 3, 2), "stride": (2, 1, 2), "pad": (1, 0, 0, 0, 1, 1)}
COLUMNS: dict[str, Attr] = {**SLID, "dilation": (1, 2)}
ALONG: dict[str, Attr] = {"axis": 1}
REDUCED: dict[str, Attr] = {"axes": (0, 2)}


def gated(gates: int, **more: Make) -> dict[str, Make]:
    """The operands of a recurrent layer of both directions."""
    w, r = normal(2, gates * 4, 5), normal(2, gates * 4, 4)
    return {"x": normal(7, 3, 5), "w": w, "r": r, "bias": normal(2, gates * 8), **more}


def _text(body: str) -> str:
    return f"graph case as native {{\n{body}\n}}\n"


def quantized_case(body: str) -> Case:
    """A program on integers of 2x12 floats."""
    return Case({"x": normal(2, 12)}, k=None, text=_text(f"%x = input() : 2x12xf32\n{body}"))


CODE = "2x12x!quant.uniform<u8:f32, 0.0625:128>"
QUANTIZED = f"%q = quantize(%x) : {CODE}\n"
RAW = "%r = recode(%q) : 2x12xu8\n"
BODY = "%s = mul(%h, %k) : 2x12xf32\n"

UNARY = (
    "abs neg sign relu sigmoid tanh exp erf erfc floor ceil round trunc sin cos atan sinh cosh "
    "asinh expm1 exp2 square thresholded_relu elu selu celu hard_sigmoid hard_swish "
    "softplus softsign gelu silu mish log_sigmoid tanh_shrink shrink identity dropout softmax "
    "log_softmax hardmax lp_normalize"
).split()
POSITIVE = "log log1p log2 log10 sqrt rsqrt reciprocal acosh".split()
WITHIN = "asin acos atanh tan".split()

PAIRED = ("add", "sub", "mul", "div", "mod", "floor_div", "squared_difference", "atan2")
CASES: dict[str, Case] = {
    **{op: Case(X) for op in UNARY},
    "leaky_relu": Case(X, {"alpha": float(np.float32(0.01))}),  # who computes in float32 holds that
    **{op: Case(ABOVE) for op in POSITIVE},
    **{op: Case(INSIDE) for op in WITHIN},
    "logit": Case(INSIDE, {"eps": 0.125}),
    "prelu": Case({**X, "slope": normal(40)}),
    "clip": Case(X, {"min": -1.5, "max": 2.25}),
    **{op: Case(PAIR) for op in PAIRED},
    "pow": Case({"a": between(0.1, 9, 3, 40), "b": normal(40)}),
    **{op: Case(MANY) for op in ("sum", "mean", "min", "max")},
    **{
        op: Case(PAIR, k=None)
        for op in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
    },
    **{f"logical_{op}": Case(TRUTH, k=None) for op in ("and", "or", "xor")},
    "logical_not": Case({"x": flags(4, 9)}, k=None),
    **{f"bit_{op}": Case(WHOLE, k=None) for op in ("and", "or", "xor")},
    "bit_not": Case({"x": whole(-90, 90, 9)}, k=None),
    "bit_shift": Case(BITS, {"direction": "left"}, k=None),
    "is_nan": Case(X, k=None),
    "is_inf": Case(X, k=None),
    "where": Case({"condition": flags(3, 40), "a": normal(40), "b": normal(3, 1)}),
    "cast": Case(X, {"to": I8}, k=None),
    # products
    "matmul": Case({"a": normal(130, 300), "b": normal(300, 140), "bias": normal(140)}),
    "gemm": Case({"a": normal(70, 31), "b": normal(40, 70)}, {"trans_a": True, "trans_b": True}),
    "linear": Case({"x": normal(3, 65, 70), "w": normal(33, 70), "bias": normal(33)}),
    "conv1d": Case({"x": ROWS, "w": normal(4, 3, 3), "bias": normal(4)}, {"dilation": (2,)}),
    "conv2d": Case({"x": normal(2, 16, 20, 21), "w": normal(32, 8, 3, 3)}, {"groups": 2}),
    "conv3d": Case({"x": SPACE, "w": normal(4, 3, 2, 3, 2)}, {"stride": (1, 2, 2)}),
    "conv_transpose1d": Case({"x": ROWS, "w": normal(3, 4, 3)}, {"stride": (2,)}),
    "conv_transpose2d": Case({"x": IMAGE, "w": normal(3, 4, 2, 3), "bias": normal(4)}),
    "conv_transpose3d": Case({"x": SPACE, "w": normal(3, 2, 2, 2, 2)}, {"stride": (2, 1, 1)}),
    "einsum": Case(
        {"xs.0": normal(3, 30, 40), "xs.1": normal(40, 50), "xs.2": normal(3, 50)},
        {"equation": "bij,jk,bk->bi"},
    ),
    "det": Case(SQUARE),
    "inverse": Case(SQUARE),
    # norms and pools
    "batch_norm": Case({**MAPS, "mean": normal(6), "var": between(0.1, 9, 6)}),
    "layer_norm": Case({**X, "gamma": normal(40), "beta": normal(40)}),
    "rms_norm": Case({**X, "gamma": normal(40)}),
    "instance_norm": Case(MAPS),
    "group_norm": Case(MAPS, {"groups": 3}),
    "lrn": Case({"x": normal(2, 6, 7, 8)}, {"size": 3}),
    **{f"{p}_pool1d": Case({"x": ROWS}, SLID1) for p in ("max", "avg", "lp")},
    **{f"{p}_pool2d": Case({"x": IMAGE}, SLID) for p in ("max", "avg", "lp")},
    **{f"{p}_pool3d": Case({"x": SPACE}, SLID3) for p in ("max", "avg", "lp")},
    **{f"global_{p}_pool": Case({"x": SPACE}) for p in ("max", "avg", "lp")},
    **{f"adaptive_{p}_pool": Case({"x": IMAGE}, {"size": (4, 5)}) for p in ("max", "avg")},
    "max_pool_places": Case({"x": IMAGE}, COLUMNS),
    "max_unpool": Case({"x": normal(2, 3, 2), "places": apart(54, 2, 3, 2)}, {"size": (9,)}),
    "resize": Case({"x": IMAGE}, {"scales": (1.0, 1.0, 1.75, 0.625), "mode": "cubic"}),
    "resize_nearest": Case({"x": IMAGE}, {"scales": (1.0, 1.0, 1.75, 0.625)}),
    "grid_sample": Case({"x": IMAGE, "grid": between(-1.2, 1.2, 2, 4, 5, 2)}),
    "affine_grid": Case({"theta": normal(2, 2, 3), "size": just(2, 1, 4, 5)}, constant=("size",)),
    # along axes
    **{
        f"reduce_{r}": Case({"x": normal(4, 5, 6)}, REDUCED)
        for r in "mean sum prod max min l1 l2 log_sum_exp sum_square".split()
    },
    "reduce_log_sum": Case({"x": between(0.1, 9, 4, 5, 6)}, REDUCED),
    "cumsum": Case(X, ALONG),
    "cumprod": Case(X, ALONG),
    "arg_max": Case(X, ALONG, k=None),
    "arg_min": Case(X, ALONG, k=None),
    "top_k": Case(X, {"k": 7}),
    # what moves elements
    "reshape": Case({**X, "shape": just(5, -1)}, constant=("shape",)),
    "flatten": Case({"x": IMAGE}),
    "transpose": Case({"x": IMAGE}, {"perm": (2, 0, 3, 1)}),
    "squeeze": Case({"x": normal(1, 4, 1)}),
    "unsqueeze": Case(X, {"axes": (0, -1)}),
    "concat": Case({"xs.0": normal(2, 5), "xs.1": normal(2, 3)}, ALONG),
    "split": Case(X, {"sizes": (10, 30), "axis": 1}),
    "slice": Case(X, {"starts": (-1,), "ends": (3,), "axes": (1,), "steps": (-2,)}),
    "slice_at": Case({**X, "starts": just(-1), "ends": just(3)}, {"axes": (1,), "steps": (-2,)}),
    "pad": Case(X, {"pads": (1, 2, -1, 3), "mode": "edge"}),
    "expand": Case({"x": normal(3, 1), "shape": just(2, 1, 4)}, constant=("shape",)),
    "tile": Case(X, {"repeats": (2, 1)}),
    "depth_to_space": Case({"x": normal(1, 8, 2, 3)}, {"block": 2}),
    "space_to_depth": Case({"x": normal(1, 2, 4, 6)}, {"block": 2}),
    "unfold": Case({"x": IMAGE}, COLUMNS),
    "fold": Case(
        {"x": normal(2, 12, 18)},
        {"size": (4, 8), "kernel": (2, 3), "stride": (1, 1), "pad": (0,) * 4, "dilation": (1, 1)},
    ),
    "gather": Case({**X, "indices": whole(-40, 40, 2, 3)}, ALONG),
    "gather_elements": Case({**X, "indices": whole(-40, 40, 3, 9)}, ALONG),
    "gather_nd": Case({**X, "indices": whole(0, 3, 4, 2)}),
    "scatter_elements": Case(
        {**X, "indices": whole(0, 5, 3, 9), "updates": normal(3, 9)},
        {"axis": 1, "reduction": "add"},
    ),
    "scatter_nd": Case(
        {**X, "indices": whole(0, 3, 4, 1), "updates": normal(4, 40)}, {"reduction": "mul"}
    ),
    "one_hot": Case({"indices": whole(-5, 5, 6), "values": just(0.5, 2.0)}, {"depth": 5}),
    "nonzero": Case({"x": flags(4, 9)}, k=None),
    "unique": Case({"x": lambda rng: np.round(rng.standard_normal(40)).astype(np.float32)}),
    "trilu": Case(SQUARE),
    "eye_like": Case({"x": normal(4, 5)}, {"k": 1}),
    "flip": Case(X, {"axes": (1,)}),
    "reverse_sequence": Case({**X, "lengths": whole(0, 3, 40)}),
    "compress": Case({**X, "condition": flags(40)}, ALONG),
    "embedding": Case({"w": normal(7, 5), "indices": whole(0, 7, 3, 4)}),
    "embedding_bag": Case({"w": normal(7, 5), "indices": whole(0, 7, 3, 4)}),
    "shape": Case(X, k=None),
    "size": Case(X, k=None),
    "range": Case({"start": one(0.25), "limit": one(9.0), "step": one(0.375)}),
    "constant_of_shape": Case(
        {"shape": just(2, 3)}, {"value": Stored.of(np.array([0.1], np.float32))}
    ),
    # layers
    "rnn": Case(gated(1), {"direction": "bidirectional"}),
    "lstm": Case(gated(4, h0=normal(2, 3, 4)), {"direction": "bidirectional"}),
    "gru": Case(gated(3), {"direction": "bidirectional", "linear_before_reset": True}),
    "attention": Case({s: normal(2, 3, 17, 8) for s in "qkv"}, {"causal": True}),
    "rotary": Case({"x": normal(2, 3, 7, 8), "cos": normal(2, 7, 4), "sin": normal(2, 7, 4)}),
    # programs
    **dict.fromkeys(
        ("input", "output"), Case(X, text=_text("%x = input() : 3x40xf32\noutput(y=%x)"))
    ),
    "constant": Case(
        X,
        text=_text(
            "%x = input() : 3x40xf32\n%c = constant(0.5) : f32\n"
            "%y = mul(%x, %c) : 3x40xf32\noutput(y=%y)"
        ),
    ),
    "quantize": quantized_case(f"{QUANTIZED}{RAW}output(y=%r)"),
    "dequantize": quantized_case(f"{QUANTIZED}%y = dequantize(%q) : 2x12xf32\noutput(y=%y)"),
    "requantize": quantized_case(
        f"{QUANTIZED}%r = requantize(%q) : 2x12x!quant.uniform<i8:f32, 0.125>\noutput(y=%r)"
    ),
    "recode": quantized_case(f"{QUANTIZED}{RAW}output(y=%r)"),
    "choose_qparams": quantized_case(
        '%s, %z = choose_qparams(%x) {rule = "onnx.dynamic", storage = u8} : f32, u8\n'
        "output(s=%s, z=%z)"
    ),
    "qparams": quantized_case(f"{QUANTIZED}%s, %z = qparams(%q) : f32, u8\noutput(s=%s, z=%z)"),
    "fake_quantize": quantized_case(
        "%y = fake_quantize(%x) inner {code : !quant.uniform<i8:f32, 0.5>} : 2x12xf32\noutput(y=%y)"
    ),
    "matmul_integer": quantized_case(
        f"{QUANTIZED}{RAW}%t = transpose(%r) {{perm = (1, 0)}} : 12x2xu8\n"
        "%y = matmul_integer(%r, %t) : 2x2xi32\noutput(y=%y)"
    ),
    "conv_integer": Case({"x": small(0, 255, 1, 2, 5, 6), "w": small(0, 255, 3, 2, 2, 2)}, k=None),
    "fused": quantized_case(f"{QUANTIZED}%y = add(%q, %q) |> relu : {CODE}\noutput(y=%y)"),
    "foreign": Case(
        {"x": normal(1, 4, 1)},
        k=None,
        text=_text(
            "%x = input() : 1x4x1xf32\n"
            '%y = foreign(xs.0=%x) {framework = "onnx", op = "DFT", version = 17, '
            'slots = ((0,), (0,)), attrs = (("axis", 1),)} : 1x4x2xf32\noutput(y=%y)'
        ),
    ),
    "if": Case(
        {"c": lambda rng: np.array(True), "x": normal(2, 12)},
        text=_text(
            "%c = input() : bool\n%x = input() : 2x12xf32\n"
            "%y = if(%c, xs.0=%x) : 2x12xf32 with then {\n"
            "%a = input() : 2x12xf32\n%r = tanh(%a) : 2x12xf32\noutput(r=%r)\n"
            "} with else {\n%a = input() : 2x12xf32\noutput(r=%a)\n}\noutput(y=%y)"
        ),
    ),
    "loop": Case(
        {"n": one(3), "x": normal(2, 12), "c": normal(2, 12)},
        text=_text(
            "%n = input() : i64\n%x = input() : 2x12xf32\n%c = input() : 2x12xf32\n"
            "%y, %ys = loop(count=%n, vs.0=%x, xs.0=%c) : 2x12xf32, ?x2x12xf32 with body {\n"
            "%i = input() : i64\n%go = input() : bool\n%h = input() : 2x12xf32\n"
            f"%k = input() : 2x12xf32\n{BODY}output(go=%go, h=%s, part=%h)\n}}\n"
            "output(y=%y, ys=%ys)"
        ),
        k=4.0,  # a rounding a turn
    ),
    "scan": Case(
        {"h": normal(3), "xs": normal(5, 3)},
        text=_text(
            "%h = input() : 3xf32\n%xs = input() : 5x3xf32\n"
            "%y, %all = scan(ss.0=%xs, vs.0=%h) : 3xf32, 5x3xf32 with body {\n"
            "%h = input() : 3xf32\n%x = input() : 3xf32\n%s = mul(%h, %x) : 3xf32\n"
            "output(h=%s, part=%s)\n}\noutput(y=%y, all=%all)"
        ),
        k=6.0,  # a rounding a step
    ),
}


def missing(ops: Iterable[str]) -> list[str]:
    """The ops that have no case."""
    return sorted(set(ops) - set(CASES))


def digest(op: str, seed: int = 0) -> str:
    """A hash of the types, shapes and bytes of what an op's case computes."""
    case, state = CASES[op], hashlib.blake2b(digest_size=16)
    for made in case.compute(op, case.arrays(seed)):
        state.update(f"{made.dtype}{made.shape}".encode())
        state.update(np.ascontiguousarray(made).tobytes())
    return state.hexdigest()


if __name__ == "__main__":
    print(json.dumps({op: digest(op) for op in sys.argv[1:]}))
