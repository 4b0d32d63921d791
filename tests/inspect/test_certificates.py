"""Certificates against every sum there is: each looked at, by the rules of requantizing alone."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from qir.errors import ProfileError, UsageError
from qir.inspect import certificates
from qir.inspect.certificates import Certificate, certify, nudged
from qir.inspect.reachable_sums import MAX_SPAN, sum_reach
from qir.ir.dtype import I8, U8, dtype_of
from qir.ir.graph import Graph
from qir.ir.node import Stage
from qir.ir.ops import spec
from qir.ir.parser import parse
from qir.ir.types import Array, TensorType, uniform
from qir.ledger import Ledger
from qir.numerics import accumulate, affine, multiplier, requantize
from qir.passes.forms.group import Group
from qir.profiles import Query, profile, query_for_node
from qir.profiles import parse as parse_profile
from qir.profiles.processor import best_isa
from qir.reference.interpreter import run

F = np.float32
PAIR = ("native", "torch-2.13.onednn")


def layer(
    w: NDArray[np.int8],
    scales: tuple[float | np.floating, NDArray[np.floating] | np.floating, float | np.floating],
    zeros: tuple[int, int] = (121, 77),
    bias: NDArray[np.generic] | None = None,
    tail: str = "",
    rows: int = 1,
) -> Graph:
    """One linear layer on u8 integers."""
    x_scale, w_scale, y_scale = scales
    graph = Graph()
    kind = TensorType((rows, w.shape[1]), uniform(U8, F(x_scale), zeros[0]))
    operands = {"x": graph.add("input", types=[kind], name="x").result}
    held = np.asarray(w_scale, np.float32)
    of = uniform(I8, held, axis=0 if held.ndim else None, name="w")
    operands["w"] = graph.constant(Array(w, TensorType(w.shape, of), "w"))
    if bias is not None:
        operands["bias"] = graph.constant(Array(bias, TensorType(bias.shape, dtype_of(bias)), "b"))
    result = TensorType((rows, len(w)), uniform(U8, F(y_scale), zeros[1]))
    if tail:
        first = Stage("linear", spec("linear").complete_attrs({}), tuple(operands))
        last = Stage(tail, spec(tail).complete_attrs({}), (), "x")
        node = graph.add_chain((first, last), operands, result, name="y")
    else:
        node = graph.add("linear", operands, types=[result], name="y")
    graph.add("output", {"y": node.result})
    return graph


@pytest.fixture
def any_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of no processor's own, as a run by a profile has them."""
    monkeypatch.setattr(certificates, "best_isa", lambda: "any")


def every_code(
    name: str, graph: Graph, scale: np.float32, sums: NDArray[np.int64]
) -> NDArray[np.generic]:
    """The integers of sums, straight from the definition of requantizing."""
    rule = profile(name).resolve(Query("linear", {"x": "u8", "w": "i8", "result": "u8"}))
    x, y = graph["x"].type.quant, graph["y"].type.quant
    assert x is not None
    assert y is not None
    maps = [affine("u8", np.asarray(q.scales(), F), int(np.asarray(q.zeros()))) for q in (x, y)]
    factor = multiplier(maps[0], affine("i8", np.asarray(scale)), maps[1], rule)
    if rule.requant.order == "x*w*(1/y)":  # torch's onednn: three products, scales inverted twice
        one = F(1)
        steps = sums.astype(F) * (one / (one / F(maps[0].scale))) * (one / (one / F(scale)))
        moved = np.rint(steps * (one / F(maps[1].scale)) + F(int(maps[1].zero)))
        return np.asarray(np.clip(moved, 0, 255)).astype(np.uint8)
    return requantize(sums.astype(np.int32), factor, maps[1], rule, axis=0)


def reached(w: NDArray[np.int8], zero: int) -> NDArray[np.int64]:
    """Every sum that some integers make of one row of weights: weight by weight, code by code."""
    least = sum(min(int(v) * (0 - zero), int(v) * (255 - zero)) for v in w)
    bits = 1
    for weight in np.abs(w.astype(np.int64)):
        before, bits = bits, 0
        for code in range(256):
            bits |= before << (int(weight) * code)
    return np.array([i for i, bit in enumerate(reversed(f"{bits:b}")) if bit == "1"]) + least


