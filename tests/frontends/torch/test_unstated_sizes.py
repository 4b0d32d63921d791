"""Archives that state no shapes: which sizes stay open, are assumed, or are asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any, no_type_check

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qir
from qir.errors import InputError, Refused, ShapesNeeded
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import target
from tests.cli.command import qir as command
from tests.frontends.comparison import difference

from .comparison import run_graph, run_module

NEAR = 1e-5
SCRIPT: Any = torch.jit.script
LOAD: Any = torch.jit.load
TRACE: Any = torch.jit.trace


class Layer(nn.Module):
    """A convolution, and what a test does with its result."""

    def __init__(self) -> None:
        super().__init__()
        self.conv: Any = nn.Conv2d(3, 8, 3, padding=1, stride=2)
        self.linear: Any = nn.Linear(8 * 16 * 16, 4)


class Resized(Layer):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = F.interpolate(self.conv(x), size=x.shape[-2:], mode="bilinear")
        return made


class Padded(Layer):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.conv(F.pad(x, [0, (8 - x.size(3) % 8) % 8, 0, (8 - x.size(2) % 8) % 8]))
        return made


class Flattened(Layer):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.linear(self.conv(x).view(x.shape[0], -1))
        return made


class Branching(Layer):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.conv(x)
        big: Tensor = made * 2
        return big if x.size(2) > 100 else made


def require_same(graph: Graph, module: nn.Module, x: Tensor) -> None:
    (ours,), (theirs,) = run_graph(graph, [x]), run_module(module, [x])
    assert not difference(ours, theirs, NEAR)


def archive(path: Path, module: nn.Module, how: str = "scripted") -> Path:
    module.eval()
    x = torch.zeros(2, 3, 32, 32)
    made = SCRIPT(module) if how == "scripted" else TRACE(module, x, check_trace=False)
    made.save(str(path / "net.pt"))
    return path / "net.pt"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["scripted", "traced"])
@pytest.mark.parametrize("kind", [Resized, Padded])
def test_sizes_that_a_program_computes_with_stay_open(
    kind: type[Layer], how: str, tmp_path: Path
) -> None:
    module = kind()
    graph = qir.load(archive(tmp_path, module, how))
    for shape in ((3, 3, 45, 51), (1, 3, 32, 47)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        require_same(graph, module, x)


class Scaled(Layer):
    """Interpolation by a factor."""

    def __init__(self, factor: float, mode: str) -> None:
        super().__init__()
        self.factor, self.mode = factor, mode

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = F.interpolate(self.conv(x), scale_factor=self.factor, mode=self.mode)
        return made


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "nearest", "nearest-exact"])
@pytest.mark.parametrize("factor", [1.5, 2.0, 1 / 3])
def test_sizes_times_a_factor_stay_open(factor: float, mode: str, tmp_path: Path) -> None:
    module, ledger = Scaled(factor, mode), Ledger()
    graph = qir.load(archive(tmp_path, module, "traced"), ledger=ledger)
    assert [isinstance(n, int) for n in graph.inputs[0].type.shape] == [False, True, False, False]
    assert not list(ledger)
    for shape in ((3, 3, 45, 51), (1, 3, 32, 47)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        require_same(graph, module, x)


class Unfolded(Layer):
    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = F.unfold(self.conv(x), 3).mean(2)
        return made


def test_columns_of_open_images_are_refused_for_onnx_with_a_remedy(tmp_path: Path) -> None:
    graph = qir.load(Unfolded(), inputs=(("n", 3, "h", "w"),))
    with pytest.raises(Refused, match=r"unfold of \[.*needs its sizes known; .*\(--shape\)"):
        qir.save(graph, tmp_path / "m.onnx")
    qir.save(qir.load(Unfolded(), inputs=(("n", 3, 9, 9),)), tmp_path / "m.onnx")


@pytest.mark.filterwarnings("ignore")
def test_what_is_said_of_sizes_is_what_the_graph_has(tmp_path: Path) -> None:
    path, ledger = archive(tmp_path, Unfolded(), "traced"), Ledger()
    shape = qir.load(path, ledger=ledger).inputs[0].type.shape
    (entry,) = ledger
    sizes = "x".join(str(n) if isinstance(n, int) else "n" for n in shape)
    assert f"input x: its sizes are assumed to be {sizes}," in entry.reason


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["scripted", "traced"])
def test_sizes_that_the_layers_fix_are_assumed_and_reported(how: str, tmp_path: Path) -> None:
    path, ledger = archive(tmp_path, Flattened(), how), Ledger()
    graph = qir.load(path, ledger=ledger)
    assert graph.inputs[0].type.shape[1:] == (3, 32, 32)
    assert not isinstance(graph.inputs[0].type.shape[0], int)
    (entry,) = ledger
    assert "input x: its sizes are assumed to be nx3x32x32" in entry.reason
    shown = " ".join(command("show", path).out.split())
    assert "--shape or inputs= sets others" in shown
    sized = qir.load(path, inputs=[("n", 3, 16, 64)])
    assert sized.inputs[0].type.shape[1:] == (3, 16, 64)


def test_a_branch_by_sizes_asks_for_them(tmp_path: Path) -> None:
    path, module = archive(tmp_path, Branching()), Branching()
    with pytest.raises(ShapesNeeded, match=r"branches by the sizes of x.*--shape"):
        qir.load(path)
    module.load_state_dict(LOAD(str(path)).state_dict())
    for side in (32, 128):
        graph = qir.load(path, inputs=[("n", 3, side, side)])
        require_same(graph, module, torch.randn(2, 3, side, side))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "norm",
    [
        nn.GroupNorm(2, 8),
        nn.BatchNorm2d(8),
        nn.InstanceNorm2d(8, affine=True),
        nn.InstanceNorm2d(8, track_running_stats=True),
    ],
    ids=lambda norm: type(norm).__name__,
)
def test_scripted_norms_join_lists_of_open_sizes(norm: nn.Module, tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), norm)
    graph = qir.load(archive(tmp_path, module))
    for shape in ((2, 3, 9, 11), (1, 3, 32, 17)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
        require_same(graph, module, x)


class Sized(Layer):
    def __init__(self, padding: int) -> None:
        super().__init__()
        self.other: Any = nn.Conv2d(3, 8, 3, padding=padding, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        a: Tensor = self.conv(x)
        b: Tensor = self.other(x)
        return a - b if a.size() == b.size() else b * 2


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("padding", [0, 1])
def test_lists_of_open_sizes_are_compared_by_what_they_hold(padding: int, tmp_path: Path) -> None:
    module = Sized(padding)
    graph = qir.load(archive(tmp_path, module), inputs=[("n", 3, "h", "w")])
    require_same(graph, module, torch.randn(2, 3, 32, 32))


class Counting(nn.Module):
    """A linear layer, and buffers that change with each call."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("mean", torch.zeros(6))
        self.linear = nn.Linear(6, 4)

    @no_type_check
    def forward(self, x: Tensor) -> Tensor:
        self.count += 1
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x - self.mean) / self.count


