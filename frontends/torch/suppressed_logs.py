"""Suppresses logs and warnings of PyTorch that QIR reports itself or that users cannot act on."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

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


def mute_quantized_tensor_warning() -> None:
    """Triggers the deprecation warning of quantized tensors while warnings are suppressed.

    PyTorch gives it once in a process. The loader of archives writes it to standard error from C++,
    where no filter applies.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
