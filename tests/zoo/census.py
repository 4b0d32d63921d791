"""Reads models of torchvision, timm and transformers, and compares them with PyTorch.

`python -m tests.zoo.census [-o REPORT] [--quantized] [NAME...]` needs the three libraries; it exits
with 1 where a model is not read, or computes otherwise. A name may be part of one. `--page` writes
what is found of quantized ones to docs/reference/pytorch-networks.md, and keeps its other rows.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import qir
from qir import pipeline
from qir.errors import QirError
from qir.ir.graph import Graph
from qir.target import target

from . import libraries
from .compared import TOLERANCE, compare_by_parts

TARGETS = ("pt2e", "pytorch-x86", "onnxruntime")
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "pytorch-networks.md"
HEAD = """# PyTorch networks in int8

Made by `python -m tests.zoo.census --page`, which needs torchvision, timm and transformers:
networks with random weights, those of transformers with two layers, are exported, read, calibrated
on one batch, quantized for three targets, written, and run there.

- *Float*: how far QIR's float results are from PyTorch's at most, of the largest.
- *Integer*: the share of the multiply-adds that are on integers. Products of two computed tensors,
  as attention has them, are float in PyTorch. `pt2e` has no convolutions of volumes, since inductor
  has none.
- *Integers compared*: elements of all quantized tensors. All equal the runtime's kernels, given the
  runtime's floats where a tensor is computed in float and quantized again.

A network of the census without a row was not measured here.

| network | float | integer: pt2e | pytorch-x86 | onnxruntime | integers compared |
|---|---|---|---|---|---|
"""


def main() -> int:
    """Runs the models that are asked for, one line each."""
    parser = argparse.ArgumentParser(prog="tests.zoo.census", description=__doc__)
    parser.add_argument("names", nargs="*")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("--quantized", action="store_true", help="compare integers too")
    parser.add_argument("--page", action="store_true", help="write the page of quantized ones")
    asked = parser.parse_args()
    chosen = [n for n in libraries.names() if not asked.names or any(a in n for a in asked.names)]
    rows: dict[str, object] = {}
    failed = False
    for name in chosen:
        row = examine(name, asked.quantized or asked.page)
        if asked.page and "wrong" not in row:
            write_page(name, row)
        failed |= "wrong" in row
        print(f"{name:44s} {json.dumps({k: v for k, v in row.items() if k != 'overloads'})}")
        sys.stdout.flush()
        rows[name] = row
    if asked.output:
        asked.output.write_text(json.dumps(rows, indent=1) + "\n")
    return int(failed)


def examine(name: str, quantized: bool) -> dict[str, object]:
    """Returns what is found of one model; `wrong` says what differs."""
    row: dict[str, object] = {}
    try:
        net, data = libraries.make(name)
        program = torch.export.export(net, (), data) if _keyed(net) else _exported(net, data)
    except Exception as error:
        return {"wrong": f"not exported: {type(error).__name__}: {str(error)[:200]}"}
    row["overloads"] = overloads(program)
    start = time.perf_counter()
    try:
        graph = qir.load(program)
    except QirError as error:
        return {**row, "wrong": f"not read: {error}"}
    row["seconds"] = round(time.perf_counter() - start, 2)
    if found := sorted(
        {" ".join((str(n.attrs["op"]), str(n.attrs["why"]))) for n in graph if n.op == "foreign"}
    ):
        row["wrong"] = f"foreign: {found}"
    inputs = {v.name: x.numpy() for v, x in zip(graph.inputs, data.values(), strict=True)}
    try:
        off, said = unlike(graph, inputs, wanted(net, data))
        row["float"] = off
        if said:
            return {**row, "wrong": said}
        for to in TARGETS if quantized else ():
            row[to] = integers(graph, inputs, to)
            if isinstance(row[to], str):
                row["wrong"] = to
    except (QirError, AssertionError) as error:
        return {**row, "wrong": f"{type(error).__name__}: {error}"[:400]}
    except Exception:
        return {**row, "wrong": traceback.format_exc()[-400:]}
    return row


def overloads(program: torch.export.ExportedProgram) -> dict[str, int]:
    """Returns how often a program calls each operator."""
    return dict(Counter(str(n.target) for n in program.graph.nodes if n.op == "call_function"))


def wanted(net: nn.Module, data: dict[str, Tensor]) -> list[NDArray[Any]]:
    """Returns what PyTorch computes."""
    with torch.no_grad():
        made = net(**data) if _keyed(net) else net(*data.values())
    if isinstance(made, Tensor):
        made = (made,)
    return [x.numpy() for x in (made.values() if isinstance(made, dict) else made)]


def unlike(
    graph: Graph, inputs: dict[str, NDArray[np.generic]], theirs: list[NDArray[Any]]
) -> tuple[float, str]:
    """Returns how far results are off, of the largest, and how they differ by more than floats
    may, or nothing."""
    made: list[NDArray[Any]] = [np.asarray(x) for x in qir.run(graph, inputs).values()]
    worst = 0.0
    for ours, one in zip(made, theirs, strict=True):
        if (ours.shape, ours.dtype) != (one.shape, one.dtype):
            return worst, f"{ours.dtype}{ours.shape} for {one.dtype}{one.shape}"
        largest = float(np.abs(one).max(initial=1e-30))
        if (off := float(np.abs(ours - one).max(initial=0)) / largest) > TOLERANCE or off != off:
            return off, f"off by {off:.2g} of the largest"
        worst = max(worst, off)
        axis = 1 if one.ndim == 4 else -1
        near = np.take_along_axis(one, ours.argmax(axis, keepdims=True), axis)
        if (one.max(axis, keepdims=True) - near).max() > 2 * TOLERANCE * largest:
            return worst, "another argmax"
    return worst, ""


def integers(graph: Graph, inputs: dict[str, NDArray[np.generic]], to: str) -> object:
    """Returns how many integers were compared with a runtime's, or what differs; writes a file."""
    statistics = pipeline.calibrate(graph, [inputs], feeds=True)
    made = pipeline.quantize(graph, statistics, target=to)
    with tempfile.TemporaryDirectory() as folder:
        pipeline.save(made, Path(folder) / f"int8{target(to).suffix}", target=to)
    found = compare_by_parts(target(to), made, inputs)
    if found.wrong:
        return f"of {found.total}: {found.wrong}"[:300]
    share = pipeline.plan(graph, target=to).integer_macs
    return {"integers": found.total, "share": round(float(share), 3)}


def write_page(name: str, row: dict[str, Any]) -> None:
    """Writes the row of a network to the page, in the order of names."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else HEAD
    rows = {r[1]: r[0] for r in re.finditer(r"^\| (\w+/\S+) \|.*\|$", text, re.MULTILINE)}
    shares = " | ".join(f"{row[to]['share']:.1%}".replace("%", " %") for to in TARGETS)
    compared = sum(row[to]["integers"] for to in TARGETS)
    rows[name] = f"| {name} | {row['float']:.1e} | {shares} | {compared:,} |"
    listed = [rows[each] for each in libraries.names() if each in rows]
    PAGE.write_text(HEAD + "\n".join(listed) + "\n", encoding="utf-8")


def _keyed(net: nn.Module) -> bool:
    return isinstance(net, libraries.Keyed)


def _exported(net: nn.Module, data: dict[str, Tensor]) -> torch.export.ExportedProgram:
    return torch.export.export(net, tuple(data.values()))


if __name__ == "__main__":
    raise SystemExit(main())
