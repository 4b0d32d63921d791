"""Recurrent layers against torch in float64, onnxruntime, and steps written out as ops."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from onnx import ValueInfoProto, helper

from qir.errors import DataError, OpError, TypeRuleError
from qir.ir.attrs import Attr
from qir.ir.dtype import F64, I8, I16, U8, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Value
from qir.ir.ops.recurrent import ACTIVATIONS, DEFAULT_ACTIVATIONS, DIRECTIONS, GATE_COUNTS
from qir.ir.text import parse, print_graph
from qir.ir.types import QuantType, TensorType, uniform
from qir.ir.verify import verify
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.query.cost import macs
from qir.reference.interpreter import run
from qir.reference.table import compute_all
from tests.reference.oracles import assert_close, assert_rounded_once
from tests.reference.rules import assert_rule_agrees

Array = NDArray[Any]
ORDERS = {"lstm": (0, 3, 1, 2), "gru": (1, 0, 2), "rnn": (0,)}
"""Where torch has the gates i, o, f, c and z, r, h: it has i, f, c, o and r, z, h."""
TORCH = {"rnn": torch.nn.RNN, "lstm": torch.nn.LSTM, "gru": torch.nn.GRU}


def onnxruntime_runs(op: str, operands: list[Array | None], attrs: dict[str, Any]) -> list[Array]:
    """All results of one ONNX layer, optimizer off, one thread."""
    names = ["y", "h", "c"][: 3 if op == "LSTM" else 2]
    given = {f"i{k}": x for k, x in enumerate(operands) if x is not None}
    inputs = [f"i{k}" if x is not None else "" for k, x in enumerate(operands)]
    node = helper.make_node(op, inputs, names, **attrs)
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for n, x in given.items()
    ]
    graph = helper.make_graph([node], "one", infos, [ValueInfoProto(name=n) for n in names])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    found: list[Array] = session.run(None, given)
    return found


def _drawn(rng: np.random.Generator, op: str, ways: int) -> dict[str, Array]:
    steps, batch, taken, hidden = (int(n) for n in rng.integers(1, 6, 4))

    def real(*shape: int) -> Array:
        return np.asarray(rng.normal(size=shape) / 2, np.float32)

    rows = len(GATE_COUNTS[op]) * hidden
    out = {"x": real(steps, batch, taken), "w": real(ways, rows, taken)}
    out["r"] = real(ways, rows, hidden)
    if rng.integers(2):
        out["bias"] = real(ways, 2 * rows)
    if rng.integers(2):
        out["lengths"] = rng.integers(0, steps + 1, batch).astype(np.int32)
    if rng.integers(2):
        out["h0"] = real(ways, batch, hidden)
    if op == "lstm":
        if rng.integers(2):
            out["c0"] = real(ways, batch, hidden)
        if rng.integers(2):
            out["peephole"] = real(ways, 3 * hidden)
    return out


_NUMBERED = {n: pair for n, pair in ACTIVATIONS.items() if pair != (None, None)}


def _options(rng: np.random.Generator, op: str) -> tuple[dict[str, Attr], dict[str, Any]]:
    """Attributes in our words and in ONNX's."""
    way = str(rng.choice(list(DIRECTIONS)))
    ours: dict[str, Attr] = {"direction": way}
    theirs: dict[str, Any] = {"direction": way}
    if rng.integers(3) == 0:
        ours["clip"] = theirs["clip"] = float(np.float32(0.4))
    for name, there in (("input_forget", "lstm"), ("linear_before_reset", "gru")):
        if op == there and rng.integers(2):
            ours[name], theirs[name] = True, 1
    if rng.integers(2):
        count = len(DEFAULT_ACTIVATIONS[op]) * len(DIRECTIONS[way])
        names = [str(n) for n in rng.choice(list(ACTIVATIONS), count)]
        pairs = [ACTIVATIONS[n] for n in names]
        ours["activations"] = tuple(names)
        theirs["activations"] = ["".join(w.title() for w in n.split("_")) for n in names]
        for which, slot in (("alpha", 0), ("beta", 1)):
            drawn = [float(np.float32(v)) for v in rng.uniform(0.1, 0.9, count)]
            ours[which] = tuple(drawn)
            used = [v for v, pair in zip(drawn, pairs, strict=True) if pair[slot] is not None]
            if used:
                theirs[f"activation_{which}"] = used
    return ours, theirs


