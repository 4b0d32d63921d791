"""Runs PyTorch's own tracing, and says in one line what it does not take and where."""

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

from .muting import muted_logger

_LOGGERS = ("torch._subclasses.fake_tensor", "torch.fx.experimental.symbolic_shapes")
_FOLDERS = tuple(str(Path(held).parent) for held in (torch.__file__, contextlib.__file__, __file__))
"""Where the frames of a traceback are that no user wrote."""
DATA_DEPENDENT_CONTROL_FLOW = (
    "branches or loops by data; say it with torch.where, torch.cond or while_loop, or read a part"
    " without it"
)
"""What to say of control flow that depends on data."""


def call_pytorch(make: Callable[[], Any], name: str, what: str) -> Any:
    """Returns what is made; InputError where PyTorch fails, with the line of the user's code."""
    try:
        with quiet_pytorch():
            return make()
    except Exception as error:  # the user's own code runs here
        if is_data_dependent(error):
            raise InputError(
                f"{name}: {DATA_DEPENDENT_CONTROL_FLOW}{user_line_of(error)}"
            ) from error
        said = first_line(error)
        raise InputError(f"{name}: {what} does not take it: {said}{user_line_of(error)}") from error


@contextlib.contextmanager
def quiet_pytorch() -> Iterator[None]:
    """Keeps PyTorch from logging, and from printing its graphs, where QIR reports the failure."""
    with contextlib.ExitStack() as stack:
        for logger in _LOGGERS:
            stack.enter_context(muted_logger(logger))
        stack.enter_context(contextlib.redirect_stderr(io.StringIO()))
        yield


def is_data_dependent(error: BaseException) -> bool:
    """Returns whether PyTorch had to know a number that only data tell."""
    causes = {type(error).__name__, type(error.__cause__).__name__}
    return "GuardOnDataDependentSymNode" in causes or "data-dependent" in first_line(error)


def first_line(error: BaseException) -> str:
    """Returns the first line of a message that says something."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


def user_line_of(error: BaseException) -> str:
    """Returns the last line of the user's code that led to an error, in brackets."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*_FOLDERS, "<"))]
    if not own or own[-1].lineno is None:
        return ""
    frame = own[-1]
    code = linecache.getline(frame.filename, own[-1].lineno or 0).strip()
    return f' (File "{frame.filename}", line {frame.lineno}: {code})'
