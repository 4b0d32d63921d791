"""The core names no runtime: neither in a name of its code nor in text that code compares."""

import ast
import json
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

RUNTIME = re.compile(
    r"onnxruntime|torch|fbgemm|onednn|mkldnn|dnnl|qnnpack|mxnet|tensorflow|tflite|xnnpack|ipex|itex"
    r"|openvino|qonnx|mlas|keras|litert|caffe|inductor|gluon|pt2e"
    # Short words stand alone, between underscores, or as a word of a name in CamelCase.
    r"|(?-i:(?<![A-Za-z])(?:ort|tf)(?![a-z])|(?<![A-Z])(?:ORT|TF)(?![a-z])|(?:Ort|Tf)(?![a-z]))",
    re.IGNORECASE,
)


class Allowed(NamedTuple):
    """Text that may name a runtime, and where."""

    place: str
    """The files, as an expression: `qir/cli/(bench|run)`."""
    text: str
    """An expression; what it matches in a string is not searched."""
    reason: str
    whole: bool = False
    """Whether it may be the whole string, which a branch could compare by way of a variable."""
    branch: bool = False
    """Whether a branch may compare it."""


RULES = r"onednn\.[iu]8|torch\.dynamic"
RESIZING = r"pytorch_half_pixel|tf_(?:crop_and_resize|half_pixel_for_nn)|^tf_$"
EXCEPTIONS = (
    Allowed("qir/registry", "onnxruntime", "DEFAULT_TARGET", whole=True),
    Allowed("qir/reference/ranges", RULES, "scale rules that several runtimes have", whole=True),
    Allowed("qir/reference/ranges", "onednn", "a family of rules", whole=True),
    Allowed("qir/testing/op_samples", r"torch\.dynamic", "a rule that cases draw", whole=True),
    Allowed("qir/profiles/library", r"torch\.observer", "a rule that a message proposes"),
    Allowed(
        "qir/(ir/ops|reference)/resize",
        RESIZING,
        "an attribute that files contain",
        whole=True,
        branch=True,
    ),
    Allowed("qir/ir/ops/resize", "tf_crop_and_resize needs", "its name in a message"),
    Allowed("qir/testing/op_samples", "pytorch_half_pixel", "one that cases draw", whole=True),
    Allowed(
        "qir/cli/(certify|group|opt|pass_options|quantize)",
        r"[a-z]+-\d+\.\d+(?:\.[a-z]+)?",
        "profiles in examples and help",
    ),
    Allowed("qir/cli/(bench|run)", r"onnxruntime:(?:plain)?", "an engine in help"),
    Allowed("qir/workflows/engines", r"onnxruntime:(?:plain)?", "an engine in a message"),
    Allowed("qir/workflows/running", "onnxruntime", "an engine in a message"),
    Allowed(
        "qir/cli/(bench|bisect|eval|pass_options|probe|run|targets|verb|verify)",
        r"onnxruntime(?:\.all)?",
        "the default target in help and examples",
    ),
    Allowed("qir/cli/(group|probe)", r"qir (?:group|probe) .+", "examples of commands", whole=True),
    Allowed("qir/cli/quantize", r"onednn, fbgemm or torch\.observer", "scale rules in help"),
    Allowed("qir/cli/probe", r"has not: mxnet", "an example in help"),
    Allowed("qir/calibration/preprocess", "keras|tf", "styles of `qir new preprocess`", whole=True),
    Allowed("qir/calibration/preprocess", "Keras'[^:]*", "whose preprocessing a style is"),
    Allowed(
        "qir/testing/(decoration|whole_language)",
        r"ort-1\.31",
        "a profile that generated programs name",
        whole=True,
    ),
)

