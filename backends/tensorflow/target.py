"""The target: TensorFlow's oneDNN kernels, in frozen graphs and SavedModel folders."""

from __future__ import annotations

from pathlib import Path

from qir.atomic import replacing
from qir.capability import Capability, Verdict, load, verdicts
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

# What writes and runs models is imported when one is written: who reads one asks for the profile.


class TensorFlowTarget(Target):
    """TensorFlow on CPUs with oneDNN, its default there."""

    name = "tensorflow-onednn"
    profile = "tf-2.21.onednn"
    formats = ("graphdef", "float")
    """A frozen graph with int8 kernels; one that computes in float between quantized values."""
    suffix = ".pb"

    def capability(self) -> Capability:
        """What TensorFlow's kernels compute in integers."""
        return load(Path(__file__).with_name("onednn.toml"))

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model, by rename; no TensorFlow is needed for a frozen graph.

        Raises UsageError for a form that there is not, Refused for what TensorFlow's graphs do not
        hold or what would be lost unasked.
        """
        from .writer.forms import formed
        from .writer.graphdef import to_graphdef

        if format is not None and format not in self.formats:
            known = ", ".join(self.formats)
            raise UsageError(f"target {self.name} has no format {format!r}; it has {known}")
        made = to_graphdef(formed(graph, ledger, kernels=format != "float"))
        ledger.check(lossy=lossy)
        with replacing(path) as draft:
            draft.write_bytes(made.data)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in TensorFlow, in a process of its own."""
        from .session import Session
        from .writer.forms import formed
        from .writer.graphdef import to_graphdef

        return Session(to_graphdef(formed(graph, Ledger(), kernels=True)), threads)
