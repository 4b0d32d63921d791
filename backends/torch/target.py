"""The targets: PyTorch's quantized engines and exported programs."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from qir.capability import Capability, load
from qir.errors import PluginError, Refused, UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target

from .versions import profile_name


class PyTorchTarget(Target):
    """The base of all targets of PyTorch."""

    engine: ClassVar[str]
    """PyTorch's engine that computes with quantized tensors."""
    numerics: ClassVar[str]
    """The name of its profiles, after the version."""
    decomposed: ClassVar[bool] = False
    """Whether quantized values are plain integers, between ops of `quantized_decomposed`."""
    table: ClassVar[str]
    """The target file, next to this module."""
    suffixes: ClassVar[Mapping[str, str]] = {"torchscript": ".pt", "pt2": ".pt2", "float": ".pt2"}
    float_formats = ("float",)
    float_io = "modules quantize what they are given"

    def __init__(self) -> None:
        self.profile = profile_name(self.numerics)

    def owns(self, path: Path) -> bool:
        """Returns whether a file can be run as it is: QIR wrote it, and it calls the engine's
        kernels.

        An exported program in QDQ form computes floats when it is run. Its kernels are inductor's,
        which only a graph that was read selects. That holds for programs of others, too.
        """
        return super().owns(path) and _is_kernel_program(path)

    def capability(self) -> Capability:
        """Returns the ops that are computed on quantized tensors, as far as the profile has
        claims for them."""
        return load(Path(__file__).with_name(self.table))

    def planned(self, graph: Graph) -> Capability:
        """Returns the table without the kernels for which the profile has no claim in this
        graph."""
        from .unclaimed_kernels import without_unclaimed

        return without_unclaimed(graph, self.capability(), self.profile)

    def computed(self, graph: Graph, ledger: Ledger) -> Graph:
        """Returns the graph with one group for each kernel that runs its files."""
        from qir.rewrite import run_passes

        from .grouping import KernelGroups
        from .unclaimed_kernels import claimed
        from .whole_range import widen_bounds

        graph = graph.copy()
        widen_bounds(graph, self.capability(), ledger)
        table = claimed(graph, self.capability(), self.profile)
        return run_passes(graph, [KernelGroups(self.profile, table=table)], ledger)

    def build(
        self,
        graph: Graph,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
        module: object | None = None,
    ) -> object:
        """Returns the module or exported program that `emit` would write.

        Format `eager` returns a quantized copy of `module`, which the graph was read from. Raises
        UsageError for an unknown format, Refused for what PyTorch cannot express.
        """
        form = self._form(format)
        if (module is None) == (form == "eager"):
            raise UsageError(
                f"target {self.name}: format eager, and it alone, {_EAGER_ONLY_BUILDS}"
            )
        self._require_torch()
        from .writing import build, convert

        if module is not None:
            return convert(self, graph, ledger, module, lossy=lossy)
        return build(self, graph, ledger, form, lossy=lossy)

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model, by rename; raises as `build` does."""
        if format == "eager":
            raise Refused(f"target {self.name}: no file has format eager; it {_EAGER_ONLY_BUILDS}")
        program = self.build(graph, ledger, format=format, lossy=lossy)
        from .writing import save

        save(self, program, graph, path)

    def _form(self, format: str | None) -> str:
        self.require_format(format)
        return format or self.formats[0]

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in PyTorch on one thread, by the kernels that would run its file.

        Raises Refused for what PyTorch cannot express, PluginError without PyTorch.
        """
        self._require_torch()
        from .writing import session

        return session(self, graph)

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Runs a file that this target wrote; raises InputError for one that is not."""
        self._require_torch()
        from .writing import file_session

        return file_session(self, path)

    def compile_read(self, path: Path, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs any TorchScript archive or exported program; raises InputError where PyTorch
        cannot load it."""
        self._require_torch()
        from .writing import file_session

        return file_session(self, path, graph)

    def _require_torch(self) -> None:
        try:
            import torch  # noqa: F401
        except ImportError as error:
            raise PluginError(f"target {self.name} needs PyTorch: {error}") from error


def _is_kernel_program(path: Path) -> bool:
    """Returns whether QIR wrote a file, and it calls quantized kernels."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            # models/model.json holds the graph of a `.pt2` file; TorchScript archives have no such
            # member.
            programs = [name for name in members if name.endswith("models/model.json")]
            is_from_qir = any(name.rpartition("/")[2] == _INTERFACE_MEMBER for name in members)
            return is_from_qir and not any(
                _DECOMPOSED_OPS in archive.read(name) for name in programs
            )
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, NotImplementedError):
        return False


_INTERFACE_MEMBER = "qir.json"
"""The archive member in which QIR writes the program's interface."""
_DECOMPOSED_OPS = b"quantized_decomposed"
_EAGER_ONLY_BUILDS = "converts the module that was read: qir.build(graph, format='eager', module=m)"
_ENGINE_FORMATS = ("torchscript", "fx", "eager", "float")
"""The formats that an engine runs.

Exported programs follow the rules of pt2e: in torch 2.13 their quantize rounds before it adds the
zero point, that of quantized tensors after. A mean of integers that is a tie differs by one step,
and a layer after it by several.
"""


class X86Target(PyTorchTarget):
    """PyTorch's default engine on x86-64."""

    name = "pytorch-x86"
    formats: ClassVar[tuple[str, ...]] = ("torchscript", "pt2", "fx", "eager", "float")
    suffix = ".pt"
    engine = "x86"
    numerics = "x86"
    table = "x86.toml"


class FbgemmTarget(X86Target):
    """PyTorch's engine fbgemm."""

    name = "pytorch-fbgemm"
    formats = _ENGINE_FORMATS
    engine = numerics = "fbgemm"
    table = "fbgemm.toml"


class OnednnTarget(X86Target):
    """PyTorch's engine onednn."""

    name = "pytorch-onednn"
    formats = _ENGINE_FORMATS
    engine = numerics = "onednn"
    table = "onednn.toml"


class QnnpackTarget(X86Target):
    """PyTorch's engine qnnpack, as mobile models have it."""

    name = "pytorch-qnnpack"
    formats = _ENGINE_FORMATS
    engine = numerics = "qnnpack"
    table = "qnnpack.toml"


class ExportedTarget(PyTorchTarget):
    """Exported programs in QDQ form, which inductor compiles to kernels of oneDNN."""

    name = "pt2e"
    formats = ("pt2", "fx", "float")
    suffix = ".pt2"
    engine = "onednn"
    numerics = "pt2e"
    decomposed = True
    table = "pt2e.toml"
    float_io = ""
