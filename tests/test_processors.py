"""What the tests skip for lack of a processor is reported, and keeps its counts."""

import json
from pathlib import Path

import pytest

from tests import counting, processors
from tests.counting import Recorder

TEST = "tests/test_processors.py::test_a_cap_is_skipped_only_on_processors_that_lack_it"


@pytest.mark.parametrize(
    ("best", "skipped"),
    [("any", 4), ("avx2", 3), ("avx512", 2), ("vnni", 1), ("amx", 0)],
)
def test_a_cap_is_skipped_only_on_processors_that_lack_it(
    best: str, skipped: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processors, "best_isa", lambda: best)
    reasons = []
    for cap in ("AVX2", "AVX512_CORE", "AVX512_CORE_VNNI", "AVX512_CORE_AMX"):
        try:
            processors.require_cap(cap)
        except pytest.skip.Exception as why:
            reasons.append(f"Skipped: {why}")
    assert len(reasons) == skipped
    lines = processors.closing_lines([*reasons, "Skipped: no size of it is open"])
    assert processors.name() in lines[0]
    assert best in lines[0]
    assert len(lines) == 1 + skipped
    assert lines[1:] == sorted(f"skipped, {why.partition(': ')[2]}: 1" for why in reasons)


def test_a_test_with_a_skipped_parameter_keeps_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(counting, "FILE", tmp_path / "counts.json")
    monkeypatch.setattr(counting, "RICH", tmp_path / "richness.json")
    whole = Recorder(found={"p": {"conv | amx": {TEST: [10, 0]}}}, ran={TEST})
    counting.write(whole)
    part = Recorder(found={"p": {"conv": {TEST: [3, 0]}}}, ran={TEST}, skipped={TEST})
    for recorder, kept in ((part, whole.found), (Recorder(ran={TEST}), {})):
        counting.write(recorder)
        assert json.loads(counting.FILE.read_text(encoding="utf-8")) == kept