@pytest.mark.parametrize("op", GATE_COUNTS)
@pytest.mark.parametrize("seed", range(30))
def test_layers_agree_with_onnxruntime(op: str, seed: int) -> None:
    """Within 2e-5, as float32 functions of one name differ and steps add up."""
    rng = np.random.default_rng(seed)
    attrs, theirs = _options(rng, op)
    operands = _drawn(rng, op, len(DIRECTIONS[str(attrs["direction"])]))
    made = assert_rule_agrees(op, operands, attrs, note=f"seed {seed}")
    places = ["x", "w", "r", "bias", "lengths", "h0", "c0", "peephole"][: 8 if op == "lstm" else 6]
    theirs["hidden_size"] = operands["r"].shape[2]
    found = onnxruntime_runs(op.upper(), [operands.get(p) for p in places], theirs)
    for one, other in zip(made, found, strict=True):
        assert_close(one, other, 2e-5, f"{op}, seed {seed}, {attrs}")


def _torch_layer(
    op: str, rng: np.random.Generator, layers: int = 1, projected: int = 0
) -> tuple[Any, int, int]:
    taken, hidden = (int(n) for n in rng.integers(1, 6, 2))
    more = {"proj_size": min(projected, hidden - 1)} if projected and hidden > 1 else {}
    torch.manual_seed(int(rng.integers(1 << 30)))
    two, first = bool(rng.integers(2)), bool(rng.integers(2))
    layer = TORCH[op](
        taken, hidden, layers, bidirectional=two, batch_first=first, dtype=torch.float64, **more
    )
    return layer, taken, hidden


def _weights(layer: Any, op: str, index: int) -> dict[str, Array]:
    """One layer's weights in ONNX's layout."""
    out: dict[str, list[Array]] = {"w": [], "r": [], "bias": [], "proj": []}
    for end in ("", "_reverse") if layer.bidirectional else ("",):

        def held(name: str, end: str = end) -> Array:
            data: Array = getattr(layer, f"{name}_l{index}{end}").detach().numpy()
            if name == "weight_hr":
                return data
            parts = np.split(data, len(ORDERS[op]))
            return np.concatenate([parts[i] for i in ORDERS[op]])

        out["w"].append(held("weight_ih"))
        out["r"].append(held("weight_hh"))
        out["bias"].append(np.concatenate([held("bias_ih"), held("bias_hh")]))
        if getattr(layer, "proj_size", 0):
            out["proj"].append(held("weight_hr"))
    return {name: np.stack(parts) for name, parts in out.items() if parts}


@pytest.mark.parametrize("op", GATE_COUNTS)
@pytest.mark.parametrize("seed", range(15))
def test_layers_are_torchs_rounded_once(op: str, seed: int) -> None:
    """Stacked layers too: float32 of a float64 result that differs by its own rounding alone."""
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(1, 4))
    projected = int(rng.integers(3)) if op == "lstm" else 0
    layer, taken, hidden = _torch_layer(op, rng, layers, projected)
    steps, batch = (int(n) for n in rng.integers(1, 6, 2))
    first, ways = layer.batch_first, 2 if layer.bidirectional else 1
    x = rng.normal(size=(batch, steps, taken) if first else (steps, batch, taken))
    out = getattr(layer, "proj_size", 0) or hidden
    starts = [rng.normal(size=(layers * ways, batch, n)) for n in (out, hidden)]
    given = [torch.from_numpy(s) for s in starts]
    start = (given[0], given[1]) if op == "lstm" else given[0]
    with torch.no_grad():
        y, last = layer(torch.from_numpy(x), start)
    ends = [t.numpy() for t in (last if op == "lstm" else (last,))]
    flow: Array = x
    found: list[list[Array]] = []
    for i in range(layers):
        operands = {"x": flow, **_weights(layer, op, i)}
        for name, data in zip(("h0", "c0"), starts[: len(ends)], strict=False):
            part = data[i * ways : (i + 1) * ways]
            operands[name] = np.swapaxes(part, 0, 1) if first else part
        attrs: dict[str, Attr] = {"batch_first": first}
        attrs["direction"] = "bidirectional" if ways == 2 else "forward"
        if op == "gru":
            attrs["linear_before_reset"] = True
        made = assert_rule_agrees(op, operands, attrs, note=f"seed {seed}")
        found.append([np.swapaxes(m, 0, 1) if first else m for m in made[1:]])
        y_last: Array = made[0]
        flow = y_last if first else np.moveaxis(y_last, 1, 2)
        flow = flow.reshape(*flow.shape[:2], -1)
    exact = y.numpy()
    assert_rounded_once(flow, exact, 1 + np.abs(exact) * 16, f"seed {seed}")
    for k, end in enumerate(ends):
        mine = np.concatenate([parts[k] for parts in found])
        assert_rounded_once(mine, end, 1 + np.abs(end) * 16, f"seed {seed}")


