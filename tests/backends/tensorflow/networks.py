"""Float networks that are quantized for TensorFlow, built op by op."""

import numpy as np

import qir
from qir.ir.attrs import Attr
from qir.ir.node import Value


class Net:
    """A network of images with channels second, as most frontends give them."""

    def __init__(self, channels: int, size: int, seed: int) -> None:
        text = f"%x = input() : (N)x{channels}x{size}x{size}xf32"
        self.graph = qir.parse(f"graph main as native {{ {text}  output(y=%x) }}")
        self.rng = np.random.default_rng(seed)
        self.x = self.graph["x"]

    def conv(
        self,
        x: Value,
        outer: int,
        kernel: int = 3,
        stride: int = 1,
        groups: int = 1,
        pad: int | None = None,
        bias: bool = True,
    ) -> Value:
        inner = x.type.shape[1]
        assert isinstance(inner, int)
        far = (2 / (inner // groups * kernel * kernel)) ** 0.5
        w = self.rng.normal(0, far, (outer, inner // groups, kernel, kernel)).astype(np.float32)
        given = {"x": x, "w": self.graph.constant(w)}
        if bias:
            given["bias"] = self.graph.constant(self.rng.normal(0, 0.1, outer).astype(np.float32))
        pads = (kernel // 2 if pad is None else pad,) * 4
        attrs: dict[str, Attr] = {"stride": (stride, stride), "pad": pads, "groups": groups}
        return self.graph.add("conv2d", given, attrs).result

    def dense(self, x: Value, outer: int) -> Value:
        inner = x.type.shape[1]
        assert isinstance(inner, int)
        w = self.rng.normal(0, (2 / inner) ** 0.5, (inner, outer)).astype(np.float32)
        b = self.rng.normal(0, 0.1, outer).astype(np.float32)
        given = {"a": x, "b": self.graph.constant(w), "c": self.graph.constant(b)}
        return self.graph.add("gemm", given).result

    def op(self, op: str, *read: Value, **attrs: Attr) -> Value:
        slots = ("a", "b") if len(read) == 2 else ("x",)
        return self.graph.add(op, dict(zip(slots, read, strict=True)), attrs).result

    def relu(self, x: Value) -> Value:
        return self.op("relu", x)

    def relu6(self, x: Value) -> Value:
        return self.op("clip", x, min=0.0, max=6.0)

    def concat(self, *parts: Value) -> Value:
        operands = {f"xs.{i}": part for i, part in enumerate(parts)}
        return self.graph.add("concat", operands, {"axis": 1}).result

    def head(self, x: Value, classes: int) -> qir.Graph:
        x = self.op("flatten", self.op("global_avg_pool", x))
        return self.ends(self.dense(x, classes))

    def ends(self, x: Value) -> qir.Graph:
        self.graph.set_operand(self.graph.output, "y", x)
        return self.graph

    def feeds(self, batch: int, *, low: bool = True) -> dict[str, np.ndarray]:
        shape = tuple(size for size in self.x.type.shape if isinstance(size, int))
        x = self.rng.normal(0, 1, (batch, *shape)).astype(np.float32)
        return {"x": x if low else np.abs(x)}


def residual(seed: int) -> Net:
    """Blocks with identity and projection shortcuts, with a pool that pads before them."""
    net = Net(3, 24, seed)
    x = net.relu(net.conv(net.x, 8, 7, 2))
    x = net.op("max_pool2d", x, kernel=(3, 3), stride=(2, 2), pad=(1, 1, 1, 1))
    for outer, stride in ((8, 1), (16, 2), (16, 1)):
        y = net.conv(net.relu(net.conv(x, outer, 3, stride)), outer)
        same = outer == x.type.shape[1]
        short = x if same else net.conv(x, outer, 1, stride)
        x = net.relu(net.op("add", y, short))
    net.head(x, 10)
    return net


def inverted(seed: int) -> Net:
    """Inverted residuals with depthwise convolutions and relu6, sums without an activation."""
    net = Net(3, 24, seed)
    x = net.relu6(net.conv(net.x, 8, 3, 2))
    for outer, stride in ((8, 1), (12, 2), (12, 1)):
        inner = x.type.shape[1]
        assert isinstance(inner, int)
        y = net.relu6(net.conv(x, inner * 4, 1))
        y = net.relu6(net.conv(y, inner * 4, 3, stride, groups=inner * 4))
        y = net.conv(y, outer, 1)
        x = net.op("add", y, x) if stride == 1 and outer == inner else y
    net.head(x, 10)
    return net


def padded(seed: int) -> Net:
    """Padding in layers of its own, as Keras writes strides; one is read by a pool too."""
    net = Net(3, 24, seed)

    def pad(x: Value, *sides: int) -> Value:
        top, left, bottom, right = sides
        return net.op("pad", x, pads=(0, 0, top, left, 0, 0, bottom, right))

    x = net.relu(net.conv(pad(net.x, 0, 0, 1, 1), 8, 3, 2, pad=0))
    x = net.relu6(net.conv(pad(x, 0, 1, 2, 0), 8, 3, 2, groups=8, pad=1))
    wide = pad(net.conv(x, 12, 1), 1, 1, 1, 1)
    y = net.op("max_pool2d", wide, kernel=(3, 3))
    net.head(net.concat(net.conv(wide, 6, 3, pad=0), net.conv(y, 6, 3)), 10)
    return net


def branches(seed: int) -> Net:
    """Branches that are joined, pools between them, groups, strides that pad unevenly."""
    net = Net(4, 17, seed)
    x = net.relu(net.conv(net.x, 8, 3, 2))
    a = net.relu(net.conv(x, 8, 1))
    b = net.relu(net.conv(net.relu(net.conv(x, 6, 1)), 8, 5))
    c = net.op("avg_pool2d", x, kernel=(3, 3))
    joined = net.concat(a, b)
    x = net.relu(net.conv(joined, 12, 3, 1, groups=4))
    x = net.op("max_pool2d", x, kernel=(2, 2), stride=(2, 2))
    x = net.op("flatten", x)
    d = net.op("flatten", net.op("sigmoid", net.conv(c, 2, 3, 2)))
    y = net.relu(net.dense(x, 20))
    net.ends(net.op("softmax", net.op("add", net.dense(y, 32), d)))
    return net
