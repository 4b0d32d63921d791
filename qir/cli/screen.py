"""How verbs print: aligned tables that fit the terminal, plain text in a pipe, progress bars."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, Protocol

from qir.cli.failures import printable
from qir.ir.lexer import spelled

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

GAP = "  "
MIN_COLUMN_WIDTH = 12
"""A column that gives way keeps so many characters."""
PAGE = 100
"""Columns of tables that would be wider than a page, where they are not printed on a terminal."""
NARROW = 40
"""No terminal is taken for narrower than this."""


@dataclass(frozen=True, slots=True)
class Column:
    """One column, and what it does when the terminal is too narrow."""

    title: str
    align: Literal["left", "right"] = "left"
    fit: Literal["keep", "fold", "wrap", "drop"] = "keep"
    style: str = ""


@dataclass(frozen=True, slots=True)
class StyledText:
    """A text with a style of its own."""

    text: str
    style: str = ""


Row = Sequence["str | StyledText"]


class ReportProgress(Protocol):
    """Takes how many steps of how many are done, and what is being done now."""

    def __call__(self, done: int, total: int | None, now: str = "") -> None: ...


class TimeLeft:
    """Estimates how long the rest takes, from the first step that is done on."""

    def __init__(self) -> None:
        self._start: tuple[int, int, float] | None = None
        """Steps of all at which the count began, and when."""
        self._last = 0

    def after(self, done: int, total: int | None, now: float) -> str:
        """Returns the rest at the time `now`; nothing where it is not known.

        Another total, or fewer steps than before, begin a count of their own.
        """
        if total is None:
            self._start = None
            return ""
        # A verb has several loops that report to one bar, each with steps of another length.
        if self._start is None or self._start[1] != total or done < self._last:
            self._start = done, total, now
        # Time counts from the first report: what came before, such as loading, says nothing of a
        # step.
        first, _, since = self._start
        self._last = done
        if done == first:
            return ""
        seconds = round((now - since) / (done - first) * (total - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02} left"


class Screen:
    """Standard output of one verb: lines and tables, or nothing where it is to be quiet."""

    def __init__(self, *, quiet: bool = False, elsewhere: int | None = None) -> None:
        """`elsewhere`: how wide it is where that is no terminal; as wide as it comes for None."""
        self.quiet = quiet
        self.elsewhere = elsewhere

    @cached_property
    def _console(self) -> Console:
        from rich.console import Console

        return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    @cached_property
    def width(self) -> int | None:
        """Columns of the terminal; None where the output goes elsewhere and may be any length."""
        if not sys.stdout.isatty():
            return self.elsewhere
        return max(NARROW, shutil.get_terminal_size().columns)

    def line(self, text: str = "", style: str = "") -> None:
        """Prints one line."""
        self._print([(printable(text), style)])

    def aside(self, text: str) -> None:
        """Prints one line on standard error, where it does not mix with the results."""
        if not self.quiet:
            print(printable(text), file=sys.stderr)

    def json(self, data: object) -> None:
        """Prints JSON, quiet or not: it was asked for."""
        # `allow_nan`: NaN and Infinity are no JSON, and a verb that lets one through has a fault.
        print(spelled(json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False)))

    def facts(self, facts: Mapping[str, str]) -> None:
        """Prints names and what is to say of each, aligned; long ones continue below themselves."""
        name_width = max(map(len, facts), default=0)
        for name, text in facts.items():
            text_width = None if self.width is None else self.width - name_width - 4
            for i, part in enumerate(_wrapped(printable(text), text_width)):
                self._print([(f"  {name if i == 0 else '':<{name_width}}{GAP}", "dim"), (part, "")])

    def table(self, columns: Sequence[Column], rows: Sequence[Row], *, title: str = "") -> None:
        """Prints a table, with a title above it; nothing where it has no rows."""
        if self.quiet or not rows:
            return
        if title:
            self.line()
            self.line(title, "bold")
        cells = [[_cell(c) for c in row] for row in rows]
        shown, widths = layout(columns, cells, self.width)
        head = [StyledText(columns[i].title, "dim") for i in shown]
        # A line of empty titles would only look like a gap.
        if any(cell.text for cell in head):
            self._row([columns[i] for i in shown], head, widths)
        for row in cells:
            self._row([columns[i] for i in shown], [row[i] for i in shown], widths)

    def _row(
        self, columns: Sequence[Column], cells: Sequence[StyledText], widths: Sequence[int]
    ) -> None:
        parts = [
            _wrapped(c.text, w) if column.fit == "wrap" else _fold_words(c.text, w)
            for column, c, w in zip(columns, cells, widths, strict=True)
        ]
        for i in range(max(map(len, parts))):
            line: list[tuple[str, str]] = [("  ", "")]
            for column, cell, part, width in zip(columns, cells, parts, widths, strict=True):
                text = part[i] if i < len(part) else ""
                blank = " " * (width - _cells(text))
                padded = blank + text if column.align == "right" else text + blank
                line += [(padded, cell.style or column.style), (GAP, "")]
            self._print(line)

    def _print(self, parts: Sequence[tuple[str, str]]) -> None:
        if self.quiet:
            return
        if not sys.stdout.isatty():
            # No styles in a pipe, no blanks at line ends, and Rich is not imported.
            print("".join(text for text, _ in parts).rstrip())
            return
        self._console.print(_text(parts), soft_wrap=True)

    @contextmanager
    def progress(self, what: str) -> Iterator[ReportProgress]:
        """A bar on standard error, where that is a terminal; returns the function that each step is
        reported to."""
        if self.quiet or not sys.stderr.isatty():
            # In a pipe or a log a bar would be lines of control characters.
            yield lambda done, total, now="": None
            return
        # Rich is slow to import: only a terminal pays for it.
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[left]}", markup=False),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None, left="")
            left = TimeLeft()

            def tell(done: int, total: int | None, now: str = "") -> None:
                description = f"{what} {now}" if now else what
                remaining = left.after(done, total, time.monotonic())
                bar.update(
                    task, completed=done, total=total, description=description, left=remaining
                )

            yield tell


def _text(parts: Sequence[tuple[str, str]]) -> Text:
    from rich.text import Text

    out = Text()
    for text, style in parts:
        out.append(text, style or None)
    out.rstrip()
    return out


def _cell(value: str | StyledText) -> StyledText:
    if isinstance(value, StyledText):
        return StyledText(printable(value.text), value.style)
    return StyledText(printable(value))


def _cells(text: str) -> int:
    """Returns how many columns of a terminal the text takes."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len

    return cell_len(text)