@pytest.mark.parametrize("op", GATE_COUNTS)
def test_float32_is_the_float64_result_rounded_once(op: str) -> None:
    rng = np.random.default_rng(8)
    operands = _drawn(rng, op, 1)
    wide = {s: x.astype(np.float64) if x.dtype == np.float32 else x for s, x in operands.items()}
    exact = compute_all(op, wide, {})
    for kind in (np.float32, np.float16):
        held = {s: x.astype(kind) if x.dtype == np.float32 else x for s, x in operands.items()}
        again = {s: x.astype(np.float64) if x.dtype == kind else x for s, x in held.items()}
        exact = compute_all(op, again, {})
        for one, other in zip(compute_all(op, held, {}), exact, strict=True):
            assert one.tobytes() == other.astype(kind).tobytes()


@pytest.mark.parametrize("op", GATE_COUNTS)
@pytest.mark.parametrize("sizes", [(0, 2), (3, 0)])
def test_nothing_goes_through_a_layer_too(op: str, sizes: tuple[int, int]) -> None:
    rows = 4 * len(GATE_COUNTS[op])
    x, w, r = (np.ones(n, np.float32) for n in ((*sizes, 3), (1, rows, 3), (1, rows, 4)))
    made = assert_rule_agrees(op, {"x": x, "w": w, "r": r})
    assert made[0].shape == (sizes[0], 1, sizes[1], 4)
    assert not any(m.any() for m in made)


# -- inner slots -----------------------------------------------------------------------------------

PLACES: dict[str, QuantType] = {
    "h": uniform(U8, np.float32(0.02), 120, bounds=(0, 250)),
    "c": uniform(I16, np.float32(2.0**-11)),
    "gate.i": uniform(I16, np.float32(2.0**-12)),
    "gate.o": uniform(I8, np.float32(0.05), 3),
    "act.f": uniform(U8, np.float32(1 / 256)),
    "hidden": uniform(I8, np.float32(0.01), -4),
}


def _explicit(operands: dict[str, Array], places: dict[str, QuantType], profile: str) -> Graph:
    """An LSTM step by step, with a quantize and a dequantize wherever one is asked for."""
    graph = Graph("steps", profile)
    given = {
        s: graph.add("input", types=[TensorType(x.shape, dtype_of(x))], name=s).result
        for s, x in operands.items()
    }
    steps, hidden = operands["x"].shape[0], operands["r"].shape[1] // 4

    def op(kind: str, *values: Value, **attrs: Attr) -> Value:
        slots = ("x",) if len(values) == 1 else ("a", "b")
        return graph.add(kind, dict(zip(slots, values, strict=True)), attrs).result

    def at(place: str, value: Value) -> Value:
        if place not in places:
            return value
        kind = value.type.with_element(places[place])
        quantized = graph.add(
            "quantize", {"x": op("cast", value, to=dtype_of(np.zeros(1, "f4")))}, types=[kind]
        )
        return op("cast", op("dequantize", quantized.result), to=F64)

    def part(value: Value, index: int) -> Value:
        return graph.add("split", {"x": value}, {"sizes": (hidden,) * 4, "axis": 1}).results[index]

    only = {s: op("squeeze", v, axes=(0,)) for s, v in given.items() if s != "x"}
    h, c, outs = only["h0"], only["c0"], []
    for step in range(steps):
        where = {"starts": (step,), "ends": (step + 1,), "axes": (0,), "steps": (1,)}
        x = op("squeeze", op("slice", given["x"], **where), axes=(0,))
        sums = op("add", op("matmul", x, only["w"], trans_b=True), only["bias"])
        sums = op("add", sums, op("matmul", at("h", h), only["r"], trans_b=True))
        i, o, f, new = (part(sums, k) for k in range(4))
        i = at("act.i", op("sigmoid", at("gate.i", i)))
        f = at("act.f", op("sigmoid", at("gate.f", f)))
        new = at("act.c", op("tanh", at("gate.c", new)))
        c = at("c", op("add", op("mul", f, c), op("mul", i, new)))
        o = at("act.o", op("sigmoid", at("gate.o", o)))
        hidden_state = at("hidden", op("mul", o, op("tanh", c)))
        h = op("matmul", hidden_state, only["proj"], trans_b=True)
        outs.append(op("unsqueeze", h, axes=(0,)))
    y = graph.add("concat", {f"xs.{k}": v for k, v in enumerate(outs)}, {"axis": 0}).result
    graph.add("output", {"y": y, "h": h, "c": c})
    return graph