def only(found: tuple[Certificate, ...]) -> certificates.Ties:
    (certificate,) = found
    assert certificate.ties is not None
    return certificate.ties


@pytest.mark.usefixtures("any_processor")
@settings(max_examples=25)
@given(st.integers(0, 1 << 30), st.integers(1, 40), st.booleans(), st.booleans())
def test_certificates_are_what_looking_at_every_sum_shows(
    seed: int, depth: int, dyadic: bool, other: bool
) -> None:
    rng = np.random.default_rng(seed)
    w = rng.integers(-12, 13, (1, depth)).astype(np.int8)
    x_scale, y_scale = (F(v) for v in rng.uniform(0.01, 0.3, 2))
    w_scale = F(y_scale / (x_scale * F(2.0 ** rng.integers(2, 7))))
    if not dyadic:
        w_scale = F(w_scale * F(rng.uniform(0.6, 1.4)))
    pair = ("native", "tflite-2.21.ref") if other else PAIR
    graph = layer(w, (x_scale, w_scale, y_scale))
    ties = only(certify(graph, pair, most=64))
    sums = reached(w[0], 121)
    assert ties.sums == sums.size
    made = [every_code(name, graph, w_scale, sums) for name in pair]
    assert ties.differ == int((made[0] != made[1]).sum()), (seed, ties)
    if ties.why:
        assert "no nudge of its scale by up to 64 ulps" in ties.why
        tried = range(-64, 65) if sums.size < 9000 else range(-3, 4)
        assert not any(_agree(pair, graph, nudged(w_scale, n), sums) for n in tried)
        return
    (nudge,) = ties.nudges
    assert ties.scales == (float(nudged(w_scale, nudge)),)
    assert _agree(pair, graph, nudged(w_scale, nudge), sums), (seed, ties)
    less = [n for n in range(-abs(nudge) + 1, abs(nudge))]
    assert not any(_agree(pair, graph, nudged(w_scale, n), sums) for n in less), (seed, ties)


def _agree(pair: tuple[str, str], graph: Graph, scale: np.float32, sums: NDArray[np.int64]) -> bool:
    one, two = (every_code(name, graph, scale, sums) for name in pair)
    return np.array_equal(one, two)


