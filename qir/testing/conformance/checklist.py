"""A list of checks: each passed, failed or not to be made, and what was seen."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from traceback import extract_tb

from qir.errors import ContractError, QirError


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a plugin; `to_json` has the keys of the fields."""

    name: str
    passed: bool
    detail: str = ""
    """What was tried; of one that failed, what was seen first; else why nobody could look."""
    checked: bool = True
    """Whether anybody could look; what could not be checked has not failed."""

    @property
    def mark(self) -> str:
        """What came of it in a word: ok, FAILED, or not checked."""
        if not self.checked:
            return "not checked"
        return "ok" if self.passed else "FAILED"

    def __str__(self) -> str:
        return f"{self.mark}  {self.name}: {self.detail}".rstrip(": ")

    def to_json(self) -> dict[str, object]:
        """Returns the fields as JSON takes them."""
        return asdict(self)


class Broken(Exception):
    """What a check found."""


class Unseen(Exception):
    """Why something could not be checked."""


class Checklist:
    """Checks as they are made; nothing that a plugin raises ends them."""

    def __init__(self) -> None:
        self._rows: list[Check] = []

    def __iter__(self) -> Iterator[Check]:
        return iter(self._rows)

    def check(self, name: str, look: Callable[[], str | None]) -> bool:
        """Makes one check: `look` gives what it tried, and raises what is wrong.

        It raises Unseen where it cannot look; that is no failure.
        """
        try:
            tried = look()
        except Unseen as reason:
            self._rows.append(Check(name, True, str(reason), checked=False))
            return True
        except (Exception, SystemExit) as error:  # whatever a plugin raises
            self._rows.append(Check(name, False, told(error)))
            return False
        self._rows.append(Check(name, True, tried or ""))
        return True

    def told(self) -> tuple[Check, ...]:
        """Returns all of them."""
        return tuple(self._rows)


def told(error: BaseException) -> str:
    """Returns an error in one line."""
    plain = isinstance(error, QirError | Broken)
    text = " ".join(str(error).split())
    if plain and text:
        return text
    summary = f"{type(error).__name__}: {text}".rstrip(": ")
    frames = extract_tb(error.__traceback__)
    if not frames or (text and not isinstance(error, AssertionError)):
        return summary
    last = frames[-1]  # of an assertion, the place says most
    line = f": {last.line}" if last.line else ""
    return f"{summary} at {Path(last.filename).name}:{last.lineno}{line}"


def demand(holds: object, message: str) -> None:
    """Raises Broken where something does not hold."""
    if not holds:
        raise Broken(message)


class _Raised:
    error: BaseException | None = None


@contextmanager
def refusing(what: str) -> Iterator[_Raised]:
    """Demands that a call refuses, in one line: a QirError and nothing else."""
    raised = _Raised()
    try:
        yield raised
    except QirError as error:
        raised.error = error
    except Exception as error:
        reason = f"{what} raises {type(error).__name__}: {error}; errors of qir.errors are for that"
        raise Broken(reason) from error
    else:
        # Silence is the worst answer: a user would take the result for what was asked.
        raise Broken(f"{what} is taken without a word")
    lines = str(raised.error).splitlines()
    demand(len(lines) == 1 and lines[0], f"{what} is refused in {len(lines)} lines, not in one")


def require(checks: Iterable[Check]) -> None:
    """Raises ContractError, an AssertionError too, that lists the checks that failed."""
    all_checks = list(checks)
    failed = [str(check) for check in all_checks if not check.passed]
    if failed:
        raise ContractError(
            f"{len(failed)} of {len(all_checks)} checks failed: {'; '.join(failed)}"
        )


__all__ = ["Broken", "Check", "Checklist", "Unseen", "demand", "refusing", "require", "told"]
