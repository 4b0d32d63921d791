"""The target: TensorFlow's oneDNN kernels, in frozen graphs and SavedModel folders."""

from __future__ import annotations

from pathlib import Path

from qir.atomic import replacing, replacing_folder
from qir.capability import Capability, load
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

SAVED = "saved_model.pb"
"""The file that makes a folder a SavedModel."""
# What writes and runs models is imported when one is written: who reads one asks for the profile.


class TensorFlowTarget(Target):
    """TensorFlow on CPUs with oneDNN, its default there."""

    name = "tensorflow-onednn"
    profile = "tf-2.21.onednn"
    formats = ("graphdef", "savedmodel", "float", "float-savedmodel")
    """A frozen graph with int8 kernels, or a SavedModel folder with a signature; and both with
    all ops in float between quantized values."""
    suffix = ".pb"
    float_io = "graphs have no place for the scale of an input"
    folders = ("savedmodel", "float-savedmodel")

    def owns(self, path: Path) -> bool:
        """Reports whether a path is a frozen graph or a SavedModel folder."""
        return super().owns(path) or (path / SAVED).is_file()

    def capability(self) -> Capability:
        """Returns what TensorFlow's kernels compute in integers."""
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
        from .writer.forms import converted
        from .writer.graphdef import to_graphdef
        from .writer.saved_model import to_saved_model

        self.require_format(format)
        kernels = not (format or "").startswith("float")
        written = to_graphdef(converted(graph, ledger, kernels=kernels))
        ledger.check(lossy=lossy)
        if format in self.folders:
            with replacing_folder(path) as folder:
                (folder / SAVED).write_bytes(to_saved_model(written))
            return
        with replacing(path) as draft:
            draft.write_bytes(written.data)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in TensorFlow, in a process of its own."""
        return self.session(graph, threads=threads)

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Runs a frozen graph or a SavedModel folder as it is."""
        return self.session(path, threads=threads)

    def session(
        self, model: Graph | Path, *, threads: int | None = None, optimize: bool = True
    ) -> Executable:
        """Runs a graph, or a file as it is, in a process of its own; `optimize` changes nothing.

        Raises InputError for a model that TensorFlow does not take, PluginError without it.
        """
        from .session import FileSession, TensorFlowSession
        from .writer.forms import converted
        from .writer.graphdef import to_graphdef

        if isinstance(model, Path):
            return FileSession(model, threads)
        return TensorFlowSession(to_graphdef(converted(model, Ledger(), kernels=True)), threads)
