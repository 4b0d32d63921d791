"""TorchScript, as archives and from memory: quantized kernels to the byte, float ones nearly."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, ao, nn
from torch.ao.quantization import DeQuantStub, QuantStub, get_default_qconfig_mapping
from torch.ao.quantization.quantize_fx import convert_fx, prepare_fx

import qir
from qir.errors import InputError, Refused, UsageError
from qir.ir.graph import Graph
from qir.target import target
from tests.cli.command import process
from tests.frontends.comparison import difference
from tests.processors import has

from .comparison import flatten_tensors, run_graph, run_module
from .networks import networks
from .quantized_cases import FUNCTIONS, IMAGE, LAYERS, Quantizing, in_place

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
    pytest.mark.skipif(not has("vnni"), reason="profiles of PyTorch speak of VNNI"),
]
AO: Any = ao.quantization
SCRIPT: Any = torch.jit.script
NETWORKS = networks()
NEAR = 1e-4
ENGINES = ("fbgemm", "x86", "onednn")


@contextmanager
def engine(name: str) -> Iterator[None]:
    """Chooses a quantized engine, on one thread."""
    before, threads = torch.backends.quantized.engine, torch.get_num_threads()
    torch.backends.quantized.engine = name
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.backends.quantized.engine = before
        torch.set_num_threads(threads)


def traced(module: nn.Module, inputs: Sequence[Tensor]) -> torch.jit.ScriptModule:
    trace: Any = torch.jit.trace
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        made: torch.jit.ScriptModule = trace(
            module.eval(), tuple(inputs), check_trace=False, strict=False
        )
    return made


def integers(module: nn.Module, inputs: Sequence[Tensor]) -> list[NDArray[np.generic]]:
    """Returns what PyTorch computes; quantized tensors as their integers."""
    with torch.no_grad():
        found = flatten_tensors(module(*inputs))
    return [(t.int_repr() if t.is_quantized else t).numpy() for t in found]


def off(name: str, graph: Graph, module: nn.Module, inputs: Sequence[Tensor]) -> int:
    """Returns how many results differ; those of oneDNN with AMX may by one in a thousand."""
    count = 0
    for a, b in zip(run_graph(graph, inputs), integers(module, inputs), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        apart = np.abs(a.astype(np.float64) - b.astype(np.float64))
        if has("amx") and name != "fbgemm" and a.dtype == np.uint8:
            assert apart.max(initial=0) <= 1
            apart = apart[: int(np.mean(apart) > 0.001)]
        count += int(np.count_nonzero(apart))
    return count


def data(shape: tuple[int, ...]) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_quantized_function_gives_pytorchs_integers(name: str) -> None:
    with engine("fbgemm"):
        module, x = Quantizing(FUNCTIONS[name]), data(IMAGE)
        graph = qir.load(traced(module, [x]), inputs=[x])
        assert graph.profile.endswith(".fbgemm")
        assert not [n for n in graph if n.op == "foreign"]
        assert off("fbgemm", graph, module, [x]) == 0


class _AddsTooMuch(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 128, torch.quint8)
        shifted: Tensor = torch.ops.quantized.add(q, 100.0)
        return torch.dequantize(shifted)


class _Strides(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        q = torch.quantize_per_tensor(x, 0.1, 128, torch.quint8)
        return torch.dequantize(q.as_strided((2, 2), (1, 2)))


@pytest.mark.parametrize("script", [False, True])
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (_AddsTooMuch, r"in 0: .* only -12\.7\.\.12\.8 can be added; dequantize"),
        (
            _Strides,
            "in 0: calls aten::as_strided of a quantized tensor, .*; dequantize first",
        ),
    ],
)
def test_what_is_not_read_of_quantized_tensors_is_refused_at_its_line(
    kind: type[nn.Module], message: str, script: bool
) -> None:
    module = nn.Sequential(kind()).eval()
    source = SCRIPT(module) if script else module
    line = kind.forward.__code__.co_firstlineno + 2
    with pytest.raises(InputError, match=rf"{message}.*test_torchscript\.py\", line {line}\)"):
        qir.load(source, inputs=(data((2, 4, 3, 3)),))


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("chosen", ENGINES)
def test_a_quantized_layer_gives_pytorchs_integers(name: str, chosen: str) -> None:
    with engine(chosen):
        case = LAYERS[name]
        module, x = Quantizing(case.make()), data(case.shape)
        graph = qir.load(traced(module, [x]), inputs=[x])
        assert not [n for n in graph if n.op == "foreign"]
        assert off(chosen, graph, module, [x]) == 0
        weight = graph["inner.weight"]
        assert weight.type.quant is not None
        held: Any = module.inner
        assert weight.constant is not None
        assert np.array_equal(weight.constant.data, held.weight().int_repr().numpy())


def test_float_operators_between_quantized_tensors_are_no_kernels() -> None:
    with engine("fbgemm"):
        module, x = Quantizing(FUNCTIONS["a float sum"]), data((64, 33))
        graph = qir.load(traced(module, [x]), inputs=[x])
        (sum_,) = [n for n in graph if n.op == "add"]
        assert all(v.type.quant is None for v in (*sum_.operands.values(), *sum_.results))
        assert off("fbgemm", graph, module, [x]) == 0


def test_an_op_in_place_changes_what_is_read_later() -> None:
    with engine("fbgemm"):
        module, x = Quantizing(in_place), data(IMAGE)
        graph = qir.load(traced(module, [x]), inputs=[x])
        assert off("fbgemm", graph, module, [x]) == 0


def by_fx(name: str, chosen: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """A network that FX graph mode has quantized for an engine."""
    module, inputs = NETWORKS[name]
    made = prepare_fx(module.eval(), get_default_qconfig_mapping(chosen), inputs)
    with torch.no_grad():
        made(*inputs)
    return convert_fx(made), inputs


@pytest.mark.parametrize(
    ("name", "chosen"),
    [
        ("shuffle", "onednn"),
        ("mobilenet", "x86"),
        pytest.param("mobilenet", "fbgemm", marks=pytest.mark.slow),
        pytest.param("resnet18", "fbgemm", marks=pytest.mark.slow),
        pytest.param("resnet18", "onednn", marks=pytest.mark.long),
    ],
)
def test_a_network_of_fx_gives_pytorchs_bytes(name: str, chosen: str, tmp_path: Path) -> None:
    with engine(chosen):
        module, inputs = by_fx(name, chosen)
        traced(module, inputs).save(tmp_path / f"{name}.pt")
        for source, given in ((module, inputs), (tmp_path / f"{name}.pt", None)):
            graph = qir.load(source, inputs=given)
            assert graph.profile.endswith(f".{chosen}")
            assert off(chosen, graph, module, inputs) == 0
        assert not isinstance(graph.inputs[0].type.shape[0], int), "open sizes are symbols"


class Eager(nn.Module):
    """A network of eager mode: stubs, functional modules, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.quant, self.dequant = QuantStub(), DeQuantStub()
        self.conv, self.relu = nn.Conv2d(6, 6, 3, padding=1), nn.ReLU(inplace=True)
        self.add, self.cat = nn.quantized.FloatFunctional(), nn.quantized.FloatFunctional()
        self.pool, self.linear = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.quant(x)
        y = self.add.add_relu(x, self.relu(self.conv(x)))
        y = self.pool(self.cat.cat([x, y], 1)).flatten(1)
        return self.dequant(self.linear(y))  # type: ignore[no-any-return]


