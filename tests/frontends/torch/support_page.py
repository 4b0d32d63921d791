"""The page of PyTorch's quantization support, entry by entry.

`python -m tests.frontends.torch.support_page` tries each entry and writes
docs/reference/pytorch-coverage.md.
"""

from __future__ import annotations

import copy
import functools
import re
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import ao

import qir
from qir.backends.torch.session import ProgramInterface, TorchSession, engine
from qir.errors import QirError
from qir.frontends.torch.observers import observed, observed_by
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger
from qir.target import target

from .comparison import flatten_tensors
from .support_entries import SECTIONS
from .support_modules import Config, Entry, Row
from .test_observers import BATCHES, seen

Array = NDArray[np.generic]
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "pytorch-coverage.md"
HEAD = """# PyTorch's quantization support, entry by entry

Made by `python -m tests.frontends.torch.support_page`. The entries are those of PyTorch's own page
of that name, with what later versions added.

- *Read*: as ops of the language; *foreign*: kept, and run by PyTorch.
- *Run*: what QIR computes, compared with PyTorch. *Equal*: every integer and every float.
  *Near*: within 1e-5 of the largest float, unless the last column says more. *Not claimed*: some
  integers differ, and the ledger says that the profile does not predict every value.
- *Written*: given back to PyTorch (`qir.build(graph, format="fx")`), and how its results compare.

`tests/frontends/torch/test_support_page.py` tries each entry again and compares the numbers; of
observers and configurations `test_observers.py` compares scales and zero points.
"""
_ROW = "| `{}` | {} | {} | {} | {} |\n"
AO: Any = ao.quantization
_FIXED = functools.partial(AO.FixedQParamsObserver, scale=0.02, zero_point=9, dtype=torch.quint8)
_MADE = {
    "FixedQParamsObserver": _FIXED,
    "FixedQParamsFakeQuantize": lambda: AO.FixedQParamsFakeQuantize(_FIXED),
}
"""Observers that are made with numbers."""
_CODE_LINE = re.compile(r" \(File [^)]*\)")
_MOST = 110
"""Characters of a reason."""


class Outcome(NamedTuple):
    """A row of the page."""

    read: str
    run: str
    written: str
    said: str


def outcome(row: Row) -> Outcome:
    """Tries an entry and returns its row."""
    if isinstance(row, str):
        return Outcome("", "", "", row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _config(row.name) if isinstance(row, Config) else _entry(row)


def _entry(entry: Entry) -> Outcome:
    with engine(entry.engine), torch.no_grad():
        # PyTorch and QIR both change modules that they read: each gets a copy.
        module, ledger = entry.make(), Ledger()
        expected = _arrays(copy.deepcopy(module)(*entry.inputs))
        try:
            graph = qir.load(copy.deepcopy(module), inputs=entry.inputs, ledger=ledger)
        except QirError as error:
            return Outcome("no", "", "", _short(str(error)))
        inputs = {v.name: x.numpy() for v, x in zip(graph.inputs, entry.inputs, strict=True)}
        foreign_nodes = [node for node in graph if node.op == "foreign"]
        run = _alike(list(qir.run(graph, inputs).values()), expected, entry.near)
        reasons = [e.reason for e in ledger if e.change is Change.APPROXIMATED]
        if run == "differ" and (unclaimed_reason := _unclaimed(graph)):
            run, reasons = "not claimed", [unclaimed_reason]
        rebuilt, why = _written(graph, entry, inputs, expected)
    tolerance = f"within {entry.near:g}" if entry.near and entry.near > 1e-5 else ""
    texts = [text for text in (tolerance, *reasons[:1], why) if text]
    return Outcome("foreign" if foreign_nodes else "yes", run, rebuilt, _short("; ".join(texts)))


def _written(
    graph: Graph, entry: Entry, inputs: dict[str, Array], expected: Sequence[Array]
) -> tuple[str, str]:
    """Returns how a model that PyTorch is given back does, and why there is none."""
    try:
        target_name = "pt2e" if graph.profile.endswith(".pt2e") else f"pytorch-{entry.engine}"
        built: Any = qir.build(graph, target=target_name, format="fx")
        results = TorchSession(built, entry.engine, ProgramInterface.of(graph))(**inputs)
    except QirError as error:
        return "no", _short(
            str(error).partition("cannot be written for PyTorch: ")[2] or str(error)
        )
    return _alike(list(map(np.asarray, results.values())), expected, entry.near), ""


def _unclaimed(graph: Graph) -> str:
    """Returns what the profile says of kernels that it does not claim."""
    ledger, kind = Ledger(), graph.profile.rpartition(".")[2]
    target(kind if kind == "pt2e" else f"pytorch-{kind}").computed(graph.copy(), ledger)
    return next((e.reason for e in ledger if e.change is Change.UNVERIFIED), "")


def _arrays(results: object) -> list[Array]:
    tensors = [t.int_repr() if t.is_quantized else t for t in flatten_tensors(results)]
    return [t.detach().numpy() for t in tensors]


def _alike(actual: Sequence[Array], expected: Sequence[Array], tolerance: float | None) -> str:
    if [(a.shape, a.dtype) for a in actual] != [(b.shape, b.dtype) for b in expected]:
        return "differ"
    pairs = list(zip(actual, expected, strict=True))
    if all(np.array_equal(a, b) for a, b in pairs):
        return "equal"
    all_near = tolerance is not None and all(_near(a, b, tolerance) for a, b in pairs)
    return "near" if all_near else "differ"


def _near(actual: Array, expected: Array, tolerance: float) -> bool:
    if expected.dtype.kind != "f":
        return bool(np.array_equal(actual, expected))
    differences = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
    return float(differences.max()) <= tolerance * float(np.abs(expected).max())


def _config(name: str) -> Outcome:
    """Reads an observer or a QConfig, which has seen data where it has to."""
    subject: Any = _MADE.get(name) or getattr(AO, name)
    try:
        if isinstance(subject, AO.QConfig):
            texts = [str(f.scheme) if f else "float" for f in _roles(subject).values()]
            return Outcome("yes", "equal", "", "data {}; weights {}".format(*texts))
        observed_scheme = observed(_watching(subject))
    except (QirError, TypeError) as error:
        return Outcome("no", "", "", _short(str(error)))
    return Outcome("yes", "equal", "", str(observed_scheme.scheme))


def _roles(config: Any) -> dict[str, Any]:
    watching = _watching(config.activation)
    by_role: dict[str, Any] = observed_by(AO.QConfig(lambda: watching, config.weight))
    return by_role


def _watching(make: Any) -> Any:
    """Returns an observer; a histogram has seen data, for it is read by its numbers."""
    observer = make()
    inner = getattr(observer, "activation_post_process", observer)
    return seen(observer, BATCHES) if type(inner).__name__ == "HistogramObserver" else observer


def _short(text: str) -> str:
    # The line of the user's code is that of the test here.
    text = _CODE_LINE.sub("", " ".join(text.split())).replace("|", "\\|")
    return text if len(text) <= _MOST else f"{text[: _MOST - 4].rsplit(' ', 1)[0]} ..."


def sections() -> Iterator[str]:
    """Yields the page's parts, each entry tried."""
    for title, rows in SECTIONS.items():
        yield f"\n## {title}\n\n| entry | read | run | written | |\n|---|---|---|---|---|\n"
        for name, row in rows.items():
            yield _ROW.format(name, *outcome(row))


if __name__ == "__main__":
    PAGE.write_text(HEAD + "".join(sections()), encoding="utf-8")
