"""Storage by sign: u8 where nothing is negative, else i8; by the op in a plan, by data after it."""

from pathlib import Path

import numpy as np
import pytest

import qir
from qir.analysis.quantized_regions import fits_scheme
from qir.analysis.scheme_assignment import assign_schemes
from qir.analysis.user_rules import UserRule
from qir.calibration import Key
from qir.capability import Capability, load
from qir.errors import ParseError
from qir.ir.attrs import Attr
from qir.ir.dtype import I8, U8
from qir.ir.node import Node
from qir.ir.scheme import Scheme, parse_scheme
from qir.ir.types import DeclaredBounds, QuantType, uniform
from qir.passes.quantize.assign_schemes import AssignSchemes
from qir.passes.quantize.materialize import Materialize
from qir.rewrite import run_passes

DATA = '"u8|i8 by sign symmetric tensor zero(0)"'
TABLE = f"""
name = "onednn-like"
rounding = {{ i8 = "away" }}

[[op]]
op = "conv2d"
slots = {{ x = {DATA}, w = "i8<-127:127> symmetric channel", result = "i8 symmetric tensor" }}
constant = ["w", "bias"]

[[op]]
op = ["max_pool2d"]
slots = {{ x = {DATA}, result = {DATA} }}
share = ["x", "result"]

[[op]]
op = "concat"
slots = {{ xs = {DATA}, result = {DATA} }}
share = ["xs", "result"]

[[op]]
op = "matmul"
slots = {{ a = {DATA}, b = "i8<-127:127> symmetric channel", result = "i8 symmetric tensor" }}
constant = ["b"]
ranks = {{ a = 2 }}

[[chain]]
chain = ["conv2d", "relu"]
result = "u8 symmetric tensor zero(0)"

[[chain]]
chain = ["conv2d", "clip"]
result = "u8 symmetric tensor zero(0)"
when = {{ min = 0.0 }}

[[chain]]
chain = ["conv2d", "add", "relu"]
result = "u8 symmetric tensor zero(0)"
summand = "u8 symmetric tensor zero(0)"
last_reader = true
"""


@pytest.fixture
def table(tmp_path: Path) -> Capability:
    path = tmp_path / "table.toml"
    path.write_text(TABLE)
    return load(path)


class Net:
    """A float graph, op by op."""

    def __init__(self) -> None:
        self.graph = qir.parse("graph main as native { %x = input() : 1x4x6x6xf32  output(y=%x) }")
        self.rng = np.random.default_rng(3)

    def conv(self, x: str, name: str) -> str:
        w = self.graph.constant(self.rng.normal(0, 0.5, (4, 4, 1, 1)).astype(np.float32))
        return self.graph.add("conv2d", {"x": self.graph[x], "w": w}, name=name).result.name

    def op(self, op: str, name: str, *read: str, **attrs: Attr) -> str:
        slots = ("a", "b") if len(read) == 2 else ("x",)
        operands = {slot: self.graph[v] for slot, v in zip(slots, read, strict=True)}
        return self.graph.add(op, operands, dict(attrs), name=name).result.name

    def ends(self, name: str) -> qir.Graph:
        self.graph.set_operand(self.graph.output, "y", self.graph[name])
        return self.graph


def planned(graph: qir.Graph, table: Capability, *rules: str) -> dict[str, dict[str, str]]:
    _, schemes = assign_schemes(graph, table, user_rules=map(UserRule.parse, rules))
    return {n.name: {s: str(k) for s, k in slots.items()} for n, slots in schemes.items()}


def stored(graph: qir.Graph, table: Capability, x: np.ndarray) -> dict[str, str]:
    """The storage of each quantized value once statistics of one batch decide."""
    statistics = qir.calibrate(graph, [{"x": x}])
    steps = (AssignSchemes(table), Materialize(statistics, "tf-2.21.onednn"))
    made = run_passes(graph, steps, qir.Ledger())
    found = {n.operands["x"].name: n for n in made if n.op == "quantize"}
    return {name: _storage(node) for name, node in found.items()}


def _storage(node: Node) -> str:
    quant = node.result.type.quant
    assert quant is not None
    assert not np.any(quant.zeros())
    return str(quant.storage)


def ramp(low: float, high: float) -> np.ndarray:
    return np.linspace(low, high, 144, dtype=np.float32).reshape(1, 4, 6, 6)


def test_a_scheme_by_sign_is_printed_as_it_is_read() -> None:
    text = "u8|i8 by sign symmetric tensor minmax zero(0)"
    scheme = parse_scheme(text)
    assert str(scheme) == text
    assert [str(kind) for kind in scheme.storages] == ["u8", "i8"]
    assert str(scheme.with_storage(scheme.storages[1])) == "i8 symmetric tensor minmax zero(0)"


@pytest.mark.parametrize(
    "text",
    ["i8|u8 by sign", "u8|u16 by sign", "u8|i8", "u8<0:3>|i8 by sign", "u8|i8 by sign fixed(1:0)"],
)
def test_a_scheme_by_sign_names_an_unsigned_and_a_signed_storage(text: str) -> None:
    with pytest.raises(ParseError):
        parse_scheme(f"{text} tensor" if "fixed" not in text else text)