def test_an_eager_module_is_read_from_memory_and_scripted(tmp_path: Path) -> None:
    torch.manual_seed(4)
    x = data(IMAGE)
    with engine("x86"):
        module = Eager().eval()
        module.qconfig = AO.get_default_qconfig("x86")
        prepared = AO.prepare(module)
        prepared(x)
        made = AO.convert(prepared)
        SCRIPT(made).save(tmp_path / "scripted.pt")
        for source, given in ((made, (x,)), (tmp_path / "scripted.pt", None)):
            graph = qir.load(source, inputs=given)
            assert off("x86", graph, made, [x]) == 0
        conv = next(n for n in graph if any(s.op == "conv2d" for s in n.stages) or n.op == "conv2d")
        assert {origin.path for origin in conv.origins} == {"conv"}


def test_an_int8_archive_becomes_onnx(tmp_path: Path) -> None:
    with engine("x86"):
        module, inputs = by_fx("shuffle", "x86")
        traced(module, inputs).save(tmp_path / "int8.pt")
        graph = qir.load(tmp_path / "int8.pt", inputs=[tuple(inputs[0].shape)])
    qir.save(graph, tmp_path / "qdq.onnx", lossy=True)
    again = qir.load(tmp_path / "qdq.onnx")
    kept = {
        v.constant.data.tobytes()
        for g in (again,)
        for v in g.values.values()
        if v.type.quant is not None and v.constant is not None and v.type.rank == 4
    }
    held = [v.constant for v in graph.values.values() if v.type.quant and v.constant is not None]
    images = [array.data.tobytes() for array in held if array.type.rank == 4]
    assert len(images) == 3
    assert set(images) <= kept, "integer weights are kept"


