"""Completion of command lines by the shell: its script, and the answers to that script."""

from __future__ import annotations

import os
from contextlib import suppress

import click
from click.shell_completion import get_completion_class, shell_complete

NAME, VARIABLE = "qir", "_QIR_COMPLETE"
SHELLS = ("bash", "zsh", "fish")


def answer(app: click.Command) -> None:
    """Ends the process with what can follow, where the script of a shell asks for it.

    A line that is wrong already has no completions.
    """
    request = os.environ.get(VARIABLE)
    if request:
        status = 1
        with suppress(click.ClickException):
            status = shell_complete(app, {}, NAME, VARIABLE, request)
        raise SystemExit(status)


def _print(context: click.Context, parameter: click.Parameter, shell: str | None) -> None:
    if shell is None:
        return
    completion_class = get_completion_class(shell)
    assert completion_class is not None
    click.echo(completion_class(context.command, {}, NAME, VARIABLE).source())
    context.exit()


option = click.option(
    "--completion",
    type=click.Choice(SHELLS),
    # Before other options are checked: a script is asked for without a verb or a model.
    is_eager=True,
    expose_value=False,
    callback=_print,
    help='Print a script that completes command lines: eval "$(qir --completion bash)".',
)
