"""What a backend can run, and how models are written for it: one class a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from qir import registry
from qir.capability import Capability, Verdict, verdicts
from qir.errors import PluginError, UsageError
from qir.ir.graph import Graph
from qir.ir.verify import Finding
from qir.ledger import Ledger


class Target(ABC):
    """One backend: a capability table, the profile that will run it, and an emitter."""

    name: ClassVar[str]
    profile: str
    """The numerics that the runtime follows; a class may state it, or each target find it out."""
    formats: ClassVar[tuple[str, ...]] = ()
    """Forms it can be written in, the default first; none: it runs and is not written."""
    suffix: ClassVar[str] = ""
    folders: ClassVar[tuple[str, ...]] = ()
    """The forms that are folders, whose names take no suffix."""

    def owns(self, path: Path) -> bool:
        """Reports whether a file is of the kind that it writes, and runs as it is."""
        return bool(self.suffix) and path.suffix.lower() == self.suffix

    def require_name(self, path: Path, format: str | None) -> None:
        """Raises UsageError for a name that no file of a form has."""
        if self.suffix and format not in self.folders and path.suffix.lower() != self.suffix:
            forms = "".join(f"; --format {form} writes a folder" for form in self.folders)
            said = f"target {self.name} writes {self.suffix} files, and .qir ones{forms}"
            raise UsageError(f"{path}: {said}")

    def samples(self) -> Sequence[Graph]:
        """Returns small float graphs that it takes; `qir plugins check` quantizes and runs them.

        A target that returns none is checked on random networks of many ops.
        """
        return ()

    def at(self, opset: int) -> Target:
        """The target that writes that operator set; UsageError where it has no such sets."""
        raise UsageError(f"target {self.name} has no operator sets to choose from")

    @abstractmethod
    def capability(self) -> Capability:
        """What may be asked of this backend."""

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model, by rename; UsageError for a form it does not have.

        Calls `ledger.check(lossy=lossy)` before the file takes its place.
        """
        raise UsageError(f"target {self.name} writes no files")

    def verify(self, graph: Graph) -> list[Finding]:
        """What this target cannot take, as findings: a defect is an error, codes that it has no
        kernel for a warning."""
        return [
            Finding(
                "target",
                "error" if v.defect else "warning",
                v.node,
                f"{self.name}: {v.reason}"
                if v.defect
                else f"{v.op} is not taken in integers: {v.reason}",
                v.origin,
                path=v.path,
            )
            for v in self.verdicts(graph)
            if v.taken == "refused"
        ]

    def verdicts(self, graph: Graph) -> list[Verdict]:
        """Which ops it takes in integers as they stand, and why not the others."""
        return list(verdicts(self.capability(), graph))

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Makes a model ready to run; UsageError where the target only writes files."""
        raise UsageError(f"target {self.name} does not run models")

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Makes a file that it wrote ready to run; UsageError where it does not run files.

        Checks hold files to the reference by it, where no frontend reads them.
        """
        raise UsageError(f"target {self.name} does not run files")


class Executable(ABC):
    """A model that is ready to run."""

    @abstractmethod
    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it on arrays by input name; results by output name."""


def target(name: str) -> Target:
    """The target of that name; PluginError if there is none."""
    found = registry.find("qir.targets", name)
    if not (isinstance(found, type) and issubclass(found, Target)):
        by = registry.owner("qir.targets", name)
        raise PluginError(f"target {name!r} of {by} is no class derived from qir.target.Target")
    return found()
