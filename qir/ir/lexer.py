"""A cursor over text that knows where it is, for errors with line and column."""

from __future__ import annotations

import json
import math
import re
from typing import NoReturn

from qir.errors import ParseError
from qir.ir._scan import Scanner

_WORD = re.compile(r"[A-Za-z_][\w.\-]*")
_NAME = re.compile(r"[A-Za-z_]\w*(?:\.\w+)*")
_LONGEST = 200  # letters of an error's message


class Cursor(Scanner):
    """Where reading is in a text; the scanner below it is compiled."""

    __slots__ = ()

    def fail(self, message: str) -> ParseError:
        """Returns the error to raise: message with line and column, in one line."""
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - self.text.rfind("\n", 0, self.at)
        message = " ".join(message.split())
        if len(message) > _LONGEST:
            message = f"{message[:_LONGEST]}..."
        return ParseError(f"line {line}, column {column}: {message}")

    def expect(self, mark: str) -> None:
        """Passes the mark; raises ParseError if something else is there."""
        if not self.take(mark):
            raise self.fail(f"{mark!r} should stand here, not {self.near()}")

    def near(self) -> str:
        """Returns what stands next, for messages."""
        self.skip()
        upcoming = self.text[self.at : self.at + 20].split("\n")[0]
        return (
            repr(upcoming)
            if upcoming
            else "the end of the line"
            if self.at < len(self.text)
            else "the end"
        )

    def word(self) -> str:
        """Returns a word of letters, digits, `_`, `.` and `-`."""
        return self.find_word() or self._missing("a word")

    def name_or_text(self) -> str:
        """Returns a word, or a quoted text."""
        return self.string() if self.peek('"') else self.word()

    def identifier(self) -> str:
        """Returns a word of letters, digits and `_`."""
        return self.find_identifier() or self._missing("a name")

    def number(self) -> int | float:
        """Returns a number; an int where it has no point and no exponent."""
        text = self.find_number() or self._missing("a number")
        if text.lstrip("+-").isdigit():
            # int() of a very long text takes quadratic time.
            if len(text) > 60:
                raise self.fail("a whole number of more than 60 digits")
            return int(text)
        # `-nan` and `+nan` read as the one NaN that types are compared with.
        return math.nan if text.endswith("nan") else float(text)

    def string(self) -> str:
        """Returns a quoted text."""
        quoted = self.find_string() or self._missing("a quoted text")
        try:
            return str(json.loads(quoted))
        except ValueError:
            raise self.fail(f"{quoted[:40]} has a broken escape") from None

    def name(self) -> str:
        """Returns a value's or array's name after its sign: bare, or quoted."""
        if (bare := self.find_name()) is not None:
            return bare
        if self.text.startswith('"', self.at):
            return self.string()
        return self._missing("a name")

    def _missing(self, what: str) -> NoReturn:
        raise self.fail(f"{what} should stand here, not {self.near()}")


def quote(text: str) -> str:
    """Returns a quoted text that reads back."""
    return spelled(json.dumps(text, ensure_ascii=False))


def spelled(text: str) -> str:
    """Returns a JSON text whose control and direction characters are escapes; line ends stay."""
    if text.isprintable():
        return text
    # Direction characters of Unicode can make a text look like another one on a terminal.
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def write_name(name: str) -> str:
    """Returns a name, quoted where it needs to be."""
    return name if _NAME.fullmatch(name) else quote(name)


def write_word(word: str) -> str:
    """Returns a word such as a profile's name, quoted where it needs to be."""
    return word if _WORD.fullmatch(word) else quote(word)
