"""Finds the rewrite after which a command calls a model bad."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from qir import pipeline
from qir.arguments import checked
from qir.errors import UsageError
from qir.ir.graph import Graph
from qir.qir_files import SUFFIX
from qir.registry import DEFAULT_TARGET
from qir.rewrite import Pass
from qir.rewrite.runner.bisection import Culprit, Trial, bisect
from qir.rewrite.runner.options import parse_passes
from qir.target import target as named_target

UNABLE = (125, 126, 127)
"""What a command ends with that could not tell, could not be run, or is not there."""
PLACE = "{}"
"""A word of the command that stands for the file."""


@dataclass(frozen=True, slots=True)
class BisectedModel:
    """What a search for a faulty rewrite found."""

    passes: tuple[Pass, ...]
    culprit: Culprit | None
    """The first rewrite after which the model is bad; None where it is good after all."""
    trials: tuple[Trial, ...]


@checked
def bisect_model(
    graph: Graph,
    passes: str | Iterable[Pass | str],
    command: str,
    *,
    target: str | None = None,
    tell: Callable[[Trial, tuple[Pass, ...]], None] = lambda trial, passes: None,
) -> BisectedModel:
    """Finds the first rewrite after which a command, given the model's file, does not end with 0.

    The file takes the place of `{}` in the command, or comes last; it is a `.qir` file, or one of
    the target's. `tell` is called after each trial. Raises UsageError where the model is bad before
    any pass has run, or the command cannot be run or cannot tell.
    """
    words = _words(command)
    listed = [passes] if isinstance(passes, str) else passes
    steps = tuple(
        step for one in listed for step in (parse_passes(one) if isinstance(one, str) else (one,))
    )
    suffix, trials = _suffix(target), list[Trial]()

    def keep(trial: Trial) -> None:
        trials.append(trial)
        tell(trial, steps)

    with tempfile.TemporaryDirectory(prefix="qir-bisect-") as folder:

        def is_good(candidate: Graph) -> bool:
            path = Path(folder) / f"{len(trials):02d}{suffix}"
            failure = _check(words, candidate, path, target)
            # A model that is bad from the start has no rewrite to blame.
            if failure and not trials:
                reason = "fails before any pass has run, so there is nothing to search"
                raise UsageError(f"`check` {reason}: {failure}")
            return not failure

        culprit = bisect(graph, steps, is_good, tell=keep)
    return BisectedModel(steps, culprit, tuple(trials))


def _words(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise UsageError(f"`check` {command!r}: {error}") from None
    if not words:
        raise UsageError("`check` names no command")
    return words


def _suffix(target: str | None) -> str:
    if target is None:
        return SUFFIX
    if not (suffix := named_target(target).suffix):
        raise UsageError(f"target {target} writes no files; leave `target` out for .qir files")
    return suffix


def _check(words: list[str], graph: Graph, path: Path, target: str | None) -> str:
    """Writes a graph and asks the command about it; how it failed, or nothing where it is good."""
    # Nothing is refused for loss: the command alone decides what is good.
    pipeline.save(graph, path, target=target or DEFAULT_TARGET, lossy=True, force=True)
    # No shell takes part, so that names of files need no quoting.
    substituted = [word.replace(PLACE, str(path)) for word in words]
    command = substituted if substituted != words else [*words, str(path)]
    try:
        # Without input: a command that asks something would wait for ever.
        completed = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, check=False
        )
    except OSError as error:
        raise UsageError(f"`check`: cannot run {words[0]}: {error.strerror or error}") from None
    last_line = completed.stderr.decode(errors="replace").strip().splitlines()[-1:]
    detail = f": {last_line[0]}" if last_line else ""
    # Taken for bad, it would put the blame on a rewrite that did nothing wrong.
    if completed.returncode in UNABLE:
        raise UsageError(
            f"`check`: {words[0]} ends with {completed.returncode}, it cannot tell{detail}"
        )
    # One model on disk at a time, as there may be dozens of trials of a large one.
    path.unlink(missing_ok=True)
    if completed.returncode < 0:
        return f"{words[0]} is ended by signal {-completed.returncode}{detail}"
    return f"{words[0]} ends with {completed.returncode}{detail}" if completed.returncode else ""
