"""The target: MXNet 1.9 on oneDNN, by the two files of a model."""

from __future__ import annotations

from pathlib import Path

from qir.capability import Capability, load
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target


class MxnetTarget(Target):
    """MXNet's CPU kernels, by `NAME-symbol.json` and `NAME-0000.params`."""

    name = "mxnet-onednn"
    profile = "mxnet-1.9"
    formats = ("int8", "float")
    """The fused quantized layers of oneDNN; MXNet's plain operators."""
    suffix = ".json"
    float_io = "an input of integers has no range there"

    def capability(self) -> Capability:
        """Returns what MXNet computes in integers."""
        return load(Path(__file__).with_name("capability.toml"))

    def files(self, path: Path) -> tuple[Path, ...]:
        """Returns the symbol and the parameters."""
        from .writer.files import parameters_path

        return path, parameters_path(path)

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes both files, each by rename; without a format, the one that the graph has.

        Raises UsageError for a format that there is not, Refused for what MXNet has no operator
        for, or what would be lost unasked.
        """
        self.require_format(format)
        from .writer import graph as writer

        writer.emit(graph, path, ledger, format, lossy=lossy)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Writes a graph and runs it in MXNet, in the Python that `QIR_MXNET` names.

        Raises Refused for what MXNet has no operator for, PluginError where there is no MXNet.
        """
        from .session import written

        return written(self, graph)

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Runs files in MXNet; raises PluginError where there is none."""
        from .session import MxnetSession

        return MxnetSession(path)

    def compile_read(self, path: Path, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs files as they were read, by shapes they may not state themselves."""
        from .session import MxnetSession

        return MxnetSession(path, tuple(graph.outputs))
