"""Folders of images and files of lines as data; expected values come from Pillow and NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest

from qir.calibration import InputSpec, Preprocess, open_data
from qir.errors import DataError, UsageError

F32 = np.dtype(np.float32)
SEED = 20261124
IMAGES = {"x": InputSpec((None, 3, 8, 8), F32)}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
USUAL = Preprocess(size=10, crop=(8, 8), divide=255.0, mean=MEAN, std=STD)


def write_images(folder: Path) -> list[Path]:
    """Three images of different sizes, one in a folder of its own and one gray."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(SEED)
    (folder / "b").mkdir(parents=True)
    paths = [folder / "a.png", folder / "b" / "c.bmp", folder / "z.png"]
    for path, shape in zip(paths, ((12, 17, 3), (20, 11, 3), (9, 30)), strict=True):
        image.fromarray(rng.integers(0, 256, shape, np.uint8)).save(path)
    return paths


def test_images_become_what_pillow_and_numpy_make_of_them(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = write_images(tmp_path)
    (tmp_path / "labels.csv").write_text("a.png,1\n")
    (batch,) = open_data(tmp_path, IMAGES, preprocess=USUAL)
    wanted = []
    for path in paths:
        made = image.open(path).convert("RGB")
        width, height = made.size
        if width >= height:
            made = made.resize((int(10 * width / height), 10), image.Resampling.BILINEAR)
        else:
            made = made.resize((10, int(10 * height / width)), image.Resampling.BILINEAR)
        x = np.asarray(made).astype(np.float32)
        top, left = (round((side - 8) / 2.0) for side in x.shape[:2])
        x = x[top : top + 8, left : left + 8] / np.float32(255)
        done = (x - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        wanted.append(done.transpose(2, 0, 1))
    assert np.array_equal(batch["x"], np.stack(wanted))


def test_gray_images_and_inputs_of_bytes(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = write_images(tmp_path)
    gray = Preprocess(size=(4, 6), interpolation="nearest", order="gray", layout="NHWC")
    inputs = {"x": InputSpec((None, 4, 6, 1), np.dtype(np.uint8))}
    (batch,) = open_data(tmp_path, inputs, preprocess=gray)
    wanted = [
        np.asarray(image.open(p).convert("RGB").convert("L").resize((6, 4), 0)) for p in paths
    ]
    direct = [np.asarray(image.open(p).convert("L").resize((6, 4), 0)) for p in paths]
    assert np.array_equal(batch["x"][..., 0], np.stack(direct))
    assert batch["x"].dtype == np.uint8
    assert np.array_equal(wanted[2], direct[2]), "a gray image stays what it is"
    with pytest.raises(
        UsageError, match="takes uint8 and divide, mean and std make float values: leave"
    ):
        open_data(tmp_path, inputs, preprocess=Preprocess(divide=255.0))


def test_the_data_are_known_by_the_bytes_of_the_images(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    paths = write_images(tmp_path)
    before = open_data(tmp_path, IMAGES, preprocess=USUAL).digest()
    assert open_data(tmp_path, IMAGES, preprocess=USUAL).digest() == before
    other = Preprocess(size=10, crop=(8, 8), divide=255.0)
    assert open_data(tmp_path, IMAGES, preprocess=other).digest() != before
    image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(paths[0])
    assert open_data(tmp_path, IMAGES, preprocess=USUAL).digest() != before


def test_images_that_do_not_do_are_named(tmp_path: Path) -> None:
    paths = write_images(tmp_path)

    def refused(said: str, preprocess: Preprocess | None = USUAL, inputs: object = IMAGES) -> None:
        with pytest.raises((DataError, UsageError), match=said):
            list(open_data(tmp_path, inputs, preprocess=preprocess))  # type: ignore[arg-type]

    refused("images need --preprocess FILE.toml", None)
    refused(
        r"a\.png: 12 x 17 pixels are less than crop 14 x 14: give a size",
        Preprocess(crop=(14,) * 2),
    )
    swapped = Preprocess(size=(8, 8), layout="NHWC", divide=255.0)
    refused(r'becomes 8x8x3, the input takes \?x3x8x8 float32; set layout = "NCHW" in', swapped)
    refused(r"becomes 3x9x9, .* change size, crop, order or layout in", Preprocess(size=(9, 9)))
    refused("images are for a model with one input, not 2", USUAL, {**IMAGES, "y": IMAGES["x"]})
    paths[0].write_bytes(paths[0].read_bytes()[:90])
    refused(r"a\.png: cannot be read as an image: .*; replace or remove it")
    paths[0].write_text("no image")
    refused(r"a\.png: cannot be read as an image: cannot identify image file; replace or remove it")
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    refused("--preprocess is for images, and these are none")


IDS = {"ids": InputSpec((None, 4), np.dtype(np.int64)), "mask": InputSpec((None, 4), F32)}


def test_lines_of_numbers_are_samples(tmp_path: Path) -> None:
    rng = np.random.default_rng(SEED)
    ids, mask = rng.integers(0, 99, (5, 4)), rng.integers(0, 2, (5, 4))
    lines = [
        json.dumps({"ids": i, "mask": m}) for i, m in zip(ids.tolist(), mask.tolist(), strict=True)
    ]
    (tmp_path / "x.jsonl").write_text("\n".join(lines) + "\n\n")
    first, second = open_data(tmp_path / "x.jsonl", IDS, batch=3)
    assert np.array_equal(np.concatenate([first["ids"], second["ids"]]), ids)
    assert np.array_equal(np.concatenate([first["mask"], second["mask"]]), mask)
    assert first["mask"].dtype == F32
    one = {"ids": IDS["ids"]}
    (tmp_path / "x.jsonl").write_text("".join(f"{row}\n" for row in ids.tolist()))
    (tmp_path / "x.csv").write_text(
        "".join(f"{', '.join(map(str, row))}\n" for row in ids.tolist())
    )
    for name in ("x.jsonl", "x.csv"):
        (batch,) = open_data(tmp_path / name, one)
        assert np.array_equal(batch["ids"], ids)
        assert batch["ids"].dtype == np.int64
    (tmp_path / "x.csv").write_text("0.5,1,-2e-3,4\n")
    (batch,) = open_data(tmp_path / "x.csv", {"x": IDS["mask"]})
    assert np.array_equal(batch["x"], np.array([[0.5, 1, -2e-3, 4]], np.float32))


def test_wrong_lines_are_named(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    one = {"ids": IDS["ids"]}

    def refused(text: str, said: str, path: Path = file, inputs: object = one) -> None:
        path.write_text(text)
        with pytest.raises(DataError, match=said):
            list(open_data(path, inputs))  # type: ignore[arg-type]

    refused("[1, 2, 3, 4]\n[1, 2\n", r"x\.jsonl: line 2: not JSON")
    refused(
        "[1, 2, 3, 4]\n\n[1, 2]\n", "line 3: 2 numbers, the input takes 4: pad or cut the sample"
    )
    refused("[[1, 2], [3]]", "line 1: its lists differ in length")
    refused('["a", "b"]', "line 1: holds what is no number")
    refused("7", "line 1: give a list of numbers, or an object")
    refused('{"ids": [1, 2, 3, 4]}', "no array for input 'mask'; it has 'ids'", inputs=IDS)
    refused("[1.5, 2, 3, 4]", "is int64, the data are float64")
    csv = tmp_path / "x.csv"
    refused("1,2,3,4\n1,b,3,4\n", r"x\.csv: line 2: 'b' is no number", csv)
    refused("1,2,3,4\n", "give JSON Lines, an object with these in each", csv, IDS)
    refused("", "0 samples", csv)
