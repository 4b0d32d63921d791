"""Arrays of `.params` files as MXNet wrote them, and damaged files, refused in one line."""

from __future__ import annotations

import struct
import time
import tracemalloc
from contextlib import suppress
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qir.errors import InputError
from qir.frontends.mxnet.parameters import V1, V2, V3, read_parameters
from qir.frontends.mxnet.samples import parameter_bytes

from .recorded_cases import RECORDED, Array

HELD: dict[str, Array] = {
    "arg:w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "aux:n": np.arange(4, dtype=np.int8),
}
HUGE = 1 << 60


def refused(path: Path, data: bytes) -> str:
    """Returns what is said of a damaged file, which has to be one line that names it."""
    path.write_bytes(data)
    with pytest.raises(InputError) as told:
        read_parameters(path)
    said = str(told.value)
    assert said.startswith(f"{path}: ")
    assert "\n" not in said
    return said


@pytest.mark.parametrize(
    ("file", "version"),
    [("dense", V2), ("sparse", V2), ("unwaited", V2), ("shaped", V3), ("first", V1)],
)
def test_files_of_mxnet_hold_what_was_stored(file: str, version: int) -> None:
    path = RECORDED / f"{file}.params"
    assert struct.unpack_from("<I", path.read_bytes(), 24) == (version,)
    found = read_parameters(path)
    with np.load(RECORDED / "files.npz") as held:
        wanted = {n.partition(".")[2]: held[n] for n in held.files if n.startswith(f"{file}.")}
    assert found.keys() == wanted.keys()
    for name, data in wanted.items():
        assert found[name].dtype == data.dtype, name
        assert np.array_equal(found[name], data), name
        assert not found[name].flags.writeable
        assert found[name].flags.aligned


def test_bfloat16_and_truth_values_are_read(tmp_path: Path) -> None:
    held: dict[str, Array] = {
        "b": np.array([1.5, -2.0], ml_dtypes.bfloat16),
        "t": np.array([True, False]),
    }
    path = tmp_path / "m.params"
    path.write_bytes(parameter_bytes(held))
    found = read_parameters(path)
    assert all(found[n].dtype == d.dtype and np.array_equal(found[n], d) for n, d in held.items())


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = parameter_bytes(HELD)
    for size in range(len(whole)):
        refused(tmp_path / "cut.params", whole[:size])
    assert "bytes follow the last name" in refused(tmp_path / "long.params", whole + b"x")


def test_forged_counts_and_shapes_take_no_memory(tmp_path: Path) -> None:
    whole, path = parameter_bytes(HELD), tmp_path / "forged.params"
    first = struct.pack("<Iii2q", V2, 0, 2, 2, 3)
    wide = struct.pack("<Iii2q", V2, 0, 2, HUGE, 3)
    long = struct.pack("<Iii2q", V2, 0, 2, 1 << 30, 3)
    head = struct.pack("<QQQ", 0x112, 0, 1)
    sparse = struct.pack("<Iii2qi2q", V2, 1, 2, 0, 3, 2, 1 << 40, 3)
    sparse += struct.pack("<iiiiiq", 1, 0, 0, 6, 1, 0) + struct.pack("<QQ", 1, 1) + b"w"
    tracemalloc.start()
    said = [
        refused(path, b"PK" + whole[2:]),
        refused(
            path,
            whole.replace(struct.pack("<QQQ", 0x112, 0, 2), struct.pack("<QQQ", 0x112, 0, HUGE)),
        ),
        refused(path, whole.replace(first, wide)),
        refused(path, whole.replace(first, long)),
        refused(
            path, whole.replace(struct.pack("<Q", 5) + b"arg:w", struct.pack("<Q", HUGE) + b"arg:w")
        ),
        refused(path, head + sparse),
        refused(path, whole.replace(first, struct.pack("<Iii2q", V2, 0, 2, -2, 3))),
        refused(path, whole.replace(first, struct.pack("<Iii2q", V2, 0, 77, 2, 3))),
        refused(path, whole.replace(first, struct.pack("<Iii2q", V2, 7, 2, 2, 3))),
        refused(path, whole.replace(first, struct.pack("<Iii2q", 2, 0, 2, 2, 3))),
        refused(path, whole.replace(b"aux:n", b"arg:w")),
        refused(path, whole.replace(b"aux:n", b"\xff\xff\xff\xff\xff")),
    ]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    for found, words in zip(
        said,
        (
            "it is no .params file",
            f"{HUGE} arrays do not fit into the file",
            f"array 0: its shape is ({HUGE}, 3)",
            f"array 0: its shape ({1 << 30}, 3) needs",
            f"name 0: {HUGE} bytes do not fit into the file",
            "of which few are in the file",
            "array 0: its shape is (-2, 3)",
            "array 0: it has 77 axes",
            "array 0: its storage type is 7",
            "array 0: its storage version is 0x2",
            "name 1: a second array is named w",
            "name 1: it is no UTF-8",
        ),
        strict=True,
    ):
        assert words in found


def test_indices_that_what_is_stored_does_not_fit_are_refused(tmp_path: Path) -> None:
    whole, path = (RECORDED / "unwaited.params").read_bytes(), tmp_path / "m.params"
    rows = struct.pack("<iiq", 6, 1, 2)  # the type and shape of the row indices
    assert rows in whole
    for count in (0, 1, 3, 1 << 40):
        refused(path, whole.replace(rows, struct.pack("<iiq", 6, 1, count), 1))
    none = struct.pack("<QQQ", 0x112, 0, 1) + struct.pack("<Iii", V3, 1, 1) + bytes(8)
    none += struct.pack("<iiii", 0, 1, 0, 0) + struct.pack("<iiq", 6, 1, 1) + bytes(12)
    said = refused(path, none + struct.pack("<QQ", 1, 1) + b"w")
    assert "its row indices do not fit its shape" in said


def test_damaged_bytes_are_an_input_error_or_another_file(tmp_path: Path) -> None:
    rng, path = np.random.default_rng(7), tmp_path / "damaged.params"
    for file in ("dense", "sparse", "unwaited", "shaped", "first"):
        whole = (RECORDED / f"{file}.params").read_bytes()
        for _ in range(150):
            held = bytearray(whole)
            for place in rng.integers(0, len(held), 3):
                held[place] = int(rng.integers(256))
            path.write_bytes(held)
            with suppress(InputError):  # what is damaged may still be a file
                read_parameters(path)


@pytest.mark.slow
def test_reading_parameters_takes_no_longer_than_reading_the_file_twice(tmp_path: Path) -> None:
    path = tmp_path / "large.params"
    held: dict[str, Array] = {f"w{i}": np.full((1 << 18, 10), i, np.float32) for i in range(10)}
    path.write_bytes(parameter_bytes(held))
    assert path.stat().st_size > 100_000_000
    times: dict[str, float] = {}
    for _ in range(5):
        for name, read in (("file", Path.read_bytes), ("arrays", read_parameters)):
            start = time.perf_counter()
            read(path)
            times[name] = min(times.get(name, 1e9), time.perf_counter() - start)
    assert times["arrays"] < 2 * times["file"]
