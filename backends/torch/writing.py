"""How the targets make a model of a graph: its kernels, the program of it, and the file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qir.analysis.quantized_regions import held
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.forms.expand_qdq import ExpandQdq
from qir.passes.forms.open_groups import OpenGroups
from qir.rewrite import run_passes

from .grouping import Written
from .session import Session, Signature, engine
from .writer import kernels, torchscript
from .writer.program import Program

if TYPE_CHECKING:
    from .target import X86Target


def build(target: X86Target, graph: Graph, ledger: Ledger, form: str, *, lossy: bool) -> object:
    """Returns the module of a graph in one of a target's forms; Refused for what has no form."""
    made = _grouped(target, graph, ledger)
    program = Program(made)
    with engine(target.engine):
        program.write(kernels.handler)
        ledger.check(lossy=lossy)
        return torchscript.scripted(program)


def _grouped(target: X86Target, graph: Graph, ledger: Ledger) -> Graph:
    """The graph with one group for each kernel that is called."""
    flat = run_passes(graph, [ExpandQdq(), OpenGroups()], ledger)
    if not held(flat):
        return flat
    return run_passes(flat, [Written(target.profile, table=target.capability())], ledger)


def save(made: object, graph: Graph, path: Path, form: str) -> None:
    """Writes what `build` made of a graph."""
    torchscript.save(made, path, Signature.of(graph).text())  # type: ignore[arg-type]


def session(target: X86Target, graph: Graph) -> Session:
    """Makes a graph ready to run by a target's engine, by the kernels that its files call."""
    made = build(target, graph, Ledger(), "torchscript", lossy=True)
    return Session(made, target.engine, Signature.of(graph))  # type: ignore[arg-type]


def file_session(target: X86Target, path: Path) -> Session:
    """Makes a file that a target wrote ready to run; InputError for one that is none."""
    made, told = torchscript.load(path)
    return Session(made, target.engine, Signature.parse(told))
