"""What kernels MXNet made of networks, and what its profile groups them to.

`make oracle-mxnet` records them again: of each network the operators that quantize_model left,
those of one kernel in brackets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.text import parse
from qir.ir.types import Array as Stored
from qir.ir.types import QuantType, TensorType
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from tests.counting import note
from tests.differential.mxnet.recorded import PROFILE, VECTORS, bytes_of, cases, whole_means
from tests.differential.predictions import Array

LINES = (VECTORS / "kernels_made.txt").read_text(encoding="utf-8").splitlines()
HELD = dict(line.split(" ", 1) for line in LINES)
SIDES: Mapping[str, Attr] = {"kernel": (2, 2), "stride": (2, 2)}
ATTRS: Mapping[str, Mapping[str, Attr]] = {
    "conv2d": {"pad": (1, 1, 1, 1)},
    "avg_pool2d": {**SIDES, "count_pad": True},
    "max_pool2d": SIDES,
    "concat": {"axis": 1},
}
NAMED = {
    "Convolution": "conv2d",
    "FullyConnected": "linear",
    "Activation": "relu",
    "elemwise_add": "add",
    "_contrib_quantized_elemwise_add": "add",
    "_contrib_quantized_elemwise_mul": "mul",
    "_contrib_quantized_concat": "concat",
    "_contrib_quantized_batch_norm": "batch_norm",
    "_contrib_quantized_act": "relu",
    "_contrib_quantized_flatten": "flatten",
}
"""What MXNet calls ops, pools apart."""


class Network:
    """A graph in QDQ form under construction, all integers of one range."""

    def __init__(self, *shape: int) -> None:
        self.graph, self.rng = Graph(profile=PROFILE), np.random.default_rng(1)
        kind = TensorType(shape, F32)
        self.x = self.coded(self.graph.add("input", types=[kind], name="x").result)

    def coded(self, value: Value, high: float = 3.0, kind: str = "int8") -> Value:
        made = TensorType(value.type.shape, bytes_of(kind, high))
        quantized = self.graph.add("quantize", {"x": value}, types=[made]).result
        return self.graph.add("dequantize", {"x": quantized}).result

    def constant(self, data: Array, quant: QuantType | None = None) -> Value:
        kind = TensorType(data.shape, quant or F32)
        held = self.graph.constant(Stored(data, kind))
        return held if quant is None else self.op("dequantize", x=held)

    def op(self, op: str, **given: Value) -> Value:
        slots = {slot.replace("_", "."): value for slot, value in given.items()}
        return self.graph.add(op, slots, ATTRS.get(op, {})).result

    def layer(self, x: Value) -> Value:
        """A convolution of images, or a linear layer of rows."""
        sizes = tuple(int(str(d)) for d in x.type.shape)
        inner = (sizes[1], 3, 3) if len(sizes) == 4 else sizes[1:]
        quantized = self.rng.integers(-127, 128, (8, *inner)).astype(np.int8)
        op = "conv2d" if len(sizes) == 4 else "linear"
        return self.op(op, x=x, w=self.constant(quantized, bytes_of("int8", 1.0)))

    def made(self, name: str) -> Value:
        """What stands between the layers of the recorded network of that name."""
        first = self.layer(self.x)
        op, *tails = name.split("_") if name.startswith(("conv", "linear")) else [name]
        if name == "batch_norm":
            ones = [self.constant(np.ones(8, np.float32)) for _ in range(4)]
            slots = dict(zip(("gamma", "beta", "mean", "var"), ones, strict=True))
            return self.op(name, x=self.coded(first), **slots)
        if name == "conv2d_add_unsigned":
            once = self.coded(self.op("relu", x=first), kind="uint8")
            return self.op("add", a=self.layer(once), b=once)
        if op in ("conv2d", "linear"):
            for tail in tails:
                beside = {"b": self.coded(self.layer(self.x))} if tail == "add" else {}
                first = self.op(tail, **{"a" if beside else "x": first}, **beside)
            return first
        if op in ("add", "mul", "concat"):
            a, b = self.coded(first), self.coded(self.layer(self.x))
            return self.op(op, **({"xs_0": a, "xs_1": b} if op == "concat" else {"a": a, "b": b}))
        return self.op(op, x=self.coded(first))


def grouped(name: str) -> Graph:
    """The network of that name with the kernels that MXNet would make of it."""
    network = Network(2, 18) if name.startswith("linear") else Network(2, 4, 6, 6)
    value = network.made(name)
    value = network.layer(network.coded(value))
    value = network.coded(value) if len(value.type.shape) == 4 else value
    network.graph.add("output", {"y": value})
    Group(PROFILE).run(network.graph, Ledger())
    return network.graph


def predicted(graph: Graph) -> list[str]:
    """The kernels on integers of a grouped network."""
    out = []
    for node in graph:
        coded = any(value.type.quant for value in node.operands.values())
        if coded and node.op not in ("quantize", "dequantize", "output"):
            chain = " ".join([s.op for s in node.stages] or [node.op])
            out.append(chain if node.result.type.quant else f"{chain} real")
    return sorted(out)


def recorded(name: str) -> Iterator[str]:
    """The kernels that MXNet made."""
    tokens = HELD[name].replace("[", " [ ").replace("]", " ] ").split()
    while tokens:
        op = tokens.pop(0)
        if op == "[":
            end = tokens.index("]")
            yield " ".join(NAMED.get(one, one) for one in tokens[1:end])
            tokens = tokens[end + 1 :]
        elif op == "_contrib_quantized_pooling":
            if "pool" in name:  # before other ops it makes them integers that no layer has made
                yield name
        elif op not in ("_contrib_quantize_v2", "_contrib_dequantize"):
            yield NAMED[op]


def agree(name: str) -> None:
    """AssertionError where a network is grouped to other kernels than were made of it."""
    assert predicted(grouped(name)) == sorted(recorded(name)), name


@pytest.mark.parametrize("name", HELD)
def test_networks_are_grouped_to_the_kernels_that_were_made(name: str) -> None:
    agree(name)


def ends(op: str, x: Array, other: Array, maps: tuple[QuantType, ...], to: QuantType) -> Array:
    """What an op gives between dequantize and quantize, grouped by the profile."""
    network = Network(*x.shape)
    network.graph = graph = Graph(profile=PROFILE)
    fed: dict[str, Array] = {}
    given = [] if len(maps) == 2 else [network.constant(other)]
    for name, data, quant in zip(("x", "other"), (x, other), maps, strict=False):
        held = graph.add("input", types=[TensorType(data.shape, quant)], name=name).result
        given.insert(len(fed), network.op("dequantize", x=held))
        fed[name] = data
    slots = {"concat": ("xs_0", "xs_1"), "mul": ("a", "b")}.get(op, ("x",))
    made = network.op(op, **dict(zip(slots, given, strict=False)))
    made = graph.add("quantize", {"x": made}, types=[TensorType(made.type.shape, to)]).result
    graph.add("output", {"y": made})
    Group(PROFILE).run(graph, Ledger())
    (found,) = run(graph, fed).values()
    return np.asarray(found)


def same(found: Array, wanted: Array, where: object) -> None:
    note(found, wanted)
    assert found.dtype == wanted.dtype, where
    assert np.array_equal(found, wanted), f"{where}: {np.count_nonzero(found != wanted)} differ"


def test_what_gives_codes_of_another_range_is_no_kernel_on_codes() -> None:
    """MXNet has computed it in floats; a product with floats too."""
    for said, arrays in cases("apart"):
        maps = [bytes_of("int8", said["high"])]
        maps += [bytes_of("int8", said["reach"])] * (said["what"] != "mul")
        to = bytes_of("int8", said["top"])
        same(ends(said["what"], arrays["x"], arrays["other"], tuple(maps), to), arrays["y"], said)


POOL = """graph main {{
  %x = input() : {shape}x{given}
  %xr = dequantize(%x) : {shape}xf32
  %y = global_avg_pool(%xr) : {made}xf32
  %q = quantize(%y) : {made}x{taken}
  output(q=%q)
}}"""


def test_means_of_whole_images_are_kernels_where_they_keep_the_range() -> None:
    for kind, images, means in whole_means():
        shape, made = ("x".join(map(str, a.shape)) for a in (images, means))
        text = POOL.format(shape=shape, made=made, given=kind, taken=kind)
        graph = parse(text)
        Group(PROFILE).run(graph, Ledger())
        assert predicted(graph) == ["global_avg_pool"]
        found = run(graph, {"x": images})["q"]
        assert np.array_equal(found, means), f"{np.count_nonzero(found != means)} differ"
        other = "!quant.uniform<u8:f32, 0.5>"
        graph = parse(POOL.format(shape=shape, made=made, given=kind, taken=other))
        Group(PROFILE).run(graph, Ledger())
        assert predicted(graph) == []


ZEROS = """graph main {{
  %x = input() : 2x18x!quant.uniform<i8:f32, 0.1{x}>
  %xr = dequantize(%x) : 2x18xf32
  %w = constant(@w) : 8x18x!quant.uniform<i8:f32, 0.05{w}>
  %wr = dequantize(%w) : 8x18xf32
  %y = linear(%xr, %wr) : 2x8xf32
  %q = quantize(%y) : 2x8x!quant.uniform<i8:f32, 0.2{y}>
  output(q=%q)
}}"""


@pytest.mark.parametrize("zeros", list(product((0, 3), repeat=3)))
def test_integers_with_zero_points_are_in_no_kernel_of_a_runtime_without_them(
    zeros: tuple[int, int, int],
) -> None:
    said = {slot: f":{zero}" if zero else "" for slot, zero in zip("xwy", zeros, strict=True)}
    graph = parse(ZEROS.format(**said), {"w": np.ones((8, 18), np.int8)})
    Group(PROFILE).run(graph, Ledger())
    x, w, y = zeros
    assert predicted(graph) == ([] if x or w else ["linear real"] if y else ["linear"])
