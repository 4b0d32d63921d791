"""Random integer networks by seed, with numbers chosen by hand to hit ties and saturate.

Accumulators are made multiples of 2^j, and multipliers 2^-(j+s): so sums land exactly between two
integers once in 2^s; multipliers of an odd number of these do, too, and come to both ends. Three
styles: `dyadic` has scales that are powers of two, or small parts of one, so that multipliers are
these; `order` has any scales, but multipliers within a unit in the last place of these, so that the
order in which they are multiplied shows at ties; `free` has any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from .spelling import (
    CARRIERS,
    MICROSOFT,
    PROTO,
    Attrs,
    Codes,
    Kind,
    Qdq,
    QOperator,
    Spelling,
    Tail,
    Weight,
    bounds,
)
from .tastes import ALL, STYLES, Style, Taste
from .windows import broadcast, broadcasts, window

Feeds: TypeAlias = dict[str, NDArray[np.generic]]


@dataclass(frozen=True)
class Model:
    """A network in one spelling, with inputs for it."""

    seed: int
    proto: onnx.ModelProto
    feeds: Feeds
    codes: tuple[Codes, ...]
    """Every tensor of integers that is no constant, in order."""

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [c.name for c in self.codes]


class Maker:
    """A network that grows layer by layer; the draws do not depend on the spelling."""

    def __init__(self, seed: int, taste: Taste, spelling: Spelling) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed
        self.taste = taste
        self.net = spelling
        self.made: list[Codes] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.feeds: Feeds = {}
        self.rotation = list(taste.ops or ALL)
        self.rng.shuffle(self.rotation)

    # -- draws --------------------------------------------------------------------------------

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, low: int, high: int) -> int:
        """A whole number, both ends included."""
        return int(self.rng.integers(low, high + 1))

    def zero(self) -> int:
        """A zero point: mostly odd, sometimes at an end."""
        low, high = bounds(self.taste.kind)
        if self.chance(0.15):
            return low if self.chance(0.7) else high
        return self.pick(low // 2 + 20, high // 2 - 20) * 2 + 1

    def free_scale(self) -> np.float32:
        if self.taste.style == "dyadic":
            return np.float32(2.0 ** self.pick(-6, -3))
        return np.float32(2.0 ** self.rng.uniform(-6, -3))

    def near(self, value: float) -> np.float32:
        """A scale close to a wanted one: the same, a unit in the last place off, or freely off."""
        if self.taste.style == "dyadic":
            return np.float32(value)
        if self.taste.style == "order":
            exact = np.float32(value)
            return np.float32(np.nextafter(exact, np.float32(np.inf if self.chance(0.5) else 0)))
        return np.float32(value * self.rng.uniform(0.7, 1.4))

    def mean(self, x: Codes, count: int) -> np.float32:
        """The scale of means of some integers: half of these tie, and a few leave the range."""
        if self.chance(0.25):
            return self.near(float(x.scale) * 2.0 ** self.pick(-1, 1))
        return self.near(float(x.scale) * 2 / (count * (3 if count <= 4 else 1)))

    def result(self, shape: tuple[int, ...], scale: np.float32, zero: int | None = None) -> Codes:
        """Adds a quantized tensor to those that later layers may take."""
        name = f"t{len(self.made)}"
        if self.chance(0.1):
            name = f"layer.{len(self.made)}/out:0"
        integers = Codes(name, shape, scale, self.zero() if zero is None else zero, self.taste.kind)
        self.made.append(integers)
        return integers

    def like(self, x: Codes, shape: tuple[int, ...]) -> Codes:
        """Adds a result of the same map."""
        return self.result(shape, x.scale, x.zero)

    def any(self, fits: Callable[[Codes], bool]) -> Codes | None:
        """One of the tensors so far that fits, the later ones rather."""
        fitting = [c for c in self.made if fits(c)]
        if not fitting:
            return None
        return fitting[-1] if self.chance(0.5) else fitting[self.pick(0, len(fitting) - 1)]

    def tail(self, result_map: Codes, share: float = 0.35) -> tuple[Codes, Tail | None]:
        """A relu or clip now and then, and the result's map to go with it.

        A share is finer, for nothing below zero is left: what is above the range is met, too.
        """
        if not self.chance(self.taste.tails):
            return result_map, None
        low, high = bounds(self.taste.kind)
        loose = self.chance(self.taste.loose)
        clip = self.chance(0.4)
        finer = np.float32(1 / 3 if self.chance(share) else 1)
        result_map = replace(
            result_map,
            zero=result_map.zero if loose else low,
            scale=np.float32(result_map.scale * finer),
        )
        self.made[-1] = result_map
        top = float(np.float32(result_map.scale) * np.float32(high - low))
        return result_map, Tail((0.0, top * (0.5 if loose else 1.0)) if clip else None)

    # -- operands -----------------------------------------------------------------------------

    def real_input(self, shape: tuple[int, ...]) -> Codes:
        """A float input and its integers: ties, saturation on both sides, and specials."""
        integers = self.result(shape, self.free_scale())
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))
        low, high = bounds(self.taste.kind)
        halves = self.rng.integers(
            2 * (low - integers.zero) - 60, 2 * (high - integers.zero) + 60, shape
        )
        real = halves.astype(np.float32) * np.float32(0.5) * integers.scale
        if self.chance(self.taste.specials):
            specials = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-45, -0.0], np.float32)
            real.reshape(-1)[self.rng.integers(0, real.size, specials.size)] = specials
        self.feeds[name] = real
        self.net.quantize(name, integers)
        return integers

    def coded_input(
        self, shape: tuple[int, ...], scale: np.float32 | None = None, spread: int | None = None
    ) -> Codes:
        """An input that is integers already; with a spread these are a few steps from zero."""
        default_scale = np.float32(1.5 if spread else 1) * self.free_scale()
        integers = self.result(shape, default_scale if scale is None else scale)
        self.inputs.append(
            helper.make_tensor_value_info(integers.name, PROTO[integers.kind], shape)
        )
        self.feeds[integers.name] = (
            self.close(shape, integers, spread) if spread else self.data(shape, integers.kind)
        )
        return integers

    def close(
        self, shape: tuple[int, ...], mapped: Codes | Weight, spread: int
    ) -> NDArray[np.integer]:
        """Integers that are few and odd steps from zero: products with them are ties often."""
        steps: NDArray[np.int64] = self.rng.normal(0, spread, shape).round().astype(np.int64) | 1
        return np.clip(steps + mapped.zero, *bounds(mapped.kind)).astype(CARRIERS[mapped.kind])

    def data(self, shape: tuple[int, ...], kind: Kind) -> NDArray[np.integer]:
        """Random integers, a fifth of them at the ends."""
        low, high = bounds(kind)
        inner = self.rng.integers(low, high + 1, shape)
        ends = np.where(self.rng.random(shape) < 0.5, low, high)
        return np.where(self.rng.random(shape) < 0.2, ends, inner).astype(CARRIERS[kind])

    def weight(
        self, shape: tuple[int, ...], axis: int, depth: int, x: Codes, result_scale: np.float32
    ) -> tuple[Weight, int, int]:
        """Weights of a product of some depth, the power of two in them, and that of a tie."""
        kind: Kind = "u8" if self.taste.kind == "u8" and self.chance(0.2) else "i8"
        j = self.pick(0, 4)
        zero = 128 if kind == "u8" else 0
        base = float(result_scale) / float(x.scale) * 2.0**-j
        density = min(1.0, 8 / depth)
        small_integers = self.rng.integers(-2, 3, shape) * (self.rng.random(shape) < density)
        if self.chance(0.1):
            # Full range: the ends of the type, and odd integers.
            small_integers = self.rng.integers(-127, 128, shape) * (
                self.rng.random(shape) < 6 / depth
            )
            j = 0
            base *= 2.0**-5
        s = max(1, round(np.log2(np.sqrt(depth * density))))
        count = shape[axis] if self.chance(0.6) else None
        base *= 2.0**-s
        if count is None:
            scale = np.asarray(self.near(base))
        else:
            steps = self.rng.integers(0, 2, count) - (s < 2)
            scale = np.array([self.near(base * 2.0**d) for d in steps], np.float32)
        data = np.clip(small_integers * 2**j + zero, *bounds(kind)).astype(CARRIERS[kind])
        name = f"w{len(self.net.nodes)}"
        return Weight(name, data, scale, zero, None if count is None else axis), j, s

    def bias(self, count: int, j: int, s: int) -> NDArray[np.int32] | None:
        """A bias in accumulator units: none, one that makes ties, or any."""
        if self.chance(0.3):
            return None
        if self.chance(self.taste.wraps):
            limit = 2**31 - 1
            ends = self.rng.choice([-limit, limit], count) + self.rng.integers(-9, 1, count)
            return ends.astype(np.int64).clip(-limit, limit).astype(np.int32)
        if self.chance(0.85):
            return (self.rng.integers(-60, 61, count) << (j + s - 1)).astype(np.int32)
        return self.rng.integers(-4000, 4001, count).astype(np.int32)

    # -- layers -------------------------------------------------------------------------------

    def grow(self) -> bool:
        """Adds the next kind of layer that fits what there is; False where none does."""
        for _ in range(len(self.rotation)):
            op = self.rotation.pop(0)
            self.rotation.append(op)
            before = len(self.made)
            getattr(self, op)()
            if len(self.made) > before:
                return True
        return False

    def image(self) -> Codes | None:
        return self.any(lambda c: len(c.shape) == 4)

    def conv(self) -> None:
        x = self.image()
        if x is None:
            return
        groups = self.pick(2, 4) if self.chance(0.3) else 1
        if x.shape[1] % groups:
            groups = 1
        self.convolve(x, groups, self.pick(1, 24) * groups, self.pick(1, 3), self.pick(1, 3))

    def depthwise(self) -> None:
        x = self.image()
        if x is not None:
            k = self.pick(2, 5)
            self.convolve(x, x.shape[1], x.shape[1] * self.pick(1, 2), k, k)

    def pointwise(self) -> None:
        x = self.image()
        if x is not None:
            self.convolve(x, 1, self.pick(1, 70), 1, 1)

    def convolve(self, x: Codes, groups: int, channels: int, kh: int, kw: int) -> None:
        n, c, h, w = x.shape
        stride = (self.pick(1, 2), self.pick(1, 2)) if self.chance(0.4) else (1, 1)
        dilation = (2, 2) if self.chance(0.2) else (1, 1)
        pads = tuple(self.pick(0, 2) for _ in range(4)) if self.chance(0.7) else (0, 0, 0, 0)
        size = window((h, w), (kh, kw), stride, pads, dilation)
        if size is None or n * channels * size[0] * size[1] > 60000:
            return
        depth = c // groups * kh * kw
        scale = self.free_scale()
        weight, j, s = self.weight((channels, c // groups, kh, kw), 0, depth, x, scale)
        attrs: dict[str, int | float | str | tuple[int, ...]] = {
            "kernel_shape": (kh, kw),
            "strides": stride,
            "pads": pads,
            "dilations": dilation,
            "group": groups,
        }
        result, tail = self.tail(self.result((n, channels, *size), scale))
        bias = self.bias(channels, j, s)
        self.net.op("Conv", [x, weight], result, attrs, bias=bias, tail=tail)

    def gemm(self) -> None:
        x = self.any(lambda c: len(c.shape) == 2)
        if x is None:
            self.flatten()
            x = self.any(lambda c: len(c.shape) == 2)
            if x is None:
                return
        rows, depth = x.shape
        columns, transposed = self.pick(1, 70), self.chance(0.5)
        scale = self.free_scale()
        shape = (columns, depth) if transposed else (depth, columns)
        weight, j, s = self.weight(shape, 0 if transposed else 1, depth, x, scale)
        result, tail = self.tail(self.result((rows, columns), scale))
        bias = self.bias(columns, j, s)
        attrs: dict[str, int | float] = {"transB": int(transposed)}
        if self.chance(self.taste.gains):
            attrs["alpha"] = (0.5, 2.0, 0.3)[self.pick(0, 2)]
        self.net.op("Gemm", [x, weight], result, attrs, bias=bias, tail=tail)

    def matmul(self) -> None:
        x = self.any(lambda c: len(c.shape) >= 2 and c.shape[-1] <= 400)
        if x is None:
            return
        columns, scale = self.pick(1, 40), self.free_scale()
        weight, _, _ = self.weight((x.shape[-1], columns), 1, x.shape[-1], x, scale)
        result, tail = self.tail(self.result((*x.shape[:-1], columns), scale), 0.5)
        self.net.op("MatMul", [x, weight], result, tail=tail)

    def attend(self) -> None:
        """A product of two activations."""
        a = self.any(lambda c: len(c.shape) == 4)
        if a is None:
            return
        outer = a.shape[:2]
        if self.chance(0.5):
            self._select(a)
            return
        b = self.any(lambda c: len(c.shape) == 4 and c.shape[:2] == outer)
        if b is None or b.shape[2] != a.shape[3]:
            transposed = self.like(a, (*a.shape[:2], a.shape[3], a.shape[2]))
            self.net.op("Transpose", [a], transposed, {"perm": (0, 1, 3, 2)})
            b = transposed
        scale = float(a.scale) * float(b.scale) * 64 * np.sqrt(a.shape[3])
        result = self.result(
            (*a.shape[:3], b.shape[3]), self.near(float(2.0 ** round(np.log2(scale))))
        )
        self.net.op("MatMul", [a, b], result)

    def _select(self, a: Codes) -> None:
        """A product with numbers of few steps that are not known before."""
        b = self.coded_input((*a.shape[:2], a.shape[3], self.pick(2, 20)), spread=1)
        scale = float(a.scale) * float(b.scale) * 2.0 ** round(np.log2(a.shape[3]) / 2) / 1.5
        result = self.result((*a.shape[:3], b.shape[3]), self.near(scale))
        self.net.op("MatMul", [a, b], result)

    def pair(self) -> tuple[Codes, Codes] | None:
        """Two tensors of which the second goes with the first."""
        a = self.any(lambda c: True)
        if a is None:
            return None
        shape = a.shape
        b = self.any(lambda c: broadcasts(c.shape, shape))
        return None if b is None else (a, b)

    def add(self) -> None:
        if (pair := self.pair()) is None:
            return
        a, b = pair
        if self.chance(0.5):
            b = self.coded_input(b.shape, self.near(float(a.scale)))
        if self.chance(0.3):
            a, b = b, a
        steps = 2 if self.chance(0.2) else 2 / 3
        scale = self.near(steps * max(float(a.scale), float(b.scale)))
        result, tail = self.tail(self.result(broadcast(a.shape, b.shape), scale))
        if a.shape != result.shape and not self.taste.narrow_first:
            a, b = b, a
        self.net.op("Add", [a, b], result, tail=tail)

    def add_constant(self) -> None:
        x = self.any(lambda c: True)
        if x is None:
            return
        shapes = [(), (1,), x.shape[-1:], x.shape]
        if len(x.shape) == 4:
            shapes.append((1, x.shape[1], 1, 1))
        shape = shapes[self.pick(0, len(shapes) - 1)]
        data, scale = self.data(shape, x.kind), self.near(float(x.scale))
        weight = Weight(f"k{len(self.net.nodes)}", data, np.asarray(scale), self.zero())
        op = "Add" if self.chance(0.6) else "Mul"
        result_scale = 2.0 * max(float(x.scale), float(scale))
        if op == "Mul":
            weight = replace(weight, data=self.close(shape, weight, self.pick(2, 4)))
            result_scale = float(x.scale) * float(scale) * 2
        pair: list[Codes | Weight] = [x, weight]
        result, tail = self.tail(self.result(x.shape, self.near(result_scale)))
        swapped = self.chance(0.3) and (self.taste.narrow_first or shape == x.shape)
        self.net.op(op, pair[:: -1 if swapped else 1], result, tail=tail)

    def mul(self) -> None:
        if (pair := self.pair()) is None:
            return
        a, b = pair
        if self.chance(0.9):
            self._mul(a, self.coded_input(b.shape, spread=self.pick(2, 4)), 2)
        else:
            self._mul(a, b, 2.0 ** self.pick(3, 5))

    def _mul(self, a: Codes, b: Codes, steps: float) -> None:
        scale = float(a.scale) * float(b.scale) * steps
        result, tail = self.tail(self.result(broadcast(a.shape, b.shape), self.near(scale)))
        self.net.op("Mul", [a, b], result, tail=tail)

    def scale(self) -> None:
        """Channels weighted by their own mean, as squeeze-and-excitation does."""
        x = self.image()
        if x is None:
            return
        coarse = self.chance(0.8)
        self._global_pool(x, 8 if coarse else None)
        self._mul(x, self.made[-1], 8 / 1.5 if coarse else 2.0 ** self.pick(3, 5))

    def requantize(self) -> None:
        """The same floats in other integers, whose range has more in common than zero."""
        x = self.any(lambda c: True)
        if x is not None:
            zero = self.pick(30, 97) * 2 + 1 + bounds(x.kind)[0]
            result = self.result(x.shape, self.near(2.0 * float(x.scale)), zero)
            self.net.op("Requantize", [x], result)

    def max_pool(self) -> None:
        self._pool("MaxPool")

    def average_pool(self) -> None:
        self._pool("AveragePool")

    def _pool(self, op: str) -> None:
        x = self.image()
        if x is None:
            return
        kernel = (self.pick(1, 3), self.pick(1, 3))
        stride = (self.pick(1, 2), self.pick(1, 2))
        pads = tuple(self.pick(0, kernel[i % 2] - 1) for i in range(4))
        ceil = self.chance(0.3)
        size = window(x.shape[2:], kernel, stride, pads, (1, 1), ceil)
        if size is None:
            return
        attrs: dict[str, int | float | str | tuple[int, ...]] = {
            "kernel_shape": kernel,
            "strides": stride,
            "pads": pads,
            "ceil_mode": int(ceil),
        }
        if op == "MaxPool":
            result = self.like(x, (*x.shape[:2], *size))
        else:
            attrs["count_include_pad"] = int(self.chance(0.3))
            result = self.result((*x.shape[:2], *size), self.mean(x, kernel[0] * kernel[1]))
        self.net.op(op, [x], result, attrs)

    def global_pool(self) -> None:
        x = self.image()
        if x is not None:
            self._global_pool(x)

    def _global_pool(self, x: Codes, steps: float | None = None) -> None:
        steps = steps or 2.0 ** self.pick(1, 4) / (x.shape[2] * x.shape[3])
        result = self.result((*x.shape[:2], 1, 1), self.near(float(x.scale) * steps))
        self.net.op("GlobalAveragePool", [x], result)

    def concat(self) -> None:
        first = self.any(lambda c: len(c.shape) > 1)
        if first is None:
            return
        rank = len(first.shape)
        axis = 1 if self.chance(0.6) else self.pick(0, rank - 1)

        def outer(shape: tuple[int, ...]) -> tuple[int, ...]:
            return (len(shape), *shape[:axis], *shape[axis + 1 :])

        fitting = [c for c in self.made if outer(c.shape) == outer(first.shape)]
        parts = [first, *fitting[: self.pick(1, 3)]]
        length = sum(p.shape[axis] for p in parts)
        shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
        if length > 96 or np.prod(shape) > 20000:
            return
        same = self.chance(0.5)
        steps = 2.0 if self.chance(0.5) else 2 / 3
        scale = first.scale if same else self.near(steps * float(first.scale))
        result = self.result(shape, scale, first.zero if same else None)
        self.net.op("Concat", parts, result, {"axis": axis})

    def sigmoid(self) -> None:
        x = self.any(lambda c: True)
        if x is not None:
            self.net.op("Sigmoid", [x], self.result(x.shape, self.near(2.0**-8)))

    def softmax(self) -> None:
        x = self.any(lambda c: len(c.shape) >= 2 and max(c.shape[1:]) > 1)
        if x is not None:
            low = bounds(x.kind)[0]
            axes = [i for i, size in enumerate(x.shape) if size > 1]
            axis = axes[-1] if self.chance(0.6) else axes[self.pick(0, len(axes) - 1)]
            plain = self.chance(0.7)
            scale = np.float32(2.0**-8) if plain else self.near(2.0**-7)
            result = self.result(x.shape, scale, low if plain else None)
            self.net.op("Softmax", [x], result, {"axis": axis})

    def reshape(self) -> None:
        x = self.any(lambda c: len(c.shape) == 4)
        if x is not None:
            n, c, h, w = x.shape
            shape = (n, h * w, c, 1) if self.chance(0.5) else (n, c * h, w)
            target = self.net.constant(f"shape{len(self.net.nodes)}", np.array(shape, np.int64))
            self.net.op("Reshape", [x], self.like(x, shape), extra=[target])

    def flatten(self) -> None:
        x = self.any(lambda c: len(c.shape) == 4 and int(np.prod(c.shape[1:])) <= 1200)
        if x is not None:
            shape = (x.shape[0], int(np.prod(x.shape[1:])))
            self.net.op("Flatten", [x], self.like(x, shape), {"axis": 1})

    def transpose(self) -> None:
        x = self.any(lambda c: len(c.shape) == 4)
        if x is not None:
            perm = tuple(int(i) for i in self.rng.permutation(4))
            shape = tuple(x.shape[i] for i in perm)
            self.net.op("Transpose", [x], self.like(x, shape), {"perm": perm})

    def model(self, *, exposed: bool) -> Model:
        """What has grown so far; `exposed`: every tensor of integers is an output."""
        if isinstance(self.net, Qdq):
            self.made = [c for c in self.made if c.name not in self.net.moved]
        outputs = self._finish()
        input_names = {i.name for i in self.inputs}
        if exposed:
            outputs += [info(c) for c in self.made if c.name not in input_names]
        constants = list(self.net.initializers.values())
        graph = helper.make_graph(self.net.nodes, "net", self.inputs, outputs, constants)
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
        proto = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        onnx.checker.check_model(proto)
        return Model(self.seed, proto, self.feeds, tuple(self.made))

    def _finish(self) -> list[onnx.ValueInfoProto]:
        """Gives the last tensor as floats, and perhaps a Gemm whose sums are not rounded."""
        last = self.made[-1]
        self.net.dequantize(last, "y")
        outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, last.shape)]
        x = self.any(lambda c: len(c.shape) == 2)
        if x is not None and self.chance(self.taste.real_ends):
            wide = self.pick(1, 20)
            shape = (x.shape[1], wide)
            weight, j, s = self.weight(shape, 1, x.shape[1], x, self.free_scale())
            self.net.real_result([x, weight], "z", {"transB": 0}, self.bias(wide, j, s))
            sums = helper.make_tensor_value_info("z", TensorProto.FLOAT, (x.shape[0], wide))
            outputs.append(sums)
        return outputs


def make(
    seed: int,
    taste: Taste,
    *,
    qdq: bool = False,
    shared: bool = True,
    bare: bool = False,
    exposed: bool = False,
) -> Model:
    """A network by seed; `exposed`: every tensor of integers is an output."""
    spelling: Spelling = Qdq(shared, bare) if qdq else QOperator()
    maker = Maker(seed, taste, spelling)
    shape = (maker.pick(1, 3), maker.pick(1, 20), maker.pick(3, 11), maker.pick(3, 11))
    start = maker.coded_input if maker.chance(0.3) else maker.real_input
    start(shape)
    if maker.chance(0.3):
        maker.real_input(shape)
    while len(maker.made) < taste.layers + len(maker.inputs) and maker.grow():
        pass
    return maker.model(exposed=exposed)


def info(c: Codes) -> onnx.ValueInfoProto:
    """The declaration of a tensor of integers."""
    return helper.make_tensor_value_info(c.name, PROTO[c.kind], c.shape)


__all__ = ["ALL", "STYLES", "Attrs", "Feeds", "Model", "Style", "Taste", "info", "make"]
