"""Opens a source: an exported program, a TorchScript archive or module, or a plain module.

Plain modules are exported by torch.export. Modules that use quantized tensors are traced by
TorchScript instead, since torch.export cannot represent these.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.export import Dim, ExportedProgram

from qir.errors import InputError, QirError, ShapesNeeded, UsageError

from .archive import open_archive, require_intact
from .export_errors import call_pytorch
from .profiles import engine_chosen, profile_name, running_engine
from .program import TorchProgram, as_program, functionalized_if_needed, mutates_views
from .quantized_modules import (
    is_quantized,
    makes_quantized_tensor,
    uses_quantized_tensors,
    with_functional_as_modules,
    without_observers,
)
from .script.assumed_sizes import Axis, assumptions, branching_axes, fixed_axes, with_fixed_axes
from .script.interpreter import Interpreter
from .script.module_reader import script_program
from .script.shapes import (
    HOW_TO_GIVE_SHAPES,
    Example,
    example_of_shape,
    guessed_examples,
    stated_examples,
)
from .signature import stated_engine
from .suppressed_logs import mute_quantized_tensor_warning, muted_logger

_QIR_MEMBER = "qir.json"
"""The member of archives written by QIR that states the types of inputs."""
_SCRIPT_MEMBERS = ("constants.pkl", "code/")
"""Members of TorchScript archives that pickles lack."""
_ZIP_MAGIC = b"PK"
"""The first bytes of an archive, also of a truncated one."""
_EXPORT_MEMBER = "archive_format"
"""A member of exported programs that other archives lack."""


@dataclass(frozen=True)
class OpenedSource:
    """A program that is ready to be read, and how to read it."""

    program: TorchProgram
    name: str
    shares_memory: bool
    """Whether constants may share the program's memory."""
    profile: str = ""
    """The profile of the quantized engine; empty for float programs."""
    has_quantized_kernels: bool = False
    """Whether float ops between dequantize and quantize are kernels of that engine.

    Passes then group them.
    """
    observers_removed: int = 0
    """Count of observers that were removed from the module."""
    notes: tuple[str, ...] = ()
    """Lines for the ledger: assumed sizes of inputs, and state that is not updated."""


def open_source(source: object, inputs: Sequence[object] | None) -> OpenedSource:
    """Opens a file or a model in memory; raises InputError with a remedy if it cannot."""
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), inputs)
    if isinstance(source, ExportedProgram):
        return OpenedSource(
            as_program(functionalized_if_needed(source)), "main", shares_memory=inputs is None
        )
    if isinstance(source, torch.jit.ScriptModule):
        return _read_script(source, getattr(source, "original_name", "main"), inputs)
    if not isinstance(source, nn.Module):
        raise InputError(f"{type(source).__name__} is neither a module nor an exported program")
    name = type(source).__name__
    if inputs is None:
        raise InputError(f"{name}: a module is exported with example inputs; give inputs=(x, ...)")
    _require_plain(source, name)
    shaped = [_example_of_shape(item) for item in inputs]
    examples = tuple(item.tensor if isinstance(item, Example) else item for item in shaped)
    with _in_inference_mode(source, name):
        # Eager-mode quantized layers hold packed weights, which torch.export cannot represent.
        if is_quantized(source):
            return _read_script(_trace(source, examples, name), name, examples)
        module, observers = without_observers(with_functional_as_modules(source))
        try:
            exported = _export(module, examples, name, shaped)
        except InputError:
            # A functional call (`torch.quantize_per_tensor`) in `forward` shows only in the trace:
            # export fails on it with an error that names no quantization.
            if uses_quantized_tensors(script := _trace(module, examples, name)):
                return _read_script(script, name, examples)
            raise
        # Export may also succeed, with a quantize operator that no fake tensor can describe.
        if any(makes_quantized_tensor(node) for node in exported.graph.nodes):
            return _read_script(_trace(module, examples, name), name, examples)
        return OpenedSource(
            as_program(functionalized_if_needed(exported)),
            name,
            shares_memory=False,
            observers_removed=observers,
        )


# -- files ----------------------------------------------------------------------------------------


def _open_file(path: Path, inputs: Sequence[object] | None) -> OpenedSource:
    members = _members(path)
    # A truncated archive has the magic bytes and no member list; `require_intact` names the damage.
    if members is not None or _first_bytes(path) == _ZIP_MAGIC:
        require_intact(path)
    if members is None or not _has_members(members, *_SCRIPT_MEMBERS):
        if path.suffix.lower() != ".pt2" and (
            members is None or not _has_members(members, _EXPORT_MEMBER)
        ):
            raise InputError(_why_pickle_is_refused(path, members))
        if inputs is not None:
            raise UsageError(
                f"{path}: an exported program states its own inputs; leave out inputs= or --shape"
            )
        return OpenedSource(
            as_program(functionalized_if_needed(open_archive(path))), path.stem, shares_memory=True
        )
    with engine_chosen(stated_engine(path)):
        return _open_script_archive(path, inputs)