@pytest.mark.parametrize("seed", range(8))
def test_inner_slots_round_as_quantize_and_dequantize_in_each_step(seed: int) -> None:
    """In float64 throughout, where the order of sums cannot move a code."""
    rng = np.random.default_rng(seed)
    steps, batch, taken, hidden, out = 5, 2, 3, 4, 3
    shapes: dict[str, tuple[int, ...]] = {
        "x": (steps, batch, taken),
        "w": (1, 16, taken),
        "r": (1, 16, out),
    }
    shapes |= {"bias": (1, 16), "h0": (1, batch, out), "c0": (1, batch, hidden)}
    shapes["proj"] = (1, out, hidden)
    operands: dict[str, Array] = {s: rng.normal(size=n) for s, n in shapes.items()}
    picked = [p for p in PLACES if rng.integers(2)] or ["h"]
    places = {p: PLACES[p] for p in picked}
    graph = Graph("layer", "ort-1.31")
    given = {
        s: graph.add("input", types=[TensorType(x.shape, F64)], name=s).result
        for s, x in operands.items()
    }
    node = graph.add("lstm", given, inner=places)
    graph.add("output", dict(zip("yhc", node.results, strict=True)))
    assert parse(print_graph(graph)) == graph
    assert verify(graph) == []
    ours = run(graph, operands)
    theirs = run(_explicit(operands, places, "ort-1.31"), operands)
    plain = compute_all("lstm", operands, {})[0]
    assert not np.allclose(ours["y"], plain, atol=1e-6)
    for name in "yhc":
        mine = ours[name][:, 0] if name == "y" else ours[name][0]
        assert_close(mine, theirs[name], 1e-12, f"seed {seed}")


TEXT = """graph main as native {
  %x = input() : 5x2x3xf32
  %w = input() : 1x16x3x!quant.uniform<i8:f32, 0.01>
  %r = input() : 1x16x4x!quant.uniform<i8:f32, 0.02>
  %b = input() : 1x32xf32
  %y, %h, %c = lstm(%x, %w, %r, bias=%b)INNER : RESULTS
  output(y=%y, h=%h, c=%c)
}
"""
CODES = "!quant.uniform<i8:f32, 0.0078125>"


def _integers(inner: str, element: str) -> Graph:
    results = ", ".join(f"{s}x{element}" for s in ("5x1x2x4", "1x2x4", "1x2x4"))
    return parse(
        TEXT.replace("INNER", f" inner {inner}" if inner else "").replace("RESULTS", results)
    )


def _inputs() -> dict[str, Array]:
    rng = np.random.default_rng(1)
    x, b = (np.asarray(rng.normal(size=n), np.float32) for n in ((5, 2, 3), (1, 32)))
    w, r = (rng.integers(-99, 99, n).astype(np.int8) for n in ((1, 16, 3), (1, 16, 4)))
    return {"x": x, "w": w, "r": r, "b": b}


def test_integers_are_dequantized_first_and_results_quantized_last() -> None:
    inputs = _inputs()
    graph = _integers(f"{{c : !quant.uniform<i16:f32, 0.00048828125>, h : {CODES}}}", CODES)
    assert verify(graph) == []
    plain = _integers(f"{{c : !quant.uniform<i16:f32, 0.00048828125>, h : {CODES}}}", "f32")
    quantized = run(graph, inputs)
    floats: dict[str, Array] = dict(run(plain, inputs))
    for name, found in quantized.items():
        assert found.dtype == np.int8
        scaled = np.rint(floats[name] / np.float32(0.0078125))
        assert np.array_equal(found, np.clip(scaled, -128, 127))
    scale = np.float64(0.00048828125)
    assert np.array_equal(np.rint(floats["c"] / scale) * scale, floats["c"])


@pytest.mark.parametrize("element", [CODES, "f32"])
@pytest.mark.parametrize("inner", ["", f"{{h : {CODES}}}", "{h : !quant.uniform<u8:f32, ?:?>}"])
def test_the_float_form_between_integers_computes_the_same_bytes(inner: str, element: str) -> None:
    graph = _integers(inner, element)
    before = run(graph, _inputs())
    ExpandQdq().run(graph, Ledger())
    assert verify(graph) == []
    assert not any(v.type.quant for v in graph["y"].node.operands.values() if element == "f32")
    after = run(graph, _inputs())
    assert all(after[name].tobytes() == before[name].tobytes() for name in before)


