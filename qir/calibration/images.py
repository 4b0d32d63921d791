"""Images as samples: a folder of them, read by Pillow and preprocessed one at a time."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from qir.calibration.pieces import InputSpec, Piece, make_piece
from qir.calibration.preprocess import Preprocess
from qir.calibration.rows import Array, MemoryRows
from qir.errors import DataError, PluginError, UsageError

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
MISSING = 'images need Pillow: pip install "qir[images]"'
NEEDED = (
    "images need --preprocess FILE.toml, which calibrate, quantize, run and eval take; "
    "`qir new preprocess imagenet` writes one"
)


def image_files(path: Path) -> list[Path]:
    """Returns the images below a folder in the order of their paths, or the one image."""
    if path.is_file():
        return [path] if path.suffix.lower() in SUFFIXES else []
    found = (file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES)
    return sorted(file for file in found if file.is_file())


def holds_images(path: Path) -> bool:
    """Returns whether this is an image, or a folder of images rather than of arrays."""
    if path.is_file():
        return path.suffix.lower() in SUFFIXES
    # Arrays win where a folder holds both.
    if not path.is_dir() or any(f.suffix in (".npy", ".npz") for f in path.iterdir()):
        return False
    return any(file.suffix.lower() in SUFFIXES for file in path.rglob("*"))


class ImagePieces:
    """The images of a folder, each a sample of a model's only input."""

    def __init__(
        self, path: Path, inputs: Mapping[str, InputSpec], preprocess: Preprocess | None
    ) -> None:
        if preprocess is None:
            raise UsageError(f"{path}: {NEEDED}")
        if len(inputs) != 1:
            raise DataError(f"{path}: images are for a model with one input, not {len(inputs)}")
        self.name = str(path)
        self.files = image_files(path)
        self._inputs = inputs
        self._preprocess = preprocess
        (spec,) = inputs.values()
        if spec.dtype.kind in "iu" and preprocess.changes_values:
            raise UsageError(
                f"{path}: the input takes {spec.dtype} and divide, mean and std make float values: "
                "leave them out of the preprocess file"
            )

    @property
    def identity(self) -> str:
        """A hash over the files and how they are preprocessed: cheaper than decoding them."""
        state = hashlib.blake2b(repr(self._preprocess).encode(), digest_size=16)
        for file in self.files:
            try:
                state.update(hashlib.blake2b(file.read_bytes(), digest_size=16).digest())
            except OSError as error:
                raise unreadable(file, error) from None
        return f"images {state.hexdigest()}"

    def __iter__(self) -> Iterator[Piece]:
        for file in self.files:
            array = read_image(file, self._preprocess)[np.newaxis]
            _require_shape(file, array, next(iter(self._inputs.values())), self._preprocess)
            yield make_piece(str(file), {"": MemoryRows(array)}, self._inputs)

    def samples(self) -> int:
        return len(self.files)


def read_image(file: Path, preprocess: Preprocess) -> Array:
    """Returns an image as the model takes it, without an axis of samples.

    Raises DataError for a file that is no image, is cut off, or is smaller than the crop.
    """
    with _opened(file, preprocess) as image:
        # Pillow has the width first, preprocess files have the height first.
        width, height = image.size
        sides = preprocess.resized(height, width)
        # Pillow would fill the missing border with black.
        if preprocess.crop is not None and any(
            c > s for c, s in zip(preprocess.crop, sides, strict=True)
        ):
            has, crop = f"{sides[0]} x {sides[1]}", f"{preprocess.crop[0]} x {preprocess.crop[1]}"
            raise DataError(f"{file}: {has} pixels are less than crop {crop}: give a size to it")
        if sides != (height, width):
            image = image.resize((sides[1], sides[0]), _filter(preprocess.interpolation))
        if preprocess.crop is not None:
            top, left = preprocess.corner(*sides)
            below, right = top + preprocess.crop[0], left + preprocess.crop[1]
            image = image.crop((left, top, right, below))
        pixels = np.asarray(image, np.uint8)
    return preprocess.values(pixels.reshape(*pixels.shape[:2], preprocess.channels))


def _opened(file: Path, preprocess: Preprocess) -> Image:
    """Returns the image, decoded as RGB or gray."""
    try:
        from PIL import Image
    except ModuleNotFoundError:
        raise PluginError(MISSING) from None
    try:
        with Image.open(file) as image:
            return image.convert("L" if preprocess.order == "gray" else "RGB")
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise unreadable(file, error) from None


def _filter(name: str) -> int:
    from PIL import Image

    return int(Image.Resampling[name.upper()])


def unreadable(file: Path, error: BaseException) -> DataError:
    """Returns the error of a file that is no image, or is damaged."""
    why = str(error).partition("\n")[0].removesuffix(f" '{file}'")[:80] or type(error).__name__
    return DataError(f"{file}: cannot be read as an image: {why}; replace or remove it")


def _require_shape(file: Path, array: Array, spec: InputSpec, preprocess: Preprocess) -> None:
    """Raises DataError where an image becomes another shape than the input's; says which key to
    change."""
    wanted, shape_read = spec.shape[1:], array.shape[1:]
    if len(spec.shape) == 4 and all(
        w in (None, m) for w, m in zip(wanted, shape_read, strict=True)
    ):
        return
    # Channels at the other end are the usual mistake, so the message names that key.
    other_layout = (
        (shape_read[1], shape_read[2], shape_read[0])
        if preprocess.layout == "NCHW"
        else (shape_read[2], *shape_read[:2])
    )
    other = "NHWC" if preprocess.layout == "NCHW" else "NCHW"
    fitting = len(wanted) == 3 and all(
        w in (None, t) for w, t in zip(wanted, other_layout, strict=True)
    )
    remedy = f'set layout = "{other}"' if fitting else "change size, crop, order or layout"
    shape = "x".join(map(str, shape_read))
    raise DataError(
        f"{file}: becomes {shape}, the input takes {spec}; {remedy} in the preprocess file"
    )
