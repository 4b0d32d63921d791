"""`qir bisect`: which rewrite of which pass breaks a model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import pass_options
from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Screen, plural

if TYPE_CHECKING:
    from qir.rewrite import Pass
    from qir.rewrite.runner.bisection import Culprit, Trial


@shared.verb(
    "qir bisect model.onnx --passes 'prune; fold-batch-norm' --check 'grep -q conv2d'",
    "qir bisect model.onnx -p fold-batch-norm --target onnxruntime --check 'grep -q Relu {}'",
)
@shared.model
@pass_options.passes
@click.option(
    "--check",
    required=True,
    metavar="CMD",
    help="Command that gets the path of a model, in the place of {} or last; it ends with 0 if the"
    " model is good, with 125 if it cannot decide. No shell reads it.",
)
@click.option(
    "--target",
    metavar="NAME",
    help="Write the models in this target's kind of file; .qir files without it.",
)
@shared.as_json
@shared.quiet
@click.pass_context
def bisect(
    context: click.Context,
    model: Path,
    texts: tuple[str, ...],
    check: str,
    target: str | None,
    as_json: bool,
    quiet: bool,
) -> None:
    """Find the rewrite after which a model is no longer good.

    Passes are bisected first, then the rewrites of the pass that was found; the result is checked
    once more. A command that crashes counts as bad. Ends with status 1 if a rewrite is found, 0 if
    the model is good after all passes.

    --json prints {file, check, passes, found: {index, pass, rewrite, node, number, rewrites, whole,
    origins} or null, trials: [{passes, rewrites, good}]}.
    """
    from qir.workflows import bisect_model

    graph = open_model(model)
    screen = Screen(quiet=quiet or as_json)

    def tell(trial: Trial, passes: tuple[Pass, ...]) -> None:
        screen.line(_trial_text(trial, passes), "green" if trial.good else "yellow")

    with pass_options.surroundings():
        bisected = bisect_model(graph, texts, check, target=target, tell=tell)
    found, steps, trials = bisected.culprit, bisected.passes, bisected.trials
    if as_json:
        rows = [{"passes": t.passes, "rewrites": t.rewrites, "good": t.good} for t in trials]
        names = [pass_options.text_of(one) for one in steps]
        head = {"file": str(model), "check": check, "passes": names}
        screen.json({**head, "found": _json(found) if found else None, "trials": rows})
    elif found is None:
        screen.line(f"good after {plural(len(steps), 'pass', 'passes')}", "bold")
    else:
        _show(screen, found)
    context.exit(1 if found else 0)


def _trial_text(trial: Trial, steps: tuple[Pass, ...]) -> str:
    word = "good" if trial.good else "bad"
    if not trial.passes:
        return f"{word:5} the model as it is"
    name = steps[trial.passes - 1].name
    if trial.rewrites is None:
        return f"{word:5} after {plural(trial.passes, 'pass', 'passes')}, up to {name}"
    return f"{word:5} after {plural(trial.rewrites, 'rewrite')} of {name}"


def _json(found: Culprit) -> dict[str, object]:
    return {
        "index": found.index,
        "pass": found.text,
        "rewrite": found.step.rewrite,
        "node": found.step.node,
        "number": found.step.number,
        "rewrites": found.rewrites,
        "whole": found.whole,
        "origins": [str(origin) for origin in found.step.origins],
    }


def _show(screen: Screen, found: Culprit) -> None:
    step = found.step
    number = "the pass as a whole" if found.whole else f"{step.number:,} of {found.rewrites:,}"
    facts = {
        "pass": f"{found.text}, number {found.index + 1}",
        "rewrite": step.rewrite,
        "at": step.node,
        "number": number,
        "came from": "; ".join(str(origin) for origin in step.origins),
    }
    screen.line()
    screen.line("the model turns bad by", "bold")
    screen.facts({name: text for name, text in facts.items() if text})
