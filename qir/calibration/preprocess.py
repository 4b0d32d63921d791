"""Preprocessing of images, as a TOML file describes it.

    size = 256                     # resize the shorter side; [height, width] resizes both
    crop = 224                     # keep the center; or [height, width]
    interpolation = "bilinear"     # nearest, box, bilinear, hamming, bicubic, lanczos
    order = "RGB"                  # or BGR, or gray
    divide = 255                   # pixels, 0 to 255, are divided by this
    mean = [0.485, 0.456, 0.406]   # then this is subtracted, a number for each channel
    std = [0.229, 0.224, 0.225]    # and they are divided by this
    layout = "NCHW"                # or NHWC

Every key may be left out. All arithmetic is float32, in this order.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from qir.errors import UsageError

INTERPOLATIONS = ("nearest", "box", "bilinear", "hamming", "bicubic", "lanczos")
ORDERS = ("RGB", "BGR", "gray")
LAYOUTS = ("NCHW", "NHWC")
_MAX_SIZE = 1 << 16
"""No image has a longer side."""
Side = tuple[int, int]
"""Height and width."""


@dataclass(frozen=True)
class Preprocess:
    """How the pixels of an image become a model's input; each field is a key of the file."""

    size: int | Side | None = None
    crop: Side | None = None
    interpolation: str = "bilinear"
    order: str = "RGB"
    divide: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    layout: str = "NCHW"

    @property
    def channels(self) -> int:
        """How many channels an image has."""
        return 1 if self.order == "gray" else 3

    @property
    def changes_values(self) -> bool:
        """Returns whether pixels become other numbers."""
        return self.divide != 1 or any(self.mean) or any(s != 1 for s in self.std)

    def resized(self, height: int, width: int) -> Side:
        """Returns the size to which an image is resized, before it is cropped."""
        if self.size is None:
            return height, width
        if not isinstance(self.size, int):
            return self.size
        if height <= width:  # the longer side is rounded down, as torchvision does
            return self.size, max(1, self.size * width // height)
        return max(1, self.size * height // width), self.size

    def corner(self, height: int, width: int) -> Side:
        """Returns the top and left of the center crop, rounded as torchvision does."""
        if self.crop is None:
            return 0, 0
        return round((height - self.crop[0]) / 2), round((width - self.crop[1]) / 2)

    def values(self, pixels: NDArray[np.uint8]) -> NDArray[np.generic]:
        """Returns the input that pixels (height, width, channels) in RGB or gray become."""
        if self.order == "BGR":
            pixels = pixels[..., ::-1]
        result: NDArray[np.generic] = pixels
        # Without a change pixels stay bytes, as models that scale them inside want them.
        if self.changes_values:
            # Division, mean, std: the order of torchvision's ToTensor and Normalize, each in
            # float32.
            floats = pixels.astype(np.float32)
            floats /= np.float32(self.divide)
            floats -= np.asarray(self.mean, np.float32)
            floats /= np.asarray(self.std, np.float32)
            result = floats
        return np.ascontiguousarray(result.transpose(2, 0, 1) if self.layout == "NCHW" else result)


def read_preprocess(path: str | Path) -> Preprocess:
    """Reads a preprocess file; raises UsageError for what is no such file, naming the key."""
    try:
        data = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeError) as error:
        raise UsageError(f"{path}: not TOML: {error}") from None
    return parse_preprocess(data, str(path))


def parse_preprocess(data: Mapping[str, object], where: str = "preprocess") -> Preprocess:
    """Checks the keys of a preprocess file; UsageError names the wrong one and what it takes."""
    names = [field.name for field in fields(Preprocess)]
    for key in data:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UsageError(f"{where}: no key {key!r}; {hint}keys: {', '.join(names)}")
    reader = _PreprocessReader(data, where)
    order = reader.word("order", ORDERS, "RGB")
    count = 1 if order == "gray" else 3
    size = data.get("size")
    return Preprocess(
        size=reader.positive_int("size") if isinstance(size, int) else reader.side("size"),
        crop=reader.side("crop"),
        interpolation=reader.word("interpolation", INTERPOLATIONS, "bilinear"),
        order=order,
        divide=reader.numbers("divide", 1, 1.0)[0],
        mean=reader.numbers("mean", count, 0.0),
        std=reader.numbers("std", count, 1.0),
        layout=reader.word("layout", LAYOUTS, "NCHW"),
    )


@dataclass(frozen=True)
class _PreprocessReader:
    """Reads keys of a file, and says which is wrong."""

    data: Mapping[str, object]
    where: str

    def _refused(self, key: str, wanted: str) -> UsageError:
        value = str(self.data[key])[:40]
        return UsageError(f"{self.where}: {key} = {value}: give {wanted}")

    def word(self, key: str, known: tuple[str, ...], default: str) -> str:
        value = self.data.get(key, default)
        if not isinstance(value, str) or value not in known:
            raise self._refused(key, f"one of {', '.join(known)}")
        return value

    def positive_int(self, key: str) -> int:
        value = self.data[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_SIZE:
            raise self._refused(key, f"a whole number of pixels from 1 to {_MAX_SIZE}")
        return value

    def side(self, key: str) -> Side | None:
        """Height and width; one number stands for both."""
        value = self.data.get(key)
        if value is None:
            return None
        if isinstance(value, int):
            return self.positive_int(key), self.positive_int(key)
        are_sizes = isinstance(value, list) and all(
            type(n) is int and 0 < n <= _MAX_SIZE for n in value
        )
        if not isinstance(value, list) or len(value) != 2 or not are_sizes:
            raise self._refused(key, "a number of pixels, or [height, width]")
        return value[0], value[1]

    def numbers(self, key: str, count: int, default: float) -> tuple[float, ...]:
        """Numbers, one for all channels or one for each."""
        value = self.data.get(key, default)
        items = value if isinstance(value, list) else [value]
        # TOML's true is a bool, which Python counts among the integers.
        plain = (n for n in items if isinstance(n, int | float) and not isinstance(n, bool))
        listed = [float(n) for n in plain if math.isfinite(n)]
        if len(listed) != len(items) or len(listed) not in (1, count):
            each = "a number" if count == 1 else f"a number, or {count} of them in a list"
            raise self._refused(key, each)
        if key != "mean" and not all(listed):
            raise self._refused(key, "a number other than 0: pixels are divided by it")
        return tuple(listed)


STYLES: Mapping[str, str] = {
    "imagenet": """\
# Images as models of ImageNet usually take them: shorter side 256, center 224 x 224,
# (pixel / 255 - mean) / std, channels first.
size = 256
crop = 224
interpolation = "bilinear"
order = "RGB"
divide = 255
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
layout = "NCHW"
""",
    "keras": """\
# Images as Keras' ResNet and VGG take them (mode "caffe"): 224 x 224, BGR, the mean of each
# channel subtracted, channels last. Keras' load_img resizes by "nearest".
size = [224, 224]
interpolation = "nearest"
order = "BGR"
mean = [103.939, 116.779, 123.68]
layout = "NHWC"
""",
    "tf": """\
# Images as Keras' MobileNet, Inception and Xception take them (mode "tf"): 224 x 224,
# pixel / 127.5 - 1, which is -1 to 1, channels last.
size = [224, 224]
interpolation = "bilinear"
order = "RGB"
divide = 127.5
mean = 1
layout = "NHWC"
""",
}
"""Files that `qir new preprocess` writes, by name."""
