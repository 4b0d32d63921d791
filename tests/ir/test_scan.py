"""The compiled scanner against the regular expressions that say what it looks for."""

import random
import re

import pytest

from qir.ir._scan import Scanner

SPACE = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|#[^\n]*)*")
FOUND = {
    "find_word": re.compile(r"[A-Za-z_][\w.\-]*"),
    "find_identifier": re.compile(r"[A-Za-z_]\w*"),
    "find_name": re.compile(r"[A-Za-z_]\w*(?:\.\w+)*"),
    "find_number": re.compile(
        r"[-+]?(?:inf|nan|(?:[0-9]+(?:\.(?!\.)[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)"
    ),
    "find_string": re.compile(r'"(?:[^"\\\n]|\\.)*"'),
}
LETTERS = 'aZ_09.-+eE"\\\n \t\r#/%(infaé٣²\0x\U0001f600'
MARKS = ("a", "%", "inf", "é", ".", "..", "", "//", '"')


def texts(count: int) -> list[str]:
    rng = random.Random(20)
    return ["".join(rng.choices(LETTERS, k=rng.randrange(9))) for _ in range(count)]


@pytest.mark.parametrize("method", FOUND)
def test_what_stands_next_is_found_as_its_expression_finds_it(method: str) -> None:
    hits = 0
    for text in texts(20_000):
        behind = SPACE.match(text)
        assert behind
        start = 0 if method == "find_name" else behind.end()
        found = FOUND[method].match(text, start)
        scanner = Scanner(text)
        assert getattr(scanner, method)() == (found[0] if found else None), repr(text)
        assert scanner.at == (found.end() if found else start), repr(text)
        hits += found is not None
    assert hits > 50


def test_marks_words_and_ends_are_seen_behind_spaces_and_comments() -> None:
    for i, text in enumerate(texts(20_000)):
        behind = SPACE.match(text)
        assert behind
        rest, mark = text[behind.end() :], MARKS[i % len(MARKS)]
        word = FOUND["find_identifier"].match(rest)
        assert Scanner(text).peek(mark) == rest.startswith(mark), repr(text)
        scanner = Scanner(text)
        assert scanner.take(mark) == rest.startswith(mark)
        assert scanner.at == behind.end() + (len(mark) if rest.startswith(mark) else 0)
        assert Scanner(text).take_word("a") == (word is not None and word[0] == "a"), repr(text)
        assert Scanner(text).at_number() == bool(FOUND["find_number"].match(rest)), repr(text)
        assert Scanner(text).done == (not rest)


@pytest.mark.parametrize("place", [-1, 4, 1 << 62])
def test_a_place_outside_the_text_is_refused(place: int) -> None:
    scanner = Scanner("abc")
    scanner.at = 3
    with pytest.raises(ValueError, match="no place"):
        scanner.at = place
    assert scanner.at == 3
