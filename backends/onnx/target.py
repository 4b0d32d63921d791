"""The targets: onnxruntime, and ONNX itself, whatever runs it; how models are written for them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

from qir.capability import Capability, Verdict, load
from qir.errors import PluginError, UsageError
from qir.ir.graph import Graph
from qir.ir.growth import growth
from qir.ledger import Ledger
from qir.passes._bodies import bodies
from qir.passes._wrapping import within
from qir.target import Executable, Target

from . import qonnx, staying, told
from .apart import add_apart
from .formats import FORMATS, formed
from .model import Dialect, to_model, to_parts
from .saving import save
from .taken import judged
from .untouched import copy, kept_files


class OnnxRuntimeTarget(Target):
    """onnxruntime's CPU provider, by models of ONNX's operators and its own."""

    name = "onnxruntime"
    profile = "ort-1.31"
    formats = FORMATS
    suffix = ".onnx"

    def __init__(self, opset: int | None = None) -> None:
        self.opset = opset

    def at(self, opset: int) -> Target:
        """The target that writes models of that operator set."""
        return type(self)(opset)

    def dialect(self) -> Dialect:
        """Which operators its models may have."""
        return Dialect(opset=self.opset)

    def capability(self) -> Capability:
        """What onnxruntime computes in integers."""
        return load(Path(__file__).with_name("capability.toml"))

    def verdicts(self, graph: Graph) -> list[Verdict]:
        """Which ops onnxruntime computes on codes, planned by its table or not."""
        write = partial(to_parts, dialect=self.dialect())
        return list(judged(self.capability(), graph, self.profile, write))

    @growth()
    @np.errstate(all="ignore")  # numbers that are none are told in words, and need no warnings
    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model, by rename.

        Raises UsageError for a form that there is not, Refused for what ONNX cannot say or what
        would be lost unasked.
        """
        if format is not None and format not in self.formats:
            known = f"{', '.join(self.formats[:-1])} and {self.formats[-1]}"
            raise UsageError(f"target {self.name} has no format {format!r}; it has {known}")
        dialect = self.dialect()
        if format is None and (kept := kept_files(graph, path, dialect, ledger)):
            ledger.withdraw("onnx frontend")
            qonnx.told(graph, ledger)
            ledger.check(lossy=lossy)
            for old, new in kept:
                copy(old, new)
            return
        told.ranges(graph, ledger)
        made = formed(graph, format, ledger, standard=dialect.standard)
        qonnx.told(made, ledger)
        with within(made):
            form = replace(dialect, on_codes=format == "qoperator")
            model, large = to_parts(made, ledger, form)
        if format is not None:
            staying.told(model, format, ledger, standard=dialect.standard)
        ledger.check(lossy=lossy)
        _say(model, {"qir.form": format or "", "qir.changes": _changes(ledger)})
        save(model, path, large)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in onnxruntime, written node by node in the form it has."""
        return self.session(graph, threads=threads)

    def session(
        self, model: Graph | Path, *, threads: int | None = None, optimize: bool = True
    ) -> Executable:
        """Runs a graph, or a file as it is, with or without onnxruntime's graph optimizer.

        Raises InputError for a model that onnxruntime does not take, PluginError without it.
        """
        try:
            from .session import Session
        except ImportError as error:
            raise PluginError(f"target {self.name} needs {error.name} to run models") from error
        if isinstance(model, Graph):
            made = model.copy()
            for each in bodies(made):
                add_apart(each, Ledger())
            data = to_model(made, Ledger(), self.dialect()).SerializeToString()
            return Session(data, threads=threads, optimize=optimize)
        return Session(model, threads=threads, optimize=optimize)


def _changes(ledger: Ledger) -> str:
    """What was done to the numbers on the way, in short."""
    return ", ".join(f"{change.value} {count}" for change, count in ledger.counts().items())


def _say(model: onnx.ModelProto, said: dict[str, str]) -> None:
    """Notes where a model comes from, in place of what an earlier writing noted."""
    kept = {p.key: p.value for p in model.metadata_props} | said
    helper.set_model_props(model, {key: text for key, text in kept.items() if text})


class OnnxTarget(OnnxRuntimeTarget):
    """ONNX itself: its own operators alone, in any operator set that the `onnx` package knows.

    onnxruntime's numerics stand for the standard's where somebody runs it; other runtimes may round
    elsewhere.
    """

    name = "onnx"

    def dialect(self) -> Dialect:
        """ONNX's own operators, the newest there are."""
        newest = int(onnx.defs.onnx_opset_version())
        return Dialect(standard=True, opset=self.opset, newest=newest)

    def capability(self) -> Capability:
        """What ONNX has operators on codes for, and what QDQ form says of the others."""
        return load(Path(__file__).with_name("standard.toml"))
