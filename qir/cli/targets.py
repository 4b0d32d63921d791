"""`qir targets`: what models can be quantized for, the support matrix, and one target's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from qir.cli import verb as shared
from qir.cli.screen import Column, Screen, StyledText, plural

if TYPE_CHECKING:
    from collections.abc import Mapping

    from qir.capability import Capability, OpCapability
    from qir.inspect.targets import MatrixRow, TargetSummary
    from qir.ir.scheme import Scheme
    from qir.target import Target

_STATES = {"yes": "green", ".qir files": "yellow", "no": "dim"}


@shared.verb(
    "qir targets",
    "qir targets onnxruntime",
    "qir targets --matrix",
)
@click.argument("name", required=False)
@click.option("--matrix", is_flag=True, help="Print the support matrix with its formulas.")
@click.option("--schema", is_flag=True, help="Print the JSON Schema of target files.")
@shared.as_json
@shared.quiet
def targets(name: str | None, matrix: bool, schema: bool, as_json: bool, quiet: bool) -> None:
    """List the targets: what models can be quantized for.

    With NAME, of a target or of a target file such as ./mine.toml: which kinds of quantization it
    has, and what it supports, op by op. --matrix prints the frameworks and libraries of all
    targets, how they store activations and weights, by which formulas, and the forms of each kind;
    where today's framework computes otherwise than the matrix says, both formulas are printed.

    --json prints {targets: [{name, framework, library, formats, activations, weights, status}]};
    with NAME {name, framework, library, formats, activations, weights, status, profile, kinds:
    [{kind, state, how}], ops: [{op, slots, share, constant, when}], chains, floats, defects}; with
    --matrix {rows: [{framework, library, symmetric, asymmetric, targets, formulas: [{role, values,
    matrix, today, profiles}]}], forms: {kind: text}}.
    """
    from dataclasses import asdict

    from qir.capability.files import schema_text
    from qir.errors import UsageError
    from qir.inspect import targets as found
    from qir.target import target

    if (name is not None) + matrix + schema > 1:
        raise UsageError("give one of NAME, --matrix and --schema")
    screen = Screen(quiet=quiet)
    if schema:
        # Quiet or not: it was asked for, and goes into a file as it is.
        print(schema_text(), end="")
    elif name is not None:
        one = target(name)
        if as_json:
            screen.json({**asdict(found.summary(one)), **_table(one)})
        else:
            _show(screen, one)
    elif matrix:
        rows, forms = found.matrix(), found.forms()
        if as_json:
            screen.json({"rows": [asdict(row) for row in rows], "forms": forms})
        else:
            _show_matrix(screen, rows, {found.KIND_TITLES[k]: said for k, said in forms.items()})
    else:
        every = [found.summary(each) for each in found.targets()]
        if as_json:
            screen.json({"targets": [asdict(each) for each in every]})
        else:
            _list(screen, every)


def _list(screen: Screen, found: list[TargetSummary]) -> None:
    columns = (
        Column("name"),
        Column("framework"),
        Column("formats", fit="wrap"),
        Column("activations", fit="wrap"),
        Column("weights"),
        Column("status"),
    )
    rows = [
        (
            each.name,
            each.framework,
            ", ".join(each.formats) or ".qir",
            ", ".join(each.activations),
            ", ".join(each.weights),
            each.status,
        )
        for each in found
    ]
    screen.table(columns, rows)
    screen.line(plural(len(found), "target"))


def _show_matrix(screen: Screen, rows: tuple[MatrixRow, ...], forms: Mapping[str, str]) -> None:
    columns = (
        Column("framework"),
        Column("library"),
        Column("symmetric", fit="wrap"),
        Column("asymmetric"),
        Column("targets", fit="wrap"),
    )
    cells = [
        (row.framework, row.library, row.symmetric, row.asymmetric, ", ".join(row.targets))
        for row in rows
    ]
    screen.table(columns, cells, title="support matrix")
    for row in rows:
        said = [
            (
                f.role,
                f.values,
                f.matrix,
                f.today or StyledText("the same", "dim"),
                ", ".join(f.profiles),
            )
            for f in row.formulas
        ]
        head = (
            Column("of"),
            Column("stored as"),
            Column("formula of the matrix", fit="wrap"),
            Column("today", fit="wrap"),
            Column("profile", fit="wrap"),
        )
        screen.table(head, said, title=f"{row.framework}, {row.library}")
    kinds = (Column("kind", fit="wrap"), Column("framework: forms", fit="wrap"))
    screen.table(kinds, list(forms.items()), title="kinds")


def _show(screen: Screen, one: Target) -> None:
    from qir.inspect.targets import kinds, summary

    said, table = summary(one), one.capability()
    screen.line(said.name, "bold")
    facts = {
        "framework": said.framework,
        "library": said.library,
        "profile": one.profile,
        "formats": ", ".join(said.formats) or "none: it writes .qir files",
        "status": said.status,
    }
    screen.facts({key: text for key, text in facts.items() if text})
    rows = [(k.kind, StyledText(k.state, _STATES[k.state]), k.how) for k in kinds(one)]
    columns = (Column("kind"), Column(""), Column("how", fit="wrap"))
    screen.table(columns, rows, title="kinds")
    ops = [(op, _slots(row.slots), _more(row)) for op, row in table.ops.items()]
    head = (Column("op"), Column("stored as", fit="wrap"), Column("if", fit="wrap"))
    screen.table(head, ops, title="ops")
    chains = [(" |> ".join(chain),) for chain in table.chains]
    screen.table((Column("one kernel"),), chains, title="chains")
    kept = [(each.op, each.reason) for each in (*table.floats, *table.defects)]
    why = (Column("op"), Column("why", fit="wrap"))
    screen.table(why, kept, title="kept in float, or refused")


def _slots(slots: Mapping[str, tuple[Scheme, ...]]) -> str:
    texts: dict[str, list[str]] = {}
    for slot, schemes in slots.items():
        # minmax is how every table's ranges begin; the option --range says another.
        said = " or ".join(str(s).replace(" minmax", "") for s in schemes)
        texts.setdefault(said, []).append(slot)
    return "; ".join(f"{'/'.join(names)} {said}" for said, names in texts.items())


def _more(row: OpCapability) -> str:
    said = [f"{'/'.join(row.share)} share one scale"] if row.share else []
    said += [f"{'/'.join(row.constant)} constant"] if row.constant else []
    said += [f"{k} = {' or '.join(map(_value, v))}" for k, v in (row.when or {}).items()]
    return "; ".join(said)


def _value(value: object) -> str:
    """Returns a value of an attribute as target files write it."""
    # TOML writes true and false.
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(one: Target) -> dict[str, object]:
    from dataclasses import asdict

    from qir.inspect.targets import kinds

    table: Capability = one.capability()
    return {
        "profile": one.profile,
        "kinds": [asdict(kind) for kind in kinds(one)],
        "ops": [
            {
                "op": op,
                "slots": {slot: [str(s) for s in kinds] for slot, kinds in row.slots.items()},
                "share": row.share,
                "constant": row.constant,
                "when": row.when or {},
            }
            for op, row in table.ops.items()
        ],
        "chains": table.chains,
        "floats": [{"op": each.op, "reason": each.reason} for each in table.floats],
        "defects": [{"op": each.op, "reason": each.reason} for each in table.defects],
    }
