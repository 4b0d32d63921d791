"""The target: what onnxruntime can run, and how models are written for it."""

from __future__ import annotations

from pathlib import Path

from qir.capability import Capability, load
from qir.errors import PluginError, UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.passes.expand_qdq import ExpandQdq
from qir.passes.fuse_qdq import FuseQdq
from qir.target import Executable, Target

from .model import to_model, to_parts
from .saving import save


class OnnxRuntimeTarget(Target):
    """onnxruntime's CPU provider, by QDQ or by QOperator models."""

    name = "onnxruntime"
    profile = "ort-1.31"
    formats = ("qdq", "qoperator")
    suffix = ".onnx"

    def capability(self) -> Capability:
        """What onnxruntime computes in integers."""
        return load(Path(__file__).with_name("capability.toml"))

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
        wanted = format or self.formats[0]
        if wanted not in self.formats:
            known = " and ".join(self.formats)
            raise UsageError(f"target {self.name} has no format {wanted!r}; it has {known}")
        formed = graph.copy()
        (ExpandQdq() if wanted == "qdq" else FuseQdq()).run(formed, ledger)
        model, large = to_parts(formed, ledger)
        ledger.check(lossy=lossy)
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
            data = to_model(model.copy(), Ledger()).SerializeToString()
            return Session(data, threads=threads, optimize=optimize)
        return Session(model, threads=threads, optimize=optimize)
