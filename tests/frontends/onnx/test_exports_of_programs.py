"""What torch's exporter makes of programs that it traced: read, run, and written back."""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
import torch

from .exports import Module, Net, nets
from .test_exports import check, foreign, made

pytest.importorskip("onnxscript")

NETS = nets()
FEW = ("bag of words", "pooled")
MARKED = [n if n in FEW else pytest.param(n, marks=pytest.mark.slow) for n in NETS]
SEQUENCES = {
    "bag of words": {"Slice", "SequenceInsert", "SequenceEmpty", "ConcatFromSequence", "Cast"}
}
"""What is kept, since nothing says how many axes the parts of a sequence have."""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """The exporter prints and warns of itself; the fast path of attention has no form in ONNX."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(logging.NOTSET)
        torch.backends.mha.set_fastpath_enabled(fast)


def export(net: Net, path: Path, *, dynamic: bool) -> bytes:
    """The model; its sizes are open where the exporter finds that they may be."""
    free = tuple({axis: torch.export.Dim.AUTO for axis in axes} or None for axes in net.open)
    shapes = (free,) if isinstance(net.module, Module) else free
    with quiet():
        torch.onnx.export(
            net.module.eval(),
            net.given,
            path,
            dynamo=True,
            verbose=False,
            external_data=False,
            input_names=[f"in{i}" for i in range(len(net.given))],
            dynamic_shapes=shapes if dynamic else None,
        )
    return path.read_bytes()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", MARKED)
def test_an_export_gives_its_numbers_and_comes_back(
    name: str, dynamic: bool, tmp_path: Path
) -> None:
    net, feed = made(name)
    if dynamic and not any(net.open):
        pytest.skip("no size of it is open")
    model = export(net, tmp_path / "e.onnx", dynamic=dynamic)
    assert onnx.load_from_string(model).producer_name == "pytorch"
    assert set(foreign(check(model, feed, tmp_path))) == SEQUENCES.get(name, set())
