"""Changes of readers, writers and ledger entries are noticed by the tests that the table names."""

from __future__ import annotations

import random
import tomllib

import pytest

from .sources import ROOT, TABLE, Mutation, mutations

SAMPLE = 2
"""So many of the table, others each time, are planted by `make test`."""


def test_the_table_names_places_and_tests_that_there_are() -> None:
    rows = mutations()
    assert len({str(row) for row in rows}) == len(rows) > 30
    for row in rows:
        assert row.text() != (ROOT / row.file).read_text(encoding="utf-8"), row
        assert row.tests, row
        for test in row.tests:
            path, _, name = test.partition("::")
            assert f"def {name}" in (ROOT / path).read_text(encoding="utf-8"), row


def test_a_change_that_changes_nothing_is_not_noticed() -> None:
    text = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutation"][0]
    same = Mutation(text["file"], text["before"], text["before"], ("tests/test_ledger.py",))
    said = same.unnoticed()
    assert "exit status 0" in said, said
    assert " passed" in said


@pytest.mark.slow
def test_what_cannot_be_loaded_is_not_noticed_either() -> None:
    broken = Mutation("qir/ledger.py", "class Ledger:", "class Ledger", ("tests/test_ledger.py",))
    assert "exit status 0" not in broken.unnoticed()
    assert broken.unnoticed()


@pytest.mark.slow
def test_a_sample_of_the_table_is_noticed() -> None:
    seed = random.SystemRandom().randrange(2**32)
    quick = [row for row in mutations() if "conformance" not in str(row.tests)]
    for row in random.Random(seed).sample(quick, SAMPLE):
        said = row.unnoticed()
        assert not said, f"seed {seed}: {said}"


@pytest.mark.long
@pytest.mark.parametrize("row", mutations(), ids=str)
def test_every_change_of_the_table_is_noticed(row: Mutation) -> None:
    assert not row.unnoticed()
