"""Numbers of a mask leave the others no room, so what holds both gets no integers, and is told."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from qir import pipeline
from qir.errors import SchemeError
from qir.ir.graph import Graph
from qir.ir.text import parse
from tests.cli.command import qir

LEAST = float(np.finfo(np.float32).min)
KEEP = np.tril(np.ones((6, 6), np.float32))
MEANS = "-123.68, -116.779, -103.939, -120.0, -101.0, -110.0"
APART = "0.0, -50.0, -100.0, -150.0, -200.0, -250.0"
HEAD = """graph main {
  %x = input() : 32x6x16xf32
  %m = input() : 32x6x6xNUMBER
  %wq = constant(@wq) : 16x16xf32
  %wk = constant(@wk) : 16x16xf32
  %wv = constant(@wv) : 16x16xf32
  %q = matmul(%x, %wq) : 32x6x16xf32
  %k = matmul(%x, %wk) : 32x6x16xf32
  %v = matmul(%x, %wv) : 32x6x16xf32
  %t = transpose(%k) {perm = (0, 2, 1)} : 32x16x6xf32
  %s = matmul(%q, %t) : 32x6x6xf32
"""
TAIL = """
  %p = softmax(%z) : 32x6x6xf32
  %y = matmul(%p, %v) : 32x6x16xf32
  output(y=%y)
}
"""
S, M = "32x6x6xf32", "6x6xf32"
CHOSEN = f"%c = constant(LEAST) : f32; %z = where(%m, %s, %c) : {S}"
FACTOR = f"%o = constant(1.0) : f32; %c = constant(LEAST) : f32; %g = cast(%m) {{to = f32}} : {S}"
FACTOR += f"; %n = sub(%o, %g) : {S}; %h = mul(%n, %c) : {S}; %z = add(%s, %h) : {S}"
TURNED = f"%o = constant(1.0) : f32; %c = constant(LEAST) : f32; %g = cast(%m) {{to = f32}} : {S}"
TURNED += f"; %n = sub(%g, %o) : {S}; %h = mul(%n, %c) : {S}; %z = add(%s, %h) : {S}"
HELD = f"%c = constant(@held) : {M}; %z = add(%c, %s) : {S}"
MOVED = f"%c = constant(@held) : {M}; %d = unsqueeze(%c) {{axes = (0,)}} : 1x6x6xf32"
MOVED += f"; %e = add(%s, %d) : {S}; %f = constant(0.5) : f32; %z = mul(%e, %f) : {S}"
TAKEN = f"%c = constant(@taken) : {M}; %z = sub(%s, %c) : {S}"
CLIPPED = f"%c = constant(@held) : {M}; %e = add(%s, %c) : {S}"
CLIPPED += f"; %z = clip(%e) {{min = -10000.0, max = 10000.0}} : {S}"
BOUND = f"%c = constant(@held) : {M}; %e = add(%s, %c) : {S}; %b = constant(-10000.0) : f32"
BOUND += f"; %z = max(xs.0=%e, xs.1=%b) : {S}"
GIVEN = f"%z = add(%s, %m) : {S}"
WAYS = {
    "where, -1e4": (CHOSEN, "bool", -1e4),
    "where, the least float": (CHOSEN, "bool", LEAST),
    "where, -inf": (CHOSEN, "bool", -np.inf),
    "factor, -1e4": (FACTOR, "i64", -1e4),
    "factor, the least float": (FACTOR, "bool", LEAST),
    "turned factor": (TURNED, "i64", 1e9),
    "added constant, -100": (HELD, "f32", -100.0),
    "added constant, -inf": (HELD, "f32", -np.inf),
    "moved and scaled": (MOVED, "f32", -1e4),
    "taken away": (TAKEN, "f32", -1e4),
    "between bounds": (CLIPPED, "f32", -1e9),
    "no less than a bound": (BOUND, "f32", LEAST),
    "input, -1e4": (GIVEN, "f32", -1e4),
    "input, -inf": (GIVEN, "f32", -np.inf),
}


def network(way: str) -> tuple[Graph, dict[str, NDArray[np.generic]]]:
    body, number, least = WAYS[way]
    rng = np.random.default_rng(7)
    arrays = {f"w{n}": rng.normal(0, 0.3, (16, 16)).astype(np.float32) for n in "qkv"}
    arrays["held"] = np.where(KEEP > 0, np.float32(0), np.float32(least))
    arrays["taken"] = np.float32(0) - arrays["held"]
    text = HEAD.replace("NUMBER", number) + "  " + body.replace("; ", "\n  ") + TAIL
    written = "-inf" if least == -np.inf else repr(float(np.float32(least)))
    made = parse(text.replace("LEAST", written), arrays)
    given = arrays["held"] if body == GIVEN else KEEP
    kind = {"bool": np.bool_, "i64": np.int64, "f32": np.float32}[number]
    feeds: dict[str, NDArray[np.generic]] = {
        "x": rng.normal(size=(32, 6, 16)).astype(np.float32),
        "m": np.repeat(given[None], 32, 0).astype(kind),
    }
    return made, feeds


def expected(graph: Graph, feeds: dict[str, NDArray[np.generic]]) -> NDArray[np.float64]:
    """Masked attention in float64."""
    w = {n: np.asarray(a.data, np.float64) for n in "qkv" if (a := graph.values[f"w{n}"].constant)}
    x = feeds["x"].astype(np.float64)
    scores = (x @ w["q"]) @ (x @ w["k"]).transpose(0, 2, 1)
    if "f" in graph.values and graph.values["f"].constant:
        scores = scores * 0.5
    odds = np.exp(scores - scores.max(-1, keepdims=True)) * KEEP
    return (odds / odds.sum(-1, keepdims=True)) @ (x @ w["v"])  # type: ignore[no-any-return]


def save(graph: Graph, path: Path) -> Path:
    pipeline.save(graph, path, lossy=True)
    return path


def ran(graph: Graph, feeds: dict[str, NDArray[np.generic]], path: Path) -> NDArray[np.generic]:
    pipeline.save(graph, path)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    taken = {i.name: feeds[i.name] for i in session.get_inputs()}
    return session.run(None, taken)[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("way", WAYS)
def test_a_masked_attention_stays_one_in_codes(way: str, tmp_path: Path) -> None:
    graph, feeds = network(way)
    statistics = pipeline.calibrate(graph, [feeds])
    made = pipeline.quantize(graph, statistics)
    right = expected(graph, feeds)
    got = ran(made, feeds, tmp_path / "m.onnx").astype(np.float64)
    assert np.sqrt(np.mean((got - right) ** 2)) < 0.03 * right.std()
    plan = pipeline.plan(graph, statistics=statistics)
    of = {d.node: d for d in plan.decisions}
    assert of["s"].becomes == of["y"].becomes == "integer", "scores and what they choose"
    alone = of["z"].op in ("sub", "max", "clip")  # integer nowhere, or behind integers alone
    assert (of["z"].becomes, of["z"].reason[:9] == "a mask pu") == ("float", not alone), of["z"]
    assert (of["p"].becomes, of["p"].reason[:9]) == ("float", "a mask pu"), of["p"]
    assert all(of[n.name].becomes == "float" for n in made if n.op in ("softmax", "where"))
    if WAYS[way][0] != GIVEN:  # nothing but data tells of an input
        assert pipeline.plan(graph) == plan


def test_quantizing_tells_of_a_mask_that_only_the_data_show(tmp_path: Path) -> None:
    graph, feeds = network("input, -1e4")
    pipeline.save(graph, tmp_path / "m.onnx", lossy=True)
    np.savez(tmp_path / "d.npz", **feeds)  # type: ignore[arg-type]
    plan = qir("plan", str(tmp_path / "m.onnx")).out
    assert "mask puts" not in plan
    assert "reads what comes of m: a mask in the data leaves it and the ops between" in plan
    assert pipeline.plan(graph).maybe_masks == ("m",)
    assert pipeline.plan(network("where, -1e4")[0]).maybe_masks == ()
    done = qir(
        "quantize",
        str(tmp_path / "m.onnx"),
        "--data",
        str(tmp_path / "d.npz"),
        "-o",
        str(tmp_path / "q.onnx"),
    )
    assert done.status == 0, done
    assert "a mask puts -1000" in " ".join(done.out.split())
    assert "6 of 8 ops" in done.out


@pytest.mark.parametrize(
    "line",
    [
        f"%c = constant([{MEANS}]) : 6xf32; %z = add(%s, %c) : {S}",
        f"%c = constant(-128.0) : f32; %z = add(%s, %c) : {S}",
        f"%c = constant([{APART}]) : 6xf32; %z = add(%s, %c) : {S}",
        f"%c = constant(-1000.0) : f32; %z = mul(%s, %c) : {S}",
    ],
    ids=["means", "an offset", "distances", "a factor"],
)
def test_large_numbers_that_are_no_mask_keep_codes(line: str) -> None:
    text = HEAD.replace("NUMBER", "f32") + "  " + line.replace("; ", "\n  ") + TAIL
    arrays = {f"w{n}": np.ones((16, 16), np.float32) for n in "qkv"}
    arrays["held"] = np.where(KEEP > 0, np.float32(0), np.float32(-1e4))
    plan = pipeline.plan(parse(text, arrays))
    assert all(d.becomes == "integer" for d in plan.decisions), plan


@pytest.mark.parametrize("far", ["1e9", "inf", "-1e9"])
def test_numbers_above_all_others_and_other_readers_are_told_too(far: str) -> None:
    lines = f"%c = constant({far}) : f32\n  %z = where(%m, %s, %c) : {S}\n  %p = add(%z, %s) : {S}"
    tail = TAIL.replace(f"  %p = softmax(%z) : {S}\n", "")
    arrays = {f"w{n}": np.ones((16, 16), np.float32) for n in "qkv"}
    plan = pipeline.plan(parse(HEAD.replace("NUMBER", "bool") + "  " + lines + tail, arrays))
    floats = {d.node: d.reason for d in plan.decisions if not d.integer}
    assert list(floats) == ["z", "p", "y"]
    assert all(said.startswith("a mask puts") for said in floats.values())


POOLED = """graph main {
  %x = input() : 4x3x8x8xf32
  %w = constant(@w) : 4x3x3x3xf32
  %u = constant(@u) : 4x4x3x3xf32
  %c = conv2d(%x, %w) {pad = (1, 1, 1, 1)} : 4x4x8x8xf32
  %d = pad(%c) {pads = (0, 0, 1, 1, 0, 0, 1, 1), value = VALUE} : 4x4x10x10xf32
  %p = max_pool2d(%d) {kernel = (2, 2), stride = (2, 2)} : 4x4x5x5xf32
  %z = conv2d(%p, %u) {pad = (1, 1, 1, 1)} : 4x4x5x5xf32
  output(z=%z)
}
"""


@pytest.mark.parametrize("value", ["-10000.0", repr(LEAST), "-inf", "0.0"])
def test_a_pad_before_a_pool_leaves_the_others_room(value: str) -> None:
    rng = np.random.default_rng(5)
    arrays = {"w": rng.normal(size=(4, 3, 3, 3)), "u": rng.normal(size=(4, 4, 3, 3))}
    held = {name: np.asarray(a, np.float32) for name, a in arrays.items()}
    graph = parse(POOLED.replace("VALUE", value), held)
    feeds = {"x": rng.normal(size=(4, 3, 8, 8)).astype(np.float32)}
    made = pipeline.quantize(graph, pipeline.calibrate(graph, [feeds]))
    right, got = (np.asarray(pipeline.run(g, feeds)["z"], np.float64) for g in (graph, made))
    assert np.sqrt(np.mean((got - right) ** 2)) < 0.05 * right.std()
    of = {d.node: d.becomes for d in pipeline.plan(graph).decisions}
    assert of["z"] == "integer"
    assert of["p"] == ("integer" if value in ("-inf", "0.0") else "float")


def test_a_rule_gives_codes_to_what_a_mask_is_in() -> None:
    graph, _ = network("factor, -1e4")
    rule = "op=softmax slot=x: u8 affine tensor percentile:60"
    of = {d.node: d for d in pipeline.plan(graph, rules=[rule]).decisions}
    assert of["p"].becomes == "integer"
    with pytest.raises(SchemeError, match="p stays float: a mask puts -10000 there"):
        pipeline.plan(graph, rules=["op=softmax: u8 affine tensor"])


def test_the_log_of_an_input_may_be_a_mask() -> None:
    line = f"  %c = constant(1e-45) : f32\n  %a = add(%m, %c) : {S}\n  %l = log(%a) : {S}\n"
    arrays = {f"w{n}": np.ones((16, 16), np.float32) for n in "qkv"}
    text = HEAD.replace("NUMBER", "f32") + line + f"  %z = add(%s, %l) : {S}" + TAIL
    assert pipeline.plan(parse(text, arrays)).maybe_masks == ("m",)


DECIBELS = f"%e = constant(0.1) : f32; %a = abs(%s) : {S}; %b = add(%a, %e) : {S}"
DECIBELS += f"; %l = log(%b) : {S}; %u = constant(8.685889) : f32; %d = mul(%l, %u) : {S}"
DECIBELS += "; %f = constant(-100.0) : f32; %o = less(%d, %f) : 32x6x6xbool"
DECIBELS += f"; %z = where(%o, %f, %d) : {S}"
TIMES = f"%u = constant(FACTOR) : f32; %d = mul(%s, %u) : {S}; %f = constant(FAR) : f32"
PADDED = f"{TIMES}; %i = pad(%d) {{pads = (0, 1, 0, 0, 1, 0), value = FAR}} : 32x8x6xf32"
PADDED += f"; %z = slice(%i) {{axes = (1,), ends = (7,), starts = (1,), steps = (1,)}} : {S}"
STEP = f"{TIMES}; %n = constant(0.0) : f32; %g = greater(%s, %n) : 32x6x6xbool"
STEP += f"; %c = cast(%g) {{to = f32}} : {S}; %h = mul(%c, %f) : {S}; %z = add(%d, %h) : {S}"
ONES = "%c = constant([-120.0, 0.0, 0.0, 0.0, 0.0, 0.0]) : 6xf32"
REACHED = {
    "a floor of decibels": DECIBELS,
    "chosen": f"{TIMES.replace('FACTOR', '200.0')}; %z = where(%m, %d, %f) : {S}",
    "chosen above": f"{TIMES.replace('FACTOR', '20000.0')}; %z = where(%m, %d, %f) : {S}",
    "added": f"{TIMES.replace('FACTOR', '100.0')}; {ONES}; %z = add(%d, %c) : {S}",
    "a pad": PADDED.replace("FACTOR", "128.0"),
    "a step": STEP.replace("FACTOR", "128.0"),
}


@pytest.mark.parametrize("way", REACHED)
def test_numbers_that_the_data_reach_themselves_are_no_mask(way: str, tmp_path: Path) -> None:
    """The scale of the data has room for the constant, so nothing is lost by integers."""
    far = {"chosen": "-200.0", "chosen above": "10000.0"}.get(way, "-128.0")
    body = REACHED[way].replace("FAR", far).replace("; ", "\n  ")
    tail = TAIL.replace(f"  %p = softmax(%z) : {S}\n", "").replace("%p", "%z")
    text = HEAD.replace("NUMBER", "bool") + "  " + body + tail
    _, feeds = network("where, -1e4")
    rng = np.random.default_rng(3)
    arrays = {f"w{n}": rng.normal(0, 0.3, (16, 16)).astype(np.float32) for n in "qkv"}
    graph = parse(text, arrays)
    statistics = pipeline.calibrate(graph, [feeds])
    plan = pipeline.plan(graph, statistics=statistics)
    assert not [d for d in plan.decisions if "mask" in d.reason], plan
    assert {d.node: d.becomes for d in plan.decisions}["y"] == "integer"
    assert any("a mask puts" in d.reason for d in pipeline.plan(graph).decisions), "constants alone"
    shown = qir("plan", str(save(graph, tmp_path / "p.onnx"))).out
    assert "Constants alone tell of masks here: where activations have a similar" in shown
    made = pipeline.quantize(graph, statistics)
    right = np.asarray(ran(graph, feeds, tmp_path / "f.onnx"), np.float64)
    got = np.asarray(ran(made, feeds, tmp_path / "q.onnx"), np.float64)
    least = 0.12 if body.startswith("%e") else 0.06  # a logarithm stretches small integers
    assert np.sqrt(np.mean((got - right) ** 2)) < least * right.std()


def test_a_mask_that_no_data_show_is_one_by_what_it_is_put_upon() -> None:
    """Data without padding leave a mask's number unseen; it stays one, since it lies so far off."""
    graph, feeds = network("where, -1e4")
    unmasked = {**feeds, "m": np.ones_like(feeds["m"])}
    found = pipeline.plan(graph, statistics=pipeline.calibrate(graph, [unmasked]))
    assert found == pipeline.plan(graph)
    assert any("a mask puts -10000 there" in d.reason for d in found.decisions)


@pytest.mark.parametrize(("factor", "status"), [(200.0, 0), (0.1, 2)])
def test_the_data_tell_whether_all_work_is_behind_a_mask(
    factor: float, status: int, tmp_path: Path
) -> None:
    text = """graph main {
  %x = input() : 32x8xf32
  %f = constant(-100.0) : f32
  %o = less(%x, %f) : 32x8xbool
  %z = where(%o, %f, %x) : 32x8xf32
  %w = constant(@w) : 8x8xf32
  %y = matmul(%z, %w) : 32x8xf32
  output(y=%y)
}
"""
    rng = np.random.default_rng(5)
    arrays = {"w": rng.normal(size=(8, 8)).astype(np.float32)}
    model, data = save(parse(text, arrays), tmp_path / "m.onnx"), tmp_path / "x.npy"
    np.save(data, rng.normal(0, factor, (64, 8)).astype(np.float32))
    done = qir("quantize", str(model), "--data", str(data), "-o", str(tmp_path / "q.onnx"))
    assert done.status == status, done
    assert (status == 0) == ("mask" not in done.out + done.err)
