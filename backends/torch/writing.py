"""Builds models, files and sessions of a graph: groups its kernels and writes their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch import jit, nn
from torch.export import ExportedProgram

from qir.analysis.quantized_regions import quantized_values
from qir.capability import Capability
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.lift_dynamic import LiftDynamic
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.forms.split_sums import SplitSums
from qir.passes.forms.unsigned_data import UnsignedData
from qir.passes.layout import Layout, channels_last
from qir.rewrite import Pass, run_passes

from . import eager
from .grouping import GraphLayout
from .run_time_ranges import use_rule_of
from .saturation import tell_saturation
from .session import ProgramInterface, TorchSession, engine
from .unclaimed_kernels import claimed
from .whole_range import widen_bounds
from .writer import decomposed, exported, kernels, torchscript
from .writer.program import FxProgram, Handler


class EngineTarget(Protocol):
    """The part of a target that this module needs."""

    @property
    def name(self) -> str:
        """What users call it."""

    @property
    def profile(self) -> str:
        """The numerics profile of its kernels."""

    @property
    def engine(self) -> str:
        """The engine for quantized tensors."""

    @property
    def decomposed(self) -> bool:
        """Whether its programs have ops of `quantized_decomposed`."""

    def capability(self) -> Capability:
        """Returns the ops that it computes on integers."""


def build(target: EngineTarget, graph: Graph, ledger: Ledger, form: str, *, lossy: bool) -> object:
    """Returns the model of a graph in one of a target's formats; raises Refused for what it
    cannot express."""
    decomposed_form = target.decomposed or form in ("pt2", "float")
    qdq = _to_qdq(
        None if form == "float" else target, graph, ledger, plain=decomposed_form, lossy=lossy
    )
    if form == "float" and (quantized_names := quantized_values(qdq)):
        problem = (
            f"{graph.name}: {quantized_names[0]} is quantized, and format float is for float models"
        )
        raise Refused(f"{problem}; choose another --format, or write the float model instead")
    choose = decomposed.handler if decomposed_form else kernels.handler
    with engine(target.engine):
        # Files with plain integers are in QDQ form; the others call one kernel for each group.
        grouped = qdq
        if not decomposed_form:
            grouped = _with_kernel_groups(target, qdq, ledger)
            tell_saturation(grouped, graph.profile, target.profile, target.name, ledger)
        with _refusing_torch_errors(graph):
            program = _program(grouped, choose, plain=decomposed_form)
        ledger.check(lossy=lossy)
        return _MODEL_MAKERS.get(form, exported.exported)(program)


def convert(
    target: EngineTarget, graph: Graph, ledger: Ledger, module: object, *, lossy: bool
) -> nn.Module:
    """Returns a quantized copy of the module that a graph was read from.

    Raises Refused where eager mode computes something else than the graph.
    """
    qdq = _to_qdq(target, graph, ledger, lossy=lossy)
    with engine(target.engine):
        copy_of_module = eager.quantized_copy(qdq, module, target.capability())
    ledger.check(lossy=lossy)
    inputs = eager.example_inputs(graph)
    names = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
    # torch.ao decides itself what it fuses and quantizes: only a run shows whether it did the
    # same.
    expected = session(target, graph)(**{name: x.numpy() for name, x in names.items()})
    with engine(target.engine):
        eager.require_same_results(graph, copy_of_module, inputs, list(expected.values()))
    return copy_of_module


def _to_qdq(
    target: EngineTarget | None,
    graph: Graph,
    ledger: Ledger,
    *,
    plain: bool = False,
    lossy: bool = False,
) -> Graph:
    """Returns the graph in QDQ form, in the layout and storage that a target's kernels read.

    These read NCHW and u8 data. Where no convolution kernel adds a tensor, such sums become
    additions, with `lossy` also those that move results by several steps. Kernels of `plain`
    programs take biases as floats.
    """
    to_nchw = channels_last(graph, "torch") and quantized_values(graph)
    layout_passes: list[Pass] = [Layout("nchw")] if to_nchw else []
    passes: list[Pass] = [*layout_passes, ExpandQdq(), OpenGroups(chains=True)]
    if target is not None:
        has_summing_kernel = any(
            chain[:2] == ("conv2d", "add") for chain in target.capability().chains
        )
        split = SplitSums(steps=_MOST_STEPS if lossy else 1, biases=not plain)
        passes = [
            LiftDynamic(),
            *(() if has_summing_kernel else (split,)),
            *passes,
            UnsignedData(),
        ]
    qdq = run_passes(graph, passes, ledger)
    if target is not None:
        use_rule_of(target.capability(), qdq, ledger)
    # Other ties cannot be stated to PyTorch; they move a result by one step at most.
    for node in qdq:
        if node.op == "quantize" and node.attrs["round"] in _NEAREST_ROUNDINGS:
            qdq.set_attrs(node, round="")
            reason = "PyTorch rounds ties to even"
            ledger.add(Change.NUDGED, "write torch", node.name, reason, codes=1.0)
    return qdq


@contextmanager
def _refusing_torch_errors(graph: Graph) -> Iterator[None]:
    """Turns errors that PyTorch raises in a context into Refused, in one line."""
    try:
        yield
    except RuntimeError as error:
        message = " ".join(str(error).split())[:300]
        raise Refused(f"{graph.name}: PyTorch does not take it: {message}") from error


_MOST_STEPS = 255
"""As far apart as two results of 8 bits are at most."""
_NEAREST_ROUNDINGS = frozenset({"away", "half_up", "half_down"})
"""Roundings that differ from PyTorch's only at ties."""
_MODEL_MAKERS: Mapping[str, Callable[[FxProgram], object]] = {
    "fx": exported.called,
    "torchscript": torchscript.scripted,
}
"""What makes a model of a program, by format; all others are exported programs."""