def test_a_dynamic_linear_layer_gives_pytorchs_floats() -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(9, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    x = data((4, 5, 9))
    with engine("fbgemm"):
        made = AO.quantize_dynamic(module, {nn.Linear})
        graph = qir.load(made, inputs=(x,))
        assert [n.op for n in graph].count("choose_qparams") == 2
        assert off("fbgemm", graph, made, [x]) == 0


@pytest.mark.parametrize(("bags", "bits"), [(False, 8), (True, 8), (True, 4)])
def test_tables_of_quantized_rows_keep_their_integers(bags: bool, bits: int) -> None:
    torch.manual_seed(5)
    kind = nn.EmbeddingBag if bags else nn.Embedding
    more = {"mode": "sum", "include_last_offset": True} if bags else {}
    module = nn.Sequential(kind(20, 8, **more)).eval()  # type: ignore[arg-type]
    named = f"float_qparams_weight_only_qconfig{'' if bits == 8 else '_4bit'}"
    module.qconfig = getattr(AO, named)
    ids = torch.randint(0, 20, (12,)), torch.tensor([0, 5, 5, 12])
    given = ids if bags else (ids[0].reshape(3, 4),)
    with engine("fbgemm"):
        made = AO.convert(AO.prepare(module))[0]
        graph = qir.load(made, inputs=given)
        assert off("fbgemm", graph, made, given) == 0
    quant = graph["weight"].type.quant
    assert quant is not None
    assert (str(quant.storage), quant.has_float_zero) == (f"u{bits}", True)


@pytest.mark.parametrize("bits", [8, 4])
def test_bags_that_are_rows_of_indices_need_no_offsets(bits: int) -> None:
    torch.manual_seed(6)
    module = nn.Sequential(nn.EmbeddingBag(20, 8, mode="sum")).eval()
    module.qconfig = getattr(AO, f"float_qparams_weight_only_qconfig{'' if bits == 8 else '_4bit'}")
    ids = torch.randint(0, 20, (4, 6))
    with engine("fbgemm"):
        made = AO.convert(AO.prepare(module))
        assert off("fbgemm", qir.load(made, inputs=(ids,)), made, [ids]) == 0


def test_a_table_that_torch_reads_by_the_wrong_width_is_refused() -> None:
    """torch.ao's Embedding of 4 bits calls embedding_byte, which gives rows of another length."""
    module = nn.Sequential(nn.Embedding(20, 16)).eval()
    module.qconfig = AO.float_qparams_weight_only_qconfig_4bit
    made, ids = AO.convert(AO.prepare(module)), torch.zeros(3, dtype=torch.int64)
    with pytest.raises(InputError, match="embedding_byte reads 4-bit rows"):
        qir.load(made, inputs=(ids,))


def test_a_dynamic_lstm_keeps_its_weights_and_quantizes_its_state() -> None:
    module, inputs = NETWORKS["recurrent"]
    with engine("fbgemm"):
        made = AO.quantize_dynamic(module.eval(), {nn.LSTM, nn.Linear})
        graph = qir.load(made, inputs=inputs)
        (ours,), (theirs,) = run_graph(graph, inputs), run_module(made, inputs)
    assert difference(ours, theirs, NEAR) == ""
    held = [v for v in graph.values.values() if v.constant is not None and v.type.quant]
    assert len(held) == 5, "weights of four cells and of the linear layer"
    states = [node.inner["h"] for node in graph if node.op == "lstm"]
    assert {str(state) for state in states} == {"!quant.uniform<u8<0:127>:f32, ?:?, scale f64>"}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_float_network_is_read_from_torchscript(name: str, tmp_path: Path) -> None:
    module, inputs = NETWORKS[name]
    traced(module, inputs).save(tmp_path / "float.pt")
    graph = qir.load(tmp_path / "float.pt", inputs=inputs)
    assert graph.profile == "native"
    pairs = zip(run_graph(graph, inputs), run_module(module, inputs), strict=True)
    assert [why for a, b in pairs if (why := difference(a, b, NEAR))] == []


class Branching(nn.Module):
    """What scripting keeps and tracing does not: loops, branches, lists."""

    def __init__(self, *, by_data: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.by_data = by_data

    def forward(self, x: Tensor) -> Tensor:
        parts: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x = layer(x)
            if i % 2 == 0 and x.size(1) == 6:
                parts.append(x.relu())
        if self.by_data and bool(x.sum() > 0):
            x = -x
        return torch.cat(parts, 1) if len(parts) > 1 else x


def test_what_is_known_of_a_script_is_evaluated(tmp_path: Path) -> None:
    x = data((3, 6))
    module = Branching()
    SCRIPT(module).save(tmp_path / "m.pt")
    graph = qir.load(tmp_path / "m.pt")
    (ours,), (theirs,) = run_graph(graph, [x]), run_module(module, [x])
    assert difference(ours, theirs, NEAR) == ""
    SCRIPT(Branching(by_data=True)).save(tmp_path / "m.pt")
    with pytest.raises(InputError, match=r"number out of a tensor that is computed.*File") as told:
        qir.load(tmp_path / "m.pt")
    assert "\n" not in str(told.value)


def test_inputs_of_an_archive_are_examples_or_shapes(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    traced(nn.Sequential(nn.Flatten(), nn.Linear(12, 2)), [data((2, 3, 4))]).save(path)
    with pytest.raises(InputError, match=r"does not say the shape of .*give it: --shape"):
        qir.load(path)
    for given in ([(5, 3, 4)], [data((5, 3, 4))], [np.zeros((5, 3, 4), np.float32)]):
        assert qir.load(path, inputs=given).inputs[0].type.shape == (5, 3, 4)
    with pytest.raises(InputError, match="takes 1 inputs"):
        qir.load(path, inputs=[(5, 3, 4), (1,)])


@pytest.mark.slow
def test_a_frozen_archive_says_its_shapes_too(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1)).eval()
    freeze: Any = torch.jit.freeze
    freeze(SCRIPT(module)).save(tmp_path / "m.pt")
    x = data((2, 3, 9, 8))
    graph = qir.load(tmp_path / "m.pt")
    assert graph.inputs[0].type.rank == 4
    (ours,), (theirs,) = run_graph(graph, [x]), run_module(module, [x])
    assert difference(ours, theirs, NEAR) == ""


@pytest.mark.parametrize("name", ["torch_ipex.relu", "ipex_prepack.convolution_relu_run"])
def test_an_archive_that_ipex_froze_is_refused(name: str, tmp_path: Path) -> None:
    """IPEX is not installed where the file is read, so its operators are unknown to PyTorch."""
    trace: Any = torch.jit.trace
    trace(nn.ReLU().eval(), torch.zeros(2, 3)).save(tmp_path / "m.pt")
    with ZipFile(tmp_path / "m.pt") as held, ZipFile(tmp_path / "frozen.pt", "w") as made:
        for member in held.namelist():
            data = held.read(member)
            if member.endswith(".py"):
                assert b"torch.relu(" in data
                data = data.replace(b"torch.relu(", f"ops.{name}(".encode())
            made.writestr(member, data)
    with pytest.raises(InputError, match=r"frozen\.pt: IPEX froze it.*before ipex\.optimize"):
        qir.load(tmp_path / "frozen.pt", inputs=[(2, 3)])


class Unpickled:
    """Leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return open, (str(self.path), "w")


def test_files_without_a_program_are_refused_with_a_remedy(tmp_path: Path) -> None:
    module, trap = nn.Linear(4, 2), tmp_path / "ran"
    save: Any = torch.save
    save(module.state_dict(), tmp_path / "weights.pt")
    save(module, tmp_path / "module.pt")
    save(Unpickled(trap), tmp_path / "trap.pt")
    save(Unpickled(trap), tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    with pytest.raises(InputError, match="holds a state dict and no program"):
        qir.load(tmp_path / "weights.pt")
    for name in ("module.pt", "trap.pt", "old.pth"):
        with pytest.raises(InputError, match=r"qir convert .* --trust --shape") as told:
            qir.load(tmp_path / name)
        assert "\n" not in str(told.value)
    assert not trap.exists()
    torch.export.save(torch.export.export(module, (data((3, 4)),)), tmp_path / "program.pt")
    assert len(qir.load(tmp_path / "program.pt").inputs) == 1
    with pytest.raises(UsageError, match="leave out inputs"):
        qir.load(tmp_path / "program.pt", inputs=[(3, 4)])


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.pt"
    traced(nn.Linear(4, 2), [data((3, 4))]).save(path)
    whole = path.read_bytes()
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError) as told:
            qir.load(path)
        assert "\n" not in str(told.value)


def test_an_archive_that_reads_at_indices_is_read(tmp_path: Path) -> None:
    """PyTorch saves `x[i]` as an overload of its own, index.Tensor_hacked_twin."""

    class Picking(nn.Module):
        def forward(self, x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
            held = x * 2
            return x[i], held.index_put((i,), held[i] + 1)

    data = (torch.randn(4, 5), torch.tensor([2, 0]))
    script = traced(Picking(), data)
    script.save(str(tmp_path / "a.pt"))
    graph = qir.load(tmp_path / "a.pt", inputs=data)
    for ours, theirs in zip(run_graph(graph, data), Picking()(*data), strict=True):
        assert np.array_equal(ours, theirs.numpy())


@pytest.mark.slow
def test_commands_on_an_archive_are_silent_about_quantized_tensors(tmp_path: Path) -> None:
    with engine("x86"):
        script = traced(Quantizing(FUNCTIONS["add_relu"]), [torch.randn(IMAGE)])
    script.save(str(tmp_path / "int8.pt"))
    shape = ",".join(map(str, IMAGE))
    done = process("show", "int8.pt", "--shape", shape, cwd=tmp_path)
    assert (done.status, done.err) == (0, "")


@pytest.mark.parametrize(("slope", "steps"), [(0.1, 200), (1.0, 0)])
def test_a_prelu_of_fx_that_is_none_is_converted_with_lossy_alone(
    slope: float, steps: int, tmp_path: Path
) -> None:
    """quantized::prelu quantizes 1 by the slopes' scale, whose largest is the largest slope."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.PReLU(8, slope), nn.Linear(8, 4)).eval()
    x = torch.randn(40, 6)
    with engine("x86"):
        prepared = prepare_fx(net, get_default_qconfig_mapping("x86"), (x,))
        prepared(x)
        graph = qir.load(traced(convert_fx(prepared), [x]), inputs=[x])
    ledger = qir.Ledger()
    qir.save(graph, tmp_path / "a.onnx", lossy=True, ledger=ledger)
    said = [e.reason for e in ledger if "is a PReLU, and its kernel is not" in e.reason]
    assert len(said) == (steps > 0)
    for name in ("onnxruntime", "pytorch-x86") if steps else ():
        assert int(said[0].partition("by up to ")[2].partition(" steps")[0]) > steps
        with pytest.raises(Refused, match=r"holds no 1 .* `lossy=True` allows it"):
            qir.save(graph, tmp_path / f"b{target(name).suffix}", target=name)
