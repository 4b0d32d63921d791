"""Names in backticks exist: those of docstrings in their module, those of pages in their file."""

from __future__ import annotations

import builtins
import dataclasses
import keyword
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import qir
from qir.ir.ops import OPS
from qir.ir.ops.spec import Traits
from qir.profiles.parser import INSTRUCTION_SETS

ROOT = Path(__file__).parent.parent
FOLDERS = ("qir", "backends", "frontends")
PAGES = (
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "design.md",
    ROOT / "docs" / "where.md",
    *sorted((ROOT / "docs" / "design").glob("*.md")),
    *sorted((ROOT / "docs" / "plugins").glob("*.md")),
)
DOCSTRING = re.compile(r'^[ \t]*r?"""(.*?)"""', re.M | re.S)
COMMENT = re.compile(r"#.*")
LITERAL = re.compile(r'"([^"\n]*)"')
SENTENCE = re.compile(r"[a-z,;] [a-z]+ [a-z]")
"""Three words in a row: a message, whose words are no names."""
BLOCK = re.compile(r"^(?=@|def |class )", re.M)
"""Where a function or class begins at the top of a module."""
TOKEN = re.compile(r"[A-Za-z_]\w*")
WORD = re.compile(r"`([a-z_]\w*)`")
"""A word of a docstring that looks like the name of a parameter or a function."""
DTYPE = re.compile(r"(?:[iuf]\d+|bf16)")
FILE = r"`((?:qir|backends|frontends)/[\w/]+\.pyx?)`"
NAMES = r"`[A-Za-z_]\w*`(?:(?:,| and|, and| or) `[A-Za-z_]\w*`)*"
NAMES_IN_FILE = re.compile(rf"(?P<names>{NAMES}) (?:in|of) {FILE}|{FILE} \((?P<inner>{NAMES})\)")
"""Names before the file that defines them, or in parentheses after it."""
FENCED = re.compile(r"^ *```.*?^ *```", re.M | re.S)
PAGE_WORD = re.compile(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)(?:\([^`]*\))?`")
"""A word of a page that looks like a name of Python, or a call."""
ALLOWED_ON_PAGES = {
    "FIELD": "a placeholder in the names of stage functions",
    "WORD": "a placeholder in the names of stage functions",
    "TORCH": "a variable of the Makefile",
    "CHANGELOG": "a file",
    "md": "the suffix of a file",
    "pyproject": "a file",
    "acme_": "a prefix of the example's own",
}
"""Words of pages that are no names of QIR's code, each with what it is."""
ALLOWED = {
    "_": "a character of words in the text form",
    "it": "a word of the query language",
    "e8m0": "the common start of two values of a profile field",
    "clashing": "a word that `qir plugins` prints",
    "qdq": "a form of random graphs",
    "coded": "a step of lineage in the text form",
    "apart": "a stage function of profile files",
    "i8_saturated": "a stage function of profile files",
    "summand_type": "a stage function of profile files",
    "basis": "a field of ledger entries",
    "add_edge": "networkx.MultiDiGraph.add_edge",
    "raw_data": "a field of ONNX's TensorProto",
    "value_info": "a field of ONNX's GraphProto",
    "relu_": "an operator of PyTorch",
    "_foreach_add_": "an operator of PyTorch",
    "suggest_memory_format": "a function of PyTorch in C++",
    "quantized_decomposed": "a library of PyTorch operators",
    "reduce_range": "an argument of PyTorch's observers",
    "s0": "a symbol of SymPy, as torch.export names it",
    "serving_default": "the usual signature of a SavedModel",
    "srepr": "sympy.srepr",
    "load_qconf_summary": "a method of IPEX's prepared models",
    "module_types_supported_by_quantization": "a table of IPEX",
    "functions_supported_by_quantization": "a table of IPEX",
    "split_v2": "an operator of MXNet",
    "_sg_mkldnn_conv": "an operator of MXNet",
    "_sg_mkldnn_fully_connected": "an operator of MXNet",
    "__output0__": "an attribute of an MXNet symbol, which QIR writes",
}
"""Words of docstrings that are no names of QIR's code, each with what it is."""


def sources() -> Iterator[Path]:
    """Yields the modules of QIR."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "templates" not in path.parts:
                yield path


@cache
def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def code_of(text: str) -> str:
    """Returns a module's code without docstrings and comments."""
    return COMMENT.sub("", DOCSTRING.sub("", text))


def shared_names(code: str) -> set[str]:
    """Returns the names of a module that each of its docstrings may use.

    They are definitions, attributes, imports and words of strings that are no sentence; not the
    parameters and variables of its functions.
    """
    imports = re.findall(r"^ *(?:from|import) [^(]*?(?:\([^)]*\)|$)", code, re.M)
    lists = [text for text in LITERAL.findall(code) if not SENTENCE.search(text)]
    return {
        *defined_in(code),
        *re.findall(r"\.([A-Za-z_]\w*)", code),
        *TOKEN.findall(" ".join([*imports, *lists])),
    }


@cache
def known_everywhere() -> frozenset[str]:
    """Returns the names that any docstring may use."""
    # The interactive prompt, which tests of pages run, adds `_` to the builtins.
    python = {*keyword.kwlist, *set(dir(builtins)) - {"_"}, *qir.__all__}
    modules = {part for path in sources() for part in (path.stem, path.parent.name)}
    functions = {
        name for path in sources() for name in re.findall(r"^def ([a-z]\w*)", source(path), re.M)
    }
    slots = {slot.name for spec in OPS.values() for slot in spec.operands}
    attributes = {name for spec in OPS.values() for name in spec.attrs_by_name}
    traits = {field.name for field in dataclasses.fields(Traits)}
    passes = re.findall(r"^(\w+) = \"qir\.", source(ROOT / "pyproject.toml"), re.M)
    fields = re.findall(r"^    (\w+): ", source(ROOT / "qir" / "numerics" / "fields.py"), re.M)
    ops = {*OPS, *slots, *attributes, *traits}
    return frozenset({*python, *modules, *functions, *ops, *passes, *fields, *INSTRUCTION_SETS})


def unknown_words(text: str) -> Iterator[tuple[int, str]]:
    """Yields line and word for each word of a module's docstrings that names nothing.

    A docstring may use the parameters and variables of its own function or class alone.
    """
    shared, known, line = shared_names(code_of(text)), known_everywhere(), 1
    for block in BLOCK.split(text):
        own = set(TOKEN.findall(code_of(block))) if WORD.search(block) else set()
        for docstring in DOCSTRING.finditer(block):
            for word in WORD.findall(docstring[1]):
                if not (word in own or word in shared or word in known or DTYPE.fullmatch(word)):
                    yield line + block.count("\n", 0, docstring.start()), word
        line += block.count("\n")


@cache
def found_words() -> tuple[tuple[Path, int, str], ...]:
    """Returns file, line and word for each word of QIR's docstrings that names nothing."""
    return tuple((path, *at) for path in sources() for at in unknown_words(source(path)))


def test_words_of_docstrings_are_names() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: `{word}`"
        for path, line, word in found_words()
        if word not in ALLOWED
    ]
    assert not found, "\n".join(["docstrings use names that do not exist:", *found])


def test_each_allowed_word_is_needed() -> None:
    assert not set(ALLOWED) - {word for *_, word in found_words()}


def defined_in(text: str) -> set[str]:
    """Returns the names that a module defines: functions, classes, constants and fields."""
    return {
        *re.findall(r"^\s*(?:def|cdef class|class) (\w+)", text, re.M),
        *re.findall(r"^ *(\w+)(?:: .*)? = ", text, re.M),
    }


def missing_names(page: str) -> list[str]:
    """Returns the names that a page locates in a file that does not define them."""
    found = []
    for match in NAMES_IN_FILE.finditer(page):
        file = match[2] or match[3]
        defined = defined_in(source(ROOT / file))
        names = re.findall(r"\w+", match["names"] or match["inner"])
        words = [name for name in names if name not in ("and", "or")]
        found += [f"`{name}` in {file}" for name in words if name not in defined]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_names_next_to_a_file_are_defined_in_it(page: Path) -> None:
    assert not missing_names(page.read_text(encoding="utf-8"))


def code_words() -> set[str]:
    """Returns the words of QIR's code, of its data files and of pyproject.toml."""
    words = {*TOKEN.findall(source(ROOT / "pyproject.toml")), *known_everywhere(), *ALLOWED}
    for path in sources():
        words.update(TOKEN.findall(code_of(source(path))))
    for folder in FOLDERS:
        for suffix in ("toml", "pyx", "h", "c"):
            for path in (ROOT / folder).rglob(f"*.{suffix}"):
                words.update(TOKEN.findall(COMMENT.sub("", source(path))))
    return words


def test_words_of_pages_are_names() -> None:
    words, found = code_words() | set(ALLOWED_ON_PAGES), []
    for page in PAGES:
        text = FENCED.sub(lambda block: "\n" * block[0].count("\n"), source(page))
        for match in PAGE_WORD.finditer(text):
            name = match[1]
            if not set(name.split(".")) <= words and not DTYPE.fullmatch(name):
                line = text.count("\n", 0, match.start()) + 1
                found.append(f"{page.relative_to(ROOT)}:{line}: `{name}`")
    assert not found, "\n".join(["pages use names that do not exist:", *found])


def test_names_of_the_past_are_found() -> None:
    text = 'def f(at_most):\n    """Returns `most` of `at_most`, as `of_old` and `matmul`."""\n'
    assert list(unknown_words(text)) == [(2, "most"), (2, "of_old")]
    text += "\n\ndef of_old(most):\n    pass\n"
    assert list(unknown_words(text)) == [(2, "most")]
    page = "`read_profile` and `bring` in `qir/profiles/library.py`"
    assert missing_names(page) == ["`bring` in qir/profiles/library.py"]
    page = "`qir/registry.py` (`offer`, `offerings`)"
    assert missing_names(page) == ["`offerings` in qir/registry.py"]
