"""Opens files whose loading runs code, for users who trust them (`--trust`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import ExportedProgram

from qir.errors import InputError


def load_unsafe(path: Path) -> nn.Module | ExportedProgram:
    """Unpickles a module, or loads a `.pt2` file with pickled parts.

    Raises InputError for a file without a program, and for classes that are not found.
    """
    archive = path.suffix.lower() == ".pt2"
    open_it: Any = torch.export.load if archive else _unpickle
    try:
        made = open_it(str(path))
    except (ImportError, AttributeError) as error:
        said = f"{error}; put the file that defines the class on PYTHONPATH"
        raise InputError(f"{path}: its classes are not found: {said}") from error
    except Exception as error:  # whatever the file's own code raises
        said = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
        raise InputError(f"{path}: PyTorch does not load it: {said.strip()}") from error
    if isinstance(made, (nn.Module, ExportedProgram)):
        return made
    kind = "a state dict" if isinstance(made, dict) else f"a {type(made).__name__}"
    raise InputError(
        f"{path}: holds {kind} and no program; build the module, load the state dict into it,"
        " and pass the module: qir.load(module, inputs=(x, ...))"
    )


def _unpickle(path: str) -> object:
    return torch.load(path, map_location="cpu", weights_only=False)
