"""What is read as a PyTorch model, what is refused and why, and what is never unpickled."""

from __future__ import annotations

import io
import logging
import pickle
import sys
import types
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import qir
from qir.errors import DataError, InputError, PluginError, ShapesNeeded, UsageError
from qir.frontends.torch.frontend import TorchFrontend
from qir.frontends.torch.program import functionalized_if_needed
from qir.ledger import Ledger
from tests.cli.command import qir as qir_command
from tests.frontends.comparison import difference

from .comparison import export, run_graph, run_module

X = torch.linspace(-2, 2, 12).reshape(3, 4)


class Ran:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str, str]]:
        return open, (str(self.path), "w")


class Calls(nn.Module):
    """Holds a function of tensors."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *tensors: Tensor) -> object:
        return self.function(*tensors)


def saved(folder: Path) -> Path:
    path = folder / "m.pt2"
    torch.export.save(export(nn.Linear(4, 2), (X,)), path)
    return path


def rewritten(path: Path, change: Callable[[str, bytes], bytes | None]) -> Path:
    """Changes the members of an archive, and leaves out those that become None."""
    with zipfile.ZipFile(path) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members:
            if (changed := change(name, data)) is not None:
                archive.writestr(name, changed)
    return path


@pytest.mark.parametrize("name", ["m.pt2", "m.pt", "m.pth", "m.torchscript"])
def test_a_file_that_is_not_there_and_a_folder_are_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    with pytest.raises(InputError, match=f"{name}: cannot be opened: No such file"):
        TorchFrontend().load(path, Ledger())
    path.mkdir()
    with pytest.raises(InputError, match=f"{name}: cannot be opened: Is a directory"):
        TorchFrontend().load(path, Ledger())


def test_example_inputs_that_are_no_tensors_are_not_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "ran"
    buffer = io.BytesIO()
    torch.save(Ran(trap), buffer)
    path = rewritten(saved(tmp_path), lambda n, d: buffer.getvalue() if "sample_inputs" in n else d)
    with pytest.raises(InputError, match="not unpickled"):
        qir.load(path)
    assert not trap.exists()


def test_pickled_weights_are_not_unpickled(tmp_path: Path) -> None:
    trap = tmp_path / "ran"

    def change(name: str, data: bytes) -> bytes:
        if name.endswith("weights_config.json"):
            return data.replace(b'"use_pickle": false', b'"use_pickle": true')
        return pickle.dumps(Ran(trap)) if "weight_" in name else data

    with pytest.raises(InputError, match="holds pickled objects"):
        qir.load(rewritten(saved(tmp_path), change))
    assert not trap.exists()


@pytest.mark.parametrize(
    "text", ["__import__('os').system('true')", "s0.__class__", "exec(s0)", "s0[0]", "'s0'"]
)
def test_sizes_that_are_programs_are_not_evaluated(text: str, tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    shapes = ({0: torch.export.Dim("n")},)
    torch.export.save(export(nn.Linear(4, 2), (X,), dynamic_shapes=shapes), path)
    assert qir.load(path).inputs[0].type.shape[0] is not None

    def change(name: str, data: bytes) -> bytes:
        at = data.find(b'"expr_str": "')
        if at < 0:
            return data
        start = at + len(b'"expr_str": "')
        return data[:start] + text.encode() + data[data.index(b'"', start) :]

    with pytest.raises(InputError, match="which is no size"):
        qir.load(rewritten(path, change))


def test_a_damaged_archive_is_one_line(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    path = tmp_path / "damaged.pt2"
    rng = np.random.default_rng(3)
    for size in (0, 10, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError) as told:
            qir.load(path)
        assert "\n" not in str(told.value)
    for _ in range(20):
        held = bytearray(whole)
        for place in rng.integers(0, len(held), 20):
            held[place] = int(rng.integers(256))
        path.write_bytes(held)
        with suppress(InputError):  # what is damaged may still be a model
            qir.load(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda name, data: None if "/models/" in name else data,
            "has no models/ folder, so holds",
        ),
        (lambda name, data: None if name.endswith("archive_format") else data, "no member archive"),
        (
            lambda name, data: b"{" if "/models/" in name else data,
            r"m/models/model.json is no JSON",
        ),
        (lambda name, data: b"{}" if "/models/" in name else data, "models/ holds no program"),
        (
            lambda name, data: None if name.endswith("weight_0") else data,
            r"weights/weight_0: file not",
        ),
        (lambda name, data: data.replace(b"aten.linear", b"mine.linear"), "import the library"),
        (
            lambda name, data: b"999" if name.endswith(".data/version") else data,
            r"states version 999, and this PyTorch reads up to \d+; read it with the PyTorch that",
        ),
    ],
)
def test_a_member_that_is_missing_or_damaged_is_named(
    tmp_path: Path, change: Callable[[str, bytes], bytes | None], message: str
) -> None:
    with pytest.raises(InputError, match=message) as told:
        qir.load(rewritten(saved(tmp_path), change))
    assert "\n" not in str(told.value)
    assert "miniz" not in str(told.value)


def test_an_empty_file_and_a_state_dict_named_pt2_are_refused_with_a_remedy(tmp_path: Path) -> None:
    path = tmp_path / "m.pt2"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"m\.pt2: is empty; copy the file again"):
        qir.load(path)
    torch.save(nn.Linear(4, 2).state_dict(), path)
    with pytest.raises(
        InputError, match=r"holds a state dict .* write the module with torch\.export"
    ):
        qir.load(path)


@pytest.mark.parametrize("name", ["net.pt2", "net.pt"])
def test_changed_weights_are_found_by_their_checksum(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    module = nn.Linear(4, 3).eval()
    if name.endswith("2"):
        torch.export.save(torch.export.export(module, (X,)), path)
    else:
        trace: Any = torch.jit.trace
        trace(module, X).save(str(path))
    held = path.read_bytes()
    weights = module.weight.detach().numpy().tobytes()
    path.write_bytes(held.replace(weights, bytes(len(weights)), 1))
    with pytest.raises(InputError, match=r"does not have the checksum.*write the file again"):
        qir.load(path)
    path.write_bytes(held[: len(held) // 2])
    with pytest.raises(InputError, match="is a damaged archive"):
        qir.load(path)
    path.write_bytes(held)
    assert len(qir.load(path, inputs=None)) > 1


@pytest.mark.slow
@pytest.mark.sampled(1)
@pytest.mark.parametrize("changed", [0x01, 0x55, 0xFF])
def test_an_archive_with_a_damaged_header_is_one_line(
    tmp_path: Path, changed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[logging.LogRecord] = []
    monkeypatch.setattr(logging.getLogger("torch.export"), "callHandlers", logged.append)
    whole = saved(tmp_path).read_bytes()
    path = tmp_path / "damaged.pt2"
    local, central, end = (whole.index(b"PK" + mark) for mark in (b"\3\4", b"\1\2", b"\5\6"))
    places = [*range(local, local + 30), *range(central, central + 46), *range(end, len(whole))]
    for place in places:
        held = bytearray(whole)
        held[place] ^= changed
        path.write_bytes(held)
        with suppress(InputError):  # some fields are read by nobody
            qir.load(path)
    assert not logged


def test_a_module_is_exported_with_its_inputs_and_keeps_its_mode() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.Dropout(), nn.BatchNorm1d(3)).train()
    module[2].eval()
    graph = qir.load(module, inputs=(X,))
    assert [part.training for part in module.modules()] == [True, True, True, False]
    (ours,), (theirs,) = run_graph(graph, [X]), run_module(module, [X])
    assert difference(ours, theirs, 1e-5) == ""


def test_sources_that_cannot_be_read_say_what_to_do() -> None:
    with pytest.raises(InputError, match=r"give inputs=\(x, \.\.\.\)"):
        qir.load(nn.Linear(4, 2))
    with pytest.raises(InputError, match=r"^None: no frontend reads this"):
        qir.load(None)
    with pytest.raises(InputError, match="object of type OrderedDict: no frontend reads this"):
        qir.load(nn.Linear(4, 2).state_dict())
    with pytest.raises(UsageError, match="leave out inputs"):
        qir.load("m.onnx", inputs=(X,))
    with pytest.raises(InputError, match="reads files only"):
        qir.load(nn.Linear(4, 2), frontend="onnx")
    hidden = Calls(lambda x: x + 1 if x.sum() > 0 else x)
    with pytest.raises(InputError, match=r"branches or loops by data") as told:
        qir.load(hidden, inputs=(X,))
    assert "\n" not in str(told.value)


def test_a_program_is_rewritten_only_where_a_view_sees_a_change() -> None:
    def unseen(x: Tensor) -> Tensor:
        part = torch.cat([x, x * 2], 1)[:, :3]
        part += 1
        return part * 3

    def seen(x: Tensor) -> Tensor:
        made = (x * 2).relu_()
        made.view(-1).sub_(1)
        return made * 3

    for function, rewritten in ((unseen, False), (seen, True)):
        program = torch.export.export(Calls(function), (X,))
        assert (functionalized_if_needed(program) is not program) == rewritten


@pytest.mark.slow
def test_in_place_operators_are_read_as_functional_ones() -> None:
    def simple(x: Tensor) -> Tensor:
        y = x * 2
        y += 1
        y.relu_()
        return y.mul_(3).add_(y)

    def through_a_view(x: Tensor) -> Tensor:
        y = x * 2
        y[:, 1:3].add_(1)
        y.view(-1)[0:2] *= 5
        return y

    def the_same_tensor(x: Tensor) -> Tensor:
        y = x * 2
        z = y.relu_()
        z.add_(1)
        return y * 10 + z

    def through_parts(x: Tensor) -> Tensor:
        y = x * 2
        a, b = y.chunk(2, 1)
        a.add_(1)
        y.unbind(0)[1].mul_(b.sum())
        return y

    def through_a_new_name(x: Tensor) -> Tensor:
        y = x * 2
        z = y.add_(1)
        z.view(-1).mul_(3)
        y.add_(1)
        return y - z.view(-1)[0]

    def through_dropout(x: Tensor) -> Tensor:
        y = x * 2
        z = torch.dropout(y, 0.5, False)
        z.relu_()
        return y + z

    def into_an_argument(x: Tensor) -> Tensor:
        y, z = x * 2, torch.zeros(x.shape)
        torch.add(y, 1, out=z)
        return y * 10 + z

    def by_kept_operators(x: Tensor) -> Tensor:
        y = x.clone()
        y[[0, 1]] = y[[1, 0]]
        y[:, 1] = 7.0
        y.scatter_add_(1, torch.zeros(x.shape, dtype=torch.int64), x)
        return y + x

    functions = (simple, the_same_tensor, through_a_view, through_parts, through_a_new_name)
    for function in (*functions, through_dropout, into_an_argument, by_kept_operators):
        x = X.clone()
        graph = qir.load(Calls(function), inputs=(X,))
        (ours,), (theirs,) = run_graph(graph, [x]), run_module(Calls(function), [X])
        assert difference(ours, theirs, 1e-6) == "", function.__name__
        assert torch.equal(x, X), function.__name__


def test_a_size_of_a_call_that_is_kept() -> None:
    module = Calls(lambda x: x.abs().sum() * (x.shape[0] * 2 + 1))
    batch = torch.export.Dim("batch", min=2)
    graph = qir.load(export(module, (X,), dynamic_shapes=((({0: batch},)),)))
    for x in (X, torch.cat([X, X])):
        (ours,), (theirs,) = run_graph(graph, [x]), run_module(module, [x])
        assert difference(ours, theirs, 1e-6) == ""


def test_an_unknown_operator_is_kept_and_run_by_pytorch(tmp_path: Path) -> None:
    module = Calls(lambda x: torch.special.i0(x).relu() + torch.logcumsumexp(x, 1))
    ledger = qir.Ledger()
    graph = qir.load(module, inputs=(X,), ledger=ledger)
    kept = [str(n.attrs["op"]) for n in graph if n.op == "foreign"]
    assert kept == ["aten.special_i0.default", "aten.logcumsumexp.default"]
    assert sum("PyTorch runs it" in entry.reason for entry in ledger) == 2
    qir.save(graph, tmp_path / "kept.qir")
    again = qir.load(tmp_path / "kept.qir")
    (ours,), (theirs,) = run_graph(again, [X]), run_module(module, [X])
    assert difference(ours, theirs, 1e-5) == ""


def test_a_kept_operator_reaches_no_files() -> None:
    module = Calls(torch.special.i0)
    text = str(qir.load(module, inputs=(X,)))
    for name in ("aten.from_file.default", "aten.nothing.default", "os.system"):
        graph = qir.parse(text.replace("aten.special_i0.default", name))
        with pytest.raises(PluginError, match="has no operator"):
            run_graph(graph, [X])


def test_what_goes_by_data_is_refused_with_the_line_of_the_user(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def branching(x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2
        return x

    def cutting(x: Tensor) -> Tensor:
        return x[: int(x.max().item())]

    for function, line in ((branching, "if x.sum() > 0:"), (cutting, "return x")):
        with pytest.raises(InputError, match=r"by data.*torch.cond") as caught:
            qir.load(Calls(function), inputs=(X,))
        assert f'(File "{__file__}", line ' in str(caught.value)
        assert line in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_element_types_that_qir_has_not_are_refused_with_the_line_of_the_user() -> None:
    for function in (lambda x: torch.fft.rfft(x).abs(), lambda x: x.to(torch.float8_e5m2) + 1):
        with pytest.raises(InputError, match=r"which is no element type of QIR.*File"):
            qir.load(Calls(function), inputs=(X,))


def test_tensors_of_torchao_are_refused_in_a_line_that_names_the_parameter() -> None:
    kind = type("Int8Tensor", (nn.Parameter,), {"__module__": "torchao.quantization"})
    module = nn.Linear(4, 3)
    module._parameters["weight"] = kind(module.weight.detach())
    with pytest.raises(InputError, match=r"weight is of torchao's type Int8Tensor.*quantize it"):
        qir.load(module, inputs=(X,))


def test_other_control_flow_is_refused_with_the_line_of_the_user(tmp_path: Path) -> None:
    def each_row(x: Tensor) -> object:
        each: Callable[..., object] = torch._higher_order_ops.map
        return each(torch.exp, x)

    with pytest.raises(InputError, match=r"calls map_impl.*not read.*File"):
        qir.load(Calls(each_row), inputs=(X,))


def test_a_pickled_module_names_trust_and_is_read_with_it(tmp_path: Path) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(4, 3), nn.ReLU()).eval()
    path = tmp_path / "module.pt"
    torch.save(module, path)
    with pytest.raises(InputError, match=r"If you trust it: qir convert \S+ --trust --shape"):
        qir.load(path)
    with pytest.raises(ShapesNeeded, match="give their shapes or examples"):
        qir.load(path, trust=True)
    graph = qir.load(path, trust=True, inputs=[("batch", 4)])
    assert not isinstance(graph.inputs[0].type.shape[0], int)
    x = torch.randn(5, 4)
    (made,) = qir.run(graph, {graph.inputs[0].name: x.numpy()}).values()
    assert np.allclose(made, module(x).detach().numpy(), atol=1e-6)
    assert qir.load(path, trust=True, inputs=(x,)).inputs[0].type.shape == (5, 4)


def test_trust_opens_no_state_dict_and_changes_nothing_for_other_files(tmp_path: Path) -> None:
    torch.save(nn.Linear(4, 3).state_dict(), tmp_path / "state.pt")
    with pytest.raises(InputError, match="holds a state dict and no program"):
        qir.load(tmp_path / "state.pt", trust=True, inputs=[(1, 4)])
    path = saved(tmp_path)
    assert qir.load(path, trust=True) == qir.load(path)
    (tmp_path / "a.onnx").write_bytes(b"")
    with pytest.raises(InputError, match="frontend onnx opens no file that runs code"):
        qir.load(tmp_path / "a.onnx", trust=True)


def test_a_class_that_is_not_found_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "gone.pt"
    kind = type("Gone", (nn.Module,), {"__module__": "nowhere_at_all"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "nowhere_at_all", types.SimpleNamespace(Gone=kind))
        torch.save(kind(), path)
    with pytest.raises(InputError, match=r"its classes are not found: .*; put the file"):
        qir.load(path, trust=True, inputs=[(1, 4)])


def test_the_command_line_reads_what_is_trusted(tmp_path: Path) -> None:
    path, made = tmp_path / "module.pt", tmp_path / "module.qir"
    torch.save(nn.Linear(4, 3).eval(), path)
    command = ["convert", str(path), "-o", str(made)]
    assert qir_command(*command).status == 2
    assert qir_command(*command, "--trust", "--shape", "n,4").status == 0
    assert qir.load(made).inputs[0].type.rank == 2


def test_calibration_takes_what_a_dataloader_gives_in_a_list_too() -> None:
    graph = qir.load(nn.Linear(4, 3).eval(), inputs=[("n", 4)])
    x, labels = torch.randn(10, 4), torch.arange(10)
    wanted = qir.calibrate(graph, x.numpy())
    loader = DataLoader(TensorDataset(x, labels), batch_size=5)
    pairs = [(part, label) for part, label in loader]
    rows = [part for part, _ in loader]
    for data in (list(loader), pairs, rows, x):
        assert qir.calibrate(graph, data) == wanted
    with pytest.raises(DataError, match="requires grad"):
        qir.calibrate(graph, [torch.ones(2, 4, requires_grad=True)])
