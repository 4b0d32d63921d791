"""`qir passes`: the passes there are, and all about one."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.rewrite import Pass
    from qir.rewrite.runner.options import Option

_SHORT = 20  # letters of a default in the list; `qir passes NAME` prints it whole


@shared.verb(
    "qir passes",
    "qir passes group",
    "qir passes --json > passes.json",
)
@click.argument("name", required=False)
@shared.as_json
def passes(name: str | None, as_json: bool) -> None:
    """List the passes that are installed, or describe one.

    With NAME: its options, what it requires of a graph and ensures, how far it may move numbers,
    and its rewrites. A plugin that cannot be loaded is listed with the reason.

    --json prints {passes: [{name, from, doc, about, options: [{name, kind, default, doc}], nested,
    requires: [{name, doc}], ensures, tolerance, rewrites, fault}]}.
    """
    from qir import registry

    names = (name,) if name else registry.names("qir.passes")
    rows = [_told(each, name is not None) for each in names]
    screen = Screen()
    if as_json:
        screen.json({"passes": rows})
    elif name:
        _show_one(screen, rows[0])
    else:
        _show(screen, rows)


def _told(name: str, asked: bool) -> dict[str, object]:
    from qir import registry
    from qir.errors import PluginError
    from qir.rewrite.runner.options import find_pass

    kind: type[Pass] | None = None
    fault = ""
    try:
        kind = find_pass(name)
    except PluginError as error:
        # A list goes on past a plugin that is broken; of the one that was asked for nothing else is
        # left.
        if asked:
            raise
        fault = str(error)
    head: dict[str, object] = {"name": name, "from": registry.owner("qir.passes", name)}
    return {**head, **(_about(kind) if kind else _unknown()), "fault": fault}


def _about(kind: type[Pass]) -> dict[str, object]:
    from qir.rewrite.patterns.rewriting import PatternPass
    from qir.rewrite.runner.options import options
    from qir.rewrite.runner.properties import find_property

    text = inspect.cleandoc(kind.__doc__ or "")
    properties = {
        key: [{"name": n, "doc": find_property(n, f"pass {kind.name}").doc} for n in names]
        for key, names in (("requires", kind.requires), ("ensures", kind.ensures))
    }
    # A pass written in Python has no rewrites, but may name the places at which it acts.
    rewrites = kind.rewrites if issubclass(kind, PatternPass) else kind.places
    return {
        "doc": " ".join(text.partition("\n\n")[0].split()),
        "about": [" ".join(part.split()) for part in text.split("\n\n")[1:]],
        "options": [_option(row) for row in options(kind)],
        "nested": kind.nested,
        **properties,
        "tolerance": str(kind.tolerance),
        "rewrites": [r.name for r in rewrites],
    }


def _unknown() -> dict[str, object]:
    lists: dict[str, object] = {"about": [], "options": [], "nested": False}
    rest: dict[str, object] = {"requires": [], "ensures": [], "tolerance": "", "rewrites": []}
    return {"doc": "", **lists, **rest}


def _option(row: Option) -> dict[str, object]:
    return {"name": row.name, "kind": row.kind, "default": row.default, "doc": row.doc}


def _rows(value: object) -> list[dict[str, str]]:
    assert isinstance(value, list)
    return value


def _show(screen: Screen, rows: list[dict[str, object]]) -> None:
    table = []
    for row in rows:
        given = [
            f"{o['name']}={_short(o['default'])}" if o["default"].strip('"[]') else o["name"]
            for o in _rows(row["options"])
        ]
        doc = StyledText(str(row["fault"]), "red") if row["fault"] else StyledText(str(row["doc"]))
        table.append((str(row["name"]), ", ".join(given), doc))
    columns = (
        Column("pass"),
        Column("options", fit="wrap"),
        Column("what it does", fit="wrap"),
    )
    screen.line(plural(len(rows), "pass", "passes"), "bold")
    screen.table(columns, table)
    screen.line()
    screen.line("qir passes NAME shows one; qir opt MODEL -p 'NAME{option=value}' runs one", "dim")


def _short(default: str) -> str:
    return default if len(default) <= _SHORT else "..."


def _show_one(screen: Screen, row: dict[str, object]) -> None:
    screen.line(f"{row['name']}  of {row['from']}", "bold")
    about = row["about"]
    assert isinstance(about, list)
    for part in (row["doc"], *about):
        screen.facts({"": str(part)})
    facts = {
        "may move numbers": str(row["tolerance"]),
        "runs on": "bodies too, each by itself" if row["nested"] else "the whole graph at once",
        **{f"requires {p['name']}": p["doc"] for p in _rows(row["requires"])},
        **{f"ensures {p['name']}": p["doc"] for p in _rows(row["ensures"])},
    }
    screen.line()
    screen.facts(facts)
    columns = (
        Column("option"),
        Column("is"),
        Column("default"),
        Column("what it says", fit="wrap"),
    )
    rows = [(o["name"], o["kind"], o["default"], o["doc"]) for o in _rows(row["options"])]
    screen.table(columns, rows, title="options")
    rewrites = row["rewrites"]
    assert isinstance(rewrites, list)
    screen.table(
        (Column("", fit="wrap"),), [(", ".join(rewrites),)] if rewrites else [], title="rewrites"
    )
