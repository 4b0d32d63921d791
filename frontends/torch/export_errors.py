"""Runs PyTorch's export and tracing, and turns their failures into one line of error."""

from __future__ import annotations

import contextlib
import io
import linecache
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from qir.errors import InputError

from .suppressed_logs import muted_logger

_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_FOLDERS = tuple(str(Path(file).parent) for file in (torch.__file__, contextlib.__file__, __file__))
"""Folders of frames in a traceback that are not the user's code."""
DATA_DEPENDENT_CONTROL_FLOW = (
    "branches or loops by data; say it with torch.where, torch.cond or while_loop, or read a part"
    " without it"
)
"""The error text for control flow that depends on data."""


def call_pytorch(make: Callable[[], Any], name: str, what: str) -> Any:
    """Calls PyTorch; raises InputError if it fails, with the line of the user's code."""
    try:
        with quiet_pytorch():
            return make()
    except Exception as error:  # the user's own code runs here
        if is_data_dependent(error):
            raise InputError(
                f"{name}: {DATA_DEPENDENT_CONTROL_FLOW}{user_line_of(error)}"
            ) from error
        message = first_line(error)
        raise InputError(
            f"{name}: {what} does not take it: {message}{user_line_of(error)}"
        ) from error


@contextlib.contextmanager
def quiet_pytorch() -> Iterator[None]:
    """Suppresses PyTorch's logs and prints of a failure that QIR reports itself."""
    with contextlib.ExitStack() as stack:
        for logger in _LOGGERS:
            stack.enter_context(muted_logger(logger))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


def is_data_dependent(error: BaseException) -> bool:
    """Returns whether PyTorch failed because a size or branch depends on data."""
    causes = {type(error).__name__, type(error.__cause__).__name__}
    return "GuardOnDataDependentSymNode" in causes or "data-dependent" in first_line(error)


def first_line(error: BaseException) -> str:
    """Returns the first line of a message that is not empty, else the exception's class."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def user_line_of(error: BaseException) -> str:
    """Returns the last frame of the user's code in a traceback, in parentheses."""
    # Frames of generated code have a name in angle brackets.
    frames = traceback.extract_tb(error.__traceback__)
    user_frames = [f for f in frames if not f.filename.startswith((*_FOLDERS, "<"))]
    if not user_frames or user_frames[-1].lineno is None:
        return ""
    frame = user_frames[-1]
    code = linecache.getline(frame.filename, user_frames[-1].lineno or 0).strip()
    return f' (File "{frame.filename}", line {frame.lineno}: {code})'
