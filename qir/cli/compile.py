"""`qir compile`: writes the program of QIR's kernels that runs a model."""

from __future__ import annotations

from pathlib import Path

import click

from qir.cli import verb as shared
from qir.cli.bench import open_sizes
from qir.cli.models import claim_files, open_model, require_distinct_files
from qir.cli.programs import Saves, open_program
from qir.cli.screen import Screen, plural, size


@shared.verb(
    "qir compile quantized.onnx -o model.qirp",
    "qir compile quantized.onnx -o batch8.qirp --size N=8 --json",
)
@shared.model
@shared.output("Where to write it: a .qirp file.")
@click.option(
    "--size", "sizes", multiple=True, metavar="NAME=N", help="A size that the model leaves open."
)
@shared.force
@shared.as_json
@shared.quiet
def compile(
    model: Path, output: Path, sizes: tuple[str, ...], force: bool, as_json: bool, quiet: bool
) -> None:
    """Compile a model for QIR's kernels into a program file.

    A program file runs at once: `qir run` and `qir bench` take it in the place of a model, and
    qir.load_program in Python. It holds steps and weights, which are memory-mapped and laid out for
    the processor that loads them. Its input sizes are fixed: those of --size, or else 1 for each
    that the model leaves open. A model with an op that no kernel computes is refused.

    --json prints {file, output, output_bytes, arena, steps, inputs}; arena is the bytes that values
    in between share, steps their number, inputs the sizes by name.
    """
    from qir import pipeline
    from qir.errors import UsageError

    require_distinct_files([model], [output])
    claim_files(output, force=force)
    # Threads are chosen by who loads the file; one is enough to write it.
    program = pipeline.compile(open_model(model), threads=1)
    if not isinstance(program, Saves):
        raise UsageError(f"{model}: no program file can be made of it")
    program.save(output, open_sizes(sizes), force=force)
    # Read back, as what is shown is of the file, and a file that cannot be read is found here.
    _, loaded = open_program(output, threads=1)
    shapes = {v.name: list(v.type.shape) for v in loaded.signature().inputs}
    steps = len(loaded.describe())
    screen = Screen(quiet=quiet)
    if as_json:
        screen.json(
            {
                "file": str(model),
                "output": str(output),
                "output_bytes": output.stat().st_size,
                "arena": loaded.arena,
                "steps": steps,
                "inputs": shapes,
            }
        )
        return
    screen.line(f"{model.name} -> {output.name}", "bold")
    screen.facts(
        {
            "steps": plural(steps, "step"),
            "file": size(output.stat().st_size),
            "arena": size(loaded.arena),
        }
    )
