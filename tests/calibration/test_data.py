"""Data sources: what they read, in what batches, and what they refuse in which words."""

from __future__ import annotations

import os
import resource
import tracemalloc
import weakref
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from qir.calibration import DataSource, InputSpec, open_data, open_feeds
from qir.calibration.data import Data
from qir.calibration.rows import open_npy
from qir.errors import DataError, UsageError

Array = NDArray[np.generic]
F32 = np.dtype(np.float32)
ONE = {"x": InputSpec((None, 3), F32)}
TWO = {"x": InputSpec((None, 3), F32), "ids": InputSpec((None,), np.dtype(np.int64))}
X = np.arange(30, dtype=np.float32).reshape(10, 3)
IDS = np.arange(10) * 7


def npy(folder: Path) -> Path:
    np.save(folder / "x.npy", X)
    return folder / "x.npy"


def fortran(folder: Path) -> Path:
    np.save(folder / "x.npy", np.asfortranarray(X))
    return folder / "x.npy"


def npz(folder: Path) -> Path:
    np.savez(folder / "x.npz", x=X, labels=IDS)
    return folder / "x.npz"


def packed(folder: Path) -> Path:
    np.savez_compressed(folder / "x.npz", anything=X)
    return folder / "x.npz"


def packed_fortran(folder: Path) -> Path:
    np.savez_compressed(folder / "x.npz", x=np.asfortranarray(X))
    return folder / "x.npz"


def samples(folder: Path) -> Path:
    for i, row in enumerate(X):
        np.save(folder / f"{i:02}.npy", row)
    (folder / "README").write_text("not data")
    return folder


def stacks(folder: Path) -> Path:
    for i, part in enumerate((X[:1], X[1:5], X[5:5], X[5:])):
        np.savez(folder / f"{i}.npz", x=part)
    return folder


WAYS: dict[str, Callable[[Path], Data]] = {
    "npy": npy,
    "fortran npy": fortran,
    "npz": npz,
    "compressed npz": packed,
    "fortran npz": packed_fortran,
    "folder of samples": samples,
    "folder of stacks": stacks,
    "array": lambda _: X,
    "mapping": lambda _: {"x": X},
    "list of samples": lambda _: list(X),
    "list of mappings": lambda _: [{"x": X[:4], "other": IDS}, {"x": X[4:]}],
    "generator": lambda _: (row for row in X),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("batch", "limit"), [(1, None), (4, None), (4, 6), (10, 4), (None, None)])
def test_every_way_gives_the_same_batches(
    way: str, batch: int | None, limit: int | None, tmp_path: Path
) -> None:
    source = open_data(WAYS[way](tmp_path), ONE, batch=batch, limit=limit)
    batches = list(source)
    size, used = batch or 32, X[:limit]
    assert [one["x"].tolist() for one in batches] == [
        used[i : i + size].tolist() for i in range(0, len(used), size)
    ]
    assert all(set(one) == {"x"} and one["x"].dtype == F32 for one in batches)
    if way == "generator":
        assert source.samples is None
        assert source.batches is None
    else:
        assert source.samples == len(used)
        assert source.batches == len(source) == len(batches)
        assert [one["x"].tolist() for one in source] == [one["x"].tolist() for one in batches]


@pytest.mark.parametrize("way", WAYS)
def test_batches_that_are_done_are_skipped(way: str, tmp_path: Path) -> None:
    source = open_data(WAYS[way](tmp_path), ONE, batch=2)
    left = {number: batch["x"].tolist() for number, batch in source.numbered({0, 1, 3})}
    assert left == {2: X[4:6].tolist(), 4: X[8:].tolist()}


def test_the_digest_is_that_of_the_batches_and_of_nothing_else(tmp_path: Path) -> None:
    digests = set()
    for way, make in WAYS.items():
        if way != "generator":
            (tmp_path / way).mkdir()
            digests.add(open_data(make(tmp_path / way), ONE, batch=4).digest())
    assert len(digests) == 1
    changed = X.copy()
    changed[9, 2] += 1
    for other in (
        open_data(changed, ONE, batch=4),
        open_data(X, ONE, batch=5),
        open_data(X, ONE, batch=4, limit=9),
        open_data(iter(X), ONE, batch=4),
    ):
        digests.add(other.digest())
    assert len(digests) == 5
    stream = open_data(iter(X), ONE, batch=4, name="camera")
    assert stream.digest() != open_data(iter(X), ONE, batch=4).digest()
    assert len(list(stream)) == 3  # the digest took nothing


