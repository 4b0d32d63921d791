"""The command `qir`: its verbs, its help, and how it fails."""

from __future__ import annotations

import atexit
import difflib
import gc
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from qir import __version__
from qir.cli import completion
from qir.cli.bench import bench
from qir.cli.bisect import bisect
from qir.cli.calibrate import calibrate
from qir.cli.certify import certify
from qir.cli.compile import compile
from qir.cli.convert import convert
from qir.cli.diff import diff
from qir.cli.doctor import doctor
from qir.cli.eval import evaluate
from qir.cli.export import export
from qir.cli.failures import one_line
from qir.cli.group import group
from qir.cli.new import new
from qir.cli.opt import opt
from qir.cli.passes import passes
from qir.cli.plan import plan
from qir.cli.plugins import plugins
from qir.cli.probe import probe
from qir.cli.quantize import quantize
from qir.cli.query import query
from qir.cli.run import run
from qir.cli.show import show
from qir.cli.targets import targets
from qir.cli.verb import DEBUG
from qir.cli.verify import verify
from qir.cli.why_not import why_not

VERBS = (
    show,
    query,
    why_not,
    verify,
    certify,
    plan,
    calibrate,
    quantize,
    convert,
    opt,
    group,
    bisect,
    passes,
    diff,
    run,
    evaluate,
    compile,
    bench,
    export,
    probe,
    targets,
    plugins,
    new,
    doctor,
)
STATUSES = """\
Exit status: 0 done, 1 findings beyond notes, 2 wrong usage or unreadable input, 3 refused.
"""


class App(click.Group):
    """Fails in one line, keeps the verbs in the order of use, and guesses what was meant."""

    def main(  # type: ignore[override]
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = "qir",
        **extra: object,
    ) -> NoReturn:
        """Runs a command line and ends with its status."""
        # Before anything is parsed: a shell asks on each press of TAB.
        completion.answer(self)
        # One process may run several command lines, as tests do; --debug is of one alone.
        DEBUG.clear()
        status = 0
        try:
            with one_line(DEBUG):
                words = sys.argv[1:] if args is None else list(args)
                with self.make_context("qir", words) as context:
                    self.invoke(context)
        except click.exceptions.Exit as ended:
            status = ended.exit_code
        raise SystemExit(status)

    def list_commands(self, ctx: click.Context) -> list[str]:
        # click sorts them by name; these stand in the order in which a model goes through them.
        return list(self.commands)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        word = args[0]
        if word not in self.commands and not word.startswith("-"):
            # 0.5 and not the usual 0.6: verbs are short, so that one wrong letter weighs more.
            near = difflib.get_close_matches(word, self.commands, 1, 0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise click.UsageError(f"no verb {word!r}; {hint}verbs: {', '.join(self.commands)}")
        return super().resolve_command(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\n" + STATUSES)
        formatter.write("Each verb has examples: qir quantize --help\n")
        formatter.write("Terms (profile, ledger, plan, form): docs/glossary.md\n")


@click.group(cls=App, invoke_without_command=True, context_settings={"max_content_width": 100})
@click.version_option(__version__, message="qir %(version)s")
@click.help_option("-h", "--help")
@completion.option
@click.pass_context
def app(context: click.Context) -> None:
    """Reads, quantizes, converts and runs ONNX, PyTorch, TensorFlow, MXNet and .qir models."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


for _verb in VERBS:
    app.add_command(_verb)


def main() -> NoReturn:
    """Runs the command line of this process."""
    # What lives to the end goes with the process: nothing is gained by searching it for garbage.
    atexit.register(gc.freeze)
    app.main()
