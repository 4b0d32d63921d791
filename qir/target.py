"""What a backend can run, and how models are written for it: one class a target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from qir import registry
from qir.errors import DataError, PluginError, UsageError

if TYPE_CHECKING:  # a target that only runs program files imports none of these
    import numpy as np
    from numpy.typing import NDArray

    from qir.capability import Capability, Verdict
    from qir.ir.graph import Graph
    from qir.ir.verify import Finding
    from qir.ledger import Ledger

See: TypeAlias = "Callable[[str, NDArray[np.generic]], None]"
"""Sees a value by its name; the array holds it until the function returns."""
Observe: TypeAlias = "Callable[[Mapping[str, NDArray[np.generic]], See], bool]"
"""Runs on inputs by name and shows values as they are made; False where it cannot, before any."""

FILE_SUFFIX = ".toml"
"""The suffix of target files."""


class Target(ABC):
    """One backend: a capability table, the profile that will run it, and an emitter."""

    name: ClassVar[str]
    profile: str
    """The numerics that the runtime follows; a class may state it, or each target find it out."""
    formats: ClassVar[tuple[str, ...]] = ()
    """Forms it can be written in, the default first; none: it runs and is not written."""
    suffix: ClassVar[str] = ""
    suffixes: ClassVar[Mapping[str, str]] = {}
    """The suffixes of forms that have another than `suffix`."""
    float_types: ClassVar[tuple[str, ...]] = ("f32",)
    """The types in which ops that stay float may compute."""
    folders: ClassVar[tuple[str, ...]] = ()
    """The forms that are folders, whose names take no suffix."""
    float_formats: ClassVar[tuple[str, ...]] = ()
    """The forms that hold no quantized values."""
    float_io: ClassVar[str] = ""
    """Why inputs and outputs of its models are floats; empty: they may be quantized."""

    def suffix_of(self, format: str | None) -> str:
        """Returns the suffix of files in a form, or in the default one; folders have none."""
        if format in self.folders:
            return ""
        return self.suffixes.get(format or "", self.suffix)

    def require_format(self, format: str | None) -> None:
        """Raises UsageError for a form that the target does not have; None is the default form."""
        if format is not None and format not in self.formats:
            *others, last = self.formats or ("none",)
            known = f"{', '.join(others)} and {last}" if others else last
            raise UsageError(f"target {self.name} has no format {format!r}; it has {known}")

    def owns(self, path: Path) -> bool:
        """Reports whether a file is of the kind that it writes, and runs as it is."""
        return bool(self.suffix) and path.suffix.lower() in {self.suffix, *self.suffixes.values()}

    def form_of(self, path: Path, format: str | None) -> str | None:
        """Returns the form to write to a file: the one asked for, else the one of its suffix.

        None is the default form. Raises UsageError for a suffix that files of the form do not have.
        """
        suffix = path.suffix.lower()
        if format is None and suffix and suffix != self.suffix:
            format = next((form for form in self.formats if self.suffix_of(form) == suffix), None)
        if (expected := self.suffix_of(format)) and suffix != expected:
            kind = f"{format} files" if format in self.suffixes else "files"
            forms = "".join(f"; `format='{form}'` writes a folder" for form in self.folders)
            message = f"target {self.name} writes {expected} {kind}, and .qir ones{forms}"
            if writers := _targets_that_write(suffix):
                named = ", ".join([f"`target='{writers[0]}'`", *writers[1:]])
                message = f"{message}; {suffix} files are for {named}"
            raise UsageError(f"{path}: {message}")
        return format

    def require_quantized_form(self, path: Path, format: str | None) -> None:
        """Raises UsageError where the form to write to a file holds no quantized values."""
        if (form := self.form_of(path, format)) in self.float_formats:
            held = [each for each in self.formats if each not in self.float_formats]
            named = f"{self.suffix_of(held[0])} files ({held[0]}), and .qir ones"
            said = f"target {self.name} writes quantized models as {named}"
            raise UsageError(f"{path}: {said}; format {form} is for float models")

    def samples(self) -> Sequence[Graph]:
        """Returns small float graphs that it takes; `qir plugins check` quantizes and runs them.

        A target that returns none is checked on random networks of many ops.
        """
        return ()

    def at(self, opset: int) -> Target:
        """Returns the target that writes that operator set; raises UsageError where it has no such
        sets."""
        raise UsageError(f"target {self.name} has no operator sets to choose from")

    def files(self, path: Path) -> Sequence[Path]:
        """Returns the files that writing a model to a path makes, that path first."""
        return (path,)

    @abstractmethod
    def capability(self) -> Capability:
        """Returns what may be asked of this backend."""

    def planned(self, graph: Graph) -> Capability:
        """Returns what may be asked of it for one float graph; its table unless a target says
        otherwise."""
        return self.capability()

    def carried(
        self, graph: Graph, ledger: Ledger, *, format: str | None = None
    ) -> tuple[Graph, Mapping[str, str]]:
        """Returns a quantized graph as a form of this target carries it, and by op why it is float
        there; the whole graph, unless a target says otherwise.
        """
        return graph, {}

    def uncarried(self, graph: Graph, *, format: str, dynamic: bool = False) -> Mapping[str, str]:
        """Returns why a form leaves ops of a float graph float that this target quantizes, by op.

        `dynamic`: without data. Raises Refused where the form cannot hold the graph at all.
        """
        return {}

    def emit(
        self,
        graph: Graph,
        path: Path,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
    ) -> None:
        """Writes a model, by rename; raises UsageError for a form it does not have.

        Calls `ledger.check(lossy=lossy)` before the file takes its place.
        """
        advice = "write a .qir file, or name another target"
        raise UsageError(f"target {self.name} writes no files; {advice}")

    def build(
        self,
        graph: Graph,
        ledger: Ledger,
        *,
        format: str | None = None,
        lossy: bool = False,
        module: object | None = None,
    ) -> object:
        """Returns the object that `emit` would write, or what a format makes of the user's module.

        Raises UsageError where there is none.
        """
        raise UsageError(f"target {self.name} builds no objects; qir.save writes files for it")

    def verify(self, graph: Graph) -> list[Finding]:
        """Reports what this target does not support: defects, quantized ops without a kernel."""
        from qir.ir.verify import Finding

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
        """Returns which ops it takes in integers as they are, and why not the others."""
        from qir.capability import verdicts

        return list(verdicts(self.capability(), graph))

    def computed(self, graph: Graph, ledger: Ledger) -> Graph | None:
        """Returns a graph as the files of this target compute it, each kernel a group.

        None, which stands unless a target says otherwise, means all groups of its profile.
        """
        return None

    def observed(self, graph: Graph, names: Collection[str]) -> Observe | None:
        """Returns what runs a float graph and shows the named values, as calibration asks.

        It is called from several threads at once. None: the reference runs it.
        """
        return None

    def compile(self, graph: Graph, *, threads: int | None = None) -> Executable:
        """Makes a model ready to run; raises UsageError where the target only writes files."""
        raise UsageError(f"target {self.name} does not run models")

    def compile_file(self, path: Path, *, threads: int | None = None) -> Executable:
        """Makes a file that it wrote ready to run; raises UsageError where it does not run files.

        Checks hold files to the reference by it, where no frontend reads them.
        """
        raise UsageError(f"target {self.name} does not run files")

    def compile_read(self, path: Path, graph: Graph, *, threads: int | None = None) -> Executable:
        """Makes a file ready to run that was read as this graph, whose names its inputs have.

        Who runs files of others too, which do not name inputs and results, takes the graph's.
        """
        return self.compile_file(path, threads=threads)


class Executable(ABC):
    """A model that is ready to run."""

    @abstractmethod
    def __call__(self, **inputs: object) -> dict[str, object]:
        """Runs it on arrays by input name; results by output name."""

    def run_into(self, results: Mapping[str, object], /, **inputs: object) -> dict[str, object]:
        """Runs it as a call does, and leaves results in arrays by output name.

        QIR's own engine writes them there; of others they are copied. Raises DataError for an
        array that a result does not fit.
        """
        import numpy as np

        made = self(**inputs)
        for name, array in results.items():
            if name not in made:
                raise DataError(f"no result {name!r}; the model has {', '.join(made)}")
            found = np.asarray(made[name])
            if not isinstance(array, np.ndarray) or array.shape != found.shape:
                raise DataError(f"result {name!r} is of shape {list(found.shape)}")
            if array.dtype != found.dtype or not array.flags.writeable:
                raise DataError(f"result {name!r} is {found.dtype}, for an array that can be set")
            array[...] = found
            made[name] = array
        return made


class Plans(Target):
    """A target that a file alone describes: it plans and quantizes, and writes `.qir` files."""

    profile = "native"


def target(name: str) -> Target:
    """Returns the target of a name, or the one that a `.toml` file describes.

    A file that extends an installed target writes what that one writes; one that extends none
    plans and quantizes. What is installed is a class, or the path of such a file.
    Raises PluginError if there is none, and for a file that is no target file.
    """
    if name.endswith(FILE_SUFFIX):
        path = Path(name)
        built = _from_file(path)
        if built.name in registry.names("qir.targets"):
            expectation = f"an installed target is named {built.name}; give this one another name"
            raise PluginError(f"{path.name}: {expectation}")
        return built
    entry = registry.find("qir.targets", name)
    if isinstance(entry, Path):
        return _from_file(entry)
    if not (isinstance(entry, type) and issubclass(entry, Target)):
        owners = registry.owner("qir.targets", name)
        expectation = (
            "no class derived from qir.target.Target, and no pathlib.Path of a target file"
        )
        raise PluginError(f"target {name!r} of {owners} is {expectation}")
    return entry()


def _targets_that_write(suffix: str) -> list[str]:
    """Returns the installed targets that write files with a suffix."""
    writers = []
    for name in registry.names("qir.targets"):
        with suppress(PluginError):  # a broken plugin is told of when it is asked for
            candidate = target(name)
            if suffix in {candidate.suffix_of(form) for form in candidate.formats} - {""}:
                writers.append(name)
    return writers


def _from_file(path: Path) -> Target:
    """Returns the target of a file: the one that it extends with the table of the file."""
    from qir.capability import load

    table = load(path, lambda name: target(name).capability())

    class FromFile(_extended(path)):  # type: ignore[misc]
        """A target with the table of a file."""

        name = table.name

        def __init__(self, *args: object) -> None:
            super().__init__(*args)
            if table.profile:
                self.profile: str = table.profile

        def capability(self) -> Capability:
            return table

    built: Target = FromFile()
    return built


def _extended(path: Path) -> type[Target]:
    """Returns the installed target that a file extends, through other files or not; else `Plans`.

    The file was read before, so what it extends is there.
    """
    from qir.capability.files import load_extended

    base_name = load_extended(path)
    if not base_name:
        return Plans
    return (
        _extended(path.parent / base_name)
        if base_name.endswith(FILE_SUFFIX)
        else type(target(base_name))
    )
