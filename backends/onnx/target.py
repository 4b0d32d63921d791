"""The targets `onnxruntime` and `onnx` (ONNX's own operators, for any runtime)."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from qir.errors import PluginError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

from .versions import profile_name

if TYPE_CHECKING:
    from qir.capability import Capability, Verdict

    from .writer.graph import Dialect

# Frontends ask for the profile alone: target files and the writer are imported when needed.


class OnnxRuntimeTarget(Target):
    """onnxruntime's CPU provider: models of ONNX's operators and of onnxruntime's own."""

    name = "onnxruntime"
    formats = ("qdq", "qoperator", "integer", "nbits")
    """QDQ; QLinear operators; integer sums (MatMulInteger); low-bit weights (MatMulNBits)."""
    suffix = ".onnx"
    float_types = ("f32", "f16")

    def __init__(self, opset: int | None = None) -> None:
        self.opset = opset
        self.profile = profile_name()

    def at(self, opset: int) -> Target:
        """Returns the target that writes models of another operator set."""
        return type(self)(opset)

    def dialect(self) -> Dialect:
        """Returns the operators that its models may have."""
        from .writer.graph import Dialect

        return Dialect(opset=self.opset)

    def capability(self) -> Capability:
        """Returns what onnxruntime computes in integers."""
        from qir.capability import load

        return load(Path(__file__).with_name("capability.toml"))

    def verdicts(self, graph: Graph) -> list[Verdict]:
        """Returns, op by op, whether onnxruntime computes it on integers: by the table, or as
        written."""
        from .optimizer.kernels import kernel_verdicts
        from .writer.graph import to_parts

        write = partial(to_parts, dialect=self.dialect())
        return list(kernel_verdicts(self.capability(), graph, self.profile, write))

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

        Raises UsageError for an unknown format. Raises Refused for what ONNX cannot express, and
        for losses that were not allowed.
        """
        from .writing import write

        write(self, self.dialect(), graph, path, ledger, format=format, lossy=lossy)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in onnxruntime, written node by node in the form that it has."""
        return self.session(graph, threads=threads)

    def session(
        self, model: Graph | Path, *, threads: int | None = None, optimize: bool = True
    ) -> Executable:
        """Runs a graph, or a file as it is, with or without onnxruntime's graph optimizer.

        Raises InputError for a model that onnxruntime rejects, PluginError where it is not
        installed.
        """
        from qir.analysis.bodies import graphs_with_bodies

        from .optimizer.separate_additions import separate_additions
        from .writer.graph import to_model

        try:
            from .session import OnnxSession
        except ImportError as error:
            raise PluginError(f"target {self.name} needs {error.name} to run models") from error
        if isinstance(model, Graph):
            prepared = model.copy()
            for each in graphs_with_bodies(prepared):
                # Otherwise the optimizer would compute those products in float32: see
                # `separate_additions`.
                separate_additions(each, Ledger())
            data = to_model(prepared, Ledger(), self.dialect()).SerializeToString()
            return OnnxSession(data, threads=threads, optimize=optimize)
        return OnnxSession(model, threads=threads, optimize=optimize)


class OnnxTarget(OnnxRuntimeTarget):
    """ONNX itself: only its own operators, in any operator set that the `onnx` package knows.

    Its numerics are onnxruntime's; other runtimes may round elsewhere.
    """

    name = "onnx"

    def dialect(self) -> Dialect:
        """Returns ONNX's own operators, of the newest operator set."""
        import onnx

        from .writer.graph import Dialect

        newest = int(onnx.defs.onnx_opset_version())
        return Dialect(standard=True, opset=self.opset, newest=newest)

    def capability(self) -> Capability:
        """Returns what ONNX has quantized operators for, and what QDQ form expresses."""
        from qir.capability import load

        return load(Path(__file__).with_name("standard.toml"))