def test_several_inputs_come_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", ids=IDS, x=X)
    whole: dict[str, Array] = {"x": X, "ids": IDS}
    single: list[dict[str, Array]] = [{"x": X[i], "ids": IDS[i : i + 1]} for i in range(10)]
    for data in (tmp_path / "d.npz", whole, single):
        batches = list(open_data(data, TWO, batch=4))
        assert np.array_equal(np.concatenate([one["ids"] for one in batches]), IDS)
        assert np.array_equal(np.concatenate([one["x"] for one in batches]), X)
        assert batches[0]["ids"].dtype == np.int64


def test_the_only_array_beside_labels_is_the_only_input_s(tmp_path: Path) -> None:
    labels = np.arange(10)
    np.savez(tmp_path / "d.npz", images=X, labels=labels)
    held: dict[str, Array] = {"images": X, "y": labels}
    for data in (tmp_path / "d.npz", held):
        found = [one["x"] for one in open_data(data, ONE, batch=4)]
        assert np.array_equal(np.concatenate(found), X)
    np.savez(tmp_path / "y.npz", y=X)  # alone it is the data
    assert np.array_equal(next(iter(open_data(tmp_path / "y.npz", ONE, batch=10)))["x"], X)


def test_a_model_with_one_batch_size_gets_that_and_says_what_is_left_out() -> None:
    inputs = {"x": InputSpec((4, 3), F32)}
    source = open_data(X, inputs)
    assert [one["x"].shape for one in source] == [(4, 3), (4, 3)]
    assert (source.batches, source.left_out, source.samples) == (2, 2, 10)
    with pytest.raises(UsageError, match="batch 3: the model takes batches of 4 only"):
        open_data(X, inputs, batch=3)
    with pytest.raises(DataError, match="3 samples, a batch takes 4"):
        open_data(X[:3], inputs)


def test_numbers_are_converted_where_nothing_of_their_kind_is_lost() -> None:
    for dtype in (np.float64, np.float16, np.int8, np.int64):
        (batch,) = open_data(X.astype(dtype), ONE)
        assert batch["x"].dtype == F32
        assert np.array_equal(batch["x"], X)
    half = {"x": InputSpec((None, 3), np.dtype(ml_dtypes.bfloat16))}
    (batch,) = open_data(X.astype(ml_dtypes.bfloat16), half)
    assert batch["x"].dtype == ml_dtypes.bfloat16
    with pytest.raises(DataError, match="input 'ids' is int64, the data are float32"):
        open_data({"x": X, "ids": IDS.astype(np.float32)}, TWO)


def test_pixels_for_an_input_of_floats_are_refused() -> None:
    said = "input 'x' is float32, the data are uint8, which are pixels before preprocessing: scale"
    refused(said, lambda: open_data(X.astype(np.uint8), ONE))


def test_memory_holds_a_batch_and_not_the_data(tmp_path: Path) -> None:
    big = np.zeros((2000, 4096), np.float32)  # 32 MB
    np.save(tmp_path / "mapped.npy", big)
    np.savez(tmp_path / "plain.npz", x=big)
    np.savez_compressed(tmp_path / "packed.npz", x=big)
    del big
    inputs = {"x": InputSpec((None, 4096), F32)}
    for file in ("mapped.npy", "plain.npz", "packed.npz"):
        tracemalloc.start()
        source = open_data(tmp_path / file, inputs, batch=16)
        assert sum(len(one["x"]) for one in source) == 2000
        source.digest()
        list(source.numbered(set(range(124))))
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 4e6, file


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says what is resident")
@pytest.mark.skipif("asan" in os.environ.get("LD_PRELOAD", ""), reason="it keeps freed memory")
def test_a_file_that_was_read_is_no_memory_of_the_process(tmp_path: Path) -> None:
    def resident() -> int:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize()

    np.save(tmp_path / "big.npy", np.ones((4000, 4096), np.float32))  # 64 MB
    source = open_data(tmp_path / "big.npy", {"x": InputSpec((None, 4096), F32)}, batch=50)
    before, most = resident(), 0
    for batch in source:
        assert batch["x"].all()
        most = max(most, resident())
    assert most - before < 16 << 20


def test_an_npy_file_gives_its_rows_in_any_order_and_says_when_it_became_shorter(
    tmp_path: Path,
) -> None:
    np.save(tmp_path / "c.npy", X)
    np.save(tmp_path / "fortran.npy", np.asfortranarray(X))
    for name in ("c", "fortran"):
        rows = open_npy(tmp_path / f"{name}.npy")
        assert rows.shape == X.shape
        assert rows.dtype == X.dtype
        for start, stop in ((4, 7), (0, 2), (8, 99), (10, 12), (0, 10)):
            assert np.array_equal(rows.read(start, stop), X[start:stop])
    rows = open_npy(tmp_path / "c.npy")
    whole = (tmp_path / "c.npy").read_bytes()
    (tmp_path / "c.npy").write_bytes(whole[:-4])
    with pytest.raises(DataError, match="ends too early"):
        rows.read(8, 10)


