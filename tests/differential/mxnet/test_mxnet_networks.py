"""What networks that quantize_model rewrote give, by bytes: written in QDQ form with the ranges
that MXNet made, and grouped by its profile."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from qir.ir.attrs import Attr
from qir.ir.dtype import F32
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array as Stored
from qir.ir.types import QuantType, TensorType
from qir.ledger import Change, Ledger
from qir.passes.forms.group import Group
from qir.reference.interpreter import run
from tests.differential.mxnet.recorded import PROFILE, Said, bytes_of, cases
from tests.differential.predictions import Array, Count, F, ranged

NETWORKS = {said["name"]: (said, arrays) for said, arrays in cases("networks")}
SIDES: Mapping[str, Attr] = {"kernel": (2, 2), "stride": (2, 2)}
PADDED: Mapping[str, Attr] = {"pad": (1, 1, 1, 1)}
NAMED = {"Activation": "relu", "elemwise_add": "add"}
ALONE = {"act": "relu", "elemwise_add": "add", "elemwise_mul": "mul"}
STATES = {"gamma": "gamma", "beta": "beta", "mean": "moving_mean", "var": "moving_var"}


class Written:
    """A recorded network in QDQ form."""

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self.graph, self.arrays = Graph(profile=PROFILE), arrays
        kind = TensorType(arrays["x"].shape, F32)
        self.values = {"data": self.graph.add("input", types=[kind], name="x").result}

    def held(self, name: str) -> Array:
        return self.arrays[f"held.{name}"]

    def constant(self, data: Array, quant: QuantType | None = None) -> Value:
        kind = TensorType(data.shape, quant or F32)
        held = self.graph.constant(Stored(data, kind))
        return self.graph.add("dequantize", {"x": held}).result if quant else held

    def coded(self, value: Value, step: Mapping[str, Any]) -> Value:
        """A value as the integers that its kernel made, or as it is."""
        if not step["range"]:
            return value
        low, high = step["range"]
        kind = TensorType(value.type.shape, bytes_of(step["made"], high, low))
        quantized = self.graph.add("quantize", {"x": value}, types=[kind]).result
        return self.graph.add("dequantize", {"x": quantized}).result

    def parameter(self, name: str) -> Value:
        """What a file holds as integers of one range, else as floats."""
        if not name.endswith("_quantize"):
            return self.constant(self.held(name))
        low, high = (float(self.held(f"{name}_{end}")[0]) for end in ("min", "max"))
        return self.constant(self.held(name), bytes_of("int8", high, low))

    def weights(self, name: str) -> Value:
        """Weights of a convolution, a range each channel."""
        if name.endswith("_quantize"):
            return self.parameter(name)
        floats = self.held(name)
        reach = np.abs(floats.reshape(len(floats), -1)).max(1)
        gains = (F(127.5) / reach).reshape(-1, *(1,) * (floats.ndim - 1))
        quantized = np.clip(np.rint(floats * gains), -128, 127).astype(np.int8)
        kind = ranged("i8", reach / F(127.5), -reach, reach, 127.5, axis=0)
        return self.constant(quantized, kind)

    def layer(self, step: Mapping[str, Any]) -> Value:
        """A fused convolution or product, and what follows in its kernel."""
        data = [self.values[name] for name in step["operands"] if name in self.values]
        slots = {"x": data[0]}
        for name in step["operands"]:
            if name.endswith(("weight", "weight_quantize")):
                slots["w"] = self.weights(name)
            if name.endswith(("bias", "bias_quantize")):
                slots["bias"] = self.parameter(name)
        conv = step["within"][0] == "Convolution"
        value = self.graph.add(*(("conv2d", slots, PADDED) if conv else ("linear", slots))).result
        for op in (NAMED[name] for name in step["within"][1:]):
            given = {"a": value, "b": data[-1]} if op == "add" else {"x": value}
            value = self.graph.add(op, given).result
        return value

    def alone(self, step: Mapping[str, Any]) -> Value:
        """A kernel of one op."""
        op = step["op"].removeprefix("_contrib_quantized_")
        data = [self.values[name] for name in step["operands"] if name in self.values]
        if op == "pooling":
            padded: Mapping[str, Attr] = {"count_pad": True} if step["kind"] == "avg" else {}
            named = f"{step['kind']}_pool2d"
            return self.graph.add(named, {"x": data[0]}, {**SIDES, **padded}).result
        if op == "concat":
            joined = {f"xs.{i}": value for i, value in enumerate(data)}
            return self.graph.add(op, joined, {"axis": 1}).result
        slots = {"x": data[0]}
        if op == "batch_norm":
            slots |= {s: self.constant(self.held(f"norm_{name}")) for s, name in STATES.items()}
            return self.graph.add(op, slots, {"eps": 1e-3}).result
        if len(data) == 2:
            slots = dict(zip("ab", data, strict=True))
        return self.graph.add(ALONE.get(op, op), slots).result


def written(said: Said, arrays: Mapping[str, Array], x: Array) -> Graph:
    """The network, not yet grouped."""
    made = Written({**arrays, "x": x})
    for step in said["steps"]:
        if step["op"] in ("_contrib_quantize_v2", "_contrib_dequantize"):
            value = made.values[step["operands"][0]]
        else:
            value = made.layer(step) if step["within"] else made.alone(step)
        made.values[step["name"]] = made.coded(value, step)
    made.graph.add("output", {"y": value if not step["range"] else made.values[step["name"]]})
    return made.graph


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_give_the_bytes_that_mxnet_gave(name: str) -> None:
    said, arrays = NETWORKS[name]
    rows = name.startswith("linear")  # MXNet's FullyConnected flattens what it is given
    x = arrays["x"].reshape(len(arrays["x"]), -1) if rows else arrays["x"]
    graph, ledger, count = written(said, arrays, x), Ledger(), Count()
    Group(PROFILE).run(graph, ledger)
    assert not [entry for entry in ledger if entry.change is Change.UNVERIFIED], name
    (found,) = run(graph, {"x": x}).values()
    count.add(np.asarray(found), arrays["y"], name)
    count.holds("exact")