def _program(graph: Graph, choose: Callable[[Node], Handler | None], *, plain: bool) -> FxProgram:
    program = FxProgram(graph, plain)
    program.write(choose)
    return program


def _with_kernel_groups(target: EngineTarget, flat: Graph, ledger: Ledger) -> Graph:
    """Returns the graph with one group for each kernel that is called."""
    if not quantized_values(flat):
        return flat
    widen_bounds(flat, target.capability(), ledger)
    table = claimed(flat, target.capability(), target.profile)
    return run_passes(flat, [GraphLayout(target.profile, table=table)], ledger)


def save(target: EngineTarget, model: object, graph: Graph, path: Path) -> None:
    """Writes what `build` returned; raises Refused for a module, which is no file."""
    signature = ProgramInterface.of(graph)
    if isinstance(model, ExportedProgram):
        exported.save(model, path, signature.text())
    elif isinstance(model, jit.ScriptModule):
        with _refusing_torch_errors(graph):
            torchscript.save(model, path, signature.text(target.engine))
    else:
        reason = "a module of torch.fx is no file"
        raise Refused(f"{path}: {reason}: qir.build(graph, format='fx') returns it")


def session(target: EngineTarget, graph: Graph) -> TorchSession:
    """Returns a graph ready to run by a target's engine, by the kernels that run its files."""
    qdq = _to_qdq(target, graph, Ledger(), plain=target.decomposed)
    grouped = _with_kernel_groups(target, qdq, Ledger())
    choose = decomposed.kernel_handler if target.decomposed else kernels.handler
    with engine(target.engine):
        program = _program(grouped, choose, plain=target.decomposed)
    return TorchSession(exported.module(program), target.engine, _signature(target, graph))


def file_session(target: EngineTarget, path: Path, graph: Graph | None = None) -> TorchSession:
    """Returns a file ready to run.

    PyTorch packs the weights of a file when it loads it, for the engine that is selected then.
    Raises InputError for a file that states no interface, where no graph has its names either.
    """
    is_exported = path.suffix.lower() == ".pt2"
    with engine(target.engine):
        loaded, interface = exported.load(path) if is_exported else torchscript.load(path)
    run: Callable[..., object] = loaded
    signature = (
        ProgramInterface.parse(interface)
        if interface or graph is None
        else ProgramInterface.of(graph)
    )
    # The tensors of exported programs are plain integers, those of TorchScript quantized tensors.
    return TorchSession(run, target.engine, signature.plain() if is_exported else signature)


def _signature(target: EngineTarget, graph: Graph) -> ProgramInterface:
    interface = ProgramInterface.of(graph)
    return interface.plain() if target.decomposed else interface


__all__ = ["build", "file_session", "save", "session"]
