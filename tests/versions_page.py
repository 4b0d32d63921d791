"""Writes docs/reference/versions.md: what changed in a runtime's numerics from version to version.

Made from the differences of profiles: `python -m tests.versions_page`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from qir.inspect.probing import head_of
from qir.profiles import Profile, profile
from qir.profiles.profile import RuleEntry

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "versions.md"
CHANGES = (
    ("torch-2.13.fbgemm", "torch-2.15.fbgemm"),
    ("torch-2.13.x86", "torch-2.15.x86"),
    ("torch-2.13.qnnpack", "torch-2.15.qnnpack"),
    ("torch-2.13.pt2e", "torch-2.15.pt2e"),
    ("torch-2.13.onednn", "torch-2.14.onednn"),
    ("torch-2.14.onednn", "torch-2.15.onednn"),
    ("ort-1.28", "ort-1.30"),
    ("ort-1.30", "ort-1.31"),
    ("ort-1.31", "ort-1.32"),
)
"""Profiles of one runtime and setting, the earlier version first."""
HEAD = """# What changed from version to version

A quantized model keeps its scales, zero points and integer weights, but a runtime of another
version may compute other results from them. This page lists, for each pair of neighbouring
profiles, the rules that only one of the two states. `qir certify` names the
ops of a model that other releases of its runtime compute differently; `qir probe` measures the
version that is installed. Made from the profiles by `python -m tests.versions_page`.

## What that does to a saved model

- **torch 2.14 and 2.15** round before they add the zero point wherever floats are quantized:
  quantize, add, concat, bilinear resize, means of channels-last data, functions,
  bounds. Results differ from 2.13 by one, and only at ties where
  the zero point is odd. Values beyond 2^31 steps wrap where the zero
  point is above 127.
- **torch 2.14 and 2.15, engine fbgemm** round the bias of depthwise layers with one weight
  scale to units of the sum before they add it: some results in a thousand differ by one.
- **torch 2.15, engine onednn** divides by the scale of the result in linear layers instead of
  multiplying by its inverse: about 0.2 % of the results of layers with many ties differ by one.
  Transposed convolutions whose stride exceeds their taps give other values in every run
  (engines x86 and onednn): nothing is claimed of them.
- **torch's exported programs** (pt2e) compute the same in 2.13 to 2.15, except linear layers
  on AVX2.
- **onnxruntime 1.28 to 1.32** differ in softmax of quantized values, and in the scales that the
  quantization tool chooses for a float model. Nothing else of a saved model changes before
  1.32, which rounds the data of more products with 4-bit and 8-bit weights.
"""


def rules(stated: Profile) -> Iterator[tuple[str, str, str]]:
    """Returns ops, conditions and fields of what a profile states itself."""
    if stated.defaults:
        yield "every op", "", _fields(stated.defaults)
    for entry in stated.rules:
        yield ", ".join(entry.ops), _when(entry), _fields(entry.fields)


def _fields(fields: object) -> str:
    assert hasattr(fields, "items")
    texts = [
        f"`{'.'.join(part for part in key if part)} = {value}`"
        for key, value in fields.items()
        if key[1] not in ("claim", "evidence")
    ]
    claim = fields.get(("", "claim")) if hasattr(fields, "get") else None
    return "; ".join([*texts, "nothing is claimed"] if claim == "unknown" else texts)


def _when(entry: RuleEntry) -> str:
    when = entry.when
    conditions = [f"{slot} {' or '.join(kinds)}" for slot, kinds in when.storage.items()]
    conditions += [f"{name} = {value!s}" for name, value in when.attrs.items()]
    conditions += [" or ".join(values) for values in (when.grain, when.isa, when.bounds) if values]
    return ", ".join((*conditions, *when.form))


def steps(stated: tuple[str, ...], compared: tuple[str, ...]) -> Iterator[str]:
    """Returns the preparation steps by which two profiles differ."""
    for verb, left, right in (("takes", stated, compared), ("does not take", compared, stated)):
        if extra := [step for step in left if step not in right]:
            yield f"| before grouping | | {verb} `{', '.join(extra)}` |\n"


def lines() -> Iterator[str]:
    """The page, part by part."""
    yield HEAD
    for before, after in CHANGES:
        earlier, later = profile(before), profile(after)
        # Only the profile that extends the other one lists the differences.
        stated, other = (later, after) if later.head.extends == before else (earlier, before)
        assert stated.head.extends in (before, after), (before, after)
        yield f"\n## {before} to {after}\n\n"
        yield f"`{before}` speaks of versions {head_of(earlier).versions}, "
        yield f"`{after}` of {head_of(later).versions}. `{other}` states:\n\n"
        yield "| op | where | fields |\n|---|---|---|\n"
        yield from (f"| {op} | {where} | {fields} |\n" for op, where, fields in rules(stated))
        if stated.head.prepare is not None:
            yield from steps(stated.prepare, profile(stated.head.extends).prepare)


def text() -> str:
    """The page."""
    return "".join(lines())


if __name__ == "__main__":
    PAGE.write_text(text(), encoding="utf-8")
