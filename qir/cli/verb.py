"""What all verbs have in common: the form of their help, and the options they share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

import click
from click.shell_completion import CompletionItem

from qir.registry import DEFAULT_TARGET

Function = TypeVar("Function", bound=Callable[..., object])


class Decorator(Protocol):
    """Adds an option to a function and gives the function."""

    def __call__(self, function: Function, /) -> Function: ...


DEBUG: list[bool] = []
"""Holds something once --debug was read."""


class Verb(click.Command):
    """A command whose help ends with examples; each can be run as it is."""

    examples: tuple[str, ...] = ()

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("\nExamples:\n")
        formatter.write("".join(f"  {line}\n" for line in self.examples))


def _debug(ctx: click.Context, option: click.Parameter, given: bool) -> None:
    if given:
        DEBUG.append(True)


def verb(*examples: str) -> Callable[[Callable[..., object]], Verb]:
    """Makes a verb of a function, whose name and docstring are the verb's."""
    names = {"help_option_names": ["-h", "--help"]}

    def make(function: Callable[..., object]) -> Verb:
        command = click.command(cls=Verb, context_settings=names)(function)
        command.examples = examples
        command.params.append(
            click.Option(
                ["--debug"],
                is_flag=True,
                expose_value=False,
                callback=_debug,
                help="Show where a failure comes from.",
            )
        )
        return command

    return make


MAX_COUNT = 2**31 - 1
"""No count on the command line is larger."""
PATH = click.Path(path_type=Path)


def model(function: Function) -> Function:
    """Returns the model a verb works on."""
    return click.argument("model", type=PATH)(function)


def output(text: str, *, required: bool = True) -> Decorator:
    """Returns the file a verb writes."""
    return click.option("-o", "--output", type=PATH, required=required, metavar="FILE", help=text)


DATA = "An .npy or .npz file, a folder of them or of images, a .jsonl or .csv file."
"""What --data takes."""


def data(text: str, *, required: bool = False) -> Decorator:
    """Samples to calibrate with or to run on."""
    rule = "Arrays named as no input are ignored; a single one, labels aside, is for one input"
    return click.option(
        "--data", type=PATH, required=required, metavar="PATH", help=f"{text} {rule}."
    )


def isa(text: str) -> Decorator:
    """Returns the processor by whose rules numbers are computed."""
    known = "any, avx2, avx512, vnni or amx. Without it this one"
    return click.option("--isa", metavar="SET", help=f"{text}: {known}.")


class Count(click.ParamType):  # type: ignore[type-arg]
    """A whole number from `least` up to what a machine can hold."""

    name = "count"

    def __init__(self, least: int) -> None:
        self.least = least

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        text = str(value)
        if not text.isdecimal() or not self.least <= int(text[:11]) <= MAX_COUNT:
            self.fail(
                f"{text[:20]!r} is no whole number from {self.least} to {MAX_COUNT}", param, ctx
            )
        return int(text)


def whole(name: str, text: str, default: int | None = None, least: int = 1) -> Decorator:
    """Returns an option that is a whole number."""
    show = default is not None
    return click.option(
        name, type=Count(least), default=default, show_default=show, metavar="N", help=text
    )


Shape = tuple[int | str, ...]
"""Sizes of an input: numbers, and names of open ones."""


class ShapeArgument(click.ParamType):  # type: ignore[type-arg]
    """A shape, its sizes between commas."""

    name = "sizes"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> Shape:
        words = [part.strip() for part in str(value).split(",") if part.strip()]
        for word in words:
            if not word.isdecimal() and not word.isidentifier():
                from qir.errors import UsageError

                message = f"{word!r} is neither a size nor the name of one"
                raise UsageError(f"--shape {value!r}: {message}")
        return tuple(int(word) if word.isdecimal() else word for word in words)


shapes = click.option(
    "--shape",
    "shapes",
    type=ShapeArgument(),
    multiple=True,
    metavar="SIZES",
    help="Sizes of an input, such as n,3,224,224, for files without them; once an input, in order.",
)
preprocess = click.option(
    "--preprocess",
    type=PATH,
    metavar="FILE",
    help="How images become inputs, as TOML; `qir new preprocess imagenet` writes one.",
)
trust = click.option(
    "--trust",
    is_flag=True,
    help="Open a file that runs code when it is opened, such as a pickled module.",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
feeds = click.option(
    "--feeds",
    is_flag=True,
    help="Take each file of --data as the complete inputs of one run, samples on any axis.",
)
strict = click.option(
    "--strict", is_flag=True, help="End with status 3 where cpu has no kernel for an op."
)
quiet = click.option("-q", "--quiet", is_flag=True, help="Print failures only.")
force = click.option("-f", "--force", is_flag=True, help="Overwrite files that exist.")
lossy = click.option(
    "--lossy", is_flag=True, help="Allow changes by more than one quantization step."
)
threads = whole(
    "--threads",
    "Threads to use, at most one a processor in onnxruntime; results are the same for any number.",
)


def _target_names(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Completes the name of a target; a target file otherwise."""
    from qir.registry import names

    # `names` imports no plugin: a shell waits for the answer.
    found = [CompletionItem(name) for name in names("qir.targets") if name.startswith(incomplete)]
    return found or PATH.shell_complete(ctx, param, incomplete)


target = click.option(
    "--target",
    shell_complete=_target_names,
    default=DEFAULT_TARGET,
    show_default=True,
    metavar="NAME",
    help="Backend the model is for; `qir targets` lists them; or a target file.",
)
format_ = click.option(
    "--format", "form", metavar="FORM", help="Form to write it in, such as qdq or qoperator."
)
opset = whole(
    "--opset",
    "Operator set to write, 13 to 26 for onnxruntime, to 28 for onnx; by default the source's.",
)
dynamic = click.option(
    "--dynamic",
    is_flag=True,
    help="Choose scales of activations at run time, for products only; no samples needed.",
)
weights = click.option(
    "--weights",
    metavar="TEXT",
    help="Quantize only weights of matrix products, in blocks: u4:32 is 4 bits, affine; i8:64 is"
    " 8 bits, symmetric. f16: store all weights in float16.",
)
granularity = click.option(
    "--granularity",
    type=click.Choice(["channel", "tensor"]),
    default="channel",
    show_default=True,
    help="One scale for each channel of a weight, or one for all.",
)
rules = click.option(
    "--rule",
    "rules",
    multiple=True,
    metavar="TEXT",
    help="Override the plan: 'name=/conv1/* slot=w: i8 symmetric tensor', 'op=softmax: float'."
    " Later rules win; may be given several times.",
)
keep_float = click.option(
    "--keep-float",
    "floats",
    multiple=True,
    metavar="GLOB",
    help="Keep ops in float whose name, in the model or in its source, matches.",
)
save_ledger = click.option(
    "--ledger", "ledger_file", type=PATH, metavar="FILE", help="Write the ledger as JSON."
)


def all_rules(rules: Sequence[str], floats: Sequence[str]) -> tuple[str, ...]:
    """Returns the rules of both options; a name's blanks match as any character."""
    # Last, as later rules win: what is to stay float does, whatever a rule says of its slots.
    return (*rules, *(f"name={'?'.join(glob.split())}: float" for glob in floats))


def require_whole(feeds: bool, batch: int | None) -> None:
    """Raises UsageError where complete feeds should be put into batches."""
    from qir.workflows.inputs import require_whole as require

    require(feeds, batch)