@pytest.mark.filterwarnings("ignore")
def test_state_that_changes_is_read_as_of_the_first_call_and_reported(tmp_path: Path) -> None:
    x, ledger = torch.randn(3, 6), Ledger()
    SCRIPT(Counting().eval()).save(str(tmp_path / "net.pt"))
    graph = qir.load(tmp_path / "net.pt", ledger=ledger)
    theirs = LOAD(str(tmp_path / "net.pt"))(x).detach().numpy()
    assert not difference(run_graph(graph, [x])[0], theirs, NEAR)
    said = {entry.reason for entry in ledger}
    assert said >= {f"{name} is not updated: a graph has no state" for name in ("count", "mean")}


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.attention(x, x, x, need_weights=False)[0]
        return made


@pytest.mark.filterwarnings("ignore")
def test_traced_attention_keeps_open_sizes(tmp_path: Path) -> None:
    module = Attending().eval()
    TRACE(module, torch.zeros(2, 5, 8), check_trace=False).save(str(tmp_path / "net.pt"))
    graph = qir.load(tmp_path / "net.pt", inputs=[("n", "t", 8)])
    for shape in ((2, 5, 8), (3, 7, 8)):
        require_same(graph, module, torch.randn(shape))


@pytest.mark.filterwarnings("ignore")
def test_data_say_the_rank_that_layers_leave_open(tmp_path: Path) -> None:
    module = nn.Linear(6, 4).eval()
    SCRIPT(module).save(str(tmp_path / "net.pt"))
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((3, 5, 6), np.float32))
    made = command("run", tmp_path / "net.pt", "--data", tmp_path / "x.npy")
    assert made.status == 0, made
    assert "3x5x4" in made.out


def test_a_file_of_others_runs_by_pytorch_itself(tmp_path: Path) -> None:
    path, x = archive(tmp_path, Resized()), torch.randn(2, 3, 40, 40)
    graph = qir.load(path)
    (name,) = (value.name for value in graph.inputs)
    theirs = LOAD(str(path))(x).detach().numpy()
    made: Any = target("pytorch-x86").compile_read(path, graph)(**{name: x.numpy()})
    assert list(made) == list(graph.outputs)
    (again,) = made.values()
    assert np.array_equal(again, theirs)
    assert np.abs(run_graph(graph, [x])[0] - theirs).max() < NEAR


def test_an_exported_program_of_others_runs_by_pytorch_itself(tmp_path: Path) -> None:
    class Named(nn.Module):
        def forward(self, x: Tensor, *, mask: Tensor) -> dict[str, Tensor]:
            return {"kept": x * mask, "moved": x + 1}

    given = torch.randn(2, 3), torch.ones(2, 3)
    program = torch.export.export(Named(), given[:1], {"mask": given[1]})
    torch.export.save(program, tmp_path / "net.pt2")
    np.savez(tmp_path / "data.npz", x=given[0].numpy(), mask=given[1].numpy())
    files = tmp_path / "net.pt2", "--data", tmp_path / "data.npz"
    made = command("run", *files, "--compare", "pt2e")
    assert made.status == 0, made
    assert "all equal" in made.out


class _WithDefaults(nn.Module):
    """Has arguments with defaults, and calls a function in a branch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor, side: int = 2, mask: Tensor | None = None) -> Tensor:
        made: Tensor = self.layer(x)
        if side > 1:
            made = F.max_pool2d(made, side)
        return made if mask is None else made * mask


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_arguments_that_are_not_given_have_their_defaults(tmp_path: Path) -> None:
    module, path = _WithDefaults().eval(), tmp_path / "m.pt"
    SCRIPT(module).save(path)
    x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    for inputs in (None, [("n", 3, 8, 8)]):
        graph = qir.load(path, inputs=inputs)
        assert [value.name for value in graph.inputs] == ["x"]
        (made,) = qir.run(graph, {"x": x.numpy()}).values()
        assert np.allclose(made, module(x).detach().numpy(), atol=1e-6)
    with pytest.raises(InputError, match=r"takes 3 inputs \(x, side, mask\), not 4"):
        qir.load(path, inputs=[("n", 3, 8, 8)] * 4)
