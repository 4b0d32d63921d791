"""The profiles that a graph carries, as its text holds them: `profile mine { | name = "mine" }`."""

from __future__ import annotations

from collections.abc import Iterator

from qir.ir.lexer import Cursor, quote, write_word
from qir.ir.node import CarriedProfile, GraphLike
from qir.records import record


@record
class ProfileText:
    """A profile of a text, which is read once a rule is asked of it.

    The language below profiles does not know what one says, so it keeps the lines as they are.
    """

    name: str
    text: str


def says_the_same(one: CarriedProfile, other: CarriedProfile) -> bool:
    """Returns whether two profiles have equal rules; those not read yet, equal texts."""
    if one.text != other.text:
        return False
    # A pass may derive a profile with other rules, which keeps the text of its file.
    return one == other or isinstance(one, ProfileText) or isinstance(other, ProfileText)


def named_profiles(graph: GraphLike) -> list[str]:
    """Returns the names of the profiles that a graph, its bodies and their nodes name, sorted."""
    names = {graph.profile}
    for node in graph:
        names.add(node.profile or "")
        for body in node.bodies.values():
            names.update(named_profiles(body))
    return sorted(names - {""})


def needed_profiles(graph: GraphLike) -> dict[str, CarriedProfile]:
    """Returns the profiles that a graph both carries and names, by name."""
    carried = graph.own_profiles
    if not carried:  # as most graphs do: their nodes need not be looked at
        return {}
    return {name: carried[name] for name in named_profiles(graph) if name in carried}


def write_profile(profile: CarriedProfile) -> Iterator[str]:
    """Yields the lines of a profile's section of a text."""
    yield f"profile {write_word(profile.name)} {{"
    *lines, last = profile.text.split("\n")
    for line in lines:
        # A line with control or direction characters could look like another one on a terminal, as
        # in `quote`: it is quoted, with its end.
        if line.isprintable():
            yield f"  | {line}" if line else "  |"
        else:
            yield f"  {quote(line + chr(10))}"
    if last:  # a text whose last line has no end
        yield f"  {quote(last)}"
    yield "}"


def read_profile_text(cursor: Cursor) -> ProfileText:
    """Reads a section after its word `profile`; ParseError for what is no section."""
    name = cursor.name_or_text()
    cursor.expect("{")
    parts: list[str] = []
    while not cursor.take("}"):
        if cursor.done:
            raise cursor.fail(f"the bracket of the profile {name} is not closed")
        if cursor.peek('"'):
            parts.append(cursor.string())
            continue
        cursor.expect("|")
        start = cursor.at
        end = cursor.text.find("\n", start)
        cursor.at = len(cursor.text) if end < 0 else end
        parts.append(cursor.text[start : cursor.at].removeprefix(" ") + "\n")
    return ProfileText(name, "".join(parts))
