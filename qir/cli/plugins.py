"""`qir plugins`: what is installed, who brings it, whether it works, and whether it is right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.inspect.plugins import PluginSummary
    from qir.testing import Check

_MARKS = {"ok": "green", "FAILED": "red", "not checked": "dim"}
_STYLES = {"ok": "green", "not usable": "yellow"}


@shared.verb(
    "qir plugins",
    "qir plugins --kind pass --json > passes.json",
    "qir plugins check prune",
)
@click.argument("words", nargs=-1, metavar="[check NAME]...")
@click.option("--kind", metavar="KIND", help="Only this kind, such as pass, target or observer.")
@shared.as_json
@shared.quiet
@click.pass_context
def plugins(
    context: click.Context, words: tuple[str, ...], kind: str | None, as_json: bool, quiet: bool
) -> None:
    """List the plugins that are installed, or check some.

    Each is loaded to see whether it works: `clashing` ones are claimed by two distributions, `not
    usable` ones need something that is not installed, those for another API ask for another qir.
    Ends with status 1 where one is clashing, for another API, or broken.

    With check NAME ...: checks each plugin of these names against the contract of its kind, and
    ends with status 1 if one fails. The checks run the plugin on small models of every sort.

    --json prints {api, plugins: [{kind, name, distribution, version, place, state, fault}]}, or,
    with check, {api, checked: [{kind, name, distribution, version, passed, checks: [{name, passed,
    detail, checked}]}]}; checked is false where nobody could look.
    """
    from qir import registry
    from qir.errors import UsageError
    from qir.inspect.plugins import plugins as installed

    screen = Screen(quiet=quiet)
    if not words:
        found = installed(kind or "")
        if as_json:
            screen.json({"api": registry.API, "plugins": [p.to_json() for p in found]})
        else:
            _show(screen, found)
        # A plugin for a framework that is not installed is as it should be.
        if any(p.state not in ("ok", "not usable") for p in found):
            context.exit(1)
        return
    if words[0] != "check" or len(words) < 2:
        raise UsageError(f"{' '.join(words)!r}: write qir plugins, or qir plugins check NAME")
    found = _named(words[1:], kind or "")
    checked = []
    with screen.progress("checking") as tell:
        for number, one in enumerate(found):
            tell(number, len(found))
            checked.append((one, _check(one)))
    if as_json:
        rows = [_json(one, checks) for one, checks in checked]
        screen.json({"api": registry.API, "checked": rows})
    else:
        for one, checks in checked:
            _show_checks(screen, one, checks)
    if not all(check.passed for _, checks in checked for check in checks):
        context.exit(1)


def _named(names: Sequence[str], kind: str) -> tuple[PluginSummary, ...]:
    """Returns the plugins of these names, of any kind or of one; raises UsageError for a name that
    none has."""
    import difflib

    from qir import registry
    from qir.errors import UsageError
    from qir.inspect.plugins import group_of, look

    groups = [group_of(kind)] if kind else list(registry.KINDS)
    found: list[PluginSummary] = []
    for name in names:
        having = [group for group in groups if name in registry.names(group)]
        if not having:
            every = sorted({known for group in groups for known in registry.names(group)})
            near = difflib.get_close_matches(name, every, 1)
            hint = f"did you mean {near[0]!r}?" if near else "qir plugins lists what there is"
            raise UsageError(f"no {kind or 'plugin'} {name!r}; {hint}")
        found += [look(group, name) for group in having]
    return tuple(found)


def _check(one: PluginSummary) -> Sequence[Check]:
    from qir.testing import check_plugin

    return check_plugin(one.kind, one.name)


def _json(one: PluginSummary, checks: Sequence[Check]) -> dict[str, object]:
    return {
        "kind": one.kind,
        "name": one.name,
        "distribution": one.distribution,
        "version": one.version,
        "passed": all(check.passed for check in checks),
        "checks": [check.to_json() for check in checks],
    }


def _show(screen: Screen, found: Sequence[PluginSummary]) -> None:
    rows = [
        (
            p.kind,
            p.name,
            p.distribution,
            p.version,
            StyledText(p.state, _STYLES.get(p.state, "red")),
            p.fault or p.place,
        )
        for p in found
    ]
    columns = (
        Column("kind"),
        Column("name"),
        Column("distribution", fit="drop"),
        Column("version", fit="drop"),
        Column("state"),
        Column("where, or what is wrong", fit="wrap"),
    )
    screen.table(columns, rows)
    bad = sum(p.state not in ("ok", "not usable") for p in found)
    screen.line(plural(len(found), "plugin") + (f", {bad} of them wrong" if bad else ""))


def _show_checks(screen: Screen, one: PluginSummary, checks: Sequence[Check]) -> None:
    # Of clashing plugins both distributions are named, with commas, and so are their versions.
    pairs = zip(one.distribution.split(", "), one.version.split(", "), strict=False)
    screen.line(f"{one.kind} {one.name}, of {' and '.join(map(' '.join, pairs))}", "bold")
    rows = [(StyledText(c.mark, _MARKS[c.mark]), c.name, c.detail) for c in checks]
    columns = (Column(""), Column("check", fit="wrap"), Column("seen", fit="wrap"))
    screen.table(columns, rows)
    failed = sum(not check.passed for check in checks)
    checked = [check for check in checks if check.checked]
    if failed:
        screen.line(f"{failed} of {plural(len(checks), 'check')} failed", "red")
    else:
        unchecked_count = len(checks) - len(checked)
        more = f", {unchecked_count} could not be made" if unchecked_count else ""
        screen.line(f"{plural(len(checked), 'check')} passed{more}", "green")
