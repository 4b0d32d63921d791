"""Runs passes on a model and writes the result."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir import pipeline
from qir.arguments import checked
from qir.ir.graph import Graph
from qir.ledger import Ledger
from qir.registry import DEFAULT_TARGET
from qir.rewrite import Pass
from qir.rewrite.runner.driver import After
from qir.rewrite.runner.journal import Journal


@checked
def optimize_model(
    graph: Graph,
    passes: str | Iterable[Pass | str],
    output: str | Path,
    *,
    target: str = DEFAULT_TARGET,
    format: str | None = None,
    samples: Iterable[Mapping[str, NDArray[np.generic]]] = (),
    dump: str | Path | None = None,
    after: After | None = None,
    seconds: float | None = None,
    ledger: Ledger | None = None,
    journal: Journal | None = None,
    lossy: bool = False,
    force: bool = False,
) -> Graph:
    """Runs passes as `qir.optimize` does, writes the result as `qir.save` does, and returns it.

    Nothing is written where a pass fails, or moves a tensor of the samples too far.
    """
    ledger = ledger if ledger is not None else Ledger()
    journal = journal if journal is not None else Journal()
    made = pipeline.optimize(
        graph,
        passes,
        ledger=ledger,
        journal=journal,
        samples=samples,
        dump=dump,
        after=after,
        seconds=seconds,
        force=force,
    )
    pipeline.save(
        made,
        output,
        target=target,
        format=format,
        ledger=ledger,
        journal=journal,
        lossy=lossy,
        force=force,
    )
    return made
