"""The page of ops says what the table says; run as a module, this writes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qir.ir.dtype import DType
from qir.ir.ops import FAMILIES, OPS, AttrSpec, OpSpec, Slot

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "ops.md"
HEAD = """# Ops

Every op of the language: operands (`?` optional, `*` any number), attributes with their defaults
(`!` required), and the result. Shapes follow from the operands; a dimension that depends on data
is `?`. Results that an op rounds inside may have a type and a scheme, as operands may. Bodies are
graphs that see their own inputs alone. Ops that only move elements keep the quantized type, with
per-axis or per-block scales where these survive the move. Results are computed in float64 and
rounded once.
"""


def _slot(slot: Slot) -> str:
    return slot.name + ("?" if slot.optional else "") + ("*" if slot.variadic else "")


def _attr(attr: AttrSpec) -> str:
    if attr.required:
        return f"{attr.name}!"
    if attr.default is None:
        return attr.name
    held = attr.default
    return f"{attr.name} = {str(held) if isinstance(held, DType) else repr(held)}"


def _within(row: OpSpec) -> str:
    held = {"rounds inside": row.inner, "holds the bodies": row.bodies}
    found = {said: ", ".join(f"`{n}`" for n in names) for said, names in held.items() if names}
    return "".join(f"; {said} {names}" for said, names in found.items())


def lines() -> Iterator[str]:
    """The rows of the page, family by family."""
    for family in FAMILIES:
        first, _, _ = (family.__doc__ or "").partition("\n")
        yield from (
            "",
            f"## {first.rstrip('.')}",
            "",
            "| op | attributes | what it is |",
            "|---|---|---|",
        )
        for row in family.OPS:
            slots = ", ".join(map(_slot, row.operands))
            attrs = ", ".join(map(_attr, row.attrs))
            within = _within(row)
            doc = row.doc.replace("|", "\\|").removesuffix("." if within else "") + within
            yield f"| `{row.name}({slots})` | {f'`{attrs}`' if attrs else ''} | {doc} |"


def test_the_page_has_a_line_for_every_op() -> None:
    shown = PAGE.read_text(encoding="utf-8").splitlines()
    wanted = [*HEAD.rstrip().splitlines(), *lines()]
    assert shown == wanted, "python -m tests.ir.test_ops_page writes it"
    assert sum(line.startswith("| `") for line in shown) == len(OPS)


if __name__ == "__main__":
    PAGE.write_text("\n".join([*HEAD.rstrip().splitlines(), *lines(), ""]), encoding="utf-8")