ASKS = re.compile(r"(?:^|_)(?:target|profile|engine|backend|runtime|framework)s?(?:_name)?$", re.I)
"""Names of variables and fields that hold the name of a target or profile."""
COMPARING = {
    *("startswith", "endswith", "removeprefix", "removesuffix", "partition", "split", "get"),
    *("match", "fullmatch", "search", "index", "find", "count", "__eq__", "__contains__"),
}
"""Methods that ask of a text what it is."""
QUESTIONS = (ast.Compare, ast.Match, ast.Call, ast.Subscript)
ASKED = (
    ("qir/cli/run", "KERNELS", "the engine that a compiled program of QIR runs on"),
    ("qir/evaluating", "reference", "the interpreter, which is no target"),
    ("qir/cli/run", "reference", "the engine that is no target: the interpreter"),
    ("qir/inspect/measurements", "qir", "the backend of the core's own profile"),
)
"""File, text and reason of a branch that asks for what is no runtime."""


class Text(NamedTuple):
    """A name or a string of a file."""

    line: int
    text: str
    kind: str
    """`name`, `string`, or `branch`: a string that is compared."""


def texts(path: Path) -> Iterator[Text]:
    """Every name and string of a file but docstrings and comments."""
    match path.suffix:
        case ".py" | ".pyi":
            yield from of_python(path.read_text(encoding="utf-8"))
        case ".toml":
            with path.open("rb") as file:
                yield from of_table(tomllib.load(file))
        case ".json":
            yield from of_table(json.loads(path.read_text(encoding="utf-8")))
        case ".pyx" | ".pxd" | ".pxi":
            yield from of_code(path, r'"""[\s\S]*?"""|#[^\n]*')
        case ".c" | ".h" | ".inc" if not path.with_suffix(".pyx").exists():
            yield from of_code(path, r"/\*[\s\S]*?\*/|//[^\n]*")


def of_code(path: Path, comment: str) -> Iterator[Text]:
    """The words of what is compiled, its comments and docstrings left out."""
    code = path.read_text(encoding="utf-8")
    bare = re.sub(comment, lambda held: "\n" * held[0].count("\n"), code)
    for number, line in enumerate(bare.splitlines(), 1):
        yield Text(number, line.strip(), "name")


def of_table(table: object) -> Iterator[Text]:
    """Every key and text of a table but `evidence`, which says what was compared."""
    match table:
        case Mapping():
            for key, value in table.items():
                yield Text(1, key, "name")
                yield from of_table(value) if key != "evidence" else ()
        case list():
            for value in table:
                yield from of_table(value)
        case str():
            yield Text(1, table, "string")


