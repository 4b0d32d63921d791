"""Passes as text: `fold-constants{limit=4096}`, `group{as=ort-1.31}`; options are a pass's fields.

The type of a field says how its text is read. A field that no text can hold says by `option` how
it is made from one, and under which name.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from qir import registry
from qir.errors import PluginError, QirError, UsageError
from qir.records import record
from qir.rewrite.runner.contract import Pass

Read = Callable[["str | list[str]"], object]
"""Makes a field's value of a text."""
Write = Callable[[object], "str | list[str]"]
"""The text, or texts, that a field's value was made of."""


@record
class Option:
    """One option of a pass, as text has it."""

    name: str
    field: str
    kind: str
    """What its text is: a type, or the values that it may have."""
    default: str
    """The text of the default; empty where it must be given or cannot be written."""
    doc: str
    required: bool = False


def option(
    *, name: str = "", read: Read | None = None, write: Write | None = None, kind: str = ""
) -> Mapping[str, object]:
    """Returns the metadata of a field whose text has another name, or is read by a function of its
    own.

    `kind` says in a word what the text is. The function gets one text, or a list where the text is
    one in brackets; it raises ValueError, or what QIR raises on purpose. `write` gives it back.
    """
    return {"name": name, "read": read, "write": write, "kind": kind}


# -- what options there are -----------------------------------------------------------------------


@cache
def options(kind: type[Pass]) -> tuple[Option, ...]:
    """Returns the options of a pass, in the order of its fields."""
    docs = dict(_docs(kind))
    hints = get_type_hints(kind)
    return tuple(
        Option(
            _name(pass_field),
            pass_field.name,
            pass_field.metadata.get("kind") or _kind(hints[pass_field.name]),
            _default(pass_field),
            docs.get(pass_field.name, ""),
            pass_field.default is MISSING and pass_field.default_factory is MISSING,
        )
        for pass_field in fields(kind)
        if pass_field.init
    )


def _name(pass_field: Field[object]) -> str:
    return pass_field.metadata.get("name") or pass_field.name.replace("_", "-")


def _default(pass_field: Field[object]) -> str:
    if pass_field.default is MISSING:
        return ""
    # A default that no text can hold, such as a table, is shown as none.
    try:
        return value_text(pass_field.default)
    except UsageError:
        return ""


def _kind(hint: object) -> str:
    """Returns a type in words: `int`, `float`, `yes or no`, `a|b`, `list of int`."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "|".join(map(str, parts))
    if origin in (Union, UnionType):
        return " or ".join("none" if p is NoneType else _kind(p) for p in parts)
    if origin in (tuple, list, frozenset):
        return f"list of {_kind(parts[0])}"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(member.value) for member in hint)
    plain = {bool: "yes or no", int: "int", float: "float", str: "text"}
    return plain.get(hint, getattr(hint, "__name__", str(hint)))  # type: ignore[call-overload,no-any-return]


def _docs(kind: type) -> Iterator[tuple[str, str]]:
    """Yields the texts below fields, of the class and those it stems from."""
    for base in reversed(kind.__mro__[:-1]):
        try:
            # Python keeps no docstrings of fields, so they are read from the source.
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):
            continue
        body = getattr(tree.body[0], "body", [])
        for statement, following in pairwise(body):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
                    yield statement.target.id, " ".join(str(following.value.value).split())


# -- passes as text -------------------------------------------------------------------------------


def value_text(value: object) -> str:
    """Returns an option's value as text that reads back; raises UsageError where no text can hold
    it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Enum):
        return value_text(value.value)
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # These characters separate passes, options and lists.
        needs_no_quotes = (
            value and not set(value) & set(" ,;{}[]\"'=\\\n\t") and value.isprintable()
        )
        return value if needs_no_quotes else _quoted(value)
    if isinstance(value, tuple | list | frozenset):
        elements = sorted(value, key=str) if isinstance(value, frozenset) else value
        return f"[{', '.join(map(value_text, elements))}]"
    raise UsageError(f"{type(value).__name__} has no text")


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def options_text(one: Pass) -> str:
    """Returns a pass with the options that are not its defaults; `..` for what no text can hold."""
    parts = []
    for pass_field in fields(one):
        value = getattr(one, pass_field.name)
        default = (
            pass_field.default_factory()
            if pass_field.default_factory is not MISSING
            else pass_field.default
        )
        # Only what differs is written, so that journals stay readable and do not change when an
        # option is added.
        if not pass_field.init or value is default or _same(value, default):
            continue
        try:
            write = pass_field.metadata.get("write")
            parts.append(f"{_name(pass_field)}={value_text(write(value) if write else value)}")
        except UsageError:
            parts.append(f"{_name(pass_field)}=..")
    return f"{one.name}{{{', '.join(parts)}}}" if parts else one.name


def _same(value: object, default: object) -> bool:
    try:
        return type(value) is type(default) and bool(value == default)
    except Exception:  # whatever a plugin's values do
        return False


def find_pass(name: str) -> type[Pass]:
    """Returns the pass of a name, loaded. Raises PluginError where there is none, or it is no
    pass."""
    found = registry.find("qir.passes", name)
    if not (isinstance(found, type) and issubclass(found, Pass)):
        raise PluginError(f"pass {name!r} of {registry.owner('qir.passes', name)} is no Pass")
    return found


