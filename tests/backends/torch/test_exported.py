"""Networks written as exported programs in QDQ form, which inductor makes oneDNN's kernels of."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.export import ExportedProgram
from torch.fx import GraphModule
from torch.jit import ScriptModule

import qir
from qir import pipeline
from qir.errors import Refused, UsageError
from qir.ir.attrs import Attr
from qir.ir.graph import Graph
from qir.ir.text import parse
from qir.profiles import versions
from qir.target import target
from tests.cli.command import qir as command

from .networks import differing, export, make, quantized, watched

Array = NDArray[np.generic]
pytestmark = pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512",
    reason="torch's profiles speak of AVX512 with VNNI, which this processor has not",
)


@pytest.mark.parametrize("name", ["resnet", "mobile", "encoder", "plain", "steps"])
def test_every_quantized_tensor_is_that_of_onednns_kernels(name: str) -> None:
    graph, data = quantized(name, "pt2e")
    inputs = {graph.inputs[0].name: data[:3]}
    wrong, total = differing(target("pt2e"), watched(graph), inputs)
    assert total > 5_000
    assert wrong == 0, f"{wrong} of {total} integers differ"


@pytest.mark.slow
def test_the_file_is_a_program_of_decomposed_operators_with_an_open_batch(tmp_path: Path) -> None:
    graph, data = quantized("resnet", "pt2e")
    pipeline.save(graph, tmp_path / "int8.pt2", target="pt2e")
    program = torch.export.load(str(tmp_path / "int8.pt2"))
    called = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert called.count("quantized_decomposed.dequantize_per_channel.default") == 21
    assert not [name for name in called if name.startswith(("quantized.", "aten.dequantize"))]
    for batch in (1, 5):
        assert program.module()(torch.from_numpy(data[:batch])).shape == (batch, 100)


@pytest.mark.slow
def test_a_file_is_compared_with_the_kernels_that_inductor_calls(tmp_path: Path) -> None:
    """Run as it is, it computes floats between quantized values, which are other bytes."""
    graph, data = quantized("resnet", "pt2e")
    pipeline.save(graph, tmp_path / "int8.pt2", target="pt2e")
    np.save(tmp_path / "x.npy", data[:2])
    asked = ("run", tmp_path / "int8.pt2", "--data", tmp_path / "x.npy", "--compare", "pt2e")
    done = command(*asked)
    assert done.status == 0, done
    assert "grouped as torch-2.1" in done.out
    assert "all equal" in done.out


def test_programs_of_others_are_compared_too(tmp_path: Path) -> None:
    program, data = export("resnet")
    torch.export.save(program, tmp_path / "float.pt2")
    np.save(tmp_path / "x.npy", data[:1])
    asked = ("run", tmp_path / "float.pt2", "--data", tmp_path / "x.npy")
    done = command(*asked, "--compare", "pytorch-x86")
    assert "reference and pytorch-x86 over 1 sample" in done.out, done
    assert "differ" in done.out


def test_a_float_network_is_an_exported_program_that_computes_the_same() -> None:
    net, data = make("encoder")
    program, _ = export("encoder")
    made = qir.build(qir.load(program), target="pt2e", format="float")
    assert isinstance(made, ExportedProgram)
    found, wanted = made.module()(data), net(data)
    off = (found - wanted).abs().max().item()
    assert off <= 1e-4 * wanted.abs().max().item()


def test_a_recurrent_layer_without_a_state_is_exported_with_an_open_batch() -> None:
    graph, data = quantized("steps", "pt2e")
    made = qir.build(graph, target="pt2e")
    assert isinstance(made, ExportedProgram)
    net, _ = make("steps")
    for batch in (1, 5):
        given = torch.from_numpy(data[:batch])
        found = made.module()(given).detach()
        assert float((found - net(given).detach()).abs().max()) < 0.05


def test_a_module_of_fx_calls_one_kernel_for_each_group() -> None:
    graph, data = quantized("resnet", "pytorch-x86")
    made = qir.build(graph, target="pytorch-x86", format="fx")
    assert isinstance(made, GraphModule)
    called = [str(node.target) for node in made.graph.nodes if node.op == "call_function"]
    assert called.count("quantized.conv2d_relu") + called.count("quantized.conv2d") == 20
    assert called.count("quantized.add_relu") == 8
    assert called.count("aten.quantize_per_tensor") == called.count("aten.dequantize") == 1
    torch.set_num_threads(1)
    (wanted,) = target("pytorch-x86").compile(graph)(**{graph.inputs[0].name: data}).values()
    assert np.array_equal(made(torch.from_numpy(data)).numpy(), np.asarray(wanted))


TIES = """graph main as torch-2.13.x86 {
  %x = input() : 1x2x2x1xf32
  %q = quantize(%x) : 1x2x2x1x!quant.uniform<u8:f32, 1.0:3>
  %d = dequantize(%q) : 1x2x2x1xf32
  %m = global_avg_pool(%d) : 1x2x1x1xf32
  %y = quantize(%m) : 1x2x1x1x!quant.uniform<u8:f32, 1.0:3>
  output(y=%y)
}"""


def test_an_exported_program_of_an_engine_rounds_ties_by_the_rules_of_pt2e() -> None:
    data = np.array([[[[1], [2]], [[4], [4]]]], np.float32)
    graph = parse(TIES)
    made = qir.build(graph, target="pytorch-x86", format="pt2")
    assert isinstance(made, ExportedProgram)
    found = made.module()(torch.from_numpy(data)).numpy()
    by = {
        p: qir.run(graph, {"x": data}, profile=p)["y"] for p in (graph.profile, "torch-2.13.pt2e")
    }
    assert np.ravel(by[graph.profile]).tolist() == [4, 7]
    assert np.ravel(by["torch-2.13.pt2e"]).tolist() == [5, 7]
    assert np.array_equal(found, by["torch-2.13.pt2e"])


def test_forms_that_are_no_files_or_not_of_the_graph_are_refused(tmp_path: Path) -> None:
    graph, _ = quantized("resnet", "pt2e")
    with pytest.raises(Refused, match=r"a module of torch\.fx is no file"):
        pipeline.save(graph, tmp_path / "a.pt2", target="pt2e", format="fx")
    with pytest.raises(Refused, match="write the float model instead"):
        pipeline.save(graph, tmp_path / "a.pt2", target="pt2e", format="float")
    with pytest.raises(UsageError, match=r"writes \.pt2 files"):
        pipeline.save(graph, tmp_path / "a.pt", target="pt2e")
    with pytest.raises(UsageError, match=r"writes \.pt torchscript files"):
        pipeline.save(graph, tmp_path / "a.pt2", target="pytorch-x86", format="torchscript")
    assert not list(tmp_path.iterdir())


def test_the_form_follows_the_suffix(tmp_path: Path) -> None:
    graph, _ = quantized("resnet", "pytorch-x86")
    pipeline.save(graph, tmp_path / "a.pt", target="pytorch-x86")
    pipeline.save(graph, tmp_path / "a.pt2", target="pytorch-x86")
    opened: Callable[[str], ScriptModule] = torch.jit.load
    assert isinstance(opened(str(tmp_path / "a.pt")), ScriptModule)
    assert isinstance(torch.export.load(str(tmp_path / "a.pt2")), ExportedProgram)


SCRIPT = """
import contextlib, numpy, re, sys, torch
import torch.ao.quantization.fx._decomposed
with contextlib.suppress(ImportError):
    import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer
