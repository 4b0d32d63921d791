"""Random networks on words: attention, recurrent layers, norms and convolutions on one stream.

What is computed on integers is exact; what islands of floats give is near, and so are integers made
of it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import helper

from .onnxruntime.contrib import MS, F
from .onnxruntime.test_contrib_networks import Coded, Net

HEADS = 2


class Text(Net):
    """A network that grows layer by layer on tensors of N rows of T places of C integers.

    `fixed`: scales and zero points are constants, and nothing is given or computed.
    """

    def __init__(self, seed: int, *, fixed: bool = False) -> None:
        super().__init__(seed)
        self.fixed = fixed
        self.rounds: dict[str, str] = {}
        """Integers that floats were rounded to, each with its floats."""
        self.shown: dict[str, bool] = {}
        """Floats that are results, and whether they hang on sums of integers alone."""
        self.loose: set[str] = set()
        """Integers and floats of layers whose state is quantized as they run."""
        self.count, self.length = self.pick(1, 2), 4
        on_floats = [self.look, self.dynamic, self.steps, self.cells, self.norm, self.blocks]
        on_integers = [self.attend, self.attend, self.linear, self.embed, self.local, self.gated]
        on_integers += [
            self.residual,
            self.add,
            self.concat,
            self.sliced,
            self.summed,
            self.sigmoid,
        ]
        on_integers += [self.parted]
        for layers in (on_floats, on_integers):
            self.rng.shuffle(layers)
        self.layers = [x for pair in zip(on_integers, on_floats * 3, strict=False) for x in pair]

    # -- pieces -------------------------------------------------------------------------------

    def number(self, name: str, data: Any, *, fixed: bool = False) -> str:
        """A scale or zero point; all are constants where the network has none but these."""
        return super().number(name, data, fixed=fixed or self.fixed)

    def name(self, stem: str) -> str:
        return f"{stem}{len(self.nodes)}"

    def held(self, stem: str, data: Any) -> str:
        name = self.name(stem)
        while name in self.constants:
            name += "_"
        self.constants[name] = np.asarray(data)
        return name

    def normal(self, stem: str, *shape: int) -> str:
        return self.held(stem, (self.rng.normal(size=shape) / shape[-1] ** 0.5).astype(F))

    def do(self, op: str, inputs: list[str], domain: str = "", **attrs: Any) -> str:
        result = self.name(op.lower())
        self.emit(op, inputs, result, domain, **attrs)
        return result

    def product(self, x: Coded, columns: int) -> Coded:
        """Integers times weights of integers."""
        terms = x.shape[-1]
        parts, step = self.weight(self.name("w"), (terms, columns), columns)
        result = self.coded((*x.shape[:-1], columns), self.near(x.scale * step * 4 * terms**0.5))
        self.emit("QLinearMatMul", [*x.triple, *parts, *result.numbers], result.name, "")
        return result

    def meant(self, x: Coded) -> str:
        return self.do("DequantizeLinear", x.triple)

    def show(self, name: str, *, exact: bool = False) -> str:
        self.shown[name] = exact
        self.reals.append(name)
        return name

    def rounded(self, real: str, shape: tuple[int, ...], scale: float, *, exact: bool) -> Coded:
        """Floats as integers; they are a result of their own, too."""
        self.show(real, exact=exact)
        result = self.coded(shape, scale)
        self.rounds[result.name] = real
        self.emit("QuantizeLinear", [real, *result.numbers], result.name, "")
        return result

    def shaped(self, x: Coded, *shape: int) -> Coded:
        target = self.held("to", np.array(shape, np.int64))
        result = Coded(f"t{len(self.made)}", shape, x.scale, x.zero, x.numbers)
        self.made.append(result)
        self.emit("Reshape", [x.name, target], result.name, "")
        return result

    def turned(self, x: Coded, *perm: int) -> Coded:
        return self.moved("Transpose", x, tuple(x.shape[i] for i in perm), perm=list(perm))

    def image(self) -> Coded:
        """Integers of three axes."""
        rows = [c for c in self.made if len(c.shape) == 3 and c.shape[2] >= 4]
        return rows[-1] if self.pick(0, 2) else rows[self.pick(0, len(rows) - 1)]

    # -- on integers -----------------------------------------------------------------------------

    def start(self) -> None:
        wide = 8 * self.pick(1, 2)
        x = self.coded((self.count, self.length, wide), 0.125)
        self.feeds["x"] = (self.rng.normal(size=x.shape) * 12).astype(F)
        self.emit("QuantizeLinear", ["x", *x.numbers], x.name, "")
        self.embed()

    def embed(self) -> None:
        """Rows of a table of integers, some of them by places from the end."""
        features = 8 * self.pick(1, 2)
        rows, low = 11, np.iinfo(self.code).min
        table = self.held(
            "rows", self.rng.integers(low, low + 256, (rows, features)).astype(self.code)
        )
        ids = self.name("ids")
        shape = (self.count, self.length)
        self.feeds[ids] = self.rng.integers(-rows, rows, shape).astype(np.int64)
        result = self.coded((*shape, features), 0.0625)
        self.emit("Gather", [table, ids], result.name, "", axis=0)

    def linear(self) -> None:
        x = self.image()
        self.product(x, 4 * self.pick(1, 4))

    def residual(self) -> None:
        x = self.image()
        y = self.product(x, x.shape[2])
        self.pair("QLinearAdd", x, y, max(x.scale, y.scale))

    def attend(self) -> None:
        """Attention written out; perhaps one key and value for all queries."""
        x = self.image()
        n, t, _ = x.shape
        size = 4
        shared = bool(self.pick(0, 1))

        def apart(wide: int) -> Coded:
            heads = self.shaped(self.product(x, wide * size), n, t, wide, size)
            return self.turned(heads, 0, 2, 1, 3)

        q, k, v = apart(HEADS), apart(1 if shared else HEADS), apart(1 if shared else HEADS)
        k = self.turned(k, 0, 1, 3, 2)
        scores = self.coded((n, HEADS, t, t), self.near(q.scale * k.scale * 64))
        self.emit("QLinearMatMul", [*q.triple, *k.triple, *scores.numbers], scores.name, "")
        share = self.coded(scores.shape, 2.0**-8, -128 if self.signed else 0)
        inputs = [*scores.triple, *share.numbers]
        self.emit("QLinearSoftmax", inputs, share.name, axis=-1, opset=13)
        context = self.coded((n, HEADS, t, size), self.near(v.scale))
        self.emit("QLinearMatMul", [*share.triple, *v.triple, *context.numbers], context.name, "")
        flat = self.shaped(self.turned(context, 0, 2, 1, 3), n, t, HEADS * size)
        same = [c for c in self.made if c.shape == flat.shape and c is not flat]
        if same:
            self.pair("QLinearAdd", same[-1], flat, max(same[-1].scale, flat.scale))

    def local(self) -> None:
        """A convolution along the places, perhaps of each channel alone."""
        x = self.image()
        n, t, c = x.shape
        picture = self.shaped(self.turned(x, 0, 2, 1), n, c, t, 1)
        depthwise = bool(self.pick(0, 1))
        y = self.convolve(picture, c if depthwise else 1, c)
        n, c, t, width = y.shape
        self.turned(self.shaped(y, n, c, t * width), 0, 2, 1)

    def gated(self) -> None:
        x = self.image()
        gate = self.product(x, x.shape[2])
        share = self.coded(gate.shape, 2.0**-8, -127 if self.signed else 1)
        self.emit("QLinearSigmoid", [*gate.triple, *share.numbers], share.name)
        self.pair("QLinearMul", x, share, x.scale)

    def sliced(self) -> None:
        x = self.image()
        bounds = [self.held(s, np.array([v], np.int64)) for s, v in (("a", 1), ("b", 99), ("c", 1))]
        if x.shape[1] > 2:
            shape = (x.shape[0], x.shape[1] - 1, x.shape[2])
            result = Coded(f"t{len(self.made)}", shape, x.scale, x.zero, x.numbers)
            self.made.append(result)
            self.emit("Slice", [x.name, *bounds], result.name, "")

    def parted(self) -> None:
        """Integers cut in parts, which are weighed by one another."""
        x = self.image()
        half = x.shape[2] // 2
        if x.shape[2] != 2 * half:
            return
        shape = (*x.shape[:2], half)
        names = [f"t{len(self.made) + i}" for i in range(2)]
        parts = [Coded(n, shape, x.scale, x.zero, x.numbers) for n in names]
        self.made += parts
        sizes = [self.held("sizes", np.array([half, half], np.int64))]
        node = helper.make_node("Split", [x.name, *sizes], names, self.name("n"), axis=2)
        self.nodes.append(node)
        share = self.coded(shape, 2.0**-8, -127 if self.signed else 1)
        self.emit("QLinearSigmoid", [*parts[0].triple, *share.numbers], share.name)
        self.pair("QLinearMul", parts[1], share, x.scale)

    def summed(self) -> None:
        """A sum of integers as floats, exact, then integers again."""
        x, columns = self.image(), 8
        parts, step = self.weight(self.name("w"), (x.shape[2], columns), columns)
        inputs = [x.name, parts[0], x.numbers[0], parts[1], x.numbers[1], parts[2]]
        real = self.do("MatMulIntegerToFloat", inputs, MS)
        scale = self.near(x.scale * step * 4 * x.shape[2] ** 0.5)
        self.rounded(real, (*x.shape[:2], columns), scale, exact=True)

    # -- islands of floats ---------------------------------------------------------------------

    def look(self) -> None:
        """Attention of integers, a residual of floats and a norm; signed integers go as floats."""
        x = self.image()
        features = x.shape[2]
        real = self.meant(x)
        if self.signed:
            inputs = [
                real,
                self.normal("wa", features, 3 * features),
                self.normal("ba", 3 * features),
            ]
            attended = self.do(
                "Attention", inputs, MS, num_heads=HEADS, unidirectional=self.pick(0, 1)
            )
        else:
            parts, _ = self.weight(self.name("wa"), (features, 3 * features), 3 * features)
            bias = self.normal("ba", 3 * features)
            inputs = [x.name, parts[0], bias, x.numbers[0], parts[1], "", x.numbers[1], parts[2]]
            attended = self.do(
                "QAttention", inputs, MS, num_heads=HEADS, unidirectional=self.pick(0, 1)
            )
        self.show(attended)
        norm = [attended, real, self.held("g", np.ones(features, F)), self.normal("be", features)]
        normalized = self.do("SkipLayerNormalization", norm, MS)
        self.rounded(normalized, x.shape, 2.0**-5, exact=False)

    def dynamic(self) -> None:
        x, columns = self.image(), 8
        parts, step = self.weight(self.name("w"), (x.shape[2], columns), columns)
        real = self.do("DynamicQuantizeMatMul", [self.meant(x), *parts], MS)
        scale = self.near(x.scale * step * 4 * x.shape[2] ** 0.5)
        self.rounded(real, (*x.shape[:2], columns), scale, exact=True)

    def steps(self) -> None:
        """A recurrent layer that quantizes as it runs."""
        x, hidden = self.image(), 8
        parts: list[str] = []
        numbers: list[str] = []
        for stem, rows in (("lw", x.shape[2]), ("lr", hidden)):
            data = self.rng.integers(-90, 90, (1, rows, 4 * hidden)).astype(np.int8)
            parts.append(self.held(stem, data))
            numbers.append(self.held(f"{stem}s", np.array([0.01], F)))
            numbers.append(self.held(f"{stem}z", np.array([0], np.int8)))
        inputs = [*parts, self.normal("lb", 1, 8 * hidden), "", "", "", "", *numbers]
        self.recurrent("DynamicQuantizeLSTM", x, inputs, hidden, MS)

    def cells(self) -> None:
        """A recurrent layer of floats."""
        x, hidden = self.image(), 8
        op, gates = (("LSTM", 4), ("GRU", 3))[self.pick(0, 1)]
        shapes = ((1, gates * hidden, x.shape[2]), (1, gates * hidden, hidden))
        inputs = [self.normal(s, *d) for s, d in zip(("cw", "cr"), shapes, strict=True)]
        options = {"linear_before_reset": 1} if op == "GRU" and self.pick(0, 1) else {}
        bias = self.normal("cb", 1, 2 * gates * hidden)
        self.recurrent(op, x, [*inputs, bias], hidden, "", **options)

    def recurrent(
        self, op: str, x: Coded, inputs: list[str], hidden: int, domain: str, **attrs: Any
    ) -> None:
        first = self.do("Transpose", [self.meant(x)], perm=[1, 0, 2])
        run = self.do(op, [first, *inputs], domain, hidden_size=hidden, **attrs)
        flat = self.do("Squeeze", [run, self.held("one", np.array([1], np.int64))])
        rows_first = self.do("Transpose", [flat], perm=[1, 0, 2])
        result = self.rounded(rows_first, (*x.shape[:2], hidden), 2.0**-7, exact=False)
        if op == "DynamicQuantizeLSTM":
            self.loose |= {result.name, rows_first}

    def norm(self) -> None:
        """A norm of one operator, or by what it does."""
        x = self.image()
        real = self.meant(x)
        g, b = self.held("g", np.full(x.shape[2], 1.5, F)), self.normal("b", x.shape[2])
        if self.pick(0, 1):
            normalized = self.do("LayerNormalization", [real, g, b], axis=-1)
        else:
            last = self.held("last", np.array([-1], np.int64))
            deviation = self.do("Sub", [real, self.do("ReduceMean", [real, last], keepdims=1)])
            square = self.do("Pow", [deviation, self.held("two", np.array(2, F))])
            mean = self.do("ReduceMean", [square, last], keepdims=1)
            root = self.do("Sqrt", [self.do("Add", [mean, self.held("eps", np.array(1e-5, F))])])
            normalized = self.do("Mul", [self.do("Div", [deviation, root]), g])
            normalized = self.do("Add", [normalized, b])
        self.rounded(normalized, x.shape, 2.0**-5, exact=False)

    def blocks(self) -> None:
        """A product with weights of four bits, and an activation."""
        x, columns, size = self.image(), 8, 16
        count = -(-x.shape[2] // size)
        packed = self.held("wn", self.rng.integers(0, 256, (columns, count, size // 2), np.uint8))
        scales = self.held("sn", np.full((columns, count), 0.02, F))
        attrs: dict[str, Any] = {"K": x.shape[2], "N": columns, "bits": 4, "block_size": size}
        result = self.do("MatMulNBits", [self.meant(x), packed, scales], MS, **attrs)
        result = self.do("BiasGelu", [result, self.normal("bg", columns)], MS)
        self.rounded(result, (*x.shape[:2], columns), 2.0**-5, exact=False)

    def heads(self) -> None:
        """What all of it ends in."""
        x = self.image()
        pooled = self.do("GlobalAveragePool", [self.meant(x)])
        self.show(pooled)
