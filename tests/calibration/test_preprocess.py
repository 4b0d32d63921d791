"""Preprocess files: each key does what its framework's own preprocessing does."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

from qir.calibration.preprocess import STYLES, Preprocess, parse_preprocess, read_preprocess
from qir.errors import UsageError

SEED = 20261124
PIXELS = np.random.default_rng(SEED).integers(0, 256, (5, 7, 3), np.uint8)


def style(name: str) -> Preprocess:
    return parse_preprocess(tomllib.loads(STYLES[name]))


def test_the_styles_are_the_formulas_of_their_frameworks() -> None:
    x = PIXELS.astype(np.float32)
    mean, std = (np.array(v, np.float32) for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    # torchvision.transforms: ToTensor divides by 255, Normalize subtracts and divides, float32.
    wanted = ((x / np.float32(255) - mean) / std).transpose(2, 0, 1)
    assert np.array_equal(style("imagenet").values(PIXELS), wanted)
    # keras.applications.imagenet_utils, modes "caffe" and "tf".
    wanted = x[..., ::-1] - np.array([103.939, 116.779, 123.68], np.float32)
    assert np.array_equal(style("keras").values(PIXELS), wanted)
    assert np.array_equal(style("tf").values(PIXELS), x / np.float32(127.5) - np.float32(1))


KERAS = """
import numpy as np, sys
from keras.src.applications.imagenet_utils import preprocess_input
x = np.load(sys.argv[1]).astype(np.float32)
np.savez(sys.argv[2], **{mode: preprocess_input(x.copy(), mode=mode) for mode in ("caffe", "tf")},
         torch=preprocess_input(x.copy(), mode="torch"))
"""


@pytest.mark.slow
def test_the_styles_are_the_bytes_of_keras(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    np.save(tmp_path / "x.npy", PIXELS)
    subprocess.run(
        [sys.executable, "-c", KERAS, tmp_path / "x.npy", tmp_path / "y.npz"],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        check=True,
        capture_output=True,
    )
    made = np.load(tmp_path / "y.npz")
    assert np.array_equal(style("keras").values(PIXELS), made["caffe"])
    assert np.array_equal(style("tf").values(PIXELS), made["tf"])
    assert np.array_equal(style("imagenet").values(PIXELS), made["torch"].transpose(2, 0, 1))


def test_sizes_are_those_of_torchvision() -> None:
    # torchvision.transforms.functional: resize keeps the ratio, int(size * long / short);
    # center_crop starts at int(round((height - crop) / 2.0)).
    for height, width in ((300, 451), (451, 300), (333, 333), (97, 256)):
        short, long = sorted((height, width))
        other = int(256 * long / short)
        wanted = (256, other) if height <= width else (other, 256)
        assert Preprocess(size=256).resized(height, width) == wanted
        corner = tuple(round((side - 224) / 2.0) for side in wanted)
        assert Preprocess(crop=(224, 224)).corner(*wanted) == corner
    assert Preprocess(size=(224, 200)).resized(300, 451) == (224, 200)


def test_wrong_keys_and_values_are_named(tmp_path: Path) -> None:
    file = tmp_path / "p.toml"

    def refused(text: str, said: str) -> None:
        file.write_text(text, "utf-8")
        with pytest.raises(UsageError, match=said):
            read_preprocess(file)

    refused("sise = 3", r"p\.toml: no key 'sise'; did you mean 'size'\? keys: size, crop, interpol")
    refused("size = -3", r"size = -3: give a whole number of pixels from 1 to")
    refused("size = true", r"size = True: give a whole number of pixels")
    refused(
        "crop = [1, 2, 3]", r"crop = \[1, 2, 3\]: give a number of pixels, or \[height, width\]"
    )
    refused("mean = [1, 2]", r"mean = \[1, 2\]: give a number, or 3 of them in a list")
    refused("order = 'gray'\nmean = [1, 2, 3]", r"give a number")
    refused("std = [1, 0, 1]", r"std = \[1, 0, 1\]: give a number other than 0")
    refused("divide = nan", r"divide = nan: give a number")
    refused("layout = 'NCWH'", r"layout = NCWH: give one of NCHW, NHWC")
    refused("size = ", r"not TOML")
    with pytest.raises(UsageError, match=r"none\.toml: cannot be read: No such file"):
        read_preprocess(tmp_path / "none.toml")
