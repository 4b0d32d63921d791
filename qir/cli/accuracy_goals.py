"""Goals of accuracy and recipes on the command line: their options, and the search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.comparison import number
from qir.cli.screen import plural

if TYPE_CHECKING:
    from qir.mixed_precision import Goal, SearchResult
    from qir.recipe import Recipe
    from qir.workflows.quantization import FilesNextTo

_SAID = (
    "target",
    "profile",
    "granularity",
    "range_rule",
    "scales",
    "corrections",
    "float_type",
    "io",
)
"""The parameters that a recipe says, named as its fields."""


def options(function: shared.Function) -> shared.Function:
    """Adds the options of goals and recipes to a verb."""
    for option in (
        click.option(
            "--recipe",
            "recipe_file",
            type=shared.PATH,
            metavar="FILE",
            help="Quantize as a recipe says, which --drop or --sqnr wrote; --rule adds to it.",
        ),
        click.option(
            "--sqnr",
            type=float,
            metavar="DECIBELS",
            help="Keep the fewest ops in float with which outputs keep this SQNR on --data.",
        ),
        click.option(
            "--drop",
            type=float,
            metavar="POINTS",
            help="Keep the fewest ops in float with which top-1 loses at most so many points on"
            " --data with --labels.",
        ),
    ):
        function = option(function)
    return function


@dataclass(frozen=True)
class GoalRequest:
    """A goal as it was asked for, and the files of the search."""

    drop: float | None
    sqnr: float | None
    labels: str | None
    output: Path
    calibrates: bool = False
    """Whether statistics are found on the way."""

    @property
    def goal(self) -> bool:
        """Tells whether there is a goal to search for."""
        return self.drop is not None or self.sqnr is not None

    @property
    def wanted(self) -> Goal | None:
        """Returns the goal, if there is one."""
        from qir.mixed_precision import Goal

        return Goal(self.drop, self.sqnr) if self.goal else None

    @property
    def _files(self) -> FilesNextTo:
        from qir.workflows.quantization import FilesNextTo

        return FilesNextTo(self.output)

    @property
    def recipe(self) -> Path:
        """Returns where the recipe is written."""
        return self._files.recipe

    @property
    def trials(self) -> Path:
        """Returns the file of trials, from which a search resumes."""
        return self._files.trials

    @property
    def statistics(self) -> Path:
        """Returns where statistics are kept until the output is written."""
        return self._files.statistics

    def require(
        self, data: Path | None, *, alone: bool, feeds: bool, checked: bool, force: bool
    ) -> None:
        """Raises UsageError where the goal lacks what it needs, or a file is in its way."""
        from qir.atomic import claim
        from qir.errors import UsageError
        from qir.workflows.quantization import GOAL_NEEDS_SAMPLES

        if self.labels is not None and self.drop is None and not checked:
            raise UsageError("--labels needs --drop or --check")
        # What an interrupted run left is continued, so that it is in nobody's way.
        if self.calibrates:
            claim(self.statistics, force=True)
        if not self.goal:
            return
        # Goal checks its numbers as it is made: this raises before the model is read.
        _ = self.wanted
        if self.drop is not None and self.labels is None:
            raise UsageError("--drop needs --labels, the class of each sample of --data")
        if alone or feeds or data is None:
            raise UsageError(GOAL_NEEDS_SAMPLES)
        claim(self.recipe, force=force)
        # Trials are taken up again, so those that are there are no obstacle.
        claim(self.trials, force=True)


def read_recipe(start: Recipe, path: Path | None) -> Recipe:
    """Reads a recipe, whose rules come before those of the command line.

    Raises UsageError where an option says what the recipe says.
    """
    from qir.errors import UsageError
    from qir.recipe import Recipe

    if path is None:
        return start
    context = click.get_current_context()
    for parameter in context.command.params:
        source = context.get_parameter_source(str(parameter.name))
        # Only what stands on the command line contradicts a recipe: defaults do not.
        if parameter.name in _SAID and source is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"{parameter.opts[0]}: {path} says it; leave the option out")
    for name in ("dynamic", "weights"):
        if context.params.get(name):
            raise UsageError(f"--recipe is for quantizing with samples, not --{name}")
    recipe = Recipe.load(path)
    # Later rules win: those of the command line correct the recipe.
    return replace(recipe, rules=(*recipe.rules, *start.rules))


@contextmanager
def continued(asked: GoalRequest) -> Iterator[None]:
    """Says what an interrupted run continues from."""
    from qir.errors import Stopped

    try:
        yield
    except (KeyboardInterrupt, Stopped) as stop:
        cause = "interrupted" if isinstance(stop, KeyboardInterrupt) else "stopped by the system"
        saved_files = ([asked.trials] if asked.goal else []) + [asked.statistics] * asked.calibrates
        for file in saved_files:
            # The first that is there: trials begin when the statistics are complete.
            if file.exists():
                raise type(stop)(f"{cause}; the same command continues from {file}") from None
        raise


def facts(found: SearchResult, asked: GoalRequest) -> Mapping[str, str]:
    """Returns what the screen shows of a search."""
    unit = " dB" if found.metric == "sqnr" else " %"
    # The SQNR of the float model to itself is infinite, which says nothing.
    float_text = f", float {found.exact:.1f}{unit}" if found.metric == "top1" else ""
    float_count = plural(len(found.kept), "op")
    wide_fact = {"in 16 bits": f"{plural(len(found.wide), 'op')}: {', '.join(found.wide)}"}
    return {
        found.metric: f"{found.value:.1f}{unit}{float_text}, wanted {found.wanted:.1f}{unit}",
        "kept in float": f"{float_count} of {found.candidates}: {', '.join(found.kept) or 'none'}",
        **(wide_fact if found.wide else {}),
        "recipe": asked.recipe.name,
    }


def to_json(found: SearchResult | None, asked: GoalRequest) -> dict[str, object] | None:
    """Returns what --json prints of a search."""
    if found is None:
        return None
    return {
        "metric": found.metric,
        "value": number(found.value),
        "float": number(found.exact),
        "wanted": found.wanted,
        "reached": found.reached,
        "kept": list(found.kept),
        "wide": list(found.wide),
        "of": found.candidates,
        "recipe": str(asked.recipe),
    }


def finish(found: SearchResult | None, asked: GoalRequest) -> None:
    """Raises Refused where a goal was not reached."""
    from qir.errors import Refused

    # Raised last, after the model and the recipe are written: the best of the trials is of use.
    if found is not None and not found.reached:
        wide_text = f", {len(found.wide)} in 16 bits" if found.wide else ""
        best = f"{found.value:.1f} with {plural(len(found.kept), 'op')} in float{wide_text}"
        message = f"{found.metric} {found.wanted:.1f} is out of reach: the best of the trials has"
        raise Refused(
            f"{message} {best}; {asked.output} and {asked.recipe} hold it, and a lower goal goes on"
            " from its trials"
        )
