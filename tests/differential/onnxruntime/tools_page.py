"""Networks of torch, quantized by onnxruntime's tools, in every form: what becomes of bytes.

`python -m tests.differential.onnxruntime.tools_page` writes docs/reference/onnx-tools.md.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from qir import pipeline
from qir.errors import Refused
from qir.ledger import Change, Ledger
from tests.differential.runtime import run
from tests.frontends.onnx.exports import Net, export, resnet
from tests.installed import UNOPTIMIZED

from . import ort_tools

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "onnx-tools.md"
FORMS = (
    ("onnxruntime", "qdq"),
    ("onnxruntime", "qoperator"),
    ("onnxruntime", "integer"),
    ("onnxruntime", "nbits"),
    ("onnx", "qdq"),
    ("onnx", "qoperator"),
)
FAILS = {("transformer", "qdq-float8")}
"""Network and variant: the calibrator keeps no `avg` of some tensor, which float8 asks for."""
SAME, SUMS, STEPS, NONE = "==", "sums", "steps", "-"
_NEAR = 1e-5
"""The last bits of sums, as a share of the greatest result."""
_OPSET = 21

HEAD = """# What onnxruntime's tools quantize

Made by `python -m tests.differential.onnxruntime.tools_page`: five networks as torch exports them,
quantized by each variant of `onnxruntime.quantization`
(`tests/differential/onnxruntime/ort_tools.py` has the options), read, and written in every
form for both targets. The results of what is written are compared
with those of the tool's own model, both in onnxruntime 1.31.1 on one thread with its optimizer off;
the first column compares QIR's interpreter with it.

* `==`: every byte of every result.
* `sums`: within 1e-5 of the greatest result. Float sums are computed in another order, or by
  another kernel.
* `steps`: some results differ by a step of a scale: such a last bit crossed a tie before it was
  quantized, or the form rounds at another place.
* `-`: refused in one line, as the form cannot express the model.

Wherever the bytes of a form differ the ledger says so, as `regrouped`: tests check that.
Variants with equal results share a row. Forms differ for three reasons:

1. A quantized operator multiplies by one rounded factor; QDQ form scales twice.
2. Quantized means, sums and functions have formulas of their own.
3. DynamicQuantizeLSTM and QAttention are decomposed.
"""


class Grouped(nn.Module):
    """Convolutions of groups and of each channel alone, a gate of means, a residual."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.alone = nn.Conv2d(3, 8, 3, 2, 1), nn.Conv2d(8, 8, 3, 1, 1, groups=8)
        self.groups, self.mix = nn.Conv2d(8, 16, 3, 1, 1, groups=2), nn.Conv2d(16, 8, 1)
        self.gate, self.head = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.hardtanh(self.stem(x), 0.0, 6.0)
        y = self.mix(torch.relu(self.groups(torch.relu(self.alone(x)))))
        y = y * torch.sigmoid(self.gate(y.mean((2, 3))))[:, :, None, None] + x
        result: Tensor = self.head(y.mean((2, 3)))
        return result


class Encoder(nn.Module):
    """Words, a layer of attention and its two products with norms, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(50, 16), nn.Linear(16, 6)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.head(self.layer(self.words(ids)))
        return result


class Tagger(nn.Module):
    """Words, a recurrent layer of both directions, a tag each."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.run = nn.Embedding(50, 16), nn.LSTM(16, 8, bidirectional=True)
        self.tags = nn.Linear(16, 6)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.tags(self.run(self.words(ids))[0])
        return result


class Words(nn.Module):
    """The mean of words, then two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.more, self.less = nn.Embedding(50, 32), nn.Linear(32, 64), nn.Linear(64, 4)

    def forward(self, ids: Tensor) -> Tensor:
        result: Tensor = self.less(torch.relu(self.more(self.words(ids).mean(1))))
        return result


def _ids(*shape: int) -> Tensor:
    return torch.randint(0, 50, shape)


NETS: Mapping[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "residual": (resnet, lambda: torch.randn(2, 3, 32, 32)),
    "grouped": (Grouped, lambda: torch.randn(2, 3, 12, 12)),
    "transformer": (Encoder, lambda: _ids(2, 6)),
    "lstm": (Tagger, lambda: _ids(6, 2)),
    "embedding": (Words, lambda: _ids(2, 6)),
}


@dataclass(frozen=True)
class Given:
    """A float model, batches to calibrate with, and one to compare with."""

    proto: onnx.ModelProto
    calibration: tuple[dict[str, NDArray[Any]], ...]
    feeds: dict[str, NDArray[Any]]


@cache
def given(name: str) -> Given:
    """Returns a network as torch exports it."""
    torch.manual_seed(7)
    build, data = NETS[name]
    module = build()
    net = Net(module, (data(),), ({},))
    proto = onnx.load_from_string(export(net, dynamic=False, opset=17))
    proto = onnx.version_converter.convert_version(proto, _OPSET)
    batches = [{"in0": data().numpy()} for _ in range(5)]
    return Given(proto, tuple(batches[1:]), batches[0])


@dataclass(frozen=True)
class Outcome:
    """How one variant of one network goes."""

    net: str
    variant: str
    cells: tuple[str, ...]
    """The interpreter's, then one a form."""
    silent: tuple[str, ...] = ()
    """Forms whose bytes differ though the ledger says nothing of it."""


