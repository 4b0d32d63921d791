"""The targets: PyTorch's engines for quantized tensors, and how models are written for them."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from qir.capability import Capability, load
from qir.errors import PluginError, UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

from .versions import profile_name


class X86Target(Target):
    """PyTorch's default engine on x86-64, by one call of a kernel for each group."""

    name = "pytorch-x86"
    formats = ("torchscript",)
    suffix = ".pt"
    engine: ClassVar[str] = "x86"

    def __init__(self) -> None:
        self.profile = profile_name(self.engine)

    def capability(self) -> Capability:
        """What the engine computes on quantized tensors, as far as its profile claims it."""
        return load(Path(__file__).with_name(f"{self.engine}.toml"))

    def computed(self, graph: Graph, ledger: Ledger) -> Graph:
        """The graph with one group for each kernel that its files call."""
        from qir.rewrite import run_passes

        from .grouping import Kernels

        return run_passes(graph, [Kernels(self.profile, table=self.capability())], ledger)

    def build(
        self, graph: Graph, ledger: Ledger, *, format: str | None = None, lossy: bool = False
    ) -> object:
        """Returns the module that `emit` would write.

        Raises UsageError for a form that there is not, Refused for what PyTorch cannot say.
        """
        self._require_torch()
        from .writing import build

        return build(self, graph, ledger, self._format(format), lossy=lossy)

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model, by rename; UsageError and Refused as `build`."""
        self._require_torch()
        from .writing import save

        form = self._format(format)
        save(self.build(graph, ledger, format=form, lossy=lossy), graph, path, form)

    def _format(self, format: str | None) -> str:
        if format is not None and format not in self.formats:
            known = ", ".join(self.formats)
            raise UsageError(f"target {self.name} has no format {format!r}; it has {known}")
        return format or self.formats[0]

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in PyTorch on one thread, by the kernels that its file would call.

        Raises Refused for what PyTorch cannot say, PluginError without PyTorch.
        """
        self._require_torch()
        from .writing import session

        return session(self, graph)

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Runs a file that this target wrote; InputError for one that is not."""
        self._require_torch()
        from .writing import file_session

        return file_session(self, path)

    def _require_torch(self) -> None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise PluginError(f"target {self.name} needs PyTorch: {error}") from error


class FbgemmTarget(X86Target):
    """PyTorch's engine fbgemm."""

    name = "pytorch-fbgemm"
    engine = "fbgemm"


class OnednnTarget(X86Target):
    """PyTorch's engine onednn."""

    name = "pytorch-onednn"
    engine = "onednn"


class QnnpackTarget(X86Target):
    """PyTorch's engine qnnpack, as mobile models have it."""

    name = "pytorch-qnnpack"
    engine = "qnnpack"