@pytest.mark.parametrize("seed", range(12))
def test_sums_that_no_input_makes_part_nobody(seed: int) -> None:
    """Few weights, all far from one, so that most sums between the ends are never met."""
    rng = np.random.default_rng(seed)
    w = rng.integers(40, 128, (1, 1 + seed % 3)) * rng.choice([-1, 1])
    w = (w // 6 * 6 if seed % 2 else w).astype(np.int8)
    x_scale, y_scale = F(2.0 ** -int(rng.integers(2, 6))), F(2.0 ** -int(rng.integers(0, 4)))
    w_scale = F(2.0 ** -int(rng.integers(2, 10)))
    graph = layer(w, (x_scale, w_scale, y_scale))
    sums = reached(w[0], 121)
    pair = ("tflite-2.21.ref", "torch-2.13.qnnpack") if seed % 4 < 2 else PAIR
    ties = only(certify(graph, pair, most=8))
    assert ties.sums == sums.size
    made = [every_code(name, graph, w_scale, sums) for name in pair]
    assert ties.differ == int((made[0] != made[1]).sum()), seed


def test_a_layer_whose_256_sums_part_nobody_is_free() -> None:
    """Every 104th sum is made, and none of them is a tie; some of those between are."""
    graph = layer(np.array([[104]], np.int8), (0.125, F(0.25), 0.125), zeros=(177, 17))
    pair = ("tflite-2.21.ref", "torch-2.13.qnnpack")
    ties = only(certify(graph, pair))
    assert (ties.sums, ties.differ, ties.nudges, ties.why) == (256, 0, (0,), "")
    for code in range(256):
        x = np.full((1, 1), code, np.uint8)
        one, two = (run(graph, {"x": x}, profile=name)["y"] for name in pair)
        assert np.array_equal(one, two), code


def test_where_ends_lie_too_far_apart_multiples_of_the_divisor_count() -> None:
    even = np.array([4, -6] * 4 + [100], np.int64)
    near = sum_reach(even, -3, 5)
    assert near.step == 2
    assert near.every().tolist() == sorted(_sums(even, range(-3, 6)))
    assert near.meets(np.arange(near.least, near.greatest + 1)).sum() == near.count
    wide = np.array([6, 10] * 3_000, np.int64)
    far = sum_reach(wide, -128, 127)
    assert far.count > MAX_SPAN
    assert far.made is None
    assert far.step == 2
    assert far.count == (far.greatest - far.least) // 2 + 1
    assert sum_reach(np.zeros(3, np.int64), -1, 5).every().tolist() == [0]


def _sums(row: NDArray[np.int64], quantized: range) -> set[int]:
    found = {0}
    for weight in row:
        found = {s + int(weight) * code for s in found for code in quantized}
    return found


def test_each_channel_is_nudged_for_itself_and_runs_agree_then() -> None:
    rng = np.random.default_rng(3)
    w = rng.integers(-12, 13, (6, 30)).astype(np.int8)
    x_scale, y_scale = F(0.0373), F(0.0911)
    scales = np.asarray(y_scale / (x_scale * np.exp2(rng.integers(3, 6, 6))), F)
    real = (rng.integers(-60, 60, 6) * F(0.5) * scales * x_scale).astype(F)
    for bias in (None, rng.integers(-300, 300, 6).astype(np.int32), real):
        for tail in ("", "relu"):
            ties = only(certify(layer(w, (x_scale, scales, y_scale), bias=bias, tail=tail), PAIR))
            assert ties.differ
            if bias is real and ties.why:
                continue  # one rounds it to the unit of the sums, the other does not
            assert not ties.why
            assert len(ties.nudges) == 6
            right = layer(w, (x_scale, np.array(ties.scales, F), y_scale), bias=bias, tail=tail)
            again = only(certify(right, PAIR))
            assert again.free
            assert set(again.nudges) == {0}
            for seed in range(40):
                x = np.random.default_rng(seed).integers(0, 256, (1, 30)).astype(np.uint8)
                one, two = (run(right, {"x": x}, profile=name)["y"] for name in PAIR)
                assert np.array_equal(one, two), seed


def test_proofs_by_steps_and_by_sums_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(8)
    for number in range(6):
        w = rng.integers(-12, 13, (2, 14)).astype(np.int8)
        x_scale, y_scale = (F(v) for v in rng.uniform(0.01, 0.3, 2))
        w_scale = F(y_scale / (x_scale * F(2.0 ** rng.integers(2, 7))))
        bias = rng.integers(-300, 300, 2).astype(np.int32) if number % 2 else None
        graph = layer(w, (x_scale, w_scale, y_scale), bias=bias)
        found = []
        for each in (1 << 30, 0):
            monkeypatch.setattr(certificates, "_MAX_SUMS_PER_CHANNEL", each)
            ties = only(certify(graph, PAIR, most=100))
            found.append((ties.differ, ties.nudges, ties.why))
            assert ties.proof == ("sums" if each else "steps")
        assert found[0] == found[1], number


DEPTHWISE = """
graph main {
  %x = input() : 1x8x9x9x!quant.uniform<u8<0:MOST>:f32, 0.0625>
  %w = constant(@w) : 8x1x3x3x!quant.uniform<i8:f32, 0.03125>
  %y = conv2d(%x, %w) {pad = (PAD, PAD, PAD, PAD), groups = 8} : SHAPEx!quant.uniform<u8:f32, 1.0>
  output(y=%y)
}
"""


@pytest.mark.parametrize(("most", "pad"), [(255, 1), (127, 1), (255, 0)])
def test_depthwise_layers_saturate_under_fbgemm_on_any_processor(most: int, pad: int) -> None:
    size = "1x8x9x9" if pad else "1x8x7x7"
    text = DEPTHWISE.replace("MOST", str(most)).replace("PAD", str(pad)).replace("SHAPE", size)
    w = np.full((8, 1, 3, 3), 127, np.int8)
    (found,) = certify(parse(text, {"w": w}), ("torch-2.13.fbgemm", "ort-1.31"))
    here = (most, pad) == (255, 1)
    assert ("torch-2.13.fbgemm" in found.saturated_by) == here
    assert found.ties is not None
    assert ("saturate in 16 bits under torch-2.13.fbgemm" in found.ties.why) == here


VOLUME = """
graph main {
  %x = input() : 1x8x9x9x9x!quant.uniform<u8<0:MOST>:f32, 0.0625>
  %w = constant(@w) : 8x1x7x7x7x!quant.uniform<i8:f32, 0.03125:ZERO>
  %y = conv3d(%x, %w) {pad = (3, 3, 3, 3, 3, 3), groups = 8} :
    1x8x9x9x9x!quant.uniform<u8:f32, 1.0>
  output(y=%y)
}
"""


@pytest.mark.parametrize(("most", "zero"), [(255, 1), (255, 0), (95, 1), (96, 1)])
def test_codes_of_windows_saturate_under_fbgemm_beside_zero_points(most: int, zero: int) -> None:
    text = VOLUME.replace("MOST", str(most)).replace("ZERO", str(zero)).replace(":\n    1x", ": 1x")
    (found,) = certify(parse(text, {"w": np.full((8, 1, 7, 7, 7), 3, np.int8)}))
    saturates = zero != 0 and 343 * most > 32767
    assert ("torch-2.13.fbgemm" in found.saturated_by) == saturates
    assert "torch-2.13.qnnpack" not in found.saturated_by


def image(w: NDArray[np.int8], groups: int, most: int) -> Graph:
    """A convolution whose windows are the whole image."""
    graph, channels = Graph(), w.shape[1] * groups
    kind = uniform(U8, F(0.5), 0, bounds=(0, most))
    operands = {
        "x": graph.add("input", types=[TensorType((1, channels, *w.shape[2:]), kind)]).result,
        "w": graph.constant(Array(w, TensorType(w.shape, uniform(I8, F(0.5))), "w")),
    }
    result = TensorType((1, len(w), 1, 1), uniform(U8, F(99)))
    node = graph.add("conv2d", operands, {"groups": groups}, types=[result], name="y")
    graph.add("output", {"y": node.result})
    return graph


def loses(w: NDArray[np.int8], groups: int, most: int, pairs: str) -> bool:
    """Whether the sum of some two terms differs from the exact one, each two tried one by one."""
    channels = w.shape[1] * groups
    how = parse_profile(f'name = "p"\n[acc]\npairs = "{pairs}"\n', "p").resolve(Query("conv2d")).acc
    places = list(np.ndindex(channels, *w.shape[2:]))
    images = []
    for first, second in itertools.product(places, places):
        images.append(np.zeros((channels, *w.shape[2:]), np.uint8))
        images[-1][first] = images[-1][second] = most
    data = np.stack(images)
    exact = accumulate.conv2d(data, w, groups=groups)
    return bool(np.any(accumulate.conv2d(data, w, groups=groups, how=how) != exact))


@pytest.mark.parametrize("seed", range(24))
def test_pairs_of_convolutions_saturate_where_some_input_shows_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On processors before VNNI, under a profile whose pairs cross taps and one whose do not."""
    rng = np.random.default_rng(seed)
    groups, into, most = (
        int(rng.choice([1, 2])),
        int(rng.integers(1, 4)),
        int(rng.choice([255, 200])),
    )
    w = rng.choice([1, -2, 3], (groups * 2, into, *rng.integers(1, 3, 2))).astype(np.int8)
    for _ in range(2):
        w[tuple(rng.integers(0, w.shape))] = rng.choice([127, 90])
    monkeypatch.setattr(certificates, "best_isa", lambda: "avx2")
    names = {"torch-2.13.fbgemm": "saturate_rows", "torch-2.13.pt2e": "saturate_i16"}
    (found,) = certify(image(w, groups, most), tuple(names))
    shown = {name: loses(w, groups, most, pairs) for name, pairs in names.items()}
    assert {name: name in found.saturated_by for name in names} == shown
    assert found.classes["avx2"] == ("saturate" if shown["torch-2.13.fbgemm"] else "exact")


def test_sums_that_wrap_or_pairs_that_saturate_are_said() -> None:
    wide = layer(np.full((1, 66_400), 127, np.int8), (0.1, F(0.1), 9e3), zeros=(0, 0))
    (found,) = certify(wide, PAIR)
    assert found.sums.wraps
    assert found.classes == {"avx2": "saturate", "vnni": "exact"}
    assert found.ties is not None
    assert "wrap" in found.ties.why
    assert found.saturated_by == ()
    (narrow,) = certify(layer(np.full((2, 4), 60, np.int8), (0.1, F(0.1), 1.0)))
    assert not narrow.sums.wraps
    assert narrow.classes == {"avx2": "exact", "vnni": "exact"}
    assert narrow.ties is None


def test_agreement_with_a_rule_that_is_not_claimed_is_told_as_such() -> None:
    graph = layer(np.array([[3]], np.int8), (0.25, F(0.25), 1.0))
    (node,) = (n for n in graph if n.op == "linear")
    for other, claim in (("torch-2.13.qnnpack", "exact"), ("qonnx-1.0", "unknown")):
        ties = only(certify(graph, ("torch-2.13.onednn", other)))
        assert ties.claims == tuple(
            profile(n).resolve(query_for_node(node, isa=best_isa())).claim for n in ties.profiles
        )
        assert ties.claims[1] == claim
        assert (other in ties.unclaimed) is (claim != "exact")


@pytest.mark.parametrize(("isa", "claim"), [("vnni", "exact"), ("avx2", "unknown")])
def test_rules_are_those_of_this_processor(
    monkeypatch: pytest.MonkeyPatch, isa: str, claim: str
) -> None:
    monkeypatch.setattr(certificates, "best_isa", lambda: isa)
    graph = layer(np.array([[3]], np.int8), (0.25, F(0.25), 1.0))
    ties = only(certify(graph, ("torch-2.13.pt2e", "ort-1.31")))
    assert ties.claims == ("exact", claim)
    assert ("ort-1.31" in ties.unclaimed) is (claim != "exact")


def test_what_cannot_be_certified_is_said() -> None:
    graph = layer(np.ones((1, 4), np.int8), (0.1, F(0.1), 1.0))
    with pytest.raises(UsageError, match="two profiles or more"):
        certify(graph, ("native",))
    with pytest.raises(ProfileError, match="no profile 'nobody'"):
        certify(graph, ("native", "nobody"))
    with pytest.raises(UsageError, match="no quantized product is named 'z'"):
        certify(graph, layer="z")
    assert only(certify(graph, PAIR, layer="y")).proof == "sums"
    real = Graph()
    x = real.add("input", types=[graph["x"].type], name="x").result
    w = real.constant(graph["y"].node.operands["w"].constant or Array.of(np.ones(1)))
    real.add("output", {"y": real.add("linear", {"x": x, "w": w}, name="y").result})
    assert only(certify(real, PAIR)).why == "its result is not quantized"


ALL = """ort-1.31 torch-2.13.fbgemm torch-2.13.onednn torch-2.13.qnnpack torch-2.13.pt2e mxnet-1.9
tf-2.21.onednn tf-2.21.core tflite-2.21.ref tflite-2.21.single tflite-2.21.xnnpack ipex-2.8"""


@pytest.mark.usefixtures("any_processor")
@pytest.mark.parametrize("seed", range(60))
def test_certificates_of_any_two_profiles_are_what_all_inputs_show(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Zero points at the ends and profiles that add none, multipliers above one, few steps."""
    rng = np.random.default_rng(seed)
    one, two = (str(name) for name in rng.choice(ALL.split(), 2, replace=False))
    x_zero, y_zero = (int(z) for z in rng.choice([0, 1, 3, 128, 255], 2))
    w = rng.integers(-128, 128, (1, 2)).astype(np.int8)
    w = w // 8 * 8 if seed % 3 == 0 else w
    x_scale, w_scale = (F(2.0 ** rng.integers(-6, 1) * rng.choice([1, 1.5, 0.7])) for _ in range(2))
    y_scale = F(x_scale * w_scale * rng.choice([0.6, 1, 7, 16, 32, 100, 300]))
    graph = layer(w, (x_scale, w_scale, y_scale), zeros=(x_zero, y_zero))
    if seed % 2:
        monkeypatch.setattr(certificates, "_MAX_SUMS_PER_CHANNEL", 0)
    ties = only(certify(graph, (one, two), most=2))
    if ties.why and "no nudge" not in ties.why:
        reasons = ("pairs of products can", "by method", "leave 32 bits")
        assert any(why in ties.why for why in reasons), (seed, one, two, ties.why)
        return
    quantized = np.stack(np.meshgrid(*[np.arange(256, dtype=np.uint8)] * 2), -1).reshape(-1, 2)
    sums = (quantized.astype(np.int64) - x_zero) @ w[0].astype(np.int64)
    every, first = np.unique(sums, return_index=True)
    many = layer(w, (x_scale, w_scale, y_scale), zeros=(x_zero, y_zero), rows=every.size)
    a, b = (run(many, {"x": quantized[first]}, profile=name)["y"] for name in (one, two))
    assert ties.sums == every.size, (seed, one, two)
    assert ties.differ == int((a != b).sum()), (seed, one, two, ties)


QDQ = """
graph main {
  %x = input() : 512x3x!quant.uniform<u8:f32, 0.05:101>
  %w = constant(@w) : 4x3x!quant.uniform<i8:f32, 0.07>
  %xd = dequantize(%x) : 512x3xf32
  %wd = dequantize(%w) : 4x3xf32
  %r = gemm(%xd, %wd) {trans_b = true} : 512x4xf32
  TAIL
  %y = quantize(%t) : 512x4x!quant.uniform<KIND:f32, 0.1005:ZERO>
  output(y=%y)
}
"""


@pytest.mark.parametrize(
    ("names", "tail", "kind", "real"),
    [
        (("ort-1.31", "native"), "", "u8", ""),
        (("native", "ort-1.31.noopt"), "", "u8", "ort-1.31.noopt computes"),
        (("native", "ort-1.31"), "relu", "u8", "ort-1.31 computes"),
        (("tflite-2.21.ref", "ort-1.31"), "", "i8", "tflite-2.21.ref and ort-1.31 compute"),
    ],
)
def test_layers_are_compared_as_each_profile_groups_them(
    names: tuple[str, str], tail: str, kind: str, real: str
) -> None:
    rng = np.random.default_rng(3)
    arrays = {"w": rng.integers(-127, 128, (4, 3)).astype(np.int8)}
    zero = "77" if kind == "u8" else "-51"
    text = QDQ.replace("KIND", kind).replace("ZERO", zero)
    text = text.replace("  TAIL\n", f"  %t = {tail}(%r) : 512x4xf32\n" if tail else "")
    text = text if tail else text.replace("%t", "%r")
    ties = only(certify(parse(text, arrays), names, most=16))
    assert ties.why == (f"{real} it in float32: no subject of proof" if real else "")
    assert ties.free is not bool(real)
    x = rng.integers(0, 256, (512, 3)).astype(np.uint8)
    made = []
    for name in names:
        graph = parse(text, arrays)
        assert Group(name).run(graph, Ledger()) > 0 or name == "ort-1.31.noopt"
        assert (graph["y"].node.op == "quantize") is (name in real.split())
        made.append(run(graph, {"x": x})["y"])
    if not real:
        assert np.array_equal(made[0], made[1])


def test_a_real_bias_that_a_profile_makes_codes_of_is_part_of_its_layer() -> None:
    rng = np.random.default_rng(5)
    arrays = {"w": rng.integers(-127, 128, (4, 3)).astype(np.int8)}
    arrays |= {"b": rng.normal(size=4).astype(F)}
    text = QDQ.replace("KIND", "u8").replace("ZERO", "77").replace("  TAIL\n", "")
    text = text.replace("%wd)", "%wd, c=%b)").replace("%t", "%r")
    text = text.replace("  %r =", "  %b = constant(@b) : 4xf32\n  %r =")
    (found,) = certify(parse(text, arrays), ("ort-1.31", "native"), most=16)
    assert found.sums.node == "y"
    assert found.ties is not None
    assert not found.ties.why
    x = rng.integers(0, 256, (512, 3)).astype(np.uint8)
    made = []
    for name in ("ort-1.31", "native"):
        graph = parse(text, arrays)
        Group(name).run(graph, Ledger())
        made.append(run(graph, {"x": x})["y"])
    assert np.array_equal(made[0], made[1]) or found.ties.differ