import torch._inductor.config as config
from torch._inductor.utils import run_and_get_code
config.freezing = True
torch.set_num_threads(1)
module = torch.export.load("int8.pt2").module()
data = torch.from_numpy(numpy.load("x.npy"))
with torch.no_grad():
    made, code = run_and_get_code(torch.compile(module), data)
numpy.save("y.npy", made.numpy())
found = [len(re.findall(rf"torch.ops.onednn.{name}", "".join(code))) for name in sys.argv[1:]]
print(*found)
"""
FUSES = not versions.covers(">=2.15", torch.__version__) or bool(find_spec("torchao"))
"""Whether inductor knows how to make kernels of QDQ form: from torch 2.15 on torchao tells it."""


@pytest.mark.long
def test_inductor_makes_kernels_of_onednn_of_it(tmp_path: Path) -> None:
    graph, data = quantized("resnet", "pt2e")
    found, made = _by_inductor(graph, data[:4], tmp_path, "qconv_pointwise", "qlinear_pointwise")
    assert found == (["20", "1"] if FUSES else ["0", "0"])
    if not FUSES:
        return
    session = target("pt2e").compile(graph)
    (wanted,) = session(**{graph.inputs[0].name: data[:4]}).values()
    assert np.array_equal(made, np.asarray(wanted))


@pytest.mark.long
def test_inductor_makes_kernels_of_layers_that_choose_their_numbers(tmp_path: Path) -> None:
    torch.manual_seed(5)
    net = nn.Sequential(nn.Linear(24, 40), nn.ReLU(), nn.Linear(40, 9)).eval()
    data = torch.randn(4, 24)
    graph = pipeline.quantize_dynamic(qir.load(net, inputs=(data,)), target="pt2e")
    found, made = _by_inductor(graph, data.numpy(), tmp_path, r"qlinear_pointwise\.tensor\(")
    assert found == (["2"] if FUSES else ["0"])
    if not FUSES:
        return
    (ours,) = qir.run(graph, {graph.inputs[0].name: data.numpy()}).values()
    assert np.abs(np.subtract(made, ours)).max() <= 1e-6 * np.abs(ours).max()


def _by_inductor(graph: Graph, data: Array, folder: Path, *kernels: str) -> tuple[list[str], Array]:
    """Returns how often each kernel is in what inductor makes of a file, and its result."""
    pipeline.save(graph, folder / "int8.pt2", target="pt2e")
    np.save(folder / "x.npy", data)
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, *kernels]
    around = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "1"}
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, check=False, env=around
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split(), np.load(folder / "y.npy")


@pytest.mark.parametrize("pad", [(0, 0, 1, 1), (1, 0, 0, 2), (1, 2, 1, 0)])
def test_transposed_convolutions_of_uneven_padding(pad: tuple[int, ...]) -> None:
    """Keras pads so for strides: PyTorch's padding is even, and the rest is cut from the result."""
    rng = np.random.default_rng(6)
    graph = qir.parse("graph main as native { %x = input() : (N)x3x5x6xf32  output(x=%x) }")
    w = graph.constant(rng.normal(size=(3, 4, 3, 4)).astype(np.float32))
    attrs: dict[str, Attr] = {"stride": (2, 2), "pad": pad, "output_pad": (1, 0)}
    made = graph.add("conv_transpose2d", {"x": graph.inputs[0], "w": w}, attrs)
    graph.set_operand(graph.output, "y", made.result)
    feeds = {"x": rng.normal(size=(2, 3, 5, 6)).astype(np.float32)}
    found, wanted = target("pt2e").compile(graph)(**feeds)["y"], qir.run(graph, feeds)["y"]
    assert np.asarray(found).shape == wanted.shape
    assert np.abs(np.asarray(found) - wanted).max() <= 1e-5 * np.abs(wanted).max()


def test_examples_of_open_sizes_take_no_room(tmp_path: Path) -> None:
    graph = qir.parse(
        "graph main as native { %x = input() : (N)x3x64x64xf32 %y = relu(%x) : (N)x3x64x64xf32 "
        "output(y=%y) }"
    )
    qir.save(graph, tmp_path / "m.pt2", target="pt2e", format="float")
    assert (tmp_path / "m.pt2").stat().st_size < 1 << 17  # 32 images take 1.5 MB
    program = torch.export.load(tmp_path / "m.pt2")
    (example,) = program.example_inputs[0]
    assert example.shape[1:] == (3, 64, 64)
    assert program.module()(torch.ones(7, 3, 64, 64)).shape == (7, 3, 64, 64)


def test_a_file_holds_no_notes_of_how_it_was_made() -> None:
    graph, _ = quantized("steps", "pt2e")
    program = qir.build(graph, target="pt2e")
    assert isinstance(program, ExportedProgram)
    noted = {"stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom"}
    assert not [node for node in program.graph.nodes if noted & set(node.meta)]
    assert not torch.fx.config.do_not_emit_stack_traces
