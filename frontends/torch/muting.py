"""Keeps PyTorch still about what QIR reports itself, or what nobody who reads can change."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def muted_logger(name: str) -> Iterator[None]:
    """Disables a logger for a while."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before


def mute_quantized_tensor_warning() -> None:
    """Has PyTorch say unheard, as it does once in a process, that quantized tensors are deprecated.

    When an archive holds them, its loader writes that to standard error, where no filter reaches.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.quantize_per_tensor(torch.zeros(1), 1.0, 0, torch.quint8)
