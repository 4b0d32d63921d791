"""Kernels of Intel's extension for PyTorch that stand for themselves, and its profile's answers:
ipex::qembedding_bag, ipex::qmerged_embeddingbag_cat, ipex::qinteraction, ipex::quantized_lstm,
ipex::qpad_circular, and of what ipex_prepack::weight_only_qlinear_prepack made
torch_ipex::ipex_woq_linear, or torch_ipex::woq_linear.

`python -m tests.oracles.ipex_kernels` records them, in the extension's own Python.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from qir.errors import OpError
from qir.ir.attrs import Attr
from qir.ir.dtype import F32, dtype, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.types import Array, Granularity, QuantType, TensorType, make_param, uniform
from qir.numerics.fields import MethodField
from qir.profiles import Profile, profile
from qir.reference.interpreter import run
from tests.counting import note
from tests.overriding import override_profile

FOLDER = Path(__file__).parents[1] / "vectors" / "ipex"
PROFILE = "ipex-2.8"
Codes = NDArray[np.generic]
F = np.float32


def cases(kind: str) -> Iterator[tuple[str, dict[str, Codes]]]:
    """What was recorded of a kernel: arrays by name."""
    with np.load(FOLDER / ("woq.npz" if kind == "woq" else "kernels.npz")) as file:
        names = sorted({name.partition("/")[0] for name in file.files})
        for name in (n for n in names if n.startswith(f"{kind}_")):
            parts = [n for n in file.files if n.startswith(f"{name}/")]
            yield name, {n.partition("/")[2]: file[n] for n in parts}


class Asked:
    """A graph under construction, and what it is fed."""

    def __init__(self) -> None:
        self.graph, self.feeds = Graph(profile=PROFILE), dict[str, Codes]()

    def fed(self, data: Codes, quant: QuantType | None = None) -> Value:
        name = f"x{len(self.feeds)}"
        self.feeds[name] = data
        kind = TensorType(data.shape, quant or dtype_of(data))
        return self.graph.add("input", types=[kind], name=name).result

    def op(
        self,
        name: str,
        operands: Mapping[str, Value],
        to: QuantType,
        shape: tuple[int, ...],
        attrs: Mapping[str, Attr] | None = None,
    ) -> Value:
        return self.graph.add(name, operands, attrs or {}, types=[TensorType(shape, to)]).result

    def made(self, **results: Value) -> Mapping[str, Codes]:
        self.graph.add("output", results)
        return run(self.graph, self.feeds)


def steps(scale: float | Codes, storage: str = "i8") -> QuantType:
    """Integers about 0."""
    return uniform(dtype(storage), F(scale))


def same(name: str, found: Codes, wanted: Codes) -> None:
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), name
    note(found, wanted)
    assert (found == wanted).all(), f"{name}: {np.count_nonzero(found != wanted)} differ"


def with_method(name: str, method: MethodField) -> Profile:
    """The profile with such a method in the place of the one of that name."""
    found = profile(PROFILE)
    rules = [
        replace(rule, fields={**rule.fields, ("", "method"): method})
        if rule.fields.get(("", "method")) == MethodField(name)
        else rule
        for rule in found.rules
    ]
    return replace(found, rules=tuple(rules))


def bag(case: Mapping[str, Codes], **attrs: Attr) -> Codes:
    asked = Asked()
    w_scale, y_scale = case["scales"]
    operands = {"w": asked.fed(case["w"], steps(w_scale))}
    operands |= {slot: asked.fed(case[slot]) for slot in ("indices", "offsets")}
    shape = (len(case["offsets"]), case["w"].shape[1])
    plain: dict[str, Attr] = {"mode": "sum"}
    return asked.made(y=asked.op("embedding_bag", operands, steps(y_scale), shape, plain | attrs))[
        "y"
    ]


def test_sums_of_rows_of_codes_are_predicted() -> None:
    for name, case in cases("bag"):
        same(name, bag(case), case["y"])


def test_sums_of_rows_beside_each_other_are_predicted() -> None:
    with override_profile(with_method("summed_rows", MethodField("summed_rows", {"once": True}))):
        for name, case in cases("merged"):
            same(name, bag(case), case["y"])


def test_bags_that_the_runtime_does_not_foresee_are_refused() -> None:
    _, case = next(cases("bag"))
    ends = case | {"offsets": np.array([0, 2, 2])}
    with pytest.raises(OpError, match="for a bag of nothing the runtime hands on what was in"):
        bag(ends)
    with pytest.raises(OpError, match="sums quantized rows, without padding or weights"):
        bag(case, padding=3)


def product(xs: Codes, scales: Codes, y_scale: float) -> Codes:
    """Rows of one table by those of another, as integers."""
    asked, one = Asked(), (xs.shape[1], 1, 1, 1)
    a = asked.fed(xs[0][:, None, None], steps(scales[0]))
    b = asked.fed(xs[1][:, None, :, None], steps(scales[1]))
    sums = steps(np.asarray(F(scales[0]) * F(scales[1])), "i32")
    whole = asked.op("matmul", {"a": a, "b": b}, sums, one)
    return asked.made(y=asked.op("requantize", {"x": whole}, steps(y_scale), one))["y"]


def test_interactions_of_rows_are_predicted() -> None:
    """The first table's rows as integers of the result, and the products of all others with those
    before them."""
    for name, case in cases("interaction"):
        xs, (*scales, y_scale) = case["xs"], case["scales"]
        width, asked = xs.shape[2], Asked()
        first = {"x": asked.fed(xs[0], steps(scales[0]))}
        made = asked.made(y=asked.op("requantize", first, steps(y_scale), xs[0].shape))
        same(name, made["y"], case["y"][:, :width])
        pairs = [(i, j) for i in range(1, len(xs)) for j in range(i)]
        for number, pair in enumerate(pairs):
            chosen = np.array(pair)
            found = product(xs[chosen], np.array(scales)[chosen], y_scale)
            same(name, found, case["y"][:, width + number].reshape(found.shape))


def test_images_with_the_other_side_around_them_are_predicted() -> None:
    for name, case in cases("pad"):
        asked, of = Asked(), uniform(dtype(name[-2:]), F(0.25), 7)
        attrs: dict[str, Attr] = {"pads": (0, 0, 3, 1, 0, 0, 1, 2), "mode": "wrap"}
        x = asked.fed(case["x"], of)
        same(
            name,
            asked.made(y=asked.op("pad", {"x": x}, of, case["y"].shape, attrs))["y"],
            case["y"],
        )


ORDER = (0, 3, 1, 2)
"""Gates as torch has them, i, f, c, o, in the order i, o, f, c."""


def gates(data: Codes, axis: int) -> Codes:
    return np.concatenate([np.split(data, 4, axis)[number] for number in ORDER], axis)


def recurrent(case: Mapping[str, Codes], r_scale: float = 1.0) -> Mapping[str, Codes]:
    asked = Asked()
    scale, zero = case["scales"]
    of = uniform(dtype("u8"), F(scale), int(zero))
    operands = {"x": asked.fed(case["x"], of)}
    for slot, more in (("w", 1.0), ("r", r_scale)):
        data, units = gates(case[slot], 1), gates(case["units"], 0).astype(F) * F(more)
        kind = TensorType(data.shape, uniform(dtype("i8"), units, axis=1))
        operands[slot] = asked.graph.constant(Array(data, kind))
    both = gates(case["bias"], 2).reshape(len(case["bias"]), -1)
    operands["bias"] = asked.fed(both)
    operands |= {"h0": asked.fed(case["h"]), "c0": asked.fed(case["c"])}
    ways, batch, hidden = case["h"].shape
    kinds = [TensorType((len(case["x"]), ways, batch, hidden), of)]
    kinds += [TensorType(case["h"].shape, F32)] * 2
    attrs: dict[str, Attr] = {"direction": "bidirectional" if ways == 2 else "forward"}
    y, h, c = asked.graph.add("lstm", operands, attrs, types=kinds).results
    return asked.made(y=y, h=h, c=c)


def test_recurrent_layers_are_predicted() -> None:
    """Curves are polynomials: a state beside a tie rounds otherwise, once in ten thousand."""
    apart, total = 0, 0
    for name, case in cases("lstm"):
        made = recurrent(case)
        ways, batch, hidden = case["h"].shape
        together = np.moveaxis(made["y"], 1, 2).reshape(-1, batch, ways * hidden)
        note(together, case["y"])
        off = np.abs(together.astype(np.int64) - case["y"].astype(np.int64))
        assert off.max() <= 1, name
        apart, total = apart + int(np.count_nonzero(off)), total + off.size
        if not off.any():
            same(name, made["h"], case["last"])
            assert np.allclose(made["c"].astype(F), case["cell"].astype(F), rtol=0, atol=5e-7), name
    assert apart <= 0.001 * total, f"{apart} of {total}"


def test_a_recurrent_layer_with_other_scales_for_its_state_is_refused() -> None:
    _, case = next(cases("lstm"))
    with pytest.raises(OpError, match="one scale a gate's row, the same for w and r"):
        recurrent(case, 1.5)


def weights(name: str, case: Mapping[str, Codes]) -> Array:
    """Integers of a scale and zero point a row, or a row of each group."""
    _, bits, _, group, *_ = name.split("_")
    blocks = ((0, 1),) if group == "-1" else ((0, 1), (1, int(group)))
    grain, units, zeros = Granularity(blocks), case["units"], case["zeros"]
    if group == "-1":
        units, zeros = units.reshape(-1), zeros.reshape(-1)
    storage = dtype("i8" if bits == "8" else "u4")
    zero = make_param(zeros.astype(storage.carrier), grain, "zero") if zeros.any() else ()
    kind = QuantType(
        storage, F32, make_param(units, grain, "scale"), zero, granularity=grain, scale_dtype=F32
    )
    return Array(case["w"], TensorType(case["w"].shape, kind))


def linear(name: str, case: Mapping[str, Codes]) -> Codes:
    asked = Asked()
    operands = {"x": asked.fed(case["x"]), "bias": asked.fed(case["bias"])}
    operands["w"] = asked.graph.constant(weights(name, case))
    return asked.made(y=asked.graph.add("linear", operands).result)["y"]


MODES = {
    "PER_BATCH_IC_BLOCK_SYM": MethodField("blocks_of_terms"),
    "PER_BATCH_SYM": MethodField("blocks_of_terms", {"scales": "row"}),
    "PER_TENSOR_SYM": MethodField("blocks_of_terms", {"scales": "tensor"}),
    "PER_BATCH": MethodField("blocks_of_terms", {"scales": "row", "affine": True}),
    "PER_TENSOR": MethodField("blocks_of_terms", {"scales": "tensor", "affine": True}),
}
"""How floats become integers (act_quant_mode), the first unless told otherwise."""


def foresee_layers() -> None:
    """Weight-only layers as they are unless told otherwise."""
    for name, case in cases("woq"):
        if "IC_BLOCK" in name:
            same(name, linear(name, case), case["y"])


def test_weight_only_layers_are_predicted() -> None:
    with override_profile(profile(PROFILE).on("amx")):
        foresee_layers()


@pytest.mark.parametrize("mode", [mode for mode in MODES if "IC_BLOCK" not in mode])
def test_weight_only_layers_in_other_modes_are_predicted(mode: str) -> None:
    with override_profile(with_method("blocks_of_terms", MODES[mode]).on("amx")):
        for name, case in cases("woq"):
            if name.partition(".")[0].endswith(f"-1_{mode}"):
                same(name, linear(name, case), case["y"])


def test_recorded_results_are_rich_in_ties_and_ends() -> None:
    found = []
    for _, case in cases("bag"):
        w_scale, y_scale = case["scales"]
        ends = [*case["offsets"][1:], len(case["indices"])]
        for start, end in zip(case["offsets"], ends, strict=True):
            rows = case["w"][case["indices"][start:end]].astype(np.int64)
            found.append(rows.sum(0) * w_scale / y_scale)
    for _, case in cases("interaction"):
        xs, scales = case["xs"].astype(np.int64), case["scales"]
        for i in range(1, len(xs)):
            for j in range(i):
                found.append((xs[i] * xs[j]).sum(1) * (scales[i] * scales[j] / scales[-1]))
    floats = np.concatenate(found)
    ties = np.mean(np.abs(floats - np.floor(floats) - 0.5) < 1e-6)
    shares = ties, np.mean(floats < -128.5), np.mean(floats > 127.5)
    assert min(shares) >= 0.05, f"ties, low and high: {shares}"