def test_data_decide_the_storage_of_an_input(table: Capability) -> None:
    net = Net()
    graph = net.ends(net.conv("x", "c"))
    assert planned(graph, table)["c"]["x"].startswith("u8|i8 by sign")
    assert stored(graph, table, ramp(0, 2)) == {"x": "u8", "c": "i8"}
    assert stored(graph, table, ramp(-1, 2)) == {"x": "i8", "c": "i8"}


def test_an_op_that_makes_nothing_negative_decides_in_the_plan(table: Capability) -> None:
    net = Net()
    graph = net.ends(
        net.conv(net.op("max_pool2d", "p", net.op("sigmoid", "s", "x"), kernel=(2, 2)), "c")
    )
    found = planned(graph, table)
    assert found["c"]["x"].startswith("u8 symmetric")
    assert found["p"]["result"].startswith("u8 symmetric")


def test_a_chain_has_a_result_of_its_own(table: Capability) -> None:
    net = Net()
    graph = net.ends(net.conv(net.op("relu", "r", net.conv("x", "c")), "d"))
    found = planned(graph, table)
    assert found["r"]["result"].startswith("u8 symmetric")
    assert found["d"]["x"].startswith("u8 symmetric")
    assert found["d"]["result"].startswith("i8 symmetric")
    assert stored(graph, table, ramp(-1, 2)) == {"x": "i8", "r": "u8", "d": "i8"}


def test_a_chain_may_ask_for_attributes(table: Capability) -> None:
    net = Net()
    net.op("clip", "six", net.conv("x", "c"), min=0.0, max=6.0)
    graph = net.ends(net.op("clip", "even", net.conv("six", "d"), min=-1.0, max=1.0))
    found = planned(graph, table)
    assert found["six"]["result"].startswith("u8 symmetric")
    assert "even" not in found
    assert found["d"]["result"].startswith("i8 symmetric")


def test_a_rule_narrows_a_storage_by_sign(table: Capability) -> None:
    net = Net()
    graph = net.ends(net.conv("x", "c"))
    found = planned(graph, table, "op=conv2d slot=x: i8 symmetric tensor")
    assert found["c"]["x"].startswith("i8 symmetric tensor")


def test_a_sum_is_in_a_kernel_where_its_summand_has_the_storage(table: Capability) -> None:
    net = Net()
    first = net.op("relu", "r", net.conv("x", "c"))
    net.op("add", "s", net.conv(net.conv(first, "d"), "e"), first)
    graph = net.ends(net.op("relu", "y", "s"))
    found = planned(graph, table)
    assert found["y"]["result"].startswith("u8 symmetric")
    assert found["s"]["b"].startswith("u8 symmetric")
    assert "result" not in found["e"]


def test_a_summand_that_may_be_negative_stays_out_of_the_kernel(table: Capability) -> None:
    net = Net()
    net.op("add", "s", net.conv("x", "c"), net.conv("x", "d"))
    graph = net.ends(net.op("relu", "y", "s"))
    found = planned(graph, table)
    assert "s" not in found
    assert found["d"]["result"].startswith("i8 symmetric")


def test_a_summand_that_is_read_later_stays_out_of_the_kernel(table: Capability) -> None:
    net = Net()
    first = net.op("relu", "r", net.conv("x", "c"))
    net.op("relu", "y", net.op("add", "s", net.conv(net.conv(first, "d"), "e"), first))
    graph = net.ends(net.op("add", "t", "y", first))
    assert "s" not in planned(graph, table)


def test_a_summand_that_the_kernel_reads_as_data_too_stays_out_of_it(table: Capability) -> None:
    net = Net()
    first = net.op("relu", "r", net.conv("x", "c"))
    net.op("add", "s", net.conv(first, "d"), first)
    graph = net.ends(net.op("relu", "y", "s"))
    assert "s" not in planned(graph, table)


def test_a_kernel_is_not_cut_short_by_a_rule(table: Capability) -> None:
    net = Net()
    first = net.op("relu", "r", net.conv("x", "c"))
    net.op("add", "s", net.conv(net.conv(first, "d"), "e"), first)
    graph = net.ends(net.op("relu", "y", "s"))
    found = planned(graph, table, "name=y: float")
    assert "s" not in found
    assert found["e"]["result"].startswith("i8 symmetric")


def test_existing_values_of_either_storage_suit_a_slot_by_sign() -> None:
    half = np.float32(0.5)
    allowed: Scheme = parse_scheme("u8|i8 by sign symmetric tensor zero(0)")
    assert fits_scheme(uniform(U8, half), allowed)
    assert fits_scheme(uniform(I8, half), allowed)
    assert not fits_scheme(uniform(U8, half, 3), allowed)


def types(made: qir.Graph) -> dict[str, QuantType]:
    made_by = [n.results[0] for n in made if n.results]
    return {v.name: v.type.quant for v in made_by if v.type.quant is not None}