def parse_passes(text: str) -> tuple[Pass, ...]:
    """Parses passes in order, separated by `;`, `,` or blanks.

    Raises UsageError for a malformed text, PluginError for an unknown pass.
    """
    reader = _OptionReader(text)
    named_options = list(reader.passes())
    if not named_options:
        raise UsageError(f"{text!r} names no pass")
    return tuple(make_pass(name, texts) for name, texts in named_options)


Given = dict[str, "str | list[str]"]
"""Texts of options by name."""


def make_pass(name: str, texts: Given) -> Pass:
    """Returns a pass with options of texts; UsageError naming the options it has."""
    kind = find_pass(name)
    known = options(kind)
    hints = get_type_hints(kind)
    fields_by_name = {declared.name: declared for declared in fields(kind)}
    values: dict[str, object] = {}
    for key, text in texts.items():
        # Both spellings are accepted: `keep-names` of text and `keep_names` of Python.
        declared = next((o for o in known if key in (o.name, o.field)), None)
        if declared is None:
            raise UsageError(_unknown(name, key, known))
        if declared.field in values:
            raise UsageError(f"pass {name}: option {key} is given twice")
        read = fields_by_name[declared.field].metadata.get("read")
        try:
            values[declared.field] = read(text) if read else _value(hints[declared.field], text)
        except QirError as error:
            raise UsageError(f"pass {name}: option {key}: {error}") from error
        except (ValueError, TypeError, KeyError):
            text_given = value_text(text)
            raise UsageError(
                f"pass {name}: option {key}: {text_given} is no {declared.kind}"
            ) from None
    if missing := [o.name for o in known if o.required and o.field not in values]:
        raise UsageError(f"pass {name} needs its option {missing[0]}: {name}{{{missing[0]}=...}}")
    try:
        return kind(**values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"pass {name}: {error}") from error


def _unknown(name: str, key: str, known: tuple[Option, ...]) -> str:
    if not known:
        return f"pass {name} has no options; {key!r} is none"
    names = [declared.name for declared in known]
    close = difflib.get_close_matches(key, names, 1)
    suggestion = f"did you mean {close[0]!r}? " if close else ""
    return f"pass {name} has no option {key!r}; {suggestion}its options: {', '.join(names)}"


def _value(hint: object, text: str | list[str]) -> object:
    """Returns a value of that type; raises ValueError where the text is none."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _one_of(parts, text)
    if origin in (tuple, list, frozenset):
        texts = text if isinstance(text, list) else [text]
        return (origin or tuple)(_value(parts[0], element) for element in texts)
    if isinstance(text, list):
        raise ValueError("a list")
    if origin is Literal:
        return {str(part): part for part in parts}[text]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return {str(member.value): member for member in hint}[text]
    if hint is bool:
        return {"yes": True, "no": False, "true": True, "false": False}[text.lower()]
    if hint in (int, float, str):
        return hint(text)
    raise UsageError(f"it holds {_kind(hint)}, which has no text; build the pass in Python")


def _one_of(hints: tuple[object, ...], text: str | list[str]) -> object:
    if NoneType in hints and text == "none":
        return None
    for hint in hints:
        try:
            if hint is not NoneType:
                return _value(hint, text)
        except (ValueError, KeyError):
            continue
    raise ValueError("none of them")


class _OptionReader:
    """Reads names with options in braces."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def passes(self) -> Iterator[tuple[str, Given]]:
        while self._skip(" \t\n,;"):
            name = self._word(" \t\n,;{")
            yield name, self._options() if self._take("{") else {}

    def _options(self) -> Given:
        texts: Given = {}
        while self._skip(" \t\n,") and not self._take("}"):
            key = self._word(" \t\n,={}")
            self._skip(" \t\n")
            if not key or not self._take("="):
                raise self._syntax_error(
                    f"option {key!r} has no =" if key else "an option has no name"
                )
            if key in texts:
                raise UsageError(f"option {key} is given twice in {self.text!r}")
            self._skip(" \t\n")
            texts[key] = self._list() if self._take("[") else self._text(",}")
            self._skip(" \t\n")
            if self._peek() not in (",", "}"):
                raise self._syntax_error("a comma or } is missing")
        if self.text[self.at - 1] != "}":
            raise self._syntax_error("its } is missing")
        return texts

    def _list(self) -> list[str]:
        elements: list[str] = []
        while self._skip(" \t\n,") and not self._take("]"):
            elements.append(self._text(",]"))
        if self.text[self.at - 1] != "]":
            raise self._syntax_error("its ] is missing")
        return elements

    def _text(self, ends: str) -> str:
        """Returns a word up to one of these, or what is in quotes."""
        if (quote := self._peek()) not in ("'", '"'):
            return self._word(ends).strip()
        self.at += 1
        result = ""
        while (char := self._peek()) != quote:
            if not char:
                raise self._syntax_error(f"its closing {quote} is missing")
            self.at += 1
            if char == "\\" and self._peek():
                char = {"n": "\n"}.get(self._peek(), self._peek())
                self.at += 1
            result += char
        self.at += 1
        return result

    def _word(self, ends: str) -> str:
        start = self.at
        while self._peek() and self._peek() not in ends:
            self.at += 1
        return self.text[start : self.at]

    def _skip(self, blanks: str) -> bool:
        """Skips these characters; returns whether any text is left."""
        while self._peek() and self._peek() in blanks:
            self.at += 1
        return self.at < len(self.text)

    def _take(self, char: str) -> bool:
        found = self._peek() == char
        self.at += found
        return found

    def _peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def _syntax_error(self, problem: str) -> UsageError:
        return UsageError(f"passes {self.text!r}, character {self.at + 1}: {problem}")
