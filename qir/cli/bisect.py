"""`qir bisect`: which rewrite of which pass breaks a model."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import pass_options
from qir.cli import verb as shared
from qir.cli.models import open_model
from qir.cli.screen import Screen, plural
from qir.registry import DEFAULT_TARGET

if TYPE_CHECKING:
    from qir.ir.graph import Graph
    from qir.rewrite import Pass
    from qir.rewrite.runner.bisection import Culprit, Trial

UNABLE = (125, 126, 127)
"""What a command ends with that could not tell, could not be run, or is not there."""
PLACE = "{}"
"""A word of the command that stands for the file."""


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
    from qir.errors import UsageError
    from qir.rewrite.runner.bisection import bisect as search

    try:
        words = shlex.split(check)
    except ValueError as error:
        raise UsageError(f"--check {check!r}: {error}") from None
    if not words:
        raise UsageError("--check names no command")
    steps = pass_options.parse(texts)
    suffix = _suffix(target)
    graph = open_model(model)
    screen = Screen(quiet=quiet or as_json)
    trials: list[Trial] = []

    def tell(trial: Trial) -> None:
        trials.append(trial)
        screen.line(_trial_text(trial, steps), "green" if trial.good else "yellow")

    with tempfile.TemporaryDirectory(prefix="qir-bisect-") as folder:

        def good(candidate: Graph) -> bool:
            path = Path(folder) / f"{len(trials):02d}{suffix}"
            failure = _check(words, candidate, path, target)
            # A model that is bad from the start has no rewrite to blame.
            if failure and not trials:
                reason = "fails before any pass has run, so there is nothing to search"
                raise UsageError(f"--check {reason}: {failure}")
            return not failure

        with pass_options.surroundings():
            found = search(graph, steps, good, tell=tell)
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


def _suffix(target: str | None) -> str:
    from qir.errors import UsageError
    from qir.qir_files import SUFFIX
    from qir.target import target as named

    if target is None:
        return SUFFIX
    if not (suffix := named(target).suffix):
        raise UsageError(f"target {target} writes no files; leave --target out for .qir files")
    return suffix


def _check(words: list[str], graph: Graph, path: Path, target: str | None) -> str:
    """Writes a graph and asks the command about it; how it failed, or nothing where it is good."""
    from qir import pipeline
    from qir.errors import UsageError

    pipeline.save(graph, path, target=target or DEFAULT_TARGET, lossy=True, force=True)
    substituted = [word.replace(PLACE, str(path)) for word in words]
    command = substituted if substituted != words else [*words, str(path)]
    try:
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise UsageError(f"--check: cannot run {words[0]}: {error.strerror or error}") from None
    last_line = completed.stderr.decode(errors="replace").strip().splitlines()[-1:]
    detail = f": {last_line[0]}" if last_line else ""
    if completed.returncode in UNABLE:
        raise UsageError(
            f"--check: {words[0]} ends with {completed.returncode}, it cannot tell{detail}"
        )
    # One model on disk at a time, as there may be dozens of trials of a large one.
    path.unlink(missing_ok=True)
    if completed.returncode < 0:
        return f"{words[0]} is ended by signal {-completed.returncode}{detail}"
    return f"{words[0]} ends with {completed.returncode}{detail}" if completed.returncode else ""


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
