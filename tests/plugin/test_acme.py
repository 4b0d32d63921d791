"""A stranger's distribution, built and installed as its users would, is as good as our own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import qir
from qir import pipeline
from qir.errors import PluginError, QirError
from qir.inspect import metric
from qir.inspect.plugins import plugins
from qir.ir.dtype import U8
from qir.ir.scheme import Scheme
from qir.ledger import Ledger
from qir.passes.forms.group import Group
from qir.profiles import parameters_for_range, profile
from qir.reference.interpreter import run
from qir.rewrite import run_passes
from qir.rewrite.runner.options import parse_passes
from qir.testing import Check, check_plugin, random_graph, require, sample_inputs
from qir.testing.random_source import EVERY, Form
from tests.cli.command import qir as command
from tests.plugin.installing import python

GOOD = {
    ("frontend", "loopback"),
    ("target", "loopback"),
    ("profile", "acme"),
    ("pass", "acme-double"),
    ("observer", "acme-robust"),
    ("op", "acme_hush"),
    ("op", "acme_rows"),
    ("method", "acme_cut"),
    ("stage function", "acme"),
    ("scale rule", "acme.shift"),
    ("metric", "acme-furthest"),
}
LIARS = {
    ("pass", "acme-breach"): "moves no number further than it declares",
    ("pass", "acme-liar"): "moves no number further than it declares",
    ("observer", "acme-forgetful"): "same data, same range",
    ("op", "acme_moody"): "rule and reference agree on types and shapes",
}
BROKEN = {
    ("pass", "acme-broken"): ("broken", "breaks: the sky has fallen"),
    ("pass", "acme-next"): ("other API", "is written for plugin API 2, this qir has 1"),
}


pytestmark = pytest.mark.usefixtures("site")


def test_each_of_its_plugins_is_listed_with_its_state() -> None:
    found = {(p.kind, p.name): p for p in plugins() if p.distribution == "acme-qir"}
    assert set(found) == GOOD | set(LIARS) | set(BROKEN)
    for key, plugin in found.items():
        state, fault = BROKEN.get(key, ("ok", ""))
        assert plugin.state == state, plugin
        assert fault in plugin.fault
        assert plugin.version == "1.2"


@pytest.mark.parametrize(("kind", "name"), sorted(GOOD))
def test_those_that_are_right_pass_every_check(kind: str, name: str) -> None:
    require(check_plugin(kind, name))


@pytest.mark.parametrize(("kind", "name"), sorted(LIARS))
def test_those_that_lie_are_found_out(kind: str, name: str) -> None:
    failed = {check.name for check in check_plugin(kind, name) if not check.passed}
    assert LIARS[kind, name] in failed
    with pytest.raises(AssertionError, match=f"FAILED  .*{LIARS[kind, name]}"):
        require(check_plugin(kind, name))


@pytest.mark.parametrize(("kind", "name"), sorted(BROKEN))
def test_what_does_not_load_is_one_check_that_failed(kind: str, name: str) -> None:
    (check,) = check_plugin(kind, name)
    assert isinstance(check, Check)
    assert not check.passed
    assert BROKEN[kind, name][1] in check.detail


def test_a_broken_one_harms_nobody_who_does_not_ask_for_it(tmp_path: Path) -> None:
    graph = random_graph(1)
    qir.save(graph, tmp_path / "a.loop", target="loopback")
    assert str(qir.load(tmp_path / "a.loop")) == str(graph)
    with pytest.raises(PluginError, match=r"pass 'acme-broken' of acme-qir 1\.2 breaks: the sky"):
        parse_passes("acme-broken")


@pytest.mark.parametrize("form", EVERY)
def test_what_goes_through_the_loopback_comes_back_to_the_byte(form: Form, tmp_path: Path) -> None:
    ran = 0
    for seed in range(25):
        graph = random_graph(seed, form, decorated=form != "whole" and seed % 2 == 0)
        path = tmp_path / f"{seed}.loop"
        qir.save(graph, path, target="loopback", lossy=True) if _whole(graph) else None
        if not path.exists():
            continue
        back = qir.load(path)
        assert back == graph, f"seed {seed}"
        inputs = sample_inputs(graph, seed)
        try:
            wanted = run(graph, inputs)
        except QirError:
            continue  # it holds what nobody here can run
        given = pipeline.run(back, inputs)
        ran += 1
        for name, data in wanted.items():
            same = np.asarray(given[name]).tobytes() == np.asarray(data).tobytes()
            assert same or data.dtype == object, f"seed {seed}: {name}"
    assert ran > 8


def _whole(graph: qir.Graph) -> bool:
    return not any(f.severity == "error" for f in qir.verify(graph))


def test_a_model_is_quantized_for_it_by_its_rule_and_measured_by_its_metric() -> None:
    graph = random_graph(1)
    samples = [sample_inputs(graph, seed) for seed in range(4)]
    statistics = qir.calibrate(graph, samples)
    made = qir.quantize(graph, statistics, target="loopback", range_rule="acme-robust:6")
    assert made.profile == "acme-1"
    wanted, given = qir.run(graph, samples[0]), qir.run(made, samples[0])
    for name, data in wanted.items():
        far = metric("acme-furthest")(data, given[name])
        assert far == np.abs(data.astype(np.float64) - given[name].astype(np.float64)).max()


def test_its_profile_names_its_method_and_its_op() -> None:
    kind = "2x!quant.uniform<u8:f32, {}:3>"
    text = (
        f"graph main as acme-1 {{\n  %x = input() : {kind.format(0.5)}\n"
        f"  %y = relu(%x) : {kind.format(1.0)}\n  output(y=%y)\n}}\n"
    )
    quantized = np.array([4, 8], np.uint8)  # 0.5 and 2.5: halves, which the method rounds away
    assert list(qir.run(qir.parse(text), {"x": quantized})["y"]) == [4, 6]
    even = text.replace("acme-1", "native")
    assert list(qir.run(qir.parse(even), {"x": quantized})["y"]) == [3, 5]


FLOAT = """graph main as native {
  %x = input() : 8x6xf32
  %w = constant(@w) : 6x5xf32
  %m = matmul(%x, %w) : 8x5xf32
  %y = clip(%m) {min = -0.9, max = 2.3} : 8x5xf32
  output(y=%y)
}"""


def test_a_model_is_quantized_and_run_by_its_range_rule_and_its_stage_function() -> None:
    """Its profile names both: scales are powers of two, and bounds of a clip are rounded up."""
    rng = np.random.default_rng(3)
    x = rng.uniform(-0.7, 3.1, (8, 6)).astype(np.float32)
    graph = qir.parse(FLOAT, {"w": rng.normal(size=(6, 5)).astype(np.float32)})
    made = qir.quantize(graph, qir.calibrate(graph, [{"x": x}]), profile="acme-2")
    grouped = run_passes(made, [Group("acme-2")], Ledger())
    quantized = grouped["y.q"].type.quant
    assert quantized is not None
    step = 2.0 ** np.ceil(np.log2((np.float32(2.3) - np.float32(-0.9)) / 255))
    zero = -np.rint(np.float32(-0.9) / step)
    assert (quantized.scales(), quantized.zeros()) == (step, zero)
    y = qir.run(grouped, {"x": x})["y"]
    ends = np.ceil(np.array([-0.9, 2.3], np.float32) / np.float32(step)) * step
    assert (y.min(), y.max()) == tuple(ends)
    assert ends[0] > -0.9  # of the rule for floats it is the nearest step, which is below


def test_a_rule_that_is_a_function_is_one_of_scales_and_of_choose_qparams() -> None:
    low, high = np.array([-0.9, 0.0], np.float32), np.array([2.3, 6.0], np.float32)
    scheme = Scheme(U8)
    scale, zero = parameters_for_range(profile("native"), low, high, scheme, scales="acme.shift")
    assert (list(scale), list(zero)) == ([2.0**-6, 2.0**-5], [58, 0])
    text = """graph main as native {
      %x = input() : 2x2xf32
      %s, %z = choose_qparams(%x) {rule = "acme.shift", storage = u8, keep = (0,)} : 2x1xf32, 2x1xu8
      output(s=%s, z=%z)
    }"""
    found = qir.run(qir.parse(text), {"x": np.stack([low, high], 1)})
    assert np.array_equal(found["s"].ravel(), scale)
    assert np.array_equal(found["z"].ravel(), zero)


def test_the_command_line_knows_it(site: Path, tmp_path: Path) -> None:
    qir.save(random_graph(1), tmp_path / "a.qir")
    words = ("-m", "qir", "convert", "a.qir", "-o", "b.loop", "--target", "loopback")
    done = python(site, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert qir.load(tmp_path / "b.loop") == random_graph(1)
    outcome = command("plugins", "--json")
    assert outcome.status == 1, outcome  # two of them do not load
    listed = json.loads(outcome.out)
    assert {(p["kind"], p["name"]) for p in listed["plugins"]} >= GOOD
    outcome = command("plugins", "check", "acme-furthest", "acme-forgetful")
    assert outcome.status == 1
    assert "metric acme-furthest, of acme-qir 1.2" in outcome.out
    assert "FAILED  same data, same range" in outcome.out
    outcome = command("plugins", "check", "acme-next")
    assert "written for plugin API 2" in outcome.out


@pytest.mark.slow
def test_a_part_of_the_suite_runs_through_it() -> None:
    words = ["-q", "-n", "0", "--through", "loopback"]
    parts = ["tests/reference/test_row_scales.py"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, *parts],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    told = re.search(r"([\d,]+) programs through target loopback", done.stdout)
    assert told, done.stdout
    assert int(told[1].replace(",", "")) >= 12
