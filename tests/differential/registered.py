"""Lists the quantized kernels that runtimes register, and what the profiles claim of each.

A table a runtime, `kernels_*.toml`: kernels by the op that a rule is of, and the others by the
reason why nothing is claimed. `python -m tests.differential.registered` writes
docs/reference/kernels.md.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from qir.profiles import Profile, Query, profile

FOLDER = Path(__file__).parent
PAGE = FOLDER.parents[1] / "docs" / "reference" / "kernels.md"
RUNTIMES = ("torch", "tensorflow", "onnxruntime", "ipex")
HEAD = """# Quantized kernels of each runtime

Every quantized kernel that a runtime registers for the CPU, with what the profiles claim of it. The
end of each list has the kernels without a claim, and why. The runtime itself is asked (of IPEX, a
recording), and `tests/differential/test_registered.py` checks that no kernel is missing. The
evidence of each claim is on the page of [numerics](numerics.md).
"""


@dataclass(frozen=True)
class Claimed:
    """Kernels by the op, or the row of ops, of which profiles speak."""

    op: str
    kernels: tuple[str, ...]
    profiles: tuple[str, ...]

    def claim(self, name: str) -> str:
        """What a profile says of them."""
        return claim(profile(name), self.op)


def claim(of_profile: Profile, op: str) -> str:
    """The claim of the rule for an op on u8, with weights of i8, or `OP of i8` and `OP to i32`, in
    a form `OP in FORM`; of a row of ops that of the group."""
    op, _, form = op.partition(" in ")
    op, _, result = op.partition(" to ")
    op, _, data = op.partition(" of ")
    chain, data = tuple(op.split(" > ")), data or "u8"
    weights = "u8" if result == "i32" and data == "u8" else "i8"
    storage = {"x": data, "a": data, "w": weights, "b": weights if result else data}
    query = Query(chain[0], storage | {"result": result or data}, forms=(form,) if form else ())
    if len(chain) == 1:
        return of_profile.resolve(query).claim
    group = of_profile.group(chain, query)
    return group.claim if group else "unknown"


@dataclass(frozen=True)
class Table:
    """All kernels of a runtime."""

    title: str
    profiles: tuple[str, ...]
    claimed: tuple[Claimed, ...]
    held: Mapping[str, tuple[str, ...]]
    """By the test that compares them, where no rule is theirs."""
    unclaimed: Mapping[str, tuple[str, ...]]
    newer: frozenset[str]
    """Kernels that the oldest version tested does not have."""

    def names(self) -> Iterator[str]:
        """Each kernel, as often as it is named."""
        for row in self.claimed:
            yield from row.kernels
        for kernels in (*self.held.values(), *self.unclaimed.values()):
            yield from kernels


def table(runtime: str) -> Table:
    """Returns the table of a runtime."""
    text = (FOLDER / runtime / "kernels.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
    rows = [
        Claimed(op, tuple(names), tuple(document["profiles"]))
        for op, names in document.get("claimed", {}).items()
    ]
    rows += [
        Claimed(op, tuple(names), (name,))
        for name, ops in document.get("claimed_by", {}).items()
        for op, names in ops.items()
    ]
    compared, unclaimed = (
        {reason: tuple(names) for reason, names in document.get(part, {}).items()}
        for part in ("held", "unclaimed")
    )
    newer = frozenset(document.get("newer", ()))
    return Table(
        document["title"], tuple(document["profiles"]), tuple(rows), compared, unclaimed, newer
    )


def lines(tables: Iterable[Table]) -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    for table_of_runtime in tables:
        names_of_profiles = ", ".join(f"`{name}`" for name in table_of_runtime.profiles)
        yield f"\n## {table_of_runtime.title}\n\n"
        yield f"Where no profile is named, the claim is that of {names_of_profiles}.\n\n"
        yield "| kernels | op | claims |\n|---|---|---|\n"
        for row in table_of_runtime.claimed:
            by_claim: dict[str, list[str]] = {}
            for name in row.profiles:
                by_claim.setdefault(row.claim(name), []).append(f"`{name}`")
            claims = "; ".join(f"{word}: {', '.join(names)}" for word, names in by_claim.items())
            claims = (
                next(iter(by_claim))
                if row.profiles == table_of_runtime.profiles and len(by_claim) == 1
                else claims
            )
            yield f"| {_listed(row.kernels)} | `{row.op}` | {claims} |\n"
        if table_of_runtime.held:
            yield "\nCompared without a rule, as what QIR reads them as:\n\n"
        for test, kernels in table_of_runtime.held.items():
            yield f"- `{test}`: {_listed(kernels)}\n"
        yield "\nNothing is claimed of:\n\n"
        for reason, kernels in table_of_runtime.unclaimed.items():
            yield f"- {reason}: {_listed(kernels)}\n"


def _listed(kernels: Iterable[str]) -> str:
    return ", ".join(f"`{kernel}`" for kernel in kernels)


def text() -> str:
    """Returns the text of the page."""
    return "".join(lines(table(name) for name in RUNTIMES))


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