def layout(
    columns: Sequence[Column], rows: Sequence[Sequence[StyledText]], width: int | None
) -> tuple[list[int], list[int]]:
    """Returns which columns are shown, and how wide: the last to drop goes first, then names give
    way."""
    natural = [
        max([_cells(column.title), *(_cells(row[i].text) for row in rows)])
        for i, column in enumerate(columns)
    ]
    # A column without a single entry is left out, whatever it may give way to.
    shown = [i for i in range(len(columns)) if any(r[i].text for r in rows)]
    if width is None:
        return shown, [natural[i] for i in shown]

    def least(i: int) -> int:
        return (
            # More than the minimum, so that columns are dropped before names are squeezed all the
            # way.
            min(natural[i], MIN_COLUMN_WIDTH + 4)
            if columns[i].fit in ("fold", "wrap")
            else natural[i]
        )

    def needed() -> int:
        return sum(map(least, shown)) + len(GAP) * len(shown)

    # Columns that may drop go before any name loses a letter, the last of them first.
    for i in [i for i in reversed(shown) if columns[i].fit == "drop"]:
        if needed() > width:
            shown.remove(i)
    sizes = {i: natural[i] for i in shown}
    while (excess := sum(sizes.values()) + len(GAP) * len(shown) - width) > 0:
        elastic = [
            i for i in shown if columns[i].fit in ("fold", "wrap") and sizes[i] > MIN_COLUMN_WIDTH
        ]
        # Nothing gives way any more: the terminal folds what is left.
        if not elastic:
            break
        widest = max(elastic, key=lambda i: sizes[i])
        rival = max((sizes[i] for i in elastic if i != widest), default=MIN_COLUMN_WIDTH)
        # The widest shrinks to the next widest, so that all of them end alike.
        step = max(1, min(excess, sizes[widest] - max(rival, MIN_COLUMN_WIDTH)))
        sizes[widest] -= step
    return shown, [sizes[i] for i in shown]


def _fold_words(text: str, width: int) -> list[str]:
    """Returns the text in full, on as many lines as it takes: a name is broken anywhere."""
    lines = [""]
    for letter in text:
        if lines[-1] and _cells(lines[-1] + letter) > width:
            lines.append("")
        lines[-1] += letter
    return lines


def _wrapped(text: str, width: int | None) -> list[str]:
    if width is None or _cells(text) <= width:
        return [text]
    return textwrap.wrap(text, max(width, MIN_COLUMN_WIDTH)) or [""]


def amount(number: float | None) -> str:
    """A count in three figures: 12, 884 k, 1.33 M; `?` where it is not known."""
    if number is None:
        return "?"
    for unit in ("", " k", " M", " G", " T"):
        # 999.5 and more would print as 1000, which is four figures.
        if abs(number) < 999.5 or unit == " T":
            break
        number /= 1000
    return f"{number:.0f}" if not unit else f"{three_digits(number)}{unit}"


def size(count: float) -> str:
    """Bytes in three figures: 96 B, 241 KB, 1.8 MB."""
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if count < 999.5 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} B" if unit == "B" else f"{three_digits(count)} {unit}"


def three_digits(number: float) -> str:
    """Three figures of a number below a thousand: 1.20, 12.0, 120."""
    places = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{places}f}"


def float_text(number: float | None, figures: int = 4) -> str:
    """Returns a real number in a few figures; `-` where there is none."""
    return "-" if number is None else f"{number:.{figures}g}"


def number_text(number: float | None, figures: int = 4) -> str:
    """Returns a number that may be whole, as quantized values are: all its figures then, else as
    `float_text` writes it."""
    # From 2^53 on a float64 stands for several whole numbers: all its figures would be a claim.
    if number is None or not float(number).is_integer() or abs(number) >= 2.0**53:
        return float_text(number, figures)
    return str(int(number))


def aligned(number: float | None) -> str:
    """Returns a real number for a column of them: the points are in one line."""
    if number is None:
        return "-"
    # Beyond these, three places would be zeros, or the column as wide as its largest number.
    plain = number == 0 or 0.001 <= abs(number) < 100_000
    return f"{number:.3f}" if plain else f"{number:.1e}"


def plural(count: int, word: str, many: str = "") -> str:
    """`1 node`, `3 nodes`."""
    return f"{count:,} {word if count == 1 else many or word + 's'}"


def percent(share: float) -> str:
    """`93.2 %`; what is not all, nor nothing, does not round to it."""
    if share in (0, 1):
        return f"{100 * share:.0f} %"
    return f"{min(max(100 * share, 0.1), 99.9) if 0 < share < 1 else 100 * share:.1f} %"
