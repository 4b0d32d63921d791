"""What `qir new` writes: small packages that install, pass their tests, and read well."""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from qir.cli.templates import frontend, observer, op, rewriting, target
from qir.cli.templates.common_files import SHARED

KINDS: Mapping[str, Mapping[str, str]] = {
    "pass": rewriting.FILES,
    "frontend": frontend.FILES,
    "target": target.FILES,
    "observer": observer.FILES,
    "op": op.FILES,
}
"""The files of each kind, by path; `$$name`, `$$module` and `$$Class` stand in paths and texts."""


_ENDINGS = {"frontend": "Frontend", "target": "Target"}


def entry(kind: str, name: str) -> str:
    """The name of the entry point: ops have names of the language, without hyphens."""
    return name.replace("-", "_") if kind == "op" else name


def package(kind: str, name: str) -> dict[str, str]:
    """The files of a new package, by path."""
    module = f"qir_{name.replace('-', '_')}"
    words = {
        "name": name,
        "entry": entry(kind, name),
        "module": module,
        "Class": "".join(word.capitalize() for word in name.split("-")) + _ENDINGS.get(kind, ""),
        "kind": kind,
        "a_kind": f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}",
    }
    own = KINDS[kind]
    files = {**SHARED, **own}
    # Two rounds: the shared files have places for these texts, which have places for the words.
    words |= {key: Template(own[f"={key}"]).substitute(words) for key in ("points", "about", "use")}
    out = {}
    for path, text in files.items():
        # No file starts with "=", which marks texts that are parts of files.
        if not path.startswith("="):
            out[Template(path).substitute(words)] = Template(text).substitute(words)
    return out
