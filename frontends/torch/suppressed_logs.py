"""Suppresses logs and warnings of PyTorch that QIR reports itself or that users cannot act on."""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def muted_logger(name: str) -> Iterator[None]:
    """Disables a logger inside a `with` block."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


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


@contextmanager
def stack_traces_of_models_only() -> Iterator[None]:
    """Keeps torch.fx from taking stack traces of its own tracing inside a `with` block.

    Nodes keep the traces that they have from the user's code.
    """
    config: Any = importlib.import_module("torch.fx.config")
    before = config.do_not_emit_stack_traces
    config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        config.do_not_emit_stack_traces = before


def mute_quantized_tensor_warning() -> None:
    """Triggers the deprecation warning of quantized tensors while warnings are suppressed.

    PyTorch gives it once in a process. The loader of archives writes it to standard error from C++,
    where no filter applies.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
