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
    is_export = path.suffix.lower() == ".pt2"
    load: Any = torch.export.load if is_export else _unpickle
    try:
        loaded = load(str(path))
    except (ImportError, AttributeError) as error:
        message = f"{error}; put the file that defines the class on PYTHONPATH"
        raise InputError(f"{path}: its classes are not found: {message}") from error
    except Exception as error:  # whatever the file's own code raises
        message = next((s for s in str(error).splitlines() if s.strip()), type(error).__name__)
        raise InputError(f"{path}: PyTorch does not load it: {message.strip()}") from error
    if isinstance(loaded, (nn.Module, ExportedProgram)):
        return loaded
    kind = "a state dict" if isinstance(loaded, dict) else f"a {type(loaded).__name__}"
    raise InputError(
        f"{path}: holds {kind} and no program; build the module, load the state dict into it,"
        " and pass the module: qir.load(module, inputs=(x, ...))"
    )


def _unpickle(path: str) -> object:
    return torch.load(path, map_location="cpu", weights_only=False)
