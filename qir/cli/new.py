"""`qir new`: a small package to start a plugin from."""

from __future__ import annotations

from pathlib import Path

import click

from qir.cli import verb as shared
from qir.cli.screen import Screen

_KINDS = ("pass", "frontend", "target", "observer", "op")


@shared.verb(
    "qir new pass drop-twice",
    "qir new target my-chip -o chip",
    "qir new op soft-threshold --json",
)
@click.argument("kind", type=click.Choice(_KINDS), metavar="pass|frontend|target|observer|op")
@click.argument("name")
@click.option(
    "-o", "--output", type=shared.PATH, metavar="DIR", help="The folder to write; else NAME."
)
@shared.as_json
@shared.quiet
def new(kind: str, name: str, output: Path | None, as_json: bool, quiet: bool) -> None:
    """Write a small package to start a plugin from.

    It installs, passes its tests, and does something small for you to replace. NAME is the
    plugin's name on command lines: small letters, digits, and hyphens between them; in the name of
    an op they become underscores. A folder that is not empty is not written to.

    --json prints {kind, name, folder, distribution, module, files}.
    """
    from qir.cli.templates import entry, package
    from qir.cli.templates.writing import check_name, write

    check_name(kind, name)
    folder = output if output is not None else Path(name)
    files = package(kind, name)
    write(folder, files)
    screen = Screen(quiet=quiet)
    module = f"qir_{name.replace('-', '_')}"
    if as_json:
        screen.json(
            {
                "kind": kind,
                "name": name,
                "folder": str(folder),
                "distribution": f"qir-{name}",
                "module": module,
                "files": list(files),
            }
        )
        return
    screen.line(f"{folder}: {'an' if kind[0] == 'o' else 'a'} {kind}", "bold")
    for path in files:
        screen.line(f"  {path}")
    screen.line()
    screen.line(f"  pip install -e {folder}")
    screen.line(f"  qir plugins check {entry(kind, name)}")