def _first_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(2)
    except OSError as error:
        raise InputError(f"{path}: cannot be opened: {error.strerror or error}") from error


def _open_script_archive(path: Path, inputs: Sequence[object] | None) -> OpenedSource:
    """Opens a TorchScript archive; packed weights are unpacked by the current engine."""
    extra: dict[str, str | bytes] = {_QIR_MEMBER: ""}
    # The loader would write PyTorch's deprecation warning from C++, past every filter.
    if _code_mentions_quantized(path):
        mute_quantized_tensor_warning()
    try:
        load: Any = torch.jit.load
        module: Any = load(str(path), map_location="cpu", _extra_files=extra)
    except Exception as error:  # PyTorch raises what it likes for a damaged file
        first_line = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
        if "ipex" in str(error):  # of torch_ipex::, ipex_prepack:: and the classes of their weights
            why = "IPEX froze it into operators of its own, with packed weights"
            raise InputError(f"{path}: {why}; save the module from before ipex.optimize") from error
        raise InputError(
            f"{path}: PyTorch {torch.__version__} cannot read this TorchScript:"
            f" {first_line.strip()}"
        ) from error
    try:
        return _read_script(module.eval(), path.stem, inputs, extra[_QIR_MEMBER])
    except QirError:
        raise
    except Exception as error:  # what a damaged archive holds fails where it is first looked at
        first_line = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
        raise InputError(f"{path}: is damaged or not read: {first_line.strip()}") from error


def _code_mentions_quantized(path: Path) -> bool:
    """Returns whether the code of an archive mentions quantized tensors or layers."""
    try:
        with zipfile.ZipFile(path) as archive:
            code = [name for name in archive.namelist() if name.endswith(".py")]
            return any(b"quantize" in archive.read(name) for name in code)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError):
        return False  # the loader reports what is wrong


def is_pickled(path: Path) -> bool:
    """Returns whether opening a file would run code that it names."""
    members = _members(path)
    if path.suffix.lower() != ".pt2" and (
        members is None or not _has_members(members, _EXPORT_MEMBER)
    ):
        return members is None or not _has_members(members, *_SCRIPT_MEMBERS)
    try:
        open_archive(path)
    except InputError:
        return True
    return False


