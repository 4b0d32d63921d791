"""A cursor over text that knows where it is, for errors with line and column."""

from __future__ import annotations

import json
import math
import re

from qir.errors import ParseError

_SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|#[^\n]*)*")
_WORD = re.compile(r"[A-Za-z_][\w.\-]*")
_IDENT = re.compile(r"[A-Za-z_]\w*")
_NUMBER = re.compile(r"[-+]?(?:inf|nan|(?:[0-9]+(?:\.(?!\.)[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)")
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_LONGEST = 200  # letters of an error's message


class Cursor:
    """Where reading stands in a text."""

    __slots__ = ("at", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    def fail(self, message: str) -> ParseError:
        """The error to raise: message with line and column, in one line."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        message = " ".join(message.split())
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}..."
        return ParseError(f"line {line}, column {column}: {message}")

    def skip(self) -> None:
        """Passes white space and comments."""
        found = _SPACE.match(self.text, self.at)
        if found:
            self.at = found.end()

    @property
    def done(self) -> bool:
        self.skip()
        return self.at >= len(self.text)

    def peek(self, mark: str) -> bool:
        """Whether the mark stands next."""
        self.skip()
        return self.text.startswith(mark, self.at)

    def take(self, mark: str) -> bool:
        """Passes the mark if it stands next."""
        if self.peek(mark):
            self.at += len(mark)
            return True
        return False

    def take_word(self, word: str) -> bool:
        """Passes the word if it stands next and ends there."""
        self.skip()
        found = _IDENT.match(self.text, self.at)
        if found and found[0] == word:
            self.at = found.end()
            return True
        return False

    def expect(self, mark: str) -> None:
        """Passes the mark; ParseError if something else stands there."""
        if not self.take(mark):
            raise self.fail(f"{mark!r} should stand here, not {self.near()}")

    def near(self) -> str:
        """What stands next, for messages."""
        self.skip()
        rest = self.text[self.at : self.at + 20].split("\n")[0]
        return (
            repr(rest) if rest else "the end of the line" if self.at < len(self.text) else "the end"
        )

    def _match(self, pattern: re.Pattern[str], what: str) -> str:
        self.skip()
        found = pattern.match(self.text, self.at)
        if not found:
            raise self.fail(f"{what} should stand here, not {self.near()}")
        self.at = found.end()
        return found[0]

    def word(self) -> str:
        """A word of letters, digits, `_`, `.` and `-`."""
        return self._match(_WORD, "a word")

    def name_or_text(self) -> str:
        """A word, or a quoted text."""
        return self.string() if self.peek('"') else self.word()

    def identifier(self) -> str:
        """A word of letters, digits and `_`."""
        return self._match(_IDENT, "a name")

    def number(self) -> int | float:
        """A number; an int where it has no point and no exponent."""
        text = self._match(_NUMBER, "a number")
        if text.lstrip("+-").isdigit():
            if len(text) > 60:
                raise self.fail("a whole number of more than 60 digits")
            return int(text)
        return math.nan if text.endswith("nan") else float(text)

    def at_number(self) -> bool:
        self.skip()
        return _NUMBER.match(self.text, self.at) is not None

    def string(self) -> str:
        """A quoted text."""
        quoted = self._match(_STRING, "a quoted text")
        try:
            return str(json.loads(quoted))
        except ValueError:
            raise self.fail(f"{quoted[:40]} has a broken escape") from None

    def name(self) -> str:
        """A value's or array's name after its sign: bare, or quoted."""
        if self.at < len(self.text) and self.text[self.at] == '"':
            return self.string()
        found = _NAME.match(self.text, self.at)
        if not found:
            raise self.fail(f"a name should stand here, not {self.near()}")
        self.at = found.end()
        return found[0]


def quote(text: str) -> str:
    """A quoted text that reads back."""
    quoted = json.dumps(text, ensure_ascii=False)
    return _SURROGATE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def write_name(name: str) -> str:
    """A name, quoted where it needs to be."""
    return name if _NAME.fullmatch(name) else quote(name)


def write_word(word: str) -> str:
    """A word such as a profile's name, quoted where it needs to be."""
    return word if _WORD.fullmatch(word) else quote(word)
