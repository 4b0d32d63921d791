"""The target: TensorFlow Lite's kernels and XNNPACK's, in `.tflite` files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from qir.atomic import replacing
from qir.capability import Capability, Verdict, load
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.source import untouched
from qir.target import Executable, Target

# What writes and runs models is imported when one is written: who reads one asks for the profile.


class TfliteTarget(Target):
    """TensorFlow Lite, or LiteRT, with the XNNPACK delegate, its default on CPUs."""

    name = "tflite"
    profile = "tflite-2.21.xnnpack"
    formats = ("tflite",)
    suffix = ".tflite"

    def capability(self) -> Capability:
        """Returns what TensorFlow Lite's kernels compute in integers."""
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
        """Writes a model, by rename; neither TensorFlow nor flatbuffers is needed.

        Raises UsageError for a form that there is not, Refused for what TensorFlow Lite has no
        operator for or what would be lost unasked.
        """
        from .writer.file import to_tflite
        from .writer.forms import converted

        self.require_format(format)
        source = untouched(graph)
        if source is not None and source.suffix.lower() == self.suffix:
            data = source.read_bytes()  # nothing was changed
        else:
            data = to_tflite(converted(graph, ledger))
        ledger.check(lossy=lossy)
        with replacing(path) as draft:
            draft.write_bytes(data)

    def verdicts(self, graph: Graph) -> list[Verdict]:
        """Returns, op by op, whether it is computed on integers: by the table, or as written."""
        from .writer.kernels import has_integer_kernel

        held = {
            (path, node.name)
            for path, part in graph.walk()
            for node in part
            if has_integer_kernel(node)
        }
        return [
            replace(each, taken="integer", reason="")
            if (each.path, each.node) in held and not each.defect
            else each
            for each in super().verdicts(graph)
        ]

    def computed(self, graph: Graph, ledger: Ledger) -> Graph | None:
        """Returns a graph as its file computes it, each kernel a group."""
        from .writer.forms import converted

        return converted(graph, ledger)

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in TensorFlow Lite, in a process of its own."""
        from .session import TfliteSession
        from .writer.file import to_tflite
        from .writer.forms import converted

        return TfliteSession(to_tflite(converted(graph, Ledger())), threads)

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Runs a file as it is."""
        from .session import TfliteFileSession

        return TfliteFileSession(path, threads)
