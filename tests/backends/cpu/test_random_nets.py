"""Random networks: whatever the layers and their order, the bytes are those of the formulas."""

from __future__ import annotations

import numpy as np
import pytest

from qir._kernels._cpu import isa
from qir.backends.cpu import CpuTarget
from qir.ir.attrs import Attr
from qir.ir.node import Value
from qir.reference import interpreter

from . import naive
from .nets import Net


def sizes(value: Value) -> tuple[int, ...]:
    return tuple(int(str(d)) for d in value.type.shape)


def grow(net: Net, made: list[Value]) -> Value:
    """One more layer on a value drawn from those there are."""
    rng = net.rng
    x = made[int(rng.integers(max(0, len(made) - 4), len(made)))]
    shape = sizes(x)
    if len(shape) == 2:
        return net.gemm(x, int(rng.integers(1, 40)), trans_b=bool(rng.integers(2)))
    n, c, h, w = shape
    small = h < 2 or w < 2
    match int(rng.integers(9)):
        case 0 if not small:
            groups = c if rng.integers(2) else 1
            stride = (int(rng.integers(1, 3)), int(rng.integers(1, 3)))
            out = c if groups > 1 else int(rng.integers(1, 40))
            return net.conv(x, out, groups=groups, stride=stride, tail=_tail(net))
        case 1 | 2:
            return net.conv(x, int(rng.integers(1, 40)), (1, 1), pad=(0, 0, 0, 0), tail=_tail(net))
        case 3 | 4:
            mates = [v for v in made if v.type.rank == 4 and _broadcasts(sizes(v), shape)]
            pair = [x, mates[int(rng.integers(len(mates)))]]
            a, b = pair if rng.integers(2) else pair[::-1]
            whole = np.broadcast_shapes(sizes(a), sizes(b))
            return net.op(("add", "mul")[rng.integers(2)], {"a": a, "b": b}, whole, tail=_tail(net))
        case 5 if not small:
            kind = x.type.with_shape((n, c, h // 2, w // 2))
            return net.op("max_pool2d", {"x": x}, (), kind=kind, kernel=(2, 2), stride=(2, 2))
        case 6:
            mates = [v for v in made if sizes(v)[0:1] + sizes(v)[2:] == (n, h, w)]
            other = mates[int(rng.integers(len(mates)))]
            whole = (n, c + sizes(other)[1], h, w)
            return net.op("concat", {"xs.0": x, "xs.1": other}, whole, axis=1)
        case 7:
            return net.op(("sigmoid", "relu", "requantize")[rng.integers(3)], {"x": x}, shape)
        case 8 if rng.integers(3) == 0:
            kind = x.type.with_shape((n, c * h * w))
            return net.op("flatten", {"x": x}, (), kind=kind)
    return net.op("global_avg_pool", {"x": x}, (n, c, 1, 1))


def _tail(net: Net) -> list[tuple[str, dict[str, Attr]]]:
    return [("relu", {})] if net.rng.integers(2) else []


def _broadcasts(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Whether one of the two repeats along height and width, or neither does."""
    return a == b or (a[:2] == b[:2] and (a[2:] == (1, 1) or b[2:] == (1, 1)))


@pytest.mark.parametrize("seed", range(60))
def test_a_random_network_gives_the_bytes_of_the_formulas(seed: int) -> None:
    net = Net(seed)
    shape = (int(net.rng.integers(1, 4)), int(net.rng.integers(1, 36)), 6, 7)
    if seed % 2:
        made = [net.op("quantize", {"x": net.real(*shape)}, shape)]
    else:
        made = [net.input(*shape)]
    for _ in range(12):
        made.append(grow(net, made))
    ends = [v for v in made if not v.uses] or [made[-1]]
    graph = net.done(**{f"y{i}": v for i, v in enumerate(ends)})
    data = net.data()
    expected = naive.run(graph, data)
    reference = interpreter.run(graph, data)
    cap = isa()[seed % len(isa())]
    compiled = CpuTarget().compile(graph, isa=cap, threads=1 + seed % 2)
    assert compiled.fallbacks == (), f"seed {seed}"
    for _ in range(2):  # the second run finds the first one's bytes in the arena
        got = compiled(**data)
        for name, wanted in expected.items():
            where = f"seed {seed}, {cap}: {name}\n{graph}"
            assert np.array_equal(np.asarray(got[name]), wanted), where
            assert np.array_equal(reference[name], wanted), f"the reference, {where}"
