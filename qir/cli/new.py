"""`qir new`: a small package to start a plugin from, or a file that describes preprocessing."""

from __future__ import annotations

from pathlib import Path

import click

from qir.cli import verb as shared
from qir.cli.screen import Screen

PREPROCESS = "preprocess"
_KINDS = ("pass", "frontend", "target", "observer", "op", PREPROCESS)


@shared.verb(
    "qir new pass drop-twice",
    "qir new target my-chip -o chip",
    "qir new op soft-threshold --json",
    "qir new preprocess imagenet -o imagenet.toml",
)
@click.argument(
    "kind", type=click.Choice(_KINDS), metavar="pass|frontend|target|observer|op|preprocess"
)
@click.argument("name")
@click.option(
    "-o",
    "--output",
    type=shared.PATH,
    metavar="PATH",
    help="The folder to write, else NAME; of preprocess the file, else NAME.toml.",
)
@shared.as_json
@shared.quiet
def new(kind: str, name: str, output: Path | None, as_json: bool, quiet: bool) -> None:
    """Start a plugin package, or write a preprocess file.

    A package installs, passes its tests, and does something small for you to replace. NAME is the
    plugin's name on command lines: small letters, digits, and hyphens between them; in the name of
    an op they become underscores. A folder that is not empty is not written to.

    `qir new preprocess` writes a file for --preprocess, which says how images become a model's
    input. NAME is imagenet (torchvision's models), keras (Keras' ResNet and VGG) or tf (Keras'
    MobileNet and others); its comments say what each key does.

    --json prints {kind, name, folder, distribution, module, files}; of a preprocess file
    distribution and module are null.
    """
    # Not a plugin, but the other thing that a user starts from a template.
    if kind == PREPROCESS:
        _preprocess(name, output, Screen(quiet=quiet), as_json)
        return
    from qir.cli.templates import entry, package
    from qir.cli.templates.writing import check_name, write

    # Before any file is made: the name becomes a module, a distribution and an entry point.
    check_name(kind, name)
    folder = output if output is not None else Path(name)
    # All texts are made in memory first, so that a fault leaves no half package.
    files = package(kind, name)
    write(folder, files)
    screen = Screen(quiet=quiet)
    # A prefix of its own: a plugin named `onnx` must not hide the package onnx.
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


def _preprocess(name: str, output: Path | None, screen: Screen, as_json: bool) -> None:
    """Writes a preprocess file; raises UsageError for an unknown name, or a file that exists."""
    from qir.atomic import claim, write_text
    from qir.calibration.preprocess import STYLES
    from qir.errors import UsageError

    if name not in STYLES:
        raise UsageError(f"no preprocess style {name!r}: there are {', '.join(STYLES)}")
    path = output if output is not None else Path(f"{name}.toml")
    # There is no --force: a preprocess file is edited by hand, and worth more than its template.
    claim(path, force=False)
    write_text(path, STYLES[name])
    if as_json:
        place = {"folder": str(path.parent), "files": [path.name]}
        screen.json(
            {"kind": PREPROCESS, "name": name, "distribution": None, "module": None, **place}
        )
        return
    screen.line(f"{path}: how images become inputs, for --preprocess", "bold")
    for line in STYLES[name].splitlines():
        screen.line(f"  {line}")
