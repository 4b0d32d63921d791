"""Random float networks on words: embeddings, attention, recurrent layers, norms, products."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper

from .networks import Batch, Builder, Network, Real


class Sentences(Builder):
    """A network that grows layer by layer on tensors of N rows of T places."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.layers = [
            *(self.attend, self.attend, self.linear, self.feed, self.feed, self.cells, self.norm),
            *(self.embed, self.local, self.add, self.mul, self.concat, self.gated, self.sliced),
        ]
        self.rng.shuffle(self.layers)
        self.ids: dict[str, tuple[int, ...]] = {}

    def image(self) -> Real:
        rows = [r for r in self.made if len(r.shape) == 3 and r.shape[2] > 1]
        return rows[-1] if self.chance(0.6) else rows[self.pick(0, len(rows) - 1)]

    def shaped(self, x: Real, *shape: int) -> Real:
        return self.node("Reshape", [x.name, self.constant(np.array(shape, np.int64))], shape)

    def turned(self, x: Real, *perm: int) -> Real:
        return self.node("Transpose", [x.name], tuple(x.shape[p] for p in perm), perm=perm)

    def product(self, x: Real, columns: int, *, bias: bool = True) -> Real:
        weight = self.constant(self.normal(x.shape[-1], columns, scale=x.shape[-1] ** -0.5))
        result = self.node("MatMul", [x.name, weight], (*x.shape[:-1], columns))
        if not bias:
            return result
        bias_name = self.constant(self.normal(columns, scale=0.3))
        pair = [result.name, bias_name][:: -1 if self.chance(0.3) else 1]
        return self.node("Add", pair, result.shape)

    def linear(self) -> None:
        self.activation(self.product(self.image(), self.pick(2, 20), bias=self.chance(0.7)))

    def feed(self) -> None:
        """Two products around which their input goes, too."""
        x = self.image()
        inner = self.product(x, 2 * x.shape[2])
        op = ("Relu", "Tanh", "Sigmoid")[self.pick(0, 2)]
        inner = self.node(op, [inner.name], inner.shape)
        back = self.product(inner, x.shape[2])
        self.node("Add", [back.name, x.name], x.shape)

    def attend(self) -> None:
        """Attention written out, its keys and values perhaps of one head."""
        x = self.image()
        n, t, _ = x.shape
        heads, size = self.pick(1, 2), 4
        key_heads = heads if self.chance(0.6) else 1

        def apart(many: int) -> Real:
            return self.turned(
                self.shaped(self.product(x, many * size), n, t, many, size), 0, 2, 1, 3
            )

        q, k, v = apart(heads), apart(key_heads), apart(key_heads)
        k = self.turned(k, 0, 1, 3, 2)
        scores = self.node("MatMul", [q.name, k.name], (n, heads, t, t))
        if self.chance(0.6):
            scale = self.constant(np.array(0.5, np.float32))
            scores = self.node("Mul", [scores.name, scale], scores.shape)
        share = self.node("Softmax", [scores.name], scores.shape, axis=-1)
        context = self.node("MatMul", [share.name, v.name], (n, heads, t, size))
        flat = self.shaped(self.turned(context, 0, 2, 1, 3), n, t, heads * size)
        result = self.product(flat, x.shape[2])
        self.node("Add", [x.name, result.name], x.shape)

    def cells(self) -> None:
        x, hidden = self.image(), self.pick(2, 6)
        n, t, _ = x.shape
        op, gates = (("LSTM", 4), ("GRU", 3), ("RNN", 1))[self.pick(0, 2)]
        sides = 2 if self.chance(0.3) else 1
        shapes = ((sides, gates * hidden, x.shape[2]), (sides, gates * hidden, hidden))
        weights = [self.constant(self.normal(*s, scale=0.4)) for s in shapes]
        bias = self.constant(self.normal(sides, 2 * gates * hidden, scale=0.2))
        n, t, _ = x.shape
        first = self.turned(x, 1, 0, 2)
        side = "bidirectional" if sides == 2 else "forward"
        inputs = [first.name, *weights, bias]
        size = (t, sides, n, hidden)
        run = self.node(op, inputs, size, hidden_size=hidden, direction=side)
        self.shaped(self.turned(run, 2, 0, 1, 3), n, t, sides * hidden)

    def norm(self) -> None:
        x = self.image()
        params = [
            self.constant(self.normal(x.shape[2]) + 1),
            self.constant(self.normal(x.shape[2])),
        ]
        self.node("LayerNormalization", [x.name, *params], x.shape, axis=-1)

    def embed(self) -> None:
        name = f"ids{len(self.nodes)}"
        n, t, _ = self.made[0].shape
        self.ids[name] = (n, t)
        wide = self.pick(3, 12)
        self.node("Gather", [self.constant(self.normal(13, wide)), name], (n, t, wide), axis=0)

    def local(self) -> None:
        """A convolution of lines along the places, perhaps of each channel alone."""
        x = self.image()
        n, t, c = x.shape
        depthwise = self.chance(0.5)
        weight = self.constant(self.normal(c, 1 if depthwise else c, 3, scale=0.5))
        line = self.turned(x, 0, 2, 1)
        size, groups = (n, c, t), c if depthwise else 1
        names, taps = [line.name, weight], (3,)
        convolved = self.node("Conv", names, size, kernel_shape=taps, pads=(1, 1), group=groups)
        result = self.activation(convolved)
        op = (None, "MaxPool", "AveragePool")[self.pick(0, 2)]
        if op:
            window = {"kernel_shape": (3,), "pads": (1, 1), "strides": (1,)}
            result = self.node(op, [result.name], result.shape, **window)
        self.turned(result, 0, 2, 1)

    def concat(self) -> None:
        x = self.image()
        same = [r for r in self.made if len(r.shape) == 3 and r.shape[:2] == x.shape[:2]]
        second = same[self.pick(0, len(same) - 1)]
        if x.shape[2] + second.shape[2] <= 40:
            shape = (*x.shape[:2], x.shape[2] + second.shape[2])
            self.node("Concat", [x.name, second.name], shape, axis=2)

    def gated(self) -> None:
        x = self.image()
        gate = self.product(x, x.shape[2])
        share = self.node("Sigmoid", [gate.name], gate.shape)
        self.node("Mul", [x.name, share.name], x.shape)

    def sliced(self) -> None:
        x = self.image()
        if x.shape[1] > 2:
            bounds = [self.constant(np.array([v], np.int64)) for v in (1, 99, 1)]
            self.node("Slice", [x.name, *bounds], (x.shape[0], x.shape[1] - 1, x.shape[2]))


def sentences(seed: int, layers: int = 5) -> Network:
    """A float network on words by seed."""
    b = Sentences(seed)
    shape = (b.pick(1, 2), b.pick(2, 5), b.pick(4, 12))
    b.made.append(Real("x", shape))
    for layer in b.layers[:layers]:
        layer()
    b.product(b.image(), b.pick(2, 9))
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    inputs += [helper.make_tensor_value_info(n, TensorProto.INT64, s) for n, s in b.ids.items()]
    read = {i for n in b.nodes for i in n.input}
    loose = [r for r in b.made[1:] if r.name not in read]
    outputs = [helper.make_tensor_value_info(r.name, TensorProto.FLOAT, r.shape) for r in loose]
    graph = helper.make_graph(b.nodes, "net", inputs, outputs, b.constants)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(proto, full_check=True)

    def batch(scale: float) -> Batch:
        ids = {n: b.rng.integers(-13, 13, s) for n, s in b.ids.items()}
        return {"x": b.normal(*shape, scale=scale), **ids}

    return Network(seed, proto, (batch(1.0), batch(1.0)), batch(1.5))
