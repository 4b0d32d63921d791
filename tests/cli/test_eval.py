"""Models measured on data; what is expected comes from onnxruntime and NumPy."""

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import qir
from qir.calibration.data import refuse_infinite
from qir.errors import DataError, UsageError
from qir.inspect.evaluation import join_batches
from tests.cli import models
from tests.cli.command import assert_one_line
from tests.cli.command import qir as command


def scores(model: Path, images: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"images": images})[0])


def test_shares_are_those_that_onnxruntime_gives(made: Path) -> None:
    images, labels = models.images(), np.load(made / "labels.npy")
    wanted = scores(made / "model.onnx", images)
    right = float((wanted.argmax(-1) == labels).mean())
    graph = qir.load(made / "model.onnx")
    for target in ("", "reference", "onnxruntime"):
        found = qir.evaluate(
            graph, images, labels, metrics=["top1", "top5"], target=target, batch=7
        )
        assert found.outputs == {"classes": {"top1": right, "top5": 1.0}}
        assert (found.samples, found.engine) == (models.SAMPLES, target or "cpu")
    few = qir.evaluate(graph, images, labels, limit=5)
    assert few.outputs["classes"]["top1"] == float((wanted.argmax(-1) == labels)[:5].mean())


def test_a_quantized_file_is_measured_against_its_float_one(made: Path) -> None:
    images = models.images()
    a, b = (scores(made / f"{name}.onnx", images) for name in ("model", "quantized"))
    loud, noise = (
        float(np.square(x.astype(np.float64)).sum()) for x in (a, b - a.astype(np.float64))
    )
    graph, against = (qir.load(made / f"{name}.onnx") for name in ("quantized", "model"))
    found = qir.evaluate(graph, made / "samples.npy", against=against, target="onnxruntime")
    row = found.outputs["classes"]
    assert row["sqnr"] == pytest.approx(10 * np.log10(loud / noise), abs=1e-3)
    assert row["agreement"] == float((a.argmax(-1) == b.argmax(-1)).mean())


def test_labels_are_read_from_files(made: Path, tmp_path: Path) -> None:
    graph, images = qir.load(made / "model.onnx"), models.images()
    labels = np.load(made / "labels.npy")
    wanted = qir.evaluate(graph, images, labels).outputs
    np.savez(tmp_path / "a.npz", x=images, y=labels)
    np.savez(tmp_path / "b.npz", x=images, classes=labels)
    (tmp_path / "c.csv").write_text("label\n" + "".join(f"{n}\n" for n in labels))
    for name in ("a.npz", "b.npz:classes", "c.csv"):
        assert qir.evaluate(graph, images, f"{tmp_path / name}").outputs == wanted
    for name, said in {
        "b.npz": "no array is named labels; it has x, classes: name one as b.npz:NAME",
        "b.npz:y": "no array 'y'; it has x, classes",
        "none.npy": "no such file of labels",
        "c.json": "no such file of labels",
    }.items():
        with pytest.raises(DataError, match=said):
            qir.evaluate(graph, images, f"{tmp_path / name}")
    (tmp_path / "c.csv").write_text("1\nx\n")
    with pytest.raises(DataError, match=r"c\.csv: label 2 is 'x', which is no number"):
        qir.evaluate(graph, images, tmp_path / "c.csv")


