"""All of keras.applications in TensorFlow's int8 kernels.

`python -m tests.backends.tensorflow.applications` writes docs/reference/tensorflow-networks.md;
with names it measures these again and keeps the other rows.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import qir

from .written import TARGET, Array, Compared, compared_by_regions, here, quantized

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "reference" / "tensorflow-networks.md"
NAMES = tuple(
    """ConvNeXtBase ConvNeXtLarge ConvNeXtSmall ConvNeXtTiny ConvNeXtXLarge DenseNet121 DenseNet169
    DenseNet201 EfficientNetB0 EfficientNetB1 EfficientNetB2 EfficientNetB3 EfficientNetB4
    EfficientNetB5 EfficientNetB6 EfficientNetB7 EfficientNetV2B0 EfficientNetV2B1 EfficientNetV2B2
    EfficientNetV2B3 EfficientNetV2L EfficientNetV2M EfficientNetV2S InceptionResNetV2 InceptionV3
    MobileNet MobileNetV2 MobileNetV3Large MobileNetV3Small NASNetLarge NASNetMobile ResNet101
    ResNet101V2 ResNet152 ResNet152V2 ResNet50 ResNet50V2 VGG16 VGG19 Xception""".split()
)
SEED = 4
_IMAGES = 2
HEAD = """# Keras networks in TensorFlow's int8 kernels

Made by `python -m tests.backends.tensorflow.applications`: `keras.applications`, with random
weights and images of 96 pixels, frozen, read, quantized, written for `tensorflow-onednn`, and run
by TensorFlow. A network without a row is compared by `make test-all` alone.

- *In int8 kernels*: the share of the multiply-adds.
- *Integers compared*: elements of all quantized tensors, for two images. All equal TensorFlow's,
  given TensorFlow's floats where a tensor is computed in float and quantized again.
- *Ties*: of these, elements whose float, in the reference and in TensorFlow, lies on two sides of
  the middle between two integers. The sums of float ops have another order there; no kernel on
  integers differs.
- *Float error*: how far such floats are apart at most, of the largest in their tensor.

| network | parameters | in int8 kernels | integers compared | ties | float error |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Measured:
    """A network: how large it is, how much of it runs in int8, and what was compared."""

    parameters: int
    share: float
    found: Compared


def drawn(x: Array, count: int) -> Array:
    """Inputs that are like one that a network was built with."""
    rng = np.random.default_rng(SEED)
    shape = (count, *x.shape[1:])
    if x.dtype.kind == "i":
        ids: Array = rng.integers(0, int(x.max()) + 1, shape).astype(x.dtype)
        return ids
    images: Array = (rng.uniform(-1, 1, shape) * np.abs(x).max()).astype(np.float32)
    return images


def measured(name: str) -> Measured:
    """Compares a network with TensorFlow, which runs in this process."""
    from tests.frontends.tensorflow.networks import application

    model, x, _ = application(name)
    graph = qir.load(model)
    (value,) = graph.inputs
    share = qir.plan(graph, target=TARGET).integer_macs
    images = drawn(x, 2 * _IMAGES)
    made = quantized(graph, {value.name: images[:_IMAGES]})
    found = compared_by_regions(made, {value.name: images[_IMAGES:]}, here)
    return Measured(model.count_params(), share, found)


def row(name: str, held: Measured) -> str:
    """Returns a row of the page."""
    found = held.found
    cells = (
        name,
        f"{held.parameters:,}",
        f"{100 * held.share:.1f} %",
        f"{found.integers:,}",
        f"{found.tied:,}",
        f"{found.far:.1e}",
    )
    return f"| {' | '.join(cells)} |"


def rows() -> dict[str, str]:
    """Returns the rows of the page by network."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return {name: line for line, name in re.findall(r"^(\| (\w+) \| \d.*\|)$", text, re.M)}


def write(found: Mapping[str, str]) -> None:
    """Writes the page."""
    lines = [found[name] for name in NAMES if name in found]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def main(names: Sequence[str]) -> int:
    """Measures networks, and writes the page after each."""
    held = rows()
    for name in names or NAMES:
        held[name] = row(name, measured(name))
        print(held[name], flush=True)
        write(held)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
