"""How the targets make a model of a graph: its kernels, the program of it, and the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from torch import jit, nn
from torch.export import ExportedProgram

from qir.analysis.quantized_regions import held
from qir.capability import Capability
from qir.errors import Refused
from qir.ir.graph import Graph
from qir.ir.node import Node
from qir.ledger import Change, Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.open_groups import OpenGroups
from qir.passes.forms.split_sums import SplitSums
from qir.passes.forms.unsigned_data import UnsignedData
from qir.passes.layout import Layout, channels_last
from qir.rewrite import Pass, run_passes

from . import eager
from .grouping import GraphLayout
from .session import ProgramInterface, TorchSession, engine
from .unclaimed import claimed
from .whole_range import widen
from .writer import decomposed, exported, kernels, torchscript
from .writer.program import FxProgram, Handler


class ByEngine(Protocol):
    """What is asked here of a target that runs by one of PyTorch's engines."""

    @property
    def profile(self) -> str:
        """Whose numerics its kernels have."""

    @property
    def engine(self) -> str:
        """The engine for quantized tensors."""

    @property
    def decomposed(self) -> bool:
        """Whether its programs have the ops of `quantized_decomposed`."""

    def capability(self) -> Capability:
        """Returns what it computes in integers."""


def build(target: ByEngine, graph: Graph, ledger: Ledger, form: str, *, lossy: bool) -> object:
    """Returns the model of a graph in one of a target's forms; Refused for what has no form."""
    plain = target.decomposed or form in ("pt2", "float")
    flat = _flat(None if form == "float" else target, graph, ledger, plain=plain)
    if form == "float" and (found := held(flat)):
        raise Refused(f"{graph.name}: {found[0]} is quantized; write the float model instead")
    choose = decomposed.handler if plain else kernels.handler
    with engine(target.engine):
        made = flat if plain else _grouped(target, flat, ledger)
        with _refusing(graph):
            program = _program(made, choose, plain=plain)
        ledger.check(lossy=lossy)
        return _FORMS.get(form, exported.exported)(program)


def convert(
    target: ByEngine, graph: Graph, ledger: Ledger, module: object, *, lossy: bool
) -> nn.Module:
    """Returns a quantized copy of the module that a graph was read from.

    Raises Refused where eager mode computes something else than the graph says.
    """
    flat = _flat(target, graph, ledger)
    with engine(target.engine):
        made = eager.converted(flat, module, target.capability())
    ledger.check(lossy=lossy)
    inputs = eager.examples(graph)
    names = dict(zip((v.name for v in graph.inputs), inputs, strict=True))
    wanted = session(target, graph)(**{name: x.numpy() for name, x in names.items()})
    with engine(target.engine):
        eager.require_same(graph, made, inputs, list(wanted.values()))
    return made


def _flat(target: ByEngine | None, graph: Graph, ledger: Ledger, *, plain: bool = False) -> Graph:
    """Returns the graph in QDQ form; for a target's kernels with data as these take them, which
    are u8, and sums of two tensors as additions, where no kernel of a convolution adds one. Those
    of `plain` programs take biases as floats.

    Another framework's images are put channels first, as kernels on integers take them."""
    last = channels_last(graph, "torch") and held(graph)
    first: list[Pass] = [Layout("nchw")] if last else []
    passes: list[Pass] = [*first, ExpandQdq(), OpenGroups(chains=True)]
    if target is not None:
        adds = any(chain[:2] == ("conv2d", "add") for chain in target.capability().chains)
        passes = [*(() if adds else (SplitSums(biases=not plain),)), *passes, UnsignedData()]
    flat = run_passes(graph, passes, ledger)
    for node in flat:
        if node.op == "quantize" and node.attrs["round"] in _NEAREST:
            flat.set_attrs(node, round="")
            said = "PyTorch rounds ties to even"
            ledger.add(Change.NUDGED, "write torch", node.name, said, codes=1.0)
    return flat


@contextmanager
def _refusing(graph: Graph) -> Iterator[None]:
    """Within this, what PyTorch does not take is Refused in one line."""
    try:
        yield
    except RuntimeError as error:
        said = " ".join(str(error).split())[:300]
        raise Refused(f"{graph.name}: PyTorch does not take it: {said}") from error


_NEAREST = frozenset({"away", "half_up", "half_down"})
"""Roundings that differ from PyTorch's at ties alone."""
_FORMS: Mapping[str, Callable[[FxProgram], object]] = {
    "fx": exported.called,
    "torchscript": torchscript.scripted,
}
"""What makes a model of a program; exported programs are the rest."""


def _program(graph: Graph, choose: Callable[[Node], Handler | None], *, plain: bool) -> FxProgram:
    made = FxProgram(graph, plain)
    made.write(choose)
    return made


def _grouped(target: ByEngine, flat: Graph, ledger: Ledger) -> Graph:
    """Returns the graph with one group for each kernel that is called."""
    if not held(flat):
        return flat
    widen(flat, target.capability(), ledger)
    table = claimed(flat, target.capability(), target.profile)
    return run_passes(flat, [GraphLayout(target.profile, table=table)], ledger)


def save(target: ByEngine, made: object, graph: Graph, path: Path) -> None:
    """Writes what `build` made of a graph; Refused for a module that is no file."""
    signature = ProgramInterface.of(graph)
    if isinstance(made, ExportedProgram):
        exported.save(made, path, signature.text())
    elif isinstance(made, jit.ScriptModule):
        with _refusing(graph):
            torchscript.save(made, path, signature.text(target.engine))
    else:
        said = "a module of torch.fx is no file"
        raise Refused(f"{path}: {said}: qir.build(graph, format='fx') returns it")


def session(target: ByEngine, graph: Graph) -> TorchSession:
    """Makes a graph ready to run by a target's engine, by the kernels that run its files."""
    flat = _flat(target, graph, Ledger(), plain=target.decomposed)
    grouped = _grouped(target, flat, Ledger())
    choose = decomposed.lowered if target.decomposed else kernels.handler
    with engine(target.engine):
        program = _program(grouped, choose, plain=target.decomposed)
    return TorchSession(exported.module(program), target.engine, _signature(target, graph))


def file_session(target: ByEngine, path: Path, graph: Graph | None = None) -> TorchSession:
    """Makes a file ready to run; InputError for one that does not name its inputs, as a target
    writes them, where no graph says their names.

    PyTorch packs the weights of a file as it loads it, for the engine that is chosen then.
    """
    whole = path.suffix.lower() == ".pt2"
    with engine(target.engine):
        made, told = exported.load(path) if whole else torchscript.load(path)
    run: Callable[..., object] = made
    signature = (
        ProgramInterface.parse(told) if told or graph is None else ProgramInterface.of(graph)
    )
    return TorchSession(run, target.engine, signature.plain() if whole else signature)


def _signature(target: ByEngine, graph: Graph) -> ProgramInterface:
    found = ProgramInterface.of(graph)
    return found.plain() if target.decomposed else found


__all__ = ["build", "file_session", "save", "session"]
