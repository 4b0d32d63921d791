"""Networks of attention, recurrent layers, norms and convolutions: integers equal, floats near.

Where floats are rounded to integers, both sides go on from onnxruntime's: so that every later
operator on integers is held to the byte, however deep it stands.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qir import pipeline
from qir.ir.node import Value
from qir.reference.interpreter import run

from . import runtime
from .onnxruntime.contrib import kept, loaded
from .onnxruntime.test_contrib_networks import BOUND, STATE, held
from .texts import Text


def agrees(seed: int) -> set[str]:
    net = Text(seed)
    made = net.grown(6 + seed % 7)
    theirs = made.judged()
    graph = loaded(made.proto)
    assert not kept(graph), f"seed {seed}: {kept(graph)}"
    ops = {n.op_type for n in made.proto.graph.node}
    soft = {name: theirs[name] for name, real in net.rounds.items() if not net.shown[real]}

    def handed(value: Value, data: Any) -> Any:
        if value.name not in soft:
            return None
        far = np.abs(data.astype(int) - soft[value.name].astype(int))
        most, share = (int(STATE * 256), 1) if value.name in net.loose else (1, 50)
        assert far.max() <= most, f"seed {seed}: {value.name} by {far.max()} codes"
        assert np.count_nonzero(far) <= 1 + far.size // share, f"seed {seed}: {value.name}"
        return soft[value.name]

    mine = run(graph, dict(made.feeds), observe=handed)
    for name, data in theirs.items():
        assert mine[name].dtype == data.dtype, f"seed {seed}: {name}"
        assert mine[name].shape == data.shape, f"seed {seed}: {name}"
        bound = STATE if name in net.loose else BOUND
        exact = net.shown.get(name, True)
        held(mine[name], data, None if exact else bound, f"seed {seed}: {name}")
    return ops


@pytest.mark.parametrize("chunk", range(4))
def test_networks_on_words_agree(chunk: int) -> None:
    seen: set[str] = set()
    for seed in range(chunk * 6, (chunk + 1) * 6):
        seen |= agrees(seed)
    assert seen >= {"QLinearSoftmax", "Gather", "DynamicQuantizeLSTM", "MatMulNBits"}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10, 30))
def test_many_more_networks_on_words_agree(chunk: int) -> None:
    for seed in range(chunk * 20, (chunk + 1) * 20):
        agrees(seed)


# -- in every form --------------------------------------------------------------------------------


def integer_ops(proto: onnx.ModelProto) -> Counter[str]:
    """The operators on integers."""
    return Counter(n.op_type for n in proto.graph.node if n.op_type.startswith("QLinear"))


def far(net: Text, theirs: dict[str, Any], mine: dict[str, Any]) -> str:
    """What differs and may not; empty where nothing does."""
    if any((theirs[name] != mine[name]).any() for name in net.rounds):
        return "a tie"  # what hangs on it moves
    for name, data in theirs.items():
        if name not in net.shown:
            if mine[name].tobytes() != data.tobytes():
                return f"{name}: {np.count_nonzero(mine[name] != data)} of {data.size}"
        elif np.abs(mine[name] - data).max() > BOUND * np.abs(data).max():
            return str(name)
    return ""


def forms(seed: int, folder: Path) -> bool:
    """To another form and back: the same operators on integers and the same bytes of them.

    False where a sum of floats in another order came to lie on the other side of a tie.
    """
    net = Text(seed, fixed=True)
    made = net.grown(6 + seed % 7)
    theirs = made.judged()
    source, there, back = (folder / f"{n}.onnx" for n in ("m", "there", "back"))
    onnx.save(made.proto, source)
    for form, target in (("qdq", "onnxruntime"), ("integer", "onnxruntime"), ("qdq", "onnx")):
        where = f"seed {seed}, {form}, {target}"
        pipeline.save(pipeline.load(source), there, format=form, target=target, force=True)
        assert not integer_ops(onnx.load(there)) or form == "integer", where
        runtime.run(onnx.load(there), made.feeds, optimize=False)
        pipeline.save(pipeline.load(there), back, format="qoperator", force=True)
        again = onnx.load(back)
        assert integer_ops(again) == integer_ops(made.proto), where
        found = far(net, theirs, runtime.run(again, made.feeds, optimize=False))
        if found == "a tie":
            return False
        assert not found, f"{where}: {found}"
    return True


def test_networks_go_to_another_form_and_back(tmp_path: Path) -> None:
    assert sum(forms(seed, tmp_path) for seed in range(4)) >= 3


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("chunk", range(10))
def test_many_more_networks_go_to_another_form_and_back(tmp_path: Path, chunk: int) -> None:
    assert sum(forms(100 + 10 * chunk + i, tmp_path) for i in range(10)) >= 6