def of_python(code: str) -> Iterator[Text]:
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    skipped = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    constants = {
        target.id: text
        for node in tree.body
        if isinstance(node, ast.Assign) and (text := joined(node.value)) is not None
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for question in nodes:
        for line, operands in compared(question) if isinstance(question, QUESTIONS) else ():
            words = []
            for held, text in (pair for o in operands for pair in literals(o, constants)):
                skipped |= {id(inner) for inner in ast.walk(held)}
                words.append(text)
            names = [name for operand in operands for name in named(operand)]
            yield from (Text(line, text, "branch") for text in words)
            if any(map(ASKS.search, names)):
                yield from (Text(line, text, "asked") for text in words)
                words = [n for n in names if re.fullmatch("[A-Z][A-Z_]+", n) and n not in constants]
                yield from (Text(line, name, "asked") for name in words)
            elif "DEFAULT_TARGET" in names:
                yield Text(line, "DEFAULT_TARGET", "asked")
    for node in nodes:
        if isinstance(node, ast.Constant | ast.BinOp):
            if id(node) not in skipped and (text := joined(node)) is not None:
                skipped |= {id(inner) for inner in ast.walk(node)}
                yield Text(node.lineno, text, "string")
        else:
            yield from (Text(line, name, "name") for line, name in names_of(node))


def names_of(node: ast.AST) -> Iterator[tuple[int, str]]:
    """The names that a node gives or uses, each with its line."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
            yield node.lineno, name
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield node.lineno, name
        case ast.ClassDef(name=name) | ast.keyword(arg=str(name)):
            yield node.lineno, name
        case ast.ExceptHandler(name=str(name)) | ast.MatchMapping(rest=str(name)):
            yield node.lineno, name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield node.lineno, name
        case ast.MatchClass(kwd_attrs=names) | ast.Global(names=names) | ast.Nonlocal(names=names):
            yield node.lineno, " ".join(names)
        case ast.alias(name=name, asname=other):
            yield node.lineno, f"{name} {other or ''}"
        case ast.ImportFrom(module=str(name)):
            yield node.lineno, name


def joined(node: ast.AST) -> str | None:
    """The text of a string, of bytes, or of several that are added."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.Constant(value=bytes(text)):
            return text.decode("latin-1")
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            first, second = joined(left), joined(right)
            return None if first is None or second is None else first + second
    return None


def compared(node: ast.AST) -> Iterator[tuple[int, list[ast.AST]]]:
    """The line and operands of each question that a node asks: comparisons, cases, tables."""
    match node:
        case ast.Compare(left=left, comparators=others):
            yield node.lineno, [left, *others]
        case ast.Match(subject=subject, cases=cases):
            for case in cases:
                yield case.pattern.lineno, [subject, case.pattern]
        case ast.Call(func=ast.Attribute(value=held, attr=attr), args=args) if attr in COMPARING:
            yield node.lineno, [held, *args]
        case ast.Subscript(value=ast.Dict() as table, slice=key):
            yield node.lineno, [table, key]


def literals(node: ast.AST, constants: Mapping[str, str]) -> Iterator[tuple[ast.AST, str]]:
    """The texts that stand in an operand, or in the constant of the file that it names."""
    text = joined(node)
    if text is None and isinstance(node, ast.Name):
        text = constants.get(node.id)
    if text is not None:
        yield node, text
    elif not isinstance(node, ast.Call | ast.Subscript | ast.Attribute):
        for inner in ast.iter_child_nodes(node):
            yield from literals(inner, constants)


def named(node: ast.AST) -> Iterator[str]:
    """The variable or field that an operand is."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            yield name
        case ast.Call(func=ast.Attribute(value=held)):
            yield from named(held)
        case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
            for item in items:
                yield from named(item)


@cache
def own_names() -> frozenset[str]:
    """The names of our targets, frontends, probes and profiles."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["project"]["entry-points"]
    kinds = ("qir.targets", "qir.frontends", "qir.probes", "qir.profiles")
    profiles = {path.stem for path in (ROOT / "backends").glob("*/profiles/*.toml")}
    return frozenset(profiles.union(*(groups[kind] for kind in kinds)))


def searched(place: str, found: Text) -> str:
    """What is left of a string where no exception of its file matches."""
    text = found.text
    for held in EXCEPTIONS:
        if not re.fullmatch(rf"{held.place}\.\w+", place):
            continue
        if found.kind == "branch" and not held.branch:
            continue
        if held.whole or not re.fullmatch(held.text, text):
            text = re.sub(held.text, "", text)
    return text


@cache
def runtime_in(text: str) -> str:
    hit = RUNTIME.search(text)
    return hit[0] if hit else ""


def fault_of(place: str, found: Text) -> str | None:
    """What is wrong with a name or string, or nothing."""
    at, text = f"{place}:{found.line}", found.text
    if found.kind == "asked":
        known = any(re.fullmatch(rf"{p}\.\w+", place) and text == t for p, t, _ in ASKED)
        return None if known or not text.strip(".:,-_ ") else f"{at} asks for {text[:60]!r}"
    if found.kind == "branch" and text in own_names():
        return f"{at} asks for {text!r}"
    if runtime_in(text):
        if word := runtime_in(text if found.kind == "name" else searched(place, found)):
            return f"{at} names {word}: {text[:60]!r}"
    return None


@cache
def read(path: Path) -> tuple[Text, ...]:
    return tuple(texts(path))


def files(root: Path) -> Iterable[tuple[str, Path]]:
    for path in sorted((root / "qir").rglob("*.*")):
        if "__pycache__" not in path.parts:
            yield path.relative_to(root).as_posix(), path


def faults(root: Path) -> list[str]:
    """Every place of the core that names a runtime or asks for one."""
    found = {}
    for place, path in files(root):
        if RUNTIME.search(place):
            found[place, 0] = f"{place}: its name"
        for entry in read(path):
            if fault := fault_of(place, entry):
                found.setdefault((place, entry.line), fault)
    return list(found.values())


def test_the_core_names_no_runtime() -> None:
    found = faults(ROOT)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("held", EXCEPTIONS, ids=lambda e: f"{e.place} {e.reason}")
def test_every_exception_is_needed(held: Allowed) -> None:
    for place in choices(held.place):
        strings = [e.text for e in read(ROOT / f"{place}.py") if e.kind != "name"]
        matches = (m for text in strings for m in re.finditer(held.text, text))
        assert any(RUNTIME.search(match[0]) for match in matches), place


def choices(place: str) -> list[str]:
    """The files that the expression of an exception names."""
    found = re.fullmatch(r"([^(]*)\(?([^)]*)\)?(.*)", place)
    assert found
    before, listed, after = found.groups()
    return [before + name + after for name in listed.split("|")]


@pytest.mark.parametrize(("place", "text"), [(p, t) for p, t, _ in ASKED])
def test_every_question_that_is_allowed_is_asked(place: str, text: str) -> None:
    assert any(e.kind == "asked" and e.text == text for e in read(ROOT / f"{place}.py"))


PLANTED = {
    "a module": ("qir/passes/torch_layouts.py", ""),
    "a function": ("qir/a.py", "def by_qnnpack(): ..."),
    "a class": ("qir/a.py", "class OrtRules: ..."),
    "a word in capitals of a class": ("qir/a.py", "class MyORTRule: ..."),
    "a word at the end of a name": ("qir/a.py", "isOrt = 1"),
    "a word with a number": ("qir/a.py", "ort132 = 1"),
    "a short word": ("qir/a.py", "is_tf = 1"),
    "a variable": ("qir/a.py", "onednn = 1"),
    "a library of kernels": ("qir/a.py", "def dnnl(): ..."),
    "a library of kernels by its old name": ("qir/a.py", "def mkldnn_weights(): ..."),
    "an extension": ("qir/a.py", "def itex_rule(): ..."),
    "a runtime that no backend writes for": ("qir/a.py", "x = 'openvino'"),
    "a field": ("qir/a.py", "class A:\n    mlas: bool"),
    "an argument": ("qir/a.py", "def f(ipex): ..."),
    "a keyword": ("qir/a.py", "f(mxnet=1)"),
    "a global": ("qir/a.py", "def f():\n    global torch"),
    "an import under another name": ("qir/a.py", "import x as torch_x"),
    "an import from a module": ("qir/a.py", "from qir.torch_rules import f"),
    "an error": ("qir/a.py", "try: ...\nexcept E as torch: ..."),
    "a name of a case": ("qir/a.py", "match t:\n    case {'a': torch}: ..."),
    "bytes": ("qir/a.py", "x = b'torch'"),
    "added texts": ("qir/a.py", "x = 'onnx' + 'runtime'"),
    "texts that stand next to each other": ("qir/a.py", "x = 'onnx' 'runtime'"),
    "a branch": ("qir/a.py", "if target == 'onnxruntime': ..."),
    "a branch of the command line": ("qir/cli/bench.py", "if target == 'onnxruntime': ..."),
    "a branch of the registry": ("qir/registry.py", "if t == 'onnxruntime': ..."),
    "a branch by bytes": ("qir/a.py", "if t == b'torch': ..."),
    "a branch by added texts": ("qir/a.py", "if target == 'onnx' + 'runtime': ..."),
    "a branch by a constant": ("qir/a.py", "A = 'cpu'\nif name == A: ..."),
    "a branch by one of several": ("qir/a.py", "if name in ('cpu', 'no target'): ..."),
    "a case": ("qir/a.py", "match t:\n    case 'fbgemm': ..."),
    "a case of a target": ("qir/a.py", "match target:\n    case 'x': ..."),
    "a target that is no runtime's": ("qir/a.py", "if target == 'cpu': ..."),
    "a target of a format": ("qir/a.py", "if self.target != 'onnx': ..."),
    "a target of exported programs": ("qir/a.py", "if target == 'pt2e': ..."),
    "a table by target": ("qir/a.py", "x = {'a': 1}[target]"),
    "the default target in a branch": ("qir/a.py", "if target == DEFAULT_TARGET: ..."),
    "the core's own profile in a branch": ("qir/a.py", "if graph.profile == 'native': ..."),
    "an engine": ("qir/a.py", "if engine == 'x86': ..."),
    "a profile in a branch": ("qir/cli/group.py", "if profile == 'ort-1.31': ..."),
    "a profile in a branch of generated programs": (
        "qir/testing/decoration.py",
        "if graph.name == 'ort-1.31': ...",
    ),
    "a beginning of a profile": ("qir/a.py", "name.startswith('tflite-')"),
    "a short beginning of a profile": ("qir/a.py", "name.startswith('tf-')"),
    "the beginning of a thing that is called profile": ("qir/a.py", "profile.startswith('na')"),
    "a scale rule in a branch": ("qir/a.py", "if rule == 'fbgemm.affine': ..."),
    "a scale rule in a branch of its file": (
        "qir/reference/ranges.py",
        "if rule == 'onednn.i8': ...",
    ),
    "a family of scale rules in a branch": (
        "qir/reference/ranges.py",
        "if word == 'onednn': ...",
    ),
    "a scale rule in a file that has none": ("qir/passes/a.py", "x = 'torch.observer'"),
    "an attribute of another file in a branch": ("qir/a.py", "if m == 'pytorch_half_pixel': ..."),
    "a message": ("qir/a.py", "raise E(f'{x}: XNNPACK takes none')"),
    "a function of Cython": ("qir/_kernels/a.pyx", "def onnxruntime(): pass"),
    "a declaration": ("qir/_kernels/a.pyi", "def onnxruntime(): ..."),
    "a function of C": ("qir/_kernels/a/a.c", "int fbgemm_sum(void);"),
    "a profile": ("qir/profiles/x.toml", "backend = 'onnxruntime'"),
    "a profile by its file's name": ("qir/profiles/tf-2.21.toml", ""),
    "a schema": ("qir/cli/schemas/x.json", '{"torch": 1}'),
}


@pytest.mark.parametrize("fault", PLANTED)
def test_a_planted_name_is_found(fault: str, tmp_path: Path) -> None:
    name, text = PLANTED[fault]
    path = tmp_path / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    assert len(faults(tmp_path)) == 1


HARMLESS = {
    "docstrings and comments": ("a.py", '"""As torch does."""\n# QNNPACK\nX = 1\n"""MLAS."""\n'),
    "those of Cython": ("a.pyx", '"""As torch does."""\n# QNNPACK\nX = 1\n'),
    "those of C": ("a.c", "/* As torch\n * does. */\nint x; // QNNPACK\n"),
    "evidence": ("a.toml", "# torch\nevidence = 'torch 2.15: 0 differ'\n"),
    "words in other words": ("a.py", "SORT = exported = report = sortORDER = utf8 = 1\n"),
    "an empty name": ("a.py", "if profile == '': ...\n"),
    "a member of a target": ("a.py", "if target.form == 'qdq' or f(target, 'x') == 1: ...\n"),
}


@pytest.mark.parametrize("case", HARMLESS)
def test_what_names_no_runtime_is_no_fault(case: str, tmp_path: Path) -> None:
    name, text = HARMLESS[case]
    path = tmp_path / "qir" / name
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    assert faults(tmp_path) == []
