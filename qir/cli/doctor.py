"""`qir doctor`: what QIR finds on this machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.screen import PAGE, Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from qir.inspect.environment import LoadedPlugin
    from qir.inspect.measurements import Runtime


def _state(plugin: LoadedPlugin) -> StyledText:
    if not plugin.fault:
        return StyledText("ok", "green")
    return StyledText("not usable", "yellow") if plugin.missing else StyledText("broken", "red")


def _show_runtimes(screen: Screen, known: Sequence[Runtime]) -> None:
    shown = ["-" if r.name == r.profile else r.name for r in known]  # files without a probe
    # Without a probe a runtime has only the name of its profile, which the last column shows.
    rows = [
        (name, r.version or "", _known(r), r.profile) for name, r in zip(shown, known, strict=True)
    ]
    columns = (
        Column("runtime"),
        Column("version", fit="drop"),
        Column("its bytes are", fit="wrap"),
        Column("profile"),
    )
    screen.table(columns, rows, title="runtimes")


def _known(runtime: Runtime) -> StyledText:
    styles = {"measured": "green", "assumed": "yellow", "unknown": "red"}
    state_text = str(runtime.state)
    if runtime.evidence:
        state_text = f"{runtime.why}: {runtime.state}, on {runtime.evidence}"
    # A date means that `qir probe` ran on this machine: what it found is newer than the file's
    # evidence.
    if runtime.date:
        state_text += (
            f" {runtime.date}: {plural(runtime.drifts, 'drift') if runtime.drifts else 'as filed'}"
        )
    return StyledText(state_text, "red" if runtime.drifts else styles.get(runtime.state, "dim"))


def _show_plugins(screen: Screen, plugins: Sequence[LoadedPlugin], every: bool) -> None:
    """Shows each plugin; else those that fail, and how many of each kind work."""
    rows = [
        (p.kind, p.name, _state(p), p.distribution, p.fault or p.place)
        for p in plugins
        if every or p.fault
    ]
    # Dozens of plugins work; a reader of `doctor` looks for those that do not.
    if not every:
        works = Counter(p.kind for p in plugins if not p.fault)
        screen.facts({"plugins": ", ".join(f"{count} {kind}" for kind, count in works.items())})
    columns = (
        Column("kind"),
        Column("name"),
        Column(""),
        Column("from", fit="drop"),
        Column("where, or what is wrong", fit="wrap"),
    )
    if rows:
        screen.table(columns, rows, title="plugins" if every else "plugins that do not work")


def _show_rules(screen: Screen) -> None:
    from qir.numerics.scale_rules import printed_rules

    rules = [(name, rule.types_text, rule.text) for name, rule in printed_rules().items()]
    named = (Column("--scales"), Column("quantized types"), Column("formula", fit="wrap"))
    screen.table(named, rules, title="scale rules")


@shared.verb("qir doctor", "qir doctor --all", "qir doctor --json > machine.json")
@click.option("--all", "every", is_flag=True, help="List every plugin, profile and named rule.")
@shared.as_json
@click.pass_context
def doctor(context: click.Context, every: bool, as_json: bool) -> None:
    """Show what QIR finds on this machine.

    Frameworks with their versions, plugins, profiles, the processor and its threads. Plugins are
    loaded to see whether they work; frameworks that none of them needs are not. What a runtime
    computes is measured, where `qir probe` did so here; assumed, where only a profile says it; or
    unknown. Without --all, plugins that work are only counted, and runtimes that are not installed
    left out. Ends with status 1 where a plugin is broken.

    --json prints {qir, python, platform, libraries, frameworks, plugins: [{kind, name,
    distribution, place, fault, missing}], features, isa, threads, kernels, runtimes: [{name,
    version, profile, state, date, drifts, evidence}], scales: [{name, codes, formula}]}.
    """
    from qir import __version__
    from qir.inspect import environment
    from qir.inspect.measurements import runtimes
    from qir.numerics.scale_rules import printed_rules

    surroundings = environment(__version__)
    known = runtimes()
    screen = Screen(elsewhere=PAGE)
    if as_json:
        scales = [
            {"name": name, "codes": rule.types_text, "formula": rule.text}
            for name, rule in printed_rules().items()
        ]
        runtime_rows = {"runtimes": [asdict(r) for r in known], "scales": scales}
        screen.json({**surroundings.to_json(), **runtime_rows})
    else:
        screen.line(f"qir {surroundings.qir}", "bold")
        libraries = ", ".join(
            f"{name} {v or 'missing'}" for name, v in surroundings.libraries.items()
        )
        features = ", ".join(surroundings.features) or "none that QIR knows"
        screen.facts(
            {
                "python": f"{surroundings.python} ({surroundings.platform})",
                "libraries": libraries,
                "processor": features,
                "kernels": surroundings.kernels,
                "threads": str(surroundings.threads),
            }
        )
        rows = [
            (name, version or StyledText("not installed", "dim"))
            for name, version in surroundings.frameworks.items()
        ]
        screen.table((Column("framework"), Column("version")), rows, title="frameworks")
        _show_plugins(screen, surroundings.plugins, every)
        present = [r for r in known if every or (r.version and r.name != r.profile)]
        _show_runtimes(screen, present)
        if every:
            _show_rules(screen)
        else:
            more = plural(len(known) - len(present), "profile")
            screen.line()
            screen.line(f"{more} of runtimes that are not here:")
            screen.line("qir doctor --all lists them, and all rules")
        if surroundings.faults:
            screen.line()
            screen.line(f"{plural(surroundings.faults, 'fault')} found", "red")
    if surroundings.faults:
        context.exit(1)
