"""Complete feeds: samples on any axis and of any length, as onnxruntime takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import qir
from qir.calibration import Feeds, InputSpec, Key, Statistics, collect, open_data, open_feeds
from qir.errors import DataError, QirError, UsageError
from tests.cli import recurrent

Array = NDArray[np.generic]
F32 = np.dtype(np.float32)
SPECS = {
    "x": InputSpec((None, None, 3), F32),
    "state": InputSpec((2, None, 4), F32),
    "gain": InputSpec((), F32),
}


def drawn(seed: int, lengths: tuple[int, ...] = (5, 1, 9, 3)) -> list[dict[str, Array]]:
    """Feeds of these lengths, each with its own number of samples, on axis 1."""
    random = np.random.default_rng(seed)
    feeds: list[dict[str, Array]] = []
    for number, length in enumerate(lengths):
        feeds.append(
            {
                "x": random.standard_normal((length, number + 1, 3), np.float32),
                "state": random.standard_normal((2, number + 1, 4), np.float32),
                "gain": np.float32(number) * np.ones((), np.float32),
            }
        )
    return feeds


def written(feeds: list[dict[str, Array]], folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    for number, feed in enumerate(feeds):
        np.savez(folder / f"{number:03d}.npz", **feed)  # type: ignore[arg-type]
    return folder


def same(one: dict[str, Array], other: dict[str, Array]) -> bool:
    return one.keys() == other.keys() and all(
        one[n].dtype == other[n].dtype
        and one[n].shape == other[n].shape
        and one[n].tobytes() == other[n].tobytes()
        for n in one
    )


def test_each_feed_is_given_as_it_is(tmp_path: Path) -> None:
    feeds = drawn(0)
    folder = written(feeds, tmp_path / "feeds")
    sources: list[Feeds] = [
        open_feeds(feeds, SPECS),
        open_feeds(iter(feeds), SPECS),
        open_feeds(folder, SPECS),
    ]
    assert [source.batches for source in sources] == [4, None, 4]
    for source in sources:
        found = list(source)
        assert len(found) == 4
        assert all(map(same, found, feeds))
    assert len(list(open_feeds(folder, SPECS, limit=2))) == 2
    assert same(next(iter(open_feeds(folder / "002.npz", SPECS))), feeds[2])
    assert same(next(iter(open_feeds(feeds[1], SPECS))), feeds[1])
    bare = {"x": SPECS["x"]}
    assert same(next(iter(open_feeds([feeds[0]["x"]], bare))), {"x": feeds[0]["x"]})


def test_feeds_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    feeds = drawn(0)
    folder = written(feeds, tmp_path / "feeds")
    digest = open_feeds(feeds, SPECS).digest()
    assert digest == open_feeds(folder, SPECS).digest()
    assert digest == open_feeds([{**feed, "labels": np.ones(1)} for feed in feeds], SPECS).digest()
    assert digest != open_feeds(feeds[:3], SPECS).digest()
    assert digest != open_feeds(drawn(1), SPECS).digest()
    lone = {"x": InputSpec((1, 3), F32)}
    array = np.ones((1, 3), np.float32)
    assert open_feeds([array], lone).digest() != open_data([array], lone).digest()


@pytest.mark.parametrize(
    ("feed", "said"),
    [
        ({"state": np.ones((3, 1, 4))}, "state' takes 2x?x4 float32, the feed has shape [3, 1, 4]"),
        ({"x": np.ones((2, 3))}, "x' takes ?x?x3 float32, the feed has shape [2, 3]"),
        ({"gain": np.ones(1)}, "gain' takes one float32, the feed has shape [1]"),
        ({"x": np.full((1, 1, 3), np.nan)}, "x' has NaN at [0, 0, 0]"),
        ({"gain": np.array(np.nan)}, "gain' has NaN at [0]"),
        ({"x": np.ones((1, 1, 3), complex)}, "x' is float32, the data are complex128"),
        ({"x": None}, "no array for input 'x'; it has 'state', 'gain'"),
    ],
)
def test_what_does_not_fit_is_named(
    tmp_path: Path, feed: dict[str, Array | None], said: str
) -> None:
    given = {**drawn(0)[0], **feed}
    wrong = {name: array for name, array in given.items() if array is not None}
    for data, where in (
        ([drawn(0)[0], wrong], "feeds[1]: "),
        (written([drawn(0)[0], wrong], tmp_path / "feeds"), f"{tmp_path}/feeds/001.npz: "),
    ):
        with pytest.raises(DataError, match=re.escape(where) + ".*" + re.escape(said)):
            list(open_feeds(data, SPECS))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: open_feeds([], SPECS), "feeds: no feeds"),
        (lambda: open_feeds(5, SPECS), "feeds are int: not a file"),  # type: ignore[arg-type]
        (lambda: open_feeds([{}], {}), "the model has no inputs to feed"),
        (lambda: open_feeds([{}], SPECS, limit=0), "sample limit 0: give at least 1"),
        (lambda: open_feeds("missing", SPECS), "missing: there is no such file or folder"),
    ],
)
def test_what_is_no_source_of_feeds_is_refused(make: Callable[[], Feeds], said: str) -> None:
    with pytest.raises(QirError, match=said):
        make()


def test_samples_that_differ_in_number_are_told_of_feeds() -> None:
    with pytest.raises(DataError, match=r"differ in samples: .* with --feeds \(feeds=True\)"):
        open_data(drawn(0), {name: SPECS[name] for name in ("x", "gain")} | TWO)
    with pytest.raises(DataError, match=r"samples at a time, another 1; .* --feeds \(feeds=True\)"):
        open_data([], {"x": InputSpec((1, None, 3), F32), "state": SPECS["state"]})


TWO = {"state": InputSpec((None, None, 4), F32)}


class Shows:
    """Shows its inputs."""

    digest = "shows"
    inputs = SPECS

    def run(self, inputs: Mapping[str, Array], observe: Callable[[str, Array], None]) -> None:
        for name, array in inputs.items():
            observe(name, array)


@pytest.mark.parametrize("threads", [1, 3])
def test_feeds_are_summed_up_and_resumed(tmp_path: Path, threads: int) -> None:
    feeds = drawn(2)
    watch = [Key(name) for name in SPECS] + [Key("x", 2)]
    made = collect(Shows(), open_feeds(feeds, SPECS), watch, threads=threads)
    for name in SPECS:
        every = np.concatenate([np.ravel(feed[name]) for feed in feeds])
        assert made[Key(name)].count == every.size
        assert made[Key(name)].extremes.tolist() == [every.min(), every.max()]
    part = Statistics("shows")
    with part.batch(open_feeds(feeds, SPECS).digest(), 1) as batch:
        for key in watch:
            batch.update(key.tensor, feeds[1][key.tensor], key.axis)
    assert collect(Shows(), open_feeds(feeds, SPECS), watch, resume=part) == made


def test_a_recurrent_model_is_calibrated_as_onnxruntime_runs_it(tmp_path: Path) -> None:
    recurrent.write(tmp_path)
    feeds = recurrent.feeds()
    graph = qir.load(tmp_path / "model.onnx")
    wanted = [recurrent.run(tmp_path / "model.onnx", feed) for feed in feeds]
    by_files = qir.calibrate(graph, tmp_path / "feeds", feeds=True, threads=2)
    assert by_files == qir.calibrate(graph, feeds, feeds=True)
    for name in ("logits", "hn"):
        every = np.concatenate([result[name].ravel() for result in wanted])
        summary = by_files[Key(graph.outputs[name].lineage.tensor)]
        assert summary.count == every.size
        np.testing.assert_allclose(summary.extremes, [every.min(), every.max()], rtol=1e-5)
    quantized = qir.quantize(graph, by_files)
    for feed, result in zip(feeds, wanted, strict=True):
        mine = qir.run(quantized, feed)["logits"].astype(np.float64)
        right = result["logits"].astype(np.float64)
        assert mine.shape == right.shape
        assert np.abs(mine - right).max() < 0.05 * np.ptp(right)
    with pytest.raises(UsageError, match="batch 4: feeds are complete, each is one run"):
        qir.calibrate(graph, feeds, feeds=True, batch=4)