def test_runtimes_that_carry_ranges_get_them_beside_every_scale(
    table: Capability, tmp_path: Path
) -> None:
    net = Net()
    graph = net.ends(net.op("relu", "r", net.conv("x", "c")))
    x = ramp(-1, 2)
    statistics = qir.calibrate(graph, [{"x": x}])
    made = run_passes(
        graph, (AssignSchemes(table), Materialize(statistics, "tf-2.21.onednn")), qir.Ledger()
    )
    qir.save(made, tmp_path / "made.qir")
    again = qir.load(tmp_path / "made.qir")
    weights = np.asarray(next(v.constant.data for v in graph.values.values() if v.constant))
    for held in (made, again):
        found = types(held)
        assert found["x.q"].declared == DeclaredBounds((-2.0,), (2.0,), 127.0)
        seen = statistics[Key("r")].extremes
        most = float(qir.run(graph, {"x": x}, values=["r"])["r"].max())
        assert np.isclose(float(np.max(seen)), most, rtol=1e-6)
        assert found["r.q"].declared == DeclaredBounds((0.0,), (float(np.max(seen)),), 255.0)
        far = tuple(np.abs(weights).max(axis=(1, 2, 3)).astype(float).tolist())
        per_channel = [q.declared for q in found.values() if q.granularity is not None]
        assert per_channel == [DeclaredBounds(tuple(-end for end in far), far, 127.0)]
    for name, quant in types(made).items():
        assert quant.declared is not None, name
        high = np.asarray(quant.declared.high, np.float32).reshape(-1)
        assert (high / np.float32(quant.declared.level or 0) == quant.scales().reshape(-1)).all()


def test_other_runtimes_and_other_scales_get_no_ranges(table: Capability) -> None:
    net = Net()
    graph = net.ends(net.op("relu", "r", net.conv("x", "c")))
    statistics = qir.calibrate(graph, [{"x": ramp(-1, 2)}])
    for materialize in (
        Materialize(statistics, "native"),
        Materialize(statistics, "tf-2.21.onednn", scales="fbgemm.symmetric"),
    ):
        made = run_passes(graph, (AssignSchemes(table), materialize), qir.Ledger())
        assert types(made)
        assert all(quant.declared is None for quant in types(made).values())


def test_what_joins_storages_that_have_none_in_common_stays_float(table: Capability) -> None:
    net = Net()
    first, second = net.op("relu", "r", net.conv("x", "c")), net.conv("x", "d")
    parts = {"xs.0": net.graph[first], "xs.1": net.graph[second]}
    net.graph.add("concat", parts, {"axis": 1}, name="j")
    graph = net.ends("j")
    plan, _ = assign_schemes(graph, table)
    why = {d.node: d.reason for d in plan.decisions}
    assert why["j"] == "what it joins has no storage in common"
    assert why["c"] == why["d"] == ""
    found = planned(graph, table)
    assert found["r"]["result"].startswith("u8 ")
    assert found["d"]["result"].startswith("i8 ")


def test_a_row_may_ask_for_a_number_of_axes(table: Capability) -> None:
    net = Net()
    w = net.graph.constant(np.eye(6, dtype=np.float32))
    net.graph.add("matmul", {"a": net.graph["x"], "b": w}, name="m")
    plan, _ = assign_schemes(net.ends("m"), table)
    assert [d.reason for d in plan.decisions] == ["its a has 4 axes, onednn-like takes 2"]


def test_a_quantize_that_no_kernel_absorbs_rounds_as_the_table_says(table: Capability) -> None:
    net = Net()
    graph = net.ends(net.op("relu", "r", net.conv("x", "c")))
    statistics = qir.calibrate(graph, [{"x": ramp(-1, 2)}])
    materialize = Materialize(statistics, "tf-2.21.onednn", rounding=tuple(table.rounding.items()))
    made = run_passes(graph, (AssignSchemes(table), materialize), qir.Ledger())
    assert {n.name: n.attrs["round"] for n in made if n.op == "quantize"} == {
        "x.q": "away",
        "r.q": "",
    }


def test_small_weights_keep_their_range_where_data_are_widened(table: Capability) -> None:
    net = Net()
    graph = net.ends(net.conv("x", "c"))
    (node,) = (n for n in graph if n.op == "conv2d")
    w = np.zeros((4, 4, 1, 1), np.float32)
    w[0, 0], w[1, :2, 0, 0] = 0.5, (0.003, -0.001)
    graph.set_operand(node, "w", graph.constant(w, before=node))
    statistics = qir.calibrate(graph, [{"x": ramp(-1, 2)}])
    steps = (AssignSchemes(table), Materialize(statistics, "tf-2.21.onednn"))
    made = run_passes(graph, steps, qir.Ledger())
    (quant,) = (q for q in types(made).values() if q.granularity is not None)
    assert quant.declared is not None
    found = np.asarray(quant.declared.high, np.float32)
    assert found[:2].tolist() == [np.float32(0.5), np.float32(0.003)]
    assert (found[2:] > 0).all()
    assert (quant.scales() == found / np.float32(127)).all()
