"""The core names no runtime: neither in a name of its code nor in text that code compares."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

RUNTIME = re.compile(
    r"onnxruntime|(?-i:(?<![A-Za-z])(?:ort|ORT)(?![a-z])|Ort(?![a-z]))|torch|fbgemm|onednn|qnnpack|mxnet|tensorflow|tflite"
    r"|xnnpack|ipex|qonnx|mlas|keras|litert|caffe|inductor|gluon",
    re.IGNORECASE,
)


class Allowed(NamedTuple):
    """Text that may name a runtime, and where."""

    place: str
    """The beginning of the file's path."""
    text: str
    """An expression; what it matches in a string is not searched."""
    reason: str
    whole: bool = False
    """Whether it may be the whole string, which a branch could compare."""


RULES = (
    r"(?:fbgemm\.(?:symmetric|affine)|onednn\.[iu]8|onnxruntime\.(?:[iu]8|tool)"
    r"|torch\.(?:dynamic|observer|qnnpack\.symmetric)|torchao\.per_token)"
)
EXCEPTIONS = (
    Allowed("qir/registry.py", "onnxruntime", "DEFAULT_TARGET", True),
    Allowed("qir/", RULES, "range rules: files and commands contain their names", True),
    Allowed("qir/", "pytorch_half_pixel", "an attribute that files contain", True),
    Allowed("qir/numerics/ranges.py", "onednn|fbgemm|onnxruntime", "families of rules", True),
    Allowed("qir/numerics/ranges.py", r"default_\w+_qconfig", "the name of a recipe in text"),
    Allowed("qir/numerics/ranges.py", "symmetric_qnnpack_qconfig", "the same, split in two"),
    Allowed("qir/cli/", r"[a-z]+-\d+\.\d+(?:\.[a-z]+)?", "profiles in examples and help"),
    Allowed("qir/cli/", r"onnxruntime:plain", "an engine in help"),
    Allowed("qir/cli/", r"onnxruntime(?:\.all)?", "the default target in help and examples"),
    Allowed("qir/cli/", r"qir (?:group|probe) .+", "examples of commands", True),
    Allowed("qir/cli/", r"onednn, fbgemm or", "families of rules in help"),
    Allowed("qir/cli/", r"has not: mxnet", "an example in help"),
    Allowed("qir/calibration/preprocess.py", "keras", "a style of `qir new preprocess`", True),
    Allowed("qir/calibration/preprocess.py", "Keras'[^:]*", "whose preprocessing a style is"),
    Allowed("qir/testing/", "ort-1.31", "a profile that generated programs name", True),
)


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Every name and string of a file but docstrings: line, text, whether it is a string."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in said:
                yield node.lineno, text, True
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                yield node.lineno, name, False
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name, False
            case ast.ClassDef(name=name):
                yield node.lineno, name, False
            case ast.keyword(arg=str(name)):
                yield node.value.lineno, name, False
            case ast.alias(name=name, asname=other):
                yield node.lineno, f"{name} {other or ''}", False


def searched(place: str, text: str) -> str:
    """What is left of a string where no exception of its file matches."""
    for held in EXCEPTIONS:
        if place.startswith(held.place) and (held.whole or not re.fullmatch(held.text, text)):
            text = re.sub(held.text, "", text)
    return text


def faults(root: Path) -> list[str]:
    """Every place of the core that names a runtime."""
    found = []
    for path in sorted((root / "qir").rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if RUNTIME.search(place):
            found.append(f"{place}: its name")
        for line, text, string in texts(path):
            if named := RUNTIME.search(searched(place, text) if string else text):
                found.append(f"{place}:{line} names {named[0]}: {text[:60]!r}")
    return found


def test_the_core_names_no_runtime() -> None:
    found = faults(ROOT)
    assert not found, "\n".join(found)


@cache
def all_strings() -> tuple[tuple[str, str], ...]:
    """The strings of the core that name a runtime, each with its file."""
    return tuple(
        (path.relative_to(ROOT).as_posix(), text)
        for path in sorted((ROOT / "qir").rglob("*.py"))
        for _, text, string in texts(path)
        if string and RUNTIME.search(text)
    )


@pytest.mark.parametrize("held", EXCEPTIONS, ids=lambda e: f"{e.place} {e.reason}")
def test_every_exception_is_needed(held: Allowed) -> None:
    strings = [text for place, text in all_strings() if place.startswith(held.place)]
    assert any(
        RUNTIME.search(match[0]) for text in strings for match in re.finditer(held.text, text)
    )


PLANTED = {
    "a module": ("qir/passes/torch_layouts.py", ""),
    "a function": ("qir/a.py", "def by_qnnpack(): ..."),
    "a class": ("qir/a.py", "class OrtRules: ..."),
    "a variable": ("qir/a.py", "onednn = 1"),
    "a field": ("qir/a.py", "class A:\n    mlas: bool"),
    "an argument": ("qir/a.py", "def f(ipex): ..."),
    "a keyword": ("qir/a.py", "f(mxnet=1)"),
    "a branch": ("qir/a.py", "if target == 'onnxruntime': ..."),
    "a branch of the command line": ("qir/cli/a.py", "if target == 'onnxruntime': ..."),
    "a profile in a branch": ("qir/cli/a.py", "if profile == 'ort-1.31': ..."),
    "a beginning of a profile": ("qir/a.py", "name.startswith('tflite-')"),
    "a message": ("qir/a.py", "raise E(f'{x}: XNNPACK takes none')"),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_name_is_found(fault: str, tmp_path: Path) -> None:
    name, text = PLANTED[fault]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    assert len(faults(tmp_path)) == 1


def test_docstrings_and_comments_may_name_a_runtime(tmp_path: Path) -> None:
    path = tmp_path / "qir" / "a.py"
    path.parent.mkdir()
    path.write_text('"""As torch does."""\n# QNNPACK\nX = 1\n"""MLAS."""\n', encoding="utf-8")
    assert faults(tmp_path) == []