def test_what_a_batch_is_put_together_from_is_dropped() -> None:
    read: list[weakref.ref[Any]] = []

    def samples() -> Iterator[Any]:
        for row in X:
            one = row[None].copy()
            read.append(weakref.ref(one))
            yield one

    batches = open_data(samples(), ONE, batch=3).numbered()
    _, batch = next(batches)
    assert (batch["x"] == X[:3]).all()
    assert [ref() is None for ref in read[:2]] == [True, True]  # the generator holds the last


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return (open, ("pickle-was-run", "w"))


REFUSED: dict[str, tuple[Any, str]] = {
    "shape": (X[:, :2], r"data\[0\]: input 'x' takes \?x3 float32, the data have shape \[10, 2\]"),
    "rank": (X[None], r"the data have shape \[1, 10, 3\]"),
    "NaN": (np.where(X == 16, np.nan, X), r"input 'x' has NaN at \[5, 1\], 1 in this batch"),
    "complex": (X * 1j, "input 'x' is float32, the data are complex"),
    "text": (np.array([["a", "b", "c"]]), "input 'x' is float32, the data are <U1"),
    "objects": (np.array([[Evil()] * 3]), "holds Python objects"),
    "ragged": ([[[1, 2, 3], [1]]], "not an array"),
    "no samples": (X[:0], "0 samples"),
    "nothing": ([], "0 samples"),
    "no such name": ({"u": X, "z": X}, "no array for input 'x'; it has 'u', 'z'"),
    "unlike": ([X[0], X[:1, :2]], r"data\[1\]: input 'x' takes"),
    "no data": (3, "not an array, a file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_data_that_do_not_fit_are_refused_in_one_line(case: str) -> None:
    data, said = REFUSED[case]
    refused(said, lambda: consume(open_data(data, ONE)))


def consume(source: DataSource) -> None:
    for _ in source:
        pass


def refused(said: str, act: Callable[[], object]) -> None:
    with pytest.raises(DataError, match=said) as caught:
        act()
    message = str(caught.value)
    assert len(message.splitlines()) == 1
    assert len(message) < 240


def test_inputs_that_differ_in_length_are_refused() -> None:
    data: dict[str, Array] = {"x": X, "ids": IDS[:4]}
    refused("differ in samples: 'x' has 10, 'ids' has 4", lambda: open_data(data, TWO))


def test_samples_of_different_shapes_share_no_batch() -> None:
    inputs = {"x": InputSpec((None, None), F32)}
    data = [X[0], X[0, :2]]
    assert [one["x"].shape for one in open_data(data, inputs, batch=1)] == [(1, 3), (1, 2)]
    refused(
        r"data\[1\]: input 'x' has samples of shape \[2\].*batch of 1",
        lambda: consume(open_data(data, inputs)),
    )


def test_sizes_below_one_are_refused() -> None:
    for batch, limit in ((0, None), (None, 0), (None, -1)):
        with pytest.raises(UsageError, match="give at least 1"):
            open_data(X, ONE, batch=batch, limit=limit)


def test_files_that_are_none_are_refused(tmp_path: Path) -> None:
    def check(path: Path, said: str) -> None:
        refused(said, lambda: consume(open_data(path, ONE)))

    check(tmp_path / "missing.npy", "no such file or folder")
    check(tmp_path, "no .npy or .npz file in this folder")
    (tmp_path / "x.txt").write_text("1 2 3")
    check(tmp_path / "x.txt", "not an .npy or .npz file")
    for suffix in (".npy", ".npz"):
        for content in (b"", b"foreign", b"\x93NUMPY", b"PK\x03\x04", bytes(1000)):
            path = tmp_path / f"bad{suffix}"
            path.write_bytes(content)
            check(path, "not a NumPy file, or damaged")
    np.save(tmp_path / "two.npy", X)
    with (tmp_path / "two.npy").open("ab") as file:
        np.save(file, X)
    check(tmp_path / "two.npy", r"368 bytes where its shape \[10, 3\] and float32 make 120")
    np.save(tmp_path / "o.npy", np.array([Evil()]), allow_pickle=True)
    np.savez(tmp_path / "o.npz", x=np.array([Evil()]), allow_pickle=True)
    check(tmp_path / "o.npy", "holds Python objects")
    check(tmp_path / "o.npz", "holds Python objects")
    assert not Path("pickle-was-run").exists()


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_files_that_are_cut_off_are_refused_wherever_it_is(
    save: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / ("x.npy" if save is np.save else "x.npz")
    save(path, np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32))
    content = path.read_bytes()
    for length in range(0, len(content), 97):
        path.write_bytes(content[:length])
        refused(str(path), lambda: consume(open_data(path, ONE)))


def test_a_flipped_bit_in_an_npz_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(
        path, x=np.random.default_rng(0).standard_normal((400, 3)).astype(np.float32)
    )
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        stop = archive.start_dir
        start = stop - archive.infolist()[0].compress_size
    # The first byte says that no block follows, and the last two are the end mark: not data.
    for spot in range(start + 1, stop - 2, 3):
        bad = bytearray(content)
        bad[spot] ^= 1 << spot // 3 % 8
        path.write_bytes(bad)
        refused(str(path), lambda: consume(open_data(path, ONE)))


def test_bytes_in_a_header_never_end_in_a_traceback(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "x.npz", x=X)
    for name in ("x.npy", "x.npz"):
        path = tmp_path / name
        content = path.read_bytes()
        for seed in range(400):
            rng = np.random.default_rng(seed)
            bad = bytearray(content)
            bad[int(rng.integers(min(len(bad), 250)))] = int(rng.integers(256))
            path.write_bytes(bad)
            try:
                consume(open_data(path, ONE))
            except DataError as error:
                assert len(str(error)) < 240, f"seed {seed}"  # noqa: PT017


NUMBERED = {
    "x": InputSpec((None, 3), np.dtype(np.float32)),
    "on": InputSpec((), np.dtype(np.bool_)),
}


def test_an_input_without_axes_is_one_number_for_all_of_a_batch() -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    on = np.array(True)
    ways: tuple[Data, ...] = ({"x": x, "on": on}, [{"x": row, "on": on} for row in x])
    for data in ways:
        made = list(open_data(data, NUMBERED, batch=3))
        assert [b["x"].shape for b in made] == [(3, 3), (1, 3)]
        assert all(b["on"].shape == () and b["on"].dtype == np.bool_ and b["on"] for b in made)


def test_numbers_that_samples_of_a_batch_do_not_share_are_told() -> None:
    x = np.zeros(3, np.float32)
    data = [{"x": x, "on": np.array(on)} for on in (True, False)]
    with pytest.raises(DataError, match="'on' is one number, and other samples have another"):
        list(open_data(data, NUMBERED))
    assert [bool(b["on"]) for b in open_data(data, NUMBERED, batch=1)] == [True, False]
    with pytest.raises(DataError, match="takes one bool"):
        open_data({"x": x[None], "on": np.array([True, False])}, NUMBERED)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn])
