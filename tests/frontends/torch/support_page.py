"""The page of PyTorch's quantization support, entry by entry.

`python -m tests.frontends.torch.support_page` tries each entry and writes
docs/reference/pytorch-coverage.md.
"""

from __future__ import annotations

import copy
import functools
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
_MOST = 110
"""Characters of a reason."""


class Outcome(NamedTuple):
    """A row of the page."""

    read: str
    run: str
    written: str
    said: str


def outcome(row: Row) -> Outcome:
    """Tries an entry."""
    if isinstance(row, str):
        return Outcome("", "", "", row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _config(row.name) if isinstance(row, Config) else _entry(row)


def _entry(entry: Entry) -> Outcome:
    with engine(entry.engine), torch.no_grad():
        module, ledger = entry.make(), Ledger()
        wanted = _arrays(copy.deepcopy(module)(*entry.inputs))
        try:
            graph = qir.load(copy.deepcopy(module), inputs=entry.inputs, ledger=ledger)
        except QirError as error:
            return Outcome("no", "", "", _short(str(error)))
        given = {v.name: x.numpy() for v, x in zip(graph.inputs, entry.inputs, strict=True)}
        kept = [node for node in graph if node.op == "foreign"]
        run = _alike(list(qir.run(graph, given).values()), wanted, entry.near)
        said = [e.reason for e in ledger if e.change is Change.APPROXIMATED]
        if run == "differ" and (open_ := _unclaimed(graph)):
            run, said = "not claimed", [open_]
        written, why = _written(graph, entry, given, wanted)
    more = f"within {entry.near:g}" if entry.near and entry.near > 1e-5 else ""
    texts = [text for text in (more, *said[:1], why) if text]
    return Outcome("foreign" if kept else "yes", run, written, _short("; ".join(texts)))


def _written(
    graph: Graph, entry: Entry, given: dict[str, Array], wanted: Sequence[Array]
) -> tuple[str, str]:
    """Returns how a model that PyTorch is given back does, and why there is none."""
    try:
        to = "pt2e" if graph.profile.endswith(".pt2e") else f"pytorch-{entry.engine}"
        made: Any = qir.build(graph, target=to, format="fx")
        found = TorchSession(made, entry.engine, ProgramInterface.of(graph))(**given)
    except QirError as error:
        return "no", _short(
            str(error).partition("cannot be written for PyTorch: ")[2] or str(error)
        )
    return _alike(list(map(np.asarray, found.values())), wanted, entry.near), ""


def _unclaimed(graph: Graph) -> str:
    """Returns what the profile says of kernels that it does not claim."""
    ledger, kind = Ledger(), graph.profile.rpartition(".")[2]
    target(kind if kind == "pt2e" else f"pytorch-{kind}").computed(graph.copy(), ledger)
    return next((e.reason for e in ledger if e.change is Change.UNVERIFIED), "")


def _arrays(made: object) -> list[Array]:
    held = [t.int_repr() if t.is_quantized else t for t in flatten_tensors(made)]
    return [t.detach().numpy() for t in held]


def _alike(ours: Sequence[Array], theirs: Sequence[Array], near: float | None) -> str:
    if [(a.shape, a.dtype) for a in ours] != [(b.shape, b.dtype) for b in theirs]:
        return "differ"
    pairs = list(zip(ours, theirs, strict=True))
    if all(np.array_equal(a, b) for a, b in pairs):
        return "equal"
    close = near is not None and all(_near(a, b, near) for a, b in pairs)
    return "near" if close else "differ"


def _near(ours: Array, theirs: Array, near: float) -> bool:
    if theirs.dtype.kind != "f":
        return bool(np.array_equal(ours, theirs))
    off = np.abs(ours.astype(np.float64) - theirs.astype(np.float64))
    return float(off.max()) <= near * float(np.abs(theirs).max())


def _config(name: str) -> Outcome:
    """Reads an observer or a QConfig, which has seen data where it has to."""
    held: Any = _MADE.get(name) or getattr(AO, name)
    try:
        if isinstance(held, AO.QConfig):
            texts = [str(f.scheme) if f else "float" for f in _roles(held).values()]
            return Outcome("yes", "equal", "", "data {}; weights {}".format(*texts))
        found = observed(_watching(held))
    except (QirError, TypeError) as error:
        return Outcome("no", "", "", _short(str(error)))
    return Outcome("yes", "equal", "", str(found.scheme))


def _roles(held: Any) -> dict[str, Any]:
    watching = _watching(held.activation)
    found: dict[str, Any] = observed_by(AO.QConfig(lambda: watching, held.weight))
    return found


def _watching(make: Any) -> Any:
    """Returns an observer; a histogram has seen data, for it is read by its numbers."""
    made = make()
    inner = getattr(made, "activation_post_process", made)
    return seen(made, BATCHES) if type(inner).__name__ == "HistogramObserver" else made


def _short(text: str) -> str:
    text = " ".join(text.split()).replace("|", "\\|")
    return text if len(text) <= _MOST else f"{text[: _MOST - 4].rsplit(' ', 1)[0]} ..."


def sections() -> Iterator[str]:
    """Yields the page's parts, each entry tried."""
    for title, rows in SECTIONS.items():
        yield f"\n## {title}\n\n| entry | read | run | written | |\n|---|---|---|---|---|\n"
        for name, row in rows.items():
            yield _ROW.format(name, *outcome(row))


if __name__ == "__main__":
    PAGE.write_text(HEAD + "".join(sections()), encoding="utf-8")