def _members(path: Path) -> list[str] | None:
    """Returns the members of an archive; None for another file."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError):
        return None


def _has_members(members: Sequence[str], *parts: str) -> bool:
    """Returns whether an archive has members with these prefixes, below its top folder."""
    inner = [name.partition("/")[2] for name in members]
    return all(any(name.startswith(part) for name in inner) for part in parts)


def _why_pickle_is_refused(path: Path, members: Sequence[str] | None) -> str:
    """Returns the error text for a pickle: why it is not opened, and what to do instead."""
    if members is None:
        with path.open("rb") as file:
            # Every pickle since protocol 2 starts with the PROTO opcode, 0x80.
            if file.read(1) != b"\x80":
                return f"{path}: is neither a TorchScript archive nor an exported program"
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=False)
    except Exception:  # more than tensors, or damaged: either way it is not opened
        return (
            f"{path}: a pickled module or a damaged file; unpickling runs code that the file names,"
            f" so it is not done. If you trust it: qir convert {path} --trust --shape n,3,224,224"
            " -o model.qir, or qir.load(path, trust=True, inputs=(x, ...))"
        )
    kind = "a state dict" if isinstance(content, dict) else f"a {type(content).__name__}"
    return (
        f"{path}: holds {kind} and no program; build the module, load the state dict into it,"
        " and pass the module: qir.load(module, inputs=(x, ...))"
    )


# -- TorchScript ----------------------------------------------------------------------------------


def _read_script(
    module: torch.jit.ScriptModule,
    name: str,
    inputs: Sequence[object] | None,
    types: str | bytes = "",
) -> OpenedSource:
    """Reads the graphs of a TorchScript module, without running it.

    `types` states the types of inputs, in files that QIR wrote.
    """
    assumed: tuple[str, ...] = ()
    if inputs is not None:
        program, reader = script_program(module, name, _examples_of(name, inputs))
    elif types:
        text = types.decode() if isinstance(types, bytes) else types
        program, reader = script_program(module, name, stated_examples(text, name))
    else:
        program, reader, assumed = _read_script_by_guessed_inputs(module, name)
    # `run_decompositions`, which would rewrite such a program, takes exported programs alone.
    if mutates_views(program.graph):
        raise InputError(
            f"{name}: changes a tensor of which it also has a view; read it through torch.export:"
            " qir.load(module, inputs=(x, ...))"
        )
    profile = (
        profile_name(running_engine())
        if reader.builder.quantizes or reader.builder.uses_quantized_kernels
        else ""
    )
    notes = (*assumed, *reader.state_updates.values())
    return OpenedSource(
        program, name, False, profile, reader.builder.uses_quantized_kernels, notes=notes
    )


def _read_script_by_guessed_inputs(
    module: torch.jit.ScriptModule, name: str
) -> tuple[TorchProgram, Interpreter, tuple[str, ...]]:
    """Reads a module with guessed inputs of open sizes, as its first layers accept them.

    Sizes that the program fixes are taken from the examples; also returns a note for each of those.
    Raises ShapesNeeded for a program that branches by sizes.
    """
    failed: QirError | None = None
    for inputs in guessed_examples(module, name):
        try:
            with muted_logger("torch._subclasses.fake_tensor"):
                program, reader = script_program(module, name, inputs)
                # A branch that was taken by a guessed size would be baked in, so the user must
                # state it.
                if branching := branching_axes(reader.builder):
                    raise ShapesNeeded(
                        f"{name}: branches by the sizes of {min(branching)[0]}, which it does not"
                        f" state; give them: {HOW_TO_GIVE_SHAPES}"
                    )
                closed: frozenset[Axis] = frozenset()
                # Fixing one axis may make another one fixed, so this repeats until nothing changes.
                while newly_closed := fixed_axes(reader.builder) - closed:
                    closed |= newly_closed
                    inputs = with_fixed_axes(inputs, reader.builder.open_axes, closed)
                    program, reader = script_program(module, name, inputs)
            return program, reader, assumptions(reader.builder, closed)
        except ShapesNeeded:
            raise
        except InputError as error:
            # Of several guesses, the first failure is reported.
            failed = failed or error
    raise ShapesNeeded(
        f"{failed}; with inputs of a guessed shape; give others: {HOW_TO_GIVE_SHAPES}"
    )


def _examples_of(name: str, inputs: Sequence[object]) -> list[Example]:
    """Returns examples of inputs that are given as tensors, arrays or shapes."""
    examples = []
    for item in inputs:
        if isinstance(item, torch.Tensor):
            examples.append(Example(item))
        elif isinstance(item, np.ndarray):
            examples.append(Example(torch.from_numpy(item)))
        elif isinstance(item, (list, tuple)) and all(isinstance(n, (int, str)) for n in item):
            examples.append(example_of_shape(item))
        else:
            raise InputError(f"{name}: {type(item).__name__} is no tensor, array or shape")
    return examples


# -- modules --------------------------------------------------------------------------------------


@contextmanager
def _in_inference_mode(module: nn.Module, name: str) -> Iterator[None]:
    """Puts a module into inference mode inside a `with` block.

    Modules of exported programs raise NotImplementedError: their mode is fixed.
    """
    training = [n or name for n, m in module.named_modules() if m.training]
    with suppress(NotImplementedError):
        module.eval()
    try:
        yield
    finally:
        for path, part in module.named_modules():
            part.training = (path or name) in training


def _require_plain(module: nn.Module, name: str) -> None:
    """Raises InputError for torchao's tensor subclasses, which hide their elements."""
    for path, parameter in module.named_parameters():
        if type(parameter).__module__.startswith("torchao."):
            raise InputError(
                f"{name}: {path} is of torchao's type {type(parameter).__name__}, which is not"
                " read;"
                " give the float module and quantize it here, or quantize it by torchao's PT2E"
            )


def _example_of_shape(item: object) -> object:
    """Returns an example for a shape, whose names are open sizes; another object itself."""
    sizes = item if isinstance(item, (list, tuple)) and item else ()
    is_shape = bool(sizes) and all(isinstance(size, (int, str)) for size in sizes)
    return example_of_shape(sizes) if is_shape else item


def _export(
    module: nn.Module, inputs: tuple[Any, ...], name: str, shaped: Sequence[object]
) -> ExportedProgram:
    """Exports a module; sizes with a name in a shape are dynamic."""
    axes = [item.open_axes if isinstance(item, Example) else () for item in shaped]
    sizes = tuple(dict.fromkeys(open_axes, Dim.AUTO) for open_axes in axes) if any(axes) else None

    def export() -> ExportedProgram:
        return torch.export.export(module, inputs, dynamic_shapes=sizes)

    exported: ExportedProgram = call_pytorch(export, name, "torch.export")
    return exported


def _trace(module: nn.Module, inputs: tuple[Any, ...], name: str) -> torch.jit.ScriptModule:
    def trace() -> Any:
        with torch.no_grad():
            # `check_trace` would run the module twice more; `strict=False` allows dicts and lists
            # as results.
            return torch.jit.trace(  # type: ignore[no-untyped-call]
                module, inputs, check_trace=False, strict=False
            )

    traced: torch.jit.ScriptModule = call_pytorch(trace, name, "torch.jit.trace")
    return traced
