"""The targets: Intel's extension for PyTorch on oneDNN, by its recipes and by modules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from qir.atomic import replacing
from qir.capability import Capability, load
from qir.errors import Refused, UsageError
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.target import Executable, Target


class IpexTarget(Target):
    """The extension's default: data are quint8 with a zero point."""

    name = "ipex-onednn"
    profile = "ipex-2.8"
    formats: ClassVar[tuple[str, ...]] = ("recipe", "recipe-nested", "module")
    """A recipe of a module that torch.fx traces, as the extension then numbers it; of one that it
    does not trace, numbered module by module; a module of torch, which is no file."""
    suffix = ".json"
    float_io = "the extension quantizes floats"
    table: ClassVar[str] = "onednn.toml"
    """The target file, next to this one."""

    def capability(self) -> Capability:
        """Returns what the extension computes in integers."""
        return load(Path(__file__).with_name(self.table))

    def samples(self) -> Sequence[Graph]:
        """Returns a graph with the origins that recipes need."""
        from .samples import residual

        return [residual()]

    def carried(
        self, graph: Graph, ledger: Ledger, *, format: str | None = None
    ) -> tuple[Graph, Mapping[str, str]]:
        """Returns a graph as a recipe carries it; a module carries all that is quantized."""
        from .edges import carried, is_dynamic

        form = self._form(format)
        if form == "module" or is_dynamic(graph):
            return graph, {}
        return carried(graph, ledger, nested=form == "recipe-nested")

    def uncarried(self, graph: Graph, *, format: str, dynamic: bool = False) -> Mapping[str, str]:
        """Returns why recipes leave ops float that a module quantizes.

        Raises Refused for a graph that was read from no module, and without data.
        """
        from .edges import DYNAMIC, defects, recipe_defects

        if self._form(format) == "module":
            return {} if dynamic else defects(graph)
        if dynamic:
            raise Refused(DYNAMIC)
        return recipe_defects(graph, nested=format == "recipe-nested")

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a recipe, by rename.

        Raises UsageError for a format that there is not, Refused for a module and for what no
        recipe holds.
        """
        form = self._form(format)
        if form == "module":
            raise Refused(f"{path}: a module is no file: qir.build(graph, format='module')")
        from .recipe import text

        recipe = text(graph, ledger, nested=form == "recipe-nested")
        ledger.check(lossy=lossy)
        with replacing(path) as draft:
            draft.write_text(recipe, encoding="utf-8")

    def build(
        self,
        graph: Graph,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
        module: object | None = None,
    ) -> object:
        """Returns a module for torch.jit.trace, or the text of a recipe.

        Raises UsageError for a format that there is not, PluginError without PyTorch, Refused for
        what PyTorch has no operator for.
        """
        form = self._form(format)
        if module is not None:
            raise UsageError(f"target {self.name} makes its module of the graph alone")
        if form == "module":
            from .module import module as made_of

            return made_of(graph, ledger, lossy=lossy)
        from .recipe import text

        recipe = text(graph, ledger, nested=form == "recipe-nested")
        ledger.check(lossy=lossy)
        return recipe

    def _form(self, format: str | None) -> str:
        self.require_format(format)
        return format or self.formats[0]

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Runs a graph in IPEX, in the Python that `QIR_IPEX` names; PluginError without one."""
        from .session import IpexSession

        return IpexSession(graph)


class IpexSignedTarget(IpexTarget):
    """Data are qint8 without a zero point."""

    name = "ipex-onednn-s8"
    table = "s8.toml"


class IpexSymmetricTarget(IpexTarget):
    """Data are quint8 around the zero point 128."""

    name = "ipex-onednn-u8"
    table = "u8.toml"