def test_a_map_that_nothing_gives_is_chosen_in_each_step() -> None:
    inputs = _inputs()
    dynamic = _integers("{h : !quant.uniform<u8<0:127>:f32, ?:?>}", "f32")
    assert verify(dynamic) == []
    made = run(dynamic, inputs)
    plain = run(_integers("", "f32"), inputs)
    assert not np.array_equal(made["y"], plain["y"])
    assert_close(made["y"], plain["y"], 0.1)


def test_a_companion_gives_an_inner_slot_its_numbers() -> None:
    graph, inputs = _integers("{h : !quant.uniform<u8:f32, ?:?>}", "f32"), _inputs()
    node = graph["y"].node
    scale = graph.add("input", types=[parse_type("f32")], name="s", before=node).result
    zero = graph.add("input", types=[parse_type("u8")], name="z", before=node).result
    graph.set_operand(node, "h.scale", scale)
    graph.set_operand(node, "h.zero", zero)
    assert verify(graph) == []
    numbers: dict[str, Array] = {"s": np.array(0.02, np.float32), "z": np.array(120, np.uint8)}
    fixed = _integers("{h : !quant.uniform<u8:f32, 0.02:120>}", "f32")
    assert run(graph, {**inputs, **numbers})["y"].tobytes() == run(fixed, inputs)["y"].tobytes()


# -- what does not fit -----------------------------------------------------------------------------


def parse_type(text: str) -> TensorType:
    return parse(f"graph g {{\n  %x = input() : {text}\n  output(x=%x)\n}}")["x"].type


MISFITS = [
    ("rnn", {"w": (2, 4, 3)}, {}, "w is 2x4x3, it should be 1x4x3"),
    ("lstm", {"w": (1, 10, 3), "r": (1, 10, 2)}, {}, "10 rows, which are not 4 gates"),
    ("lstm", {"c0": (1, 2, 3)}, {}, "c0 is 1x2x3, it should be 1x2x4"),
    ("gru", {"bias": (1, 13)}, {}, "bias is 1x13, it should be 1x12 or 1x24"),
    ("gru", {}, {"direction": "sideways"}, "direction 'sideways' is none of"),
    ("rnn", {}, {"activations": ("tanh", "tanh")}, "2 activations, it takes 1 a direction"),
    ("rnn", {}, {"activations": ("sine",)}, "activation 'sine' is none of"),
    ("rnn", {}, {"alpha": (1.0, 2.0)}, "alpha has 2 numbers"),
    ("rnn", {}, {"clip": 0.0}, "clip = 0.0, it must be greater"),
]


@pytest.mark.parametrize(("op", "shapes", "attrs", "message"), MISFITS)
def test_misfits_are_refused(
    op: str, shapes: dict[str, tuple[int, ...]], attrs: dict[str, Attr], message: str
) -> None:
    rows = 4 * len(GATE_COUNTS[op])
    graph, every = Graph(), {"x": (5, 2, 3), "w": (1, rows, 3), "r": (1, rows, 4), **shapes}
    given = {
        s: graph.add("input", types=[TensorType(n, dtype_of(np.zeros(1, "f4")))]).result
        for s, n in every.items()
    }
    with pytest.raises(TypeRuleError, match=message):
        graph.add(op, given, attrs)


def test_lengths_beyond_the_steps_and_sizes_that_do_not_meet_are_refused() -> None:
    x, w, r = (np.zeros(n, np.float32) for n in ((5, 2, 3), (1, 4, 3), (1, 4, 4)))
    for lengths in (np.array([6, 1]), np.array([-1, 1])):
        with pytest.raises(OpError, match=r"lengths .* they must be in 0..5"):
            compute_all("rnn", {"x": x, "w": w, "r": r, "lengths": lengths}, {})
    with pytest.raises(OpError, match=r"r is \[1, 4, 3\]"):
        compute_all("rnn", {"x": x, "w": w, "r": r[:, :, :3]}, {})
    h0 = np.zeros((1, 1, 4), np.float32)
    with pytest.raises(OpError, match="h0 is of one sample, x of 2: use `batch=1`"):
        compute_all("rnn", {"x": x, "w": w, "r": r, "h0": h0}, {})
    graph = _integers("", "f32")
    with pytest.raises(DataError):
        run(graph, {**_inputs(), "x": x.astype(np.float64)})


def test_products_are_counted() -> None:
    node = _integers("", "f32")["y"].node
    assert macs(node, {}) == 5 * 2 * 16 * (3 + 4)
