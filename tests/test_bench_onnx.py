"""What the benchmark of ONNX holds is held by tests too, on smaller models."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

BESIDE = 300 << 20
OWN = (
    150 << 20
)  # bytes of a process's own, whatever the model has beside it; 54 and 87 MiB measured


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    found = importlib.import_module("bench_onnx")
    monkeypatch.setattr(found, "FAILED_LIMITS", [])
    return found


@pytest.mark.slow
def test_reading_and_writing_takes_at_most_one_and_a_half_times_as_long_as_onnx(
    bench: ModuleType, tmp_path: Path
) -> None:
    """Of several runs in turns; 0.6 times is measured."""
    model = importlib.import_module("onnx_models").bert(layers=4, width=512, words=8000)
    ratios = []
    for _ in range(3):  # the machine may have much else to do
        ratios.append(bench.both_ways("some", model, tmp_path))
        if ratios[-1] <= bench.MOST_TIMES:
            return
    raise AssertionError(f"{ratios}")


@pytest.mark.slow
def test_large_data_beside_a_model_are_not_held_in_memory(
    bench: ModuleType, tmp_path: Path
) -> None:
    importlib.import_module("onnx_models").write_with_external_data(tmp_path / "large.onnx", BESIDE)
    for verb, source, made, *how in bench.STEPS[:2]:
        files = [str(tmp_path / source), "-o", str(tmp_path / made)]
        most, _ = bench.peak(["-m", "qir", verb, *files, *how, "--quiet"])
        assert most < OWN, (verb, how, most)


@pytest.mark.parametrize("least", [True, False])
def test_a_limit_that_does_not_hold_is_a_failure(
    bench: ModuleType, monkeypatch: pytest.MonkeyPatch, least: bool
) -> None:
    def alone(folder: Path) -> Iterator[tuple[str, int, float]]:
        yield "convert", bench.MOST_MEMORY + least, 0.0

    monkeypatch.setattr(bench, "both_ways", lambda *_: 0.0)
    for name in ("resnet50", "bert"):
        monkeypatch.setattr(bench, name, lambda: None)
    monkeypatch.setattr(bench, "reading", lambda _: (0.0, 0.0))
    monkeypatch.setattr(bench, "converted", alone)
    if least:
        with pytest.raises(SystemExit, match="400 MiB"):
            bench.main()
    else:
        bench.main()
