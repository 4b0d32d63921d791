"""Networks between quantize and dequantize, grouped as torch's engines fuse them: every byte."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

from qir.ir.dtype import F32, I64, dtype
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array as Stored
from qir.ir.types import TensorType, uniform
from qir.ir.verify import check
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import profile, query_for_node
from qir.reference.interpreter import run
from tests.differential.torch.kernels import (
    Array,
    F,
    Map,
    Product,
    Tally,
    engine,
    of,
    random_integers,
    taken,
    tensor,
)
from tests.differential.torch.kernels import Held as Codes
from tests.differential.torch.profile_in_use import named

from .test_torch_products import chained, summed

pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)


@dataclass(frozen=True, eq=False)
class Numbers:
    """What a small network is made of: weights as integers, biases as floats, maps between
    layers."""

    x: Codes
    first: Codes
    second: Codes
    last: Codes
    biases: tuple[Array, Array, Array]
    maps: tuple[Map, ...]
    kernel: int


def numbers(seed: int) -> Numbers:
    rng = np.random.default_rng(seed)
    channels, classes = int(rng.integers(2, 20)), int(rng.integers(2, 40))
    x = Codes(random_integers(rng, "u8", 2, 3, 8, 8), of("u8", F(rng.uniform(0.01, 0.1)), 121))

    def weights(*shape: int) -> Codes:
        scales = rng.uniform(0.005, 0.03, shape[0]).astype(F)
        return Codes(rng.integers(-60, 61, shape).astype(np.int8), of("i8", scales, 0, 0))

    first, second = weights(channels, 3, 3, 3), weights(channels, channels, 1, 1)
    last = weights(classes, channels)
    biases = tuple(rng.normal(size=len(w.data)).astype(F) for w in (first, second, last))
    maps = tuple(of("u8", F(rng.uniform(0.03, 0.2)), int(rng.integers(3, 140)) | 1) for _ in "1234")
    return Numbers(x, first, second, last, biases, maps, 2)  # type: ignore[arg-type]


def torch_network(name: str, n: Numbers) -> Array:
    """quantized::conv2d_relu, conv2d, add_relu, max pool, mean, linear."""
    ops, func = torch.ops.quantized, torch.nn.functional
    at = [(float(m.scale), int(m.zero)) for m in n.maps]
    b1, b2, b3 = (torch.from_numpy(b) for b in n.biases)
    with engine(name):
        one = ops.conv2d_prepack(tensor(n.first), b1, [1, 1], [1, 1], [1, 1], 1)
        two = ops.conv2d_prepack(tensor(n.second), b2, [1, 1], [0, 0], [1, 1], 1)
        three = ops.linear_prepack(tensor(n.last), b3)
        a = ops.conv2d_relu(tensor(n.x), one, *at[0])
        b = ops.conv2d(a, two, *at[1])
        c = ops.add_relu(a, b, *at[2])
        d = func.max_pool2d(c, n.kernel, n.kernel)
        e = func.adaptive_avg_pool2d(d, 1)
        return taken(ops.linear(torch.flatten(e, 1), three, *at[3]))


def torch_networks(name: str, many: list[Numbers]) -> list[Array]:
    return [torch_network(name, n) for n in many]


def kind_of(shape: tuple[int, ...], m: Map) -> TensorType:
    zero = m.zero if m.scale.ndim else int(m.zero)
    return TensorType(shape, uniform(dtype(m.storage), m.scale, zero, axis=m.axis))


class Net:
    """The same network in QDQ form."""

    def __init__(self, profile: str) -> None:
        self.graph = Graph(profile=profile)

    def constant(self, held: Codes, name: str) -> Value:
        assert held.map is not None
        kind = kind_of(held.data.shape, held.map)
        return self.real(self.graph.constant(Stored(held.data, kind, name)))

    def real(self, value: Value) -> Value:
        return self.graph.add("dequantize", {"x": value}).result

    def through(self, value: Value, m: Map) -> Value:
        kind = kind_of(value.type.shape, m)  # type: ignore[arg-type]
        return self.real(self.graph.add("quantize", {"x": value}, types=[kind]).result)

    def plain(self, data: Array, name: str) -> Value:
        return self.graph.constant(Stored(data, TensorType(data.shape, F32), name))

    def sizes(self, *sizes: int) -> Value:
        data = np.asarray(sizes, np.int64)
        return self.graph.constant(Stored(data, TensorType(data.shape, I64), "sizes"))


def network(n: Numbers, profile: str) -> Graph:
    net = Net(profile)
    add = net.graph.add
    assert n.x.map is not None
    x = net.real(add("input", types=[kind_of(n.x.data.shape, n.x.map)], name="x").result)
    made = {"x": x, "w": net.constant(n.first, "w1"), "bias": net.plain(n.biases[0], "b1")}
    a = add("relu", {"x": add("conv2d", made, {"pad": (1, 1, 1, 1)}).result}).result
    a = net.through(a, n.maps[0])
    made = {"x": a, "w": net.constant(n.second, "w2"), "bias": net.plain(n.biases[1], "b2")}
    b = net.through(add("conv2d", made).result, n.maps[1])
    c = net.through(add("relu", {"x": add("add", {"a": a, "b": b}).result}).result, n.maps[2])
    side = {"kernel": (n.kernel,) * 2, "stride": (n.kernel,) * 2}
    d = net.through(add("max_pool2d", {"x": c}, side).result, n.maps[2])
    e = net.through(add("global_avg_pool", {"x": d}).result, n.maps[2])
    f = net.through(add("flatten", {"x": e}).result, n.maps[2])
    made = {"x": f, "w": net.constant(n.last, "w3"), "bias": net.plain(n.biases[2], "b3")}
    y = net.through(add("linear", made).result, n.maps[3])
    add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    return net.graph


@pytest.mark.parametrize("name", ["fbgemm", "x86", "onednn"])
def test_a_grouped_network_is_the_engines(name: str, vnni: ProcessPoolExecutor) -> None:
    many = [numbers(seed) for seed in range(12)]
    made = vnni.submit(torch_networks, name, many).result()
    apart, tally = 0, Tally()
    for seed, (n, wanted) in enumerate(zip(many, made, strict=True)):
        graph = network(n, "native")
        ungrouped = run(network(n, named(name)), {"x": n.x.data})["y"]
        assert Group(named(name)).run(graph, Ledger())
        assert graph.profile == named(name)
        assert not [node for node in graph if node.op == "dequantize"], "not all is grouped"
        found = run(graph, {"x": n.x.data})["y"]
        tally.add(found, wanted, f"seed {seed}")
        apart += not np.array_equal(ungrouped, found)
    tally.exact()
    assert apart, "a network that is not grouped gives the same bytes; nothing was shown"


@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_views_without_codes_of_their_own_are_views_of_codes(name: str) -> None:
    tally = Tally()
    for seed in range(6):
        n = numbers(seed)
        assert n.x.map is not None
        pack, ones = torch.ops.quantized.conv2d_prepack, [1, 1]
        at = float(n.maps[0].scale), int(n.maps[0].zero)
        with engine(name):
            bias = torch.from_numpy(n.biases[0])
            weights = pack(tensor(n.first), bias, ones, ones, ones, 1)
            a = torch.ops.quantized.conv2d(tensor(n.x), weights, *at)
            images, channels, high, wide = a.shape
            seen = a.reshape(images, channels, -1).transpose(1, 2)
            seen = seen.reshape(images, 1, high * wide, channels)
            wanted = taken(torch.nn.functional.avg_pool2d(seen, 2))
        net = Net("native")
        add = net.graph.add
        x = net.real(add("input", types=[kind_of(n.x.data.shape, n.x.map)], name="x").result)
        made = {"x": x, "w": net.constant(n.first, "w"), "bias": net.plain(n.biases[0], "b")}
        y = net.through(add("conv2d", made, {"pad": (1, 1, 1, 1)}).result, n.maps[0])
        y = add("reshape", {"x": y, "shape": net.sizes(images, channels, high * wide)}).result
        y = add("transpose", {"x": y}, {"perm": (0, 2, 1)}).result
        y = add("reshape", {"x": y, "shape": net.sizes(images, 1, high * wide, channels)}).result
        y = add("avg_pool2d", {"x": y}, {"kernel": (2, 2), "stride": (2, 2)}).result
        add("output", {"y": net.through(y, n.maps[0]).node.operands["x"]})
        net.graph.prune()
        Group(named(name)).run(net.graph, Ledger())
        assert not [node for node in net.graph if node.op == "dequantize"], "not all is on codes"
        tally.add(run(net.graph, {"x": n.x.data})["y"], wanted, f"seed {seed}")
    tally.exact()


@pytest.mark.parametrize("name", ["fbgemm", "qnnpack"])
def test_parts_and_turned_weights_without_codes_of_their_own_are_codes(name: str) -> None:
    """Half of the channels as rows, by a matrix that lies the other way round."""
    tally = Tally()
    for seed in range(6):
        n = numbers(seed)
        assert n.x.map is not None
        w = Codes(n.last.data[:, :1], of("i8", 0.02, 0))
        at = float(n.maps[0].scale), int(n.maps[0].zero)
        with engine(name):
            seen = tensor(n.x).narrow(1, 0, 1).permute(0, 2, 3, 1)
            packed = torch.ops.quantized.linear_prepack(tensor(w), None)
            wanted = taken(torch.ops.quantized.linear(seen, packed, *at))
        net = Net("native")
        add = net.graph.add
        x = net.real(add("input", types=[kind_of(n.x.data.shape, n.x.map)], name="x").result)
        part = add("split", {"x": x}, {"axis": 1, "sizes": (1, 2)}).results[0]
        rows = add("transpose", {"x": part}, {"perm": (0, 2, 3, 1)}).result
        turned = add("transpose", {"x": net.constant(w, "w")}, {"perm": (1, 0)}).result
        y = net.through(add("matmul", {"a": rows, "b": turned}).result, n.maps[0])
        add("output", {"y": y.node.operands["x"]})
        net.graph.prune()
        Group(named(name)).run(net.graph, Ledger())
        (layer,) = (node for node in net.graph if node.op == "linear")
        assert layer.operands["x"].type.quant is not None
        tally.add(run(net.graph, {"x": n.x.data})["y"], wanted, f"seed {seed}")
    tally.exact()


def test_a_bias_of_integers_becomes_real_again() -> None:
    n = numbers(3)
    net = Net("native")
    add = net.graph.add
    assert n.x.map is not None
    assert n.first.map is not None
    x = net.real(add("input", types=[kind_of(n.x.data.shape, n.x.map)], name="x").result)
    unit = np.asarray(n.x.map.scale * n.first.map.scale, F)
    whole = np.rint(n.biases[0].astype(F) / unit).astype(np.int32)
    bias = net.constant(Codes(whole, of("i32", unit, 0, 0)), "b")
    made = {"x": x, "w": net.constant(n.first, "w"), "bias": bias}
    y = net.through(add("conv2d", made).result, n.maps[0])
    add("output", {"y": y.node.operands["x"]})
    net.graph.prune()
    Group(named("fbgemm")).run(net.graph, Ledger())
    found = run(net.graph, {"x": n.x.data})["y"]
    with engine("fbgemm"):
        real = torch.from_numpy(np.asarray(whole * unit, F))
        packed = torch.ops.quantized.conv2d_prepack(
            tensor(n.first), real, [1, 1], [0, 0], [1, 1], 1
        )
        at = float(n.maps[0].scale), int(n.maps[0].zero)
        wanted = taken(torch.ops.quantized.conv2d(tensor(n.x), packed, *at))
    assert np.array_equal(found, wanted)


def from_zero(case: Product) -> Product:
    """The same without zero points, which some runtimes have not."""
    assert case.summand is not None
    x, b = (Codes(h.data, replace(h.map, zero=ZERO)) for h in (case.x, case.summand) if h.map)
    return replace(case, x=x, summand=b, out=replace(case.out, zero=ZERO))


ZERO = np.asarray(0)


@pytest.mark.parametrize("name", [named("onednn"), "tf-2.21.onednn", "mxnet-1.9", "ipex-2.8"])
@pytest.mark.parametrize("turned", [False, True], ids=["sum first", "codes first"])
def test_integers_that_are_added_to_a_convolution_join_its_kernel(name: str, turned: bool) -> None:
    """What the graph computes then is what the same stages compute as a group from the start."""
    for seed in range(3, 40, 4):
        case = summed(seed)
        assert case.relu
        if name in ("tf-2.21.onednn", "mxnet-1.9"):
            case = from_zero(case)
        assert case.x.map is not None
        net, named = Net("native"), profile(name)
        add = net.graph.add
        data = add("input", types=[kind_of(case.x.data.shape, case.x.map)], name="x").result
        assert case.summand is not None
        assert case.summand.map is not None
        more = add("input", types=[kind_of(case.summand.data.shape, case.summand.map)], name="b")
        given = {"x": net.real(data), "w": net.constant(case.w, "w")}
        if case.bias is not None:
            given["bias"] = net.plain(case.bias, "bias")
        sum_, other = add("conv2d", given, case.attrs).result, net.real(more.result)
        pair = {"a": other, "b": sum_} if turned else {"a": sum_, "b": other}
        y = net.through(add("relu", {"x": add("add", pair).result}).result, case.out)
        add("output", {"y": y.node.operands["x"]})
        net.graph.prune()
        Group(name).run(net.graph, Ledger())
        check(net.graph)
        (kernel,) = (n for n in net.graph if n.stages)
        assert [stage.op for stage in kernel.stages] == ["conv2d", "add", "relu"]
        assert named.group(("conv2d", "add", "relu"), query_for_node(kernel)) is not None
        found = run(net.graph, {"x": case.x.data, "b": case.summand.data})["y"]
        assert np.array_equal(found, chained(case, name)), seed


def test_a_sum_that_something_else_reads_stays_apart() -> None:
    net = Net("native")
    add, n = net.graph.add, numbers(3)
    assert n.x.map is not None
    data = add("input", types=[kind_of(n.x.data.shape, n.x.map)], name="x").result
    x = net.real(data)
    sum_ = add("conv2d", {"x": x, "w": net.constant(n.first, "w")}, {"pad": (1, 1, 1, 1)}).result
    more = add(
        "input", types=[sum_.type.with_element(kind_of((), n.maps[0]).element)], name="b"
    ).result
    y = net.through(add("add", {"a": sum_, "b": net.real(more)}).result, n.maps[0])
    z = net.through(add("relu", {"x": sum_}).result, n.maps[0])
    add("output", {"y": y.node.operands["x"], "z": z.node.operands["x"]})
    net.graph.prune()
    Group(named("onednn")).run(net.graph, Ledger())
    assert not [node for node in net.graph if node.stages]
