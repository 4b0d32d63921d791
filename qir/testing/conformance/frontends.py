"""What every frontend is held to, on the samples that it writes and on broken copies of them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from qir.errors import QirError
from qir.frontend import Frontend
from qir.ir.graph import Graph
from qir.ir.text import print_graph
from qir.ir.verify import errors
from qir.ledger import Ledger
from qir.reference.interpreter import run
from qir.testing.conformance.checklist import Broken, Check, Checklist, demand, refusing
from qir.testing.random_graphs import sample_inputs

BREAKS = 60
"""Broken copies of each sample."""


def check_frontend(
    given: Frontend | type[Frontend], sources: Iterable[Path] = ()
) -> tuple[Check, ...]:
    """Holds a frontend to its contract, on these models and on its own `samples`."""
    frontend = given() if isinstance(given, type) else given
    checks = Checklist()
    checks.check("has a name and suffixes", partial(_form, frontend))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        found = list(sources)

        def written() -> str:
            found.extend(map(Path, frontend.samples(folder)))
            demand(found, "there is no model to read: samples() writes none")
            return ", ".join(path.name for path in found)

        checks.check("brings samples", written)
        checks.check("accepts what it reads and nothing else", partial(_accepts, frontend, found))
        if not found:
            return checks.told()
        checks.check("reads its samples", partial(_reads, frontend, found))
        checks.check("says where nodes came from", partial(_origins, frontend, found))
        checks.check("the same file is the same graph", partial(_same, frontend, found))
        checks.check("what it reads runs", partial(_runs, frontend, found))
        checks.check("refuses a missing and an empty file", partial(_absent, frontend, found))
        checks.check("refuses broken files in one line", partial(_breaks, frontend, found, folder))
    return checks.told()


def _form(frontend: Frontend) -> str:
    kind = type(frontend)
    demand(isinstance(getattr(kind, "name", None), str), f"{kind.__name__} has no name")
    demand(kind.suffixes, "suffixes is empty: no file would be read by its name")
    for suffix in kind.suffixes:
        right = suffix.startswith(".") and suffix == suffix.lower()
        demand(right, f"suffix {suffix!r} is written {'.' + suffix.strip('.').lower()!r}")
    demand(".qir" not in kind.suffixes, ".qir is the suffix of qir's own files")
    return ", ".join(kind.suffixes)


def _accepts(frontend: Frontend, sources: list[Path]) -> str:
    for source in sources:
        demand(frontend.accepts(source), f"{source.name} is not accepted")
        demand(frontend.accepts(str(source)), f"{source.name} is not accepted as a text")
    for other in ("model.nothing-reads-this", Path("model"), 7, None):
        demand(not frontend.accepts(other), f"{other!r} is accepted")
    return f"{len(sources)} files"


def _load(frontend: Frontend, source: Path) -> Graph:
    before = source.read_bytes() if source.is_file() else b""
    graph = frontend.load(source, Ledger())
    if faults := errors(graph):
        raise Broken(f"{source.name} is read as no program: {faults[0]}")
    after = source.read_bytes() if source.is_file() else b""
    demand(before == after, f"{source.name} has changed by being read")
    return graph


def _reads(frontend: Frontend, sources: list[Path]) -> str:
    sizes = [f"{s.name} {len(_load(frontend, s))} nodes" for s in sources]
    return ", ".join(sizes)


def _origins(frontend: Frontend, sources: list[Path]) -> None:
    for source in sources:
        for node in _load(frontend, source):
            made_up = node.op in ("constant", "output") or node.origins
            demand(made_up, f"{source.name}: node {node.name} ({node.op}) has no origins")


def _same(frontend: Frontend, sources: list[Path]) -> None:
    for source in sources:
        a, b = (print_graph(_load(frontend, source), origins=True) for _ in range(2))
        demand(a == b, f"{source.name} is read as two graphs")


def _runs(frontend: Frontend, sources: list[Path]) -> str:
    for source in sources:
        graph = _load(frontend, source)
        made = run(graph, sample_inputs(graph, 0))
        demand(set(made) == set(graph.outputs), f"{source.name}: outputs are missing")
    return f"{len(sources)} by the reference"


def _absent(frontend: Frontend, sources: list[Path]) -> None:
    source = sources[0]
    missing = source.with_name(f"missing{source.suffix}")
    with refusing("a file that is not there"):
        frontend.load(missing, Ledger())
    empty = source.with_name(f"empty{source.suffix}")
    empty.write_bytes(b"")
    with refusing("an empty file"):
        frontend.load(empty, Ledger())


def _breaks(frontend: Frontend, sources: list[Path], folder: Path) -> str:
    refused = tried = 0
    for number, source in enumerate(sources):
        if not source.is_file():
            continue
        whole = source.read_bytes()
        path = folder / f"broken{source.suffix}"
        chance = random.Random(number)
        for i in range(BREAKS):
            path.write_bytes(_broken(whole, chance, i))
            tried += 1
            what = f"{source.name}, broken by random.Random({number}), copy {i},"
            try:
                graph = frontend.load(path, Ledger())
            except QirError as error:
                refused += 1
                lines = str(error).splitlines()
                demand(len(lines) == 1, f"{what} is refused in {len(lines)} lines, not in one")
            except Exception as error:
                said = f"{what} raises {type(error).__name__}: {error}; InputError is for that"
                raise Broken(said) from error
            else:
                faults = errors(graph)
                demand(not faults, f"{what} is read as no program: {faults and faults[0]}")
    return f"{tried} broken files, {refused} refused, {tried - refused} still programs"


def _broken(whole: bytes, chance: random.Random, number: int) -> bytes:
    """Returns a file cut short, or with some bytes that are others."""
    if number % 3 == 0:
        return whole[: chance.randrange(len(whole))]
    out = bytearray(whole)
    for _ in range(1 + chance.randrange(4)):
        out[chance.randrange(len(out))] = chance.randrange(256)
    return bytes(out)


__all__ = ["check_frontend"]