def test_labels_of_images_are_found_by_their_names(made: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    pixels = (255 * models.images().transpose(0, 2, 3, 1)).round().astype(np.uint8)
    labels = np.load(made / "labels.npy")
    names = [f"{'cat' if i % 2 else 'dog'}/{i}.png" for i in range(len(labels))]
    for name, array in zip(names, pixels, strict=True):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        image.fromarray(array).save(tmp_path / "data" / name)
    file = tmp_path / "labels.csv"
    rows = [f"{name.split('/')[1]},{label}\n" for name, label in zip(names, labels, strict=True)]
    file.write_text("name,label\n" + "".join(rows))
    (tmp_path / "p.toml").write_text("divide = 255")
    graph = qir.load(made / "model.onnx")
    found = qir.evaluate(graph, tmp_path / "data", file, preprocess=tmp_path / "p.toml")
    wanted = scores(made / "model.onnx", (pixels / np.float32(255)).transpose(0, 3, 1, 2))
    assert found.outputs["classes"]["top1"] == float((wanted.argmax(-1) == labels).mean())
    file.write_text("".join(rows[1:]))
    with pytest.raises(DataError, match=r"labels\.csv: no label for sample dog/0\.png"):
        qir.evaluate(graph, tmp_path / "data", file, preprocess=tmp_path / "p.toml")


def test_what_does_not_fit_is_refused(made: Path) -> None:
    graph, images = qir.load(made / "model.onnx"), models.images()
    labels = np.load(made / "labels.npy")
    with pytest.raises(DataError, match="labels: 23 labels, the data have 24 samples"):
        qir.evaluate(graph, images, labels[1:])
    with pytest.raises(DataError, match="fit no output for psnr: the model gives classes"):
        qir.evaluate(graph, images, labels, metrics=["psnr"])
    with pytest.raises(DataError, match="the label of sample 0 is 9, and the output has 5 classes"):
        qir.evaluate(graph, images, np.full(24, 9))
    with pytest.raises(DataError, match=r"fit no output for psnr: .*shape, or a model to compare"):
        qir.evaluate(graph, images, labels, metrics=["top1", "psnr"])
    with pytest.raises(DataError, match="labels: all are below 0"):
        qir.evaluate(graph, images, np.full(24, -1))
    with pytest.raises(UsageError, match="by labels, or against another model: give one of two"):
        qir.evaluate(graph, images)
    with pytest.raises(UsageError, match="no metric 'top3'"):
        qir.evaluate(graph, images, labels, metrics=["top3"])
    images[2, 1, 0, 0] = np.inf
    with pytest.raises(
        DataError, match=r"infinite number at \[2, 1, 0, 0\], 1 in this batch: leave"
    ):
        qir.evaluate(graph, images, labels)
    with pytest.raises(DataError, match="batches give samples of shapes"):
        join_batches([{"y": np.zeros((2, 3))}, {"y": np.zeros((2, 4))}])


def test_infinite_numbers_are_refused_by_calibration_but_for_masks(made: Path) -> None:
    graph, images = qir.load(made / "model.onnx"), models.images()
    images[9, 2, 7, 0] = -np.inf
    said = r"batch 1 of data: input 'images' has an infinite number at \[1, 2, 7, 0\], 1 in this"
    with pytest.raises(DataError, match=said):
        qir.calibrate(graph, images, batch=8)
    refuse_infinite(np.array([[0, -np.inf], [0, 0]], np.float32), "a mask of 0 and -inf")
    with pytest.raises(DataError, match=r"at \[0\], 1 in this batch: leave the sample out"):
        refuse_infinite(np.array([np.inf, 0], np.float32), "x")


def test_wrong_preprocess_files_end_a_verb_in_one_line(folder: Path) -> None:
    line = (
        "calibrate",
        folder / "model.onnx",
        "--data",
        folder / "photos",
        "-o",
        folder / "x.stats",
    )
    (folder / "photos").mkdir()
    (folder / "photos" / "one.png").write_text("no image")
    outcome = command(*line)
    assert_one_line(outcome, 2)
    assert "images need --preprocess FILE.toml" in outcome.err
    (folder / "p.toml").write_text("means = 1")
    outcome = command(*line, "--preprocess", folder / "p.toml")
    assert_one_line(outcome, 2)
    assert "p.toml: no key 'means'; did you mean 'mean'?" in outcome.err
    (folder / "p.toml").write_text("divide = 255")
    outcome = command(*line, "--preprocess", folder / "p.toml")
    assert_one_line(outcome, 2)
    assert "one.png: cannot be read as an image" in outcome.err or "need Pillow" in outcome.err
    outcome = command(
        *line[:3], folder / "samples.npy", *line[4:], "--preprocess", folder / "p.toml"
    )
    assert_one_line(outcome, 2)
    assert "--preprocess is for images, and these are none" in outcome.err


def test_the_verb_prints_a_table(folder: Path) -> None:
    words = ("eval", folder / "quantized.onnx", "--data", folder / "samples.npy")
    outcome = command(*words, "--labels", folder / "labels.npy", "--metric", "top1")
    assert outcome.status == 0, outcome
    head, title, row = outcome.out.splitlines()
    assert head == "quantized.onnx: 24 samples by cpu"
    assert title.split() == ["output", "top1"]
    assert row.split()[0::2] == ["classes", "%"]
    outcome = command(*words, "--against", folder / "model.onnx")
    assert "24 samples by cpu, against model.onnx" in outcome.out, outcome
    np.save(folder / "few.npy", np.zeros(7, np.int64))
    assert_one_line(command(*words, "--labels", folder / "few.npy"), 2)
    assert_one_line(command(*words), 2)
    np.save(folder / "samples.npy", (255 * models.images()).astype(np.uint8))
    outcome = command(*words, "--labels", folder / "labels.npy")
    assert_one_line(outcome, 2)
    assert "the data are uint8" in outcome.err
