"""Reads and writes `.qir` files: a graph with its profiles, ledger and journal."""

from __future__ import annotations

from pathlib import Path

from qir.errors import InputError, ProfileError
from qir.ir import file
from qir.ir.carried_profiles import named_profiles
from qir.ir.graph import Graph
from qir.ledger import Change, Ledger
from qir.profiles import profile_in, profile_names, profile_text
from qir.profiles.library import parse_profile
from qir.rewrite.runner.journal import Journal
from qir.source import SUFFIX as SUFFIX


def read_qir(path: Path, ledger: Ledger) -> Graph:
    """Reads a `.qir` file; the graph carries those of its profiles that are not installed."""
    bundle = file.read(path)
    installed = profile_names()
    for name, text in bundle.profiles.items():
        # An installed profile is the newer account of its runtime, so it takes the file's place.
        if name not in installed:
            try:
                bundle.graph.carry_profile(parse_profile(name, text))
            except ProfileError as error:
                needs = f"it carries the profile {name}, which cannot be read: {error}"
                raise ProfileError(f"{path}: {needs}") from error
        elif profile_text(name) != text:
            message = f"profile {name} says something else here than where {path.name} was written"
            ledger.add(Change.UNVERIFIED, "load", bundle.graph.name, message)
    return bundle.graph


def read_ledger(source: str | Path) -> Ledger:
    """Reads the ledger of a `.qir` file; it is empty for other files."""
    path = Path(source)
    if path.suffix.lower() != SUFFIX:
        return Ledger()
    text = file.read(path).ledger
    try:
        return Ledger.from_json(text) if text else Ledger()
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: its ledger cannot be read: {error}") from error


def read_journal(source: str | Path) -> Journal:
    """Reads the journal of passes in a `.qir` file; it is empty for other files."""
    path = Path(source)
    if path.suffix.lower() != SUFFIX:
        return Journal()
    try:
        return Journal.from_json(file.texts(path).get("journal", ""))
    except (ValueError, TypeError) as error:
        raise InputError(f"{path}: its journal cannot be read: {error}") from error


def write_qir(graph: Graph, path: Path, ledger: Ledger, journal: Journal | None = None) -> None:
    """Writes a graph with the profiles that it names, its ledger and its journal."""
    profiles = {name: profile_in(graph, name).text for name in named_profiles(graph)}
    # Only those that the graph names are read: a broken one of a plugin must not stop others.
    for name in sorted(profiles.keys() & set(profile_names())):
        if profiles[name] != profile_text(name):
            raise ProfileError(
                f"{path.name}: the graph carries a profile {name}, and another of that name is "
                "installed, which files are read with; give it another name"
            )
    passes = journal.to_json() if journal is not None else ""
    file.write(path, file.Bundle(graph, profiles, ledger.to_json(), passes))
