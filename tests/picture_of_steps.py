"""The picture of docs/guide/bytes.md: the same sums, the integers that three runtimes make of them.

`python -m tests.picture_of_steps` writes docs/guide/steps.svg. The integers are the reference's.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import qir
from qir.ir.types import Array

PICTURE = Path(__file__).parent.parent / "docs" / "guide" / "steps.svg"

SUMS = 46
LANES = (
    ("ort-1.31", "onnxruntime", "rounds to even, then adds the zero point"),
    ("torch-2.13.onednn", "PyTorch, onednn", "adds the zero point, then rounds to even"),
    ("tflite-2.21.ref", "TensorFlow Lite", "fixed point, rounded twice, halves away"),
)

CELL, LEFT, TOP, LANE = 12, 212, 74, 52
WIDTH, HEIGHT = LEFT + SUMS * CELL + 24, TOP + 3 * LANE + 46
INK, FAINT, ODD, EVEN, WRONG = "#1f2430", "#667085", "#c9dcf4", "#e9f0f9", "#d92d20"


TYPES = f"""
graph main {{
  %a = input() : {SUMS}x1x!quant.uniform<u8:f32, 0.25>
  %b = input() : 1x1x!quant.uniform<i8:f32, 0.25>
  %y = input() : {SUMS}x1x!quant.uniform<u8:f32, 1.0:3>
  output(a=%a, b=%b, y=%y)
}}
"""
"""The types of the layer: sums are integers of `a`, times one."""


def results_by_runtime() -> dict[str, NDArray[np.generic]]:
    """Returns what each runtime makes of the sums 0, 1, 2 ..., each a quantized input times 1."""
    graph = qir.Graph()
    x, w, y = (qir.parse(TYPES)[name].type for name in "aby")
    operands = {"x": graph.add("input", types=[x], name="a").result}
    operands["w"] = graph.constant(Array(np.ones((1, 1), np.int8), w, "b"))
    layer = graph.add("linear", operands, types=[y], name="y")
    graph.add("output", {"y": layer.result})
    inputs = {"a": np.arange(SUMS, dtype=np.uint8).reshape(-1, 1)}
    return {p: qir.run(graph, inputs, profile=p)["y"].reshape(-1) for p, _, _ in LANES}


def picture() -> str:
    """The drawing."""
    by_profile = results_by_runtime()
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="Helvetica, Arial, sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        _text(24, 30, "The same sums, three sets of bytes", 17, INK, bold=True),
        _text(24, 51, "code = sum / 16 + 3, rounded; red: sums whose code differs", 13, FAINT),
    ]
    for lane, (name, runtime, how) in enumerate(LANES):
        top = TOP + lane * LANE
        lines.append(_text(24, top + 17, runtime, 13, INK, bold=True))
        lines += [_text(24, top + 31 + 12 * i, t, 10, FAINT) for i, t in enumerate(_halves(how))]
        lines += _lane(by_profile[name], top)
    lines += _axis(
        np.ptp(np.stack([by_profile[name] for name, _, _ in LANES]).astype(int), axis=0) > 0
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _halves(text: str) -> list[str]:
    head, comma, tail = text.partition(", ")
    return [head + comma.rstrip(), tail]


def _lane(row: NDArray[np.generic], top: int) -> Iterator[str]:
    """One band a code."""
    values = row.astype(int)
    starts = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)]
    for a, b in itertools.pairwise(starts):
        x, wide = LEFT + int(a) * CELL, int(b - a) * CELL
        fill = ODD if values[a] % 2 else EVEN
        yield (
            f'<rect x="{x}" y="{top}" width="{wide}" height="34" fill="{fill}" '
            'stroke="#ffffff" stroke-width="2"/>'
        )
        yield _text(x + wide // 2, top + 22, str(values[a]), 14, INK, middle=True)


def _axis(differ: NDArray[np.bool_]) -> Iterator[str]:
    bottom = TOP + 3 * LANE
    for differing in np.flatnonzero(differ):
        x = LEFT + int(differing) * CELL
        yield (
            f'<rect x="{x + 1}" y="{TOP - 6}" width="{CELL - 2}" height="{bottom - TOP - 4}" '
            f'fill="{WRONG}" fill-opacity="0.10" stroke="{WRONG}" stroke-width="1.3"/>'
        )
    for position in range(SUMS):
        if position % 8 == 0:
            x = LEFT + position * CELL + CELL // 2
            tie = position % 16 == 8
            yield _text(x, bottom + 12, str(position), 12, WRONG if tie else INK, middle=True)
            if tie:
                label = f"{position // 16}.5 + 3"
                yield _text(x, bottom + 27, label, 10, WRONG, middle=True)
    yield _text(24, bottom + 12, "sum of products", 12, INK)
    yield _text(24, bottom + 27, "on a tie, as reals", 10, FAINT)


def _text(
    x: int, y: int, content: str, size: int, fill: str, *, bold: bool = False, middle: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    anchor = ' text-anchor="middle"' if middle else ""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}"{weight}{anchor}>{content}</text>'
    )


if __name__ == "__main__":
    PICTURE.write_text(picture(), encoding="utf-8")