@pytest.mark.parametrize("order", "CF")
def test_what_numpy_saves_as_bare_bytes_is_of_the_input_s_type(
    kind: type[np.generic], order: Any, tmp_path: Path
) -> None:
    narrow = np.asarray(X.astype(kind), order=order)
    np.save(tmp_path / "x.npy", narrow)
    np.savez(tmp_path / "x.npz", x=narrow)
    np.savez(tmp_path / "one.npz", x=narrow[0])
    inputs = {"x": InputSpec((None, 3), np.dtype(kind))}
    for name in ("x.npy", "x.npz", "one.npz"):
        found = np.concatenate([b["x"] for b in open_data(tmp_path / name, inputs, batch=4)])
        assert found.dtype == kind
        wanted = narrow[:1] if name == "one.npz" else narrow
        assert np.array_equal(found.astype(F32), wanted.astype(F32))
    said = r"'x' is float32, the data are \|V[12], bytes of a type that NumPy has not: save them as"
    with pytest.raises(DataError, match=said):
        list(open_data(tmp_path / "x.npy", ONE))


def test_tuples_and_lists_hold_inputs_in_order_and_labels_after_them() -> None:
    batches = [(X[:6], IDS[:6]), (X[6:], IDS[6:])]
    ways: list[Any] = [batches, [list(b) for b in batches], iter(batches)]
    for items in ways:
        found = list(open_data(items, ONE))
        assert np.array_equal(np.concatenate([b["x"] for b in found]), X)
        assert all(list(b) == ["x"] for b in found)
    (both,) = open_data([(X, IDS, IDS)], TWO)
    assert np.array_equal(both["x"], X)
    assert np.array_equal(both["ids"], IDS)
    (rows,) = open_data([list(X)], ONE)
    assert np.array_equal(rows["x"], X), "a list of rows is one array, as it always was"
    (feed,) = open_feeds([(X, IDS, IDS)], TWO)
    assert np.array_equal(feed["ids"], IDS)
    with pytest.raises(DataError, match="no array for input 'ids'"):
        list(open_data([(X,)], TWO))
