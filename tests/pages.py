"""The page of every public name, with the first sentence of its docstring.

`python -m tests.pages` writes docs/reference/api.md.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import qir
from qir import registry
from qir.ir.dtype import DType

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "api.md"


class Place(NamedTuple):
    """A module, and what of it is on the page."""

    module: str
    names: str = ""
    """Nothing: all of it. `Name()` is a class without its members, `Name(a b)` with two of them."""


READERS: dict[str, tuple[str, tuple[Place, ...]]] = {
    "Users": (
        "To load, quantize, run, compare and save models, and to look into them.",
        (
            Place("qir"),
            Place("qir.workflows"),
            Place("qir.ir.graph", "Graph"),
            Place(
                "qir.ir.node",
                "Node(op attrs operands results result name origins profile "
                "bodies stages schemes weight attr variadic) Value Use() Stage()",
            ),
            Place(
                "qir.ir.types",
                "Array TensorType(quant dtype express rank with_shape "
                "with_element) QuantType(low high axis dynamic scales zeros) Granularity()",
            ),
            Place(
                "qir.calibration",
                "Statistics(batches log merge save load digest) Preprocess() read_preprocess",
            ),
            Place("qir.analysis.decisions", "Plan(integer_macs) Decision()"),
            Place("qir.recipe", "Recipe(load save)"),
            Place("qir.mixed_precision", "Goal() SearchResult()"),
            Place("qir.ledger", "Ledger Change Entry()"),
            Place("qir.pipeline", "op_verdicts"),
            Place("qir.capability", "Verdict()"),
            Place("qir.ir.verify", "Finding()"),
            Place("qir.query.query", "query_values"),
            Place("qir.query.diff", "GraphDifference GraphChange() Pair() Lone()"),
            Place(
                "qir.inspect",
                "bytes_by_dtype explain islands longest_chain overflow quantized_nodes "
                "ranges sensitive sharing summarize quantization_noise to_dot to_graphml to_json "
                "to_mermaid Explanation() ModelSummary() QuantizationNoise(low) SumRange() "
                "TensorRange()",
            ),
            Place("qir.analysis.quantization_faults", "outlier_channel NoiseCause()"),
            Place(
                "qir.profiles",
                "profile read_profile profile_in profile_names profile_text load parse dumps "
                "carry_profile Profile(name groups on resolve) Query()",
            ),
            Place("qir.numerics", "SCALE_FORMULAS affine quantize dequantize requantize"),
            Place("qir.target", "Executable()"),
            Place("qir.frontends.mxnet", "MxnetFrontend()"),
            Place("qir.frontends.tflite", "TfliteFrontend()"),
            Place("qir.frontends.torch.observers", "calibrated observed observed_by"),
            Place("qir.backends.ipex", "read_recipe read_schemes"),
            Place("qir.errors"),
        ),
    ),
    "Authors of passes": (
        "To change programs: [a pass](../plugins/pass.md), [a pattern](../plugins/pattern.md).",
        (
            Place("qir.rewrite"),
            Place("qir.rewrite.patterns.matching", "matches"),
            Place("qir.rewrite.patterns.mismatch", "WhyNot()"),
            Place("qir.rewrite.patterns.conditions", "Condition() Place() first_failed"),
            Place("qir.rewrite.runner.bisection", "bisect Culprit()"),
            Place("qir.rewrite.runner.properties", "PROPERTIES Property()"),
            Place("qir.rewrite.runner.journal", "Journal() JournalEntry()"),
            Place("qir.ir.text", "parse parse_type"),
        ),
    ),
    "Authors of ops": (
        "To add an op to the language: [an op](../plugins/op.md).",
        (
            Place(
                "qir.ir.ops",
                "OPS PluginOp() OpSpec() Slot() AttrSpec() Traits() Elsewhere() "
                "BodySignature() Call spec",
            ),
            Place("qir.profiles", "PluginMethod() PreparationStep()"),
            Place("qir.numerics.scale_rules", "ScaleRule() ScaleRequest()"),
            Place(
                "qir.numerics.stages",
                "BoundsStage()",
            ),
        ),
    ),
    "Authors of frontends": (
        "To read a format: [a frontend](../plugins/frontend.md).",
        (
            Place("qir.frontend", "Frontend"),
            Place("qir.ir.origin", "Origin()"),
            Place("qir.ir.dtype", "F32 U8 DType()"),
        ),
    ),
    "Authors of targets": (
        "To write for a runtime, or to run models: [a target](../plugins/target.md).",
        (
            Place("qir.target", "Target"),
            Place("qir.capability", "load Capability() OpCapability() Defect()"),
            Place("qir.ir.file", "read write Bundle()"),
            Place("qir.atomic", "replacing replacing_folder"),
        ),
    ),
    "Authors of range rules and metrics": (
        "To read ranges off statistics, or to measure how near results are: "
        "[an observer](../plugins/observer.md), [a metric](../plugins/index.md#a-metric-whole).",
        (
            Place(
                "qir.calibration",
                "Observer Parameter() Range() Seen() Summary(low high mean "
                "variance count bins edges channel_low channel_high)",
            ),
            Place("qir.calibration.observers", "MinMax()"),
            Place("qir.inspect", "Metric metric"),
        ),
    ),
    "All authors": (
        "To find plugins, and to check that one keeps its contract.",
        (
            Place(
                "qir.testing",
                "check_frontend check_method check_metric check_observer check_op "
                "check_pass check_plugin check_target require graphs random_graph sample_inputs "
                "Check",
            ),
            Place("qir.registry", "find offer"),
        ),
    ),
}
"""What is on the page, by reader. Passes have a section of their own."""


# -- api.md ---------------------------------------------------------------------------------------


def public(module: ModuleType) -> dict[str, object]:
    """Returns the classes and functions that a module offers: `__all__`, or what it defines."""
    if module is qir:
        return {name: getattr(qir, name) for name in qir.__all__}
    listed = getattr(module, "__all__", None)
    if listed is not None:
        names_found = {name: getattr(module, name) for name in listed}
    else:
        name = module.__name__
        defined = {n: v for n, v in vars(module).items() if getattr(v, "__module__", "") == name}
        names_found = {n: v for n, v in defined.items() if not n.startswith("_")}
    return {n: v for n, v in names_found.items() if inspect.isclass(v) or inspect.isroutine(v)}


def constants(module: ModuleType) -> dict[str, str]:
    """Returns the public constants and aliases of a module, with the sentence after each."""
    listed = getattr(module, "__all__", None)
    sentences: dict[str, str] = {}
    submodules = [m for n, m in sorted(sys.modules.items()) if n.startswith(f"{module.__name__}.")]
    for holder in (module, *(submodules if listed is not None else ())):
        for name, text in _assigned(holder).items():
            if not name.startswith("_") and (listed is None or name in listed):
                # A submodule may have another constant of the same name that is not the one
                # offered.
                if getattr(module, name, None) is getattr(holder, name):
                    sentences[name] = sentences.get(name) or text or _of_type(getattr(holder, name))
    routines = public(module)
    return {name: text for name, text in sentences.items() if name not in routines}


def listed(place: Place) -> dict[str, tuple[str, ...] | None]:
    """The names of a module that are on the page, and of classes which members; None: all."""
    module = importlib.import_module(place.module)
    if not place.names:
        constant_names = {} if module is qir else constants(module)
        return dict.fromkeys((*public(module), *constant_names))
    entries = re.findall(r"(\w+)(\([^)]*\))?", place.names)
    return {
        name: tuple(member_names.strip("()").split()) if member_names else None
        for name, member_names in entries
    }


def _of_type(value: object) -> str:
    return f"The element type `{value}`." if isinstance(value, DType) else ""


def _assigned(module: ModuleType) -> dict[str, str]:
    """Returns what a module assigns at its top, with the text that follows."""
    if not (module.__file__ or "").endswith(".py"):
        return {}
    body = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8")).body
    texts: dict[str, str] = {}
    for statement, following in zip(body, [*body[1:], None], strict=True):
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = " ".join(str(following.value.value).split())
        targets: list[ast.expr] = []
        if isinstance(statement, ast.Assign):
            targets = statement.targets
        elif isinstance(statement, ast.AnnAssign):
            targets = [statement.target]
        for target in targets:
            elements = target.elts if isinstance(target, ast.Tuple) else [target]
            texts |= {name.id: text for name in elements if isinstance(name, ast.Name)}
    return texts


def members(kind: type) -> dict[str, object]:
    """Returns the methods and properties that a class defines."""
    fields = {f.name for f in dataclasses.fields(kind)} if dataclasses.is_dataclass(kind) else set()
    public_members: dict[str, object] = {}
    # What a class inherits from these modules is its own to a reader of the page.
    part_modules = {"qir.ir.structure", "qir.ir.store"}
    attributes = [
        (attribute, v)
        for base in kind.__mro__
        if base is kind or base.__module__ in part_modules
        for attribute, v in vars(base).items()
    ]
    for name, value in attributes:
        if name.startswith("_") or name in fields:
            continue
        if isinstance(value, property | FunctionType | classmethod | staticmethod):
            public_members[name] = value
    return public_members


def sentence(item: object) -> str:
    """Returns the first sentence of a docstring, in one line; empty where it has none."""
    if isinstance(item, classmethod | staticmethod):
        item = item.__func__
    text = item.__doc__ if isinstance(item, type | property) else inspect.getdoc(item)
    if not text or (isinstance(item, type) and text.startswith(f"{item.__name__}(")):
        return ""
    return _first(" ".join(inspect.cleandoc(text).split("\n\n")[0].split()))


def _first(text: str) -> str:
    """Returns the first sentence of a text."""
    return re.split(r"(?<=[.])\s", text)[0].replace("|", "\\|")


def call(item: object) -> str:
    """Returns the parameters, with defaults where they are plain."""
    if isinstance(item, classmethod | staticmethod):
        item = item.__func__
    if isinstance(item, property):
        return ""
    assert callable(item)
    try:
        parameters = inspect.signature(item).parameters.values()
    except ValueError:
        return "(...)"
    parts: list[str] = []
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts and not _starred(parts):
            parts.append("*")
        star = "*" * (
            (parameter.kind is parameter.VAR_POSITIONAL)
            + 2 * (parameter.kind is parameter.VAR_KEYWORD)
        )
        parts.append(f"{star}{parameter.name}{_default(parameter.default)}")
    return f"({', '.join(parts)})"


def _starred(parts: list[str]) -> bool:
    return any(part.startswith("*") for part in parts)


def _default(value: object) -> str:
    if value is inspect.Parameter.empty:
        return ""
    plain = value is None or isinstance(value, bool | int | float | str) or value == ()
    return f"={value!r}" if plain else "=..."


def api_page() -> str:
    """Returns the text of docs/reference/api.md."""
    lines = [
        "# API reference",
        "",
        "What users and authors of plugins import, by reader (`make docs` makes this page).",
        "Most programs need `qir` only. Names that are not on this page may change in any version.",
        "",
    ]
    for reader, (why, places) in READERS.items():
        lines += [f"## {reader}", "", why, ""]
        for place in places:
            lines += _module(place)
        if reader == "Users":
            lines += _passes()
    return "\n".join(lines).rstrip() + "\n"


def _passes() -> Iterator[str]:
    yield "### Passes"
    yield ""
    yield "By name for `qir opt` and `qir.optimize`; `qir passes NAME` shows the options of one."
    yield ""
    for name in sorted(registry.names("qir.passes")):
        kind = registry.find("qir.passes", name)
        if isinstance(kind, type) and kind.__module__.startswith("qir."):
            yield f"- `{name}`: {sentence(kind)} `{kind.__module__}.{kind.__name__}{call(kind)}`"
    yield ""


def _module(place: Place) -> Iterator[str]:
    module = importlib.import_module(place.module)
    yield f"### `{place.module}`"
    yield ""
    if (first_sentence := sentence(module)) and not place.names:
        yield first_sentence
        yield ""
    names = listed(place)
    items = {name: getattr(module, name) for name in names}
    with_members = [n for n, v in items.items() if isinstance(v, type) and _members_of(n, v, names)]
    # The classes of `qir` itself are described under the modules that define them.
    with_members = [] if module is qir else with_members
    constant_texts = constants(module) if set(names) - set(public(module)) else {}
    lines = [
        f"- `{name}`: {_first(constant_texts[name])}"
        if name in constant_texts
        else _line(name, items[name])
        for name in sorted(set(names) - set(with_members), key=lambda n: (n[0].isupper(), n))
    ]
    yield from lines
    if lines:
        yield ""
    for name in with_members:
        kind = items[name]
        yield f"#### `{name}`"
        yield ""
        yield sentence(kind)
        yield ""
        if (signature := call(kind)) != "()" and not _unmade(kind):
            yield f"`{name}{signature}`"
            yield ""
        yield from (_line(n, v) for n, v in _members_of(name, kind, names).items())
        yield ""


def _members_of(
    name: str, kind: type, names: dict[str, tuple[str, ...] | None]
) -> dict[str, object]:
    chosen, defined = names[name], members(kind)
    return defined if chosen is None else {member: defined[member] for member in chosen}


def _unmade(kind: type) -> bool:
    """Whether nobody makes one: errors, enumerations, and what others are to look like."""
    return issubclass(kind, Exception | Enum) or getattr(kind, "_is_protocol", False)


def _line(name: str, item: object) -> str:
    signature = call(item) if not isinstance(item, type) or dataclasses.is_dataclass(item) else ""
    return f"- `{name}{signature}`: {sentence(item)}"


if __name__ == "__main__":
    PAGE.write_text(api_page(), encoding="utf-8")
