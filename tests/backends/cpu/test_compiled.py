"""What a compiled model is to its caller: names, sizes, threads, tables, errors."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir._kernels import _cpu
from qir.backends.cpu import CpuTarget
from qir.backends.cpu.compiled import Compiled
from qir.backends.cpu.lookup_tables import is_pointwise
from qir.backends.cpu.lower import LOWERINGS
from qir.errors import DataError, OpError, Refused, UsageError
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.reference.interpreter import run
from qir.target import target

from . import naive
from .nets import Net

Q = "!quant.uniform<u8:f32, 0.031:117>"
OPEN = f"""
graph main {{
  %x = input() : (N)x3x(H)x8xf32
  %q = quantize(%x) : (N)x3x(H)x8x{Q}
  %p = max_pool2d(%q) {{kernel = (2, 2), stride = (2, 2)}} : (N)x3x(H//2)x4x{Q}
  %y = dequantize(%p) : (N)x3x(H//2)x4xf32
  output(y = %y, codes = %p)
}}
"""


def image(n: int, h: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(0, 2, (n, 3, h, 8)).astype(np.float32)


def small(seed: int = 0) -> tuple[Net, Graph]:
    net = Net(seed)
    x = net.op("quantize", {"x": net.real(2, 3, 8, 8)}, (2, 3, 8, 8))
    y = net.conv(net.conv(x, 8), 8, groups=8)
    return net, net.done(y=y)


def test_the_target_is_found_by_name() -> None:
    found = target("cpu")
    assert isinstance(found, CpuTarget)
    assert (found.profile, found.formats) == ("native", ())


def test_the_capability_table_names_only_ops_that_run_without_fallback() -> None:
    table = CpuTarget().capability()
    assert all(op in LOWERINGS or is_pointwise(op) for op in table.ops)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_open_sizes_are_bound_by_the_inputs(batch: int) -> None:
    graph = parse(OPEN)
    compiled = CpuTarget().compile(graph)
    for h in (4, 7):
        x = image(batch, h)
        got = compiled(x=x)
        expected = naive.run(graph, {"x": x})
        assert np.array_equal(np.asarray(got["codes"]), expected["codes"])
        assert np.array_equal(np.asarray(got["y"]), expected["y"])


def test_many_sizes_one_after_another_are_all_right() -> None:
    graph = parse(OPEN)
    compiled = CpuTarget().compile(graph)
    for round_ in range(2):
        for n in range(1, 12):
            x = image(n, 4, round_)
            expected = naive.run(graph, {"x": x})["codes"]
            assert np.array_equal(np.asarray(compiled(x=x)["codes"]), expected)
    assert len(compiled._programs) == 8


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({}, "input x is missing; the model takes Nx3xHx8"),
        ({"z": image(1, 4)}, "no input 'z'; the model takes x"),
        ({"x": image(1, 4).astype(np.float64)}, "input x is float64, it takes float32"),
        ({"x": image(1, 4)[0]}, "input x has 3 axes, the model takes 4"),
        ({"x": image(1, 4)[:, :2]}, "input x is 1x2x4x8: axis 1 has 2, the model takes 3"),
        ({"x": image(0, 4)}, "input x is 0x3x4x8: axis 0 is empty, it takes 1 or more"),
        (
            {"x": image(1, 1)},
            "p does not take inputs of x 1x3x1x8: max_pool2d: the window is larger than the"
            " padded height",
        ),
        ({"x": "text"}, "input x is <U4, it takes float32"),
    ],
)
def test_inputs_that_do_not_fit_are_one_line(inputs: dict[str, object], message: str) -> None:
    with pytest.raises(DataError) as caught:
        CpuTarget().compile(parse(OPEN))(**inputs)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_sizes_that_leave_a_value_empty_are_refused() -> None:
    compiled = CpuTarget().compile(
        parse(f"""
        graph main {{
          %x = input() : (N)x3x{Q}
          %t = slice(%x) {{starts = (1,), ends = (9,), axes = (0,), steps = (1,)}} : (N - 1)x3x{Q}
          output(y = %t)
        }}
        """)
    )
    with pytest.raises(DataError, match=r"^%t is empty, 0x3, for inputs of x 1x3$"):
        compiled(x=np.zeros((1, 3), np.uint8))


def test_one_name_for_two_sizes_is_refused_when_they_differ() -> None:
    text = f"""
    graph main {{
      %a = input() : (N)x4x{Q}
      %b = input() : (N)x4x{Q}
      %y = add(%a, %b) : (N)x4x{Q}
      output(y = %y)
    }}
    """
    compiled = CpuTarget().compile(parse(text))
    with pytest.raises(DataError, match="input b is 3x4: N was 2 before"):
        compiled(a=np.zeros((2, 4), np.uint8), b=np.zeros((3, 4), np.uint8))


def test_inputs_need_not_be_contiguous_and_are_not_changed() -> None:
    net, graph = small()
    x = net.data()["x"]
    turned = np.asfortranarray(x)
    before = x.copy()
    compiled = CpuTarget().compile(graph)
    assert np.array_equal(np.asarray(compiled(x=turned)["y"]), np.asarray(compiled(x=x)["y"]))
    assert np.array_equal(x, before)


def test_results_of_two_calls_are_arrays_of_their_own() -> None:
    net, graph = small()
    compiled = CpuTarget().compile(graph)
    first = compiled(**net.data())["y"]
    kept = np.array(first)
    compiled(**net.data())
    assert np.array_equal(np.asarray(first), kept)


def test_calls_from_many_threads_give_each_its_own() -> None:
    graph = parse(OPEN)
    compiled = CpuTarget().compile(graph, threads=2)
    data = [image(1 + i % 3, 4 + i % 5, i) for i in range(60)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda x: compiled(x=x)["codes"], data))
    for x, quantized in zip(data, got, strict=True):
        assert np.array_equal(np.asarray(quantized), naive.run(graph, {"x": x})["codes"])


def test_what_no_kernel_takes_runs_by_the_reference_and_is_listed() -> None:
    text = f"""
    graph main {{
      %x = input() : 2x3x4x4x{Q}
      %y = relu(%x) : 2x3x4x4x{Q}
      %f = dequantize(%y) : 2x3x4x4xf32
      %m = reduce_max(%f) {{axes = (2, 3), keep = false}} : 2x3xf32
      %e = mod(%m, %m) : 2x3xf32
      output(m = %m, e = %e)
    }}
    """
    compiled = CpuTarget().compile(parse(text))
    assert [(f.node, f.op, f.reason) for f in compiled.fallbacks] == [
        ("e", "mod", "it has no kernel"),
    ]
    x = np.random.default_rng(1).integers(0, 256, (2, 3, 4, 4)).astype(np.uint8)
    floats = (np.maximum(x, 117).astype(np.float32) - 117) * np.float32(0.031)
    wanted = floats.max((2, 3))
    got = compiled(x=x)
    assert np.allclose(np.asarray(got["m"]), wanted, rtol=1e-6)
    assert not np.asarray(got["e"]).any()


def test_a_fault_in_the_reference_reaches_the_caller() -> None:
    text = """
    graph main {
      %x = input() : 2xi32
      %z = input() : 2xi32
      %y = div(%x, %z) : 2xi32
      output(y = %y)
    }
    """
    compiled = CpuTarget().compile(parse(text))
    with pytest.raises(OpError):
        compiled(x=np.ones(2, np.int32), z=np.zeros(2, np.int32))


def test_a_shape_that_depends_on_data_is_refused() -> None:
    text = f"""
    graph main {{
      %x = input() : 2x6x{Q}
      %s = input() : 2xi64
      %y = reshape(%x, %s) : ?x?x{Q}
      output(y = %y)
    }}
    """
    with pytest.raises(Refused, match="%y: its shape"):
        CpuTarget().compile(parse(text))


def test_a_chain_that_no_kernel_computes_is_run_by_the_reference() -> None:
    text = f"""
    graph main {{
      %x = input() : 2x4x{Q}
      %y = relu(%x) |> add(., %x) : 2x4x{Q}
      output(y = %y)
    }}
    """
    graph = parse(text)
    made = CpuTarget().compile(graph)
    (row,) = made.fallbacks
    assert row.reason == "no kernel computes relu |> add as one"
    x = np.arange(8, dtype=np.uint8).reshape(2, 4)
    assert np.array_equal(made(x=x)["y"], run(graph, {"x": x})["y"])


def test_a_branch_runs_the_program_that_its_condition_picks() -> None:
    text = (
        "graph g as native { %c = input() : bool %x = input() : 4xf32\n"
        "%y = if(%c, xs.0=%x) : 4xf32 with then { %a = input() : 4xf32 %r = relu(%a) : 4xf32\n"
        "output(r=%r) } with else { %b = input() : 4xf32 output(b=%b) }\noutput(y=%y) }"
    )
    x = np.array([-1, 2, -3, 4], np.float32)
    made = CpuTarget().compile(parse(text, {}))
    assert not made.fallbacks
    for picked, wanted in ((True, [0, 2, 0, 4]), (False, [-1, 2, -3, 4])):
        assert made(c=np.array(picked), x=x)["y"].tolist() == wanted


def test_qdq_form_runs_on_kernels() -> None:
    text = f"""
    graph main {{
      %x = input() : 2x3x4x4xf32
      %q = quantize(%x) : 2x3x4x4x{Q}
      %d = dequantize(%q) : 2x3x4x4xf32
      %r = relu(%d) : 2x3x4x4xf32
      %y = quantize(%r) : 2x3x4x4x{Q}
      %z = dequantize(%y) : 2x3x4x4xf32
      output(z = %z)
    }}
    """
    compiled = CpuTarget().compile(parse(text))
    assert compiled.fallbacks == ()
    assert [row.kind for row in compiled.describe()] == ["quantize", "transpose", "lookup"]


def test_compiling_leaves_the_graph_as_it_was() -> None:
    _, graph = small()
    before = str(graph)
    CpuTarget().compile(graph)
    assert str(graph) == before


def test_the_table_names_each_step_with_what_it_moves() -> None:
    _, graph = small()
    compiled = CpuTarget().compile(graph, isa="scalar")
    rows = compiled.describe()
    assert [row.kind for row in rows] == ["quantize", "conv2d", "depthwise", "transpose"]
    assert {row.isa for row in rows} == {"scalar"}
    assert [row.shape for row in rows][:2] == [(2, 8, 8, 3), (2, 8, 8, 8)]
    assert [row.bytes for row in rows][:2] == [2 * 3 * 64 * 5, 2 * 64 * 11]


def test_profiling_gives_a_time_for_each_step() -> None:
    net, graph = small()
    compiled = CpuTarget().compile(graph)
    times = compiled.profile(net.data(), runs=3)
    assert [t.step for t in times] == [row.step for row in compiled.describe()]
    assert all(0 <= t.seconds < 1 for t in times)
    assert sum(t.seconds for t in times) > 0


@pytest.mark.parametrize("options", [{"threads": 0}, {"isa": "sse"}])
def test_options_that_cannot_be_meant_are_refused(options: dict[str, Any]) -> None:
    _, graph = small()
    with pytest.raises(UsageError):
        CpuTarget().compile(graph, **options)


def test_threads_default_to_what_the_environment_says() -> None:
    code = (
        "from qir.backends.cpu import CpuTarget; from qir.ir.graph import Graph;"
        "from qir.ir.text import parse;"
        "g = parse('graph main { %x = input() : 2xu8  output(y = %x) }');"
        "print(CpuTarget().compile(g).threads)"
    )
    out = subprocess.run(
        [sys.executable, "-c", code],
        env={"QIR_NUM_THREADS": "3", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    )
    assert out.stdout.strip() == "3"


@pytest.mark.parametrize("cap", _cpu.caps())
def test_each_step_names_the_set_of_its_kernel(cap: str) -> None:
    rows = {row.kind: row.isa for row in CpuTarget().compile(small()[1], isa=cap).describe()}
    multiplies = {"avx512vbmi": "avx512vnni"}.get(cap, cap)
    assert rows["conv2d"] == rows["depthwise"] == multiplies
    others = {"avx512vnni": "avx512", "avxvnni": "avx2", "avxvnni_evex": "avx2"}.get(cap, cap)
    assert (rows["quantize"], rows["transpose"]) == (others, "scalar")


def test_memory_of_dead_values_is_used_again() -> None:
    net = Net(1)
    x = net.input(1, 16, 16, 16)
    for _ in range(12):
        x = net.conv(x, 16)
    compiled = CpuTarget().compile(net.done(y=x))
    assert isinstance(compiled, Compiled)
    assert compiled.arena <= 2 * 16 * 16 * 16


def test_every_value_of_a_long_network_may_be_a_result() -> None:
    net = Net(2)
    made = [net.input(1, 4, 6, 6)]
    for _ in range(90):
        made.append(net.conv(made[-1], 4, (1, 1), pad=(0, 0, 0, 0)))
    graph = net.done(**{f"y{i}": value for i, value in enumerate(made)})
    data = net.data()
    got = CpuTarget().compile(graph)(**data)
    for name, wanted in naive.run(graph, data).items():
        assert np.array_equal(np.asarray(got[name]), wanted), name


@pytest.mark.parametrize(("name", "value"), [("QIR_NUM_THREADS", "0"), ("QIR_ISA", "foo")])
def test_a_wrong_setting_in_the_environment_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match=f"^{name} is '{value}'"):
        CpuTarget().compile(small()[1])


def test_arrays_as_they_are_run_at_once_and_others_are_looked_at() -> None:
    graph = qir.parse(
        "graph main as native {\n  %x = input() : (N)x4xf32\n  %y = relu(%x) : (N)x4xf32\n"
        "  output(y=%y)\n}\n"
    )
    run = qir.compile(graph)
    x = np.arange(-8, 8, dtype=np.float32).reshape(4, 4)
    for given in (x, x, x[:2], x, x.T, x[::2], x[1:3], np.asfortranarray(x)):
        assert np.array_equal(np.asarray(run(x=given)["y"]), np.maximum(given, 0))
    first, second = (np.asarray(run(x=each)["y"]) for each in (x, -x))
    assert np.array_equal(first, np.maximum(x, 0)), "results of another call are other arrays"
    assert np.array_equal(second, np.maximum(-x, 0))
    with pytest.raises(DataError, match="input x is float64, it takes float32"):
        run(x=x.astype(np.float64))
    with pytest.raises(DataError, match="no input 'z'"):
        run(z=x)
