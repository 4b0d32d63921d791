"""Silences PyTorch's loggers while something is tried whose failure QIR reports itself."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def muted(name: str) -> Iterator[None]:
    """Disables a logger for a while."""
    logger = logging.getLogger(name)
    before, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = before
