"""Suppresses logs and warnings of PyTorch that QIR reports itself or that users cannot act on."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import torch

from qir.temporary import temporary_attribute


def muted_logger(name: str) -> AbstractContextManager[None]:
    """Disables a logger inside a `with` block."""
    return temporary_attribute(logging.getLogger(name), "disabled", True)


@contextmanager
def logged_errors(name: str) -> Iterator[list[BaseException]]:
    """Keeps a logger silent inside a `with` block, and yields the exceptions that it is given."""
    errors: list[BaseException] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.exc_info and record.exc_info[1] is not None:
            errors.append(record.exc_info[1])
        return False

    logger = logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield errors
    finally:
        logger.removeFilter(keep)


def stack_traces_of_models_only() -> AbstractContextManager[None]:
    """Keeps torch.fx from taking stack traces of its own tracing inside a `with` block.

    Nodes keep the traces that they have from the user's code.
    """
    config = importlib.import_module("torch.fx.config")
    return temporary_attribute(config, "do_not_emit_stack_traces", True)


def mute_quantized_tensor_warning() -> None:
    """Triggers the deprecation warning of quantized tensors while warnings are suppressed.

    PyTorch gives it once in a process. The loader of archives writes it to standard error from C++,
    where no filter applies.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
