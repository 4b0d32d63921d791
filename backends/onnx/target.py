"""The targets: onnxruntime, and ONNX itself, whatever runs it; how models are written for them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qir.capability import Capability, Verdict, load
from qir.errors import PluginError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

from .versions import profile_name

if TYPE_CHECKING:
    from .writer.graph import Dialect

# What writes models is imported when one is written: who reads one asks for the profile alone.


class OnnxRuntimeTarget(Target):
    """onnxruntime's CPU provider, by models of ONNX's operators and its own."""

    name = "onnxruntime"
    formats = ("qdq", "qoperator", "integer", "nbits")
    """QDQ; onnxruntime's operators on quantized values; integer sums; weights of few bits."""
    suffix = ".onnx"
    float_types = ("f32", "f16")

    def __init__(self, opset: int | None = None) -> None:
        self.opset = opset
        self.profile = profile_name()

    def at(self, opset: int) -> Target:
        """Returns the target that writes models of that operator set."""
        return type(self)(opset)

    def dialect(self) -> Dialect:
        """Returns which operators its models may have."""
        from .writer.graph import Dialect

        return Dialect(opset=self.opset)

    def capability(self) -> Capability:
        """Returns what onnxruntime computes in integers."""
        return load(Path(__file__).with_name("capability.toml"))

    def verdicts(self, graph: Graph) -> list[Verdict]:
        """Returns which ops onnxruntime computes on quantized values, planned by its table or
        not."""
        from .optimizer.kernels import judged
        from .writer.graph import to_parts

        write = partial(to_parts, dialect=self.dialect())
        return list(judged(self.capability(), graph, self.profile, write))

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
        from .writing import write

        write(self, self.dialect(), graph, path, ledger, format=format, lossy=lossy)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in onnxruntime, written node by node in the form it has."""
        return self.session(graph, threads=threads)

    def session(
        self, model: Graph | Path, *, threads: int | None = None, optimize: bool = True
    ) -> Executable:
        """Runs a graph, or a file as it is, with or without onnxruntime's graph optimizer.

        Raises InputError for a model that onnxruntime does not take, PluginError without it.
        """
        from qir.analysis.bodies import graphs_with_bodies

        from .optimizer.separate_additions import add_apart
        from .writer.graph import to_model

        try:
            from .session import OnnxSession
        except ImportError as error:
            raise PluginError(f"target {self.name} needs {error.name} to run models") from error
        if isinstance(model, Graph):
            made = model.copy()
            for each in graphs_with_bodies(made):
                add_apart(each, Ledger())
            data = to_model(made, Ledger(), self.dialect()).SerializeToString()
            return OnnxSession(data, threads=threads, optimize=optimize)
        return OnnxSession(model, threads=threads, optimize=optimize)


class OnnxTarget(OnnxRuntimeTarget):
    """ONNX itself: its own operators alone, in any operator set that the `onnx` package knows.

    onnxruntime's numerics stand for the standard's where somebody runs it; other runtimes may round
    elsewhere.
    """

    name = "onnx"

    def dialect(self) -> Dialect:
        """ONNX's own operators, the newest there are."""
        import onnx

        from .writer.graph import Dialect

        newest = int(onnx.defs.onnx_opset_version())
        return Dialect(standard=True, opset=self.opset, newest=newest)

    def capability(self) -> Capability:
        """Returns what ONNX has quantized operators for, and what QDQ form says of the others."""
        return load(Path(__file__).with_name("standard.toml"))