def judged(actual: Mapping[str, NDArray[Any]], expected: Mapping[str, NDArray[Any]]) -> str:
    """How near results are."""
    worst = SAME
    for name, data in expected.items():
        if actual[name].shape != data.shape or actual[name].dtype != data.dtype:
            raise AssertionError(f"{name}: {actual[name].dtype}{actual[name].shape}")
        if actual[name].tobytes() == data.tobytes():
            continue
        distance = np.abs(actual[name].astype(np.float64) - data).max()
        is_near = distance <= _NEAR * max(float(np.abs(data).max()), 1e-30)
        worst = SUMS if is_near and worst == SAME else worst if is_near else STEPS
    return worst


def outcome(net: str, variant: str) -> Outcome | None:
    """One variant of one network; None where the tool itself fails."""
    inputs_of_net = given(net)
    try:
        proto = ort_tools.made_of(variant, inputs_of_net.proto, inputs_of_net.calibration)
    except AttributeError:
        if (net, variant) not in FAILS:
            raise
        return None
    expected = run(proto, inputs_of_net.feeds, optimize=False)
    with tempfile.TemporaryDirectory() as folder:
        source, written_path = Path(folder) / "m.onnx", Path(folder) / "made.onnx"
        onnx.save(proto, source)
        graph = pipeline.load(source)
        assert not [n for n in graph if n.op == "foreign"], f"{net}, {variant}: kept"
        cells = [judged(pipeline.run(graph, inputs_of_net.feeds, profile=UNOPTIMIZED), expected)]
        silent = []
        for target, form in FORMS:
            ledger = Ledger()
            try:
                pipeline.save(
                    graph, written_path, target=target, format=form, ledger=ledger, force=True
                )
            except Refused:
                cells.append(NONE)
                continue
            cells.append(
                judged(run(onnx.load(written_path), inputs_of_net.feeds, optimize=False), expected)
            )
            if cells[-1] != SAME and Change.REGROUPED not in ledger.counts():
                silent.append(f"{target} {form}")
    return Outcome(net, variant, tuple(cells), tuple(silent))


def outcomes(nets: Iterable[str], variants: Iterable[str]) -> Iterator[Outcome]:
    """All of them that the tools make."""
    variant_names = list(variants)
    for net in nets:
        for variant in variant_names:
            outcome_of_variant = outcome(net, variant)
            if outcome_of_variant is not None:
                yield outcome_of_variant


def page(all_outcomes: Iterable[Outcome]) -> str:
    """Returns the text of the page."""
    parts = [HEAD]
    by_net: dict[str, dict[tuple[str, ...], list[str]]] = {}
    for outcome_of_variant in all_outcomes:
        by_net.setdefault(outcome_of_variant.net, {}).setdefault(
            outcome_of_variant.cells, []
        ).append(outcome_of_variant.variant)
    titles = [f"{form}" + (", onnx" if target == "onnx" else "") for target, form in FORMS]
    for net, rows in by_net.items():
        network_class = NETS[net][0]
        title = (network_class.__doc__ or "").strip().partition("\n")[0] or net
        parts.append(f"\n## {net}\n\n{title}\n")
        parts.append(f"| variants | interpreter | {' | '.join(titles)} |")
        parts.append("|---" * (len(FORMS) + 2) + "|")
        parts += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in rows.items()]
        missing = sorted(set(ort_tools.ALL) - {v for names in rows.values() for v in names})
        if missing:
            parts.append(f"\nThe tool itself fails: {', '.join(missing)}.")
    return "\n".join(parts) + "\n"


def listed(text: str) -> dict[tuple[str, str], tuple[str, ...]]:
    """What the page says, by network and variant."""
    by_variant: dict[tuple[str, str], tuple[str, ...]] = {}
    for net, rows in re.findall(r"^## (\S+)\n(.*?)(?=^## |\Z)", text, re.M | re.S):
        for row in re.findall(r"^\| (?!variants)(.+) \|$", rows, re.M):
            names, *cells = row.split(" | ")
            by_variant |= {(net, name): tuple(cells) for name in names.split(", ")}
    return by_variant


if __name__ == "__main__":
    PAGE.write_text(page(outcomes(NETS, ort_tools.ALL)), encoding="utf-8")
